"""What is known of the two baselines: every client alone, and all data in one place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedloom.conformance.answers import Exactly, Invariant, Limit, Path
from fedloom.conformance.claims import Declaration
from fedloom.conformance.declarations.averaging import FALLING, WHO_ANSWERS, local_maps, slopes, unequal_quadratics
from fedloom.conformance.declarations.courses import ROUNDS, TRAINING, Defaults, Passes
from fedloom.conformance.drive import Walk, apart
from fedloom.conformance.problems import Known, least_squares, logistic, quadratics

_STEPS = {"lr": 0.8, "batch": None, "steps": 4}
_BATCHES = {"lr": 0.1, "batch": 5, "epochs": 2}


def own_optima(known: Known, method: Any) -> Tensor:
    """Each client's own optimum."""
    return known.optima


def pooled_optimum(known: Known, method: Any) -> Tensor:
    """The optimum of the pooled rows."""
    return known.optimum


def own_steps(known: Known, method: Any, x: Tensor) -> Tensor:
    """K gradient steps of each client from its own model."""
    p, q = local_maps(known, method.lr, method.steps)
    return (p @ x.unsqueeze(-1)).squeeze(-1) + q


def own_momentum(known: Known, method: Any, x: Tensor) -> Tensor:
    """The same by Polyak's momentum, which begins anew each round: m ← 0.9m + g, x ← x − ηm."""
    m = torch.zeros_like(x)
    for _ in range(method.steps):
        m = 0.9 * m + slopes(known, x)
        x = x - method.lr * m
    return x


def pooled_momentum(known: Known, method: Any, x: Tensor) -> Tensor:
    """The same on the pooled rows."""
    m = torch.zeros_like(x)
    for _ in range(method.steps):
        m = 0.9 * m + known.weights() @ slopes(known, x)
        x = x - method.lr * m
    return x


def pooled_steps(known: Known, method: Any, x: Tensor) -> Tensor:
    """K gradient steps on the pooled rows."""
    hessian = (known.weights()[:, None, None] * known.hessians).sum(0)
    for _ in range(method.steps):
        x = x - method.lr * hessian @ (x - known.optimum)
    return x


def server_moved(walk: Walk) -> float:
    """How far the server's model is from the first one."""
    return apart(walk.theta(), walk.context(0).theta0)


LOCAL = Declaration(
    claims=(
        Path(
            "each client follows the closed form of its own steps",
            unequal_quadratics,
            own_steps,
            {**_STEPS, "lr": FALLING},
            stands=WHO_ANSWERS,
        ),
        Path("momentum follows its recursion", unequal_quadratics, own_momentum, {**_STEPS, "optimiser": "momentum"}),
        Limit(
            "each client finds its own optimum",
            quadratics,
            own_optima,
            _STEPS,
            rounds=60,
            tolerance=1e-11,
            hardships={name: Exactly(150) for name in ("sampled", "lost", "late", "quantised")},
        ),
        Limit("the same for least squares", least_squares, own_optima, {**_STEPS, "steps": 10}, 120),
        Limit("the same for logistic regression", logistic, own_optima, {**_STEPS, "lr": 4.0, "steps": 10}, 120),
        Invariant("the server learns nothing", lambda: quadratics().problem, server_moved, _STEPS, tolerance=0.0),
        Passes(),
        Defaults({**TRAINING, **ROUNDS, "evaluates": "personal"}),
    ),
    batches=_BATCHES,
)

CENTRAL = Declaration(
    claims=(
        Path("it is gradient descent on the pooled rows", unequal_quadratics, pooled_steps, {**_STEPS, "lr": FALLING}),
        Path(
            "momentum follows its recursion", unequal_quadratics, pooled_momentum, {**_STEPS, "optimiser": "momentum"}
        ),
        Limit(
            "it finds the optimum of the pooled rows",
            unequal_quadratics,
            pooled_optimum,
            _STEPS,
            rounds=40,
            tolerance=1e-11,
            hardships={"lost": Exactly(80), "quantised": Exactly(80)},
        ),
        Limit("the same for least squares", least_squares, pooled_optimum, _STEPS, 60),
        Limit("the same for logistic regression", logistic, pooled_optimum, {**_STEPS, "lr": 4.0}, 60),
        Passes(),
        Defaults({**TRAINING, **ROUNDS}),
    ),
    batches=_BATCHES,
    excused={
        "sampled": "there is one pool, and nobody to sample",
        "late": "the pool is in time in every round, or in none",
    },
)
