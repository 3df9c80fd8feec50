"""Who owns which rows: the owner step of a partition. One class for each way, and each says what it did.

A step sees a :class:`Pool` (labels, natural clients and times, but no features), so a pool of a part of the rows
costs no copy of them. It returns the owner of each row, -1 where a row is nobody's; so no row has two owners.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from fedloom.data.order import grouped, places
from fedloom.data.register import STEPS
from fedloom.data.sizes import Demand, Floats, Whole, apportion
from fedloom.data.table import Table
from fedloom.errors import ConfigError, DataError
from fedloom.federation.randomness import Draw
from fedloom.types import Positive

NOBODY = -1
_TRIES = 20


@dataclass(frozen=True, eq=False)
class Pool:
    """What a partition may look at: everything but the features."""

    rows: int
    labels: Whole | None
    classes: tuple[str, ...]
    groups: Whole | None = None
    group_names: tuple[str, ...] | None = None
    time: Floats | None = None

    @staticmethod
    def of(table: Table) -> Pool:
        """The pool of all rows of a table."""
        parts: list[Any] = [part if part is None else part.numpy() for part in (table.labels, table.groups, table.time)]
        labels, groups, time = parts
        return Pool(len(table), labels, table.classes, groups, table.group_names, time)

    def take(self, rows: Whole) -> Pool:
        """The pool of only these rows."""
        parts: list[Any] = [part if part is None else part[rows] for part in (self.labels, self.groups, self.time)]
        labels, groups, time = parts
        return Pool(len(rows), labels, self.classes, groups, self.group_names, time)

    def counts(self) -> Whole:
        """The number of rows of each class."""
        return np.bincount(self.known_labels(), minlength=len(self.classes))

    def known_labels(self) -> Whole:
        """The labels, or a DataError where rows have no single class."""
        if self.labels is None:
            raise DataError(
                "a partition by classes needs one class a row; this task has none: use iid, quantity or time"
            )
        return self.labels


@dataclass(frozen=True, eq=False)
class Ownership:
    """The owner of each row (-1: nobody), the number of clients, their names if they have any, and what was done."""

    owner: Whole
    clients: int
    names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()

    def sizes(self) -> Whole:
        """How many rows each client has."""
        return np.bincount(self.owner[self.owner >= 0], minlength=self.clients)


class Owners(ABC):
    """One way to give rows to clients."""

    def check(self, pool: Pool, clients: int) -> None:
        """A DataError, before any work, if the rows cannot be given in this way."""
        if clients < 1:
            raise DataError(f"a federation of {clients} clients cannot be; give at least 1")
        if clients > pool.rows:
            raise DataError(f"{clients} clients cannot share {pool.rows} rows; fewer clients, or more data")

    @abstractmethod
    def assign(self, pool: Pool, clients: int, demand: Demand | None, draw: Draw) -> Ownership:
        """The owner of each row of the pool."""


@STEPS.register("iid")
@dataclass(frozen=True)
class Iid(Owners):
    """Rows are shuffled and dealt: every client sees the same distribution, in equal numbers unless sizes are asked."""

    def assign(self, pool: Pool, clients: int, demand: Demand | None, draw: Draw) -> Ownership:
        """Deal shuffled rows."""
        order = draw.generator("partition owners").permutation(pool.rows)
        return _in_order(pool, order, clients, demand)


@STEPS.register("time")
@dataclass(frozen=True)
class Time(Owners):
    """Time skew: each client has its own period, consecutive in ``time``, or in row order where no time is known."""

    def assign(self, pool: Pool, clients: int, demand: Demand | None, draw: Draw) -> Ownership:
        """Cut the rows, in order of time, into one period for each client."""
        order = np.arange(pool.rows) if pool.time is None else np.argsort(pool.time, kind="stable")
        return _in_order(pool, order, clients, demand)


@STEPS.register("classes")
@dataclass(frozen=True)
class Classes(Owners):
    """Label skew: each client has rows of ``classes_per_client`` classes only.

    At random, every class is held equally often (to one); ``cyclic``, client u has the classes (s·u, …, s·u + k - 1)
    modulo their number, s being the ``stride``, by default k. A class is shared out among the clients that hold it.
    """

    classes_per_client: int = 2
    cyclic: bool = False
    stride: int | None = None

    def check(self, pool: Pool, clients: int) -> None:
        """There must be as many classes as a client is to hold."""
        super().check(pool, clients)
        present = int((pool.counts() > 0).sum())
        if not 1 <= self.classes_per_client <= present:
            raise DataError(
                f"{self.classes_per_client} classes per client cannot be had of {present} classes; "
                f"choose between 1 and {present}"
            )
        if self.stride is not None and not (self.cyclic and self.stride >= 1):
            raise ConfigError(f"stride = {self.stride} cannot be; it is at least 1, and goes with cyclic = true")

    def assign(self, pool: Pool, clients: int, demand: Demand | None, draw: Draw) -> Ownership:
        """Choose each client's classes, then share out the rows of each class."""
        random, k = draw.generator("partition owners"), self.classes_per_client
        supply = pool.counts()
        present = np.flatnonzero(supply)
        if self.cyclic:
            stride = (self.stride or k) % len(present)  # so that no multiple of it is beyond 64 bits
            held = present[(stride * np.arange(clients)[:, None] + np.arange(k)) % len(present)]
        else:
            held = present[_hands(clients, len(present), k, random)]
        demand = demand or Demand.equal(clients)
        wanted = _wanted(demand, k)
        counts = np.zeros((clients, len(supply)), dtype=np.int64)
        for c in present:
            holders, places = np.nonzero(held == c)
            if len(holders) > supply[c]:
                raise DataError(
                    f"class {pool.classes[c]!r} has {supply[c]} rows but {len(holders)} clients are to hold it; "
                    "fewer clients, or fewer classes per client"
                )
            if len(holders):
                counts[holders, c] = _shared(int(supply[c]), wanted[holders, places], demand)
        return Ownership(_dealt(pool.known_labels(), counts, random), clients, notes=_unheld(pool, counts))


