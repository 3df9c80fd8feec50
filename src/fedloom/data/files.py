"""The user's own data in files: CSV, Parquet or npz, with a column that names the client, or a file for each client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedloom.data.arrays import AnyTask, assembled, some
from fedloom.data.gathered import Files
from fedloom.data.parties import of_parties
from fedloom.data.paths import Paths, common_name
from fedloom.data.plan import Plan
from fedloom.data.scaled import Scaled
from fedloom.data.scaling import By
from fedloom.data.series import Windows
from fedloom.data.survey import EMBED_FROM, Choices, Dates, Missing
from fedloom.data.table import Table
from fedloom.data.windows import windowed
from fedloom.errors import ConfigError
from fedloom.federation.encoding import Encoding
from fedloom.types import Count

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
    return requested(
        path,
        client_column=client_column,
        label_column=label_column,
        feature_columns=feature_columns,
        timestamp_column=timestamp_column,
        task=task,
        class_names=class_names,
        drop=drop,
        numbers=numbers,
        categories=categories,
        embed_from=embed_from,
        dates=dates,
        missing=missing,
        standardise=standardise,
        scaling=scaling,
        scaling_by=scaling_by,
        window=window,
        stride=stride,
        horizon=horizon,
        like=like,
        parties=parties,
        id_column=id_column,
        name=name,
    ).table()


@dataclass(frozen=True)
class Known:
    """What others have agreed on of files that are read where they are."""

    encoding: Encoding | None
    classes: tuple[str, ...] | None


@dataclass(frozen=True)
class Request:
    """Files, and what is to be made of them."""

    files: Files
    plan: Plan
    scaled: Scaled
    title: str
    windows: Windows | None = None
    horizon: int = 1
    like: Paths | None = None
    parties: Sequence[str] | None = None

    def table(self, known: Known | None = None) -> Table:
        """The rows: as these files want to be read, or as others agreed."""
        files, plan, title = self.files, self.plan, self.title
        if self.parties:
            return self.scaled.done(of_parties(files, self.parties, plan, title)).check()
        if known is not None:
            plan = replace(plan, classes=plan.classes or known.classes)
        trained = None if self.like is None else Files.of(self.like)
        read = plan.features(files if trained is None else trained, None if known is None else known.encoding)
        basis = None
        if trained is not None:
            basis = assembled(read.x, plan.targets(trained), task=plan.task, classes=plan.classes, name=title)
            plan = replace(plan, task=basis.task, classes=plan.classes or basis.classes or None)
            read = plan.features(files, read.encoding)
        table = plan.table(files, read, title)
        if self.windows is not None:
            table = windowed(table, self.windows, self.horizon, table.feature_names)
        return self.scaled.done(table, None if basis is None else basis.x).check()


def requested(
    path: Paths,
    *,
    label_column: str | Sequence[str] | None,
    client_column: str | None,
    feature_columns: Sequence[str] | None,
    window: int | None,
    scaling: FileKind,
    standardise: bool,
    parties: Sequence[str] | None,
    **rest: Any,
) -> Request:
    """What ``load_file`` is asked for, by all of its arguments; the files are read, and found to have what is named."""
    choices = Choices.of(*(rest[key] for key in ("drop", "numbers", "categories", "embed_from", "dates", "missing")))
    title, files = rest["name"] or common_name(path), Files.of(path)
    if standardise and scaling not in ("auto", "none"):
        raise ConfigError(f"{files.first}: standardise and scaling both scale; keep one of them")
    if not files.tables:
        files.refuse_columns(choices, window)
        label_column, feature_columns = label_column or "y", feature_columns or ["x"]
        client_column = client_column or ("clients" if "clients" in files.names else None)
    if not label_column:
        raise ConfigError(f"{files.first}: say which column is the label (label_column); it has {some(files.names)}")
    labels = [label_column] if isinstance(label_column, str) else list(label_column)
    others = (client_column, rest["timestamp_column"], rest["id_column"], feature_columns)
    plan = Plan(labels, *others, rest["task"], rest["class_names"], choices)
    files.must_have(plan.taken)
    if window is None and (rest["stride"], rest["horizon"]) != (1, 1):
        raise ConfigError(f"{files.first}: stride and horizon are those of windows; say how long one is (window)")
    if window is not None:
        plan = replace(plan, series=True, one_hot=True, ahead=rest["horizon"] > 0)
    scaled = Scaled("none" if scaling == "auto" else scaling, rest["scaling_by"], standardise)
    if scaling == "auto" and files.tables and not standardise:
        scaled = replace(scaled, kind="standard", chosen=True)
    if parties and window is not None:
        raise ConfigError(f"{files.first}: window cannot be beside parties, whose rows are no series; drop it")
    windows = None if window is None else Windows(window, rest["stride"])
    return Request(files, plan, scaled, title, windows, rest["horizon"], rest["like"], parties)
