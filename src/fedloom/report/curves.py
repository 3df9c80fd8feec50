"""Numbers along the rounds: every metric and measure of every group, mean and spread over repeats, on every clock."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.report.groups import FEATURE, Group, by_the_clock, direction, every_run, metric_names
from fedloom.report.look import FATES
from fedloom.report.runs import RunRecord, client_name, evaluations, number, pick, section, total
from fedloom.report.words import time_unit

LIMIT = 2000
"""How many rounds one line shows at the most; longer histories are thinned evenly, first and last round kept."""

Array = NDArray[np.float64]
Row = dict[str, Any]
Read = Callable[[Row], float | None]

STATISTICS = {
    "weighted": "mean over samples",
    "mean": "mean over clients",
    "worst_tenth": "worst tenth of the clients",
    "std": "standard deviation over clients",
    "min": "lowest client",
    "max": "highest client",
    "pooled": "all rows together",
    "value": "value",
}
_CLOCKS = {
    "simulated_seconds": ("Simulated time", "simulated_seconds"),
    "bytes": ("Bytes up and down", "bytes_up", "bytes_down"),
    "gradient_evaluations": ("Gradient evaluations", "gradient_evaluations"),
    "wall_seconds": ("Wall time", "wall_seconds"),
}
"""What curves are drawn against beside the rounds: a title, and what the history counts it by."""


@dataclass(frozen=True)
class Axis:
    """A clock to draw against: for each group the mean over its repeats, in the unit that suits the longest."""

    title: str
    values: tuple[Array, ...]
    size: float = 1.0
    """How much of what the history counts one of that unit is."""


@dataclass(frozen=True)
class Line:
    """One group's mean over repeats and, with two repeats or more, one standard deviation to either side."""

    mean: Array
    std: Array | None = None
    low: Array | None = None
    high: Array | None = None


@dataclass(frozen=True)
class Curves:
    """``lines[name][statistic]`` has one line for each group, ``axes[clock]`` one array of x for each group."""

    labels: tuple[str, ...]
    axes: dict[str, Axis]
    lines: dict[str, dict[str, tuple[Line, ...]]]
    thinned: bool
    usual: str = "round"
    """The clock to draw against unless the reader chooses another."""

    def log(self, name: str) -> bool:
        """Whether a logarithmic axis suits: positive throughout, over two decades or more, and not better upwards.

        A gap is positive but for rounding, and what is not is left out.
        """
        if direction(name) == "up":
            return False
        means = np.concatenate([line.mean for lines in self.lines[name].values() for line in lines])
        known = means[np.isfinite(means) & ((means > 0) | (not name.endswith("gap")))]
        return bool(known.size and known.min() > 0 and known.max() > 100 * known.min())


def metric_curves(groups: Sequence[Group], statistics: Sequence[str] = ("weighted", "mean")) -> Curves:
    """What was evaluated, along the rounds; with the mean over samples, what was tested before it was trained on."""

    def read(name: str, statistic: str) -> Read:
        return lambda row: pick(evaluations(row).get(name, {}), statistic)

    reads = {name: {s: read(name, s) for s in statistics} for name in metric_names(groups)}
    if "weighted" in statistics:
        # Rows that are tested on arrival, before they are trained on.
        tested = _names(groups, "prequential")
        reads |= {f"prequential/{name}": {"weighted": _of("prequential", name)} for name in tested}
    return _curves(groups, reads)


def measure_curves(groups: Sequence[Group]) -> Curves:
    """What methods measured about themselves (gaps, residuals, norms), and how old replies were, along the rounds."""
    measures = [name for name in _names(groups, "measures") if not name.startswith(FEATURE)]
    reads = {name: {"value": _of("measures", name)} for name in measures}
    ages = {f"{part}_staleness": {"value": _of("staleness", part)} for part in ("mean", "max")}
    return _curves(groups, reads | ages)


def arrival_curves(groups: Sequence[Group], total: float | None) -> Curves:
    """How many training rows have arrived along the run, and which share that is of so many in all."""

    def share(row: Row) -> float | None:
        came = number(row.get("arrived"))
        return None if came is None or not total else came / total

    reads: dict[str, dict[str, Read]] = {"rows_arrived": {"value": lambda row: number(row.get("arrived"))}}
    return _curves(groups, reads | {"share_of_all_rows": {"value": share}})


def _of(part: str, name: str) -> Read:
    return lambda row: number(section(row, part).get(name))


def _names(groups: Sequence[Group], part: str) -> list[str]:
    """What has a number in this part of any row of any history."""
    tables = (section(row, part) for run in every_run(groups) for row in run.history)
    return list(dict.fromkeys(name for table in tables for name, value in table.items() if number(value) is not None))


def thin(count: int, limit: int = LIMIT) -> NDArray[np.int64]:
    """Which of ``count`` points to show: all, or ``limit`` of them evenly spread with both ends."""
    if count <= limit:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, limit).round().astype(np.int64))


def _curves(groups: Sequence[Group], reads: dict[str, dict[str, Read]]) -> Curves:
    every = [read for statistics in reads.values() for read in statistics.values()]
    rounds = [_rounds(group, every) for group in groups]
    thinned = any(len(each) > LIMIT for each in rounds)
    shown = [[each[at] for at in thin(len(each))] for each in rounds]
    tables = [_table(group, each, every) for group, each in zip(groups, shown, strict=True)]
    lines = {}
    for name, statistics in reads.items():
        found = {key: tuple(_line(table, read) for table in tables) for key, read in statistics.items()}
        known = {key: line for key, line in found.items() if any(np.isfinite(one.mean).any() for one in line)}
        if known:
            lines[name] = known
    axes = _axes(tables)
    usual = "simulated_seconds" if "simulated_seconds" in axes and by_the_clock(groups) else "round"
    return Curves(tuple(group.label for group in groups), axes, lines, thinned, usual)


