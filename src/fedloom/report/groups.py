"""Runs that differ in nothing but seed and fold are one group: the rows of the table and the lines of the charts."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedloom.report.runs import RunRecord, evaluations, pick, primary_first, section, total

FEATURE = "feature/"
"""How measures of single input columns begin; they are drawn together as a heat map."""

_REPEATS = ("seed", "fold")
"""The settings in which repeats differ, whatever section they are in."""
COSTS = {"rounds": ("round",), "bytes": ("bytes_up", "bytes_down"), "seconds": ("simulated_seconds",)}
"""What it takes to reach a target, and the clocks that count it."""
BOUND = ("central", "global-linear")
"""The methods that pool all rows: what they reach is a bound, for who may do that needs no federation."""
ALONE = ("local", "local-linear")
"""The methods in which every client is alone: who is worse off than that has no reason to take part."""
_UP = re.compile("accuracy|f1|precision|recall|transfer|auc|auroc|r2|score|top|kappa")
_DOWN = re.compile(
    "loss|mae|mse|rmse|smape|mape|error|fidelity|brier|quantile|gap|residual|distance|forgetting|perplexity"
)


@dataclass(frozen=True)
class Group:
    """Repeats of one experiment. ``repeated`` runs had a seed that was there already and are not counted twice."""

    label: str
    runs: tuple[RunRecord, ...]
    repeated: int = 0

    @property
    def finished(self) -> int:
        """How many of the runs came to their end."""
        return sum(run.finished for run in self.runs)

    @property
    def count(self) -> str:
        """How many repeats there are, and how many of them are finished where not all are."""
        runs = len(self.runs)
        if self.finished == runs:
            return str(runs)
        return "1, not finished" if runs == 1 else f"{runs}, {self.finished} finished"

    def headline(self, metric: str) -> str:
        """By which statistic the metric of these runs is told: pooled where all of them say so."""
        return "pooled" if all(run.headline(metric) == "pooled" for run in self.runs) else "weighted"

    def finals(self, metric: str, statistic: str | None = None) -> list[float]:
        """A metric at the end of each run that has it; none: its headline."""
        statistic = statistic or self.headline(metric)
        return self.known(lambda run: run.final(metric, statistic))

    def clocks(self, name: str) -> list[float]:
        """A cumulative clock at the end of each run that has it."""
        return self.known(lambda run: run.clock(name))

    def known(self, what: Callable[[RunRecord], float | None]) -> list[float]:
        """Something of each run, without the runs that do not have it."""
        return [value for run in self.runs if (value := what(run)) is not None]


@dataclass(frozen=True)
class Target:
    """A metric's value to be reached, usually by the weighted mean over clients, in a round that was evaluated."""

    metric: str
    value: float
    statistic: str = "weighted"
    rises: bool | None = None
    """Whether it gets better upwards; none: as the metric's name tells."""

    def reached_at(self, run: RunRecord) -> dict[str, Any] | None:
        """The first row of the history in which the target is reached."""
        rises = direction(self.metric) != "down" if self.rises is None else self.rises
        better = np.greater_equal if rises else np.less_equal
        for row in run.history:
            value = pick(evaluations(row).get(self.metric, {}), self.statistic)
            if value is not None and better(value, self.value):
                return row
        return None

    def costs(self, run: RunRecord) -> dict[str, float]:
        """What it took the run to get there, as far as its history tells; nothing where it did not."""
        row = self.reached_at(run) or {}
        found = {key: total(row, *clocks) for key, clocks in COSTS.items()}
        return {key: value for key, value in found.items() if value is not None}


def direction(metric: str) -> str | None:
    """Which way a metric gets better, "up" or "down"; None where its name does not tell."""
    words = re.split(r"[^a-z0-9]+", metric.rpartition("/")[2].partition(":")[0].lower())
    if any(map(_DOWN.fullmatch, words)):
        return "down"
    return "up" if any(map(_UP.fullmatch, words)) else None


