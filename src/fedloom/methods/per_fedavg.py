"""Per-FedAvg.

A. Fallah, A. Mokhtari and A. Ozdaglar, "Personalized federated learning with theoretical guarantees: a model-agnostic
meta-learning approach", NeurIPS 2020, Algorithm 1. https://arxiv.org/abs/2002.07948
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedloom.federation.batches import evaluations_of
from fedloom.federation.client import Client
from fedloom.federation.meta import Meta
from fedloom.federation.problem import Problem
from fedloom.federation.replies import Replies, Weighting
from fedloom.federation.schedules import LocalRate, rate_at
from fedloom.methods.adapting import MetaLearning
from fedloom.methods.method import Context, Ints
from fedloom.methods.register import register
from fedloom.methods.training import Weighted
from fedloom.types import Count, Memory, Message, Positive, State


@register("per-fedavg", family="meta-learning", paper="Fallah et al., NeurIPS 2020", declaration=".meta:PER_FEDAVG")
@dataclass(frozen=True)
class PerFedAvg(Weighted, MetaLearning):
    """FedAvg on the loss after one step of adaptation.

    FedAvg on F_i(w) = f_i(w − α∇f_i(w)): local steps along the gradient of the loss after one step of adaptation.

    With one local step it is gradient descent on Σ w_i F_i; with more, clients that differ drift as in FedAvg.
    """

    coordinatewise = True

    lr: LocalRate = 0.1
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

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        w, beta = received["x"], rate_at(self.lr, client.round)
        how = Meta(self.order, self.delta, batch=self.batch, episodes=self.episodes)
        w_i, _ = client.meta_sgd(w, beta, self.alpha, self.steps, how)  # lines 6 to 9
        return {"dx": w_i - w}, memory

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] + replies.mean("dx")}  # line 12
