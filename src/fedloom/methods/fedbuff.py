"""FedBuff.

J. Nguyen, K. Malik, H. Zhan, A. Yousefpour, M. Rabbat, M. Malek and D. Huba, "Federated learning with buffered
asynchronous aggregation", AISTATS 2022, Algorithm 1. https://arxiv.org/abs/2106.06639
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedloom.federation.replies import Reduce, Replies, Weighting
from fedloom.federation.schedules import ServerRate, rate_at
from fedloom.federation.staleness import polynomial
from fedloom.methods.method import Context
from fedloom.methods.register import register
from fedloom.methods.training import ClientTraining, Weighted
from fedloom.types import State


@register("fedbuff", family="asynchronous", paper="Nguyen et al., AISTATS 2022", declaration=".asynchronous:FEDBUFF")
@dataclass(frozen=True)
class FedBuff(Weighted, ClientTraining):
    """A step whenever so many replies are there, whoever they are from.

    The server gathers K replies, whoever they are from and however old, and steps by the mean of their moves.

    Nobody waits for the slowest client. Without the weights by age the server sees only sums, as secure sums need.
    """

    coordinatewise = True
    default_schedule = "async"
    default_buffer = 10

    server_lr: ServerRate = 1.0
    """η_g, the server's step size, or a schedule of it such as "step:1:50:0.5"."""
    staleness: Literal["root", "none"] = "root"
    """What a move counts for when the server took τ steps since its client fetched: 1/√(1 + τ), or 1 always."""
    weighting: Weighting = "uniform"
    """ "uniform": each reply 1/K (the paper); "size": n_k/Σn over the replies of the buffer."""

    @property
    def reduce(self) -> Reduce:
        """How old a reply is, is known only on arrival: to count by it, the server looks at each."""
        return "sum" if self.staleness == "none" else "each"

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        worth = None if self.staleness == "none" else polynomial(replies.staleness, 0.5)
        mean = replies.mean("dx", worth)  # (1/K) Σ Δ_i/√(1 + τ_i)
        return {"x": state["x"] + rate_at(self.server_lr, ctx.round) * mean}
