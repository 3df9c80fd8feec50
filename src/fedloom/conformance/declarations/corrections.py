"""What is known of the methods that correct the drift of local steps: FedProx and SCAFFOLD."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedloom.conformance.answers import Exactly, Invariant, Limit, OnAverage, Path, Same
from fedloom.conformance.claims import Declaration
from fedloom.conformance.declarations.averaging import FALLING, WHO_ANSWERS, optimum, slopes, unequal_quadratics
from fedloom.conformance.declarations.courses import ROUNDS, TRAINING, Course, Defaults, Ledger, Passes, started
from fedloom.conformance.drive import Walk, apart
from fedloom.conformance.problems import Known, classification, quadratics
from fedloom.methods import FedAvg

_DRIFT = {"lr": 0.3, "batch": None, "steps": 4}
_BATCHES: dict[str, Any] = {"lr": 0.1, "batch": 5, "epochs": 2}


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


def proximal_momentum(known: Known, method: Any, x: Tensor) -> Tensor:
    """The same by Polyak's momentum: m ← 0.9m + ∇f_i(y) + μ(y − x), y ← y − ηm."""
    y = x.repeat(len(known.clients), 1)
    m = torch.zeros_like(y)
    for _ in range(method.steps):
        m = 0.9 * m + slopes(known, y) + method.mu * (y - x)
        y = y - method.lr * m
    return known.weights(method.weighting) @ y


def hopeful(known: Known, method: Any, x: Tensor) -> Ledger:
    """Before the first round: the μ that was given, and no loss yet."""
    numbers = {"mu": method.mu, "loss": float("inf")}
    return Ledger({"x": x, **{key: torch.tensor(n, dtype=x.dtype) for key, n in numbers.items()}}, kept={"falls": 0})


def heuristic_round(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
    """A round with the paper's heuristic: μ + 0.1 after a loss above the last, μ − 0.1 after five that are not."""
    some, x, mu = known.only(torch.tensor(heard)), at.state["x"], at.state["mu"]
    at.state["x"] = proximal_round(some, replace(method, mu=float(mu)), x)
    parts = [some.rows(client) for client in some.clients]
    own = torch.stack([(z @ x - y).square().mean() / 2 for z, y in parts])
    loss, last = some.weights(method.weighting) @ own, at.state["loss"]
    falls = 0 if loss > last else at.kept["falls"] + 1
    mu = mu + 0.1 if loss > last else (mu - 0.1).clamp(min=0) if falls == 5 else mu
    at.state |= {"mu": mu, "loss": loss}
    at.kept["falls"] = falls % 5


def algorithm1(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
    """A round of SCAFFOLD: y ← y − η_l(∇f_i(y) − c_i + c), then c_i, x and c as lines 12 to 17 have them."""
    some, x, c = known.only(torch.tensor(heard)), at.state["x"], at.state["c"]
    own = torch.stack([at.memory.get(i, {"c": torch.zeros_like(x)})["c"] for i in heard])
    y = x.repeat(len(heard), 1)
    for _ in range(method.steps):
        y = y - method.lr * (slopes(some, y) - own + c)
    new = slopes(some, x) if method.option == "I" else own - c + (x - y) / (method.steps * method.lr)
    at.state["x"] = x + method.server_lr * (y - x).sum(0) / len(heard)
    at.state["c"] = c + (new - own).sum(0) / len(known.clients)
    at.memory |= {i: {"c": row} for i, row in zip(heard, new, strict=True)}


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
            {**_DRIFT, "lr": FALLING, "mu": 0.5},
            stands=WHO_ANSWERS,
        ),
        Path(
            "proximal momentum follows its recursion, the plain mean too",
            unequal_quadratics,
            proximal_momentum,
            {**_DRIFT, "mu": 0.5, "optimiser": "momentum", "weighting": "uniform"},
        ),
        Course(
            "an adaptive μ rises with the loss, and falls after five rounds in which that fell",
            unequal_quadratics,
            hopeful,
            heuristic_round,
            {"lr": "exponential:3.5:0.8", "batch": None, "steps": 2, "adaptive": True, "weighting": "uniform"},
            stands=WHO_ANSWERS,
        ),
        Course(
            "… but not below 0",
            unequal_quadratics,
            hopeful,
            heuristic_round,
            {"lr": 0.1, "batch": None, "steps": 2, "adaptive": True, "mu": 0.05},
            rounds=12,
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
            {"quantised": OnAverage(150)},
            optimum,
        ),
        Same("without the proximal term it is FedAvg", classification, {**_BATCHES, "mu": 0.0}, FedAvg(**_BATCHES)),
        Defaults({**TRAINING, **ROUNDS, "mu": 0.1, "adaptive": False, "weighting": "size"}),
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
        Course(
            "every round is Algorithm 1, the clients' controls too (option II)",
            unequal_quadratics,
            started("c"),
            algorithm1,
            {**_DRIFT, "lr": "exponential:0.3:0.97", "server_lr": "exponential:0.9:0.98"},
            stands=WHO_ANSWERS,
        ),
        Course(
            "every round is Algorithm 1, the clients' controls too (option I)",
            unequal_quadratics,
            started("c"),
            algorithm1,
            {**_DRIFT, "option": "I", "server_lr": 0.7},
            stands=WHO_ANSWERS,
        ),
        Invariant(
            "c is the mean of the clients' c",
            lambda: unequal_quadratics().problem,
            control_gap,
            _DRIFT,
            stands=(*WHO_ANSWERS, "quantised"),
        ),
        Passes(),
        Defaults({**ROUNDS, "lr": 0.1, "batch": 32, "epochs": 1, "steps": None, "server_lr": 1.0, "option": "II"}),
    ),
    batches=_BATCHES,
)
