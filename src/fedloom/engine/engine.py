"""What every schedule shares: a run's state and clocks, what clients are asked, and how their replies are received."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedloom.channel import payload
from fedloom.engine.availability import interrupted
from fedloom.engine.evaluator import Evaluator
from fedloom.engine.fleet import Bools, Floats
from fedloom.engine.memories import Keeper
from fedloom.engine.online import Online
from fedloom.engine.setting import Setting
from fedloom.errors import ConfigError, Diverged, RunError
from fedloom.execution import Executor, Worker
from fedloom.execution.work import Memories, Test, Trained, Turn
from fedloom.federation.data import POOL, SOURCE
from fedloom.federation.losses import Labels
from fedloom.federation.metrics import metrics_of
from fedloom.federation.problem import Problem, fresh_model
from fedloom.federation.ragged import Ints, Window
from fedloom.federation.randomness import Draw
from fedloom.federation.replies import Replies
from fedloom.methods import name_of
from fedloom.methods.method import Context, Method, ServerMethod, shown_to
from fedloom.methods.statistics import with_statistics
from fedloom.storage.store import MemoryStore
from fedloom.storage.tensors import name_of as name_of_dtype
from fedloom.types import Memory, Message, State, Vector

Fates = dict[str, Bools]
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
    """… and the model that new ones are evaluated by, one for all or one for each; None: the client's own."""
    rounds: Ints | None = None
    """Where they did so in different rounds, and that matters to them: in which each did."""

    def part(self, places: Ints) -> Window | None:
        """The rows that some of the clients held."""
        return None if self.window is None else (self.window[0][places], self.window[1][places])


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


@dataclass(eq=False)
class Tally:
    """What ended in one round."""

    ended: int = 0
    up: int = 0
    down: int = 0
    evaluations: int = 0
    fates: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FATES, 0))
    ages: list[int] = field(default_factory=list)
    """Without rounds: steps of the server between each accepted reply and what its client had fetched."""
    figures: dict[str, float] = field(default_factory=dict)
    """What the channel has to say of the accepted replies, on average."""
    failures: list[str] = field(default_factory=list)
    jobs: list[list[Any]] = field(default_factory=list)
    """Client, start, end, fate of the clients that are shown …"""
    away: list[list[Any]] = field(default_factory=list)
    """… and client, from when, until when, of their absences that were noticed."""


