"""Workers on a Ray cluster: one that is started for the run on this machine, or one that runs on many nodes."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.errors import ConfigError, RunError
from fedloom.execution.answers import Answer, answered, taken
from fedloom.execution.executor import Executor, settle_down
from fedloom.execution.worker import Result, Task, Worker
from fedloom.types import Message

_AHEAD = 2  # tasks that a worker may have at a time, so that it need not wait for the next one
_DEATHS = 3  # so often a task may lose its worker before it is said to be the cause
_CONNECT_SECONDS = 5.0  # for an answer of the cluster's address
_START_SECONDS = 60.0  # for workers to start; what comes later may join later
_LOOK_SECONDS = 2.0  # between two looks whether the cluster is still there
_GONE_SECONDS = 20.0  # after which a cluster whose head does not answer is gone; Ray itself would end us after 60
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
        self.cluster: _Cluster | None = None
        self.crew: list[_Hand] = []
        """Workers that are ready …"""
        self.coming: dict[Any, _Hand] = {}
        """… and those that are starting, by the reference to their first answer."""

    def check(self) -> None:
        """Refuse a missing library, and an address where nobody answers."""
        ray = _library()
        if self.address is not None and not ray.is_initialized():
            _refuse_unreachable(self.address)

    def open(self, worker: Worker) -> None:
        self.close()
        self.check()
        try:
            self.cluster = _Cluster(self.address, self.workers)
            self.worker, self.placed = worker, self.cluster.place(worker)
            self.false_starts = 0
            for _ in range(self.workers or self.cluster.cpus()):
                self._hire()
            self._meet()
        except BaseException:
            self.close()
            raise

    def map(self, function: str, shared: Message, tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        if self.cluster is None:
            raise RunError("the workers on Ray were ended (an error came first); start the run again, or resume it")
        try:
            yield from _Round(self, self.cluster, function, shared, tasks).results()
        except BaseException:
            self.close()  # nobody waits any more for what was asked
            raise

    def close(self) -> None:
        cluster, self.cluster = self.cluster, None
        hands = [*self.crew, *self.coming.values()]
        self.crew, self.coming, self.placed = [], {}, None
        if cluster is not None:
            cluster.close(hands)

    def replace(self, hand: _Hand) -> None:
        """Start a worker in the place of one that is gone."""
        if hand in self.crew:
            self.crew.remove(hand)
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
                raise RunError(f"workers of the cluster do not start: {_first_line(error)}") from error
            self._hire()
            return
        taken(answer)
        self.false_starts = 0
        self.crew.append(hand)

    def _hire(self) -> None:
        assert self.cluster is not None
        hand = _Hand(self.cluster.actor())
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
    """One worker: its actor, and the numbers of the tasks that it has."""

    actor: Any
    tasks: set[int] = field(default_factory=set)


class _Round:
    """One ``map``: tasks that wait, tasks that are with a worker, and how often each lost its worker."""

    def __init__(self, executor: Ray, cluster: _Cluster, function: str, shared: Message, tasks: Sequence[Task]) -> None:
        self.executor, self.cluster, self.function, self.tasks = executor, cluster, function, tasks
        self.waiting = deque(range(len(tasks)))
        self.sent: dict[Any, tuple[int, _Hand]] = {}
        self.deaths: Counter[int] = Counter()
        self.shared = cluster.put(shared) if tasks else None

    def results(self) -> Iterator[tuple[int, Result]]:
        """Each task's number and result, as they are ready."""
        while self.waiting or self.sent:
            self._hand_out()
            reference = self.cluster.first([*self.sent, *self.executor.coming], _START_SECONDS)
            if reference is None:
                self._insist()
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
            reference = hand.actor.work.remote(self.function, self.shared, self.tasks[number])
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
        return ok, own(found)

    def _insist(self) -> None:
        """Nothing came for long: that is as it should be, unless nobody is at work."""
        if not self.sent:
            raise RunError(
                "no worker of the cluster is left, and no other could start; the run can be resumed from its last "
                "checkpoint"
            )

    def _too_often(self, number: int, error: Exception) -> RunError:
        data, clients = self.executor.worker.problem.data, self.tasks[number]["clients"].tolist()
        named = ", ".join(data.label(client) for client in clients[:_SHOWN])
        named += f" and {len(clients) - _SHOWN} more" if len(clients) > _SHOWN else ""
        return RunError(
            f"a worker was lost {_DEATHS} times at the work of client{'s' * (len(clients) > 1)} {named} "
            f"({_first_line(error)}); if memory ran out, use fewer --workers or a smaller --stack. The run can be "
            "resumed from its last checkpoint"
        )


