"""What methods have in common whose product is a model for clients to adapt: a good start for a few steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.client import Client
from fedloom.federation.data import SOURCE
from fedloom.federation.meta import Order
from fedloom.federation.problem import Problem
from fedloom.methods.method import ServerMethod, Wish
from fedloom.search import Search
from fedloom.types import Memory, Message, Positive, State, Vector


@dataclass(frozen=True)
class Adapting(ServerMethod):
    """A method whose model is evaluated after clients have adapted it: φ = θ − α∇f_s(θ), on all support rows."""

    evaluates: ClassVar[Literal["global", "personal", "adapted"]] = "adapted"

    alpha: Annotated[Positive, Search(1e-3, 1.0, log=True)] = 0.1
    """α, the step size of a client that adapts the model to its support rows, in training and after it."""

    def adapt(self, client: Client, state: State, memory: Memory, theta: Vector, wish: Wish) -> Vector:
        return client.sgd(theta, wish.lr or self.alpha, None, steps=wish.steps or 1, split=wish.split)[0]


@dataclass(frozen=True)
class MetaLearning(Adapting):
    """A method that minimises F(θ) = Σ w_i f_i(θ − α∇f_i(θ; support); query), the loss after adaptation."""

    order: Order = "exact"
    """Second derivatives: "exact", left out ("first"), or by differences of two gradients ("difference")."""
    gradient_norm: bool = field(default=False, kw_only=True)
    """Also measure ‖∇F(θ)‖ whenever the model is evaluated, which costs a meta-gradient of every client."""

    def check(self, problem: Problem) -> None:
        require_episodes(problem, type(self).__name__)

    def whole_gradient(self, client: Client, x: Vector) -> Vector:
        """∇F_i(θ), exact and with all rows."""
        return client.meta_grad(x, self.alpha)[0]

    def measure(self, client: Client, received: Message, memory: Memory) -> dict[str, Tensor]:
        if not self.gradient_norm:
            return {}
        w = self.weight(client)
        w = torch.ones_like(client.n) if w is None else w
        return {"gradient": w * self.whole_gradient(client, received["x"]), "weight": w.squeeze(-1)}

    def report(self, state: State, sums: dict[str, Tensor]) -> dict[str, float]:
        return {"gradient_norm": norm(sums["gradient"] / sums["weight"])} if sums else {}


def require_episodes(problem: Problem, method: str) -> None:
    """Refuses a source client without support or query rows, by name."""
    data = problem.data
    for split in ("support", "query"):
        if split not in data.splits:
            raise ConfigError(f"{method} adapts on support rows, but the data have none; set data.support, such as 0.5")
        sources = data.with_role(SOURCE)
        empty = sources[data.splits[split].sizes[sources] == 0]
        if len(empty):
            more = f" (and {len(empty) - 1} more like it)" if len(empty) > 1 else ""
            raise ConfigError(
                f"{method}: client {data.label(int(empty[0]))} has no {split} rows{more}; give every source client two "
                "training rows at least, and data.support a share between 0 and 1"
            )


def norm(vector: Vector) -> float:
    """‖·‖ as a number."""
    return float(torch.linalg.vector_norm(vector))
