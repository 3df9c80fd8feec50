"""Reads a file of ``experiments/`` into a plan, and says all that is wrong with it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedloom.experiment import Form, Settings, foreign
from fedloom.experiment.faults import Faults, stop_at
from fedloom.experiment.words import hint
from fedloom.federation.metrics import METRICS, base_name
from fedloom.report.groups import direction
from fedloom.reproduce.plan import (
    Cell,
    Column,
    Haste,
    Head,
    Improvement,
    Measure,
    Plan,
    Point,
    Published,
    Row,
    Single,
    Tuning,
    point_text,
)
from fedloom.storage.files import slug
from fedloom.types import Key

_PARTS = ("measure", "run", "column", "row", "improvement", "tune", "quick")
_COLUMN_PARTS = ("tune", "measure")
_ROW_PARTS = ("grid", "published", "cell", "measure")


def read_plan(file: Path, *, quick: bool = False, repeats: int | None = None) -> Plan:
    """The plan that a file makes; all that is wrong with it, apart from what only its runs can tell, is said."""
    return _Reader(Settings.read(file), file, quick, repeats).plan()


@dataclass(frozen=True)
class _Parts:
    """The parts of a file that all its cells are made of."""

    head: Head
    measure: Measure
    haste: Haste | None
    columns: list[Column]
    rows: list[Row]

    def home(self, kind: Literal["row", "column"], index: int) -> int:
        """The row or column whose runs this one shows."""
        tables: Sequence[Row | Column] = self.rows if kind == "row" else self.columns
        wanted = tables[index].runs_of or tables[index].name
        return [table.name for table in tables].index(wanted)


class _Reader:
    """Reads a file part by part, gathering what is wrong."""

    def __init__(self, settings: Settings, file: Path, quick: bool, repeats: int | None) -> None:
        self.settings, self.file, self.hurry, self.repeats = settings, file, quick, repeats
        self.faults = Faults(settings)

    def plan(self) -> Plan:
        head = self._own((), Head, "an experiment's table", _PARTS, refuse=True)
        measure = self._own(("measure",), Measure, "the measure", refuse=True)
        tuning = self._own(("tune",), Tuning, "the tuning")
        haste = self._own(("quick",), Haste, "--quick", ("tune",)) if self.hurry else None
        columns = self._tables("column", Column, "a column", _COLUMN_PARTS)
        rows = self._tables("row", Row, "a row", _ROW_PARTS)
        improvements = self._improvements()
        self.faults.stop()
        self._check_measure(measure, ("measure",))
        self._check_row_keys(columns, rows)
        self._check_homes("row", rows)
        self._check_homes("column", columns)
        self._check_improvements(improvements, [row.name for row in rows])
        self.faults.stop()
        found = _Parts(head, measure, haste, columns, rows)
        cells = [
            self._cell(found, c, r)
            for c, column in enumerate(columns)
            for r, row in enumerate(rows)
            if row.columns is None or column.name in row.columns
        ]
        published = [self._published_by(index, columns) for index in range(len(improvements))]
        self._check_cells(cells, tuning)
        stop_at(dict.fromkeys(self.faults.texts))  # a row's faults are found in each of its cells
        names = tuple(row.name for row in rows), tuple(column.name for column in columns)
        return Plan(
            self.file,
            head,
            measure,
            tuning,
            *names,
            tuple(cells),
            self.settings,
            self.hurry,
            tuple(zip(improvements, published, strict=True)),
            {column.name: column.unavailable for column in columns if column.unavailable},
        )

    def _own(self, at: Key, form: Any, title: str, others: Sequence[str] = (), refuse: bool = False) -> Any:
        """The keys of a table that are the table's own; the rest are settings, or where there are none refused."""
        table = self.settings.get(at) if at else self.settings.values
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

    def _improvements(self) -> list[Improvement]:
        if "improvement" not in self.settings.values:
            return []
        return self._tables("improvement", Improvement, "an improvement", ("published",), refuse=True)

    def _published_by(self, index: int, columns: list[Column]) -> dict[str, Published]:
        """What was published about an improvement, by columns."""
        found = {column.name: self._published(("improvement", index, "published", column.name)) for column in columns}
        return {name: published for name, published in found.items() if published is not None}

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

    def _check_measure(self, measure: Measure, at: Key) -> None:
        metric = base_name(measure.metric.rpartition("/")[2])
        if metric not in METRICS and metric not in ("loss", "fidelity"):
            self.faults.add((*at, "metric"), f"has no metric {metric!r}; {hint(metric, METRICS)}")
        elif measure.better is None and direction(measure.metric) is None:
            self.faults.add((*at, "metric"), 'needs better = "up" or "down" beside it')

    def _check_homes(self, key: str, tables: Sequence[Row | Column]) -> None:
        """Whose runs are read must have runs of their own."""
        known = [table.name for table in tables if table.runs_of is None]
        for index, table in enumerate(tables):
            if table.runs_of is not None and table.runs_of not in known:
                self.faults.add(
                    (key, index, "runs_of"), f"is no {key} with runs of its own; {hint(table.runs_of, known)}"
                )

    def _check_improvements(self, improvements: list[Improvement], rows: list[str]) -> None:
        """They speak of rows by name."""
        for index, one in enumerate(improvements):
            for key, names in (("of", [one.of]), ("over", one.over)):
                for name in names:
                    if name not in rows:
                        self.faults.add(
                            ("improvement", index, key), f"has {name!r}, which is no row; {hint(name, rows)}"
                        )
            if not one.over:
                self.faults.add(("improvement", index, "over"), "names no row; give one, or several")

    def _measure_of(self, parts: _Parts, c: int, r: int) -> Measure:
        """What a cell shows; where that is the way to a target, there must be one."""
        measure = self._measure(parts.measure, c, r)
        if measure.reads != "value" and parts.columns[c].target is None and not parts.columns[c].unavailable:
            self.faults.add(("column", c, "name"), f"needs a target beside it: its measure reads {measure.reads}")
        return measure

    def _measure(self, common: Measure, c: int, r: int) -> Measure:
        """The common measure with what the column, then the row, say otherwise."""
        found = vars(common)
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
        return Measure(**found)

    def _check_row_keys(self, columns: list[Column], rows: list[Row]) -> None:
        """Rows, and improvements, speak of columns by name."""
        known = [column.name for column in columns]
        for index, row in enumerate(rows):
            for name in row.columns or ():
                if name not in known:
                    self.faults.add(("row", index, "columns"), f"has {name!r}, which is no column; {hint(name, known)}")
            self._check_by_columns(("row", index, "published"), known)
            self._check_by_columns(("row", index, "cell"), known, of_tables=True)
        for index in range(len(self.settings.values.get("improvement", ()))):
            self._check_by_columns(("improvement", index, "published"), known)

    def _check_by_columns(self, at: Key, known: list[str], of_tables: bool = False) -> None:
        table = self.settings.get(at)
        if table is None:
            return
        if not isinstance(table, dict) or (of_tables and not _all_tables(table)):
            self.faults.add(at, 'should be a table by columns: {"column" = …}')
            return
        for name in table:
            if name not in known:
                self.faults.add((*at, name), f"is of no column; {hint(name, known)}")

    def _cell(self, parts: _Parts, shown_column: int, shown_row: int) -> Cell:
        c, r, haste = parts.home("column", shown_column), parts.home("row", shown_row), parts.haste
        upper, left = parts.columns[c], parts.rows[r]
        single: Key = ("row", r, "cell", upper.name)
        own = self._own(single, Single, "a cell", ("grid",)) or Single()
        repeats = next(n for n in (own.repeats, left.repeats, upper.repeats, parts.head.repeats) if n is not None)
        common = self.settings.part(("run",)).overlaid(
            self.settings.part(("column", c), (*_keys(Column), *_COLUMN_PARTS))
        )
        settings = self._without_foreign(common, r)
        settings = settings.overlaid(self.settings.part(("row", r), (*_keys(Row), *_ROW_PARTS)))
        settings = settings.overlaid(self.settings.part(single, (*_keys(Single), "grid")))
        trials = self.settings.part(("tune",), _keys(Tuning)).overlaid(self.settings.part(("column", c, "tune")))
        grid: Key = (*single, "grid") if self.settings.get((*single, "grid")) else ("row", r, "grid")
        points = self._grid(grid)
        if haste is not None:
            settings = settings.overlaid(self.settings.part(("quick",), (*_keys(Haste), "tune")))
            trials = trials.overlaid(self.settings.part(("quick",), (*_keys(Haste), "tune")))
            trials = trials.overlaid(self.settings.part(("quick", "tune")))
            repeats, points = haste.repeats, points[: haste.points]
        repeats = repeats if self.repeats is None else self.repeats
        shown = parts.columns[shown_column]
        return Cell(
            parts.rows[shown_row].name,
            shown.name,
            settings,
            trials,
            () if shown.unavailable else points,
            self.settings.place(grid) or "",
            0 if shown.unavailable else repeats,
            shown.target,
            self._published(("row", shown_row, "published", shown.name), shown.not_comparable),
            self._measure_of(parts, shown_column, shown_row),
            (left.name, upper.name),
        )

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

    def _check_cells(self, cells: list[Cell], tuning: Tuning) -> None:
        sizes = {len(cell.points) for cell in cells if cell.points}
        if len(sizes) > 1 and not self.faults.texts:
            counts = ", ".join(sorted({f"{cell.row}: {len(cell.points)}" for cell in cells if cell.points}))
            self.faults.add(("row",), f"cannot be: grids differ in their number of points, which is unfair ({counts})")
        first = self.settings.get(("run", "seed"))
        if first is not None and not isinstance(first, int):
            self.faults.add(("run", "seed"), "should be a whole number")
        elif sizes and any(tuning.seed in cell.seeds for cell in cells):
            key: Key = ("tune", "seed") if self.settings.get(("tune", "seed")) is not None else ("tune",)
            self.faults.add(key, f"cannot be: {tuning.seed} is the seed of a result, too; choose another for tuning")


def _keys(form: type) -> tuple[str, ...]:
    return tuple(Form.of(form, "").fields)


def _all_tables(table: Mapping[str, Any]) -> bool:
    return all(isinstance(value, dict) for value in table.values())
