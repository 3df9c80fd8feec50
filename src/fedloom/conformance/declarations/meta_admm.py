"""What is known of ADMM-FedMeta and its exact sibling.

They end where Σ w_i F_i(θ) + λD_h(θ, θ_p) is least; on the way, the inexact one is optimistic gradient descent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor

from fedloom.conformance.answers import Around, Exactly, Invariant, Limit
from fedloom.conformance.claims import Declaration
from fedloom.conformance.declarations.adaptive import Course
from fedloom.conformance.declarations.admm import miscounted
from fedloom.conformance.declarations.averaging import unequal_problem, unequal_quadratics
from fedloom.conformance.declarations.meta import EVERY_HARDSHIP, F64, NOTHING, adapted_quadratic, meta_gradients
from fedloom.conformance.drive import Walk, apart, recall
from fedloom.conformance.problems import Known, classification
from fedloom.federation.divergences import divergence_for
from fedloom.federation.randomness import Draw
from fedloom.methods.admm_fedmeta import MetaADMM
from fedloom.types import State


def prior_of(known: Known) -> Tensor:
    """An earlier model that is far from any optimum."""
    return torch.linspace(-2, 3, known.problem.model.n, dtype=F64)


def shares(known: Known) -> Tensor:
    """w_i = n_i/Σn over all source clients, whoever answers."""
    return known.sizes / float(known.problem.data.splits["train"].sizes.sum())


def regularised_optimum(known: Known, method: Any) -> Tensor:
    """argmin Σ w_i F_i(θ) + λ‖θ − θ_p‖²: H = 2λI + Σ w_i P_i A_q P_i."""
    h, c = adapted_quadratic(known, method.alpha)
    w, lam = shares(known), method.lambda_
    left = torch.einsum("i,ijk->jk", w, h) + 2 * lam * torch.eye(h.shape[-1], dtype=F64)
    found: Tensor = torch.linalg.solve(left, w @ c + 2 * lam * prior_of(known))
    return found


def bregman_optimum(known: Known, method: Any) -> Tensor:
    """argmin Σ w_i F_i(θ) + λD_h(θ, θ_p), by SciPy's root finder on its gradient."""
    from scipy.optimize import root

    h, c = adapted_quadratic(known, method.alpha)
    w, prior, divergence = shares(known), prior_of(known), divergence_for(method.h)
    mean, towards = torch.einsum("i,ijk->jk", w, h), w @ c

    def slope(theta: Any) -> Any:
        at = torch.from_numpy(theta)
        return (mean @ at - towards + method.lambda_ * divergence.pull(at, prior)).numpy()

    return torch.from_numpy(root(slope, prior.numpy(), tol=1e-13).x)


def optimistic_course(known: Known, method: Any, theta: Tensor) -> Iterator[Tensor]:
    """θ − s(2Gᵗ − Gᵗ⁻¹ + λ∇D_h(θ)), or its form with D_h kept whole; s = 1/Σρ_i, G⁻¹ = 0 for prices that begin at 0."""
    w, prior = shares(known), prior_of(known)
    rho = torch.tensor(method.rho_i or [method.rho] * len(known.clients), dtype=F64)
    s, lam, before = 1 / rho.sum(), method.lambda_, torch.zeros_like(theta)
    while True:
        g = w @ meta_gradients(known, method, theta)
        move = s * (2 * g - before)
        if method.server_form == "linearised" or lam == 0:
            theta = theta - move - s * 2 * lam * (theta - prior)
        else:
            theta = (theta - move + 2 * lam * s * prior) / (1 + 2 * lam * s)
        before = g
        yield theta


def price_off(before: State, walk: Walk, accepted: Tensor) -> float:
    """How far the y_i of those who answered are from −w_i G_i(θ), θ being what they were sent."""
    client = walk.problem.client(accepted.numpy(), Draw(0))
    g, _ = client.meta_grad(before["x"], cast(MetaADMM, walk.setting.method).alpha)
    return apart(recall(walk, accepted)["y"], -(client.n / before["rows"]) * g)


def final_prices(after: int) -> Callable[[Walk], float]:
    """After so many rounds, how far y_i is from −w_i ∇F_i(θ)."""

    def off(walk: Walk) -> float:
        return price_off(walk.state, walk, walk.store.clients()) if walk.clocks.round >= after else 0.0

    return off


# The declarations


