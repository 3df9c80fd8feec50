"""The channel: every message passes it, is transformed on the way, and is counted in bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedloom.channel.message import payload
from fedloom.errors import ConfigError
from fedloom.federation.randomness import Draw
from fedloom.types import Message

Ints = npt.NDArray[np.int64]


class Transform(ABC):
    """One step of the channel, with a client half and a server half; a frozen dataclass of its settings.

    Both halves work on a stack of messages: tensors with a leading axis of clients.
    """

    lossy: bool = True

    @abstractmethod
    def encode(self, message: Message, clients: Ints, draw: Draw) -> Message:
        """The client half: what is sent instead; its tensors are what is counted."""

    @abstractmethod
    def decode(self, sent: Message) -> Message:
        """The server half: what the server reads out of it."""


@dataclass(frozen=True)
class Channel:
    """Transforms between client and server, in the order in which a client applies them to its reply."""

    transforms: Sequence[Transform] = ()

    @property
    def lossy(self) -> bool:
        """Whether what arrives may differ from what was sent."""
        return any(t.lossy for t in self.transforms)

    def up(self, message: Message, clients: Ints, draw: Draw) -> tuple[Message, int]:
        """The replies of a stack as the server decodes them, and the bytes of each."""
        sent = self.encode(message, clients, draw)
        return self.decode(sent), payload(sent, stacked=True)

    def encode(self, message: Message, clients: Ints, draw: Draw) -> Message:
        """The client half: the replies of a stack as they travel."""
        for transform in self.transforms:
            message = transform.encode(message, clients, draw)
        return message

    def decode(self, sent: Message) -> Message:
        """The server half: the replies that it reads out of what has travelled."""
        for transform in reversed(self.transforms):
            sent = transform.decode(sent)
        return sent

    def check(self, name: str, exact: bool) -> None:
        """Refuses a lossy channel for a method that would break on it."""
        if exact and self.lossy:
            raise ConfigError(
                f"the method {name!r} needs exact messages (a lossy one would break an invariant that it relies on); "
                "remove the lossy channel"
            )
