"""The executor for people who do not want to choose one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from fedloom.errors import RunError
from fedloom.execution.executor import Executor, Serial
from fedloom.execution.processes import Processes, lives_in_main
from fedloom.execution.work import Turn, Work
from fedloom.execution.worker import Worker
from fedloom.types import Message


class Auto(Executor):
    """Starts in this process and moves to worker processes once the pace says that it will pay.

    The choice depends on measured time and so on the machine; the results do not, because they are the same bits
    under every executor.
    """

    def __init__(
        self, rounds: int, workers: int | None = None, *, start_seconds: float = 3.0, task_seconds: float = 2e-3
    ) -> None:
        """``start_seconds``: what workers cost to start; ``task_seconds``: less is not worth the way to another one."""
        self.rounds, self.workers = rounds, workers or os.cpu_count() or 1
        self.start_seconds, self.task_seconds = start_seconds, task_seconds
        self.inner: Executor = Serial()
        self.done = 0

    @property
    def name(self) -> str:  # type: ignore[override]
        """The executor that is at work now."""
        return self.inner.name

    def open(self, worker: Worker) -> None:
        self.worker = worker
        self.inner.open(worker)

    def reopen(self, worker: Worker) -> None:
        self.worker = worker
        self.inner.reopen(worker)

    def map(self, shared: Message, works: Sequence[Work]) -> Iterator[tuple[int, Any]]:
        started = time.perf_counter()
        yield from self.inner.map(shared, works)
        if works and isinstance(works[0], Turn) and isinstance(self.inner, Serial) and self.workers > 1:
            self.done += 1
            self._reconsider(time.perf_counter() - started, len(works))

    def close(self) -> None:
        self.inner.close()

    def _reconsider(self, seconds: float, stacks: int) -> None:
        share = min(self.workers, stacks)
        saved = (self.rounds - self.done) * seconds * (1 - 1 / share)
        if seconds / stacks < self.task_seconds or saved < self.start_seconds:
            return
        if lives_in_main(self.worker):
            self.workers = 1  # what only the user's script knows stays in the user's process
            return
        other = Processes(share)
        try:
            other.open(self.worker)
        except RunError:
            self.workers = 1  # no room in shared memory: here there is
            return
        self.inner = other
