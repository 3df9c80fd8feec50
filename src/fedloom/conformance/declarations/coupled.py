"""What is known of methods that couple the clients' models: EASGD, pFedMe and L2GD solve the mixture problem."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor

from fedloom.conformance.answers import (
    Around,
    Exactly,
    Invariant,
    Limit,
    OfRun,
    OnAverage,
    accepted,
    greatest,
    in_round,
)
from fedloom.conformance.claims import IDEAL, Declaration, Finding, Hardship, Subject
from fedloom.conformance.declarations.baselines import own_optima
from fedloom.conformance.declarations.common import (
    EVERY_HARDSHIP,
    F64,
    FALLING,
    WHO_ANSWERS,
    applied,
    descent,
    ends,
    prox,
    reached,
    resting,
    slopes,
    unequal_problem,
    unequal_quadratics,
)
from fedloom.conformance.declarations.courses import ROUNDS, Also, Costs, Course, Defaults, Ledger, started
from fedloom.conformance.declarations.personal import lambda_of, mixture, served, solves_mixture
from fedloom.conformance.drive import Walk, apart, memory_of, recall
from fedloom.conformance.problems import Known, agreeing, logistic
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from fedloom.types import State


def taken(known: Known, batch: int, steps: int) -> int:
    """Rows in so many mini-batches of each client: those of a pass, and those of the next."""
    found = 0
    for rows in known.sizes.int().tolist():
        whole = [batch] * (rows // batch) + [rows % batch] * (rows % batch > 0)
        found += sum(whole[step % len(whole)] for step in range(steps))
    return found


def uniform_optima(known: Known, method: Any) -> Tensor:
    """The optimum that all clients share, for each of them."""
    return known.optimum.expand(len(known.clients), -1)


# EASGD


def spring(known: Known, method: Any) -> float:
    """a, of the problem's clients, whoever of them is heard."""
    return float(method.lr * method.rho) if method.rho is not None else method.beta / known.problem.data.clients


