"""What is known of the meta-learning methods: FedMeta, FedAvg(Meta) and Per-FedAvg.

On quadratics the loss after adaptation is a quadratic too. With A and b of the support and of the query of client i
(∇f = Aθ − b), K inner steps end at φ = Pθ + q, P = (I − αA_s)^K, and ∇F_i(θ) = Pᵀ(A_q φ − b_q) = H_i θ − c_i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from fedloom.conformance.answers import Around, Exactly, Limit, OnAverage, Path, Same
from fedloom.conformance.claims import Claim, Declaration
from fedloom.conformance.declarations.averaging import (
    WHO_ANSWERS,
    averaged_step,
    biased_limit,
    optimum,
    unequal_problem,
    unequal_quadratics,
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
from fedloom.methods import FedAdam, FedAvg, FedAvgM, FedMetaMAML, FedMetaSGD, FedSGD
from fedloom.types import State

F64 = torch.float64
NOTHING = 1e-300
"""An α so small that adapting with it changes no bit: α = 0 itself is refused."""


# Quadratics after adaptation


def quadratic(known: Known, split: str) -> tuple[Tensor, Tensor]:
    """A and b of each client's loss on a split, ∇f = Aθ − b."""
    parts = [known.rows(client, split) for client in known.clients]
    return torch.stack([z.T @ z / len(z) for z, _ in parts]), torch.stack([z.T @ y / len(z) for z, y in parts])


def adaptation(known: Known, alpha: float, steps: int = 1) -> tuple[Tensor, Tensor]:
    """P and q of each client: K inner steps from θ end at Pθ + q."""
    a, b = quadratic(known, "support")
    step = torch.eye(a.shape[-1], dtype=F64) - alpha * a
    p, q = torch.eye(a.shape[-1], dtype=F64).expand_as(a), torch.zeros_like(b)
    for _ in range(steps):
        p, q = step @ p, (step @ q.unsqueeze(-1)).squeeze(-1) + alpha * b
    return p, q


def adapted_quadratic(known: Known, alpha: float, steps: int = 1, order: str = "exact") -> tuple[Tensor, Tensor]:
    """H and c of each client, ∇F_i(θ) = H_i θ − c_i; without second derivatives the Pᵀ before it is missing."""
    p, q = adaptation(known, alpha, steps)
    a, b = quadratic(known, "query")
    before = torch.eye(a.shape[-1], dtype=F64) if order == "first" else p.mT
    return before @ a @ p, (before @ (b.unsqueeze(-1) - a @ q.unsqueeze(-1))).squeeze(-1)


def meta_gradients(known: Known, method: Any, theta: Tensor) -> Tensor:
    """∇F_i of each client, as the method's order takes it."""
    h, c = adapted_quadratic(known, method.alpha, getattr(method, "inner_steps", 1), method.order)
    return (h @ theta.unsqueeze(-1)).squeeze(-1) - c


def weights(known: Known, method: Any) -> Tensor:
    """What each client counts for."""
    if method.weighting != "query":
        return known.weights(method.weighting)
    rows = known.problem.data.splits["query"].sizes[known.clients].double()
    return rows / rows.sum()


def meta_optimum(known: Known, method: Any) -> Tensor:
    """The minimiser of Σ w_i F_i."""
    h, c = adapted_quadratic(known, method.alpha, getattr(method, "inner_steps", 1), method.order)
    w = weights(known, method)
    found: Tensor = torch.linalg.solve(torch.einsum("i,ijk->jk", w, h), w @ c)
    return found


def meta_step(known: Known, method: Any, theta: Tensor) -> Tensor:
    """θ − β Σ w_i ∇F_i(θ)."""
    slope: Tensor = weights(known, method) @ meta_gradients(known, method, theta)
    return theta - slope * float(method.lr)


def meta_adam_step(known: Known, method: Any, theta: Tensor) -> Tensor:
    """The mean of models after one step of Adam from nothing: its first step goes β·g/(|g| + ε)."""
    g = meta_gradients(known, method, theta)
    slope: Tensor = weights(known, method) @ (g / (g.abs() + 1e-8))
    return theta - slope * float(method.lr)


