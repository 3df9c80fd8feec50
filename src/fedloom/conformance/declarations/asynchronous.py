"""What is known of the methods that take replies as they arrive: FedAsync, FedBuff and ASO-Fed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedloom.conformance.answers import Exactly, Invariant, Limit, OnAverage, Path, Same, accepted
from fedloom.conformance.claims import IDEAL, Claim, Declaration, Finding, Hardship, Subject
from fedloom.conformance.declarations.admm import alike
from fedloom.conformance.declarations.averaging import (
    WHO_ANSWERS,
    averaged_step,
    biased_limit,
    optimum,
    unequal_quadratics,
)
from fedloom.conformance.declarations.baselines import pooled_optimum, server_moved
from fedloom.conformance.declarations.corrections import envelope_optimum, proximal_steps
from fedloom.conformance.drive import Walk, apart, made_up
from fedloom.conformance.problems import Known, agreeing, classification, quadratics
from fedloom.federation.randomness import Draw
from fedloom.methods import Central, FedAvg, FedProx, FedSGD
from fedloom.methods.aso_fed import first_layer
from fedloom.methods.method import Context, ServerMethod


@dataclass(frozen=True, eq=False)
class Made:
    """Replies that were made up: whose they are, of how many rows, what each brings, and how old it is."""

    clients: Tensor
    sizes: Tensor
    values: Tensor
    staleness: Tensor


Rule = Callable[[Any, Tensor, Made, Context], Tensor]
"""From the method, the model and the replies to the model after the server's step."""


@dataclass(frozen=True, eq=False)
class Taken(Claim):
    """The server takes replies of any age, from clients of any size, as the paper says."""

    name: str
    column: str
    """The name of what the replies bring: a vector for each."""
    rule: Rule
    method: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-13
    by_rows: bool = False
    """Whether replies count for their clients' rows."""

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        problem, method, off = unequal_quadratics().problem, subject.tuned(self.method), 0.0
        assert isinstance(method, ServerMethod)
        with subject.walking(problem, method) as walk:
            for t, count in enumerate((1, 1, 2, 5, 4, 3)):
                random = Draw(2, t).generator("replies")
                ctx, state = walk.context(t), method.server_init(walk.context(0))
                clients = torch.from_numpy(random.permutation(problem.data.clients)[:count]).sort().values
                sizes = ctx.sizes[clients] + torch.from_numpy(random.integers(0, 30, count))
                columns = {self.column: torch.from_numpy(random.standard_normal((count, problem.model.n)))}
                staleness = torch.from_numpy(random.integers(0, 20, count))
                ctx = replace(ctx, sizes=ctx.sizes.index_copy(0, clients, sizes))
                weight = sizes.double()[:, None] if self.by_rows else None
                replies = made_up(method, clients.numpy(), columns, weight, staleness)
                found = method.model(method.server(state, replies, ctx))
                made = Made(clients, sizes, columns[self.column], staleness)
                off = max(off, apart(found, self.rule(method, method.model(state), made, ctx)))
        return Finding.within(off, self.tolerance, "greatest difference from the paper's step")


def mixed(worth: Callable[[int], float]) -> Rule:
    """x ← (1 − α s)x + α s·x_new, reply after reply."""

    def rule(method: Any, x: Tensor, replies: Made, ctx: Context) -> Tensor:
        for new, delta in zip(replies.values, replies.staleness.tolist(), strict=True):
            share = method.alpha * worth(delta)
            x = (1 - share) * x + share * new
        return x

    return rule


def root(delta: int) -> float:
    """1/√(Δ + 1)."""
    return float((delta + 1) ** -0.5)


def hinge(delta: int) -> float:
    """1 up to Δ = 4, then 1/(10(Δ − 4) + 1)."""
    return 1.0 if delta <= 4 else 1 / (10 * (delta - 4) + 1)


def buffered(worth: Callable[[int], float]) -> Rule:
    """x + η_g·(1/K) Σ s(τ_i)Δ_i."""

    def rule(method: Any, x: Tensor, replies: Made, ctx: Context) -> Tensor:
        for move, tau in zip(replies.values, replies.staleness.tolist(), strict=True):
            x = x + move * (method.server_lr * worth(tau) / len(replies.clients))
        return x

    return rule


