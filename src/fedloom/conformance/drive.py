"""How the kit makes a method move, and how it compares where it got to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from fedloom.channel import Channel
from fedloom.engine.engine import Engine
from fedloom.engine.selection import All
from fedloom.engine.setting import Setting
from fedloom.errors import ConfigError
from fedloom.execution import Executor, Serial
from fedloom.federation.client import Client
from fedloom.federation.problem import Problem
from fedloom.federation.ragged import Ints
from fedloom.federation.randomness import Draw
from fedloom.federation.replies import Replies
from fedloom.methods.method import Method, ServerMethod, shown_to
from fedloom.methods.personal import PersonalLayers
from fedloom.storage.store import MemoryStore
from fedloom.types import Memory, Message, State, Vector

Walk = Engine
"""A run under way, whatever its schedule."""
Schedule = Callable[[Setting, Executor, MemoryStore], Walk]


@runtime_checkable
class Open(Protocol):
    """An executor whose clients remember elsewhere, and let the kit look."""

    def recalled(self, client: int, turn: int) -> Memory:
        """What a client remembers after a turn that was accepted."""


@contextmanager
def walking(
    schedule: Schedule, problem: Problem, method: Method, executor: Executor | None = None, /, **how: Any
) -> Iterator[Walk]:
    """A run of this method at its start; ``how`` are further fields of a Setting. All is given back at the end."""
    setting = Setting(problem, method, **{"select": All(), "evaluations": (), **how})
    setting.check()
    chosen = executor or Serial()
    if chosen.remembers and not isinstance(chosen, Open):
        raise ConfigError(
            f"clients of the executor {chosen.name!r} keep what they remember to themselves, and the kit has to "
            "compare it; give an executor whose clients are here, with a function recalled(client, turn)"
        )
    with MemoryStore() as store:
        try:
            yield schedule(setting, chosen, store)
        finally:
            chosen.close()


def stepped(walk: Walk, rounds: int = 1) -> Walk:
    """The run so many rounds later."""
    for _ in range(rounds):
        walk.step()
    return walk


def has_converged(walk: Walk) -> bool:
    """Whether the method says that it is done, by its state and by what it would report now."""
    return walk.setting.method.done(walk.state, walk.evaluator.measures())


def product(walk: Walk, clients: Tensor) -> Tensor:
    """What the method makes: the common model, or, of a method with personal models, that of each of these clients."""
    method = walk.setting.method
    if method.evaluates != "personal" and not isinstance(method, PersonalLayers):
        return walk.theta()
    client = walk.problem.client(clients.numpy(), Draw(walk.setting.seed, walk.clocks.round))
    shown = shown_to(walk.method, client, walk.state)
    return walk.method.personal(client, shown, recall(walk, clients)).expand(len(clients), -1)


def recall(walk: Walk, clients: Tensor) -> Memory:
    """The memories of these clients as columns, all of whom must have taken part."""
    if not walk.method.remembers:
        return {}
    memory, known = gathered(walk, clients)
    if not bool(known.all()):
        missing = clients[~known].tolist()
        raise AssertionError(f"clients {missing} have no memory after {walk.clocks.round} rounds")
    return memory


def gathered(walk: Walk, clients: Tensor) -> tuple[Memory, Tensor]:
    """The memories of those of these clients who have one, as columns, wherever they are, and who that is."""
    columns, known = walk.store.gather(clients)
    if not isinstance(walk.executor, Open) or not bool(known.any()):
        return columns, known
    with MemoryStore() as copies:
        for client, turn in zip(clients[known].tolist(), columns["turn"].tolist(), strict=True):
            copies.put(client, walk.executor.recalled(client, turn))
        return copies.gather(clients)


def memory_of(walk: Walk, client: int) -> Memory:
    """What one client remembers, if anything."""
    columns, known = gathered(walk, torch.tensor([client]))
    return {key: column[0] for key, column in columns.items()} if bool(known) else {}


def everything(walk: Walk) -> dict[str, Tensor]:
    """The server's state and all clients' memories in one dict."""
    return in_one(walk.state, {client: memory_of(walk, client) for client in walk.store.clients().tolist()})


def in_one(state: State, memories: Mapping[int, Memory]) -> dict[str, Tensor]:
    """A server's state and clients' memories in one dict."""
    return labelled({"state": state, **{f"client {client}'s memory": own for client, own in memories.items()}})


def labelled(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Several dicts in one, whose keys say of which dict they were."""
    return {f"{name} {key}": value for name, own in parts.items() for key, value in own.items()}


