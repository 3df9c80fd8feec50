"""FedRep: heads to the body that there is, then the body to these heads.

L. Collins, H. Hassani, A. Mokhtari and S. Shakkottai, "Exploiting shared representations for personalized federated
learning", ICML 2021, Algorithm 1. https://arxiv.org/abs/2102.07078
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from fedloom.errors import ConfigError
from fedloom.federation.batches import evaluations_of, steps_of
from fedloom.federation.client import Client
from fedloom.federation.optimisers import local_optimiser
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.method import Ints, Wish
from fedloom.methods.personal import Named
from fedloom.methods.register import register
from fedloom.search import Search
from fedloom.types import Count, Memory, Message, State, Vector


@register("fedrep", family="personalisation", paper="Collins et al., ICML 2021", declaration=".representation:FEDREP")
@dataclass(frozen=True)
class FedRep(Named, FedAvg):
    """FedPer whose clients train in turn: the head while the body is fixed, then the body while the head is.

    Many passes fit the head of a client to the features that all have in common; one pass then moves the features, and
    the server averages these alone. A client that adapts trains its head only.
    """

    wraps = FedAvg

    head_epochs: Annotated[Count, Search(1, 20, log=True)] = field(default=10, kw_only=True)
    """Passes over the client's rows by which it trains its personal layers first; then come ``epochs`` or ``steps`` of
    the shared ones."""
    head_steps: Count | None = field(default=None, kw_only=True)
    """Exactly so many steps of the personal layers instead of passes."""

    def without_shared(self, layers: str) -> None:
        raise ConfigError(
            f"fedrep needs a shared part, and all layers of the model are personal ({layers}): there is no body that "
            "clients could learn together; name fewer layers, or take a model with more"
        )

    def work(self, rows: Ints) -> Ints | None:
        steps = steps_of(rows, self.batch, self.epochs, self.steps)
        heads = steps_of(rows, self.batch, self.head_epochs, self.head_steps)
        return evaluations_of(rows, self.batch, heads) + evaluations_of(rows, self.batch, steps)

    def work_on(self, client: Client, whole: Message, memory: Memory) -> tuple[Message, Memory]:
        x, lr, rule = whole["x"], self.rate(client), local_optimiser(self.optimiser)
        h, _ = client.sgd(  # line 7: h_i, the body φᵗ being fixed
            x,
            lr,
            self.batch,
            self.head_epochs,
            self.head_steps,
            optimiser=rule,
            direction=self._only(client, True),
            purpose="head",
        )
        y, _ = client.sgd(  # line 10: φ_i, the head h_i being fixed
            h, lr, self.batch, self.epochs, self.steps, optimiser=rule, direction=self._only(client, False)
        )
        return {"dx": y - x}, memory

    def adapt_on(self, client: Client, whole: State, memory: Memory, theta: Vector, wish: Wish) -> Vector:
        head = self._only(client, True)
        return client.sgd(theta, wish.lr or 0.01, None, steps=wish.steps or 1, direction=head, split=wish.split)[0]

    def _only(self, client: Client, personal: bool) -> Callable[[Vector, Vector], Vector]:
        """Steps on the personal coordinates alone, or on the shared ones alone."""
        there = self._parts(client).where(personal)
        return lambda y, g: g * there
