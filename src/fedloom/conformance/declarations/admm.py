"""What is known of consensus ADMM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from fedloom.conformance.answers import Invariant, Limit, Path
from fedloom.conformance.claims import IDEAL, Claim, Declaration, Finding, Hardship, Subject
from fedloom.conformance.declarations.common import (
    F64,
    WHO_ANSWERS,
    descent,
    ends,
    optimum,
    pooled_optimum,
    prox,
    reached,
    server_moved,
    slopes,
    unequal_problem,
)
from fedloom.conformance.declarations.courses import ROUNDS, Also, Course, Defaults, Ledger, Passes
from fedloom.conformance.drive import Moment, Walk, apart, has_converged, recall, replies_to
from fedloom.conformance.problems import Floats, Known, least_squares, logistic, quadratics
from fedloom.federation.problem import Problem
from fedloom.federation.ragged import Ragged
from fedloom.federation.randomness import Draw
from fedloom.methods.method import ServerMethod


@cache
def alike(clients: int) -> Known:
    """So many clients with the very same rows."""
    known = quadratics()
    rows = known.problem.data.splits["train"][0]
    splits = {"train": Ragged.of([rows] * clients), "test": Ragged.of([rows[:0]] * clients)}
    data = replace(known.problem.data, splits=splits)
    return Known.of(Problem(data, known.problem.model, "squared", F64), known.solver)


def proximal_point(known: Known, method: Any, x: Tensor) -> Tensor:
    """argmin f + (ρ/2)‖· − x‖² for the f that all clients share."""
    return prox(known, method.rho, x)[0]


def unpriced(known: Known, method: Any, z: Tensor) -> Ledger:
    """Before the first round nobody counts, and all prices are 0."""
    zero = torch.zeros(len(known.clients), len(z), dtype=z.dtype)
    kept = {"x": zero, "m": zero, "rho_i": zero[:, :1], "calm": zero[:, :1] > 0, "rho": method.rho}
    return Ledger({"z": z}, kept=kept)


def textbook(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
    """A round of consensus ADMM on Σ w_i f_i(x_i) + W g(z) in Boyd's words, over those who were ever heard.

    x_i = argmin w_i f_i + ⟨λ_i, x⟩ + (ρ_i/2)‖x − z‖²; x̂_i = αx_i + (1 − α)z; z⁺ = argmin W g + Σ (ρ_i/2)‖z − x̂_i −
    λ_i/ρ_i‖²; λ_i = m_i − ρ_i z, m_i = ρ_i x̂_i + λ_i staying as it is while a client is not heard. Then the residuals
    of 3.3.1, the absent like the others; where to stop, all having been heard since; and ρ by residual balancing.
    """
    z, now = at.state["z"], torch.zeros(len(known.clients), 1, dtype=torch.bool)
    now[heard] = True
    sizes = (known.sizes / known.sizes.mean()).unsqueeze(-1)
    w = sizes if method.weighting == "size" else torch.ones_like(sizes)
    rho = at.kept["rho"] * (sizes if method.rho_by == "size" else torch.ones_like(sizes))
    prices, before = at.kept["m"] - at.kept["rho_i"] * z, torch.where(at.kept["rho_i"] > 0, at.kept["x"], z)
    start = before if method.warm_start else z.expand_as(before)
    x = local_minima(known, method, z, prices / w, rho / w, start)
    ahead = method.relaxation * x + (1 - method.relaxation) * z
    booked = {"x": x, "m": rho * ahead + prices, "rho_i": rho}
    at.kept |= {key: torch.where(now, value, at.kept[key]) for key, value in booked.items()}
    penalty, held = at.kept["rho_i"], at.kept["rho_i"] > 0
    count, scale = int(held.sum()), int(held.sum()) / len(heard)
    after = shrunk(known, method, at.kept["m"].sum(0) / penalty.sum(), float(w[held].sum() / penalty.sum()))
    primal = (scale * (x - after)[heard].square().sum()).sqrt()
    dual = penalty.square().sum().sqrt() * (after - z).norm()
    near = primal / (count**0.5 * (1 + after.norm()))
    calm = dual / (count**0.5 + (scale * prices[heard].square().sum()).sqrt())
    small = bool(torch.maximum(near, calm) <= method.stop)
    at.kept |= {"calm": (at.kept["calm"] | now) & small, "left": (near, calm)}
    at.state |= {"z": after, "primal": primal, "dual": dual}
    at.done = small and bool((at.kept["calm"] | ~held).all())
    if method.adaptive and at.turns < method.adapt_rounds:
        at.kept["rho"] *= 2.0 if near > 3 * calm else 0.5 if calm > 3 * near else 1.0
    at.state["rho"] = torch.tensor(at.kept["rho"], dtype=z.dtype)
    at.memory = {k: {key: at.kept[key][k] for key in ("x", "m")} for k in range(len(held)) if held[k]}


def local_minima(known: Known, method: Any, z: Tensor, prices: Tensor, rho: Tensor, x: Tensor) -> Tensor:
    """Each client's argmin f_i + ⟨λ_i, x⟩ + (ρ_i/2)‖x − z‖², or what its solver makes of it in a few steps from x."""
    if method.solver == "auto":
        return prox(known, rho, z - prices / rho)

    def slope(x: Tensor) -> Tensor:
        return slopes(known, x) + prices + rho * (x - z)

    if method.solver == "gradient":
        return descent(slope, x, method.lr, method.steps or method.epochs)
    first = slope(x)
    longest: Tensor = first.norm(dim=-1, keepdim=True).clamp(min=1)  # its first step, L-BFGS takes of length 1 at most
    return x - first / longest


