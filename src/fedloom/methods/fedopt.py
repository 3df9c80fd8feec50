"""FedOpt: an optimiser at the server, which takes the mean of the clients' moves for a gradient.

S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar and H. B. McMahan, "Adaptive federated
optimization", ICLR 2021, Algorithms 1 and 2 (FedAdagrad, FedYogi, FedAdam). https://arxiv.org/abs/2003.00295

T.-M. H. Hsu, H. Qi and M. Brown, "Measuring the effects of non-identical data distribution for federated visual
classification", 2019 (FedAvgM). https://arxiv.org/abs/1909.06335
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.client import Client
from fedloom.federation.problem import Problem
from fedloom.federation.replies import Replies, Weighting
from fedloom.federation.schedules import Rate, rate_at
from fedloom.methods.method import Context, Method
from fedloom.methods.register import register
from fedloom.methods.training import LocalTraining
from fedloom.types import Decay, Memory, Message, NonNegative, Positive, State, Vector

Squares = Literal["momentum", "mean"]
Correction = Literal["adam", "flower"]


@dataclass(frozen=True)
class ClientOptimised(LocalTraining):
    """The clients' half: each trains from the common model and sends by how much it moved."""

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {"x": state["x"]}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        x = received["x"]
        y, _ = self.train(client, x)  # ClientOpt
        return {"dx": y - x}, memory  # Δ_i


@dataclass(frozen=True)
class ServerOptimised(ClientOptimised):
    """Clients train as in FedAvg; the server's optimiser makes its step from the mean of their moves."""

    server_lr: Rate = 1.0
    """η, the server's step size, or a schedule of it such as "step:0.1:50:0.5"."""
    weighting: Weighting = "size"
    """ "size": n_k/Σn over the clients that answered; "uniform": the plain mean, as the paper writes it."""

    @abstractmethod
    def slots(self, x: Vector) -> State:
        """What the optimiser keeps beside x, at the start."""

    @abstractmethod
    def step(self, state: State, mean: Vector, lr: float) -> State:
        """The state after a step, from the mean of the clients' moves."""

    def server_init(self, ctx: Context) -> State:
        return {"x": ctx.theta0, **self.slots(ctx.theta0)}

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        mean = replies.mean("dx", self.weighting)  # Σ w_i Δ_i
        return self.step(state, mean, rate_at(self.server_lr, ctx.round))  # ServerOpt


@dataclass(frozen=True)
class ServerSGD(ServerOptimised):
    """Plain steps of the server; with η = 1 it is FedAvg."""

    def slots(self, x: Vector) -> State:
        return {}

    def step(self, state: State, mean: Vector, lr: float) -> State:
        return {"x": state["x"] + lr * mean}


@register(
    "fedavgm",
    family="optimisation",
    paper="Hsu et al., 2019",
    summary="FedAvg with momentum at the server",
    declaration="fedloom.conformance.declarations.adaptive:FEDAVGM",
)
@dataclass(frozen=True)
class FedAvgM(ServerOptimised):
    """FedAvg with momentum at the server: it moves by a fading sum of the mean moves."""

    beta: Decay = 0.9
    """β, how much of the last move is kept."""
    nesterov: bool = False
    """Look ahead: step by Δ + βm instead of m."""

    def slots(self, x: Vector) -> State:
        return {"m": torch.zeros_like(x)}

    def step(self, state: State, mean: Vector, lr: float) -> State:
        m = self.beta * state["m"] + mean
        move = mean + self.beta * m if self.nesterov else m
        return {"x": state["x"] + lr * move, "m": m}


@dataclass(frozen=True)
class Adaptive(ServerOptimised):
    """Algorithm 2: each number of the model has a step size of its own, from the squares of its past moves."""

    beta1: Decay = 0.9
    """β₁, how much of the last Δ is kept."""
    tau: Positive = 1e-3
    """τ, the degree of adaptivity: the smaller, the more the step forgets how large a move was."""
    v_start: NonNegative | None = None
    """v₋₁; none: τ², as in the paper."""
    squares: Squares = "momentum"
    """Whose squares v gathers: those of the momentum Δ_t (the paper) or of the plain mean (most code)."""

    @abstractmethod
    def second(self, v: Vector, square: Vector) -> Vector:
        """v_t from v_{t−1} and Δ_t²."""

    def slots(self, x: Vector) -> State:
        start = self.tau**2 if self.v_start is None else self.v_start
        return {"delta": torch.zeros_like(x), "v": torch.full_like(x, start)}

    def step(self, state: State, mean: Vector, lr: float) -> State:
        delta = self.beta1 * state["delta"] + (1 - self.beta1) * mean
        seen = delta if self.squares == "momentum" else mean
        v = self.second(state["v"], seen * seen)
        return {"x": state["x"] + lr * delta / (v.sqrt() + self.tau), "delta": delta, "v": v}


