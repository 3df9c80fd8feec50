"""The register of what a channel can do to messages on their way."""

from __future__ import annotations

from fedloom.channel.channel import Transform
from fedloom.register import Register, settings_of

TRANSFORMS: Register[type[Transform]] = Register(
    "step of a channel",
    right=settings_of(Transform),
    must_be="a dataclass derived from fedloom.channel.Transform",
    home="fedloom.channel",
    group="fedloom.transforms",
)
