"""What is known of FedAvg and FedSGD."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedloom.conformance.answers import Exactly, Invariant, Limit, OnAverage, Path, Same
from fedloom.conformance.claims import Declaration
from fedloom.conformance.declarations.courses import ROUNDS, TRAINING, Adapts, Defaults, Passes
from fedloom.conformance.drive import Walk
from fedloom.conformance.problems import Known, agreeing, classification, least_squares, logistic, quadratics
from fedloom.engine.fleet import Distribution, Fleet
from fedloom.federation.problem import Problem
from fedloom.methods import FedSGD
from fedloom.types import State


def unequal_quadratics() -> Known:
    """Quadratics of clients with unequal sizes."""
    return quadratics(unequal=True)


def unequal_problem() -> Problem:
    """The problem without its answers."""
    return unequal_quadratics().problem


def optimum(known: Known, method: Any) -> Tensor:
    """The minimiser of the objective with the weights that the method uses."""
    return known.minimiser(method.weighting)


def local_maps(known: Known, lr: float, steps: Tensor | int) -> tuple[Tensor, Tensor]:
    """K_i gradient steps of client i from x end at P_i x + q_i, with P_i = (I − ηA_i)^K_i and q_i = (I − P_i) x_i*."""
    identity = torch.eye(known.hessians.shape[-1], dtype=torch.float64)
    counts = torch.as_tensor(steps).expand(len(known.clients)).tolist()
    powers = [torch.linalg.matrix_power(identity - lr * a, k) for a, k in zip(known.hessians, counts, strict=True)]
    p = torch.stack(powers)
    return p, ((identity - p) @ known.optima.unsqueeze(-1)).squeeze(-1)


def momentum_step(known: Known, method: Any, x: Tensor) -> Tensor:
    """A round of FedAvg whose clients use Polyak's momentum: m ← 0.9m + g, y ← y − ηm."""
    y = x.repeat(len(known.clients), 1)
    m = torch.zeros_like(y)
    for _ in range(method.steps):
        m = 0.9 * m + slopes(known, y)
        y = y - method.lr * m
    return known.weights(method.weighting) @ y


def adam_step(known: Known, method: Any, x: Tensor) -> Tensor:
    """A round of FedAvg whose clients use Adam, started afresh, with its bias correction."""
    y = x.repeat(len(known.clients), 1)
    m, v = torch.zeros_like(y), torch.zeros_like(y)
    for k in range(1, method.steps + 1):
        g = slopes(known, y)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        y = y - method.lr * (m / (1 - 0.9**k)) / ((v / (1 - 0.999**k)).sqrt() + 1e-8)
    return known.weights(method.weighting) @ y


def averaged_step(known: Known, method: Any, x: Tensor) -> Tensor:
    """A round of FedAvg on quadratics: Σ w_i (P_i x + q_i)."""
    p, q = local_maps(known, method.lr, method.steps)
    return known.weights(method.weighting) @ (p @ x + q)


def biased_limit(known: Known, method: Any, steps: Tensor | None = None) -> Tensor:
    """Where FedAvg with K local steps ends on quadratics: (I − Σ w_i P_i)⁻¹ Σ w_i q_i."""
    p, q = local_maps(known, method.lr, method.steps if steps is None else steps)
    w = known.weights(method.weighting)
    mean = torch.einsum("i,ijk->jk", w, p)
    limit: Tensor = torch.linalg.solve(torch.eye(len(mean), dtype=mean.dtype) - mean, w @ q)
    return limit


_ROWS_IN_TIME = 45  # gradient evaluations that fit before the deadline of the hurried fleet


def hurried_limit(known: Known, method: Any) -> Tensor:
    """The same when client i manages only ⌊45/n_i⌋ of the K steps before the deadline."""
    fitting = torch.div(_ROWS_IN_TIME, known.sizes, rounding_mode="floor").long()
    return biased_limit(known, method, fitting.clamp(1, method.steps))


def gradient_step(known: Known, method: Any, x: Tensor) -> Tensor:
    """A step of gradient descent on quadratics: x − η Σ w_i A_i (x − x_i*)."""
    slope: Tensor = known.weights(method.weighting) @ slopes(known, x)
    return x - slope * float(method.lr)


def slopes(known: Known, x: Tensor) -> Tensor:
    """∇f_i = A_i (x_i − x_i*) of each client, at one point or at one a client."""
    return (known.hessians @ (x - known.optima).unsqueeze(-1)).squeeze(-1)


def miscounted(passes: int) -> Callable[[Walk], float]:
    """How far the count of gradients is from so many passes over all rows in each round."""

    def off(walk: Walk) -> float:
        rows = int(walk.problem.data.splits["train"].sizes.sum())
        return float(abs(walk.clocks.gradient_evaluations - walk.clocks.round * passes * rows))

    return off


