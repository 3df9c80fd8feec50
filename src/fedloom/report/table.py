"""The table: one row for each experiment, mean ± standard deviation over its repeats, the best value marked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from fedloom.report.folds import out_of_fold
from fedloom.report.gain import Gain, by_run, told
from fedloom.report.groups import (
    Group,
    Target,
    contest_of,
    direction,
    every_run,
    headline,
    is_bound,
    mean_and_std,
    metric_names,
)
from fedloom.report.kinds import MEASURES, is_sequence, is_vertical
from fedloom.report.runs import RunRecord
from fedloom.report.words import (
    MISSING,
    Kind,
    counted,
    lower_first,
    name_text,
    plain,
    shared,
    sized,
    spread_text,
    text,
    timed,
)

if TYPE_CHECKING:
    from rich.table import Table

NOT_REACHED = "not reached"
_SPREAD = {"std": "Spread over clients", "worst_tenth": "Worst tenth"}
_CLOCKS = (
    ("bytes_up", "Bytes up", sized),
    ("bytes_down", "Bytes down", sized),
    ("simulated_seconds", "Simulated time", timed),
    ("gradient_evaluations", "Gradient evaluations", counted),
    ("wall_seconds", "Wall time", timed),
)


@dataclass(frozen=True)
class Column:
    """One quantity of the table: where it stands, how it is found in a run, written and compared."""

    key: str
    heading: str
    title: str
    read: Callable[[RunRecord], float | None]
    kind: Kind
    better: str | None = None
    goal: str = ""

    @property
    def full_title(self) -> str:
        """The title where no heading stands above it: with the goal that it leads to."""
        return f"{self.title} to {self.goal}" if self.goal else self.title


@dataclass(frozen=True)
class Cell:
    """Mean and spread of one quantity over the repeats; ``known`` of ``runs`` repeats have it."""

    column: Column
    mean: float | None
    std: float | None
    known: int
    runs: int
    best: bool = False

    @property
    def value(self) -> str:
        """The mean in the column's units."""
        if self.mean is None:
            return NOT_REACHED if self.column.goal else MISSING
        return text(self.column.kind, self.mean)

    @property
    def spread(self) -> str:
        """What follows the mean: its ± (of a clock only where the repeats differ), and how many repeats got there."""
        if self.mean is None:
            return ""
        some = [f"({self.known} of {self.runs})"] * (self.known < self.runs)
        quiet = self.column.heading in ("cost", "target") and not self.std
        spread = "" if quiet else spread_text(self.column.kind, self.mean, self.std)
        return " ".join([*([spread] if spread else []), *some])

    @property
    def text(self) -> str:
        """Mean ± standard deviation; a cost is its mean alone, for a terminal is narrow."""
        if self.column.heading == "cost":
            return self.value
        return f"{self.value} {self.spread}".strip()


def columns(groups: Sequence[Group], target: Target | None = None) -> list[Column]:
    """What there is to tell about these runs: metrics, spread over clients, costs and the way to a target."""
    metrics = metric_names(groups)
    found = [
        Column(name, "quality", _title(groups, name), _reader(groups, name), plain, direction(name)) for name in metrics
    ]
    for name in metrics[:1]:
        alone = all(run.fold is not None and run.final(name, "clients") == 1 for run in every_run(groups))
        for statistic, title in _SPREAD.items():
            better = "down" if statistic == "std" else direction(name)
            read = partial(RunRecord.final, metric=name, statistic=statistic)
            column = Column(f"{name}_{statistic}", "clients", title, read, plain, better)
            found += [column] * (not alone and any(group.known(read) for group in groups))
    found += _gain_columns(groups)
    if target is not None:
        found += _target_columns(target)
    found.append(Column("rounds", "cost", "Rounds", lambda run: run.rounds, counted))
    found += [Column(key, "cost", title, partial(RunRecord.clock, name=key), kind) for key, title, kind in _CLOCKS]
    return found


def _reader(groups: Sequence[Group], name: str) -> Callable[[RunRecord], float | None]:
    return partial(RunRecord.final, metric=name, statistic=headline(groups, name))


def _title(groups: Sequence[Group], name: str) -> str:
    """What a metric is called, and that it is of all clients' rows together where that is not its mean over them."""
    return name_text(name) + (", pooled" if headline(groups, name) == "pooled" else "")


