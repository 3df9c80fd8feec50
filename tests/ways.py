"""A message through a channel and out again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedloom.channel import Channel
from fedloom.federation.randomness import Draw
from fedloom.types import Message


def up(channel: Channel, message: Message, clients: npt.NDArray[np.int64], draw: Draw) -> tuple[Message, int]:
    """The replies of a stack as the server decodes them, and the bytes of each."""
    arrived = channel.receive(channel.send(message, None, channel.start(message), clients, draw).wire)
    return arrived.reply, arrived.bytes