@STEPS.register("dirichlet")
@dataclass(frozen=True)
class Dirichlet(Owners):
    """Label skew: each class is shared out by proportions ~ Dirichlet(α), one for each client (Yurochkin et al., 2019).

    A small α gives each client few classes. Draws are repeated up to 20 times until every client has ``min_rows``;
    after that rows are moved from the largest clients to the short ones, so it always ends. When sizes are asked for,
    each client instead draws its own mixture of classes ~ Dirichlet(α · C · global shares) and fills its size from
    what is left (Hsu, Qi and Brown, 2019).
    """

    alpha: Positive = 0.5
    min_rows: Annotated[int, Ge(0)] = 2

    def check(self, pool: Pool, clients: int) -> None:
        """There must be ``min_rows`` rows for everybody."""
        super().check(pool, clients)
        pool.known_labels()
        if self.min_rows * clients > pool.rows:
            raise DataError(
                f"{clients} clients with at least {self.min_rows} rows each need {self.min_rows * clients} rows, but "
                f"there are {pool.rows}; fewer clients, or a smaller min_rows"
            )

    def assign(self, pool: Pool, clients: int, demand: Demand | None, draw: Draw) -> Ownership:
        """Draw proportions, mend what is too small, deal the rows."""
        random, supply = draw.generator("partition owners"), pool.counts()
        if demand is None:
            counts, notes = self._by_class(supply, clients, random)
        else:
            counts = self._by_client(supply, demand.sizes(pool.rows), random)
            notes = demand.note(pool.rows)
        return Ownership(_dealt(pool.known_labels(), counts, random), clients, notes=notes)

    def _by_class(self, supply: Whole, clients: int, random: np.random.Generator) -> tuple[Whole, tuple[str, ...]]:
        counts, tries = self._draw(supply, clients, random), 1
        while tries < _TRIES and _smallest(counts) < self.min_rows:
            counts, tries = max(counts, self._draw(supply, clients, random), key=_smallest), tries + 1
        if _smallest(counts) >= self.min_rows:
            note = f"dirichlet: draw {tries} of at most {_TRIES} gave every client at least {self.min_rows} rows"
            return counts, (note,) if tries > 1 else ()
        moved = _top_up(counts, self.min_rows)
        return counts, (
            f"dirichlet: in none of {_TRIES} draws had every client {self.min_rows} rows; "
            f"in the best one {moved} rows were moved from the largest clients to the smallest",
        )

    def _draw(self, supply: Whole, clients: int, random: np.random.Generator) -> Whole:
        """How many rows of each class each client gets: shape (clients, classes)."""
        shares = random.dirichlet(np.full(clients, self.alpha), len(supply)).cumsum(1)
        cuts = np.rint(np.minimum(shares, 1.0) * supply[:, None]).astype(np.int64)
        cuts[:, -1] = supply
        counts: Whole = np.diff(cuts, axis=1, prepend=0).T
        return counts

    def _by_client(self, supply: Whole, sizes: Whole, random: np.random.Generator) -> Whole:
        left, counts = supply.copy(), np.zeros((len(sizes), len(supply)), dtype=np.int64)
        prior = np.where(supply > 0, self.alpha * len(supply) * supply / supply.sum(), 0.0)
        for client in random.permutation(len(sizes)):
            mixture = np.zeros(len(supply))
            mixture[prior > 0] = random.dirichlet(prior[prior > 0])
            while (short := int(sizes[client] - counts[client].sum())) > 0:
                chances = np.where(left > 0, mixture, 0.0)
                if chances.sum() <= 0:
                    chances = left.astype(np.float64)
                taken = np.minimum(random.multinomial(short, chances / chances.sum()), left)
                counts[client] += taken
                left -= taken
        return counts