def joint_step_off(before: State, walk: Walk, accepted: Tensor) -> float:
    """How far (θ, α) is from (θ, α) − β·mean(∇_θ, ∇_α) of those who answered, ∇_α = −∇f_s∘∇f_q(φ)."""
    known, method = unequal_quadratics().only(accepted), cast(FedMetaSGD, walk.setting.method)
    (a_s, b_s), (a_q, b_q) = quadratic(known, "support"), quadratic(known, "query")
    theta, alpha = before["x"].chunk(2)
    g_s = a_s @ theta - b_s
    r = (a_q @ (theta - alpha * g_s).unsqueeze(-1)).squeeze(-1) - b_q
    g_theta = r - (a_s @ (alpha * r).unsqueeze(-1)).squeeze(-1)
    g = torch.cat([g_theta, -g_s * r], -1).mean(0)
    return apart(walk.state["x"], before["x"] - float(method.lr) * g)


def local_meta_maps(known: Known, method: Any) -> tuple[Tensor, Tensor]:
    """τ local steps of Per-FedAvg from θ end at Pθ + q, P = (I − βH_i)^τ."""
    h, c = adapted_quadratic(known, method.alpha, 1, method.order)
    identity = torch.eye(h.shape[-1], dtype=F64)
    step, p, q = identity - method.lr * h, identity.expand_as(h), torch.zeros_like(c)
    for _ in range(method.steps):
        p, q = step @ p, (step @ q.unsqueeze(-1)).squeeze(-1) + method.lr * c
    return p, q


def local_meta_step(known: Known, method: Any, theta: Tensor) -> Tensor:
    """A round of Per-FedAvg: Σ w_i (P_i θ + q_i)."""
    p, q = local_meta_maps(known, method)
    return weights(known, method) @ (p @ theta + q)


def biased_meta_limit(known: Known, method: Any) -> Tensor:
    """Where Per-FedAvg with τ local steps ends: (I − Σ w_i P_i)⁻¹ Σ w_i q_i."""
    p, q = local_meta_maps(known, method)
    w = weights(known, method)
    mean = torch.einsum("i,ijk->jk", w, p)
    found: Tensor = torch.linalg.solve(torch.eye(len(mean), dtype=F64) - mean, w @ q)
    return found


# Adaptation, figures, and what no quadratic shows


def adapted_by(known: Known, method: Any, state: State, x: Tensor, lr: float | None, steps: int | None) -> Tensor:
    """Steps of size α on the support: as many as in training, unless the user wishes others."""
    alpha = method.alpha if lr is None else lr
    p, q = adaptation(known, alpha, getattr(method, "inner_steps", 1) if steps is None else steps)
    return p @ x + q


def adapted_by_learnt(
    known: Known, method: Any, state: State, x: Tensor, lr: float | None, steps: int | None
) -> Tensor:
    """The same with the step sizes that were learnt, one for each number of the model."""
    a, b = quadratic(known, "support")
    alpha, found = (state["x"][len(x) :] if lr is None else lr), x.repeat(len(a), 1)
    for _ in range(method.inner_steps if steps is None else steps):
        found = found - alpha * ((a @ found.unsqueeze(-1)).squeeze(-1) - b)
    return found


def adapted_by_momentum(
    known: Known, method: Any, state: State, x: Tensor, lr: float | None, steps: int | None
) -> Tensor:
    """Steps by Polyak's momentum: m ← 0.9m + g, φ ← φ − αm."""
    (a, b), found = quadratic(known, "support"), x.repeat(len(known.clients), 1)
    m = torch.zeros_like(found)
    for _ in range(method.adapt_steps if steps is None else steps):
        m = 0.9 * m + (a @ found.unsqueeze(-1)).squeeze(-1) - b
        found = found - (method.alpha if lr is None else lr) * m
    return found


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


def difference_step(known: Known, method: Any, theta: Tensor) -> Tensor:
    """θ − β Σ w_i G_i with these."""
    slope: Tensor = weights(known, method) @ differences(known, method, theta)
    return theta - slope * float(method.lr)


def local_difference_steps(known: Known, method: Any, theta: Tensor) -> Tensor:
    """The mean of where τ steps of each client with these end."""
    own = theta.repeat(len(known.clients), 1)
    for _ in range(method.steps):
        own = own - method.lr * differences(known, method, own)
    return weights(known, method) @ own


