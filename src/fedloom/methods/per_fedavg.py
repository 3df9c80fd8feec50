"""Per-FedAvg.

A. Fallah, A. Mokhtari and A. Ozdaglar, "Personalized federated learning with theoretical guarantees: a model-agnostic
meta-learning approach", NeurIPS 2020, Algorithm 1. https://arxiv.org/abs/2002.07948
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedloom.federation.batches import evaluations_of
from fedloom.federation.client import Client
from fedloom.federation.meta import Meta
from fedloom.federation.problem import Problem
from fedloom.federation.replies import Replies, Weighting, weight_by
from fedloom.federation.schedules import Rate, rate_at
from fedloom.methods.adapting import MetaLearning, norm, whole_gradient
from fedloom.methods.method import Context, Ints
from fedloom.methods.register import register
from fedloom.types import Count, Memory, Message, Positive, State


@register(
    "per-fedavg",
    family="meta-learning",
    paper="Fallah et al., NeurIPS 2020",
    summary="FedAvg on the loss after one step of adaptation",
    declaration="fedloom.conformance.declarations.meta:PER_FEDAVG",
)
@dataclass(frozen=True)
class PerFedAvg(MetaLearning):
    """FedAvg on F_i(w) = f_i(w − α∇f_i(w)): local steps along the gradient of the loss after one step of adaptation.

    With one local step it is gradient descent on Σ w_i F_i; with more, clients that differ drift as in FedAvg.
    """

    coordinatewise = True

    lr: Rate = 0.1
    """β, the size of a local step, or a schedule of it."""
    steps: Count = 10
    """τ, local steps a round."""
    batch: Count | None = None
    """Rows of each mini-batch; none: all."""
    episodes: Literal["split", "independent"] = "split"
    """ "split": adapt on the support, evaluate on the query. "independent": three mini-batches of the training rows for
    each local step: to adapt, to evaluate, and for the second derivatives (the paper)."""
    delta: Positive = 0.01
    """δ of order = "difference"."""
    weighting: Weighting = "uniform"
    """ "uniform": the plain mean (the paper); "size": n_k/Σn over the clients that answered."""
    gradient_norm: bool = False
    """Also measure ‖∇F(w)‖ whenever the model is evaluated, which costs a meta-gradient of every client."""

    def check(self, problem: Problem) -> None:
        if self.episodes == "split" or self.gradient_norm:
            super().check(problem)

    def work(self, rows: Ints) -> Ints | None:
        if self.episodes == "split":  # it depends on how the rows are split
            return None
        each = evaluations_of(rows, self.batch, np.where(rows > 0, self.steps, 0))
        return each * {"first": 2, "difference": 4, "exact": 5}[self.order]  # to adapt, to evaluate, second derivatives

    @property
    def local_batch(self) -> int | None:
        return self.batch

    def server_init(self, ctx: Context) -> State:
        return {"x": ctx.theta0}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {"x": state["x"]}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        w, beta = received["x"], rate_at(self.lr, client.round)
        how = Meta(self.order, self.delta, batch=self.batch, episodes=self.episodes)
        w_i, _ = client.meta_sgd(w, beta, self.alpha, self.steps, how)  # lines 6 to 9
        return {"dx": w_i - w}, memory

    def weight(self, client: Client) -> Tensor | None:
        return weight_by(self.weighting, client)

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] + replies.mean("dx")}  # line 12

    def measure(self, client: Client, received: Message, memory: Memory) -> dict[str, Tensor]:
        if not self.gradient_norm:
            return {}
        weight = client.n if self.weighting == "size" else torch.ones_like(client.n)
        return {
            "gradient": weight * whole_gradient(client, received["x"], self.alpha),
            "weight": weight.squeeze(-1),
        }

    def report(self, state: State, sums: dict[str, Tensor]) -> dict[str, float]:
        return {"gradient_norm": norm(sums["gradient"] / sums["weight"])} if sums else {}
