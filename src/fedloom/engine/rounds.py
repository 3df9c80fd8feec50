"""The synchronous schedule: the same five steps in every round, whatever the method."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.channel import Channel, payload
from fedloom.engine.evaluation import Evaluation, Verdict, collect, pieces
from fedloom.engine.fleet import Fleet
from fedloom.engine.gradients import gradient_measures
from fedloom.engine.selection import Selection
from fedloom.engine.store import MemoryStore
from fedloom.errors import ConfigError, Diverged, ModelError
from fedloom.execution import Executor, Worker
from fedloom.execution.worker import Result, Task
from fedloom.federation.data import POOL, SOURCE, FederatedData
from fedloom.federation.losses import Labels
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from fedloom.federation.replies import Replies
from fedloom.methods import name_of
from fedloom.methods.method import Context, Method, check_parameters, stateful
from fedloom.types import Message, State, Vector

Ints = npt.NDArray[np.int64]
Row = dict[str, Any]
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


@dataclass(frozen=True, eq=False)
class Setting:
    """What a run combines: a method × a selection × a fleet × a channel × evaluations, on one problem."""

    problem: Problem
    method: Method
    select: Selection
    fleet: Fleet = field(default_factory=Fleet)
    channel: Channel = field(default_factory=Channel)
    evaluations: Sequence[Evaluation] = (Evaluation(),)
    seed: int = 0
    stack: int | None = None
    """Clients computed together; none: what suits model, data and method."""
    on_error: Literal["stop", "drop"] = "stop"
    """A client that fails or answers with NaN: the run stops, or goes on without its reply."""
    prior: Vector | None = None
    """θ_p: the model of an earlier run, for methods that keep what it knew."""
    theta0: Vector | None = None
    """The initial model; none: as the model's own initialisation draws it for the seed."""

    def check(self) -> None:
        """Refuses what cannot be, before any work."""
        data, method = self.problem.data, self.method
        check_parameters(method)
        check_layout(method, data)
        method.check(self.problem)
        self._check_vectors()
        self.channel.check(type(method).__name__, method.exact)
        self.fleet.check()
        for evaluation in self.evaluations:
            evaluation.resolved(method).check(data)
        sources = data.with_role(SOURCE)
        if method.layout == "pooled":
            return
        self.select.check(len(sources))
        empty = sources[data.splits["train"].sizes[sources] == 0]
        if len(empty):
            raise ConfigError(
                f"client {data.label(int(empty[0]))} has no training rows (and {len(empty) - 1} more like it); give "
                "every source client some, or fewer clients"
            )

    def _check_vectors(self) -> None:
        """The models that were given must be such models, and one that is needed must be there."""
        for name, vector in (("prior", self.prior), ("theta0", self.theta0)):
            if vector is not None and vector.shape != (self.problem.model.n,):
                raise ModelError(
                    f"{name} has shape {tuple(vector.shape)}, but the model has {self.problem.model.n:,} parameters; "
                    "give a vector of such a model"
                )
        if self.prior is None and self.method.needs_prior:
            raise ConfigError(
                f"{type(self.method).__name__} is to stay near an earlier model, but there is none; give the run that "
                "made it (prior = its model), or set lambda_ = 0"
            )


