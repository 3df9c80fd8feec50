"""Client memories on disk: append-only segment files, of which a list of numbers is the whole index.

A segment is written once and never changed. A client's memory is the one in the highest segment that has it. So the
state of the log is the list of its segments, and a checkpoint that holds the list can be restored as long as these
files exist: they are removed only when no checkpoint on disk can refer to them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.capacity import refuse_larger
from fedloom.errors import RunError
from fedloom.storage import tensorfile
from fedloom.storage.files import guarded, loads, sync_file, sync_folder
from fedloom.storage.records import PLACE, Ints, Layout, Part, Places, grouped
from fedloom.storage.tensors import Bytes

_KIND = "fedloom.memory"
_NAME = re.compile(r"segment-(\d+)\.safetensors")
_PIECE = 4 << 20
_LARGE = 64 << 20


class Source(NamedTuple):
    """Records to be written: whose they are, and how to get a slice of them."""

    layout: Layout
    ids: Ints
    read: Callable[[slice], Bytes]


class Group(NamedTuple):
    """The records of one layout in a segment: rows ``first`` and on, from byte ``start`` of the file."""

    layout: Layout
    first: int
    start: int


class Segment:
    """One file of records, group by group; ``live`` of its rows are up to date."""

    def __init__(self, path: Path, number: int, layouts: list[Layout], counts: list[int], header: tensorfile.Header):
        self.path, self.number = path, number
        self.rows = self.live = sum(counts)
        self.size = path.stat().st_size
        self.fingerprint = int.from_bytes(bytes.fromhex(header.checksum)[:8], "little", signed=True)
        firsts = np.cumsum([0, *counts[:-1]])
        starts = [header.offsets[f"{i}/records"] for i in range(len(layouts))]
        self._groups = [Group(*group) for group in zip(layouts, firsts.tolist(), starts, strict=True)]
        self._firsts = firsts

    @staticmethod
    def write(path: Path, number: int, sources: list[Source]) -> tuple[Segment, Ints]:
        """Writes a new segment; returns it and the client of each of its rows."""
        groups: dict[Layout, list[Source]] = {}
        for source in sources:
            groups.setdefault(source.layout, []).append(source)
        ids = [np.concatenate([source.ids for source in group]) for group in groups.values()]
        counts = [len(group) for group in ids]
        columns = [tensorfile.Column(f"{i}/clients", torch.int64, (count,)) for i, count in enumerate(counts)]
        for i, (layout, count) in enumerate(zip(groups, counts, strict=True)):
            columns.append(tensorfile.Column(f"{i}/records", torch.uint8, (count, layout.width)))
        texts = {"layouts": json.dumps([layout.to_json() for layout in groups]), "counts": json.dumps(counts)}

        def pieces() -> Iterator[npt.NDArray[Any]]:
            yield from ids
            for layout, group in groups.items():
                step = max(1, _PIECE // layout.width)
                for source in group:
                    for start in range(0, len(source.ids), step):
                        yield source.read(slice(start, start + step))

        with open(path, "wb") as file:
            header = tensorfile.write(file, _KIND, columns, pieces(), texts)
        return Segment(path, number, list(groups), counts, header), np.concatenate(ids)

    @staticmethod
    def open(path: Path, number: int, remedy: str) -> tuple[Segment, Ints]:
        """Opens a segment and verifies every byte of it; returns it and the client of each of its rows."""
        header = tensorfile.check(path, _KIND, remedy)
        counts = loads(header.texts["counts"])
        layouts = [Layout.from_json(described) for described in loads(header.texts["layouts"])]
        size = path.stat().st_size
        for i, (count, layout) in enumerate(zip(counts, layouts, strict=True)):
            ends = header.offsets[f"{i}/clients"] + 8 * count, header.offsets[f"{i}/records"] + count * layout.width
            if count < 1 or max(ends) > size:
                raise RunError(f"{path} says that it has {count:,} memories, which it cannot hold. {remedy}")
        found = np.concatenate(
            [np.fromfile(path, np.int64, n, offset=header.offsets[f"{i}/clients"]) for i, n in enumerate(counts)]
        )
        if found.min() < 0:
            raise RunError(f"{path} has the memory of a client {found.min()}, which cannot be. {remedy}")
        refuse_larger(PLACE * (int(found.max()) + 1), f"{path} of a client {found.max():,}", remedy, RunError)
        return Segment(path, number, layouts, counts, header), found

    def groups(self, rows: Ints) -> Iterator[tuple[Ints, Group]]:
        """Which of the rows are in which group."""
        group_of = np.searchsorted(self._firsts, rows, side="right") - 1
        for number, mine in grouped(group_of):
            yield mine, self._groups[number]

    def read(self, group: Group, chosen: Ints, piece: slice = slice(None)) -> Bytes:
        """The records of (a piece of) chosen rows of one group, in increasing order; neighbours are read at once."""
        rows, width = chosen[piece], group.layout.width
        data = np.empty((len(rows), width), np.uint8)
        breaks = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
        with guarded(self.path), open(self.path, "rb") as file:
            for first, last in pairwise(breaks):
                file.seek(group.start + (int(rows[first]) - group.first) * width)
                if file.readinto(data[first:last].data) < (last - first) * width:
                    raise RunError(f"{self.path} is cut off: it was changed under a run that uses it. Resume it.")
        return data


class Log:
    """All segments of a folder; it looks after the ``segment`` and the ``row`` of every client's place.

    Without a folder, a temporary one is made when it is needed, and removed with the log.
    """

    def __init__(self, folder: Path | None, places: Places) -> None:
        self._given, self._places = folder, places
        self._segments: dict[int, Segment] = {}
        self._clean_up: Callable[[], object] = lambda: None
        found = frozenset() if folder is None else frozenset(_numbers(folder))
        self._next = max(found, default=-1) + 1
        self._unsynced: set[int] = set()
        self._retired = set(found)
        self._landed = [found, found]
        self._pending: list[frozenset[int]] = []

    def restore(self, index: dict[str, Tensor], tidy: bool, remedy: str) -> None:
        """Opens the segments of an index and, if that is wanted, removes those that were written after it.

        Older segments stay until the next checkpoint has landed: the checkpoint before this one may need them.
        """
        numbers: list[int] = index["segments"].tolist()
        for number, fingerprint in zip(numbers, index["fingerprints"].tolist(), strict=True):
            segment, ids = Segment.open(self._path(number), number, remedy)
            if segment.fingerprint != fingerprint:
                raise RunError(f"{segment.path} is of another run, or of another state of this one. {remedy}")
            self._claim(segment, ids)
        if not tidy:
            return
        later = {number for number in self._retired if number > max(numbers, default=-1)}
        self._retired -= set(numbers)
        self._landed = [self._landed[-1] - later, frozenset(numbers)]
        self._remove_retired()

    def parts(self, ids: Ints, at: Ints) -> Iterator[Part]:
        """Reads the records of clients, which belong at the positions ``at``."""
        segment_of, row_of = self._places.segment[ids], self._places.row[ids]
        for number, mine in grouped(segment_of):
            for which, group in self._segments[number].groups(row_of[mine]):
                rows = row_of[mine[which]]
                order = np.argsort(rows)
                data = self._segments[number].read(group, rows[order])
                yield Part(at[mine[which]], group.layout, data, np.argsort(order))

    def outdate(self, ids: Ints) -> None:
        """What is on disk of these clients counts no longer."""
        for number, count in Counter(self._places.segment[ids].tolist()).items():
            if number >= 0:
                self._segments[number].live -= count
        self._places.segment[ids] = -1

    def append(self, sources: list[Source]) -> None:
        """Writes records into a new segment, together with what is left of worn segments."""
        sources = [source for source in sources if len(source.ids)]
        if not sources:
            return
        worn = self._worn(sum(len(source.ids) * source.layout.width for source in sources))
        for segment in worn:
            sources += self._remains(segment)
        path = self._path(self._next)
        with guarded(path, "The last checkpoint, if there is one, is still there."):
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                segment, ids = Segment.write(path, self._next, sources)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        self._next += 1
        self._unsynced.add(segment.number)
        self._claim(segment, ids)
        for old in worn:
            del self._segments[old.number]
            self._unsynced.discard(old.number)
            self._retired.add(old.number)
        self._remove_retired()

    def commit(self) -> dict[str, Tensor]:
        """Brings all segments to the disk and returns the list of them, each with a fingerprint of its content."""
        for number in sorted(self._unsynced):
            sync_file(self._path(number))
        if self._unsynced:
            with guarded(self._folder):
                sync_folder(self._folder)
        self._unsynced.clear()
        numbers = sorted(self._segments)
        self._pending.append(frozenset(numbers))
        fingerprints = [self._segments[number].fingerprint for number in numbers]
        return {
            "segments": torch.tensor(numbers, dtype=torch.int64),
            "fingerprints": torch.tensor(fingerprints, dtype=torch.int64),
        }

    def landed(self) -> None:
        """The last commit is in a checkpoint on disk: what neither it nor the one before needs may go."""
        if self._pending:
            self._landed = [self._landed[-1], self._pending[-1]]
            self._pending = []
            self._remove_retired()

    def close(self) -> None:
        """Removes the temporary folder, if there is one."""
        self._clean_up()

    @cached_property
    def _folder(self) -> Path:
        if self._given is not None:
            return self._given
        temporary = Path(tempfile.mkdtemp(prefix="fedloom-"))
        self._clean_up = weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)
        return temporary

    def _worn(self, incoming: int) -> list[Segment]:
        """Segments to merge into the next: those mostly out of date, and small ones, so that few files remain.

        A small one is merged when it has less than twice of what comes with it, so that no record is rewritten more
        than a logarithmic number of times.
        """
        chosen = []
        for segment in sorted(self._segments.values(), key=lambda segment: -segment.number):
            left = segment.size * segment.live // segment.rows
            if 2 * segment.live < segment.rows or (segment.size < _LARGE and left < 2 * incoming):
                chosen.append(segment)
                incoming += left
        return chosen

    def _remains(self, segment: Segment) -> Iterator[Source]:
        """The records of a segment that are up to date."""
        ids = np.flatnonzero(self._places.segment == segment.number)
        ids = ids[np.argsort(self._places.row[ids])]
        for which, group in segment.groups(self._places.row[ids]):
            rows = self._places.row[ids[which]]
            yield Source(group.layout, ids[which], partial(segment.read, group, rows))

    def _claim(self, segment: Segment, ids: Ints) -> None:
        """From now on the rows of this segment count, row i for client ids[i]."""
        self._places.reach(ids)
        self.outdate(ids)
        self._segments[segment.number] = segment
        self._places.segment[ids] = segment.number
        self._places.row[ids] = np.arange(len(ids))

    def _remove_retired(self) -> None:
        """Deletes the segments that are out of use, unless a checkpoint may refer to them."""
        free = self._retired.difference(*self._landed, *self._pending)
        for number in free:
            with guarded(self._path(number)):
                self._path(number).unlink(missing_ok=True)
        self._retired = self._retired - free

    def _path(self, number: int) -> Path:
        return self._folder / f"segment-{number:06d}.safetensors"


def _numbers(folder: Path) -> Iterator[int]:
    """The numbers of the segments in a folder."""
    for name in os.listdir(folder) if folder.is_dir() else ():
        if match := _NAME.fullmatch(name):
            yield int(match[1])