def episodes_cost(known: Known, method: Any) -> int:
    """K gradients of every support row, one of every query row, and two for every product with second derivatives."""
    support, query = (int(known.problem.data.splits[split].sizes.sum()) for split in ("support", "query"))
    products = 0 if method.order == "first" else 2
    return getattr(method, "steps", 1) * (query + (1 + products) * getattr(method, "inner_steps", 1) * support)


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


EVERY_HARDSHIP = (*WHO_ANSWERS, "quantised")
_WANDERS = {"quantised": OnAverage(200)}
_SHORT = 6
_MAML: dict[str, Any] = {"alpha": 0.4, "lr": 0.5}
_FALLING: dict[str, Any] = {"alpha": 0.4, "lr": "exponential:0.5:0.97"}
_SMALL: dict[str, Any] = {"alpha": 0.1, "batch": 3, "inner_steps": 2, "lr": 0.1}
_FROM_ALL: dict[str, Any] = {"alpha": NOTHING, "weighting": "size"}
_DIFFERENCE: dict[str, Any] = {"alpha": 0.4, "order": "difference", "delta": 0.7}
_MOMENTUM: dict[str, Any] = {"beta": 0.8, "nesterov": True}
_ADAM: dict[str, Any] = {"beta1": 0.8, "beta2": 0.9, "tau": 0.05, "v_start": 0.3, "squares": "mean"}
_ADAM |= {"bias_correction": "flower"}
_PASS: dict[str, Any] = {"alpha": 0.8, "lr": 0.5, "batch": 4}
_OPEN = ("batch", "beta", "nesterov", "beta1", "beta2", "tau", "v_start", "squares", "bias_correction")
_GIVEN: dict[str, Any] = {**ROUNDS, "evaluates": "adapted", "alpha": 0.1, "order": "exact", **dict.fromkeys(_OPEN)}
_FEDMETA = {**_GIVEN, "lr": 0.3, "inner_steps": 1, "delta": 0.01, "meta_step": "server", "optimiser": "sgd"}
_FEDMETA |= {"server_optimiser": "sgd", "weighting": "uniform", "gradient_norm": False}


def costs(own: Mapping[str, Any]) -> tuple[Claim, ...]:
    """What a meta-gradient costs, with and without second derivatives."""
    return tuple(
        Costs(f"what a round costs, {order}", unequal_quadratics, episodes_cost, {**own, "order": order})
        for order in ("exact", "first", "difference")
    )


def _served(own: Mapping[str, Any]) -> tuple[Claim, ...]:
    """Where nothing is adapted the meta-gradient is that of the query, and the server is that of another method."""
    full: dict[str, Any] = {"lr": 1.0, "batch": None, "steps": 1}
    return (
        Same(
            "with no inner step it is FedSGD on the query",
            evaluated_on_all,
            {**_FROM_ALL, **own, "lr": 0.5},
            FedSGD(lr=0.5),
            _SHORT,
        ),
        Same(
            "… with the server's momentum it is FedAvgM",
            evaluated_on_all,
            {**_FROM_ALL, **own, "lr": 0.05, "server_optimiser": "momentum", **_MOMENTUM},
            FedAvgM(**full, server_lr=0.05, **_MOMENTUM),
            _SHORT,
            tolerance=1e-12,
        ),
        Same(
            "… and with the server's Adam it is FedAdam",
            evaluated_on_all,
            {**_FROM_ALL, **own, "lr": "exponential:0.05:0.9", "server_optimiser": "adam", **_ADAM},
            FedAdam(**full, server_lr="exponential:0.05:0.9", **_ADAM),
            _SHORT,
            tolerance=1e-12,
        ),
    )


