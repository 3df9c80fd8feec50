"""What each column of a file is, and the numbers that a model reads in its place.

An :class:`Encoding` is agreed before the training: by whoever sees the whole file, or by the clients of a federation,
who tell openly which categories occur. It is kept with the model, so that rows without labels are read years later as
the training rows were.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedloom.errors import DataError

Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.float64]
Kind = Literal["number", "boolean", "category", "index", "date"]
Part = Literal["days", "year", "month", "day", "weekday", "hour"]
TRUE, FALSE = ("true", "1", "1.0"), ("false", "0", "0.0")
MISSING = " missing"
"""After the name of a column: the number that says where it is missing."""


@dataclass(frozen=True)
class Column:
    """One column of a file, and how it becomes one number or several.

    * "number": as it is. "boolean": 0 and 1
    * "category": a number for each of the ``categories``, of which one is 1; none where it is missing or unknown
    * "index": the place of the category, from 1 on, for a model that embeds it; 0 where it is missing or unknown
    * "date": its ``parts``; "days" are days since 1970, with the time of day as a fraction

    With an ``indicator`` one more number is 1 where the value is missing. What is missing of a number, a boolean or a
    date is NaN, which a scaling fills.
    """

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    indicator: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """What its numbers are called."""
        own: tuple[str, ...] = (self.name,)
        if self.kind == "category":
            own = tuple(f"{self.name}={category}" for category in self.categories)
        elif self.kind == "date" and self.parts != ("days",):
            own = tuple(f"{self.name} {part}" for part in self.parts)
        return (*own, self.name + MISSING) if self.indicator else own

    @property
    def measured(self) -> tuple[bool, ...]:
        """Which of its numbers are measured on a scale, so that scaling them has a meaning."""
        own = (self.kind in ("number", "date"),) * (len(self.names) - self.indicator)
        return (*own, False) if self.indicator else own

    def encode(self, cells: Array, where: str) -> Numbers:
        """The numbers of these cells: shape (rows, numbers), NaN for what is missing."""
        missing = missing_cells(cells)
        if self.kind in ("category", "index"):
            numbers = self._places(cells, missing)
        elif self.kind == "date":
            numbers = _dates(cells, missing, self.parts, f"{where}: column {self.name!r}")
        else:
            read = _booleans if self.kind == "boolean" else _floats
            numbers = read(cells, missing, f"{where}: column {self.name!r}")[:, None]
        return np.column_stack([numbers, missing]) if self.indicator else numbers

    def unknown(self, cells: Array) -> int:
        """How many cells hold a category that is not in the list."""
        if self.kind not in ("category", "index"):
            return 0
        return int((~missing_cells(cells) & ~np.isin(texts(cells), self.categories)).sum())

    def _places(self, cells: Array, missing: npt.NDArray[np.bool_]) -> Numbers:
        order = {category: place for place, category in enumerate(self.categories, 1)}
        found, codes = np.unique(texts(cells), return_inverse=True)
        places = np.array([order.get(str(text), 0) for text in found], dtype=np.int64)[codes]
        places[missing] = 0
        if self.kind == "index":
            return places.astype(np.float64)[:, None]
        return np.eye(len(self.categories) + 1)[places][:, 1:]


@dataclass(frozen=True)
class Encoding:
    """The feature columns of a file in their order."""

    columns: tuple[Column, ...] = field(default=())

    @property
    def names(self) -> tuple[str, ...]:
        """What the numbers of a row are called."""
        return tuple(name for column in self.columns for name in column.names)

    @property
    def measured(self) -> npt.NDArray[np.bool_]:
        """Which numbers of a row are measured on a scale."""
        return np.array([flag for column in self.columns for flag in column.measured], dtype=bool)

    @property
    def embedded(self) -> dict[int, int]:
        """The numbers of a row that are places in a list of categories, and how long each list is."""
        places, at = {}, 0
        for column in self.columns:
            if column.kind == "index":
                places[at] = len(column.categories)
            at += len(column.names)
        return places

    def encode(self, columns: Mapping[str, Array], where: str) -> Numbers:
        """The numbers of all rows, NaN for what is missing; ``where`` they come from is for messages."""
        absent = [column.name for column in self.columns if column.name not in columns]
        if absent:
            raise DataError(
                f"{where} has no column {absent[0]!r}, which the model reads; it has {', '.join(map(str, columns))}"
            )
        return np.hstack([column.encode(columns[column.name], where) for column in self.columns])

    def unknown(self, columns: Mapping[str, Array]) -> dict[str, int]:
        """The columns with categories that are in no list, and in how many rows."""
        counts = {column.name: column.unknown(columns[column.name]) for column in self.columns}
        return {name: count for name, count in counts.items() if count}

    def record(self) -> list[dict[str, Any]]:
        """For a file of JSON."""
        return [
            {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(column).items()}
            for column in self.columns
        ]

    @staticmethod
    def read(record: Sequence[Mapping[str, Any]]) -> Encoding:
        """What ``record`` gave."""
        columns: list[dict[str, Any]] = [
            {key: tuple(value) if isinstance(value, list) else value for key, value in column.items()}
            for column in record
        ]
        return Encoding(tuple(Column(**column) for column in columns))


def texts(cells: Array) -> Array:
    """Cells as the names of categories: 3 and 3.0 are "3", True is "true"."""
    if cells.dtype.kind == "b":
        return np.where(cells, "true", "false")
    if cells.dtype.kind == "f":
        whole = np.isfinite(cells) & (cells == np.round(cells)) & (np.abs(cells) < 2.0**63)
        named = cells.astype(str).astype(object)
        named[whole] = cells[whole].astype(np.int64).astype(str)
        return named.astype(str)
    return np.array([str(cell).lower() if isinstance(cell, bool) else str(cell) for cell in cells.tolist()], dtype=str)


def missing_cells(cells: Array) -> npt.NDArray[np.bool_]:
    """Which cells hold nothing."""
    if cells.dtype.kind == "f":
        return np.isnan(cells)
    if cells.dtype.kind in "mM":
        return np.isnat(cells)
    if cells.dtype.kind in "biu":
        return np.zeros(len(cells), dtype=bool)
    return np.array([_nothing(cell) for cell in cells.tolist()], dtype=bool)


def _nothing(cell: object) -> bool:
    """Whether a cell of any type is empty; pandas' own NA cannot even be compared."""
    if isinstance(cell, str):
        return cell == ""
    return cell is None or (isinstance(cell, float) and cell != cell) or str(cell) in ("<NA>", "NaT", "NaN")


