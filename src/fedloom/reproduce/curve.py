"""How the values of a cell came about: its curve, short enough to be kept with the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedloom.report.curves import Array, Axis, metric_curves, thin
from fedloom.report.groups import Group
from fedloom.report.runs import read_run
from fedloom.reproduce.outcome import DIVERGED
from fedloom.reproduce.plan import Cell
from fedloom.storage.folder import SUMMARY

POINTS = 40
"""How many a kept curve has at the most."""
_LEAST = 3
_DIGITS = 5
Curve = dict[str, list[float]]


def repeats(cell: Cell, folder: Path, ends: Sequence[str] = (SUMMARY, DIVERGED)) -> Group | None:
    """The repeats of a cell that have come to one of these ends; None where there are none."""
    places = [folder / cell.place(seed) for seed in cell.seeds]
    runs = [read_run(place) for place in places if any((place / end).is_file() for end in ends)]
    return Group(cell.row, tuple(runs)) if runs else None


def curve_of(cell: Cell, folder: Path) -> Curve | None:
    """The measure along the rounds, and along the simulated seconds where those passed.

    It is a mean over the repeats as long as all of them go on, but for those that diverged. Of tasks in sequence, whose
    earlier ones are evaluated only when one ends, it is the metric on the task that is being learnt. None where it was
    evaluated less than three times, and for a cell that only reads the runs of another column.
    """
    own = cell.column == cell.home[1] and cell.measure.task is None
    group = repeats(cell, folder, (SUMMARY,)) if own else None
    if group is None:
        return None
    found = metric_curves([group], [cell.measure.statistic])
    together = found.axes["round"].values[0] <= min(run.rounds for run in group.runs)
    for metric in _metrics(cell.measure.metric, group):
        for line in found.lines.get(metric, {}).get(cell.measure.statistic, ()):
            known = np.flatnonzero(together & np.isfinite(line.mean))
            if len(known) >= _LEAST:
                return _kept(found.axes, cell.measure.factor * line.mean, known[thin(len(known), POINTS)])
    return None


def joined_curve(parts: Sequence[tuple[Curve | None, int]]) -> Curve | None:
    """The mean of curves that are means over so many repeats each; where other rounds count, that of the most."""
    known = [(curve, count) for curve, count in parts if curve is not None and count]
    if not known:
        return None
    most = max(known, key=lambda part: part[1])[0]
    alike = [(curve, count) for curve, count in known if curve["rounds"] == most["rounds"]]
    total = sum(count for _, count in alike)
    columns = zip(*(curve["values"] for curve, _ in alike), strict=True)
    means = [sum(value * count for value, (_, count) in zip(column, alike, strict=True)) / total for column in columns]
    return {**most, "values": [_short(value) for value in means]}


def _metrics(measured: str, group: Group) -> Iterator[str]:
    """What to show: the measure or, of tasks in sequence, that on the task that is being learnt."""
    yield measured
    if all("task" in run.config for run in group.runs):
        yield measured.rpartition("/")[2]


def _kept(axes: dict[str, Axis], values: Array, shown: NDArray[np.int64]) -> Curve:
    clocks = {"rounds": "round", "seconds": "simulated_seconds"}
    found = {name: axes[key].size * axes[key].values[0] for name, key in clocks.items() if key in axes}
    return {name: [_short(value) for value in numbers[shown]] for name, numbers in {**found, "values": values}.items()}


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
