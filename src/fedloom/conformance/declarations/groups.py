"""What is known of clustered learning: planted groups, every round by hand, and k-means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.conformance.answers import Exactly, Invariant, Limit
from fedloom.conformance.claims import Declaration
from fedloom.conformance.declarations.admm import alike
from fedloom.conformance.declarations.common import (
    BATCHES,
    EVERY_HARDSHIP,
    F64,
    WHO_ANSWERS,
    local_momentum,
    local_steps,
    unequal_problem,
)
from fedloom.conformance.declarations.courses import ROUNDS, TRAINING, Also, Course, Defaults, Ledger, Passes
from fedloom.conformance.drive import Walk, apart, product
from fedloom.conformance.problems import Known, linear, normal_equations, rows_in_order
from fedloom.federation.data import FederatedData
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw


@cache
def planted(groups: int = 2, apart: float = 4.0, noise: float = 0.0) -> Known:
    """Least squares of nine clients of unequal sizes, client i of the group i mod k; a group has one optimum.

    The optima are ``apart`` from each other, along axes; each client's own is off its group's by noise.
    """
    random = Draw(21).generator("planted")
    rows, labels, sizes = [], [], [9, 14, 8, 12, 10, 16, 9, 11, 13]
    for i, n in enumerate(sizes):
        q, _ = np.linalg.qr(random.standard_normal((n, 4)))
        v, _ = np.linalg.qr(random.standard_normal((4, 4)))
        own = apart * np.eye(4)[i % groups] + noise * random.standard_normal(4)
        rows.append(np.sqrt(n) * (q * np.sqrt(np.geomspace(0.6, 1.4, 4))) @ v.T)
        labels.append(rows[-1] @ own)
    x, y = torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(labels)).unsqueeze(1)
    data = FederatedData("planted groups", x, y, "regression", rows_in_order(torch.tensor(sizes)))
    return linear(data, normal_equations, bias=False)


@cache
def points(*places: tuple[float, float]) -> Known:
    """Clients with f_i = ½‖x − p_i‖²: joining by the loss and a step of size 1 is k-means."""
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=F64).repeat(len(places), 1) * 2**0.5
    y = 2**0.5 * torch.tensor(places, dtype=F64).reshape(-1, 1)
    data = FederatedData("points", x, y, "regression", rows_in_order(torch.full((len(places),), 2)))
    return linear(data, normal_equations, bias=False)


def of_group(groups: int) -> Callable[[Known, Any], Tensor]:
    """Each client's group's optimum, of the plain mean of its clients' losses."""

    def limit(known: Known, method: Any) -> Tensor:
        best = [
            known.only(known.clients[known.clients % groups == g]).minimiser(method.weighting) for g in range(groups)
        ]
        return torch.stack([best[int(client) % groups] for client in known.clients])

    return limit


def apart_at_first(known: Known, method: Any, x: Tensor) -> Ledger:
    """Models drawn about the first one, itself the first; nobody is in a group."""
    noise = Draw(4).generator("groups").standard_normal((method.groups - 1, len(x)))
    return Ledger({"x": torch.cat([x[None], x + method.spread * torch.from_numpy(noise)])}, kept={"w": {}})


