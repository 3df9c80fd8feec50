"""What every schedule shares: the server's state, the clients' memory, the clocks, and how clients are asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.channel import payload
from fedloom.engine.evaluation import Evaluation, Verdict, collect, pieces
from fedloom.engine.gradients import gradient_measures
from fedloom.engine.setting import Setting
from fedloom.engine.store import MemoryStore
from fedloom.errors import Diverged
from fedloom.execution import Executor, Worker
from fedloom.execution.worker import Result, Task
from fedloom.federation.data import POOL, SOURCE
from fedloom.federation.losses import Labels
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from fedloom.methods.method import Context, Method, stateful
from fedloom.types import Memory, Message, State, Vector

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Fates = dict[str, npt.NDArray[np.bool_]]
Row = dict[str, Any]
Groups = dict[str, dict[str, Tensor]]
_SHOWN = 24  # clients whose jobs are kept in the history, for the picture of the fleet
FATES = ("accepted", "lost", "late", "dropped", "failed")


@dataclass
class Clocks:
    """Everything that a plot may be drawn against; all but the round are sums since the start."""

    round: int = 0
    simulated_seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    gradient_evaluations: int = 0
    wall_seconds: float = 0.0
    server_steps: int = 0


@dataclass(frozen=True, eq=False)
class Call:
    """What some clients are asked at a time: who, what they received, and the number of their randomness."""

    clients: Ints
    received: Message
    """The same for all."""
    own: Message
    """Columns, one row a client."""
    turn: int
    """Which numbers they draw; no client has two calls of one turn."""
    down: Ints
    """Bytes that each received."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of the clients of one stack."""

    up: Ints
    seconds: Floats
    """From the call until the reply is there, or was due."""
    fates: Fates
    kept: Ints
    """Those whose reply was accepted, by their place in the stack …"""
    memory: Memory
    """… and their memory now, as columns."""


