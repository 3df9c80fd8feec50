"""MNIST, Fashion-MNIST and QMNIST: the idx files of LeCun, Cortes and Burges (1998) and those who kept their format.

An idx file is a magic number (two zero bytes, the type, the number of dimensions), the dimensions as big-endian
32-bit numbers, then the values in C order.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from fedloom.data.images import SCALINGS, Scaling, scaled
from fedloom.data.published import Published, content, damaged, obtain
from fedloom.data.register import SOURCES
from fedloom.data.table import Table
from fedloom.errors import ConfigError, DataError

DIGITS = tuple(str(k) for k in range(10))
GARMENTS = (
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
Whole = npt.NDArray[Any]
"""An array of whole numbers, of the type that its file says."""

_TYPES: dict[int, np.dtype[Any]] = {8: np.dtype("uint8"), 12: np.dtype(">i4")}
_LENGTHS = (47_040_016, 60_008, 7_840_016, 10_008)
_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def _four(folder: str, mirrors: tuple[str, ...], checksums: tuple[str, ...]) -> tuple[Published, ...]:
    return tuple(Published(folder, *parts) for parts in zip(_FILES, [mirrors] * 4, checksums, _LENGTHS, strict=True))


MNIST = _four(
    "mnist",
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    (
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
)
FASHION_MNIST = _four(
    "fashion-mnist",
    (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    (
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
)
QMNIST = tuple(
    Published("qmnist", file, ("https://raw.githubusercontent.com/facebookresearch/qmnist/master/",), md5, 1_920_012)
    for file, md5 in (
        ("qmnist-train-labels-idx2-int.gz", "1d43300e7f41ddcbf7fd006cbe865af9"),
        ("qmnist-test-labels-idx2-int.gz", "5e00709fb0090091f3afc51d204ad83c"),
    )
)


@SOURCES.register(
    "mnist",
    summary="handwritten digits",
    task="classification",
    rows="60,000 + 10,000",
    features="1x28x28",
    origin="LeCun, Cortes and Burges (1998)",
    licence="research use; CC BY-SA 3.0 is usually stated",
    files=lambda: _checked(MNIST),
)
def mnist(scaling: Scaling = "unit") -> Table:
    """60,000 + 10,000 handwritten digits of 28x28 pixels."""
    return _images("mnist", MNIST, DIGITS, scaling)


@SOURCES.register(
    "fashion-mnist",
    summary="photos of garments",
    task="classification",
    rows="60,000 + 10,000",
    features="1x28x28",
    origin="Xiao, Rasul and Vollgraf (2017)",
    licence="MIT",
    files=lambda: _checked(FASHION_MNIST),
)
def fashion_mnist(scaling: Scaling = "unit") -> Table:
    """60,000 + 10,000 photos of garments of 28x28 pixels (Xiao, Rasul and Vollgraf, 2017)."""
    return _images("fashion-mnist", FASHION_MNIST, GARMENTS, scaling)


@SOURCES.register(
    "qmnist",
    summary="MNIST's digits by their 539 writers",
    task="classification",
    rows="60,000 (+ 10,000 by 297 others)",
    features="1x28x28",
    origin="Yadav and Bottou (2019), with MNIST's images",
    licence="BSD 3-clause (labels); as mnist (images)",
    natural=True,
    files=lambda: _checked((*MNIST, *QMNIST)),
)
def qmnist(part: Literal["train", "test", "all"] = "train", scaling: Scaling = "unit") -> Table:
    """MNIST by writer: QMNIST (Yadav and Bottou, 2019) found out who wrote each digit, here its natural client.

    539 people wrote the training digits, 297 others the 10,000 test digits; ``part`` says whose rows to take.
    """
    if part not in ("train", "test", "all"):
        raise ConfigError(f"qmnist has no part {part!r}; choose train, test or all")
    parts = ("train", "test") if part == "all" else (part,)
    pairs = [_written(split) for split in parts]
    pixels, cards = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
    writers, groups = np.unique(cards[:, 2], return_inverse=True)
    tested = torch.arange(len(cards)) >= len(pairs[0][0]) if part == "all" else None
    return Table(
        "qmnist",
        scaled(pixels[:, None], scaling),
        torch.from_numpy(cards[:, 0].astype(np.int64)),
        "classification",
        DIGITS,
        groups=torch.from_numpy(groups.astype(np.int64)),
        group_names=tuple(f"writer {writer}" for writer in writers),
        published_split=tested,
        ids=torch.from_numpy(cards[:, 5].astype(np.int64)),
        notes=(SCALINGS[scaling],),
    )


def _checked(files: tuple[Published, ...]) -> list[Path]:
    """Where the files are, after a download if need be, their content being what it should be."""
    paths = [obtain(file) for file in files]
    for path, file in zip(paths, files, strict=True):
        content(path, file)
    return paths


def _written(split: str) -> tuple[Whole, Whole]:
    """MNIST's images of a split and QMNIST's cards for them (column 0 the digit, 2 the writer, 5 NIST's number)."""
    images, labels = (MNIST[0], QMNIST[0]) if split == "train" else (MNIST[2], QMNIST[1])
    pixels, cards = _idx(images, 3), _idx(labels, 2)
    if len(cards) < len(pixels):
        raise DataError(
            f"qmnist: {labels.file} has {len(cards)} rows for {len(pixels)} images of {images.file}; "
            "the two do not belong together, take both from their publishers"
        )
    return pixels, cards[: len(pixels)]


def _images(name: str, files: tuple[Published, ...], classes: tuple[str, ...], scaling: Scaling) -> Table:
    pixels, labels = _pair(files[0], files[1])
    test_pixels, test_labels = _pair(files[2], files[3])
    x = scaled(np.concatenate([pixels, test_pixels])[:, None], scaling)
    y = torch.from_numpy(np.concatenate([labels, test_labels]).astype(np.int64))
    tested = torch.arange(len(y)) >= len(labels)
    return Table(name, x, y, "classification", classes, published_split=tested, notes=(SCALINGS[scaling],))


def _pair(images: Published, labels: Published) -> tuple[Whole, Whole]:
    pixels, values = _idx(images, 3), _idx(labels, 1)
    if len(pixels) != len(values):
        raise DataError(
            f"{images.folder}: {images.file} has {len(pixels)} images but {labels.file} {len(values)} labels; "
            "take both from the same publisher"
        )
    if values.max() > 9:
        raise damaged(obtain(labels), f"it has a label {values.max()}, above 9")
    return pixels, values


def _idx(published: Published, dimensions: int) -> Whole:
    path = obtain(published)
    return read_idx(path, content(path, published), dimensions)


def read_idx(path: Path, data: bytes, dimensions: int) -> Whole:
    """The array of an idx file's bytes, once magic number, dimensions and length agree."""
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES or data[3] != dimensions:
        raise damaged(
            path, f"it begins with {data[:4].hex() or 'nothing'}, not as an idx file of {dimensions} dimensions"
        )
    header, dtype = 4 + 4 * dimensions, _TYPES[data[2]]
    shape = tuple(int(k) for k in np.frombuffer(data[4:header], ">u4"))
    expected = header + math.prod(shape) * dtype.itemsize
    if len(shape) != dimensions or len(data) != expected or 0 in shape:
        raise damaged(path, f"it has {len(data)} bytes where its header of {shape} asks for {expected}")
    values: Whole = np.frombuffer(data, dtype, offset=header).reshape(shape)
    return values
