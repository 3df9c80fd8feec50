"""The asynchronous schedule: replies are taken as they arrive, in the order of a simulated clock.

A client has one job at a time: it fetches, works, replies. What it does depends only on what it fetched, so the jobs
that wait to be computed are computed together, in stacks and in parallel, as soon as the clock could reach the first of
them (a wave), and delivered when their time has come. Who computes with whom follows from the clock alone, so the
result depends neither on the executor nor on the machine.

What happens at one instant happens in this order: replies arrive, in order of client id, and the server takes a step
whenever its buffer is full; clients come back; free places are filled, so whoever fetches sees all of that.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch

from fedloom.engine.availability import gone_for_good
from fedloom.engine.engine import FATES, Call, Groups, Outcome, Row, ServerEngine, Tally
from fedloom.engine.fleet import Floats
from fedloom.engine.selection import Uniform
from fedloom.engine.setting import Setting
from fedloom.errors import ClientError, RunError
from fedloom.execution import Executor
from fedloom.execution.work import Trained
from fedloom.federation.ragged import Ints, Window
from fedloom.federation.randomness import Draw
from fedloom.methods import name_of
from fedloom.storage.store import MemoryStore
from fedloom.types import Memory, Message, Vector

_BLOCK = 256  # random numbers that are drawn at a time
_TENSORS = ("received", "own", "theta", "sent", "memory")
"""What a checkpoint keeps of a job beside the words and numbers that it says of it."""


@dataclass(eq=False, slots=True)
class Job:
    """One client's work, from the fetch to the reply."""

    client: int
    started: float
    version: int
    """Steps of the server when it fetched."""
    down: int
    received: Message | None = None
    """What it fetched; None once it is computed."""
    own: Message | None = None
    """What it alone fetched; this, ``sent`` and ``memory`` are columns of one row."""
    rows: tuple[int, int] = (0, 0)
    """The first row that it held when it fetched, which matters where data keep arriving, and how many."""
    theta: Vector | None = None
    """Where data keep arriving: the model that new rows are evaluated by."""
    ends: float = math.inf
    """When its reply is there, or was due; at first the earliest time at which that could be."""
    fate: str = ""
    up: int = 0
    evaluations: int = 0
    sent: Message | None = None
    memory: Memory | None = None
    figures: dict[str, float] = field(default_factory=dict)
    """What the channel has to say of its reply."""
    turn: int = 0
    """Of a real device: the turn that it was asked for."""
    round: int = 0
    """The round in which it fetched."""


