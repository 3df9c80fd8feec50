"""Vehicle (Duarte and Hu, 2004): what 23 sensors at a road heard and felt of two kinds of vehicles.

One JSON file in LEAF's layout: ``users``, ``num_samples`` and ``user_data``, of each user ``x`` and ``y``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.capacity import refuse_larger
from fedloom.data.published import Published, damaged, obtain, shortfall
from fedloom.data.register import SOURCES
from fedloom.data.scaling import By, Kind, Scaling
from fedloom.data.sizes import Floats
from fedloom.data.table import Table
from fedloom.errors import DataError

VEHICLE = Published(
    "vehicle", "mytrain.json", (), "", page="https://github.com/litian96/ditto (data/vehicle/data/train/mytrain.json)"
)
CLASSES = ("-1", "1")
_SENSORS, _FEATURES = 23, 100
_TIMES = 12  # how many times its own length a file of numbers takes once it is read


@SOURCES.register(
    "vehicle",
    task="binary",
    rows="about 80 a sensor",
    features="100",
    origin="Duarte and Hu, Vehicle classification in distributed sensor networks (2004), as in Li et al., Ditto (2021)",
    licence="research use, no licence stated",
    natural=True,
    files=lambda: [obtain(VEHICLE)],
)
def vehicle(scaling: Kind = "standard", scaling_by: By = "all") -> Table:
    """Which of two vehicles passed each of 23 sensors.

    100 acoustic and seismic features of a vehicle that passes a sensor, and which of two kinds it was (-1 or 1). The
    file is the training part of those who published it; its rows are split anew. Natural clients are the sensors.
    """
    path = obtain(VEHICLE)
    sensors = _read(path)
    parts = [_sensor(path, name, rows) for name, rows in sensors]
    return Table(
        "vehicle",
        torch.from_numpy(np.concatenate([x for x, _ in parts])).float(),
        torch.from_numpy(np.concatenate([y for _, y in parts])).float().unsqueeze(1),
        "binary",
        CLASSES,
        groups=torch.repeat_interleave(torch.arange(len(parts)), torch.tensor([len(y) for _, y in parts])),
        group_names=tuple(name for name, _ in sensors),
        scaling=Scaling(scaling, scaling_by),
        notes=shortfall(len(parts), _SENSORS, "sensors"),
    )


def _read(path: Path) -> list[tuple[str, Any]]:
    """The sensors in the order of the file, and what it has of each."""
    size = path.stat().st_size
    refuse_larger(_TIMES * size, str(path), "Give the published file.", DataError)
    try:
        known = json.loads(path.read_bytes())
    except RecursionError:
        raise damaged(path, "it is nested too deep") from None
    except ValueError as error:  # what json raises is one, and so is a text that is not UTF-8
        raise damaged(path, f"it cannot be read as JSON ({error})") from error
    users = known.get("users") if isinstance(known, dict) else None
    data = known.get("user_data") if isinstance(known, dict) else None
    if not isinstance(users, list) or not isinstance(data, dict) or not users:
        raise damaged(path, "it has no list 'users' and no table 'user_data', as LEAF's files do")
    for place, name in enumerate(users):
        if not isinstance(name, str) or not isinstance(data.get(name), dict) or name in users[:place]:
            raise damaged(path, f"its user {str(name)[:40]!r} is there twice or has no rows in 'user_data'")
    return [(name, data[name]) for name in users]


def _sensor(path: Path, name: str, rows: dict[str, Any]) -> tuple[Floats, Floats]:
    """The features of one sensor's rows, and the class of each as 0 or 1."""
    try:
        x, y = (np.asarray(rows.get(key), dtype=np.float64) for key in "xy")
    except (TypeError, ValueError, OverflowError):
        raise damaged(
            path, f"x or y of {name!r} has something that is no number, or rows of different lengths"
        ) from None
    if x.ndim != 2 or x.shape[1] != _FEATURES or y.shape != x.shape[:1] or len(y) == 0:
        raise damaged(path, f"{name!r} has x of shape {x.shape} and y of {y.shape}, not {_FEATURES} features a label")
    if not np.isfinite(x).all() or not np.isin(y, (-1, 1)).all():
        raise damaged(path, f"{name!r} has a feature that is not finite, or a label that is neither -1 nor 1")
    return x, (y + 1) / 2
