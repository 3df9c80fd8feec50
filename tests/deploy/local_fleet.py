"""A fleet in this process as an executor like any other: a node for each client of the problem at hand."""

from __future__ import annotations

import sys
import uuid
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.append(str(Path(__file__).parent))
from local_grid import LocalGrid, LocalNode

from fedloom.deploy import Terms
from fedloom.deploy.agreement import Agreed
from fedloom.deploy.card import Card
from fedloom.deploy.codec import Tree
from fedloom.deploy.executor import Fleet
from fedloom.deploy.link import Link
from fedloom.deploy.node import Node
from fedloom.deploy.roster import Roster
from fedloom.deploy.rows import alone
from fedloom.execution import Worker
from fedloom.federation.data import FederatedData
from fedloom.types import Memory


@dataclass(frozen=True, eq=False)
class GivenNode(Node):
    """A node that is given what is to be done, and with which rows; others read it in the file of an experiment."""

    worker: Worker = field(kw_only=True)

    def rows(self, agreed: Agreed) -> FederatedData:
        return alone(self.worker.problem.data, self.config["client"], 0)

    def _introduced(self, agreed: Agreed) -> Tree:
        return {"card": Card.of(self.rows(agreed), self.config["client"]).tree()}

    def _worker(self, client: int, agreed: Agreed) -> Worker:
        if (client, "") not in self._workers:
            problem = self.worker.problem.on(alone(self.rows(agreed), 0, client))
            self._workers[client, ""] = replace(self.worker, problem=problem)
        return self._workers[client, ""]


class LocalFleet(Fleet):
    """Messages go as bytes to nodes that compute and remember for themselves; what they remember outlives ``close``."""

    def __init__(self) -> None:
        self.place, self.run = TemporaryDirectory(prefix="fedloom-"), uuid.uuid4().hex

    def open(self, worker: Worker) -> None:
        folder, clients = Path(self.place.name), worker.problem.data.clients
        configs = [{"client": i, "state": str(folder / f"node-{i}")} for i in range(clients)]
        made = partial(GivenNode, worker=worker)
        self.grid = LocalGrid(LocalNode(config, folder, made=made) for config in configs)
        roster = Roster(Link(self.grid), folder)
        roster.run = self.run
        roster.gather(clients, 1.0)
        super().__init__(roster, Terms(out=str(folder), nodes=clients, wait=1.0, deadline=1.0))
        super().open(worker)

    def recalled(self, client: int, turn: int) -> Memory:
        """What a client remembers after a turn, for whoever compares."""
        node = self.grid.nodes[self.roster.nodes[client]].node
        assert node is not None
        memory = node._keeper(self.run, Agreed()).recall(turn)
        assert memory is not None
        return memory
