"""A number for each client, drawn from a distribution: speeds, delays, rates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, PlainSerializer

from fedloom.federation.randomness import Draw

WIDEST = 10.0
"""The largest deviation of a logarithm: with it every second number is a thousand times larger or smaller than usual,
and none is 0 or infinite yet."""
_LARGEST = 1e18
"""Of what is not infinite: what is computed of such numbers is finite too."""
_LOOKED_UP = 1 << 20  # clients above that draw their numbers anew, which takes longer and no memory

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Distribution:
    """A number for each client: "5", "uniform:10:100", "lognormal:MEDIAN:SIGMA" or "exponential:MEAN"."""

    kind: Literal["constant", "uniform", "lognormal", "exponential"] = "constant"
    a: float = 0.0
    b: float = 0.0

    @staticmethod
    def parse(text: object) -> Distribution:
        """From the text that a user writes."""
        if isinstance(text, Distribution):
            return text
        kind, *numbers = str(text).split(":")
        try:
            if not numbers:
                kind, numbers = "constant", [kind]
            values = [float(number) for number in numbers]
            expected = {"constant": 1, "uniform": 2, "lognormal": 2, "exponential": 1}[kind]
        except (ValueError, KeyError):
            expected, values = -1, []
        wrong = math.isnan if kind == "constant" else lambda v: not math.isfinite(v)
        if len(values) != expected or any(v < 0 or wrong(v) for v in values):
            raise ValueError(
                f"{text!r} is no distribution of non-negative numbers; "
                "write 5, uniform:10:100, lognormal:MEDIAN:SIGMA or exponential:MEAN"
            )
        if kind == "uniform" and values[0] > values[1]:
            raise ValueError(f"{text!r}: the lower end is above the upper one")
        if any(_LARGEST < v < math.inf for v in values):
            unlimited = ", or inf where there is no limit" if kind == "constant" else ""
            raise ValueError(f"{text!r} is too large; give at most {_LARGEST:g}{unlimited}")
        if kind == "lognormal" and values[1] > WIDEST:
            raise ValueError(f"{text!r}: SIGMA is the deviation of a logarithm; give at most {WIDEST:g}")
        return Distribution(kind, *values)  # type: ignore[arg-type]

    def __str__(self) -> str:
        numbers = (self.a,) if self.kind in ("constant", "exponential") else (self.a, self.b)
        words = [repr(float(number)).removesuffix(".0") for number in numbers]  # every digit: files are read again
        return words[0] if self.kind == "constant" else ":".join([self.kind, *words])

    @property
    def nought(self) -> bool:
        """Whether it is 0 for everybody."""
        return (self.b if self.kind == "uniform" else self.a) == 0

    def of(self, draw: Draw, purpose: str, clients: Ints) -> Floats:
        """Each client's number."""
        if self.kind == "constant":
            return np.full(len(clients), self.a)
        if self.kind == "lognormal":
            return np.asarray(self.a * np.exp(self.b * draw.normal(purpose, clients, 1)[:, 0]))
        u = draw.uniform(purpose, clients, 1)[:, 0]
        return self.a + (self.b - self.a) * u if self.kind == "uniform" else -self.a * np.log1p(-u)

    def kept(self, seed: int, purpose: str, clients: Ints) -> Floats:
        """Each client's number that it keeps for the whole run: drawn once for all of them, and looked up."""
        if self.kind == "constant" or len(clients) == 0 or (last := int(clients.max())) >= _LOOKED_UP:
            return self.of(Draw(seed), purpose, clients)
        found: Floats = _table(self, seed, purpose, 1 << last.bit_length())[clients]
        return found


@lru_cache(maxsize=16)
def _table(how: Distribution, seed: int, purpose: str, count: int) -> Floats:
    return how.of(Draw(seed), purpose, np.arange(count))


Varied = Annotated[Distribution, BeforeValidator(Distribution.parse), PlainSerializer(str)]
