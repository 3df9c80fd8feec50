"""The synchronous schedule: the same five steps in every round, whatever the method."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.engine.availability import gathered
from fedloom.engine.engine import FATES, Call, Engine, Ints, Outcome, Row
from fedloom.execution.room import Room
from fedloom.execution.worker import Result
from fedloom.federation.replies import Replies


class Rounds(Engine):
    """In every round the server waits for all who were asked, or until the deadline."""

    def step(self) -> Row:
        """One round: select, broadcast, client update, aggregate, server update."""
        started = time.perf_counter()
        self.welcome()
        method, t = self.setting.method, self.clocks.round
        there, away = self._gather()
        ctx = self.context(t)
        candidates = self.fleet.reachable(there, ctx.draw)
        clients = self.setting.select.pick(candidates, ctx) if method.layout != "pooled" else self.candidates
        call = self.call(clients, t)
        harvest = Harvest(call, self.executor.room())
        for _, stack, result in self.ask("client", call):
            outcome = self.judge(call, stack, result)
            harvest.add(stack, result, outcome)
            self.keep(clients[stack][outcome.kept], outcome.memory, outcome.window)
        replies = harvest.replies(self._told(harvest))
        if replies is not None:
            self.state = method.server(self.state, replies, self.context(t))
            self.clocks.server_steps += 1
        return self._record(harvest, started) | ({"away": away} if away else {})

    def _gather(self) -> tuple[Ints, list[Any]]:
        """Who can be asked: those who are there and have rows; the clock goes on until somebody is. And who is away."""
        online, clocks = self.online, self.clocks
        ready = None if online is None else online.arrivals.first(self.candidates)
        now, there = gathered(self.setting.availability, self.candidates, clocks.simulated_seconds, ready)
        clocks.simulated_seconds = now
        there = self.executor.there(there)
        if online is not None:
            online.meet(there, now)
        missing = len(there) < len(self.candidates)
        return there, self.absences(sorted(self.shown - set(there.tolist()))) if missing else []

    def _told(self, harvest: Harvest) -> Tensor:
        """The rows of every client as the server knows them after this round's replies."""
        if self.online is None or harvest.call.window is None:
            return self.sizes
        accepted = harvest.fates["accepted"]
        self.online.tell(harvest.call.clients[accepted], harvest.call.window[1][accepted])
        return self.online.sizes

    def _record(self, harvest: Harvest, started: float) -> Row:
        clocks = self.clocks
        clocks.round += 1
        jobs = harvest.jobs(clocks.simulated_seconds, self.shown)
        clocks.simulated_seconds += self.fleet.round_seconds(harvest.seconds, harvest.fates)
        clocks.bytes_up += int(harvest.up[~harvest.fates["dropped"]].sum())
        clocks.bytes_down += int(harvest.call.down.sum())
        clocks.gradient_evaluations += int(harvest.evaluations.sum())
        clocks.wall_seconds += time.perf_counter() - started
        self.reply_bytes = int(harvest.up.max(initial=0))
        counts = {fate: int(harvest.fates[fate].sum()) for fate in FATES}
        row: Row = {**asdict(clocks), "selected": len(harvest.call.clients), **counts, **self.fresh_tests()}
        if clocks.simulated_seconds > 0:
            row["jobs"] = jobs
        return row | {"failures": harvest.failures} if harvest.failures else row


class Harvest:
    """What comes back in one round: the replies as columns in order of client id, and what each one cost."""

    def __init__(self, call: Call, room: Room) -> None:
        count = len(call.clients)
        self.call, self.room = call, room
        self.columns: dict[str, Tensor] = {}
        self.up, self.evaluations = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self.seconds = np.zeros(count)
        self.fates = {fate: np.zeros(count, dtype=bool) for fate in FATES}
        self.failures: list[str] = []
        """Why clients failed whose replies were dropped."""

    def add(self, stack: Ints, result: Result, outcome: Outcome) -> None:
        """One stack's replies, at their places."""
        rows = torch.from_numpy(stack)
        for key, value in result["sent"].items():
            if key not in self.columns:
                self.columns[key] = self.room.column(len(self.call.clients), value)
            self.columns[key].index_copy_(0, rows, value)
        self.room.rest()
        self.up[stack], self.evaluations[stack] = outcome.up, result["evaluations"]
        self.seconds[stack] = outcome.seconds
        for fate, who in outcome.fates.items():
            self.fates[fate][stack] = who
        self.failures += result.get("failures", [])

    def jobs(self, started: float, shown: set[int]) -> list[list[Any]]:
        """Client, start, end and fate of those clients that are shown."""
        found = []
        for i, client in enumerate(self.call.clients.tolist()):
            if client in shown:
                fate = next(fate for fate in FATES if self.fates[fate][i])
                found.append([client, started, started + float(self.seconds[i]), fate])
        return found

    def replies(self, sizes: Tensor) -> Replies | None:
        """The accepted ones; None when nobody's was."""
        accepted = self.fates["accepted"]
        if not accepted.any():
            return None
        if accepted.all():
            ids, columns = torch.from_numpy(self.call.clients), self.columns
        else:
            kept = torch.from_numpy(np.flatnonzero(accepted))
            ids = torch.from_numpy(self.call.clients)[kept]
            columns = {key: self.room.only(value, kept) for key, value in self.columns.items()}
        return Replies(ids, sizes[ids], columns, torch.zeros_like(ids), self.room.rest)
