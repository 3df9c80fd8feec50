"""Where clients' work is done: in this process, or in worker processes. The same tasks give the same bits anywhere."""

from __future__ import annotations

from fedloom.errors import ConfigError
from fedloom.execution.auto import Auto
from fedloom.execution.executor import Executor, Serial, one_thread
from fedloom.execution.processes import Processes
from fedloom.execution.remote import Remote
from fedloom.execution.worker import Worker

__all__ = ["EXECUTORS", "Auto", "Executor", "Processes", "Remote", "Serial", "Worker", "executor_for", "one_thread"]

EXECUTORS = ("auto", "serial", "processes")


def executor_for(name: str, rounds: int, workers: int | None = None) -> Executor:
    """The executor of that name, for so many rounds."""
    match name:
        case "auto":
            return Auto(rounds, workers)
        case "serial":
            return Serial()
        case "processes":
            return Processes(workers)
        case _:
            raise ConfigError(f"there is no executor {name!r}; choose one of {', '.join(EXECUTORS)}")
