"""Tensors in one safetensors file with a checksum over every byte of it.

The file is ordinary safetensors (any reader opens it), written here piece by piece: nothing is held twice in
memory, a full disk is an ordinary OSError, and single rows can be read back without the rest.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from fedloom.errors import RunError
from fedloom.storage.files import guarded
from fedloom.storage.tensors import SAFETENSORS

VERSION = "1"
_BLANK = "0" * 64
_PIECE = 1 << 20


@dataclass(frozen=True)
class Column:
    """A tensor of the file: its name, its dtype (one that safetensors has), its shape."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """How many bytes its numbers take."""
        return self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class Header:
    """What stands before the numbers: where each tensor begins in the file, the texts, the checksum."""

    offsets: dict[str, int]
    texts: dict[str, str]
    checksum: str


def write(
    file: BinaryIO, kind: str, columns: list[Column], pieces: Iterable[npt.NDArray[Any]], texts: dict[str, str]
) -> Header:
    """Writes the columns, whose bytes ``pieces`` gives one after the other.

    ``kind`` says what the file is for; opening it as another kind is refused.
    """
    described: dict[str, Any] = {"__metadata__": {"checksum": _BLANK, "kind": kind, "version": VERSION, **texts}}
    end = 0
    for column in columns:
        start, end = end, end + column.nbytes
        described[column.name] = {
            "dtype": SAFETENSORS[column.dtype],
            "shape": column.shape,
            "data_offsets": [start, end],
        }
    header = json.dumps(described, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    head = len(header).to_bytes(8, "little") + header
    offsets = {column.name: len(head) + described[column.name]["data_offsets"][0] for column in columns}
    digest = hashlib.sha256(head)
    file.write(head)
    for piece in pieces:
        data = np.ascontiguousarray(piece).data.cast("B") if piece.size else b""
        digest.update(data)
        file.write(data)
    checksum = digest.hexdigest()
    file.seek(head.index(_BLANK.encode()))
    file.write(checksum.encode())
    return Header(offsets, texts, checksum)


def check(path: Path, kind: str, remedy: str) -> Header:
    """Reads the header and verifies every byte of the file, or raises a RunError that ends with ``remedy``."""
    with guarded(path):
        try:
            file = open(path, "rb")  # noqa: SIM115
        except FileNotFoundError:
            raise RunError(f"{path} is missing. {remedy}") from None
        with file:
            head, header = _head(file, path, kind, remedy)
            digest = hashlib.sha256(head.replace(header.checksum.encode(), _BLANK.encode(), 1))
            while data := file.read(_PIECE):
                digest.update(data)
    if digest.hexdigest() != header.checksum:
        raise RunError(f"{path} is damaged: its checksum does not fit its content. {remedy}")
    return header


def _head(file: BinaryIO, path: Path, kind: str, remedy: str) -> tuple[bytes, Header]:
    """The raw beginning of a file, and what it says, as far as it can be known without the checksum."""
    size = os.fstat(file.fileno()).st_size
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    if size < 8 or length > size - 8:
        raise RunError(f"{path} is cut off or is no safetensors file ({size} bytes). {remedy}")
    header = file.read(length)
    try:
        described = json.loads(header)
        texts = described.pop("__metadata__")
        found, version, checksum = texts["kind"], texts["version"], texts["checksum"]
        ends = {name: entry["data_offsets"] for name, entry in described.items()}
        offsets = {name: 8 + length + int(start) for name, (start, _) in ends.items()}
        whole = 8 + length + max((int(end) for _, end in ends.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        raise RunError(
            f"{path} is damaged, or was not written by fedloom: its header is unreadable. {remedy}"
        ) from None
    if found != kind:
        raise RunError(f"{path} is a {found!r} file where a {kind!r} file is needed. {remedy}")
    if version != VERSION:
        raise RunError(
            f"{path} has format version {version}, this fedloom reads version {VERSION}: use the fedloom that wrote it."
        )
    if whole != size:
        raise RunError(f"{path} is cut off or overlong: {size} bytes where its header says {whole}. {remedy}")
    return prefix + header, Header(offsets, texts, str(checksum))
