"""Personal layers: some layers of any method's model stay with each client.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh and S. Choudhary, "Federated learning with personalization layers", 2019
(FedPer). https://arxiv.org/abs/1912.00818

P. P. Liang, T. Liu, L. Ziyin, N. B. Allen, R. P. Auerbach, D. Brent, R. Salakhutdinov and L.-P. Morency, "Think
locally, act globally: federated learning with local and global representations", 2020 (LG-FedAvg).
https://arxiv.org/abs/2001.01523

X. Li, M. Jiang, X. Zhang, M. Kamp and Q. Dou, "FedBN: federated learning on non-IID features via local batch
normalization", ICLR 2021 (FedBN). https://arxiv.org/abs/2102.07623
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.client import Client
from fedloom.federation.layers import Parts, parts_of
from fedloom.federation.problem import Problem, fresh_model
from fedloom.federation.randomness import Draw
from fedloom.federation.replies import Reduce, Replies, Weighting
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedmeta import FedAvgMeta, FedMetaMAML, FedMetaSGD
from fedloom.methods.method import Context, Lent, Product, ServerMethod, Wish
from fedloom.methods.register import register
from fedloom.methods.wrapper import Wrapper
from fedloom.types import Memory, Message, State, Vector

Start = Literal["own", "common", "sent"]

_OWN, _HOME, _RUNS = "own ", "home ", "runs"
_PUBLISHED, _TURNS = "published", "published turns"


@dataclass(frozen=True)
class PersonalLayers(Wrapper):
    """The inner method on the shared coordinates S of all clients; on the personal ones, P, each client is alone.

    On P a client takes the inner method's server step itself, as a federation of one: so SCAFFOLD's control variates,
    Adam's moments and Meta-SGD's step sizes of a personal layer are personal too, and the client's own work is done on
    the whole model. The server keeps the inner method's state on S. What it has of P is where a model begins.
    """

    coordinatewise = False  # its server has only a part of the coordinates
    remembers = True
    stand_in = "the shared layers with the personal ones as they began"

    layers: str | Sequence[str] = field(default="head", kw_only=True)
    """The personal layers: "head" or "last" (the last layer), "body" (all others), "norm" (all that normalise), or
    names, such as "conv1", and patterns, such as "conv*", in a list or with commas between them."""
    start: Start = field(default="own", kw_only=True)
    """Where a client's personal part begins: at a draw of its "own", at the initial model that all draw alike
    ("common"), or at the server's, which is then "sent" with every message (for a start from an earlier run)."""

    publish: bool = field(default=False, kw_only=True)
    """Whether clients send their personal part too, which the server keeps and shows to others, so that a client that
    never took part can use it (``parts`` of an evaluation)."""

    @property
    def publishes(self) -> bool:
        return self.publish

    @property
    def reduce(self) -> Reduce:
        return "each" if self.publish else self.inner.reduce

    @property
    def per_client(self) -> tuple[str, ...]:
        return (_PUBLISHED, _TURNS) if self.publish else ()

    @property
    def instead(self) -> str | None:
        begins = {"own": "a draw of its own", "common": "the one that all begin with", "sent": "the server's first"}
        remedy = "parts = 'best' or 'average' gives them those of others"
        remedy = remedy if self.publish else f"with publish = true, {remedy}"
        return f"personal layers that nobody has trained, each {begins[self.start]} ({remedy})"

    @property
    def starts_without(self) -> str | None:
        if self.start == "sent":
            return self.inner.starts_without
        return f"clients' personal layers, which begin apart from it (start = {self.start!r}); set start = 'sent'"

    @property
    def evaluates(self) -> Product:
        return "personal" if self.inner.evaluates == "global" else self.inner.evaluates

    def check(self, problem: Problem) -> None:
        inner, what = self.inner, type(self.inner).__name__
        if inner.layout != "rows":
            raise ConfigError(f"{what} has no clients with rows of their own, which could keep layers to themselves")
        if not inner.coordinatewise or inner.per_client:
            raise ConfigError(
                f"{what} cannot have personal layers: a client would take the server's step for its own coordinates, "
                "but that step does not treat every coordinate by itself; take another method, such as fedavg"
            )
        if Parts.of(problem.model.tensors, self.layers).count(False) == 0:
            self.without_shared(", ".join(problem.model.slices))
        inner.check(problem)

    def without_shared(self, layers: str) -> None:
        """All layers are personal: that can be, but is rarely meant."""
        warnings.warn(
            f"all layers of the model are personal ({layers}): nothing is shared, and every client learns alone; name "
            "fewer layers, or take a model with more",
            stacklevel=1,
        )

    def server_init(self, ctx: Context) -> State:
        parts = Parts.of(ctx.slices, self.layers)
        part = {mine: parts.take(ctx.theta0, mine) for mine in (False, True)}
        prior = None if ctx.prior is None else parts.take(ctx.prior, False)
        start = self.inner.server_init(replace(ctx, theta0=part[True], prior=None))
        shared = self.inner.server_init(replace(ctx, theta0=part[False], prior=prior))
        runs = torch.tensor(parts.runs, dtype=torch.int64).reshape(-1, 2)
        state = {**shared, **_under(_OWN, start), _RUNS: runs}
        if self.publish:
            state[_PUBLISHED] = start["x"].new_zeros(len(ctx.sizes), start["x"].shape[-1])
            state[_TURNS] = torch.zeros(len(ctx.sizes), dtype=torch.int64)  # 0: has published nothing
        return state

    def broadcast(self, state: State, clients: Tensor) -> Message:
        sent = self.inner.broadcast(_shared(state), clients)
        return {**sent, **_under(_OWN, _inside(_OWN, state))} if self.start == "sent" else sent

    def unicast(self, state: State, clients: Tensor) -> Message:
        return self.inner.unicast(_shared(state), clients)

    def client_init(self, client: Client, received: Message) -> Memory:
        own, kept = self._first(client, received), Memory()
        if self.inner.remembers:
            kept = self.inner.client_init(client, self._received(client, received, own))
        return {**kept, **_under(_OWN, own)}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        whole = self._received(client, received, _inside(_OWN, memory))
        reply, kept = self.work_on(client, whole, _shared(memory))
        parts = self._parts(client)
        own = {key: value for key, value in memory.items() if key.startswith(_OWN)}
        sent, home = parts.part(reply, False), parts.part(reply, True)
        if self.publish:
            sent[_PUBLISHED] = self._step_alone(client, _inside(_OWN, memory), {**reply, **home})["x"]
        return sent, {**kept, **own, **_under(_HOME, home)}

    def work_on(self, client: Client, whole: Message, memory: Memory) -> tuple[Message, Memory]:
        """What a client does with the whole model: what the inner method does."""
        return self.inner.client(client, whole, memory)

    def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        """The inner memory moves by what the server has seen of S, and by P itself; then the client's own step on P."""
        own, home = _inside(_OWN, memory), _inside(_HOME, memory)
        kept = _shared(memory)
        if self.inner.remembers:
            whole, received = self._parts(client).whole(sent, home), self._received(client, inbox, own)
            kept = self.inner.settle(client, kept, whole, received)
        return {**kept, **_under(_OWN, self._step_alone(client, own, {**sent, **home}))}

    def _step_alone(self, client: Client, own: State, reply: Message) -> State:
        """The server's step of a federation of one."""
        after = self.inner.server(own, Replies.alone(reply), _alone(client, client.n.new_zeros(0)))
        return _of_each(client, after)

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        rest = {key: value for key, value in state.items() if key == _RUNS or key.startswith(_OWN)}
        if self.publish:
            last = {client: at for at, client in enumerate(replies.clients.tolist())}  # of two replies the later one
            who, at = torch.tensor(list(last)), torch.tensor(list(last.values()))
            rest[_PUBLISHED] = state[_PUBLISHED].index_copy(0, who, replies.each(_PUBLISHED)[at])
            rest[_TURNS] = state[_TURNS].index_add(0, who, torch.ones_like(who))
        return {**self.inner.server(_shared(state), replies, ctx), **rest}

    def shown(self, state: State, lent: Lent = "own") -> State:
        """The shared layers, and of what others have published what this client is to use."""
        shared = self.inner.shown(_shared(state), lent)
        if lent == "own":
            return shared
        there = state[_PUBLISHED][state[_TURNS] > 0]
        return {**shared, _PUBLISHED: there.mean(0, keepdim=True) if lent == "average" and len(there) else there}

    def shown_each(self, state: State, clients: Tensor) -> State:
        return self.inner.shown_each(_shared(state), clients)

    def lent(self, client: Client, state: State, memory: Memory) -> Iterator[Memory]:
        """With the personal part of each that has published it; with its own, as long as nobody has."""
        for part in state[_PUBLISHED]:
            yield {**memory, f"{_OWN}x": part.expand(*client.n.shape[:-1], -1)}
        if len(state[_PUBLISHED]) == 0:
            yield memory

    def model(self, state: State) -> Vector:
        return self.inner.model(_parts_in(state).whole(_shared(state), _inside(_OWN, state)))

    def personal(self, client: Client, state: State, memory: Memory) -> Vector:
        return self.inner.personal(client, self._state(client, state, memory), _shared(memory))

    def adapt(self, client: Client, state: State, memory: Memory, theta: Vector, wish: Wish) -> Vector:
        return self.adapt_on(client, self._state(client, state, memory), _shared(memory), theta, wish)

    def adapt_on(self, client: Client, whole: State, memory: Memory, theta: Vector, wish: Wish) -> Vector:
        """How a client fits the whole model to its few rows: as the inner method does."""
        return self.inner.adapt(client, whole, memory, theta, wish)

    def measure(self, client: Client, received: Message, memory: Memory) -> dict[str, Tensor]:
        """What the inner method measures, without the personal coordinates: these stay at home."""
        whole = self._received(client, received, _inside(_OWN, memory))
        return self._parts(client).part(self.inner.measure(client, whole, _shared(memory)), False)

    def report(self, state: State, sums: dict[str, Tensor]) -> dict[str, float]:
        return self.inner.report(_shared(state), sums)

    def done(self, state: State, figures: Mapping[str, float]) -> bool:
        return self.inner.done(_shared(state), figures)

    def _parts(self, client: Client) -> Parts:
        return parts_of(client.problem.model, self.layers)

    def _received(self, client: Client, received: Message, own: State) -> Message:
        """What the inner method's client would have received: the server's S, and P from the client's own."""
        ids = torch.from_numpy(client.clients)
        return self._parts(client).whole(_shared(received), self.inner.broadcast(own, ids))

    def _state(self, client: Client, state: State, memory: Memory) -> State:
        """The inner method's state as this client has it."""
        return self._parts(client).whole(_shared(state), _inside(_OWN, memory))

    def _first(self, client: Client, received: Message) -> State:
        """The state of a client's federation of one at its start."""
        lead = client.n.shape[:-1]
        if self.start == "sent":
            fits, first = self._parts(client).fits, _inside(_OWN, received)
            whole = {key: value.shape[-1:] if fits(value, True) else () for key, value in first.items()}
            return {key: value.expand(*lead, *whole[key]) for key, value in first.items()}
        theta = self._parts(client).take(self._drawn(client), True)
        return _of_each(client, self.inner.server_init(_alone(client, theta.expand(*lead, -1))))

    def _drawn(self, client: Client) -> Vector:
        """The initial models from which the personal parts are taken: one for all, or one for each client."""
        problem, seed = client.problem, client.draw.seed
        if self.start == "common":
            return fresh_model(problem, seed)
        words = Draw(seed).words("personal part", client.clients, 1)[:, 0]
        found = torch.stack([problem.model.init(int(word), problem.dtype) for word in words])
        return found if client.stacked else found[0]


