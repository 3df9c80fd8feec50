"""CoCoA and CoCoA+, and mini-batch SDCA, which they are compared with.

M. Jaggi, V. Smith, M. Takáč, J. Terhorst, S. Krishnan, T. Hofmann and M. I. Jordan, "Communication-efficient
distributed dual coordinate ascent", NeurIPS 2014, Algorithm 1. https://arxiv.org/abs/1409.1458

C. Ma, V. Smith, M. Jaggi, M. I. Jordan, P. Richtárik and M. Takáč, "Adding vs. averaging in distributed primal-dual
optimization", ICML 2015, Algorithm 1. https://arxiv.org/abs/1502.03508
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.batches import steps_of
from fedloom.federation.client import Client
from fedloom.federation.dual import Order, check_dual
from fedloom.federation.problem import Problem
from fedloom.federation.replies import Replies
from fedloom.methods.method import Context, Ints, ServerMethod
from fedloom.methods.register import name_of, register
from fedloom.search import Search
from fedloom.types import Count, Memory, Message, NonNegative, Positive, State, Vector

Accuracy = Annotated[float, Interval(gt=0, lt=1)]


@dataclass(frozen=True)
class DualAscent(ServerMethod):
    """A linear model of all clients' rows by its dual: min (λ/2)‖w‖² + (1/n) Σ ℓ(w·x_i), one α_i for each row.

    A client keeps α of its own rows and sends by how much v = Σ α_i x_i has moved; w = Σ v/(λn), n being the rows of
    all. What a client takes for the server's v moves only by what that has accepted, and α is rolled back where a reply
    is lost: so w is that of α always, and sampled, lost and late replies delay the optimum but do not move it.
    """

    exact = True
    default_rounds = 200
    default_dtype = "float64"
    default_model = "linear"
    starts_without = "w, which follows from the dual variables, and these begin at zero; leave it out"

    lambda_: Annotated[Positive, Search(1e-5, 1.0, log=True)] = field(default=0.01, kw_only=True)
    """λ, how much ‖w‖²/2 counts beside the mean loss."""
    stop: NonNegative = field(default=1e-6, kw_only=True)
    """Stop when the duality gap is at most this share of the objective, whenever the run is evaluated; 0: do all
    rounds."""

    def check(self, problem: Problem) -> None:
        check_dual(problem, name_of(self))

    @property
    def per_row(self) -> tuple[str, ...]:
        return ("alpha",)

    @abstractmethod
    def sigma_of(self, clients: int) -> float:
        """σ′, how much more the subproblems bend than the dual itself."""

    @abstractmethod
    def share_of(self, clients: int) -> float:
        """How much of its Δα each client keeps, and sends."""

    @abstractmethod
    def ascent(self, client: Client, alpha: Tensor, w: Vector, curvature: Tensor) -> Tensor:
        """α after the coordinate steps of one round."""

    def server_init(self, ctx: Context) -> State:
        w = torch.zeros_like(ctx.theta0)
        return {"w": w, "v": w, **self._counted(ctx)}

    def _counted(self, ctx: Context) -> State:
        """n and K: the rows, and the clients, of all who can take part."""
        rows = ctx.sizes[ctx.sources].sum().double().clamp(min=1)
        return {"rows": rows, "clients": torch.tensor(float(ctx.clients), dtype=torch.float64)}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        count = int(state["clients"])
        curvature = self.sigma_of(count) / (self.lambda_ * state["rows"])  # of rows that count for 1 each, not for 1/n
        share = torch.full_like(curvature, self.share_of(count))
        return {"w": state["w"], "curvature": curvature, "share": share}

    def client_init(self, client: Client, received: Message) -> Memory:
        return {"alpha": client.duals(), "v": torch.zeros_like(received["w"].expand(*client.n.shape[:-1], -1))}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        alpha, share = memory["alpha"], received["share"]
        new = self.ascent(client, alpha, received["w"], received["curvature"])
        alpha = alpha + (share.unsqueeze(-1) if share.dim() else share).to(alpha.dtype) * (new - alpha)
        return {"dv": client.combined(alpha, 1.0) - memory["v"]}, {"alpha": alpha, "v": memory["v"]}

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        return {**memory, "v": memory["v"] + sent["dv"]}

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        v, counted = state["v"] + replies.sum("dv"), self._counted(ctx)
        return {"w": v / (self.lambda_ * counted["rows"].to(v.dtype)), "v": v, **counted}

    def model(self, state: State) -> Vector:
        return state["w"]

    def measure(self, client: Client, received: Message, memory: Memory) -> dict[str, Tensor]:
        found = {
            "loss": client.primal(received["w"], 1.0),
            "conjugate": client.conjugate(memory["alpha"], 1.0),
            "rows": client.n.double(),
            "clients": torch.ones_like(client.n),
            "compiled": client.compiled,
        }
        return {key: value.squeeze(-1) if client.stacked else value for key, value in found.items()}

    def report(self, state: State, sums: dict[str, Tensor]) -> dict[str, float]:
        """P(w), D(α), their gap, and the share of clients whose loop over rows is compiled."""
        if not sums or float(sums["rows"]) == 0:
            return {}
        rows = float(sums["rows"])
        w, v = state["w"].double(), state["v"].double()
        primal = self.lambda_ / 2 * float(w @ w) + float(sums["loss"]) / rows
        dual = -float(sums["conjugate"]) / rows - float(v @ v) / (2 * self.lambda_ * rows**2)
        compiled = float(sums["compiled"] / sums["clients"])
        return {"primal": primal, "dual": dual, "gap": primal - dual, "compiled": compiled}

    def done(self, state: State, figures: Mapping[str, float]) -> bool:
        return self.stop > 0 and "gap" in figures and figures["gap"] <= self.stop * figures["primal"]


@dataclass(frozen=True)
class LocalAscent(DualAscent):
    """The clients' half of CoCoA and CoCoA+: coordinate steps on a subproblem that sees those before it."""

    epochs: Count = field(default=1, kw_only=True)
    """Passes over the client's rows in a round."""
    steps: Count | None = field(default=None, kw_only=True)
    """H, exactly so many coordinate steps a round instead of epochs."""
    accuracy: Accuracy | None = field(default=None, kw_only=True)
    """Θ: pass after pass until at most this share of the subproblem is left, instead of a number of steps."""
    order: Order = field(default="permuted", kw_only=True)
    """The rows of a pass: each once in a random order (permuted), drawn with replacement (random), or as they are
    (cyclic)."""

    def check(self, problem: Problem) -> None:
        super().check(problem)
        if self.steps is not None and self.accuracy is not None:
            raise ConfigError(
                f"{name_of(self)}: steps = {self.steps} and accuracy = {self.accuracy} say two things of how long a "
                "client works; leave one out"
            )

    def ascent(self, client: Client, alpha: Tensor, w: Vector, curvature: Tensor) -> Tensor:
        return client.ascend(  # LocalSDCA
            alpha, w, curvature, 1.0, epochs=self.epochs, steps=self.steps, order=self.order, accuracy=self.accuracy
        )[0]

    def work(self, rows: Ints) -> Ints | None:
        return None if self.accuracy is not None else steps_of(rows, 1, self.epochs, self.steps)


