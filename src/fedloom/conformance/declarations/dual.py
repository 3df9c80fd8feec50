"""What is known of methods in the dual: every round by hand, the convex optimum, the gap, and the rate of CoCoA+."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import permutations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.conformance.answers import Exactly, Invariant, Limit, Same
from fedloom.conformance.claims import IDEAL, Claim, Declaration, Finding, Hardship, Subject
from fedloom.conformance.declarations.common import F64, WHO_ANSWERS, slopes, unequal_quadratics
from fedloom.conformance.declarations.courses import ROUNDS, Also, Costs, Course, Defaults, Ledger, Reported, one_by_one
from fedloom.conformance.drive import Walk, apart, has_converged, memory_of
from fedloom.conformance.problems import Known, classification, logistic, rows_in_order
from fedloom.federation.networks import build_model
from fedloom.federation.problem import Problem
from fedloom.methods.cocoa import CoCoA

Floats = np.ndarray[Any, np.dtype[np.float64]]
Best = Callable[[float, float, float, float], float]
"""From α, the label, the score x·u and q to the α of the best coordinate step."""


@cache
def two_classes(loss: str) -> Known:
    """The problem of the logistic regression with another loss."""
    known = logistic()
    return replace(known, problem=Problem(known.problem.data, known.problem.model, loss, F64))


@cache
def of_one(loss: str = "squared") -> Known:
    """All rows with one client: nobody to share with."""
    known = unequal_quadratics() if loss == "squared" else two_classes(loss)
    data = known.problem.data
    data = replace(data, splits=rows_in_order(torch.tensor([len(data.x)])))
    return Known.of(Problem(data, known.problem.model, loss, F64), known.solver)


@cache
def four_rows() -> Known:
    """One client with four rows that have much in common."""
    known = unequal_quadratics()
    data = known.problem.data
    data = replace(data, x=data.x[:4] + 1, y=data.y[:4], splits=rows_in_order(torch.tensor([4])))
    return Known.of(Problem(data, known.problem.model, "squared", F64), known.solver)


@cache
def alike() -> Known:
    """Five clients with the same rows, to each of whom the others are as much of a surprise as can be."""
    known = unequal_quadratics()
    data = known.problem.data
    data = replace(data, x=data.x[:12].repeat(5, 1), y=data.y[:12].repeat(5, 1))
    data = replace(data, splits=rows_in_order(torch.tensor([12] * 5)))
    return Known.of(Problem(data, known.problem.model, "squared", F64), known.solver)


def table(dtype: torch.dtype) -> Problem:
    """Three classes, each against the rest, for what must agree in every bit."""
    data = classification(dtype).data
    return Problem(data, build_model("linear", data), "ovr-smoothed-hinge:0.5", dtype)


# The optimum


def rows_of(known: Known) -> tuple[Floats, Floats, int]:
    """The rows of those who count, their labels, and how many rows there are, with those of the others."""
    parts = [known.rows(client) for client in known.clients]
    x, y = (torch.cat([part[i] for part in parts]).numpy() for i in (0, 1))
    return x, y, int(known.problem.data.splits["train"].sizes.sum())


def ridge(known: Known, method: Any) -> Tensor:
    """argmin (λ/2)‖w‖² + (1/2n)‖Xw − y‖² by the normal equations."""
    x, y, n = rows_of(known)
    return torch.from_numpy(np.linalg.solve(x.T @ x / n + method.lambda_ * np.eye(x.shape[1]), x.T @ y / n))


def logistic_optimum(known: Known, method: Any) -> Tensor:
    """argmin (λ/2)‖w‖² + (1/n) Σ log(1 + exp(−s·w·x)) by Newton's method."""
    from scipy.special import expit

    x, y, n = rows_of(known)
    w = np.zeros(x.shape[1])
    for _ in range(30):
        p = expit(x @ w)
        slope = x.T @ (p - y) / n + method.lambda_ * w
        w = w - np.linalg.solve((x.T * (p * (1 - p))) @ x / n + method.lambda_ * np.eye(len(w)), slope)
    return torch.from_numpy(w)


