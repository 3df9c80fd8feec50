"""The channel: every message passes it, is transformed on the way, and is counted in bytes."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.channel.message import payload
from fedloom.errors import ConfigError
from fedloom.federation.randomness import Draw
from fedloom.federation.replies import WEIGHT, Reduce, weighted
from fedloom.types import Memory, Message

Ints = npt.NDArray[np.int64]
Stage = Literal["reply", "weighted", "message"]
_STAGES: tuple[Stage, ...] = ("reply", "weighted", "message")


class Transform(ABC):
    """One step of the channel; a frozen dataclass of its settings.

    ``encode`` and ``decode`` are its two halves, at the client and at the server. Beside these it may remember
    something at each client, act on the sum of the replies, act on what the server sends down, and report figures.
    All work on a stack of messages: tensors with a leading axis of clients.
    """

    lossy: bool = True
    """Whether what arrives may differ from what was sent."""
    stage: Stage = "weighted"
    """What it sees: the "reply" as the client made it (clipping); the reply times what the client counts for
    ("weighted"); or all that travels, the weight included ("message", masks)."""

    @property
    def remembers(self) -> bool:
        """Whether it keeps something at each client. Default: if it says with what that starts."""
        return type(self).start is not Transform.start

    def start(self, message: Message) -> Memory:
        """What it keeps at each client before the client's first reply, one row a client. Default: nothing."""
        return {}

    @abstractmethod
    def encode(self, message: Message, memory: Memory, clients: Ints, draw: Draw) -> tuple[Message, Memory]:
        """The client's half: what is sent instead, and the new memory, which holds only once that was accepted."""

    @abstractmethod
    def decode(self, sent: Message) -> Message:
        """The server's half: what the server reads out of it."""

    def aggregate(self, sums: Message, clients: Tensor, draw: Draw) -> Message:
        """The server's half of a sum over these clients: masks cancel, noise is added. Default: the sum as it is."""
        return sums

    def send_down(self, message: Message, draw: Draw) -> Message:
        """What the server sends to clients instead of a message. Default: the message."""
        return message

    def take_down(self, sent: Message) -> Message:
        """What clients read out of that. Default: what was sent."""
        return sent

    def figures(self, message: Message, sent: Message) -> dict[str, Tensor]:
        """Numbers about the client's half, one a client, whose mean goes into the history. Default: none."""
        return {}

    def report(self, steps: int) -> dict[str, float]:
        """Numbers about the whole, after so many steps of the server (a privacy budget). Default: none."""
        return {}


@dataclass(frozen=True, eq=False)
class Sent:
    """Replies of a stack on their way: as they travel, what the channel keeps of them, and figures about them."""

    wire: Message
    memory: Memory
    figures: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Received:
    """Replies of a stack as the server reads them, the bytes of each, and whether all of its numbers are finite."""

    reply: Message
    bytes: int
    finite: Tensor


