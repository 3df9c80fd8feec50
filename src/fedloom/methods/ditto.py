"""Ditto.

T. Li, S. Hu, A. Beirami and V. Smith, "Ditto: fair and robust federated learning through personalization", ICML 2021,
Algorithm 1. https://arxiv.org/abs/2012.04221
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from fedloom.federation.client import Client
from fedloom.federation.optimisers import local_optimiser
from fedloom.federation.replies import Replies
from fedloom.methods.method import Context, Ints
from fedloom.methods.register import register
from fedloom.methods.training import LocalTraining, Weighted
from fedloom.search import Search
from fedloom.types import Memory, Message, NonNegative, Positive, State, Vector


@register("ditto", family="personalisation", paper="Li et al., ICML 2021", declaration=".tuned:DITTO")
@dataclass(frozen=True)
class Ditto(Weighted, LocalTraining):
    """FedAvg, and beside it a model for each client that is held near the common one.

    The common model w is that of FedAvg, whatever λ is. Each client also keeps a model v_k of its own, which minimises
    f_k(v) + (λ/2)‖v − w‖², w being the model that it was sent: λ = 0 is every client alone, a large λ FedAvg.
    """

    coordinatewise = True
    evaluates: ClassVar[Literal["global", "personal"]] = "personal"

    lambda_: Annotated[NonNegative, Search(0.01, 10.0, log=True)] = 1.0
    """λ, how strongly v_k is held near w; λ times the step size must stay below 2."""
    personal_lr: Annotated[Positive | None, Search(1e-3, 1.0, log=True)] = None
    """The step size of v_k; none: as that of w."""

    def work(self, rows: Ints) -> Ints | None:
        steps = super().work(rows)
        return None if steps is None else 2 * steps

    def client_init(self, client: Client, received: Message) -> Memory:
        return {"v": received["x"].expand(*client.n.shape[:-1], -1)}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        w = received["x"]
        w_k, _ = self.train(client, w)  # line 5, as FedAvg does
        v_k, _ = client.sgd(  # line 6: v_k ← v_k − η(∇f_k(v_k) + λ(v_k − wᵗ))
            memory["v"],
            self.personal_lr or self.rate(client),
            self.batch,
            self.epochs,
            self.steps,
            optimiser=local_optimiser(self.optimiser),
            pull=(self.lambda_, w) if self.lambda_ > 0 else None,
            purpose="personal",
        )
        return {"dx": w_k - w}, {"v": v_k}

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] + replies.mean("dx")}  # line 9

    def personal(self, client: Client, state: State, memory: Memory) -> Vector:
        return memory["v"]
