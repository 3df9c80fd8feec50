"""Step sizes that change from round to round, written as a text wherever a step size stands.

    0.1                     the same in every round
    step:0.1:50:0.5         0.1, times 0.5 every 50 rounds
    cosine:0.1:0.001:200    from 0.1 down to 0.001 in 200 rounds along half a cosine, and then 0.001
    inverse:0.1:0.01        0.1/(1 + 0.01·t) in round t = 0, 1, …
    exponential:0.1:0.99    0.1·0.99ᵗ
    warmup:0.1:10           up to 0.1 in 10 equal steps, the first round having one of them

A step size is kept as it was given, a number or a text, so a method stays plain data that a file can hold.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Gt
from pydantic import ConfigDict, TypeAdapter, ValidationError, WrapValidator

from fedloom.errors import ConfigError
from fedloom.search import Search
from fedloom.types import Count, NonNegative, Positive


class Schedule(ABC):
    """A step size as a function of the round; the fields are the numbers of its text, in order."""

    __pydantic_config__ = ConfigDict(allow_inf_nan=False)

    @abstractmethod
    def at(self, round: int) -> float:
        """The step size in round 0, 1, …"""


@dataclass(frozen=True)
class Step(Schedule):
    """Times a factor every so many rounds."""

    lr: Positive
    every: Count
    factor: Positive

    def at(self, round: int) -> float:
        return float(self.lr * self.factor ** (round // self.every))


@dataclass(frozen=True)
class Cosine(Schedule):
    """From one step size to another along half a cosine, and then the latter."""

    lr: Positive
    end: NonNegative
    rounds: Count

    def at(self, round: int) -> float:
        part = min(round / self.rounds, 1.0)
        return self.end + (self.lr - self.end) * (1 + math.cos(math.pi * part)) / 2


@dataclass(frozen=True)
class Inverse(Schedule):
    """Falling as 1/t, the rate at which stochastic gradients still find a minimum."""

    lr: Positive
    decay: NonNegative

    def at(self, round: int) -> float:
        return self.lr / (1 + self.decay * round)


@dataclass(frozen=True)
class Exponential(Schedule):
    """Times a factor every round."""

    lr: Positive
    factor: Positive

    def at(self, round: int) -> float:
        return float(self.lr * self.factor**round)


@dataclass(frozen=True)
class Warmup(Schedule):
    """Up in equal steps, and then constant."""

    lr: Positive
    rounds: Count

    def at(self, round: int) -> float:
        return self.lr * min((round + 1) / self.rounds, 1.0)


SCHEDULES: dict[str, type[Schedule]] = {
    "step": Step,
    "cosine": Cosine,
    "inverse": Inverse,
    "exponential": Exponential,
    "warmup": Warmup,
}


@lru_cache(maxsize=256)
def schedule(text: str) -> Schedule:
    """The schedule that a text means, or a ValueError that says how to write it."""
    name, *numbers = text.split(":")
    if name not in SCHEDULES:
        raise ValueError(f"{text!r} is no schedule; write a number, {', '.join(map(_form, SCHEDULES))}")
    kind = SCHEDULES[name]
    names = _numbers(kind)
    if len(numbers) != len(names):
        raise ValueError(f"{text!r} has {len(numbers)} numbers, not {len(names)}; write {_form(name)}")
    try:
        return TypeAdapter(kind).validate_python(dict(zip(names, numbers, strict=True)))
    except ValidationError as error:
        first = error.errors()[0]
        what = first["msg"].removeprefix("Input ")
        raise ValueError(f"{text!r}: {str(first['loc'][0]).upper()} {what}; write {_form(name)}") from None


def rate_at(rate: float | str, round: int) -> float:
    """The step size in this round: a number is itself, a text is a schedule."""
    if not isinstance(rate, str):
        return rate
    try:
        return schedule(rate).at(round)
    except ValueError as error:
        raise ConfigError(f"a step size cannot be: {error}") from error


def is_schedule(value: object) -> bool:
    """Whether a hyper-parameter is a schedule, as it is written."""
    return isinstance(value, str) and ":" in value and value.split(":")[0] in SCHEDULES


def _numbers(kind: type[Schedule]) -> list[str]:
    return [field.name for field in fields(kind)]  # type: ignore[arg-type]


def _form(name: str) -> str:
    """How a schedule is written: "step:LR:EVERY:FACTOR"."""
    return ":".join([name, *(number.upper() for number in _numbers(SCHEDULES[name]))])


def _legible(value: Any, number: Callable[[Any], float]) -> float | str:
    """Lets a schedule pass as it is written; anything else has to be a number."""
    if isinstance(value, str) and (":" in value or value in SCHEDULES):
        schedule(value)
        return value
    return number(value)


if TYPE_CHECKING:
    Rate = float | str
else:  # what forms read: a number above 0, with schedules let in
    Rate = Annotated[float, Gt(0), WrapValidator(_legible)]

LocalRate = Annotated[Rate, Search(1e-3, 1.0, log=True)]
"""η of clients' steps, and where tuning looks for it."""
ServerRate = Annotated[Rate, Search(0.1, 3.0, log=True)]
"""η of a server that moves by the mean of its clients' moves: 1 takes it as it is."""
AdaptiveRate = Annotated[Rate, Search(1e-3, 1.0, log=True)]
"""η of a server whose moves are divided by their size."""
