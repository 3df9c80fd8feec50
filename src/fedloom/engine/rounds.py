"""The synchronous schedule: the same five steps in every round, whatever the method."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.engine.availability import gathered
from fedloom.engine.engine import FATES, Call, Outcome, Row, ServerEngine, Tally
from fedloom.execution.room import Room
from fedloom.execution.work import Trained
from fedloom.federation.ragged import Ints


class Rounds(ServerEngine):
    """In every round the server waits for all who were asked, or until the deadline."""

    def step(self) -> Row:
        """One round: select, broadcast, client update, aggregate, server update."""
        self.welcome()
        t = self.clocks.round
        there, away = self._gather()
        ctx = self.context(t)
        candidates = self.fleet.reachable(there, ctx.draw)
        clients = self.setting.select.pick(candidates, ctx) if self.method.layout != "pooled" else self.candidates
        call = self.call(clients, t)
        harvest = Harvest(call, self.executor.room())
        stacks, works = self.turns(call)
        for number, result in self.executor.map(call.received, works):
            stack = stacks[number]
            outcome = self.receive(call, stack, result)
            harvest.add(stack, result, outcome)
            self.keep(clients[stack][outcome.kept], outcome.memory, outcome.window)
        self._tell(harvest)
        if harvest.fates["accepted"].any():
            self.update(*harvest.accepted(), staleness=None, t=t, rest=harvest.room.rest)
        return self._record(harvest, away)

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

    def _tell(self, harvest: Harvest) -> None:
        """The server learns from this round's replies how many rows their clients have."""
        if self.online is not None and harvest.call.window is not None:
            accepted = harvest.fates["accepted"]
            self.online.tell(harvest.call.clients[accepted], harvest.call.window[1][accepted])

    def _record(self, harvest: Harvest, away: list[Any]) -> Row:
        tally = Tally(
            ended=len(harvest.call.clients),
            up=int(harvest.up[~harvest.fates["dropped"]].sum()),
            down=int(harvest.call.down.sum()),
            evaluations=int(harvest.evaluations.sum()),
            fates={fate: int(harvest.fates[fate].sum()) for fate in FATES},
            figures=harvest.figures(),
            failures=harvest.failures,
            jobs=harvest.jobs(self.now, self.shown) if self.now > 0 or harvest.seconds.any() else [],
            away=away,
        )
        self.clocks.simulated_seconds += self.fleet.round_seconds(harvest.seconds, harvest.fates)
        self.reply_bytes = int(harvest.up.max(initial=0))
        return self.record(tally)


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
        self._figures: dict[str, Tensor] = {}

    def add(self, stack: Ints, result: Trained, outcome: Outcome) -> None:
        """One stack's replies, at their places."""
        rows = torch.from_numpy(stack)
        for key, value in result.sent.items():
            if key not in self.columns:
                self.columns[key] = self.room.column(len(self.call.clients), value)
            self.columns[key].index_copy_(0, rows, value)
        self.room.rest()
        self.up[stack], self.evaluations[stack] = outcome.up, result.evaluations
        self.seconds[stack] = outcome.seconds
        for fate, who in outcome.fates.items():
            self.fates[fate][stack] = who
        for key, figure in result.figures.items():
            self._figures.setdefault(key, torch.zeros(len(self.up), dtype=torch.float64))[rows] = figure.double()
        self.failures += result.failures

    def figures(self) -> dict[str, float]:
        """What the channel has to say of the accepted replies, on average."""
        who = torch.from_numpy(self.fates["accepted"])
        return {key: float(column[who].mean()) for key, column in self._figures.items() if bool(who.any())}

    def jobs(self, started: float, shown: set[int]) -> list[list[Any]]:
        """Client, start, end and fate of those clients that are shown."""
        found = []
        for i, client in enumerate(self.call.clients.tolist()):
            if client in shown:
                fate = next(fate for fate in FATES if self.fates[fate][i])
                found.append([client, started, started + float(self.seconds[i]), fate])
        return found

    def accepted(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The ids of those whose replies were accepted, and these as columns."""
        accepted, ids = self.fates["accepted"], torch.from_numpy(self.call.clients)
        if accepted.all():
            return ids, self.columns
        kept = torch.from_numpy(np.flatnonzero(accepted))
        return ids[kept], {key: self.room.only(value, kept) for key, value in self.columns.items()}