def _alone(client: Client, theta0: Vector) -> Context:
    """What the server of a federation of one knows; of a stack, that of each."""
    one = torch.ones(1, dtype=torch.int64)
    return Context(client.round, 1, one, client.problem.model.slices, theta0, client.draw, one - 1)


def _of_each(client: Client, state: State) -> State:
    """A state of federations of one, in which a number that is the same for all is there for each."""
    return {key: value.expand(client.n.shape[:-1]) if value.dim() == 0 else value for key, value in state.items()}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{key}": value for key, value in tensors.items()}


def _inside(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What stands under the prefix, without it."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _shared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What is the inner method's own."""
    return {
        key: value for key, value in tensors.items() if key != _RUNS and not key.startswith((_OWN, _HOME, _PUBLISHED))
    }


def _parts_in(state: State) -> Parts:
    return Parts(tuple((size, bool(mine)) for size, mine in state[_RUNS].tolist()))


@register("personal", family="personalisation", declaration=".layers:PERSONAL")
@dataclass(frozen=True)
class Personal(PersonalLayers):
    """Any method whose server treats every coordinate by itself, with layers that stay at home.

    In experiment files the inner method is the table ``[method.inner]``.
    """

    inner: ServerMethod = field(default_factory=FedAvg)


class Named(PersonalLayers):
    """A method with personal layers that has a name of its own: the hyper-parameters of the inner one are its own too.

    A subclass is derived from the inner class after this one, for its fields.
    """

    wraps: ClassVar[type[ServerMethod]]
    """The inner class."""

    @property
    def inner(self) -> ServerMethod:  # type: ignore[override]
        """The inner method: made anew, for a method keeps nothing; without its constructor, which takes a while."""
        made = object.__new__(self.wraps)
        vars(made).update({name: getattr(self, name) for name in _names(self.wraps)})
        return made


@cache
def _names(cls: type[ServerMethod]) -> tuple[str, ...]:
    """The hyper-parameters of a method."""
    return tuple(f.name for f in fields(cls))  # type: ignore[arg-type]


@register("fedper", family="personalisation", paper="Arivazhagan et al., 2019", declaration=".layers:FEDPER")
@dataclass(frozen=True)
class FedPer(Named, FedAvg):
    """FedAvg on the body; every client has a head of its own.

    Clients train the whole model; the server averages all layers but the personal ones, which never leave a client.
    """

    wraps = FedAvg


@register("fedbn", family="personalisation", paper="Li et al., ICLR 2021", declaration=".layers:FEDBN")
@dataclass(frozen=True)
class FedBN(Named, FedAvg):
    """FedAvg on all but the layers that normalise, which every client has for itself.

    For clients whose features are shifted and scaled: a client's scale γ, shift β and running statistics stay with it.
    Layers that normalise are known by what they are, whatever a network calls them.
    """

    wraps = FedAvg

    layers: str | Sequence[str] = field(default="norm", kw_only=True)


@register("lg-fedavg", family="personalisation", paper="Liang et al., 2020", declaration=".layers:LG_FEDAVG")
@dataclass(frozen=True)
class LGFedAvg(Named, FedAvg):
    """FedAvg on the head; every client has features of its own.

    The other way round than FedPer: the layers that find features are personal, the last one is shared. Messages are
    small.
    """

    wraps = FedAvg

    layers: str | Sequence[str] = field(default="body", kw_only=True)
    weighting: Weighting = field(default="uniform", kw_only=True)


@register("fedper-maml", family="personalisation", paper="Chen et al., 2018", declaration=".layers:FEDPER_MAML")
@dataclass(frozen=True)
class FedPerMAML(Named, FedMetaMAML):  # type: ignore[override]
    """FedMeta(MAML) with a head of each client's own.

    The common body and each client's own head are a start from which a step on few rows does well.
    """

    wraps = FedMetaMAML


@register("fedper-metasgd", family="personalisation", paper="Chen et al., 2018", declaration=".layers:FEDPER_METASGD")
@dataclass(frozen=True)
class FedPerMetaSGD(Named, FedMetaSGD):  # type: ignore[override]
    """FedMeta(Meta-SGD) with a head of each client's own.

    The step sizes of the personal layers are personal too.
    """

    wraps = FedMetaSGD


@register("fedper-avgmeta", family="personalisation", paper="Chen et al., 2018", declaration=".layers:FEDPER_AVGMETA")
@dataclass(frozen=True)
class FedPerAvgMeta(Named, FedAvgMeta):  # type: ignore[override]
    """FedPer, evaluated after clients have adapted its model.

    The fair comparison for the two that learn how to adapt.
    """

    wraps = FedAvgMeta
