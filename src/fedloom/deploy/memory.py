"""What a node remembers between rounds: its memory after each turn that the server might still go on from.

A node sends its reply and cannot know whether the server takes it, nor whether a server that was killed will come back
with what it had saved before. Every message says which turn of this client the server accepted last and which one it
had accepted when it saved itself last: a node keeps its memories after these two and after its newest turn.

Beside them it keeps the hash of its rows, since a memory, and a run, go with the rows that they were begun with. The
server never gets the hash: who has it could guess the rows of a small table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from flwr.app import ConfigRecord, RecordDict

from fedloom.deploy.codec import decode, encode
from fedloom.errors import ClientError
from fedloom.storage import checkpoint
from fedloom.storage.files import guarded
from fedloom.types import Memory

_RUNS_KEPT = 4  # memories of earlier runs that stay on a node
_ROWS = "rows"  # the record with the hash of the rows in Flower's context


Memories = dict[str, Memory]
"""A client's memories, by the turns whose acceptance made them the client's."""


@dataclass(frozen=True, eq=False)
class Keeper(ABC):
    """The memory of one client, with the right to take back what the server did not accept, or has forgotten."""

    rows: str
    """The hash of the rows that the client has now."""

    @abstractmethod
    def kept_rows(self) -> str | None:
        """The hash of those that it had when it began; None: it begins now."""

    @abstractmethod
    def read(self) -> Memories:
        """What was kept."""

    @abstractmethod
    def write(self, memories: Memories) -> None:
        """Keep these in the place of what was kept, all or nothing, and the hash of the rows with them."""

    def begin(self) -> None:
        """Before the first work for a server: a ClientError when the rows are others than those of the run so far."""
        kept = self.kept_rows()
        if kept is None:
            self.write(self.read())
        elif kept != self.rows:
            raise ClientError(
                "the rows of this node have changed since it began with this run; put them back as they were, or start "
                "a new run"
            )

    def recall(self, accepted: int | None) -> Memory | None:
        """The memory after the turn that the server accepted last; None for a client of which it took nothing yet."""
        if accepted is None:
            return None
        known = self.read()
        if str(accepted) in known:
            return known[str(accepted)]
        raise ClientError(
            f"the server goes on from turn {accepted}, but this node remembers {' and '.join(known) or 'none'}: its "
            "memory was lost, or the run was set back; start a new run"
        )

    def offer(self, kept: Collection[int | None], turn: int, memory: Memory) -> None:
        """Keeps the memory after a turn, beside those after the accepted and the saved one."""
        turns = {*map(str, kept)} - {str(turn)}
        self.write({old: known for old, known in self.read().items() if old in turns} | {str(turn): memory})


@dataclass(frozen=True, eq=False)
class FileKeeper(Keeper):
    """In a file of the node's own folder, one for each run: it survives a restart of the node."""

    folder: Path
    run: str

    @property
    def path(self) -> Path:
        """The file of this run."""
        return self.folder / f"memory-{self.run}.safetensors"

    def read(self) -> Memories:
        return checkpoint.load(self.path).groups if self.path.is_file() else {}

    def kept_rows(self) -> str | None:
        return checkpoint.load(self.path).meta.get("rows") if self.path.is_file() else None

    def write(self, memories: Memories) -> None:
        with guarded(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        checkpoint.save(self.path, memories, {"rows": self.rows})
        with guarded(self.folder):
            every = sorted(self.folder.glob("memory-*.safetensors"), key=lambda path: path.stat().st_mtime)
            for old in every[:-_RUNS_KEPT]:
                old.unlink(missing_ok=True)


@dataclass(frozen=True, eq=False)
class ContextKeeper(Keeper):
    """In the context that Flower keeps for a node while it runs: for a node that has no folder of its own."""

    state: RecordDict

    def read(self) -> Memories:
        return (
            decode(RecordDict({name: part for name, part in self.state.items() if name != _ROWS})) if self.state else {}
        )

    def kept_rows(self) -> str | None:
        return str(self.state.config_records[_ROWS]["sha256"]) if _ROWS in self.state else None

    def write(self, memories: Memories) -> None:
        self.state.update({**encode(memories), _ROWS: ConfigRecord({"sha256": self.rows})})
