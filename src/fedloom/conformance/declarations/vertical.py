"""What is known of methods whose clients hold columns of the same rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.conformance.answers import Exactly, Invariant, Limit
from fedloom.conformance.claims import Declaration
from fedloom.conformance.declarations.admm import Stops, residuals
from fedloom.conformance.declarations.courses import Costs, Course, Defaults, Ledger
from fedloom.conformance.drive import Walk, apart, recall
from fedloom.conformance.problems import Floats, Known, vertical, vertical_table
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


def _table(known: Known) -> tuple[Floats, Floats, list[int]]:
    """Rows and labels as the parties that count hold them together, and the numbers of their columns."""
    data = known.problem.data
    assert data.blocks is not None
    columns = sorted(int(c) for client in known.clients for c in data.blocks.columns[int(client)])
    rows = data.splits["train"][0]
    return data.x[rows][:, columns].numpy(), data.y[rows].numpy(), columns


def _theta(known: Known, weights: Floats, bias: Floats) -> Tensor:
    """Weights of these columns (a row for each output) and a bias at their places in θ."""
    columns = _table(known)[2]
    matrix = np.zeros((len(weights), known.problem.x.shape[1]))
    matrix[:, columns] = weights
    return torch.from_numpy(np.concatenate([matrix.ravel(), bias]))


def ridge(known: Known, method: Any) -> Tensor:
    """The joint ridge regression, its bias not penalised, by the normal equations."""
    x, y, _ = _table(known)
    centre, mean = x.mean(0), y.mean(0)
    gram = (x - centre).T @ (x - centre) / len(x) + method.strength * np.eye(x.shape[1])
    w = np.linalg.solve(gram, (x - centre).T @ (y - mean) / len(x)).T
    return _theta(known, w, mean - w @ centre)


def elastic_net(known: Known, method: Any) -> Tensor:
    """The joint elastic net (lasso), by scikit-learn's coordinate descent."""
    from sklearn.linear_model import ElasticNet

    x, y, _ = _table(known)
    share = 1.0 if method.regulariser == "lasso" else method.l1_share
    fit = ElasticNet(method.strength, l1_ratio=share, tol=1e-15, max_iter=1_000_000).fit(x, y[:, 0])
    return _theta(known, fit.coef_[None], np.array([fit.intercept_]))


def boxed(known: Known, method: Any) -> Tensor:
    """Joint least squares with every weight between low and high, by SciPy's bounded least squares."""
    from scipy.optimize import lsq_linear

    x, y, _ = _table(known)
    free = np.column_stack([x, np.ones(len(x))])
    low, high = (np.append(np.full(x.shape[1], bound), end) for bound, end in ((method.low, -1e3), (method.high, 1e3)))
    fit = lsq_linear(free, y[:, 0], (low, high), "bvls", tol=1e-15)
    return _theta(known, fit.x[None, :-1], fit.x[-1:])


def logistic(known: Known, method: Any) -> Tensor:
    """The joint logistic regression with a ridge, of two classes or more, by scikit-learn's Newton method."""
    from sklearn.linear_model import LogisticRegression

    x, y, _ = _table(known)
    fit = LogisticRegression(C=1 / (method.strength * len(x)), solver="newton-cholesky", tol=1e-14, max_iter=1000)
    fit.fit(x, y.ravel())
    return _theta(known, fit.coef_, fit.intercept_)


