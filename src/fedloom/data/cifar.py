"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), the binary version: records of label bytes and 3,072 planar RGB bytes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fedloom.data.images import Scaling, image_table
from fedloom.data.published import Published, damaged, obtain_archive, shortfall
from fedloom.data.register import SOURCES
from fedloom.data.table import Table
from fedloom.errors import DataError

_PIXELS = 3 * 32 * 32
_BATCHES = tuple(f"data_batch_{k}.bin" for k in range(1, 6))
_MIRRORS = ("https://www.cs.toronto.edu/~kriz/",)
CIFAR10 = Published("cifar10", "cifar-10-binary.tar.gz", _MIRRORS, "c32a1d4ab5d03f1284b67883e8d87530", 170_052_171)
CIFAR100 = Published("cifar100", "cifar-100-binary.tar.gz", _MIRRORS, "03b5dce01913d631647c71ecec9e9cb8", 168_513_733)
THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


_register = partial(
    SOURCES.register,
    task="classification",
    rows="50,000 + 10,000",
    features="3x32x32",
    origin="Krizhevsky (2009)",
    licence="research use, no licence stated",
)


@_register("cifar10", files=lambda: [cifar10_folder()])
def cifar10(scaling: Scaling = "unit") -> Table:
    """Photos of ten kinds of things.

    50,000 + 10,000 of 32x32 pixels in 10 classes; a folder with fewer data batches gives those there.
    """
    folder = cifar10_folder()
    files = [folder / file for file in _BATCHES if (folder / file).is_file()]
    notes = shortfall(len(files), len(_BATCHES), "data batches")
    return _table("cifar10", [*(files or [folder / _BATCHES[0]]), folder / "test_batch.bin"], THINGS, 1, scaling, notes)


@_register("cifar100", files=lambda: [cifar100_folder()])
def cifar100(scaling: Scaling = "unit") -> Table:
    """Photos of a hundred kinds of things.

    50,000 + 10,000 of 32x32 pixels in 100 fine classes (the 20 coarse ones are not read).
    """
    folder = cifar100_folder()
    names = _names(folder / "fine_label_names.txt")
    return _table("cifar100", [folder / "train.bin", folder / "test.bin"], names, 2, scaling)


def cifar10_folder() -> Path:
    """Where the files of CIFAR-10 are, after a download if need be."""
    return obtain_archive(CIFAR10, (*_BATCHES, "test_batch.bin"))


def cifar100_folder() -> Path:
    """Where the files of CIFAR-100 are, after a download if need be."""
    return obtain_archive(CIFAR100, ("fine_label_names.txt", "train.bin", "test.bin"))


def _table(
    name: str,
    files: list[Path],
    classes: tuple[str, ...],
    label_bytes: int,
    scaling: Scaling,
    notes: tuple[str, ...] = (),
) -> Table:
    """The records of all files, of which the last has the test rows."""
    records = [_read_records(path, label_bytes, len(classes)) for path in files]
    rows = np.concatenate(records)
    pixels, labels = rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label_bytes - 1]
    tested = torch.arange(len(rows)) >= len(rows) - len(records[-1])
    return image_table(name, pixels, labels, classes, scaling, notes, published_split=tested)


def _read_records(path: Path, label_bytes: int, classes: int) -> npt.NDArray[np.uint8]:
    """The records of one file; the last label byte is the fine class."""
    if not path.is_file():
        raise DataError(f"{path} is missing; put the published file there, or take its folder away for a download")
    size, data = label_bytes + _PIXELS, path.read_bytes()
    if not data or len(data) % size:
        raise damaged(path, f"its {len(data)} bytes are not a number of records of {size} bytes")
    records = np.frombuffer(data, np.uint8).reshape(-1, size)
    highest = int(records[:, label_bytes - 1].max())
    if highest >= classes:
        raise damaged(path, f"it has a label {highest}, above {classes - 1}")
    return records


def _names(path: Path) -> tuple[str, ...]:
    """The hundred names of the fine classes; without their file, their numbers."""
    names = tuple(path.read_text().split()) if path.is_file() else ()
    return names if len(names) == 100 else tuple(str(k) for k in range(100))
