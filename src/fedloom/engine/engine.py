"""What every schedule shares: the server's state, the clients' memory, the clocks, and how clients are asked."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.channel import payload
from fedloom.engine.availability import interrupted
from fedloom.engine.evaluation import Evaluation, Verdict, collect, pieces
from fedloom.engine.gradients import gradient_measures
from fedloom.engine.online import Online, Prequential
from fedloom.engine.setting import Setting
from fedloom.errors import Diverged, RunError
from fedloom.execution import Executor, Worker
from fedloom.execution.worker import Result, Task
from fedloom.federation.data import POOL, SOURCE
from fedloom.federation.losses import Labels
from fedloom.federation.metrics import metrics_for
from fedloom.federation.problem import Problem
from fedloom.federation.ragged import Window
from fedloom.federation.randomness import Draw
from fedloom.methods.method import Context, Method, stateful
from fedloom.storage.store import MemoryStore
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
    started: Floats
    """When each fetched."""
    window: Window | None = None
    """Where data keep arriving: the rows that each held then …"""
    theta: Vector | None = None
    """… and the model that the new ones are judged by, one for all or one for each; None: the client's own."""


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
    """… and their memory now, as columns …"""
    window: Window | None
    """… which belongs to these rows, where data keep arriving."""


class Engine(ABC):
    """A run under way. ``step`` does a round: what that is, is the schedule's matter."""

    def __init__(self, setting: Setting, executor: Executor, store: MemoryStore) -> None:
        problem, method = setting.problem, setting.method
        self.setting, self.executor, self.store = setting, executor, store
        pooled = method.layout == "pooled"
        self.fleet = setting.fleet.reliable() if pooled else setting.fleet  # a pool is no device that could fail
        self.online: Online | None = None
        if setting.stream is not None:
            self.problem, self.online = Online.of(problem, setting.stream, setting.seed, setting.fleet.storage, pooled)
        else:
            problem = problem.limited(setting.fleet.storage) if setting.fleet.storage else problem
            self.problem = problem.with_pool() if pooled else problem
        self.evaluations = [e.resolved(method) for e in setting.evaluations]
        self._count()
        self.stack = setting.stack or self.problem.stack_size(method.local_batch)
        self.labels = _labels(self.problem) if method.layout == "features" else None
        self.theta0 = self._first_model()
        self.prior = None if setting.prior is None else setting.prior.to(self.problem.dtype)
        self.state: State = method.server_init(self.context(0))
        self.tested = self._tests()
        self.clocks = Clocks()
        self.reply_bytes = 0
        self.saved_turns: dict[int, int] = {}
        self.unanswered: list[str] = []
        """Why clients did not answer when they were judged or measured, and the row of the history does not say yet."""
        executor.open(Worker(self.problem, method, setting.channel, setting.seed))

    def _count(self) -> None:
        """Who can take part, with how many rows."""
        role = POOL if self.setting.method.layout == "pooled" else SOURCE
        self.candidates: Ints = self.problem.data.with_role(role).numpy()
        self.sources = torch.from_numpy(self.candidates)
        self.sizes = self.problem.data.splits["train"].sizes
        self.counts: Ints = self.sizes.numpy()  # the same numbers
        self.shown = set(self.candidates[:_SHOWN].tolist())

    def welcome(self) -> None:
        """Take in the clients that have joined since: from now on they are clients like any other."""
        data = self.executor.federation(self.problem.data)
        if data is self.problem.data:
            return
        self.problem = self.problem.on(data)
        self.setting = replace(self.setting, problem=self.problem)
        self._count()
        self.state = _grown(self.state, self.setting.method.server_init(self.context(0)))

    @property
    def now(self) -> float:
        """The simulated time."""
        return self.clocks.simulated_seconds

    @abstractmethod
    def step(self) -> Row:
        """One round, and its row of the history."""

    def snapshot(self) -> tuple[Groups, dict[str, Any]]:
        """All that is needed to go on, beside the clients' memories: tensors, and what JSON can hold."""
        online = {} if self.online is None else {"online": self.online.snapshot()}
        meta = {"clocks": asdict(self.clocks), "reply_bytes": self.reply_bytes, "remembers": self.executor.remembers}
        return {"state": self.state, **online}, meta

    def restore(self, groups: Groups, meta: dict[str, Any]) -> None:
        """Go on from a snapshot."""
        if ("online" in groups) != (self.online is not None):
            begun = "with" if "online" in groups else "without"
            raise RunError(f"the run was begun {begun} a stream; resume it as it was begun")
        if meta.get("remembers", False) != self.executor.remembers:
            where = "on real devices, which have" if meta.get("remembers") else "in a simulation, which has"
            raise RunError(f"the run was begun {where} the clients' memory; go on with it as it was begun")
        if self.online is not None:
            self.online.restore(groups["online"])
        self.state = _grown(groups["state"], self.state)
        self.clocks = Clocks(**meta["clocks"])
        self.reply_bytes = meta["reply_bytes"]
        if self.executor.remembers:
            self._note_saved()

    def context(self, t: int) -> Context:
        """What the server knows in step t."""
        model, draw = self.problem.model, Draw(self.setting.seed, t)
        return Context(
            round=t,
            clients=len(self.candidates),
            sizes=self.sizes if self.online is None else self.online.sizes,
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
        client = self.problem.client(clients.numpy(), Draw(self.setting.seed, self.clocks.round))
        return own + method.personal(client, self.state, memory).sum(0)

    def ask(self, function: str, call: Call) -> Iterator[tuple[int, Ints, Result]]:
        """The clients' work, stack by stack: the stack's number, positions among the clients, and the result."""
        stacks, tasks = self.tasks(function, call)
        for number, result in self.executor.map(function, call.received, tasks):
            yield number, stacks[number], result

    def tasks(self, function: str, call: Call) -> tuple[list[Ints], list[Task]]:
        """The clients in stacks, by their positions, and what each stack has to do."""
        setting, clients, turn = self.setting, call.clients, call.turn
        expected = np.where(self.reply_bytes > 0, self.reply_bytes, call.down)
        effort = self.fleet.effort(clients, Draw(setting.seed, turn))
        budget = self.fleet.budget(clients, setting.seed, call.down, expected, turn)
        delay = None if self.fleet.instant else self.fleet.travel(clients, setting.seed, call.down, expected, turn)
        held = None if call.window is None else call.window[1]
        stacks, tasks = self._stacks(clients, held), list[Task]()
        for stack in stacks:
            task: Task = {"clients": clients[stack], "turn": turn, "round": self.clocks.round}
            task["drop"] = setting.on_error == "drop"
            columns = {"effort": effort, "budget": budget, "delay": delay}
            task |= {key: column[stack] for key, column in columns.items() if column is not None}
            if call.own:
                places = torch.from_numpy(stack)
                task["unicast"] = {key: value[places] for key, value in call.own.items()}
            task |= self._streamed(call, stack, test=function == "client")
            tasks.append(task | self._remembered(clients[stack]))
        return stacks, tasks

    def _streamed(self, call: Call, stack: Ints, test: bool) -> Task:
        """What a task says about the rows that clients hold; with ``test`` also by which model new ones are judged.

        That is the model that the server hands out or, of a personal method, the client's own.
        """
        if self.online is None or call.window is None:
            return {}
        clients, window = call.clients[stack], _part(call.window, stack)
        task = self.online.holding(clients, window)
        fresh = self.online.fresh(clients, window)
        if not test or not fresh[1].any():
            return task
        if call.theta is None:
            return task | {"fresh": fresh, "state": self.state}
        return task | {"fresh": fresh, "theta": call.theta if call.theta.dim() == 1 else call.theta[stack]}

    def _stacks(self, clients: Ints, held: Ints | None = None) -> list[Ints]:
        """Clients of like size together, in groups as even as can be; a function of the clients and the stack size."""
        if len(clients) == 0:
            return []
        order = np.argsort(-self.counts[clients] if held is None else -held, kind="stable")
        return np.array_split(order, -(-len(clients) // self.stack)) if len(clients) > self.stack else [order]

    def _remembered(self, clients: Ints) -> Task:
        if not stateful(self.setting.method):
            return {}
        memory, known = self.store.gather(torch.from_numpy(clients))
        saved = {"saved": self._saved(clients)} if self.executor.remembers else {}
        return {"memory": memory, "known": known, **saved}

    def landed(self) -> None:
        """The checkpoint with all that is known now is on disk: from here the run goes on if it is killed."""
        self.store.landed()
        if self.executor.remembers:
            self._note_saved()

    def _note_saved(self) -> None:
        """Where clients remember: of which turns the checkpoint knows that they were accepted."""
        clients = self.store.clients()
        turns = self.store.gather(clients)[0].get("turn", clients)
        self.saved_turns = dict(zip(clients.tolist(), turns.tolist(), strict=True))

    def _saved(self, clients: Ints) -> Tensor:
        return torch.tensor([self.saved_turns.get(client, -1) for client in clients.tolist()])

    def judge(self, call: Call, stack: Ints, result: Result) -> Outcome:
        """When a stack's replies are there, what becomes of each, and what those remember whose reply is accepted."""
        fleet, method, seed = self.fleet, self.setting.method, self.setting.seed
        clients, draw = call.clients[stack], Draw(seed, call.turn)
        if self.online is not None and call.window is not None:
            self.online.note(clients, _part(call.window, stack), result, self.tested)
        up = np.full(len(stack), result["bytes"], dtype=np.int64)
        seconds = fleet.seconds(clients, seed, call.down[stack], up, result["evaluations"], call.turn)
        gone = interrupted(self.setting.availability, clients, call.started[stack], seconds)
        fates = fleet.fates(clients, seconds, draw, gone)
        self._refuse_nan(clients, result, fates)
        kept = np.flatnonzero(fates["accepted"])
        memory: Memory = {}
        window = None if call.window is None else _part(call.window, stack[kept])
        if stateful(method) and len(kept) and self.executor.remembers:
            memory = {"turn": torch.full((len(kept),), call.turn)}
        elif stateful(method) and len(kept):
            client = self.problem.client(clients[kept], draw, round=self.clocks.round, window=window)
            inbox = {**call.received, **{key: value[stack[kept]] for key, value in call.own.items()}}
            memory, sent = ({key: value[kept] for key, value in result[part].items()} for part in ("memory", "sent"))
            memory = method.settle(client, memory, sent, inbox)
        return Outcome(up, seconds, fates, kept, memory, window)

    def keep(self, clients: Ints, memory: Memory, window: Window | None = None) -> None:
        """The clients' memory from now on, made when they held the rows of a window."""
        if not memory:
            return
        ids = torch.from_numpy(clients)
        sizes = self.sizes[ids] if window is None else torch.from_numpy(window[1])
        ragged = [key for key in self.setting.method.per_row if key in memory]
        self.store.scatter(ids, memory, lengths=dict.fromkeys(ragged, sizes))
        if self.online is not None and window is not None:
            self.online.keep(clients, window)

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

    def absences(self, clients: Sequence[int]) -> list[list[Any]]:
        """Who of these is away now, since now, and until when (None: for good); for the picture of the fleet."""
        now = self.now
        back = [(client, self.setting.availability.presence(client, now)[0]) for client in clients]
        return [[client, now, time if math.isfinite(time) else None] for client, time in back if time > now]

    def arrived(self) -> Row:
        """How many rows have come by now, where they come on a clock."""
        if self.online is None:
            return {}
        return {"arrived": self.online.arrived(self.candidates, self.now)}

    def fresh_tests(self) -> Row:
        """How good models were on the rows that came, since this was asked last."""
        if self.online is None:
            return {}
        summary, self.tested = self.tested.summary(), self._tests()
        return {**self.arrived(), "prequential": summary}

    def _tests(self) -> Prequential:
        metrics = self.evaluations[0].metrics if self.evaluations else None
        return Prequential(self.problem, metrics_for(self.problem.data.task, metrics, self.problem.data.columns))

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
        if self.online is not None:
            for task, part in zip(tasks, parts, strict=True):
                window = self.online.windows(part, self.now)
                task |= self.online.holding(part, window)
        results: list[Result] = [{}] * len(tasks)
        for number, result in self.executor.map("evaluate", self.state, tasks):
            results[number] = {
                "values": {name: value.clone() for name, value in result["values"].items()},
                "sums": {name: value.clone() for name, value in result["sums"].items()},
                "counts": result["counts"].clone(),
            }
            self.unanswered += result.get("failures", [])
        return collect(clients, results)

    def gradients(self) -> dict[str, float]:
        """How much the clients' gradients differ at the model as it is now."""
        every = np.arange(self.setting.problem.data.clients)
        problem = self.setting.problem if self.online is None else self.problem
        found = gradient_measures(problem, self.theta(), self._window(every))
        return {f"gradient_{name}": value for name, value in found.items()}

    def measures(self) -> dict[str, float]:
        """The method's own figures: gaps, residuals, norms; empty for a method that measures nothing."""
        method = self.setting.method
        if type(method).measure is Method.measure:
            return method.report(self.state, {})
        columns: dict[str, Tensor] = {}  # summed at the end: whose stack is ready first must not matter
        vectors = Queue()  # of these only the sum is kept, in the order of the stacks
        clients, now = self.candidates, self.now
        clients = clients if self.online is None else self.online.present(clients, now)
        if len(clients) == 0:
            return {}
        call = self.call(clients, self.clocks.round)
        for number, stack, result in self.ask("measure", call):
            values = result["values"]
            self.unanswered += result.get("failures", [])
            vectors.add(number, {key: value.double().sum(0) for key, value in values.items() if value.dim() > 1})
            for key, value in values.items():
                if value.dim() == 1:
                    column = columns.setdefault(key, torch.zeros(len(call.clients), dtype=torch.float64))
                    column[torch.from_numpy(stack)] = value.double()
        return method.report(self.state, {key: column.sum() for key, column in columns.items()} | vectors.sums)

    def call(self, clients: Ints, turn: int) -> Call:
        """These clients are sent what the server has for them now."""
        received, own, down = self.sent(clients)
        counts, started = np.full(len(clients), down, dtype=np.int64), np.full(len(clients), self.now)
        if self.online is None:
            return Call(clients, received, own, turn, counts, started)
        return Call(clients, received, own, turn, counts, started, self._window(clients), self.judging())

    def judging(self) -> Vector | None:
        """The model by which new rows are judged now: the server's; None: each client's own, of a personal method."""
        method = self.setting.method
        return None if method.evaluates == "personal" else method.model(self.state)

    def _window(self, clients: Ints) -> Window | None:
        """The rows that clients hold now, where they keep arriving."""
        return None if self.online is None else self.online.windows(clients, self.now)

    def sent(self, clients: Ints) -> tuple[Message, Message, int]:
        """What the server has for these clients now: for all, for each (columns), and the bytes of it for each."""
        method, ids = self.setting.method, torch.from_numpy(clients)
        received, own = method.broadcast(self.state, ids), method.unicast(self.state, ids)
        if not own:
            return received, own, payload(received)
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


def _grown(state: State, blank: State) -> State:
    """The state, where it has something for each client with room for those who joined: as a blank one begins."""

    def grown(old: Tensor, new: Tensor) -> Tensor:
        if old.shape == new.shape or old.dim() != new.dim():
            return old
        return new.index_copy(0, torch.arange(len(old)), old)

    return {key: grown(value, blank[key]) if key in blank else value for key, value in state.items()}


def _part(window: Window, places: Ints) -> Window:
    """The rows of some of the clients."""
    return window[0][places], window[1][places]


def _labels(problem: Problem) -> Labels:
    """What the server of a vertical federation holds: the labels of the training rows, in the parties' order."""
    return Labels(problem.y[problem.data.splits["train"][0]], problem.loss)


_HOW = ("model", "metrics", "adapt_steps", "adapt_lr")
