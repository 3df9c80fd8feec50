"""What is known of FedU: every round by hand, its biased limit, and the mixture problem on the complete graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedloom.conformance.answers import Invariant, Same
from fedloom.conformance.claims import Declaration
from fedloom.conformance.declarations.common import (
    BATCHES,
    DRIFT,
    F64,
    FALLING,
    WHO_ANSWERS,
    descent,
    ends,
    reached,
    slopes,
    unequal_problem,
)
from fedloom.conformance.declarations.courses import ROUNDS, TRAINING, Also, Course, Defaults, Ledger, Passes
from fedloom.conformance.declarations.personal import HELD_ALIKE, mixed, solves_mixture
from fedloom.conformance.drive import Walk, apart, recall
from fedloom.conformance.problems import Known
from fedloom.methods.local import Local


def laplacian(a: Tensor) -> Tensor:
    """Of a matrix of weights."""
    return torch.diag(a.sum(1)) - a


def joined(method: Any, clients: int, count: int, near: Mapping[int, list[int]]) -> Tensor:
    """The matrix of all a_kl, where so many of the clients count."""
    if method.graph == "complete":
        weight = method.edge_weight if method.edge_weight is not None else 1 / count
        return weight * (1 - torch.eye(clients, dtype=F64))
    a = torch.zeros(clients, clients, dtype=F64)
    if method.graph == "nearest":
        weight = method.edge_weight if method.edge_weight is not None else 1 / (method.neighbours + 1)
        for k, others in near.items():
            a[k, others] = a[others, k] = weight
        return a
    for edge in method.graph.split(","):
        pair, _, weight = edge.partition(":")
        k, j = map(int, pair.split("-"))
        a[k, j] = a[j, k] = float(weight or 1)
    return a


def alone(known: Known, method: Any, x: Tensor) -> Ledger:
    """Before the first round the server knows of nobody."""
    none = torch.zeros(len(known.clients), len(x), dtype=x.dtype)
    return Ledger({"x": x, "u": none}, kept={"turns": none[:, 0].long(), "way": none[:, :1], "near": {}})


def algorithm1(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
    """Each moves by −μRη Σ a_kl (u_k − u_l), trains for R steps, and the server knows its new u_k.

    With ``along`` the pull is a term of every local step.
    """
    kept, u = at.kept, at.state["u"]
    met = kept["turns"] > 0
    a = joined(method, len(met), max(int(met.sum()), 1), kept["near"])
    pull = method.eta * laplacian(a * (met[:, None] & met)) @ u
    start = torch.where(met[:, None], u - (kept["way"] if method.coupling == "after" else 0) * pull, at.state["x"])
    inside = pull if method.coupling == "along" else torch.zeros_like(pull)
    new = descent(lambda y: slopes(known, y) + inside, start, method.lr, method.steps)
    now = torch.zeros_like(met)
    now[heard] = True
    at.state["u"] = u = torch.where(now[:, None], new, u)
    kept["way"] = torch.where(now[:, None], torch.full_like(kept["way"], method.lr * method.steps), kept["way"])
    kept["turns"] = turns = kept["turns"] + now.long()
    at.state["x"] = u[turns > 0].mean(0)
    if method.graph == "nearest":
        befriend(method, at, torch.nonzero(turns >= method.warm_up).flatten().tolist())
    at.memory = {k: {"u": u[k], "way": kept["way"][k]} for k in range(len(met)) if turns[k] > 0}


def befriend(method: Any, at: Ledger, ready: list[int]) -> None:
    """Whoever has learnt long enough gets the nearest of those, once there are enough of them."""
    near, u = at.kept["near"], at.state["u"]
    if len(ready) > method.neighbours:
        for k in ready:
            others = sorted((float((u[k] - u[j]).norm()), j) for j in ready if j != k)
            near.setdefault(k, [j for _, j in others[: method.neighbours]])
    rows = [near.get(k, [-1] * method.neighbours) for k in range(len(u))]
    at.state["near"] = torch.tensor(rows)


def biased(known: Known, method: Any) -> Tensor:
    """w = (I − μRηL) u and u_k = p_k + (I − μA_k)^R (w_k − p_k), p_k being the clients' own optima."""
    clients, n = known.optima.shape
    left = torch.linalg.matrix_power(torch.eye(n, dtype=F64) - method.lr * known.hessians, method.steps)
    lap = laplacian(joined(method, clients, clients, {}))
    moved = torch.eye(clients * n, dtype=F64) - method.lr * method.steps * method.eta * torch.kron(lap, torch.eye(n))
    trained = torch.einsum("ij,iab->iajb", torch.eye(clients, dtype=F64), left).reshape(clients * n, clients * n)
    whole = torch.eye(clients * n, dtype=F64)
    u: Tensor = torch.linalg.solve(whole - trained @ moved, (whole - trained) @ known.optima.flatten())
    found: Tensor = (moved @ u).view(clients, n)
    return found