@STEPS.register("natural")
@dataclass(frozen=True)
class Natural(Owners):
    """The clients that the data come with: writers, stations, the client column of a file.

    Clients with fewer than ``min_rows`` rows are left out. When a number of clients is asked for, that many are
    chosen at random.
    """

    min_rows: Annotated[int, Ge(0)] = 0

    def check(self, pool: Pool, clients: int) -> None:
        """There must be natural clients, and as many as are asked for."""
        there = self.count(pool)
        if not 1 <= clients <= there:
            raise DataError(
                f"{clients} natural clients are asked for, but {there} have at least {self.min_rows} rows; "
                f"ask for 1 to {there}"
            )

    def count(self, pool: Pool) -> int:
        """How many natural clients there are."""
        return int((self._sizes(pool) >= self.min_rows).sum())

    def assign(self, pool: Pool, clients: int, demand: Demand | None, draw: Draw) -> Ownership:
        """Rows stay with their natural owner; sizes, when asked for, thin them out."""
        sizes, notes = self._sizes(pool), []
        kept = np.flatnonzero(sizes >= self.min_rows)
        if len(kept) < len(sizes):
            notes.append(f"natural: {len(sizes) - len(kept)} clients with fewer than {self.min_rows} rows left out")
        if clients < len(kept):
            notes.append(f"natural: {clients} of {len(kept)} clients chosen at random")
            kept = np.sort(draw.generator("partition owners").choice(kept, clients, replace=False))
        number = np.full(len(sizes), NOBODY, dtype=np.int64)
        number[kept] = np.arange(clients)
        owner = number[_natural(pool)]
        if demand is not None:
            owner = _thinned(owner, demand, draw)
        names = None if pool.group_names is None else tuple(pool.group_names[group] for group in kept)
        return Ownership(owner, clients, names, tuple(notes))

    def _sizes(self, pool: Pool) -> Whole:
        return np.bincount(_natural(pool), minlength=len(pool.group_names or ()))


def _natural(pool: Pool) -> Whole:
    if pool.groups is None:
        raise DataError("these data have no natural clients; name a client column, or choose another partition")
    return pool.groups


def _smallest(counts: Whole) -> int:
    """The number of rows of the smallest client."""
    return int(counts.sum(1).min())


