"""FedAsync.

C. Xie, S. Koyejo and I. Gupta, "Asynchronous federated optimization", 2019, Algorithm 1. https://arxiv.org/abs/1903.03934
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedloom.federation.client import Client
from fedloom.federation.replies import Replies
from fedloom.federation.staleness import constant, hinge, polynomial
from fedloom.methods.method import Context
from fedloom.methods.register import register
from fedloom.methods.training import LocalTraining
from fedloom.search import Search
from fedloom.types import Fraction, Memory, Message, NonNegative, Positive, State


@register("fedasync", family="asynchronous", paper="Xie, Koyejo and Gupta, 2019", declaration=".asynchronous:FEDASYNC")
@dataclass(frozen=True)
class FedAsync(LocalTraining):
    """Each reply mixed in as it arrives, the older the less.

    How old a reply is, is how many steps the server took since its client fetched the model that it was made from.

    A client that fetched x_τ minimises f_k(x) + (ρ/2)‖x − x_τ‖² roughly and sends the model that it found. Several
    replies in one step (a buffer, or a synchronous round) are taken one after the other, in order of client id.
    """

    coordinatewise = True
    default_schedule = "async"
    reduce = "each"

    alpha: Annotated[Fraction, Search(0.1, 1.0)] = 0.6
    """α, how much of a fresh reply is mixed in; 0: the model stays as it is, 1: it becomes the reply."""
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial"
    """s, what is left of α when the server took Δ steps since the client fetched: 1, (Δ + 1)^−a, or 1/(a(Δ − b) + 1)
    from Δ = b on."""
    a: Positive | None = None
    """How fast s falls; none: 0.5 for polynomial, 10 for hinge."""
    b: NonNegative = 4
    """Of hinge, the staleness up to which a reply counts in full."""
    rho: Annotated[NonNegative, Search(1e-4, 1.0, log=True)] = 0.005
    """ρ, the strength of the proximal term."""

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        x = received["x"]
        y, _ = self.train(client, x, pull=(self.rho, x) if self.rho > 0 else None)  # ≈ argmin f_k + ρ/2‖· − x_τ‖²
        return {"x": y}, memory  # x_new, whatever the server has by then

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        alpha = self.alpha * self.worth(replies.staleness).expand(len(replies.clients))  # α_t = α·s(t − τ)
        kept = (1 - alpha).flip(0).cumprod(0).flip(0)  # what is left after a reply and all that follow it
        share = alpha * torch.cat([kept[1:], kept.new_ones(1)])
        return {"x": float(kept[0]) * state["x"] + replies.sum("x", share)}  # x ← (1 − α_t)x + α_t x_new, one by one

    def worth(self, staleness: Tensor) -> Tensor:
        """s(t − τ) of each reply."""
        match self.staleness:
            case "constant":
                return constant(staleness)
            case "polynomial":
                return polynomial(staleness, 0.5 if self.a is None else self.a)
            case "hinge":
                return hinge(staleness, 10.0 if self.a is None else self.a, self.b)
