"""What is handed over between processes: tensors and arrays in dicts, tuples and dataclasses, all the way down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor


@dataclass(frozen=True, eq=False)
class HandedOver:
    """A dataclass whose parts are handed over one by one, like those of a dict."""


def mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """The same structure with another thing in the place of each thing that is none of these."""
    if isinstance(value, dict):
        return {key: mapped(part, leaf) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(mapped(part, leaf) for part in value)
    if isinstance(value, HandedOver):
        return replace(value, **{name: mapped(part, leaf) for name, part in vars(value).items()})
    return leaf(value)


def copied(value: Any) -> Any:
    """The structure with tensors and arrays of its own."""
    return mapped(value, _copied)


def _copied(part: Any) -> Any:
    if isinstance(part, Tensor):
        return part.clone()
    return part.copy() if isinstance(part, np.ndarray) else part
