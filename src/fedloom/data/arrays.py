"""The user's own data as Python objects: arrays of all rows, or one pair of arrays per client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.data.table import Table
from fedloom.errors import ConfigError, DataError
from fedloom.federation.data import Task

AnyTask = Task | Literal["auto"]
Array = npt.NDArray[Any]
MOST_CLASSES = 100
"""Whole numbers with more distinct values than this are read as a regression when the task is "auto"."""


def from_arrays(
    x: object,
    y: object,
    clients: object | None = None,
    *,
    task: AnyTask = "auto",
    classes: Sequence[str] | None = None,
    time: object | None = None,
    test: object | None = None,
    name: str = "arrays",
) -> Table:
    """Make a table from arrays or tensors.

    * ``x``: the features, a row for each example, of any further shape. ``y``: the label or the targets of each row.
      The columns of data frames keep their names.
    * ``clients``: the owner of each row, by a number or a name; none: nobody owns it yet.
    * ``task``: "classification", "binary", "multilabel", "regression", or "auto": as the labels look.
    * ``classes``: the names of the classes; labels are then these names or their numbers. None: the labels that occur.
    * ``time``: when each row was seen, in seconds. ``test``: True for the publisher's test rows.
    * ``name``: what the table is called.

    The result is a Table, from which ``federate`` makes clients.

        import numpy as np

        x, owner = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 4
        table = fedloom.from_arrays(x, x[:, 0] > 0, clients=owner, classes=["no", "yes"])
        data = fedloom.federate(table)
        print(data.clients, data.classes)
    """
    return assembled(x, y, clients, task=task, classes=classes, time=time, test=test, name=name).check()


def assembled(
    x: object,
    y: object,
    clients: object | None = None,
    *,
    task: AnyTask = "auto",
    classes: Sequence[str] | None = None,
    time: object | None = None,
    test: object | None = None,
    name: str = "arrays",
) -> Table:
    """The same before it is checked: features, and targets of a regression, may still be missing."""
    values, target = array(x), array(y)
    if values.ndim < 2:
        raise DataError(f"{name!r}: x has shape {values.shape}; it needs a row and at least one feature dimension")
    if values.dtype.kind not in "biuf":
        raise DataError(f"{name!r}: x holds {values.dtype}, not numbers; encode it first")
    if values.size == 0:
        raise DataError(f"{name!r} has x of shape {values.shape}: no rows, or no features; give at least one of each")
    if target.ndim == 0 or len(target) != len(values):
        raise DataError(f"{name!r} has {len(values)} rows of x but {target.size} of y; give one y per row")
    if target.dtype.kind not in "biufOUSMmT":
        raise DataError(f"{name!r}: y holds {target.dtype}, neither numbers nor texts; encode it first")
    for what, given in (("clients", clients), ("time", time), ("test", test)):
        if given is not None and array(given).shape != (len(values),):
            shape = array(given).shape
            raise DataError(f"{name!r}: {what} has shape {shape}; give one for each of the {len(values)} rows")
    kind, read, names, notes = _target(target, task, classes, name)
    groups, group_names = (None, None) if clients is None else _codes(array(clients), "client", name)
    return Table(
        name,
        torch.from_numpy(precise(values)),
        read,
        kind,
        names,
        groups=None if groups is None else torch.from_numpy(groups),
        group_names=group_names,
        time=None if time is None else torch.from_numpy(np.array(array(time), dtype=np.float64)),
        published_split=None if test is None else torch.from_numpy(np.array(array(test), dtype=bool)),
        notes=notes,
        feature_names=column_names(x) if values.ndim == 2 else (),
        target_names=column_names(y) if kind == "regression" else (),
    )


def from_clients(
    clients: Mapping[str, tuple[object, object]] | Sequence[tuple[object, object]],
    *,
    task: AnyTask = "auto",
    classes: Sequence[str] | None = None,
    name: str = "clients",
) -> Table:
    """Make a table from the arrays of each client.

    * ``clients``: for each client its features and labels (x, y), in a dict by the clients' names, or in a list.
    * ``task``, ``classes``, ``name``: as of ``from_arrays``.

    The result is a Table whose natural clients are these.

        import numpy as np

        x = np.random.default_rng(0).normal(size=(40, 3))
        table = fedloom.from_clients({"clinic": (x[:25], x[:25, 0]), "lab": (x[25:], x[25:, 0])}, task="regression")
        print(fedloom.federate(table).names)
    """
    pairs = dict(clients) if isinstance(clients, Mapping) else {str(k): pair for k, pair in enumerate(clients)}
    if not pairs:
        raise DataError(f"{name!r} has no clients; give at least one (x, y)")
    xs = [array(x) for x, _ in pairs.values()]
    ys = [array(y) for _, y in pairs.values()]
    for client, x, y in zip(pairs, xs, ys, strict=True):
        if len(x) != len(y) or x.shape[1:] != xs[0].shape[1:]:
            raise DataError(
                f"{name!r}: client {client!r} has x of shape {x.shape} and {len(y)} targets; every client needs one "
                f"target per row and rows of shape {xs[0].shape[1:]}"
            )
    columns = {client: column_names(x) for client, (x, _) in pairs.items()}
    first = next(iter(columns))
    for client, names in columns.items():
        if names != columns[first]:
            raise DataError(
                f"{name!r}: client {client!r} has the columns {some(names) or 'without names'}, client {first!r} has "
                f"{some(columns[first]) or 'none with names'}; give all clients the same columns in the same order"
            )
    table = from_arrays(np.concatenate(xs), np.concatenate(ys), task=task, classes=classes, name=name)
    owners = torch.from_numpy(np.repeat(np.arange(len(pairs)), [len(y) for y in ys]))
    target = column_names(next(iter(pairs.values()))[1]) if table.task == "regression" else ()
    return replace(
        table,
        groups=owners,
        group_names=tuple(map(str, pairs)),
        feature_names=columns[first] if table.x.ndim == 2 else (),
        target_names=target,
    )


def some(names: Iterable[object]) -> str:
    """The first few of many names, for messages."""
    listed = [str(name) for name in names]
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")


def array(values: object) -> Array:
    """Anything like an array as NumPy has it."""
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def column_names(values: object) -> tuple[str, ...]:
    """The names that a data frame has for its columns, or a series for itself; nothing where they are mere numbers."""
    columns = getattr(values, "columns", None)
    names = [getattr(values, "name", None)] if columns is None else list(columns)
    texts = tuple(name for name in names if isinstance(name, str))
    return texts if len(texts) == len(names) else ()


def precise(values: Array) -> Array:
    """A copy of the numbers: of a table in float64 where float32 would round them, else in float32.

    Images and windows are many numbers of little precision, so they are always of float32. Numbers that are too large
    for that become infinite, which the table's check tells of.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = np.array(values, dtype=np.float32)
        if values.ndim > 2 or values.dtype.kind in "bO" or values.dtype.itemsize < 4 or values.dtype == np.float32:
            return narrow
        wide = values.astype(np.float64)
        same = (narrow == wide) | np.isnan(wide) | ~np.isfinite(narrow)
    return narrow if bool(same.all()) else np.where(np.isinf(narrow), narrow, wide)


