"""What is known of ADMM-FedMeta and its exact sibling.

They end where Σ w_i F_i(θ) + λD_h(θ, θ_p) is least; on the way, the inexact one is optimistic gradient descent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from fedloom.conformance.answers import Around, Invariant, Limit, Limits
from fedloom.conformance.claims import Declaration
from fedloom.conformance.declarations.admm import miscounted
from fedloom.conformance.declarations.common import (
    F64,
    applied,
    reached,
    server_moved,
    unequal_problem,
    unequal_quadratics,
)
from fedloom.conformance.declarations.courses import ROUNDS, Adapts, Course, Defaults, Ledger, Reported, Turn
from fedloom.conformance.declarations.meta import (
    NOTHING,
    adapted_by,
    adapted_quadratic,
    costs,
    differences,
    meta_gradients,
)
from fedloom.conformance.drive import Walk, apart, recall
from fedloom.conformance.problems import Known, classification, logistic
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


def unpriced(known: Known, method: Any, theta: Tensor) -> Ledger:
    """Prices that begin at 0, and nobody who counts."""
    zero = torch.zeros(len(known.clients), len(theta), dtype=F64)
    return Ledger({"x": theta}, kept={"g": torch.zeros_like(theta), "y": zero, "m": zero, "held": set()})


def optimistic_turn(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
    """θ − s(2Gᵗ − Gᵗ⁻¹ + λ∇D_h(θ)), or its form with D_h kept whole; s = 1/Σρ_i.

    It is told client by client: the server's sum has ρ_iθ − 2w_iGᵗ + w_iGᵗ⁻¹ of each, and where some are not heard it
    has what they last said, Gᵗ⁻¹ being the gradient of when a client was heard before.
    """
    theta = at.state["x"]
    weighted = shares(known).unsqueeze(-1) * meta_gradients(known, method, theta)
    own = penalties(known, method) * theta - 2 * weighted - at.kept["y"]
    counted(known, method, at, heard, own, -weighted)


def penalties(known: Known, method: Any) -> Tensor:
    """ρ_i, a column."""
    return torch.tensor(method.rho_i or [method.rho] * len(known.clients), dtype=F64).unsqueeze(-1)


def counted(known: Known, method: Any, at: Ledger, heard: list[int], m: Tensor, y: Tensor) -> None:
    """Books the m_i and y_i of those who are heard; the server's step on the sums over all who ever were."""
    now = torch.zeros(len(m), 1, dtype=torch.bool)
    now[heard] = True
    at.kept["held"] = at.kept["held"] | set(heard)
    at.kept |= {"m": torch.where(now, m, at.kept["m"]), "y": torch.where(now, y, at.kept["y"])}
    at.memory = {k: {"y": at.kept["y"][k], "m": at.kept["m"][k]} for k in at.kept["held"]}
    total, rho = at.kept["m"].sum(0), penalties(known, method)[sorted(at.kept["held"])].sum()
    theta, prior, lam = at.state["x"], prior_of(known), method.lambda_
    linearised, exact = (total - 2 * lam * (theta - prior)) / rho, (total + 2 * lam * prior) / (rho + 2 * lam)
    at.state["x"] = linearised if method.server_form == "linearised" else exact