def told(method: Any, w: Tensor, replies: Made, ctx: Context) -> Tensor:
    """w − Σ (n′_k/N′)(w_k − w_k⁺), N′ with the rows of which the replies tell."""
    now = {int(k): int(n) for k, n in enumerate(ctx.sizes)}
    now |= {int(k): int(n) for k, n in zip(replies.clients, replies.sizes, strict=True)}
    for move, rows in zip(replies.values, replies.sizes.tolist(), strict=True):
        w = w - move * (rows / sum(now.values()))
    return w


def mixed_round(known: Known, method: Any, x: Tensor) -> Tensor:
    """A round of FedAsync on quadratics: what each client found by proximal steps from x, mixed in one by one."""
    found = proximal_steps(known, FedProx(lr=method.lr, steps=method.steps, mu=method.rho), x)[1]
    for new in found:
        x = (1 - method.alpha) * x + method.alpha * new
    return x


def mixed_limit(known: Known, method: Any) -> Tensor:
    """Where such rounds end: the fixed point of an affine map."""
    zero = torch.zeros(known.problem.model.n, dtype=torch.float64)
    identity = torch.eye(len(zero), dtype=torch.float64)
    offset = mixed_round(known, method, zero)
    linear = torch.stack([mixed_round(known, method, axis) - offset for axis in identity], 1)
    limit: Tensor = torch.linalg.solve(identity - linear, offset)
    return limit


_DRIFT = {"lr": 0.8, "batch": None, "steps": 4}
_BATCHES: dict[str, Any] = {"lr": 0.1, "batch": 5, "epochs": 2}

FEDASYNC = Declaration(
    claims=(
        Taken("old replies count for less: polynomial", "x", mixed(root)),
        Taken("old replies count for less: hinge", "x", mixed(hinge), {"staleness": "hinge"}),
        Taken("… or for as much as new ones", "x", mixed(lambda delta: 1.0), {"staleness": "constant"}),
        Path(
            "a round of proximal steps follows its closed form, reply by reply",
            unequal_quadratics,
            mixed_round,
            {**_DRIFT, "rho": 0.5},
            stands=WHO_ANSWERS,
        ),
        Limit(
            "such rounds end at their fixed point, not at the optimum",
            quadratics,
            mixed_limit,
            {**_DRIFT, "rho": 0.5, "alpha": 0.2},
            rounds=80,
            tolerance=1e-11,
            hardships={"late": Exactly(120), "quantised": OnAverage(400)},
            not_at=pooled_optimum,
        ),
        Limit(
            "mini-batches find the optimum that all clients share",
            agreeing,
            pooled_optimum,
            {"lr": 0.2, "batch": 4, "epochs": 2},
            rounds=100,
            hardships={name: Exactly(200) for name in WHO_ANSWERS},
        ),
        Same(
            "a single client with α = 1 trains as if alone",
            lambda: alike(1).problem,
            {**_DRIFT, "alpha": 1.0, "rho": 0.0},
            Central(lr=0.8, batch=None, steps=4),
            tolerance=1e-13,
        ),
        Invariant("with α = 0 nothing moves", classification, server_moved, {**_BATCHES, "alpha": 0.0}, tolerance=0.0),
    ),
    batches=_BATCHES,
    one_by_one=True,
)

_WANDERS = {"sampled": OnAverage(400), "lost": OnAverage(400), "late": Exactly(60), "quantised": OnAverage(200)}

FEDBUFF = Declaration(
    claims=(
        Taken("old moves count for less", "dx", buffered(root), {"server_lr": 0.7}),
        Taken("… or for as much as new ones", "dx", buffered(lambda tau: 1.0), {"staleness": "none"}),
        Same(
            "fresh replies of all make it FedAvg with equal weights",
            classification,
            _BATCHES,
            FedAvg(**_BATCHES, weighting="uniform"),
        ),
        Same(
            "… and with weights by size FedAvg as it is",
            classification,
            {**_BATCHES, "weighting": "size"},
            FedAvg(**_BATCHES),
        ),
        Path("K local steps follow their closed form", unequal_quadratics, averaged_step, _DRIFT, stands=WHO_ANSWERS),
        Limit("… and end at it, not at the optimum", quadratics, biased_limit, _DRIFT, 60, 1e-11, _WANDERS, optimum),
        Limit(
            "mini-batches find the optimum that all clients share",
            agreeing,
            optimum,
            {"lr": 0.2, "batch": 4, "epochs": 2},
            rounds=120,
            hardships={name: Exactly(200) for name in (*WHO_ANSWERS, "quantised")},
        ),
    ),
    batches=_BATCHES,
)


