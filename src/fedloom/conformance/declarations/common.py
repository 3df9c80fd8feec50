"""What declarations share: problems, hyper-parameters, hardships, and the algebra of gradient steps on quadratics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedloom.conformance.answers import Exactly, Limit, Limits, OnAverage, Path, Sense
from fedloom.conformance.drive import Walk, apart
from fedloom.conformance.problems import Known, quadratics
from fedloom.federation.problem import Problem
from fedloom.types import State

F64 = torch.float64
WHO_ANSWERS = ("sampled", "lost", "late")
"""The hardships that only decide whose replies count in a round."""
EVERY_HARDSHIP = (*WHO_ANSWERS, "quantised")
WANDERS = {"quantised": OnAverage(120, warm_up=40)}
"""For rounds that leave less than two thirds of a distance: batches of four of them tell little of each other."""

DRIFT: dict[str, Any] = {"lr": 0.8, "batch": None, "steps": 4}
"""Several full-batch steps, which clients that differ take to different places."""
FALLING = "exponential:0.8:0.97"
"""A step size that falls from round to round."""
ONE_STEP: dict[str, Any] = {"batch": None, "steps": 1}
BATCHES: dict[str, Any] = {"lr": 0.1, "batch": 5, "epochs": 2}
EVERY: dict[str, Any] = {**BATCHES, "lr": "exponential:0.1:0.9", "optimiser": "momentum"}
"""Everything that a client can be told: what must come through to where it is used."""
SHORT = 6
"""Rounds that are enough where every bit must agree."""

Step = Callable[[Known, Any, Tensor], Tensor]
"""From the problem, the method and a model, one for all or one a client, to where that is next."""
Adapted = Callable[[Known, Any, State, Tensor, float | None, int | None], Tensor]
"""From the problem, the method, its state, a model and the user's wish (step size, steps) to each client's model."""

unequal_quadratics = partial(quadratics, unequal=True)
"""Quadratics of clients with unequal sizes: the problem of claims that name no other."""


def unequal_problem() -> Problem:
    """The problem without its answers."""
    return unequal_quadratics().problem


def optimum(known: Known, method: Any) -> Tensor:
    """The minimiser of the objective with the weights that the method uses."""
    return known.minimiser(method.weighting)


def pooled_optimum(known: Known, method: Any) -> Tensor:
    """The optimum of the pooled rows."""
    return known.optimum


def uniform_optimum(known: Known, method: Any) -> Tensor:
    """The minimiser of the plain mean of the clients' losses."""
    return known.minimiser("uniform")


def server_moved(walk: Walk) -> float:
    """How far the server's model is from the first one."""
    return apart(walk.theta(), walk.context(0).theta0)


def follows(name: str, step: Step, method: Mapping[str, Any], **how: Any) -> Path:
    """On quadratics of clients with unequal sizes every round is this step."""
    return Path(name, unequal_quadratics, step, method, **how)


def ends(
    name: str, limit: Limits, method: Mapping[str, Any], rounds: int, tolerance: float = 1e-11, **how: Any
) -> Limit:
    """On quadratics of clients with unequal sizes it comes to this place."""
    return Limit(name, unequal_quadratics, limit, method, rounds, tolerance, **how)


def reached(rounds: int, *hardships: str) -> dict[str, Sense]:
    """The limit itself is found within so many rounds under these hardships; without names, under all."""
    return dict.fromkeys(hardships or EVERY_HARDSHIP, Exactly(rounds))


# Quadratics: ∇f_i = A_i (x − x_i*)


def applied(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Each client's matrix times its vector, or times the one that all have."""
    return (matrices @ vectors.unsqueeze(-1)).squeeze(-1)


def slopes(known: Known, x: Tensor) -> Tensor:
    """∇f_i = A_i (x_i − x_i*) of each client, at one point or at one a client."""
    return applied(known.hessians, x - known.optima)


def quadratic(known: Known, split: str) -> tuple[Tensor, Tensor]:
    """A and b of each client's loss on a split, ∇f = Aθ − b."""
    parts = [known.rows(client, split) for client in known.clients]
    return torch.stack([z.T @ z / len(z) for z, _ in parts]), torch.stack([z.T @ y / len(z) for z, y in parts])


def weights(known: Known, method: Any) -> Tensor:
    """What each client counts for."""
    if method.weighting != "query":
        return known.weights(method.weighting)
    rows = known.problem.data.splits["query"].sizes[known.clients].double()
    return rows / rows.sum()


def prox(known: Known, mu: float | Tensor, x: Tensor) -> Tensor:
    """Each client's argmin f_i + (μ/2)‖· − x‖², of a column of μ one for each."""
    pull = torch.as_tensor(mu, dtype=F64)
    curved = known.hessians + pull.unsqueeze(-1) * torch.eye(x.shape[-1], dtype=F64)
    found: Tensor = torch.linalg.solve(curved, applied(known.hessians, known.optima) + pull * x)
    return found


def local_ends(known: Known, x: Tensor, lr: float, steps: int, mu: float = 0.0) -> Tensor:
    """K steps of client i on f_i + (μ/2)‖y − x‖² from x end at p_i + (I − η(A_i + μI))^K (x − p_i), p_i = prox_i(x)."""
    there, identity = prox(known, mu, x), torch.eye(x.shape[-1], dtype=F64)
    left = torch.linalg.matrix_power(identity - lr * (known.hessians + mu * identity), steps)
    return there + applied(left, x - there)


def descent(slope: Callable[[Tensor], Tensor], x: Tensor, lr: Any, steps: int, beta: float = 0.0) -> Tensor:
    """K steps down a slope by Polyak's momentum, which begins anew: m ← βm + g, x ← x − ηm."""
    m = torch.zeros_like(x)
    for _ in range(steps):
        m = beta * m + slope(x)
        x = x - lr * m
    return x


def local_steps(known: Known, method: Any, x: Tensor) -> Tensor:
    """Where K gradient steps of each client end, by their closed form."""
    return local_ends(known, x, method.lr, method.steps)


def local_momentum(known: Known, method: Any, x: Tensor) -> Tensor:
    """The same by Polyak's momentum."""
    return descent(partial(slopes, known), x, method.lr, method.steps, 0.9)


def averaged(ends: Step) -> Step:
    """A round that averages where the clients end."""
    return lambda known, method, x: weights(known, method) @ ends(known, method, x)


def resting(step: Step) -> Limits:
    """Where rounds end that are an affine map, x ↦ Lx + o, as they are on quadratics: (I − L)⁻¹ o."""

    def limit(known: Known, method: Any) -> Tensor:
        identity = torch.eye(known.problem.model.n, dtype=F64)
        offset = step(known, method, torch.zeros_like(identity[0]))
        linear = torch.stack([step(known, method, axis) - offset for axis in identity], 1)
        found: Tensor = torch.linalg.solve(identity - linear, offset)
        return found

    return limit


averaged_step = averaged(local_steps)
"""A round of FedAvg on quadratics."""
biased_limit = resting(averaged_step)
"""Where FedAvg with K local steps ends on quadratics."""


def fitted(own: Callable[[Any, State], tuple[Any, int]], beta: float = 0.0) -> Adapted:
    """What a client makes of a model by steps on its support: of the method's own size and number, or the user's."""

    def adapted(known: Known, method: Any, state: State, x: Tensor, lr: float | None, steps: int | None) -> Tensor:
        (a, b), (size, number) = quadratic(known, "support"), own(method, state)
        wish = (size if lr is None else lr, number if steps is None else steps)
        return descent(lambda y: applied(a, y) - b, x, *wish, beta)

    return adapted