@dataclass(frozen=True)
class Channel:
    """Transforms between client and server, in the order in which a client applies them to its reply.

    Bytes are counted after the transforms.

        data = fedloom.federate("digits", clients=5)
        problem = fedloom.Problem(data, fedloom.build_model("linear", data))
        channel = fedloom.Channel([fedloom.Quantise(bits=8)])
        run = fedloom.train(problem, fedloom.FedAvg(), rounds=2, channel=channel)
        print(run.summary["bytes_up"], run.summary["bytes_down"])
    """

    transforms: Sequence[Transform] = ()
    """The steps; none: messages arrive as they were sent."""

    @property
    def lossy(self) -> bool:
        """Whether what arrives may differ from what was sent."""
        return any(t.lossy for t in self.transforms)

    @property
    def remembers(self) -> bool:
        """Whether it keeps something at each client."""
        return any(t.remembers for t in self.transforms)

    def start(self, reply: Message, weight: Tensor | None = None) -> Memory:
        """What it keeps at each client of a stack before their first replies, which look like these."""
        whole = reply if weight is None else {**reply, WEIGHT: weight}
        kept: Memory = {}
        for place, transform in enumerate(self.transforms):
            kept |= _named(transform.start(whole if transform.stage == "message" else reply), place)
        return kept

    def send(
        self, reply: Message, weight: Tensor | None, memory: Memory, clients: Ints, draw: Draw, reduce: Reduce = "sum"
    ) -> Sent:
        """The clients' half: replies that count for ``weight`` (None: all alike) as they travel.

        They are multiplied by it where the server will see nothing but sums, and it travels beside them.
        """
        message, kept, figures = reply, dict[str, Tensor](), dict[str, Tensor]()
        for stage in _STAGES:
            if weight is not None and stage == "weighted" and reduce == "sum":
                message = weighted(message, weight)
            if weight is not None and stage == "message":
                message = {**message, WEIGHT: weight}
            for place, transform in enumerate(self.transforms):
                if transform.stage == stage:
                    sent, own = transform.encode(message, _own(memory, place), clients, draw)
                    kept |= _named(own, place)
                    figures |= transform.figures(message, sent)
                    message = sent
        return Sent(message, kept, figures)

    def receive(self, wire: Message) -> Received:
        """The server's half, in a simulation as on a fleet: what it reads out of replies, their size, their sanity."""
        if not self.transforms:
            return Received(wire, payload({}, wire), finite_rows(wire))
        message = self._decoded(wire, "message")
        weight = {key: value for key, value in message.items() if key == WEIGHT}
        if weight:
            message = {key: value for key, value in message.items() if key != WEIGHT}
        message = self._decoded(self._decoded(message, "weighted"), "reply")
        message = {**message, **weight} if weight else message
        return Received(message, payload({}, wire), finite_rows(message))

    def _decoded(self, sent: Message, stage: Stage) -> Message:
        transforms = [t for t in reversed(self.transforms) if t.stage == stage]
        return functools.reduce(lambda message, transform: transform.decode(message), transforms, sent)

    def aggregate(self, sums: Message, clients: Tensor, draw: Draw) -> Message:
        """The server's half of the sums over these clients' replies."""
        return functools.reduce(
            lambda found, transform: transform.aggregate(found, clients, draw), self.transforms, sums
        )

    def send_down(self, message: Message, draw: Draw, stacked: bool = False) -> Message:
        """What the server sends: one message for all, or, stacked, a row of it for each client."""
        return self._down(message, stacked, lambda t, m: t.send_down(m, draw))

    def take_down(self, sent: Message, stacked: bool = False) -> Message:
        """What clients read out of what the server sent."""
        return self._down(sent, stacked, lambda t, m: t.take_down(m), backwards=True)

    def _down(
        self, message: Message, stacked: bool, step: Callable[[Transform, Message], Message], backwards: bool = False
    ) -> Message:
        if not self.transforms or not message:
            return message
        rows = message if stacked else {key: value.unsqueeze(0) for key, value in message.items()}
        for transform in reversed(self.transforms) if backwards else self.transforms:
            rows = step(transform, rows)
        return rows if stacked else {key: value.squeeze(0) for key, value in rows.items()}

    def report(self, steps: int) -> dict[str, float]:
        """What the transforms have to say after so many steps of the server."""
        return {key: value for transform in self.transforms for key, value in transform.report(steps).items()}

    def check(self, name: str, exact: bool) -> None:
        """Refuses a lossy channel for a method that would break on it, and steps in an order that cannot be."""
        if exact and self.lossy:
            raise ConfigError(
                f"the method {name!r} needs exact messages (a lossy one would break an invariant that it relies on); "
                "remove the lossy channel"
            )
        order = [_STAGES.index(transform.stage) for transform in self.transforms]
        if order != sorted(order):
            raise ConfigError(
                "the channel's steps are in an order that cannot be: first what sees the reply as the client made it "
                "(clipping), then what sees it weighted, then what sees the whole message (masks)"
            )


def finite_rows(message: Message) -> Tensor:
    """Whether all numbers of each client's row are finite; one answer for all where all are."""
    finite = torch.ones((), dtype=torch.bool)
    for value in message.values():
        # A sum is finite only if all its terms are: one pass, no mask of the whole message. Large terms may overflow.
        if value.is_floating_point() and not math.isfinite(value.sum().item()):
            finite = finite & torch.isfinite(value).reshape(len(value), -1).all(1)
    return finite


_PREFIX = "channel."


def _named(memory: Memory, place: int) -> Memory:
    """What the transform at a place keeps, under names that no method has."""
    return {f"{_PREFIX}{place}.{key}": value for key, value in memory.items()}


def _own(memory: Memory, place: int) -> Memory:
    start = f"{_PREFIX}{place}."
    return {key.removeprefix(start): value for key, value in memory.items() if key.startswith(start)}


def parted(memory: Memory) -> tuple[Memory, Memory]:
    """What clients remember: the method's part, and the channel's."""
    own = {key: value for key, value in memory.items() if not key.startswith(_PREFIX)}
    return own, {key: value for key, value in memory.items() if key.startswith(_PREFIX)}