class Staggered(ServerEngine):
    """The server takes a step for every reply, or for every ``buffer`` of them; ``concurrency`` clients work at a time.

    A round is when as many jobs have ended, whatever became of them, as clients work at a time: the same work as a
    round of the synchronous schedule with as many clients. Whose clock it is, is the subclass's matter.
    """

    def __init__(self, setting: Setting, executor: Executor, store: MemoryStore) -> None:
        super().__init__(setting, executor, store)
        everybody = len(self.candidates)
        schedule = setting.schedule.settled(self.method, getattr(setting.select, "count", everybody))
        self.concurrency, self.buffer_size = min(schedule.concurrency or 1, everybody), schedule.buffer or 1
        self.until = schedule.seconds or math.inf
        self.idle: list[int] = self.candidates.tolist()
        self.waiting: list[Job] = []
        """Jobs that are still to be computed, which is done in the next wave."""
        self.earliest = math.inf
        """When the first of these could end."""
        self.flight: list[tuple[float, int, Job]] = []
        """Computed jobs, a heap by the time of their end and the client."""
        self.sleeping: list[tuple[float, int]] = []
        """When clients that are away come back, a heap; who never does is in none of these lists."""
        self.buffer: list[Job] = []
        """Accepted replies that no step was taken on yet."""
        self.wave = 0
        self.picks = 0
        self._numbers: list[float] = []

    def take(self, ended: Sequence[Job], tally: Tally) -> None:
        """Jobs that have ended, in their order: the server takes a step for each full buffer of accepted replies."""
        accepted = []
        for job in ended:
            self._add(job, tally)
            self.idle.append(job.client)
            if job.fate == "accepted":
                if self.online is not None:
                    self.online.tell(np.array([job.client]), np.array([job.rows[1]]))
                accepted.append(job)
                self.buffer.append(job)
                if len(self.buffer) == self.buffer_size:
                    self._update()
        if accepted and accepted[0].memory:
            memories = [job.memory or {} for job in accepted]
            window = None if self.online is None else _window(accepted)
            self.keep(np.array([job.client for job in accepted]), columns_of(memories), window)

    def _add(self, job: Job, tally: Tally) -> None:
        """One job has ended."""
        tally.ended += 1
        tally.fates[job.fate] += 1
        tally.up += job.up if job.fate != "dropped" else 0
        tally.down += job.down
        tally.evaluations += job.evaluations
        if job.fate == "accepted":
            tally.ages.append(self.clocks.server_steps - job.version)
            for key, value in job.figures.items():
                tally.figures[key] = tally.figures.get(key, 0.0) + value
        if job.client in self.shown:
            tally.jobs.append([job.client, job.started, job.ends, job.fate])

    def _update(self) -> None:
        """The server's step on the replies in its buffer."""
        jobs = sorted(self.buffer, key=lambda job: job.client) if len(self.buffer) > 1 else self.buffer
        self.buffer = []
        steps = self.clocks.server_steps
        clients = torch.from_numpy(np.array([job.client for job in jobs]))
        staleness = torch.from_numpy(np.array([steps - job.version for job in jobs]))
        self.update(clients, columns_of([job.sent or {} for job in jobs]), staleness, steps)

    def by_rule(self, idle: list[int], count: int) -> list[int]:
        """So many of the idle ones by the selection's own rule."""
        select = self.setting.select
        ctx = replace(self.context(self.clocks.server_steps), draw=Draw(self.setting.seed, self.picks))
        self.picks += 1
        rule = replace(select, count=count) if hasattr(select, "count") else select  # type: ignore[type-var]
        chosen: list[int] = rule.pick(np.sort(np.array(idle)), ctx)[:count].tolist()
        return chosen

    def _uniform(self) -> float:
        """The next random number of the server's choices."""
        block, at = divmod(self.picks, _BLOCK)
        if at == 0 or len(self._numbers) == 0:
            self._numbers = Draw(self.setting.seed, block).uniform("next client", 0, _BLOCK).tolist()
        self.picks += 1
        return self._numbers[at]

    def finish(self, tally: Tally) -> Row:
        """A round is over, in which these jobs ended."""
        count = max(len(tally.ages), 1)
        tally.figures = {key: value / count for key, value in tally.figures.items()}
        return self.record(tally) | {"staleness": {"mean": sum(tally.ages) / count, "max": max(tally.ages, default=0)}}

    def snapshot(self) -> tuple[Groups, dict[str, Any]]:
        groups, meta = super().snapshot()
        jobs = [*self.waiting, *(job for *_, job in sorted(self.flight)), *self.buffer]
        counts = [len(self.waiting), len(self.flight), len(self.buffer)]
        meta["flight"] = {
            "counts": counts,
            "wave": self.wave,
            "picks": self.picks,
            "idle": self.idle,
            "sleeping": sorted(self.sleeping),
            "jobs": [{f.name: getattr(job, f.name) for f in fields(Job) if f.name not in _TENSORS} for job in jobs],
        }
        groups["flight"] = {}
        for number, job in enumerate(jobs):
            parts = {"own": job.own, "sent": job.sent, "memory": job.memory}
            for part, message in parts.items():
                groups["flight"] |= {f"{number}/{part}/{key}": value for key, value in (message or {}).items()}
        for version, message in {job.version: job.received for job in self.waiting}.items():
            groups["flight"] |= {f"fetched/{version}/{key}": value for key, value in (message or {}).items()}
        testing = {job.version: job.theta for job in self.waiting if job.theta is not None}
        groups["flight"] |= {f"testing/{version}": theta for version, theta in testing.items()}
        return groups, meta

    def restore(self, groups: Groups, meta: dict[str, Any]) -> None:
        super().restore(groups, meta)
        saved, kept = meta["flight"], groups.get("flight", {})
        self.wave, self.picks, self.idle = saved["wave"], saved["picks"], saved["idle"]
        self.sleeping = [(back, client) for back, client in saved["sleeping"]]
        parts: dict[str, Message] = {}
        for name, value in kept.items():
            of, part, *key = name.split("/", 2)  # a key may have a stroke in it
            parts.setdefault(f"{of}/{part}", {})["".join(key)] = value
        jobs = []
        for number, written in enumerate(saved["jobs"]):
            if not isinstance(written, dict):
                raise RunError(
                    "the run was begun by an older fedloom, whose jobs in flight this one cannot read; go on with it "
                    "by the fedloom that began it, or start it again with --force"
                )
            job = Job(**{"round": self.clocks.round, **written, "rows": tuple(written["rows"])})
            job.own, job.sent, job.memory = (parts.get(f"{number}/{part}", {}) for part in ("own", "sent", "memory"))
            jobs.append(job)
        waiting, flying, _ = saved["counts"]
        self.waiting, self.buffer = jobs[:waiting], jobs[waiting + flying :]
        self.flight = [(job.ends, job.client, job) for job in jobs[waiting : waiting + flying]]
        for job in self.waiting:
            job.received, job.theta = parts.get(f"fetched/{job.version}", {}), kept.get(f"testing/{job.version}")
        self.earliest = min((job.ends for job in self.waiting), default=math.inf)


