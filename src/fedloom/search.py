"""Where tuning looks for a hyper-parameter, said beside it: ``mu: Annotated[float, Search(0.01, 1.0)] = 0.1``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from fedloom.errors import ConfigError

_DIGITS = 3
"""Digits that matter of a number that is tried: more would not be repeated by hand."""


@dataclass(frozen=True)
class Search:
    """The values that tuning tries: from ``low`` to ``high``, or the ``choices``.

    Two whole numbers mean whole numbers. By ``log`` each power of ten is as likely as any other.

        @dataclass(frozen=True)
        class Mine(fedloom.ServerMethod):
            mu: Annotated[float, fedloom.Search(1e-3, 10.0, log=True)] = 0.1
    """

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: tuple[Any, ...] = ()

    def check(self, name: str) -> None:
        """A ConfigError where there is nothing to choose from; ``name`` is what it calls the space."""
        if self.choices:
            if any(one == other for at, one in enumerate(self.choices) for other in self.choices[at + 1 :]):
                raise ConfigError(f"{name}: a value is there twice; give each once")
            return
        if not (_is_number(self.low) and _is_number(self.high)):
            raise ConfigError(f"{name}: a range is between two numbers, such as 0.001..1; choices are listed, as 1,2,5")
        if not self.low < self.high:
            raise ConfigError(f"{name}: the range is empty: {self.low:g} is not below {self.high:g}")
        if self.log and self.low <= 0:
            raise ConfigError(f"{name}: a range by the logarithm begins above 0, not at {self.low:g}; leave :log out")

    @property
    def whole(self) -> bool:
        """Whether it has whole numbers alone."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that can show whether all can be: the choices, or the first and the last of the range."""
        return self.choices or (self.low, self.high)

    def at(self, share: float) -> Any:
        """The value at a share in [0, 1) of the space."""
        if self.choices:
            return self.choices[min(int(share * len(self.choices)), len(self.choices) - 1)]
        if self.whole:
            low, high = self.low, self.high + 1
            value = low * (high / low) ** share if self.log else low + (high - low) * share
            return min(int(value), int(self.high))
        value = self.low * (self.high / self.low) ** share if self.log else self.low + (self.high - self.low) * share
        return self.rounded(value)

    def rounded(self, value: float) -> float:
        """A number of the range as it is tried: with few digits, and not beyond the ends."""
        return min(max(float(f"{value:.{_DIGITS}g}"), float(self.low)), float(self.high))

    def spaced(self, count: int) -> tuple[Any, ...]:
        """All choices, or at most so many values of the range at equal distances, its ends among them."""
        if self.choices:
            return self.choices
        if count < 2:
            return (self.at(0.5),)
        shares = [at / (count - 1) for at in range(count)]
        return tuple(dict.fromkeys(self.high if share == 1 else self.at(share) for share in shares))

    def __str__(self) -> str:
        if self.choices:
            return ",".join("none" if value is None else str(value) for value in self.choices)
        return f"{self.low}..{self.high}{':log' if self.log else ''}"


def search_of(annotation: Any) -> Search | None:
    """The space that an annotation declares, if it does."""
    return next((part for part in _marks(annotation) if isinstance(part, Search)), None)


def _marks(annotation: Any) -> Sequence[Any]:
    metadata = getattr(annotation, "__metadata__", ())
    inner = [mark for part in get_args(annotation) if get_origin(part) is not None for mark in _marks(part)]
    return [*reversed(metadata), *inner]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