def _shown(own: Mapping[str, Any]) -> tuple[Claim, ...]:
    """What is seen only where losses are no quadratics, and in mini-batches, and what the history tells."""
    return (
        Path(
            "differences are of gradients at the distance δ",
            logistic,
            difference_step,
            {**_DIFFERENCE, **own, "lr": 0.5},
            rounds=5,
        ),
        Around("mini-batches are a pass over each half", lambda: one_by_one().problem, pass_off, {**_PASS, **own}, 8),
        AdaptsInPasses({**own, "batch": 4, "lr": 0.1}),
        *costs({**_MAML, **own, "inner_steps": 3}),
        Reported(
            "the history tells the norm of the gradient",
            unequal_quadratics,
            slope_after_adaptation,
            {**_MAML, **own, "inner_steps": 3, "weighting": "query", "gradient_norm": True, "order": "first"},
        ),
        Defaults({**_FEDMETA, **({"learn_alpha": True} if own else {})}),
    )


FEDMETA_MAML = Declaration(
    claims=(
        Path(
            "it is gradient descent on the loss after adaptation",
            unequal_quadratics,
            meta_step,
            _FALLING,
            stands=WHO_ANSWERS,
        ),
        Path("the same with three inner steps", unequal_quadratics, meta_step, {**_MAML, "inner_steps": 3}),
        Path(
            "without second derivatives it follows their absence",
            unequal_quadratics,
            meta_step,
            {**_MAML, "order": "first"},
        ),
        Path(
            "clients weighted by query rows",
            unequal_quadratics,
            meta_step,
            {**_MAML, "weighting": "query"},
            stands=WHO_ANSWERS,
        ),
        Path(
            "clients that step alone and are averaged come to the same",
            unequal_quadratics,
            meta_step,
            {**_FALLING, "meta_step": "client", "weighting": "size"},
        ),
        Path(
            "clients that step by Adam follow its first step",
            unequal_quadratics,
            meta_adam_step,
            {**_MAML, "lr": 0.01, "meta_step": "client", "optimiser": "adam", "weighting": "query"},
        ),
        Limit(
            "it finds the best start for adaptation",
            quadratics,
            meta_optimum,
            _MAML,
            300,
            1e-11,
            _WANDERS,
            not_at=lambda known, method: known.minimiser("uniform"),
        ),
        *_served({}),
        *_shown({}),
        Adapts("clients adapt as they trained", unequal_quadratics, adapted_by, {**_MAML, "inner_steps": 4}),
    ),
    batches=_SMALL,
    divisible=False,
)

_EVERY: dict[str, Any] = {**_SMALL, "lr": "exponential:0.1:0.9", "order": "first", "meta_step": "client"}
_EVERY |= {"optimiser": "adam", "weighting": "query"}

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
        Same(
            "with step sizes that stay it is MAML",
            classification,
            {**_SMALL, "learn_alpha": False},
            FedMetaMAML(**_SMALL),
            _SHORT,
            tolerance=1e-12,
        ),
        Same(
            "… with every option",
            classification,
            {**_EVERY, "learn_alpha": False},
            FedMetaMAML(**_EVERY),
            _SHORT,
            tolerance=1e-12,
        ),
        *_served({"learn_alpha": False}),
        *_shown({"learn_alpha": False}),
        Limit(
            "with step sizes that stay it finds what all clients share",
            agreeing,
            lambda known, method: known.optimum,
            {**_MAML, "learn_alpha": False},
            300,
            1e-9,
            {"quantised": Exactly(400)},
        ),
        Limit(
            "with step sizes that stay it finds the best start for adaptation",
            quadratics,
            meta_optimum,
            {**_MAML, "learn_alpha": False},
            300,
            1e-11,
            _WANDERS,
            not_at=lambda known, method: known.minimiser("uniform"),
        ),
        Adapts(
            "clients adapt with the step sizes that were learnt",
            unequal_quadratics,
            adapted_by_learnt,
            {**_MAML, "inner_steps": 4},
        ),
    ),
    batches=_SMALL,
    divisible=False,
)

_DRIFT: dict[str, Any] = {"lr": 0.8, "batch": None, "steps": 4}
_LOCAL: dict[str, Any] = {"lr": 0.1, "batch": 5, "epochs": 2}
_LOCALLY: dict[str, Any] = {**_LOCAL, "lr": "exponential:0.1:0.9", "optimiser": "momentum", "weighting": "uniform"}
_FITTED: dict[str, Any] = {"alpha": 0.3, "adapt_steps": 2}

