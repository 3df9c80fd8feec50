"""Elastic averaging SGD.

S. Zhang, A. Choromanska and Y. LeCun, "Deep learning with elastic averaging SGD", NeurIPS 2015, equations (5), (6) and
Algorithm 1. https://arxiv.org/abs/1412.6651
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Interval
from torch import Tensor

from fedloom.federation.batches import Rows, evaluations_of
from fedloom.federation.client import Carry, Client
from fedloom.federation.data import SOURCE
from fedloom.federation.problem import Problem
from fedloom.federation.replies import Replies
from fedloom.federation.schedules import LocalRate, rate_at
from fedloom.methods.method import Context, Ints, ServerMethod
from fedloom.methods.register import register
from fedloom.search import Search
from fedloom.types import Count, Memory, Message, Positive, State, Vector


@register("easgd", family="personalisation", paper="Zhang et al., NeurIPS 2015", declaration=".coupled:EASGD")
@dataclass(frozen=True)
class EASGD(ServerMethod):
    """Each client has a model on a spring to the common centre, and the centre is on all of these springs.

    Client i keeps x_i. When it meets the server both move by the same difference, a(x_i − x̃): x_i towards the centre,
    the centre towards x_i. Between two meetings are τ local steps. With τ = 1 and all clients' rows in each step it
    rests where Σ f_i(x_i) + (ρ/2) Σ‖x_i − x̄‖² is least, ρ = a/η, the centre being x̄.

    Replies may be taken as they arrive: the difference is to the centre that the client had fetched, on both sides.
    """

    coordinatewise = True
    evaluates: ClassVar[Literal["global", "personal"]] = "personal"

    lr: LocalRate = 0.1
    """η, the local step size, or a schedule of it."""
    tau: Annotated[Count, Search(1, 64, log=True)] = 10
    """τ, local steps between two meetings of a client with the server."""
    batch: Count | None = 32
    """Rows of a mini-batch; none: all rows of the client."""
    beta: Annotated[float, Interval(gt=0, le=1), Search(0.1, 1.0)] = 0.9
    """β, how far the centre moves towards the mean of all clients when all meet it: a = β/N."""
    rho: Positive | None = None
    """ρ, the stiffness of the springs: a = ηρ in the place of β/N; N·a should not be above 1."""

    def check(self, problem: Problem) -> None:
        clients, a = len(problem.data.with_role(SOURCE)), rate_at(self.lr, 0) * (self.rho or 0)
        if clients * a > 2:
            warnings.warn(
                f"easgd: {clients} clients with a = ηρ = {a:g} move the centre beyond their mean when all meet it, and "
                f"further each time; make rho smaller than {1 / (clients * rate_at(self.lr, 0)):.3g}, or let few "
                "clients take part at a time",
                stacklevel=1,  # one place, so that a run says it once however often it is checked
            )

    def work(self, rows: Ints) -> Ints | None:
        return evaluations_of(rows, self.batch, np.where(rows > 0, self.tau, 0))

    @property
    def local_batch(self) -> int | None:
        return self.batch

    def server_init(self, ctx: Context) -> State:
        return {"x": ctx.theta0, **self._share(ctx)}

    def client_init(self, client: Client, received: Message) -> Memory:
        return {"x": received["x"].expand(*client.n.shape[:-1], -1)}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return dict(state)

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        x, centre, eta = memory["x"], received["x"], rate_at(self.lr, client.round)
        a = received["a"] if self.rho is None else eta * self.rho
        elastic = a * (x - centre)  # a(x_i − x̃), of this meeting

        def iterate(now: Carry, rows: Rows) -> Carry:  # (5): the first step has both, from one and the same x_i
            return {
                "x": now["x"] - eta * client.grad(now["x"], rows) - now["elastic"],
                "elastic": torch.zeros_like(elastic),
            }

        after, _ = client.scan(iterate, {"x": x, "elastic": elastic}, self.batch, steps=self.tau)
        return {"dx": elastic}, {"x": after["x"] + elastic}  # without it, until it is known what of it arrived

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        return {"x": memory["x"] - sent["dx"]}  # by the very difference that the centre moves by

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] + replies.sum("dx"), **self._share(ctx)}  # (6)

    def personal(self, client: Client, state: State, memory: Memory) -> Vector:
        return memory["x"]

    def _share(self, ctx: Context) -> State:
        """a = β/N, of the clients that there are now; clients know a = ηρ themselves."""
        return {} if self.rho is not None else {"a": torch.tensor(self.beta / ctx.clients, dtype=ctx.theta0.dtype)}
