"""A file of ``experiments/``: a table of experiments, rows × columns, with the published values beside it.

What is common to all runs stands in [run]; each [[column]] and each [[row]] lays its own settings over that. A cell is
one row in one column: its settings, the points among which its hyper-parameters are tuned, its repeats, and what was
published for it. With [[run.task]] a run is several tasks in sequence. A row or a column may also read another number
off the runs of another one (runs_of), a row may stand in some columns only, and a column that cannot be run shows what
was published alone. An [[improvement]] compares rows, in percent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fedloom.errors import ConfigError, FedloomError
from fedloom.experiment import Experiment, Override, Settings, Shelf, TaskSequence, make_experiment
from fedloom.experiment.choosing import choosing
from fedloom.experiment.faults import each_fault, stop_at
from fedloom.experiment.words import hint, value_text
from fedloom.report.groups import direction
from fedloom.storage.files import slug
from fedloom.types import Count, NonNegative

Point = dict[str, Any]
"""Values for some settings, by their full keys: {"method.lr": 0.1}."""
Runnable = Experiment | TaskSequence
"""What a cell's settings make: one run, or tasks in sequence."""


@dataclass(frozen=True)
class Head:
    """What stands before the first section."""

    title: str
    """What the table is called."""
    about: str = ""
    """Which question it answers, with which settings, and why these."""
    paper: str = ""
    """Where the published values are from."""
    repeats: Count = 3
    """Seeds for each cell: run.seed and those after it."""
    paired: Sequence[str] = ()
    """Rows beside which all others are put, client by client: by how much clients gain, and how many of them lose."""


@dataclass(frozen=True)
class Measure:
    """Which number of a run stands in the table."""

    metric: str = "accuracy"
    """A metric of the main evaluation, or EVALUATION/metric."""
    statistic: Literal["weighted", "mean", "worst_tenth", "std", "min", "max", "pooled"] = "weighted"
    """Over the clients: the mean over their rows, over clients, the worst tenth, …; or of all rows together."""
    over: Count = 1
    """The mean over so many of the last rounds that were evaluated."""
    scale: Literal["plain", "percent", "thousandths"] = "plain"
    """As it is, or times 100, or times 1,000."""
    reads: Literal["value", "rounds", "bytes", "seconds", "minutes"] = "value"
    """The metric's value, or what the column's target took: rounds, bytes (both ways), simulated seconds or minutes."""
    better: Literal["up", "down"] | None = None
    """Which way it gets better; none: as the metric's name tells."""
    task: Count | None = None
    """Of tasks in sequence: as it was at the end of this one; none: after all."""
    at_seconds: NonNegative | None = None
    """As it was by the simulated clock, when it was last evaluated up to this time; none: at the end."""

    @property
    def factor(self) -> float:
        """What a value is multiplied with for the table."""
        return {"plain": 1.0, "percent": 100.0, "thousandths": 1000.0}[self.scale]

    @property
    def upwards(self) -> bool:
        """Whether more is better."""
        return self.reads == "value" and self.rises

    @property
    def rises(self) -> bool:
        """Whether the metric, which may only be what is to be reached, gets better upwards."""
        return (self.better or direction(self.metric)) != "down"


@dataclass(frozen=True)
class Tuning:
    """How the best point of a grid is found; all other keys of the section are settings of the runs that do so."""

    seed: int = 1000
    """The seed of these runs, which must be none of the results'."""
    over: Count | None = None
    """The mean over so many of the last rounds that were evaluated; none: as the measure."""
    rows: Literal["validation", "test"] = "validation"
    """The rows that choose: a fifth of each client's rows for training, which these runs hold out (or data.validation),
    or those on which the results are evaluated. An evaluation with a split of its own keeps it."""


@dataclass(frozen=True)
class Haste:
    """What ``--quick`` leaves out; all other keys of the section are settings that win over all others."""

    repeats: Count = 1
    """Seeds for each cell."""
    points: Count | None = None
    """So many of each grid's points, from the first; none: all."""


