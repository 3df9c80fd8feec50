"""FedProx.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar and V. Smith, "Federated optimization in heterogeneous
networks", MLSys 2020, Algorithm 2. https://arxiv.org/abs/1812.06127
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedloom.federation.client import Client
from fedloom.federation.replies import Replies
from fedloom.methods.method import Context
from fedloom.methods.register import register
from fedloom.methods.training import LocalTraining, Weighted
from fedloom.search import Search
from fedloom.types import Memory, Message, NonNegative, State


@register("fedprox", family="optimisation", paper="Li et al., MLSys 2020", declaration=".corrections:FEDPROX")
@dataclass(frozen=True)
class FedProx(Weighted, LocalTraining):
    """Local training held near the common model; slow clients may do a part.

    FedAvg whose clients are held back: each minimises f_k(w) + (μ/2)‖w − wᵗ‖² instead of f_k alone.

    Slow clients do a part of their epochs and are used all the same (the fleet's ``stragglers`` and ``late =
    "partial"``), which is the point of the paper; or they are dropped (``late = "drop"``). With μ = 0 it is FedAvg.
    """

    coordinatewise = True

    mu: Annotated[NonNegative, Search(1e-3, 10.0, log=True)] = 0.1
    """μ, the strength of the proximal term."""
    adaptive: bool = False
    """Raise μ by 0.1 when the loss rises, lower it by 0.1 after it fell five times in a row (the paper's heuristic)."""

    def server_init(self, ctx: Context) -> State:
        state = {"x": ctx.theta0}
        if self.adaptive:
            state["mu"] = torch.tensor(self.mu, dtype=torch.float64)
            state["loss"] = torch.tensor(torch.finfo(torch.float64).max, dtype=torch.float64)  # no loss rises above it
            state["falls"] = torch.tensor(0)
        return state

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {key: state[key] for key in ("x", "mu") if key in state}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        x = received["x"]
        mu = received["mu"].to(x.dtype) if self.adaptive else self.mu
        pull = (mu, x) if self.adaptive or self.mu > 0 else None
        y, _ = self.train(client, x, pull=pull)  # line 5: ≈ argmin f_k(w) + μ/2‖w − wᵗ‖²
        reply = {"dx": y - x}
        if self.adaptive:
            reply["loss"] = client.loss(x).detach()
        return reply, memory

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        new = {"x": state["x"] + replies.mean("dx")}  # line 6
        return new | (self.adapted(state, replies.mean("loss").double()) if self.adaptive else {})

    def adapted(self, state: State, loss: Tensor) -> State:
        """μ after a round with this loss."""
        mu, falls = state["mu"], state["falls"] + 1
        rose = loss > state["loss"]
        fell = ~rose & (falls == 5)  # … in a row
        mu = torch.where(rose, mu + 0.1, torch.where(fell, torch.clamp(mu - 0.1, min=0), mu))
        return {"mu": mu, "loss": loss, "falls": torch.where(rose | fell, torch.zeros_like(falls), falls)}
