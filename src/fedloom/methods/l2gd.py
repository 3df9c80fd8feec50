"""Loopless local gradient descent, L2GD.

F. Hanzely and P. Richtárik, "Federated learning of a mixture of global and local models", 2020, Algorithm 1.
https://arxiv.org/abs/2002.05516
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from fedloom.errors import ConfigError, RunError
from fedloom.federation.client import Client
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from fedloom.federation.replies import Reduce, Replies
from fedloom.methods.method import MEAN_OF_MODELS, Context, ServerMethod
from fedloom.methods.register import register
from fedloom.search import Search
from fedloom.types import Count, Memory, Message, NonNegative, Positive, State, Vector

_LEAST_P = 1e-5


@register("l2gd", family="personalisation", paper="Hanzely and Richtárik, 2020", declaration=".coupled:L2GD")
@dataclass(frozen=True)
class L2GD(ServerMethod):
    """Each client's own model; a coin decides between a local step and a step towards the mean.

    Stochastic gradient descent on Σ f_i(x_i) + (λ/2) Σ‖x_i − x̄‖², the two sums taking turns by chance: in an iteration
    all clients toss one coin. With probability 1 − p each takes a local step, x_i ← x_i − α/(1 − p) ∇f_i(x_i); with
    probability p each goes towards the mean, x_i ← (1 − q)x_i + q x̄, q = αλ/p. (α is the paper's α/n.)

    Such a step leaves x̄ where it is, so clients need the server only when one follows a local step. That is a round
    here: the mean comes down, j steps towards it, k local steps, the models go up. j and k are how long the coin stays
    on each side, drawn by all from the same seed. So of T iterations about p(1 − p)T communicate, and all rounds do.

    It wanders about the solution, nearer with a smaller α; its mean is the solution for quadratics.
    """

    evaluates: ClassVar[Literal["global", "personal"]] = "personal"
    stand_in = MEAN_OF_MODELS
    needs_rounds: ClassVar[str | None] = "its coin is one for all clients of a round"

    lambda_: Annotated[NonNegative, Search(1e-3, 10.0, log=True)] = 0.1
    """λ, how strongly the clients' models are held near their mean; 0: every client alone."""
    p: Annotated[float, Interval(gt=0, lt=1)] | None = None
    """The probability of a step towards the mean; none: p* = λ/(L + λ), which communicates least. L is the greatest
    curvature of the clients' losses at the start, which they find by power iteration."""
    lr: Positive | None = None
    """α; none: the largest that is proved to work, 1/(2·max(L/(1 − p), λ/p))."""
    batch: Count | None = None
    """Rows of the mini-batch of a local step; none: all rows of the client, as in the paper."""

    @property
    def reduce(self) -> Reduce:
        return "each" if self._measures else "sum"  # a greatest curvature is no sum

    @property
    def _measures(self) -> bool:
        """Whether it needs L."""
        return self.p is None or self.lr is None

    @property
    def per_client(self) -> tuple[str, ...]:
        return ("held",)

    @property
    def local_batch(self) -> int | None:
        return self.batch

    def check(self, problem: Problem) -> None:
        if self.lambda_ == 0 and self.p is None:
            raise ConfigError(
                "l2gd: with lambda_ = 0 clients have nothing to tell each other, so that p* = 0; give a p between 0 "
                "and 1, a lambda_ above 0, or take the method local"
            )
        if self.p is not None:
            self._refuse_endless(self.p, ConfigError)
        if self.p is not None and self.lr is not None:
            self._refuse_beyond(self.p, self.lr, ConfigError)

    def server_init(self, ctx: Context) -> State:
        zero = ctx.theta0.new_zeros(())
        return {
            "x": ctx.theta0,  # x̄
            "m": torch.zeros_like(ctx.theta0),  # Σ x_i over the clients that ever answered …
            "held": torch.zeros(len(ctx.sizes), dtype=torch.bool),  # … which are these
            "iterations": torch.zeros((), dtype=torch.int64),
            **({"L": zero} if self._measures else {}),
        }

    def client_init(self, client: Client, received: Message) -> Memory:
        x = received["x"].expand(*client.n.shape[:-1], -1)
        return {"x": x, "told": torch.zeros_like(x), **({"L": torch.zeros_like(x[..., :1])} if self._measures else {})}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {key: state[key] for key in ("x", "L") if key in state}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        x, mean = memory["x"], received["x"]
        kept = {"told": memory["told"]}
        if self._measures:
            kept["L"] = client.curvature(x, memory["L"])
        if not self._measures or received["L"] > 0:  # in the first round nothing is known but what is measured now
            p, alpha = self.steps_at(received)
            towards, local = runs(client.draw, p)
            x = mean + (1 - alpha * self.lambda_ / p) ** towards * (x - mean)
            x, _ = client.sgd(x, alpha / (1 - p), self.batch, steps=local)
        reply = {"dx": x - memory["told"]}
        return {**reply, "L": kept["L"]} if self._measures else reply, {"x": x, **kept}

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        return {**memory, "told": memory["told"] + sent["dx"]}  # what the server has of x_i

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        m, held = state["m"] + replies.sum("dx"), state["held"].index_fill(0, replies.clients, True)
        new = {"x": m / held.sum(), "m": m, "held": held, "iterations": state["iterations"]}
        if not self._measures or state["L"] > 0:
            new["iterations"] = state["iterations"] + sum(runs(ctx.draw, self.steps_at(state)[0]))
        if self._measures:
            new["L"] = torch.maximum(state["L"], replies.each("L").max())
            p, alpha = self.steps_at(new)
            self._refuse_endless(p, RunError)
            self._refuse_beyond(p, alpha, RunError)
        return new

    def personal(self, client: Client, state: State, memory: Memory) -> Vector:
        return memory["x"]

    def report(self, state: State, sums: dict[str, Tensor]) -> dict[str, float]:
        told = {"iterations": float(state["iterations"])}
        if self._measures and state["L"] > 0:
            told |= {"L": float(state["L"]), "p": self.steps_at(state)[0]}
        return told

    def steps_at(self, known: State | Message) -> tuple[float, float]:
        """p and α, by the curvature that is known."""
        L = float(known["L"]) if self._measures else 0.0
        p = self.lambda_ / (L + self.lambda_) if self.p is None else self.p
        return p, 1 / (2 * max(L / (1 - p), self.lambda_ / p)) if self.lr is None else self.lr

    def _refuse_endless(self, p: float, kind: type[ConfigError | RunError]) -> None:
        """Refuses rounds whose local steps nobody would wait for."""
        if p < _LEAST_P:
            raise kind(
                f"l2gd: with p = {p:.3g} a round has about {1 / p:.3g} local steps; give a p of at least {_LEAST_P:g}, "
                "or, where p follows from it, a larger lambda_"
            )

    def _refuse_beyond(self, p: float, alpha: float, kind: type[ConfigError | RunError]) -> None:
        """Refuses steps that go beyond the mean."""
        if alpha * self.lambda_ > p * (1 + 1e-9):
            raise kind(
                f"l2gd: a step towards the mean would go {alpha * self.lambda_ / p:.3g} times the way (lr·lambda_/p, "
                f"p = {p:.3g}); make lr at most {p / self.lambda_:.3g}"
            )


def runs(draw: Draw, p: float) -> tuple[int, int]:
    """How often the coin then shows p, and how often it shows 1 − p after that: once at least, the same for all."""
    heads, tails = (1 - draw.uniform("coin", 0, 2)).tolist()
    return 1 + int(math.log(heads) / math.log(p)), 1 + int(math.log(tails) / math.log1p(-p))
