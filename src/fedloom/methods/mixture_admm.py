"""Mixture ADMM: a model for each client, held near the mean of all, by multipliers or by a difference of convex parts.

The problem is that of F. Hanzely and P. Richtárik, "Federated learning of a mixture of global and local models", 2020,
https://arxiv.org/abs/2002.05516. With the constraint Nz = Σ x_i it is a nonconvex sharing problem of M. Hong, Z.-Q. Luo
and M. Razaviyayn, "Convergence analysis of alternating direction method of multipliers for a family of nonconvex
problems", SIAM Journal on Optimization 26(1), 2016, https://arxiv.org/abs/1410.1390, whose Algorithm 4 takes the
clients one after the other. Linearising the concave part is the DCA of Pham Dinh T. and Le Thi H. A., 1997.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.client import Client
from fedloom.federation.data import SOURCE
from fedloom.federation.problem import Problem
from fedloom.federation.replies import Replies
from fedloom.methods.method import MEAN_OF_MODELS, Context
from fedloom.methods.register import register
from fedloom.methods.training import ProximalSteps
from fedloom.search import Search
from fedloom.types import Memory, Message, Positive, State, Vector


@register(
    "mixture-admm",
    family="personalisation",
    paper="Hong et al., SIAM J. Optim. 2016",
    declaration=".mixtures:MIXTURE_ADMM",
)
@dataclass(frozen=True)
class MixtureADMM(ProximalSteps):
    """A model for each client, held near the mean of all: exact local solves, agreement by multipliers.

    min Σ f_i(x_i) + (λ/2) Σ‖x_i − x̄‖², written as Σ f̃_i(x_i) − λ r(z) subject to Nz = Σ x_i, with
    f̃_i = f_i + (λ/2)‖·‖² and r = (N/2)‖·‖².

    What the server counts of a client moves only by what it decoded, and the client knows it: sampled, lost, late and
    quantised replies delay the limit but do not move it. A client that never answered does not count; while n of N have
    answered, ρ and β of the server are N/n times as large, so that its step stays well posed.
    """

    evaluates: ClassVar[Literal["global", "personal"]] = "personal"
    stand_in = MEAN_OF_MODELS

    lambda_: Annotated[Positive, Search(0.01, 10.0, log=True)] = 1.0
    """λ, how strongly the clients' models are held near their mean: near 0 each is alone, large all are the same."""
    form: Literal["direct", "auxiliary", "dca"] = "direct"
    """ "direct": one multiplier y for Nz = Σ x_i; "auxiliary": also copies x'_i = x_i, with multipliers y_i;
    "dca": no multiplier, z is the mean, and −λr is linearised there."""
    rho: Positive | None = None
    """ρ, the penalty of Nz = Σ x_i, above λ/N; none: 2λ/√N."""
    rho_own: Positive | None = None
    """ρ_i, the penalty of x'_i = x_i in the auxiliary form; none: Nρ."""
    beta: Positive | None = None
    """β, the step of the multipliers; none: ρ."""
    order: Literal["jacobi", "gauss-seidel"] = "jacobi"
    """ "jacobi": z and y move after every round; "gauss-seidel": only once all clients have answered since, so that
    with one client a round each meets the newest models of the others."""
    linearised: bool = False
    """Linearise −λr in the step of z too, which then has a minimum for every ρ (about λ/N is the least that
    converges)."""
    accelerated: bool = False
    """Nesterov's extrapolation of z in the form dca, begun again whenever it leads uphill."""

    def check(self, problem: Problem) -> None:
        super().check(problem)
        if self.form == "dca":
            self._check_dca()
            return
        if self.accelerated:
            raise ConfigError(
                "mixture-admm: accelerated = true extrapolates z, which only the form 'dca' can bear: multipliers "
                "follow z; set form = 'dca'"
            )
        clients, rho = len(problem.data.with_role(SOURCE)), self.rho
        if rho is not None and rho <= self.lambda_ / clients and not self.linearised:
            raise ConfigError(
                f"mixture-admm: rho = {rho:g} is not above λ/N = {self.lambda_:g}/{clients} = "
                f"{self.lambda_ / clients:g}: the server minimises (ρN² − λN)/2 ‖z‖² + …, which then has no minimum; "
                "raise rho (the default is 2λ/√N), lower lambda_, or set form = 'dca', which needs no ρ"
            )

    def _check_dca(self) -> None:
        if self.linearised:
            raise ConfigError("mixture-admm: the form 'dca' linearises −λr anyway; leave linearised out")
        unused = [name for name in ("rho", "rho_own", "beta") if getattr(self, name) is not None]
        unused += ["order"] if self.order == "gauss-seidel" else []
        if unused:
            warnings.warn(f"mixture-admm: the form 'dca' has no use for {', '.join(unused)}", stacklevel=1)

    @property
    def per_client(self) -> tuple[str, ...]:
        return ("held", "heard") if self._in_turn else ("held",)

    @property
    def _in_turn(self) -> bool:
        """Whether z and y wait until all have answered."""
        return self.order == "gauss-seidel" and self.form != "dca"

    def server_init(self, ctx: Context) -> State:
        z, nobody = ctx.theta0, torch.zeros(len(ctx.sizes), dtype=torch.bool)
        state = {"z": z, "sum": torch.zeros_like(z), "held": nobody}  # Σ x_i of those who ever answered
        if self.form == "dca":
            return {**state, "w": z, "t": torch.ones((), dtype=z.dtype)} if self.accelerated else state
        state |= {"y": self.lambda_ * z, **self._penalties(ctx, ctx.clients)}
        return {**state, "heard": nobody} if self._in_turn else state

    def broadcast(self, state: State, clients: Tensor) -> Message:
        if self.form == "dca":
            return {"push": self.lambda_ * state["w" if self.accelerated else "z"]}
        rho, off = state["rho"], state["held"].sum() * state["z"] - state["sum"]  # r = Nz − Σ x_i
        push = {"push": rho * off + state["y"], "rho": rho}
        return {**push, "own": state["own"]} if self.form == "auxiliary" else push

    def client_init(self, client: Client, received: Message) -> Memory:
        x = (received["push"] / self.lambda_).expand(*client.n.shape[:-1], -1)  # it is λz where all agree
        memory = {"x": x, "held": torch.zeros_like(x[..., :1])}
        if self.form != "auxiliary":
            return memory
        return {**memory, "copy": x, "y": self.lambda_ * x}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        if self.form == "auxiliary":
            return self._with_copy(client, received, memory)
        x, rho = memory["x"], received["rho"] if self.form == "direct" else 0.0
        new = self._solved(client, rho, rho * x + received["push"], x)  # argmin f̃_i + ρ/2‖· − x_i − r − y/ρ‖²
        return {"dx": new - memory["held"] * x}, memory

    def _with_copy(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        copy, y, rho, own = memory["copy"], memory["y"], received["rho"], received["own"]
        x = self._solved(client, own, own * copy + y, memory["x"])  # argmin f̃_i + ρ_i/2‖· − x'_i‖² − ⟨y_i, ·⟩
        new = (own * x + rho * copy + received["push"] - y) / (own + rho)  # x'_i
        return {"dx": new - memory["held"] * copy}, {**memory, "x": x}

    def _solved(self, client: Client, rho: float | Tensor, pull: Vector, start: Vector) -> Vector:
        """argmin f_i(x) + λ/2‖x‖² + ρ/2‖x‖² − ⟨pull, x⟩."""
        curved = self.lambda_ + rho
        return client.prox(pull / curved, curved, start, self.inner())

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        here = torch.ones_like(memory["held"])
        if self.form != "auxiliary":
            return {"x": memory["held"] * memory["x"] + sent["dx"], "held": here}  # x_i, as the server decoded it
        copy, beta = memory["held"] * memory["copy"] + sent["dx"], self.beta if self.beta is not None else inbox["rho"]
        return {"x": memory["x"], "held": here, "copy": copy, "y": memory["y"] + beta * (copy - memory["x"])}

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        held = state["held"].index_fill(0, replies.clients, True)
        count, total = int(held.sum()), state["sum"] + replies.sum("dx")
        new = {**state, "held": held, "sum": total}
        if self.form == "dca":
            return {**new, **self._extrapolated(state, total / count)}
        new |= self._penalties(ctx, count)
        if self._in_turn:
            heard = state["heard"].index_fill(0, replies.clients, True)
            if not bool(heard[held].all()):
                return {**new, "heard": heard}
            new["heard"] = torch.zeros_like(heard)
        z, y, rho = state["z"], state["y"], new["rho"]
        beta = rho if self.beta is None else self.beta * ctx.clients / count
        # argmin ⟨y, Nz⟩ + ρ/2‖Nz − Σ x_i‖² − λr(z), or with −λ⟨∇r(z_k), z⟩ in the place of −λr(z)
        if self.linearised:
            z = (total + (self.lambda_ * z - y) / rho) / count
        else:
            z = (rho * total - y) / (rho * count - self.lambda_)
        return {**new, "z": z, "y": y + beta * (count * z - total)}

    def _extrapolated(self, state: State, z: Vector) -> State:
        """z = x̄, and the point from which clients go on: Nesterov's, begun again where the last step led uphill."""
        if not self.accelerated:
            return {"z": z}
        step = z - state["z"]
        t = torch.where((state["w"] - z) @ step > 0, torch.ones_like(state["t"]), state["t"])
        after = (1 + (1 + 4 * t.square()).sqrt()) / 2
        return {"z": z, "w": z + (t - 1) / after * step, "t": after}

    def _penalties(self, ctx: Context, answered: int) -> State:
        """ρ while so many of the N clients have answered, and ρ_i."""
        rho = self.rho if self.rho is not None else 2 * self.lambda_ / ctx.clients**0.5
        found = {"rho": rho * ctx.clients / answered}
        if self.form == "auxiliary":
            found["own"] = self.rho_own if self.rho_own is not None else rho * ctx.clients
        return {key: torch.tensor(value, dtype=ctx.theta0.dtype) for key, value in found.items()}

    def model(self, state: State) -> Vector:
        return state["z"]

    def report(self, state: State, sums: dict[str, Tensor]) -> dict[str, float]:
        count = int(state["held"].sum())
        return {"residual": float(torch.linalg.vector_norm(state["z"] - state["sum"] / count))} if count else {}

    def personal(self, client: Client, state: State, memory: Memory) -> Vector:
        return memory["x"]