class Rounds:
    """A run under way: the server's state, the clients' memory, the clocks; ``step`` does one round."""

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
        self.sizes = self.problem.data.splits["train"].sizes
        self.stack = setting.stack or self.problem.stack_size(method.local_batch)
        self.labels = _labels(self.problem) if method.layout == "features" else None
        self.theta0 = self._first_model()
        self.prior = None if setting.prior is None else setting.prior.to(self.problem.dtype)
        self.state: State = method.server_init(self.context(0))
        self.clocks = Clocks()
        self.reply_bytes = 0
        executor.open(Worker(self.problem, method, setting.channel, setting.seed))

    def context(self, t: int) -> Context:
        """What the server knows in round t."""
        model, draw = self.problem.model, Draw(self.setting.seed, t)
        return Context(
            round=t,
            clients=len(self.candidates),
            sizes=self.sizes,
            slices=model.slices,
            theta0=self.theta0,
            draw=draw,
            sources=torch.from_numpy(self.candidates),
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

    def step(self) -> Row:
        """One round: select, broadcast, client update, aggregate, server update."""
        started = time.perf_counter()
        method, fleet = self.setting.method, self.fleet
        ctx = self.context(self.clocks.round)
        candidates = fleet.reachable(self.candidates, ctx.draw)
        clients = self.setting.select.pick(candidates, ctx) if method.layout != "pooled" else self.candidates
        ids = torch.from_numpy(clients)
        received, own = method.broadcast(self.state, ids), method.unicast(self.state, ids)
        harvest = Harvest(clients, self._down(received, own))
        for _, stack, result in self._ask("client", clients, received, own, harvest.down):
            self._take_in(harvest, stack, result, received, own, ctx)
        replies = harvest.replies(self.sizes)
        if replies is not None:
            self.state = method.server(self.state, replies, ctx)
        return self._record(harvest, started)

    def _ask(
        self, function: str, clients: Ints, received: Message, own: Message, down: int = 0
    ) -> Iterator[tuple[int, Ints, Result]]:
        """The clients' work, stack by stack: the stack's number, positions among the clients, and the result."""
        setting, t = self.setting, self.clocks.round
        draw = Draw(setting.seed, t)
        effort = self.fleet.effort(clients, draw)
        budget = self.fleet.budget(clients, setting.seed, down, self.reply_bytes or down, t)
        stacks, tasks = self._stacks(clients), []
        for stack in stacks:
            task: Task = {"clients": clients[stack], "round": t, "drop": setting.on_error == "drop"}
            task |= {"effort": effort[stack]} if effort is not None else {}
            task |= {"budget": budget[stack]} if budget is not None else {}
            task |= {"unicast": {key: value[stack] for key, value in own.items()}} if own else {}
            tasks.append(task | self._remembered(clients[stack]))
        for number, result in self.executor.map(function, received, tasks):
            yield number, stacks[number], result

    def _stacks(self, clients: Ints) -> list[Ints]:
        """Clients of like size together, in groups as even as can be; a function of the clients and the stack size."""
        if len(clients) == 0:
            return []
        order = np.argsort(-self.sizes.numpy()[clients], kind="stable")
        return np.array_split(order, -(-len(clients) // self.stack))

    def _remembered(self, clients: Ints) -> Task:
        if not stateful(self.setting.method):
            return {}
        memory, known = self.store.gather(torch.from_numpy(clients))
        return {"memory": memory, "known": known}

    def _take_in(
        self, harvest: Harvest, stack: Ints, result: Result, received: Message, own: Message, ctx: Context
    ) -> None:
        """A stack's replies: what became of each, and, for those accepted, the clients' new memory."""
        fleet, method, seed = self.fleet, self.setting.method, self.setting.seed
        clients = harvest.clients[stack]
        up = np.full(len(stack), result["bytes"], dtype=np.int64)
        seconds = fleet.seconds(clients, seed, harvest.down, up, result["evaluations"], ctx.round)
        fates = fleet.fates(clients, seconds, ctx.draw)
        self._refuse_nan(clients, result, fates)
        harvest.add(stack, result, up, seconds, fates)
        kept = np.flatnonzero(fates["accepted"])
        if not stateful(method) or len(kept) == 0:
            return
        device = self.problem.device(clients[kept], ctx.draw)
        inbox = {**received, **{key: value[stack[kept]] for key, value in own.items()}}
        memory, sent = ({key: value[kept] for key, value in result[part].items()} for part in ("memory", "sent"))
        memory = method.settle(device, memory, sent, inbox)
        lengths = {key: torch.from_numpy(device.sizes()) for key in method.per_row}
        self.store.scatter(torch.from_numpy(clients[kept]), memory, lengths=lengths)

    def _refuse_nan(self, clients: Ints, result: Result, fates: dict[str, npt.NDArray[np.bool_]]) -> None:
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

    def _down(self, received: Message, own: Message) -> int:
        return payload({**received, **{key: value.new_empty(value.shape[1:]) for key, value in own.items()}})

    def _record(self, harvest: Harvest, started: float) -> Row:
        clocks = self.clocks
        clocks.round += 1
        clocks.simulated_seconds += self.fleet.round_seconds(harvest.seconds, harvest.fates)
        clocks.bytes_up += int(harvest.up[~harvest.fates["dropped"]].sum())
        clocks.bytes_down += harvest.down * len(harvest.clients)
        clocks.gradient_evaluations += int(harvest.evaluations.sum())
        clocks.wall_seconds += time.perf_counter() - started
        self.reply_bytes = int(harvest.up.max(initial=0))
        counts = {fate: int(harvest.fates[fate].sum()) for fate in FATES}
        row = {**asdict(clocks), "selected": len(harvest.clients), **counts}
        return row | {"failures": harvest.failures} if harvest.failures else row

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
                "sums": {name: value.clone() for name, value in result["sums"].items()},
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
        clients = self.candidates
        ids = torch.from_numpy(clients)
        columns: dict[str, Tensor] = {}  # summed at the end: whose stack is ready first must not matter
        vectors = Queue()  # of these only the sum is kept, in the order of the stacks
        received, own = method.broadcast(self.state, ids), method.unicast(self.state, ids)
        for number, stack, result in self._ask("measure", clients, received, own):
            values = result["values"]
            vectors.add(number, {key: value.double().sum(0) for key, value in values.items() if value.dim() > 1})
            for key, value in values.items():
                if value.dim() == 1:
                    column = columns.setdefault(key, torch.zeros(len(clients), dtype=torch.float64))
                    column[torch.from_numpy(stack)] = value.double()
        return method.report(self.state, {key: column.sum() for key, column in columns.items()} | vectors.sums)


class Queue:
    """Sums of tensors that come in any order, added up in the order of their numbers 0, 1, …"""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.waiting: dict[int, dict[str, Tensor]] = {}
        self.next = 0

    def add(self, number: int, parts: dict[str, Tensor]) -> None:
        """One part; kept only until those before it are there."""
        self.waiting[number] = parts
        while self.next in self.waiting:
            for key, value in self.waiting.pop(self.next).items():
                self.sums[key] = self.sums[key] + value if key in self.sums else value
            self.next += 1


class Harvest:
    """What comes back in one round: the replies as columns in order of client id, and what each one cost."""

    def __init__(self, clients: Ints, down: int) -> None:
        count = len(clients)
        self.clients, self.down = clients, down
        self.columns: dict[str, Tensor] = {}
        self.up, self.evaluations = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self.seconds = np.zeros(count)
        self.fates = {fate: np.zeros(count, dtype=bool) for fate in FATES}
        self.failures: list[str] = []
        """Why clients failed whose replies were dropped."""

    def add(
        self, stack: Ints, result: Result, up: Ints, seconds: npt.NDArray[np.float64], fates: dict[str, Any]
    ) -> None:
        """One stack's replies, at their places."""
        rows = torch.from_numpy(stack)
        for key, value in result["sent"].items():
            if key not in self.columns:
                self.columns[key] = value.new_empty(len(self.clients), *value.shape[1:])
            self.columns[key].index_copy_(0, rows, value)
        self.up[stack], self.evaluations[stack], self.seconds[stack] = up, result["evaluations"], seconds
        for fate, who in fates.items():
            self.fates[fate][stack] = who
        self.failures += result.get("failures", [])

    def replies(self, sizes: Tensor) -> Replies | None:
        """The accepted ones; None when nobody's was."""
        accepted = self.fates["accepted"]
        if not accepted.any():
            return None
        if accepted.all():
            ids, columns = torch.from_numpy(self.clients), self.columns
        else:
            kept = torch.from_numpy(np.flatnonzero(accepted))
            ids = torch.from_numpy(self.clients)[kept]
            columns = {key: value[kept] for key, value in self.columns.items()}
        return Replies(ids, sizes[ids], columns)


def check_layout(method: Method, data: FederatedData) -> None:
    """Refuses a method whose clients hold something else than the clients of these data do."""
    name = name_of(method)
    if method.layout == "rows" and data.layout == "features":
        raise ConfigError(
            f"{name} trains clients that hold rows with their labels, but the clients of {data.name!r} hold columns of "
            "the same rows (partition = 'features'); use sharing-admm, or a partition by rows such as 'iid'"
        )
    if method.layout == "features" and data.layout == "rows":
        raise ConfigError(
            f"{name} trains clients that hold columns of the same rows, but the clients of {data.name!r} hold rows; "
            "set partition = 'features', or use a method for rows, such as admm"
        )


def _labels(problem: Problem) -> Labels:
    """What the server of a vertical federation holds: the labels of the training rows, in the parties' order."""
    return Labels(problem.y[problem.data.splits["train"][0]], problem.loss)


_HOW = ("model", "metrics", "adapt_steps", "adapt_lr")
