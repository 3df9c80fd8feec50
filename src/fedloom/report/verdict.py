"""What a comparison says, in words: the best method that can be used, by how much, how surely, for whom it is worse.

Differences are paired: of the same clients of the same seed and fold, of the same seed, and of the same fold. Intervals
are Student's, at 95 %. Folds learn from rows that most of them share, so that over folds is wider, by the correction of
Nadeau and Bengio (2003).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from fedloom.report.folds import pooled_text
from fedloom.report.groups import Group, direction, headline, mean_and_std, metric_names
from fedloom.report.runs import RunRecord, client_name, number, section
from fedloom.report.table import contest_of, is_bound
from fedloom.report.words import lower_first, name_text, plain, plural, text

ALONE = "local"
"""The method in which every client is alone: who is worse off than that has no reason to take part."""
_LEVEL = 0.95


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
            return _signed(self.mean)
        return f"{_signed(self.mean)}, from {_signed(self.mean - self.half)} to {_signed(self.mean + self.half)}"


@dataclass(frozen=True)
class Pair:
    """One group beside another: how much better it is, by client, by seed and by fold (above 0: better)."""

    clients: dict[str, float]
    seeds: dict[int, float]
    folds: dict[int, float] = field(default_factory=dict)

    @staticmethod
    def of(one: Group, other: Group, metric: str) -> Pair:
        """Of each client that both evaluated in the same repeat the difference, mean over repeats; and those of each
        seed, mean over folds, and of each fold, mean over seeds.
        """
        sign = -1.0 if direction(metric) == "down" else 1.0
        by_client: dict[str, list[float]] = {}
        by_seed: dict[int, list[float]] = {}
        by_fold: dict[int, list[float]] = {}
        others = {(run.seed, run.fold): run for run in other.runs if run.seed is not None}
        for run in one.runs:
            if run.seed is None or (run.seed, run.fold) not in others:
                continue
            beside = others[run.seed, run.fold]
            mine, theirs = _by_client(run, metric), _by_client(beside, metric)
            for client in mine.keys() & theirs.keys():
                by_client.setdefault(client, []).append(sign * (mine[client] - theirs[client]))
            statistic = headline((one, other), metric)
            values = run.final(metric, statistic), beside.final(metric, statistic)
            if values[0] is not None and values[1] is not None and all(map(math.isfinite, values)):  # type: ignore[arg-type]
                by_seed.setdefault(run.seed, []).append(sign * (values[0] - values[1]))
                if run.fold is not None:
                    by_fold.setdefault(run.fold, []).append(sign * (values[0] - values[1]))
        return Pair(_means(dict(sorted(by_client.items()))), _means(by_seed), _means(by_fold))

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


def verdict(groups: Sequence[Group]) -> list[str]:
    """The sentences: who is best, and what the folds of a cross-validation come to together."""
    return [*_contest(groups), *pooled_text(groups)]


def _contest(groups: Sequence[Group]) -> list[str]:
    """Who is best; nothing where there is nothing to choose between, or nobody knows which way is better.

    Only what was judged on the same data and rows is compared: the most that there are.
    """
    names = [name for name in metric_names(groups) if direction(name) is not None]
    if not names:
        return []
    contests = Counter(contest_of(group) for group in groups if not is_bound(group))
    main = contests.most_common(1)[0][0] if contests else ""
    apart = [group for group in groups if contest_of(group) != main]
    started = [group for group in groups if group.finished < len(group.runs) and group not in apart]
    groups = [group for group in groups if group not in started and group not in apart]
    metric, sign = names[0], -1.0 if direction(names[0]) == "down" else 1.0
    statistic = headline(groups, metric)
    means = {group.label: mean_and_std(group.finals(metric, statistic))[0] for group in groups}
    known = [group for group in groups if (value := means[group.label]) is not None and math.isfinite(value)]
    ranked = sorted(known, key=lambda group: -sign * (means[group.label] or 0.0))
    usable = [group for group in ranked if not is_bound(group)]
    if len(usable) < 2:
        return []
    best, second = usable[0], usable[1]
    left_out = [
        f"Left out, as {why}: {', '.join(group.label for group in some)}."
        for why, some in (("not finished", started), ("data or evaluation differ", apart))
        if some
    ]
    pair = Pair.of(best, second, metric)
    said = [_first(best, second, metric, means, pair), *_intervals(pair)]
    said += _for_whom(pair, second.label)
    alone = next((group for group in usable[2:] if group.runs[0].method == ALONE), None)
    if alone is not None:
        said += _for_whom(Pair.of(best, alone, metric), f"{alone.label}, where each is alone")
    for bound in filter(is_bound, ranked):
        gap = sign * ((means[bound.label] or 0.0) - (means[best.label] or 0.0))
        more = f"{text(plain, abs(gap))} {'better' if gap > 0 else 'worse'} than {best.label}" if gap else "the same"
        said.append(f"{bound.label} pools all rows, a bound and no choice: {text(plain, means[bound.label])}, {more}.")
    return said + left_out


def _first(best: Group, second: Group, metric: str, means: dict[str, float | None], pair: Pair) -> str:
    one, other = means[best.label] or 0.0, means[second.label] or 0.0
    what = lower_first(name_text(metric))
    values = f"{what} {text(plain, one)} and {text(plain, other)}"
    if one == other:
        return f"{best.label} and {second.label} are equal: {what} {text(plain, one)}."
    if not pair.intervals:
        why = "one run each does not tell whether that is chance"
        return f"{best.label} is ahead of {second.label}: {values}; {why}."
    if not pair.sure:
        return f"{best.label} and {second.label} cannot be told apart: {values}."
    by = text(plain, abs(one - other))
    return f"{best.label} is the best: {what} {text(plain, one)}, {by} better than {second.label}."


def _intervals(pair: Pair) -> list[str]:
    """How sure the difference is, over clients, over seeds and over folds."""
    return [
        f"Paired over {plural(interval.count, what)}: {interval.words} (95 % interval, above 0 is better)."
        for what, interval in pair.intervals.items()
    ]


def _for_whom(pair: Pair, beside: str) -> list[str]:
    if not pair.clients:
        return []
    worse = pair.worse
    if not worse:
        return [f"No client is worse off than with {beside}."]
    most = f"most of all client {worse[0]} ({_signed(pair.clients[worse[0]])})"
    are = "is" if len(worse) == 1 else "are"
    return [f"{len(worse):,} of {plural(len(pair.clients), 'client')} {are} worse off than with {beside}, {most}."]


K = TypeVar("K")


def _means(by: dict[K, list[float]]) -> dict[K, float]:
    return {key: float(np.mean(some)) for key, some in by.items()}


def _by_client(run: RunRecord, metric: str) -> dict[str, float]:
    table = section(run.summary, "per_client")
    found = {}
    for client, value in zip(table.get("clients") or [], table.get(metric) or [], strict=False):
        known = number(value)
        if known is not None and math.isfinite(known) and isinstance(client, int):
            found[client_name(run.data, client)] = known
    return found


def _signed(value: float) -> str:
    said = plain(value).text(abs(value))
    return f"−{said}" if value < 0 else f"+{said}"
