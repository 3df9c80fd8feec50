"""One competitor in a process of its own, which prepares a workload once and then runs rounds on command."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from time import perf_counter
from types import TracebackType

import torch

from benchmarks import by_hand, machine, ours
from benchmarks.workloads import IN_FLIGHT, WORKLOADS
from fedloom.engine.fleet import Distribution, Fleet
from fedloom.engine.schedule import Schedule
from fedloom.execution import Ray

Run = Callable[[int], float]
WAITING, ARRIVING, ON_RAY = "waiting", "arriving", "ray"


def _two_workers(method: str, workload: str) -> Run:
    return ours.prepare(WORKLOADS[workload], method, executor="processes", workers=2)


def _on_ray(workload: str) -> Run:
    executor = Ray(workers=2)
    Finalize(executor, executor.close, exitpriority=1)  # the run never ends, so its cluster must be told to
    return ours.prepare(WORKLOADS[workload], executor=executor)


def _in_flight(schedule: Schedule, workload: str) -> Run:
    slow = Fleet(delay_up=Distribution("uniform", 10.0, 100.0))
    return ours.prepare(IN_FLIGHT[workload], schedule=schedule, fleet=slow)


COMPETITORS: dict[str, Callable[[str], Run]] = {
    "fedloom": lambda name: ours.prepare(WORKLOADS[name]),
    "one process": lambda name: by_hand.one_process(WORKLOADS[name], threads=machine.cores()),
    "worker processes": lambda name: by_hand.worker_processes(WORKLOADS[name], workers=machine.cores()),
    "sgemm": lambda _: machine.sgemm(),
    **{method: partial(_two_workers, method) for method in ours.METHODS},
    WAITING: partial(_in_flight, Schedule("rounds")),
    ARRIVING: partial(_in_flight, Schedule("async", buffer=1)),
    ON_RAY: _on_ray,
}


class Competitor:
    """A lane of the race. It is alone in its process, so that no setting of one reaches another."""

    def __init__(self, name: str, workload: str) -> None:
        self.name, self.workload = name, workload
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(name, workload, theirs))
        self._started = perf_counter()
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """The number of its process."""
        assert self._process.pid is not None
        return self._process.pid

    def ready(self) -> float:
        """Waits until the workload is set up; the seconds since the process was started."""
        self._answer()
        return perf_counter() - self._started

    def warm_up(self) -> float:
        """Runs a few rounds, the first of which pay for what is made once; about the seconds a round takes."""
        return min(self.run(1) for _ in range(3))

    def run(self, rounds: int) -> float:
        """Runs that many rounds; the seconds they took."""
        self._pipe.send(rounds)
        return self._answer()

    def _answer(self) -> float:
        try:
            answer = self._pipe.recv()
        except EOFError:
            answer = "its process ended"
        if isinstance(answer, str):
            raise RuntimeError(f"{self.name} failed on {self.workload}: {answer}")
        return float(answer)

    def __enter__(self) -> Competitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pipe.close()  # which it takes as the sign to end
        self._process.join(timeout=10)
        self._process.terminate()
        self._process.join()


def _serve(name: str, workload: str, pipe: Connection) -> None:
    with suppress(EOFError, BrokenPipeError):  # the harness is done
        try:
            torch.manual_seed(0)
            run = COMPETITORS[name](workload)
            pipe.send(0.0)
            while True:
                pipe.send(run(pipe.recv()))
        except (EOFError, BrokenPipeError):
            raise
        except Exception:
            pipe.send(traceback.format_exc())
