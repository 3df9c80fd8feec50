"""Two groups beside each other, client by client, seed by seed and fold by fold; and how sure the difference is.

Differences are of the same clients of the same seed and fold, of the same seed, and of the same fold. Intervals are
Student's, at 95 %. Folds learn from rows that most of them share, so that over folds is wider, by the correction of
Nadeau and Bengio (2003).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from fedloom.report.curves import client_values
from fedloom.report.groups import Group, direction, headline
from fedloom.report.runs import RunRecord
from fedloom.report.words import plain

_LEVEL = 0.95
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Interval:
    """The mean of some paired differences, and where it lies at 95 %; of a single one nobody knows."""

    mean: float
    count: int
    half: float | None = None

    @staticmethod
    def of(differences: Sequence[float], overlap: float = 0.0) -> Interval:
        """Student's t for the mean of these differences; ``overlap`` are rows tested for each learnt from, of folds."""
        values = np.asarray(differences, dtype=np.float64)
        mean = float(values.mean())
        if len(values) < 2:
            return Interval(mean, len(values))
        from scipy.stats import t

        wide = math.sqrt(1 / len(values) + overlap)
        half = float(t.ppf((1 + _LEVEL) / 2, len(values) - 1) * values.std(ddof=1) * wide)
        return Interval(mean, len(values), half)

    @property
    def sure(self) -> bool:
        """Whether zero is outside: the difference is not by chance alone."""
        return self.half is not None and abs(self.mean) > self.half

    @property
    def words(self) -> str:
        """ "+0.012, from +0.004 to +0.020"."""
        if self.half is None:
            return signed(self.mean)
        return f"{signed(self.mean)}, from {signed(self.mean - self.half)} to {signed(self.mean + self.half)}"


@dataclass(frozen=True)
class Pair:
    """One group beside another: how much better it is, by client, by seed and by fold (above 0: better)."""

    clients: dict[str, float]
    seeds: dict[int, float]
    folds: dict[int, float] = field(default_factory=dict)
    values: dict[str, tuple[float, float]] = field(default_factory=dict)
    """What each client has with the one and with the other."""

    @staticmethod
    def of(one: Group, other: Group, metric: str) -> Pair:
        """Of each client that both evaluated in the same repeat the difference, mean over repeats; and those of each
        seed, mean over folds, and of each fold, mean over seeds.
        """
        sign = -1.0 if direction(metric) == "down" else 1.0
        by_client: dict[str, list[tuple[float, float]]] = {}
        by_seed: dict[int, list[float]] = {}
        by_fold: dict[int, list[float]] = {}
        others = {(run.seed, run.fold): run for run in other.runs if run.seed is not None}
        for run in one.runs:
            if run.seed is None or (run.seed, run.fold) not in others:
                continue
            beside = others[run.seed, run.fold]
            mine, theirs = _by_client(run, metric), _by_client(beside, metric)
            for client in mine.keys() & theirs.keys():
                by_client.setdefault(client, []).append((mine[client], theirs[client]))
            statistic = headline((one, other), metric)
            values = run.final(metric, statistic), beside.final(metric, statistic)
            if values[0] is not None and values[1] is not None and all(map(math.isfinite, values)):  # type: ignore[arg-type]
                by_seed.setdefault(run.seed, []).append(sign * (values[0] - values[1]))
                if run.fold is not None:
                    by_fold.setdefault(run.fold, []).append(sign * (values[0] - values[1]))
        each = {
            client: (float(np.mean([a for a, _ in some])), float(np.mean([b for _, b in some])))
            for client, some in sorted(by_client.items())
        }
        clients = {client: 0.0 if _equal(*both) else sign * (both[0] - both[1]) for client, both in each.items()}
        return Pair(clients, _means(by_seed), _means(by_fold), each)

    @property
    def intervals(self) -> dict[str, Interval]:
        """Over clients, seeds and folds, where there are at least two of them."""
        found = {"client": self.clients.values(), "seed": self.seeds.values(), "fold": self.folds.values()}
        return {
            what: Interval.of(list(values), 1 / (len(values) - 1) if what == "fold" else 0.0)
            for what, values in found.items()
            if len(values) > 1
        }

    @property
    def sure(self) -> bool:
        """Whether every interval that there is has zero outside; where there is none, nothing is sure."""
        return bool(self.intervals) and all(interval.sure for interval in self.intervals.values())

    @property
    def worse(self) -> list[str]:
        """The clients for whom it is worse, the worst first."""
        return sorted((client for client, value in self.clients.items() if value < 0), key=self.clients.__getitem__)

    @property
    def better(self) -> list[str]:
        """The clients for whom it is better."""
        return [client for client, value in self.clients.items() if value > 0]

    @property
    def least_tenth(self) -> float:
        """The mean over the tenth of the clients that gain least, of one at least."""
        ordered = sorted(self.clients.values())
        return float(np.mean(ordered[: max(1, math.ceil(len(ordered) / 10))]))


def _equal(one: float, other: float) -> bool:
    """Whether two means are the same but for the rounding of their sums."""
    return math.isclose(one, other, rel_tol=_ROUNDING)


K = TypeVar("K")


def _means(by: dict[K, list[float]]) -> dict[K, float]:
    return {key: float(np.mean(some)) for key, some in by.items()}


def _by_client(run: RunRecord, metric: str) -> dict[str, float]:
    return {one.name: one.value for one in client_values(run, metric)}


def signed(value: float) -> str:
    """A difference with its sign: "+0.012", "−0.004"."""
    said = plain(value).text(abs(value))
    return f"−{said}" if value < 0 else f"+{said}"
