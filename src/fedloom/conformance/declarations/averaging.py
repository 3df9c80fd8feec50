"""What is known of FedAvg and FedSGD."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedloom.conformance.answers import Invariant, Limit, Same
from fedloom.conformance.claims import Declaration
from fedloom.conformance.declarations.common import (
    BATCHES,
    DRIFT,
    FALLING,
    ONE_STEP,
    WANDERS,
    WHO_ANSWERS,
    averaged,
    averaged_step,
    biased_limit,
    ends,
    fitted,
    follows,
    local_ends,
    local_momentum,
    optimum,
    reached,
    resting,
    slopes,
    unequal_problem,
)
from fedloom.conformance.declarations.courses import ROUNDS, TRAINING, Adapts, Defaults, Passes
from fedloom.conformance.drive import Walk
from fedloom.conformance.problems import Known, agreeing, classification, least_squares, logistic, quadratics
from fedloom.engine.fleet import Distribution, Fleet
from fedloom.methods import FedSGD


def local_adam(known: Known, method: Any, x: Tensor) -> Tensor:
    """Where K steps of each client by Adam end, started afresh, with its bias correction."""
    y = x.repeat(len(known.clients), 1)
    m, v = torch.zeros_like(y), torch.zeros_like(y)
    for k in range(1, method.steps + 1):
        g = slopes(known, y)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        y = y - method.lr * (m / (1 - 0.9**k)) / ((v / (1 - 0.999**k)).sqrt() + 1e-8)
    return y


_ROWS_IN_TIME = 45  # gradient evaluations that fit before the deadline of the hurried fleet


def hurried_steps(known: Known, method: Any, x: Tensor) -> Tensor:
    """Where the clients end when client i manages only ⌊45/n_i⌋ of the K steps before the deadline."""
    counts = (_ROWS_IN_TIME // known.sizes).long().clamp(1, method.steps).tolist()
    own = [known.only(client.unsqueeze(0)) for client in known.clients]
    return torch.cat([local_ends(one, x, method.lr, k) for one, k in zip(own, counts, strict=True)])


def miscounted(passes: int) -> Callable[[Walk], float]:
    """How far the count of gradients is from so many passes over all rows in each round."""

    def off(walk: Walk) -> float:
        rows = int(walk.problem.data.splits["train"].sizes.sum())
        return float(abs(walk.clocks.gradient_evaluations - walk.clocks.round * passes * rows))

    return off


gradient_step = averaged(lambda known, method, x: x - method.lr * slopes(known, x))
"""A step of gradient descent on quadratics."""

FEDAVG = Declaration(
    claims=(
        follows("K local steps follow their closed form", averaged_step, {**DRIFT, "lr": FALLING}, stands=WHO_ANSWERS),
        follows(
            "momentum follows its recursion, the plain mean too",
            averaged(local_momentum),
            {**DRIFT, "optimiser": "momentum", "weighting": "uniform"},
        ),
        follows("Adam follows its recursion", averaged(local_adam), {**DRIFT, "optimiser": "adam"}),
        ends("K local steps end at their closed form, not at the optimum", biased_limit, DRIFT, 60, not_at=optimum),
        Limit("that limit, clients of equal sizes", quadratics, biased_limit, DRIFT, 60, 1e-11, WANDERS, optimum),
        ends(
            "slow clients that do a part of their steps end at the closed form of these parts",
            resting(averaged(hurried_steps)),
            {**DRIFT, "steps": 5},
            60,
            not_at=biased_limit,
            fleet=Fleet(speed=Distribution("constant", _ROWS_IN_TIME), deadline=1.0, late="partial"),
        ),
        Limit("one full step finds the optimum of least squares", least_squares, optimum, {**ONE_STEP, "lr": 0.8}, 200),
        Limit(
            "one full step finds the optimum of logistic regression", logistic, optimum, {**ONE_STEP, "lr": 4.0}, 200
        ),
        Limit(
            "mini-batches find the optimum that all clients share",
            agreeing,
            optimum,
            {"lr": 0.2, "batch": 4, "epochs": 2},
            120,
            hardships=reached(200),
        ),
        Same("one full step is FedSGD", unequal_problem, {**ONE_STEP, "lr": 0.5}, FedSGD(lr=0.5), tolerance=1e-13),
        Invariant("E epochs are E passes over every row", classification, miscounted(3), {"batch": 5, "epochs": 3}, 5),
        Passes(),
        Adapts("a client that adapts it takes gradient steps", fitted(lambda method, state: (0.01, 1)), DRIFT),
        Defaults({**TRAINING, **ROUNDS, "weighting": "size"}),
    ),
    batches=BATCHES,
)

FEDSGD = Declaration(
    claims=(
        follows("it is gradient descent", gradient_step, {"lr": FALLING}, stands=WHO_ANSWERS),
        follows("the plain mean is too", gradient_step, {"lr": 0.5, "weighting": "uniform"}),
        ends("it finds the optimum", optimum, {"lr": 0.8}, 100),
        Limit("the same, clients of equal sizes", quadratics, optimum, {"lr": 0.8}, 100, 1e-11, WANDERS),
        Limit("it finds the optimum of least squares", least_squares, optimum, {"lr": 0.8}, 200),
        Limit("it finds the optimum of logistic regression", logistic, optimum, {"lr": 4.0}, 200),
        Invariant("a gradient is one pass over every row", classification, miscounted(1), rounds=5),
        Defaults({**ROUNDS, "lr": 0.1, "weighting": "size"}),
    ),
    batches={"lr": 0.1},
    divisible=False,
)
