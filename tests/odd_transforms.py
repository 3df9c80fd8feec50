"""Transforms that do all that a channel's step may do: remember, act on sums, act on the way down, report figures."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.channel import Transform
from fedloom.channel.channel import Ints
from fedloom.federation.randomness import Draw
from fedloom.types import Memory, Message


@dataclass(frozen=True)
class Coarse(Transform):
    """Rounds to whole steps, and feeds what it left out into the next reply."""

    step: float = 0.25

    def start(self, message: Message) -> Memory:
        return {key: torch.zeros_like(value) for key, value in message.items()}

    def encode(self, message: Message, memory: Memory, clients: Ints, draw: Draw) -> tuple[Message, Memory]:
        wished = {key: value + memory[key] for key, value in message.items()}
        sent = {key: (value / self.step).round() * self.step for key, value in wished.items()}
        return sent, {key: wished[key] - sent[key] for key in sent}

    def decode(self, sent: Message) -> Message:
        return sent


@dataclass(frozen=True)
class Masked(Transform):
    """Every client hides all that it sends behind numbers of its own, whose sum the server takes off the sum."""

    lossy = False
    stage = "message"

    def encode(self, message: Message, memory: Memory, clients: Ints, draw: Draw) -> tuple[Message, Memory]:
        return {key: value + _mask(key, value, clients, draw) for key, value in message.items()}, memory

    def decode(self, sent: Message) -> Message:
        return sent

    def aggregate(self, sums: Message, clients: Tensor, draw: Draw) -> Message:
        ids = clients.numpy()
        return {
            key: value - _mask(key, value.expand(len(ids), *value.shape), ids, draw).sum(0)
            for key, value in sums.items()
        }


def _mask(key: str, like: Tensor, clients: Ints, draw: Draw) -> Tensor:
    flat = like.reshape(len(like), -1)
    return 10 * torch.from_numpy(draw.normal(f"mask/{key}", clients, flat.shape[1])).to(like.dtype).view(like.shape)


@dataclass(frozen=True)
class HalfDown(Transform):
    """What the server sends has half as many bits a number."""

    def encode(self, message: Message, memory: Memory, clients: Ints, draw: Draw) -> tuple[Message, Memory]:
        return message, memory

    def decode(self, sent: Message) -> Message:
        return sent

    def send_down(self, message: Message, draw: Draw) -> Message:
        return {key: value.half() if value.dtype == torch.float32 else value for key, value in message.items()}

    def take_down(self, sent: Message) -> Message:
        return {key: value.float() if value.dtype == torch.float16 else value for key, value in sent.items()}


@dataclass(frozen=True)
class Clip(Transform):
    """No reply is longer than a bound; says how many were, and a budget that is used up step by step."""

    bound: float = 0.5
    stage = "reply"

    def encode(self, message: Message, memory: Memory, clients: Ints, draw: Draw) -> tuple[Message, Memory]:
        factors = {key: (self.bound / _lengths(value)).clamp(max=1) for key, value in message.items()}
        return {key: value * factors[key].view(-1, *(1,) * (value.dim() - 1)) for key, value in message.items()}, memory

    def decode(self, sent: Message) -> Message:
        return sent

    def figures(self, message: Message, sent: Message) -> dict[str, Tensor]:
        longer = torch.stack([_lengths(value) > self.bound for value in message.values()])
        return {"clipped": longer.any(0).double()}

    def report(self, steps: int) -> dict[str, float]:
        return {"budget": 0.5 * steps}


def _lengths(value: Tensor) -> Tensor:
    return value.reshape(len(value), -1).norm(dim=1).clamp(min=1e-12)
