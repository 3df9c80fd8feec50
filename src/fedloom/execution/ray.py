"""Workers on a Ray cluster: one that is started for the run on this machine, or one that runs on many nodes."""

from __future__ import annotations

import os
import socket
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fedloom.errors import ConfigError, RunError
from fedloom.execution.answers import Answer, answered, taken
from fedloom.execution.cluster import Cluster, first_line, library, refuse_unreachable, send_tensors_as_bytes
from fedloom.execution.executor import Executor, settle_down, unsendable
from fedloom.execution.trees import copied
from fedloom.execution.work import Work
from fedloom.execution.worker import Worker
from fedloom.types import Message

_AHEAD = 2  # tasks that a worker may have at a time, so that it need not wait for the next one
_DEATHS = 3  # so often a task may lose its worker before it is said to be the cause
_START_SECONDS = 300.0  # for workers to start, on a busy machine; what comes later may join later
_SHOWN = 5  # clients that an error names


class Ray(Executor):
    """Workers (Ray actors) with one torch thread each, on however many nodes; a stack goes to whichever is free.

    Without an address a cluster is started on this machine and ends with the run. The data set is placed once on each
    node, what all clients are sent once on each node and round. Client memory stays here and travels with the tasks,
    so a worker or a node that dies takes nothing along: its tasks are done again elsewhere, with the same result.
    """

    name = "ray"

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        self.address, self.workers = None if address == "local" else address, workers
        self.cluster: Cluster | None = None
        self.crew: list[_Hand] = []
        """Workers that are ready …"""
        self.coming: dict[Any, _Hand] = {}
        """… and those that are starting, by the reference to their first answer."""

    def check(self) -> None:
        """Refuse a missing library, and an address where nobody answers."""
        ray = library()
        if self.address is not None and not ray.is_initialized():
            refuse_unreachable(self.address)

    def open(self, worker: Worker) -> None:
        self.close()
        self.check()
        try:
            self.cluster = Cluster(self.address, self.workers)
            try:
                self.worker, self.placed = worker, self.cluster.put(worker)
            except (TypeError, AttributeError) as error:
                raise unsendable("a cluster", error) from error
            self.actors, self.false_starts = self.cluster.actors(_Actor), 0
            for _ in range(self.workers or self.cluster.cpus()):
                self._hire()
            self._meet()
        except BaseException:
            self.close()
            raise

    def map(self, shared: Message, works: Sequence[Work]) -> Iterator[tuple[int, Any]]:
        if self.cluster is None:
            raise RunError("the workers on Ray were ended (an error came first); start the run again, or resume it")
        try:
            yield from _Round(self, self.cluster, shared, works).results()
        except BaseException:
            self.close()  # nobody waits any more for what was asked
            raise

    def close(self) -> None:
        cluster, self.cluster = self.cluster, None
        hands = [*self.crew, *self.coming.values()]
        self.crew, self.coming, self.placed = [], {}, None
        if cluster is not None:
            cluster.close(hand.actor for hand in hands)

    def replace(self, hand: _Hand) -> None:
        """Start workers in the place of one that is gone, and of all whose node is: nobody is to be sent there."""
        assert self.cluster is not None
        nodes = self.cluster.nodes()
        for gone in [other for other in self.crew if other is hand or other.node not in nodes]:
            self.crew.remove(gone)
            self._hire()

    def welcome(self, reference: Any) -> None:
        """A worker that was starting is ready; or it will never be, and another one is started."""
        assert self.cluster is not None
        hand = self.coming.pop(reference)
        try:
            answer = self.cluster.get(reference)
        except self.cluster.errors.RayError as error:
            self.false_starts += 1
            if self.false_starts >= _DEATHS:
                raise RunError(f"workers of the cluster do not start: {first_line(error)}") from error
            self._hire()
            return
        hand.node, self.false_starts = taken(answer), 0
        self.crew.append(hand)

    def _hire(self) -> None:
        hand = _Hand(self.actors.remote())
        self.coming[hand.actor.hello.remote(_versions(), sys.path, [self.placed])] = hand

    def _meet(self) -> None:
        """Wait until all workers are there, or until it has been long enough and some are."""
        assert self.cluster is not None
        while self.coming:
            reference = self.cluster.first(list(self.coming), _START_SECONDS)
            if reference is None:
                break
            self.welcome(reference)
        if not self.crew:
            raise RunError(
                f"no worker could start on the cluster within {_START_SECONDS:.0f} seconds: it has "
                f"{self.cluster.cpus()} CPUs, and others may be using them all"
            )


@dataclass(eq=False)
class _Hand:
    """One worker: its actor, the node where that is, and the numbers of the tasks that it has."""

    actor: Any
    node: str = ""
    tasks: set[int] = field(default_factory=set)