@dataclass(frozen=True, eq=False)
class Algorithm2(Claim):
    """Every round is Algorithm 2, written out for quadratics; what a lost reply told does not count."""

    name: str
    method: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 25
    tolerance: float = 1e-11

    @property
    def survives(self) -> tuple[str, ...]:
        return WHO_ANSWERS

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        known = unequal_quadratics()
        method: Any = subject.tuned({"lr": 0.2, "lambda_": 0.5, "dynamic": False, **self.method})
        own: dict[int, tuple[Tensor, Tensor, Tensor]] = {}  # w_k, h_k and v_k of those who were heard
        how = {"select": hardship.selection(len(known.clients)), "fleet": hardship.fleet, "seed": 4}
        with subject.walking(known.problem, method, **how) as walk:
            w, off = walk.context(0).theta0, 0.0
            for t in range(self.rounds):
                heard = accepted(walk, t).tolist()
                walk.step()
                moves = torch.zeros_like(w)
                for k in heard:
                    before = own.get(k, (w, torch.zeros_like(w), torch.zeros_like(w)))
                    start = before[0] if method.keep else w
                    own[k] = self._visit(known, method, k, w, (start, *before[1:]))
                    moves = moves + known.weights()[k] * (start - own[k][0])  # (4)
                w = w - moves
                off = max(off, apart(walk.theta(), w), *(self._apart(walk, method, k, own[k]) for k in heard))
        return Finding.within(off, self.tolerance, f"greatest distance from Algorithm 2 in {self.rounds} rounds")

    def _visit(
        self, known: Known, method: Any, k: int, w: Tensor, at: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Lines 11 to 16, as often as the method has it."""
        w_k, h, v = at
        for _ in range(method.steps):
            g = known.hessians[k] @ (w_k - known.optima[k]) + method.lambda_ * (w_k - w)
            before, h = h, method.beta * h + (1 - method.beta) * v
            w_k = w_k - method.lr * (g - v + (before if method.order == "algorithm" else h))
            v = g
        return w_k, h, v

    def _apart(self, walk: Walk, method: Any, k: int, own: tuple[Tensor, Tensor, Tensor]) -> float:
        """How far what the client remembers is from what it should."""
        memory = walk.store.get(k) or {}
        keys = ("w", "h", "v") if method.keep else ("h", "v")
        return max(apart(memory[key], value) for key, value in zip(keys, own[-len(keys) :], strict=True))


@dataclass(frozen=True, eq=False)
class Bookkeeping(Claim):
    """The server moves by the sum of what the clients that it heard moved by, each for n_k/N."""

    name: str = "the server moves by what the clients remember to have moved"
    rounds: int = 20
    tolerance: float = 1e-12

    @property
    def survives(self) -> tuple[str, ...]:
        return (*WHO_ANSWERS, "quantised")

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        problem, off = classification(), 0.0
        clients = torch.arange(problem.data.clients)
        shares = problem.data.splits["train"].sizes.double()
        how = {"select": hardship.selection(len(clients)), "channel": hardship.channel, "fleet": hardship.fleet}
        with subject.walking(problem, subject.tuned(_KEPT), **how) as walk:
            for _ in range(self.rounds):
                x, before = walk.state["x"], self._models(walk, clients)
                walk.step()
                moved = shares / shares.sum() @ (self._models(walk, clients, before) - before)
                off = max(off, apart(x + moved, walk.state["x"]))
        return Finding.within(off, self.tolerance, f"greatest deviation in {self.rounds} rounds")

    def _models(self, walk: Walk, clients: Tensor, unheard: Tensor | None = None) -> Tensor:
        """w_k of each client; whoever was never heard is where the model is that it would be sent."""
        found = walk.theta().expand(len(clients), -1).clone() if unheard is None else unheard.clone()
        for k in walk.store.clients().tolist():
            found[k] = (walk.store.get(k) or {})["w"]
        return found


def envelopes(known: Known, method: Any) -> Tensor:
    """Where clients that keep their models end: w the mean of w_k = argmin f_k + (λ/2)‖· − w‖²."""
    return envelope_optimum(known, FedProx(mu=method.lambda_))


def mean_of_optima(known: Known, method: Any) -> Tensor:
    """Where they end without a pull towards each other."""
    return known.weights() @ known.optima


def copies_apart(walk: Walk) -> float:
    """How far the server's copy of the model is from the only client's own."""
    memory = walk.store.get(0)
    return 0.0 if memory is None else apart(memory["w"], walk.state["x"])


def norms_changed(walk: Walk) -> float:
    """How far the norms of each input's weights are from those that the clients' moves add up to."""
    where = first_layer(walk.problem.model.slices)
    assert where is not None
    layers = [walk.state[key][where.start : where.stop].view(where.shape) for key in ("handed_out", "x")]
    return apart(*(torch.linalg.vector_norm(layer, dim=0) for layer in layers))


def handed_out_otherwise(walk: Walk) -> float:
    """How far what is handed out is from what the clients' moves add up to."""
    return apart(walk.state["handed_out"], walk.state["x"])


_KEPT: dict[str, Any] = {"lr": 0.05, "lambda_": 0.5, "batch": 5, "epochs": 2}
_VISIT: dict[str, Any] = {"lr": 0.3, "steps": 1}
_SEVERAL: dict[str, Any] = {"steps": 3, "beta": 0.3}
_RESET: dict[str, Any] = {**_VISIT, "keep": False}
_RESET_WANDERS = {
    "sampled": OnAverage(500),
    "lost": OnAverage(500),
    "late": Exactly(300),
    "quantised": OnAverage(300),
}
_COMMON: tuple[Claim, ...] = (
    Taken("a move counts for the rows that its client has now among all rows now", "dw", told, by_rows=True),
    Algorithm2("every visit is Algorithm 2", {"steps": 1}),
    Algorithm2("… with several iterations, and the order of equations 8 and 9", {**_SEVERAL, "order": "equations"}),
    Algorithm2("… from the model that was just sent", {**_SEVERAL, "keep": False}),
    Limit(
        "clients that keep their models end at the optimum of the Moreau envelopes, not of the losses",
        unequal_quadratics,
        envelopes,
        {**_VISIT, "lambda_": 0.5},
        rounds=600,
        tolerance=1e-11,
        hardships={"quantised": Exactly(600)},
        not_at=pooled_optimum,
    ),
    Limit(
        "… and without λ each at its own", unequal_quadratics, mean_of_optima, {**_VISIT, "lambda_": 0.0}, 300, 1e-11
    ),
    Limit(
        "clients that begin anew find the optimum",
        unequal_quadratics,
        pooled_optimum,
        _RESET,
        rounds=200,
        tolerance=1e-11,
        hardships=_RESET_WANDERS,
    ),
    Limit(
        "… with much decay and the other order too",
        unequal_quadratics,
        pooled_optimum,
        {**_RESET, "beta": 0.8, "order": "equations"},
        rounds=400,
        tolerance=1e-11,
    ),
    Same(
        "without λ and decay it is gradient descent",
        lambda: unequal_quadratics().problem,
        {**_RESET, "lambda_": 0.0, "beta": 0.0, "order": "equations"},
        FedSGD(lr=0.3),
        tolerance=1e-13,
    ),
    Bookkeeping(),
    Invariant(
        "the server's copy of a single client's model is that model, bit by bit",
        lambda: alike(1).problem,
        copies_apart,
        {"lr": 0.2, "steps": 3},
        tolerance=0.0,
        stands=("lost", "quantised"),
    ),
)
_NORMS = Invariant("feature learning keeps the norm of every input", classification, norms_changed, _KEPT)
_BARE = Invariant("what is handed out is w itself", classification, handed_out_otherwise, _KEPT, tolerance=0.0)

ASO_FED = Declaration(claims=(*_COMMON, _NORMS), batches=_KEPT)
ASO_FED_D = Declaration(claims=(*_COMMON, _NORMS), batches=_KEPT)
ASO_FED_F = Declaration(claims=(*_COMMON, _BARE), batches=_KEPT)
