"""What is known of FedOpt's family: server momentum, Adagrad, Yogi and Adam."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from fedloom.conformance.answers import Around, Exactly, Limit, Same
from fedloom.conformance.claims import IDEAL, Claim, Declaration, Finding, Hardship, Subject
from fedloom.conformance.declarations.averaging import (
    WHO_ANSWERS,
    averaged_step,
    biased_limit,
    optimum,
    unequal_quadratics,
)
from fedloom.conformance.drive import Walk, apart
from fedloom.conformance.problems import Known, agreeing, classification, least_squares, logistic
from fedloom.federation.problem import Problem
from fedloom.methods import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi
from fedloom.types import State

Courses = Callable[[Known, Any, Tensor], Iterator[Tensor]]
"""From the problem, the method and the first model to where the server must be after each round."""


@dataclass(frozen=True, eq=False)
class Course(Claim):
    """Every round is what theory says, for a server that remembers more than its model."""

    name: str
    known: Callable[[], Known]
    course: Courses
    method: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 30
    tolerance: float = 1e-11
    prior: Callable[[Known], Tensor] | None = None
    """The earlier model that the method is given, if any."""

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        known, method, off = self.known(), subject.tuned(self.method), 0.0
        how = {"prior": self.prior(known)} if self.prior is not None else {}
        with subject.walking(known.problem, method, **how) as walk:
            places = self.course(known, method, walk.context(0).theta0)
            for _ in range(self.rounds):
                walk.step()
                off = max(off, apart(walk.theta(), next(places)))
        return Finding.within(off, self.tolerance, f"greatest distance from the course in {self.rounds} rounds")


def mean_move(known: Known, method: Any, x: Tensor) -> Tensor:
    """Σ w_i Δ_i after K full-batch steps on quadratics."""
    return averaged_step(known, method, x) - x


def momentum_course(known: Known, method: Any, x: Tensor) -> Iterator[Tensor]:
    """m ← βm + Δ, x ← x + ηm; looking ahead, x ← x + η(Δ + βm)."""
    m = torch.zeros_like(x)
    while True:
        move = mean_move(known, method, x)
        m = method.beta * m + move
        x = x + method.server_lr * (move + method.beta * m if method.nesterov else m)
        yield x


def adaptive_course(second: Callable[[Tensor, Tensor, Any], Tensor]) -> Courses:
    """Algorithm 2 with this line for v, from Δ₋₁ = 0 and v₋₁ = τ²."""

    def course(known: Known, method: Any, x: Tensor) -> Iterator[Tensor]:
        delta, v = torch.zeros_like(x), torch.full_like(x, method.tau**2)
        while True:
            delta = method.beta1 * delta + (1 - method.beta1) * mean_move(known, method, x)
            v = second(v, delta**2, method)
            x = x + method.server_lr * delta / (v**0.5 + method.tau)
            yield x

    return course


def corrected_course(second: Callable[[Tensor, Tensor, Any], Tensor]) -> Courses:
    """Adam as optimisers on one machine have it: squares of the mean, v₋₁ = 0, and the correction of the bias."""

    def course(known: Known, method: Any, x: Tensor) -> Iterator[Tensor]:
        m, v, t = torch.zeros_like(x), torch.zeros_like(x), 0
        while True:
            move, t = mean_move(known, method, x), t + 1
            m, v = method.beta1 * m + (1 - method.beta1) * move, second(v, move**2, method)
            lr = method.server_lr * (1 - method.beta2**t) ** 0.5 / (1 - method.beta1**t)
            x = x + lr * m / (v**0.5 + method.tau)
            yield x

    return course


def adagrad_line(v: Tensor, square: Tensor, method: Any) -> Tensor:
    """v + Δ²."""
    return v + square


def yogi_line(v: Tensor, square: Tensor, method: Any) -> Tensor:
    """v − (1 − β₂)Δ² where v is above Δ², and v + (1 − β₂)Δ² where it is below."""
    part = (1 - method.beta2) * square
    return torch.where(v > square, v - part, torch.where(v < square, v + part, v))


def adam_line(v: Tensor, square: Tensor, method: Any) -> Tensor:
    """β₂v + (1 − β₂)Δ², written as a step from v towards Δ²."""
    return v + (square - v) * float(1 - method.beta2)


def fallen(before: State, walk: Walk, accepted: Tensor) -> float:
    """How far v fell."""
    return float((before["v"] - walk.state["v"]).max().clamp(min=0))


def off_yogi(before: State, walk: Walk, accepted: Tensor) -> float:
    """How far |v_t − v_{t−1}| is from (1 − β₂)Δ_t², where v_{t−1} ≠ Δ_t²."""
    after, method = walk.state, cast(FedYogi, walk.setting.method)
    square = after["delta"] ** 2
    moved = (after["v"] - before["v"]).abs()
    due = torch.where(before["v"] == square, 0.0, (1 - method.beta2) * square)
    return float((moved - due).abs().max())


def outside_hull(before: State, walk: Walk, accepted: Tensor) -> float:
    """How far v_t is outside of what lies between v_{t−1} and Δ_t²; so it never leaves the hull of v₋₁ and all Δ²."""
    after = walk.state
    square = after["delta"] ** 2
    low, high = torch.minimum(before["v"], square), torch.maximum(before["v"], square)
    return float(torch.maximum(low - after["v"], after["v"] - high).max().clamp(min=0))


_BATCHES: dict[str, Any] = {"lr": 0.1, "batch": 5, "epochs": 2}
_DRIFT = {"lr": 0.3, "batch": None, "steps": 4}
_ONE_STEP = {"batch": None, "steps": 1}
_MINI = {"lr": 0.2, "batch": 4, "epochs": 2}
_HUGE = 2.0**40
_ROUNDS = 120
_HARDSHIPS = (*WHO_ANSWERS, "quantised")
_CALM = {"server_lr": 0.1, "tau": 0.1}
"""A τ above which moves count as small: near the optimum the step is η/τ = 1 times the move."""


def _tables() -> Problem:
    return classification(torch.float32)


def _limits(own: Mapping[str, Any]) -> tuple[Claim, ...]:
    """The server rests only where the mean move is zero: at FedAvg's limit, which after one full step is the optimum.

    Where all clients share one optimum no noise remains there, so that it is found under every hardship.
    """
    return (
        Limit(
            "K local steps end where FedAvg does, not at the optimum",
            unequal_quadratics,
            biased_limit,
            {**_DRIFT, **own},
            rounds=_ROUNDS,
            not_at=optimum,
        ),
        Limit("one full step finds the optimum", unequal_quadratics, optimum, {**_ONE_STEP, "lr": 0.8, **own}, _ROUNDS),
        Limit(
            "one full step finds the optimum of least squares",
            least_squares,
            optimum,
            {**_ONE_STEP, "lr": 0.8, **own},
            _ROUNDS,
        ),
        Limit(
            "one full step finds the optimum of logistic regression",
            logistic,
            optimum,
            {**_ONE_STEP, "lr": 4.0, **own},
            _ROUNDS,
        ),
        Limit(
            "mini-batches find the optimum that all clients share",
            agreeing,
            optimum,
            {**_MINI, **own},
            _ROUNDS,
            hardships={name: Exactly(_ROUNDS) for name in _HARDSHIPS},
        ),
    )


def _not_adaptive(own: Mapping[str, Any]) -> tuple[Claim, ...]:
    """With η = τ → ∞ the root of v is as nothing: what remains is FedAvg, or momentum at the server."""
    huge = {**_BATCHES, **own, "server_lr": _HUGE, "tau": _HUGE, "v_start": 0.0}
    momentum = FedAvgM(**_BATCHES, beta=0.75, server_lr=0.25)
    return (
        Same(
            "with η = τ → ∞ and β₁ = 0 it is FedAvg",
            classification,
            {**huge, "beta1": 0.0},
            FedAvg(**_BATCHES),
            tolerance=1e-9,
        ),
        Same(
            "with η = τ → ∞ and β₁ > 0 it is server momentum",
            classification,
            {**huge, "beta1": 0.75},
            momentum,
            tolerance=1e-9,
        ),
    )


FEDOPT = Declaration(
    claims=(
        Same("with the server's SGD and η = 1 it is FedAvg, bit by bit", _tables, _BATCHES, FedAvg(**_BATCHES)),
        Same(
            "with the server's momentum it is FedAvgM, bit by bit",
            _tables,
            {**_BATCHES, "server_optimiser": "momentum", "beta": 0.8},
            FedAvgM(**_BATCHES, beta=0.8),
        ),
        Same(
            "with the server's Adagrad it is FedAdagrad, bit by bit",
            _tables,
            {**_BATCHES, "server_optimiser": "adagrad", "tau": 0.01},
            FedAdagrad(**_BATCHES, tau=0.01),
        ),
        Same(
            "with the server's Yogi it is FedYogi, bit by bit",
            _tables,
            {**_BATCHES, "server_optimiser": "yogi", "beta2": 0.9},
            FedYogi(**_BATCHES, beta2=0.9),
        ),
        Same(
            "with the server's Adam it is FedAdam, bit by bit",
            _tables,
            {**_BATCHES, "server_optimiser": "adam", "bias_correction": "adam"},
            FedAdam(**_BATCHES, bias_correction="adam"),
        ),
        *_limits({"server_lr": 0.7}),
    ),
    batches={**_BATCHES, "server_optimiser": "adam"},
)

FEDAVGM = Declaration(
    claims=(
        Course("every round follows its recursion", unequal_quadratics, momentum_course, {**_DRIFT, "beta": 0.7}),
        Course(
            "so does Nesterov's",
            unequal_quadratics,
            momentum_course,
            {**_DRIFT, "beta": 0.7, "nesterov": True, "server_lr": 0.5},
        ),
        Same("without momentum it is FedAvg, bit by bit", _tables, {**_BATCHES, "beta": 0.0}, FedAvg(**_BATCHES)),
        *_limits({"beta": 0.5, "server_lr": 0.5}),
    ),
    batches=_BATCHES,
)

FEDADAGRAD = Declaration(
    claims=(
        Course("every round is its line of Algorithm 2", unequal_quadratics, adaptive_course(adagrad_line), _DRIFT),
        Around("v never falls", classification, fallen, _BATCHES, 40, 0.0, _HARDSHIPS),
        *_not_adaptive({}),
        *_limits({"server_lr": 1.0, "tau": 0.1}),
    ),
    batches=_BATCHES,
)

FEDYOGI = Declaration(
    claims=(
        Course("every round is its line of Algorithm 2", unequal_quadratics, adaptive_course(yogi_line), _DRIFT),
        Around(
            "v moves by (1 − β₂)Δ², neither more nor less", classification, off_yogi, _BATCHES, 40, 1e-16, _HARDSHIPS
        ),
        *_not_adaptive({}),
        *_limits({**_CALM, "beta1": 0.5}),
    ),
    batches=_BATCHES,
)

FEDADAM = Declaration(
    claims=(
        Course("every round is its line of Algorithm 2", unequal_quadratics, adaptive_course(adam_line), _DRIFT),
        Course(
            "with the correction of the bias it is Adam as on one machine",
            unequal_quadratics,
            corrected_course(adam_line),
            {**_DRIFT, "v_start": 0.0, "squares": "mean", "bias_correction": "adam", "beta2": 0.999, "tau": 1e-7},
        ),
        Around(
            "v stays in the convex hull of its start and the squares",
            classification,
            outside_hull,
            _BATCHES,
            40,
            1e-16,
            _HARDSHIPS,
        ),
        *_not_adaptive({}),
        *_limits({**_CALM, "beta1": 0.5}),
    ),
    batches=_BATCHES,
)
