"""Cells of columns as numbers, names of classes and times, or a DataError that says where they are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.data.arrays import Array, is_whole
from fedloom.errors import DataError
from fedloom.federation.encoding import Encoding


def finite_only(path: Path, encoding: Encoding, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Encoded cells, of which none is infinite."""
    wrong = np.isinf(values)
    if wrong.any():
        row, place = np.argwhere(wrong)[0].tolist()
        raise DataError(
            f"{path}: column {encoding.names[place]!r} has no finite value in row {row + 1}; fill or drop such rows"
        )
    return values


def texts(labels: Array) -> Array:
    """Labels as the names of their classes: 3 and 3.0 are "3"."""
    whole = labels.dtype.kind == "f" and bool(is_whole(labels).all())
    return (labels.astype(np.int64) if whole else labels).astype(str)


def matrix(path: Path, columns: Mapping[str, Array], chosen: Sequence[str], finite: bool) -> Array:
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


def seconds(path: Path, column: str, values: Array) -> npt.NDArray[np.float64]:
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
