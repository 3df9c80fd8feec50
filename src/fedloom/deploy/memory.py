"""What a node remembers between rounds: its memory before and after its last turn, until it is told which counts.

A node sends its reply and cannot know whether the server takes it. It keeps both memories; the next message says which
turn of this client the server accepted last, and the node goes on from there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from flwr.app import RecordDict

from fedloom.deploy.codec import decode, encode
from fedloom.engine import checkpoint
from fedloom.engine.files import guarded
from fedloom.errors import ClientError
from fedloom.types import Memory

_RUNS_KEPT = 4  # memories of earlier runs that stay on a node
_NAMES = ("before", "after")


@dataclass(frozen=True, eq=False)
class Version:
    """A memory, and the turn whose acceptance made it the client's."""

    turn: int
    memory: Memory


Versions = tuple[Version | None, Version | None]
"""The memory before the last turn (None: the client had none) and after it (None: it never had a turn)."""


class Keeper(ABC):
    """Where a node keeps its two memories."""

    @abstractmethod
    def read(self) -> Versions:
        """What was kept."""

    @abstractmethod
    def write(self, versions: Versions) -> None:
        """Keep these in the place of what was kept, all or nothing."""


@dataclass(frozen=True)
class FileKeeper(Keeper):
    """In a file of the node's own folder, one for each run: it survives a restart of the node."""

    folder: Path
    run: str

    @property
    def path(self) -> Path:
        """The file of this run."""
        return self.folder / f"memory-{self.run}.safetensors"

    def read(self) -> Versions:
        if not self.path.is_file():
            return None, None
        saved = checkpoint.load(self.path)
        turns: list[int | None] = [saved.meta[name] for name in _NAMES]
        before, after = (
            None if turn is None else Version(turn, saved.groups[name])
            for name, turn in zip(_NAMES, turns, strict=True)
        )
        return before, after

    def write(self, versions: Versions) -> None:
        with guarded(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        named = dict(zip(_NAMES, versions, strict=True))
        groups = {name: {} if version is None else version.memory for name, version in named.items()}
        meta = {name: None if version is None else version.turn for name, version in named.items()}
        checkpoint.save(self.path, groups, meta)
        with guarded(self.folder):
            every = sorted(self.folder.glob("memory-*.safetensors"), key=lambda path: path.stat().st_mtime)
            for old in every[:-_RUNS_KEPT]:
                old.unlink(missing_ok=True)


@dataclass(frozen=True, eq=False)
class ContextKeeper(Keeper):
    """In the context that Flower keeps for a node while it runs: for a node that has no folder of its own."""

    state: RecordDict

    def read(self) -> Versions:
        if not self.state:
            return None, None
        saved = decode(self.state)
        before, after = (
            Version(saved[name]["turn"], saved[name].get("memory", {})) if name in saved else None for name in _NAMES
        )
        return before, after

    def write(self, versions: Versions) -> None:
        named = zip(_NAMES, versions, strict=True)
        tree = {name: {"turn": v.turn, "memory": v.memory} for name, v in named if v is not None}
        for key, record in encode(tree).items():
            self.state[key] = record


@dataclass(frozen=True, eq=False)
class NodeMemory:
    """The memory of one client, with the right to take back its last turn."""

    keeper: Keeper

    def recall(self, accepted: int | None) -> Memory | None:
        """The memory after the turn that the server accepted last; None for a client of which it took nothing yet."""
        if accepted is None:
            return None
        known = [version for version in self.keeper.read() if version is not None]
        for version in known:
            if version.turn == accepted:
                return version.memory
        turns = " and ".join(str(version.turn) for version in known) or "none"
        raise ClientError(
            f"the server goes on from turn {accepted}, but this node remembers {turns}: its memory was lost, or the "
            "run was set back by more than a round; start a new run"
        )

    def offer(self, accepted: int | None, turn: int, memory: Memory) -> None:
        """Keeps the memory after a turn, beside that after the accepted one, until it is known whether it counts."""
        known = {version.turn: version for version in self.keeper.read() if version is not None}
        before = None if accepted is None else known[accepted]
        self.keeper.write((before, Version(turn, memory)))
