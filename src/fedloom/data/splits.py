"""Which rows of a client are for what: roles, train, validation and test, support and query.

Everything is a sorted array; nothing loops over the clients, so a million of them take seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from fedloom.data.arrays import some
from fedloom.data.order import grouped, places
from fedloom.data.owners import NOBODY, Ownership, Pool
from fedloom.data.sizes import Floats, Whole, apportion
from fedloom.data.table import class_number
from fedloom.errors import ConfigError, DataError
from fedloom.federation.data import SOURCE, TARGET
from fedloom.federation.ragged import Ragged
from fedloom.federation.randomness import Draw

Labels = Sequence[int | str]
Mask = npt.NDArray[np.bool_]
_TEST, _SUPPORT, _VALIDATION = 1, 2, 4  # bits of a row's part
_KIND = _TEST | _VALIDATION
_HALVED = {"": 0, "validation-": _VALIDATION, "test-": _TEST}  # what has a support and a query


def choose_roles(clients: int, target: float, draw: Draw) -> Whole:
    """A role for each client: a share ``target`` of them, chosen at random, are targets, never seen in training."""
    if clients < 1:
        raise DataError(f"a federation of {clients} clients cannot be; give at least 1")
    if not 0 <= target < 1:
        raise ConfigError(f"a share of {target} target clients cannot be; give at least 0 and less than 1")
    targets = round(target * clients)
    if target > 0:
        if clients < 2:
            raise DataError("one client cannot be source and target; give at least 2 clients, or target = 0")
        targets = min(max(targets, 1), clients - 1)
    roles = np.full(clients, SOURCE, dtype=np.int64)
    roles[draw.generator("roles").permutation(clients)[:targets]] = TARGET
    return roles


@dataclass(frozen=True, eq=False)
class RoleClasses:
    """The classes that each role may hold; None: all of them."""

    source: Labels | None = None
    target: Labels | None = None

    @property
    def limited(self) -> bool:
        """Whether any role may not hold everything."""
        return self.source is not None or self.target is not None

    def allowed(self, pool: Pool) -> Mask:
        """A mask (roles, classes)."""
        mask = np.ones((2, len(pool.classes)), dtype=bool)
        for role, labels in ((SOURCE, self.source), (TARGET, self.target)):
            if labels is not None:
                pool.known_labels()
                mask[role] = False
                mask[role, [class_number(pool.classes, label) for label in labels]] = True
        return mask

    def limit(self, owned: Ownership, pool: Pool, roles: Whole) -> Ownership:
        """Owners after every client has given up the rows that its role may not hold."""
        mine = np.flatnonzero(owned.owner >= 0)
        kept = self.allowed(pool)[roles[owned.owner[mine]], pool.known_labels()[mine]]
        owner = owned.owner.copy()
        owner[mine[~kept]] = NOBODY
        return replace(owned, owner=owner)

    def pools(self, pool: Pool, roles: Whole, draw: Draw) -> list[tuple[Whole, Whole]]:
        """For each role that somebody has, its clients and the rows from which they are served.

        A class that both may hold is shared out in proportion to their numbers of clients.
        """
        weights = np.bincount(roles, minlength=2)[:2, None] * self.allowed(pool)
        labels, random = pool.known_labels(), draw.generator("role classes")
        parts: list[list[Whole]] = [[], []]
        for c in range(len(pool.classes)):
            rows = random.permutation(np.flatnonzero(labels == c))
            if len(rows) and weights[:, c].sum():
                first = int(apportion(len(rows), weights[:, c].astype(np.float64))[0])
                parts[SOURCE].append(rows[:first])
                parts[TARGET].append(rows[first:])
        nothing = np.empty(0, dtype=np.int64)
        return [
            (np.flatnonzero(roles == role), np.sort(np.concatenate([nothing, *parts[role]])))
            for role in (SOURCE, TARGET)
            if (roles == role).any()
        ]


def share_published(train: Ownership, pool: Pool, tested: Whole, draw: Draw) -> Whole:
    """Owners of all rows: of each class every client gets its share of that class's training rows of the test rows.

    Where rows have no class, clients get test rows in proportion to their training rows.
    """
    labels = np.zeros(pool.rows, dtype=np.int64) if pool.labels is None else pool.labels
    owner, random = train.owner.copy(), draw.generator("published test")
    for c in np.unique(labels[tested]):
        rows = random.permutation(tested[labels[tested] == c])
        mine = train.owner[(labels == c) & (train.owner >= 0)]
        counts = np.bincount(mine, minlength=train.clients)
        if counts.sum():
            owner[rows] = np.repeat(np.arange(train.clients), apportion(len(rows), counts.astype(np.float64)))
    return owner


@dataclass(frozen=True, eq=False)
class Splitter:
    """Divides each client's rows; stratified by class where rows have one.

    ``test``, ``validation`` (of the rows that are not for the test) and ``support`` are fractions. A client of two rows
    or more keeps one for training and, unless the fraction is 0, gives one to the test; likewise training and
    validation, support and query. A single row is for training, and for the query. ``chronological`` takes the last
    rows for the test, the last of the others for the validation, and the first ones for the support. Where clients are
    ``apart``, by these names, chance depends on a client's name and its own rows alone.
    """

    owner: Whole
    clients: int
    labels: Whole | None
    time: Floats | None
    draw: Draw
    chronological: bool = False
    apart: tuple[str, ...] | None = None

    def parts(self, test: float | Whole, support: float | None, validation: float = 0.0) -> npt.NDArray[np.int8]:
        """A byte for each row: bit 1 for the test, bit 2 for the support, bit 4 for the validation.

        ``test`` may list the test rows.
        """
        part = np.zeros(len(self.owner), dtype=np.int8)
        if support is None and not isinstance(test, np.ndarray) and test == 0 and validation == 0:
            return part
        order = self._order()
        if isinstance(test, np.ndarray):
            part[test] = _TEST
        else:
            part[order[self._chosen(order, test, "test", last=True)]] = _TEST
        if validation > 0:
            rows = order[part[order] == 0]
            part[rows[self._chosen(rows, validation, "validation", last=True)]] = _VALIDATION
        if support is not None:
            for name, kind in _HALVED.items():
                rows, purpose = order[part[order] == kind], f"{name}support".replace("-", " ")
                part[rows[self._chosen(rows, support, purpose, last=False)]] |= _SUPPORT
        return part

    def folds(self, count: int) -> Whole:
        """For each row its fold, from 0; of a client's rows of one class each fold has as many, up to one.

        Where rows have an order in time, they make blocks of equal size instead, one more than folds: block 0 is that
        from which the first fold learns.
        """
        order = self._order()
        sizes = np.bincount(self.owner[order], minlength=self.clients)
        place, found = places(sizes), np.full(len(self.owner), NOBODY, dtype=np.int64)
        if self.chronological:
            found[order] = place * (count + 1) // np.repeat(sizes, sizes)
        else:
            start = self.draw.uniform("split folds", np.arange(self.clients), 1)[:, 0]
            found[order] = (place + np.repeat((start * count).astype(np.int64), sizes)) % count
        return found

    def _order(self) -> Whole:
        """All owned rows by client and within a client by class and chance, or by time."""
        if self.chronological:
            return _by_owner(self.owner, self.time)
        cell = self.owner
        if self.labels is not None:
            classes = int(self.labels.max()) + 1
            cell = np.where(self.owner >= 0, self.owner * classes + self.labels, NOBODY)
        if self.apart is None:
            return grouped(cell, self.draw.generator("split order"))
        owned = grouped(self.owner)
        who = self.owner[owned]
        place = places(np.bincount(who, minlength=self.clients))
        luck = self.draw.words("split order", self._ids[who], 1, lane=place)[:, 0]
        return owned[np.lexsort((luck, cell[owned]))]

    @property
    def _ids(self) -> npt.NDArray[np.uint64]:
        """The number by which chance knows each client."""
        if self.apart is None:
            return np.arange(self.clients, dtype=np.uint64)
        hashes = (hashlib.sha256(name.encode()).digest()[:8] for name in self.apart)
        return np.array([int.from_bytes(found, "little") for found in hashes], dtype=np.uint64)

    def _chosen(self, rows: Whole, fraction: float, purpose: str, last: bool) -> Mask:
        """A mask of the given rows, which are sorted by client: the fraction of each client, evenly spaced.

        Evenly spaced in an order by class is stratified: of m rows of a class, m·t/n are taken, to one.
        """
        sizes = np.bincount(self.owner[rows], minlength=self.clients)
        taken = np.rint(sizes * fraction).astype(np.int64)
        if 0 < fraction < 1:
            taken = np.minimum(np.maximum(taken, 1), np.maximum(sizes - 1, 0))
        n, t = np.repeat(sizes, sizes), np.repeat(taken, sizes)
        place = places(sizes)
        if self.chronological:
            return place >= n - t if last else place < t
        start = self.draw.uniform(f"split {purpose}", self._ids, 1)[:, 0]
        shift = np.repeat((start * sizes).astype(np.int64), sizes)
        mask: Mask = ((place + 1) * t + shift) // n > (place * t + shift) // n
        return mask


def split(
    splitter: Splitter,
    test: float | Whole,
    support: float | None,
    validation: float = 0.0,
    apart: bool = False,
) -> dict[str, Ragged]:
    """The splits of all clients, each client's rows in order of time, or in the table's order.

    ``apart``: the test rows are those of clients that have no others, so a support and a query are halves of these.
    """
    for name, fraction in (("test", test), ("support", support), ("validation", validation)):
        if isinstance(fraction, float | int) and not 0 <= fraction <= (1 if name == "support" else 0.999999):
            raise ConfigError(
                f"{name} = {fraction} cannot be; give a fraction from 0 to 1 (below 1 for test and validation)"
            )
    part = splitter.parts(test, support, validation)
    order = _by_owner(splitter.owner, splitter.time)
    wanted = {"train": (_KIND, 0), "test": (_KIND, _TEST)}
    if validation > 0:
        wanted["validation"] = (_KIND, _VALIDATION)
    for name, kind in _HALVED.items() if support is not None else ():
        if kind != _VALIDATION or validation > 0:
            both = (_VALIDATION if apart and not name else _KIND) | _SUPPORT
            wanted |= {f"{name}support": (both, kind | _SUPPORT), f"{name}query": (both, kind)}
    ordered = part[order]
    return {
        name: _ragged(order[(ordered & mask) == bits], splitter.owner, splitter.clients)
        for name, (mask, bits) in wanted.items()
    }


def refuse_empty(sizes: Whole, names: tuple[str, ...] | None, what: str, remedy: str) -> None:
    """A DataError that names the clients which have nothing."""
    empty = np.flatnonzero(sizes == 0)
    if len(empty):
        raise DataError(f"client {some(names[k] if names else k for k in empty)} would have no {what}; {remedy}")


def _by_owner(owner: Whole, time: Floats | None) -> Whole:
    """The owned rows, client by client, each client's in order of time or of row number."""
    if time is None:
        return grouped(owner)
    by_time = np.argsort(time, kind="stable")
    return by_time[grouped(owner[by_time])]


def _ragged(rows: Whole, owner: Whole, clients: int) -> Ragged:
    sizes = torch.from_numpy(np.bincount(owner[rows], minlength=clients))
    offsets = Ragged.contiguous(sizes).offsets
    whole = len(rows) > 0 and rows[0] == 0 and bool((rows == np.arange(len(rows))).all())
    return Ragged(offsets, None if whole or len(rows) == 0 else torch.from_numpy(rows))
