"""The executors' common face: the work of many stacks, and its results as they are ready."""

from __future__ import annotations

import ctypes
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import torch

from fedloom.errors import ConfigError
from fedloom.execution.room import Room
from fedloom.execution.work import Work
from fedloom.execution.worker import Worker
from fedloom.federation.data import FederatedData
from fedloom.federation.ragged import Ints
from fedloom.types import Message


class Executor(ABC):
    """Where the clients' work is done. Results do not depend on it: the same work gives the same bits anywhere."""

    name: str
    remembers: ClassVar[bool] = False
    """Whether clients' memories stay where the clients are and are settled there. The engine then keeps of each client
    only the turn of its last reply that was accepted, and every work has that (``memory.columns["turn"]``) and the one
    that the last checkpoint has (``memory.saved``): a client will have to go on from one of these, or its next turn."""

    def check(self) -> None:  # noqa: B027 (most have nothing to refuse)
        """Refuse what cannot be, before any work."""

    @abstractmethod
    def open(self, worker: Worker) -> None:
        """Make ready to work for this problem, method and channel."""

    def reopen(self, worker: Worker) -> None:
        """The same for another run after one that is over; what can be kept of it, such as processes, is."""
        self.open(worker)

    @abstractmethod
    def map(self, shared: Message, works: Sequence[Work]) -> Iterator[tuple[int, Any]]:
        """Do the work of each stack; pairs of the work's number and its result, as they are ready.

        A result's tensors are valid until the next one is taken.
        """

    def federation(self, data: FederatedData) -> FederatedData:
        """The federation as it is now: these data, or the same with clients that have joined since at the end."""
        return data

    def there(self, candidates: Ints) -> Ints:
        """Who of these can be asked now; real devices come and go, and the executor waits until there are enough."""
        return candidates

    def room(self) -> Room:
        """Where the replies of a round are put together."""
        return Room()

    @abstractmethod
    def close(self) -> None:
        """Give back every process and all memory."""


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread for the time being: sums and convolutions depend on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_buffers() -> None:
    """Tell glibc to keep large buffers between steps instead of giving them back to the kernel each time.

    Convolutions and stacks allocate the same megabytes in every step; a fresh mapping costs a page fault every 4 KiB.
    """
    if sys.platform.startswith("linux"):
        try:
            mallopt = ctypes.CDLL(None).mallopt
        except (OSError, AttributeError):  # another libc than glibc
            return
        m_trim_threshold, m_mmap_threshold = -1, -3
        mallopt(m_mmap_threshold, 1 << 30)
        mallopt(m_trim_threshold, (1 << 31) - 1)


def settle_down() -> None:
    """Make this process a worker: one torch thread, buffers kept, and no hurry.

    The scheduler is told that it computes for long and need not run at once when it is woken. Otherwise a worker that
    is handed a task takes the core of the parent that hands it out, and the next worker waits some milliseconds for
    its own.
    """
    torch.set_num_threads(1)
    keep_buffers()
    if hasattr(os, "sched_setscheduler"):
        with suppress(OSError):  # a wish, which a container may not grant
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def unsendable(where: str, error: Exception) -> ConfigError:
    """What is said when pickle cannot take the problem to workers elsewhere."""
    return ConfigError(
        f"the model or the method cannot be sent to {where} ({error}); define it at the top level of a module that can "
        "be imported, or use the executor 'serial'"
    )


class Serial(Executor):
    """In this process, one stack after the other."""

    name = "serial"

    def open(self, worker: Worker) -> None:
        keep_buffers()
        self.worker = worker

    def map(self, shared: Message, works: Sequence[Work]) -> Iterator[tuple[int, Any]]:
        for number, work in enumerate(works):
            yield number, work.done_by(self.worker, shared)

    def close(self) -> None:
        """Nothing was taken."""