class Engine(ABC):
    """A run under way. ``step`` does a round: what that is, is the schedule's matter."""

    def __init__(self, setting: Setting, executor: Executor, store: MemoryStore) -> None:
        setting.check()
        problem, method = setting.problem, setting.method
        self.setting, self.executor, self.store = setting, executor, store
        pooled = method.layout == "pooled"
        self.fleet = setting.fleet.reliable() if pooled else setting.fleet  # a pool is no device that could fail
        problem = problem.limited(setting.fleet.storage) if setting.fleet.storage else problem
        self.problem = problem.with_pool() if pooled else problem
        self.evaluations = [e.resolved(method) for e in setting.evaluations]
        role = POOL if pooled else SOURCE
        self.candidates: Ints = self.problem.data.with_role(role).numpy()
        self.sources = torch.from_numpy(self.candidates)
        self.sizes = self.problem.data.splits["train"].sizes
        self.stack = setting.stack or self.problem.stack_size(method.local_batch)
        self.labels = _labels(self.problem) if method.layout == "features" else None
        self.theta0 = self._first_model()
        self.prior = None if setting.prior is None else setting.prior.to(self.problem.dtype)
        self.state: State = method.server_init(self.context(0))
        self.shown = set(self.candidates[:_SHOWN].tolist())
        self.clocks = Clocks()
        self.reply_bytes = 0
        executor.open(Worker(self.problem, method, setting.channel, setting.seed))

    @abstractmethod
    def step(self) -> Row:
        """One round, and its row of the history."""

    def snapshot(self) -> tuple[Groups, dict[str, Any]]:
        """All that is needed to go on, beside the clients' memories: tensors, and what JSON can hold."""
        return {"state": self.state}, {"clocks": asdict(self.clocks), "reply_bytes": self.reply_bytes}

    def restore(self, groups: Groups, meta: dict[str, Any]) -> None:
        """Go on from a snapshot."""
        self.state = groups["state"]
        self.clocks = Clocks(**meta["clocks"])
        self.reply_bytes = meta["reply_bytes"]

    def context(self, t: int) -> Context:
        """What the server knows in step t."""
        model, draw = self.problem.model, Draw(self.setting.seed, t)
        return Context(
            round=t,
            clients=len(self.candidates),
            sizes=self.sizes,
            slices=model.slices,
            theta0=self.theta0,
            draw=draw,
            sources=self.sources,
            prior=self.prior,
            labels=self.labels,
        )

    def _first_model(self) -> Vector:
        if self.setting.theta0 is not None:
            return self.setting.theta0.to(self.problem.dtype)
        return self.problem.model.init(Draw(self.setting.seed).key("model"), self.problem.dtype)

    def theta(self) -> Vector:
        """The model as it is now; where parties hold parts of it, the sum of all parts."""
        method = self.setting.method
        own = method.model(self.state)
        clients = self.store.clients()
        if method.layout != "features" or len(clients) == 0:
            return own
        memory, _ = self.store.gather(clients)
        device = self.problem.device(clients.numpy(), Draw(self.setting.seed, self.clocks.round))
        return own + method.personal(device, self.state, memory).sum(0)

    def ask(self, function: str, call: Call) -> Iterator[tuple[int, Ints, Result]]:
        """The clients' work, stack by stack: the stack's number, positions among the clients, and the result."""
        setting, clients, turn = self.setting, call.clients, call.turn
        expected = np.where(self.reply_bytes > 0, self.reply_bytes, call.down)
        effort = self.fleet.effort(clients, Draw(setting.seed, turn))
        budget = self.fleet.budget(clients, setting.seed, call.down, expected, turn)
        delay = None if self.fleet.instant else self.fleet.travel(clients, setting.seed, call.down, expected, turn)
        stacks, tasks = self._stacks(clients), []
        for stack in stacks:
            task: Task = {"clients": clients[stack], "turn": turn, "round": self.clocks.round}
            task["drop"] = setting.on_error == "drop"
            columns = {"effort": effort, "budget": budget, "delay": delay}
            task |= {key: column[stack] for key, column in columns.items() if column is not None}
            task |= {"unicast": {key: value[stack] for key, value in call.own.items()}} if call.own else {}
            tasks.append(task | self._remembered(clients[stack]))
        for number, result in self.executor.map(function, call.received, tasks):
            yield number, stacks[number], result

    def _stacks(self, clients: Ints) -> list[Ints]:
        """Clients of like size together, in groups as even as can be; a function of the clients and the stack size."""
        if len(clients) == 0:
            return []
        order = np.argsort(-self.sizes.numpy()[clients], kind="stable")
        return np.array_split(order, -(-len(clients) // self.stack)) if len(clients) > self.stack else [order]

    def _remembered(self, clients: Ints) -> Task:
        if not stateful(self.setting.method):
            return {}
        memory, known = self.store.gather(torch.from_numpy(clients))
        return {"memory": memory, "known": known}

    def judge(self, call: Call, stack: Ints, result: Result) -> Outcome:
        """When a stack's replies are there, what becomes of each, and what those remember whose reply is accepted."""
        fleet, method, seed = self.fleet, self.setting.method, self.setting.seed
        clients, draw = call.clients[stack], Draw(seed, call.turn)
        up = np.full(len(stack), result["bytes"], dtype=np.int64)
        seconds = fleet.seconds(clients, seed, call.down[stack], up, result["evaluations"], call.turn)
        fates = fleet.fates(clients, seconds, draw)
        self._refuse_nan(clients, result, fates)
        kept = np.flatnonzero(fates["accepted"])
        memory: Memory = {}
        if stateful(method) and len(kept):
            device = self.problem.device(clients[kept], draw, round=self.clocks.round)
            inbox = {**call.received, **{key: value[stack[kept]] for key, value in call.own.items()}}
            memory, sent = ({key: value[kept] for key, value in result[part].items()} for part in ("memory", "sent"))
            memory = method.settle(device, memory, sent, inbox)
        return Outcome(up, seconds, fates, kept, memory)

    def keep(self, clients: Ints, memory: Memory) -> None:
        """The clients' memory from now on."""
        if memory:
            sizes = self.sizes[torch.from_numpy(clients)]
            lengths = dict.fromkeys(self.setting.method.per_row, sizes)
            self.store.scatter(torch.from_numpy(clients), memory, lengths=lengths)

    def _refuse_nan(self, clients: Ints, result: Result, fates: Fates) -> None:
        """Of the replies that the server would take, none may hold NaN or infinity."""
        fates["failed"] = ~result["finite"].numpy() & fates["accepted"]
        if not fates["failed"].any():
            return
        if self.setting.on_error == "stop":
            label = self.problem.data.label(int(clients[fates["failed"]][0]))
            raise Diverged(
                f"the reply of client {label} in round {self.clocks.round + 1} is not finite; try a smaller step size, "
                "or go on without such replies (on_error = 'drop')"
            )
        fates["accepted"] = fates["accepted"] & ~fates["failed"]

    def due(self, evaluation: Evaluation, last: bool) -> bool:
        """Whether this evaluation is to be made after the round that just ended."""
        return last or (evaluation.every > 0 and self.clocks.round % evaluation.every == 0)

    def evaluate(self, evaluation: Evaluation) -> Verdict:
        """Judge the models as they are now."""
        data, evaluation = self.problem.data, evaluation.resolved(self.setting.method)
        clients = evaluation.clients(data)
        parts = pieces(clients, data.splits[evaluation.judged].sizes.numpy()[clients])
        how = {key: getattr(evaluation, key) for key in _HOW} | {"split": evaluation.judged}
        how |= {"adapt_split": evaluation.fitted}
        tasks: list[Task] = [{"clients": part, "round": self.clocks.round, **how} for part in parts]
        if evaluation.reference is not None:
            tasks = [task | {"reference": evaluation.reference} for task in tasks]
        if data.layout == "features":
            tasks = [task | {"theta": self.theta()} for task in tasks]
        elif evaluation.model != "global":
            tasks = [task | self._remembered(part) for task, part in zip(tasks, parts, strict=True)]
        results: list[Result] = [{}] * len(tasks)
        for number, result in self.executor.map("evaluate", self.state, tasks):
            results[number] = {
                "values": {name: value.clone() for name, value in result["values"].items()},
                "counts": result["counts"].clone(),
            }
        return collect(clients, results)

    def gradients(self) -> dict[str, float]:
        """How much the clients' gradients differ at the model as it is now."""
        found = gradient_measures(self.setting.problem, self.theta())
        return {f"gradient_{name}": value for name, value in found.items()}

    def measures(self) -> dict[str, float]:
        """The method's own figures: gaps, residuals, norms; empty for a method that measures nothing."""
        method = self.setting.method
        if type(method).measure is Method.measure:
            return method.report(self.state, {})
        columns: dict[str, Tensor] = {}  # summed at the end: whose stack is ready first must not matter
        vectors = Queue()  # of these only the sum is kept, in the order of the stacks
        call = self.call(self.candidates, self.clocks.round)
        for number, stack, result in self.ask("measure", call):
            values = result["values"]
            vectors.add(number, {key: value.double().sum(0) for key, value in values.items() if value.dim() > 1})
            for key, value in values.items():
                if value.dim() == 1:
                    column = columns.setdefault(key, torch.zeros(len(call.clients), dtype=torch.float64))
                    column[torch.from_numpy(stack)] = value.double()
        return method.report(self.state, {key: column.sum() for key, column in columns.items()} | vectors.sums)

    def call(self, clients: Ints, turn: int) -> Call:
        """These clients are sent what the server has for them now."""
        received, own, down = self.sent(clients)
        return Call(clients, received, own, turn, np.full(len(clients), down, dtype=np.int64))

    def sent(self, clients: Ints) -> tuple[Message, Message, int]:
        """What the server has for these clients now: for all, for each (columns), and the bytes of it for each."""
        method, ids = self.setting.method, torch.from_numpy(clients)
        received, own = method.broadcast(self.state, ids), method.unicast(self.state, ids)
        alone = {key: value.new_empty(value.shape[1:]) for key, value in own.items()}
        return received, own, payload({**received, **alone})


@dataclass(eq=False)
class Queue:
    """Sums of tensors that come in any order, added up in the order of their numbers 0, 1, …"""

    sums: dict[str, Tensor] = field(default_factory=dict)
    waiting: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    next: int = 0

    def add(self, number: int, parts: dict[str, Tensor]) -> None:
        """One part; kept only until those before it are there."""
        self.waiting[number] = parts
        while self.next in self.waiting:
            for key, value in self.waiting.pop(self.next).items():
                self.sums[key] = self.sums[key] + value if key in self.sums else value
            self.next += 1


def _labels(problem: Problem) -> Labels:
    """What the server of a vertical federation holds: the labels of the training rows, in the parties' order."""
    return Labels(problem.y[problem.data.splits["train"][0]], problem.loss)


_HOW = ("model", "metrics", "adapt_steps", "adapt_lr")
