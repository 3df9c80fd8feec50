"""The history of a run: one row a round, kept as JSON lines that can be appended to and read at any time."""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fedloom.errors import RunError
from fedloom.storage.closing import Closing
from fedloom.storage.files import guarded, plain, replacing
from fedloom.storage.seal import CHAIN, link, unlinked

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]

_DIARY = ("jobs", "away")
"""What single clients did, which the frame leaves out."""


class History(Closing):
    """The rows of a run, in memory and, given a path, in a file that always is valid JSON line by line.

    Numbers that JSON lacks (NaN, infinities) become null, in memory as in the file, and NaN in the data frame. An
    append is one write of a whole line; only ``flush`` waits for the disk. ``notes`` tells what was recovered.

    In the file each row has a link of a chain that begins with the name of the ``run`` and follows from all rows before
    it; ``fault`` says which line does not.
    """

    def __init__(self, path: Path | None = None, run: str = "") -> None:
        self.path, self.run = path, run
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self.fault: str | None = None
        self._file: BinaryIO | None = None
        if path is not None and path.exists():
            content = self._read(path)
            if self.fault is None and (self.notes or content[-1:] not in (b"", b"\n")):
                self._rewrite()
        self._head = self.head()
        self._open()

    @staticmethod
    def read(path: Path, run: str = "") -> History:
        """The history in a file, to look at: the file is neither changed nor kept open, its run may be going on."""
        history = History(run=run)
        history._read(path)
        return history

    @staticmethod
    def write(path: Path, rows: list[Row]) -> None:
        """Rows that are all known already as a file, all or nothing."""
        with replacing(path) as file:
            file.write(_lines([plain(row, f"history row of round {row.get('round')}") for row in rows], ""))

    @property
    def chain(self) -> str:
        """The last link: it stands for all rows, and for the run."""
        return self._head

    def head(self, completed: float = math.inf) -> str:
        """The chain of the rows up to so many rounds: another for other rows, or for another run."""
        rows = (row for row in self.rows if row["round"] <= completed)
        return functools.reduce(link, rows, self.run)

    def mend(self) -> None:
        """Take the rows as they are, and chain them anew."""
        self.close()
        self._rewrite()
        self._head, self.fault = self.head(), None
        self._open()

    def _read(self, path: Path) -> bytes:
        content = _content(path)
        self.rows, links, self.notes = _parse(content, path)
        if (line := unlinked(self.rows, links, self.run or None)) is not None:
            why = "it was changed, or is another run's"
            self.fault = f"{path}, line {line} does not follow from what is before it: {why}"
        return content

    def append(self, row: Row) -> None:
        """Adds the row of a round; ``row["round"]`` is the number of rounds completed."""
        row = plain(row, f"history row of round {row.get('round')}")
        if not _is_row(row):
            raise RunError(f"A history row needs its number of rounds as 'round'; it has {sorted(row)}.")
        if self._file is not None and self.path is not None:
            _write_line(self._file, self.path, _lines([row], self._head))
            self._head = link(self._head, row)
        self.rows.append(row)

    def flush(self) -> None:
        """Brings all rows to the disk; called before a checkpoint, which counts on them."""
        if self._file is not None and self.path is not None:
            with guarded(self.path):
                os.fsync(self._file.fileno())

    def truncate(self, completed: int) -> None:
        """Removes the rows of later rounds, which a resumed run computes again; a gap before them is noted.

        With -1 all rows go: the run starts from the beginning.
        """
        rows = [row for row in self.rows if row["round"] <= completed]
        if len(rows) < len(self.rows):
            self.rows = rows
            self.mend()
        last = rows[-1]["round"] if rows else None
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

    def _rewrite(self) -> None:
        if self.path is not None:
            with replacing(self.path) as file:
                file.write(_lines(self.rows, self.run))


def _lines(rows: list[Row], head: str) -> bytes:
    """Rows as they stand in the file, each with its link of the chain, of which ``head`` is what is before."""
    written = []
    for row in rows:
        head = link(head, row)
        written.append(json.dumps({**row, CHAIN: head}, allow_nan=False).encode() + b"\n")
    return b"".join(written)


def _write_line(file: BinaryIO, path: Path, line: bytes) -> None:
    """Writes a whole line or nothing: a part that a full disk has let through is taken back."""
    with guarded(path, "All earlier rows are in it."):
        end = os.fstat(file.fileno()).st_size
        try:
            while line:
                line = line[file.write(line) :]
        except OSError:
            file.truncate(end)
            raise


def _content(path: Path) -> bytes:
    if not path.is_file():
        raise RunError(f"{path} is missing: no round of this run was recorded, or the folder is no run.")
    with guarded(path):
        return path.read_bytes()


def _parse(content: bytes, path: Path) -> tuple[list[Row], list[str | None], list[str]]:
    """The rows of a file, their links, and a note when its last line was cut off by a kill; else damage is an error."""
    rows: list[Row] = []
    links: list[str | None] = []
    lines = content.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    for number, line in enumerate(lines, start=1):
        row = _row(line)
        if row is not None:
            links.append(row.pop(CHAIN, None))
            rows.append(row)
        elif number == len(lines):
            return rows, links, [f"{path}: line {number}, the last, was cut off and is dropped."]
        else:
            raise RunError(
                f"{path}, line {number} is damaged: {line[:60].decode(errors='replace')!r} is no history row. "
                "Remove the line, or restore the file from a copy."
            )
    return rows, links, []


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return plain(row, "row") if _is_row(row) else None


def _is_row(row: Any) -> bool:
    return isinstance(row, dict) and type(row.get("round")) is int


def as_frame(rows: list[Row]) -> pd.DataFrame:
    """The rows as a pandas frame with flat columns.

    A metric's weighted mean is "accuracy", its spread "accuracy.mean", "accuracy.std", …; a further evaluation NAME has
    "NAME.accuracy" and so on; a method's own measures are "measures.NAME". What single clients did is left to the rows.
    """
    import pandas as pd

    flat = ({_column(path): value for path, value in _numbers(row) if path[0] not in _DIARY} for row in rows)
    return pd.DataFrame(list(flat))


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