def fitted(known: Known, method: Any, state: State, x: Tensor, lr: float | None, steps: int | None) -> Tensor:
    """What a client makes of a model that is not meant to be adapted: gradient steps on its support, one of 0.01."""
    parts = [known.rows(client, "support") for client in known.clients]
    found = x.repeat(len(parts), 1)
    for _ in range(1 if steps is None else steps):
        residuals = [z.T @ (z @ own - y) / len(y) for (z, y), own in zip(parts, found, strict=True)]
        found = found - (0.01 if lr is None else lr) * torch.stack(residuals)
    return found


WHO_ANSWERS = ("sampled", "lost", "late")
"""The hardships that only decide whose replies count in a round."""

_DRIFT: dict[str, Any] = {"lr": 0.8, "batch": None, "steps": 4}
FALLING = "exponential:0.8:0.97"
"""A step size that falls from round to round."""
_ONE_STEP = {"batch": None, "steps": 1}
_WANDERS = {"quantised": OnAverage(200)}

FEDAVG = Declaration(
    claims=(
        Path(
            "K local steps follow their closed form",
            unequal_quadratics,
            averaged_step,
            {**_DRIFT, "lr": FALLING},
            stands=WHO_ANSWERS,
        ),
        Path(
            "momentum follows its recursion, the plain mean too",
            unequal_quadratics,
            momentum_step,
            {**_DRIFT, "optimiser": "momentum", "weighting": "uniform"},
        ),
        Path("Adam follows its recursion", unequal_quadratics, adam_step, {**_DRIFT, "optimiser": "adam"}),
        Limit(
            "K local steps end at their closed form, not at the optimum",
            unequal_quadratics,
            biased_limit,
            _DRIFT,
            rounds=60,
            tolerance=1e-11,
            not_at=optimum,
        ),
        Limit("that limit, clients of equal sizes", quadratics, biased_limit, _DRIFT, 60, 1e-11, _WANDERS, optimum),
        Limit(
            "slow clients that do a part of their steps end at the closed form of these parts",
            unequal_quadratics,
            hurried_limit,
            {**_DRIFT, "steps": 5},
            rounds=60,
            tolerance=1e-11,
            not_at=biased_limit,
            fleet=Fleet(speed=Distribution("constant", _ROWS_IN_TIME), deadline=1.0, late="partial"),
        ),
        Limit(
            "one full step finds the optimum of least squares", least_squares, optimum, {**_ONE_STEP, "lr": 0.8}, 200
        ),
        Limit(
            "one full step finds the optimum of logistic regression", logistic, optimum, {**_ONE_STEP, "lr": 4.0}, 200
        ),
        Limit(
            "mini-batches find the optimum that all clients share",
            agreeing,
            optimum,
            {"lr": 0.2, "batch": 4, "epochs": 2},
            rounds=120,
            hardships={name: Exactly(200) for name in ("sampled", "lost", "late", "quantised")},
        ),
        Same(
            "one full step is FedSGD",
            lambda: unequal_quadratics().problem,
            {**_ONE_STEP, "lr": 0.5},
            FedSGD(lr=0.5),
            tolerance=1e-13,
        ),
        Invariant("E epochs are E passes over every row", classification, miscounted(3), {"batch": 5, "epochs": 3}, 5),
        Passes(),
        Adapts("a client that adapts it takes gradient steps", unequal_quadratics, fitted, _DRIFT),
        Defaults({**TRAINING, **ROUNDS, "weighting": "size"}),
    ),
    batches={"lr": 0.1, "batch": 5, "epochs": 2},
)

FEDSGD = Declaration(
    claims=(
        Path("it is gradient descent", unequal_quadratics, gradient_step, {"lr": FALLING}, stands=WHO_ANSWERS),
        Path("the plain mean is too", unequal_quadratics, gradient_step, {"lr": 0.5, "weighting": "uniform"}),
        Limit("it finds the optimum", unequal_quadratics, optimum, {"lr": 0.8}, 100, 1e-11),
        Limit("the same, clients of equal sizes", quadratics, optimum, {"lr": 0.8}, 100, 1e-11, _WANDERS),
        Limit("it finds the optimum of least squares", least_squares, optimum, {"lr": 0.8}, 200),
        Limit("it finds the optimum of logistic regression", logistic, optimum, {"lr": 4.0}, 200),
        Invariant("a gradient is one pass over every row", classification, miscounted(1), rounds=5),
        Defaults({**ROUNDS, "lr": 0.1, "weighting": "size"}),
    ),
    batches={"lr": 0.1},
    divisible=False,
)
