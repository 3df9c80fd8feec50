"""What is known of consensus ADMM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.conformance.answers import Exactly, Invariant, Limit, Path
from fedloom.conformance.claims import Declaration
from fedloom.conformance.declarations.averaging import optimum, unequal_problem, unequal_quadratics
from fedloom.conformance.drive import Walk, apart, recall
from fedloom.conformance.problems import Known, least_squares, logistic, quadratics
from fedloom.federation.problem import Problem
from fedloom.federation.ragged import Ragged
from fedloom.federation.randomness import Draw

EVERY_HARDSHIP = ("sampled", "lost", "late", "quantised")


@cache
def alike(clients: int) -> Known:
    """So many clients with the very same rows."""
    known = quadratics()
    rows = known.problem.data.splits["train"][0]
    splits = {"train": Ragged.of([rows] * clients), "test": Ragged.of([rows[:0]] * clients)}
    data = replace(known.problem.data, splits=splits)
    return Known.of(Problem(data, known.problem.model, "squared", torch.float64), known.solver)


def proximal_point(known: Known, method: Any, x: Tensor) -> Tensor:
    """argmin f + (ρ/2)‖· − x‖² for the f that all clients share."""
    a, n = known.hessians[0], known.hessians.shape[-1]
    there: Tensor = torch.linalg.solve(
        a + method.rho * torch.eye(n, dtype=a.dtype), a @ known.optima[0] + method.rho * x
    )
    return there


def ridge(known: Known, method: Any) -> Tensor:
    """argmin Σ p_i f_i + (strength/2)‖·‖², biases not counted, by its normal equations."""
    z, y, weight = _pooled(known, method)
    counted = torch.ones(z.shape[1], dtype=z.dtype)
    if z.shape[1] > known.problem.x.flatten(1).shape[1]:
        counted[-1] = 0.0
    solution: Tensor = torch.linalg.solve(
        (z.T * weight) @ z + method.strength * torch.diag(counted), z.T @ (weight * y)
    )
    return solution


def elastic_net(known: Known, method: Any) -> Tensor:
    """The same with a share of ‖·‖₁ (all of it for a lasso), by scikit-learn's coordinate descent."""
    from sklearn.linear_model import ElasticNet

    z, y, weight = _pooled(known, method)
    bias = z.shape[1] > known.problem.x.flatten(1).shape[1]
    share = 1.0 if method.regulariser == "lasso" else method.l1_share
    fit = ElasticNet(method.strength, l1_ratio=share, fit_intercept=bias, tol=1e-15, max_iter=1_000_000)
    features = z[:, :-1] if bias else z
    fit.fit(features.numpy(), y.numpy(), sample_weight=weight.numpy())
    return torch.from_numpy(np.append(fit.coef_, fit.intercept_) if bias else fit.coef_)


def boxed(known: Known, method: Any) -> Tensor:
    """argmin Σ p_i f_i with every coordinate between low and high, by SciPy's bounded least squares."""
    from scipy.optimize import lsq_linear

    z, y, weight = _pooled(known, method)
    root = weight.sqrt()
    fit = lsq_linear((z * root[:, None]).numpy(), (y * root).numpy(), (method.low, method.high), "bvls", tol=1e-15)
    return torch.from_numpy(fit.x)


def _pooled(known: Known, method: Any) -> tuple[Tensor, Tensor, Tensor]:
    """All rows and labels, and what each row counts for."""
    parts = [known.rows(client) for client in known.clients]
    weights = [
        w / len(y) * torch.ones_like(y) for w, (_, y) in zip(known.weights(method.weighting), parts, strict=True)
    ]
    return torch.cat([z for z, _ in parts]), torch.cat([y for _, y in parts]), torch.cat(weights)


def prices(walk: Walk) -> Tensor:
    """λ_i = m_i − ρ_i z of every client that answered."""
    memory = recall(walk, walk.store.clients())
    return memory["m"] - memory["rho"] * walk.state["z"]


def price_sum(walk: Walk) -> float:
    """How far the prices' sum is from zero."""
    return float(prices(walk).sum(0).abs().max()) if len(walk.store.clients()) else 0.0


def miscounted(walk: Walk) -> float:
    """How far the server's sum is from that of what the clients remember."""
    if not len(walk.store.clients()):
        return 0.0
    return apart(recall(walk, walk.store.clients())["m"].sum(0), walk.state["m"])


