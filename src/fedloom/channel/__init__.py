"""Between client and server: transforms with a client half and a server half, and an exact count of bytes."""

from fedloom.channel.channel import Channel, Received, Sent, Transform, finite_rows, parted
from fedloom.channel.message import deserialise, payload, serialise
from fedloom.channel.quantise import Quantise
from fedloom.channel.register import TRANSFORMS

__all__ = [
    "TRANSFORMS",
    "Channel",
    "Quantise",
    "Received",
    "Sent",
    "Transform",
    "deserialise",
    "finite_rows",
    "parted",
    "payload",
    "serialise",
]