class _Round:
    """One ``map``: tasks that wait, tasks that are with a worker, and how often each lost its worker."""

    def __init__(self, executor: Ray, cluster: Cluster, shared: Message, works: Sequence[Work]) -> None:
        self.executor, self.cluster, self.works = executor, cluster, works
        self.waiting = deque(range(len(works)))
        self.sent: dict[Any, tuple[int, _Hand]] = {}
        self.deaths: Counter[int] = Counter()
        self.shared = cluster.put(shared) if works else None

    def results(self) -> Iterator[tuple[int, Any]]:
        """Each task's number and result, as they are ready."""
        while self.waiting or self.sent:
            self._hand_out()
            reference = self.cluster.first([*self.sent, *self.executor.coming], _START_SECONDS)
            if reference is None:  # for long: as it should be, unless nobody is at work
                if not self.sent:
                    raise RunError(
                        "no worker of the cluster is left, and no other could start; the run can be resumed from its "
                        "last checkpoint"
                    )
            elif reference in self.executor.coming:
                self.executor.welcome(reference)
            else:
                number, hand = self.sent.pop(reference)
                hand.tasks.remove(number)
                answer = self._answer(reference, number, hand)
                del reference  # or the cluster would keep the result
                if answer is not None:
                    yield number, taken(answer)

    def _hand_out(self) -> None:
        """Give out tasks to those who have the fewest."""
        while self.waiting:
            free = [hand for hand in self.executor.crew if self._has_room(hand)]
            if not free:
                return
            hand, number = min(free, key=lambda hand: len(hand.tasks)), self.waiting.popleft()
            reference = hand.actor.work.remote(self.shared, self.works[number])
            self.sent[reference] = (number, hand)
            hand.tasks.add(number)

    def _has_room(self, hand: _Hand) -> bool:
        """Whether a worker may have the next task: a second one only if there are more than enough for all.

        A task that has lost a worker already is done alone, so that it is known who is the cause if it happens again.
        """
        if not hand.tasks:
            return True
        alone = any(self.deaths[number] for number in (*hand.tasks, self.waiting[0]))
        return not alone and len(hand.tasks) < _AHEAD and len(self.waiting) > len(self.executor.crew)

    def _answer(self, reference: Any, number: int, hand: _Hand) -> Answer | None:
        """What a worker found; None if it is lost, and then the task waits again."""
        errors = self.cluster.errors
        try:
            ok, found = self.cluster.get(reference)
        except errors.RayError as error:
            self.deaths[number] += 1
            if self.deaths[number] >= _DEATHS:
                raise self._too_often(number, error) from error
            self.waiting.appendleft(number)
            if isinstance(error, errors.RayActorError):
                self.executor.replace(hand)
            return None
        return ok, copied(found)

    def _too_often(self, number: int, error: Exception) -> RunError:
        data, clients = self.executor.worker.problem.data, self.works[number].clients.tolist()
        named = ", ".join(data.label(client) for client in clients[:_SHOWN])
        named += f" and {len(clients) - _SHOWN} more" if len(clients) > _SHOWN else ""
        return RunError(
            f"a worker was lost {_DEATHS} times at the work of client{'s' * (len(clients) > 1)} {named} "
            f"({first_line(error)}); if memory ran out, use fewer --workers or a smaller --stack. The run can be "
            "resumed from its last checkpoint"
        )


class _Actor:
    """What runs on the cluster: the worker with one torch thread, its data set in the memory of the node."""

    def hello(self, versions: dict[str, str], path: list[str], placed: list[Any]) -> Answer:
        """Get ready, and say on which node; it is an error if this one cannot do the work, or would find other bits."""
        settle_down()
        sys.path += [folder for folder in path if folder not in sys.path and os.path.isdir(folder)]
        send_tensors_as_bytes()
        ray, checked = library(), answered(_refuse_other, versions)
        if not checked[0]:
            return checked
        try:
            self.worker: Worker = ray.get(placed[0])
        except ray.exceptions.RaySystemError as error:  # it arrived, but cannot be read
            return answered(_refuse_unreadable, error)
        return True, ray.get_runtime_context().get_node_id()

    def work(self, shared: Message, work: Work) -> Answer:
        """The work of a stack; what it gets is its own, so that methods may write to it."""
        return answered(lambda: copied(work).done_by(self.worker, copied(shared)))


def _refuse_other(versions: dict[str, str]) -> None:
    if (here := _versions()) != versions:
        raise ConfigError(
            f"node {socket.gethostname()} of the cluster has {_said(here)}, and this machine has {_said(versions)}; "
            "install the same versions on all nodes"
        )


def _refuse_unreadable(error: Exception) -> None:
    raise ConfigError(
        f"node {socket.gethostname()} of the cluster cannot load the model or the method: {first_line(error)}; "
        "install the module that defines it on all nodes"
    )


def _versions() -> dict[str, str]:
    """What must be the same everywhere; Ray itself looks at its own version and at Python's."""
    from fedloom import __version__

    return {"fedloom": __version__, "torch": torch.__version__}


def _said(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
