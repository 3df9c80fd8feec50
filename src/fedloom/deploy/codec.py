"""Messages as Flower carries them: tensors as arrays of raw little-endian bytes, everything else as JSON. No pickle.

What is decoded came over a network: a dtype, a shape or a size that is not exactly as it must be is refused.
"""

from __future__ import annotations

import json
import math
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedloom.errors import MessageError
from fedloom.storage.tensors import SAFETENSORS, from_bytes, name_of, to_bytes

LIMIT = 8 << 30
"""Bytes that a message may have unless another limit is given."""
_MOST_TEXT = 16 << 20  # characters of a message's numbers and words
_MOST_ARRAYS = 10_000
_MOST_AXES = 16
_MOST_DEPTH = 8
_ARRAYS, _REST = "arrays", "rest"
_TENSOR, _NDARRAY = "fedloom.tensor", "fedloom.ndarray"
_DTYPES = {name_of(dtype): dtype for dtype in SAFETENSORS}

Tree = dict[str, Any]
"""Tensors, NumPy arrays, numbers, words, None and lists of these words, in dicts in dicts."""


def encode(tree: Tree) -> RecordDict:
    """A tree of tensors, arrays, numbers and words as Flower's records."""
    arrays: dict[str, Array] = {}
    rest = _without_arrays(tree, (), arrays)
    return RecordDict({_ARRAYS: ArrayRecord(arrays), _REST: ConfigRecord({"json": json.dumps(rest)})})


def bundle(**parts: RecordDict) -> RecordDict:
    """Several encoded trees as one message; a part that is in many messages is encoded, hashed and sent once."""
    return RecordDict({f"{name}.{key}": record for name, part in parts.items() for key, record in part.items()})


def unbundle(record: RecordDict, limit: int = LIMIT) -> dict[str, Tree]:
    """The trees that were bundled, by name."""
    parts: dict[str, RecordDict] = {}
    for name, part in record.items():
        parts.setdefault(name.rpartition(".")[0], RecordDict())[name.rpartition(".")[2]] = part
    return {name: decode(part, limit) for name, part in parts.items()}


def decode(record: RecordDict, limit: int = LIMIT) -> Tree:
    """The tree inside these records; MessageError when they are not what ``encode`` makes, or exceed the limit."""
    if set(record) != {_ARRAYS, _REST}:
        raise MessageError(f"it has the records {sorted(record)[:8]}, not {_ARRAYS!r} and {_REST!r}")
    arrays, rest = record[_ARRAYS], record[_REST]
    if not isinstance(arrays, ArrayRecord) or not isinstance(rest, ConfigRecord) or set(rest) != {"json"}:
        raise MessageError("its records are of other kinds than a message's")
    text = rest["json"]
    if not isinstance(text, str):
        raise MessageError("its numbers and words are no text")
    size = len(text) + sum(len(array.data) for array in arrays.values())
    if size > limit or len(arrays) > _MOST_ARRAYS:
        raise MessageError(f"it has {size:,} bytes in {len(arrays):,} arrays; at most {limit:,} are taken")
    if len(text) > _MOST_TEXT:
        raise MessageError(f"its numbers and words have {len(text):,} characters; at most {_MOST_TEXT:,} are taken")
    try:
        tree = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"its numbers and words cannot be read ({error})") from None
    if not isinstance(tree, dict):
        raise MessageError("it is no table of names")
    _refuse_deep(tree)
    for path, array in arrays.items():
        _place(tree, path, _decoded(path, array, limit))
    return tree


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _refuse_deep(value: Any, depth: int = 0) -> None:
    if isinstance(value, dict | list):
        if depth == _MOST_DEPTH:
            raise MessageError(f"its tables and lists are more than {_MOST_DEPTH} deep")
        for part in value.values() if isinstance(value, dict) else value:
            _refuse_deep(part, depth + 1)


def _without_arrays(tree: Tree, path: tuple[str, ...], arrays: dict[str, Array]) -> Tree:
    """The tree as JSON can hold it, its arrays taken out and put under their paths."""
    rest: Tree = {}
    for key, value in tree.items():
        where = (*path, quote(key, safe=""))
        if isinstance(value, Tensor):
            arrays["/".join(where)] = _encoded(value, _TENSOR)
        elif isinstance(value, np.ndarray):
            arrays["/".join(where)] = _encoded(torch.from_numpy(np.ascontiguousarray(value)), _NDARRAY)
        elif isinstance(value, dict):
            rest[key] = _without_arrays(value, where, arrays)
        else:
            rest[key] = value
    return rest


def _encoded(tensor: Tensor, kind: str) -> Array:
    name = name_of(tensor.dtype)
    if name not in _DTYPES:
        raise MessageError(f"a tensor of {name} cannot be sent; use one of {', '.join(_DTYPES)}")
    return Array(dtype=name, shape=tuple(tensor.shape), stype=kind, data=to_bytes(tensor).tobytes())


def _decoded(path: str, array: Array, limit: int) -> Any:
    """The tensor, or NumPy array, that an array of the message is."""
    dtype = _DTYPES.get(array.dtype)
    if dtype is None or array.stype not in (_TENSOR, _NDARRAY):
        raise MessageError(f"{path!r} is of an unknown kind ({array.dtype!r}, {array.stype!r})")
    if array.stype == _NDARRAY and dtype is torch.bfloat16:
        raise MessageError(f"{path!r} is an array of NumPy's of {array.dtype}, which NumPy does not have")
    shape = tuple(array.shape)
    if len(shape) > _MOST_AXES:
        raise MessageError(f"{path!r} has {len(shape)} axes; at most {_MOST_AXES} are taken")
    if any(type(side) is not int or side < 0 for side in shape):
        raise MessageError(f"{path!r} has the shape {shape}")
    wanted = math.prod(shape) * dtype.itemsize
    if wanted != len(array.data):
        raise MessageError(f"{path!r} has {len(array.data):,} bytes; {wanted:,} make {shape} of {array.dtype}")
    # Of an empty array torch multiplies the other sides all the same, which must not overflow.
    if math.prod(max(side, 1) for side in shape) > limit:
        raise MessageError(f"{path!r} has the shape {shape}, which is larger than any message")
    raw = np.frombuffer(bytearray(array.data), np.uint8)
    if dtype is torch.bool and raw.max(initial=0) > 1:
        raise MessageError(f"{path!r} has truth values that are neither 0 nor 1")
    tensor = from_bytes(raw, dtype, shape)
    return tensor.numpy() if array.stype == _NDARRAY else tensor


def _place(tree: Tree, path: str, value: Any) -> None:
    """Puts a value at its path in the tree, where nothing else may be."""
    keys = [unquote(part) for part in path.split("/")]
    if len(keys) > _MOST_DEPTH:
        raise MessageError(f"{path[:80]!r} is too deep")
    for key in keys[:-1]:
        tree = tree.setdefault(key, {})
        if not isinstance(tree, dict):
            raise MessageError(f"{path!r} is below something that is no table")
    if keys[-1] in tree:
        raise MessageError(f"{path!r} is there twice")
    tree[keys[-1]] = value