def difference_turn(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
    """The same on logistic regression, with differences of gradients at the distance δ: 1/(k + 100) in round k."""
    theta = at.state["x"]
    delta = 1 / (at.turns + 101) if method.delta is None else method.delta
    g = shares(known) @ differences(known, replace(method, delta=delta), theta)
    at.state["x"] = theta - (2 * g - at.kept["g"]) / (method.rho * len(known.clients))
    at.kept["g"] = g


def proximal_turn(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
    """The ADMM of (6) to (10) itself: θ_i = argmin w_i F_i + ⟨y_i, θ_i⟩ + (ρ_i/2)‖θ_i − θ‖², then y_i, then (11)."""
    theta, w, y, rho = at.state["x"], shares(known).unsqueeze(-1), at.kept["y"], penalties(known, method)
    h, c = adapted_quadratic(known, method.alpha, order=method.order)
    curved = w.unsqueeze(-1) * h + rho.unsqueeze(-1) * torch.eye(len(theta), dtype=F64)
    own = torch.linalg.solve(curved, w * c - y + rho * theta)
    if method.max_iterations == 1:  # its first step, L-BFGS takes along the gradient of w_i⁻¹ times that
        g = applied(h, theta) - c + y / w
        own = theta - g / g.norm(dim=-1, keepdim=True).clamp(min=1)
    y = y + rho * (own - theta)
    counted(known, method, at, heard, y + rho * own, y)


def slope_and_distance(known: Known, method: Any, theta: Tensor) -> dict[str, float]:
    """‖Σ w_i ∇F_i(θ) + λ∇D_h(θ)‖, and with a prior how far it is."""
    away, g = theta - prior_of(known), shares(known) @ meta_gradients(known, replace(method, order="exact"), theta)
    found = {} if method.lambda_ == 0 else {"prior_distance": float(away.norm())}
    told = {"gradient_norm": float((g + 2 * method.lambda_ * away).norm())}
    return found | (told if method.gradient_norm else {})


def drawn_off(before: State, walk: Walk, accepted: Tensor) -> float:
    """After the first round, how far the prices at the start are from normal ones cut off at two deviations of 0.01.

    From (14) and (10), m_i = y_i + ρθ_i = −2w_iG_i + ρθ − y_i⁰, which tells y_i⁰; a solver that is content with
    everything leaves y_i⁰ as it is. The mean of such numbers is 0, their variance 0.7737 of the uncut one's; of 580
    numbers both are known to a tenth.
    """
    if walk.clocks.round > 1:
        return 0.0
    client, method = walk.problem.client(accepted.numpy(), Draw(0)), cast(MetaADMM, walk.setting.method)
    weighted = client.n / before["rows"] * client.meta_grad(before["x"], method.alpha)[0]
    own = recall(walk, accepted)
    y = own["y"] if hasattr(method, "tolerance") else method.rho * before["x"] - 2 * weighted - own["m"]
    y = y / 0.01
    alike = torch.cov(y)[0, 1:].abs().max() > 0.4
    if float(y.abs().max()) > 2 or alike:
        return float("inf")
    return max(abs(float(y.mean())), abs(float(y.square().mean()) / 0.7737 - 1))


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
_TOLD = (
    Reported("the history tells the norm of the gradient", slope_and_distance, _PRICES),
    Reported("… and the distance from the prior", slope_and_distance, _NEAR, prior_of),
    Reported("… alone, if it is told so", slope_and_distance, {**_NEAR, "gradient_norm": False}, prior_of),
)
_GIVEN: dict[str, Any] = {**ROUNDS, "evaluates": "adapted", "alpha": 0.1, "order": "exact", "rho": 0.35, "rho_i": None}
_GIVEN |= {"lambda_": 0.0, "h": "squared", "server_form": "linearised", "y_init": "zero", "gradient_norm": True}


def _course(name: str, own: Mapping[str, Any], turn: Turn, **how: Any) -> Course:
    return Course(name, unpriced, turn, own, prior=prior_of if "lambda_" in own else None, **how)


def _limit(name: str, own: Mapping[str, Any], rounds: int, tolerance: float, **how: Any) -> Limit:
    """Where it ends, with a prior if it has a λ, and in the place of the squared distance with the entropy."""
    rival: Limits | None = regularised_optimum if "h" in own else None
    there = bregman_optimum if "h" in own else regularised_optimum
    prior = prior_of if "lambda_" in own else None
    return Limit(name, unequal_quadratics, there, own, rounds, tolerance, prior=prior, not_at=rival, **how)


_EXACT = {"server_form": "exact"}
_DIFFERENCES = {"alpha": 0.4, "rho": 0.5}
_NETWORK = {"alpha": 0.1, "rho": 0.5, "order": "exact"}
_NORMAL = {"y_init": "normal"}

ADMM_FEDMETA = Declaration(
    claims=(
        _course("it is optimistic gradient descent", _PRICES, optimistic_turn, stands=("sampled", "lost")),
        _course("… with a prior, linearised", _NEAR, optimistic_turn),
        _course("… with a prior, exact", {**_NEAR, **_EXACT}, optimistic_turn),
        _course("… with a penalty for each client", {**_PRICES, "rho_i": (0.3, 0.5, 0.7, 0.2, 0.4)}, optimistic_turn),
        _course(
            "… on the query alone where nothing is adapted", {**_PRICES, "rho": 0.8, "alpha": NOTHING}, optimistic_turn
        ),
        _course(
            "… with differences of gradients at the distance 1/(k + 100)",
            _DIFFERENCES,
            difference_turn,
            known=logistic,
            rounds=5,
        ),
        _course(
            "… or as far as it is told",
            {**_DIFFERENCES, "delta": "exponential:0.9:0.8"},
            difference_turn,
            known=logistic,
            rounds=5,
        ),
        _course("… without second derivatives", {**_PRICES, "order": "first"}, optimistic_turn),
        _limit(
            "it finds the best start for adaptation",
            {"alpha": 0.2, "rho": 0.3},
            220,
            1e-11,
            hardships=reached(360, "sampled", "lost"),
        ),
        _limit("with a prior", _NEAR, 150, 1e-11, hardships=reached(200, "late", "quantised")),
        _limit("prices that begin anywhere end there too", {**_NEAR, **_NORMAL}, 150, 1e-11),
        _limit("with the hyperbolic entropy, linearised", {**_NEAR, "h": "hypentropy"}, 200, 1e-10),
        _limit("with the hyperbolic entropy, exact", {**_NEAR, "h": "hypentropy", **_EXACT}, 200, 1e-10),
        Around("prices are minus the weighted meta-gradients", unequal_problem, price_off, {**_PRICES, **_NORMAL}, 5),
        Around("… on a network too", classification, price_off, _NETWORK, 5),
        Around(
            "prices at the start are normal, and cut off", classification, drawn_off, {**_NETWORK, **_NORMAL}, 1, 0.1
        ),
        Adapts("clients adapt by steps of α", adapted_by, _PRICES),
        *costs(_PRICES),
        *_TOLD,
        Defaults({**_GIVEN, "order": "difference", "delta": None}),
        Invariant("the server's sum is that of the clients", unequal_problem, miscounted, _PRICES, 30, 1e-12, _STANDS),
    ),
    batches={"alpha": 0.1, "rho": 0.5, **_NORMAL},
    full={"delta": 0.05},
    divisible=False,
)

_SOLVED: dict[str, Any] = {"alpha": 0.4, "rho": 0.1, "tolerance": 1e-12, "max_iterations": 60}
_ONCE: dict[str, Any] = {**_SOLVED, "rho": 0.02, "max_iterations": 1}
_CONTENT: dict[str, Any] = {**_SOLVED, "tolerance": 1e3}
_WITH_PRIOR: dict[str, Any] = {**_SOLVED, "rho": 0.15, "lambda_": 0.3, **_EXACT}

ADMM_META_EXACT = Declaration(
    claims=(
        _course(
            "every round is the ADMM of equations (6) to (10)",
            {**_SOLVED, "lambda_": 0.1, "rho_i": (0.15, 0.1, 0.2, 0.12, 0.1)},
            proximal_turn,
            rounds=8,
            tolerance=1e-10,
            stands=("sampled", "lost"),
        ),
        _course("… with an iteration of L-BFGS", _ONCE, proximal_turn, rounds=5),
        _course("… without second derivatives", {**_ONCE, "order": "first"}, proximal_turn, rounds=5),
        _course("… with the exact step of the server", {**_ONCE, **_EXACT, "lambda_": 0.3}, proximal_turn, rounds=5),
        Around(
            "prices at the start are normal, and cut off", classification, drawn_off, {**_CONTENT, **_NORMAL}, 1, 0.1
        ),
        Invariant(
            "clients that are content with everything move nothing", unequal_problem, server_moved, _CONTENT, rounds=3
        ),
        _limit("it finds the best start for adaptation", _SOLVED, 80, 1e-10, hardships=reached(150)),
        _limit("with a prior, exact", _WITH_PRIOR, 80, 1e-10),
        _limit("with the hyperbolic entropy", {**_WITH_PRIOR, "h": "hypentropy"}, 80, 1e-10),
        Invariant(
            "dual variables end at minus the weighted meta-gradients",
            unequal_problem,
            final_prices(55),
            _SOLVED,
            60,
            1e-9,
        ),
        Invariant("the server's sum is that of the clients", unequal_problem, miscounted, _ONCE, 20, 1e-12, _STANDS),
        Adapts("clients adapt by steps of α", adapted_by, _SOLVED),
        *costs(_CONTENT)[:2],
        *_TOLD,
        Defaults({**_GIVEN, "tolerance": 1e-8, "max_iterations": 20}),
    ),
    batches={"alpha": 0.1, "rho": 0.5, "max_iterations": 2},
    divisible=False,
)
