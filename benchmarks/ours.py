"""The same workloads through fedloom's public functions, as a user would call them."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Any

from benchmarks.workloads import Workload
from fedloom.engine.run import train
from fedloom.federation.networks import build_model
from fedloom.federation.problem import Problem
from fedloom.methods import FedAdam, FedAvg, FedPer, FedProx, Method, Scaffold

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedadam": FedAdam,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "fedper": FedPer,
}
"""The methods that are measured beside each other."""
MANY = 1_000_000
"""Rounds of the run that is measured: so many that the run never ends by itself."""


class Gate:
    """Holds a long run after the rounds that were asked for, until more are asked for.

    So a block of rounds is a piece out of the middle of one run: what a run does once, such as starting worker
    processes, is in the warm-up and not in the block.
    """

    def __init__(self) -> None:
        self._asked: SimpleQueue[int] = SimpleQueue()
        self._ended: SimpleQueue[float | Exception] = SimpleQueue()
        self._left = 0

    def __call__(self, row: dict[str, Any], rounds: int) -> None:
        """The run's progress callback: once before the first round, and after every round."""
        self._left -= 1
        if self._left <= 0:
            self.end(perf_counter())
            self._left = self._asked.get()

    def end(self, what: float | Exception) -> None:
        """Tells who waits that the rounds are done, or why they never will be."""
        self._ended.put(what)

    def wait(self) -> float:
        """The time at which the rounds that were asked for ended."""
        what = self._ended.get()
        if isinstance(what, Exception):
            raise what
        return what

    def run(self, rounds: int) -> float:
        """Lets so many rounds pass; the seconds they took."""
        start = perf_counter()
        self._asked.put(rounds)
        return self.wait() - start


def prepare(workload: Workload, method: str = "fedavg", **how: Any) -> Callable[[int], float]:
    """Sets the federation up; returns what runs k rounds and says how many seconds they took.

    ``how`` are further arguments of ``train``.
    """
    data = workload.data()
    problem = Problem(data, build_model(workload.network, data))
    settings: dict[str, Any] = {"lr": workload.lr, "batch": workload.batch, "epochs": 1}
    gate = Gate()
    chosen = METHODS[method](**settings)

    def run_for_ever() -> None:
        try:
            train(problem, chosen, rounds=MANY, seed=1, select=workload.per_round, evaluate=(), progress=gate, **how)
        except Exception as error:
            gate.end(error)

    Thread(target=run_for_ever, daemon=True).start()
    gate.wait()
    return gate.run
