"""The history of a run: one row a round, kept as JSON lines that can be appended to and read at any time."""

from __future__ import annotations

import collections
import functools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fedloom.errors import RunError
from fedloom.storage.closing import Closing
from fedloom.storage.files import guarded, loads, plain, replacing
from fedloom.storage.rows import Row as Row
from fedloom.storage.rows import Rows
from fedloom.storage.seal import CHAIN, link, unlinked

if TYPE_CHECKING:
    import pandas as pd

_DIARY = ("jobs", "away")
"""What single clients did, which the frame leaves out."""


class History(Closing):
    """The rows of a run: in memory or, given a path, in a file that always is valid JSON line by line, and there alone.

    Numbers that JSON lacks (NaN, infinities) become null, in memory as in the file, and NaN in the data frame. An
    append is one write of a whole line; only ``flush`` waits for the disk. ``notes`` tells what was recovered.

    In the file each row has a link of a chain that begins with the name of the ``run`` and follows from all rows before
    it; ``fault`` says which line does not.
    """

    def __init__(self, path: Path | None = None, run: str = "") -> None:
        self.path, self.run = path, run
        self.rows: list[Row] | Rows = [] if path is None else Rows(path, _known_row)
        self.notes: list[str] = []
        self.fault: str | None = None
        self._file: BinaryIO | None = None
        self._head, self._whole = run, True
        if path is not None and path.exists():
            self._read(path)
            if self.fault is None and not self._whole:
                self._rewrite(path, self.rows)
            else:
                self._head = self.head()
        self._open()

    @staticmethod
    def read(path: Path, run: str = "") -> History:
        """The history in a file, to look at: the file is neither changed nor kept open, its run may be going on."""
        history = History(run=run)
        history._read(path)
        history.rows = history.kept()
        return history

    @staticmethod
    def write(path: Path, rows: Iterable[Row]) -> None:
        """Rows that are all known already as a file, all or nothing."""
        with replacing(path) as file:
            head = ""
            for row in rows:
                line, head = _line(plain(row, f"history row of round {row.get('round')}"), head)
                file.write(line)

    @property
    def chain(self) -> str:
        """The last link: it stands for all rows, and for the run."""
        return self._head

    def head(self, completed: float = math.inf) -> str:
        """The chain of the rows up to so many rounds: another for other rows, or for another run."""
        rows = (row for row in self.rows if row["round"] <= completed)
        return functools.reduce(link, rows, self.run)

    def kept(self) -> list[Row] | Rows:
        """The rows for one who looks at them when this run is over, and perhaps another is in the folder."""
        return self.rows.kept() if isinstance(self.rows, Rows) else self.rows

    def mend(self) -> None:
        """Take the rows as they are, and chain them anew."""
        self._keep(lambda row: True)

    def _keep(self, wanted: Callable[[Row], bool]) -> None:
        """Leave out the rows that are not wanted, and chain the others anew."""
        rows = filter(wanted, self.rows)
        if self.path is None:
            self.rows = list(rows)
            return
        self.close()
        self._rewrite(self.path, rows)
        self.fault = None
        self._open()

    def _read(self, path: Path) -> None:
        """Find the rows in a file, and what is wrong with them."""
        self.rows, links = Rows(path, _known_row), self._links(path)
        if (line := unlinked(links, self.run or None)) is not None:
            why = "it was changed, or is another run's"
            self.fault = f"{path}, line {line} does not follow from what is before it: {why}"
        collections.deque(links, maxlen=0)  # the lines after that one

    def _links(self, path: Path) -> Iterator[tuple[Row, str | None]]:
        """Each row of a file with its link. A last line that a kill has cut off is noted; else damage is an error."""
        assert isinstance(self.rows, Rows)
        if not path.is_file():
            raise RunError(f"{path} is missing: no round of this run was recorded, or the folder is no run.")
        end = 0
        with guarded(path), open(path, "rb") as file:
            for line in file:
                row = _row(line)
                if row is None:
                    self._whole = False
                    self.notes = [_cut_off(path, len(self.rows) + 1, line, file.readline())]
                    return
                start, end = end, end + len(line)
                found, self._whole = row.pop(CHAIN, None), line.endswith(b"\n")
                self.rows.add(start, end)
                yield row, found

    def append(self, row: Row) -> None:
        """Adds the row of a round; ``row["round"]`` is the number of rounds completed."""
        row = plain(row, f"history row of round {row.get('round')}")
        if not _is_row(row):
            raise RunError(f"A history row needs its number of rounds as 'round'; it has {sorted(row)}.")
        if isinstance(self.rows, list):
            self.rows.append(row)
            return
        if self._file is None:
            raise RunError(f"The history {self.rows.path} is closed: no row can be added to it.")
        line, head = _line(row, self._head)
        start = _write_line(self._file, self.rows.path, line)
        self._head = head
        self.rows.add(start, start + len(line))

    def flush(self) -> None:
        """Brings all rows to the disk; called before a checkpoint, which counts on them."""
        if self._file is not None and self.path is not None:
            with guarded(self.path):
                os.fsync(self._file.fileno())

    def truncate(self, completed: int) -> None:
        """Removes the rows of later rounds, which a resumed run computes again; a gap before them is noted.

        With -1 all rows go: the run starts from the beginning.
        """
        last, later = None, False
        for row in self.rows:
            if row["round"] <= completed:
                last = row["round"]
            else:
                later = True
        if later:
            self._keep(lambda row: bool(row["round"] <= completed))
        if completed >= 0 and last != completed:
            self.notes.append(
                f"The history {self.path or ''} ends at round {last}, the checkpoint at round {completed}: "
                "the rows between them are lost, the run itself is not affected."
            )

    def frame(self) -> pd.DataFrame:
        """The rows as a data frame."""
        return as_frame(self.rows)

    def close(self) -> None:
        """Closes the file; the rows stay."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __len__(self) -> int:
        return len(self.rows)

    def _open(self) -> None:
        if self.path is not None:
            with guarded(self.path):
                self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115

    def _rewrite(self, path: Path, rows: Iterable[Row]) -> None:
        """Write these rows, which may come from the file itself, in its place."""
        found, head, end = Rows(path, _known_row), self.run, 0
        with replacing(path) as file:
            for row in rows:
                line, head = _line(row, head)
                file.write(line)
                found.add(end, end + len(line))
                end += len(line)
        self.rows, self._head = found, head


def _line(row: Row, head: str) -> tuple[bytes, str]:
    """A row as it stands in the file with its link of the chain, ``head`` being the one before; and that link."""
    head = link(head, row)
    return json.dumps({**row, CHAIN: head}, allow_nan=False).encode() + b"\n", head


def _write_line(file: BinaryIO, path: Path, line: bytes) -> int:
    """Writes a whole line or nothing, and says where: a part that a full disk has let through is taken back."""
    with guarded(path, "All earlier rows are in it."):
        end = os.fstat(file.fileno()).st_size
        try:
            while line:
                line = line[file.write(line) :]
        except OSError:
            file.truncate(end)
            raise
    return end


def _cut_off(path: Path, number: int, line: bytes, next_line: bytes) -> str:
    """What to say of a line that is no row: a kill can only have cut off the last, anything else is damage."""
    if not next_line:
        return f"{path}: line {number}, the last, was cut off and is dropped."
    text = line.rstrip(b"\n")[:60].decode(errors="replace")
    raise RunError(
        f"{path}, line {number} is damaged: {text!r} is no history row. "
        "Remove the line, or restore the file from a copy."
    )


def _row(line: bytes) -> Row | None:
    try:
        row = loads(line)
    except ValueError:
        return None
    return plain(row, "row") if _is_row(row) else None


def _known_row(line: bytes) -> Row:
    """A line that was found to be a row before."""
    row = _row(line)
    if row is None:
        raise RunError(f"A line of a history is damaged by now: {line[:60].decode(errors='replace')!r} is no row.")
    row.pop(CHAIN, None)
    return row


def _is_row(row: Any) -> bool:
    return isinstance(row, dict) and type(row.get("round")) is int


def as_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """The rows as a pandas frame with flat columns.

    A metric's weighted mean is "accuracy", its spread "accuracy.mean", "accuracy.std", …; a further evaluation NAME has
    "NAME.accuracy" and so on; a method's own measures are "measures.NAME". What single clients did is left to the rows.
    """
    import pandas as pd

    columns: dict[str, list[Any]] = {}  # and not a table for each row, which takes ten times the memory
    for count, row in enumerate(rows):
        flat = {_column(path): value for path, value in _numbers(row) if path[0] not in _DIARY}
        columns |= {name: [math.nan] * count for name in flat if name not in columns}
        for name, values in columns.items():
            values.append(flat.get(name, math.nan))
    return pd.DataFrame(columns)


def _column(path: tuple[str, ...]) -> str:
    """What a number of a row is called in the frame: a metric's weighted mean by the metric alone."""
    if path[0] in ("evaluation", "evaluations"):
        path = path[1:-1] if path[-1] == "weighted" else path[1:]
    return ".".join(path)


def _numbers(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Whatever is no table, with the keys that lead to it."""
    if not isinstance(value, dict):
        yield path, math.nan if value is None else value
        return
    for key, item in value.items():
        yield from _numbers(item, (*path, key))
