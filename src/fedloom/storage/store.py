"""The memories of all clients: those used last in RAM, the others in files, every commit a state to come back to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedloom.errors import ClientError, RunError
from fedloom.storage import checkpoint
from fedloom.storage.closing import Closing
from fedloom.storage.records import Batch, Ints, Part, Places, assemble
from fedloom.storage.segments import Log
from fedloom.storage.tables import Tables
from fedloom.types import Memory

FOLDER = "memory"
LIMIT = 256 << 20


class MemoryStore(Closing):
    """What every client keeps between rounds, by client id (ids count from 0).

    * ``limit_bytes`` bounds the RAM of the memories; only some 16 bytes per client ever seen come on top. The memories
      that were used longest ago go to ``folder/memory/``, or without a folder to a temporary one.
    * ``commit`` writes what is not on disk yet and returns the index to be saved in the checkpoint, ``landed`` tells
      that this checkpoint is on disk, ``restore`` opens the state of an index. The segments of the last two
      checkpoints that landed, and of any commit after them, are neither changed nor removed.

    Tensors are copied on their way in and out; every dtype comes back bit by bit, on the CPU.
    """

    def __init__(self, folder: Path | None = None, limit_bytes: int = LIMIT) -> None:
        self._closed = False
        self._places = Places()
        self._log = Log(None if folder is None else folder / FOLDER, self._places)
        self._tables = Tables(limit_bytes, self._log, self._places)

    @classmethod
    def restore(
        cls,
        folder: Path,
        index: dict[str, Tensor],
        limit_bytes: int = LIMIT,
        *,
        tidy: bool = True,
        remedy: str = "Restore the file from a copy, or start the run again with --force.",
    ) -> MemoryStore:
        """The store as it was at the commit that returned ``index``, every byte verified; later segments go.

        With ``tidy=False``, for one who only looks, nothing is removed: the run may be going on. The error about a
        segment that is damaged or missing ends with ``remedy``.
        """
        store = cls(folder, limit_bytes)
        with checkpoint.as_written(folder / FOLDER, remedy):
            store._log.restore(index, tidy, remedy)
        return store

    def get(self, client: int) -> Memory | None:
        """The memory of one client; None for a client that has none yet."""
        columns, known = self.gather(torch.tensor([client]))
        return {key: column[0] for key, column in columns.items()} if bool(known) else None

    def put(self, client: int, memory: Memory) -> None:
        """Keeps the memory of one client in the place of what it had."""
        self.scatter(torch.tensor([client]), {key: tensor.unsqueeze(0) for key, tensor in memory.items()})

    def gather(self, clients: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The memories of many clients as columns, and which of the clients are known (only those are in the columns).

        Tensors of one key that differ in their first dimension are filled up with zeros to the longest.
        """
        asked = self._ids(clients)
        known = self._places.known(asked)
        ids = asked[known]
        return assemble(len(ids), self._parts(ids)), torch.from_numpy(known)

    def scatter(self, clients: Tensor, columns: dict[str, Tensor], lengths: dict[str, Tensor] | None = None) -> None:
        """Keeps the memories of many different clients, given as columns whose first axis is the clients.

        ``lengths[key]`` says for each client how many rows of its tensor are its own; the rest is cut off.
        """
        ids = self._ids(clients)
        if len(set(ids.tolist())) < len(ids):
            raise ClientError("A client occurs twice among those whose memories are to be kept.")
        if len(ids):
            self._tables.keep(Batch(len(ids), columns, lengths), ids)

    def clients(self) -> Tensor:
        """The ids of all clients that have a memory, in order."""
        return torch.from_numpy(np.flatnonzero(self._places.known()))

    @property
    def bytes_in_ram(self) -> int:
        """The RAM that the memories take: at most ``limit_bytes``, or one memory that alone is larger."""
        return self._tables.nbytes

    def commit(self) -> dict[str, Tensor]:
        """Brings everything to the disk and returns the index of this state, to be saved in the checkpoint."""
        self._check_open()
        self._log.append(self._tables.unsaved())
        return self._log.commit()

    def landed(self) -> None:
        """To be called once the checkpoint with the last commit's index is on disk: older segments may go now."""
        self._log.landed()

    def close(self) -> None:
        """Lets go of everything in RAM, and of the temporary folder; what was not committed is gone."""
        self._closed = True
        self._tables = Tables(0, self._log, self._places)
        self._log.close()

    def _parts(self, ids: Ints) -> Iterator[Part]:
        in_ram = self._places.table[ids] >= 0
        at = np.arange(len(ids))
        yield from self._tables.parts(ids[in_ram], at[in_ram])
        yield from self._log.parts(ids[~in_ram], at[~in_ram])

    def _check_open(self) -> None:
        if self._closed:
            raise RunError("The store of the clients' memories is closed: open it again with MemoryStore.restore.")

    def _ids(self, clients: Tensor) -> Ints:
        self._check_open()
        ids: Ints = clients.to("cpu", torch.int64).reshape(-1).numpy()
        if len(ids) and ids.min() < 0:
            raise ClientError(f"Client ids count from 0; {int(ids.min())} is none.")
        self._places.reach(ids)
        return ids


def open_latest(
    folder: Path, limit_bytes: int = LIMIT, *, tidy: bool = True
) -> tuple[checkpoint.Checkpoint | None, MemoryStore]:
    """The newest state of a folder that is whole: a checkpoint, and the memories that it points to.

    A checkpoint whose memories are damaged is set aside as one that is damaged itself: its ``note`` says so. Without
    any checkpoint the store is empty. With ``tidy=False``, for one who only looks, nothing changes on the disk.
    """

    def opened(saved: checkpoint.Checkpoint) -> tuple[checkpoint.Checkpoint, MemoryStore]:
        with checkpoint.as_written(folder, ""):
            return saved, MemoryStore.restore(folder, saved.groups["memory"], limit_bytes, tidy=tidy, remedy="")

    return checkpoint.open_latest(folder, opened, tidy=tidy) or (None, MemoryStore(folder, limit_bytes))
