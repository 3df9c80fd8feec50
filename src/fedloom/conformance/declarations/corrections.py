"""What is known of the methods that correct the drift of local steps: FedProx and SCAFFOLD."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedloom.conformance.answers import Exactly, Invariant, Limit, OnAverage, Path, Same
from fedloom.conformance.claims import Declaration
from fedloom.conformance.declarations.averaging import WHO_ANSWERS, optimum, unequal_quadratics
from fedloom.conformance.drive import Walk, apart
from fedloom.conformance.problems import Known, classification, quadratics
from fedloom.methods import FedAvg, Scaffold

_DRIFT = {"lr": 0.3, "batch": None, "steps": 4}
_BATCHES: dict[str, Any] = {"lr": 0.1, "batch": 5, "epochs": 2}
_FALLING: dict[str, Any] = {"lr": "inverse:0.3:0.1", "batch": None, "steps": 1}


def uniform_optimum(known: Known, method: Any) -> Tensor:
    """The minimiser of the plain mean of the clients' losses."""
    return known.minimiser("uniform")


def proximal_steps(known: Known, method: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """K steps on f_i + μ/2‖y − x‖² from x end at x + (I − M^K)(p_i − x), M = I − η(A_i + μI), p_i = prox(x).

    Gives the p_i and where the clients end.
    """
    identity = torch.eye(known.hessians.shape[-1], dtype=torch.float64)
    curved = known.hessians + method.mu * identity
    towards = (known.hessians @ known.optima.unsqueeze(-1)).squeeze(-1) + method.mu * x
    prox = torch.linalg.solve(curved, towards)
    powers = torch.linalg.matrix_power(identity - method.lr * curved, method.steps)
    return prox, prox + (powers @ (x - prox).unsqueeze(-1)).squeeze(-1)


def proximal_round(known: Known, method: Any, x: Tensor) -> Tensor:
    """A round of FedProx on quadratics."""
    return known.weights(method.weighting) @ proximal_steps(known, method, x)[1]


def envelope_optimum(known: Known, method: Any) -> Tensor:
    """The minimiser of the weighted sum of the Moreau envelopes of the f_i: Σ w_i (A_i + μI)⁻¹ A_i (x_i* − x) = 0."""
    identity = torch.eye(known.hessians.shape[-1], dtype=torch.float64)
    pulls = torch.linalg.solve(known.hessians + method.mu * identity, known.hessians)
    w = known.weights(method.weighting)
    mean = torch.einsum("i,ijk->jk", w, pulls)
    found: Tensor = torch.linalg.solve(mean, torch.einsum("i,ijk,ik->j", w, pulls, known.optima))
    return found


def control_gap(walk: Walk) -> float:
    """How far the server's c is from the mean of the clients' c_i, those who never answered having 0."""
    memory, known = walk.store.gather(torch.arange(walk.problem.data.clients))
    mean = memory["c"].sum(0) / len(known) if bool(known.any()) else torch.zeros_like(walk.state["c"])
    return apart(mean, walk.state["c"])


_EVERYTHING = {name: Exactly(600) for name in (*WHO_ANSWERS, "quantised")}

_PROXIMAL = {"lr": 0.5, "batch": None, "steps": 50, "mu": 0.5}
"""Local steps enough for the proximal point to 12 digits: each takes off more than two fifths of the distance."""

FEDPROX = Declaration(
    claims=(
        Path(
            "proximal steps follow their closed form",
            unequal_quadratics,
            proximal_round,
            {**_DRIFT, "mu": 0.5},
            stands=WHO_ANSWERS,
        ),
        Limit(
            "with exact proximal steps it minimises the sum of the Moreau envelopes, not of the losses",
            unequal_quadratics,
            envelope_optimum,
            _PROXIMAL,
            rounds=100,
            tolerance=1e-11,
            not_at=optimum,
        ),
        Limit(
            "that limit, clients of equal sizes",
            quadratics,
            envelope_optimum,
            _PROXIMAL,
            100,
            1e-11,
            {"sampled": OnAverage(250), "lost": OnAverage(250), "late": Exactly(100), "quantised": OnAverage(150)},
            optimum,
        ),
        Same("without the proximal term it is FedAvg", classification, {**_BATCHES, "mu": 0.0}, FedAvg(**_BATCHES)),
    ),
    batches={**_BATCHES, "mu": 0.5},
)

SCAFFOLD = Declaration(
    claims=(
        Limit(
            "K local steps find the optimum (option II)",
            quadratics,
            uniform_optimum,
            _DRIFT,
            rounds=300,
            tolerance=1e-12,
            hardships=_EVERYTHING,
        ),
        Limit(
            "K local steps find the optimum (option I)",
            quadratics,
            uniform_optimum,
            {**_DRIFT, "option": "I"},
            rounds=300,
            tolerance=1e-12,
            hardships=_EVERYTHING,
        ),
        Limit(
            "a smaller global step finds it too",
            unequal_quadratics,
            uniform_optimum,
            {**_DRIFT, "server_lr": 0.5},
            rounds=600,
            tolerance=1e-12,
        ),
        Limit(
            "step sizes that fall from round to round find it too",
            quadratics,
            uniform_optimum,
            {**_DRIFT, "lr": "step:0.3:50:0.8", "server_lr": "cosine:1:0.5:100"},
            rounds=600,
            tolerance=1e-12,
            hardships=_EVERYTHING,
        ),
        Same(
            "a schedule that never changes is its number, bit by bit",
            classification,
            {**_BATCHES, "lr": "step:0.1:1000:0.5", "server_lr": "exponential:0.7:1"},
            Scaffold(**_BATCHES, server_lr=0.7),
        ),
        Same(
            "after one full step the options are the same, also when the step size falls",
            lambda: unequal_quadratics().problem,
            {**_FALLING, "option": "I"},
            Scaffold(**_FALLING, option="II"),
            tolerance=1e-12,
        ),
        Invariant(
            "c is the mean of the clients' c",
            lambda: unequal_quadratics().problem,
            control_gap,
            _DRIFT,
            stands=(*WHO_ANSWERS, "quantised"),
        ),
        Same(
            "after one full step the options are the same",
            lambda: unequal_quadratics().problem,
            {"lr": 0.3, "batch": None, "steps": 1, "option": "I"},
            Scaffold(lr=0.3, batch=None, steps=1, option="II"),
            tolerance=1e-12,
        ),
    ),
    batches=_BATCHES,
)