def smoothed_optimum(known: Known, method: Any) -> Tensor:
    """The same with a smoothed hinge (γ = 0.5): Newton's method, whose steps end once it knows who is on the bend."""
    x, y, n = rows_of(known)
    z, w = (2 * y - 1)[:, None] * x, np.zeros(x.shape[1])
    for step in range(200):
        m = z @ w
        bend = (m > 0.5) & (m < 1)
        slope = -z.T @ np.clip((1 - m) / 0.5, 0, 1) / n + method.lambda_ * w
        newton = np.linalg.solve(z[bend].T @ z[bend] / 0.5 / n + method.lambda_ * np.eye(len(w)), slope)
        w = w - newton / (1 if step > 100 else 2)
    return torch.from_numpy(w)


def support_vectors(known: Known, method: Any) -> Tensor:
    """The linear support vector machine: who is on the margin by scikit-learn's LIBLINEAR, then a linear system.

    λw = (1/n) Σ β_j z_j with z_j = s_j x_j; β_j is 1 inside the margin, 0 outside, and on it such that w·z_j = 1.
    """
    from sklearn.svm import LinearSVC

    x, y, n = rows_of(known)
    scale = 1 / (method.lambda_ * n)
    fit = LinearSVC(C=scale, loss="hinge", fit_intercept=False, tol=1e-8, max_iter=100_000, random_state=0).fit(x, y)
    z = (2 * y - 1)[:, None] * x
    m = z @ fit.coef_[0]
    on, inside = np.abs(m - 1) < 1e-4, m < 1 - 1e-4
    fixed, moving = scale * z[inside].sum(0), scale * z[on]
    beta = np.linalg.solve(z[on] @ moving.T, 1 - z[on] @ fixed)
    if not ((beta > 0) & (beta < 1)).all():
        raise AssertionError("LIBLINEAR is mistaken about who is on the margin")
    return torch.from_numpy(fixed + beta @ moving)


# A round by hand


def squared_step(alpha: float, y: float, score: float, q: float) -> float:
    """The closed form of ridge regression."""
    return alpha + (y - score - alpha) / (1 + q)


def hinge_step(alpha: float, y: float, score: float, q: float, smoothing: float = 0.0) -> float:
    """β ← clip(β + (1 − s·score − γβ)/(q + γ), 0, 1), β = αs."""
    s = 2 * y - 1
    beta = alpha * s
    return s * float(np.clip(beta + (1 - s * score - smoothing * beta) / (q + smoothing), 0, 1))


def logistic_step(alpha: float, y: float, score: float, q: float) -> float:
    """The root of log(β/(1 − β)) + s·score + q(β − β₀) in (0, 1), by Brent's method."""
    from scipy.optimize import brentq
    from scipy.special import expit

    s = 2 * y - 1
    bound = abs(score) + q + 1
    root = brentq(lambda t: t + s * score + q * (expit(t) - alpha * s), -bound, bound, xtol=1e-15, rtol=1e-15)
    return s * float(expit(root))


def sdca(z: Floats, y: Floats, alpha: Floats, w: Floats, kappa: float, order: Iterable[int], best: Best) -> Floats:
    """Coordinate steps on the rows in this order, u = w + κ Σ Δα x."""
    alpha, u = alpha.copy(), w.copy()
    for i in order:
        new = best(alpha[i], y[i], float(z[i] @ u), kappa * float(z[i] @ z[i]))
        u += kappa * (new - alpha[i]) * z[i]
        alpha[i] = new
    return alpha


def unknown(known: Known, method: Any, theta: Tensor) -> Ledger:
    """Before the first round every α is 0, and so is w."""
    return Ledger({"w": torch.zeros_like(theta)}, kept={"alpha": [np.zeros(int(n)) for n in known.sizes]})


