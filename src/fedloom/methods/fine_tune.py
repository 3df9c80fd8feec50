"""FedAvg and then local training: what personalisation costs nothing, and what every personal method must beat.

T. Yu, E. Bagdasaryan and V. Shmatikov, "Salvaging federated learning by local adaptation", 2020 (its fine-tuning).
https://arxiv.org/abs/2002.04758
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from fedloom.federation.client import Client
from fedloom.federation.optimisers import local_optimiser
from fedloom.federation.replies import Replies
from fedloom.methods.method import Context, Wish
from fedloom.methods.register import register
from fedloom.methods.training import ClientTraining, Weighted
from fedloom.search import Search
from fedloom.types import Count, Memory, Positive, State, Vector


@register("fine-tune", family="personalisation", paper="Yu et al., 2020", declaration=".tuned:FINE_TUNE")
@dataclass(frozen=True)
class FineTune(Weighted, ClientTraining):
    """FedAvg, whose model each client trains further on its own rows before using it.

    It trains as FedAvg does. Evaluated is what each client makes of the server's model by passes over the very rows
    that it trains on; nothing of that is sent, or kept.
    """

    coordinatewise = True
    evaluates: ClassVar[Literal["global", "personal", "adapted"]] = "adapted"
    adapts_on: ClassVar[Literal["support", "train"]] = "train"

    personal_epochs: Annotated[Count, Search(1, 20, log=True)] = 5
    """Passes over the client's rows by which it fits the server's model to them."""
    personal_lr: Annotated[Positive | None, Search(1e-3, 1.0, log=True)] = None
    """Their step size; none: as in training."""

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] + replies.mean("dx")}  # FedAvg

    def adapt(self, client: Client, state: State, memory: Memory, theta: Vector, wish: Wish) -> Vector:
        size, rule = wish.lr or self.personal_lr or self.rate(client), local_optimiser(self.optimiser)
        passes = wish.steps or self.personal_epochs
        return client.sgd(theta, size, self.batch, passes, optimiser=rule, split=wish.split)[0]
