"""What is known of the linear baselines: ridge and logistic regression by other ways, and λ by folds dealt by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.conformance.answers import Invariant, Limit
from fedloom.conformance.claims import Declaration
from fedloom.conformance.declarations.common import F64, reached, server_moved, unequal_quadratics
from fedloom.conformance.declarations.courses import Costs, Course, Defaults, Ledger, Reported, Turn, started
from fedloom.conformance.problems import Known, classification, logistic, quadratics
from fedloom.federation.linear import dealt
from fedloom.federation.networks import build_model
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw

_SEED = 4  # of the runs of a Limit
_EXACT: dict[str, Any] = {"lambda_": 0.3, "accuracy": 1e-15}
_CHOOSING: dict[str, Any] = {"grid": [0.06, 1.0, 0.03, 0.12, 0.25, 0.5, 2.0], "folds": 4, "accuracy": 1e-15}
_SOLVED: dict[str, Any] = {"lambda_": 0.3, "accuracy": 1e-3}
_WHOLLY: dict[str, Any] = {"lambda_": 0.3, "accuracy": 1e-30}
"""As many passes as there can be."""
_DEFAULTS: dict[str, Any] = {
    "lambda_": None,
    "grid": (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0),
    "folds": 5,
    "accuracy": 1e-8,
    "default_rounds": 1,
    "default_dtype": "float64",
    "default_model": "linear",
}
noisy = partial(quadratics, unequal=True, heterogeneity=0.3, noise=1.5)
"""Quadratics of so much noise that it matters how strong the penalty is."""
_NO_MATTER = {
    "round: always 0 on clients": "a fit does not depend on the round",
    "round: one more on clients": "a fit does not depend on the round",
    "draw: the same in every round": "draws order the coordinate steps, whose end is the same",
    "draw: the same in every epoch": "draws order the coordinate steps, whose end is the same",
}
"""Mutants that end where the method ends."""
Fitted = Callable[[Tensor, Tensor, float], Tensor]
"""From rows, labels and λ to the minimiser of the mean loss + (λ/2)‖w‖²."""


def ridge(z: Tensor, y: Tensor, lambda_: float) -> Tensor:
    """By the normal equations."""
    curved = z.T @ z / len(z) + lambda_ * torch.eye(z.shape[1], dtype=F64)
    found: Tensor = torch.linalg.solve(curved, z.T @ y / len(z))
    return found


def logistic_ridge(z: Tensor, y: Tensor, lambda_: float) -> Tensor:
    """By Newton's method, which the penalty keeps from going astray."""
    w = torch.zeros(z.shape[1], dtype=F64)
    for _ in range(50):
        p = torch.sigmoid(z @ w)
        slope = z.T @ (p - y) / len(z) + lambda_ * w
        curved = (z.T * (p * (1 - p))) @ z / len(z) + lambda_ * torch.eye(len(w), dtype=F64)
        w = w - torch.linalg.solve(curved, slope)
    return w


def each(fit: Fitted, known: Known, lambda_: float) -> Tensor:
    """The model of each client's own rows."""
    return torch.stack([fit(*known.rows(client), lambda_) for client in known.clients])


def pooled(known: Known) -> tuple[Tensor, Tensor]:
    """The rows of all clients, one after the other."""
    parts = [known.rows(client) for client in known.clients]
    return torch.cat([z for z, _ in parts]), torch.cat([y for _, y in parts])


def own_ridge(known: Known, method: Any) -> Tensor:
    """Ridge regression of each client, with the λ of the method."""
    return each(ridge, known, method.lambda_)


def own_logistic(known: Known, method: Any) -> Tensor:
    """Logistic regression of each client, with the λ of the method."""
    return each(logistic_ridge, known, method.lambda_)


def all_ridge(known: Known, method: Any) -> Tensor:
    """Ridge regression of all rows."""
    return ridge(*pooled(known), method.lambda_)


def all_logistic(known: Known, method: Any) -> Tensor:
    """Logistic regression of all rows."""
    return logistic_ridge(*pooled(known), method.lambda_)


def least_error(z: Tensor, y: Tensor, fold: Any, method: Any) -> float:
    """The λ of the grid whose ridge regressions without each fold are best on that fold, on the mean over folds."""
    errors = []
    for lambda_ in method.grid:
        by_fold = []
        for number in range(method.folds):
            out = torch.from_numpy(fold == number)
            by_fold.append(float((z[out] @ ridge(z[~out], y[~out], lambda_) - y[out]).square().mean()))
        errors.append(float(np.mean(by_fold)))
    return float(method.grid[int(np.argmin(errors))])


def all_choice(known: Known, method: Any) -> Tensor:
    """Ridge regression of all rows, with the λ that the folds of the pool choose."""
    pool = known.problem.with_pool()
    fold = dealt(pool.client(pool.data.clients - 1, Draw(_SEED)), method.folds)
    z, y = pooled(known)
    return ridge(z, y, least_error(z, y, fold, method))


