"""What is known of the methods that take replies as they arrive: FedAsync, FedBuff and ASO-Fed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedloom.conformance.answers import Invariant, Limit, OnAverage, Same, in_round
from fedloom.conformance.claims import IDEAL, Claim, Declaration, Finding, Hardship, Subject
from fedloom.conformance.declarations.admm import alike
from fedloom.conformance.declarations.common import (
    BATCHES,
    DRIFT,
    EVERY,
    EVERY_HARDSHIP,
    FALLING,
    SHORT,
    WANDERS,
    WHO_ANSWERS,
    averaged_step,
    biased_limit,
    ends,
    follows,
    local_ends,
    optimum,
    pooled_optimum,
    resting,
    server_moved,
    unequal_problem,
)
from fedloom.conformance.declarations.corrections import envelope_optimum
from fedloom.conformance.declarations.courses import TRAINING, Course, Defaults, Ledger, Passes, one_by_one, started
from fedloom.conformance.drive import Walk, apart, made_up, memory_of
from fedloom.conformance.problems import Known, classification, quadratics
from fedloom.engine.fleet import Distribution, Fleet
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from fedloom.methods import FedAvg, FedProx, FedSGD
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
Worth = Callable[[int], float]
"""From a staleness to what is left of a reply of that age."""


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
        problem, theory, off = unequal_problem(), subject.tuned(self.method), 0.0
        with subject.walking(problem, theory) as walk:
            method = walk.setting.method
            assert isinstance(method, ServerMethod)
            by_rows = self.by_rows or getattr(theory, "weighting", "uniform") == "size"
            for t, count in enumerate((1, 1, 2, 5, 4, 3)):
                random = Draw(2, t).generator("replies")
                ctx, state = walk.context(t), method.server_init(walk.context(0))
                clients = torch.from_numpy(random.permutation(problem.data.clients)[:count]).sort().values
                sizes = ctx.sizes[clients] + torch.from_numpy(random.integers(0, 30, count))
                columns = {self.column: torch.from_numpy(random.standard_normal((count, problem.model.n)))}
                made = Made(clients, sizes, columns[self.column], torch.from_numpy(random.integers(0, 20, count)))
                ctx = replace(ctx, sizes=ctx.sizes.index_copy(0, clients, sizes))
                weight = sizes.double()[:, None] if by_rows else None
                replies = made_up(method, clients.numpy(), columns, weight, made.staleness)
                found = method.model(method.server(state, replies, ctx))
                off = max(off, apart(found, self.rule(in_round(theory, t), method.model(state), made, ctx)))
        return Finding.within(off, self.tolerance, "greatest difference from the paper's step")


def mixed(worth: Worth) -> Rule:
    """x ← (1 − α s)x + α s·x_new, reply after reply."""

    def rule(method: Any, x: Tensor, replies: Made, ctx: Context) -> Tensor:
        for new, delta in zip(replies.values, replies.staleness.tolist(), strict=True):
            share = method.alpha * worth(delta)
            x = (1 - share) * x + share * new
        return x

    return rule


def polynomial(a: float) -> Worth:
    """(Δ + 1)^−a: 1 with a = 0, however old."""
    return lambda delta: float((delta + 1) ** -a)


def hinge(a: float, b: int) -> Worth:
    """1 up to Δ = b, then 1/(a(Δ − b) + 1)."""
    return lambda delta: 1.0 if delta <= b else 1 / (a * (delta - b) + 1)


def buffered(worth: Worth) -> Rule:
    """x + η_g·(1/K) Σ s(τ_i)Δ_i, or with n_i/Σn in the place of 1/K."""

    def rule(method: Any, x: Tensor, replies: Made, ctx: Context) -> Tensor:
        rows = replies.sizes.tolist() if method.weighting == "size" else [1] * len(replies.clients)
        for move, tau, n in zip(replies.values, replies.staleness.tolist(), rows, strict=True):
            x = x + move * (method.server_lr * worth(tau) * n / sum(rows))
        return x

    return rule


def told(method: Any, w: Tensor, replies: Made, ctx: Context) -> Tensor:
    """w − Σ (n′_k/N′)(w_k − w_k⁺), N′ with the rows of which the replies tell."""
    for move, rows in zip(replies.values, replies.sizes.tolist(), strict=True):
        w = w - move * (rows / int(ctx.sizes.sum()))
    return w


def mixed_round(known: Known, method: Any, x: Tensor) -> Tensor:
    """A round of FedAsync on quadratics: what each client found by proximal steps from x, mixed in one by one."""
    for new in local_ends(known, x, method.lr, method.steps, method.rho):
        x = (1 - method.alpha) * x + method.alpha * new
    return x


_FALLING: dict[str, Any] = {**DRIFT, "lr": FALLING}
_ASYNCHRONOUS = {"default_schedule": "async", "default_rounds": 50, "default_dtype": "float32", "evaluates": "global"}
_OF_ASYNC = {"default_buffer": 1, "alpha": 0.6, "staleness": "polynomial", "a": None, "b": 4, "rho": 0.005}
_OF_BUFF = {"default_buffer": 10, "server_lr": 1.0, "staleness": "root", "weighting": "uniform"}

FEDASYNC = Declaration(
    claims=(
        Taken("old replies count for less: polynomial", "x", mixed(polynomial(0.5))),
        Taken("… as fast as a says", "x", mixed(polynomial(0.8)), {"a": 0.8, "alpha": 0.7}),
        Taken("old replies count for less: hinge", "x", mixed(hinge(10, 4)), {"staleness": "hinge"}),
        Taken("… as fast as a says from b on", "x", mixed(hinge(0.3, 7)), {"staleness": "hinge", "a": 0.3, "b": 7}),
        Taken("… or for as much as new ones", "x", mixed(polynomial(0)), {"staleness": "constant"}),
        follows(
            "a round of proximal steps follows its closed form, reply by reply",
            mixed_round,
            {**_FALLING, "rho": 0.5},
            stands=WHO_ANSWERS,
        ),
        Limit(
            "such rounds end at their fixed point, not at the optimum",
            quadratics,
            resting(mixed_round),
            {**DRIFT, "rho": 0.5, "alpha": 0.2},
            rounds=80,
            tolerance=1e-11,
            hardships={"quantised": OnAverage(240)},
            not_at=pooled_optimum,
        ),
        Same(
            "a single client with α = 1 trains as if alone",
            lambda: one_by_one().problem,
            {**EVERY, "alpha": 1.0, "rho": 0.0},
            FedAvg(**EVERY),
            SHORT,
            tolerance=1e-13,
        ),
        Invariant("with α = 0 nothing moves", classification, server_moved, {**BATCHES, "alpha": 0.0}, 3, 0.0),
        Defaults({**TRAINING, **_ASYNCHRONOUS, **_OF_ASYNC}),
    ),
    batches=BATCHES,
    one_by_one=True,
)

FEDBUFF = Declaration(
    claims=(
        Taken("old moves count for less", "dx", buffered(polynomial(0.5)), {"server_lr": "exponential:0.7:0.9"}),
        Taken("… also with weights by size", "dx", buffered(polynomial(0.5)), {"weighting": "size"}),
        Taken("… or for as much as new ones", "dx", buffered(polynomial(0)), {"staleness": "none"}),
        Same(
            "fresh replies of all make it FedAvg with equal weights",
            classification,
            EVERY,
            FedAvg(**EVERY, weighting="uniform"),
            SHORT,
        ),
        Same(
            "… and with weights by size FedAvg as it is",
            classification,
            {**BATCHES, "weighting": "size"},
            FedAvg(**BATCHES),
            SHORT,
        ),
        follows("K local steps follow their closed form", averaged_step, _FALLING, stands=WHO_ANSWERS),
        Limit("… and end at it, not at the optimum", quadratics, biased_limit, DRIFT, 60, 1e-11, WANDERS, optimum),
        Defaults({**TRAINING, **_ASYNCHRONOUS, **_OF_BUFF}),
    ),
    batches=BATCHES,
)


_DELAYS = Fleet(delay_up=Distribution("uniform", 1.0, 60.0), redraw=True)
"""Some messages take less than e seconds, most take more."""
_SEED = 4


def algorithm2(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
    """Every client that is heard visits: lines 10 to 16, and (4) at the server."""
    w, zero = at.state["handed_out"], torch.zeros_like(at.state["handed_out"])
    after = w.clone()
    for k in heard:
        own = at.memory.get(k, {"w": w, "h": zero, "v": zero})
        w_k, h, v = own["w"] if method.keep else w, own["h"], own["v"]
        start, pace = w_k, method.lr * (multiplier(at, k) if method.dynamic else 1.0)
        for _ in range(method.epochs if method.steps is None else method.steps):
            g = known.hessians[k] @ (w_k - known.optima[k]) + method.lambda_ * (w_k - w)
            before, h = h, method.beta * h + (1 - method.beta) * v
            w_k = w_k - pace * (g - v + (before if method.order == "algorithm" else h))
            v = g
        at.memory[k] = {"h": h, "v": v, **({"w": w_k} if method.keep else {})}
        after = after - known.weights()[k] * (start - w_k)  # (4)
    at.state["handed_out"] = after


def multiplier(at: Ledger, client: int) -> float:
    """r_k = max(1, ln d̄_k), with the mean of the delays of all visits so far."""
    seconds = float(_DELAYS.travel(np.array([client]), _SEED, 0, 0, at.turns)[0])
    delays = at.kept[f"delays of {client}"] = [*at.kept.get(f"delays of {client}", []), seconds]
    return max(1.0, math.log(sum(delays) / len(delays)))


@dataclass(frozen=True, eq=False)
class Bookkeeping(Claim):
    """The server moves by what the clients that it heard moved by, each for n_k/N, and hands out features."""

    name: str = "the server moves by what the clients remember to have moved"
    method: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 8
    tolerance: float = 1e-12
    stands: tuple[str, ...] = ()

    @property
    def survives(self) -> tuple[str, ...]:
        return self.stands

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        problem, off, method = classification(), 0.0, subject.tuned({**_KEPT, **self.method})
        form = method.features  # type: ignore[attr-defined]
        clients = torch.arange(problem.data.clients)
        shares = problem.data.splits["train"].sizes.double()
        how = {"select": hardship.selection(len(clients)), "channel": hardship.channel, "fleet": hardship.fleet}
        with subject.walking(problem, method, **how) as walk:
            for _ in range(self.rounds):
                x, before = walk.state["x"], self._models(walk, clients)
                walk.step()
                x = x + shares / shares.sum() @ (self._models(walk, clients, before) - before)
                shown = learnt(problem, x, form)
                off = max(off, apart(walk.state["handed_out"], shown), apart(walk.theta(), shown))
                off = max(off, apart(walk.state["x"], x if form == "norm" else shown), misreported(walk, shown))
        return Finding.within(off, self.tolerance, f"greatest deviation in {self.rounds} rounds")

    def _models(self, walk: Walk, clients: Tensor, unheard: Tensor | None = None) -> Tensor:
        """w_k of each client; whoever was never heard is where the model is that it would be sent."""
        found = walk.theta().expand(len(clients), -1).clone() if unheard is None else unheard.clone()
        for k in walk.store.clients().tolist():
            found[k] = memory_of(walk, k)["w"]
        return found


def first_weights(problem: Problem, x: Tensor) -> Tensor:
    """The weights of the first layer within a model, a column for each input."""
    where = first_layer(problem.model.slices)
    assert where is not None
    return x[where.start : where.stop].view(where.shape)


def learnt(problem: Problem, x: Tensor, form: str) -> Tensor:
    """(5) and (6), input by input: the weights of its way to each output by the soft-max of their sizes."""
    x = x.clone()
    for w in first_weights(problem, x).unbind(1) if form != "none" else ():
        alpha = w.abs().exp() / w.abs().exp().sum()
        scale = 1.0 if form == "literal" else (w @ w).sqrt() / ((alpha * w) @ (alpha * w)).sqrt()
        w *= scale * alpha
    return x


def misreported(walk: Walk, shown: Tensor) -> float:
    """How far the history is from telling the mean size of each input's weights."""
    told, sizes = cast(Any, walk).evaluator.measures(), first_weights(walk.problem, shown).abs().mean(0)
    if told.keys() != {f"feature/{i}" for i in range(len(sizes))}:
        return math.inf
    return max(abs(float(told[f"feature/{i}"]) - float(size)) for i, size in enumerate(sizes))


