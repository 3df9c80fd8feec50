"""Landmine (Xue, Liao, Carin and Krishnapuram, 2007): features of radar images of 29 fields, each with mines or not.

One MATLAB file (version 5): ``feature`` and ``label`` are cells, one for each field, with a row for each object.
"""

from __future__ import annotations

import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.capacity import refuse_larger
from fedloom.data.published import Published, content, damaged, obtain, shortfall
from fedloom.data.register import SOURCES
from fedloom.data.scaling import By, Kind, Scaling
from fedloom.data.table import Table
from fedloom.errors import DataError

LANDMINE = Published(
    "landmine",
    "LandmineData.mat",
    (),
    "2163ab20a80e33a8b65593c48cf283c540599dcb291105e63fa4af2ce24c2bea",
    1_085_456,
    "http://www.ee.duke.edu/~lcarin/LandmineData.zip (unpacked)",
)
_FIELDS, _FEATURES = 29, 9
_HEAD, _COMPRESSED = 128, 15


@SOURCES.register(
    "landmine",
    task="binary",
    rows="14,820",
    features="9",
    origin="Xue, Liao, Carin and Krishnapuram, Multi-task learning (2007)",
    licence="research use, no licence stated",
    natural=True,
    files=lambda: [_checked()],
)
def landmine(scaling: Kind = "standard", scaling_by: By = "all") -> Table:
    """Mine or not, from radar images of 29 fields.

    Nine features of each object that the radar saw, and whether it was a mine (1, 6 % of them) or not (0). The fields
    1 to 15 are overgrown, 16 to 29 bare. Natural clients are the fields.
    """
    path = _checked()
    fields = _read(path)
    sizes = torch.tensor([len(y) for _, y in fields])
    return Table(
        "landmine",
        torch.from_numpy(np.concatenate([x for x, _ in fields])).float(),
        torch.from_numpy(np.concatenate([y for _, y in fields])).float().unsqueeze(1),
        "binary",
        ("clutter", "mine"),
        groups=torch.repeat_interleave(torch.arange(len(fields)), sizes),
        group_names=tuple(f"field {number}" for number in range(1, len(fields) + 1)),
        scaling=Scaling(scaling, scaling_by),
        notes=shortfall(len(fields), _FIELDS, "fields"),
    )


def _checked() -> Path:
    path = obtain(LANDMINE)
    content(path, LANDMINE)
    return path


def _read(path: Path) -> list[tuple[Any, Any]]:
    """Features and labels of each field, once their shapes are what they should be."""
    from scipy.io import loadmat, whosmat

    _refuse_bomb(path)
    try:
        shapes = {name: shape for name, shape, kind in whosmat(path) if kind == "cell"}
        if max((math.prod(shape) for shape in shapes.values()), default=0) > path.stat().st_size:
            raise damaged(path, f"its cells say that they have shapes {shapes}, which it cannot hold")
        found = loadmat(path, variable_names=("feature", "label"), chars_as_strings=False)
    except DataError:
        raise
    except Exception as error:  # scipy raises whatever a damaged file leads it to
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise damaged(path, f"it cannot be read as a MATLAB file ({why})") from error
    cells = [found.get(name) for name in ("feature", "label")]
    if any(not isinstance(cell, np.ndarray) or cell.dtype != object for cell in cells):
        raise damaged(path, "it has no cells 'feature' and 'label'")
    features, labels = (list(np.ravel(cell)) for cell in cells)
    if len(features) != len(labels) or not features:
        raise damaged(path, f"it has features of {len(features)} fields and labels of {len(labels)}")
    for number, (x, y) in enumerate(zip(features, labels, strict=True), 1):
        plain = all(isinstance(part, np.ndarray) and part.dtype.kind in "fiu" for part in (x, y))
        if not plain or x.ndim != 2 or x.shape[1] != _FEATURES or y.size != len(x) or y.size == 0:
            raise damaged(path, f"field {number} is not a table of {_FEATURES} features with a label for each row")
        if not np.isfinite(x).all() or not np.isin(y, (0, 1)).all():
            raise damaged(path, f"field {number} has a feature that is not finite, or a label that is neither 0 nor 1")
    return [(x.astype(np.float64), y.reshape(-1).astype(np.float64)) for x, y in zip(features, labels, strict=True)]


def _refuse_bomb(path: Path) -> None:
    """Refuses a file that would be more than the machine holds once it is unpacked."""
    data = path.read_bytes()
    order, at, needed = "<" if data[126:128] == b"IM" else ">", _HEAD, len(data)
    while at + 8 <= len(data):
        kind, size = struct.unpack_from(f"{order}2I", data, at)
        if kind == _COMPRESSED:
            needed += _unpacked(path, data[at + 8 : at + 8 + size])
        at += 8 + size
    refuse_larger(needed, str(path), "Give the published file.", DataError)


def _unpacked(path: Path, packed: bytes) -> int:
    """How many bytes come out, of which never more than a few are kept."""
    unpack, length = zlib.decompressobj(), 0
    try:
        while packed:
            length += len(unpack.decompress(packed, 1 << 20))
            refuse_larger(length, f"{path}, as far as it was unpacked", "Give the published file.", DataError)
            packed = unpack.unconsumed_tail
    except zlib.error as error:
        raise damaged(path, f"it cannot be unpacked ({error})") from error
    return length