def fits(fit: Fitted, choose: bool = False, seed: int = _SEED) -> Turn:
    """A round: every client that is heard has the model of its rows, and the λ that was given or that it has chosen."""

    def turn(known: Known, method: Any, ledger: Ledger, heard: list[int]) -> None:
        for client in heard:
            fold = dealt(known.problem.client(client, Draw(seed)), method.folds)
            lambda_ = least_error(*known.rows(client), fold, method) if choose else method.lambda_
            own = fit(*known.rows(client), lambda_)
            ledger.memory[client] = {"x": own, "lambda": torch.tensor([lambda_], dtype=F64)}

    return turn


def objective(z: Tensor, y: Tensor, w: Tensor, lambda_: float) -> float:
    """(1/n) Σ ½(w·x − y)² + (λ/2)‖w‖²."""
    return float((z @ w - y).square().mean() / 2 + lambda_ / 2 * w @ w)


def own_figures(known: Known, method: Any, theta: Tensor) -> dict[str, float]:
    """λ, the geometric mean over clients, and the mean of what they minimise."""
    parts, ledger = [known.rows(client) for client in known.clients], Ledger({})
    fits(ridge, choose=True, seed=0)(known, method, ledger, known.clients.tolist())
    chosen = [float(ledger.memory[client]["lambda"]) for client in known.clients.tolist()]
    reached = [objective(*rows, ridge(*rows, own), own) for rows, own in zip(parts, chosen, strict=True)]
    return {"lambda": float(np.exp(np.mean(np.log(chosen)))), "objective": float(np.mean(reached))}


def all_figures(known: Known, method: Any, theta: Tensor) -> dict[str, float]:
    """λ, and what is minimised."""
    return {"lambda": method.lambda_, "objective": objective(*pooled(known), theta, method.lambda_)}


def two_passes(known: Known, method: Any) -> int:
    """A pass that leaves as much as there may be, and as many again."""
    return 2 * int(known.sizes.sum())


@cache
def one_class(dtype: torch.dtype = F64) -> Problem:
    """One of three classes against the others, for a logistic regression."""
    data = classification(dtype).data
    y = (data.y == 0).to(dtype).unsqueeze(1)
    data = replace(data, y=y, task="binary", classes=("other", "a"))
    return Problem(data, build_model("linear", data), "binary", dtype)


LOCAL = Declaration(
    claims=(
        Limit("each client has its ridge regression", unequal_quadratics, own_ridge, _EXACT, 2, 1e-7, reached(200)),
        Limit("each client has its logistic regression", logistic, own_logistic, _EXACT, 2, 1e-7),
        Course("each client has the λ that its folds choose", started(), fits(ridge, True), _CHOOSING, noisy, 2, 1e-7),
        Course(
            "… and the λ that was given, however often it is asked",
            started(),
            fits(ridge),
            _EXACT,
            stands=("lost",),
            rounds=6,
            tolerance=1e-7,
        ),
        Reported("the history tells λ and what is minimised", own_figures, _CHOOSING, known=noisy, tolerance=1e-9),
        Costs("passes are counted", two_passes, {"lambda_": 0.3, "accuracy": 1.0}),
        Invariant("the server learns nothing", lambda: logistic().problem, server_moved, _SOLVED, 3, 0.0),
        Defaults({**_DEFAULTS, "evaluates": "personal"}),
    ),
    batches=_SOLVED,
    full=_WHOLLY,
    table=one_class,
    images=None,
    equivalent={
        **_NO_MATTER,
        "memory x: settled though lost": "who is asked again fits the same again, whatever it remembers",
        "memory lambda: settled though lost": "who is asked again chooses the same again, whatever it remembers",
    },
)

GLOBAL = Declaration(
    claims=(
        Limit(
            "it is the ridge regression of all rows",
            unequal_quadratics,
            all_ridge,
            _EXACT,
            2,
            1e-7,
            reached(20, "lost"),
        ),
        Limit("it is the logistic regression of all rows", logistic, all_logistic, _EXACT, 2, 1e-7),
        Limit("it has the λ that the folds of all rows choose", noisy, all_choice, _CHOOSING, 2, 1e-7),
        Reported("the history tells λ and what is minimised", all_figures, _EXACT, tolerance=1e-9),
        Costs("passes are counted", two_passes, {"lambda_": 0.3, "accuracy": 1.0}),
        Defaults({**_DEFAULTS, "evaluates": "global"}),
    ),
    batches=_SOLVED,
    full=_WHOLLY,
    table=one_class,
    images=None,
    excused={
        "sampled": "there is one pool, and nobody to sample",
        "late": "the pool is in time in every round, or in none",
        "quantised": "a model is sent once, and is then as rough as the channel",
    },
    equivalent=_NO_MATTER,
)
