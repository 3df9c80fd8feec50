"""What is known of the two baselines: every client alone, and all data in one place."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedloom.conformance.answers import Invariant, Limit
from fedloom.conformance.claims import Declaration
from fedloom.conformance.declarations.common import (
    BATCHES,
    DRIFT,
    FALLING,
    WHO_ANSWERS,
    descent,
    ends,
    follows,
    local_momentum,
    local_steps,
    pooled_optimum,
    reached,
    server_moved,
    slopes,
)
from fedloom.conformance.declarations.courses import ROUNDS, TRAINING, Defaults, Passes
from fedloom.conformance.problems import Known, least_squares, logistic, quadratics


def own_optima(known: Known, method: Any) -> Tensor:
    """Each client's own optimum."""
    return known.optima


def pooled_steps(known: Known, method: Any, x: Tensor) -> Tensor:
    """K steps on the pooled rows, by gradient descent or by Polyak's momentum."""
    beta = 0.9 if method.optimiser == "momentum" else 0.0
    return descent(lambda y: known.weights() @ slopes(known, y), x, method.lr, method.steps, beta)


_MOMENTUM = {**DRIFT, "optimiser": "momentum"}

LOCAL = Declaration(
    claims=(
        follows(
            "each client follows the closed form of its own steps",
            local_steps,
            {**DRIFT, "lr": FALLING},
            stands=WHO_ANSWERS,
        ),
        follows("momentum follows its recursion", local_momentum, _MOMENTUM),
        Limit("each client finds its own optimum", quadratics, own_optima, DRIFT, 60, 1e-11, reached(150)),
        Limit("the same for least squares", least_squares, own_optima, {**DRIFT, "steps": 10}, 120),
        Limit("the same for logistic regression", logistic, own_optima, {**DRIFT, "lr": 4.0, "steps": 10}, 120),
        Invariant("the server learns nothing", lambda: quadratics().problem, server_moved, DRIFT, tolerance=0.0),
        Passes(),
        Defaults({**TRAINING, **ROUNDS, "evaluates": "personal"}),
    ),
    batches=BATCHES,
)

CENTRAL = Declaration(
    claims=(
        follows("it is gradient descent on the pooled rows", pooled_steps, {**DRIFT, "lr": FALLING}),
        follows("momentum follows its recursion", pooled_steps, _MOMENTUM),
        ends(
            "it finds the optimum of the pooled rows",
            pooled_optimum,
            DRIFT,
            40,
            hardships=reached(80, "lost", "quantised"),
        ),
        Limit("the same for least squares", least_squares, pooled_optimum, DRIFT, 60),
        Limit("the same for logistic regression", logistic, pooled_optimum, {**DRIFT, "lr": 4.0}, 60),
        Passes(),
        Defaults({**TRAINING, **ROUNDS}),
    ),
    batches=BATCHES,
    excused={
        "sampled": "there is one pool, and nobody to sample",
        "late": "the pool is in time in every round, or in none",
    },
)
