"""New rows as a network reads them: columns become numbers, what is missing is filled, all is scaled as in training."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.errors import DataError
from fedloom.prediction.card import ModelCard

Array = npt.NDArray[Any]
Given = Mapping[str, Array] | Array
"""Columns by their names, or the numbers of rows."""
_SHOWN = 8
ROWS = "x"
"""The array of an npz file that has the rows themselves."""


@dataclass
class Tally:
    """What is to be said of rows that were read: each line once, however many parts a file has."""

    missing: Counter[str] = field(default_factory=Counter)
    """How many cells of each column were filled."""
    unknown: Counter[str] = field(default_factory=Counter)
    """How many cells of each column hold a category that the model does not know."""
    said: dict[str, None] = field(default_factory=dict)
    rows: int = 0

    def lines(self) -> list[str]:
        """For the user."""
        found = list(self.said)
        if self.unknown:
            found.append(f"categories that the model does not know, read as none of its own: {_counted(self.unknown)}")
        if self.missing:
            found.append(f"missing values, filled by the mean of the training rows: {_counted(self.missing)}")
        return found


def columns_of(x: object) -> Given:
    """What a caller gives: a data frame or a dict by its columns, anything else as an array."""
    if isinstance(x, Tensor):
        return np.asarray(x.detach().cpu().numpy())
    if isinstance(x, Mapping):
        return {str(name): np.asarray(values) for name, values in x.items()}
    if hasattr(x, "columns") and hasattr(x, "iloc"):
        names = [str(name) for name in x.columns]
        if len(set(names)) < len(names):
            raise DataError(f"two columns are called {Counter(names).most_common(1)[0][0]!r}; give each its own name")
        return {name: x.iloc[:, place].to_numpy() for place, name in enumerate(names)}
    return np.asarray(x)


def read_rows(card: ModelCard, given: Given, where: str, tally: Tally) -> Tensor:
    """The rows as the network reads them; ``where`` they come from is for messages."""
    values = _numbers(card, given, where, tally)
    tally.rows += len(values)
    if values.size == 0:
        return torch.zeros(0, *card.facts.shape, dtype=card.dtype)
    _refuse_infinite(card, values, where)
    values = _filled(card, values, where, tally)
    rows = torch.from_numpy(np.ascontiguousarray(values))
    if card.x_scale is not None:
        wide = rows.reshape(len(rows), -1, card.x_scale.shift.shape[1])
        rows = (wide - card.x_scale.shift) / card.x_scale.factor
    return rows.reshape(len(rows), *card.facts.shape).to(card.dtype)


def _numbers(card: ModelCard, given: Given, where: str, tally: Tally) -> npt.NDArray[np.float64]:
    """One number for each number of a row, in its own units, NaN for what is missing."""
    shape, encoding = card.facts.shape, card.encoding
    if not isinstance(given, Mapping):
        if encoding is not None and given.ndim == 2 and given.dtype.kind not in "biuf":
            if given.shape[1] != len(encoding.columns):
                raise DataError(
                    f"{where} has {given.shape[1]} columns; the model reads {len(encoding.columns)}: "
                    f"{_some([column.name for column in encoding.columns])}"
                )
            given = {column.name: given[:, place] for place, column in enumerate(encoding.columns)}
        else:
            return _array(given, shape, where)
    if encoding is not None and len(shape) == 1 and not _holds_rows(given, [c.name for c in encoding.columns]):
        _refuse_uneven(given, where)
        numbers = encoding.encode(given, where)
        tally.unknown.update(encoding.unknown(given))
        unread = [name for name in given if name not in {column.name for column in encoding.columns}]
        if unread:
            tally.said[f"columns that the model does not read: {_some(unread)}"] = None
        return numbers
    if ROWS in given and given[ROWS].ndim > 1:
        return _array(given[ROWS], shape, f"{where}: {ROWS}")
    size = math.prod(shape)
    if len(shape) != 2 and len(given) == size and all(v.ndim == 1 and v.dtype.kind in "biuf" for v in given.values()):
        tally.said[f"nothing is known of columns: the {size} of {where} are read in their order"] = None
        return np.column_stack([values.astype(np.float64) for values in given.values()])
    raise DataError(
        f"{where} has the columns {_some(list(given))}, but the model reads rows of shape {shape} whose columns have "
        f"no names; give an .npz file with an array {ROWS} of shape (rows, {', '.join(map(str, shape))})"
    )


def _holds_rows(given: Mapping[str, Array], columns: Sequence[str]) -> bool:
    """Whether it is an npz file with the rows as one array, and not with the columns."""
    return ROWS not in columns and ROWS in given and given[ROWS].ndim > 1


def _array(values: Array, shape: tuple[int, ...], where: str) -> npt.NDArray[np.float64]:
    if values.dtype.kind not in "biuf":
        raise DataError(f"{where} holds {values.dtype}, not numbers; give the columns by their names, as a data frame")
    if values.ndim < 1 or values.shape[1:] not in (shape, (math.prod(shape),)):
        raise DataError(
            f"{where} has shape {values.shape}; the model reads rows of shape {shape}: give an array of shape "
            f"(rows, {', '.join(map(str, shape))})"
        )
    return values.astype(np.float64)


def _refuse_uneven(given: Mapping[str, Array], where: str) -> None:
    lengths = {name: len(values) if values.ndim else 1 for name, values in given.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"{where} has columns of different lengths ({_counted(lengths)}); give each row all of them")


def _refuse_infinite(card: ModelCard, values: npt.NDArray[np.float64], where: str) -> None:
    wrong = np.isinf(values)
    if wrong.any():
        row, *place = np.argwhere(wrong)[0].tolist()
        raise DataError(f"{where}: {_name(card, values, place)} is infinite in row {row + 1}; mend or drop such rows")


def _filled(card: ModelCard, values: npt.NDArray[np.float64], where: str, tally: Tally) -> npt.NDArray[np.float64]:
    """With something in the place of what is missing, which is counted."""
    absent = np.isnan(values)
    if not absent.any():
        return values
    if card.fill is None:
        row, *place = np.argwhere(absent)[0].tolist()
        raise DataError(
            f"{where}: {_name(card, values, place)} is missing in row {row + 1}, and nothing is known that could stand "
            "in for it; fill or drop such rows"
        )
    wide, lacks = (part.reshape(len(values), -1, card.fill.shape[1]) for part in (values, absent))
    counts = lacks.sum((0, 1))
    names = (
        card.facts.features if len(card.facts.features) == len(counts) else [f"number {k}" for k in range(len(counts))]
    )
    tally.missing.update({str(names[k]): int(counts[k]) for k in np.flatnonzero(counts)})
    return np.where(lacks, card.fill[0].numpy(), wide).reshape(values.shape)


def _name(card: ModelCard, values: Array, place: list[int]) -> str:
    """What one number of a row is called."""
    names = card.facts.features
    if names and place and len(names) == values.shape[-1]:
        return f"column {names[place[-1]]!r}"
    return f"the number at {tuple(place)}"


def _counted(counts: Mapping[str, int]) -> str:
    listed = [f"{name} ({count:,})" for name, count in counts.items()]
    return _some(listed)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
