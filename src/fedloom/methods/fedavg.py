"""FedAvg.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson and B. Agüera y Arcas, "Communication-efficient learning of deep
networks from decentralized data", AISTATS 2017, Algorithm 1. https://arxiv.org/abs/1602.05629
"""

from __future__ import annotations

from dataclasses import dataclass

from fedloom.federation.client import Client
from fedloom.federation.replies import Replies
from fedloom.methods.method import Context
from fedloom.methods.register import register
from fedloom.methods.training import LocalTraining, Weighted
from fedloom.types import Memory, Message, State


@register("fedavg", family="averaging", paper="McMahan et al., AISTATS 2017", declaration=".averaging:FEDAVG")
@dataclass(frozen=True)
class FedAvg(Weighted, LocalTraining):
    """Local training, then an average of the models.

    Every selected client trains on its own data from the common model; the server averages what they found.

    With more than one local step and clients that differ, the limit is not the minimiser of the average loss: each
    client drifts towards its own (for quadratics the limit has a closed form, which the conformance kit checks).
    """

    coordinatewise = True

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        x = received["x"]
        y, _ = self.train(client, x)  # ClientUpdate(k, w)
        return {"dx": y - x}, memory

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] + replies.mean("dx")}  # w + Σ n_k/n (w_k − w)
