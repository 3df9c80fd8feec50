"""SCAFFOLD.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich and A. T. Suresh, "SCAFFOLD: stochastic controlled
averaging for federated learning", ICML 2020, Algorithm 1. https://arxiv.org/abs/1910.06378
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedloom.federation.client import Client
from fedloom.federation.replies import Replies
from fedloom.federation.schedules import LocalRate, ServerRate, rate_at
from fedloom.methods.method import Context, Ints
from fedloom.methods.register import register
from fedloom.methods.training import LocalSteps
from fedloom.types import Memory, Message, State


@register("scaffold", family="optimisation", paper="Karimireddy et al., ICML 2020", declaration=".corrections:SCAFFOLD")
@dataclass(frozen=True)
class Scaffold(LocalSteps):
    """Local steps corrected by control variates: no drift.

    Local steps corrected by the difference between what all clients and what this client pull towards.

    The control c_i estimates ∇f_i; with it clients that differ do not drift apart, and the limit is the optimum of the
    plain mean of the f_i, whatever the number of local steps.
    """

    coordinatewise = True

    lr: LocalRate = 0.1
    """η_l, the local step size, or a schedule of it such as "cosine:0.1:0.001:200"."""
    server_lr: ServerRate = 1.0
    """η_g, the server's step size, or a schedule of it."""
    option: Literal["I", "II"] = "II"
    """How c_i is renewed: I, the gradient at the server's model; II, from the steps just taken."""

    def work(self, rows: Ints) -> Ints | None:
        steps = super().work(rows)
        return steps + rows if steps is not None and self.option == "I" else steps

    def server_init(self, ctx: Context) -> State:
        return {"x": ctx.theta0, "c": torch.zeros_like(ctx.theta0)}

    def client_init(self, client: Client, received: Message) -> Memory:
        return {"c": torch.zeros_like(received["x"]).expand(*client.n.shape[:-1], -1)}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {"x": state["x"], "c": state["c"]}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        x, c, c_i = received["x"], received["c"], memory["c"]
        lr = self.rate(client)  # η_l of this round
        y, K = client.sgd(x, lr, self.batch, self.epochs, self.steps, shift=c - c_i)  # line 10
        c_new = client.grad(x) if self.option == "I" else c_i - c + (x - y) / (K * lr)  # line 12, I and II
        return {"dx": y - x, "dc": c_new - c_i}, memory

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        return {"c": memory["c"] + sent["dc"]}  # line 14, by what the server has seen of it

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        x = state["x"] + rate_at(self.server_lr, ctx.round) * replies.mean("dx")  # line 16, 17
        return {"x": x, "c": state["c"] + replies.sum("dc") / ctx.clients}  # |S|/N of their mean