FEDAVG_META = Declaration(
    claims=(
        Same("it trains as FedAvg does, bit by bit", classification, _LOCALLY, FedAvg(**_LOCALLY), _SHORT),
        Path(
            "K local steps follow their closed form", unequal_quadratics, averaged_step, _DRIFT, 10, stands=WHO_ANSWERS
        ),
        Limit("it ends where FedAvg ends", quadratics, biased_limit, _DRIFT, 60, 1e-11, _WANDERS, optimum),
        Adapts("clients adapt by steps of α", unequal_quadratics, adapted_by, {**_DRIFT, "alpha": 0.3}),
        Adapts(
            "clients adapt by momentum",
            unequal_quadratics,
            adapted_by_momentum,
            {**_DRIFT, **_FITTED, "adapt_optimiser": "momentum"},
        ),
        AdaptsInPasses({"lr": 0.1, "adapt_batch": 4}),
        Defaults(
            {
                **TRAINING,
                **ROUNDS,
                "evaluates": "adapted",
                "alpha": 0.1,
                "weighting": "size",
                "adapt_steps": 1,
                "adapt_batch": None,
                "adapt_optimiser": "sgd",
            }
        ),
    ),
    batches=_LOCAL,
)

_META_DRIFT: dict[str, Any] = {"alpha": 0.4, "lr": 0.5, "steps": 4}

PER_FEDAVG = Declaration(
    claims=(
        Path(
            "local steps follow their closed form",
            unequal_quadratics,
            local_meta_step,
            {**_META_DRIFT, "lr": "exponential:0.5:0.97"},
            stands=WHO_ANSWERS,
        ),
        Path(
            "Hessian-free local steps are of gradients at the distance δ",
            logistic,
            local_difference_steps,
            {**_DIFFERENCE, "lr": 0.5, "steps": 2},
            rounds=5,
        ),
        Path(
            "first-order local steps follow theirs",
            unequal_quadratics,
            local_meta_step,
            {**_META_DRIFT, "order": "first"},
        ),
        Path(
            "one step, weighted by size, is gradient descent on the loss after adaptation",
            unequal_quadratics,
            meta_step,
            {**_META_DRIFT, "steps": 1, "weighting": "size"},
        ),
        Limit(
            "local steps end at their closed form, not at the optimum",
            quadratics,
            biased_meta_limit,
            _META_DRIFT,
            150,
            1e-11,
            _WANDERS,
            meta_optimum,
        ),
        Episodes("mini-batches of the halves: one to adapt, one to be judged on", frozenset({0, 2})),
        Episodes("three independent mini-batches", frozenset({0, 1, 2}), {"episodes": "independent"}),
        *(Also("work", {"episodes": "independent", "order": order}) for order in ("first", "difference", "exact")),
        *(Also("draws", {"episodes": episodes, "steps": 12}) for episodes in ("split", "independent")),
        Limit(
            "independent mini-batches find what all clients share",
            agreeing,
            lambda known, method: known.optimum,
            {"alpha": 0.1, "lr": 0.1, "steps": 4, "batch": 4, "episodes": "independent"},
            rounds=300,
        ),
        Same(
            "with no inner step it is FedAvg with the step size β",
            evaluated_on_all,
            {**_FROM_ALL, "lr": 0.3, "steps": 3},
            FedAvg(lr=0.3, batch=None, steps=3),
            _SHORT,
            tolerance=1e-12,
        ),
        Adapts("clients adapt by steps of α", unequal_quadratics, adapted_by, _META_DRIFT),
        *costs(_META_DRIFT),
        Reported(
            "the history tells the norm of the gradient",
            unequal_quadratics,
            slope_after_adaptation,
            {**_META_DRIFT, "weighting": "size", "gradient_norm": True},
        ),
        Defaults(
            {
                **ROUNDS,
                "evaluates": "adapted",
                "alpha": 0.1,
                "order": "exact",
                "lr": 0.1,
                "steps": 10,
                "batch": None,
                "episodes": "split",
                "delta": 0.01,
                "weighting": "uniform",
                "gradient_norm": False,
            }
        ),
    ),
    batches={"alpha": 0.1, "lr": 0.1, "steps": 4, "batch": 3},
)
