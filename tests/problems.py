"""Small problems for tests: ragged clients, every task and model, and least squares whose answers are known."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedloom.channel import Channel
from fedloom.conformance.drive import made_up
from fedloom.engine.rounds import Rounds
from fedloom.engine.selection import All
from fedloom.engine.setting import Setting
from fedloom.execution import Executor, Serial
from fedloom.federation.batches import Plan
from fedloom.federation.client import Client
from fedloom.federation.data import FederatedData, Task
from fedloom.federation.networks import build_model
from fedloom.federation.problem import Problem
from fedloom.federation.ragged import Ragged
from fedloom.federation.replies import Replies
from fedloom.methods import FedAvg
from fedloom.methods.method import Context, Method, ServerMethod
from fedloom.storage.store import MemoryStore
from fedloom.types import Memory, Message, State, Vector

SIZES = (7, 3, 12, 5, 1)
"""Unequal clients: with batches of 4 the last one is partial for three of them, and one has a single row."""


def split_rows(owned: Ragged) -> tuple[Ragged, Ragged]:
    """Each client's rows in two halves, the first the smaller one."""
    halves = [(rows[: len(rows) // 2], rows[len(rows) // 2 :]) for rows in (owned[i] for i in range(len(owned)))]
    return Ragged.of([first for first, _ in halves]), Ragged.of([second for _, second in halves])


def make_data(
    task: Task = "classification",
    sizes: Sequence[int] = SIZES,
    shape: tuple[int, ...] = (6,),
    outputs: int = 3,
    tests: Sequence[int] | None = None,
    roles: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> FederatedData:
    """Random rows, dealt to clients in a random order; every client also has some test rows."""
    tests = [2 + i % 3 for i in range(len(sizes))] if tests is None else tests
    g = torch.Generator().manual_seed(seed)
    total = sum(sizes) + sum(tests)
    x = torch.randn(total, *shape, generator=g, dtype=torch.float64)
    match task:
        case "classification":
            y = torch.randint(outputs, (total,), generator=g)
        case "regression":
            y = torch.randn(total, outputs, generator=g, dtype=torch.float64).to(dtype)
        case _:
            y = torch.randint(2, (total, outputs), generator=g).to(dtype)
    dealt = torch.randperm(total, generator=g)
    parts = list(dealt.split([*sizes, *tests]))
    train, test = Ragged.of(parts[: len(sizes)]), Ragged.of(parts[len(sizes) :])
    support, query = split_rows(train)
    test_support, test_query = split_rows(test)
    return FederatedData(
        "made up",
        x.to(dtype),
        y,
        task,
        {
            "train": train,
            "test": test,
            "support": support,
            "query": query,
            "test-support": test_support,
            "test-query": test_query,
        },
        classes=tuple(str(c) for c in range(outputs)) if task == "classification" else (),
        roles=None if roles is None else torch.tensor(roles, dtype=torch.int8),
        names=None if names is None else tuple(names),
    )


def make_problem(
    model: str = "linear", *, loss: str = "auto", options: dict[str, Any] | None = None, **how: Any
) -> Problem:
    """A problem with a model of that name; images for the models that want images."""
    if model in ("lenet", "cnn"):
        how.setdefault("shape", (1, 8, 8))
    elif model == "lstm":
        how.setdefault("shape", (5, 3))
    elif model == "mlp":
        options = options or {"hidden": [8]}
    data = make_data(**how)
    return Problem(data, build_model(model, data, **(options or {})), loss, how.get("dtype", torch.float32))


def visited(plan: Plan) -> dict[int, list[list[int]]]:
    """For each client of a plan the rows of each of its steps."""
    found: dict[int, list[list[int]]] = {int(client): [] for client in plan.clients}
    for step in plan:
        counts = [step.rows.shape[1]] * step.active if step.counts is None else step.counts.tolist()
        for client, rows, count in zip(plan.clients[plan.order], step.rows.tolist(), counts, strict=False):
            found[int(client)].append(rows[:count])
    return found


class LeastSquares:
    """Client i has f_i(w) = ‖X_i w − y_i‖² / (2 n_i), in float64 and without an intercept: all limits are known."""

    def __init__(
        self,
        sizes: Sequence[int] = (9, 14, 6, 11),
        dimension: int = 3,
        order: Sequence[int] | None = None,
    ) -> None:
        g = torch.Generator().manual_seed(3)
        owned = [torch.randn(n, dimension, generator=g, dtype=torch.float64) for n in sizes]
        models = [torch.randn(dimension, generator=g, dtype=torch.float64) for _ in sizes]
        order = range(len(sizes)) if order is None else order
        self.x = [owned[i] for i in order]
        self.y = [owned[i] @ models[i] for i in order]
        self.sizes = torch.tensor([len(x) for x in self.x])
        train = Ragged.contiguous(self.sizes)
        data = FederatedData(
            "least squares",
            torch.cat(self.x),
            torch.cat(self.y).unsqueeze(1),
            "regression",
            {"train": train, "test": train, "support": split_rows(train)[0], "query": split_rows(train)[1]},
        )
        self.problem = Problem(data, build_model("linear", data, bias=False), "squared", torch.float64)

    @property
    def hessians(self) -> Tensor:
        return torch.stack([x.T @ x / len(x) for x in self.x])

    @property
    def minimisers(self) -> Tensor:
        return torch.stack(
            [torch.linalg.lstsq(x, y.unsqueeze(1)).solution[:, 0] for x, y in zip(self.x, self.y, strict=True)]
        )

    def weights(self, weighting: str = "size") -> Tensor:
        sizes = self.sizes.double() if weighting == "size" else torch.ones(len(self.sizes), dtype=torch.float64)
        return sizes / sizes.sum()

    def optimum(self, weighting: str = "size") -> Tensor:
        """The minimiser of Σ p_i f_i."""
        p, a = self.weights(weighting), self.hessians
        right = (p[:, None] * (a @ self.minimisers.unsqueeze(-1))[..., 0]).sum(0)
        return torch.linalg.solve((p[:, None, None] * a).sum(0), right)

    def fedavg_limit(self, lr: float, steps: int, weighting: str = "size") -> Tensor:
        """(I − P̄)⁻¹ Σ p_i (I − P_i) x_i*, P_i = (I − ηA_i)^K: where K full-batch local steps lead."""
        eye = torch.eye(self.hessians.shape[-1], dtype=torch.float64)
        power = torch.linalg.matrix_power(eye - lr * self.hessians, steps)
        p = self.weights(weighting)
        right = (p[:, None] * ((eye - power) @ self.minimisers.unsqueeze(-1))[..., 0]).sum(0)
        return torch.linalg.solve(eye - (p[:, None, None] * power).sum(0), right)


def start(problem: Problem, method: Method, *, executor: Executor | None = None, **how: Any) -> Rounds:
    """A run that is about to do its first round."""
    setting = Setting(problem, method, how.pop("select", All()), channel=Channel(how.pop("transforms", ())), **how)
    setting.check()
    return Rounds(setting, executor or Serial(), MemoryStore())


def run(problem: Problem, method: Method, rounds: int, **how: Any) -> Rounds:
    """A run after so many rounds."""
    engine = start(problem, method, **how)
    for _ in range(rounds):
        engine.step()
    return engine


class Dropping(nn.Module):
    """A user's module with dropout, once as a layer and once as a function."""

    def __init__(self, columns: int, outputs: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(columns, 8), nn.Linear(8, outputs)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(torch.relu(self.body(x)))
        return self.head(nn.functional.dropout(h, 0.2, self.training))


def dropping(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """For the import path "problems:dropping"."""
    return Dropping(shape[0], outputs)


class Mixed(nn.Module):
    """A user's module with a tied tensor, a frozen tensor, a buffer and a tensor that it never uses."""

    def __init__(self, columns: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(columns, columns), nn.Linear(columns, columns)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.randn(columns), requires_grad=False)
        self.register_buffer("scale", torch.rand(columns))
        self.spare = nn.Parameter(torch.ones(2))
        self.head = nn.Linear(columns, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.head(h * self.scale + self.frozen)


class Normed(nn.Module):
    """A class with a forward, and a norm between its layers."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(inputs, 5), nn.LayerNorm(5), nn.Linear(5, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """One output row a row."""
        out: Tensor = self.head(torch.tanh(self.norm(self.body(x))))
        return out


def normed(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """No chain of fully connected layers, but a small module."""
    return Normed(shape[0], outputs)


class Centred(nn.Linear):
    """A module that sees how its rows differ."""

    def forward(self, x: Tensor) -> Tensor:
        """Of every row what it has beyond the mean of all."""
        return super().forward(x - x.mean(0))


def centred(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Its rows must stay together."""
    return Centred(shape[0], outputs)


def mixed(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """For the import path "problems:mixed"."""
    return Mixed(shape[0], outputs)


def replies_of(
    method: Any, clients: list[int], columns: Message, sizes: list[int], staleness: list[int] | None = None
) -> Replies:
    """Replies of clients that have so many rows, as the server of this method gets them."""
    rows = torch.tensor(sizes, dtype=next(iter(columns.values())).dtype)[:, None]
    weight = rows if getattr(method, "weighting", "size") == "size" else None
    return made_up(method, np.array(clients), columns, weight, None if staleness is None else torch.tensor(staleness))


@dataclass(frozen=True)
class Tally(ServerMethod):
    """Every client counts its accepted replies, and says which own number it was sent; nobody learns anything."""

    reduce: ClassVar[Any] = "each"

    def server_init(self, ctx: Context) -> State:
        clients = len(ctx.sizes)
        return {"x": ctx.theta0, "secret": 100.0 + torch.arange(clients), "seen": torch.zeros(clients)}

    def client_init(self, client: Client, received: Message) -> Memory:
        return {"accepted": torch.zeros_like(client.n[..., 0]), "born_with": received["secret"].clone()}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {"x": state["x"]}

    def unicast(self, state: State, clients: Tensor) -> Message:
        return {"secret": state["secret"][clients]}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        reply = {"secret": received["secret"].clone(), "born_with": memory["born_with"]}
        return reply, {**memory, "accepted": memory["accepted"] + 1}

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        seen = state["seen"].clone()
        seen[replies.clients] += 1
        return {
            **state,
            "seen": seen,
            "last": replies.each("secret"),
            "who": replies.clients,
            "born": replies.each("born_with"),
        }

    def personal(self, client: Client, state: State, memory: Memory) -> Vector:
        return memory["born_with"][..., None] * torch.ones_like(state["x"])

    def measure(self, client: Client, received: Message, memory: Memory) -> dict[str, Tensor]:
        return {"thirds": memory["accepted"] + client.n[..., 0] / 3}


@dataclass(frozen=True)
class Shaky(Tally):
    """A tally in which one client breaks down in every other round."""

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        if client.round % 2 and 2 in client.clients:
            raise ZeroDivisionError("the sensor is broken")
        return super().client(client, received, memory)


@dataclass(frozen=True)
class Marks(ServerMethod):
    """Per-row memory: each client adds 1 to the marks of its rows, and says what they sum to."""

    per_row: ClassVar[tuple[str, ...]] = ("marks",)
    reduce: ClassVar[Any] = "each"

    def server_init(self, ctx: Context) -> State:
        return {"x": ctx.theta0}

    def client_init(self, client: Client, received: Message) -> Memory:
        return {"marks": (client.rows().weight > 0).double()}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {"x": state["x"]}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        marks = memory["marks"] + (client.rows().weight > 0)
        return {"sum": marks.sum(-1)}, {"marks": marks}

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {**state, "sum": replies.each("sum")}


@dataclass(frozen=True)
class Located(FedAvg):
    """FedAvg whose clients tell how many of them read their rows in memory that other processes see too."""

    def measure(self, client: Client, received: Message, memory: Memory) -> dict[str, Tensor]:
        return {"elsewhere": torch.full((len(client.clients),), float(_shared(client.problem.x)))}


def _shared(tensor: Tensor) -> bool:
    """Whether the kernel says that a tensor lies in a shared mapping (Linux)."""
    address = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights = line.split()[:2]
        first, last = (int(end, 16) for end in span.split("-"))
        if first <= address < last:
            return rights.endswith("s")
    return False


@dataclass(frozen=True)
class Troubled(FedAvg):
    """FedAvg in which one client comes to grief in one round."""

    client_id: int = 2
    in_round: int = 1
    trouble: str = "raise"
    home: int = field(default_factory=os.getpid)
    """The process that is not to die."""

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        here = np.flatnonzero(client.clients == self.client_id)
        if client.round != self.in_round or len(here) == 0:
            return super().client(client, received, memory)
        if self.trouble == "die" and os.getpid() != self.home:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.trouble == "step":
            client.sgd(received["x"], self.lr, self.batch, steps=5, direction=self._stumble(client))
        if self.trouble == "raise":
            raise ZeroDivisionError("the sensor is broken")
        reply, memory = super().client(client, received, memory)
        reply["dx"][int(here[0]), 0] = float(self.trouble)
        return reply, memory

    def _stumble(self, client: Client) -> Any:
        def direction(y: Vector, g: Vector) -> Vector:
            if client.step == 3:
                raise FloatingPointError("the third step went wrong")
            return g

        return direction