def envelopes(known: Known, method: Any) -> Tensor:
    """Where clients that keep their models end: w the mean of w_k = argmin f_k + (λ/2)‖· − w‖²."""
    return envelope_optimum(known, FedProx(mu=method.lambda_))


def copies_apart(walk: Walk) -> float:
    """How far the server's copy of the model is from the only client's own."""
    memory = memory_of(walk, 0)
    return apart(memory["w"], walk.state["x"]) if memory else 0.0


def norms_changed(walk: Walk) -> float:
    """How far the norms of each input's weights are from those that the clients' moves add up to."""
    layers = (first_weights(walk.problem, walk.state[key]) for key in ("handed_out", "x"))
    return apart(*(torch.linalg.vector_norm(layer, dim=0) for layer in layers))


def handed_out_otherwise(walk: Walk) -> float:
    """How far what is handed out is from what the clients' moves add up to."""
    return apart(walk.state["handed_out"], walk.state["x"])


_KEPT: dict[str, Any] = {"lr": 0.05, "lambda_": 0.5, "batch": 5, "epochs": 2}
_SEVERAL: dict[str, Any] = {"steps": 3, "beta": 0.3}
_RESET: dict[str, Any] = {"lr": 0.3, "steps": 1, "keep": False}


def _visits(name: str, own: Mapping[str, Any], **how: Any) -> Course:
    given = {"lr": 0.2, "lambda_": 0.5, "dynamic": False, **own}
    return Course(name, started(model="handed_out"), algorithm2, given, seed=_SEED, **how)


