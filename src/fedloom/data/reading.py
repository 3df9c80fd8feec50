"""The columns of a data file that may be anybody's: nothing is unpickled, and no more is read than the machine holds.

What a file says of its own size is looked at before anything is allocated by it, and what is compressed is counted
while it is unpacked. Whatever a reader of another library finds wrong becomes a DataError.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import lzma
import math
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedloom.capacity import memory, refuse_larger
from fedloom.data.arrays import Array
from fedloom.errors import DataError, FedloomError

_OPENERS: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
CELL = 16
"""Bytes that a number of a table takes: 8 as it is read, 8 as a feature."""
_MOST_COLUMNS = 100_000
_LONGEST = 64_000_000
"""Bytes of the first line that are looked at for names of columns."""
_FEWER = "Give a part of its rows or columns"


def read_columns(path: Path) -> dict[str, Array]:
    """All columns of a file by name."""
    if not path.is_file():
        raise DataError(f"{path} is not there; check the path")
    reader = _reader(path)
    try:
        return reader(path)
    except FedloomError:
        raise
    except ImportError as error:
        raise DataError(f"{path}: Parquet files need pyarrow; install fedloom[parquet]") from error
    except Exception as error:  # pandas, pyarrow, numpy and zipfile raise whatever a damaged file leads them to
        kind = "".join(path.suffixes[-2:]) if is_csv(path) else path.suffix
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{path} cannot be read ({why}); is it a whole {kind} file?") from error


def read_parts(path: Path, rows: int) -> Iterator[dict[str, Array]]:
    """The same, so many rows at a time where the file is a CSV, which then may be of any length."""
    if not path.is_file() or not is_csv(path):
        yield read_columns(path)
        return
    import pandas

    try:
        with _opened(path) as file:
            _refuse_columns(path, file.readline(_LONGEST).count(b",") + 1)
        with _opened(path) as file, pandas.read_csv(file, index_col=False, chunksize=rows, low_memory=False) as parts:
            while (part := _next(parts, path)) is not None:
                yield part
    except FedloomError:
        raise
    except Exception as error:  # as above
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{path} cannot be read ({why}); is it a whole .csv file?") from error


def _next(parts: Iterator[Any], path: Path) -> dict[str, Array] | None:
    import pandas

    with warnings.catch_warnings():
        warnings.simplefilter("error", pandas.errors.ParserWarning)
        try:
            part = next(parts, None)
        except pandas.errors.ParserWarning:
            raise DataError(
                f"{path}: its rows have more cells than its first line has names; name each column"
            ) from None
    return None if part is None else _of_frame(part)


def is_csv(path: Path) -> bool:
    """Whether a file is a CSV, as its name says, compressed or not."""
    return path.suffix == ".csv" or (path.suffixes[-2:-1] == [".csv"] and path.suffix in _OPENERS)


def _reader(path: Path) -> Callable[[Path], dict[str, Array]]:
    if path.suffix == ".npz":
        return _npz
    if is_csv(path):
        return _csv
    if path.suffix in (".parquet", ".pq"):
        return _parquet
    raise DataError(
        f"{path} is neither .csv (or .csv.gz, .csv.bz2, .csv.xz), .parquet nor .npz; save it as one of these"
    )


def _csv(path: Path) -> dict[str, Array]:
    import pandas

    with _opened(path) as file, warnings.catch_warnings():
        warnings.simplefilter("error", pandas.errors.ParserWarning)
        try:
            return _of_frame(pandas.read_csv(io.BufferedReader(_Counted(path, file), 1 << 20), index_col=False))
        except pandas.errors.ParserWarning:
            raise DataError(
                f"{path}: its rows have more cells than its first line has names; name each column"
            ) from None


def _parquet(path: Path) -> dict[str, Array]:
    import pandas
    import pyarrow.parquet

    told = pyarrow.parquet.read_metadata(path)
    sizes = [told.row_group(group).total_byte_size for group in range(told.num_row_groups)]
    if told.num_rows < 0 or min(sizes, default=0) < 0:
        raise DataError(f"{path} cannot be: it says that it has {told.num_rows} rows; it was damaged or forged")
    _refuse_columns(path, told.num_columns)
    refuse_larger(max(sum(sizes), told.num_rows * told.num_columns * CELL), str(path), f"{_FEWER}.", DataError)
    return _of_frame(pandas.read_parquet(path))


def _of_frame(frame: Any) -> dict[str, Array]:
    names = [str(name) for name in frame.columns]
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise DataError(f"two columns are called {twice!r}; give each a name of its own")
    return {name: _cells(frame.iloc[:, place].to_numpy()) for place, name in enumerate(names)}


def _cells(values: Array) -> Array:
    """As they are, but lengths of time in seconds."""
    return values / np.timedelta64(1, "s") if values.dtype.kind == "m" else values


def _npz(path: Path) -> dict[str, Array]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        refuse_larger(sum(member.file_size for member in members), str(path), f"{_FEWER}.", DataError)
        found: dict[str, Array] = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            where = f"{path}: its member {member.filename!r}"
            if name == member.filename:
                raise DataError(f"{where} is no array (.npy); save the file with numpy.savez")
            if member.flag_bits & 1:
                raise DataError(f"{where} is encrypted; save the file without a password")
            if name in found:
                raise DataError(f"{where} is there twice; keep one of them")
            with archive.open(member) as file:
                _check_header(where, file, member.file_size)
            with archive.open(member) as file:
                found[name] = np.lib.format.read_array(file, allow_pickle=False)
    return found


def _check_header(where: str, file: Any, size: int) -> None:
    """Refuses an array that the file cannot hold: numpy would allocate what the header says before it reads."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise DataError(f"{where} is of a format {version} for arrays with named fields; save plain numbers or texts")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise DataError(
            f"{where} cannot be read: it holds Python objects, which are never unpickled; save plain numbers or texts"
        )
    if dtype.itemsize == 0 or dtype.kind == "V":
        raise DataError(f"{where} holds {dtype}, which is neither numbers nor texts; save it as one of these")
    needed = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or needed > size:
        raise DataError(f"{where} says that it has shape {shape}, which takes {needed:,} bytes; it has {size:,}")


