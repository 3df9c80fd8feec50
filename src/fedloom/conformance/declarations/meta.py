"""What is known of the meta-learning methods: FedMeta, FedAvg(Meta) and Per-FedAvg.

On quadratics the loss after adaptation is a quadratic too. With A and b of the support and of the query of client i
(∇f = Aθ − b), K inner steps end at φ = Pθ + q, P = (I − αA_s)^K, and ∇F_i(θ) = Pᵀ(A_q φ − b_q) = H_i θ − c_i.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from fedloom.conformance.answers import Around, Exactly, Limit, OnAverage, Path, Same
from fedloom.conformance.claims import Declaration
from fedloom.conformance.declarations.averaging import (
    WHO_ANSWERS,
    biased_limit,
    optimum,
    unequal_problem,
    unequal_quadratics,
)
from fedloom.conformance.drive import Walk, apart
from fedloom.conformance.problems import Known, agreeing, classification, quadratics
from fedloom.federation.problem import Problem
from fedloom.methods import FedAdam, FedAvg, FedMetaMAML, FedMetaSGD, FedSGD
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


# The declarations


@cache
def judged_on_all(dtype: torch.dtype = F64) -> Problem:
    """The classification whose query rows are all training rows, so that α = 0 leaves plain training on them."""
    problem = classification(dtype)
    data = replace(problem.data, splits={**problem.data.splits, "query": problem.data.splits["train"]})
    return Problem(data, problem.model, problem.loss.name, dtype)


EVERY_HARDSHIP = (*WHO_ANSWERS, "quantised")
_WANDERS = {"sampled": OnAverage(400), "lost": OnAverage(400), "late": Exactly(150), "quantised": OnAverage(200)}
_SHARED = {name: Exactly(400) for name in EVERY_HARDSHIP}
_MAML: dict[str, Any] = {"alpha": 0.4, "lr": 0.5}
_SMALL: dict[str, Any] = {"alpha": 0.1, "batch": 3, "inner_steps": 2, "lr": 0.1}
_FROM_ALL: dict[str, Any] = {"alpha": NOTHING, "weighting": "size"}

FEDMETA_MAML = Declaration(
    claims=(
        Path(
            "it is gradient descent on the loss after adaptation",
            unequal_quadratics,
            meta_step,
            _MAML,
            stands=WHO_ANSWERS,
        ),
        Path("the same with three inner steps", unequal_quadratics, meta_step, {**_MAML, "inner_steps": 3}),
        Path(
            "differences of gradients are exact there",
            unequal_quadratics,
            meta_step,
            {**_MAML, "order": "difference", "delta": 0.5},
        ),
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
            {**_MAML, "meta_step": "client"},
        ),
        Path(
            "clients that step by Adam follow its first step",
            unequal_quadratics,
            meta_adam_step,
            {**_MAML, "lr": 0.01, "meta_step": "client", "optimiser": "adam", "weighting": "query"},
            stands=WHO_ANSWERS,
        ),
        Limit(
            "it finds the best start for adaptation",
            unequal_quadratics,
            meta_optimum,
            _MAML,
            300,
            1e-11,
            not_at=lambda known, method: known.minimiser("uniform"),
        ),
        Limit(
            "that limit, clients of equal sizes",
            quadratics,
            meta_optimum,
            _MAML,
            300,
            1e-11,
            {**_WANDERS, "late": Exactly(600)},
        ),
        Limit(
            "mini-batches find what all clients share",
            agreeing,
            lambda known, method: known.optimum,
            {**_SMALL, "lr": 0.4},
            300,
            1e-9,
            _SHARED,
        ),
        Same("with no inner step it is FedSGD on the query", judged_on_all, {**_FROM_ALL, "lr": 0.5}, FedSGD(lr=0.5)),
        Same(
            "… and with the server's Adam it is FedAdam",
            judged_on_all,
            {**_FROM_ALL, "lr": 0.05, "server_optimiser": "adam", "beta1": 0.8},
            FedAdam(lr=1.0, batch=None, steps=1, server_lr=0.05, beta1=0.8),
            tolerance=1e-12,
        ),
    ),
    batches=_SMALL,
    divisible=False,
)

FEDMETA_SGD = Declaration(
    claims=(
        Around(
            "model and step sizes follow their gradients",
            unequal_problem,
            joint_step_off,
            {"alpha": 0.4, "lr": 0.1},
            60,
            stands=WHO_ANSWERS,
        ),
        Same(
            "with step sizes that stay it is MAML",
            classification,
            {**_SMALL, "learn_alpha": False},
            FedMetaMAML(**_SMALL),
            tolerance=1e-12,
        ),
        Same(
            "with no inner step it is FedSGD on the query",
            judged_on_all,
            {**_FROM_ALL, "lr": 0.5, "learn_alpha": False},
            FedSGD(lr=0.5),
        ),
        Limit(
            "with step sizes that stay, mini-batches find what all clients share",
            agreeing,
            lambda known, method: known.optimum,
            {**_SMALL, "lr": 0.4, "learn_alpha": False},
            300,
            1e-9,
            {"quantised": Exactly(400)},
        ),
    ),
    batches=_SMALL,
    divisible=False,
)

_DRIFT = {"lr": 0.8, "batch": None, "steps": 4}
_LOCAL: dict[str, Any] = {"lr": 0.1, "batch": 5, "epochs": 2}

FEDAVG_META = Declaration(
    claims=(
        Same("it trains as FedAvg does, bit by bit", classification, _LOCAL, FedAvg(**_LOCAL)),
        Limit(
            "it ends where FedAvg ends",
            quadratics,
            biased_limit,
            _DRIFT,
            60,
            1e-11,
            {**_WANDERS, "late": Exactly(60)},
            optimum,
        ),
    ),
    batches=_LOCAL,
)

_META_DRIFT: dict[str, Any] = {"alpha": 0.4, "lr": 0.5, "steps": 4}

PER_FEDAVG = Declaration(
    claims=(
        Path(
            "local steps follow their closed form", unequal_quadratics, local_meta_step, _META_DRIFT, stands=WHO_ANSWERS
        ),
        Path(
            "Hessian-free local steps are exact there",
            unequal_quadratics,
            local_meta_step,
            {**_META_DRIFT, "order": "difference", "delta": 0.5},
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
        Limit(
            "one local step finds the optimum",
            unequal_quadratics,
            meta_optimum,
            {**_META_DRIFT, "steps": 1},
            300,
            1e-11,
        ),
        Limit(
            "independent mini-batches find what all clients share",
            agreeing,
            lambda known, method: known.optimum,
            {"alpha": 0.1, "lr": 0.1, "steps": 4, "batch": 4, "episodes": "independent"},
            rounds=300,
            hardships=_SHARED,
        ),
        Same(
            "with no inner step it is FedAvg with the step size β",
            judged_on_all,
            {**_FROM_ALL, "lr": 0.3, "steps": 3},
            FedAvg(lr=0.3, batch=None, steps=3),
            tolerance=1e-12,
        ),
    ),
    batches={"alpha": 0.1, "lr": 0.1, "steps": 4, "batch": 3},
)
