"""Who takes part in a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from fedloom.errors import ConfigError, Unfit
from fedloom.federation.randomness import Draw
from fedloom.methods.method import Context
from fedloom.register import Register, settings_of

Ints = npt.NDArray[np.int64]


class Selection(ABC):
    """``pick`` chooses among the candidates of a round; the result is in order of client id."""

    @abstractmethod
    def pick(self, candidates: Ints, ctx: Context) -> Ints:
        """The ids of those who take part."""

    def check(self, candidates: int) -> None:
        """Refuses what cannot be, before any work."""
        wanted = getattr(self, "count", None)
        if wanted is not None and not 1 <= wanted <= candidates:
            what = f"{candidates} clients can take part; choose 1 to {candidates}"
            raise Unfit(f"selection.per_round = {wanted}, but {what}", f"cannot be: {what}")


SELECTIONS: Register[type[Selection]] = Register(
    "selection",
    right=settings_of(Selection),
    must_be="a dataclass derived from fedloom.engine.selection.Selection",
    group="fedloom.selections",
    order=lambda rule: not counts(rule),
)


@SELECTIONS.register("all")
@dataclass(frozen=True)
class All(Selection):
    """Everybody, every round."""

    def pick(self, candidates: Ints, ctx: Context) -> Ints:
        return candidates


@SELECTIONS.register("uniform")
@dataclass(frozen=True)
class Uniform(Selection):
    """So many clients, each set of them equally likely."""

    count: int

    def pick(self, candidates: Ints, ctx: Context) -> Ints:
        n = len(candidates)
        if 2 * self.count > n:
            keys = ctx.draw.words("select", 0, n)
            return np.sort(candidates[np.argsort(keys, kind="stable")[: self.count]])
        return candidates[distinct(self.count, lambda u: (u * n).astype(np.int64), ctx.draw)]


@SELECTIONS.register("size")
@dataclass(frozen=True)
class BySize(Selection):
    """So many clients, drawn one after the other with probability proportional to their number of rows."""

    count: int

    def pick(self, candidates: Ints, ctx: Context) -> Ints:
        sizes = ctx.sizes.numpy()[candidates].astype(np.float64)
        if sizes.sum() ** 2 <= 2 * self.count * (sizes**2).sum():
            # So many of so few (or of a few giants) would be drawn again and again. Efraimidis and Spirakis: the
            # largest u^(1/w) are a weighted sample without replacement.
            u = ctx.draw.uniform("select", 0, len(candidates))
            return np.sort(candidates[np.argsort(np.log1p(-u) / -sizes, kind="stable")[: self.count]])
        edges = np.cumsum(sizes)
        return candidates[distinct(self.count, lambda u: np.searchsorted(edges, u * edges[-1], "right"), ctx.draw)]


@dataclass(frozen=True)
class Chosen(Selection):
    """A user's own rule: a function of the candidates' ids and the context."""

    rule: Callable[[Ints, Context], npt.ArrayLike]

    def pick(self, candidates: Ints, ctx: Context) -> Ints:
        picked = np.unique(np.asarray(self.rule(candidates, ctx), dtype=np.int64))
        strangers = np.setdiff1d(picked, candidates)
        if len(strangers):
            raise ConfigError(f"the selection rule chose clients {strangers[:5].tolist()}, who cannot take part")
        return picked


def distinct(count: int, place: Callable[[npt.NDArray[np.float64]], Ints], draw: Draw) -> Ints:
    """The first ``count`` different values of a random sequence, sorted: sampling 100 of 10⁶ never permutes 10⁶."""
    tries = 2 * count + 16
    while True:
        values = place(draw.uniform("select", 0, tries))
        _, first = np.unique(values, return_index=True)
        if len(first) >= count:
            return np.sort(values[np.sort(first)[:count]])
        tries *= 2


def selection_for(name: str, count: int, **options: object) -> Selection:
    """The selection of that name, of so many clients a round if that can be said of it."""
    found = SELECTIONS.find(name)
    return found(**({"count": count} if counts(found) else {}), **options)


def counts(selection: type[Selection]) -> bool:
    """Whether one says of a selection how many clients it takes: it then has a field of that name."""
    return "count" in {field.name for field in fields(selection)}  # type: ignore[arg-type]