@register("cocoa", family="optimisation", paper="Jaggi et al., 2014", declaration=".dual:COCOA")
@dataclass(frozen=True)
class CoCoA(LocalAscent):
    """Coordinate ascent in the dual of a linear model, on each client's rows; the changes are averaged.

    Each client takes coordinate steps as if it were alone, and keeps β_K/K of the way. β_K = 1 is the average, which
    never makes the dual worse; K is all who can take part, so whoever is absent is as one who has not moved.
    """

    beta: Annotated[float, Interval(ge=1)] = 1.0
    """β_K: 1 is averaging, K is adding, which need not converge."""

    def check(self, problem: Problem) -> None:
        super().check(problem)
        clients = len(problem.data.with_role(0))
        if self.beta > clients:
            raise ConfigError(
                f"cocoa: beta = {self.beta:g}, but there are {clients} clients: α would go beyond where each client "
                f"wants it; choose 1 to {clients}"
            )

    def sigma_of(self, clients: int) -> float:
        return 1.0

    def share_of(self, clients: int) -> float:
        return self.beta / clients


@register("cocoa-plus", family="optimisation", paper="Ma et al., 2015", declaration=".dual:COCOA_PLUS")
@dataclass(frozen=True)
class CoCoAPlus(LocalAscent):
    """Coordinate ascent in the dual of a linear model, on each client's rows; the changes are added.

    So that they can be added, the subproblem of each client bends σ′ times as much as the dual itself: with σ′ = γK it
    is safe whoever answers, K being all who can take part.
    """

    gamma: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """γ, the share of each client's change that is added: 1 is adding, 1/K averaging."""
    sigma: Positive | None = None
    """σ′; none: γK, which is always safe. Smaller is faster where clients' rows have little in common, and diverges
    where they have much."""

    def sigma_of(self, clients: int) -> float:
        return self.gamma * clients if self.sigma is None else self.sigma

    def share_of(self, clients: int) -> float:
        return self.gamma


@register("mini-batch-sdca", family="baseline", paper="Jaggi et al., 2014", declaration=".dual:MINI_BATCH_SDCA")
@dataclass(frozen=True)
class MiniBatchSDCA(DualAscent):
    """Coordinate ascent in the dual of a linear model, all steps of a round from the same model.

    Each client takes ``batch`` coordinate steps from w as it was sent, none of which sees the others, and keeps β/b of
    each, b = ``batch``·K being those of all. β = 1 is the average, which is safe; more is faster until it diverges.
    """

    batch: Count = 32
    """H, the rows of a client that take a step in a round; a client with fewer takes all."""
    beta: Positive = 1.0
    """β_b, by which the average of all steps is scaled."""

    def sigma_of(self, clients: int) -> float:
        return 1.0

    def share_of(self, clients: int) -> float:
        return self.beta / (self.batch * clients)

    def ascent(self, client: Client, alpha: Tensor, w: Vector, curvature: Tensor) -> Tensor:
        return client.ascend(alpha, w, curvature, 1.0, steps=self.batch, together=True)[0]

    def work(self, rows: Ints) -> Ints | None:
        return steps_of(rows, 1, 1, self.batch).clip(max=rows)
