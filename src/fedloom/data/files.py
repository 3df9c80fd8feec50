"""The user's own data in files: CSV, Parquet or npz, with a column that names the client, or a file for each client."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.capacity import refuse_larger
from fedloom.data.align import Held, aligned
from fedloom.data.arrays import AnyTask, Array, assembled, is_whole, some
from fedloom.data.paths import Paths, common_name, found_files, named_by_file, stem
from fedloom.data.reading import CELL, almost_numbers, read_columns
from fedloom.data.scaling import By, Kind, Scaling
from fedloom.data.series import Windows
from fedloom.data.shipped import STANDARDISED, standard_scale
from fedloom.data.survey import (
    EMBED_FROM,
    Choices,
    Dates,
    Fate,
    Missing,
    Survey,
    check_choices,
    check_columns,
    encoding_of,
    joined,
    notes_of,
)
from fedloom.data.table import Table
from fedloom.data.windows import windowed
from fedloom.errors import ConfigError, DataError
from fedloom.federation.encoding import Encoding, missing_cells
from fedloom.federation.scale import Scale
from fedloom.fields import with_fit_fields
from fedloom.register import nearest
from fedloom.types import Count

Columns = dict[str, Array]
FileKind = Literal["auto", "none", "standard", "min-max"]


def load_file(
    path: Paths,
    *,
    client_column: str | None = None,
    label_column: str | Sequence[str] | None = None,
    feature_columns: Sequence[str] | None = None,
    timestamp_column: str | None = None,
    task: AnyTask = "auto",
    class_names: Sequence[str] | None = None,
    drop: Sequence[str] | None = None,
    numbers: Sequence[str] | None = None,
    categories: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    embed_from: Count = EMBED_FROM,
    dates: Dates = "days",
    missing: Missing = "mean",
    standardise: bool = False,
    scaling: FileKind = "auto",
    scaling_by: By = "all",
    window: Count | None = None,
    stride: Count = 1,
    horizon: int = 1,
    like: Paths | None = None,
    parties: Sequence[str] | None = None,
    id_column: str | None = None,
    name: str | None = None,
) -> Table:
    """Read a table from CSV, Parquet or npz files.

    Which columns there are. A column of an npz file is an array with one entry for each row.

    * ``path``: the file; or several, a folder, or a pattern such as "clinics/*.csv": then each file is a client, called
      as the file is, unless there is a ``client_column``. ``name``: what the table is called; none: as the file.
    * ``label_column``: the labels; several columns are several targets. Of an npz file ``y`` by default.
    * ``client_column``: the owner of each row. Of an npz file ``clients`` by default, if there are any.
    * ``feature_columns``: the features; none: all other columns, and of an npz file ``x``.
    * ``timestamp_column``: when each row was seen.
    * ``drop``: columns to leave out.

    How they are read. What a column is, is seen by what is in it, and the notes say what is not as one expects:

    * ``task``: "classification", "binary", "multilabel", "regression", or "auto": as the labels look.
    * ``class_names``: all classes, also those that no row has, in the order of a model's outputs; none: the labels that
      occur, sorted.
    * ``numbers``: columns that are numbers, in which a cell that is none counts as missing.
    * ``categories``: columns that are categories though they look like numbers; or, by column, all categories.
    * ``embed_from``: with more categories than this a column becomes the number of its category, for a model to embed;
      with fewer, a number of 0 and 1 for each.
    * ``dates``: "days" since 1970, "parts" (days, month, weekday, hour), or "drop".
    * ``missing``: the "mean" of the training rows stands in for what is missing; so with "indicator", and one more
      number says where that was; or "error".
    * ``scaling``, ``scaling_by``: scale measured features, and the targets of a regression, by the training rows
      alone, of all clients or of each, once these are known (:class:`~fedloom.data.scaling.Scaling`). "auto": of a CSV
      or Parquet file "standard", else "none".
    * ``standardise``: instead, give every measured feature mean 0 and deviation 1 over all rows.
    * ``like``: the files that a model was trained on. This one is read with their features, their classes, and their
      means and deviations, so that the model can read it.

    A series:

    * ``window``: rows become windows of so many steps of a client, in the order of the timestamps, or else of the file.
    * ``stride``: the steps from one window to the next. ``horizon``: the label is that of so many steps after the last
      of the window, whose own past labels are then features too; 0: it is that of the last step.

    A vertical federation:

    * ``parties``: further files, beside this one, that hold other columns of the same rows. This file has the labels;
      its own features, if it has any, are a party's too, which is called as the file is.
    * ``id_column``: the column that tells in each file which row is which.

    The result is a Table, from which ``federate`` makes clients.

        import pandas as pd

        rows = pd.DataFrame({"ward": [k % 3 for k in range(60)], "age": range(60), "days": [k % 7 for k in range(60)]})
        rows.to_csv("mine.csv", index=False)
        table = fedloom.load_file("mine.csv", client_column="ward", label_column="days", task="regression")
        print(fedloom.federate(table).clients)
    """
    choices = Choices.of(drop, numbers, categories, embed_from, dates, missing)
    title, files = name or common_name(path), _Files.of(path)
    if standardise and scaling not in ("auto", "none"):
        raise ConfigError(f"{files.first}: standardise and scaling both scale; keep one of them")
    if not files.tables:
        files.refuse_columns(choices, window)
        label_column, feature_columns = label_column or "y", feature_columns or ["x"]
        client_column = client_column or ("clients" if "clients" in files.names else None)
    if not label_column:
        raise ConfigError(f"{files.first}: say which column is the label (label_column); it has {some(files.names)}")
    labels = [label_column] if isinstance(label_column, str) else list(label_column)
    plan = _Plan(labels, client_column, timestamp_column, id_column, feature_columns, task, class_names, choices)
    files.must_have(plan.taken)
    if window is not None:
        plan = replace(plan, one_hot=True, ahead=horizon > 0)
    scaled = _Scaled("none" if scaling == "auto" else scaling, scaling_by, standardise)
    if scaling == "auto" and files.tables and not standardise:
        scaled = replace(scaled, kind="standard", chosen=True)
    if parties:
        if window is not None:
            raise ConfigError(f"{files.first}: window cannot be beside parties, whose rows are no series; drop it")
        return scaled.done(_of_parties(files, parties, plan, title)).check()
    trained = None if like is None else _Files.of(like)
    read = plan.features(files if trained is None else trained)
    basis = None
    if trained is not None:
        basis = assembled(read.x, plan.targets(trained), task=task, classes=class_names, name=title)
        plan = replace(plan, task=basis.task, classes=class_names or basis.classes or None)
        read = plan.features(files, read.encoding)
    table = plan.table(files, read, title)
    if window is not None:
        table = windowed(table, Windows(window, stride), horizon, table.feature_names)
    return scaled.done(table, None if basis is None else basis.x).check()


@dataclass(frozen=True)
class _Files:
    """Files of one kind and the columns of each."""

    paths: list[Path]
    columns: list[Columns]
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(path: Paths) -> _Files:
        """What is in the files that are meant; all must have the same columns."""
        found, notes = found_files(path)
        columns = [read_columns(file) for file in found]
        check_columns({str(file): list(own) for file, own in zip(found, columns, strict=True)})
        return _Files(found, columns, tuple(notes))

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
        return _together([own[name] for own in self.columns])

    def owners(self, client_column: str | None) -> Array | None:
        """The client of each row: by a column, else by the file where there are several."""
        if client_column is not None:
            return self.column(client_column)
        if len(self.paths) == 1:
            return None
        return np.repeat(named_by_file(self.paths), [_rows(own) for own in self.columns])

    def must_have(self, names: Iterable[str]) -> None:
        """A ConfigError for a column that is not there."""
        for name in names:
            if name not in self.names:
                near = nearest(name, self.names)
                raise ConfigError(
                    f"{self.first} has no column {name!r}; "
                    + (f"did you mean {near!r}?" if near else f"it has {some(self.names)}")
                )

    def refuse_columns(self, choices: Choices, window: int | None) -> None:
        """What is said of columns cannot be said of arrays."""
        if choices.named or choices.missing == "indicator" or window is not None:
            raise ConfigError(
                f"{self.first}: drop, numbers, categories, missing = 'indicator' and window are for the columns of CSV "
                "and Parquet files; an npz file has features that are ready"
            )


@dataclass(frozen=True)
class _Read:
    """Features of all rows, and how they came to be."""

    x: Array
    names: tuple[str, ...] = ()
    encoding: Encoding | None = None
    fates: tuple[Fate, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Plan:
    """What is to be read of files, as their user says."""

    labels: list[str]
    client: str | None
    time: str | None
    id: str | None
    chosen: Sequence[str] | None
    task: AnyTask
    classes: Sequence[str] | None
    choices: Choices
    ahead: bool = False
    """Whether windows look ahead, so that the labels of the past are features."""
    one_hot: bool = False
    """Whether no category is to be embedded: where a model reads windows, or parties a part of the columns each."""

    @property
    def taken(self) -> list[str]:
        """The columns that have another use than as features."""
        return [*self.labels, *(column for column in (self.client, self.time, self.id) if column)]

    def wanted(self, columns: Iterable[str]) -> list[str]:
        """The columns that are to become features; of a series that looks ahead the labels of the past are, too."""
        if self.chosen:
            return list(self.chosen)
        taken = {*self.taken, *self.choices.drop} - {*(self.labels if self.ahead else ())}
        return [column for column in columns if column not in taken]

    def table(self, files: _Files, read: _Read, title: str) -> Table:
        """The rows with these features; not yet checked, for something may be missing."""
        time = None
        if self.time is not None:
            time = np.concatenate([_seconds(file, self.time, own[self.time]) for file, own in files.pairs()])
        table = assembled(
            read.x,
            self.targets(files),
            files.owners(self.client),
            task=self.task,
            classes=self.classes,
            time=time,
            name=title,
        )
        unused = [name for name in files.names if name not in (*self.taken, *self.wanted(files.names))]
        left_out = [f"columns left out: {some(unused)}"] if unused else []
        named = table.task == "regression" and table.y.shape[1] == len(self.labels)
        return replace(
            table,
            classes=tuple(self.labels) if table.task == "multilabel" else table.classes,
            notes=(*table.notes, *files.notes, *left_out, *read.notes, *self._classes_of_numbers(files)),
            feature_names=read.names if table.x.ndim == 2 and table.x.shape[1] == len(read.names) else (),
            target_names=tuple(self.labels) if named else (),
            encoding=read.encoding,
            fates=read.fates,
        )

    def targets(self, files: _Files) -> Array:
        """The labels of all rows."""
        files.must_have(self.labels)
        if len(self.labels) > 1:
            finite = self.task != "multilabel" and not self.ahead
            return np.concatenate([_matrix(file, own, self.labels, finite) for file, own in files.pairs()])
        label, several = self.labels[0], len(files.paths) > 1
        for file, own in files.pairs() if several and not self.ahead else ():
            absent = missing_cells(own[label]) if own[label].ndim == 1 else np.zeros(1, dtype=bool)
            if absent.any():
                raise DataError(
                    f"{file}: row {int(absent.argmax()) + 1} has no label in column {label!r}; fill or drop such rows"
                )
        target = files.column(label)
        return _texts(target) if self.classes and self.task != "multilabel" else target

    def features(self, files: _Files, known: Encoding | None = None) -> _Read:
        """The features of all rows, by an encoding that is known, or by that which follows from these files."""
        files.must_have(self.chosen or ())
        check_choices(self.choices, files.names, str(files.first))
        wanted = self.wanted(files.names)
        if not files.tables:
            finite = self.choices.missing == "error"
            x = np.concatenate([_matrix(file, own, wanted, finite) for file, own in files.pairs()])
            return _Read(x, tuple(wanted))
        if known is not None:
            wanted = [column.name for column in known.columns]
            files.must_have(wanted)
        kept, notes = list[Columns](), list[str]()
        for own in files.columns:
            columns, said = self.choices.applied({name: own[name] for name in wanted})
            kept.append(columns)
            notes += [note for note in said if note not in notes]
        fates: list[Fate] = []
        if known is None:
            known, fates = self._agreed(files, kept)
            notes += [*_nearly(files, fates), *notes_of([fate for fate in fates if not _is_told(files, fate)])]
        _refuse_wide(files, kept, known)
        x = np.concatenate(
            [_finite(file, known, known.encode(own, str(file))) for file, own in zip(files.paths, kept, strict=True)]
        )
        return _Read(x, known.names, known, tuple(fates), tuple(notes))

    def _agreed(self, files: _Files, kept: list[Columns]) -> tuple[Encoding, list[Fate]]:
        """The encoding that all files make together, as the clients of a fleet do."""
        if self.choices.missing == "error":
            _refuse_missing(files, kept)
        surveys = {str(file): Survey.of(own, self.choices) for file, own in zip(files.paths, kept, strict=True)}
        encoding, fates = encoding_of(joined(surveys, self.choices), self.choices, one_hot=self.one_hot)
        lost = next((fate for fate in fates if fate.column is None), None)
        if self.chosen and lost is not None:
            raise DataError(f"{files.first}: {lost.said}: {lost.found.name!r}, which is one of feature_columns")
        if not encoding.columns:
            raise DataError(
                f"{files.first} has no column left for the features" + "".join(f"; {note}" for note in notes_of(fates))
            )
        return encoding, fates

    def _classes_of_numbers(self, files: _Files) -> list[str]:
        """What is to be said of labels that are numbers but for a few cells."""
        return [] if self.task != "auto" else _told(files, self.labels, "so each distinct label is a class", "")


@dataclass(frozen=True)
class _Scaled:
    """How the features of a table are to be scaled."""

    kind: Kind
    by: By
    standardise: bool
    chosen: bool = False
    """Whether the user left it to fedloom."""

    def done(self, table: Table, basis: Tensor | None = None) -> Table:
        """The table with its scaling, which also fills what is missing; or standardised by all rows of a ``basis``."""
        kind, notes = self.kind, list(table.notes)
        if self.standardise:
            units = _standard_units(table.x if basis is None else basis, table.encoding)
            x = ((table.x.double() - units.shift[0]) / units.factor[0]).float()
            table, notes = replace(table, x=x, units=units), [*notes, STANDARDISED]
        if self.chosen:
            measured = table.encoding is None or bool(table.encoding.measured.any())
            kind = kind if measured or table.task == "regression" else "none"
            notes += [UNASKED] if kind != "none" else []
        absent = table.x.is_floating_point() and bool(torch.isnan(table.x).any())
        scaling = with_fit_fields(Scaling(kind, self.by)) if kind != "none" or absent else None
        return replace(table, scaling=scaling, notes=tuple(notes))


UNASKED = "scaled by default (scaling = 'none' leaves numbers as they are)"


def _standard_units(values: Tensor, encoding: Encoding | None) -> Scale:
    """The mean and the deviation of every measured column over all rows; of the others 0 and 1."""
    if encoding is None:
        return standard_scale(values)
    rows = values.double().reshape(-1, values.shape[-1])
    mean = rows.nanmean(0).nan_to_num(0.0)
    deviation = (rows - mean).square().nanmean(0).sqrt().nan_to_num(0.0)
    measured = torch.from_numpy(encoding.measured)
    shift, factor = torch.where(measured, mean, 0.0), torch.where(measured & (deviation > 0), deviation, 1.0)
    return Scale(shift[None], factor[None], mean)


def _nearly(files: _Files, fates: Iterable[Fate]) -> list[str]:
    """One cell that is no number makes a column one of texts: said at once, and noted without the cell: it is data."""
    names = [fate.found.name for fate in fates if fate.almost]
    return _told(files, names, "so the column is left out", "; --numbers {0} (numbers = ['{0}']) reads them as missing")


def _told(files: _Files, names: Sequence[str], then: str, remedy: str) -> list[str]:
    notes = []
    for name in names:
        for path, own in files.pairs():
            if (found := almost_numbers(path, own[name])) is not None:
                cell, where = found
                keep = "to keep it as numbers mend or drop such rows" + remedy.replace("{0}", name)
                said = f"{path}: column {name!r} holds {cell!r} in {where}, which is no number, {then}; {keep}"
                warnings.warn(said, stacklevel=3)
                among = f" of {path.name}" if len(files.paths) > 1 else ""
                notes.append(f"column {name!r} holds no number in {where}{among}, {then}")
                break
    return notes


def _is_told(files: _Files, fate: Fate) -> bool:
    """Whether ``_nearly`` names the cell for which a column was left out."""
    return fate.almost and any(almost_numbers(path, own[fate.found.name]) for path, own in files.pairs())


def _of_parties(files: _Files, others: Sequence[str], plan: _Plan, title: str) -> Table:
    """What each of several files holds of the same rows, by the name of the file, and the labels of the first."""
    path, columns = files.pairs()[0]
    for option, value in (("client_column", plan.client), ("timestamp_column", plan.time)):
        if value is not None:
            raise ConfigError(f"{path}: {option} cannot be beside parties, who all hold the same rows; drop it")
    if len(files.paths) > 1:
        raise ConfigError(f"{path} is one of several files; give the one that has the labels, and others as parties")
    if len(plan.labels) > 1:
        raise ConfigError(f"{path}: say which one of its columns is the label (label_column); it has {some(columns)}")
    label, held, reads, sought = plan.labels[0], dict[str, Held](), list[_Read](), set(plan.chosen or ())
    every = [files, *(_Files.of(path.parent / other) for other in others)]
    check_choices(plan.choices, {name for one in every for name in one.names}, str(path))
    for one in every:
        own, file = one.columns[0], one.first
        one.must_have([plan.id] if plan.id else [])
        mine = replace(
            plan, labels=[label] if label in own else [], chosen=None, choices=plan.choices.about(own), one_hot=True
        )
        features = [name for name in mine.wanted(own) if not plan.chosen or name in plan.chosen]
        if stem(file) in held:
            raise ConfigError(f"{file}: two parties are called {stem(file)!r}; give their files different names")
        sought -= set(features)
        if not features and one is files:
            continue
        part = _Files(
            [file], [{name: own[name] for name in own if name in (*mine.taken, *mine.choices.named, *features)}]
        )
        read = mine.features(part)
        reads.append(read)
        held[stem(file)] = (own[plan.id] if plan.id else None, read.x)
    if sought:
        raise ConfigError(f"{path}: no party has a column {some(sorted(sought))}, one of feature_columns")
    labels = columns[label]
    given = (columns[plan.id] if plan.id else None, _texts(labels) if plan.classes else labels)
    table = aligned(held, given, task=plan.task, classes=plan.classes, name=title)
    encoding = Encoding(tuple(column for read in reads if read.encoding for column in read.encoding.columns))
    notes = [note for read in reads for note in read.notes]
    table = replace(table, notes=(*table.notes, *notes), fates=tuple(fate for read in reads for fate in read.fates))
    if len(set(encoding.names)) == len(encoding.names) and files.tables:
        table = replace(table, encoding=encoding, feature_names=encoding.names)
    return table


def _rows(columns: Columns) -> int:
    return next((len(values) for values in columns.values() if values.ndim), 0)


def _together(parts: Sequence[Array]) -> Array:
    """The same column of several files; where they hold different things, as objects."""
    kinds = {"n" if part.dtype.kind in "iuf" else part.dtype.kind for part in parts}
    if len(kinds) == 1:
        return np.concatenate(parts) if len(parts) > 1 else parts[0]
    dates = [np.datetime_as_string(part) if part.dtype.kind == "M" else part for part in parts]
    return np.concatenate([part.astype(object) for part in dates])


def _refuse_wide(files: _Files, kept: list[Columns], encoding: Encoding) -> None:
    """Categories may be many: what they take is known before it is made."""
    rows = sum(_rows(columns) for columns in kept)
    what = f"{files.first}, as {len(encoding.names):,} numbers a row"
    refuse_larger(rows * len(encoding.names) * CELL, what, "Drop columns, or lower embed_from.", DataError)


def _refuse_missing(files: _Files, kept: list[Columns]) -> None:
    for file, columns in zip(files.paths, kept, strict=True):
        for name, cells in columns.items():
            absent = missing_cells(cells)
            if absent.any():
                raise DataError(
                    f"{file}: column {name!r} is missing in row {int(absent.argmax()) + 1}; fill or drop such rows, or "
                    "choose missing = 'mean' or 'indicator'"
                )


def _finite(path: Path, encoding: Encoding, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    wrong = np.isinf(values)
    if wrong.any():
        row, place = np.argwhere(wrong)[0].tolist()
        raise DataError(
            f"{path}: column {encoding.names[place]!r} has no finite value in row {row + 1}; fill or drop such rows"
        )
    return values


def _texts(labels: Array) -> Array:
    """Labels as the names of their classes: 3 and 3.0 are "3"."""
    whole = labels.dtype.kind == "f" and bool(is_whole(labels).all())
    return (labels.astype(np.int64) if whole else labels).astype(str)


def _matrix(path: Path, columns: Mapping[str, Array], chosen: Sequence[str], finite: bool) -> Array:
    """The chosen columns of numbers side by side; a single array of an npz keeps its shape (images, windows)."""
    for column in chosen:
        _check_column(path, column, columns[column], finite)
    if len(chosen) == 1 and columns[chosen[0]].ndim > 1:
        return columns[chosen[0]]
    if any(columns[column].ndim != 1 for column in chosen):
        raise DataError(f"{path}: arrays of more than one dimension cannot stand side by side; choose one of them")
    return np.column_stack([columns[column].astype(np.float64) for column in chosen])


def _check_column(path: Path, column: str, values: Array, finite: bool) -> None:
    if values.dtype.kind not in "biuf":
        raise DataError(f"{path}: column {column!r} is not numeric; encode it, or choose others")
    if values.dtype.kind != "f":
        return
    bad = ~np.isfinite(values) if finite else np.isinf(values)
    if bad.any():
        row = int(np.argwhere(bad)[0][0]) + 1
        raise DataError(f"{path}: column {column!r} has no finite value in row {row}; fill or drop such rows")


def _seconds(path: Path, column: str, values: Array) -> npt.NDArray[np.float64]:
    """Numbers as they are; dates as seconds since 1970."""
    if values.dtype.kind in "iuf":
        return values.astype(np.float64)
    import pandas

    try:
        stamps: Any = pandas.to_datetime(values, utc=True, format="ISO8601")
        since: Any = stamps - pandas.Timestamp(0, tz="utc")  # a year before 1678 or after 2261 is beyond it
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{path}: column {column!r} does not hold times ({error}); give numbers or ISO dates"
        ) from error
    return np.asarray(since / pandas.Timedelta("1s"), dtype=np.float64)
