"""What many methods share: weights of clients, and local training, passes over a client's rows with an optimiser."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

from torch import Tensor

from fedloom.federation.batches import evaluations_of, steps_of
from fedloom.federation.client import Client
from fedloom.federation.optimisers import LocalOptimiser, local_optimiser
from fedloom.federation.problem import Problem
from fedloom.federation.replies import Weighting, weight_by
from fedloom.federation.schedules import LocalRate, rate_at
from fedloom.federation.solvers import Inner, SolverName, linear_layer, solver_for
from fedloom.methods.method import Ints, ServerMethod
from fedloom.methods.register import name_of
from fedloom.types import Count, Memory, Message, Positive, Vector


@dataclass(frozen=True)
class Weighted(ServerMethod):
    """A method whose server takes means over clients: each counts for its rows, or all alike."""

    weighting: Weighting = field(default="size", kw_only=True)
    """ "size": n_k/Σn over the clients that answered; "uniform": the plain mean."""

    def weight(self, client: Client) -> Tensor | None:
        return weight_by(self.weighting, client)


@dataclass(frozen=True)
class LocalSteps(ServerMethod):
    """A method whose clients take gradient steps of their own; gives it the hyper-parameters of such steps."""

    lr: LocalRate = 0.1
    """η, the local step size, or a schedule of it such as "cosine:0.1:0.001:200"."""
    batch: Count | None = 32
    """B, rows of a mini-batch; none: all rows of the client."""
    epochs: Count = 1
    """E, passes over the client's rows in a round."""
    steps: Count | None = None
    """K, exactly so many local steps a round instead of epochs."""

    def work(self, rows: Ints) -> Ints | None:
        return evaluations_of(rows, self.batch, steps_of(rows, self.batch, self.epochs, self.steps))

    @property
    def local_batch(self) -> int | None:
        return self.batch

    def rate(self, client: Client) -> float:
        """η in this round."""
        return rate_at(self.lr, client.round)


@dataclass(frozen=True)
class LocalTraining(LocalSteps):
    """A method whose clients train from a given model, by an optimiser of their choice."""

    optimiser: LocalOptimiser = "sgd"
    """The client's optimiser, started afresh each round; momentum has β = 0.9, or another one: "momentum:0.5"."""

    def train(
        self,
        client: Client,
        x: Vector,
        *,
        pull: tuple[float | Tensor, Vector] | None = None,
        shift: Vector | None = None,
    ) -> tuple[Vector, Tensor]:
        """The client's model after its local steps from x, and the number of these steps."""
        lr, rule = self.rate(client), local_optimiser(self.optimiser)
        return client.sgd(x, lr, self.batch, self.epochs, self.steps, optimiser=rule, pull=pull, shift=shift)


@dataclass(frozen=True)
class ClientTraining(LocalTraining):
    """The clients' half of FedAvg and its kin: each trains from the common model and sends by how much it moved."""

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        x = received["x"]
        y, _ = self.train(client, x)  # ClientUpdate, ClientOpt
        return {"dx": y - x}, memory  # Δ_i


@dataclass(frozen=True)
class ProximalSteps(ServerMethod):
    """A method whose clients solve their own problem near a given point, argmin f_i(x) + (ρ/2)‖x − v‖²."""

    solver: SolverName = field(default="auto", kw_only=True)
    """How clients solve: "auto" is exact for linear least squares, newton for other linear models, else lbfgs."""
    tolerance: Positive = field(default=1e-10, kw_only=True)
    """The gradient's norm at which newton and lbfgs stop."""
    max_iterations: Count = field(default=50, kw_only=True)
    """Iterations of newton and lbfgs in a round at most."""
    lr: Positive = field(default=0.1, kw_only=True)
    """Step size of the solver gradient; below 2/(L + ρ)."""
    batch: Count | None = field(default=None, kw_only=True)
    """Rows of a mini-batch of the solver gradient; none: all rows of the client."""
    epochs: Count = field(default=1, kw_only=True)
    """Passes of the solver gradient."""
    steps: Count | None = field(default=None, kw_only=True)
    """Exactly so many steps of the solver gradient instead of epochs."""

    def check(self, problem: Problem) -> None:
        solver = solver_for(problem, self.solver)
        if linear_layer(problem) is None:
            warnings.warn(
                f"{name_of(self)} on a network: subproblems are solved roughly (by {solver!r}) and are not convex, so "
                "neither convergence nor the limit is guaranteed; watch the residuals in the history",
                stacklevel=1,  # one place, so that a run says it once however often it is checked
            )

    def work(self, rows: Ints) -> Ints | None:
        if self.solver == "exact":
            return rows
        if self.solver != "gradient":  # these stop when they are content
            return None
        return evaluations_of(rows, self.batch, steps_of(rows, self.batch, self.epochs, self.steps))

    @property
    def local_batch(self) -> int | None:
        return self.batch

    def inner(self) -> Inner:
        """How a client solves."""
        return Inner(self.solver, self.tolerance, self.max_iterations, self.lr, self.batch, self.epochs, self.steps)