class Engine(ABC):
    """A run under way. ``step`` does a round: what that is, is the schedule's matter."""

    runs: ClassVar[type[Any]] = Method
    """The kind of method that it runs."""

    def __init__(self, setting: Setting, executor: Executor, store: MemoryStore) -> None:
        problem, method = setting.problem, setting.method
        if not isinstance(method, self.runs):
            raise ConfigError(
                f"{name_of(method)} is a {_kind(method)}, but the schedule {setting.schedule.name!r} runs a "
                f"{_kind(self.runs)}; choose another schedule"
            )
        self.setting, self.executor, self.store = setting, executor, store
        self.method = with_statistics(method, problem.model)
        pooled = method.layout == "pooled"
        self.fleet = setting.fleet.reliable() if pooled else setting.fleet  # a pool is no device that could fail
        self.online: Online | None = None
        if setting.stream is not None:
            metrics = setting.evaluations[0].metrics if setting.evaluations else None
            self.problem, self.online = Online.of(problem, setting.stream, setting.seed, setting.fleet.storage, pooled)
            self.online.test_by(self.problem, metrics_of(problem.data, metrics))
        else:
            problem = problem.limited(setting.fleet.storage) if setting.fleet.storage else problem
            self.problem = problem.with_pool() if pooled else problem
        self.worker = Worker(self.problem, self.method, setting.channel, setting.seed)
        self.keeper = Keeper(store, executor.remembers, method.per_row)
        self.evaluator = Evaluator(self)
        self._count()
        self.stack = setting.stack or self.problem.stack_size(method.local_batch)
        start = fresh_model(problem, setting.seed) if setting.theta0 is None else setting.theta0.to(problem.dtype)
        self.theta0 = problem.model.tailed(start)
        self.clocks = Clocks()
        self.reply_bytes = 0
        self.state = self.begin()
        executor.open(self.worker)

    def begin(self) -> State:
        """The state before the first round: what clients begin with, if no server has more."""
        return {"x": self.theta0}

    def _count(self) -> None:
        """Who can take part, with how many rows."""
        role = POOL if self.setting.method.layout == "pooled" else SOURCE
        self.sources = self.problem.data.with_role(role)
        self.candidates: Ints = self.sources.numpy()  # the same numbers
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
        self.state = self.grown(self.state)

    def grown(self, state: State) -> State:
        """A state with room for all clients that there are now."""
        return state

    @property
    def now(self) -> float:
        """The simulated time."""
        return self.clocks.simulated_seconds

    @abstractmethod
    def step(self) -> Row:
        """One round, and its row of the history."""

    @abstractmethod
    def context(self, t: int) -> Context:
        """What is known in step t, before anybody is asked."""

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
        self.state = self._formed(self.grown(groups["state"]))
        self.clocks = Clocks(**meta["clocks"])
        self.reply_bytes = meta["reply_bytes"]
        self.keeper.note_saved()

    def _formed(self, state: State) -> State:
        """The state, or a RunError: what a state has at the start it always has, in the same form."""
        for key, ours in self.state.items():
            there = state.get(key)
            if there is None or (there.dtype, there.shape) != (ours.dtype, ours.shape):
                found = "missing" if there is None else f"{name_of_dtype(there.dtype)} of shape {list(there.shape)}"
                wanted = f"{name_of_dtype(ours.dtype)} of shape {list(ours.shape)}"
                raise RunError(
                    f"the checkpoint cannot be gone on from: its state {key!r} is {found}, the run's is {wanted}; "
                    "start the run again"
                )
        return state

    def theta(self) -> Vector:
        """The common model as it is now: where there is no server, the mean of the clients' models."""
        clients = self.store.clients()
        return self.personal(clients).mean(0) if len(clients) else self.theta0

    def personal(self, clients: Tensor) -> Tensor:
        """The models of clients that all remember something."""
        memory, _ = self.store.gather(clients)
        client = self.problem.client(clients.numpy(), Draw(self.setting.seed, self.clocks.round))
        return self.method.personal(client, shown_to(self.method, client, self.state), memory)

    def window(self, clients: Ints) -> Window | None:
        """The rows that clients hold now, where they keep arriving."""
        return None if self.online is None else self.online.windows(clients, self.now)

    def memories(self, clients: Ints, window: Window | None) -> Memories | None:
        """What clients that hold these rows remember; None where nobody ever does."""
        if not self.worker.remembers:
            return None
        moved = None if self.online is None or window is None else self.online.moved(clients, window)
        return self.keeper.of(clients, moved)

    @abstractmethod
    def call(self, clients: Ints, turn: int) -> Call:
        """What these clients are asked now."""

    def fetched(self, clients: Ints) -> tuple[Message, Message]:
        """What these clients would receive now: what all do, and columns of what each does."""
        call = self.call(clients, self.clocks.round)
        return call.received, call.own

    def stacks(self, call: Call) -> list[Ints]:
        """The clients in groups of like size, as even as can be, by their places; a function of the call alone."""
        if len(call.clients) == 0:
            return []
        order = np.argsort(-self.counts[call.clients] if call.window is None else -call.window[1], kind="stable")
        if call.rounds is None:
            return self._even(order)
        return [stack for t in np.unique(call.rounds) for stack in self._even(order[call.rounds[order] == t])]

    def _even(self, order: Ints) -> list[Ints]:
        return np.array_split(order, -(-len(order) // self.stack)) if len(order) > self.stack else [order]

    def _round(self, call: Call, stack: Ints) -> int:
        """The round in which the clients of a stack fetched."""
        return self.clocks.round if call.rounds is None else int(call.rounds[stack[0]])

    def turns(self, call: Call) -> tuple[list[Ints], list[Turn]]:
        """The clients in stacks, by their places, and what each stack has to do."""
        setting, clients, turn, stacks = self.setting, call.clients, call.turn, self.stacks(call)
        expected = np.where(self.reply_bytes > 0, self.reply_bytes, call.down)
        effort = self.fleet.effort(clients, Draw(setting.seed, turn))
        budget = self.fleet.budget(clients, setting.seed, call.down, expected, turn)
        delay = None if self.fleet.instant else self.fleet.travel(clients, setting.seed, call.down, expected, turn)
        works = []
        for stack in stacks:
            window, places = call.part(stack), torch.from_numpy(stack)
            works.append(
                Turn(
                    clients[stack],
                    self._round(call, stack),
                    turn,
                    {key: value[places] for key, value in call.own.items()},
                    self.memories(clients[stack], window),
                    None if effort is None else effort[stack],
                    None if budget is None else budget[stack],
                    None if delay is None else delay[stack],
                    window,
                    self._test(call, stack, window),
                    drop=setting.on_error == "drop",
                )
            )
        return stacks, works

    def _test(self, call: Call, stack: Ints, window: Window | None) -> Test | None:
        """The rows of a stack that nobody has trained on yet, and the model to evaluate them by."""
        if self.online is None or window is None:
            return None
        fresh = self.online.fresh(call.clients[stack], window)
        if not fresh[1].any():
            return None
        if call.theta is None:
            method, ids = self.method, torch.from_numpy(call.clients[stack])
            return Test(fresh, state=method.shown(self.state), own=method.shown_each(self.state, ids))
        return Test(fresh, call.theta if call.theta.dim() == 1 else call.theta[stack])

    def receive(self, call: Call, stack: Ints, result: Trained) -> Outcome:
        """When a stack's replies are there, what becomes of each, and what those remember whose reply is accepted."""
        fleet, seed = self.fleet, self.setting.seed
        clients, draw = call.clients[stack], Draw(seed, call.turn)
        window = call.part(stack)
        if self.online is not None and window is not None and result.tested is not None:
            self.online.note(clients, window, result.tested)
        up = np.full(len(stack), result.bytes, dtype=np.int64)
        seconds = fleet.seconds(clients, seed, call.down[stack], up, result.evaluations, call.turn)
        gone = interrupted(self.setting.availability, clients, call.started[stack], seconds)
        gone |= np.isin(clients, self.setting.dropping)
        fates = fleet.fates(clients, seconds, draw, gone)
        self._refuse_nan(clients, result, fates)
        kept = np.flatnonzero(fates["accepted"])
        memory: Memory = {}
        if self.worker.remembers and len(kept):
            memory = self._settled(call, stack, kept, result)
        return Outcome(up, seconds, fates, kept, memory, call.part(stack[kept]))

    def _settled(self, call: Call, stack: Ints, kept: Ints, result: Trained) -> Memory:
        """What those remember whose replies were accepted; who remembers elsewhere does so there."""
        if self.executor.remembers:
            return {"turn": torch.full((len(kept),), call.turn)}
        return result.memory if len(kept) == len(stack) else {key: value[kept] for key, value in result.memory.items()}

    def keep(self, clients: Ints, memory: Memory, window: Window | None = None) -> None:
        """The clients' memory from now on, made when they held the rows of a window."""
        self.keeper.keep(clients, memory, self.counts[clients] if window is None else window[1])
        if memory and self.online is not None and window is not None:
            self.online.keep(clients, window)

    def _refuse_nan(self, clients: Ints, result: Trained, fates: Fates) -> None:
        """Of the replies that the server would take, none may hold NaN or infinity."""
        fates["failed"] = ~result.finite.numpy() & fates["accepted"]
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
        return {} if self.online is None else {"arrived": self.online.arrived(self.candidates, self.now)}

    def fresh_tests(self) -> Row:
        """How good models were on the rows that came, since this was asked last."""
        return {} if self.online is None else {**self.arrived(), "prequential": self.online.tested()}

    def record(self, tally: Tally) -> Row:
        """A round is over: the clocks go on, and this is its row of the history."""
        clocks = self.clocks
        clocks.round += 1
        clocks.bytes_up += tally.up
        clocks.bytes_down += tally.down
        clocks.gradient_evaluations += tally.evaluations
        row: Row = {**vars(clocks), "selected": tally.ended, **tally.fates, **self.fresh_tests()}
        figures = {**tally.figures, **self.setting.channel.report(clocks.server_steps)}
        if self.now > 0:
            row["jobs"] = tally.jobs
        further = {"channel": figures, "away": tally.away, "failures": tally.failures}
        return row | {name: value for name, value in further.items() if value}


class ServerEngine(Engine):
    """A run with a server: it has a state, sends what clients fetch, and takes steps on their replies."""

    runs = ServerMethod

    method: ServerMethod

    def begin(self) -> State:
        self.labels = _labels(self.problem) if self.method.layout == "features" else None
        self.prior = None if self.setting.prior is None else self.setting.prior.to(self.problem.dtype)
        return self.method.server_init(self.context(0))

    def grown(self, state: State) -> State:
        blank, each, pairs = self.method.server_init(self.context(0)), self.method.per_client, self.method.per_pair
        new = {key: _placed(blank[key], value, key in pairs) for key, value in state.items() if key in (*each, *pairs)}
        if all(new[key].shape == state[key].shape for key in new):
            return state
        return self.method.welcome({**state, **new}, self.context(self.clocks.server_steps))

    def context(self, t: int) -> Context:
        """What the server knows in step t."""
        return Context(
            round=t,
            clients=len(self.candidates),
            sizes=self.sizes if self.online is None else self.online.sizes,
            slices=self.problem.model.slices,
            theta0=self.theta0,
            draw=Draw(self.setting.seed, t),
            sources=self.sources,
            prior=self.prior,
            labels=self.labels,
        )

    def theta(self) -> Vector:
        """The model as it is now; where parties hold parts of it, the sum of all parts."""
        own, clients = self.method.model(self.state), self.store.clients()
        if self.method.layout != "features" or len(clients) == 0:
            return own
        return own + self.personal(clients).sum(0)

    def call(self, clients: Ints, turn: int) -> Call:
        """These clients are sent what the server has for them now."""
        received, own, down = self.sent(clients)
        counts, started = np.full(len(clients), down, dtype=np.int64), np.full(len(clients), self.now)
        window = self.window(clients)
        return Call(clients, received, own, turn, counts, started, window, None if window is None else self.testing())

    def testing(self) -> Vector | None:
        """The model that evaluates new rows now: the server's; None: each client's own, of a personal method."""
        return None if self.method.evaluates == "personal" else self.method.model(self.state)

    def sent(self, clients: Ints) -> tuple[Message, Message, int]:
        """What the server has for these clients now: for all, for each (columns), and the bytes of it for each.

        It is what clients read out of what travels; for clients elsewhere, who read themselves, it is what travels.
        """
        method, channel, ids = self.method, self.setting.channel, torch.from_numpy(clients)
        received, own = method.broadcast(self.state, ids), method.unicast(self.state, ids)
        if not channel.transforms:
            return received, own, payload(received, own)
        draw = Draw(self.setting.seed, self.clocks.server_steps)
        received, own = channel.send_down(received, draw), channel.send_down(own, draw, stacked=True)
        size = payload(received, own)
        if not self.executor.remembers:
            received, own = channel.take_down(received), channel.take_down(own, stacked=True)
        return received, own, size

    def update(
        self,
        clients: Tensor,
        columns: Message,
        staleness: Tensor | None,
        t: int,
        rest: Callable[[], None] = lambda: None,
    ) -> None:
        """The server's step on replies, given as columns in order of client id."""
        method, ctx = self.method, self.context(t)
        replies, channel = Replies.of(clients, columns, staleness, method.reduce, rest), self.setting.channel
        if channel.transforms:
            replies = replace(replies, sums=channel.aggregate(dict(replies.sums), clients, ctx.draw))
        self.state = method.server(self.state, replies, ctx)
        self.clocks.server_steps += 1


def _placed(blank: Tensor, value: Tensor, pairs: bool) -> Tensor:
    """What there is of each client, or of each two, in the place of what a start has for all that there are now."""
    found, old = blank.clone(), len(value)
    found[(slice(old), slice(old)) if pairs else slice(old)] = value
    return found


def _labels(problem: Problem) -> Labels:
    """What the server of a vertical federation holds: the labels of the training rows, in the parties' order."""
    return Labels(problem.y[problem.data.splits["train"][0]], problem.loss)


def _kind(method: Method | type[Any]) -> str:
    cls = method if isinstance(method, type) else type(method)
    return "method with a server" if issubclass(cls, ServerMethod) else "method of nodes without a server"