def _in_order(pool: Pool, order: Whole, clients: int, demand: Demand | None) -> Ownership:
    """The first rows of an order to client 0, the next to client 1, and so on."""
    demand = demand or Demand.equal(clients)
    sizes = demand.sizes(pool.rows)
    owner = np.full(pool.rows, NOBODY, dtype=np.int64)
    owner[order[: sizes.sum()]] = np.repeat(np.arange(clients), sizes)
    return Ownership(owner, clients, notes=demand.note(pool.rows))


def _hands(clients: int, classes: int, k: int, random: np.random.Generator) -> Whole:
    """k different classes for each client, at random among those that were dealt least often."""
    luck, dealt = random.random((clients, classes)), np.zeros(classes, dtype=np.int64)
    hands = np.empty((clients, k), dtype=np.int64)
    for client in range(clients):
        hands[client] = np.lexsort((luck[client], dealt))[:k]
        dealt[hands[client]] += 1
    return np.sort(hands, axis=1)


def _wanted(demand: Demand, k: int) -> Floats:
    """What each client asks of each of its k classes: what it says, or equal parts of its size."""
    if demand.parts is not None:
        if demand.parts.shape[1] != k:
            raise ConfigError(f"sizes has {demand.parts.shape[1]} numbers a client, which holds {k} classes; give {k}")
        return demand.parts
    if demand.relative:
        return np.repeat(demand.weights[:, None], k, axis=1)
    if demand.weights.min() < k:
        raise DataError(f"a client of {int(demand.weights.min())} rows cannot hold {k} classes; ask for larger sizes")
    whole = demand.weights.astype(np.int64)[:, None]
    return (whole // k + (np.arange(k) < whole % k)).astype(np.float64)


def _shared(supply: int, wanted: Floats, demand: Demand) -> Whole:
    """How many rows of one class each of its holders gets."""
    if not demand.relative and wanted.sum() <= supply:
        return wanted.astype(np.int64)
    return apportion(supply, wanted, least=1)


def _unheld(pool: Pool, counts: Whole) -> tuple[str, ...]:
    """Say which rows belong to nobody."""
    unused = int(pool.rows - counts.sum())
    if unused == 0:
        return ()
    unheld = [pool.classes[c] for c in np.flatnonzero((counts.sum(0) == 0) & (pool.counts() > 0))]
    which = f", among them all of class {', '.join(unheld[:8])}" if unheld else ""
    return (f"classes: {unused} rows belong to no client{which}",)


def _dealt(labels: Whole, counts: Whole, random: np.random.Generator) -> Whole:
    """Owners such that client i has ``counts[i, c]`` rows of class c, chosen at random."""
    owner = np.full(len(labels), NOBODY, dtype=np.int64)
    for c in np.flatnonzero(counts.sum(0)):
        rows = random.permutation(np.flatnonzero(labels == c))
        owner[rows[: counts[:, c].sum()]] = np.repeat(np.arange(len(counts)), counts[:, c])
    return owner


def _top_up(counts: Whole, least: int) -> int:
    """Move rows, in place, from the largest clients to those with fewer than ``least``; how many were moved."""
    sizes, moved = counts.sum(1), 0
    for client in np.flatnonzero(sizes < least):
        while sizes[client] < least:
            giver = int(sizes.argmax())
            c = int(counts[giver].argmax())
            spare = max(1, int(sizes[giver] - least) // 2)
            many = min(least - int(sizes[client]), spare, int(counts[giver, c]))
            counts[giver, c] -= many
            counts[client, c] += many
            sizes[giver] -= many
            sizes[client] += many
            moved += many
    return moved


def _thinned(owner: Whole, demand: Demand, draw: Draw) -> Whole:
    """Owners after each client has given up the rows beyond its size, at random."""
    sizes = np.bincount(owner[owner >= 0], minlength=len(demand.weights))
    if demand.relative:
        keep = np.maximum(1, np.rint(sizes * demand.weights / demand.weights.max())).astype(np.int64)
    else:
        keep = demand.weights.astype(np.int64)
    order = grouped(owner, draw.generator("partition thinning"))
    thinned = owner.copy()
    thinned[order[places(sizes) >= np.repeat(keep, sizes)]] = NOBODY
    return thinned