def algorithm1(best: Best, together: bool = False) -> Callable[[Known, Any, Ledger, list[int]], None]:
    """A round of CoCoA (γ → β_K/K, σ′ = 1), of CoCoA+ (γ, σ′), or of mini-batch SDCA (β/b, all steps from w)."""

    def turn(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
        clients, n = len(known.clients), int(known.sizes.sum())
        sigma, share = 1.0, getattr(method, "beta", 1.0) / clients
        if hasattr(method, "gamma"):
            share = method.gamma
            sigma = share * clients if method.sigma is None else method.sigma
        kappa, alphas, w = sigma / (method.lambda_ * n), at.kept["alpha"], at.state["w"].numpy()
        for k in heard:
            z, y = (part.numpy() for part in known.rows(k))
            if together:
                steps = [
                    best(a, t, float(r @ w), kappa * float(r @ r)) for a, t, r in zip(alphas[k], y, z, strict=True)
                ]
                alphas[k] = alphas[k] + share / method.batch * (np.array(steps) - alphas[k])
                continue
            order = np.arange(method.steps or method.epochs * len(y)) % len(y)
            alphas[k] = alphas[k] + share * (sdca(z, y, alphas[k], w, kappa, order, best) - alphas[k])
            at.memory[k] = {"alpha": torch.from_numpy(alphas[k][:, None].copy())}
        v = sum(known.rows(k)[0].numpy().T @ alphas[k] for k in range(clients))
        at.state = {"w": torch.from_numpy(v / (method.lambda_ * n))}

    return turn


# What the history says


def figures(walk: Walk) -> dict[str, float]:
    """P, D and the gap, from what the clients remember and the model, without the method's own functions."""
    problem, lambda_ = walk.problem, walk.setting.method.lambda_  # type: ignore[attr-defined]
    w, loss, star, n = walk.theta().double(), 0.0, 0.0, 0
    v = torch.zeros_like(w)
    for k in range(problem.data.clients):
        z, y = Known.of(problem, lambda *_: w).rows(k)
        y = y[:, None]
        alpha = memory_of(walk, k).get("alpha", torch.zeros(len(y), 1, dtype=F64)).double()
        loss += float(problem.loss.rows((z @ w)[:, None], y).sum())
        star += float(problem.loss.conjugate(alpha, y).sum())
        v, n = v + z.T @ alpha[:, 0], n + len(y)
    primal, dual = lambda_ / 2 * float(w @ w) + loss / n, -star / n - float(v @ v) / (2 * lambda_ * n * n)
    off = apart(w, v / (lambda_ * n))
    return {"primal": primal, "dual": dual, "gap": primal - dual, "off": off}


def off_model(walk: Walk) -> float:
    """How far w is from w(α), and the figures of the history from those by hand; a gap below 0 counts as such."""
    right, told = figures(walk), walk.evaluator.measures()
    wrong = [abs(told[name] - right[name]) for name in ("primal", "dual", "gap")]
    kinds = {"primal", "dual", "gap", "compiled"} == told.keys()
    return max(*wrong, right["off"], -min(right["gap"], 0.0), 0.0 if kinds else float("inf"))


@dataclass(frozen=True, eq=False)
class StopsAtGap(Claim):
    """It stops when the gap is at most so large a part of the objective, and not before."""

    method: Mapping[str, Any]
    rounds: int = 5
    name: str = "it stops when the gap is small enough beside the objective"

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        problem, found = two_classes("smoothed-hinge:0.5").problem, 0.0
        for factor, due in ((0.0, False), (1 + 1e-9, True), (1 - 1e-9, False)):
            with subject.walking(problem, subject.tuned({**self.method, "stop": factor * found})) as walk:
                for _ in range(self.rounds):
                    walk.step()
                right = figures(walk)
                if has_converged(walk) is not due:
                    return Finding(False, found, f"with {found:.9g} left it {'goes on' if due else 'stops'}")
                found = right["gap"] / right["primal"]
        return Finding(True, found, f"it stops when {found:.3g} is left")


@dataclass(frozen=True, eq=False)
class Diverges(Claim):
    """Clients with the same rows, whose changes are added as if each were alone, drive each other away."""

    method: Mapping[str, Any]
    safe: Mapping[str, Any]
    rounds: int = 30
    name: str = "adding with σ′ = 1 does not converge where σ′ = γK does"

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        ends = []
        for how in (self.method, self.safe):
            with subject.walking(alike().problem, subject.tuned(how)) as walk:
                for _ in range(self.rounds):
                    walk.step()
                ends.append(figures(walk)["gap"])
        rough, calm = ends
        return Finding(not rough < 1.0 and calm < 1e-3, rough, f"gap {rough:.3g} with σ′ = 1, {calm:.3g} with γK")


@dataclass(frozen=True, eq=False)
class Rate(Claim):
    """The dual's distance to its optimum shrinks by 1 − γ(1 − Θ)λμn/(λμn + σ_max σ′) in every round.

    Theorem 11 of Ma et al. (Theorem 1 of MOCHA) for losses with 1/μ-Lipschitz slopes: here μ = 1, the squared loss, and
    the clients solve their subproblems to a relative accuracy Θ that their gaps certify, so that the bound holds for
    every run and not only on average. σ_max is the largest squared singular value of a client's rows.
    """

    method: Mapping[str, Any]
    rounds: int = 80
    name: str = "the dual converges at the linear rate of the theorem"

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        known, method = unequal_quadratics(), subject.tuned(self.method)
        m: Any = method
        n, clients = int(known.sizes.sum()), len(known.clients)
        sigma = m.gamma * clients
        largest = max(float(torch.linalg.matrix_norm(known.rows(k)[0], 2)) ** 2 for k in known.clients)
        rate = 1 - m.gamma * (1 - m.accuracy) * m.lambda_ * n / (m.lambda_ * n + largest * sigma)
        x, y, _ = rows_of(known)
        w = ridge(known, m).numpy()
        best = m.lambda_ / 2 * float(w @ w) + float(((x @ w - y) ** 2).mean()) / 2
        worst, left = 0.0, 0.0
        with subject.walking(known.problem, method) as walk:
            before = best - figures(walk)["dual"]
            for _ in range(self.rounds):
                walk.step()
                left = best - figures(walk)["dual"]
                if left < 1e-13 * best:
                    break
                worst, before = max(worst, left / before), left
        what = f"the slowest round leaves {worst:.4g} of the distance, {rate:.4g} are allowed; {left:.2g} is left"
        return Finding(worst <= rate and left < 1e-9, worst, what)


@dataclass(frozen=True, eq=False)
class Visits(Claim):
    """Which rows are visited: with rows along the axes, those that have an α, for a step there is the last one.

    Steps of a pass in random order take different rows, other ones each round; drawn with replacement some come twice.
    """

    order: str
    method: Mapping[str, Any] = field(default_factory=dict)
    name: str = "the rows of a round are drawn anew"

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        known, drawn = one_by_one(), []
        for seed in range(6):
            with subject.walking(known.problem, subject.tuned(self.method), seed=seed) as walk:
                seen = set[int]()
                for _ in range(2):
                    walk.step()
                    now = set(torch.nonzero(memory_of(walk, 0)["alpha"][:, 0]).flatten().tolist())
                    drawn.append(frozenset(now - seen))
                    seen = now
        first = [len(rows) for rows in drawn[::2]]
        again = any(len(rows) < len(drawn[0]) for rows in drawn[1::2])
        fewer = min(first) < 8
        right = fewer if self.order == "random" else set(first) == {8}
        anew = len(set(drawn[::2])) > 3 and (again and any(drawn[1::2]))
        return Finding(right and anew, float(min(first)), f"8 steps visit {first} rows; drawn anew: {anew}")


@dataclass(frozen=True, eq=False)
class Orders(Claim):
    """Two passes take every row once each, in orders of their own: of all pairs of orders, one explains what is found.

    With four rows that have much in common every order ends elsewhere.
    """

    method: Mapping[str, Any]
    name: str = "every pass takes every row once, in an order of its own"

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        known, method = four_rows(), subject.tuned({**self.method, "epochs": 2})
        z, y = (part.numpy() for part in known.rows(0))
        orders, kappa, zero = list(permutations(range(4))), 1 / (method.lambda_ * 4), np.zeros(4)  # type: ignore[attr-defined]
        ways = {
            (one, two): sdca(z, y, zero, np.zeros(z.shape[1]), kappa, [*one, *two], squared_step)
            for one in orders
            for two in orders
        }
        found, off = set(), 0.0
        for seed in range(6):
            with subject.walking(known.problem, method, seed=seed) as walk:
                walk.step()
                alpha = memory_of(walk, 0)["alpha"][:, 0].numpy()
            near = {pair: float(np.abs(alpha - end).max()) for pair, end in ways.items()}
            pair = min(near, key=near.__getitem__)
            off = max(off, near[pair])
            found.add(pair)
        mixed = any(one != two for one, two in found) and len({one for one, _ in found}) > 2
        what = f"greatest distance from what some order gives: {off:.3g}; {'mixed' if mixed else 'not mixed'} anew"
        return Finding(mixed and off < 1e-12, off, what)


@dataclass(frozen=True, eq=False)
class Accurate(Claim):
    """Each client goes on until at most Θ of its subproblem is left, which is a linear system for the squared loss."""

    method: Mapping[str, Any]
    name: str = "subproblems are solved to the accuracy that is asked for"

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        known, method = unequal_quadratics(), subject.tuned(self.method)
        m: Any = method
        with subject.walking(known.problem, method) as walk:
            walk.step()
            alphas = [memory_of(walk, int(k))["alpha"][:, 0] for k in known.clients]
        share = getattr(m, "gamma", 1 / len(alphas))
        kappa, left = len(alphas) * share / (m.lambda_ * float(known.sizes.sum())), []
        for k, alpha in zip(known.clients, alphas, strict=True):
            z, y = known.rows(k)
            bent = torch.eye(len(y), dtype=F64) + kappa * z @ z.T
            value = [a @ bent @ a / 2 - a @ y for a in (alpha / share, torch.linalg.solve(bent, y))]
            left.append(float(1 - value[0] / value[1]))
        found = max(left)
        return Finding(0 <= found <= m.accuracy, found, f"at most {found:.3g} is left, {m.accuracy:g} is asked for")


@dataclass(frozen=True, eq=False)
class Draws(Claim):
    """With rows along the axes a gradient tells which were in the mini-batch."""

    name: str

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        known, drawn = one_by_one(), []
        with subject.walking(known.problem, subject.tuned({"batch": 4, "lambda_": 1.0, "beta": 1.0})) as walk:
            for t in range(6):
                before = walk.theta()
                walk.step()
                slope = (before - walk.theta()) * (t + 1) - before
                drawn.append(tuple(torch.nonzero(slope.abs() > 1e-9).flatten().tolist()))
        sizes = {len(rows) for rows in drawn}
        return Finding(sizes == {4} and len(set(drawn)) > 3, float(len(set(drawn))), f"mini-batches of {sizes} rows")


def all_rows(known: Known, method: Any) -> int:
    """The coordinate steps of a round: a pass over each client's rows for each epoch."""
    return int(method.epochs * known.sizes.sum())


_CYCLIC: dict[str, Any] = {"order": "cyclic", "stop": 0.0, "lambda_": 0.1}
_EXACT = {**_CYCLIC, "accuracy": 1e-4, "lambda_": 0.3}
_STRONG = {"lambda_": 0.5, "stop": 0.0}
DECODED = "what the server decodes is what was computed: a lossy channel is refused"
_SAME = {"memory: moved by what was computed": DECODED}
_LOSSES: dict[str, tuple[Best, Any]] = {
    "hinge": (hinge_step, support_vectors),
    "smoothed-hinge:0.5": (partial(hinge_step, smoothing=0.5), smoothed_optimum),
    "binary": (logistic_step, logistic_optimum),
}
_GIVEN = {
    "default_schedule": "rounds",
    "default_rounds": 200,
    "default_dtype": "float64",
    "default_model": "linear",
    "evaluates": "global",
}
_GIVEN |= {"exact": True, "lambda_": 0.01, "stop": 1e-6}
_LOCAL = {**_GIVEN, "epochs": 1, "steps": None, "accuracy": None, "order": "permuted"}
_LATE = {name: Exactly(1200) for name in WHO_ANSWERS}


def _round(name: str, own: Mapping[str, Any], loss: str = "squared", **how: Any) -> Course:
    best = squared_step if loss == "squared" else _LOSSES[loss][0]
    known = unequal_quadratics if loss == "squared" else partial(two_classes, loss)
    return Course(name, unknown, algorithm1(best), {**_CYCLIC, **own}, **{"known": known, "rounds": 6, **how})


def _found(own: Mapping[str, Any], rounds: int) -> tuple[Claim, ...]:
    """The optimum, of each loss, whoever answers."""
    ridge_too = Limit(
        "it finds the ridge regression of all rows",
        unequal_quadratics,
        ridge,
        {**_STRONG, **own},
        rounds,
        1e-9,
        _LATE,
    )
    others = [
        Limit(f"{loss}: the optimum of all rows", partial(two_classes, loss), optimum, {**_STRONG, **own}, rounds, 1e-6)
        for loss, (_, optimum) in _LOSSES.items()
    ]
    return (ridge_too, *others)


def _shared(own: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[Claim, ...]:
    """What CoCoA and CoCoA+ have in common."""
    return (
        _round("every round is Algorithm 1", own, stands=WHO_ANSWERS),
        _round("… with its further settings, and passes", {**own, **other, "epochs": 2, "lambda_": 0.4}),
        _round("… with H steps", {**own, "steps": 7}),
        *(_round(f"… with the loss {loss}", own, loss, rounds=3) for loss in _LOSSES),
        Course(
            "with one client it is SDCA",
            unknown,
            algorithm1(squared_step),
            _CYCLIC,
            of_one,
            rounds=6,
        ),
        Invariant(
            "w is that of α, the gap is never below 0, and the history has both objectives",
            lambda: two_classes("smoothed-hinge:0.5").problem,
            off_model,
            {**own, "lambda_": 0.2, "stop": 0.0},
            12,
            1e-11,
            WHO_ANSWERS,
        ),
        StopsAtGap({**_CYCLIC, **own}),
        Visits("permuted", {"steps": 8, "stop": 0.0}),
        Orders({"lambda_": 0.05, "stop": 0.0}),
        Visits("random", {"steps": 8, "stop": 0.0, "order": "random"}, "with replacement some rows come twice"),
        Costs("a coordinate step costs a gradient of its row", all_rows, {"epochs": 3}),
        Also("stack-call", {"order": "random", "steps": 9}),
        Also("stack-rounds", {"accuracy": 0.1}),
    )


EXACT = {"quantised": "a lossy channel is refused: v = Xα would hold no more"}

COCOA = Declaration(
    claims=(
        *_found({"epochs": 4}, 600),
        *_shared({}, {"beta": 2.0}),
        Accurate({**_EXACT, "accuracy": 1e-3}),
        Defaults({**_LOCAL, "beta": 1.0}),
    ),
    batches={"lambda_": 0.1, "epochs": 2},
    full={"order": "cyclic"},
    equivalent=_SAME,
    excused=EXACT,
    table=table,
    images=None,
)

COCOA_PLUS = Declaration(
    claims=(
        *_found({"epochs": 4}, 600),
        *_shared({}, {"gamma": 0.5}),
        _round("… with σ′ of its own", {"sigma": 3.0}),
        Same(
            "with one client it is CoCoA",
            lambda: of_one().problem,
            {"lambda_": 0.1},
            CoCoA(lambda_=0.1),
            tolerance=1e-12,
        ),
        Diverges({**_EXACT, "sigma": 1.0}, {**_EXACT}),
        Accurate({**_EXACT, "accuracy": 1e-3, "gamma": 0.8}),
        Rate({**_EXACT, "accuracy": 0.1}),
        Rate({**_EXACT, "accuracy": 0.4, "gamma": 0.5}, name="… with γ below 1, and rougher subproblems"),
        Defaults({**_LOCAL, "gamma": 1.0, "sigma": None}),
    ),
    batches={"lambda_": 0.1, "epochs": 2},
    full={"order": "cyclic"},
    equivalent=_SAME,
    excused=EXACT,
    table=table,
    images=None,
)

MINI_BATCH_SDCA = Declaration(
    claims=(
        *_found({"batch": 50, "beta": 120.0, "lambda_": 2.0}, 600)[:1],
        Course(
            "every round takes all its steps from the same model",
            unknown,
            algorithm1(squared_step, together=True),
            {"lambda_": 0.1, "stop": 0.0, "batch": 20, "beta": 3.0},
            rounds=6,
            stands=WHO_ANSWERS,
        ),
        Invariant(
            "w is that of α, the gap is never below 0, and the history has both objectives",
            lambda: two_classes("smoothed-hinge:0.5").problem,
            off_model,
            {"lambda_": 0.2, "stop": 0.0, "batch": 7},
            12,
            1e-11,
            WHO_ANSWERS,
        ),
        StopsAtGap({"lambda_": 0.1, "batch": 50}),
        Visits("permuted", {"batch": 8, "stop": 0.0}),
        Defaults({**_GIVEN, "batch": 32, "beta": 1.0}),
    ),
    batches={"lambda_": 0.1, "batch": 5, "beta": 2.0},
    full={"batch": 50},
    equivalent=_SAME,
    excused=EXACT,
    table=table,
    images=None,
)


def pegasos(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
    """w − β/(λt)·(λw + ∇f(w)), f being the mean loss of the rows of those who are heard."""
    some, w = known.only(torch.tensor(heard)), at.state["x"]
    slope = some.weights() @ slopes(some, w)
    at.state = {"x": w - method.beta / (method.lambda_ * (at.turns + 1)) * (method.lambda_ * w + slope)}


def first_model(known: Known, method: Any, theta: Tensor) -> Ledger:
    """Before the first round."""
    return Ledger({"x": theta})


def objective(known: Known, method: Any, w: Tensor) -> dict[str, float]:
    """P(w)."""
    x, y, _ = rows_of(known)
    rest = x @ w.numpy() - y
    return {"primal": method.lambda_ / 2 * float(w @ w) + float(rest @ rest) / (2 * len(y))}


_WHOLE: dict[str, Any] = {"batch": None, "lambda_": 0.7}

MINI_BATCH_SGD = Declaration(
    claims=(
        Course("every round is a step of β/(λt)", first_model, pegasos, {**_WHOLE, "beta": 0.3}, stands=WHO_ANSWERS),
        Course("… of the size 1/(λt)", first_model, pegasos, {"batch": None, "lambda_": 1.5}),
        Limit(
            "it finds the ridge regression of all rows", unequal_quadratics, ridge, {**_WHOLE, "beta": 2.0}, 3000, 1e-8
        ),
        Draws("a mini-batch has so many different rows, others each round"),
        Reported("the history has the objective", objective, _WHOLE),
        Costs("a mini-batch costs a gradient of each of its rows", lambda known, method: 5 * 8, {"batch": 8}),
        Defaults({**ROUNDS, "batch": 32, "lambda_": 0.01, "beta": 1.0}),
    ),
    batches={"batch": 5, "lambda_": 0.5, "beta": 0.5},
    divisible=False,
    excused={"quantised": "its steps fall from round to round, so that it comes nearer its limit and is never there"},
)
