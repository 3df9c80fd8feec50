"""FedSGD: one full-batch gradient of each client, one step of the server.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson and B. Agüera y Arcas, "Communication-efficient learning of deep
networks from decentralized data", AISTATS 2017, Section 2. https://arxiv.org/abs/1602.05629
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fedloom.federation.client import Client
from fedloom.federation.replies import Replies
from fedloom.federation.schedules import Rate, rate_at
from fedloom.methods.method import Context, Ints
from fedloom.methods.register import register
from fedloom.methods.training import Weighted
from fedloom.search import Search
from fedloom.types import Memory, Message, State


@register("fedsgd", family="averaging", paper="McMahan et al., AISTATS 2017", declaration=".averaging:FEDSGD")
@dataclass(frozen=True)
class FedSGD(Weighted):
    """One gradient of each client, one step of the server.

    Gradient descent on the average loss, its gradient gathered from the clients.
    """

    coordinatewise = True

    lr: Annotated[Rate, Search(1e-2, 3.0, log=True)] = 0.1
    """η, the server's step size, or a schedule of it such as "cosine:0.1:0.001:200"."""

    def work(self, rows: Ints) -> Ints | None:
        return rows

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        return {"g": client.grad(received["x"])}, memory  # g_k = ∇F_k(w_t)

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        lr = rate_at(self.lr, ctx.round)
        return {"x": state["x"] - lr * replies.mean("g")}  # w − η Σ n_k/n g_k