def support_vectors(known: Known, method: Any) -> Tensor:
    """The joint linear support vector machine: who is on the margin by scikit-learn's LIBSVM, then a linear system.

    LIBSVM's own answer is good to six digits. With a_j the slope of row j's loss, strength·w = (1/n)Σ a_j s_j x_j and
    Σ a_j s_j = 0; a_j is 1 inside the margin, 0 outside, and on it such that s_j(w·x_j + bias) = 1.
    """
    from sklearn.svm import SVC

    x, y, _ = _table(known)
    fit = SVC(kernel="linear", C=1 / (method.strength * len(x)), tol=1e-9).fit(x, y.ravel())
    sides = 2 * y[:, 0] - 1
    rows, margin = sides[:, None] * x, sides * fit.decision_function(x)
    on, inside = np.abs(margin - 1) < 1e-4, margin < 1 - 1e-4
    scale = 1 / (method.strength * len(x))
    fixed, moving = scale * rows[inside].sum(0), scale * rows[on]
    system = np.block([[rows[on] @ moving.T, sides[on][:, None]], [sides[on][None], np.zeros((1, 1))]])
    found = np.linalg.solve(system, np.append(1 - rows[on] @ fixed, -sides[inside].sum()))
    slopes, bias = found[:-1], found[-1:]
    if not ((slopes > 0) & (slopes < 1)).all():
        raise AssertionError("LIBSVM is mistaken about who is on the margin")
    return _theta(known, (fixed + slopes @ moving)[None], bias)


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
    zero = torch.zeros(len(_table(known)[1]), 1, dtype=theta.dtype)
    parties = len(known.clients) + (len(theta) > known.problem.x.shape[1])
    state = {"z": zero, "u": zero, "rho": torch.tensor(method.rho, dtype=theta.dtype)}
    return Ledger(state, kept={"scores": [zero] * parties, "t": 0})