_COMMON: tuple[Claim, ...] = (
    Taken("a move counts for the rows that its client has now among all rows now", "dw", told, by_rows=True),
    _visits("every visit is Algorithm 2", {"steps": 1, "lr": "exponential:0.2:0.98"}, stands=WHO_ANSWERS),
    _visits("… with several iterations, and the order of equations 8 and 9", {**_SEVERAL, "order": "equations"}),
    _visits("… from the model that was just sent", {"epochs": 2, "beta": 0.3, "keep": False}, fleet=_DELAYS),
    _visits(
        "… with longer steps for clients that are slow",
        {"steps": 2, "dynamic": True, "lr": 0.05},
        fleet=replace(_DELAYS, loss=0.3),
    ),
    ends(
        "clients that keep their models end at the optimum of the Moreau envelopes, not of the losses",
        envelopes,
        {"lr": 0.2, "steps": 6, "lambda_": 0.5},
        100,
        not_at=pooled_optimum,
    ),
    ends(
        "… and without λ each at its own",
        lambda known, method: known.weights() @ known.optima,
        {"lr": 0.3, "steps": 4, "lambda_": 0.0},
        100,
    ),
    ends(
        "clients that begin anew find the optimum", pooled_optimum, _RESET, 200, hardships={"quantised": OnAverage(210)}
    ),
    Same(
        "without λ and decay it is gradient descent",
        unequal_problem,
        {**_RESET, "lambda_": 0.0, "beta": 0.0, "order": "equations"},
        FedSGD(lr=0.3),
        tolerance=1e-13,
    ),
    Bookkeeping(stands=EVERY_HARDSHIP),
    Bookkeeping("… with features weighted before they are handed out", {"features": "norm"}),
    Bookkeeping("… with features weighted for good", {"features": "repeated"}),
    Bookkeeping("… as it is printed", {"features": "literal"}, 3),
    Bookkeeping("… without features", {"features": "none"}, 3),
    Passes({"lambda_": 0.0, "beta": 0.0, "order": "equations", "dynamic": False}),
    Invariant(
        "the server's copy of a single client's model is that model, bit by bit",
        lambda: alike(1).problem,
        copies_apart,
        {"lr": 0.2, "steps": 3},
        tolerance=0.0,
        stands=("lost", "quantised"),
    ),
)
_NORMS = Invariant("feature learning keeps the norm of every input", classification, norms_changed, _KEPT, 5)
_BARE = Invariant("what is handed out is w itself", classification, handed_out_otherwise, _KEPT, 5, tolerance=0.0)
_GIVEN: dict[str, Any] = {"lr": 0.03, "batch": None, "epochs": 5, "steps": None, "lambda_": 1.0, "beta": 0.001}
_GIVEN |= {"order": "algorithm", "dynamic": True, "features": "norm", "keep": True}
_GIVEN |= {**_ASYNCHRONOUS, "default_buffer": 1}

ASO_FED = Declaration(claims=(*_COMMON, _NORMS, Defaults(_GIVEN)), batches=_KEPT)
ASO_FED_D = Declaration(claims=(*_COMMON, _NORMS, Defaults({**_GIVEN, "dynamic": False})), batches=_KEPT)
ASO_FED_F = Declaration(claims=(*_COMMON, _BARE, Defaults({**_GIVEN, "features": "none"})), batches=_KEPT)
