"""An executor that stays when a run is over, for the next one: what it cost to start is paid once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fedloom.execution.executor import Executor
from fedloom.execution.work import Work
from fedloom.execution.worker import Worker
from fedloom.types import Message


class Kept(Executor):
    """Another executor, for several runs one after the other; ``end`` closes it, a run's own ``close`` does not."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner

    @property
    def name(self) -> str:  # type: ignore[override]
        """The executor that is at work now."""
        return self.inner.name

    def check(self) -> None:
        self.inner.check()

    def open(self, worker: Worker) -> None:
        self.inner.open(worker)

    def map(self, shared: Message, works: Sequence[Work]) -> Iterator[tuple[int, Any]]:
        yield from self.inner.map(shared, works)

    def close(self) -> None:
        """Nothing: the next run goes on with it."""

    def end(self) -> None:
        """Give back every process and all memory."""
        self.inner.close()
