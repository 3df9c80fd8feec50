"""FedOpt: an optimiser at the server, which takes the mean of the clients' moves for a gradient.

S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar and H. B. McMahan, "Adaptive federated
optimization", ICLR 2021, Algorithms 1 and 2 (FedAdagrad, FedYogi, FedAdam). https://arxiv.org/abs/2003.00295

T.-M. H. Hsu, H. Qi and M. Brown, "Measuring the effects of non-identical data distribution for federated visual
classification", 2019 (FedAvgM). https://arxiv.org/abs/1909.06335
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields

from fedloom.federation.problem import Problem
from fedloom.federation.replies import Replies, Weighting
from fedloom.federation.schedules import AdaptiveRate, ServerRate, rate_at
from fedloom.federation.server_optimisers import (
    Adagrad,
    Adam,
    Adaptive,
    Fading,
    Heavy,
    Momentum,
    ServerChoice,
    ServerName,
    ServerOptimiser,
    Yogi,
)
from fedloom.methods.method import Context
from fedloom.methods.register import register
from fedloom.methods.training import ClientTraining, Weighted
from fedloom.types import Decay, State

_SERVER_LR: dict[ServerName, float] = {"sgd": 1.0, "momentum": 1.0, "adagrad": 0.1, "yogi": 0.01, "adam": 0.01}


@register("fedopt", family="optimisation", paper="Reddi et al., ICLR 2021", declaration=".adaptive:FEDOPT")
@dataclass(frozen=True)
class FedOpt(ServerChoice, Weighted, ClientTraining):
    """Any optimiser of the clients with any optimiser of the server.

    It is Algorithm 1. What is left open is as in the method of that name. With the server's SGD and η = 1 it is FedAvg,
    bit by bit.
    """

    coordinatewise = True

    server_lr: ServerRate | None = None
    """η, the server's step size, or a schedule of it; none: 1 for sgd and momentum, 0.1 for adagrad, else 0.01."""
    weighting: Weighting = "size"
    """ "size": n_k/Σn over the clients that answered; "uniform": the plain mean, as the paper writes it."""

    def check(self, problem: Problem) -> None:
        self.server_opt()

    def server_init(self, ctx: Context) -> State:
        return self.server_opt().init(ctx.theta0)

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        mean = replies.mean("dx")  # Σ w_i Δ_i
        lr = _SERVER_LR[self.server_optimiser] if self.server_lr is None else self.server_lr
        return self.server_opt().step(state, mean, rate_at(lr, ctx.round))  # ServerOpt


@dataclass(frozen=True)
class ServerOptimised(Weighted, ClientTraining):
    """Algorithm 1 with one optimiser of the server: the methods that have names of their own."""

    coordinatewise = True

    server_lr: ServerRate = 1.0
    """η, the server's step size, or a schedule of it such as "step:0.1:50:0.5"."""
    weighting: Weighting = "size"
    """ "size": n_k/Σn over the clients that answered; "uniform": the plain mean, as the paper writes it."""

    @property
    @abstractmethod
    def rule(self) -> type[ServerOptimiser]:
        """The server's optimiser; its hyper-parameters are those of the same name here."""

    def server_opt(self) -> ServerOptimiser:
        """The server's optimiser, with the hyper-parameters given here."""
        return self.rule(**{f.name: getattr(self, f.name) for f in fields(self.rule)})  # type: ignore[arg-type]

    def server_init(self, ctx: Context) -> State:
        return self.server_opt().init(ctx.theta0)

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        mean = replies.mean("dx")  # Σ w_i Δ_i
        return self.server_opt().step(state, mean, rate_at(self.server_lr, ctx.round))  # ServerOpt


@register("fedavgm", family="optimisation", paper="Hsu et al., 2019", declaration=".adaptive:FEDAVGM")
@dataclass(frozen=True)
class FedAvgM(Heavy, ServerOptimised):
    """FedAvg with momentum at the server.

    The server moves by a fading sum of the mean moves.
    """

    rule = Momentum


@register("fedadagrad", family="optimisation", paper="Reddi et al., ICLR 2021", declaration=".adaptive:FEDADAGRAD")
@dataclass(frozen=True)
class FedAdagrad(Adaptive, ServerOptimised):
    """Adagrad at the server: steps that only ever fall.

    The server's v is the sum of all squares: step sizes only ever fall.
    """

    rule = Adagrad
    server_lr: AdaptiveRate = 0.1
    beta1: Decay = 0.0


@register("fedyogi", family="optimisation", paper="Reddi et al., ICLR 2021", declaration=".adaptive:FEDYOGI")
@dataclass(frozen=True)
class FedYogi(Fading, Adaptive, ServerOptimised):
    """Yogi at the server: steps that rise slowly again.

    The server's v moves towards Δ² by steps in proportion to Δ²: it falls slowly when moves become small.
    """

    rule = Yogi
    server_lr: AdaptiveRate = 0.01


@register("fedadam", family="optimisation", paper="Reddi et al., ICLR 2021", declaration=".adaptive:FEDADAM")
@dataclass(frozen=True)
class FedAdam(Fading, Adaptive, ServerOptimised):
    """Adam at the server: steps by a fading average of squares.

    The server's v is a fading average of the squares.
    """

    rule = Adam
    server_lr: AdaptiveRate = 0.01
