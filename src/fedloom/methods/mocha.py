"""MOCHA: federated multi-task learning in the dual.

V. Smith, C.-K. Chiang, M. Sanjabi and A. Talwalkar, "Federated multi-task learning", NIPS 2017, Algorithm 1.
https://arxiv.org/abs/1705.10467
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Interval
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.batches import steps_of
from fedloom.federation.client import Client
from fedloom.federation.data import SOURCE
from fedloom.federation.dual import Losses, Order, check_dual
from fedloom.federation.losses import Loss, loss_for, weighted
from fedloom.federation.problem import Problem
from fedloom.federation.ragged import Ints
from fedloom.federation.relations import (
    Clustered,
    Fixed,
    Relation,
    RelationName,
    Strengths,
    conjugate,
    correlations,
    relation_for,
    safe,
)
from fedloom.federation.replies import Replies
from fedloom.methods.method import MEAN_OF_MODELS, Context, Relations, ServerMethod, Wish
from fedloom.methods.register import register
from fedloom.search import Search
from fedloom.types import Count, Memory, Message, NonNegative, Positive, State, Vector

_SHOWN = 4  # clients that a message names
_SOLVED = 1e-4  # how exactly θ is measured
_ROUNDING = 1e-12  # of a subproblem's value
_SETTLED = 1e-11  # of the subproblem of a newcomer that much may be left
_ALTERNATIONS = 30  # between the model of a newcomer and its relation to the others


@register("mocha", family="personalisation", paper="Smith et al., 2017", declaration=".mocha:MOCHA_CLAIMS")
@dataclass(frozen=True)
class MOCHA(ServerMethod):
    """A linear model for each client, and how the clients are related, learnt together in the dual.

    min over W and Ω of Σ_t Σ_i ℓ_t(w_t·x_i, y_i) + R(W, Ω), R = λ₁ tr(WΩWᵀ) + λ₂‖W‖². For a fixed Ω clients take
    coordinate steps in the dual on their own rows, each as many as it can, and send Δv_t = X_tΔα_t; the server makes
    all models of all v, w_t = Σ_t' m̄_tt' v_t'. Every ``inner`` rounds the server finds the best Ω for these models, and
    makes the models again, which then belong to the new Ω.

    The gap between primal and dual, which the history has, bounds how far the models are from the optimum for Ω. A
    client's dual numbers hold once its reply was accepted: lost, late and partial work delays the limit but does not
    move it.
    """

    reduce = "each"
    exact = True
    evaluates: ClassVar[Literal["global", "personal"]] = "personal"
    stand_in = MEAN_OF_MODELS
    instead = "the mean of the clients' models; adapting one to their rows finds how they are related to the others"
    starts_without = "any client: models follow from the dual variables, which begin at zero; leave it out"
    default_rounds = 100
    default_dtype = "float64"
    default_model = "linear"
    per_row = ("alpha", "sum")

    relation: RelationName = "probabilistic"
    """Ω: "probabilistic" learns the covariance Σ = Ω⁻¹ of the tasks, tr Σ = 1; "clustered" learns k clusters; "mean"
    holds all models near their mean; "graph" near their neighbours'; "fixed" has Ω in a file."""
    lambda1: Annotated[Positive, Search(1e-5, 10.0, log=True)] = 0.01
    """λ₁, what tr(WΩWᵀ) counts for beside the losses."""
    lambda2: Annotated[NonNegative, Search(1e-5, 1.0, log=True)] = 0.001
    """λ₂, what ‖W‖² counts for; above 0 where Ω has no inverse, as for mean and graph."""
    inner: Annotated[int, Ge(0)] = 10
    """H_i, server steps from one update of Ω to the next; 0: it is never updated."""
    objective: Literal["sum", "mean"] = "sum"
    """Whether a task's loss is the sum over its rows (the paper), or their mean (the authors' code)."""
    losses: str = ""
    """ℓ_t of single tasks, such as "0:hinge,3:squared", by the clients' numbers; all others have the problem's."""
    epochs: Count = 1
    """Passes over the client's rows in a round."""
    steps: Count | None = None
    """Exactly so many coordinate steps a round instead of epochs."""
    accuracy: Annotated[float, Interval(gt=0, lt=1)] | None = None
    """θ, the share of its subproblem that a client may leave; it takes as many passes as that needs, instead of
    epochs."""
    least_share: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Each client does in each round a share of its steps, drawn between this and 1."""
    order: Order = "permuted"
    """Whether a pass visits every row once, or so many rows drawn with replacement ("random")."""
    gamma: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """γ, how much of what a client found is added: 1 adds it all, 1/m averages."""
    sigma: Positive | None = None
    """σ', how careful clients are of each other's steps; none: γ·max_t Σ_t'|m̄_tt'|/m̄_tt, which is always safe."""
    average_after: Annotated[int, Ge(0)] | None = None
    """H₀: the models are those of the mean of all α after so many server steps (Theorem 2); none: of the last α."""
    measure_theta: bool = False
    """Tell in the history how much of their subproblems the clients left: θ_t^h, at the cost of solving them."""
    stop: NonNegative = 1e-6
    """Stop when the gap is at most this share of the primal objective, whenever the run is evaluated, and the last
    update of Ω changed m̄ by at most this share; 0: do all rounds."""
    floor: Annotated[float, Interval(gt=0, le=1)] = 1e-3
    """For probabilistic: the smallest eigenvalue of Σ as a share of their mean."""
    clusters: Count = 2
    """For clustered: k."""
    eta: Positive = 0.1
    """For clustered: η, what ‖W‖² counts for beside the variance within the clusters."""
    graph: str = ""
    """For graph: its edges, such as "0-1,1-2:0.5", or a file of rows k,l,a or of the matrix of all a_kl."""
    omega: str = ""
    """For fixed: a file with the matrix Ω, one row a line, or in NumPy's format (.npy)."""

    def check(self, problem: Problem) -> None:
        own, clients = _own_losses(self.losses, problem), problem.data.clients
        for loss in (problem.loss, *own.values()):
            check_dual(problem, "mocha", loss)
        if own and max(own) >= clients:
            raise ConfigError(f"mocha: losses has client {max(own)}, but clients are numbered 0 to {clients - 1}")
        if self.steps is not None and self.accuracy is not None:
            raise ConfigError(
                f"mocha: steps = {self.steps} and accuracy = {self.accuracy} say two things of how long a client "
                "works; leave one out"
            )
        relation, sources = self._relation, problem.data.with_role(SOURCE)
        if self.relation == "graph" and not self.graph:
            raise ConfigError("mocha: relation = 'graph' needs the edges: graph = '0-1,1-2:0.5', or a file")
        if isinstance(relation, Fixed):
            relation.check(clients)
        if isinstance(relation, Clustered) and relation.clusters > len(sources):
            raise ConfigError(
                f"mocha: clusters = {relation.clusters}, but {len(sources)} clients train; choose at most so many"
            )
        self._strengths.mbar(relation.among(sources, clients))
        self._warn_of_one_class(problem)

    def _warn_of_one_class(self, problem: Problem) -> None:
        data = problem.data
        if not data.here or data.task != "binary":
            return
        own = {client: data.y[data.splits["train"][client]] for client in data.with_role(SOURCE).tolist()}
        alike = [data.label(client) for client, y in own.items() if len(y) and bool((y == y[0]).all())]
        if alike:
            shown = ", ".join(alike[:_SHOWN]) + (", …" if len(alike) > _SHOWN else "")
            warnings.warn(
                "mocha: clients with training rows of one class only, whose models say that class of everything unless "
                f"others teach them better: {shown}",
                stacklevel=1,
            )

    @property
    def _relation(self) -> Relation:
        return relation_for(
            self.relation,
            floor=self.floor,
            clusters=self.clusters,
            eta=self.eta,
            graph=self.graph,
            omega=self.omega,
        )

    @property
    def _strengths(self) -> Strengths:
        return Strengths(self.lambda1, self.lambda2)

    @property
    def needs_rounds(self) -> str | None:
        if self.average_after is None:
            return None
        return "clients and server average over the same steps (average_after), which an old reply would shift"

    @property
    def per_client(self) -> tuple[str, ...]:
        kept = ("v", "w", "kappa", "heard")
        return kept if self.average_after is None else (*kept, "total", "mean")

    @property
    def per_pair(self) -> tuple[str, ...]:
        return ("omega", "mbar")

    def server_init(self, ctx: Context) -> State:
        v = ctx.theta0.new_zeros(len(ctx.sizes), len(ctx.theta0))
        state = {
            "x": torch.zeros_like(ctx.theta0),  # the mean of the models of those who were heard
            "v": v,
            "heard": torch.zeros(len(v), dtype=torch.bool),
            "moved": torch.tensor(1.0, dtype=torch.float64),  # by how much the last update of Ω changed m̄
        }
        if self.average_after is not None:
            state |= {"total": v.double(), "mean": v, "step": torch.tensor(0)}
        if self.measure_theta:
            state["left"] = torch.ones(3, dtype=torch.float64)
        omega = self._relation.among(ctx.sources, len(ctx.sizes))
        return self._models({**state, **self._tied(omega, self._strengths.mbar(omega), ctx)}, 0)

    def welcome(self, state: State, ctx: Context) -> State:
        who = ctx.sources
        omega = self._relation.joined(state["omega"][who][:, who], who, len(ctx.sizes))
        return self._models({**state, **self._tied(omega, self._strengths.mbar(omega), ctx)}, ctx.round)

    def _tied(self, omega: Tensor, mbar: Tensor, ctx: Context) -> State:
        """Ω of those who train, and what follows from it: m̄, and σ'm̄_tt of each."""
        sigma = self.gamma * safe(mbar) if self.sigma is None else self.sigma  # σ'
        kappa = ctx.theta0.new_zeros(len(ctx.sizes), 1)
        kappa[ctx.sources] = (sigma * mbar.diagonal())[:, None].to(kappa.dtype)
        placed = {}
        for name, matrix in (("omega", omega), ("mbar", mbar)):
            placed[name] = matrix.new_zeros(len(kappa), len(kappa))
            placed[name][ctx.sources[:, None], ctx.sources] = matrix
        return {**placed, "kappa": kappa}

    def _models(self, state: State, steps: int) -> State:
        """W = w(α) = m̄V, and what is made of it: after so many server steps."""
        w = (state["mbar"] @ state["v"].double()).to(state["v"].dtype)
        new, found = {**state, "w": w}, w
        if self.average_after is not None:
            found = w
            if steps > self.average_after:
                mean = state["total"] / (steps - self.average_after)
                found = (state["mbar"] @ mean).to(w.dtype)
            new |= {"mean": found, "step": torch.tensor(steps)}
        heard = state["heard"]
        return {**new, "x": found[heard].mean(0) if bool(heard.any()) else torch.zeros_like(state["x"])}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {} if self.average_after is None else {"step": state["step"]}

    def unicast(self, state: State, clients: Tensor) -> Message:
        """w_t and σ'm̄_tt; whoever is not known yet begins with the mean of all."""
        known, at = _places(state, clients)
        sent = {"w": torch.where(known, state["w"][at], state["x"]), "kappa": state["kappa"][at]}
        return sent if self.average_after is None else {**sent, "mean": state["mean"][at]}

    def client_init(self, client: Client, received: Message) -> Memory:
        alpha, w = client.duals(), received["w"]
        memory = {"alpha": alpha, "v": torch.zeros_like(w)}
        if self.average_after is not None:
            memory |= {"sum": torch.zeros_like(alpha), "since": torch.zeros_like(w[..., :1])}
        return memory

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        alpha, w, kappa, c = memory["alpha"], received["w"], received["kappa"], self._count(client)
        able, losses = self._able(client), self._losses(client)
        found, _ = able.ascend(
            alpha,
            w,
            kappa,
            c,
            epochs=self.epochs,
            steps=self.steps,
            order=self.order,
            accuracy=self.accuracy,
            loss=losses,
        )
        new = alpha + self.gamma * (found - alpha)  # α_t + γΔα_t
        reply = {"dv": client.combined(new, c, losses) - memory["v"]}  # X_tΔα_t
        if self.measure_theta:
            zero, now, least = client.subproblem(alpha, found, w, kappa, c, tolerance=_SOLVED, loss=losses)
            reply["left"] = _left(now - least, zero - least, _ROUNDING * (zero.abs() + least.abs()))
        return reply, {**memory, "alpha": new, **self._summed(received, memory)}

    def _summed(self, received: Message, memory: Memory) -> Memory:
        """Σ α over the steps of the server after H₀, from the step since which α is what it is, up to this one."""
        if self.average_after is None:
            return {}
        step, since = received["step"], memory["since"]
        times = (step + 1 - since.clamp(min=self.average_after + 1)).clamp(min=0)
        held = memory["alpha"] * times.unsqueeze(-1)
        return {"sum": memory["sum"] + held, "since": torch.zeros_like(since) + step + 1}

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        return {**memory, "v": memory["v"] + sent["dv"]}

    def _count(self, client: Client, split: str = "train") -> float | Tensor:
        """c, what a row's loss counts for in that of its task."""
        return 1.0 if self.objective == "sum" else 1 / client.count(split).double().clamp(min=1)

    def _losses(self, client: Client) -> Losses | None:
        own = _own_losses(self.losses, client.problem)
        return [own.get(who, client.problem.loss) for who in client.clients.tolist()] if own else None

    def _able(self, client: Client) -> Client:
        """The client as far as it gets in this round."""
        if self.least_share == 1:
            return client
        drawn = client.draw.uniform("share", client.clients, 1)[:, 0]
        return client.slowed(self.least_share + (1 - self.least_share) * drawn)

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        v = state["v"].index_add(0, replies.clients, replies.each("dv"))  # v_t + Δv_t
        new = {**state, "v": v, "heard": state["heard"].index_fill(0, replies.clients, True)}
        steps = ctx.round + 1
        if self.average_after is not None and steps > self.average_after:
            new["total"] = state["total"] + v
        if self.measure_theta:
            theta = replies.each("left").double()
            new["left"] = torch.stack([theta.min(), theta.mean(), theta.max()])
        if self.inner and steps % self.inner == 0:
            new |= self._learned(new, ctx)
        return self._models(new, steps)

    def _learned(self, state: State, ctx: Context) -> State:
        """The best Ω for W = w(α)."""
        who, before = ctx.sources, state["mbar"]
        found = self._relation.learned((before @ state["v"].double())[who])
        if found is None:
            return {}
        new = self._tied(found.matrix(), self._strengths.mbar_of(found), ctx)
        norm = torch.linalg.matrix_norm
        return {**new, "moved": norm(new["mbar"] - before) / norm(before)}

    def model(self, state: State) -> Vector:
        return state["x"]

    def shown_each(self, state: State, clients: Tensor) -> State:
        """Its own model; of clients that were never heard the mean of all."""
        known, at = _places(state, clients)
        own = state["w" if self.average_after is None else "mean"][at]
        return {"w": torch.where(known & state["heard"][at, None], own, state["x"])}

    def personal(self, client: Client, state: State, memory: Memory) -> Vector:
        return state["w"]

    def measure(self, client: Client, received: Message, memory: Memory) -> dict[str, Tensor]:
        alpha, w, c, losses = memory["alpha"], received["w"], self._count(client), self._losses(client)
        if self.average_after is not None:
            w, steps = received["mean"], received["step"] - self.average_after
            total = self._summed({**received, "step": received["step"]}, memory)["sum"]
            alpha = torch.where((steps > 0).unsqueeze(-1), total / steps.clamp(min=1).unsqueeze(-1), alpha)
        found = {
            "loss": client.primal(w, c, losses),
            "conjugate": client.conjugate(alpha, c, losses),
            "clients": torch.ones_like(client.n),
            "compiled": client.compiled,
        }
        return {key: value.squeeze(-1) if client.stacked else value for key, value in found.items()}

    def report(self, state: State, sums: dict[str, Tensor]) -> dict[str, float]:
        """P(W) and D(α) for the Ω that there is now, their gap, and the share of clients whose loop is compiled."""
        if not sums:
            return {}
        w, v = state["w"].double(), state["v"].double()
        if self.average_after is not None and int(state["step"]) > self.average_after:
            w, v = state["mean"].double(), state["total"] / (int(state["step"]) - self.average_after)
        primal = sums["loss"] + self._strengths.value(w, state["omega"])
        dual = -sums["conjugate"] - conjugate(v, state["mbar"])
        found = {"primal": float(primal), "dual": float(dual), "gap": float(primal - dual)}
        found["compiled"] = float(sums["compiled"] / sums["clients"])
        if self._relation.learns and self.inner:
            found["omega_moved"] = float(state["moved"])
        if self.measure_theta:
            found |= dict(zip(("theta_min", "theta_mean", "theta_max"), state["left"].tolist(), strict=True))
        return found

    def done(self, state: State, figures: Mapping[str, float]) -> bool:
        """The gap is small, and Ω has come to rest."""
        if not self.stop or "gap" not in figures:
            return False
        settled = figures.get("omega_moved", 0.0) <= self.stop
        return settled and figures["gap"] <= self.stop * abs(figures["primal"])

    def relations(self, state: State) -> Relations:
        return Relations(f"correlation of the models ({self.relation})", correlations(state["mbar"]))

    def work(self, rows: Ints) -> Ints | None:
        if self.accuracy is not None or self.least_share < 1:
            return None
        return np.asarray(steps_of(rows, 1, self.epochs, self.steps))

    # New tasks

    def shown_to_adapt(self, state: State) -> State:
        """The models of all tasks that were heard: a new one is related to them."""
        own = state["w" if self.average_after is None else "mean"]
        return {"others": own[state["heard"]]}

    def adapt(self, client: Client, state: State, memory: Memory, theta: Vector, wish: Wish) -> Vector:
        """The model of a task that comes after the others, from its few rows and its relation to them.

        w and the relation in turn: λ₁a‖w − μ‖² + λ₂‖w‖² is what the relation asks of w, the others being as they are.
        It begins with that of their models which serves its rows best.
        """
        if wish.lr is not None:
            raise ConfigError("mocha adapts by steps in the dual, which have no step size; leave it out")
        split, losses = wish.split, self._losses(client)
        c, w = self._count(client, split), _fitting(client, state["others"], theta, split)
        alpha, v = client.duals(split), torch.zeros_like(w)
        for _ in range(wish.steps or _ALTERNATIONS):
            pull, towards = self._asked(state["others"], w)
            mbar = 1 / (pull + 2 * self.lambda2)
            start = mbar * (v + pull * towards)
            alpha, _ = client.ascend(alpha, start, mbar, c, accuracy=_SETTLED, loss=losses, split=split)
            v = client.combined(alpha, c, losses, split)
            w = mbar * (v + pull * towards)
        return w

    def _asked(self, others: Tensor, w: Vector) -> tuple[Tensor, Tensor]:
        """2λ₁a and μ of each client of a stack, or of the one that there is."""
        asked = [self._relation.newcomer(others.double(), own) for own in w.double().reshape(-1, w.shape[-1])]
        pull = w.new_tensor([2 * self.lambda1 * a for a, _ in asked]).reshape(*w.shape[:-1], 1)
        return pull, torch.stack([towards for _, towards in asked]).to(w.dtype).reshape(w.shape)


