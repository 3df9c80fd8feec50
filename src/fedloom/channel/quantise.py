"""Stochastic quantisation to b bits a number.

D. Alistarh, D. Grubic, J. Li, R. Tomioka and M. Vojnović, "QSGD: communication-efficient SGD via gradient
quantization and encoding", NeurIPS 2017; here with uniform levels between −R and R, R the largest magnitude in the
tensor, as in Elgabli et al., "Q-GADMM", IEEE TCOM 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Interval
from torch import Tensor

from fedloom.channel.channel import Ints, Transform
from fedloom.channel.register import TRANSFORMS
from fedloom.federation.randomness import Draw
from fedloom.types import Memory, Message

_RANGE, _LEVELS, _SHAPE = ".range", ".levels", ".shape"


@TRANSFORMS.register("quantise")
@dataclass(frozen=True)
class Quantise(Transform):
    """Each floating-point tensor of a message becomes one range R and b bits a number, without bias.

    With step Δ = 2R/(2ᵇ − 1) a number v is sent as ⌊(v + R)/Δ + u⌋, u uniform in [0, 1): its expectation is exact
    and its error below Δ. Integers pass as they are.

        channel = fedloom.Channel([fedloom.Quantise(bits=4)])
        print(channel.lossy)
    """

    bits: Annotated[int, Interval(ge=1, le=16)] = 8
    """b, bits a number."""

    def encode(self, message: Message, memory: Memory, clients: Ints, draw: Draw) -> tuple[Message, Memory]:
        sent: Message = {}
        for key, value in message.items():
            if not value.is_floating_point():
                sent[key] = value
                continue
            flat = value.reshape(len(value), -1)
            noise = torch.from_numpy(draw.uniform(f"quantise/{key}", clients, flat.shape[1])).to(flat.dtype)
            reach = flat.abs().amax(1, keepdim=True) if flat.shape[1] else flat.new_zeros(len(flat), 1)
            top = 2**self.bits - 1
            step = torch.where(reach > 0, 2 * reach / top, torch.ones_like(reach))
            levels = torch.floor((flat + reach) / step + noise).clamp_(0, top)
            sent[key + _RANGE] = reach[:, 0]
            sent[key + _LEVELS] = _pack(levels.to(torch.int32), self.bits)
            sent[key + _SHAPE] = torch.tensor(value.shape[1:], dtype=torch.int32).expand(len(value), -1)
        return sent, memory

    def decode(self, sent: Message) -> Message:
        names = [key.removesuffix(_LEVELS) for key in sent if key.endswith(_LEVELS)]
        parts = {name: [name + part for part in (_RANGE, _LEVELS, _SHAPE)] for name in names}
        ours = {name: keys for name, keys in parts.items() if all(key in sent for key in keys)}
        passed = sent.keys() - {key for keys in ours.values() for key in keys}
        message = {key: sent[key] for key in sent if key in passed}
        return message | {name: self._decoded(*(sent[key] for key in keys)) for name, keys in ours.items()}

    def _decoded(self, reach: Tensor, packed: Tensor, shapes: Tensor) -> Tensor:
        shape: list[int] = shapes[0].tolist()
        reach = reach[:, None]
        levels = _unpack(packed, self.bits, math.prod(shape)).to(reach.dtype)
        decoded: Tensor = levels * (2 * reach / (2**self.bits - 1)) - reach
        return decoded.view(len(packed), *shape)


def _pack(levels: Tensor, bits: int) -> Tensor:
    """Whole numbers below 2ᵇ as bytes, b bits each."""
    wide = levels.numpy().astype(np.uint16)
    each = (wide[:, :, None] >> np.arange(bits, dtype=np.uint16)) & 1
    return torch.from_numpy(np.packbits(each.astype(np.uint8).reshape(len(wide), -1), axis=1, bitorder="little"))


def _unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    each = np.unpackbits(packed.numpy(), axis=1, count=count * bits, bitorder="little")
    each = each.reshape(len(packed), count, bits).astype(np.int32)
    return torch.from_numpy((each << np.arange(bits, dtype=np.int32)).sum(-1))
