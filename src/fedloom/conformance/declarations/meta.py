"""What is known of the meta-learning methods: FedMeta, FedAvg(Meta) and Per-FedAvg.

On quadratics the loss after adaptation is a quadratic too. With A and b of the support and of the query of client i
(∇f = Aθ − b), K inner steps end at φ = Pθ + q, P = (I − αA_s)^K, and ∇F_i(θ) = Pᵀ(A_q φ − b_q) = H_i θ − c_i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor

from fedloom.conformance.answers import Around, Limit, Path, Same
from fedloom.conformance.claims import Claim, Declaration
from fedloom.conformance.declarations.common import (
    BATCHES,
    DRIFT,
    EVERY,
    F64,
    ONE_STEP,
    SHORT,
    WANDERS,
    WHO_ANSWERS,
    applied,
    averaged,
    averaged_step,
    biased_limit,
    descent,
    fitted,
    follows,
    optimum,
    pooled_optimum,
    quadratic,
    reached,
    resting,
    unequal_problem,
    unequal_quadratics,
    uniform_optimum,
    weights,
)
from fedloom.conformance.declarations.courses import (
    ROUNDS,
    TRAINING,
    Adapts,
    AdaptsInPasses,
    Also,
    Costs,
    Defaults,
    Episodes,
    Reported,
    one_by_one,
)
from fedloom.conformance.drive import Walk, apart
from fedloom.conformance.problems import Known, agreeing, classification, logistic, quadratics
from fedloom.federation.problem import Problem
from fedloom.methods import FedAdam, FedAvg, FedAvgM, FedMetaMAML, FedMetaSGD, FedSGD, Method
from fedloom.types import State

NOTHING = 1e-300
"""An α so small that adapting with it changes no bit: α = 0 itself is refused."""


# Quadratics after adaptation


def affine_steps(a: Tensor, b: Tensor, lr: float, steps: int) -> tuple[Tensor, Tensor]:
    """P and q of each client: K steps down the slope Aθ − b from θ end at Pθ + q."""
    identity = torch.eye(a.shape[-1], dtype=F64)
    step, p, q = identity - lr * a, identity.expand_as(a), torch.zeros_like(b)
    for _ in range(steps):
        p, q = step @ p, applied(step, q) + lr * b
    return p, q


def adaptation(known: Known, alpha: float, steps: int = 1) -> tuple[Tensor, Tensor]:
    """P and q of each client: K inner steps from θ end at Pθ + q."""
    return affine_steps(*quadratic(known, "support"), alpha, steps)


def adapted_quadratic(known: Known, alpha: float, steps: int = 1, order: str = "exact") -> tuple[Tensor, Tensor]:
    """H and c of each client, ∇F_i(θ) = H_i θ − c_i; without second derivatives the Pᵀ before it is missing."""
    p, q = adaptation(known, alpha, steps)
    a, b = quadratic(known, "query")
    before = torch.eye(a.shape[-1], dtype=F64) if order == "first" else p.mT
    return before @ a @ p, applied(before, b - applied(a, q))


def meta_quadratic(known: Known, method: Any) -> tuple[Tensor, Tensor]:
    """The same as the method has it."""
    return adapted_quadratic(known, method.alpha, inner_steps(method), method.order)


def inner_steps(method: Any) -> int:
    """K, which is 1 where it is no choice."""
    return int(getattr(method, "inner_steps", 1))


def meta_gradients(known: Known, method: Any, theta: Tensor) -> Tensor:
    """∇F_i of each client, as the method's order takes it."""
    h, c = meta_quadratic(known, method)
    return applied(h, theta) - c


def meta_optimum(known: Known, method: Any) -> Tensor:
    """The minimiser of Σ w_i F_i."""
    (h, c), w = meta_quadratic(known, method), weights(known, method)
    found: Tensor = torch.linalg.solve(torch.einsum("i,ijk->jk", w, h), w @ c)
    return found