class _Cluster:
    """A connection to Ray: to a cluster of our own, to one that runs, or the one that this process has already."""

    def __init__(self, address: str | None, workers: int | None) -> None:
        self.ray = _library()
        self.errors = self.ray.exceptions
        self.folder: str | None = None
        self.ours = not self.ray.is_initialized()
        self.handler = signal.getsignal(signal.SIGTERM)  # Ray puts its own in the place of it
        if self.ours:
            self._connect(address, workers)
        self.ray.util.register_serializer(Tensor, serializer=_bytes_of, deserializer=_tensor_of)
        context = self.ray.get_runtime_context()
        here = next(node for node in self.ray.nodes() if node["NodeID"] == context.get_node_id())
        self.node = (here["NodeManagerAddress"], here["NodeManagerPort"])
        self.head, self.seen = _place(context.gcs_address), time.monotonic()
        self.start = self.ray.remote(num_cpus=1, num_gpus=0, max_restarts=0, scheduling_strategy="SPREAD")(_Actor)

    def _connect(self, address: str | None, workers: int | None) -> None:
        how: dict[str, Any] = {"address": address or "local", "log_to_driver": False, "logging_level": logging.ERROR}
        if address is None:
            self.folder = tempfile.mkdtemp(prefix="fedloom-")
            how |= {"num_cpus": workers or os.cpu_count() or 1, "num_gpus": 0, "include_dashboard": False}
            how |= {"_temp_dir": self.folder}
        try:
            self.ray.init(**how)
        except (RuntimeError, ValueError, ConnectionError, self.errors.RayError) as error:
            self._forget()
            where = "a Ray cluster on this machine" if address is None else f"the Ray cluster at {address}"
            raise ConfigError(f"cannot use {where}: {_first_line(error)}") from error

    def cpus(self) -> int:
        """The CPUs of all nodes, used or not."""
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def place(self, worker: Worker) -> Any:
        """Put the problem where every node will fetch it from, once."""
        try:
            return self.put(worker)
        except (TypeError, AttributeError) as error:
            raise ConfigError(
                f"the model or the method cannot be sent to a cluster ({error}); define it at the top level of a "
                "module that can be imported, or use the executor 'serial'"
            ) from error

    def put(self, value: Any) -> Any:
        """A reference to a value, which lives as long as the reference."""
        self._look()
        return self.ray.put(value)

    def get(self, reference: Any) -> Any:
        """The value; its tensors and arrays lie in the cluster's memory and must not be written to."""
        self._look()
        return self.ray.get(reference)

    def first(self, references: list[Any], seconds: float) -> Any | None:
        """The first that is ready; None if that takes too long."""
        end = time.monotonic() + seconds
        while references and (left := end - time.monotonic()) > 0:
            ready, _ = self.ray.wait(references, num_returns=1, timeout=min(left, _LOOK_SECONDS))
            if ready:
                return ready[0]
            self._look()
        return None

    def _look(self) -> None:
        """Refuse to go on without a cluster: Ray would not raise an error but end this process.

        It does so at once when it finds that the node's own daemon is gone, and after a minute without the head.
        """
        if not _answers(self.node):
            raise _gone("the Ray daemon of this node")
        waited = time.monotonic() - self.seen
        if waited > _LOOK_SECONDS and _answers(self.head):
            self.seen = time.monotonic()
        elif waited > _GONE_SECONDS:
            raise _gone("the head of the Ray cluster")

    def actor(self) -> Any:
        """A worker, which may still have to start."""
        return self.start.remote()

    def close(self, hands: list[_Hand]) -> None:
        """End the workers, and the cluster if it is ours."""
        if not self.ray.is_initialized():
            return self._forget()
        for hand in hands:
            with suppress(Exception):  # it may be gone already, which is what we want
                self.ray.kill(hand.actor)
        self.ray.util.deregister_serializer(Tensor)
        if self.ours:
            self.ray.shutdown()
        self._forget()

    def _forget(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self.handler)


