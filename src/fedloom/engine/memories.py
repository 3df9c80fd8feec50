"""What clients remember, as the engine sees it: kept here in a store, or by the clients on their own devices."""

from __future__ import annotations

import torch

from fedloom.execution.work import Memories
from fedloom.federation.ragged import Ints
from fedloom.storage.store import MemoryStore
from fedloom.types import Memory


class Keeper:
    """The memories of all clients.

    Where they stay with the clients (``elsewhere``), the store has only the turn of each client's last reply that was
    accepted, and ``saved`` the one that the last checkpoint has: from one of these, or from its next turn, a client
    will have to go on.
    """

    def __init__(self, store: MemoryStore, elsewhere: bool, per_row: tuple[str, ...] = ()) -> None:
        self.store, self.elsewhere, self.per_row = store, elsewhere, per_row
        self._saved: dict[int, int] = {}

    def of(self, clients: Ints, moved: Ints | None = None) -> Memories:
        """What some clients remember; ``moved`` first rows have left each since."""
        columns, known = self.store.gather(torch.from_numpy(clients))
        saved = torch.tensor([self._saved.get(i, -1) for i in clients.tolist()]) if self.elsewhere else None
        return Memories(known, columns, saved, moved)

    def keep(self, clients: Ints, memory: Memory, rows: Ints) -> None:
        """What clients that hold so many rows remember from now on."""
        if memory:
            lengths = dict.fromkeys([key for key in self.per_row if key in memory], torch.from_numpy(rows))
            self.store.scatter(torch.from_numpy(clients), memory, lengths=lengths)

    def landed(self) -> None:
        """The checkpoint with all that is known now is on disk: from here the run goes on if it is killed."""
        self.store.landed()
        self.note_saved()

    def note_saved(self) -> None:
        """Where clients remember: of which turns the checkpoint knows that they were accepted."""
        if self.elsewhere:
            clients = self.store.clients()
            turns = self.store.gather(clients)[0].get("turn", clients)
            self._saved = dict(zip(clients.tolist(), turns.tolist(), strict=True))
