"""Consensus ADMM.

S. Boyd, N. Parikh, E. Chu, B. Peleato and J. Eckstein, "Distributed optimization and statistical learning via the
alternating direction method of multipliers", Foundations and Trends in Machine Learning 3(1), 2011, section 7.1; over-
relaxation and varying penalties as in its sections 3.4.1 and 3.4.3. https://doi.org/10.1561/2200000016
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from fedloom.federation.client import Client
from fedloom.federation.problem import Problem
from fedloom.federation.regularisers import Regulariser, RegulariserName, regulariser_for
from fedloom.federation.replies import Replies, Weighting
from fedloom.federation.residuals import Residuals, reported, settled
from fedloom.methods.method import Context
from fedloom.methods.register import register
from fedloom.methods.training import ProximalSteps
from fedloom.search import Search
from fedloom.types import Count, Fraction, Memory, Message, NonNegative, Positive, State, Vector


@register("admm", family="optimisation", paper="Boyd et al., 2011", declaration=".admm:ADMM")
@dataclass(frozen=True)
class ADMM(ProximalSteps):
    """Exact local solves that agree by dual variables (consensus ADMM).

    Clients and server agree by dual variables: minimise Σ p_i f_i(x_i) + g(z) subject to x_i = z for every client.

    ``weighting`` chooses the p_i: "size" n_i/n, so that Σ p_i f_i is the mean loss of all rows, or "uniform" 1/N. The
    paper's Σ f_i + g is "uniform" with a g of 1/N the strength. Internally all is multiplied by N: client i has
    w_i f_i, with w_i = 1 ("uniform") or n_i/n̄ ("size"), and ρ is to be compared with the curvature of that.

    What a client contributes to z is m_i = ρ_i x_i + λ_i. Client and server both know it, and it moves only by what
    the server decoded. Its dual variable follows from it and from the z it is sent, λ_i = m_i − ρ_i z; so sampled,
    lost, late, quantised and old replies delay the limit but do not move it. A client that never answered does not
    count.

    For convex losses it converges for every ρ > 0. For networks nothing is guaranteed: subproblems are solved roughly,
    and have many solutions.
    """

    rho: Annotated[Positive, Search(0.01, 100.0, log=True)] = 1.0
    """ρ, the penalty for disagreement: about the curvature of a client's loss is a good start."""
    rho_by: Literal["common", "size"] = "common"
    """ "common": ρ for each client; "size": ρ·n_i/n̄ for client i."""
    adaptive: bool = False
    """Double or halve ρ when one relative residual is three times the other (residual balancing); not while replies
    are answers to an older z."""
    adapt_rounds: Count = 100
    """Rounds after which an adaptive ρ stays as it is, so that it converges."""
    relaxation: Annotated[float, Interval(gt=0, lt=2), Search(1.0, 1.8)] = 1.0
    """α: 1 is the plain method, 1.5 to 1.8 often needs fewer rounds."""
    weighting: Weighting = "size"
    """ "size": p_i = n_i/n; "uniform": p_i = 1/N, as in the paper."""
    regulariser: RegulariserName = "none"
    """g: (strength/2)‖z‖², strength·‖z‖₁, a mixture of both, or a box that z must be in."""
    strength: NonNegative = 0.0
    """How much g counts beside the mean loss."""
    l1_share: Fraction = 0.5
    """Of an elastic net, the share of ‖z‖₁; the rest is ½‖z‖²."""
    low: float = -1.0
    """The box's lower bound."""
    high: float = 1.0
    """The box's upper bound."""
    penalise_bias: bool = False
    """Whether g counts biases too."""
    warm_start: bool = True
    """Begin at the client's last x_i; otherwise at z."""
    stop: NonNegative = 0.0
    """Stop when both residuals are below this, relative to 1 + ‖z‖ and 1 + ‖λ‖; 0: do all rounds."""

    def check(self, problem: Problem) -> None:
        self._regulariser()
        super().check(problem)

    @property
    def per_client(self) -> tuple[str, ...]:
        return ("held", "calm")

    def server_init(self, ctx: Context) -> State:
        z, clients = ctx.theta0, len(ctx.sizes)
        sizes = ctx.sizes[ctx.sources]
        return {
            "z": z,
            "m": torch.zeros_like(z),  # Σ m_i over the clients that ever answered
            "held": torch.zeros(clients, dtype=torch.float64),  # the ρ_i inside each m_i; 0: never answered
            "rho": torch.tensor(self.rho, dtype=z.dtype),
            "rows": sizes[sizes > 0].double().mean().to(z.dtype),  # n̄, of those who can take part
            "penalised": self._penalised(ctx),
            **Residuals.none(clients),
        }

    def client_init(self, client: Client, received: Message) -> Memory:
        x = received["z"].expand(*client.n.shape[:-1], -1)
        return {"m": torch.zeros_like(x), "rho": torch.zeros_like(x[..., :1]), "x": x}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {"z": state["z"], "rho": state["rho"], "rows": state["rows"]}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        z = received["z"]
        size = client.n / received["rows"]
        rho = (self._rho(received["rho"], size)).expand_as(memory["rho"])
        dual = memory["m"] - memory["rho"] * z  # λ_i ← λ_i + ρ_i(x_i − z)
        penalty = rho / size if self.weighting == "size" else rho
        x = client.prox(z - dual / rho, penalty, memory["x"] if self.warm_start else z, self.inner())
        reply = {
            "dm": self.relaxation * rho * (x - z) + (rho - memory["rho"]) * z,  # m_i⁺ − m_i
            "gap": (x - z).square().sum(-1, keepdim=True),
            "dual": dual.square().sum(-1, keepdim=True),
        }
        if self.rho_by == "size":
            reply["apart"] = x - z  # dm has it too, but times a ρ_i that differs from client to client
        return reply, {"m": memory["m"], "rho": rho, "x": x}

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        return {**memory, "m": memory["m"] + sent["dm"]}  # m_i = ρ_i x_i + λ_i, as the server decoded it

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        z, who = state["z"], replies.clients
        sizes = ctx.sizes.double() / state["rows"].double()
        rho = self._rho(state["rho"].double(), sizes[who]).expand(len(who))
        m = state["m"] + replies.sum("dm")
        held = state["held"].index_copy(0, who, rho)
        weight = sizes[held > 0].sum() if self.weighting == "size" else (held > 0).sum()
        v = m / held.sum()
        after = self._regulariser().prox(v, weight / held.sum())  # argmin Σw_i g(z) − ⟨Σm_i, z⟩ + Σρ_i/2 ‖z‖²
        after = torch.where(state["penalised"], after, v)
        residuals = self._residuals(replies, rho, state["held"][who], held, z, after)
        fresh = not bool(replies.staleness.any())  # residuals of old replies say nothing about ρ
        adapts = self.adaptive and fresh and ctx.round < self.adapt_rounds
        return {
            **state,
            **residuals.booked(state, who, self.stop),
            "z": after,
            "m": m,
            "held": held,
            "rho": residuals.balanced(state["rho"], self._noise(z)) if adapts else state["rho"],
        }

    def _residuals(
        self, replies: Replies, rho: Tensor, before: Tensor, held: Tensor, z: Vector, after: Vector
    ) -> Residuals:
        """√Σ‖x_i − z⁺‖² and √(Σρ_i²)·‖z⁺ − z‖; who did not answer is taken to be like those who did."""
        count, step = len(replies.clients), after - z
        clients = (held > 0).sum().double()
        if self.rho_by == "size":
            towards = replies.sum("apart")  # Σ (x_i − z)
        else:
            towards = (replies.sum("dm") - (rho - before).sum() * z) / (self.relaxation * rho[0])
        gap = replies.sum("gap")[0] - 2 * towards @ step + count * (step @ step)
        duals = replies.sum("dual")[0].double().clamp(min=0)
        return Residuals(
            primal=(gap.double().clamp(min=0) * clients / count).sqrt(),
            dual=held.square().sum().sqrt() * torch.linalg.vector_norm(step).double(),
            primal_scale=clients.sqrt() * (1 + torch.linalg.vector_norm(after).double()),
            dual_scale=clients.sqrt() + (duals * clients / count).sqrt(),
        )

    def model(self, state: State) -> Vector:
        return state["z"]

    def done(self, state: State, figures: Mapping[str, float]) -> bool:
        """Both residuals stayed small until every client that ever answered had answered again."""
        return self.stop > 0 and settled(state, state["held"] > 0)

    def report(self, state: State, sums: dict[str, Tensor]) -> dict[str, float]:
        return {**reported(state), "rho": float(state["rho"])}

    def _rho(self, rho: Tensor, size: Tensor) -> Tensor:
        """ρ_i of clients of these sizes (relative to the mean)."""
        return rho * size if self.rho_by == "size" else rho

    def _noise(self, z: Vector) -> float:
        """Relative residuals that are rounding, or what the solvers leave."""
        return 100 * torch.finfo(z.dtype).eps + 10 * self.tolerance

    def _regulariser(self) -> Regulariser:
        return regulariser_for(self.regulariser, self.strength, self.l1_share, self.low, self.high)

    def _penalised(self, ctx: Context) -> Tensor:
        """The coordinates that g counts."""
        mask = torch.ones(len(ctx.theta0), dtype=torch.bool)
        for name, where in ctx.slices.items():
            if not self.penalise_bias and name.rpartition(".")[2] == "bias":
                mask[where.start : where.stop] = False
        return mask
