"""What is known of FedOpt's family: server momentum, Adagrad, Yogi and Adam."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from fedloom.conformance.answers import Around, Limit, Same
from fedloom.conformance.claims import Claim, Declaration
from fedloom.conformance.declarations.common import (
    BATCHES,
    EVERY,
    ONE_STEP,
    SHORT,
    WHO_ANSWERS,
    averaged_step,
    biased_limit,
    ends,
    follows,
    optimum,
    reached,
)
from fedloom.conformance.declarations.courses import ROUNDS, TRAINING, Course, Defaults, Ledger, Turn, started
from fedloom.conformance.drive import Walk
from fedloom.conformance.problems import Known, agreeing, classification, logistic
from fedloom.federation.problem import Problem
from fedloom.methods import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi
from fedloom.methods.fedopt import ServerOptimised
from fedloom.types import State

Line = Callable[[Tensor, Tensor, Any], Tensor]
"""From v, the squares and the method to the next v."""


def mean_move(known: Known, method: Any, at: Ledger, heard: list[int]) -> Tensor:
    """Σ w_i Δ_i after K full-batch steps of those who are heard, on quadratics."""
    x = at.state["x"]
    return averaged_step(known.only(torch.tensor(heard)), method, x) - x


def momentum_turn(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
    """m ← βm + Δ, x ← x + ηm; looking ahead, x ← x + η(Δ + βm)."""
    move = mean_move(known, method, at, heard)
    m = at.state["m"] = method.beta * at.state["m"] + move
    at.state["x"] = at.state["x"] + method.server_lr * (move + method.beta * m if method.nesterov else m)


def squared(known: Known, method: Any, x: Tensor) -> Ledger:
    """Δ₋₁ = 0, and v₋₁ = τ² unless another is given."""
    v = method.tau**2 if method.v_start is None else method.v_start
    return Ledger({"x": x, "delta": torch.zeros_like(x), "v": torch.full_like(x, v)})


def adaptive_turn(second: Line) -> Turn:
    """Algorithm 2 with this line for v, and the options that other code has: whose squares, and Adam's correction."""

    def turn(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
        move = mean_move(known, method, at, heard)
        delta = at.state["delta"] = method.beta1 * at.state["delta"] + (1 - method.beta1) * move
        v = at.state["v"] = second(at.state["v"], (delta if method.squares == "momentum" else move) ** 2, method)
        lr, correction = method.server_lr, getattr(method, "bias_correction", None)
        if correction is not None:
            power = at.turns + {"adam": 1, "flower": 2}[correction]
            lr = lr * (1 - method.beta2**power) ** 0.5 / (1 - method.beta1**power)
        at.state["x"] = at.state["x"] + lr * delta / (v**0.5 + method.tau)

    return turn


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


_ALL: dict[str, Any] = {**EVERY, "weighting": "uniform"}
_DRIFT: dict[str, Any] = {"lr": 0.3, "batch": None, "steps": 4}
_FALLING: dict[str, Any] = {**_DRIFT, "lr": "exponential:0.3:0.97", "server_lr": "exponential:0.1:0.9"}
_SQUARES: dict[str, Any] = {"beta1": 0.6, "tau": 0.05, "v_start": 0.3, "squares": "mean"}
_FLOWER: dict[str, Any] = {"beta2": 0.9, "bias_correction": "flower"}
"""Other than the defaults throughout."""
_HUGE = 2.0**40
_ROUNDS = 120
_CALM = {"server_lr": 0.1, "tau": 0.1, "beta1": 0.5}
"""A τ above which moves count as small: near the optimum the step is η/τ = 1 times the move."""


def _tables() -> Problem:
    return classification(torch.float32)


def _limits(own: Mapping[str, Any]) -> tuple[Claim, ...]:
    """The server rests only where the mean move is zero: at FedAvg's limit, which after one full step is the optimum.

    Where all clients share one optimum no noise remains there, so that it is found under every hardship.
    """
    return (
        ends(
            "K local steps end where FedAvg does, not at the optimum",
            biased_limit,
            {**_DRIFT, **own},
            _ROUNDS,
            1e-9,
            not_at=optimum,
        ),
        Limit(
            "one full step finds the optimum of logistic regression",
            logistic,
            optimum,
            {**ONE_STEP, "lr": 4.0, **own},
            _ROUNDS,
        ),
        Limit(
            "mini-batches find the optimum that all clients share",
            agreeing,
            optimum,
            {"lr": 0.2, "batch": 4, "epochs": 2, **own},
            _ROUNDS,
            hardships=reached(_ROUNDS, "quantised"),
        ),
    )


def _adaptive(
    second: Line, *further: Claim, unlike: Mapping[str, Any], limits: Mapping[str, Any], defaults: Mapping[str, Any]
) -> Declaration:
    """Algorithm 2 with this line for v, as the paper has it and with all options unlike that; its limits and defaults.

    With η = τ → ∞ the root of v is as nothing: what remains is FedAvg, or momentum at the server.
    """
    turn, huge = adaptive_turn(second), {**_ALL, "server_lr": _HUGE, "tau": _HUGE, "v_start": 0.0}
    unlike = {**_DRIFT, "server_lr": 0.2, **_SQUARES, "weighting": "uniform", **unlike}
    defaults = {"tau": 1e-3, "v_start": None, "squares": "momentum", **defaults}
    claims = (
        Course("every round is its line of Algorithm 2", squared, turn, _FALLING, stands=WHO_ANSWERS),
        Course("… with every option other than the paper's", squared, turn, unlike),
        *further,
        *(
            Same(f"with η = τ → ∞ and β₁ {what}", classification, {**huge, "beta1": beta1}, other, SHORT, 1e-9)
            for beta1, what, other in (
                (0.0, "= 0 it is FedAvg", FedAvg(**_ALL)),
                (0.75, "> 0 it is server momentum", FedAvgM(**_ALL, beta=0.75, server_lr=0.25)),
            )
        ),
        *_limits(limits),
        Defaults({**TRAINING, **ROUNDS, "weighting": "size", **defaults}),
    )
    return Declaration(claims, batches=BATCHES)


def _chosen(name: str, cls: type[ServerOptimised], own: Mapping[str, Any]) -> tuple[Claim, ...]:
    """The server's optimiser of that name is the method of that name, with nothing given and with everything."""
    given, every = {"server_optimiser": name}, {**_ALL, "server_lr": "exponential:0.4:0.9", **own}
    like = f"with the server's {name} it is {cls.__name__}, bit by bit"
    return (
        Same(like, _tables, {**BATCHES, **given}, cls(**BATCHES), SHORT),
        Same(f"… {name} with all its options too", _tables, {**every, **given}, cls(**every), SHORT),
    )


_OPEN = ("beta", "nesterov", "beta1", "beta2", "tau", "v_start", "squares", "bias_correction", "server_lr")
_FADING = {"server_lr": 0.01, "beta1": 0.9, "beta2": 0.99, "bias_correction": None}

FEDOPT = Declaration(
    claims=(
        Same("with the server's SGD and η = 1 it is FedAvg, bit by bit", _tables, _ALL, FedAvg(**_ALL)),
        *_chosen("momentum", FedAvgM, {"beta": 0.8, "nesterov": True}),
        *_chosen("adagrad", FedAdagrad, _SQUARES),
        *_chosen("yogi", FedYogi, {**_SQUARES, **_FLOWER}),
        *_chosen("adam", FedAdam, {**_SQUARES, "beta2": 0.9, "bias_correction": "adam"}),
        *_limits({"server_lr": 0.7}),
        follows(
            "with the server's SGD K local steps follow their closed form",
            lambda known, method, x: x + method.server_lr * (averaged_step(known, method, x) - x),
            _FALLING,
            stands=WHO_ANSWERS,
        ),
        Defaults({**TRAINING, **ROUNDS, "weighting": "size", "server_optimiser": "sgd", **dict.fromkeys(_OPEN)}),
    ),
    batches={**BATCHES, "server_optimiser": "adam"},
)

FEDAVGM = Declaration(
    claims=(
        Course(
            "every round follows its recursion",
            started("m"),
            momentum_turn,
            {**_FALLING, "server_lr": "exponential:0.9:0.95", "beta": 0.7},
            stands=WHO_ANSWERS,
        ),
        Course(
            "so does Nesterov's",
            started("m"),
            momentum_turn,
            {**_DRIFT, "beta": 0.7, "nesterov": True, "server_lr": 0.5, "weighting": "uniform"},
        ),
        Same("without momentum it is FedAvg, bit by bit", _tables, {**_ALL, "beta": 0.0}, FedAvg(**_ALL), SHORT),
        *_limits({"beta": 0.5, "server_lr": 0.5}),
        Defaults({**TRAINING, **ROUNDS, "weighting": "size", "server_lr": 1.0, "beta": 0.9, "nesterov": False}),
    ),
    batches=BATCHES,
)

FEDADAGRAD = _adaptive(
    adagrad_line,
    Around("v never falls", classification, fallen, BATCHES, 10, 0.0, ("quantised",)),
    unlike={},
    limits={"server_lr": 1.0, "tau": 0.1},
    defaults={"server_lr": 0.1, "beta1": 0.0},
)

FEDYOGI = _adaptive(
    yogi_line,
    Around(
        "v moves by (1 − β₂)Δ², neither more nor less", classification, off_yogi, BATCHES, 10, 1e-16, ("quantised",)
    ),
    unlike=_FLOWER,
    limits=_CALM,
    defaults=_FADING,
)

FEDADAM = _adaptive(
    adam_line,
    Course(
        "with the correction of the bias it is Adam as on one machine",
        squared,
        adaptive_turn(adam_line),
        {**_DRIFT, "v_start": 0.0, "squares": "mean", "bias_correction": "adam", "beta2": 0.999, "tau": 1e-7},
    ),
    Around(
        "v stays in the convex hull of its start and the squares",
        classification,
        outside_hull,
        BATCHES,
        10,
        1e-16,
        ("quantised",),
    ),
    unlike=_FLOWER,
    limits=_CALM,
    defaults=_FADING,
)