def meetings(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
    """Algorithm 1: x_i and the centre by the same a(x_i − x̃), the first of τ steps from the same x_i."""
    some, centre = known.only(torch.tensor(heard)), at.state["x"]
    x = torch.stack([at.memory.get(i, {"x": centre})["x"] for i in heard])
    elastic = spring(known, method) * (x - centre)
    after = descent(partial(slopes, some), x, method.lr, 1) - elastic
    after = descent(partial(slopes, some), after, method.lr, method.tau - 1)
    at.memory |= {i: {"x": row} for i, row in zip(heard, after, strict=True)}
    at.state["x"] = centre + elastic.sum(0)


def stiffness(method: Any) -> float:
    """ρ, given or a/η with a = β/N of five clients."""
    return float(method.rho)


def batches_of_easgd(known: Known, method: Any) -> int:
    """τ mini-batches."""
    return taken(known, method.batch, method.tau)


def mean_of_mixture(known: Known, method: Any) -> Tensor:
    """x̄ of the mixture problem's solution."""
    return mixture(known, stiffness(method)).mean(0)


@dataclass(frozen=True, eq=False)
class Balance(OfRun):
    """x̃ + Σ x_i moves by −η Σ ∇f_i(x_i) of those who are heard, and by nothing else, whatever a channel does.

    So client and centre move by one and the same difference. A client that comes for the first time begins at x̃.
    """

    name: str
    method: Mapping[str, Any]
    rounds: int = 20
    tolerance: float = 1e-11
    stands: tuple[str, ...] = ()
    seed: int = 4

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        with self.walking(subject, unequal_problem(), hardship) as walk:
            return greatest(self._gaps(unequal_quadratics(), walk), self.rounds, self.tolerance, "imbalance")

    def _gaps(self, known: Known, walk: Walk) -> Iterator[float]:
        for t in count():
            heard, centre = accepted(walk, t), walk.theta()
            before = torch.stack([memory_of(walk, i).get("x", centre) for i in heard.tolist()] or [centre[:0]])
            walk.step()
            if len(heard):
                some, after = known.only(heard), torch.stack([memory_of(walk, i)["x"] for i in heard.tolist()])
                moved = (after - before).sum(0) + walk.theta() - centre
                yield apart(moved, -in_round(walk.setting.method, t).lr * slopes(some, before).sum(0))
            else:
                yield apart(walk.theta(), centre)


_SPRINGS: dict[str, Any] = {"lr": 0.4, "tau": 1, "batch": None, "rho": 0.4}
_IN_MEAN = OnAverage(300, warm_up=60)

EASGD = Declaration(
    claims=(
        solves_mixture(
            stiffness,
            _SPRINGS,
            400,
            1e-10,
            hardships={"late": Exactly(600), **dict.fromkeys(("sampled", "quantised"), _IN_MEAN)},
            not_at=own_optima,
        ),
        ends("the centre is the mean of the clients' models", mean_of_mixture, _SPRINGS, 400, 1e-10, look=served),
        Course("every round is Algorithm 1", started(), meetings, {**_SPRINGS, "tau": 3}, stands=WHO_ANSWERS),
        Course("with a = β/N too", started(), meetings, {"lr": FALLING, "tau": 2, "batch": None, "beta": 0.7}),
        Course("and by default", started(), meetings, {"lr": "exponential:0.4:0.97", "batch": None}),
        Balance("client and centre move by one difference", _SPRINGS, stands=EVERY_HARDSHIP),
        Limit("mini-batches find a common optimum", agreeing, uniform_optima, {"lr": 0.2, "batch": 4}, 300, 1e-8),
        Costs("τ steps take τ mini-batches", batches_of_easgd, {"tau": 3, "batch": 5}),
        Also("draws", {"tau": 12}),
        Defaults({"lr": 0.1, "tau": 10, "batch": 32, "beta": 0.9, "rho": None, **ROUNDS, "evaluates": "personal"}),
    ),
    batches={"lr": 0.1, "batch": 5, "tau": 4},
)


# pFedMe


def local_rounds(known: Known, method: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """w_i and θ_i of each client after its local rounds from x, by steps or exactly."""
    w, identity = x.repeat(len(known.clients), 1), torch.eye(len(x), dtype=F64)
    theta, pull = w, method.lambda_ + method.mu
    for _ in range(method.local_rounds):
        theta = theta if method.warm_start else w
        if method.solver == "gradient":
            for _ in range(method.inner_steps):
                h = slopes(known, theta) + method.lambda_ * (theta - w) + method.mu * theta
                theta = theta - method.personal_lr * h
        else:
            b = applied(known.hessians, known.optima) + method.lambda_ * w
            theta = torch.linalg.solve(known.hessians + pull * identity, b)
        w = w - method.lr * method.lambda_ * (w - theta)
    return w, theta


def algorithm_of_pfedme(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
    """Local rounds, and w ← (1 − β)w + β mean w_i."""
    some, x = known.only(torch.tensor(heard)), at.state["x"]
    w, theta = local_rounds(some, method, x)
    at.memory |= {i: {"theta": row} for i, row in zip(heard, theta, strict=True)}
    at.state["x"] = (1 - method.beta) * x + method.beta * (some.weights(method.weighting) @ w)


def towards_own(known: Known, method: Any, x: Tensor) -> Tensor:
    """A round as a map of the server's model."""
    mean: Tensor = known.weights(method.weighting) @ local_rounds(known, method, x)[0]
    return x + float(method.beta) * (mean - x)


def moreau(known: Known, method: Any) -> Tensor:
    """argmin Σ M_i, M_i being the Moreau envelope of f_i: the mean of the mixture problem's solution."""
    return mixture(known, method.lambda_).mean(0)


def exact_fedprox(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
    """The mean of the clients' argmin f_i + (λ/2)‖· − x‖²."""
    some = known.only(torch.tensor(heard))
    at.state["x"] = some.weights("uniform") @ prox(some, method.lambda_, at.state["x"])


def logistic_problem() -> Problem:
    """Logistic regression without its answers."""
    return logistic().problem


def unsolved(before: State, walk: Walk, who: Tensor) -> float:
    """The slope of f_i(θ) + (λ/2)‖θ − w‖² at the θ_i that were found from w."""
    theta, client = recall(walk, who)["theta"], walk.problem.client(who.numpy())
    slope = client.grad(theta) + walk.setting.method.lambda_ * (theta - before["x"])  # type: ignore[attr-defined]
    return float(slope.abs().max())


def moved_from_start(before: State, walk: Walk, who: Tensor) -> float:
    """How far θ_i are from w, at which solvers begin."""
    return float((recall(walk, who)["theta"] - before["x"]).abs().max())


def batches_of_pfedme(known: Known, method: Any) -> int:
    """K gradients of each of the R mini-batches."""
    return int(method.inner_steps * taken(known, method.batch, method.local_rounds))


_ENVELOPE: dict[str, Any] = {"solver": "exact", "lambda_": 0.8, "lr": 0.6, "local_rounds": 1}
_NEWTON: dict[str, Any] = {**_ENVELOPE, "solver": "newton"}
_INNER: dict[str, Any] = {"lambda_": 2.0, "lr": 0.1, "local_rounds": 3, "inner_steps": 2, "batch": None}
_PFEDME: dict[str, Any] = {
    "lambda_": 15.0,
    "lr": 0.005,
    "local_rounds": 20,
    "inner_steps": 5,
    "personal_lr": 0.1,
    "batch": 20,
}
_PFEDME |= {"beta": 1.0, "mu": 0.0, "warm_start": True, "solver": "gradient", "tolerance": 1e-10}

PFEDME = Declaration(
    claims=(
        solves_mixture(
            lambda_of,
            _ENVELOPE,
            300,
            1e-11,
            hardships={"late": Exactly(500)},
            not_at=own_optima,
        ),
        ends("w minimises the mean of the Moreau envelopes", moreau, _ENVELOPE, 300, 1e-11, look=served),
        ends(
            "local rounds are biased",
            resting(towards_own),
            {**_ENVELOPE, "local_rounds": 10},
            200,
            1e-11,
            look=served,
            not_at=moreau,
        ),
        Course("exact solves are Algorithm 1", started(), algorithm_of_pfedme, _ENVELOPE, stands=WHO_ANSWERS),
        Course(
            "so are inner steps", started(), algorithm_of_pfedme, {**_INNER, "personal_lr": 0.2}, stands=WHO_ANSWERS
        ),
        Course(
            "so they are with everything else",
            started(),
            algorithm_of_pfedme,
            {**_INNER, "lr": "exponential:0.1:0.97", "beta": 1.5, "mu": 0.3, "warm_start": False, "weighting": "size"},
        ),
        Course(
            "a weight decay is solved for too",
            started(),
            algorithm_of_pfedme,
            {**_ENVELOPE, "mu": 0.3, "local_rounds": 2},
        ),
        Course(
            "with η = 1/λ and one local round it is FedProx with exact solves",
            started(),
            exact_fedprox,
            {**_ENVELOPE, "lr": 1 / _ENVELOPE["lambda_"]},
        ),
        Around("newton solves logistic regression", logistic_problem, unsolved, {**_NEWTON, "tolerance": 1e-12}, 5),
        Around("to a tolerance that is kept", logistic_problem, moved_from_start, {**_NEWTON, "tolerance": 1e3}, 5),
        Limit(
            "mini-batches find a common optimum",
            agreeing,
            uniform_optima,
            {**_INNER, "lr": 0.4, "batch": 4},
            200,
            1e-4,
            hardships=reached(200, "quantised"),
        ),
        Costs("K gradients of R mini-batches", batches_of_pfedme, {**_INNER, "batch": 5}),
        Also("draws", {"local_rounds": 12}),
        Defaults({**_PFEDME, **ROUNDS, "weighting": "uniform", "evaluates": "personal"}),
    ),
    batches={"lr": 0.05, "lambda_": 2.0, "batch": 5, "local_rounds": 4, "inner_steps": 2},
    equivalent={
        "memory theta: settled though lost": "a round begins at w: what θ was before is used, and never computed with",
    },
)


# L2GD


def coin(draw: Draw, p: float) -> tuple[int, int]:
    """How long the coin of a round shows p, and then 1 − p, tossed with one number for each side."""
    heads, tails = 1 - draw.uniform("coin", 0, 2)
    towards = next(j for j in count(1) if heads > p**j)
    return towards, next(k for k in count(1) if tails > (1 - p) ** k)


def curvatures(known: Known, t: int) -> Tensor:
    """Each client's curvature by twenty steps of power iteration from a vector of round t, from below."""
    v = torch.from_numpy(Draw(_SEED, t).normal("curvature", 0, known.optima.shape[1])).expand_as(known.optima)
    for _ in range(20):
        v = applied(known.hessians, v / torch.linalg.vector_norm(v, dim=1, keepdim=True))
    found: Tensor = torch.linalg.vector_norm(v, dim=1)
    return found


def loopless(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
    """Steps towards the mean that came down, local steps, and the mean of all who were ever heard."""
    some, mean = known.only(torch.tensor(heard)), at.state["x"]
    x = torch.stack([at.memory.get(i, {"x": mean})["x"] for i in heard])
    L = float(at.state.get("L", torch.zeros(())))
    if not (measuring := method.p is None or method.lr is None) or L > 0:
        p = method.lambda_ / (L + method.lambda_) if method.p is None else method.p
        alpha = 1 / (2 * max(L / (1 - p), method.lambda_ / p)) if method.lr is None else method.lr
        towards, local = coin(Draw(_SEED, at.turns), p)
        for _ in range(towards):
            x = x - alpha * method.lambda_ / p * (x - mean)
        x = descent(partial(slopes, some), x, alpha / (1 - p), local)
        at.state["iterations"] = at.state["iterations"] + towards + local
    if measuring:
        found = curvatures(some, at.turns)
        first = [i for i, client in enumerate(heard) if client not in at.memory]
        at.state["L"] = torch.stack([at.state["L"], *found[first]]).max()
    at.memory |= {i: {"x": row, "told": row} for i, row in zip(heard, x, strict=True)}
    at.state["x"] = torch.stack([own["x"] for own in at.memory.values()]).mean(0)


def tossing(known: Known, method: Any, x: Tensor) -> Ledger:
    """The first model, no iteration yet, and nothing known of the curvature, if that is asked for."""
    state = {"x": x, "iterations": torch.zeros((), dtype=torch.int64)}
    return Ledger(state | ({} if method.p and method.lr else {"L": torch.zeros((), dtype=F64)}))


def batches_of_l2gd(known: Known, method: Any) -> int:
    """A mini-batch for each local step of the first round."""
    return taken(known, method.batch, coin(Draw(0), method.p)[1])


def before_meeting(known: Known, method: Any) -> Tensor:
    """The mean of the models that go up: a local step past the mixture's solution, where ∇f_i = −λ(x_i − x̄)."""
    x = mixture(known, method.lambda_)
    return x + float(method.lr / (1 - method.p) * method.lambda_) * (x - x.mean(0))


def untold(walk: Walk) -> float:
    """How far the server's model is from the mean of what its clients think that it has of them."""
    own = [memory_of(walk, i)["told"] for i in walk.store.clients().tolist()]
    return apart(torch.stack(own).mean(0), walk.theta()) if own else 0.0


def misreported(walk: Walk) -> float:
    """How far the figures in the history are from the iterations of the coin, the curvature, and p* of it."""
    L, strength = float(curvatures(unequal_quadratics(), 0).max()), lambda_of(walk.setting.method)
    p = strength / (L + strength)
    iterations = sum(sum(coin(Draw(_SEED, t), p)) for t in range(1, walk.clocks.round))
    due, told = {"iterations": iterations, "L": L, "p": p}, walk.evaluator.measures()
    return max(abs(told[name] - value) for name, value in due.items()) if told.keys() == due.keys() else float("inf")


_SEED = OfRun.seed
_TOSS: dict[str, Any] = {"lambda_": 0.5, "p": 0.4, "lr": 0.3}
_WANDERS = OnAverage(360, warm_up=40)

L2GD = Declaration(
    claims=(
        Limit(
            "on average the clients' models are those of the mixture problem, a local step further",
            unequal_quadratics,
            before_meeting,
            {**_TOSS, "lr": 0.1},
            ideally=_WANDERS,
            hardships={"quantised": _WANDERS},
        ),
        Course("every round is the iterations of its coin", tossing, loopless, _TOSS, stands=WHO_ANSWERS),
        Course("it is so with p* and α by the curvature", tossing, loopless, {"lambda_": 0.5}, stands=WHO_ANSWERS),
        Course("with p* alone", tossing, loopless, {"lambda_": 0.5, "lr": 0.2}),
        Course("and with α by the curvature alone", tossing, loopless, {"lambda_": 0.5, "p": 0.3}),
        ends(
            "without a pull every client is alone",
            own_optima,
            {**_TOSS, "lambda_": 0.0},
            100,
            hardships=reached(120, "quantised"),
        ),
        Limit("mini-batches find a common optimum", agreeing, uniform_optima, {**_TOSS, "batch": 4}, 300, 1e-8),
        Invariant(
            "the server has the mean of what clients told", unequal_problem, untold, _TOSS, 20, 1e-11, EVERY_HARDSHIP
        ),
        Invariant("the history tells iterations, L and p*", unequal_problem, misreported, {"lambda_": 0.5}, 5, 1e-9),
        Costs("local steps take a mini-batch each", batches_of_l2gd, {**_TOSS, "p": 0.2, "batch": 5}),
        Also("draws", {"p": 0.03, "lr": 0.01}),
        Also("order", {"p": None, "lr": None}),
        Also("stack-call", {"p": None, "lr": None}),
        Defaults({"lambda_": 0.1, "p": None, "lr": None, "batch": None, **ROUNDS, "evaluates": "personal"}),
    ),
    batches={"lambda_": 0.5, "p": 0.3, "lr": 0.1, "batch": 5},
    equivalent={
        "memory L: settled though lost": "who is asked again would measure the same curvature again, but for rounding",
    },
)
