"""Tensors as bytes: the dtypes that files and messages know by name, and the one way to bytes and back."""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Bytes = npt.NDArray[np.uint8]

SAFETENSORS = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}
"""The dtypes that every reader of safetensors has, and what they are called there."""


def name_of(dtype: torch.dtype) -> str:
    """A dtype in a word: "float32"."""
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """The dtype of that name, which ``name_of`` gave."""
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no kind of number")
    return dtype


def to_bytes(tensor: Tensor) -> Bytes:
    """The bytes of a tensor, row by row, the least significant byte of each number first; a view where that can be."""
    flat = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous().reshape(-1)
    flat = flat.as_strided(flat.shape, (1,))  # a single number counts as contiguous with any stride
    return _little_endian(flat.view(torch.uint8).numpy(), tensor.dtype)


def from_bytes(data: Bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """The tensor of these bytes, which it shares where that can be."""
    return torch.from_numpy(_little_endian(data.reshape(-1), dtype)).view(dtype).reshape(shape)


def _little_endian(data: Bytes, dtype: torch.dtype) -> Bytes:
    """Between the order of this machine's bytes and that of files and messages: the same turn both ways."""
    if sys.byteorder == "little":
        return data
    size = dtype.itemsize // 2 if dtype.is_complex else dtype.itemsize
    return np.ascontiguousarray(data.reshape(-1, size)[:, ::-1]).reshape(-1)
