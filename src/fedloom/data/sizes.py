"""How many rows each client gets: the size step of a partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedloom.data.register import STEPS
from fedloom.errors import ConfigError, DataError
from fedloom.federation.randomness import Draw
from fedloom.types import NonNegative

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Demand:
    """What each client asks for: a number of rows, or (``relative``) a share of all there are."""

    weights: Floats
    relative: bool
    parts: Floats | None = None
    """How many rows of each of its classes a client asks for, shape (clients, classes of a client), if it says so."""

    @staticmethod
    def equal(clients: int) -> Demand:
        """The same share for everybody."""
        return Demand(np.ones(clients), relative=True)

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


@STEPS.register("quantity")
@dataclass(frozen=True)
class Quantity:
    """Quantity skew: clients of unequal sizes.

    * "uniform": between ``smallest`` and ``largest`` rows, each number as likely; rows left over belong to nobody.
      Without these two, shares between 20 % and 180 % of the mean, all rows used.
    * "power-law": the k-th largest client has a share in proportion to k^-``exponent``, all rows used.
    * "given": the numbers in ``sizes``. With a partition by classes a client's may be a list, a number for each of
      its classes; a single number is divided evenly among these.
    """

    quantity: Literal["uniform", "power-law", "given"] = "uniform"
    smallest: int | None = None
    largest: int | None = None
    exponent: NonNegative = 1.0
    sizes: tuple[int | tuple[int, ...], ...] = ()

    def check(self, rows: int, clients: int) -> None:
        """A DataError or ConfigError if no federation can have these sizes."""
        if self.quantity == "given":
            self._check_given(clients)
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

    def _check_given(self, clients: int) -> None:
        listed = {len(size) for size in self.sizes if not isinstance(size, int)}
        if len(listed) > 1 or (listed and any(isinstance(size, int) for size in self.sizes)):
            raise ConfigError("sizes are single numbers, or lists of equal length (a number for each class); not both")
        if len(self.sizes) != clients or any(np.min(size, initial=1) < 1 or np.sum(size) < 1 for size in self.sizes):
            raise ConfigError(
                f"{len(self.sizes)} sizes are given for {clients} clients; give one of at least 1 for each"
            )

    def demand(self, clients: int, draw: Draw) -> Demand:
        """Draw what each client asks for."""
        random = draw.generator("partition quantity")
        if self.quantity == "given":
            given = np.array(self.sizes, dtype=np.float64)
            return Demand(given, relative=False) if given.ndim == 1 else Demand(given.sum(1), False, given)
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
