"""Stand-ins for parts of the engine that look at what passes through them, or let less of it through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedloom.channel import Transform, deserialise, serialise
from fedloom.conformance.drive import Ints, differing
from fedloom.execution import Executor, Serial, Worker
from fedloom.execution.work import Turn, Work
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