def off_mean(walk: Walk) -> float:
    """How far the common model is from the mean of those that clients found last."""
    clients = walk.store.clients()
    return apart(walk.theta(), recall(walk, clients)["u"].mean(0)) if len(clients) else 0.0


def _course(name: str, own: Mapping[str, Any], **how: Any) -> Course:
    return Course(name, alone, algorithm1, {**_STEPS, **own}, **{"rounds": 12, **how})


_STEPS: dict[str, Any] = {**DRIFT, "lr": 0.2, "steps": 3, "eta": 0.7}
_ALONG = {"coupling": "along"}
_NEAREST = {"graph": "nearest", "neighbours": 2, "warm_up": 3}
_CHAIN = "0-1:0.5,1-2:2,2-3,3-4:0.25"

FEDU = Declaration(
    claims=(
        solves_mixture(
            lambda method: method.eta,
            {**_STEPS, **_ALONG},
            150,
            1e-10,
            "on the complete graph, pulled along, the clients' models solve the mixture problem",
            hardships=reached(300, "quantised"),
        ),
        ends(
            "pulled after training they end where the closed form says, near that",
            biased,
            _STEPS,
            150,
            1e-10,
            hardships=reached(300),
            not_at=mixed(lambda method: method.eta),
        ),
        ends("… on a chain of clients too", biased, {**_STEPS, "graph": _CHAIN}, 150, 1e-10),
        _course("every round is Algorithm 1", {"lr": "exponential:0.2:0.9"}, stands=WHO_ANSWERS),
        _course("… with weights of its own", {"edge_weight": 0.4}),
        _course("… pulled along", _ALONG, stands=WHO_ANSWERS),
        _course("… on a graph that is given", {"graph": _CHAIN}, stands=WHO_ANSWERS),
        _course("… on that of the nearest", _NEAREST, stands=("sampled", "lost")),
        _course("… of three, with weights of its own", {**_NEAREST, "neighbours": 3, "edge_weight": 0.1}),
        Same(
            "without edges every client is alone",
            unequal_problem,
            {**DRIFT, "lr": FALLING, "edge_weight": 0.0},
            Local(**{**DRIFT, "lr": FALLING}),
            tolerance=1e-12,
        ),
        Same("with η = 0 too", unequal_problem, {**BATCHES, "eta": 0.0}, Local(**BATCHES), tolerance=1e-12),
        Invariant("the common model is the mean of all", unequal_problem, off_mean, _STEPS, 5, 1e-12, ("lost",)),
        Also("stack-call", _ALONG),
        Also("stack-call", {**_NEAREST, "warm_up": 1}),
        Also("resume", {**_NEAREST, "warm_up": 2}),
        Also("joining", _NEAREST),
        Also("asynchronous", {"graph": "0-1,1-2,2-3,3-4,4-5,5-6", **_ALONG}),
        Passes(),
        Defaults(
            {
                **{key: value for key, value in TRAINING.items() if key != "optimiser"},
                **ROUNDS,
                "evaluates": "personal",
                "eta": 0.1,
                "graph": "complete",
                "edge_weight": None,
                "neighbours": 5,
                "warm_up": 10,
                "coupling": "after",
            }
        ),
    ),
    batches=BATCHES,
    equivalent={"memory held: the neighbour's": HELD_ALIKE},
)