def mean_and_std(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and standard deviation over repeats (n − 1 in the denominator); one value alone has no spread."""
    if not values:
        return None, None
    mean = float(np.mean(values))
    if len(values) == 1:
        return mean, None
    return mean, float(np.std(values, ddof=1)) if math.isfinite(mean) else math.nan


def group_runs(runs: Sequence[RunRecord]) -> list[Group]:
    """Gather repeats, in the order in which they come; equal labels are told apart by the settings that differ."""
    gathered: dict[str, list[RunRecord]] = {}
    for run in runs:
        gathered.setdefault(_identity(run), []).append(run)
    members = [_one_per_seed(group) for group in gathered.values()]
    repeated = [len(group) - len(kept) for group, kept in zip(gathered.values(), members, strict=True)]
    return list(map(Group, _labels(members), map(tuple, members), repeated))


def every_run(groups: Sequence[Group]) -> list[RunRecord]:
    """All runs of all groups."""
    return [run for group in groups for run in group.runs]


def sign_of(metric: str) -> float:
    """By what a difference of a metric is multiplied so that above 0 is better."""
    return -1.0 if direction(metric) == "down" else 1.0


def metric_names(groups: Sequence[Group]) -> list[str]:
    """All metrics of all groups, the primary one first."""
    return primary_first(dict.fromkeys(name for run in every_run(groups) for name in run.metrics))


def headline(groups: Sequence[Group], metric: str) -> str:
    """By which statistic a metric is told of all groups alike: pooled where each of them that has it says so."""
    those = [group for group in groups if any(metric in run.metrics for run in group.runs)]
    return "pooled" if those and all(group.headline(metric) == "pooled" for group in those) else "weighted"


def by_the_clock(groups: Sequence[Group]) -> bool:
    """Whether rounds do not compare: replies were taken as they arrived, or the schedules differ."""
    runs = every_run(groups)
    schedules = [schedule for run in runs if (schedule := section(run.config, "schedule"))]
    return any(run.asynchronous for run in runs) or any(schedule != schedules[0] for schedule in schedules)


def contest_of(group: Group) -> str:
    """Groups compete where data and evaluated rows are the same, each with its own model."""
    flat, told = settings(group.runs[0].config), group.runs[0].judged
    rows = [(key, str(told.get(key))) for key in ("on", "split")]
    return repr([*rows, *((key, flat[key]) for key in sorted(flat) if key.partition(".")[0] == "data")])


def is_bound(group: Group) -> bool:
    """Whether it pools all rows: a bound, and nothing that could be chosen."""
    return group.runs[0].method in BOUND


def settings(config: dict[str, Any]) -> dict[str, object]:
    """The settings that make an experiment what it is, flat: ``{"method.lr": 0.1}``; not what it is
    called, its repeat, executor or trackers.
    """
    return {
        key: value
        for key, value in flatten(config).items()
        if key not in ("name", "tracking")
        and not key.startswith(("execution.", "tracking."))
        and key.rpartition(".")[2] not in _REPEATS
    }


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, object]:
    """Nested tables as one, with dotted keys."""
    flat: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _identity(run: RunRecord) -> str:
    """All settings; where these are not the whole experiment, what the run calls itself as well."""
    known = settings(run.config) | ({} if run.repeatable else {"": run.label})
    return json.dumps(known, sort_keys=True, default=str)


def _one_per_seed(runs: list[RunRecord]) -> list[RunRecord]:
    """The same seed again (another executor, say) is no repeat and would shrink the spread: the furthest run counts."""
    best: dict[str, RunRecord] = {}
    for run in runs:
        seeds = {key: value for key, value in flatten(run.config).items() if key.rpartition(".")[2] in _REPEATS}
        key = json.dumps(seeds, sort_keys=True, default=str) if seeds else f"{run.seed} {run.folder}"
        if key not in best or (run.finished, run.rounds) > (best[key].finished, best[key].rounds):
            best[key] = run
    return list(best.values())


def _labels(members: list[list[RunRecord]]) -> list[str]:
    names = [next((run.label for run in group if run.finished), group[0].label) for group in members]
    flats = [settings(group[0].config) for group in members]
    return [
        f"{name} ({difference})" if (difference := _difference(flat, _namesakes(name, names, flats))) else name
        for name, flat in zip(names, flats, strict=True)
    ]


def _namesakes(name: str, names: list[str], flats: list[dict[str, object]]) -> list[dict[str, object]]:
    return [flat for other, flat in zip(names, flats, strict=True) if other == name]


def _difference(flat: dict[str, object], others: list[dict[str, object]]) -> str:
    """What sets one experiment apart from its namesakes, as "lr=0.1, alpha=0.5"."""
    keys = dict.fromkeys(key for other in others for key in other)
    differing = [key for key in keys if any(other.get(key) != flat.get(key) for other in others)]
    leaves = {key: key.rpartition(".")[2] for key in differing}
    count = Counter(leaves.values())
    names = {key: leaf if count[leaf] == 1 and leaf != "name" else key for key, leaf in leaves.items()}
    return ", ".join(f"{name}={_value_text(flat[key])}" for key, name in names.items() if key in flat)


def _value_text(value: object) -> str:
    if isinstance(value, list):
        return "[" + " ".join(_value_text(item) for item in value) + "]"
    if isinstance(value, dict):
        rest = [f"{key}={_value_text(item)}" for key, item in value.items() if key != "name"]
        return " ".join([str(value["name"])] * ("name" in value) + rest)
    return str(value).lower() if isinstance(value, bool) else str(value)
