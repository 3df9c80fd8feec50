"""The node's half: a client's work, done with the rows and the memory of this device."""

from __future__ import annotations

import json
import re
import traceback
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from flwr.app import RecordDict

from fedloom.deploy.agreement import Agreed
from fedloom.deploy.apps import EXPERIMENT
from fedloom.deploy.codec import Tree, encode, unbundle
from fedloom.deploy.link import NONCE
from fedloom.deploy.memory import ContextKeeper, FileKeeper, Keeper
from fedloom.deploy.rows import Device, NodeConfig, alone, device_of, fleet_experiment
from fedloom.engine.sealing import rows_sha256
from fedloom.errors import ConfigError, FedloomError, MessageError
from fedloom.execution import Worker, one_thread
from fedloom.execution.work import Evaluate, Evaluated, Measure, Measured, Memories, Turn, read_tree
from fedloom.experiment import Experiment
from fedloom.federation.data import FederatedData
from fedloom.methods.statistics import with_statistics
from fedloom.types import Message

HELLO, SUMS = "hello", "sums"
THETA = "theta"
"""What all are sent for an evaluation of the server's model: not all that the server keeps."""
_RUN = re.compile(r"[0-9a-f]{32}")


def asks_who(content: RecordDict) -> bool:
    """Whether a message asks a node who it is, as it is asked when a run begins."""
    own = content.config_records.get("own.rest")
    return own is not None and json.loads(str(own["json"])).get("function") == HELLO


@dataclass(frozen=True, eq=False)
class Node:
    """One device: its rows, its memory, and what it does with the server's messages."""

    folder: Path
    config: NodeConfig
    state: RecordDict
    _workers: dict[tuple[int, str], Worker] = field(default_factory=dict, init=False)
    _keepers: dict[tuple[str, str], Keeper] = field(default_factory=dict, init=False)

    @cached_property
    def experiment(self) -> Experiment:
        """What is to be done, as the server has it too."""
        return fleet_experiment(self.folder / EXPERIMENT)

    @cached_property
    def device(self) -> Device:
        """Where this device's rows come from."""
        return device_of(self.experiment, self.folder, self.config)

    def rows(self, agreed: Agreed) -> FederatedData:
        """This device's rows as a model reads them."""
        return self.device.data(agreed)

    def answer(self, content: RecordDict) -> RecordDict:
        """The reply to a message, which has what all are sent and what is for this node; a failure is a reply too."""
        return encode(self._guarded(content))

    def _guarded(self, content: RecordDict) -> Tree:
        bound: Tree = {}
        try:
            parts = unbundle(content)
            own, shared = parts.get("own", {}), parts.get("shared", {})
            bound = {NONCE: own[NONCE]} if NONCE in own else {}
            agreed = Agreed.read(parts["agreed"]) if "agreed" in parts else Agreed()
            with one_thread():
                return self._answer(own, shared, agreed) | bound
        except Exception as error:
            traceback.print_exc()
            text = str(error) if isinstance(error, FedloomError) else f"{type(error).__name__}: {error}"
            return {"error": text} | bound

    def _answer(self, tree: Tree, shared: Tree, agreed: Agreed) -> Tree:
        function = tree.get("function")
        if function == HELLO:
            return self._introduced(agreed)
        if function == SUMS:
            return {"sums": self.device.sums(agreed, tree["wanted"], tree.get("around"))}
        try:
            work = read_tree(tree["work"])
        except (KeyError, TypeError, ValueError) as error:
            raise MessageError(
                f"the server asks for what no node does ({error!r}); use the same fedloom everywhere"
            ) from None
        keeper = self._keeper(tree["run"], agreed)
        worker = self._worker(int(work.clients[0]), agreed)
        if isinstance(work, Evaluate) and THETA in shared:
            work, shared = replace(work, theta=shared[THETA]), {}
        if isinstance(work, Turn | Measure):
            shared = worker.channel.take_down(shared)
            work = replace(work, own=worker.channel.take_down(work.own, stacked=True))
        if isinstance(work, Turn):
            return self._turn(worker, shared, work, keeper)
        assert isinstance(work, Evaluate | Measure)
        counting = replace(worker, shows_rows=False)  # what is told of an evaluation are counts
        found = replace(work, memory=_recalled(work.memory, keeper)).done_by(counting, shared)
        return without_failures(found)

    def _introduced(self, agreed: Agreed) -> Tree:
        """Who this is: its card, or, before all have agreed on how columns are read, what is in its columns."""
        if agreed.nothing and (told := self.device.told()) is not None:
            return {"told": told.as_tree()}
        client = self.config.get("client")
        return {"card": self.device.card(agreed, client if isinstance(client, int) else None).tree()}

    def _worker(self, client: int, agreed: Agreed) -> Worker:
        """What computes for a client of this number, which has the rows of this device."""
        key = (client, agreed.key)
        if key not in self._workers:
            experiment = self.experiment.on(alone(self.rows(agreed), 0, client))
            problem = experiment.problem()
            method = with_statistics(experiment.method, problem.model)
            worker = Worker(problem, method, experiment.channel, experiment.top.seed)
            self._workers[key] = worker
        return self._workers[key]

    def _turn(self, worker: Worker, shared: Message, work: Turn, keeper: Keeper) -> Tree:
        """A turn: the reply as it travels, and the memory after it kept beside the one before."""
        recalled = replace(work, memory=_recalled(work.memory, keeper), wire=True, drop=False)
        found = worker.turn(shared, recalled)
        if work.memory is not None and bool(found.finite.all()):
            kept = {key: value[0].clone() for key, value in found.memory.items()}
            turns = (_accepted(work.memory), _saved(work.memory))
            keeper.offer(turns, work.turn, kept)
        return {"wire": found.wire, "evaluations": found.evaluations, "figures": found.figures}

    def _keeper(self, run: str, agreed: Agreed) -> Keeper:
        """What keeps the memory of a run, whose rows are those that it was begun with, read as they were then."""
        key = (run, agreed.key)
        if key not in self._keepers:
            keeper = self._found(run, rows_sha256(self.rows(agreed)))
            keeper.begin()
            self._keepers[key] = keeper
        return self._keepers[key]

    def _found(self, run: str, rows: str) -> Keeper:
        if not _RUN.fullmatch(run):
            raise MessageError(f"the run is called {run[:40]!r}; use the same fedloom everywhere")
        place = self.config.get("state")
        if place is None:
            return ContextKeeper(rows, self.state)
        if not isinstance(place, str):
            raise ConfigError(f"the node's state = {place!r} is no folder; start it with --node-config \"state='DIR'\"")
        return FileKeeper(rows, Path(place), run)


def _recalled(memory: Memories | None, keeper: Keeper) -> Memories | None:
    """The memory that the server's message refers to, as a worker wants it."""
    if memory is None:
        return None
    own = keeper.recall(_accepted(memory))
    return Memories(torch.tensor([own is not None]), {key: value[None] for key, value in (own or {}).items()})


def without_failures(found: Evaluated | Measured) -> Tree:
    """What was found, as it travels: a node that fails says so instead."""
    return {name: part for name, part in vars(found).items() if name not in ("failures", "points")}


def _accepted(memory: Memories) -> int | None:
    """The last turn of the client that the server accepted …"""
    return int(memory.columns["turn"][0]) if bool(memory.known.any()) else None


def _saved(memory: Memories) -> int | None:
    """… and the one that it had accepted when it saved itself last."""
    return None if memory.saved is None else int(memory.saved[0])
