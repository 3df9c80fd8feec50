"""Numbers along the rounds: every metric and measure of every group, mean and spread over repeats, on every clock."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.report.groups import Group, by_the_clock, direction, every_run, measure_names, metric_names
from fedloom.report.look import FATES
from fedloom.report.runs import RunRecord, client_name, evaluations, number, pick, section

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
        """Whether a logarithmic axis suits: positive throughout, over two decades or more, and not better upwards."""
        if direction(name) == "up":
            return False
        means = np.concatenate([line.mean for lines in self.lines[name].values() for line in lines])
        known = means[np.isfinite(means)]
        return bool(known.size and known.min() > 0 and known.max() > 100 * known.min())


def metric_curves(groups: Sequence[Group], statistics: Sequence[str] = ("weighted", "mean")) -> Curves:
    """What was evaluated, along the rounds; with the mean over samples, what was tested before it was trained on."""

    def read(name: str, statistic: str) -> Read:
        return lambda row: pick(evaluations(row).get(name, {}), statistic)

    reads = {name: {s: read(name, s) for s in statistics} for name in metric_names(groups)}
    if "weighted" in statistics:
        reads |= {f"prequential/{name}": {"weighted": _of("prequential", name)} for name in _tested(groups)}
    return _curves(groups, reads)


def measure_curves(groups: Sequence[Group]) -> Curves:
    """What methods measured about themselves (gaps, residuals, norms), and how old replies were, along the rounds."""
    ages = {f"{part}_staleness": {"value": _of("staleness", part)} for part in ("mean", "max")}
    return _curves(groups, {name: {"value": _of("measures", name)} for name in measure_names(groups)} | ages)


def _of(part: str, name: str) -> Read:
    return lambda row: number(section(row, part).get(name))


def _tested(groups: Sequence[Group]) -> list[str]:
    """The metrics of rows that were tested on arrival, before they were trained on."""
    rows = (row for run in every_run(groups) for row in run.history)
    return list(dict.fromkeys(name for row in rows for name in section(row, "prequential")))


def thin(count: int, limit: int = LIMIT) -> NDArray[np.int64]:
    """Which of ``count`` points to show: all, or ``limit`` of them evenly spread with both ends."""
    if count <= limit:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, limit).round().astype(np.int64))


def _curves(groups: Sequence[Group], reads: dict[str, dict[str, Read]]) -> Curves:
    every = [read for statistics in reads.values() for read in statistics.values()]
    tables = [_table(group, every) for group in groups]
    thinned = any(len(rounds) > LIMIT for rounds, _ in tables)
    tables = [([rounds[at] for at in thin(len(rounds))], by_run) for rounds, by_run in tables]
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


def _table(group: Group, reads: Sequence[Read]) -> Table:
    """The rounds in which any run of the group has any of the values, and each run's rows by round."""
    by_run = [{row["round"]: row for row in run.history if _tells(row, reads)} for run in group.runs]
    return sorted({index for rows in by_run for index in rows}), by_run


def _tells(row: Row, reads: Sequence[Read]) -> bool:
    return any(read(row) is not None for read in reads)


def _values(table: Table, read: Read) -> Array:
    """Shape (runs, rounds), NaN where a run does not have the value."""
    rounds, by_run = table
    found = np.full((len(by_run), len(rounds)), np.nan)
    for at, rows in enumerate(by_run):
        for column, index in enumerate(rounds):
            value = read(rows[index]) if index in rows else None
            if value is not None and math.isfinite(value):
                found[at, column] = value
    return found


def _line(table: Table, read: Read) -> Line:
    values = _values(table, read)
    values[:, _leaps(values)] = np.nan
    mean = _over_runs(np.nanmean, values)
    if len(values) < 2:
        return Line(mean)
    with np.errstate(invalid="ignore"):
        std = np.where(np.isfinite(values).sum(axis=0) > 1, _over_runs(_sample_std, values), 0.0)
        low = mean - std
        lowest = _over_runs(np.nanmin, values)
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


def _over_runs(reduce: Callable[..., Any], values: Array) -> Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a round that no run has gives NaN, as it should
        return np.asarray(reduce(values, axis=0), dtype=np.float64)


def _sample_std(values: Array, axis: int) -> Array:
    return np.asarray(np.nanstd(values, axis=axis, ddof=1), dtype=np.float64)


def _axes(tables: list[Table]) -> dict[str, Axis]:
    """The clocks that ran; one that stood still all the time (a fleet without delays, say) is no axis."""
    found = {"round": Axis("Rounds", tuple(np.array(rounds, dtype=np.float64) for rounds, _ in tables))}
    for key, title, read in _CLOCKS:
        values = tuple(_over_runs(np.nanmean, _values(table, read)) for table in tables)
        longest = max((float(np.nanmax(x)) for x in values if np.isfinite(x).any()), default=0.0)
        if longest > 0:
            unit, size = time_unit(longest) if title.endswith("time") else ("", 1.0)
            found[key] = Axis(f"{title} ({unit})" if unit else title, tuple(x / size for x in values), size)
    return found


def _count(name: str) -> Read:
    return lambda row: number(row.get(name))


def _bytes(row: Row) -> float | None:
    up, down = number(row.get("bytes_up")), number(row.get("bytes_down"))
    return None if up is None or down is None else up + down


_CLOCKS: tuple[tuple[str, str, Read], ...] = (
    ("simulated_seconds", "Simulated time", _count("simulated_seconds")),
    ("bytes", "Bytes up and down", _bytes),
    ("gradient_evaluations", "Gradient evaluations", _count("gradient_evaluations")),
    ("wall_seconds", "Wall time", _count("wall_seconds")),
)


def time_unit(longest: float) -> tuple[str, float]:
    """The unit that suits so many seconds, and its own seconds."""
    if longest >= 7200:
        return "hours", 3600.0
    return ("minutes", 60.0) if longest >= 180 else ("seconds", 1.0)


def participation(group: Group) -> dict[str, Array] | None:
    """Clients a round by what became of them, mean over repeats; None when every selected one was accepted."""
    rows = [{row["round"]: row for row in run.history if row["round"] > 0} for run in group.runs]
    rounds = sorted({index for by_round in rows for index in by_round})
    table = {fate: _values((rounds, rows), _count(fate)) for fate in FATES}
    selected = _values((rounds, rows), _count("selected"))
    missed = any(bool((values > 0).any()) for fate, values in table.items() if fate != "accepted")
    if not missed and not bool((selected > table["accepted"]).any()):
        return None
    bins = np.array_split(np.arange(len(rounds)), min(len(rounds), 150))
    found = {"round": np.array([float(np.mean([rounds[at] for at in part])) for part in bins])}
    for fate, values in table.items():
        means = np.nan_to_num(_over_runs(np.nanmean, values))
        found[fate] = np.array([float(means[part].mean()) for part in bins])
    return found


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