@register(
    "fedadagrad",
    family="optimisation",
    paper="Reddi et al., ICLR 2021",
    summary="Adagrad at the server: steps that only ever fall",
    declaration="fedloom.conformance.declarations.adaptive:FEDADAGRAD",
)
@dataclass(frozen=True)
class FedAdagrad(Adaptive):
    """The server's v is the sum of all squares: step sizes only ever fall."""

    server_lr: Rate = 0.1
    beta1: Decay = 0.0

    def second(self, v: Vector, square: Vector) -> Vector:
        return v + square


@dataclass(frozen=True)
class Fading(Adaptive):
    """v forgets old squares at the pace β₂, so that step sizes can rise again."""

    server_lr: Rate = 0.01
    beta2: Decay = 0.99
    """β₂, how much of the last v is kept."""
    bias_correction: Correction | None = None
    """Times √(1 − β₂ᵗ)/(1 − β₁ᵗ): with t = 1, 2, … ("adam"), with t = 2, 3, … ("flower"); none: never (the paper)."""

    def slots(self, x: Vector) -> State:
        return {**super().slots(x), "t": torch.tensor(0)}

    def step(self, state: State, mean: Vector, lr: float) -> State:
        t = state["t"] + 1
        return {**super().step(state, mean, lr * self.correction(int(t))), "t": t}

    def correction(self, t: int) -> float:
        """What the step size is multiplied with at the t-th step."""
        if self.bias_correction is None:
            return 1.0
        power = t + 1 if self.bias_correction == "flower" else t
        return math.sqrt(1 - self.beta2**power) / (1 - self.beta1**power)


@register(
    "fedyogi",
    family="optimisation",
    paper="Reddi et al., ICLR 2021",
    summary="Yogi at the server: steps that rise slowly again",
    declaration="fedloom.conformance.declarations.adaptive:FEDYOGI",
)
@dataclass(frozen=True)
class FedYogi(Fading):
    """The server's v moves towards Δ² by steps in proportion to Δ²: it falls slowly when moves become small."""

    def second(self, v: Vector, square: Vector) -> Vector:
        return v - (1 - self.beta2) * square * torch.sign(v - square)


@register(
    "fedadam",
    family="optimisation",
    paper="Reddi et al., ICLR 2021",
    summary="Adam at the server: steps by a fading average of squares",
    declaration="fedloom.conformance.declarations.adaptive:FEDADAM",
)
@dataclass(frozen=True)
class FedAdam(Fading):
    """The server's v is a fading average of the squares."""

    def second(self, v: Vector, square: Vector) -> Vector:
        return self.beta2 * v + (1 - self.beta2) * square


_SERVERS: dict[str, type[ServerOptimised]] = {
    "sgd": ServerSGD,
    "momentum": FedAvgM,
    "adagrad": FedAdagrad,
    "yogi": FedYogi,
    "adam": FedAdam,
}


ServerName = Literal["sgd", "momentum", "adagrad", "yogi", "adam"]


@dataclass(frozen=True)
class ServerChoice(Method):
    """A method whose server's optimiser is chosen by name; gives it the optimisers' hyper-parameters."""

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
    tau: Positive | None = None
    """τ of adagrad, yogi and adam; none: 0.001."""
    v_start: NonNegative | None = None
    """v₋₁ of adagrad, yogi and adam; none: τ²."""
    squares: Squares | None = None
    """Whose squares v gathers in adagrad, yogi and adam; none: those of the momentum."""
    bias_correction: Correction | None = None
    """The correction of yogi and adam; none: no correction."""

    def check(self, problem: Problem) -> None:
        self.chosen()

    def chosen(self) -> ServerOptimised:
        """The optimiser of that name, with what is given here."""
        cls = _SERVERS[self.server_optimiser]
        names = [field.name for field in fields(ServerChoice) if field.name != "server_optimiser"]
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        known = {field.name for field in fields(cls)}
        for name in given.keys() - known:
            raise ConfigError(f"the server optimiser {self.server_optimiser!r} has no {name}; leave it out")
        made: Any = cls
        return made(**given)  # type: ignore[no-any-return]


@register(
    "fedopt",
    family="optimisation",
    paper="Reddi et al., ICLR 2021",
    summary="any optimiser of the clients with any optimiser of the server",
    declaration="fedloom.conformance.declarations.adaptive:FEDOPT",
)
@dataclass(frozen=True)
class FedOpt(ServerChoice, ClientOptimised):
    """Algorithm 1: any optimiser of the clients with any optimiser of the server.

    What is left open is as in the method of that name. With the server's SGD and η = 1 it is FedAvg, bit by bit.
    """

    server_lr: Rate | None = None
    """η, the server's step size, or a schedule of it; none: 1 for sgd and momentum, 0.1 for adagrad, else 0.01."""
    weighting: Weighting = "size"
    """ "size": n_k/Σn over the clients that answered; "uniform": the plain mean, as the paper writes it."""

    def server_init(self, ctx: Context) -> State:
        return {"x": ctx.theta0, **self.chosen().slots(ctx.theta0)}

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        chosen, mean = self.chosen(), replies.mean("dx", self.weighting)  # Σ w_i Δ_i
        lr = chosen.server_lr if self.server_lr is None else self.server_lr
        return chosen.step(state, mean, rate_at(lr, ctx.round))  # ServerOpt
