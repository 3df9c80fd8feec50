"""Methods as a user would bring them to the kit: with client memory, and with all that the contract allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedloom.conformance import Declaration, Exactly, Invariant, Known, Limit, quadratics
from fedloom.conformance.drive import Walk, apart
from fedloom.federation.client import Client
from fedloom.federation.replies import Replies
from fedloom.methods.method import Context
from fedloom.methods.training import LocalTraining
from fedloom.types import Memory, Message, State

STEPS = {"lr": 0.3, "batch": None, "steps": 4}
EVERYTHING = {name: Exactly(400) for name in ("sampled", "lost", "late", "quantised")}


@dataclass(frozen=True)
class Controlled(LocalTraining):
    """Local steps with control variates (SCAFFOLD, option II)."""

    def server_init(self, ctx: Context) -> State:
        return {"x": ctx.theta0, "c": torch.zeros_like(ctx.theta0)}

    def client_init(self, client: Client, received: Message) -> Memory:
        return {"c": torch.zeros_like(received["c"]).expand(*client.n.shape[:-1], -1)}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {"x": state["x"], "c": state["c"]}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        x, c, c_i = received["x"], received["c"], memory["c"]
        y, steps = self.train(client, x, shift=c - c_i)
        return {"dx": y - x, "dc": (x - y) / (steps * self.lr) - c}, memory

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        return {"c": memory["c"] + sent["dc"]}

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {
            "x": state["x"] + replies.mean("dx"),
            "c": state["c"] + replies.sum("dc") / ctx.clients,
        }


def uniform_optimum(known: Known, method: Any) -> Tensor:
    return known.minimiser("uniform")


def control_gap(walk: Walk) -> float:
    """How far the server's c is from the mean of the clients'."""
    memory, _ = walk.store.gather(torch.arange(walk.problem.data.clients))
    return apart(memory["c"].sum(0) / walk.problem.data.clients, walk.state["c"])


CONTROLLED = Declaration(
    claims=(
        Limit(
            "it finds the optimum",
            quadratics,
            uniform_optimum,
            STEPS,
            rounds=200,
            tolerance=1e-12,
            hardships=EVERYTHING,
        ),
        Invariant(
            "c is the mean of the clients' c",
            lambda: quadratics(unequal=True).problem,
            control_gap,
            STEPS,
            stands=("sampled", "lost", "late", "quantised"),
        ),
    ),
    batches={"lr": 0.1, "batch": 5, "epochs": 2},
)


@dataclass(frozen=True)
class Elaborate(LocalTraining):
    """FedAvg with all that the contract allows: a number for each row, unicasts, single replies, exact messages."""

    reduce = "each"
    exact = True
    per_row = ("seen",)
    per_client = ("visits",)

    def server_init(self, ctx: Context) -> State:
        return {"x": ctx.theta0, "visits": torch.zeros(ctx.clients)}

    def client_init(self, client: Client, received: Message) -> Memory:
        return {"seen": torch.zeros_like(client.rows().weight)}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {"x": state["x"]}

    def unicast(self, state: State, clients: Tensor) -> Message:
        return {"visits": state["visits"][clients]}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        y, _ = self.train(client, received["x"])
        seen = memory["seen"] + (client.rows().weight > 0)
        return {"dx": y - received["x"], "visits": received["visits"] + 1}, {"seen": seen}

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        visits = state["visits"].index_copy(0, replies.clients, replies.each("visits"))
        return {"x": state["x"] + replies.mean("dx"), "visits": visits}


ELABORATE = Declaration(
    claims=(
        Limit(
            "one full step finds the optimum",
            quadratics,
            lambda known, method: known.optimum,
            {"lr": 0.8, "batch": None, "steps": 1},
            hardships={"late": Exactly(200)},
        ),
    ),
    batches={"lr": 0.1, "batch": 5, "epochs": 2},
    excused={"sampled": "one full step wanders", "lost": "one full step wanders"},
)
