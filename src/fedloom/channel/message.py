"""What a message costs: the exact size of its serialised form (safetensors), without serialising it each time."""

from __future__ import annotations

from functools import lru_cache

import torch

from fedloom.types import Message

Signature = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]


def serialise(message: Message) -> bytes:
    """The bytes that travel: safetensors, which holds tensors and can run nothing."""
    from safetensors.torch import save

    # Copies, because safetensors refuses tensors that share memory, such as two views of one vector.
    data: bytes = save({key: value.clone(memory_format=torch.contiguous_format) for key, value in message.items()})
    return data


def deserialise(data: bytes) -> Message:
    """The message inside these bytes."""
    from safetensors.torch import load

    return dict(load(data))


def payload(message: Message, columns: Message | None = None) -> int:
    """Bytes of one client's message: what all clients have alike, and one row of what is in columns."""
    signature = [(key, value.dtype, value.shape) for key, value in message.items()]
    signature += [(key, value.dtype, value.shape[1:]) for key, value in (columns or {}).items()]
    return _size(tuple(signature))


@lru_cache(maxsize=4096)
def _size(signature: Signature) -> int:
    return len(serialise({key: torch.zeros(shape, dtype=dtype) for key, dtype, shape in signature}))
