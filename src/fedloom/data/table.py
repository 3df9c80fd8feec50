"""A table of rows before anybody owns them: what every source returns and every partition starts from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedloom.data.scaling import Scaling
from fedloom.errors import DataError
from fedloom.federation.blocks import Blocks
from fedloom.federation.data import Task
from fedloom.federation.encoding import Encoding
from fedloom.federation.scale import Scale

if TYPE_CHECKING:
    from fedloom.data.survey import Fate


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Features ``x`` and targets ``y`` of all rows, and what is known of where they come from.

    ``y`` has the shape that :class:`~fedloom.federation.data.FederatedData` asks for its task; images are
    (rows, channels, height, width). ``groups`` is the natural client of each row (its writer, its station), named by
    ``group_names``; ``time`` says when a row was seen; ``published_split`` is True where the publisher counts the row
    as a test row; ``ids`` are the publisher's row numbers. ``blocks`` are the columns that parties of these names hold.
    ``feature_names`` are those of the columns (of windows, of each step's), ``target_names`` those of a regression's
    targets. Rows of a ``series`` follow each other, so that the last ones are the test unless something else is asked
    for. Natural clients whose rows come from files of their own are ``apart``: each is split by its name and its own
    rows alone, as it would split them by itself. ``scaling`` is done once it is known which rows are for training; it
    also fills features that are missing (NaN), which no other table may have. ``encoding`` is how the columns of a file
    became features, ``fates`` what became of each of them, ``units`` how they were standardised before anybody owned a
    row.
    """

    name: str
    x: Tensor
    y: Tensor
    task: Task
    classes: tuple[str, ...] = ()
    groups: Tensor | None = None
    group_names: tuple[str, ...] | None = None
    time: Tensor | None = None
    published_split: Tensor | None = None
    ids: Tensor | None = None
    blocks: Blocks | None = None
    block_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    target_names: tuple[str, ...] = ()
    series: bool = False
    apart: bool = False
    scaling: Scaling | None = None
    encoding: Encoding | None = None
    units: Scale | None = None
    fates: tuple[Fate, ...] = ()

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.x.shape[1:]))
        owned = (
            "" if self.groups is None else f", {len(self.group_names or set(self.groups.tolist())):,} natural clients"
        )
        return f"Table({self.name!r}: {self.task}, {len(self):,} rows of {shape}{owned})"

    @property
    def labels(self) -> Tensor | None:
        """The class of each row as a number, or None when rows have no single class."""
        if self.task == "classification":
            return self.y
        return self.y[:, 0].to(torch.int64) if self.task == "binary" else None

    def take(self, rows: Tensor) -> Table:
        """The same table with only these rows (numbers or a mask), in this order."""
        return replace(self, x=self.x[rows], **{part: values[rows] for part, values in self._by_row().items()})

    def check(self) -> Table:
        """The table itself, or a DataError that says which part does not fit."""
        if len(self) == 0:
            raise DataError(f"{self.name!r} has no rows; give a table with at least one")
        for part, values in self._by_row().items():
            if len(values) != len(self):
                raise DataError(
                    f"{self.name!r} has {len(self)} rows of x but {len(values)} of {part}; give one per row"
                )
        _check_names(self)
        _check_finite(self, self.x, "feature", missing=self.scaling is not None)
        if self.task != "multilabel":
            _check_finite(self, self.y, "target")
        if self.time is not None:
            _check_finite(self, self.time, "time")
        _check_target(self)
        return self

    def _by_row(self) -> dict[str, Any]:
        """What is known of each row beside its features."""
        parts = {part: getattr(self, part) for part in ("y", "groups", "time", "published_split", "ids")}
        return {part: values for part, values in parts.items() if values is not None}


def class_number(classes: tuple[str, ...], label: int | str) -> int:
    """The number of a class that is given by number or by name."""
    names = [str(number) for number in range(len(classes))]
    for known in (classes, names):
        if str(label) in known:
            return known.index(str(label))
    raise DataError(f"there is no class {label!r}; the classes are {', '.join(classes)}")


def against_rest(table: Table, positive: int | str) -> Table:
    """The same rows with one class, given by number or by name, against all others: a binary task of no and yes."""
    if table.task == "binary":
        yes = f": yes is {table.classes[1]!r}" if table.classes else ""
        raise DataError(f"{table.name!r} is a binary task already{yes}; leave positive out")
    if table.task != "classification":
        raise DataError(
            f"positive = {positive!r} needs one class for each row, but {table.name!r} is a {table.task} task; leave "
            "it out"
        )
    number = class_number(table.classes, positive)
    name = table.classes[number]
    y = (table.y == number).to(torch.float32).unsqueeze(1)
    note = f"{name!r} against the rest: {int(y.sum()):,} of {len(y):,} rows are positive"
    return replace(table, y=y, task="binary", classes=(f"not {name}", name), notes=(*table.notes, note))


def _check_finite(table: Table, values: Tensor, what: str, missing: bool = False) -> None:
    """NaN and infinity would become the model's; aminmax finds them without another array of the table's size.

    Where values may be ``missing`` NaN stands for that, and only infinity is wrong.
    """
    if not values.is_floating_point() or values.numel() == 0:
        return
    if bool(torch.isfinite(torch.stack(torch.aminmax(values))).all()):
        return
    wrong = torch.isinf(values) if missing else ~torch.isfinite(values)
    for row, column in torch.nonzero(wrong.reshape(len(values), -1))[:1].tolist():
        raise DataError(
            f"{table.name!r} has a {what} that is not finite (row {row}, column {column}); fill or drop such rows"
        )


def _check_names(table: Table) -> None:
    for what, names, values in (("features", table.feature_names, table.x), ("targets", table.target_names, table.y)):
        if names and (values.ndim < 2 or len(names) != values.shape[-1]):
            raise DataError(
                f"{table.name!r} has {len(names)} names for {what} of shape {tuple(values.shape[1:])}; give each one"
            )


def _check_target(table: Table) -> None:
    y, task = table.y, table.task
    if task == "classification":
        if y.ndim != 1 or y.is_floating_point():
            raise DataError(f"{table.name!r}: the labels of a classification are one whole number a row")
        low, high = (int(k) for k in torch.aminmax(y))
        if low < 0 or high >= len(table.classes):
            raise DataError(f"{table.name!r} has labels {low} to {high} but {len(table.classes)} classes")
        return
    if y.ndim != 2 or not y.is_floating_point():
        raise DataError(f"{table.name!r}: the targets of a {task} task are a float table (rows, columns)")
    if task == "binary" and (y.shape[1] != 1 or not bool(((y == 0) | (y == 1)).all())):
        raise DataError(f"{table.name!r}: the targets of a binary task are one column of 0 and 1")
    if task == "multilabel" and not bool(((y == 0) | (y == 1) | torch.isnan(y)).all()):
        raise DataError(f"{table.name!r}: the targets of a multilabel task are 0, 1 or NaN for unknown")
