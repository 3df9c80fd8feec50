"""FedMeta with MAML and with Meta-SGD, and FedAvg(Meta), FedAvg whose evaluation adapts.

F. Chen, M. Luo, Z. Dong, Z. Li and X. He, "Federated meta-learning with fast convergence and efficient communication",
2018, Algorithm 1. https://arxiv.org/abs/1802.07876

C. Finn, P. Abbeel and S. Levine, "Model-agnostic meta-learning for fast adaptation of deep networks", ICML 2017 (MAML).
Z. Li, F. Zhou, F. Chen and H. Li, "Meta-SGD: learning to learn quickly for few-shot learning", 2017.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.client import Client
from fedloom.federation.meta import Meta
from fedloom.federation.optimisers import local_optimiser
from fedloom.federation.problem import Problem
from fedloom.federation.replies import Replies
from fedloom.federation.schedules import LocalRate, rate_at
from fedloom.federation.server_optimisers import ServerChoice
from fedloom.methods.adapting import Adapting, MetaLearning
from fedloom.methods.method import Context, Wish
from fedloom.methods.register import register
from fedloom.methods.training import ClientTraining, Weighted
from fedloom.types import Count, Memory, Message, Positive, State, Vector


@dataclass(frozen=True)
class FedMeta(ServerChoice, MetaLearning):
    """Clients adapt the common model to their support rows and send how the loss on their query rows changes with it.

    What is learnt is a vector x: θ (MAML), or θ and the step sizes α (Meta-SGD). The server takes a step on the mean of
    the meta-gradients; or, with meta_step = "client", each client takes that step itself and the server averages.
    """

    coordinatewise = True

    lr: LocalRate = 0.3
    """β, the meta step size of whoever takes the meta step, or a schedule of it."""
    inner_steps: Count = 1
    """Inner steps with all support rows; with mini-batches, passes over them."""
    batch: Count | None = None
    """Rows of an inner step, and of the batches over which the query's loss is averaged; none: all rows."""
    delta: Positive = 0.01
    """δ of order = "difference"."""
    meta_step: Literal["server", "client"] = "server"
    """Who takes the step on the meta-gradient: the server (the paper), or each client before the server averages."""
    optimiser: Literal["sgd", "momentum", "adam"] = "sgd"
    """The client's optimiser where it takes the meta step, started afresh each round."""
    weighting: Literal["uniform", "size", "query"] = "uniform"
    """What a client counts for: the same (the paper), its training rows, or its query rows."""

    @abstractmethod
    def joined(self, theta: Vector, alpha: Vector | None) -> Vector:
        """x, or a gradient in x: what is learnt of θ and α."""

    @abstractmethod
    def parted(self, x: Vector) -> tuple[Vector, float | Vector]:
        """θ and α."""

    def check(self, problem: Problem) -> None:
        super().check(problem)
        self.server_opt()
        if self.meta_step == "client" and self.server_optimiser != "sgd":
            raise ConfigError(
                f"the server optimiser {self.server_optimiser!r} has nothing to do where clients take the meta step "
                "and the server averages; leave it out, or set meta_step = 'server'"
            )

    @property
    def local_batch(self) -> int | None:
        return self.batch

    def server_init(self, ctx: Context) -> State:
        theta = ctx.theta0
        return self.server_opt().init(self.joined(theta, torch.full_like(theta, self.alpha)))

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        x = received["x"]
        theta, alpha = self.parted(x)
        how = Meta(self.order, self.delta, self.inner_steps, self.batch)
        g = self.joined(*client.meta_grad(theta, alpha, how))  # g_u, lines 14 to 17
        return {"dx": -g if self.meta_step == "server" else self._own_step(client, x, g)}, memory

    def weight(self, client: Client) -> Tensor | None:
        return {"uniform": None, "size": client.n, "query": client.count("query")}[self.weighting]

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        mean = replies.mean("dx")
        lr = rate_at(self.lr, ctx.round) if self.meta_step == "server" else 1.0
        return self.server_opt().step(state, mean, lr)  # line 9: x − (β/m) Σ g_u

    def model(self, state: State) -> Vector:
        return self.parted(state["x"])[0]

    def adapt(self, client: Client, state: State, memory: Memory, theta: Vector, wish: Wish) -> Vector:
        alpha = self.parted(state["x"])[1] if wish.lr is None else wish.lr
        return client.adapt(theta, alpha, wish.split, wish.steps or self.inner_steps, self.batch)

    def whole_gradient(self, client: Client, x: Vector) -> Vector:
        return client.meta_grad(*self.parted(x), Meta(steps=self.inner_steps))[0]

    def _own_step(self, client: Client, x: Vector, g: Vector) -> Vector:
        """How far a client's own optimiser would move x."""
        lr, rule = rate_at(self.lr, client.round), local_optimiser(self.optimiser)
        if rule is None:
            return -lr * g
        y = x.expand_as(g).clone()
        rule.step(y, g, lr, rule.slots(y), 1)
        return y - x


@register("fedmeta-maml", family="meta-learning", paper="Chen et al., 2018", declaration=".meta:FEDMETA_MAML")
@dataclass(frozen=True)
class FedMetaMAML(FedMeta):
    """A start from which one step on few rows does well.

    FedMeta(MAML): a common model from which a step of size α on a client's support rows does well on its query.
    """

    def joined(self, theta: Vector, alpha: Vector | None) -> Vector:
        return theta

    def parted(self, x: Vector) -> tuple[Vector, float | Vector]:
        return x, self.alpha


@register("fedmeta-sgd", family="meta-learning", paper="Chen et al., 2018", declaration=".meta:FEDMETA_SGD")
@dataclass(frozen=True)
class FedMetaSGD(FedMeta):
    """FedMeta with step sizes that are learnt too (Meta-SGD).

    FedMeta(Meta-SGD): the step sizes are learnt too, one for each number of the model.

    Step sizes that are not learnt stay out of x: if they travelled, a lossy channel would move them.
    """

    learn_alpha: bool = True
    """False: all step sizes stay what they were at the start, as in MAML."""

    def joined(self, theta: Vector, alpha: Vector | None) -> Vector:
        return theta if alpha is None or not self.learn_alpha else torch.cat([theta, alpha], -1)

    def parted(self, x: Vector) -> tuple[Vector, float | Vector]:
        if not self.learn_alpha:
            return x, torch.full_like(x, self.alpha)
        theta, alpha = x.chunk(2, -1)
        return theta, alpha


@register("fedavg-meta", family="meta-learning", paper="Chen et al., 2018", declaration=".meta:FEDAVG_META")
@dataclass(frozen=True)
class FedAvgMeta(Adapting, Weighted, ClientTraining):
    """FedAvg, evaluated after clients have adapted its model.

    It is evaluated as meta-learning methods are: after clients have adapted the model to their support rows. The fair
    comparison for those: what is left of their advantage is due to how they train.
    """

    coordinatewise = True

    adapt_steps: Count = 1
    """Steps with all support rows; with mini-batches, passes over them."""
    adapt_batch: Count | None = None
    """Rows of a mini-batch of the adaptation; none: all support rows."""
    adapt_optimiser: Literal["sgd", "momentum", "adam"] = "sgd"
    """The optimiser of the adaptation."""

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] + replies.mean("dx")}

    def adapt(self, client: Client, state: State, memory: Memory, theta: Vector, wish: Wish) -> Vector:
        rule, passes = local_optimiser(self.adapt_optimiser), wish.steps or self.adapt_steps
        return client.sgd(theta, wish.lr or self.alpha, self.adapt_batch, passes, optimiser=rule, split=wish.split)[0]