def cells(groups: Sequence[Group], target: Target | None = None) -> list[list[Cell]]:
    """The table's body, one list for each group; the best of each column among groups on the same data is marked."""
    found = []
    contests = [contest_of(group) for group in groups]
    for column in columns(groups, target):
        line = [_cell(column, group) for group in groups]
        best = {contest: _best(line, contests, contest, groups) for contest in contests}
        found.append(
            [
                replace(cell, best=best[contest] is not None and cell.value == best[contest] and not is_bound(group))
                for cell, contest, group in zip(line, contests, groups, strict=True)
            ]
        )
    return [list(row) for row in zip(*found, strict=True)]


def rows(groups: Sequence[Group], target: Target | None = None) -> list[dict[str, Any]]:
    """The table as plain dicts of numbers: for each quantity its mean and, as NAME_std_over_runs, its spread."""
    found = []
    for group, line in zip(groups, cells(groups, target), strict=True):
        row: dict[str, Any] = {"label": group.label, "runs": len(group.runs), "finished": group.finished}
        if told := group.runs[0].judged:
            row["judged"] = {key: told[key] for key in ("model", "on", "split", "adapt_split") if key in told}
        for cell in line:
            row[cell.column.key] = cell.mean
            if (value := out_of_fold(group, cell.column.key)) is not None:
                row[f"{cell.column.key}_out_of_fold"] = value
            row[f"{cell.column.key}_std_over_runs"] = cell.std
            if cell.column.heading == "target":
                row[f"{cell.column.key}_reached_by"] = cell.known
        found.append(row)
    return found


def rich_table(groups: Sequence[Group], target: Target | None = None, width: int | None = None) -> Table:
    """The table for a terminal. What is equal in all rows goes into the caption; given a width, the columns that matter
    least make way.
    """
    from rich.table import Table
    from rich.text import Text

    caption, shown = [], []
    for line in zip(*cells(groups, target), strict=True):
        if line[0].column.heading == "gain":  # sentences tell of it
            continue
        if line[0].column.heading == "cost" and len({cell.text for cell in line}) == 1:
            caption.append(f"{line[0].column.title.lower()}: {line[0].text}")
        else:
            shown.append(line)
    fixed = max(len(group.label) for group in groups) + 1 + max(len(group.count) for group in groups) + 4
    if left_out := _make_way(shown, math.inf if width is None else width - fixed):
        caption.append("not shown for want of width: " + ", ".join(map(str.lower, left_out)))
    table = Table(box=None, pad_edge=False, header_style="bold", caption="; ".join(caption), caption_justify="left")
    table.add_column("Method", no_wrap=True)
    table.add_column("Runs", justify="right")
    for line in shown:
        table.add_column(_two_lines(line[0].column.full_title), justify="right", no_wrap=True)
    for at, group in enumerate(groups):
        marked = [Text(line[at].text, style="bold green" if line[at].best else "") for line in shown]
        table.add_row(Text(group.label), group.count, *marked)
    return table


@dataclass(frozen=True)
class Results:
    """The table for the page: headings over so many columns each, and the line of each group."""

    headings: list[tuple[str, int]]
    columns: list[Column]
    lines: list[tuple[Group, list[Cell]]]

    @staticmethod
    def of(groups: Sequence[Group], target: Target | None = None, gains: bool = False) -> Results:
        """What is known of these groups, with the way to a target; ``gains`` only where no section tells of them."""
        found = columns(groups, target)
        kept = [
            at for at, column in enumerate(found) if _matters(column, groups) and (gains or column.heading != "gain")
        ]
        shown = [found[at] for at in kept]
        goal = next((column.goal for column in shown if column.goal), "")
        names = {"quality": "Quality", "clients": "Over clients", "target": f"To {goal}", "cost": "Cost"}
        names["gain"] = "Gain of clients' own models"
        headings = [(names[key], len(list(some))) for key, some in groupby(shown, lambda column: column.heading)]
        lines = [[line[at] for at in kept] for line in cells(groups, target)]
        return Results(headings, shown, list(zip(groups, lines, strict=True)))

    @property
    def repeated(self) -> bool:
        """Whether there is a spread over repeats."""
        return any(len(group.runs) > 1 for group, _ in self.lines)

    @property
    def marked(self) -> bool:
        """Whether any value is marked as the best."""
        return any(cell.best for _, line in self.lines for cell in line)


