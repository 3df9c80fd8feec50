"""A method of nodes without a server, and what makes its rounds: averaging with the neighbours on a ring."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.channel import payload
from fedloom.conformance.answers import Invariant, Limit
from fedloom.conformance.claims import Declaration
from fedloom.conformance.drive import Walk, apart, gathered
from fedloom.conformance.problems import Known, quadratics
from fedloom.engine.engine import FATES, Call, Engine, Row
from fedloom.federation.client import Client
from fedloom.federation.ragged import Ints
from fedloom.federation.randomness import Draw
from fedloom.methods.method import Context, NodeMethod
from fedloom.types import Memory, Message, Positive, State, Vector


@dataclass(frozen=True)
class Gossip(NodeMethod):
    """Every node takes one gradient step from the common start; then each takes the mean of its own model and its
    neighbours', again and again, until all have the mean of all."""

    lr: Positive = 0.1
    """The step size of the first step."""
    batch: int | None = None
    """Rows of that step; none: all."""

    @property
    def local_batch(self) -> int | None:
        return self.batch

    def client_init(self, client: Client, received: Message) -> Memory:
        x, _ = client.sgd(received["x"], self.lr, self.batch, steps=1)
        return {"x": x}

    def node(self, client: Client, inbox: Message, memory: Memory) -> tuple[Message, Memory]:
        there = inbox["present"].to(inbox["z"].dtype)
        total = memory["x"] + (there.unsqueeze(-1) * inbox["z"]).sum(-2)
        return {"z": total / (1 + there.sum(-1, keepdim=True))}, memory

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        return {"x": sent["z"]}  # what the neighbours have of it

    def personal(self, client: Client, state: State, memory: Memory) -> Vector:
        return memory["x"]


class Ring(Engine):
    """In every round each selected node acts once; what it sent is what its two neighbours have of it."""

    runs = NodeMethod

    def begin(self) -> State:
        clients, n = self.problem.data.clients, len(self.theta0)
        return {
            "x": self.theta0,
            "z": torch.zeros(clients, n, dtype=self.theta0.dtype),
            "heard": torch.zeros(clients, dtype=torch.bool),
        }

    def theta(self) -> Vector:
        """The mean of what the neighbours have of all nodes, wherever these remember it."""
        heard = self.state["heard"]
        return self.state["z"][heard].mean(0) if bool(heard.any()) else self.theta0

    def context(self, t: int) -> Context:
        return Context(
            round=t,
            clients=len(self.candidates),
            sizes=self.sizes,
            slices=self.problem.model.slices,
            theta0=self.theta0,
            draw=Draw(self.setting.seed, t),
            sources=torch.from_numpy(self.candidates),
        )

    def call(self, clients: Ints, turn: int) -> Call:
        count = self.problem.data.clients
        near = torch.from_numpy(np.stack([(clients - 1) % count, (clients + 1) % count], 1))
        own = {"z": self.state["z"][near], "present": self.state["heard"][near]}
        down = payload({**{key: value[0] for key, value in own.items()}, "x": self.theta0})
        return Call(
            clients,
            {"x": self.theta0},
            own,
            turn,
            np.full(len(clients), down, dtype=np.int64),
            np.full(len(clients), self.now),
        )

    def step(self) -> Row:
        started, t, clocks = time.perf_counter(), self.clocks.round, self.clocks
        ring = [[(i - 1) % len(self.candidates), (i + 1) % len(self.candidates)] for i in self.candidates.tolist()]
        counts, selected, seconds = dict.fromkeys(FATES, 0), 0, 0.0
        chosen = self.setting.select.pick(self.candidates, self.context(t))
        for group in self.setting.method.groups(ring):  # type: ignore[attr-defined]
            call = self.call(np.intersect1d(chosen, self.candidates[group]), t)
            stacks, works = self.turns(call)
            sent, heard = self.state["z"].clone(), self.state["heard"].clone()
            for number, result in self.executor.map(call.received, works):
                stack = stacks[number]
                outcome = self.receive(call, stack, result)
                who = call.clients[stack][outcome.kept]
                self.keep(who, outcome.memory, outcome.window)
                sent[torch.from_numpy(who)] = result.sent["z"][outcome.kept].to(sent.dtype)
                heard[torch.from_numpy(who)] = True
                for fate in FATES:
                    counts[fate] += int(outcome.fates[fate].sum())
                clocks.bytes_up += int(outcome.up[~outcome.fates["dropped"]].sum())
                clocks.gradient_evaluations += int(result.evaluations.sum())
                seconds = max(seconds, float(outcome.seconds.max(initial=0.0)))
            clocks.bytes_down += int(call.down.sum())
            selected += len(call.clients)
            self.state = {**self.state, "z": sent, "heard": heard}
        clocks.round += 1
        clocks.simulated_seconds += seconds
        clocks.wall_seconds += time.perf_counter() - started
        return {**asdict(clocks), "selected": selected, **counts}


def mean_of_first_steps(known: Known, method: Any) -> Tensor:
    """θ0 − η·(1/N) Σ ∇f_i(θ0), which is where all nodes end."""
    theta = torch.zeros(known.hessians.shape[-1], dtype=torch.float64)
    theta0 = known.problem.model.init(Draw(4).key("model"), torch.float64)
    slopes = (known.hessians @ (theta + theta0 - known.optima).unsqueeze(-1)).squeeze(-1)
    end = theta0 - method.lr * slopes.mean(0)
    return end.expand(len(known.clients), -1)


def unlike_copies(walk: Walk) -> float:
    """How far what the neighbours have of a node is from what the node remembers."""
    memory, known = gathered(walk, torch.arange(walk.problem.data.clients))
    heard = walk.state["heard"]
    return apart(memory["x"], walk.state["z"][heard]) if bool((known == heard).all()) else float("inf")


ONE_SIDED = "a node whose message is missing does not move, but its neighbours do: the mean of all is another then"

GOSSIP = Declaration(
    claims=(
        Limit(
            "all nodes end at the mean of their first steps",
            lambda: quadratics(unequal=True),
            mean_of_first_steps,
            {"lr": 0.5},
            rounds=60,
            tolerance=1e-11,
            hardships={},
        ),
        Invariant(
            "neighbours have what a node remembers",
            lambda: quadratics(unequal=True).problem,
            unlike_copies,
            {"lr": 0.5},
            tolerance=0.0,
            stands=("sampled", "lost", "late", "quantised"),
        ),
    ),
    batches={"lr": 0.1},
    divisible=False,
    schedule=Ring,
    excused={"sampled": ONE_SIDED, "lost": ONE_SIDED},
)