_PRICES: dict[str, Any] = {"alpha": 0.4, "rho": 0.4}
_NEAR: dict[str, Any] = {**_PRICES, "lambda_": 0.3}
_STANDS = ("sampled", "lost", "quantised")
_ALWAYS = {name: Exactly(600) for name in EVERY_HARDSHIP}

ADMM_FEDMETA = Declaration(
    claims=(
        Course("it is optimistic gradient descent", unequal_quadratics, optimistic_course, _PRICES, 60),
        Course("… with a prior, linearised", unequal_quadratics, optimistic_course, _NEAR, 60, prior=prior_of),
        Course(
            "… with a prior, exact",
            unequal_quadratics,
            optimistic_course,
            {**_NEAR, "server_form": "exact"},
            60,
            prior=prior_of,
        ),
        Course(
            "… with a penalty for each client",
            unequal_quadratics,
            optimistic_course,
            {**_PRICES, "rho_i": (0.3, 0.5, 0.7, 0.2, 0.4)},
            60,
        ),
        Course(
            "… on the query alone where nothing is adapted",
            unequal_quadratics,
            optimistic_course,
            {**_PRICES, "rho": 0.8, "alpha": NOTHING},
            60,
        ),
        Limit(
            "it finds the best start for adaptation",
            unequal_quadratics,
            regularised_optimum,
            _PRICES,
            400,
            1e-11,
            _ALWAYS,
        ),
        Limit(
            "with a prior, linearised",
            unequal_quadratics,
            regularised_optimum,
            _NEAR,
            300,
            1e-11,
            _ALWAYS,
            prior=prior_of,
        ),
        Limit(
            "with a prior, exact",
            unequal_quadratics,
            regularised_optimum,
            {**_NEAR, "server_form": "exact"},
            300,
            1e-11,
            _ALWAYS,
            prior=prior_of,
        ),
        Limit(
            "prices that begin anywhere end there too",
            unequal_quadratics,
            regularised_optimum,
            {**_NEAR, "y_init": "normal"},
            300,
            1e-11,
            prior=prior_of,
        ),
        Limit(
            "with the hyperbolic entropy, linearised",
            unequal_quadratics,
            bregman_optimum,
            {**_NEAR, "h": "hypentropy"},
            400,
            1e-10,
            prior=prior_of,
            not_at=regularised_optimum,
        ),
        Limit(
            "with the hyperbolic entropy, exact",
            unequal_quadratics,
            bregman_optimum,
            {**_NEAR, "h": "hypentropy", "server_form": "exact"},
            400,
            1e-10,
            prior=prior_of,
            not_at=regularised_optimum,
        ),
        Around(
            "prices are minus the weighted meta-gradients", unequal_problem, price_off, {**_PRICES, "y_init": "normal"}
        ),
        Around("… on a network too", classification, price_off, {"alpha": 0.1, "rho": 0.5, "order": "exact"}),
        Invariant("the server's sum is that of the clients", unequal_problem, miscounted, _PRICES, 30, 1e-12, _STANDS),
    ),
    batches={"alpha": 0.1, "rho": 0.5, "y_init": "normal"},
    full={"delta": 0.05},
    divisible=False,
)

_SOLVED: dict[str, Any] = {"alpha": 0.4, "rho": 0.1, "tolerance": 1e-12, "max_iterations": 60}

ADMM_META_EXACT = Declaration(
    claims=(
        Limit(
            "it finds the best start for adaptation",
            unequal_quadratics,
            regularised_optimum,
            _SOLVED,
            80,
            1e-10,
            {name: Exactly(150) for name in EVERY_HARDSHIP},
        ),
        Limit(
            "with a prior, linearised",
            unequal_quadratics,
            regularised_optimum,
            {**_SOLVED, "lambda_": 0.1},
            80,
            1e-10,
            prior=prior_of,
        ),
        Limit(
            "with a prior, exact",
            unequal_quadratics,
            regularised_optimum,
            {**_SOLVED, "lambda_": 0.3, "server_form": "exact"},
            80,
            1e-10,
            prior=prior_of,
        ),
        Invariant(
            "prices end at minus the weighted meta-gradients", unequal_problem, final_prices(70), _SOLVED, 75, 1e-9
        ),
        Invariant("the server's sum is that of the clients", unequal_problem, miscounted, _SOLVED, 20, 1e-12, _STANDS),
    ),
    batches={"alpha": 0.1, "rho": 0.5, "max_iterations": 2},
    divisible=False,
)
