"""The face of executors whose clients are real devices: they come and go, and reply when they can."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import ClassVar

from fedloom.execution.executor import Executor
from fedloom.execution.work import Trained, Turn
from fedloom.federation.ragged import Ints
from fedloom.types import Message


class Remote(Executor):
    """Beside waiting for all (``map``) it can ask single clients and take their replies as they come."""

    remembers: ClassVar[bool] = True
    patience: float
    """Seconds after which a reply comes too late."""
    tries: int
    """Rounds in which nothing was accepted, one after the other, that end a run."""

    @abstractmethod
    def online(self, candidates: Ints) -> Ints:
        """Who of these can be asked now, without waiting for anybody."""

    @abstractmethod
    def begin(self, shared: Message, works: Sequence[Turn]) -> list[str | None]:
        """Ask clients for their turns, one client a work; numbers to know the replies by, None: it cannot be asked."""

    @abstractmethod
    def finished(self, numbers: Collection[str]) -> list[tuple[str, Trained]]:
        """The replies that have come, after a short wait if there are none; a failure is a result that is not finite.

        Its ``failures`` say what was wrong.
        """
