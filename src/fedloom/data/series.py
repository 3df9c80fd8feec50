"""What sensor series share: gaps that are filled from the past, and windows over the last so many steps."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.data.published import damaged
from fedloom.data.sizes import Floats, Whole
from fedloom.data.table import Table
from fedloom.errors import DataError
from fedloom.federation.data import Task

if TYPE_CHECKING:
    from pandas import DataFrame

Numbers = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Series:
    """What one client recorded, step by step.

    ``targets`` and ``time`` of a step are those of the window that ends with it: what is to be said of such a window,
    and when that becomes known, in seconds.
    """

    name: str
    inputs: Numbers
    targets: Numbers
    time: Floats


@dataclass(frozen=True)
class Windows:
    """Windows of ``length`` steps, one every ``stride`` steps, of a client at most the first ``limit``."""

    length: int
    stride: int = 1
    limit: int | None = None

    def ends(self, usable: npt.NDArray[np.bool_]) -> Whole:
        """The last step of each window, among the steps that are usable as such."""
        ends = np.arange(self.length - 1, len(usable), self.stride)
        return ends[usable[ends]][: self.limit]

    def of(self, values: Numbers, ends: Whole) -> Tensor:
        """The steps up to each end, shape (ends, length, columns); a window of one step is a plain row."""
        if self.length == 1:
            return torch.from_numpy(values[ends])
        return torch.from_numpy(values[ends[:, None] + np.arange(1 - self.length, 1)])


def table_of(name: str, task: Task, series: Sequence[Series], windows: Windows, **parts: Any) -> Table:
    """The windows of all series, none of which reaches into another; ``parts`` are further fields of the table.

    A regression's targets must all be known, so windows to which one is missing are left out.
    """
    names = [one.name for one in series]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{name}: two files are of {twice}; leave one of them out")
    pairs = [(one, windows.ends(_usable(one, task))) for one in series]
    for one, ends in pairs:
        if len(ends) == 0:
            raise DataError(
                f"{name}: {one.name} has not one window of {windows.length} steps; choose a smaller window, or leave "
                "its file out"
            )
    return Table(
        name,
        torch.cat([windows.of(one.inputs, ends) for one, ends in pairs]),
        torch.cat([torch.from_numpy(one.targets[ends]) for one, ends in pairs]),
        task,
        groups=torch.repeat_interleave(torch.arange(len(pairs)), torch.tensor([len(ends) for _, ends in pairs])),
        group_names=tuple(names),
        time=torch.cat([torch.from_numpy(one.time[ends]) for one, ends in pairs]),
        series=True,
        **parts,
    )


def _usable(one: Series, task: Task) -> npt.NDArray[np.bool_]:
    """Which steps a window may end with."""
    if task != "regression":
        return np.ones(len(one.time), dtype=bool)
    return np.asarray(~np.isnan(one.targets).any(axis=1))


def filled_forward(values: Numbers) -> Numbers:
    """Each column's missing values (NaN) are its last known one; those before the first known one stay missing."""
    place = np.where(np.isnan(values), 0, np.arange(len(values))[:, None])
    filled: Numbers = np.take_along_axis(values, np.maximum.accumulate(place, axis=0), axis=0)
    return filled


def read_csv(path: Path, data: bytes, last: str) -> DataFrame:
    """A published CSV; every line must go on to its ``last`` column, for where one does not the file was cut off."""
    import pandas

    try:
        frame = pandas.read_csv(io.BytesIO(data), na_values=["NA"], low_memory=False)
    except ValueError as error:  # what pandas raises is one, and so is a text that is not UTF-8
        raise damaged(path, f"it cannot be read as CSV ({str(error).strip()})") from error
    if last not in frame.columns:
        raise damaged(path, f"its header has no column {last!r}")
    check_lines(path, frame[last].isna().to_numpy(), f"ends before its column {last!r}")
    if len(frame) == 0:
        raise damaged(path, "it has a header and no rows")
    return frame


def check_lines(path: Path, wrong: npt.NDArray[np.bool_], what: str) -> None:
    """An error if any row of a published CSV is wrong; ``what`` says so of its line, the header being the first."""
    if wrong.any():
        raise damaged(path, f"line {int(wrong.argmax()) + 2} {what}")


def read_numbers(path: Path, frame: DataFrame, columns: Sequence[str]) -> Floats:
    """Columns of a published CSV as numbers, NaN where something is missing."""
    for column in columns:
        if column not in frame.columns:
            raise damaged(path, f"its header has no column {column!r}")
        if frame[column].dtype.kind not in "biuf":
            raise damaged(path, f"its column {column!r} has something that is no number")
    values: Floats = frame[list(columns)].to_numpy(dtype=np.float64)
    for column, number in zip(columns, values.T, strict=True):
        check_lines(path, np.isinf(number), f"has infinity in its column {column!r}")
    return values
