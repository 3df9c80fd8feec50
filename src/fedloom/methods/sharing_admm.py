"""Sharing ADMM: vertical federated learning of linear models.

S. Boyd, N. Parikh, E. Chu, B. Peleato and J. Eckstein, "Distributed optimization and statistical learning via the
alternating direction method of multipliers", Foundations and Trends in Machine Learning 3(1), 2011, sections 7.3 and
8.3. https://doi.org/10.1561/2200000016
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.client import Client
from fedloom.federation.losses import Labels, with_prox
from fedloom.federation.problem import Problem
from fedloom.federation.regularisers import Regulariser, RegulariserName, regulariser_for
from fedloom.federation.replies import Replies
from fedloom.federation.residuals import Residuals, reported, settled
from fedloom.federation.solvers import linear_layer
from fedloom.methods.method import Context, ServerMethod
from fedloom.methods.register import register
from fedloom.search import Search
from fedloom.types import Count, Fraction, Memory, Message, NonNegative, Positive, State, Vector


@register("sharing-admm", family="optimisation", paper="Boyd et al., 2011", declaration=".vertical:SHARING_ADMM")
@dataclass(frozen=True)
class SharingADMM(ServerMethod):
    """A linear model of columns that different parties hold (vertical).

    Parties that hold columns of the same rows fit one linear model: minimise ℓ(Σ A_i x_i) + Σ r_i(x_i).

    A_i are a party's columns, x_i its own weights, which never leave it; ℓ is the mean loss over the rows, whose
    labels the server holds. A bias belongs to the server: it is a party more, with a column of ones and no penalty.
    N counts it. The paper's ρ is ``rho``/n here, n being the rows, so that ``rho`` compares with the curvature of a
    row's loss, however many rows there are.

    What the server believes of a party's scores, s_i, moves only by what it decoded, and the party knows it: lost,
    late and quantised replies delay the limit but do not move it. A party that never answered counts as zero.
    """

    layout = "features"
    default_rounds = 2000
    default_dtype = "float64"
    default_model = "linear"
    needs_rounds = (
        "at each step of its server the common dual variable moves by what all parties' scores add up to; answers to "
        "an older one would be charged again and again, and it diverges where rounds converge"
    )

    rho: Annotated[Positive, Search(1e-3, 10.0, log=True)] = 0.1
    """ρ, the penalty for disagreement."""
    adaptive: bool = True
    """Double or halve ρ when one relative residual is three times the other (residual balancing)."""
    adapt_rounds: Count = 300
    """Rounds after which an adaptive ρ stays as it is, so that it converges."""
    adapt_every: Count = 10
    """Rounds between two changes of ρ."""
    regulariser: RegulariserName = "ridge"
    """r_i: (strength/2)‖x_i‖², strength·‖x_i‖₁, a mixture of both, or a box that x_i must be in."""
    strength: Annotated[NonNegative, Search(1e-5, 1.0, log=True)] = 0.01
    """How much r_i counts beside the mean loss."""
    l1_share: Fraction = 0.5
    """Of an elastic net, the share of ‖x_i‖₁; the rest is ½‖x_i‖²."""
    low: float = -1.0
    """The box's lower bound."""
    high: float = 1.0
    """The box's upper bound."""
    stop: NonNegative = 1e-10
    """Stop when both residuals are below this, relative to the scores and to the dual variables; 0: do all rounds."""

    def check(self, problem: Problem) -> None:
        self._penalty()
        if linear_layer(problem) is None:
            raise ConfigError(
                "sharing-admm needs a linear model, whose outputs are a sum over the parties; set model = 'linear'"
            )
        if not problem.loss.has_prox:
            raise ConfigError(
                f"the loss {problem.loss.name!r} has no proximal step, which sharing-admm needs at the server; use one "
                f"of {', '.join(with_prox())}"
            )

    @property
    def per_client(self) -> tuple[str, ...]:
        return ("answered", "calm")

    def server_init(self, ctx: Context) -> State:
        labels = _labels(ctx)
        zero = ctx.theta0.new_zeros(len(labels), _outputs(ctx))
        return {
            "own": torch.zeros_like(ctx.theta0),  # θ but for the parties' weights: the bias
            "scores": zero,  # Σ s_i, the server's own included
            "z": zero,  # z̄
            "u": zero,
            "residual": zero,  # z̄ − s̄ − u, all that a party has to know
            "rho": torch.tensor(self.rho, dtype=zero.dtype),
            "answered": torch.zeros(len(ctx.sizes), dtype=torch.bool),
            **Residuals.none(len(ctx.sizes)),
        }

    def client_init(self, client: Client, received: Message) -> Memory:
        residual, blocks = received["residual"], client.problem.data.blocks
        assert blocks is not None
        lead = client.n.shape[:-1]
        x = residual.new_zeros(*lead, blocks.width, residual.shape[-1])
        return {"x": x, "s": torch.zeros_like(residual.expand(*lead, *residual.shape))}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {"residual": state["residual"], "rho": state["rho"]}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        s, rows = memory["s"], received["residual"].shape[0]
        rho = received["rho"] / rows
        x = client.fit(s + received["residual"], rho, self._penalty(), memory["x"])  # argmin r_i + ρ/2 ‖A_i x − ·‖²
        scores = client.scores(x)
        move = scores - s
        reply = {"move": move, "moved": _square(move), "size": _square(scores)}
        return reply, {"x": x, "s": s}

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        return {**memory, "s": memory["s"] + sent["move"]}  # A_i x_i, as the server decoded it

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        labels, rho, own = _labels(ctx), state["rho"], state["own"]
        bias = ctx.slices.get(_bias(ctx))
        step = torch.zeros_like(state["residual"][0]) if bias is None else state["residual"].mean(0)
        if bias is not None:  # the server's own block, a column of ones: the best constant to add
            own = own.index_add(0, torch.arange(bias.start, bias.stop), step)
        scores = state["scores"] + replies.sum("move") + step
        parties = ctx.clients + (bias is not None)  # N
        mean, u = scores / parties, state["u"]
        z = labels.prox(parties * (mean + u), parties / rho) / parties  # argmin ℓ(N z̄) + Nρ/2 ‖z̄ − u − s̄‖²
        u = u + mean - z
        residuals = self._residuals(state, replies, parties, mean, z, u)
        rebalances = self.adaptive and ctx.round < self.adapt_rounds and ctx.round % self.adapt_every == 0
        new = residuals.balanced(rho, 100 * torch.finfo(z.dtype).eps) if rebalances else rho
        u = u * (rho / new)  # the dual variable ρu stays as it is
        return {
            **residuals.booked(state, replies.clients, self.stop),
            "own": own,
            "scores": scores,
            "z": z,
            "u": u,
            "residual": z - mean - u,
            "rho": new,
            "answered": state["answered"].index_fill(0, replies.clients, True),
        }

    def _residuals(self, state: State, replies: Replies, parties: int, mean: Tensor, z: Tensor, u: Tensor) -> Residuals:
        """√Σ‖s_i − z_i⁺‖² and ρ√Σ‖z_i⁺ − z_i‖² for z_i = s_i + z̄ − s̄; the absent are taken to be like the others."""
        rho, count = state["rho"].double() / len(z), len(replies.clients)
        shift = (z - mean) - (state["residual"] + state["u"])  # of z̄ − s̄
        moved = replies.sum("moved")[0] + 2 * (replies.sum("move") * shift).sum() + count * shift.square().sum()
        size, norm = replies.sum("size")[0].double() * parties / count, torch.linalg.vector_norm
        return Residuals(
            primal=parties**0.5 * norm(mean - z).double(),
            dual=rho * (moved.double().clamp(min=0) * parties / count).sqrt(),
            primal_scale=(parties * z.numel()) ** 0.5 + size.sqrt(),
            dual_scale=rho * parties**0.5 * (norm(u).double() + torch.finfo(z.dtype).tiny),
        )

    def model(self, state: State) -> Vector:
        return state["own"]

    def personal(self, client: Client, state: State, memory: Memory) -> Vector:
        return client.part(memory["x"])

    def done(self, state: State, figures: Mapping[str, float]) -> bool:
        """Both residuals stayed small until every party that ever answered had answered again."""
        return self.stop > 0 and settled(state, state["answered"])

    def report(self, state: State, sums: dict[str, Tensor]) -> dict[str, float]:
        return {**reported(state), "rho": float(state["rho"])}

    def _penalty(self) -> Regulariser:
        return regulariser_for(self.regulariser, self.strength, self.l1_share, self.low, self.high)


def _labels(ctx: Context) -> Labels:
    assert ctx.labels is not None  # the engine gives them to methods of this layout
    return ctx.labels


def _bias(ctx: Context) -> str:
    return next((name for name in ctx.slices if name.rpartition(".")[2] == "bias"), "")


def _outputs(ctx: Context) -> int:
    return next(s.shape[0] for name, s in ctx.slices.items() if name.rpartition(".")[2] == "weight")


def _square(rows: Tensor) -> Tensor:
    return rows.square().sum((-1, -2)).unsqueeze(-1)
