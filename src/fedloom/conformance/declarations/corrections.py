"""What is known of the methods that correct the drift of local steps: FedProx and SCAFFOLD."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedloom.conformance.answers import Invariant, Limit, OnAverage, Same
from fedloom.conformance.claims import Declaration
from fedloom.conformance.declarations.common import (
    BATCHES,
    EVERY_HARDSHIP,
    FALLING,
    WHO_ANSWERS,
    averaged,
    descent,
    ends,
    follows,
    local_ends,
    optimum,
    prox,
    reached,
    resting,
    slopes,
    unequal_problem,
    uniform_optimum,
)
from fedloom.conformance.declarations.courses import ROUNDS, TRAINING, Course, Defaults, Ledger, Passes, started
from fedloom.conformance.drive import Walk, apart, gathered
from fedloom.conformance.problems import Known, classification, quadratics
from fedloom.methods import FedAvg

_DRIFT = {"lr": 0.3, "batch": None, "steps": 4}


def proximal_momentum(known: Known, method: Any, x: Tensor) -> Tensor:
    """Where K steps of each client by Polyak's momentum on f_i + (μ/2)‖y − x‖² end."""
    return descent(lambda y: slopes(known, y) + method.mu * (y - x), x, method.lr, method.steps, 0.9)


proximal_round = averaged(lambda known, method, x: local_ends(known, x, method.lr, method.steps, method.mu))
"""A round of FedProx on quadratics."""
envelope_optimum = resting(averaged(lambda known, method, x: prox(known, method.mu, x)))
"""The minimiser of the weighted sum of the Moreau envelopes of the f_i: where x = Σ w_i prox_i(x)."""


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
    y = descent(lambda y: slopes(some, y) - own + c, x, method.lr, method.steps)
    new = slopes(some, x) if method.option == "I" else own - c + (x - y) / (method.steps * method.lr)
    at.state["x"] = x + method.server_lr * (y - x).sum(0) / len(heard)
    at.state["c"] = c + (new - own).sum(0) / len(known.clients)
    at.memory |= {i: {"c": row} for i, row in zip(heard, new, strict=True)}


def control_gap(walk: Walk, where: Any = ...) -> float:
    """How far the server's c is from the mean of the clients' c_i there, those who never answered having 0."""
    memory, known = gathered(walk, torch.arange(walk.problem.data.clients))
    mean = memory["c"][:, where].sum(0) / len(known) if bool(known.any()) else torch.zeros_like(walk.state["c"])
    return apart(mean, walk.state["c"])


_PROXIMAL = {"lr": 0.5, "batch": None, "steps": 50, "mu": 0.5}
"""Local steps enough for the proximal point to 12 digits: each takes off more than two fifths of the distance."""
_ADAPTIVE = {"batch": None, "steps": 2, "adaptive": True}

FEDPROX = Declaration(
    claims=(
        follows(
            "proximal steps follow their closed form",
            proximal_round,
            {**_DRIFT, "lr": FALLING, "mu": 0.5},
            stands=WHO_ANSWERS,
        ),
        follows(
            "proximal momentum follows its recursion, the plain mean too",
            averaged(proximal_momentum),
            {**_DRIFT, "mu": 0.5, "optimiser": "momentum", "weighting": "uniform"},
        ),
        Course(
            "an adaptive μ rises with the loss, and falls after five rounds in which that fell",
            hopeful,
            heuristic_round,
            {**_ADAPTIVE, "lr": "exponential:3.5:0.8", "weighting": "uniform"},
            stands=WHO_ANSWERS,
        ),
        Course("… but not below 0", hopeful, heuristic_round, {**_ADAPTIVE, "lr": 0.1, "mu": 0.05}, rounds=12),
        ends(
            "with exact proximal steps it minimises the sum of the Moreau envelopes, not of the losses",
            envelope_optimum,
            _PROXIMAL,
            100,
            not_at=optimum,
        ),
        Limit(
            "that limit, clients of equal sizes",
            quadratics,
            envelope_optimum,
            _PROXIMAL,
            100,
            1e-11,
            {"quantised": OnAverage(120, warm_up=20)},
            optimum,
        ),
        Same("without the proximal term it is FedAvg", classification, {**BATCHES, "mu": 0.0}, FedAvg(**BATCHES)),
        Defaults({**TRAINING, **ROUNDS, "mu": 0.1, "adaptive": False, "weighting": "size"}),
    ),
    batches={**BATCHES, "mu": 0.5},
)

SCAFFOLD = Declaration(
    claims=(
        *(
            Limit(
                f"K local steps find the optimum (option {option})",
                quadratics,
                uniform_optimum,
                {**_DRIFT, "option": option},
                150,
                1e-12,
                reached(300),
            )
            for option in ("II", "I")
        ),
        *(
            Course(
                f"every round is Algorithm 1, the clients' controls too (option {option})",
                started("c"),
                algorithm1,
                {**_DRIFT, "option": option, **rates},
                stands=WHO_ANSWERS,
            )
            for option, rates in (
                ("II", {"lr": "exponential:0.3:0.97", "server_lr": "exponential:0.9:0.98"}),
                ("I", {"server_lr": 0.7}),
            )
        ),
        Invariant("c is the mean of the clients' c", unequal_problem, control_gap, _DRIFT, stands=EVERY_HARDSHIP),
        Passes(),
        Defaults({**ROUNDS, "lr": 0.1, "batch": 32, "epochs": 1, "steps": None, "server_lr": 1.0, "option": "II"}),
    ),
    batches=BATCHES,
)
