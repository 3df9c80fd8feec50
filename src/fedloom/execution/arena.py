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
from fedloom.execution.trees import mapped, tensors

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
        self.used = 0

    def pack(self, value: Any) -> Any:
        """The value without its tensors, for ``Inbox.unpack``; valid until the next ``pack``."""
        self._reserve(sum(map(_size, tensors(value))))
        self.used = 0
        return (str(self.path or ""), mapped(value, self._place))

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
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(handle, 0, size)  # an error now, instead of a bus error at the first write
            else:
                os.ftruncate(handle, size)
            self.memory = mmap.mmap(handle, size)
        except OSError as error:
            self.close()
            raise RunError(
                f"no room for {size >> 20} MiB of shared memory in {shared_folder()} ({error.strerror}); "
                "use the executor 'serial'"
            ) from error
        finally:
            os.close(handle)

    def _place(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        note = Note(self.used, value.dtype, tuple(value.shape))
        if value.numel():
            _view(self.memory, note).copy_(value.detach())
        self.used += _size(value)
        return note


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


def _size(tensor: Tensor) -> int:
    return -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