def ifca(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
    """Algorithm 1: j_i = argmin_j f_i(θ_j), or the θ_j nearest to what i found last; local steps from there; then for
    each group θ_j ← mean of its clients' models, or θ_j + Σ_{S_j} dx_i / m with m all that were heard."""
    x, new, share = at.state["x"], at.state["x"].clone(), torch.zeros(method.groups, dtype=F64)
    some = known.only(torch.tensor(heard))
    weights = some.weights(method.weighting)
    moves = torch.zeros_like(x)
    for i, client in enumerate(heard):
        away = x - some.optima[i]
        losses = ((away @ some.hessians[i]) * away).sum(-1)  # 2 f_i up to what it has at its optimum
        if method.by == "weights" and client in at.kept["w"]:
            losses = (x - at.kept["w"][client]).norm(dim=-1)
        j = int(losses.argmin())
        trained = local_momentum if method.optimiser == "momentum" else local_steps
        end = trained(known.only(torch.tensor([client])), method, x[j])[0]
        at.kept["w"][client] = end
        at.memory[client] = {"group": torch.tensor([j])} | ({"w": end} if method.by == "weights" else {})
        moves[j] += weights[i] * (end - x[j])
        share[j] += weights[i]
    for j in range(method.groups):
        if share[j] > 0:
            new[j] = x[j] + (moves[j] / share[j] if method.average == "models" else moves[j])
    at.state |= {"x": new, "members": share}


def groups_found(walk: Walk) -> int:
    """How many different models the clients have."""
    found = product(walk, torch.arange(walk.problem.data.clients))
    return len({tuple(row) for row in found.tolist()})


def unlike(groups: int) -> Callable[[Walk], float]:
    """How far the number of groups is from this one, as the models, the server and the history have it."""

    def off(walk: Walk) -> float:
        told = walk.evaluator.measures()
        counts = (groups_found(walk), int(walk.state["count"]), told.get("groups", -1))
        share = max(sum(i % groups == g for i in range(9)) for g in range(groups)) / 9
        return float(sum(abs(count - groups) for count in counts)) + abs(told.get("largest_group", -1) - share)

    return off


def unlike_two(walk: Walk) -> float:
    """How far the number of models is from two."""
    return abs(groups_found(walk) - 2.0)


def misplaced(walk: Walk) -> float:
    """How many clients of two planted groups the server has elsewhere than its first two clients; and, if the common
    model is not that of the larger group, which is client 0's, one more."""
    group = walk.state["group"]
    wrong = sum(int(group[i]) != int(group[i % 2]) for i in range(len(group)))
    first = product(walk, torch.tensor([0]))[0]
    return float(wrong + (int(group[0]) == int(group[1])) + (apart(walk.theta(), first) > 0))


def told_groups(walk: Walk) -> float:
    """Whether the server knows of single clients."""
    return float("group" in walk.state)


def _hard(rounds: int) -> dict[str, Any]:
    return dict.fromkeys(EVERY_HARDSHIP, Exactly(rounds))


def _course(name: str, own: Mapping[str, Any], **how: Any) -> Course:
    return Course(name, apart_at_first, ifca, {**_RANDOM, **own}, **{"rounds": 8, **how})


def _problem(*given: Any, **how: Any) -> Callable[[], Problem]:
    return lambda: planted(*given, **how).problem


_STEP: dict[str, Any] = {"lr": 0.6, "batch": None, "steps": 1}
_RANDOM: dict[str, Any] = {"lr": 0.3, "batch": None, "steps": 3, "init": "random", "spread": 0.7, "groups": 3}
_ALL = {"init": "random", "reply": "all"}

CLUSTERED = Declaration(
    claims=(
        Limit("planted groups find their optima", planted, of_group(2), _STEP, 60, 1e-10, _hard(150)),
        Limit(
            "clients that differ within a group find the group's",
            lambda: planted(3, noise=0.3),
            of_group(3),
            {**_STEP, "groups": 3},
            80,
            1e-10,
        ),
        Limit(
            "… weighted by size too",
            lambda: planted(3, noise=0.3),
            of_group(3),
            {**_STEP, "groups": 3, "weighting": "size", "by": "weights"},
            80,
            1e-10,
        ),
        Limit("… also by moves as parts of all", planted, of_group(2), {**_STEP, "average": "gradients"}, 120, 1e-10),
        Invariant("the number of groups is found: three", _problem(3), unlike(3), {**_STEP, "groups": None}, 3, 1e-12),
        Invariant(
            "… or one, of clients alike", lambda: alike(9).problem, unlike(1), {**_STEP, "groups": None}, 3, 1e-12
        ),
        Invariant("… at most so many", _problem(3), unlike_two, {**_STEP, "groups": None, "max_groups": 2}, 2),
        Invariant("the server knows who is where", _problem(2), misplaced, {**_STEP, "lr": 0.3}, 3),
        Invariant("… unless it is shown sums alone", unequal_problem, told_groups, _ALL, 2),
        _course("every round is Algorithm 1", {}, stands=WHO_ANSWERS),
        _course("… with moves as parts of all", {"average": "gradients", "lr": "exponential:0.3:0.9"}),
        _course("… by weight vectors", {"by": "weights"}, stands=WHO_ANSWERS),
        _course("… weighted by size, with momentum", {"weighting": "size", "optimiser": "momentum"}),
        _course("… from sums alone", {**_ALL, "weighting": "size"}, stands=WHO_ANSWERS),
        Also("stack-call", {"by": "weights"}),
        Also("stack-call", _ALL),
        Also("sums", _ALL),
        Also("joining", _ALL),
        Also("columns", {"init": "random", "by": "weights"}),
        Also("asynchronous", {"init": "random"}),
        Also("asynchronous", {**_ALL, "by": "weights"}),
        Also("resume", {"groups": None, "by": "weights"}),
        Passes({"groups": 1}),
        Defaults(
            {
                **TRAINING,
                **ROUNDS,
                "evaluates": "personal",
                "groups": 2,
                "max_groups": 8,
                "by": "loss",
                "init": "clients",
                "spread": 0.1,
                "average": "models",
                "reply": "own",
                "weighting": "uniform",
            }
        ),
    ),
    batches=BATCHES,
    equivalent={
        "memory group: settled though lost": "a turn does not read the group that a client remembers; it writes it anew"
    },
)