def shrunk(known: Known, method: Any, v: Tensor, t: float) -> Tensor:
    """argmin t·g(z) + ½‖z − v‖² of an elastic net, which is all that is left of a strength of 0 too."""
    share = method.strength * t
    after = v.sign() * (v.abs() - share * method.l1_share).clamp(min=0) / (1 + share * (1 - method.l1_share))
    return torch.cat([after[:-1], v[-1:]]) if has_bias(known) and not method.penalise_bias else after


class Table(NamedTuple):
    """The rows of those who count in one place."""

    x: Floats
    y: Floats
    weight: Floats
    """What each row counts for."""
    columns: list[int]
    """The columns that somebody has, of which x consists."""


def table(known: Known, method: Any) -> Table:
    """The rows of all clients; or of parties that hold columns of the same rows, the columns of all."""
    data = known.problem.data
    if data.blocks is not None:
        columns = sorted(int(c) for client in known.clients for c in data.blocks.columns[int(client)])
        rows, weight = data.splits["train"][0], np.ones(len(data.splits["train"][0]))
    else:
        columns = list(range(known.problem.x.flatten(1).shape[1]))
        rows = torch.cat([data.splits["train"][int(client)] for client in known.clients])
        weight = (known.weights(method.weighting) / known.sizes).repeat_interleave(known.sizes.long()).numpy()
    x, y = known.problem.x[rows].flatten(1)[:, columns], known.problem.y[rows].flatten()
    return Table(x.numpy(), y.numpy(), weight / weight.sum(), columns)


def has_bias(known: Known) -> bool:
    """Whether the model has one, as its last number."""
    return known.problem.model.n > known.problem.x.flatten(1).shape[1]


def placed(known: Known, columns: list[int], weights: Floats, bias: Floats) -> Tensor:
    """Weights of these columns, a row for each output, and a bias, if the model has one, at their places in θ."""
    matrix = np.zeros((len(weights), known.problem.x.flatten(1).shape[1]))
    matrix[:, columns] = weights
    return torch.from_numpy(np.append(matrix, bias)[: known.problem.model.n])


def elastic_net(known: Known, method: Any) -> Tensor:
    """The joint elastic net (lasso), its bias not penalised, by scikit-learn's coordinate descent."""
    from sklearn.linear_model import ElasticNet

    x, y, weight, columns = table(known, method)
    share, bias = 1.0 if method.regulariser == "lasso" else method.l1_share, has_bias(known)
    fit = ElasticNet(method.strength, l1_ratio=share, fit_intercept=bias, tol=1e-15, max_iter=1_000_000)
    fit.fit(x, y, sample_weight=weight)
    return placed(known, columns, fit.coef_[None], fit.intercept_)