def _own_losses(text: str, problem: Problem) -> dict[int, Loss]:
    """ℓ_t of the clients that have one of their own, from "0:hinge,3:squared"."""
    found, made = dict[int, Loss](), dict[str, Loss]()
    for piece in filter(None, map(str.strip, text.split(","))):
        who, _, name = piece.partition(":")
        if not who.isdecimal() or not name:
            raise ConfigError(f"mocha: losses = {text!r} cannot be: {piece!r} is not CLIENT:LOSS, such as 0:hinge")
        if name not in made:
            made[name] = weighted(loss_for(problem.data.task, name), problem.loss.class_weights, problem.data)
        found[int(who)] = made[name]
    return found


def _fitting(client: Client, others: Tensor, theta: Vector, split: str) -> Vector:
    """Of the models of others, and θ, that with which each client has the lowest loss on these rows."""
    rows, best = client.rows(split), theta.expand(*client.n.shape[:-1], -1)
    with torch.no_grad():
        least = client.loss(best, rows)
        for other in others:
            loss = client.loss(other, rows)
            best = torch.where((loss < least).unsqueeze(-1), other, best)
            least = torch.minimum(loss, least)
    return best


def _left(after: Tensor, before: Tensor, rounding: Tensor) -> Tensor:
    """θ, the share of a subproblem that is left; none, where all that there was is rounding."""
    share = (after / before.clamp(min=torch.finfo(before.dtype).tiny)).clamp(0, 1)
    return torch.where(before > rounding, share, torch.zeros_like(share))


def _places(state: State, clients: Tensor) -> tuple[Tensor, Tensor]:
    """Which of these clients the server knows, as a column, and where they are in its state."""
    count = len(state["heard"])
    return (clients < count)[:, None], clients.clamp(max=count - 1)
