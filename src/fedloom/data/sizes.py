"""How many rows each client gets: the size step of a partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedloom.errors import ConfigError, DataError
from fedloom.federation.randomness import Draw

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Demand:
    """What each client asks for: a number of rows, or (``relative``) a share of all there are."""

    weights: Floats
    relative: bool

    def sizes(self, rows: int) -> Whole:
        """Whole numbers of rows, at least one each and no more than there are in all."""
        if self.relative or self.weights.sum() > rows:
            return apportion(rows, self.weights, least=1)
        return self.weights.astype(np.int64)

    def note(self, rows: int) -> tuple[str, ...]:
        """What could not be given as asked."""
        wanted = int(self.weights.sum())
        if self.relative or wanted <= rows:
            return ()
        return (f"quantity: {wanted} rows were asked for, {rows} are there: every client's number was scaled down",)


@dataclass(frozen=True)
class Quantity:
    """Quantity skew: clients of unequal sizes.

    * "uniform": between ``smallest`` and ``largest`` rows, each number as likely; rows left over belong to nobody.
      Without these two, shares between 20 % and 180 % of the mean, all rows used.
    * "power-law": the k-th largest client has a share in proportion to k^-``exponent``, all rows used.
    * "given": the numbers in ``sizes``.
    """

    quantity: Literal["uniform", "power-law", "given"] = "uniform"
    smallest: int | None = None
    largest: int | None = None
    exponent: float = 1.0
    sizes: tuple[int, ...] = ()

    def check(self, rows: int, clients: int) -> None:
        """A DataError or ConfigError if no federation can have these sizes."""
        if self.quantity not in ("uniform", "power-law", "given"):
            raise ConfigError(f"there is no quantity skew {self.quantity!r}; choose uniform, power-law or given")
        if self.exponent < 0:
            raise ConfigError(f"a power law with exponent {self.exponent} would grow; give one of at least 0")
        if self.quantity == "given" and (len(self.sizes) != clients or min(self.sizes) < 1):
            raise ConfigError(
                f"{len(self.sizes)} sizes are given for {clients} clients; give one of at least 1 for each"
            )
        if (self.smallest is None) != (self.largest is None):
            raise ConfigError("quantity skew needs both smallest and largest, or neither")
        if self.smallest is not None and self.largest is not None:
            if not 1 <= self.smallest <= self.largest:
                raise ConfigError(f"sizes from {self.smallest} to {self.largest} cannot be; 1 <= smallest <= largest")
            if self.smallest * clients > rows:
                raise DataError(
                    f"{clients} clients of at least {self.smallest} rows need {self.smallest * clients} rows, but "
                    f"there are {rows}; fewer clients, or a smaller number"
                )

    def demand(self, clients: int, draw: Draw) -> Demand:
        """Draw what each client asks for."""
        random = draw.generator("partition quantity")
        if self.quantity == "given":
            return Demand(np.array(self.sizes, dtype=np.float64), relative=False)
        if self.quantity == "power-law":
            return Demand(random.permutation(np.arange(1.0, clients + 1) ** -self.exponent), relative=True)
        if self.smallest is None or self.largest is None:
            return Demand(random.uniform(0.2, 1.8, clients), relative=True)
        return Demand(random.integers(self.smallest, self.largest + 1, clients).astype(np.float64), relative=False)


def apportion(total: int, weights: Floats, least: int = 0) -> Whole:
    """Whole numbers that add up to ``total``: ``least`` each, and the rest by weight (largest remainders)."""
    rest = total - least * len(weights)
    exact = rest * weights / weights.sum()
    parts: Whole = np.floor(exact).astype(np.int64)
    short = rest - int(parts.sum())
    parts[np.argsort(parts - exact, kind="stable")[:short]] += 1
    return parts + least