@dataclass(frozen=True)
class Published:
    """What a paper says about a cell."""

    value: float
    """Its value, in the units of the table."""
    std: NonNegative | None = None
    """Its spread over repeats, as a standard deviation."""
    note: str = ""
    """Where it is from, or what is special about it."""
    not_comparable: str = ""
    """Why it cannot be compared with ours, where that is so."""


@dataclass(frozen=True)
class Column:
    """What a [[column]] says beside settings and [tune] of its own."""

    name: str
    """What the column is called."""
    repeats: Count | None = None
    """Seeds for each of its cells; none: as the table."""
    target: float | None = None
    """A value of the metric as a run has it (0.75, not 75): adds when it was reached, in rounds, bytes and seconds."""
    runs_of: str | None = None
    """A column whose runs this one reads, by a measure of its own, instead of having any."""
    unavailable: str = ""
    """Why it cannot be run, where that is so: it shows the published values alone."""
    not_comparable: str = ""
    """Why what was published cannot be compared with any of its cells, where that is so."""


@dataclass(frozen=True)
class Row:
    """What a [[row]] says beside settings, a grid, published values and settings of single cells."""

    name: str
    """What the row is called."""
    repeats: Count | None = None
    """Seeds for each of its cells; none: as the column."""
    columns: Sequence[str] | None = None
    """The columns in which it stands; none: all."""
    runs_of: str | None = None
    """A row whose runs this one reads, by a measure of its own, instead of having any."""


@dataclass(frozen=True)
class Improvement:
    """What an [[improvement]] says beside published values: by how many percent a row is better than others."""

    name: str
    """What it is called, below the rows."""
    of: str
    """The row that is better, or worse, than …"""
    over: Sequence[str]
    """… this one or, of several, than the best of them."""


@dataclass(frozen=True)
class Single:
    """What a row says of one of its cells, beside settings and a grid."""

    repeats: Count | None = None
    """Seeds for this cell; none: as the row."""


@dataclass(frozen=True)
class Cell:
    """One row in one column."""

    row: str
    column: str
    settings: Settings
    """Of its runs, but for seed and tuned values."""
    tuning: Settings
    """What is laid over that in the runs that tune."""
    points: tuple[Point, ...]
    """Among which to choose; none: there is nothing to tune."""
    grid_place: str
    """Where in the file they stand."""
    chooses_on: str
    """The rows by which: validation, or test."""
    repeats: int
    """0: it cannot be run."""
    target: float | None
    """A value of the metric that is to be reached, as the run has it (not times 100)."""
    published: Published | None
    measure: Measure
    """What is read off its runs."""
    home: tuple[str, str]
    """The row and the column that its runs are of: its own, unless it reads those of others."""

    @property
    def title(self) -> str:
        """What it is called."""
        return f"{self.row} / {self.column}"

    @property
    def folder(self) -> Path:
        """Where its runs are, below the folder of the whole."""
        return Path(*map(slug, self.home))

    @property
    def seeds(self) -> range:
        """The seeds of its repeats."""
        first = self.settings.values.get("seed", 0)
        return range(first, first + self.repeats)

    def place(self, seed: int) -> Path:
        """Where a repeat belongs."""
        return self.folder / f"seed-{seed}"

    def tuning_place(self, point: Point) -> Path:
        """Where the run that tries a point belongs."""
        return self.folder / "tune" / slug(point_text(point).replace("=-", "=minus "))

    def at_end(self, point: Point | None) -> bool:
        """Whether a point is at an end of a grid over one number, so that a wider grid might have a better one."""
        values = [value for one in self.points for value in one.values()]
        numeric = all(isinstance(value, int | float) for value in values)
        if point is None or not numeric or len(values) < 2 or any(len(one) > 1 for one in self.points):
            return False
        return next(iter(point.values())) in (min(values), max(values))

    def experiment(self, seed: int, point: Point | None, overrides: Sequence[Override], shelf: Shelf) -> Runnable:
        """A repeat, with the values that were found best."""
        settings = self.settings.copied()
        tuned = [Override(key, value, self.grid_place) for key, value in (point or {}).items()]
        for override in (*tuned, Override("seed", seed, f"seed {seed}"), *overrides):
            settings.set(override)
        return make_experiment(settings, shelf)

    def trial(self, seed: int, point: Point, overrides: Sequence[Override], shelf: Shelf) -> Runnable:
        """A run that tries a point."""
        settings = self.settings.overlaid(self.tuning)
        if self.chooses_on == "validation":
            settings = choosing(settings, "tuning")
        tried = replace(self, settings=settings)
        return tried.experiment(seed, point, overrides, shelf)