class _Actor:
    """What runs on the cluster: the worker with one torch thread, its data set in the memory of the node."""

    def hello(self, versions: dict[str, str], path: list[str], placed: list[Any]) -> Answer:
        """Get ready; the answer is an error if this node cannot do the work, or would find something else."""
        settle_down()
        sys.path += [folder for folder in path if folder not in sys.path and os.path.isdir(folder)]
        ray = _library()
        ray.util.register_serializer(Tensor, serializer=_bytes_of, deserializer=_tensor_of)
        checked = answered(_refuse_other, versions)
        if not checked[0]:
            return checked
        try:
            self.worker: Worker = ray.get(placed[0])
        except ray.exceptions.RaySystemError as error:  # it arrived, but cannot be read
            return answered(_refuse_unreadable, error)
        return checked

    def work(self, function: str, shared: Message, task: Task) -> Answer:
        """One of the worker's functions; what it gets is its own, so that methods may write to it."""
        return answered(lambda: getattr(self.worker, function)(own(shared), own(task)))


def _refuse_other(versions: dict[str, str]) -> None:
    if (here := _versions()) != versions:
        raise ConfigError(
            f"node {socket.gethostname()} of the cluster has {_said(here)}, and this machine has {_said(versions)}; "
            "install the same versions on all nodes"
        )


def _refuse_unreadable(error: Exception) -> None:
    raise ConfigError(
        f"node {socket.gethostname()} of the cluster cannot load the model or the method: {_first_line(error)}; "
        "install the module that defines it on all nodes"
    )


def own(value: Any) -> Any:
    """A copy of the tensors and arrays in a value: those that Ray gives lie in memory that nobody may write to."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: own(part) for key, part in value.items()}
    return tuple(own(part) for part in value) if isinstance(value, tuple) else value


def _bytes_of(tensor: Tensor) -> tuple[np.ndarray[Any, Any], torch.dtype, tuple[int, ...]]:
    """A tensor as an array of bytes, which Ray places without pickling it and reads in place."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return flat.numpy(), tensor.dtype, tuple(tensor.shape)


def _tensor_of(parts: tuple[np.ndarray[Any, Any], torch.dtype, tuple[int, ...]]) -> Tensor:
    """The tensor again, without a copy."""
    flat, dtype, shape = parts
    if len(flat) == 0:
        return torch.empty(shape, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")  # which nobody will do
        return torch.frombuffer(flat, dtype=dtype).view(shape)


def _versions() -> dict[str, str]:
    """What must be the same everywhere; Ray itself looks at its own version and at Python's."""
    from fedloom import __version__

    return {"fedloom": __version__, "torch": torch.__version__}


def _said(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _library() -> ModuleType:
    try:
        import ray
        import ray.util
    except ImportError as error:
        raise ConfigError("the executor 'ray' needs Ray: pip install 'fedloom[ray]'") from error
    return ray


def _refuse_unreachable(address: str) -> None:
    """Ray itself would try for minutes."""
    from ray._private.services import canonicalize_bootstrap_address

    if "://" in address:
        raise ConfigError(
            f"the Ray address {address!r} is one of a Ray client; start the run on a node of the cluster, with the "
            "address HOST:PORT or 'auto'"
        )
    try:
        found = canonicalize_bootstrap_address(address)
        if found is None:
            raise ConnectionError("no cluster runs on this machine")
        socket.create_connection(_place(found), _CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"there is no Ray cluster at {address!r}: {_first_line(error)}; start one with `ray start --head`, or "
            "leave the address out to use this machine alone"
        ) from error


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _answers(place: tuple[str, int]) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection(place, _CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _gone(what: str) -> RunError:
    return RunError(f"{what} is gone; the run can be resumed from its last checkpoint when there is a cluster again")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