def local_meta_steps(known: Known, method: Any, theta: Tensor) -> Tensor:
    """Where the local steps of each client on F_i end, P = (I − βH_i)^τ; FedMeta has one."""
    p, q = affine_steps(*meta_quadratic(known, method), method.lr, getattr(method, "steps", 1))
    return p @ theta + q


meta_step = averaged(local_meta_steps)
"""A round: with one local step θ − β Σ w_i ∇F_i(θ)."""


def meta_adam_step(known: Known, method: Any, theta: Tensor) -> Tensor:
    """Where one step of Adam from nothing ends: its first step goes β·g/(|g| + ε)."""
    g = meta_gradients(known, method, theta)
    return theta - float(method.lr) * g / (g.abs() + 1e-8)


def joint_step_off(before: State, walk: Walk, accepted: Tensor) -> float:
    """How far (θ, α) is from (θ, α) − β·mean(∇_θ, ∇_α) of those who answered, ∇_α = −∇f_s∘∇f_q(φ)."""
    known, method = unequal_quadratics().only(accepted), cast(FedMetaSGD, walk.setting.method)
    (a_s, b_s), (a_q, b_q) = quadratic(known, "support"), quadratic(known, "query")
    theta, alpha = before["x"].chunk(2)
    g_s = a_s @ theta - b_s
    r = applied(a_q, theta - alpha * g_s) - b_q
    g_theta = r - applied(a_s, alpha * r)
    g = torch.cat([g_theta, -g_s * r], -1).mean(0)
    return apart(walk.state["x"], before["x"] - float(method.lr) * g)


# Adaptation, figures, and what no quadratic shows


adapted_by = fitted(lambda method, state: (method.alpha, inner_steps(method)))
"""Steps of size α on the support, as many as in training."""


def slope_after_adaptation(known: Known, method: Any, theta: Tensor) -> dict[str, float]:
    """‖Σ w_i ∇F_i(θ)‖, exact whatever the method's order."""
    g = meta_gradients(known, replace(method, order="exact"), theta)
    return {"gradient_norm": float((weights(known, method) @ g).norm())}


def differences(known: Known, method: Any, theta: Tensor) -> Tensor:
    """Each client's meta-gradient on logistic regression by central differences, r − α(∇f_s(θ + δr) − ∇f_s(θ − δr))/2δ.

    ``theta`` is one for all or one a client. Step sizes that are learnt stand inside of the brackets, with r.
    """
    inside, outside = (method.alpha, 1.0) if hasattr(method, "learn_alpha") else (1.0, method.alpha)
    found = []
    for client, at in zip(known.clients, theta.expand(len(known.clients), -1), strict=True):

        def slope(x: Tensor, split: str, client: Tensor = client) -> Tensor:
            z, y = known.rows(client, split)
            return z.T @ (torch.sigmoid(z @ x) - y) / len(y)

        r = slope(at - method.alpha * slope(at, "support"), "query")
        shift = method.delta * inside * r
        found.append(r - outside * (slope(at + shift, "support") - slope(at - shift, "support")) / (2 * method.delta))
    return torch.stack(found)


def difference_steps(known: Known, method: Any, theta: Tensor) -> Tensor:
    """Where the local steps of each client with these end; FedMeta has one."""
    return descent(partial(differences, known, method), theta, method.lr, getattr(method, "steps", 1))


def episodes_cost(known: Known, method: Any) -> int:
    """K gradients of every support row, one of every query row, and two for every product with second derivatives."""
    support, query = (int(known.problem.data.splits[split].sizes.sum()) for split in ("support", "query"))
    products = 0 if method.order == "first" else 2
    return int(getattr(method, "steps", 1)) * (query + (1 + products) * inner_steps(method) * support)


