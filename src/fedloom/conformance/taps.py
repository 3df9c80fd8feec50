"""Stand-ins for parts of the engine that look at what passes through them, or let less of it through."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedloom.channel import Transform, deserialise, serialise
from fedloom.conformance.drive import differing
from fedloom.execution import Executor, Serial, Worker
from fedloom.execution.work import Turn, Work
from fedloom.federation.client import Client
from fedloom.federation.problem import Problem
from fedloom.federation.ragged import Ints
from fedloom.federation.randomness import Draw
from fedloom.types import Memory, Message


@dataclass(frozen=True)
class Tap(Transform):
    """The last step of a channel: lets everything pass, serialises it, and notes its size and what that changed."""

    sizes: list[int] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    lossy = False
    stage = "message"

    def encode(self, message: Message, memory: Memory, clients: Ints, draw: Draw) -> tuple[Message, Memory]:
        for i in range(len(clients)):
            self.take({key: value[i] for key, value in message.items()})
        return message, memory

    def decode(self, sent: Message) -> Message:
        return sent

    def take(self, message: Message) -> None:
        """One client's message."""
        data = serialise(message)
        self.sizes.append(len(data))
        self.broken.extend(differing(message, deserialise(data)))


class TappedSerial(Executor):
    """The serial executor, with a tap on what every client is sent."""

    name = "serial"

    def __init__(self) -> None:
        self.inner, self.tap = Serial(), Tap()

    def open(self, worker: Worker) -> None:
        self.inner.open(worker)

    def map(self, shared: Message, works: Sequence[Work]) -> Iterator[tuple[int, Any]]:
        for work in works:
            own = work.own if isinstance(work, Turn) else {}
            for i in range(len(work.clients)):
                self.tap.take({**shared, **{key: value[i] for key, value in own.items()}})
        return self.inner.map(shared, works)

    def close(self) -> None:
        self.inner.close()


class TappedProblem(Problem):
    """A problem that notes which rows are asked for."""

    taken: list[list[int]]

    @staticmethod
    def of(problem: Problem) -> TappedProblem:
        """The same problem, with a tap."""
        tapped = copy.copy(problem)
        tapped.__class__ = TappedProblem
        assert isinstance(tapped, TappedProblem)
        tapped.taken = []
        return tapped

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        self.taken.append(rows.reshape(-1).tolist())
        return super().take(rows)

    def places(self, rows: list[int], client: Client) -> set[tuple[int, ...]]:
        """Where these rows of a client stand among its training, support or query rows, if they are among such."""
        found = set()
        for split in self.data.splits:
            where = {row: place for place, row in enumerate(client.span(split).rows().tolist())}
            if all(row in where for row in rows):
                found.add(tuple(where[row] for row in rows))
        return found