@dataclass(frozen=True)
class Plan:
    """The whole table."""

    file: Path
    head: Head
    measure: Measure
    tuning: Tuning
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[Cell, ...]
    """Column by column."""
    settings: Settings
    """The file as it stands."""
    quick: bool = False
    improvements: tuple[tuple[Improvement, dict[str, Published]], ...] = ()
    """How rows compare, and what was published about that, by columns."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """Why columns cannot be run."""

    @property
    def name(self) -> str:
        """What ``fedloom reproduce`` calls it."""
        return self.file.stem

    def matching(self, texts: Sequence[str]) -> list[Cell]:
        """The cells that the texts name, all of them without a text.

        A text is the name of a row, of a column or of a cell ("row / column"), or else any part of a cell's name.
        """
        chosen = set[str]()
        for text in map(str.lower, texts):
            named = [c for c in self.cells if text in (c.row.lower(), c.column.lower(), c.title.lower())]
            found = named or [cell for cell in self.cells if text in cell.title.lower()]
            if not found:
                known = [*self.rows, *self.columns]
                raise ConfigError(f"--only: no cell of {self.name!r} has {text!r} in its name; {hint(text, known)}")
            chosen |= {cell.title for cell in found}
        return [cell for cell in self.cells if not texts or cell.title in chosen]


def point_text(point: Point) -> str:
    """A point in words: "lr=0.1, server_lr=1"."""
    return ", ".join(f"{key.removeprefix('method.')}={value_text(value)}" for key, value in point.items())


def check(cells: Sequence[Cell], plan: Plan, overrides: Sequence[Override], shelf: Shelf) -> None:
    """Everything that is wrong with any run of these cells, at once, before the first of them.

    That is of a repeat with each point, then of a trial, of each cell; those on the same data after one another.
    """
    found: dict[str, None] = {}
    made = [(c, partial(c.experiment, c.seeds[0], point)) for c in cells for point in c.points or (None,)]
    made += [(c, partial(c.trial, plan.tuning.seed, point)) for c in cells for point in c.points[:1]]
    for cell, make in made:
        try:
            experiment = make(overrides, shelf)
            experiment.check()
            _check_metric(experiment, cell, plan)
        except FedloomError as error:
            found |= dict.fromkeys(each_fault(error))
    stop_at(found)


def _check_metric(experiment: Runnable, cell: Cell, plan: Plan) -> None:
    """The measure must be something that the runs evaluate."""
    known, measure = experiment.measured(), cell.measure
    tasks = len(experiment.names) if isinstance(experiment, TaskSequence) else 0
    what = ""
    if measure.metric not in known:
        what = f"metric = {value_text(measure.metric)} is not evaluated; {hint(measure.metric, known)}"
    elif (measure.task or 0) > tasks:
        what = f"task = {measure.task} cannot be: {cell.title} has {tasks or 'no'} tasks"
    if what:
        place = plan.settings.place(("measure", "metric")) or str(plan.file)
        raise ConfigError(f"{place}: measure.{what}")
