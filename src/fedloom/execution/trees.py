"""What is handed over between processes: tensors and arrays in dicts, tuples and dataclasses, all the way down."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch import Tensor


def mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """The same structure with another thing in the place of each thing that is no dict, tuple or dataclass."""
    if isinstance(value, dict):
        return {key: mapped(part, leaf) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(mapped(part, leaf) for part in value)
    if dataclasses.is_dataclass(value) and hasattr(type(value), "handed_over"):
        return dataclasses.replace(
            value, **{f.name: mapped(getattr(value, f.name), leaf) for f in dataclasses.fields(value)}
        )  # type: ignore[type-var]
    return leaf(value)


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in a structure."""
    found: list[Tensor] = []
    mapped(value, lambda part: found.append(part) if isinstance(part, Tensor) else None)
    return iter(found)


def copied(value: Any) -> Any:
    """The structure with tensors and arrays of its own."""
    return mapped(value, _copied)


def _copied(part: Any) -> Any:
    if isinstance(part, Tensor):
        return part.clone()
    return part.copy() if isinstance(part, np.ndarray) else part