def is_whole(values: Array) -> npt.NDArray[np.bool_]:
    """Which numbers are whole, and such that an integer can hold them."""
    return np.asarray((values == np.round(values)) & (np.abs(values) < 2.0**63))


def _codes(values: Array, what: str, name: str) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """The distinct values by name, sorted, and the number of each row's."""
    if values.dtype.kind in "Of":
        import pandas

        missing = np.asarray(pandas.isna(values))
        if missing.any():
            raise DataError(f"{name!r}: row {int(missing.argmax())} has no {what}; fill it or drop such rows")
    distinct, codes = np.unique(values.astype(str) if values.dtype.kind == "O" else values, return_inverse=True)
    return codes.astype(np.int64), tuple(str(value) for value in distinct)


def _target(
    y: Array, task: AnyTask, classes: Sequence[str] | None, name: str
) -> tuple[Task, Tensor, tuple[str, ...], tuple[str, ...]]:
    """Task, targets in its shape, class names, and what was guessed."""
    if task not in ("auto", *get_args(Task)):
        raise ConfigError(f"{name!r}: there is no task {task!r}; choose auto, {', '.join(get_args(Task))}")
    kind: Task = _guess(y) if task == "auto" else task
    notes = (f"task read as {kind}",) if task == "auto" else ()
    if kind in ("regression", "multilabel"):
        numbers = _numbers(y, name)
        return kind, torch.from_numpy(numbers.reshape(len(numbers), -1)), tuple(classes or ()), notes
    labels = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if labels.ndim != 1:
        raise DataError(f"{name!r}: y has shape {y.shape}, but a {kind} task has one label a row")
    codes, names = _classes(labels, classes, name)
    if len(names) < 2 or (kind == "binary" and len(names) > 2):
        wanted = "two" if kind == "binary" else "at least two"
        raise DataError(f"{name!r} has {len(names)} labels ({some(names)}); a {kind} task needs {wanted}")
    return kind, torch.from_numpy(codes.astype(np.float32)[:, None] if kind == "binary" else codes), names, notes


def _guess(y: Array) -> Task:
    """Text and truth values are classes, fractions are a regression, whole numbers are classes when they are few."""
    if y.ndim == 2 and y.shape[1] > 1:
        return "regression"
    distinct = np.unique(y.astype(str) if y.dtype.kind == "O" else y)
    fractions = y.dtype.kind == "f" and set(distinct.tolist()) != {0.0, 1.0}
    if fractions or (y.dtype.kind in "iu" and len(distinct) > MOST_CLASSES):
        return "regression"
    return "binary" if len(distinct) == 2 else "classification"


def _numbers(y: Array, name: str) -> Array:
    try:
        return precise(y.astype(np.float64) if y.dtype.kind not in "biuf" else y)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{name!r}: the targets are not numbers ({error}); choose task='classification'") from error


def _classes(labels: Array, classes: Sequence[str] | None, name: str) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Labels as numbers 0, 1, … and the names of those numbers."""
    if labels.dtype.kind == "f":
        broken = ~is_whole(labels)
        if broken.any():
            raise DataError(
                f"{name!r}: row {int(broken.argmax())} has the label {labels[broken][0]}, which is no class"
            )
        labels = labels.astype(np.int64)
    if classes is None:
        return _codes(labels, "label", name)
    names = tuple(str(label) for label in classes)
    if labels.dtype.kind in "biu":
        return labels.astype(np.int64), names
    codes, found = _codes(labels, "label", name)
    strangers = sorted(set(found) - set(names))
    if strangers:
        raise DataError(
            f"{name!r} has labels that are not among its classes: {some(strangers)}; they are {some(names)}"
        )
    return np.array([names.index(label) for label in found], dtype=np.int64)[codes], names
