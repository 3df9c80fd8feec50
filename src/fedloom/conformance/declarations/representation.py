"""What is known of FedRep: its two walks done by hand, and a linear representation that it must find."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedloom.conformance.answers import OfRun, in_round
from fedloom.conformance.claims import IDEAL, Declaration, Finding, Hardship, Subject
from fedloom.conformance.declarations.common import BATCHES, ONE_STEP, WHO_ANSWERS
from fedloom.conformance.declarations.courses import ROUNDS, TRAINING, Defaults
from fedloom.conformance.declarations.layers import FALL, PLAIN, ByHand, Federations, joint, joint_optima
from fedloom.conformance.problems import rows_in_order
from fedloom.federation.batches import Rows
from fedloom.federation.client import Client
from fedloom.federation.data import FederatedData
from fedloom.federation.model import Model
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from fedloom.methods.method import Wish
from fedloom.types import Memory, Message, State, Vector


class InTurn(ByHand):
    """Clients walk twice, each time on one part of the coordinates."""

    def work(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        method: Any = in_round(self.walk.setting.method, client.draw.round)
        x, batch, beta = received["x"], method.batch, {"sgd": 0.0, "momentum": 0.9}[method.optimiser]
        heads = client.batches("train", batch, method.head_steps, method.head_epochs, "head")
        bodies = client.batches("train", batch, method.steps, method.epochs)
        y = walked(client, x.expand(1, -1), self.mine, heads, method.lr, beta)
        y = walked(client, y, ~self.mine, bodies, method.lr, beta)
        return {"dx": y - x}, memory

    def adapt(self, client: Client, state: State, memory: Memory, theta: Vector, wish: Wish) -> Vector:
        rows = [client.rows("support")] * (wish.steps or 1)
        return walked(client, theta, self.mine, rows, wish.lr or 0.01, 0.0)


def walked(client: Client, y: Vector, there: Tensor, batches: Iterable[Rows], lr: float, beta: float) -> Vector:
    """Steps on these coordinates alone, the others being held where they are."""
    m = torch.zeros_like(y)
    for rows in batches:
        m = beta * m + client.grad(y, rows)
        y = torch.where(there, y - lr * m, y)
    return y


@cache
def representation(clients: int = 12, rows: int = 40, width: int = 8, features: int = 2) -> tuple[Problem, Tensor]:
    """y = ⟨B x, w_i⟩: linear features B that all have in common, and what they mean to each client; and B."""
    random = Draw(17).generator("representation")
    common = torch.from_numpy(np.linalg.qr(random.standard_normal((width, features)))[0].T.copy())
    own = torch.from_numpy(random.standard_normal((clients, features))).repeat_interleave(rows, 0)
    x = torch.from_numpy(random.standard_normal((clients * rows, width)))
    y = ((x @ common.T) * own).sum(1, keepdim=True)
    data = FederatedData("representation", x, y, "regression", rows_in_order(torch.full((clients,), rows)))

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(width, features, bias=False), nn.Linear(features, 1, bias=False))

    return Problem(data, Model(network), dtype=torch.float64), common


def sine(found: Tensor, true: Tensor) -> float:
    """Of the greatest principal angle between the spaces that the rows span."""
    q, p = (torch.linalg.qr(part.T)[0] for part in (found, true))
    return float(torch.linalg.matrix_norm(q - p @ (p.T @ q), 2))


@dataclass(frozen=True, eq=False)
class Subspace(OfRun):
    """The body comes to span the features by which the rows were made."""

    name: str
    method: dict[str, Any] = field(default_factory=dict)
    rounds: int = 150
    tolerance: float = 1e-8
    stands: tuple[str, ...] = ()

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        problem, true = representation()
        body = cast(Any, problem.model.slices["0.weight"])
        with self.walking(subject, problem, hardship) as walk:
            before = sine(body.of(walk.theta()), true)
            for _ in range(self.rounds):
                walk.step()
            after = sine(body.of(walk.theta()), true)
        passed = before > 0.5 and after <= self.tolerance
        detail = f"the sine of the principal angle falls from {before:.2g} to {after:.2g} in {self.rounds} rounds, "
        return Finding(passed, after, f"{detail}at most {self.tolerance:.2g} allowed")


_TURNS: dict[str, Any] = {"lr": FALL, "batch": 5, "epochs": 2, "head_epochs": 3}
_STEPS: dict[str, Any] = {"lr": 0.1, "batch": None, "optimiser": "momentum", "steps": 3, "head_steps": 2}
_ALONE = {"lr": 0.5, "batch": None, "steps": 1, "head_epochs": 5, "start": "own"}

FEDREP = Declaration(
    (
        Federations("the head in passes, then the body", _TURNS, stands=WHO_ANSWERS, by=InTurn),
        Federations(
            "the body first and in steps, with momentum, plain means",
            {**_STEPS, "layers": "body", "start": "common", "weighting": "uniform"},
            "1.",
            by=InTurn,
        ),
        Federations(
            "one bias that begins as the server's", {**_TURNS, "layers": "3.bi*", "start": "sent"}, "3.bias", by=InTurn
        ),
        joint(
            "full steps find the best common weights with a bias for each client",
            joint_optima,
            {**ONE_STEP, "head_steps": 2},
        ),
        Subspace("it finds the features that clients have in common", _ALONE, stands=("sampled", "lost")),
        Defaults(
            {
                **TRAINING,
                **ROUNDS,
                "evaluates": "personal",
                "layers": "head",
                "start": "own",
                "weighting": "size",
                "head_epochs": 10,
                "head_steps": None,
            }
        ),
    ),
    {**BATCHES, "head_epochs": 2},
    {"start": "common"},
    equivalent=PLAIN,
)