class _Counted(io.RawIOBase):
    """The text of a CSV file, refused as soon as its cells are more than the machine holds, or its columns too many.

    How much a compressed file will be is not known before it is unpacked.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self.file = path, file
        self.needed, self.columns, self.lines = 0, 1, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """The next bytes."""
        data = self.file.read(len(buffer))
        commas, lines = data.count(b","), data.count(b"\n")
        if not self.lines:
            self.columns += data.partition(b"\n")[0].count(b",")
            _refuse_columns(self.path, self.columns)
        self.lines += lines
        self.needed += CELL * (commas + lines)
        if self.needed > memory():
            refuse_larger(self.needed, f"{self.path}, as far as it was read", f"{_FEWER}.", DataError)
        buffer[: len(data)] = data
        return len(data)


def _refuse_columns(path: Path, columns: int) -> None:
    if columns > _MOST_COLUMNS:
        raise DataError(
            f"{path} has {columns:,} columns or more; a table can have {_MOST_COLUMNS:,}: save the features as one "
            "array x of an .npz file"
        )


def _opened(path: Path) -> Any:
    return _OPENERS[path.suffix](path) if path.suffix in _OPENERS else open(path, "rb")


def almost_numbers(path: Path, values: Array) -> tuple[str, str] | None:
    """What keeps a column of texts from being numbers, if most of its cells are: the first that is none, and where.

    None for a column that really holds texts.
    """
    if values.dtype.kind != "O" or values.ndim != 1 or len(values) == 0:
        return None
    import pandas

    there = ~np.asarray(pandas.isna(values))
    numbers = ~np.asarray(pandas.isna(pandas.to_numeric(pandas.Series(values, dtype=object), errors="coerce")))
    wrong = np.flatnonzero(there & ~numbers)
    if len(wrong) == 0 or 2 * int(numbers.sum()) < int(there.sum()):
        return None
    row = int(wrong[0])
    where = f"line {_line(path, row)}" if is_csv(path) else f"row {row + 1}"
    others = f" (and in {len(wrong) - 1:,} more)" if len(wrong) > 1 else ""
    return str(values[row])[:40], where + others


def _line(path: Path, row: int) -> int:
    """The line of a CSV file in which a row stands: cells may go on over lines, and empty lines are no rows."""
    try:
        with _opened(path) as file:
            reader = csv.reader(io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline=""))
            return next(itertools.islice((reader.line_num for cells in reader if cells), row + 1, None), row + 2)
    except csv.Error:
        return row + 2
