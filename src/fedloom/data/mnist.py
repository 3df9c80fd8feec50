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
from torch import Tensor

from fedloom.data.images import Scaling, image_table
from fedloom.data.published import Published, content, damaged, obtain
from fedloom.data.register import SOURCES
from fedloom.data.table import Table
from fedloom.errors import DataError

DIGITS = tuple(str(k) for k in range(10))
GARMENTS = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
Whole = npt.NDArray[Any]
"""An array of whole numbers, of the type that its file says."""

_TYPES: dict[int, np.dtype[Any]] = {8: np.dtype("uint8"), 12: np.dtype(">i4")}
_FILES = {
    "train-images-idx3-ubyte.gz": 47_040_016,
    "train-labels-idx1-ubyte.gz": 60_008,
    "t10k-images-idx3-ubyte.gz": 7_840_016,
    "t10k-labels-idx1-ubyte.gz": 10_008,
}


def _four(folder: str, mirrors: tuple[str, ...], checksums: tuple[str, ...]) -> tuple[Published, ...]:
    files = zip(_FILES.items(), checksums, strict=True)
    return tuple(Published(folder, file, mirrors, checksum, length) for (file, length), checksum in files)


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
    task="classification",
    rows="60,000 + 10,000",
    features="1x28x28",
    origin="LeCun, Cortes and Burges (1998)",
    licence="research use; CC BY-SA 3.0 is usually stated",
    files=lambda: _checked(MNIST),
)
def mnist(scaling: Scaling = "unit") -> Table:
    """Handwritten digits.

    60,000 + 10,000 of 28x28 pixels.
    """
    pixels, labels, tested = _read(MNIST[::2], MNIST[1::2])
    return image_table("mnist", pixels, labels, DIGITS, scaling, published_split=tested)


@SOURCES.register(
    "fashion-mnist",
    task="classification",
    rows="60,000 + 10,000",
    features="1x28x28",
    origin="Xiao, Rasul and Vollgraf (2017)",
    licence="MIT",
    files=lambda: _checked(FASHION_MNIST),
)
def fashion_mnist(scaling: Scaling = "unit") -> Table:
    """Photos of garments.

    60,000 + 10,000 of 28x28 pixels (Xiao, Rasul and Vollgraf, 2017).
    """
    pixels, labels, tested = _read(FASHION_MNIST[::2], FASHION_MNIST[1::2])
    return image_table("fashion-mnist", pixels, labels, GARMENTS, scaling, published_split=tested)


@SOURCES.register(
    "qmnist",
    task="classification",
    rows="60,000 (+ 10,000 by 297 others)",
    features="1x28x28",
    origin="Yadav and Bottou (2019), with MNIST's images",
    licence="BSD 3-clause (labels); as mnist (images)",
    natural=True,
    files=lambda: _checked((*MNIST, *QMNIST)),
)
def qmnist(part: Literal["train", "test", "all"] = "train", scaling: Scaling = "unit") -> Table:
    """MNIST's digits by their 539 writers.

    QMNIST (Yadav and Bottou, 2019) found out who wrote each digit of MNIST, here its natural client. 539 people wrote
    the training digits, 297 others the 10,000 test digits; ``part`` says whose rows to take.
    """
    chosen = {"train": slice(1), "test": slice(1, 2), "all": slice(2)}[part]
    pixels, cards, tested = _read(MNIST[::2][chosen], QMNIST[chosen])
    writers, groups = np.unique(cards[:, 2], return_inverse=True)
    return image_table(
        "qmnist",
        pixels,
        cards[:, 0],
        DIGITS,
        scaling,
        groups=torch.from_numpy(groups.astype(np.int64)),
        group_names=tuple(f"writer {writer}" for writer in writers),
        published_split=tested if part == "all" else None,
        ids=torch.from_numpy(cards[:, 5].astype(np.int64)),
    )


def _checked(files: tuple[Published, ...]) -> list[Path]:
    """Where the files are, after a download if need be, their content being what it should be."""
    paths = [obtain(file) for file in files]
    for path, file in zip(paths, files, strict=True):
        content(path, file)
    return paths


def _read(images: tuple[Published, ...], labels: tuple[Published, ...]) -> tuple[Whole, Whole, Tensor]:
    """The images of some files, what is known of each, and which of them are not of the first file.

    MNIST knows one label of an image. QMNIST has a card for each (column 0 the digit, 2 the writer, 5 NIST's number),
    and cards for test digits that are not in MNIST.
    """
    pairs = [_pair(*files) for files in zip(images, labels, strict=True)]
    pixels, known = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
    return pixels[:, None], known, torch.arange(len(known)) >= len(pairs[0][0])


def _pair(images: Published, labels: Published) -> tuple[Whole, Whole]:
    cards = labels.folder == "qmnist"
    pixels, known = _idx(images, 3), _idx(labels, 2 if cards else 1)
    if len(known) < len(pixels) or (len(known) > len(pixels) and not cards):
        raise DataError(
            f"{labels.folder}: {images.file} has {len(pixels)} images but {labels.file} {len(known)} labels; "
            "the two do not belong together, take both from their publishers"
        )
    highest = int((known[:, 0] if cards else known).max())
    if highest > 9:
        raise damaged(obtain(labels), f"it has a label {highest}, above 9")
    return pixels, known[: len(pixels)]


def _idx(published: Published, dimensions: int) -> Whole:
    """The array of an idx file, once magic number, dimensions and length agree."""
    path = obtain(published)
    data = content(path, published)
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