@dataclass(frozen=True, eq=False)
class Moment:
    """A method in the midst of a run: the arguments that its functions would be given in the next round."""

    walk: Walk

    @staticmethod
    def after(walk: Walk, rounds: int) -> Moment:
        """The moment after so many rounds in which everybody took part."""
        return Moment(stepped(walk, rounds))

    @property
    def draw(self) -> Draw:
        """The randomness of the next round."""
        return Draw(self.walk.setting.seed, self.walk.clocks.round)

    @property
    def method(self) -> Method:
        """The method that is at work."""
        return self.walk.setting.method

    @property
    def ids(self) -> Ints:
        """Those who take part: all of them."""
        return self.walk.candidates

    def stack(self, draw: Draw | None = None, effort: float | None = None) -> Client:
        """All clients as one stack."""
        part = None if effort is None else np.full(len(self.ids), effort)
        return self.walk.problem.client(self.ids, draw or self.draw, effort=part)

    def received(self) -> Message:
        """What the stack is sent."""
        shared, own = self.walk.fetched(self.ids)
        return {**shared, **own}

    def memory(self) -> Memory:
        """What the stack remembers."""
        return recall(self.walk, torch.from_numpy(self.ids))

    def alone(self, position: int) -> tuple[Client, Message, Memory]:
        """The same for one client that is no stack."""
        client, (shared, own) = int(self.ids[position]), self.walk.fetched(self.ids)
        received = {**shared, **{key: value[position] for key, value in own.items()}}
        memory = memory_of(self.walk, client) if self.method.remembers else {}
        return self.walk.problem.client(client, self.draw), received, memory


def replies_to(method: ServerMethod, client: Client, reply: Message, staleness: Tensor | None = None) -> Replies:
    """What the server gets of a stack's replies by a channel that changes nothing."""
    return made_up(method, client.clients, reply, method.weight(client), staleness)


def made_up(
    method: ServerMethod, clients: Ints, reply: Message, weight: Tensor | None = None, staleness: Tensor | None = None
) -> Replies:
    """The same of any replies, with what each counts for."""
    channel = Channel()
    sent = channel.send(reply, weight, {}, clients, Draw(0), method.reduce)
    return Replies.of(torch.from_numpy(clients), channel.receive(sent.wire).reply, staleness, method.reduce)


def difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The greatest difference between two dicts of tensors, relative to the magnitude where that is above one."""
    if one.keys() != other.keys():
        return float("inf")
    return max((apart(one[key], other[key]) for key in one), default=0.0)


def apart(one: Vector, other: Vector) -> float:
    """The greatest difference between two tensors, relative to the magnitude where that is above one."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if one.numel() == 0:
        return 0.0
    a, b = one.double(), other.double()
    return float(((a - b).abs().max() / b.abs().max().clamp(min=1.0)).nan_to_num(math.inf, math.inf))


def differing(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> list[str]:
    """The keys under which two dicts do not agree in every bit."""
    keys = [*one, *(key for key in other if key not in one)]
    return [key for key in keys if key not in one or key not in other or not same_bits(one[key], other[key])]


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors agree in dtype, shape and every bit (NaN equals NaN)."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.contiguous().numpy().tobytes() == other.contiguous().numpy().tobytes()


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A copy that shares nothing."""
    return {key: value.clone() for key, value in tensors.items()}


def few(words: Sequence[str], shown: int = 3) -> str:
    """The first of many, for a message."""
    more = f" and {len(words) - shown} more" if len(words) > shown else ""
    return ", ".join(words[:shown]) + more
