"""A method around another one: whatever it does not change, the inner method says and does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from fedloom.federation.client import Client
from fedloom.federation.problem import Problem
from fedloom.federation.replies import Reduce, Replies
from fedloom.methods.method import Context, Ints, Layout, Product, ScheduleName, ServerMethod
from fedloom.types import Memory, Message, State, Vector


@dataclass(frozen=True)
class Wrapper(ServerMethod):
    """Answers for the inner method; a subclass overrides what it changes.

    It is a method like any other: in experiment files the inner one is the table ``[method.inner]``.
    """

    inner: ServerMethod

    def __getattr__(self, name: str) -> Any:
        """A hyper-parameter of the inner method, for whoever asks the method as a whole."""
        if name == "inner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def layout(self) -> Layout:
        return self.inner.layout

    @property
    def default_rounds(self) -> int:
        return self.inner.default_rounds

    @property
    def default_dtype(self) -> Literal["float32", "float64"]:
        return self.inner.default_dtype

    @property
    def default_schedule(self) -> ScheduleName:
        return self.inner.default_schedule

    @property
    def default_buffer(self) -> int:
        return self.inner.default_buffer

    @property
    def needs_rounds(self) -> str | None:
        return self.inner.needs_rounds

    @property
    def needs_prior(self) -> bool:
        return self.inner.needs_prior

    @property
    def exact(self) -> bool:
        return self.inner.exact

    @property
    def remembers(self) -> bool:
        return self.inner.remembers

    @property
    def measures(self) -> bool:
        return self.inner.measures

    @property
    def per_row(self) -> tuple[str, ...]:
        return self.inner.per_row

    @property
    def per_client(self) -> tuple[str, ...]:
        return self.inner.per_client

    @property
    def evaluates(self) -> Product:
        return self.inner.evaluates

    @property
    def local_batch(self) -> int | None:
        return self.inner.local_batch

    @property
    def reduce(self) -> Reduce:
        return self.inner.reduce

    @property
    def coordinatewise(self) -> bool:
        return self.inner.coordinatewise

    def check(self, problem: Problem) -> None:
        self.inner.check(problem)

    def work(self, rows: Ints) -> Ints | None:
        return self.inner.work(rows)

    def server_init(self, ctx: Context) -> State:
        return self.inner.server_init(ctx)

    def client_init(self, client: Client, received: Message) -> Memory:
        return self.inner.client_init(client, received)

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return self.inner.broadcast(state, clients)

    def unicast(self, state: State, clients: Tensor) -> Message:
        return self.inner.unicast(state, clients)

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        return self.inner.client(client, received, memory)

    def weight(self, client: Client) -> Tensor | None:
        return self.inner.weight(client)

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        return self.inner.settle(client, memory, sent, inbox)

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return self.inner.server(state, replies, ctx)

    def model(self, state: State) -> Vector:
        return self.inner.model(state)

    def personal(self, client: Client, state: State, memory: Memory) -> Vector:
        return self.inner.personal(client, state, memory)

    def adapt(
        self, client: Client, state: State, theta: Vector, lr: float | None, steps: int | None, split: str
    ) -> Vector:
        return self.inner.adapt(client, state, theta, lr, steps, split)

    def measure(self, client: Client, received: Message, memory: Memory) -> dict[str, Tensor]:
        return self.inner.measure(client, received, memory)

    def report(self, state: State, sums: dict[str, Tensor]) -> dict[str, float]:
        return self.inner.report(state, sums)

    def done(self, state: State) -> bool:
        return self.inner.done(state)
