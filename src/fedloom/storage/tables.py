"""Client memories in RAM: one growing table of equal records for each layout, within a limit of bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fedloom.storage.records import Batch, Ints, Layout, Part, Places, grouped
from fedloom.storage.segments import Log, Source
from fedloom.storage.tensors import Bytes

_FREE = -1


class Table:
    """Records of one layout: slot s holds the memory of ``clients[s]``, last used at ``stamps[s]``."""

    def __init__(self, layout: Layout, number: int) -> None:
        self.layout, self.number = layout, number
        self.data: Bytes = np.zeros((0, layout.width), np.uint8)
        self.clients: Ints = np.zeros(0, np.int64)
        self.stamps: Ints = np.zeros(0, np.int64)
        self.free: list[int] = []

    def occupied(self) -> Ints:
        """The slots that hold a memory."""
        return np.flatnonzero(self.clients != _FREE)

    def take(self, ids: Ints) -> Ints:
        """A free slot for each of these clients."""
        keep = len(self.free) - len(ids)
        slots = np.array(self.free[keep:], dtype=np.int64)
        del self.free[keep:]
        self.clients[slots] = ids
        return slots

    def give_back(self, slots: Ints) -> None:
        """These slots are free again."""
        self.clients[slots] = _FREE
        self.free += slots.tolist()

    def grow(self, count: int) -> None:
        """Adds free slots."""
        old, slots = self.data, len(self.data) + count
        self.free += range(len(old), slots)
        self.data = np.zeros((slots, self.layout.width), np.uint8)
        self.data[: len(old)] = old
        self.clients = np.concatenate([self.clients, np.full(count, _FREE, np.int64)])
        self.stamps = np.concatenate([self.stamps, np.zeros(count, np.int64)])

    def pack(self, slots: Ints) -> None:
        """Keeps only these slots, moved together."""
        if len(slots) < len(self.data):
            self.data, self.clients, self.stamps = self.data[slots], self.clients[slots], self.stamps[slots]
            self.free = []


class Tables:
    """The memories that were used last, in at most ``limit`` bytes; what does not fit is appended to a log.

    A memory that changes is out of date in the log; one that the log holds is dropped from RAM without writing.
    """

    def __init__(self, limit: int, log: Log, places: Places) -> None:
        self._limit, self._log, self._places = limit, log, places
        self._tables: list[Table] = []
        self._of_layout: dict[Layout, Table] = {}
        self._clock = 0

    def parts(self, ids: Ints, at: Ints) -> Iterator[Part]:
        """The records of clients that are in RAM, which belong at the positions ``at``."""
        table_of, slot_of = self._places.table[ids], self._places.slot[ids]
        self._clock += 1
        for number, mine in grouped(table_of):
            table, slots = self._tables[number], slot_of[mine]
            table.stamps[slots] = self._clock
            yield Part(at[mine], table.layout, table.data, slots)

    def keep(self, batch: Batch, ids: Ints) -> None:
        """Keeps the memories of a batch, piece by piece where they do not fit into RAM all at once."""
        for layout, which in batch.by_layout():
            step = max(1, self._limit // 2 // layout.width)
            for start in range(0, len(which), step):
                piece = which[start : start + step]
                self._keep(batch, layout, piece, ids[piece])

    @property
    def nbytes(self) -> int:
        """The RAM that the tables take."""
        return sum(table.data.nbytes for table in self._tables)

    def unsaved(self) -> list[Source]:
        """The memories that the log does not hold."""
        return [self._unsaved(table, table.occupied()) for table in self._tables]

    def _unsaved(self, table: Table, slots: Ints) -> Source:
        unsaved = slots[self._places.segment[table.clients[slots]] < 0]
        return Source(table.layout, table.clients[unsaved], lambda piece: table.data[unsaved[piece]])

    def _keep(self, batch: Batch, layout: Layout, which: Ints, ids: Ints) -> None:
        if layout not in self._of_layout:
            self._of_layout[layout] = Table(layout, len(self._tables))
            self._tables.append(self._of_layout[layout])
        table = self._of_layout[layout]
        slots = self._slots(table, ids)
        batch.write(layout, which, table.data, slots)
        self._clock += 1
        table.stamps[slots] = self._clock
        self._log.outdate(ids)

    def _slots(self, table: Table, ids: Ints) -> Ints:
        """A slot of the table for each client: the one it has, or a free one."""
        if np.count_nonzero(self._places.table[ids] != table.number) > len(table.free):
            self._make_room(table, len(ids))
        table_of = self._places.table[ids]
        moving = ids[table_of != table.number]
        for number, mine in grouped(table_of):
            if number not in (_FREE, table.number):
                self._tables[number].give_back(self._places.slot[ids[mine]])
        self._place(table, moving, table.take(moving))
        return self._places.slot[ids]

    def _place(self, table: Table, ids: Ints, slots: Ints) -> None:
        self._places.table[ids] = table.number
        self._places.slot[ids] = slots

    def _make_room(self, table: Table, count: int) -> None:
        """Adds ``count`` free slots or more; what was used longest ago is spilled when RAM would not do."""
        width = table.layout.width
        if self.nbytes + count * width > self._limit:
            self._spill(self._limit // 2 - count * width)
        spare = (self._limit - self.nbytes) // width
        table.grow(max(count, min(len(table.data), spare)))

    def _spill(self, keep_bytes: int) -> None:
        """Keeps the memories used last, up to so many bytes, and packs them; the others leave RAM."""
        slots = [table.occupied() for table in self._tables]
        stays = self._recent(slots, keep_bytes)
        self._log.append([self._unsaved(t, s[~stay]) for t, s, stay in zip(self._tables, slots, stays, strict=True)])
        for table, occupied, stay in zip(self._tables, slots, stays, strict=True):
            self._places.table[table.clients[occupied[~stay]]] = _FREE
            table.pack(occupied[stay])
            kept = table.occupied()
            self._place(table, table.clients[kept], kept)

    def _recent(self, slots: list[Ints], keep_bytes: int) -> list[npt.NDArray[np.bool_]]:
        """For the occupied slots of every table, which of them were used last and fit into so many bytes."""
        counts = [len(occupied) for occupied in slots]
        stamps = np.concatenate([table.stamps[occupied] for table, occupied in zip(self._tables, slots, strict=True)])
        widths = np.repeat([table.layout.width for table in self._tables], counts)
        order = np.argsort(-stamps, kind="stable")
        stays = np.empty(len(stamps), np.bool_)
        stays[order] = np.cumsum(widths[order]) <= keep_bytes
        return np.split(stays, np.cumsum(counts)[:-1])