def textbook(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
    """A round of sharing ADMM with a ridge and a squared loss in Boyd's words (7.3), a bias being a party of its own.

    x_i = argmin r_i + (ρ/2)‖A_i x_i − A_i x_iᵏ − z̄ + s̄ + u‖²; z̄ = argmin ℓ(Nz̄) + (Nρ/2)‖z̄ − u − s̄‖²; u + s̄ − z̄.
    Then the residuals of 3.3.1, where to stop, and ρ by residual balancing, which leaves the price ρu as it is.
    """
    data, b = known.problem.data, torch.from_numpy(_table(known)[1])
    assert data.blocks is not None
    rows, before = data.splits["train"][0], at.kept["scores"]
    blocks = [data.x[rows][:, data.blocks.columns[k]] for k in heard] + [torch.ones_like(b)] * (
        len(before) - len(heard)
    )
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
    factor, t = 1.0, at.kept["t"]
    if method.adaptive and t < method.adapt_rounds and t % method.adapt_every == 0:
        factor = 2.0 if near > 3 * calm else 0.5 if calm > 3 * near else 1.0
    at.state = {"z": new, "u": u / factor, "rho": rho * factor, "primal": primal, "dual": dual, "scores": sum(scores)}
    at.memory = {k: {"s": s} for k, s in zip(heard, scores, strict=False)}
    at.kept = {"scores": scores, "t": t + 1, "left": (near, calm)}


def unshared(walk: Walk) -> float:
    """How far a run with a single party is from ordinary ADMM (Boyd et al., 3.1.1) on ½‖z − b‖² + r(x), z = Ax."""
    known, method = alone(), walk.setting.method
    a, b, _ = _table(known)
    n, rho = len(a), method.rho / len(a)  # type: ignore[attr-defined]
    x, z, u = np.zeros((10, 1)), np.zeros((n, 1)), np.zeros((n, 1))
    for _ in range(walk.clocks.round):
        x = np.linalg.solve(rho * a.T @ a + method.strength * np.eye(10), rho * a.T @ (z - u))  # type: ignore[attr-defined]
        z = (b / n + rho * (a @ x + u)) / (1 / n + rho)
        u = u + a @ x - z
    return max(apart(walk.theta(), torch.from_numpy(x.ravel())), apart(walk.state["z"], torch.from_numpy(z)))


def binary() -> Known:
    """The two classes with a logistic loss."""
    return vertical("binary")


def hasty(walk: Walk) -> float:
    """Whether it stops though a party that was ever heard has not been heard since both residuals became small."""
    calm = walk.state["calm"]
    due = bool(calm.any()) and bool(calm[walk.store.clients()].all())
    return float(walk.setting.method.done(walk.state) is not due)


def rows_of_all(known: Known, method: Any) -> int:
    """The rows of every party together."""
    return int(known.sizes.sum())


def sum_problem() -> Problem:
    """The problem without its answers."""
    return vertical().problem


_ALL = ("sampled", "lost", "late", "quantised")
_LASSO = {"regulariser": "lasso", "strength": 0.1, "adaptive": False, "rho": 2.0}
_NET = {"regulariser": "elastic-net", "strength": 0.2, "l1_share": 0.4}
_LONG = {"stop": 0.0}


_START = "a party's last weights are where its solver begins, which finds the same weights from anywhere"


def _course(name: str, own: Mapping[str, Any], known: Callable[[], Known] = vertical) -> Course:
    return Course(name, known, unsaid, textbook, own)


SHARING_ADMM = Declaration(
    claims=(
        Limit(
            "it finds the joint ridge regression",
            vertical,
            ridge,
            _LONG,
            rounds=600,
            tolerance=1e-11,
            hardships={name: Exactly(800) for name in _ALL},
            not_at=own_columns_only,
        ),
        _course("every round is Boyd's", {}),
        _course(
            "… with a penalty that adapts as often and as long as it may, until both residuals are small",
            {"rho": 50.0, "strength": 0.2, "adapt_every": 2, "adapt_rounds": 7, "stop": 0.05},
        ),
        Stops("it stops when parties disagree little enough", _course("", {"adaptive": False, "rho": 0.01}), rounds=7),
        Stops("… and when the prices move little enough", _course("", {"adaptive": False, "rho": 50.0})),
        _course("… with a fixed penalty and no bias", {"adaptive": False, "rho": 0.5}, partial(vertical, bias=False)),
        Limit("lasso: as scikit-learn", vertical, elastic_net, {**_LONG, **_LASSO}, 600, 1e-8, not_at=ridge),
        Limit("elastic net: as scikit-learn", vertical, elastic_net, {**_LONG, **_NET}, 400, 1e-8),
        Limit("a box: as SciPy", vertical, boxed, {**_LONG, "regulariser": "box", "low": -0.2, "high": 0.3}, 600, 1e-8),
        Limit(
            "it finds the joint logistic regression",
            binary,
            logistic,
            _LONG,
            rounds=500,
            tolerance=1e-8,
            hardships={"late": Exactly(800)},
        ),
        Limit(
            "three classes: as scikit-learn",
            partial(vertical, "classification"),
            logistic,
            _LONG,
            rounds=500,
            tolerance=1e-8,
        ),
        Limit(
            "hinge: the support vector machine",
            hinge,
            support_vectors,
            {**_LONG, "strength": 0.1, "adaptive": False, "rho": 3.0},
            rounds=1400,
            tolerance=1e-8,
        ),
        Costs("a party's fit costs a gradient of each of its rows", vertical, rows_of_all),
        Invariant("a single party makes it ordinary ADMM", lambda: alone().problem, unshared, {"adaptive": False}, 30),
        Invariant(
            "the server's sum is that of the parties",
            sum_problem,
            miscounted,
            {},
            30,
            1e-11,
            ("sampled", "lost", "quantised"),
        ),
        Invariant(
            "it stops when all have been heard since both residuals became small",
            sum_problem,
            hasty,
            {"stop": 0.03},
            60,
            stands=("sampled", "lost"),
        ),
        Invariant("both residuals vanish, as the history says", sum_problem, residuals(500), _LONG, 510, 1e-9),
        Defaults(
            {
                "default_rounds": 2000,
                "default_dtype": "float64",
                "default_schedule": "rounds",
                "rho": 0.1,
                "adaptive": True,
                "adapt_rounds": 300,
                "adapt_every": 10,
                "regulariser": "ridge",
                "strength": 0.01,
                "l1_share": 0.5,
                "low": -1.0,
                "high": 1.0,
                "stop": 1e-10,
            }
        ),
    ),
    divisible=False,
    equivalent={"memory x: settled though lost": _START},
    table=vertical_table,
    images=None,
)
