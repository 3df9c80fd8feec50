"""Cross-validation: rows, or clients, in folds, of which each is the test once.

Over rows, each client's rows are dealt to the folds, stratified by class as the test split is: every row is tested
once. Rows in order of time are not dealt but chained forward: each fold tests the rows that follow those it learns
from, so the first rows are never tested. Over clients, each is left out once, as a target client whose rows are all for
the test.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedloom.data.arrays import some
from fedloom.data.owners import NOBODY
from fedloom.data.sizes import Whole
from fedloom.data.splits import Splitter
from fedloom.errors import ConfigError
from fedloom.federation.data import SOURCE, TARGET
from fedloom.federation.randomness import Draw

TEST = 0.2
"""The share of the test rows where there are no folds."""
FOLD = "fold "
"""How the note begins that says what a fold leaves out."""
_CLIENTS = re.compile(r"clients(?::([1-9]\d*))?")


@dataclass(frozen=True)
class Folds:
    """How many folds, and of what."""

    count: int | None
    """None: as many as there are clients, each alone."""
    clients: bool = False

    def numbers(self, clients: int) -> list[int]:
        """The folds of a federation with so many clients, counted from 1."""
        count = clients if self.count is None else self.count
        if self.clients and count > clients:
            raise ConfigError(f"folds = 'clients:{count}' cannot be: there are {clients} clients; give at most as many")
        if count < 2:
            raise ConfigError(f"{count} fold cannot be, for it would be the test of nothing learnt; give at least 2")
        return list(range(1, count + 1))


def read_folds(given: object) -> Folds:
    """What was asked for: 5, "clients" (each alone) or "clients:5" (in five groups)."""
    found = _CLIENTS.fullmatch(given) if isinstance(given, str) else None
    if found:
        return Folds(int(found[1]) if found[1] else None, clients=True)
    if not isinstance(given, int) or isinstance(given, bool):
        raise ConfigError(
            f"folds = {given!r} cannot be; give a number for folds of rows, 'clients' to leave out each client once, "
            "or 'clients:5' to leave them out in five groups"
        )
    folds = Folds(given)
    folds.numbers(0)
    return folds


@dataclass(frozen=True)
class Fold:
    """One of the folds: what it leaves out of training, to be tested."""

    number: int
    """From 1."""
    count: int | None
    clients: bool = False

    @staticmethod
    def of(folds: int | str | None, fold: int | None, test: float | str, target: float) -> Fold | None:
        """The fold that is meant; None where rows are split once, by the share ``test``."""
        if folds is None:
            if fold is not None:
                raise ConfigError(f"fold = {fold}, but of how many is not said; give folds, such as folds = 5")
            return None
        known = read_folds(folds)
        if test != TEST:
            raise ConfigError(
                f"test = {test!r} and folds = {folds!r}: the folds say which rows are tested; leave test out"
            )
        if known.clients and target > 0:
            raise ConfigError(
                f"target = {target} and folds = {folds!r}: the folds say which clients are targets; leave target out"
            )
        if fold is None:
            last = "…" if known.count is None else known.numbers(known.count)[-1]
            raise ConfigError(f"which of the folds is tested is not said; give fold = 1 to {last}")
        found = Fold(fold, known.count, known.clients)
        if known.count is not None:
            found.checked(known.numbers(known.count))
        return found

    def checked(self, numbers: Sequence[int]) -> Fold:
        """The same, if it is one of them."""
        if self.number not in numbers:
            raise ConfigError(f"fold = {self.number!r} cannot be; give fold = 1 to {len(numbers)}")
        return self

    def roles(self, clients: int, draw: Draw) -> Whole:
        """A role for each client: those of this fold are targets. Groups of clients are drawn, and equal up to one."""
        numbers = Folds(self.count, clients=True).numbers(clients)
        self.checked(numbers)
        group = np.empty(clients, dtype=np.int64)
        order = np.arange(clients) if len(numbers) == clients else draw.generator("folds").permutation(clients)
        group[order] = np.arange(clients) % len(numbers)
        return np.where(group == self.number - 1, TARGET, SOURCE).astype(np.int64)

    def tested(self, splitter: Splitter, roles: Whole | None = None) -> tuple[Splitter, Whole]:
        """The rows that this fold tests, and the splitter of all that it may know: in time, nothing that is later."""
        owner = splitter.owner
        if self.clients:
            assert roles is not None
            return splitter, np.flatnonzero((owner >= 0) & (roles[owner] == TARGET))
        assert self.count is not None
        place = splitter.folds(self.count)
        if splitter.chronological:
            known = replace(splitter, owner=np.where(place > self.number, NOBODY, owner))
            return known, np.flatnonzero(place == self.number)
        return splitter, np.flatnonzero(place == self.number - 1)

    def note(self, clients: int, roles: Whole, names: Sequence[str] | None, chronological: bool) -> str:
        """What is left out, in a line."""
        count = clients if self.count is None else self.count
        said = f"{FOLD}{self.number} of {count}"
        if self.clients:
            who = some(names[k] if names else k for k in np.flatnonzero(roles == TARGET).tolist())
            return f"{said}: client {who} left out of training and tested on all of its rows"
        if chronological:
            return (
                f"{said}: tested on the rows that follow those learnt from; later ones are left out, and the first "
                f"{1 / (count + 1):.0%} are tested in no fold"
            )
        return f"{said}: every row is tested in one of the folds"
