"""Files of one kind, and the columns of each: what is there before anything is made of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedloom.data.arrays import Array, some
from fedloom.data.paths import Paths, found_files, named_by_file
from fedloom.data.reading import read_columns
from fedloom.data.survey import Choices, check_columns
from fedloom.errors import ConfigError, DataError
from fedloom.register import nearest

Columns = dict[str, Array]


@dataclass(frozen=True)
class Files:
    """Files of one kind and the columns of each."""

    paths: list[Path]
    columns: list[Columns]
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(path: Paths) -> Files:
        """What is in the files that are meant; all must have the same columns."""
        found, notes = found_files(path)
        columns = [read_columns(file) for file in found]
        check_columns({str(file): list(own) for file, own in zip(found, columns, strict=True)})
        return Files(found, columns, tuple(notes))

    @property
    def first(self) -> Path:
        """That by which messages call them."""
        return self.paths[0]

    @property
    def names(self) -> list[str]:
        """The columns."""
        return list(self.columns[0])

    @property
    def tables(self) -> bool:
        """Whether they have columns of cells, rather than arrays."""
        return self.first.suffix != ".npz"

    def pairs(self) -> list[tuple[Path, Columns]]:
        """Each file with its columns."""
        return list(zip(self.paths, self.columns, strict=True))

    def column(self, name: str) -> Array:
        """One column of all files, one after the other."""
        return together([own[name] for own in self.columns])

    def owners(self, client_column: str | None) -> Array | None:
        """The client of each row: by a column, else by the file where there are several."""
        if client_column is not None:
            return self.column(client_column)
        if len(self.paths) == 1:
            return None
        return np.repeat(named_by_file(self.paths), [rows_of(own) for own in self.columns])

    def must_have(self, names: Iterable[str]) -> None:
        """A ConfigError for a column that is not there."""
        for name in names:
            if name not in self.names:
                near = nearest(name, self.names)
                raise ConfigError(
                    f"{self.first} has no column {name!r}; "
                    + (f"did you mean {near!r}?" if near else f"it has {some(self.names)}")
                )

    def refuse_uneven(self, names: Iterable[str]) -> None:
        """Arrays of several files must each have as many rows as the others of its file, or rows would be mixed up."""
        for file, own in self.pairs() if len(self.paths) > 1 else ():
            sizes = {name: len(own[name]) if own[name].ndim else 0 for name in names}
            if len(set(sizes.values())) > 1:
                told = some(f"{name} ({size:,})" for name, size in sizes.items())
                raise DataError(f"{file} has arrays of different lengths: {told}; give each row all of them")

    def refuse_columns(self, choices: Choices, window: int | None) -> None:
        """What is said of columns cannot be said of arrays."""
        plain = Choices(missing="error" if choices.missing == "error" else "mean", categories={})
        if choices != plain or window is not None:
            raise ConfigError(
                f"{self.first}: drop, numbers, categories, embed_from, dates, missing = 'indicator' and window are for "
                "the columns of CSV and Parquet files; an npz file has features that are ready"
            )


def rows_of(columns: Columns) -> int:
    """How many rows there are."""
    return next((len(values) for values in columns.values() if values.ndim), 0)


def together(parts: Sequence[Array]) -> Array:
    """The same column of several files; where they hold different things, as objects."""
    shapes = {part.shape[1:] if part.ndim else None for part in parts}
    if len(parts) > 1 and (len(shapes) > 1 or None in shapes):
        raise DataError(f"the files have rows of different shapes ({some(map(str, shapes))}); give rows of one shape")
    kinds = {"n" if part.dtype.kind in "iuf" else part.dtype.kind for part in parts}
    if len(kinds) == 1:
        return np.concatenate(parts) if len(parts) > 1 else parts[0]
    dates = [np.datetime_as_string(part) if part.dtype.kind == "M" else part for part in parts]
    return np.concatenate([part.astype(object) for part in dates])
