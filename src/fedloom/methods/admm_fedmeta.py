"""ADMM-FedMeta, and the ADMM that it approximates.

S. Yue, J. Ren, J. Xin, S. Lin and J. Zhang, "Inexact-ADMM based federated meta-learning for fast and continual edge
learning", MobiHoc 2021, Algorithm 1; equations by their numbers there. https://arxiv.org/abs/2012.08677
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.client import Client
from fedloom.federation.divergences import divergence_for
from fedloom.federation.meta import Meta, Order
from fedloom.federation.problem import Problem
from fedloom.federation.replies import Replies
from fedloom.federation.schedules import Rate, rate_at
from fedloom.federation.solvers import Inner, refuse_statistics
from fedloom.methods.adapting import MetaLearning, norm
from fedloom.methods.method import Context
from fedloom.methods.register import register
from fedloom.search import Search
from fedloom.types import Count, Memory, Message, NonNegative, Positive, State, Vector

_STD = 0.01  # of the dual variables at the start, as the authors' code draws them
_TWO = 0.022750131948179195  # the normal distribution's mass below −2, where that is cut off


@dataclass(frozen=True)
class MetaADMM(MetaLearning):
    """Minimise Σ w_i L_i(φ_i(θ_i); query) + λD_h(θ, θ_p) subject to θ_i = θ, with φ_i(θ) = θ − α∇L_i(θ; support).

    w_i = n_i/Σn over all source clients. What a client contributes to θ is m_i = y_i + ρ_i θ_i. Client and server both
    know it, and it moves only by what the server decoded; the dual variable y_i moves only when a reply was accepted.
    So sampled, lost and quantised replies delay the limit but do not move it. A client that never answered does not
    count.
    """

    rho: Annotated[Positive, Search(0.03, 10.0, log=True)] = 0.35
    """ρ, the penalty for disagreement of each client; with n clients, 1/(nρ) is the meta step size."""
    rho_i: Sequence[Positive] | None = None
    """ρ_i of each client, one for each id; none: ρ for all."""
    lambda_: NonNegative = 0.0
    """λ, how much the distance from the prior model counts; above 0 there must be one."""
    h: str = "squared"
    """The h of D_h: squared (D_h = ‖θ − θ_p‖²), hypentropy, or a name that you registered."""
    server_form: Literal["linearised", "exact"] = "linearised"
    """θ by (11), where D_h is taken at the last θ, or as the minimiser itself (the authors' code)."""
    y_init: Literal["zero", "normal"] = "zero"
    """y_i at the start: 0, or normal with standard deviation 0.01, cut off at two of them (the authors' code)."""
    gradient_norm: bool = True

    @abstractmethod
    def local(self, client: Client, theta: Vector, y: Vector, w: Tensor, rho: Tensor) -> Vector:
        """θ_i from θ and the dual variable."""

    @property
    def needs_prior(self) -> bool:
        return self.lambda_ > 0

    @property
    def per_client(self) -> tuple[str, ...]:
        return ("rho", "held")

    def check(self, problem: Problem) -> None:
        super().check(problem)
        divergence_for(self.h)
        clients = problem.data.clients
        if self.rho_i is not None and len(self.rho_i) != clients:
            raise ConfigError(
                f"rho_i has {len(self.rho_i)} numbers, but there are {clients} clients; give one for each"
            )

    def server_init(self, ctx: Context) -> State:
        clients = len(ctx.sizes)
        rho = [self.rho] * clients if self.rho_i is None else list(self.rho_i)
        state = {
            "x": ctx.theta0,
            "m": torch.zeros_like(ctx.theta0),  # Σ m_i over the clients that ever answered
            "rho": torch.tensor(rho, dtype=ctx.theta0.dtype),
            "held": torch.zeros(clients, dtype=torch.bool),  # who ever answered
            "rows": ctx.sizes[ctx.sources].sum().to(ctx.theta0.dtype),
        }
        return state if ctx.prior is None else {**state, "prior": ctx.prior}

    def client_init(self, client: Client, received: Message) -> Memory:
        zero = torch.zeros_like(received["x"]).expand(*client.n.shape[:-1], -1)
        return {"y": zero if self.y_init == "zero" else self._drawn(client, zero), "m": zero}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {"x": state["x"], "rows": state["rows"]}

    def unicast(self, state: State, clients: Tensor) -> Message:
        return {"rho": state["rho"][clients].unsqueeze(-1)}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        theta, rho, w = received["x"], received["rho"], client.n / received["rows"]
        theta_i = self.local(client, theta, memory["y"], w, rho)  # (9), or its approximation (14)
        y = torch.addcmul(memory["y"], rho, theta_i - theta)  # (10): y_i + ρ_i(θ_i − θ)
        return {"dm": torch.addcmul(y - memory["m"], rho, theta_i)}, {"y": y, "m": memory["m"]}

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        return {"y": memory["y"], "m": memory["m"] + sent["dm"]}  # as the server decoded it

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        m = state["m"] + replies.sum("dm")
        held = state["held"].index_fill(0, replies.clients, True)
        rho = state["rho"][held].sum()
        if self.lambda_ == 0:
            x = m / rho
        elif self.server_form == "linearised":
            pull = divergence_for(self.h).pull(state["x"], state["prior"])
            x = (m - self.lambda_ * pull) / rho  # (11)
        else:
            x = divergence_for(self.h).nearest(m, rho, self.lambda_, state["prior"])  # the first line of (6)
        return {**state, "x": x, "m": m, "held": held}

    def measure(self, client: Client, received: Message, memory: Memory) -> dict[str, Tensor]:
        if not self.gradient_norm:
            return {}
        w = client.n / received["rows"]
        return {"gradient": w * self.whole_gradient(client, received["x"])}

    def report(self, state: State, sums: dict[str, Tensor]) -> dict[str, float]:
        found: dict[str, float] = {}
        slope = sums.get("gradient")
        if self.lambda_ > 0:
            h, x, prior = divergence_for(self.h), state["x"].double(), state["prior"].double()
            found["prior_distance"] = norm(x - prior)
            slope = None if slope is None else slope + self.lambda_ * h.pull(x, prior)
        return found if slope is None else {"gradient_norm": norm(slope), **found}

    def _drawn(self, client: Client, like: Vector) -> Vector:
        """y_i from a normal distribution cut off at two standard deviations."""
        uniform = torch.from_numpy(client.draw.uniform("prices", client.clients, like.shape[-1]))
        drawn: Tensor = _STD * torch.special.ndtri(_TWO + (1 - 2 * _TWO) * uniform)
        return drawn.to(like.dtype).view_as(like)


@register(
    "admm-fedmeta", family="meta-learning", paper="Yue et al., MobiHoc 2021", declaration=".meta_admm:ADMM_FEDMETA"
)
@dataclass(frozen=True)
class ADMMFedMeta(MetaADMM):
    """Clients agree by dual variables on a start for adaptation, near an earlier model if wished.

    ADMM-FedMeta: each client takes one step of its subproblem, with a Hessian that two gradients stand in for.

    After every round y_i = −w_i G_i, G_i being the client's meta-gradient. So with λ = 0 and everybody taking part it
    is optimistic gradient descent, θ ← θ − (2Gᵗ − Gᵗ⁻¹)/Σρ_i, which is stable up to a step of 2/(3L).
    """

    order: Order = "difference"
    """Second derivatives: by differences of two gradients (13), "exact", or left out ("first")."""
    delta: Rate | None = None
    """δ of (13), or a schedule of it; none: 1/(k + 100) in round k = 1, 2, …"""

    @property
    def by_round(self) -> bool:
        return self.delta is None or super().by_round

    def local(self, client: Client, theta: Vector, y: Vector, w: Tensor, rho: Tensor) -> Vector:
        delta = 1 / (client.round + 101) if self.delta is None else rate_at(self.delta, client.round)
        g, _ = client.meta_grad(theta, self.alpha, Meta(self.order, delta))  # (8), (13): ∇L_i(φ_i) − αg_i
        return theta - torch.addcmul(y, w, g).div_(rho)  # (14): θ − (y_i + w_i G_i)/ρ_i


@register(
    "admm-meta-exact",
    family="meta-learning",
    paper="Yue et al., MobiHoc 2021",
    declaration=".meta_admm:ADMM_META_EXACT",
)
@dataclass(frozen=True)
class ADMMMetaExact(MetaADMM):
    """ADMM-FedMeta with each client's subproblem solved exactly.

    The ADMM of equations (6) to (10) itself: each client solves its subproblem to a tolerance, by L-BFGS.

    The reference that ADMM-FedMeta is compared with. A network should be smooth (tanh, ELU): with ReLU a step of
    adaptation jumps where a unit begins to fire, and no tolerance is ever met.
    """

    tolerance: Positive = 1e-8
    """The norm of the subproblem's gradient at which a client stops."""
    max_iterations: Count = 20
    """Iterations in a round at most."""

    def check(self, problem: Problem) -> None:
        super().check(problem)
        refuse_statistics(problem, "L-BFGS", "admm-fedmeta")

    def local(self, client: Client, theta: Vector, y: Vector, w: Tensor, rho: Tensor) -> Vector:
        how = Inner(tolerance=self.tolerance, max_iterations=self.max_iterations)
        return client.meta_prox(theta - y / rho, rho / w, self.alpha, theta, Meta(self.order), how)  # (9)
