"""What is known of methods whose clients hold columns of the same rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.conformance.answers import Invariant, Limit
from fedloom.conformance.claims import Declaration
from fedloom.conformance.declarations.admm import (
    REGULARISER,
    Stops,
    boxed,
    elastic_net,
    has_bias,
    placed,
    residuals,
    table,
)
from fedloom.conformance.declarations.common import reached
from fedloom.conformance.declarations.courses import Costs, Course, Defaults, Ledger
from fedloom.conformance.drive import Walk, apart, has_converged, recall
from fedloom.conformance.problems import Known, vertical, vertical_table
from fedloom.federation.blocks import Blocks
from fedloom.federation.problem import Problem
from fedloom.federation.ragged import Ragged


@cache
def hinge() -> Known:
    """The two classes with a hinge loss."""
    known = vertical("binary")
    return replace(known, problem=Problem(known.problem.data, known.problem.model, "hinge", torch.float64))


@cache
def alone() -> Known:
    """One party that holds every column, and a model without a bias: nobody to share with."""
    known = vertical(bias=False)
    rows = known.problem.data.splits["train"][0]
    splits = {"train": Ragged.of([rows]), "test": Ragged.of([rows[:0]])}
    data = replace(known.problem.data, splits=splits, blocks=Blocks.of([range(10)]))
    return Known.of(Problem(data, known.problem.model, dtype=torch.float64), known.solver)


def ridge(known: Known, method: Any) -> Tensor:
    """The joint ridge regression, its bias not penalised, by the normal equations."""
    x, y, _, columns = table(known, method)
    centre, mean = x.mean(0), y.mean()
    gram = (x - centre).T @ (x - centre) / len(x) + method.strength * np.eye(x.shape[1])
    w = np.linalg.solve(gram, (x - centre).T @ (y - mean) / len(x))
    return placed(known, columns, w[None], mean - w @ centre)


def logistic(known: Known, method: Any) -> Tensor:
    """The joint logistic regression with a ridge, of two classes or more, by scikit-learn's Newton method."""
    from sklearn.linear_model import LogisticRegression

    x, y, _, columns = table(known, method)
    fit = LogisticRegression(C=1 / (method.strength * len(x)), solver="newton-cholesky", tol=1e-14, max_iter=1000)
    fit.fit(x, y)
    return placed(known, columns, fit.coef_, fit.intercept_)


def support_vectors(known: Known, method: Any) -> Tensor:
    """The joint linear support vector machine: who is on the margin by scikit-learn's LIBSVM, then a linear system.

    LIBSVM's own answer is good to six digits. With a_j the slope of row j's loss, strength·w = (1/n)Σ a_j s_j x_j and
    Σ a_j s_j = 0; a_j is 1 inside the margin, 0 outside, and on it such that s_j(w·x_j + bias) = 1.
    """
    from sklearn.svm import SVC

    x, y, _, columns = table(known, method)
    scale = 1 / (method.strength * len(x))
    fit = SVC(kernel="linear", C=scale, tol=1e-9).fit(x, y)
    sides = 2 * y - 1
    rows, margin = sides[:, None] * x, sides * fit.decision_function(x)
    on, inside = np.abs(margin - 1) < 1e-4, margin < 1 - 1e-4
    fixed, moving = scale * rows[inside].sum(0), scale * rows[on]
    system = np.block([[rows[on] @ moving.T, sides[on][:, None]], [sides[on][None], np.zeros((1, 1))]])
    found = np.linalg.solve(system, np.append(1 - rows[on] @ fixed, -sides[inside].sum()))
    slopes, bias = found[:-1], found[-1:]
    if not ((slopes > 0) & (slopes < 1)).all():
        raise AssertionError("LIBSVM is mistaken about who is on the margin")
    return placed(known, columns, (fixed + slopes @ moving)[None], bias)


def own_columns_only(known: Known, method: Any) -> Tensor:
    """What the first party alone would fit: where a sharing that does not share would end."""
    return ridge(known.only(known.clients[:1]), method)


