"""An asynchronous run written by hand, as a second opinion: replies come one by one, made from states of long ago."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedloom.conformance.drive import made_up, walking
from fedloom.engine.rounds import Rounds
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from fedloom.federation.replies import WEIGHT, weighted
from fedloom.methods.method import Context, ServerMethod
from fedloom.types import Memory, Message, Vector


class Staggered:
    """All clients work all the time; client k's reply is there ``ticks[k]`` after it fetched the model.

    What happens at the same time: replies first, by client id, then a step of the server for each full ``buffer``, then
    whoever answered fetches what there is. What was broadcast comes as columns, unless ``apiece`` is False.
    """

    def __init__(
        self, problem: Problem, method: ServerMethod, ticks: Sequence[float], buffer: int = 1, apiece: bool = True
    ) -> None:
        self.problem, self.method, self.ticks, self.buffer = problem, method, ticks, buffer
        self.apiece = apiece
        with walking(Rounds, problem, method) as walk:
            self.base: Context = walk.context(0)
            self.state = walk.state
        self.t = 0
        """Steps of the server."""
        self.memories: dict[int, Memory] = {}
        self.held: list[tuple[int, int, Message]] = []
        """Replies that wait for the buffer to be full: who, when fetched, what."""
        self.under_way: dict[int, tuple[int, Message]] = {}
        self.queue: list[tuple[float, int]] = []
        self.staleness: list[int] = []
        """Of every reply so far."""
        for client in range(problem.data.clients):
            self.fetch(client, 0.0)

    def context(self) -> Context:
        """What the server knows now."""
        return replace(self.base, round=self.t, draw=Draw(0, self.t))

    def fetch(self, client: int, now: float) -> None:
        """The client gets what there is, as columns."""
        ids = torch.tensor([client])
        shared = self.method.broadcast(self.state, ids)
        if self.apiece:
            shared = {key: column(value, 1) for key, value in shared.items()}
        self.under_way[client] = (self.t, {**shared, **self.method.unicast(self.state, ids)})
        heapq.heappush(self.queue, (now + self.ticks[client], client))

    def instant(self) -> None:
        """All that happens at the next time at which something does: replies, steps of the server, fetching."""
        now = self.queue[0][0]
        free = []
        while self.queue and self.queue[0][0] == now:
            client = heapq.heappop(self.queue)[1]
            self.answer(client)
            free.append(client)
        while len(self.held) >= self.buffer:
            self.step()
        for client in free:
            self.fetch(client, now)

    def answer(self, number: int) -> None:
        """The client's work on what it fetched."""
        fetched, received = self.under_way.pop(number)
        client = self.problem.client(np.array([number]), Draw(0, fetched), delay=np.array([self.ticks[number]]))
        memory: Memory = {}
        if self.method.remembers:
            memory = self.memories.get(number) or self.method.client_init(client, received)
        reply, memory = self.method.client(client, received, memory)
        weight, sent = self.method.weight(client), reply
        if weight is not None and self.method.reduce == "sum":
            sent = weighted(weighted(reply, weight), weight, undo=True)  # as the server will have seen it
        self.memories[number] = self.method.settle(client, memory, sent, received)
        self.held.append((number, fetched, reply if weight is None else {**reply, WEIGHT: weight}))

    def step(self) -> None:
        """The server's step on the replies that came first, in order of client id."""
        taken, self.held = sorted(self.held[: self.buffer], key=lambda one: one[:2]), self.held[self.buffer :]
        clients = torch.tensor([client for client, _, _ in taken])
        columns = {key: torch.cat([reply[key] for _, _, reply in taken]) for key in taken[0][2]}
        staleness = torch.tensor([self.t - fetched for _, fetched, _ in taken])
        weight = columns.pop(WEIGHT, None)
        replies = made_up(self.method, clients.numpy(), columns, weight, staleness)
        self.state = self.method.server(self.state, replies, self.context())
        self.staleness += staleness.tolist()
        self.t += 1

    def run(self, steps: int) -> Vector:
        """The model once the server has taken so many more steps."""
        until = self.t + steps
        while self.t < until:
            self.instant()
        return self.method.model(self.state)


def column(value: Tensor, clients: int) -> Tensor:
    """What was broadcast, as so many clients of a stack get it who fetched alone."""
    return value.expand(clients, *(value.shape or (1,)))
