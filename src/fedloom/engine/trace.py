"""A file that says when each client is there: a CSV table with the columns client, start and end, in seconds."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedloom.errors import DataError, Unfit

COLUMNS = ("client", "start", "end")
Interval = tuple[float, float]


def read_trace(
    path: str | Path, clients: int, names: Sequence[str] | None = None, repeats: float | None = None
) -> dict[int, list[Interval]]:
    """For each client in the file the intervals in which it is there: in order, and with a gap between any two.

    A client is called by its name; where no name is a whole number, its id will do as well. With ``repeats`` the trace
    begins again after so many seconds, and must end by then.
    """
    path = Path(path)
    known = _known(clients, names)
    found: dict[int, list[Interval]] = {}
    for line, (client, *ends) in _lines(path):
        place = f"{path}:{line}"
        if client not in known:
            raise DataError(f"{place}: {_stranger(client, known, clients)}")
        found.setdefault(known[client], []).append(_interval(place, ends, repeats))
    if not found:
        raise DataError(f"{path} has no line below its header; give one for each time that a client is there")
    return {client: _merged(intervals) for client, intervals in sorted(found.items())}


def numbered(called: Sequence[int | str], clients: int, names: Sequence[str] | None = None) -> list[int]:
    """The numbers of the clients that always drop out, who are called by name or by number, as in a trace."""
    known = _known(clients, names)
    strangers = [client for client in called if str(client) not in known]
    if strangers:
        what = f"cannot be: {_stranger(str(strangers[0]), known, clients)}"
        raise Unfit(f"fleet.drops = {list(called)!r} {what}", what)
    return sorted({known[str(client)] for client in called})


def _stranger(client: str, known: dict[str, int], clients: int) -> str:
    return f"there is no client {client!r}; the {clients} clients are {_some(known)}"


def _known(clients: int, names: Sequence[str] | None) -> dict[str, int]:
    """Every word that stands for a client."""
    ids = {str(client): client for client in range(clients)}
    if names is None:
        return ids
    called = {name: client for client, name in enumerate(names)}
    return called if any(name.isdecimal() for name in names) else called | ids


def _some(known: dict[str, int]) -> str:
    words = list(known)
    return ", ".join(words if len(words) <= 4 else [*words[:3], "…", words[-1]])


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The number of each line below the header, and its client, start and end."""
    with _readable(path), open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            missing = [name for name in COLUMNS if name not in header]
            if missing:
                raise DataError(f"{path}:1: the header has no {missing[0]!r}; begin with the line {','.join(COLUMNS)}")
            places = [header.index(name) for name in COLUMNS]
            for row in reader:
                if len(row) not in (0, len(header)):
                    raise DataError(
                        f"{path}:{reader.line_num}: {len(row)} values where the header has {len(header)} columns; "
                        "give one for each"
                    )
                if row:
                    yield reader.line_num, [row[place].strip() for place in places]
        except csv.Error as error:
            raise DataError(f"{path}:{reader.line_num}: no CSV ({error}); save the table as plain CSV") from None


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path} is not there; check the path of the trace") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is no text in UTF-8; save the table as plain CSV") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check the path of the trace") from error


def _interval(place: str, ends: list[str], repeats: float | None) -> Interval:
    try:
        start, end = (float(number) for number in ends)
    except ValueError:
        start, end = math.nan, math.nan
    if math.isnan(start) or math.isnan(end):
        raise DataError(f"{place}: start {ends[0]!r} and end {ends[1]!r} should be numbers of seconds")
    if not 0 <= start < end:
        raise DataError(f"{place}: from {ends[0]} to {ends[1]} is no time span; start at 0 or later and end after it")
    if repeats is not None and end > repeats:
        raise DataError(
            f"{place}: ends at {ends[1]}, but the trace begins again after {repeats:g}; raise fleet.trace_repeats, or "
            "cut the line in two"
        )
    return start, end


def _merged(intervals: list[Interval]) -> list[Interval]:
    """Those that overlap or touch as one."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined
