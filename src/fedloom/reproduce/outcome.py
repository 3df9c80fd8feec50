"""What came of a cell: its values, how they compare with the published one, and the way to its target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedloom.report.groups import COSTS, Target, mean_and_std
from fedloom.report.runs import RunRecord, evaluations, number, pick, read_run
from fedloom.reproduce.plan import Measure, Published
from fedloom.storage.folder import SUMMARY

DIVERGED = "diverged.json"
"""Beside a run's files: it ended in NaN or infinity, which is a result and is not tried again."""
Verdict = Literal["within", "above", "below", "not comparable", "no published value", "not run"]
DEVIATIONS = 2.0
NONE_REACHED = "no point of the grid reached the target"


@dataclass(frozen=True)
class Outcome:
    """A run that is done: its value (NaN where there is none), and what it took to reach the target."""

    value: float
    reached: dict[str, float] | None = None
    wall_seconds: float = 0.0
    diverged: bool = False
    """Whether it ended in NaN or infinity."""


def read_outcome(place: Path, measure: Measure, over: int, target: float | None) -> Outcome | None:
    """The outcome of the run in a folder; None when it is not done."""
    broken = (place / DIVERGED).is_file()
    if not broken and not (place / SUMMARY).is_file():
        return None
    run = read_run(place)
    reached, seconds = _reached(run, measure, target), run.clock("wall_seconds") or 0.0
    if measure.reads != "value":
        return Outcome((reached or {}).get(measure.reads, math.nan), reached, seconds, broken)
    ended = measure.task is not None  # tasks are in the history once they are learnt, whatever became of later ones
    value = value_of(run, measure, over) if ended or not broken else math.nan
    return Outcome(value, reached, seconds, not math.isfinite(value))


def value_of(run: RunRecord, measure: Measure, over: int) -> float:
    """The measure of a run, in the units of the table; NaN where a round that counts has none."""
    values = [
        value
        for row in run.history
        if measure.task in (None, row.get("task"))
        and (measure.at_seconds is None or (number(row.get("simulated_seconds")) or 0.0) <= measure.at_seconds)
        and (value := pick(evaluations(row).get(measure.metric, {}), measure.statistic)) is not None
    ][-over:]
    return measure.factor * sum(values) / len(values) if values else math.nan


def _reached(run: RunRecord, measure: Measure, target: float | None) -> dict[str, float] | None:
    if target is None:
        return None
    costs = Target(measure.metric, target, measure.statistic, measure.rises).costs(run)
    return costs | {"minutes": costs["seconds"] / 60} if costs else None


def verdict_on(values: Sequence[float], diverged: int, published: Published | None) -> dict[str, Any]:
    """What is recorded of the values of a cell's repeats, of which so many diverged."""
    mean, std = mean_and_std([value for value in values if math.isfinite(value)])
    verdict, why = judge(values, published, diverged == len(values))
    return {"mean": mean, "std": std, "diverged": diverged, "verdict": verdict, "why": why}


def judge(values: Sequence[float], published: Published | None, diverged: bool = True) -> tuple[Verdict, str]:
    """The verdict on the values of the repeats, and why, where it needs a reason.

    Within: the two means differ by at most two standard deviations, √(s² + s'²) being one, where s is the spread of
    our repeats and s' the published one (what is not known counts as 0). Repeats without a value have ``diverged``, or
    else not reached the target.
    """
    if not values:
        return "not run", ""
    if published is None:
        return "no published value", ""
    if published.not_comparable:
        return "not comparable", published.not_comparable
    mean, std = mean_and_std([value for value in values if math.isfinite(value)])
    if mean is None:
        return "not comparable", "every repeat diverged" if diverged else "no repeat reached the target"
    if std is None and published.std is None:
        return "not comparable", "neither side has a spread: repeat it with --repeats 2 or more"
    allowed = DEVIATIONS * math.hypot(std or 0.0, published.std or 0.0)
    if abs(mean - published.value) <= allowed * (1 + 1e-12):
        return "within", ""
    return ("above" if mean > published.value else "below"), ""


def why_untuned(trials: Sequence[Outcome]) -> str:
    """Why none of the points that were tried is the best."""
    return "it diverged with every point of the grid" if all(one.diverged for one in trials) else NONE_REACHED


def on_the_way(outcomes: Sequence[Outcome], target: float | None) -> dict[str, Any] | None:
    """Means over the repeats that reached the target, and how many of them did."""
    if target is None:
        return None
    reached = [outcome.reached for outcome in outcomes if outcome.reached is not None]
    means = {key: mean_and_std([one[key] for one in reached])[0] for key in COSTS}
    return {"value": target, **means, "reached": len(reached), "of": len(outcomes)}


def improvement(mine: float | None, others: Sequence[float | None], upwards: bool) -> float | None:
    """By how many percent a value is better than the best of the others; None where one is missing or that one is 0."""
    known = [other for other in others if other is not None]
    best = (max if upwards else min)(known) if known and len(known) == len(others) else None
    if mine is None or not best:
        return None
    return 100 * (mine - best if upwards else best - mine) / abs(best)
