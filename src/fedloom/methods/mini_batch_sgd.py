"""Mini-batch SGD on a regularised loss, with which CoCoA and MOCHA are compared.

M. Jaggi, V. Smith, M. Takáč, J. Terhorst, S. Krishnan, T. Hofmann and M. I. Jordan, "Communication-efficient
distributed dual coordinate ascent", NeurIPS 2014, Section 6. https://arxiv.org/abs/1409.1458; its step size is that of
S. Shalev-Shwartz, Y. Singer, N. Srebro and A. Cotter, "Pegasos", Mathematical Programming 127(1), 2011.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from fedloom.federation.client import Client
from fedloom.federation.replies import Replies
from fedloom.methods.method import Context, Ints, ServerMethod
from fedloom.methods.register import register
from fedloom.search import Search
from fedloom.types import Count, Memory, Message, Positive, State


@register("mini-batch-sgd", family="baseline", paper="Jaggi et al., 2014", declaration=".dual:MINI_BATCH_SGD")
@dataclass(frozen=True)
class MiniBatchSGD(ServerMethod):
    """A stochastic gradient of each client, and a step of the server on the regularised loss.

    min (λ/2)‖w‖² + (1/n) Σ ℓ(w, x_i): each client sends the gradient of a mini-batch, each counts for its rows, and the
    t-th step is β/(λt) along λw and their mean. All of w is regularised, a bias too.
    """

    coordinatewise = True

    batch: Count | None = 32
    """B, rows of a client's mini-batch; none: all rows of the client."""
    lambda_: Annotated[Positive, Search(1e-5, 1.0, log=True)] = 0.01
    """λ, how much ‖w‖²/2 counts beside the mean loss."""
    beta: Annotated[Positive, Search(1e-3, 1.0, log=True)] = 1.0
    """β, by which the step 1/(λt) is scaled."""

    @property
    def local_batch(self) -> int | None:
        return self.batch

    def work(self, rows: Ints) -> Ints | None:
        return rows if self.batch is None else np.minimum(rows, self.batch)

    def weight(self, client: Client) -> Tensor | None:
        return client.n

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        (rows,) = client.batches("train", self.batch, steps=1)
        return {"g": client.grad(received["x"], rows)}, memory

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        x, eta = state["x"], self.beta / (self.lambda_ * (ctx.round + 1))
        return {"x": x - eta * (self.lambda_ * x + replies.mean("g"))}

    def measure(self, client: Client, received: Message, memory: Memory) -> dict[str, Tensor]:
        with torch.no_grad():
            loss = client.loss(received["x"]).double()
        rows = client.n.double().squeeze(-1) if client.stacked else client.n.double()
        return {"loss": rows * loss, "rows": rows}

    def report(self, state: State, sums: dict[str, Tensor]) -> dict[str, float]:
        """P(w)."""
        if not sums or float(sums["rows"]) == 0:
            return {}
        x = state["x"].double()
        return {"primal": self.lambda_ / 2 * float(x @ x) + float(sums["loss"] / sums["rows"])}
