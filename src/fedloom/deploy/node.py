"""The node's half: a client's work, done with the rows and the memory of this device."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from flwr.app import RecordDict

from fedloom.deploy.apps import EXPERIMENT
from fedloom.deploy.card import Card
from fedloom.deploy.codec import Tree, encode, unbundle
from fedloom.deploy.memory import ContextKeeper, FileKeeper, Keeper, NodeMemory
from fedloom.deploy.rows import NodeConfig, alone, own_rows
from fedloom.errors import ConfigError, FedloomError, MessageError
from fedloom.execution import Worker, one_thread
from fedloom.execution.worker import Task
from fedloom.experiment import Experiment
from fedloom.federation.data import FederatedData
from fedloom.federation.randomness import Draw
from fedloom.methods.method import stateful
from fedloom.types import Memory

HELLO = "hello"
FUNCTIONS = ("client", "evaluate", "measure")
_RUN = re.compile(r"[0-9a-f]{32}")


def asks_who(content: RecordDict) -> bool:
    """Whether a message asks a node who it is, as it is asked when a run begins."""
    return "own.rest" in content and content["own.rest"].get("json") == encode({"function": HELLO})["rest"]["json"]


@dataclass(frozen=True, eq=False)
class Node:
    """One device: its rows, its memory, and what it does with the server's messages."""

    folder: Path
    config: NodeConfig
    state: RecordDict

    @cached_property
    def experiment(self) -> Experiment:
        """What is to be done, as the server has it too."""
        return Experiment.load(self.folder / EXPERIMENT)

    @cached_property
    def rows(self) -> FederatedData:
        """This device's rows."""
        return own_rows(self.experiment, self.folder, self.config)

    def answer(self, content: RecordDict) -> RecordDict:
        """The reply to a message, which has what all are sent and what is for this node; a failure is a reply too."""
        return encode(self._guarded(content))

    def _guarded(self, content: RecordDict) -> Tree:
        try:
            parts = unbundle(content)
            with one_thread():
                return self._answer(parts.get("own", {}), parts.get("shared", {}))
        except Exception as error:
            traceback.print_exc()
            return {"error": str(error) if isinstance(error, FedloomError) else f"{type(error).__name__}: {error}"}

    def _answer(self, tree: Tree, shared: Tree) -> Tree:
        function = tree.get("function")
        if function == HELLO:
            client = self.config.get("client")
            return {"card": Card.of(self.rows, client if isinstance(client, int) else None).tree()}
        if function not in FUNCTIONS:
            raise MessageError(f"the server asks for {function!r}, which no node does; use the same fedloom everywhere")
        task: Task = tree["task"]
        worker = self._worker(int(task["clients"][0]))
        if function == "client":
            return self._client(worker, shared, task, tree["run"])
        memory = self._remembering(task, tree["run"])
        if tree.get("model"):
            memory, shared = {**memory, "theta": shared["theta"]}, {}
        found: Tree = getattr(worker, function)(shared, {**task, **memory})
        return found

    @cached_property
    def _workers(self) -> dict[int, Worker]:
        return {}

    def _worker(self, client: int) -> Worker:
        """What computes for a client of this number, which has the rows of this device."""
        if client not in self._workers:
            experiment = self.experiment.on(alone(self.rows, 0, client))
            worker = Worker(experiment.problem(), experiment.method, experiment.channel, experiment.top.seed)
            self._workers[client] = worker
        return self._workers[client]

    def _client(self, worker: Worker, shared: Memory, task: Task, run: str) -> Tree:
        """A turn: the reply as it travels, and the memory after it kept beside the one before."""
        found = worker.client(shared, {**task, **self._remembering(task, run), "wire": True, "drop": False})
        if stateful(worker.method) and bool(found["finite"].all()):
            clients, draw = task["clients"], Draw(worker.seed, task["turn"])
            client = worker.problem.client(clients, draw, round=task["round"])
            inbox = {**shared, **task.get("unicast", {})}
            after = worker.method.settle(client, found["memory"], found["sent"], inbox)
            kept = {key: value[0].clone() for key, value in after.items()}
            NodeMemory(self._keeper(run)).offer((_accepted(task), _saved(task)), task["turn"], kept)
        return {"wire": found["wire"], "evaluations": found["evaluations"]}

    def _remembering(self, task: Task, run: str) -> Task:
        """The memory that the server's message refers to, as a worker wants it."""
        if "known" not in task:
            return {}
        memory = NodeMemory(self._keeper(run)).recall(_accepted(task))
        columns = {} if memory is None else {key: value[None] for key, value in memory.items()}
        return {"known": torch.tensor([memory is not None]), "memory": columns}

    def _keeper(self, run: str) -> Keeper:
        if not _RUN.fullmatch(run):
            raise MessageError(f"the run is called {run[:40]!r}; use the same fedloom everywhere")
        place = self.config.get("state")
        if place is None:
            return ContextKeeper(self.state)
        if not isinstance(place, str):
            raise ConfigError(f"the node's state = {place!r} is no folder; start it with --node-config \"state='DIR'\"")
        return FileKeeper(Path(place), run)


def _accepted(task: Task) -> int | None:
    """The last turn of the task's client that the server accepted …"""
    return int(task["memory"]["turn"][0]) if bool(task["known"].any()) else None


def _saved(task: Task) -> int | None:
    """… and the one that it had accepted when it saved itself last."""
    return int(task["saved"][0]) if "saved" in task else None