def pass_off(before: State, walk: Walk, accepted: Tensor) -> float:
    """How far a meta-step is from a pass in mini-batches over the support and one of its own over the query.

    With rows along the axes θ_j moves by β(1 − α/b)²/(3b′)·(θ_j − y_j), b and b′ being the rows of its two batches: of
    the 11 rows three are in the batches of three that are left over, and these are not the same three rows twice.
    """
    method, optimum = cast(FedMetaMAML, walk.setting.method), one_by_one().optimum
    n = len(optimum)
    moved = (before["x"] - walk.state["x"])[:n] / (float(method.lr) * (before["x"][:n] - optimum))
    pairs = [(b, c) for b in (3, 4) for c in (3, 4)]
    values = torch.tensor([(1 - method.alpha / b) ** 2 / (3 * c) for b, c in pairs], dtype=F64)
    off, which = (moved.unsqueeze(-1) - values).abs().min(-1)
    inner, judged = ([pairs[int(k)][side] == 3 for k in which] for side in (0, 1))
    right = sum(inner) == sum(judged) == 3 and inner != judged
    return float(off.max()) if right else float("inf")


# The declarations


@cache
def evaluated_on_all(dtype: torch.dtype = F64) -> Problem:
    """The classification whose query rows are all training rows, so that α = 0 leaves plain training on them."""
    problem = classification(dtype)
    data = replace(problem.data, splits={**problem.data.splits, "query": problem.data.splits["train"]})
    return Problem(data, problem.model, problem.loss.name, dtype)


_MAML: dict[str, Any] = {"alpha": 0.4, "lr": 0.5}
_FAST: dict[str, Any] = {"alpha": 0.2, "lr": 1.5}
_FALLING: dict[str, Any] = {"alpha": 0.4, "lr": "exponential:0.5:0.97"}
SMALL: dict[str, Any] = {"alpha": 0.1, "batch": 3, "inner_steps": 2, "lr": 0.1}
_FROM_ALL: dict[str, Any] = {"alpha": NOTHING, "weighting": "size"}
_DIFFERENCE: dict[str, Any] = {"alpha": 0.4, "order": "difference", "delta": 0.7, "lr": 0.5}
_MOMENTUM: dict[str, Any] = {"beta": 0.8, "nesterov": True}
_ADAM: dict[str, Any] = {"beta1": 0.8, "beta2": 0.9, "tau": 0.05, "v_start": 0.3, "squares": "mean"}
_ADAM |= {"bias_correction": "flower"}
_PASS: dict[str, Any] = {"alpha": 0.8, "lr": 0.5, "batch": 4}
_OPEN = ("beta", "nesterov", "beta1", "beta2", "tau", "v_start", "squares", "bias_correction")
_META = {**ROUNDS, "evaluates": "adapted", "alpha": 0.1, "order": "exact", "delta": 0.01, "batch": None}
_META |= {"weighting": "uniform", "gradient_norm": False}
FEDMETA_DEFAULTS = {
    **_META,
    **dict.fromkeys(_OPEN),
    "lr": 0.3,
    "inner_steps": 1,
    "meta_step": "server",
    "optimiser": "sgd",
}
FEDMETA_DEFAULTS |= {"server_optimiser": "sgd"}


def costs(own: Mapping[str, Any]) -> tuple[Claim, ...]:
    """What a meta-gradient costs, with and without second derivatives."""
    return tuple(
        Costs(f"what a round costs, {order}", episodes_cost, {**own, "order": order})
        for order in ("exact", "first", "difference")
    )


def _served(own: Mapping[str, Any]) -> tuple[Claim, ...]:
    """Where nothing is adapted the meta-gradient is that of the query, and the server is that of another method."""
    full: dict[str, Any] = {**ONE_STEP, "lr": 1.0}
    fall = "exponential:0.05:0.9"
    rows: tuple[tuple[str, dict[str, Any], Method, float], ...] = (
        ("with no inner step it is FedSGD on the query", {"lr": 0.5}, FedSGD(lr=0.5), 0.0),
        (
            "… with the server's momentum it is FedAvgM",
            {"lr": 0.05, "server_optimiser": "momentum", **_MOMENTUM},
            FedAvgM(**full, server_lr=0.05, **_MOMENTUM),
            1e-12,
        ),
        (
            "… and with the server's Adam it is FedAdam",
            {"lr": fall, "server_optimiser": "adam", **_ADAM},
            FedAdam(**full, server_lr=fall, **_ADAM),
            1e-12,
        ),
    )
    return tuple(
        Same(name, evaluated_on_all, {**_FROM_ALL, **own, **given}, other, SHORT, tolerance)
        for name, given, other, tolerance in rows
    )


