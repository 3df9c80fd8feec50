"""Where clients' work is done: in this process, in worker processes, or on a cluster. The same bits anywhere."""

from __future__ import annotations

import inspect

from fedloom.errors import ConfigError
from fedloom.execution.auto import Auto
from fedloom.execution.executor import Executor, Serial, one_thread
from fedloom.execution.processes import Processes
from fedloom.execution.ray import Ray
from fedloom.execution.remote import Remote
from fedloom.execution.worker import Worker
from fedloom.register import Register

__all__ = [
    "CPU_ONLY",
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

EXECUTORS: Register[type[Executor]] = Register(
    "executor",
    right=lambda thing: isinstance(thing, type) and issubclass(thing, Executor),
    must_be="a class derived from fedloom.execution.Executor",
    home="fedloom.execution",
    group="fedloom.executors",
)
EXECUTORS.register("auto", Auto)
EXECUTORS.register("serial", Serial)
EXECUTORS.register("processes", Processes)
EXECUTORS.register("ray", Ray)
CPU_ONLY = "fedloom computes on the CPU only, so far; leave the device out, and give --workers for more processes"
"""What is said to who asks for another one."""
TOLD = ("rounds", "workers", "address")
"""What every executor can be told of a run, if it has parameters of these names; others are options of its own."""


def executor_for(
    name: str, rounds: int, workers: int | None = None, ray_address: str | None = None, **options: object
) -> Executor:
    """The executor of that name, for so many rounds; the address is that of a cluster that runs already.

    A run that had an address can be resumed elsewhere, so executors that are named do not mind it.
    """
    if ray_address is not None and name == "auto":
        raise ConfigError("a Ray address goes with the executor 'ray'")
    found = EXECUTORS.find(name)
    told = dict(zip(TOLD, (rounds, workers, ray_address), strict=True))
    taken = inspect.signature(found).parameters
    return found(**{key: value for key, value in told.items() if key in taken}, **options)