def boxed(known: Known, method: Any) -> Tensor:
    """Joint least squares with every weight between low and high, by SciPy's bounded least squares."""
    from scipy.optimize import lsq_linear

    x, y, weight, columns = table(known, method)
    root, free = np.sqrt(weight), np.full(int(has_bias(known)), np.inf)
    rows = np.column_stack([x, *(np.ones_like(y) for _ in free)])
    bounds = (np.append(np.full(len(columns), method.low), -free), np.append(np.full(len(columns), method.high), free))
    fit = lsq_linear(rows * root[:, None], y * root, bounds, "bvls", tol=1e-15)
    return placed(known, columns, fit.x[None, : len(columns)], fit.x[len(columns) :])


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
    """After so many rounds, the larger of the two residuals, as the history tells them."""

    def size(walk: Walk) -> float:
        told, state = cast(Any, walk).evaluator.measures(), walk.state
        kept = {"primal_residual": state["primal"], "dual_residual": state["dual"], "rho": state["rho"]}
        if told != {name: float(value) for name, value in kept.items()}:
            return float("inf")
        return max(told["primal_residual"], told["dual_residual"]) if walk.clocks.round >= after else 0.0

    return size


@dataclass(frozen=True, eq=False)
class Stops(Claim):
    """After some rounds it would stop if ``stop`` were the larger of the two relative residuals, but not if less."""

    name: str
    course: Course
    """Whose ledger keeps the two residuals that are left."""
    rounds: int = 4

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        known, method = self.course.known(), subject.tuned(self.course.method)
        with subject.walking(known.problem, method) as walk:
            ledger = self.course.start(known, method, walk.context(0).theta0)
        for _ in range(self.rounds):
            self.course.turn(known, method, ledger, known.clients.tolist())
            ledger.turns += 1
        left = float(max(ledger.kept["left"]))
        for stop, due in ((left * (1 + 1e-9), True), (left * (1 - 1e-9), False)):
            with subject.walking(known.problem, subject.tuned({**self.course.method, "stop": stop})) as walk:
                for _ in range(self.rounds):
                    walk.step()
                if has_converged(walk) is not due:
                    does = "goes on" if due else "stops"
                    return Finding(False, left, f"it {does} with {left:.9g} left of {stop:.9g}")
        return Finding(True, left, f"it stops when {left:.3g} is left")


@dataclass(frozen=True, eq=False)
class Patient(Claim):
    """The same replies that change an adaptive ρ leave it alone if one of them answers an older z."""

    name: str = "old replies do not change an adaptive penalty"
    method: Mapping[str, Any] = field(default_factory=lambda: {"adaptive": True, "rho": 1e3})

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        with subject.walking(unequal_problem(), subject.tuned(self.method)) as walk:
            moment, method = Moment.after(walk, 1), cast(ServerMethod, walk.setting.method)
            reply, _ = method.client(moment.stack(), moment.received(), moment.memory())
            ages = torch.zeros(2, len(moment.ids), dtype=torch.int64)
            ages[1, 2] = 3
            taken = [replies_to(method, moment.stack(), reply, age) for age in ages]
            fresh, old = (float(method.server(walk.state, replies, walk.context(1))["rho"]) for replies in taken)
        before = float(walk.state["rho"])
        return Finding(old == before != fresh, old, f"ρ = {before} becomes {fresh}, and with an old reply {old}")


_STANDS = ("sampled", "lost", "quantised")
_PENALTY = {"regulariser": "elastic-net", "strength": 0.3, "l1_share": 0.4}
_STEPS: dict[str, Any] = {"solver": "gradient", "lr": 0.3}
_LBFGS: dict[str, Any] = {"solver": "lbfgs", "rho": 0.1}
_SOLVER = {"solver": "auto", "tolerance": 1e-10, "max_iterations": 50, "warm_start": True}
_SOLVER |= {"lr": 0.1, "batch": None, "epochs": 1, "steps": None}
_BALANCE = {"rho": 1.0, "rho_by": "common", "adaptive": False, "adapt_rounds": 100, "relaxation": 1.0, "stop": 0.0}
REGULARISER = {"l1_share": 0.5, "low": -1.0, "high": 1.0}
"""Defaults of what a regulariser is told."""
_NONE = {**REGULARISER, "regulariser": "none", "strength": 0.0, "penalise_bias": False}


