"""The user's own data in a file: CSV, Parquet or npz, with a column that names the client."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.data.align import Held, from_parties
from fedloom.data.arrays import AnyTask, Array, from_arrays, is_whole, some
from fedloom.data.reading import almost_numbers, read_columns
from fedloom.data.scaling import By, Kind, Scaling
from fedloom.data.shipped import STANDARDISED, standard_scale, standardised
from fedloom.data.table import Table
from fedloom.errors import ConfigError, DataError
from fedloom.fields import with_fit_fields
from fedloom.register import nearest


def load_file(
    path: str | Path,
    *,
    client_column: str | None = None,
    label_column: str | Sequence[str] | None = None,
    feature_columns: Sequence[str] | None = None,
    timestamp_column: str | None = None,
    task: AnyTask = "auto",
    class_names: Sequence[str] | None = None,
    standardise: bool = False,
    scaling: Kind = "none",
    scaling_by: By = "all",
    like: str | Path | None = None,
    parties: Sequence[str] | None = None,
    id_column: str | None = None,
    name: str | None = None,
) -> Table:
    """Read a table from a CSV, Parquet or npz file.

    What the columns are. A column of an npz file is an array with one entry for each row.

    * ``path``: the file. ``name``: what the table is called; none: as the file.
    * ``label_column``: the labels; several columns are several targets. Of an npz file ``y`` by default.
    * ``client_column``: the owner of each row. Of an npz file ``clients`` by default, if there are any.
    * ``feature_columns``: the features; none: all other columns that hold numbers, and of an npz file ``x``.
    * ``timestamp_column``: when each row was seen.

    How they are read:

    * ``task``: "classification", "binary", "multilabel", "regression", or "auto": as the labels look.
    * ``class_names``: all classes, also those that no row has, in the order of a model's outputs; none: the labels that
      occur, sorted.
    * ``standardise``: give every feature mean 0 and deviation 1 over all rows.
    * ``scaling``, ``scaling_by``: scale features, and the targets of a regression, by the training rows alone, of all
      clients or of each, once these are known (:class:`~fedloom.data.scaling.Scaling`).
    * ``like``: a file that a model was trained on. This one is read with its features, its classes, and its means and
      deviations, so that the model can read it.

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
    path, like = Path(path), None if like is None else Path(like)
    how = with_fit_fields(Scaling(scaling, scaling_by)) if scaling != "none" else None
    if standardise and how is not None:
        raise ConfigError(f"{path}: standardise and scaling both scale; keep one of them")
    columns = read_columns(path)
    if parties:
        for option, value in (("client_column", client_column), ("timestamp_column", timestamp_column)):
            if value is not None:
                raise ConfigError(f"{path}: {option} cannot be beside parties, who all hold the same rows; drop it")
        held, labelled = _of_parties(path, columns, parties, id_column, label_column, feature_columns, class_names)
        table = from_parties(held, labelled, task=task, classes=class_names, name=name or path.stem)
        if standardise:
            units = standard_scale(table.x)
            table = replace(table, x=standardised(table.x), notes=(*table.notes, STANDARDISED), units=units)
        return replace(table, scaling=how)
    trained = columns if like is None else read_columns(like)
    if path.suffix == ".npz":
        label_column, feature_columns = label_column or "y", feature_columns or ["x"]
        client_column = client_column or ("clients" if "clients" in columns else None)
    if not label_column:
        raise ConfigError(f"{path}: say which column is the label (label_column); it has {some(columns)}")
    labels = [label_column] if isinstance(label_column, str) else list(label_column)
    taken = [*labels, *(column for column in (client_column, timestamp_column, id_column) if column)]
    features = list(feature_columns) if feature_columns else _features(trained, taken)
    for column in (*taken, *features):
        _must_have(path, columns, column)
    basis = None
    if like is not None:
        basis = load_file(
            like, label_column=labels, feature_columns=features, task=task, class_names=class_names, name=name
        )
        task, class_names = basis.task, class_names or basis.classes or None
    target = columns[labels[0]] if len(labels) == 1 else _matrix(path, columns, labels, finite=task != "multilabel")
    table = from_arrays(
        _matrix(path, columns, features),
        _texts(target) if class_names and task != "multilabel" else target,
        columns[client_column] if client_column else None,
        task=task,
        classes=class_names,
        time=_seconds(path, timestamp_column, columns[timestamp_column]) if timestamp_column else None,
        name=name or path.stem,
    )
    classes = tuple(labels) if table.task == "multilabel" else table.classes
    unused = [column for column in columns if column not in (*taken, *features)]
    left_out = [f"columns left out: {some(unused)}"] if unused else []
    left_out += _nearly(path, columns, () if feature_columns else unused, labels if task == "auto" else ())
    x = standardised(table.x, None if basis is None else basis.x) if standardise else table.x
    return replace(
        table,
        x=x,
        classes=classes,
        notes=(*table.notes, *left_out, *([STANDARDISED] if standardise else [])),
        feature_names=tuple(features) if x.ndim == 2 and x.shape[1] == len(features) else (),
        target_names=tuple(labels) if table.task == "regression" and table.y.shape[1] == len(labels) else (),
        scaling=how,
        units=standard_scale(table.x if basis is None else basis.x) if standardise else None,
    )


