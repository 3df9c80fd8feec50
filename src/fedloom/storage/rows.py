"""The rows of a history that stay in their file: a sequence that reads what it is asked for.

A run of a hundred thousand rounds has hundreds of megabytes of rows. Of those only the place of each line is in memory.
"""

from __future__ import annotations

import io
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, overload

from fedloom.errors import RunError
from fedloom.storage.files import guarded

Row = dict[str, Any]
Parse = Callable[[bytes], Row]
SMALL = 2**20
"""A file of so many bytes is kept in memory by what has to outlast it."""


class Rows(Sequence[Row]):
    """Lines of a file as rows: it has a length, indices and slices (which are lists), and equals a list of its rows.

    ``json`` wants a list: ``json.dumps(list(rows))``. A copy, or what is unpickled, is a list.
    """

    def __init__(self, path: Path, parse: Parse) -> None:
        self.path = path
        self._parse = parse
        self._starts, self._ends = array("q"), array("q")
        self._content: bytes | None = None
        self._known: tuple[int, int] | None = None

    def add(self, start: int, end: int) -> None:
        """One more row: where its line begins and ends."""
        self._starts.append(start)
        self._ends.append(end)

    def kept(self) -> Rows:
        """These rows, for one who looks at them after others may have written into the folder, or removed it.

        Few rows are in memory from now on. Many are still read from the file, and no other is taken for it.
        """
        with guarded(self.path), open(self.path, "rb") as file:
            length = max(self._ends, default=0)
            found = self.ordered(range(len(self)))
            if length <= SMALL:
                found._content = file.read(length)
            else:
                found._known = _identity(file)
        return found

    def ordered(self, places: Iterable[int]) -> Rows:
        """Some of the rows, in this order."""
        found = Rows(self.path, self._parse)
        for at in places:
            found.add(self._starts[at], self._ends[at])
        return found

    def _file(self) -> BinaryIO:
        if self._content is not None:
            return io.BytesIO(self._content)
        with guarded(self.path):
            file = open(self.path, "rb")  # noqa: SIM115
        if self._known not in (None, _identity(file)):
            file.close()
            raise RunError(f"{self.path} is another file by now, so its rows of before cannot be read any more")
        return file

    def _rows(self, places: Iterable[int]) -> Iterator[Row]:
        with self._file() as file:
            for at in places:
                file.seek(self._starts[at])
                yield self._parse(file.read(self._ends[at] - self._starts[at]))

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Row]:
        return self._rows(range(len(self)))

    def __reversed__(self) -> Iterator[Row]:
        return self._rows(range(len(self) - 1, -1, -1))

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        places = range(len(self))[index]  # which knows of negative numbers, steps and an IndexError
        return list(self._rows(places)) if isinstance(places, range) else next(self._rows([places]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rows | list | tuple):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self):,} rows of {self.path}>"

    def __reduce__(self) -> tuple[type[list[Row]], tuple[list[Row]]]:
        return list, (list(self),)


def _identity(file: BinaryIO) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino
