"""The asynchronous schedule on real devices: the clock is that on the wall, and replies come when they come."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from fedloom.engine.arrivals import Job, Staggered, rows_of
from fedloom.engine.engine import Groups, Row, Tally
from fedloom.engine.setting import Setting
from fedloom.errors import RunError
from fedloom.execution import Remote
from fedloom.execution.work import Trained
from fedloom.storage.store import MemoryStore


class Live(Staggered):
    """A device is asked again as soon as its reply is there; what ``simulated_seconds`` counts are real ones."""

    def __init__(self, setting: Setting, executor: Remote, store: MemoryStore) -> None:
        super().__init__(setting, executor, store)
        self.remote = executor
        self.working: dict[str, Job] = {}
        """Who is at work, by the number of the message."""
        self.void = 0
        """Rounds in which nothing was accepted, one after the other."""
        self._begun: float | None = None

    def step(self) -> Row:
        """As many ended jobs as clients work at a time."""
        tally = Tally()
        self._take_in_newcomers()
        while tally.ended < self.concurrency and self.now < self.until:
            self._tick()
            self._fill()
            ended = self._replied(tally)
            self._tick()
            self.take(sorted([*ended, *self._overdue(tally)], key=lambda job: job.client), tally)
        self.void = 0 if tally.fates["accepted"] else self.void + 1
        if self.void == self.remote.tries:
            raise RunError(
                f"in {self.void} rounds after each other no reply could be taken: {'; '.join(tally.failures[-8:])}. "
                "See to the nodes, and start the same run again: it goes on"
            )
        return self.finish(tally)

    def _tick(self) -> None:
        """Time goes on; a run that was resumed goes on from the time it had."""
        if self._begun is None:
            self._begun = time.monotonic() - self.now
        self.clocks.simulated_seconds = time.monotonic() - self._begun

    def _take_in_newcomers(self) -> None:
        before = set(self.candidates.tolist())
        self.welcome()
        self.idle += [client for client in self.candidates.tolist() if client not in before]

    def _fill(self) -> None:
        """Idle clients that are there are asked, as long as there are free places."""
        free = self.concurrency - len(self.working)
        if free <= 0 or not self.idle:
            return
        idle = np.array(sorted(self.idle))
        there = (self.remote.online(idle) if self.working else self.remote.there(idle)).tolist()
        chosen = sorted(there if len(there) <= free else self.by_rule(there, free))
        if not chosen:
            return
        call = self.call(np.array(chosen), self.wave)
        self.wave += 1
        stacks, works = self.turns(call)
        for stack, number in zip(stacks, self.remote.begin(call.received, works), strict=True):
            if number is not None:
                client = int(call.clients[stack[0]])
                self.idle.remove(client)
                job = Job(client, self.now, self.clocks.server_steps, int(call.down[stack[0]]), turn=call.turn)
                job.rows = (0, int(self.counts[client]))
                self.working[number] = job

    def _replied(self, tally: Tally) -> list[Job]:
        """The jobs whose replies have come."""
        ended = []
        for number, result in self.remote.finished(self.working):
            job = self.working.pop(number)
            tally.failures += result.failures
            ended.append(self._ended(job, result))
        return ended

    def _ended(self, job: Job, result: Trained) -> Job:
        job.ends = self.now
        job.fate = "accepted" if bool(result.finite.all()) else "failed"
        job.up, job.evaluations = result.bytes, int(result.evaluations[0])
        if job.fate == "accepted":
            (job.sent,) = rows_of(result.sent, 1)
            job.memory = {"turn": torch.tensor([job.turn])} if self.worker.remembers else {}
            job.figures = {key: float(value) for key, value in result.figures.items()}
            self.reply_bytes = job.up
        return job

    def _overdue(self, tally: Tally) -> list[Job]:
        """The jobs that nobody waits for any longer."""
        late = [number for number, job in self.working.items() if self.now - job.started > self.remote.patience]
        for number in late:
            job = self.working[number]
            job.ends, job.fate = self.now, "late"
            label = self.problem.data.label(job.client)
            tally.failures.append(f"client {label} failed: no reply within {self.remote.patience:g} seconds")
        return [self.working.pop(number) for number in late]

    def snapshot(self) -> tuple[Groups, dict[str, Any]]:
        groups, meta = super().snapshot()
        meta["flight"]["idle"] = self.idle + [job.client for job in self.working.values()]
        return groups, meta

    def restore(self, groups: Groups, meta: dict[str, Any]) -> None:
        super().restore(groups, meta)
        self.idle = self.candidates.tolist()  # nobody works for a server that has just come back
