"""Reads a file of ``experiments/`` into a plan, and says all that is wrong with it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from fedloom.experiment import Form, Settings, foreign
from fedloom.experiment.faults import Faults, stop_at
from fedloom.experiment.words import hint
from fedloom.federation.metrics import METRICS, base_name
from fedloom.report.groups import direction
from fedloom.reproduce import plan as parts
from fedloom.reproduce.plan import Cell, Column, Improvement, Measure, Plan, Point, Published, Row, point_text
from fedloom.storage.files import slug
from fedloom.types import Key

_PARTS = ("measure", "run", "column", "row", "improvement", "tune", "quick")
_COLUMN_PARTS = ("tune", "measure")
_ROW_PARTS = ("grid", "published", "cell", "measure")


def read_plan(file: Path, *, quick: bool = False, repeats: int | None = None) -> Plan:
    """The plan that a file makes; all that is wrong with it, apart from what only its runs can tell, is said."""
    return _Reader(file, quick, repeats).plan()


class _Reader:
    """A file whose parts are read, and which speak of each other by names that are there."""

    def __init__(self, file: Path, quick: bool, repeats: int | None) -> None:
        self.file, self.quick, self.repeats = file, quick, repeats
        self.settings = Settings.read(file)
        self.faults = Faults(self.settings)
        self.head: parts.Head = self._own((), parts.Head, "an experiment's table", _PARTS, refuse=True)
        self.measure: Measure = self._own(("measure",), Measure, "the measure", refuse=True)
        self.tuning: parts.Tuning = self._own(("tune",), parts.Tuning, "the tuning")
        self.haste: parts.Haste | None = self._own(("quick",), parts.Haste, "--quick", ("tune",)) if quick else None
        self.columns: list[Column] = self._tables("column", Column, "a column", _COLUMN_PARTS)
        self.rows: list[Row] = self._tables("row", Row, "a row", _ROW_PARTS)
        self.improvements: list[Improvement] = []
        if "improvement" in self.settings.values:
            self.improvements = self._tables("improvement", Improvement, "an improvement", ("published",), refuse=True)
        self.faults.stop()
        self.row_names, self.column_names = ([table.name for table in tables] for tables in (self.rows, self.columns))
        self._check()
        self.faults.stop()

    def plan(self) -> Plan:
        cells = [
            self._cell(c, r)
            for c, column in enumerate(self.columns)
            for r, row in enumerate(self.rows)
            if row.columns is None or column.name in row.columns
        ]
        published = [self._published_by(index) for index in range(len(self.improvements))]
        self._check_cells(cells)
        stop_at(dict.fromkeys(self.faults.texts))  # a row's faults are found in each of its cells
        return Plan(
            self.file,
            self.head,
            self.measure,
            self.tuning,
            tuple(self.row_names),
            tuple(self.column_names),
            tuple(cells),
            self.settings,
            self.quick,
            tuple(zip(self.improvements, published, strict=True)),
            {column.name: column.unavailable for column in self.columns if column.unavailable},
        )

    def _own(self, at: Key, form: Any, title: str, others: Sequence[str] = (), refuse: bool = False) -> Any:
        """The keys of a table that are the table's own; the rest are settings, or where there are none refused."""
        table = self.settings.get(at)
        if table is not None and not isinstance(table, dict):
            self.faults.add(at, f"should be a table: write [{at[0]}] above its keys")
            return None
        known = Form.of(form, title)
        given = {
            key: value for key, value in (table or {}).items() if key in known.fields or (refuse and key not in others)
        }
        read, wrong = known.read(given)
        for key, what in wrong.items():
            if key not in known.fields:
                what = f"is no setting of {title}; {hint(key, [*known.fields, *others])}"
            self.faults.add((*at, key), what)
        return None if wrong else form(**read)

    def _tables(self, key: str, form: Any, title: str, others: Sequence[str], refuse: bool = False) -> list[Any]:
        tables = self.settings.values.get(key)
        if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
            self.faults.add((key,), f"is missing: write [[{key}]] above the keys of each {key}")
            return []
        found = [self._own((key, index), form, title, others, refuse) for index in range(len(tables))]
        names = [slug(one.name) if one else "" for one in found]
        for index, name in enumerate(names):
            if name and name in names[:index]:
                self.faults.add((key, index, "name"), f"is there twice; give each {key} a name of its own")
        return found

    def _check(self) -> None:
        """Rows, columns and improvements must speak of each other by names that are there."""
        self._check_measure(self.measure, ("measure",))
        for index, row in enumerate(self.rows):
            self._check_names(("row", index, "columns"), row.columns or (), "column", self.column_names)
            self._check_by_columns(("row", index, "published"))
            self._check_by_columns(("row", index, "cell"), of_tables=True)
        self._check_names(("paired",), self.head.paired, "row", self.row_names)
        self._check_homes("row", self.rows)
        self._check_homes("column", self.columns)
        for index, one in enumerate(self.improvements):
            self._check_names(("improvement", index, "of"), [one.of], "row", self.row_names)
            self._check_names(("improvement", index, "over"), one.over, "row", self.row_names)
            self._check_by_columns(("improvement", index, "published"))
            if not one.over:
                self.faults.add(("improvement", index, "over"), "names no row; give one, or several")

    def _check_measure(self, measure: Measure, at: Key) -> None:
        metric = base_name(measure.metric.rpartition("/")[2])
        if metric not in METRICS and metric not in ("loss", "fidelity"):
            self.faults.add((*at, "metric"), f"has no metric {metric!r}; {hint(metric, METRICS)}")
        elif measure.better is None and direction(measure.metric) is None:
            self.faults.add((*at, "metric"), 'needs better = "up" or "down" beside it')

    def _check_names(self, at: Key, names: Sequence[str], kind: str, known: list[str]) -> None:
        for name in names:
            if name not in known:
                self.faults.add(at, f"has {name!r}, which is no {kind}; {hint(name, known)}")

    def _check_by_columns(self, at: Key, of_tables: bool = False) -> None:
        table = self.settings.get(at)
        if table is None:
            return
        if not isinstance(table, dict) or (of_tables and not all(isinstance(value, dict) for value in table.values())):
            self.faults.add(at, 'should be a table by columns: {"column" = …}')
            return
        for name in table:
            if name not in self.column_names:
                self.faults.add((*at, name), f"is of no column; {hint(name, self.column_names)}")

    def _check_homes(self, key: str, tables: Sequence[Row | Column]) -> None:
        """Whose runs are read must have runs of their own."""
        known = [table.name for table in tables if table.runs_of is None]
        for index, table in enumerate(tables):
            if table.runs_of is not None and table.runs_of not in known:
                what = f"is no {key} with runs of its own; {hint(table.runs_of, known)}"
                self.faults.add((key, index, "runs_of"), what)

    def _cell(self, c: int, r: int) -> Cell:
        """What a column and a row make together; its runs may be those of another column or row."""
        shown, row = self.columns[c], self.rows[r]
        upper = self.column_names.index(shown.runs_of or shown.name)
        left = self.row_names.index(row.runs_of or row.name)
        column = self.column_names[upper]
        single: Key = ("row", left, "cell", column)
        own = self._own(single, parts.Single, "a cell", ("grid",)) or parts.Single()
        wanted = [self.repeats, own.repeats, self.rows[left].repeats, self.columns[upper].repeats, self.head.repeats]
        grid: Key = (*single, "grid") if self.settings.get((*single, "grid")) else ("row", left, "grid")
        points = self._grid(grid)
        common = self.settings.part(("run",)).overlaid(self._given(("column", upper), Column, _COLUMN_PARTS))
        layers = [self._given(("row", left), Row, _ROW_PARTS), self._given(single, parts.Single, ("grid",))]
        trials = [self._given(("tune",), parts.Tuning), self.settings.part(("column", upper, "tune"))]
        if self.haste is not None:
            quick = self._given(("quick",), parts.Haste, ("tune",))
            layers, trials = [*layers, quick], [*trials, quick, self.settings.part(("quick", "tune"))]
            wanted, points = [self.repeats, self.haste.repeats], points[: self.haste.points]
        return Cell(
            row.name,
            shown.name,
            reduce(Settings.overlaid, layers, self._without_foreign(common, left)),
            reduce(Settings.overlaid, trials),
            () if shown.unavailable else points,
            self.settings.place(grid) or "",
            self.tuning.rows,
            0 if shown.unavailable else next(repeats for repeats in wanted if repeats is not None),
            shown.target,
            self._published(("row", r, "published", shown.name), shown.not_comparable),
            self._measure(c, r),
            (self.row_names[left], column),
        )

    def _given(self, at: Key, form: type, others: Sequence[str] = ()) -> Settings:
        """The keys of a table that are settings of runs: neither its own nor parts of it."""
        return self.settings.part(at, (*Form.of(form, "").fields, *others))

    def _measure(self, c: int, r: int) -> Measure:
        """The common measure with what the column, then the row, say otherwise."""
        found = vars(self.measure)
        for at in (("column", c, "measure"), ("row", r, "measure")):
            table = self.settings.get(at) or {}
            if not isinstance(table, dict):
                self.faults.add(at, "should be a table: { metric = …, … }")
                continue
            read, wrong = Form.of(Measure, "the measure").read(table)
            for key, what in wrong.items():
                self.faults.add((*at, key), what)
            found = found | {key: read[key] for key in table if key in read}
            self._check_measure(Measure(**found), at)
        measure, column = Measure(**found), self.columns[c]
        if measure.reads != "value" and column.target is None and not column.unavailable:
            self.faults.add(("column", c, "name"), f"needs a target beside it: its measure reads {measure.reads}")
        return measure

    def _without_foreign(self, common: Settings, row: int) -> Settings:
        """The settings common to all rows, without the hyper-parameters that this row's method lacks."""
        methods = [self.settings.get(("row", r, "method", "name")) for r in range(len(self.settings.values["row"]))]
        given = common.values.get("method")
        if isinstance(given, dict):
            default = given.get("name", "fedavg")
            names = [str(default if name is None else name) for name in methods]
            for key in foreign(list(given), names[row], names):
                del given[key]
        return common

    def _grid(self, at: Key) -> tuple[Point, ...]:
        """Either {lr = [0.1, 1.0], …}, all combinations, or a list of points {lr = 0.1, …}."""
        grid = self.settings.get(at)
        if grid is None:
            return ()
        if isinstance(grid, dict) and grid and all(isinstance(values, list) and values for values in grid.values()):
            points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        elif isinstance(grid, list) and grid and all(isinstance(point, dict) and point for point in grid):
            points = grid
        else:
            self.faults.add(at, "should be lists of values, {lr = [0.1, 1.0]}, or a list of points, [{lr = 0.1}, …]")
            return ()
        full = [{key if "." in key else f"method.{key}": value for key, value in point.items()} for point in points]
        if len(set(map(point_text, full))) < len(full):
            self.faults.add(at, "has a point twice")
        return tuple(full)

    def _published(self, at: Key, not_comparable: str = "") -> Published | None:
        """What a paper says, and, unless it is said of this value, why that cannot be compared."""
        said = self.settings.get(at)
        if said is None:
            return None
        if isinstance(said, list):
            said = dict(zip(("value", "std"), said, strict=False)) if 1 <= len(said) <= 2 else {"values": said}
        elif not isinstance(said, dict):
            said = {"value": said}
        read, wrong = Form.of(Published, "a published value").read(said)
        for what in dict.fromkeys(f"{key} {what}" for key, what in wrong.items()):
            self.faults.add(at, f"cannot be: {what}; write [value, std] or {{value = …, std = …, note = …}}")
        return None if wrong else Published(**read | {"not_comparable": read["not_comparable"] or not_comparable})

    def _published_by(self, index: int) -> dict[str, Published]:
        """What was published about an improvement, by columns."""
        found = {name: self._published(("improvement", index, "published", name)) for name in self.column_names}
        return {name: published for name, published in found.items() if published is not None}

    def _check_cells(self, cells: list[Cell]) -> None:
        sizes = {len(cell.points) for cell in cells if cell.points}
        if len(sizes) > 1 and not self.faults.texts:
            counts = ", ".join(sorted({f"{cell.row}: {len(cell.points)}" for cell in cells if cell.points}))
            self.faults.add(("row",), f"cannot be: grids differ in their number of points, which is unfair ({counts})")
        first = self.settings.get(("run", "seed"))
        if first is not None and not isinstance(first, int):
            self.faults.add(("run", "seed"), "should be a whole number")
        elif sizes and any(self.tuning.seed in cell.seeds for cell in cells):
            key: Key = ("tune", "seed") if self.settings.get(("tune", "seed")) is not None else ("tune",)
            self.faults.add(
                key, f"cannot be: {self.tuning.seed} is the seed of a result, too; choose another for tuning"
            )
