"""Where clients' work is done: in this process, in worker processes, or on a cluster. The same bits anywhere."""

from __future__ import annotations

from fedloom.errors import ConfigError
from fedloom.execution.auto import Auto
from fedloom.execution.executor import Executor, Serial, one_thread
from fedloom.execution.processes import Processes
from fedloom.execution.ray import Ray
from fedloom.execution.remote import Remote
from fedloom.execution.worker import Worker

__all__ = [
    "EXECUTORS",
    "Auto",
    "Executor",
    "Processes",
    "Ray",
    "Remote",
    "Serial",
    "Worker",
    "executor_for",
    "one_thread",
]

EXECUTORS = ("auto", "serial", "processes", "ray")


def executor_for(name: str, rounds: int, workers: int | None = None, ray_address: str | None = None) -> Executor:
    """The executor of that name, for so many rounds; the address is that of a cluster that runs already.

    A run that had an address can be resumed elsewhere, so executors that are named do not mind it.
    """
    if ray_address is not None and name == "auto":
        raise ConfigError("a Ray address goes with the executor 'ray'")
    match name:
        case "auto":
            return Auto(rounds, workers)
        case "serial":
            return Serial()
        case "processes":
            return Processes(workers)
        case "ray":
            return Ray(ray_address, workers)
        case _:
            raise ConfigError(f"there is no executor {name!r}; choose one of {', '.join(EXECUTORS)}")