Table = tuple[list[int], list[dict[int, Row]]]


def _rounds(group: Group, reads: Sequence[Read]) -> list[int]:
    """The rounds in which any run of the group has any of the values."""
    rows = (row for run in group.runs for row in run.history)
    return sorted({row["round"] for row in rows if _has(row, reads)})


def _table(group: Group, rounds: list[int], reads: Sequence[Read]) -> Table:
    """Some of these rounds, and each run's rows of them that have a value: few of a long history."""
    shown = set(rounds)
    by_run = [
        {row["round"]: row for row in run.history if row["round"] in shown and _has(row, reads)} for run in group.runs
    ]
    return rounds, by_run


def _has(row: Row, reads: Sequence[Read]) -> bool:
    return any(read(row) is not None for read in reads)


def _values(table: Table, read: Read) -> Array:
    """Shape (runs, rounds), NaN where a run does not have the value."""
    rounds, by_run = table
    found = [[read(rows[index]) if index in rows else None for index in rounds] for rows in by_run]
    values = np.array(found, dtype=np.float64)  # None becomes NaN
    return np.where(np.isfinite(values), values, np.nan)


def _line(table: Table, read: Read) -> Line:
    values = _values(table, read)
    values[:, _leaps(values)] = np.nan
    mean = over_runs(np.nanmean, values)
    if len(values) < 2:
        return Line(mean)
    std = np.where(np.isfinite(values).sum(axis=0) > 1, over_runs(np.nanstd, values, ddof=1), 0.0)
    low, lowest = mean - std, over_runs(np.nanmin, values)
    low = np.where((low <= 0) & (lowest > 0), lowest, low)  # what is positive stays so, also on a log axis
    return Line(mean, std, low, mean + std)


def _leaps(values: Array) -> NDArray[np.bool_]:
    """The rounds that a run passed without having the value while others have it.

    Runs by the clock, say, end after different rounds, and each is evaluated at its end. A mean over other runs than
    the one before would be a leap that none of them made.
    """
    known = np.isfinite(values)
    later = np.flip(np.logical_or.accumulate(np.flip(known, 1), axis=1), 1)
    return np.asarray((later & ~known).any(axis=0))


def over_runs(reduce: Callable[..., Any], values: Array, **settings: int) -> Array:
    """A mean, say, over the first axis; NaN where no run has a value."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(reduce(values, axis=0, **settings), dtype=np.float64)


def _axes(tables: list[Table]) -> dict[str, Axis]:
    """The clocks that ran; one that stood still all the time (a fleet without delays, say) is no axis."""
    found = {"round": Axis("Rounds", tuple(np.array(rounds, dtype=np.float64) for rounds, _ in tables))}
    for key, (title, *clocks) in _CLOCKS.items():
        values = tuple(over_runs(np.nanmean, _values(table, _total(*clocks))) for table in tables)
        longest = max((float(np.nanmax(x)) for x in values if np.isfinite(x).any()), default=0.0)
        if longest > 0:
            unit, size = time_unit(longest) if title.endswith("time") else ("", 1.0)
            found[key] = Axis(f"{title} ({unit})" if unit else title, tuple(x / size for x in values), size)
    return found


def _total(*clocks: str) -> Read:
    return lambda row: total(row, *clocks)


def participation(group: Group) -> dict[str, Array] | None:
    """Clients a round by what became of them, mean over repeats; None when every selected one was accepted."""
    counted = ("selected", *FATES)
    by_run = [_numbers_of(run, ("round", *counted)) for run in group.runs]
    by_run = [table[table[:, 0] > 0] for table in by_run]
    rounds = np.unique(np.concatenate([table[:, 0] for table in by_run]))
    found = np.full((len(by_run), len(rounds), len(counted)), np.nan)
    for at, table in enumerate(by_run):
        found[at, np.searchsorted(rounds, table[:, 0])] = table[:, 1:]
    fates = {fate: found[:, :, at] for at, fate in enumerate(counted)}
    selected, accepted = fates.pop("selected"), fates["accepted"]
    missed = [selected - accepted, *(values for fate, values in fates.items() if fate != "accepted")]
    if not any((values > 0).any() for values in missed):
        return None
    means = {"round": rounds}
    means |= {fate: np.nan_to_num(over_runs(np.nanmean, values)) for fate, values in fates.items()}
    bins = np.array_split(np.arange(len(rounds)), min(len(rounds), 150))
    return {name: np.array([values[part].mean() for part in bins]) for name, values in means.items()}


def _numbers_of(run: RunRecord, names: Sequence[str]) -> Array:
    """Shape (rows, names): these numbers of every row of the history, NaN where it lacks one; 8 bytes each."""
    values = (number(row.get(name)) for row in run.history for name in names)
    found = np.fromiter((math.nan if value is None else value for value in values), np.float64).reshape(-1, len(names))
    return np.where(np.isfinite(found), found, np.nan)


@dataclass(frozen=True)
class ClientValue:
    """One client's final value of a metric, with what is known of the client."""

    value: float
    name: str
    rows: float | None


def client_values(run: RunRecord, metric: str) -> list[ClientValue]:
    """The final metric of every client of a run, from its summary."""
    table = section(run.summary, "per_client")
    sizes = section(run.data, "sizes").get("train") or []
    found = []
    for client, value in zip(table.get("clients") or [], table.get(metric) or [], strict=False):
        known = number(value)
        if known is not None and math.isfinite(known) and isinstance(client, int):
            rows = number(sizes[client]) if client < len(sizes) else None
            found.append(ClientValue(known, client_name(run.data, client), rows))
    return found
