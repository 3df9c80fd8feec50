"""pFedMe.

C. T. Dinh, N. H. Tran and T. D. Nguyen, "Personalized federated learning with Moreau envelopes", NeurIPS 2020,
Algorithm 1. https://arxiv.org/abs/2006.08848
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from fedloom.federation.batches import Rows, evaluations_of
from fedloom.federation.client import Carry, Client
from fedloom.federation.problem import Problem
from fedloom.federation.replies import Replies, Weighting
from fedloom.federation.schedules import LocalRate, rate_at
from fedloom.federation.solvers import Inner, SolverName, solver_for
from fedloom.methods.method import Context, Ints
from fedloom.methods.register import register
from fedloom.methods.training import Weighted
from fedloom.search import Search
from fedloom.types import Count, Memory, Message, NonNegative, Positive, State, Vector


@register("pfedme", family="personalisation", paper="Dinh et al., NeurIPS 2020", declaration=".coupled:PFEDME")
@dataclass(frozen=True)
class PFedMe(Weighted):
    """Clients' own models near a common one, which descends on the Moreau envelopes of their losses.

    Client i has its own model θ_i = argmin f_i(θ) + (λ/2)‖θ − w_i‖², found roughly by inner steps or exactly by a
    solver; the common model moves towards it, w_i ← w_i − ηλ(w_i − θ_i), for R local rounds. With exact solves and
    R = 1 the θ_i minimise Σ f_i(θ_i) + (λ/2) Σ‖θ_i − θ̄‖² and w is their mean; with larger R clients drift apart, as in
    FedAvg.
    """

    coordinatewise = True
    evaluates: ClassVar[Literal["global", "personal"]] = "personal"

    lambda_: Annotated[Positive, Search(0.1, 50.0, log=True)] = 15.0
    """λ, how strongly a client's own model is held near the common one."""
    lr: LocalRate = 0.005
    """η, the step size of w_i, or a schedule of it; ηλ is the part of the way that w_i goes towards θ_i."""
    local_rounds: Annotated[Count, Search(1, 50, log=True)] = 20
    """R, local rounds in a round: each has a mini-batch, inner steps on θ_i, and a step of w_i."""
    inner_steps: Annotated[Count, Search(1, 20, log=True)] = 5
    """K, inner steps on the mini-batch of a local round."""
    personal_lr: Annotated[Positive, Search(1e-3, 1.0, log=True)] = 0.1
    """η_p, the size of an inner step; below 2/(L + λ + μ)."""
    batch: Count | None = 20
    """Rows of the mini-batch of a local round; none: all rows of the client."""
    beta: Annotated[Positive, Search(0.5, 2.0)] = 1.0
    """β, the server's step: w ← (1 − β)w + β·mean w_i."""
    mu: NonNegative = 0.0
    """μ, a weight decay on θ_i in the inner steps; the authors' code has 0.001."""
    warm_start: bool = True
    """Whether θ_i goes on from one local round to the next (the authors' code), or begins each of them at w_i."""
    solver: SolverName = "gradient"
    """How θ_i is found: "gradient" by K inner steps on a mini-batch; "auto" exactly for linear least squares, by newton
    for other linear models, else by lbfgs, on all rows."""
    tolerance: Positive = 1e-10
    """The gradient's norm at which newton and lbfgs stop."""
    weighting: Weighting = "uniform"
    """ "uniform": the plain mean of the f_i (the paper); "size": Σ (n_i/n) f_i (the authors' code)."""

    def check(self, problem: Problem) -> None:
        solver_for(problem, self.solver)

    def work(self, rows: Ints) -> Ints | None:
        if self.solver == "gradient":
            return self.inner_steps * evaluations_of(rows, self.batch, np.where(rows > 0, self.local_rounds, 0))
        return self.local_rounds * rows if self.solver == "exact" else None

    @property
    def local_batch(self) -> int | None:
        return self.batch

    def client_init(self, client: Client, received: Message) -> Memory:
        return {"theta": received["x"].expand(*client.n.shape[:-1], -1)}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        w = received["x"].expand_as(memory["theta"])
        eta = rate_at(self.lr, client.round)

        def local_round(now: Carry, rows: Rows | None) -> Carry:
            w_i, theta = now["w"], now["theta"] if self.warm_start else now["w"]
            theta = self._solved(client, w_i, theta) if rows is None else self._stepped(client, w_i, theta, rows)
            return {"w": w_i - eta * self.lambda_ * (w_i - theta), "theta": theta}  # line 8

        now = {"w": w, "theta": w}
        if self.solver == "gradient":
            now, _ = client.scan(local_round, now, self.batch, steps=self.local_rounds)
        else:
            for _ in range(self.local_rounds):
                now = local_round(now, None)
        return {"dx": now["w"] - w}, {"theta": now["theta"]}

    def _stepped(self, client: Client, w: Vector, theta: Vector, rows: Rows) -> Vector:
        """Line 7 by K steps on h(θ) = f̃(θ) + (λ/2)‖θ − w‖² + (μ/2)‖θ‖²."""
        for _ in range(self.inner_steps):
            pulled = self.lambda_ * (theta - w) + self.mu * theta
            theta = theta - self.personal_lr * (client.grad(theta, rows) + pulled)
        return theta

    def _solved(self, client: Client, w: Vector, theta: Vector) -> Vector:
        """Line 7 to the end: argmin h over all rows."""
        rho = self.lambda_ + self.mu
        return client.prox(self.lambda_ / rho * w, rho, theta, Inner(self.solver, self.tolerance))

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] + self.beta * replies.mean("dx")}  # line 12

    def personal(self, client: Client, state: State, memory: Memory) -> Vector:
        return memory["theta"]