def price_of_gradients(after: int) -> Callable[[Walk], float]:
    """After so many rounds, how far λ_i is from −w_i ∇f_i(z)."""

    def off(walk: Walk) -> float:
        if walk.clocks.round < after:
            return 0.0
        clients = walk.store.clients()
        client = walk.problem.client(clients.numpy(), Draw(0))
        weight = client.n / walk.state["rows"] if walk.setting.method.weighting == "size" else 1.0  # type: ignore[attr-defined]
        return apart(prices(walk), -weight * client.grad(walk.state["z"]))

    return off


def residuals(after: int) -> Callable[[Walk], float]:
    """After so many rounds, the larger of the two residuals."""

    def size(walk: Walk) -> float:
        return float(max(walk.state["primal"], walk.state["dual"])) if walk.clocks.round >= after else 0.0

    return size


_STANDS = ("sampled", "lost", "quantised")
_EVERYTHING = {name: Exactly(300) for name in EVERY_HARDSHIP}
_PENALTY = {"regulariser": "elastic-net", "strength": 0.3, "l1_share": 0.4}

ADMM = Declaration(
    claims=(
        Limit("it finds the optimum", unequal_quadratics, optimum, {}, 100, 1e-12, _EVERYTHING),
        Limit(
            "the plain mean finds the optimum of equal weights",
            unequal_quadratics,
            optimum,
            {"weighting": "uniform"},
            rounds=100,
            tolerance=1e-12,
            hardships=_EVERYTHING,
            not_at=lambda known, method: known.optimum,
        ),
        Limit("it solves the normal equations of least squares", least_squares, optimum, {}, 150, 1e-12),
        Limit("it finds the optimum of logistic regression", logistic, optimum, {"rho": 0.1}, 150, 1e-8),
        Limit(
            "the same by L-BFGS, under every hardship",
            logistic,
            optimum,
            {"rho": 0.1, "solver": "lbfgs"},
            rounds=150,
            tolerance=1e-8,
            hardships=_EVERYTHING,
        ),
        Limit(
            "gradient steps from where a client was find it too",
            unequal_quadratics,
            optimum,
            {"solver": "gradient", "lr": 0.3, "steps": 5},
            rounds=200,
            tolerance=1e-11,
        ),
        Limit("penalties by size find it too", unequal_quadratics, optimum, {"rho_by": "size"}, 150, 1e-12),
        Limit(
            "an adaptive penalty finds it too, from far off",
            unequal_quadratics,
            optimum,
            {"adaptive": True, "rho": 1000.0},
            rounds=200,
            tolerance=1e-11,
            hardships={name: Exactly(500) for name in EVERY_HARDSHIP},
        ),
        Limit("over-relaxation finds it too", unequal_quadratics, optimum, {"relaxation": 1.6}, 150, 1e-12),
        Limit(
            "ridge: the normal equations", least_squares, ridge, {"regulariser": "ridge", "strength": 0.3}, 150, 1e-12
        ),
        Limit(
            "lasso: as scikit-learn",
            least_squares,
            elastic_net,
            {"regulariser": "lasso", "strength": 0.3},
            rounds=200,
            tolerance=1e-8,
            hardships=_EVERYTHING,
            not_at=optimum,
        ),
        Limit("elastic net: as scikit-learn", least_squares, elastic_net, _PENALTY, 200, 1e-8),
        Limit(
            "a box: as SciPy",
            unequal_quadratics,
            boxed,
            {"regulariser": "box", "low": -0.3, "high": 0.4},
            rounds=300,
            tolerance=1e-8,
            not_at=optimum,
        ),
        Path("clients that are alike make it the proximal point method", lambda: alike(3), proximal_point),
        Path("so does a single client", lambda: alike(1), proximal_point, {"rho": 0.5}),
        Invariant("prices sum to zero", unequal_problem, price_sum, {}, 30, 1e-12, _STANDS),
        Invariant("the server's sum is that of the clients", unequal_problem, miscounted, {}, 30, 1e-12, _STANDS),
        Invariant("prices end at minus the gradients", unequal_problem, price_of_gradients(100), {}, 110, 1e-11),
        Invariant("both residuals vanish", unequal_problem, residuals(100), {}, 110, 1e-11),
    ),
    batches={"solver": "gradient", "lr": 0.1, "batch": 5, "epochs": 2},
)