def _nearly(path: Path, columns: Mapping[str, Array], unused: Iterable[str], labels: Iterable[str]) -> list[str]:
    """One cell that is no number makes a column one of texts: said at once, and noted without the cell: it is data."""
    notes = []
    for names, then in ((unused, "so the column is left out"), (labels, "so each distinct label is a class")):
        for name in names:
            if (found := almost_numbers(path, columns[name])) is not None:
                cell, where = found
                keep = "to keep it as numbers mend or drop such rows"
                warnings.warn(
                    f"{path}: column {name!r} holds {cell!r} in {where}, which is no number, {then}; {keep}",
                    stacklevel=3,
                )
                notes.append(f"column {name!r} holds no number in {where}, {then}")
    return notes


def _of_parties(
    path: Path,
    columns: Mapping[str, Array],
    others: Sequence[str],
    id_column: str | None,
    label_column: str | Sequence[str] | None,
    feature_columns: Sequence[str] | None,
    class_names: Sequence[str] | None,
) -> tuple[dict[str, Held], Held]:
    """What each of several files holds, by its name, and the labels."""
    if not isinstance(label_column, str):
        raise ConfigError(f"{path}: say which one of its columns is the label (label_column); it has {some(columns)}")
    held: dict[str, Held] = {}
    sought = set(feature_columns or ())
    for file in (path, *(path.parent / other for other in others)):
        own = columns if file == path else read_columns(file)
        taken = [c for c in (id_column, label_column if file == path or label_column in own else None) if c]
        for column in taken:
            _must_have(file, own, column)
        features = [c for c in _features(own, taken) if feature_columns is None or c in feature_columns]
        if file.stem in held:
            raise ConfigError(f"{file}: two parties are called {file.stem!r}; give their files different names")
        if features or file != path:
            held[file.stem] = (own[id_column] if id_column else None, _matrix(file, own, features))
        sought -= set(features)
    if sought:
        raise ConfigError(f"{path}: no party has a column of numbers {some(sorted(sought))}, one of feature_columns")
    labels = columns[label_column]
    return held, (columns[id_column] if id_column else None, _texts(labels) if class_names else labels)


def _texts(labels: Array) -> Array:
    """Labels as the names of their classes: 3 and 3.0 are "3"."""
    whole = labels.dtype.kind == "f" and bool(is_whole(labels).all())
    return (labels.astype(np.int64) if whole else labels).astype(str)


def _must_have(path: Path, columns: Mapping[str, Array], column: str) -> None:
    if column not in columns:
        near = nearest(column, columns)
        raise ConfigError(
            f"{path} has no column {column!r}; " + (f"did you mean {near!r}?" if near else f"it has {some(columns)}")
        )


def _features(columns: Mapping[str, Array], taken: Sequence[str]) -> list[str]:
    """The numeric columns that have no other use."""
    return [column for column in columns if column not in taken and columns[column].dtype.kind in "biuf"]


def _matrix(path: Path, columns: Mapping[str, Array], chosen: Sequence[str], finite: bool = True) -> Array:
    """The chosen columns side by side; a single array of an npz keeps its shape (images, windows)."""
    if not chosen:
        raise DataError(f"{path} has no numeric column left for the features; list feature_columns")
    for column in chosen:
        _check_column(path, column, columns[column], finite)
    if len(chosen) == 1 and columns[chosen[0]].ndim > 1:
        return columns[chosen[0]]
    if any(columns[column].ndim != 1 for column in chosen):
        raise DataError(f"{path}: arrays of more than one dimension cannot stand side by side; choose one of them")
    return np.column_stack([columns[column].astype(np.float32) for column in chosen])


def _check_column(path: Path, column: str, values: Array, finite: bool) -> None:
    if values.dtype.kind not in "biuf":
        raise DataError(f"{path}: column {column!r} is not numeric; encode it, or leave it out of feature_columns")
    bad = ~np.isfinite(values) if finite and values.dtype.kind == "f" else np.zeros(1, dtype=bool)
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
