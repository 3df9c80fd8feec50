"""What the two linear baselines share: an exact fit to the rows at hand, and λ by cross-validation within them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, MinLen
from torch import Tensor

from fedloom.federation.client import Client
from fedloom.federation.dual import check_dual
from fedloom.federation.linear import chosen, exact
from fedloom.federation.problem import Problem
from fedloom.methods.method import ServerMethod
from fedloom.methods.register import name_of
from fedloom.search import Search
from fedloom.types import Positive, Vector

GRID = (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)
"""Where λ is looked for."""


@dataclass(frozen=True)
class LinearFit(ServerMethod):
    """A linear model that minimises (1/n) Σ ℓ(w·x, y) + (λ/2)‖w‖², found exactly in the dual."""

    default_dtype: ClassVar[Literal["float32", "float64"]] = "float64"
    default_model = "linear"
    default_rounds = 1

    lambda_: Annotated[Positive | None, Search(1e-5, 10.0, log=True)] = None
    """λ, the strength of the penalty; none: chosen by cross-validation among ``grid``."""
    grid: Annotated[Sequence[Positive], MinLen(1)] = GRID
    """The λ to choose among."""
    folds: Annotated[int, Ge(2)] = 5
    """Folds of the cross-validation: shuffled by the seed, each held out once, the least mean error wins."""
    accuracy: Positive = 1e-8
    """The share of the dual's distance to its optimum that may be left after half of the passes; 1,000 at the most."""

    def check(self, problem: Problem) -> None:
        check_dual(problem, name_of(self))

    def fit(self, client: Client) -> tuple[Vector, Tensor]:
        """The model of the client's rows, and its λ, shape (…, 1)."""
        if self.lambda_ is None:
            strength = chosen(client, self.grid, self.folds)
        else:
            strength = client.n.new_full((*client.n.shape[:-1], 1), self.lambda_)
        return exact(client, strength, self.accuracy).w, strength

    def objective(self, client: Client, w: Vector, strength: Tensor) -> Tensor:
        """(1/n) Σ ℓ(w·x, y) + (λ/2)‖w‖², shape (…, 1)."""
        size = w.double().square().sum(-1, keepdim=True)
        return client.primal(w, 1 / client.n.double().clamp(min=1)) + strength / 2 * size