def _matters(column: Column, groups: Sequence[Group]) -> bool:
    """Whether a page shows a column: parties that predict together do not differ; tasks are shown by their matrix."""
    if column.heading in ("clients", "gain"):
        return not is_vertical(groups) and not is_sequence(groups)
    return column.heading != "quality" or not is_sequence(groups) or column.key.startswith(MEASURES)


def _target_columns(target: Target) -> list[Column]:
    """Rounds, bytes (up and down) and simulated seconds until the target was first reached."""

    def cost(key: str) -> Callable[[RunRecord], float | None]:
        return lambda run: target.costs(run).get(key)

    kinds = {"rounds": counted, "bytes": sized, "seconds": timed}
    sign = "≤" if direction(target.metric) == "down" else "≥"
    goal = f"{lower_first(name_text(target.metric))} {sign} {target.value:g}"
    return [
        Column(f"{key}_to_target", "target", key.capitalize(), cost(key), kind, "down", goal)
        for key, kind in kinds.items()
    ]


def _gain_columns(groups: Sequence[Group]) -> list[Column]:
    """What clients gain by models of their own over the model of all and over being alone, and the share that loses."""
    found: dict[str, list[Gain]] = {}
    for gain in told(groups):
        found.setdefault("local" if gain.key == "local" else "global", []).append(gain)
    columns = []
    for key, some in found.items():
        by = {at: both for gain in some for at, both in by_run(gain).items()}
        names = {gain.beside.label for gain in some}
        name = names.pop() if len(names) == 1 and {gain.key for gain in some} != {"server"} else f"the {key} model"
        mean, share = (partial(_of_run, {at: both[which] for at, both in by.items()}) for which in (0, 1))
        columns += [
            Column(f"gain_over_{key}", "gain", f"Gain over {name}", mean, plain, "up"),
            Column(f"worse_than_{key}", "gain", f"Clients worse than with {name}", share, shared, "down"),
        ]
    return columns


def _of_run(by: Mapping[int, float], run: RunRecord) -> float | None:
    return by.get(id(run))


def _cell(column: Column, group: Group) -> Cell:
    values = group.known(column.read)
    mean, std = mean_and_std(values)
    return Cell(column, mean, std, len(values), len(group.runs))


def _best(column: list[Cell], contests: list[str], contest: str, groups: Sequence[Group]) -> str | None:
    """The best value as it is written, among those that compete: what looks equal is marked equally."""
    cells = [
        cell
        for cell, other, group in zip(column, contests, groups, strict=True)
        if other == contest and not is_bound(group)
    ]
    known = [(cell.mean, cell.value) for cell in cells if cell.mean is not None and math.isfinite(cell.mean)]
    if len(cells) < 2 or not known or column[0].column.better is None:
        return None
    return (max if column[0].column.better == "up" else min)(known)[1]


def _make_way(shown: list[tuple[Cell, ...]], width: float) -> list[str]:
    """Take columns out of ``shown`` from the right, costs first, until the rest fits; returns their titles."""

    def needs(line: tuple[Cell, ...]) -> int:
        heading = _two_lines(line[0].column.full_title).split("\n")
        return 2 + max(map(len, [*heading, *(cell.text for cell in line)]))

    rank = ["quality", "target", "clients", "gain", "cost"]
    expendable = sorted(shown[1:], key=lambda line: rank.index(line[0].column.heading))
    left_out: list[str] = []
    while expendable and sum(map(needs, shown)) > width:
        shown.remove(expendable[-1])
        left_out.insert(0, expendable.pop()[0].column.full_title)
    return left_out


def _two_lines(title: str) -> str:
    """A heading broken at the blank nearest to its middle."""
    blanks = [at for at, letter in enumerate(title) if letter == " "]
    if not blanks or len(title) <= 9:
        return title
    middle = min(blanks, key=lambda at: abs(at - len(title) / 2))
    return f"{title[:middle]}\n{title[middle + 1 :]}"
