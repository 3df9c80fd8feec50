"""What many methods share: weights of clients, and local training, passes over a client's rows with an optimiser."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from fedloom.federation.batches import evaluations_of, steps_of
from fedloom.federation.client import Client
from fedloom.federation.optimisers import local_optimiser
from fedloom.federation.replies import Weighting, weight_by
from fedloom.federation.schedules import LocalRate, rate_at
from fedloom.methods.method import Ints, ServerMethod
from fedloom.types import Count, Memory, Message, Vector


@dataclass(frozen=True)
class Weighted(ServerMethod):
    """A method whose server takes means over clients: each counts for its rows, or all alike."""

    weighting: Weighting = field(default="size", kw_only=True)
    """ "size": n_k/Σn over the clients that answered; "uniform": the plain mean."""

    def weight(self, client: Client) -> Tensor | None:
        return weight_by(self.weighting, client)


@dataclass(frozen=True)
class LocalSteps(ServerMethod):
    """A method whose clients take gradient steps of their own; gives it the hyper-parameters of such steps."""

    lr: LocalRate = 0.1
    """η, the local step size, or a schedule of it such as "cosine:0.1:0.001:200"."""
    batch: Count | None = 32
    """B, rows of a mini-batch; none: all rows of the client."""
    epochs: Count = 1
    """E, passes over the client's rows in a round."""
    steps: Count | None = None
    """K, exactly so many local steps a round instead of epochs."""

    def work(self, rows: Ints) -> Ints | None:
        return evaluations_of(rows, self.batch, steps_of(rows, self.batch, self.epochs, self.steps))

    @property
    def local_batch(self) -> int | None:
        return self.batch

    def rate(self, client: Client) -> float:
        """η in this round."""
        return rate_at(self.lr, client.round)


@dataclass(frozen=True)
class LocalTraining(LocalSteps):
    """A method whose clients train from a given model, by an optimiser of their choice."""

    optimiser: Literal["sgd", "momentum", "adam"] = "sgd"
    """The client's optimiser, started afresh each round."""

    def train(
        self,
        client: Client,
        x: Vector,
        *,
        pull: tuple[float | Tensor, Vector] | None = None,
        shift: Vector | None = None,
    ) -> tuple[Vector, Tensor]:
        """The client's model after its local steps from x, and the number of these steps."""
        lr, rule = self.rate(client), local_optimiser(self.optimiser)
        return client.sgd(x, lr, self.batch, self.epochs, self.steps, optimiser=rule, pull=pull, shift=shift)


@dataclass(frozen=True)
class ClientTraining(LocalTraining):
    """The clients' half of FedAvg and its kin: each trains from the common model and sends by how much it moved."""

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        x = received["x"]
        y, _ = self.train(client, x)  # ClientUpdate, ClientOpt
        return {"dx": y - x}, memory  # Δ_i