class Arrivals(Staggered):
    """In the order of a simulated clock."""

    def __init__(self, setting: Setting, executor: Executor, store: MemoryStore) -> None:
        super().__init__(setting, executor, store)
        self._bounds: dict[int, float] | None = None

    def restore(self, groups: Groups, meta: dict[str, Any]) -> None:
        super().restore(groups, meta)
        jobs = [*self.waiting, *(job for *_, job in self.flight), *self.buffer]
        if not {*self.candidates.tolist()} >= {*self.idle, *(job.client for job in jobs)}:
            raise ValueError("its jobs in flight are of others than the run's clients")

    def step(self) -> Row:
        """As many ended jobs as clients work at a time."""
        tally = Tally()
        if not self.flight and not self.waiting:
            self._fill(tally)
        while tally.ended < self.concurrency:
            now = self._next()
            if self.waiting and self.earliest <= now:
                tally.failures += self._compute()
            elif now == math.inf:
                raise gone_for_good(self.now, len(self.candidates))
            elif now > self.until:
                self.clocks.simulated_seconds = self.until
                break
            else:
                self.clocks.simulated_seconds = now
                self._take_in(tally)
                while self.sleeping and self.sleeping[0][0] == now:
                    self.idle.append(heapq.heappop(self.sleeping)[1])
                self._fill(tally)
        return self.finish(tally)

    def _next(self) -> float:
        """When something happens next, of what is computed."""
        reply = self.flight[0][0] if self.flight else math.inf
        return min(reply, self.sleeping[0][0]) if self.sleeping else reply

    def _take_in(self, tally: Tally) -> None:
        """The replies of this instant; the server takes a step for each full buffer of them."""
        now, flight, ended = self.now, self.flight, []
        while flight and flight[0][0] == now:
            ended.append(heapq.heappop(flight)[2])
        self.take(ended, tally)

    def _fill(self, tally: Tally) -> None:
        """Idle clients fetch as long as there are free places."""
        free = self.concurrency - len(self.flight) - len(self.waiting)
        clients = self._choose(free, tally) if free > 0 and self.idle else []
        if not clients:
            return
        ids, now, steps = np.array(clients), self.now, self.clocks.server_steps
        # Who fetches when the last job of a round has ended takes part in the next.
        under_way = self.clocks.round + int(tally.ended >= self.concurrency)
        window, theta = None, None
        if self.online is not None:
            self.online.meet(ids, now)
            window, theta = self.online.windows(ids, now), self.testing()
        received, columns, down = self.sent(ids)
        for i, (client, own) in enumerate(zip(clients, rows_of(columns, len(clients)), strict=True)):
            rows = (0, self.counts.item(client)) if window is None else (int(window[0][i]), int(window[1][i]))
            job = Job(client, now, steps, down, received, own, rows, theta, round=under_way)
            job.ends = now + self._least(job)
            self.waiting.append(job)
            self.earliest = min(self.earliest, job.ends)

    def _choose(self, free: int, tally: Tally) -> list[int]:
        """Who fetches next: up to so many idle clients, in order of client id; they are idle no longer."""
        idle, out = self._reachable()
        chosen: list[int] = []
        if len(idle) > free and isinstance(self.setting.select, Uniform):
            while len(chosen) < free and idle:  # a swap with the last one: no list is ever copied
                at = int(self._uniform() * len(idle))
                idle[at], idle[-1] = idle[-1], idle[at]
                chosen += self._there([idle.pop()], tally)
        else:
            idle = self._there(idle, tally)
            chosen = idle if len(idle) <= free else self.by_rule(idle, free)
            idle = [client for client in idle if client not in set(chosen)] if len(chosen) < len(idle) else []
        self.idle = idle + out if out else idle
        return sorted(chosen)

    def _there(self, clients: list[int], tally: Tally) -> list[int]:
        """Those who are there; the others sleep until they come back."""
        availability, now = self.setting.availability, self.now
        if availability.always and self.online is None:
            return clients
        found = []
        for client in clients:
            ready = now if self.online is None else self.online.ready(client, now)
            back, _ = availability.presence(client, ready) if ready < math.inf else (ready, ready)
            if back <= now:
                found.append(client)
            elif back < math.inf:
                heapq.heappush(self.sleeping, (back, client))
            if back > now and client in self.shown:
                tally.away += self.absences([client])
        return found

    def _reachable(self) -> tuple[list[int], list[int]]:
        """Who of the idle ones can be reached in this wave, and who cannot."""
        if self.fleet.unavailable == 0:
            return self.idle, []
        while True:
            reached = set(self.fleet.reachable(np.array(self.idle), Draw(self.setting.seed, self.wave)).tolist())
            if reached or self.flight or self.waiting or self.sleeping:
                break
            self.wave += 1  # nobody else is at work: the server tries again
        return [i for i in self.idle if i in reached], [i for i in self.idle if i not in reached]

    def _least(self, job: Job) -> float:
        """Seconds that a job takes at the least, as far as it is known before it is computed."""
        if self.fleet.redraw or self.online is not None:
            return float(self._bound(np.array([job.client]), np.array([job.rows[1]]))[0])
        if self._bounds is None:
            bounds = self._bound(self.candidates, self.counts[self.candidates])
            self._bounds = dict(zip(self.candidates.tolist(), bounds.tolist(), strict=True))
        return self._bounds[job.client]

    def _bound(self, clients: Ints, rows: Ints) -> Floats:
        """Delays, and the work that the method promises unless somebody may be cut short or slowed down."""
        fleet, method, seed = self.fleet, self.method, self.setting.seed
        varies = fleet.stragglers > 0 or fleet.jitter > 0 or fleet.redraw_speed
        cut = varies or (fleet.deadline is not None and fleet.late == "partial")
        work = None if cut else method.work(rows)
        least = fleet.seconds(clients, seed, 0, 0, np.zeros_like(clients) if work is None else work, self.wave)
        least = least if fleet.deadline is None else np.minimum(least, fleet.deadline)
        return least * (1 - 1e-9)  # the same terms, summed up in another order, must not be below it

    def _compute(self) -> list[str]:
        """The wave: everything that waits is computed; gives the failures that the run goes on with."""
        jobs = sorted(self.waiting, key=lambda job: job.client)
        self.waiting, self.earliest = [], math.inf
        call = _together(jobs, self.wave, self.online is not None)
        if self.method.by_round:
            call = replace(call, rounds=np.array([job.round for job in jobs]))
        failures: list[str] = []
        stacks, works = self.turns(call)
        for number, result in self.executor.map(call.received, works):
            stack = stacks[number]
            outcome = self.receive(call, stack, result)
            failures += result.failures
            self._computed([jobs[place] for place in stack.tolist()], result, outcome)
        self.reply_bytes = max((job.up for job in jobs), default=0)
        self.wave += 1
        return failures

    def _computed(self, jobs: list[Job], result: Trained, outcome: Outcome) -> None:
        """A stack's results, each with its job until that ends. What executors give is overwritten, so it is copied."""
        sent = {key: value.clone() for key, value in result.sent.items()}
        memory = {key: value.clone() for key, value in outcome.memory.items()}
        limit = math.inf if self.fleet.deadline is None else self.fleet.deadline  # after that nobody waits for it
        columns = zip(
            jobs,
            outcome.seconds.tolist(),
            _fates(outcome),
            outcome.up.tolist(),
            result.evaluations.tolist(),
            rows_of(sent, len(jobs)),
            rows_of(result.figures, len(jobs)),
            strict=True,
        )
        memories = iter(rows_of(memory, len(outcome.kept)))
        for job, seconds, fate, up, evaluations, message, figures in columns:
            job.ends = self._kept_promise(job, job.started + min(seconds, limit))
            job.fate, job.up, job.evaluations = fate, up, evaluations
            job.figures = {key: float(value) for key, value in figures.items()}
            job.received = job.own = job.theta = None
            if fate == "accepted":
                job.sent, job.memory = message, next(memories)
            heapq.heappush(self.flight, (job.ends, job.client, job))

    def _kept_promise(self, job: Job, ends: float) -> float:
        """When it really ends; the clock may have passed that time if the client did less than the method said."""
        if ends < job.ends:
            raise ClientError(
                f"client {self.problem.data.label(job.client)} did less than {name_of(self.setting.method)}.work says; "
                "make work return what the client really does, or None"
            )
        return ends


