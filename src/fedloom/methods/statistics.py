"""Any method on a model with running statistics (BatchNorm): the method has the parameters, the mean has the rest.

Running statistics are no parameters: no gradient moves them, and a server that sent them through Adam, a control
variate or a multiplier would make something of them that no network ever saw. So a method's server never has them. Its
messages and its state are of the parameters w alone, and beside them travels one more vector, s: what each client's
passes have made of the statistics that it was sent, averaged plainly, with the weights of the method.

    s ← s + Σ w_i (s_i − s) / Σ w_i        (after a round; variances never below 0)

A reply that is τ steps of the server old is one of the 1 + τ that were taken since: then the mean moves s by 1/(1 + τ).
Statistics of personal layers stay with their client.

On a client every model is a vector with a tail, (w, s), and brings its own statistics (``federation/statistics.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.client import Client
from fedloom.federation.data import SOURCE
from fedloom.federation.layers import Parts, named
from fedloom.federation.model import Model, of_each
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from fedloom.federation.replies import Replies
from fedloom.methods.method import Context, Lent, Method, ServerMethod, Wish
from fedloom.methods.personal import Personal, PersonalLayers
from fedloom.methods.wrapper import Wrapper
from fedloom.types import Memory, Message, State, Vector

KEY = "statistics"
"""Under which a server keeps and sends the running statistics, and clients say how they moved."""
_TAIL = "tail "


def with_statistics(method: Method, model: Model) -> Method:
    """The method as it runs on a model: where that has running statistics, they are averaged beside it."""
    if not model.statistics:
        return method
    if not isinstance(method, ServerMethod):
        raise ConfigError(
            f"{type(method).__name__} has no server that could average the running statistics of this model "
            "(BatchNorm); use a network with GroupNorm, which has none"
        )
    sent, mine = True, set[str]()
    inner: ServerMethod = Tailed(method, model.n, model.width)
    if isinstance(method, PersonalLayers):
        sent, mine = method.start == "sent", set(named(model.tensors, method.layers))
        work = Tailed(Work(method.inner, method), model.n, model.width)
        inner = Personal(work, layers=method.layers, start=method.start, publish=method.publish)
    own = [(where.stop - where.start, name in mine) for name, where in model.statistics.items()]
    spread = [(where.stop - where.start, name.endswith("var")) for name, where in model.statistics.items()]
    if isinstance(inner, Personal):  # a layer may have statistics and no parameters
        inner = replace(inner, layers=[name for name in model.slices if name in mine])
    return Statistics(inner, model.n, Parts(tuple(own)), Parts(tuple(spread)), sent)


@dataclass(frozen=True)
class Work(Wrapper):
    """The method inside personal layers, with what these let a client do."""

    inner: ServerMethod
    layers: PersonalLayers

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        return self.layers.work_on(client, received, memory)

    def adapt(self, client: Client, state: State, memory: Memory, theta: Vector, wish: Wish) -> Vector:
        return self.layers.adapt_on(client, state, memory, theta, wish)


@dataclass(frozen=True)
class Tailed(Wrapper):
    """The inner method, whose server has vectors of n numbers, with clients that have longer ones."""

    inner: ServerMethod
    n: int
    width: int

    def client_init(self, client: Client, received: Message) -> Memory:
        return self.inner.client_init(client, self._long(client, received))

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        reply, kept = self.inner.client(client, self._long(client, received), memory)
        tails = self._cut(reply, lambda each: each[..., self.n :]) if self.inner.remembers else {}
        kept = {**kept, **{f"{_TAIL}{key}": value for key, value in tails.items()}}
        return {**reply, **self._cut(reply, lambda each: each[..., : self.n])}, kept

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        """What the server has seen of a reply, and what it has not, as the client made it."""
        tails = {key.removeprefix(_TAIL): value for key, value in memory.items() if key.startswith(_TAIL)}
        kept = {key: value for key, value in memory.items() if not key.startswith(_TAIL)}
        whole = {key: self._joined(value, tails[key]) if key in tails else value for key, value in sent.items()}
        return self.inner.settle(client, kept, whole, self._long(client, inbox))

    def personal(self, client: Client, state: State, memory: Memory) -> Vector:
        return self.inner.personal(client, self._long(client, state), memory)

    def adapt(self, client: Client, state: State, memory: Memory, theta: Vector, wish: Wish) -> Vector:
        return self.inner.adapt(client, self._long(client, state), memory, theta, wish)

    def measure(self, client: Client, received: Message, memory: Memory) -> dict[str, Tensor]:
        said = self.inner.measure(client, self._long(client, received), memory)
        return {**said, **self._cut(said, lambda each: each[..., : self.n])}

    def _long(self, client: Client, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What has a number for each parameter, with the statistics that the client was sent or has as its tail."""
        assert client.statistics is not None
        found = dict(tensors)
        for key, value in tensors.items():
            if _several(value, self.n):
                found[key] = self._with(value, client.statistics)
        return found

    def _with(self, value: Tensor, tail: Tensor) -> Tensor:
        """One tail for all, or one for each client."""
        each = value.reshape(*value.shape[:-1], -1, self.n)
        if tail.dim() == 2:
            each = each.expand(len(tail), *each.shape[-2:]) if each.dim() == 2 else each
            tail = tail.reshape(len(tail), *(1,) * (each.dim() - 2), -1)
        return torch.cat([each, tail.expand(*each.shape[:-1], -1)], -1).flatten(-2)

    def _joined(self, value: Tensor, tails: Tensor) -> Tensor:
        several = value.shape[-1] // self.n
        parts = (part.reshape(*part.shape[:-1], several, -1) for part in (value, tails))
        return torch.cat(list(parts), -1).flatten(-2)

    def _cut(self, tensors: Mapping[str, Tensor], part: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """A part of what has a number for each number of a model with its tail."""
        long = {key: value for key, value in tensors.items() if _several(value, self.width)}
        return {key: of_each(value, self.width, part) for key, value in long.items()}


@dataclass(frozen=True)
class Statistics(Wrapper):
    """The inner method on the parameters, and the mean of the clients' running statistics beside it."""

    inner: ServerMethod
    n: int
    parts: Parts
    """Which statistics stay with the client."""
    spread: Parts
    """Which are variances."""
    sent: bool = True
    """Whether those that stay begin at the server's, which are then sent; otherwise at the module's own."""

    @property
    def remembers(self) -> bool:
        return self.inner.remembers or self._keeps

    @property
    def _keeps(self) -> bool:
        return self.parts.count(True) > 0

    def check(self, problem: Problem) -> None:
        """Refuses a server with several models; all else the method itself has refused already."""
        if self.inner.publishes and self._keeps:
            raise ConfigError(
                "clients cannot publish layers with running statistics (BatchNorm), which stay at home; set publish = "
                "false, choose other personal layers, or a network with GroupNorm"
            )
        sources, sizes = problem.data.with_role(SOURCE), problem.data.splits["train"].sizes
        blank = torch.zeros(problem.model.width, dtype=problem.dtype)
        ctx = Context(0, len(sources), sizes, problem.model.slices, blank, Draw(0), sources, prior=blank)
        for key, value in self.server_init(ctx).items():
            kept = key in self.inner.per_client or key in self.inner.per_pair
            if value.dim() > 1 and value.shape[-1] == self.n and not kept:
                raise ConfigError(
                    "the method keeps several models at its server, and one mean of running statistics (BatchNorm) "
                    "would fit none of them; use a network with GroupNorm, which has none"
                )

    def server_init(self, ctx: Context) -> State:
        prior = None if ctx.prior is None else ctx.prior[: self.n]
        state = self.inner.server_init(replace(ctx, theta0=ctx.theta0[: self.n], prior=prior))
        return {**state, KEY: ctx.theta0[self.n :]}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        s = state[KEY]
        s = s if self.sent and self._keeps else self.parts.take(s, False)
        return {**self.inner.broadcast(_rest(state), clients), **({KEY: s} if s.shape[-1] else {})}

    def unicast(self, state: State, clients: Tensor) -> Message:
        return self.inner.unicast(_rest(state), clients)

    def client_init(self, client: Client, received: Message) -> Memory:
        own = self._first(client, received)
        self._track(client, received, own)
        kept = self.inner.client_init(client, _rest(received)) if self.inner.remembers else {}
        return {**kept, **own}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        before = self._track(client, received, memory)
        reply, kept = self.inner.client(client, _rest(received), _rest(memory))
        assert client.trails is not None
        now = torch.stack([trail.now for trail in client.trails]) if client.stacked else client.trails[0].now
        own = {KEY: self.parts.take(now, True)} if self._keeps else {}
        moved = self.parts.take(now - before, False)
        said = {KEY: moved} if reply and moved.shape[-1] else {}  # who sends nothing sends no statistics
        return {**reply, **said}, {**kept, **own}

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        kept = _rest(memory)
        self._track(client, inbox, memory)
        if self.inner.remembers:
            kept = self.inner.settle(client, kept, _rest(sent), _rest(inbox))
        return {**kept, **({KEY: memory[KEY]} if self._keeps else {})}

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        new, s = self.inner.server(_rest(state), replies, ctx), state[KEY]
        there = replies.sums if replies.columns is None else replies.columns.values
        if KEY in there:
            age = float(replies.staleness.double().mean())
            moved = replies.mean(KEY) / (1 + age)
            s = s + self.parts.joined(moved, moved.new_zeros(self.parts.count(True)))
            s = self.spread.joined(self.spread.take(s, False), self.spread.take(s, True).clamp(min=0))
        return {**new, KEY: s}

    def shown(self, state: State, lent: Lent = "own") -> State:
        return {**self.inner.shown(_rest(state), lent), KEY: state[KEY]}

    def shown_each(self, state: State, clients: Tensor) -> State:
        return self.inner.shown_each(_rest(state), clients)

    def lent(self, client: Client, state: State, memory: Memory) -> Iterator[Memory]:
        own = {key: value for key, value in memory.items() if key == KEY}
        for borrowed in self.inner.lent(client, _rest(state), _rest(memory)):
            yield {**borrowed, **own}

    def model(self, state: State) -> Vector:
        return torch.cat([self.inner.model(_rest(state)), state[KEY]], -1)

    def personal(self, client: Client, state: State, memory: Memory) -> Vector:
        self._track(client, state, memory)
        return self.inner.personal(client, _rest(state), _rest(memory))

    def adapt(self, client: Client, state: State, memory: Memory, theta: Vector, wish: Wish) -> Vector:
        self._track(client, state, memory)
        return self.inner.adapt(client, _rest(state), _rest(memory), theta, wish)

    def measure(self, client: Client, received: Message, memory: Memory) -> dict[str, Tensor]:
        self._track(client, received, memory)
        return self.inner.measure(client, _rest(received), _rest(memory))

    def report(self, state: State, sums: dict[str, Tensor]) -> dict[str, float]:
        return self.inner.report(_rest(state), sums)

    def done(self, state: State, figures: Mapping[str, float]) -> bool:
        return self.inner.done(_rest(state), figures)

    def _track(self, client: Client, told: Mapping[str, Tensor], memory: Memory) -> Tensor:
        """The statistics with which the client begins: the server's, and its own where they stay at home."""
        s = told.get(KEY, client.n.new_zeros(0))
        if s.shape[-1] == self.parts.n and self._keeps:
            s = self.parts.take(s, False)
        if self._keeps:
            s = self.parts.joined(s, memory[KEY] if KEY in memory else self._first(client, told)[KEY])
        client.track(s)
        return s

    def _first(self, client: Client, received: Mapping[str, Tensor]) -> Memory:
        """The statistics of its own with which a client begins."""
        if not self._keeps:
            return {}
        s = received.get(KEY, client.n.new_zeros(0))
        if s.shape[-1] != self.parts.n:
            model = client.problem.model
            s = model.tailed(torch.zeros(model.n, dtype=client.problem.dtype))[model.n :]
        return {KEY: self.parts.take(s, True).expand(*client.n.shape[:-1], -1)}


def _several(value: Tensor, n: int) -> bool:
    """Whether a tensor has a number, or several, for each of n coordinates."""
    return value.dim() > 0 and value.shape[-1] > 0 and value.shape[-1] % n == 0


def _rest(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What is the inner method's own."""
    return {key: value for key, value in tensors.items() if key != KEY}
