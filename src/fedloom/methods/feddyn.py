"""FedDyn.

D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough and V. Saligrama, "Federated learning based on
dynamic regularization", ICLR 2021, Algorithm 1. https://arxiv.org/abs/2111.04263
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor

from fedloom.federation.client import Client
from fedloom.federation.problem import Problem
from fedloom.federation.replies import Replies, Weighting
from fedloom.federation.solvers import Inner, SolverName, solver_for
from fedloom.methods.method import Context, Ints
from fedloom.methods.register import register
from fedloom.methods.training import LocalSteps
from fedloom.search import Search
from fedloom.types import Memory, Message, Positive, State

if TYPE_CHECKING:
    from fedloom.conformance import Declaration, Known
    from fedloom.conformance.drive import Walk


@register("feddyn", family="optimisation", paper="Acar et al., ICLR 2021", declaration=lambda: known_answers())
@dataclass(frozen=True)
class FedDyn(LocalSteps):
    """Local objectives that learn a linear term: no drift, however long clients train.

    Each client minimises its loss minus a linear term that learns its slope, near the common model.

    The linear term g_k estimates ∇f_k at the optimum of all, where each client's own objective then has its minimum
    too: clients that differ do not drift apart, and the limit is the optimum of the mean of the f_k, however many local
    steps there are. The server's h is the mean of all g_k, those of clients that never answered being 0.
    """

    coordinatewise = True

    alpha: Annotated[Positive, Search(1e-3, 1.0, log=True)] = 0.1
    """α, how strongly a client is held near the common model, and how far its g_k moves."""
    weighting: Weighting = "uniform"
    """ "uniform": the plain mean of the f_k (the paper); "size": Σ (n_k/n) f_k (the authors' code)."""
    solver: SolverName = "gradient"
    """How clients solve: "gradient" by local steps, "auto" exactly for linear least squares, by newton for other linear
    models, else by lbfgs."""

    def check(self, problem: Problem) -> None:
        solver_for(problem, self.solver)

    def work(self, rows: Ints) -> Ints | None:
        return super().work(rows) if self.solver == "gradient" else rows if self.solver == "exact" else None

    def server_init(self, ctx: Context) -> State:
        rows = ctx.sizes[ctx.sources].double().mean()  # n̄
        return {"x": ctx.theta0, "h": torch.zeros_like(ctx.theta0), "rows": rows.to(ctx.theta0.dtype)}

    def client_init(self, client: Client, received: Message) -> Memory:
        return {"g": torch.zeros_like(received["x"]).expand(*client.n.shape[:-1], -1)}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {"x": state["x"], "rows": state["rows"]}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        x, g = received["x"], memory["g"]
        s = client.n / received["rows"] if self.weighting == "size" else 1.0  # it has s_k f_k
        how = Inner(self.solver, lr=self.rate(client), batch=self.batch, epochs=self.epochs, steps=self.steps)
        y = client.prox(x + g / self.alpha, self.alpha / s, x, how)  # argmin s f_k(θ) − ⟨g_k, θ⟩ + α/2‖θ − x‖²
        return {"dx": y - x}, memory

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        return {"g": memory["g"] - self.alpha * sent["dx"]}  # g_k − α(θ_k − x), by what the server has seen of it

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        h = state["h"] - self.alpha * replies.sum("dx") / ctx.clients  # h − α/m Σ (θ_k − x)
        return {**state, "x": state["x"] + replies.mean("dx") - h / self.alpha, "h": h}  # mean θ_k − h/α


def known_answers() -> Declaration:
    """What is known of FedDyn."""
    from fedloom.conformance import Declaration, Exactly, Invariant, Limit, classification, logistic, quadratics
    from fedloom.conformance.declarations.averaging import miscounted
    from fedloom.conformance.declarations.common import WHO_ANSWERS, slopes
    from fedloom.conformance.declarations.courses import ROUNDS, Course, Defaults, Ledger, started

    def unequal() -> Known:
        return quadratics(unequal=True)

    def optimum(known: Known, method: Any) -> Tensor:
        return known.minimiser(method.weighting)

    def other_optimum(known: Known, method: Any) -> Tensor:
        return known.minimiser("uniform" if method.weighting == "size" else "size")

    def algorithm1(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
        """θ_k by local steps, or exactly, (s_k A_k + αI)⁻¹(s_k A_k x_k* + g_k + αx); then g_k, h and x."""
        some, x, h, alpha = known.only(torch.tensor(heard)), at.state["x"], at.state["h"], method.alpha
        g = torch.stack([at.memory.get(i, {"g": torch.zeros_like(x)})["g"] for i in heard])
        s = some.sizes / known.sizes.mean() if method.weighting == "size" else torch.ones(len(heard), dtype=x.dtype)
        s = s[:, None]
        if method.solver == "exact":
            curved = s[..., None] * some.hessians + alpha * torch.eye(len(x), dtype=x.dtype)
            towards = s * (some.hessians @ some.optima.unsqueeze(-1)).squeeze(-1)
            y = torch.linalg.solve(curved, towards + g + alpha * x)
        else:
            y = x.repeat(len(heard), 1)
            for _ in range(method.steps):
                y = y - method.lr * (slopes(some, y) + (alpha * (y - x) - g) / s)
        at.memory |= {i: {"g": row} for i, row in zip(heard, g - alpha * (y - x), strict=True)}
        at.state["h"] = h = h - alpha * (y - x).sum(0) / len(known.clients)
        at.state["x"] = y.sum(0) / len(heard) - h / alpha

    def off_by_hand(walk: Walk) -> float:
        """Three mini-batches of five: 15, 11, 11, 9, 15, 13 and 14 rows of 23, 6, 11, 3, 17, 8 and 14."""
        return float(abs(walk.clocks.gradient_evaluations - 88 * walk.clocks.round))

    everything = {name: Exactly(600) for name in (*WHO_ANSWERS, "quantised")}
    steps: dict[str, Any] = {"lr": 0.3, "batch": None, "steps": 4, "alpha": 0.5}
    exact: dict[str, Any] = {"solver": "exact", "alpha": 0.8}
    falling = {**steps, "lr": "exponential:0.3:0.98"}
    by_size = {"weighting": "size"}
    rest = {"alpha": 0.1, "weighting": "uniform", "solver": "gradient"}
    return Declaration(
        claims=(
            Defaults({"lr": 0.1, "batch": 32, "epochs": 1, "steps": None, **rest, **ROUNDS}),
            Course("exact solves are Algorithm 1", started("h"), algorithm1, exact, stands=WHO_ANSWERS),
            Course("so are local steps that fall", started("h"), algorithm1, falling, stands=WHO_ANSWERS),
            Course("so it is with weights by size", started("h"), algorithm1, {**steps, **by_size}),
            Limit("exact solves find the optimum", unequal, optimum, exact, 300, 1e-12, everything, other_optimum),
            Limit("K local steps find it too", unequal, optimum, steps, 300, 1e-12, {"quantised": Exactly(600)}),
            Limit(
                "weighted by size it finds the optimum of all rows",
                unequal,
                optimum,
                {**exact, **by_size},
                300,
                1e-12,
                not_at=other_optimum,
            ),
            Limit("it finds that of logistic regression", logistic, optimum, {"solver": "newton"}, 300, 1e-9),
            Invariant("epochs are passes over every row", classification, miscounted(3), {"batch": 5, "epochs": 3}, 4),
            Invariant("mini-batches are as large as it says", classification, off_by_hand, {"batch": 5, "steps": 3}, 2),
        ),
        batches={"lr": 0.1, "batch": 5, "epochs": 2},
    )