def _together(jobs: Sequence[Job], turn: int, online: bool) -> Call:
    """Jobs as one call: what they received is shared if all fetched the same, and columns otherwise."""
    clients = np.array([job.client for job in jobs], dtype=np.int64)
    down = np.array([job.down for job in jobs], dtype=np.int64)
    own = columns_of([job.own or {} for job in jobs])
    received, theta = jobs[0].received or {}, jobs[0].theta
    if any(job.version != jobs[0].version for job in jobs):
        fetched = {key: torch.stack([(job.received or {})[key] for job in jobs]) for key in received}
        own |= {key: value.unsqueeze(-1) if value.dim() == 1 else value for key, value in fetched.items()}
        received = {}
        theta = None if theta is None else torch.stack([job.theta for job in jobs if job.theta is not None])
    call = Call(clients, received, own, turn, down, np.array([job.started for job in jobs]))
    if not online:
        return call
    return replace(call, window=_window(jobs), theta=theta)


def _window(jobs: Sequence[Job]) -> Window:
    """The rows that clients held when they fetched."""
    first, held = np.array([job.rows for job in jobs], dtype=np.int64).T.copy()
    return first, held


def _fates(outcome: Outcome) -> list[str]:
    """What became of each client of a stack."""
    names = np.empty(len(outcome.up), dtype=object)
    for fate in FATES:
        names[outcome.fates[fate]] = fate
    return names.tolist()


def rows_of(columns: Message, count: int) -> list[Message]:
    """Columns taken apart: columns of one row for each of so many clients."""
    if not columns:
        return [{} for _ in range(count)]
    apart = zip(*(torch.split(value, 1) for value in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in apart]


def columns_of(messages: list[Message]) -> Message:
    """Columns put together; rows of unequal length are filled up with zeros."""
    if len(messages) == 1:
        return messages[0]
    found = {}
    for key in messages[0] if messages else ():
        rows = [message[key] for message in messages]
        if rows[0].dim() > 1 and any(row.shape != rows[0].shape for row in rows):
            longest = max(row.shape[1] for row in rows)
            rows = [torch.cat([row, row.new_zeros(1, longest - row.shape[1], *row.shape[2:])], 1) for row in rows]
        found[key] = torch.cat(rows)
    return found