CONTENT = Invariant(
    "solvers that are content with everything move nothing",
    unequal_problem,
    server_moved,
    {"solver": "lbfgs", "tolerance": 1e3},
    rounds=3,
)


def _course(name: str, own: Mapping[str, Any], **how: Any) -> Course:
    return Course(name, unpriced, textbook, own, rounds=25, **how)


ADMM = Declaration(
    claims=(
        ends("it finds the optimum", optimum, {}, 100, 1e-12, hardships=reached(300)),
        ends(
            "the plain mean finds the optimum of equal weights",
            optimum,
            {"weighting": "uniform"},
            100,
            1e-12,
            not_at=pooled_optimum,
        ),
        Limit("it solves the normal equations of least squares", least_squares, optimum, {}, 150, 1e-12),
        Limit("it finds the optimum of logistic regression", logistic, optimum, {"rho": 0.1}, 150, 1e-8),
        Limit("the same by L-BFGS, late replies or not", logistic, optimum, _LBFGS, 150, 1e-8, reached(300, "late")),
        _course(
            "every round is Boyd's, and it stops when both residuals are small", {"stop": 1e-3}, stands=WHO_ANSWERS
        ),
        Stops("it stops when clients disagree little enough", _course("", {"rho": 0.2})),
        Stops("… and when the prices move little enough", _course("", {"rho": 5.0})),
        _course(
            "… with penalties by size, equal weights and over-relaxation",
            {"rho": 0.7, "rho_by": "size", "weighting": "uniform", "relaxation": 1.6},
        ),
        _course(
            "… with an elastic net, which leaves the bias alone", {**_PENALTY, "relaxation": 0.8}, known=least_squares
        ),
        _course("… or does not", {**_PENALTY, "penalise_bias": True}, known=least_squares),
        _course(
            "… with gradient steps from where a client was",
            {**_STEPS, "epochs": 3, "rho_by": "size"},
            stands=("sampled", "lost"),
        ),
        Also("stack-call", {"rho_by": "size"}),
        _course("… or from where the server is", {**_STEPS, "steps": 2, "warm_start": False}),
        _course("… with an iteration of L-BFGS", {**_LBFGS, "max_iterations": 1}),
        _course(
            "… with a penalty that adapts as long as it may",
            {"adaptive": True, "rho": 1e3, "adapt_rounds": 6},
            stands=("sampled", "lost"),
        ),
        Patient(),
        CONTENT,
        Passes({"solver": "gradient", "rho": 1e-14, "warm_start": False}),
        ends(
            "an adaptive penalty finds it too, from far off",
            optimum,
            {"adaptive": True, "rho": 1000.0},
            200,
            hardships=reached(500, "sampled", "late"),
        ),
        Limit(
            "lasso: as scikit-learn",
            least_squares,
            elastic_net,
            {"regulariser": "lasso", "strength": 0.3},
            200,
            1e-8,
            reached(300, "lost", "late"),
            optimum,
        ),
        ends("a box: as SciPy", boxed, {"regulariser": "box", "low": -0.3, "high": 0.4}, 300, 1e-8, not_at=optimum),
        Path("clients that are alike make it the proximal point method", lambda: alike(3), proximal_point),
        Path("so does a single client", lambda: alike(1), proximal_point, {"rho": 0.5}),
        Invariant("dual variables sum to zero", unequal_problem, price_sum, {}, 30, 1e-12, _STANDS),
        Invariant("the server's sum is that of the clients", unequal_problem, miscounted, {}, 30, 1e-12, _STANDS),
        Invariant(
            "dual variables end at minus the gradients", unequal_problem, price_of_gradients(100), {}, 110, 1e-11
        ),
        Invariant("both residuals vanish, as the history says", unequal_problem, residuals(100), {}, 110, 1e-11),
        Defaults({**ROUNDS, **_SOLVER, **_BALANCE, **_NONE, "weighting": "size"}),
    ),
    batches={"solver": "gradient", "lr": 0.1, "batch": 5, "epochs": 2},
)