def _shown(own: Mapping[str, Any]) -> tuple[Claim, ...]:
    """What is seen only where losses are no quadratics, and in mini-batches, and what the history tells."""
    three = {**_MAML, **own, "inner_steps": 3}
    return (
        Path(
            "differences are of gradients at the distance δ",
            logistic,
            averaged(difference_steps),
            {**_DIFFERENCE, **own},
            rounds=5,
        ),
        Around("mini-batches are a pass over each half", lambda: one_by_one().problem, pass_off, {**_PASS, **own}, 8),
        AdaptsInPasses({**own, "batch": 4, "lr": 0.1}),
        *costs(three),
        _slope_told({**three, "weighting": "query", "order": "first"}),
        Defaults({**FEDMETA_DEFAULTS, **({"learn_alpha": True} if own else {})}),
    )


def _slope_told(own: Mapping[str, Any]) -> Claim:
    name, given = "the history tells the norm of the gradient", {**own, "gradient_norm": True}
    return Reported(name, slope_after_adaptation, given)


FEDMETA_MAML = Declaration(
    claims=(
        follows("it is gradient descent on the loss after adaptation", meta_step, _FALLING, stands=WHO_ANSWERS),
        follows("the same with three inner steps", meta_step, {**_MAML, "inner_steps": 3}),
        follows("without second derivatives it follows their absence", meta_step, {**_MAML, "order": "first"}),
        follows("clients weighted by query rows", meta_step, {**_MAML, "weighting": "query"}, stands=WHO_ANSWERS),
        follows(
            "clients that step alone and are averaged come to the same",
            meta_step,
            {**_FALLING, "meta_step": "client", "weighting": "size"},
        ),
        follows(
            "clients that step by Adam follow its first step",
            averaged(meta_adam_step),
            {**_MAML, "lr": 0.01, "meta_step": "client", "optimiser": "adam", "weighting": "query"},
        ),
        Limit(
            "it finds the best start for adaptation",
            quadratics,
            meta_optimum,
            _FAST,
            100,
            1e-11,
            WANDERS,
            uniform_optimum,
        ),
        *_served({}),
        *_shown({}),
        Adapts("clients adapt as they trained", adapted_by, {**_MAML, "inner_steps": 4}),
    ),
    batches=SMALL,
    divisible=False,
)

_OTHER: dict[str, Any] = {**SMALL, "lr": "exponential:0.1:0.9", "order": "first", "meta_step": "client"}
_OTHER |= {"optimiser": "adam", "weighting": "query"}
_STAY = {"learn_alpha": False}

FEDMETA_SGD = Declaration(
    claims=(
        Around(
            "model and step sizes follow their gradients",
            unequal_problem,
            joint_step_off,
            {"alpha": 0.4, "lr": 0.1},
            30,
            stands=WHO_ANSWERS,
        ),
        *(
            Same(name, classification, {**given, **_STAY}, FedMetaMAML(**given), SHORT, 1e-12)
            for name, given in (("with step sizes that stay it is MAML", SMALL), ("… with every option", _OTHER))
        ),
        *_served(_STAY),
        *_shown(_STAY),
        Limit(
            "with step sizes that stay it finds what all clients share",
            agreeing,
            pooled_optimum,
            {**_FAST, **_STAY},
            100,
            1e-9,
            reached(120, "quantised"),
        ),
        Limit(
            "with step sizes that stay it finds the best start for adaptation",
            quadratics,
            meta_optimum,
            {**_MAML, "learn_alpha": False},
            300,
            1e-11,
            WANDERS,
            not_at=lambda known, method: known.minimiser("uniform"),
        ),
        Adapts(
            "clients adapt with the step sizes that were learnt",
            fitted(lambda method, state: (state["x"].chunk(2)[1], inner_steps(method))),
            {**_MAML, "inner_steps": 4},
        ),
    ),
    batches=SMALL,
    divisible=False,
)

