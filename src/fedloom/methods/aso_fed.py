"""ASO-Fed, and what is left of it without its dynamic step or without its feature learning.

Y. Chen, Y. Ning, M. Slawski and H. Rangwala, "Asynchronous online federated learning for edge devices with non-IID
data", IEEE Big Data 2020, Algorithm 2; equations by their numbers there. https://arxiv.org/abs/1911.02134
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.batches import Rows
from fedloom.federation.client import Carry, Client
from fedloom.federation.model import Slice
from fedloom.federation.problem import Problem
from fedloom.federation.replies import Replies
from fedloom.federation.schedules import LocalRate
from fedloom.methods.method import Context
from fedloom.methods.register import register
from fedloom.methods.training import LocalSteps
from fedloom.search import Search
from fedloom.types import Count, Decay, Memory, Message, NonNegative, State, Vector

Features = Literal["norm", "repeated", "literal", "none"]
_COLUMNS = 64  # inputs up to which the history tells how much weight each has


@dataclass(frozen=True)
class AsynchronousOnline(LocalSteps):
    """Clients whose data keep arriving answer when they are ready; the server takes each answer in as it comes.

    Client k keeps its own w_k near the model w that it was sent, s_k(w_k) = f_k(w_k) + (λ/2)‖w_k − w‖², and steps along
    ζ, in which the gradient of last time gives way to an average h of those before it. It counts for n′_k/N′, its rows
    among all rows as they are now.

    Where all begin at one w, w_k is kept and no rows arrive any more, w is the mean of the w_k, and it ends at the
    minimiser of the sum of the Moreau envelopes of the n_k f_k, as FedProx with exact steps does.
    """

    default_schedule = "async"

    lr: LocalRate = 0.03
    """η̄, the step size before r_k multiplies it, or a schedule of it (0.001 in the paper, with many more visits)."""
    batch: Count | None = None
    """Rows of a mini-batch; none: all rows that the client has now."""
    epochs: Count = 5
    """Passes over these rows in a visit, full-batch steps without ``batch`` (1 in Algorithm 2)."""
    lambda_: Annotated[NonNegative, Search(0.01, 10.0, log=True)] = 1.0
    """λ, how strongly w_k is pulled to the model that the server sent."""
    beta: Decay = 0.001
    """β, the decay coefficient: how much of h is kept."""
    order: Literal["algorithm", "equations"] = "algorithm"
    """Whether h is used before it is renewed (Algorithm 2), or renewed before it is used (equations 8 and 9)."""
    dynamic: bool = True
    """Longer steps for clients that are seldom heard of: r_k = max(1, ln of their mean delay in seconds)."""
    features: Features = "norm"
    """Feature learning on the first layer, (5) and (6). "norm" weights what is handed out and keeps each input's norm;
    "repeated" puts that back into w after each step, which soon leaves each input a single unit; "literal" does so as
    printed, and the layer vanishes."""
    keep: bool = True
    """Whether w_k stays with the client from visit to visit (10), or begins anew at the model that it is sent."""

    def check(self, problem: Problem) -> None:
        if self.features != "none" and first_layer(problem.model.slices) is None:
            raise ConfigError(
                "aso-fed learns features on the first layer, but the model has no weights with an input and an output "
                "side; use a model that has, or set features = 'none'"
            )

    def server_init(self, ctx: Context) -> State:
        where = first_layer(ctx.slices)
        layer = [0, 0, 0] if where is None else [where.start, where.stop, where.shape[0]]
        return {"x": ctx.theta0, "handed_out": ctx.theta0, "layer": torch.tensor(layer)}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {"x": state["handed_out"]}

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        total = ctx.sizes[ctx.sources].sum()  # N′, with the n′_k of those who answered
        x = state["x"] - replies.sum("dw") / total  # (4): Σ n′_k/N′ Δw_k
        w = self._features(x, state["layer"])
        return {**state, "x": x if self.features == "norm" else w, "handed_out": w}

    def _features(self, x: Vector, layer: Tensor) -> Vector:
        """θ with its first layer by (5) and (6)."""
        if self.features == "none":
            return x
        start, stop, outputs = layer.tolist()
        w = weighted(x[start:stop].view(outputs, -1), self.features != "literal")
        return torch.cat([x[:start], w.reshape(-1), x[stop:]])

    def model(self, state: State) -> Vector:
        return state["handed_out"]

    def report(self, state: State, sums: dict[str, Tensor]) -> dict[str, float]:
        """The mean |w| of each input of the first layer, if these are few."""
        start, stop, outputs = state["layer"].tolist()
        if not 0 < stop - start <= _COLUMNS * outputs:
            return {}
        inputs = state["handed_out"][start:stop].view(outputs, -1).abs().mean(0)
        return {f"feature/{column}": float(size) for column, size in enumerate(inputs)}

    def client_init(self, client: Client, received: Message) -> Memory:
        w = received["x"].expand(*client.n.shape[:-1], -1)
        zero = torch.zeros_like(w)
        memory = {"h": zero, "v": zero}  # line 2
        memory |= {"w": w} if self.keep else {}
        return memory | ({"delays": zero[..., :1], "visits": zero[..., :1]} if self.dynamic else {})

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        x = received["x"]  # w^t, line 10
        memory = {**memory, **self._visit(client, memory)}
        w = memory["w"] if self.keep else x.expand_as(memory["h"])
        pace = self.rate(client) * self._multiplier(memory)  # η_k = r_k η̄, (11)

        def iterate(now: Carry, rows: Rows) -> Carry:
            w, h, v = now["w"], now["h"], now["v"]
            g = client.grad(w, rows) + self.lambda_ * (w - x)  # line 11: ∇s_k, of (7)
            fresh = self.beta * h + (1 - self.beta) * v  # (9)
            zeta = g - v + (h if self.order == "algorithm" else fresh)  # line 13, (8)
            return {"w": w - pace * zeta, "h": fresh, "v": g}  # lines 14 to 16

        after, _ = client.scan(
            iterate, {"w": w, "h": memory["h"], "v": memory["v"]}, self.batch, self.epochs, self.steps
        )
        return {"dw": w - after["w"]}, {**memory, "h": after["h"], "v": after["v"]}

    def weight(self, client: Client) -> Tensor | None:
        return client.n  # n′_k

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        return {**memory, "w": memory["w"] - sent["dw"]} if self.keep else memory  # as the server decoded it

    def _visit(self, client: Client, memory: Memory) -> Memory:
        """The delays so far, this one included."""
        if not self.dynamic:
            return {}
        return {"delays": memory["delays"] + client.delay, "visits": memory["visits"] + 1}

    def _multiplier(self, memory: Memory) -> float | Tensor:
        """r_k = max(1, ln d̄_k)."""
        return (memory["delays"] / memory["visits"]).log().clamp(min=1) if self.dynamic else 1.0


@register(
    "aso-fed", family="asynchronous", paper="Chen et al., IEEE Big Data 2020", declaration=".asynchronous:ASO_FED"
)
@dataclass(frozen=True)
class ASOFed(AsynchronousOnline):
    """Clients whose rows keep arriving, each with a model of its own.

    It is ASO-Fed as it is meant to be.
    """


@register(
    "aso-fed-d", family="asynchronous", paper="Chen et al., IEEE Big Data 2020", declaration=".asynchronous:ASO_FED_D"
)
@dataclass(frozen=True)
class ASOFedD(AsynchronousOnline):
    """ASO-Fed without longer steps for slow clients.

    It is ASO-Fed(-D): without the dynamic step, all clients step by η̄.
    """

    dynamic: bool = False


@register(
    "aso-fed-f", family="asynchronous", paper="Chen et al., IEEE Big Data 2020", declaration=".asynchronous:ASO_FED_F"
)
@dataclass(frozen=True)
class ASOFedF(AsynchronousOnline):
    """ASO-Fed without feature learning at the server.

    It is ASO-Fed(-F): the server's model is what (4) makes it.
    """

    features: Features = "none"


def first_layer(slices: dict[str, Slice]) -> Slice | None:
    """The first weights that have an input and an output side: of shape (outputs, inputs, …)."""
    return next((where for where in slices.values() if len(where.shape) > 1), None)


def weighted(w: Tensor, keep_norms: bool = True) -> Tensor:
    """(5) and (6) for weights (outputs, inputs): each input's weights by a soft-max over the outputs of their size.

    As printed they become smaller by about the number of outputs; kept norms make up for it, input by input.
    """
    after = torch.softmax(w.abs(), 0) * w
    if not keep_norms:
        return after
    before, left = (torch.linalg.vector_norm(part, dim=0) for part in (w, after))
    return after.mul_(before / left.clamp_(min=torch.finfo(w.dtype).tiny))
