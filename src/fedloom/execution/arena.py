"""Shared memory that grows: tensors pass between two processes as offsets into it, not through a pipe."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom.errors import RunError
from fedloom.execution.room import reserved
from fedloom.execution.trees import mapped

_ALIGN = 64
_LEAST = 1 << 20


@dataclass(frozen=True)
class Note:
    """Where a tensor lies in the shared memory."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class Outbox:
    """The writing end. ``pack`` replaces every tensor in a value by a note of where it lies."""

    def __init__(self) -> None:
        self.memory: mmap.mmap | None = None
        self.path: Path | None = None

    def pack(self, value: Any) -> Any:
        """The value without its tensors, for ``Inbox.unpack``; valid until the next ``pack``."""
        used, placed = 0, list[tuple[Note, Tensor]]()

        def noted(part: Any) -> Any:
            nonlocal used
            if not isinstance(part, Tensor):
                return part
            placed.append((Note(used, part.dtype, tuple(part.shape)), part.detach()))
            used += -(-part.nbytes // _ALIGN) * _ALIGN
            return placed[-1][0]

        packed = mapped(value, noted)
        self._reserve(used)
        for note, tensor in placed:
            if tensor.numel():
                _view(self.memory, note).copy_(tensor)
        return (str(self.path or ""), packed)

    def close(self) -> None:
        """Forget the memory; the kernel frees it once nobody looks at it any more."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        self.memory = self.path = None

    def _reserve(self, size: int) -> None:
        if not size or (self.memory is not None and len(self.memory) >= size):
            return
        self.close()
        size = max(_LEAST, size + size // 2)
        handle, name = tempfile.mkstemp(prefix="fedloom-", dir=shared_folder())
        self.path = Path(name)
        try:
            self.memory = reserved(handle, size)
        except OSError as error:
            self.close()
            raise RunError(
                f"no room for {size >> 20} MiB of shared memory in {shared_folder()} ({error.strerror}); "
                "use the executor 'serial'"
            ) from error
        finally:
            os.close(handle)


class Inbox:
    """The reading end, one to each outbox: opens whatever memory the writer names.

    It removes the name as soon as it has the memory open, so nothing is left behind if both ends are killed.
    """

    def __init__(self) -> None:
        self.memory: mmap.mmap | None = None
        self.path = ""

    def unpack(self, packed: Any) -> Any:
        """The value again, its tensors being views of the shared memory."""
        path, value = packed
        if path and path != self.path:
            with open(path, "r+b") as file:
                self.memory, self.path = mmap.mmap(file.fileno(), 0), path
            if os.name == "posix":
                os.unlink(path)
        return mapped(value, self._read)

    def _read(self, value: Any) -> Any:
        if not isinstance(value, Note):
            return value
        return torch.empty(value.shape, dtype=value.dtype) if 0 in value.shape else _view(self.memory, value)


def shared_folder() -> str:
    """Where files are memory: /dev/shm, or the temporary folder on systems without it."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()


def _view(memory: mmap.mmap | None, note: Note) -> Tensor:
    assert memory is not None  # whoever wrote the note reserved it
    flat = torch.frombuffer(memory, dtype=note.dtype, count=math.prod(note.shape), offset=note.offset)
    return flat.view(note.shape)