def miscounted(walk: Walk) -> float:
    """How far the server's sum of scores is from that of what the parties remember, and its bias."""
    clients = walk.store.clients()
    own = walk.state["own"][-walk.state["z"].shape[-1] :]
    believed = recall(walk, clients)["s"].sum(0) if len(clients) else torch.zeros_like(walk.state["z"])
    return apart(believed + own, walk.state["scores"])


def unsaid(known: Known, method: Any, theta: Tensor) -> Ledger:
    """Before the first round all weights, scores and prices are 0."""
    zero = torch.zeros(int(known.sizes[0]), 1, dtype=theta.dtype)
    state = {"z": zero, "u": zero, "rho": torch.tensor(method.rho, dtype=theta.dtype)}
    return Ledger(state, kept={"scores": [zero] * (len(known.clients) + has_bias(known))})


def textbook(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
    """A round of sharing ADMM with a ridge and a squared loss in Boyd's words (7.3), a bias being a party of its own.

    x_i = argmin r_i + (ρ/2)‖A_i x_i − A_i x_iᵏ − z̄ + s̄ + u‖²; z̄ = argmin ℓ(Nz̄) + (Nρ/2)‖z̄ − u − s̄‖²; u + s̄ − z̄.
    Then the residuals of 3.3.1, where to stop, and ρ by residual balancing, which leaves the price ρu as it is.
    """
    data, before = known.problem.data, at.kept["scores"]
    assert data.blocks is not None
    x, b = (whole[data.splits["train"][0]] for whole in (data.x, data.y))
    blocks = [x[:, data.blocks.columns[k]] for k in heard] + [torch.ones_like(b)] * (len(before) - len(heard))
    z, u, rho, n, count = at.state["z"], at.state["u"], at.state["rho"], len(b), len(before)
    mean = sum(before) / count
    scores = []
    for k, (a, s) in enumerate(zip(blocks, before, strict=True)):
        ridge = method.strength * n / rho if k < len(heard) else 0.0
        inner = a.T @ a + ridge * torch.eye(a.shape[1], dtype=a.dtype)
        scores.append(a @ torch.linalg.solve(inner, a.T @ (s + z - mean - u)))
    after = sum(scores) / count
    new = (b + rho * (u + after)) / (count + rho)
    u = u + after - new
    moves = [s + new - after - (s_k + z - mean) for s, s_k in zip(scores, before, strict=True)][: len(heard)]
    scale = count / len(heard)  # the bias is taken to be like the others
    primal = count**0.5 * (after - new).norm()
    dual = rho / n * (scale * sum(m.square().sum() for m in moves)).sqrt()
    size = (scale * sum(s.square().sum() for s in scores[: len(heard)])).sqrt()
    near, calm = primal / ((count * n) ** 0.5 + size), dual / (rho / n * count**0.5 * u.norm())
    at.done = bool(torch.maximum(near, calm) <= method.stop)
    factor = 1.0
    if method.adaptive and at.turns < method.adapt_rounds and at.turns % method.adapt_every == 0:
        factor = 2.0 if near > 3 * calm else 0.5 if calm > 3 * near else 1.0
    at.state = {"z": new, "u": u / factor, "rho": rho * factor, "primal": primal, "dual": dual, "scores": sum(scores)}
    at.memory = {k: {"s": s} for k, s in zip(heard, scores, strict=False)}
    at.kept = {"scores": scores, "left": (near, calm)}


def unshared(walk: Walk) -> float:
    """How far a run with a single party is from ordinary ADMM (Boyd et al., 3.1.1) on ½‖z − b‖² + r(x), z = Ax."""
    method: Any = walk.setting.method
    a, b, *_ = table(alone(), method)
    n, rho = len(a), method.rho / len(a)
    x, z, u = np.zeros(10), np.zeros(n), np.zeros(n)
    for _ in range(walk.clocks.round):
        x = np.linalg.solve(rho * a.T @ a + method.strength * np.eye(10), rho * a.T @ (z - u))
        z = (b / n + rho * (a @ x + u)) / (1 / n + rho)
        u = u + a @ x - z
    return max(apart(walk.theta(), torch.from_numpy(x)), apart(walk.state["z"][:, 0], torch.from_numpy(z)))


def hasty(walk: Walk) -> float:
    """Whether it stops though a party that was ever heard has not been heard since both residuals became small."""
    calm = walk.state["calm"]
    due = bool(calm.any()) and bool(calm[walk.store.clients()].all())
    return float(has_converged(walk) is not due)


def rows_of_all(known: Known, method: Any) -> int:
    """The rows of every party together."""
    return int(known.sizes.sum())


def joint_problem() -> Problem:
    """The problem without its answers."""
    return vertical().problem


_LONG = {"stop": 0.0}
_STRONG = {**_LONG, "strength": 0.3}
_FIXED = {"adaptive": False}
_LASSO = {**_LONG, **_FIXED, "regulariser": "lasso", "strength": 0.1, "rho": 2.0}
_NET = {**_LONG, "regulariser": "elastic-net", "strength": 0.2, "l1_share": 0.4}
_BOX = {**_LONG, "regulariser": "box", "low": -0.2, "high": 0.3}
_GIVEN = {
    "default_rounds": 2000,
    "default_dtype": "float64",
    "default_model": "linear",
    "default_schedule": "rounds",
    "stop": 1e-10,
}
_GIVEN |= {"rho": 0.1, "adaptive": True, "adapt_rounds": 300, "adapt_every": 10}
_START = "a party's last weights are where its solver begins, which finds the same weights from anywhere"


def _course(name: str, own: Mapping[str, Any], known: Callable[[], Known] = vertical) -> Course:
    return Course(name, unsaid, textbook, own, known)


SHARING_ADMM = Declaration(
    claims=(
        Limit(
            "it finds the joint ridge regression", vertical, ridge, _STRONG, 300, 1e-11, reached(400), own_columns_only
        ),
        _course("every round is Boyd's", {}),
        _course(
            "… with a penalty that adapts as often and as long as it may, until both residuals are small",
            {"rho": 50.0, "strength": 0.2, "adapt_every": 2, "adapt_rounds": 7, "stop": 0.05},
        ),
        Stops("it stops when parties disagree little enough", _course("", {**_FIXED, "rho": 0.01}), rounds=7),
        Stops("… and when the prices move little enough", _course("", {**_FIXED, "rho": 50.0})),
        _course("… with a fixed penalty and no bias", {**_FIXED, "rho": 0.5}, partial(vertical, bias=False)),
        Limit("lasso: as scikit-learn", vertical, elastic_net, _LASSO, 200, 1e-8, not_at=ridge),
        Limit("elastic net: as scikit-learn", vertical, elastic_net, _NET, 240, 1e-8),
        Limit("a box: as SciPy", vertical, boxed, _BOX, 300, 1e-8),
        Limit(
            "it finds the joint logistic regression",
            partial(vertical, "binary"),
            logistic,
            _STRONG,
            200,
            1e-8,
            reached(200, "late"),
        ),
        Limit("three classes: as scikit-learn", partial(vertical, "classification"), logistic, _STRONG, 240, 1e-8),
        Limit(
            "hinge: the support vector machine", hinge, support_vectors, {**_STRONG, **_FIXED, "rho": 1.3}, 400, 1e-8
        ),
        Costs("a party's fit costs a gradient of each of its rows", rows_of_all, known=vertical),
        Invariant("a single party makes it ordinary ADMM", lambda: alone().problem, unshared, _FIXED, 30),
        Invariant(
            "the server's sum is that of the parties",
            joint_problem,
            miscounted,
            {},
            30,
            1e-11,
            ("sampled", "lost", "quantised"),
        ),
        Invariant(
            "it stops when all have been heard since both residuals became small",
            joint_problem,
            hasty,
            {"stop": 0.03},
            60,
            stands=("sampled", "lost"),
        ),
        Invariant("both residuals vanish, as the history says", joint_problem, residuals(200), _STRONG, 210, 1e-9),
        Defaults({**_GIVEN, **REGULARISER, "regulariser": "ridge", "strength": 0.01}),
    ),
    divisible=False,
    equivalent={"memory x: settled though lost": _START},
    table=vertical_table,
    images=None,
)