_LOCALLY: dict[str, Any] = {**EVERY, "weighting": "uniform"}
_ADAPTS = {"evaluates": "adapted", "alpha": 0.1, "adapt_steps": 1, "adapt_batch": None, "adapt_optimiser": "sgd"}

FEDAVG_META = Declaration(
    claims=(
        Same("it trains as FedAvg does, bit by bit", classification, _LOCALLY, FedAvg(**_LOCALLY), SHORT),
        follows("K local steps follow their closed form", averaged_step, DRIFT, rounds=10, stands=WHO_ANSWERS),
        Limit("it ends where FedAvg ends", quadratics, biased_limit, DRIFT, 60, 1e-11, WANDERS, optimum),
        Adapts("clients adapt by steps of α", adapted_by, {**DRIFT, "alpha": 0.3}),
        Adapts(
            "clients adapt by momentum",
            fitted(lambda method, state: (method.alpha, method.adapt_steps), 0.9),
            {**DRIFT, "alpha": 0.3, "adapt_steps": 2, "adapt_optimiser": "momentum"},
        ),
        AdaptsInPasses({"lr": 0.1, "adapt_batch": 4}),
        Defaults({**TRAINING, **ROUNDS, **_ADAPTS, "weighting": "size"}),
    ),
    batches=BATCHES,
)

_META_DRIFT: dict[str, Any] = {"alpha": 0.4, "lr": 0.5, "steps": 4}
_INDEPENDENT = {"episodes": "independent"}

PER_FEDAVG = Declaration(
    claims=(
        follows(
            "local steps follow their closed form",
            meta_step,
            {**_META_DRIFT, "lr": "exponential:0.5:0.97"},
            stands=WHO_ANSWERS,
        ),
        Path(
            "Hessian-free local steps are of gradients at the distance δ",
            logistic,
            averaged(difference_steps),
            {**_DIFFERENCE, "steps": 2},
            rounds=5,
        ),
        follows("first-order local steps follow theirs", meta_step, {**_META_DRIFT, "order": "first"}),
        follows(
            "one step, weighted by size, is gradient descent on the loss after adaptation",
            meta_step,
            {**_META_DRIFT, "steps": 1, "weighting": "size"},
        ),
        Limit(
            "local steps end at their closed form, not at the optimum",
            quadratics,
            resting(meta_step),
            {**_META_DRIFT, "lr": 1.0},
            120,
            1e-11,
            WANDERS,
            meta_optimum,
        ),
        Episodes("mini-batches of the halves: one to adapt, one to be judged on", frozenset({0, 2})),
        Episodes("three independent mini-batches", frozenset({0, 1, 2}), _INDEPENDENT),
        *(Also("work", {**_INDEPENDENT, "order": order}) for order in ("first", "difference", "exact")),
        *(Also("draws", {"episodes": episodes, "steps": 12}) for episodes in ("split", "independent")),
        Limit(
            "independent mini-batches find what all clients share",
            agreeing,
            pooled_optimum,
            {"alpha": 0.1, "lr": 0.3, "steps": 4, "batch": 4, **_INDEPENDENT},
            rounds=80,
        ),
        Same(
            "with no inner step it is FedAvg with the step size β",
            evaluated_on_all,
            {**_FROM_ALL, "lr": 0.3, "steps": 3},
            FedAvg(lr=0.3, batch=None, steps=3),
            SHORT,
            tolerance=1e-12,
        ),
        Adapts("clients adapt by steps of α", adapted_by, _META_DRIFT),
        *costs(_META_DRIFT),
        _slope_told({**_META_DRIFT, "weighting": "size"}),
        Defaults({**_META, "lr": 0.1, "steps": 10, "episodes": "split"}),
    ),
    batches={"alpha": 0.1, "lr": 0.1, "steps": 4, "batch": 3},
)
