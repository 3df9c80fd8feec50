"""Optimisers of a server, which take the mean of the clients' moves for a gradient, with its sign turned.

S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar and H. B. McMahan, "Adaptive federated
optimization", ICLR 2021, Algorithm 2 (Adagrad, Yogi, Adam). https://arxiv.org/abs/2003.00295
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.search import Search
from fedloom.types import Decay, NonNegative, State, Vector

Adaptivity = Annotated[float, Interval(gt=0, le=1e18)]
"""τ, whose square a number of the model must hold."""
Squares = Literal["momentum", "mean"]
Correction = Literal["adam", "flower"]


class ServerOptimiser(ABC):
    """``init`` makes the state around x, ``step`` the next state from a move of x; neither changes what it is given.

    Each number of x is treated by itself, and all are treated alike. So a part of the coordinates steps as it does
    within the whole, and a stack of states, a leading axis of every entry, steps as each of them alone, bit by bit.
    """

    @abstractmethod
    def init(self, x: Vector) -> State:
        """The state at the start: x, and what the optimiser keeps beside it."""

    @abstractmethod
    def step(self, state: State, move: Vector, lr: float | Tensor) -> State:
        """The state after a step of size η = ``lr`` along the move Δ."""


@dataclass(frozen=True)
class SGD(ServerOptimiser):
    """Plain steps."""

    def init(self, x: Vector) -> State:
        return {"x": x}

    def step(self, state: State, move: Vector, lr: float | Tensor) -> State:
        return {"x": state["x"] + lr * move}


@dataclass(frozen=True)
class Heavy:
    """Hyper-parameters of momentum."""

    beta: Annotated[Decay, Search(0.0, 0.95)] = 0.9
    """β, how much of the last move is kept."""
    nesterov: bool = False
    """Look ahead: step by Δ + βm instead of m."""


@dataclass(frozen=True)
class Momentum(Heavy, ServerOptimiser):
    """Steps by a fading sum of the moves."""

    def init(self, x: Vector) -> State:
        return {"x": x, "m": torch.zeros_like(x)}

    def step(self, state: State, move: Vector, lr: float | Tensor) -> State:
        m = self.beta * state["m"] + move
        ahead = move + self.beta * m if self.nesterov else m
        return {"x": state["x"] + lr * ahead, "m": m}


@dataclass(frozen=True)
class Adaptive:
    """Hyper-parameters of Algorithm 2: each number has a step size of its own, from the squares of its past moves."""

    beta1: Decay = 0.9
    """β₁, how much of the last Δ is kept."""
    tau: Annotated[Adaptivity, Search(1e-4, 0.1, log=True)] = 1e-3
    """τ, the degree of adaptivity: the smaller, the more the step forgets how large a move was."""
    v_start: NonNegative | None = None
    """v₋₁; none: τ², as in the paper."""
    squares: Squares = "momentum"
    """Whose squares v gathers: those of the momentum Δ_t (the paper) or of the plain mean (most code)."""


@dataclass(frozen=True)
class Fading:
    """Hyper-parameters of Algorithm 2 where v forgets old squares, so that step sizes can rise again."""

    beta2: Decay = 0.99
    """β₂, how much of the last v is kept."""
    bias_correction: Correction | None = None
    """Times √(1 − β₂ᵗ)/(1 − β₁ᵗ): with t = 1, 2, … ("adam"), with t = 2, 3, … ("flower"); none: never (the paper)."""


@dataclass(frozen=True)
class Algorithm2(Adaptive, ServerOptimiser):
    """Algorithm 2: a step along the momentum Δ_t, each number of it divided by the root of its v."""

    @abstractmethod
    def gathered(self, v: Vector, square: Vector) -> Vector:
        """v_t from v_{t−1} and the new squares."""

    def init(self, x: Vector) -> State:
        v = self.tau**2 if self.v_start is None else self.v_start
        return {"x": x, "delta": torch.zeros_like(x), "v": torch.full_like(x, v)}

    def step(self, state: State, move: Vector, lr: float | Tensor) -> State:
        delta = self.beta1 * state["delta"] + (1 - self.beta1) * move
        seen = delta if self.squares == "momentum" else move
        v = self.gathered(state["v"], seen * seen)
        return {"x": state["x"] + lr * delta / (v.sqrt() + self.tau), "delta": delta, "v": v}


@dataclass(frozen=True)
class Adagrad(Algorithm2):
    """v is the sum of all squares: step sizes only ever fall."""

    beta1: Decay = 0.0

    def gathered(self, v: Vector, square: Vector) -> Vector:
        return v + square


@dataclass(frozen=True)
class Corrected(Fading, Algorithm2):
    """Algorithm 2 with a v that forgets; it counts the steps, by which the bias may be corrected."""

    def init(self, x: Vector) -> State:
        return {**super().init(x), "t": torch.zeros(x.shape[:-1], dtype=torch.int64)}  # a number for each vector

    def step(self, state: State, move: Vector, lr: float | Tensor) -> State:
        t = state["t"] + 1
        if self.bias_correction is not None:
            powers = (t + 1 if self.bias_correction == "flower" else t).flatten().tolist()
            rates = [lr * (math.sqrt(1 - self.beta2**power) / (1 - self.beta1**power)) for power in powers]
            lr = state["x"].new_tensor(rates).view(*t.shape, 1)
        return {**super().step(state, move, lr), "t": t}


@dataclass(frozen=True)
class Yogi(Corrected):
    """v moves towards Δ² by steps in proportion to Δ²: it falls slowly when moves become small."""

    def gathered(self, v: Vector, square: Vector) -> Vector:
        return v - (1 - self.beta2) * square * torch.sign(v - square)


@dataclass(frozen=True)
class Adam(Corrected):
    """v is a fading average of the squares."""

    def gathered(self, v: Vector, square: Vector) -> Vector:
        return self.beta2 * v + (1 - self.beta2) * square


ServerName = Literal["sgd", "momentum", "adagrad", "yogi", "adam"]
_OPTIMISERS: dict[ServerName, type[ServerOptimiser]] = {
    "sgd": SGD,
    "momentum": Momentum,
    "adagrad": Adagrad,
    "yogi": Yogi,
    "adam": Adam,
}


@dataclass(frozen=True)
class ServerChoice:
    """Hyper-parameters of a method whose server's optimiser is chosen by name."""

    server_optimiser: ServerName = "sgd"
    """The server's optimiser, kept from round to round."""
    beta: Decay | None = None
    """β of momentum; none: 0.9."""
    nesterov: bool | None = None
    """Momentum that looks ahead; none: it does not."""
    beta1: Decay | None = None
    """β₁ of adagrad (none: 0), yogi and adam (none: 0.9)."""
    beta2: Decay | None = None
    """β₂ of yogi and adam; none: 0.99."""
    tau: Adaptivity | None = None
    """τ of adagrad, yogi and adam; none: 0.001."""
    v_start: NonNegative | None = None
    """v₋₁ of adagrad, yogi and adam; none: τ²."""
    squares: Squares | None = None
    """Whose squares v gathers in adagrad, yogi and adam; none: those of the momentum."""
    bias_correction: Correction | None = None
    """The correction of yogi and adam; none: no correction."""

    def server_opt(self) -> ServerOptimiser:
        """The optimiser of that name, with what is given here; refuses what it does not have."""
        cls: Any = _OPTIMISERS[self.server_optimiser]
        names = [field.name for field in fields(ServerChoice) if field.name != "server_optimiser"]
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        for name in given.keys() - {field.name for field in fields(cls)}:
            raise ConfigError(f"the server optimiser {self.server_optimiser!r} has no {name}; leave it out")
        made: ServerOptimiser = cls(**given)
        return made