def _floats(cells: Array, missing: npt.NDArray[np.bool_], where: str) -> Numbers:
    if cells.dtype.kind in "biuf":
        return cells.astype(np.float64)
    return _each(cells, missing, lambda cell: (float(cell),), 1, (where, "which is no number"))[:, 0]


def _each(
    cells: Array,
    missing: npt.NDArray[np.bool_],
    read: Callable[[Any], Sequence[float]],
    width: int,
    wrong: tuple[str, str],
) -> Numbers:
    """What each cell is read as, NaN where it is missing; a cell that occurs often is read once."""
    found, known = np.full((len(cells), width), np.nan), dict[Any, Sequence[float]]()
    for row in np.flatnonzero(~missing).tolist():
        cell = cells[row]
        key = cell if isinstance(cell, str) else (type(cell), str(cell))
        try:
            numbers = known[key] = known[key] if key in known else read(cell)
        except (TypeError, ValueError, OverflowError):
            where, what = wrong
            raise DataError(
                f"{where} holds {str(cell)[:40]!r} in row {row + 1}, {what}; mend or drop such rows"
            ) from None
        found[row] = numbers
    return found


def _booleans(cells: Array, missing: npt.NDArray[np.bool_], where: str) -> Numbers:
    said = np.char.lower(texts(cells))
    numbers = np.where(np.isin(said, TRUE), 1.0, np.where(np.isin(said, FALSE), 0.0, np.nan))
    wrong = np.isnan(numbers) & ~missing
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(f"{where} holds {str(cells[row])[:40]!r} in row {row + 1}, which is neither true nor false")
    return np.where(missing, np.nan, numbers)


def _dates(cells: Array, missing: npt.NDArray[np.bool_], parts: Sequence[Part], where: str) -> Numbers:
    def read(cell: Any) -> list[float]:
        when = moment(cell)
        return [_part(when, part) for part in parts]

    return _each(cells, missing, read, len(parts), (where, "which is no ISO date"))


def moment(cell: Any) -> datetime.datetime:
    """A date or a time as UTC; a ValueError where it is none."""
    text = np.datetime_as_string(cell, unit="us") if isinstance(cell, np.datetime64) else str(cell).strip()
    read = datetime.datetime.fromisoformat(text)
    return read.replace(tzinfo=datetime.UTC) if read.tzinfo is None else read.astimezone(datetime.UTC)


def _part(when: datetime.datetime, part: Part) -> float:
    if part == "days":
        return (when - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) / datetime.timedelta(days=1)
    return float(when.weekday() if part == "weekday" else getattr(when, part))
