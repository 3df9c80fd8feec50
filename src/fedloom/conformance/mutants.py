"""Mutants: a method with one fault each, of which the kit must see every one.

    from fedloom.conformance import check_mutants

    for outcome in check_mutants("fedavg"):       # or check_mutants("mine", Mine(), declaration)
        print(outcome.mutant, outcome.killed_by)

A mutant has the fields of the method and wraps some of its functions, so any method can have them, a user's own too:
a hyper-parameter ignored, a reply with the wrong sign, a client that remembers what was lost, a step size that never
falls. One that passes every check shows a claim that is missing, unless the declaration says why nobody could tell it
from the method (``Declaration.equivalent``).
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from fedloom.conformance.drive import difference, everything, same_bits, walking
from fedloom.engine.rounds import Rounds
from fedloom.errors import FedloomError
from fedloom.federation.client import Client
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from fedloom.federation.schedules import rate_at
from fedloom.fields import unfit_fields
from fedloom.methods.method import Method, NodeMethod, ServerMethod
from fedloom.types import Memory, Message

Function = Callable[..., Any]
Change = Callable[[type[Any]], Mapping[str, Function]]
"""From the class of the method to the functions that its mutant has instead."""

_ON_CLIENTS = ("client_init", "client", "node", "weight", "measure", "adapt", "personal", "settle")
_FEW = 0.9
_ROUNDING = 1e-9
_NUMBERS = (1.5, 2 / 3, 0.5)


@dataclass(frozen=True, eq=False)
class Mutant:
    """A method with one fault."""

    name: str
    """What is wrong, as "what: how"."""
    kind: str
    """Its first word; "ignored" and "frozen" for hyper-parameters that are so."""
    method: Method
    about: str = ""
    """The hyper-parameter, the check or the hardship that is likely to show it."""
    bites: Callable[[Mapping[str, Any]], bool] = lambda settings: True
    """Whether it can differ from the method at all when these hyper-parameters are set."""


@dataclass(eq=False)
class Seen:
    """What a method's functions were seen to do in some short runs, with one option or another."""

    replies: dict[str, bool] = field(default_factory=dict)
    """The keys of replies, and whether they hold numbers that are no integers."""
    memory: dict[str, bool] = field(default_factory=dict)
    state: dict[str, bool] = field(default_factory=dict)
    """The keys of the state that ever moved."""
    read: set[str] = field(default_factory=set)
    """What was asked of the context, of the replies and of the client, such as "ctx.round"."""

    purposes: dict[str, bool] = field(default_factory=dict)
    """What clients draw random numbers for, and whether they do so anew in each epoch."""

    def watching(self, cls: type[Any]) -> dict[str, Function]:
        """Functions that do the same and note it here."""

        act = _act(cls)

        def client(method: Method, client: Client, received: Message, memory: Memory) -> Any:
            draw = _Noted(client.draw.seed, client.draw.round, self.purposes)
            with self._spied("client", client), _lent(client, draw=draw):
                reply, kept = getattr(cls, act)(method, client, received, memory)
            self.replies |= {key: value.is_floating_point() for key, value in reply.items()}
            self.memory |= {key: value.is_floating_point() for key, value in kept.items()}
            return reply, kept

        def server(method: Method, state: Any, replies: Any, ctx: Any) -> Any:
            with self._spied("replies", replies), self._spied("ctx", ctx):
                new = cls.server(method, state, replies, ctx)
            moved = [key for key in new if key in state and not same_bits(state[key], new[key])]
            self.state |= {key: new[key].is_floating_point() for key in moved}
            return new

        def weight(method: Method, client: Client) -> Any:
            with self._spied("client", client):
                return cls.weight(method, client)

        functions: dict[str, Function] = {act: client, "server": server, "weight": weight}
        return {name: function for name, function in functions.items() if hasattr(cls, name)}

    @contextmanager
    def _spied(self, name: str, thing: Any) -> Iterator[None]:
        """Notes every attribute that is asked for by anybody but the thing itself."""
        cls = type(thing)

        def asked(thing: Any, attribute: str) -> Any:
            if sys._getframe(1).f_globals["__name__"] != cls.__module__:
                self.read.add(f"{name}.{attribute}")
            return object.__getattribute__(thing, attribute)

        object.__setattr__(thing, "__class__", _subclass(cls, {"__getattribute__": asked}))
        try:
            yield
        finally:
            object.__setattr__(thing, "__class__", cls)


def mutants(
    method: Method, problem: Problem, settings: Sequence[Mapping[str, Any]] = (), divisible: bool = True
) -> list[Mutant]:
    """All mutants of a method.

    It is watched on the problem, with each of these hyper-parameters and with each of its own choices, to learn what
    it sends, keeps and reads: what never happens cannot go wrong. ``divisible`` is whether a slow client can do a part
    of its work.
    """
    options = _options(method, settings)
    seen = Seen()
    ends = list(_runs(_mutant("watched", method, seen.watching).method, problem, options))
    made = [*_of_fields(method), *_of_parts(method, seen), *_of_functions(method, seen, divisible)]
    return made + [m for m in _of_sizes(method, seen) if _differs(ends, _runs(m.method, problem, options))]


# Making a mutant


def _mutant(name: str, method: Method, change: Change, about: str = "") -> Mutant:
    cls = type(method)
    made = _subclass(cls, change(cls))
    return Mutant(name, name.partition(":")[0].partition(" ")[0], made(**_values(method)), about)


def _subclass(cls: type[Any], functions: Mapping[str, Any]) -> type[Any]:
    return type(cls)(cls.__name__, (cls,), {"__module__": cls.__module__, **functions})  # type: ignore[no-any-return, misc]


def _values(method: Method) -> dict[str, Any]:
    return {f.name: getattr(method, f.name) for f in fields(method)}  # type: ignore[arg-type]


def _own(cls: type[Method], name: str) -> bool:
    """Whether the method has this function itself; the contract's defaults are nobody's fault."""
    return getattr(cls, name, None) is not getattr(_contract(cls), name, None)


def _contract(cls: type[Method]) -> type[Method]:
    """The kind of method that it is."""
    return ServerMethod if issubclass(cls, ServerMethod) else NodeMethod


def _act(cls: type[Method]) -> str:
    """The function by which a client of this kind of method acts."""
    return "client" if issubclass(cls, ServerMethod) else "node"


@contextmanager
def _lent(thing: Any, **attributes: Any) -> Iterator[None]:
    """The thing with other attributes for the time being, frozen or not."""
    own = vars(thing)
    before = {name: own[name] for name in attributes if name in own}
    own.update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            del own[name]
        own.update(before)


def _on_clients(lend: Callable[[Client], dict[str, Any]], names: Sequence[str] = _ON_CLIENTS) -> Change:
    """The client's functions meet a client with other attributes."""

    def change(cls: type[Any]) -> dict[str, Function]:
        def wrapped(name: str) -> Function:
            def function(self: Method, client: Client, *given: Any) -> Any:
                with _lent(client, **lend(client)):
                    return getattr(cls, name)(self, client, *given)

            return function

        return {name: wrapped(name) for name in names if _own(cls, name)}

    return change


def _at_server(of: Literal["replies", "ctx"], lend: Callable[[Any], dict[str, Any]]) -> Change:
    """The server's step meets replies, or a context, with other attributes."""

    def change(cls: type[Any]) -> dict[str, Function]:
        def server(self: Method, state: Any, replies: Any, ctx: Any) -> Any:
            given = {"replies": copy.copy(replies), "ctx": copy.copy(ctx)}
            vars(given[of]).update(lend(given[of]))
            return cls.server(self, state, **given)

        return {"server": server}

    return change


# Hyper-parameters


def _of_fields(method: Method) -> Iterator[Mutant]:
    for name, value in _values(method).items():
        ignored = _mutant(f"{name} ignored", method, _instead(name, partial(_always, value)), name)
        yield replace(ignored, kind="ignored", bites=partial(_gives_another, name, value))
        if _admits(method, name, "step:0.1:50:0.5"):
            frozen = _mutant(f"{name} frozen at round 0", method, _instead(name, partial(_at_first, name)), name)
            yield replace(frozen, kind="frozen", bites=partial(_gives_schedule, name))
        for other in _others(method, name)[:1]:
            changed = replace(method, **{name: other})  # type: ignore[type-var]
            yield Mutant(f"default {name}: {other!r}", "default", changed, bites=partial(_leaves_out, name))


def _always(value: Any, method: Method) -> Any:
    return value


def _at_first(name: str, method: Method) -> Any:
    return rate_at(getattr(method, name), 0)


def _gives_another(name: str, value: Any, settings: Mapping[str, Any]) -> bool:
    return bool(settings.get(name, value) != value)


def _gives_schedule(name: str, settings: Mapping[str, Any]) -> bool:
    return isinstance(settings.get(name), str)


def _leaves_out(name: str, settings: Mapping[str, Any]) -> bool:
    return name not in settings


def _instead(name: str, value: Function) -> Change:
    """Every function is that of the sound method with another value of this hyper-parameter."""

    def change(cls: type[Any]) -> dict[str, Any]:
        def sound(self: Method) -> Method:
            made: Method = cls(**{**_values(self), name: value(self)})
            return made

        def wrapped(function: str) -> Function:
            return lambda self, *given: getattr(sound(self), function)(*given)

        def wrapped_property(asked: str) -> Function:
            return lambda self: getattr(sound(self), asked)

        contract = {**vars(Method), **vars(_contract(cls))}
        contract = {n: f for n, f in contract.items() if not n.startswith("_") and _own(cls, n)}
        return {
            n: property(wrapped_property(n)) if isinstance(f, property) else wrapped(n) for n, f in contract.items()
        }

    return change


def _others(method: Method, name: str) -> list[Any]:
    """Other values that the field admits: all other choices, or another number."""
    value, kind = getattr(method, name), get_type_hints(type(method), include_extras=True)[name]
    found: list[Any] = [not value] if isinstance(value, bool) else _choices(kind)
    if not found and isinstance(value, int) and not isinstance(value, bool):
        found = [value + 1]
    elif not found and isinstance(value, float):
        found = [value * factor for factor in _NUMBERS] if value else [0.1]
    elif not found and value is None:
        found = [3, 0.3]
    where = found.index(value) + 1 if value in found else 0
    return [v for v in found[where:] + found[:where] if v != value and _admits(method, name, v)]


def _choices(kind: Any) -> list[Any]:
    """The words that an annotation lists."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    parts = get_args(kind)[:1] if get_origin(kind) is Annotated else get_args(kind)
    inside = (Annotated, Union, UnionType)
    return [choice for part in parts for choice in _choices(part)] if get_origin(kind) in inside else []


def _admits(method: Method, name: str, value: Any) -> bool:
    changed = replace(method, **{name: value})  # type: ignore[type-var]
    return all(unfit != name for unfit, _, _ in unfit_fields(changed))


# What is sent and kept


def _of_parts(method: Method, seen: Seen) -> Iterator[Mutant]:
    for key, real in seen.replies.items():
        for how, change in {**(_SCALED if real else {}), "zero": torch.zeros_like}.items():
            yield _mutant(f"reply {key}: {how}", method, _replying(key, change))
        if method.layout != "pooled":  # a pool has no neighbours
            yield _mutant(f"reply {key}: the neighbour's", method, _replying(key, _rolled), "stack-call")
    for key, real in seen.state.items():
        if real:
            yield _mutant(f"state {key}: moves {_FEW} as far", method, _moving(key, _FEW))
            yield _mutant(f"state {key}: moves backwards", method, _moving(key, -1.0))
        yield _mutant(f"state {key}: stays", method, _moving(key, 0.0))
    for key in seen.memory:
        yield _mutant(f"memory {key}: not kept", method, _not_kept(key))
        yield _mutant(f"memory {key}: the neighbour's", method, _keeping_neighbours(key), "stack-call")
        yield _mutant(f"memory {key}: settled though lost", method, _settled_though_lost(key), "lost")
    if seen.memory and _own(type(method), "settle"):
        yield _mutant("memory: moved by what was computed", method, _undecoded, "quantised")


_SCALED: dict[str, Callable[[Tensor], Tensor]] = {"sign": torch.neg, f"times {_FEW}": lambda value: _FEW * value}


def _rolled(value: Tensor) -> Tensor:
    return value.roll(1, 0)


def _replying(key: str, changed: Callable[[Tensor], Tensor]) -> Change:
    def change(cls: type[Any]) -> dict[str, Function]:
        def client(self: Method, client: Client, received: Message, memory: Memory) -> Any:
            reply, memory = getattr(cls, _act(cls))(self, client, received, memory)
            if key in reply and (client.stacked or changed is not _rolled):
                reply = {**reply, key: changed(reply[key])}
            return reply, memory

        return {_act(cls): client}

    return change


def _moving(key: str, factor: float) -> Change:
    """The server's state moves by another factor of its way."""

    def change(cls: type[Any]) -> dict[str, Function]:
        def server(self: Method, state: Any, replies: Any, ctx: Any) -> Any:
            new = cls.server(self, state, replies, ctx)
            if key not in new or key not in state:
                return new
            old, now = state[key], new[key]
            if factor == 0:
                return {**new, key: old}
            return {**new, key: torch.where(old.isfinite(), old + factor * (now - old), now)}

        return {"server": server}

    return change


def _not_kept(key: str) -> Change:
    """A client begins anew each time."""

    def change(cls: type[Any]) -> dict[str, Function]:
        def settle(self: Method, client: Client, memory: Memory, sent: Message, inbox: Message) -> Any:
            kept = cls.settle(self, client, memory, sent, inbox)
            return {**kept, key: cls.client_init(self, client, inbox)[key]} if key in kept else kept

        return {"settle": settle}

    return change


def _keeping_neighbours(key: str) -> Change:
    """What a client of a stack keeps is another's."""

    def change(cls: type[Any]) -> dict[str, Function]:
        def settle(self: Method, client: Client, memory: Memory, sent: Message, inbox: Message) -> Any:
            kept = cls.settle(self, client, memory, sent, inbox)
            return {**kept, key: _rolled(kept[key])} if key in kept and client.stacked else kept

        return {"settle": settle}

    return change


def _settled_though_lost(key: str) -> Change:
    """What the memory would be had the reply been accepted comes back the next time, though it was lost."""
    hidden: dict[int, Tensor] = {}

    def change(cls: type[Any]) -> dict[str, Function]:
        def server_init(self: Method, ctx: Any) -> Any:
            hidden.clear()  # another run
            return cls.server_init(self, ctx)

        def client(self: Method, client: Client, received: Message, memory: Memory) -> Any:
            ids = client.clients.tolist()
            if key in memory:
                rows = _rows(client, memory[key]).clone()
                for i, number in enumerate(ids):
                    if number in hidden and hidden[number].shape == rows[i].shape:
                        rows[i] = hidden[number]
                memory = {**memory, key: rows if client.stacked else rows[0]}
            reply, provisional = getattr(cls, _act(cls))(self, client, received, memory)
            kept = cls.settle(self, client, provisional, reply, received)
            if key in kept:
                hidden.update(zip(ids, _rows(client, kept[key]), strict=True))
            return reply, provisional

        def settle(self: Method, client: Client, memory: Memory, sent: Message, inbox: Message) -> Any:
            for number in client.clients.tolist():
                hidden.pop(number, None)
            return cls.settle(self, client, memory, sent, inbox)

        begun = {"server_init": server_init} if issubclass(cls, ServerMethod) else {}
        return {**begun, _act(cls): client, "settle": settle}

    return change


def _undecoded(cls: type[Any]) -> dict[str, Function]:
    """Memory moves by what the client computed, not by what the server has seen of it."""
    replies: dict[int, Message] = {}

    def client(self: Method, client: Client, received: Message, memory: Memory) -> Any:
        reply, memory = getattr(cls, _act(cls))(self, client, received, memory)
        for i, number in enumerate(client.clients.tolist()):
            replies[number] = {key: _rows(client, value)[i] for key, value in reply.items()}
        return reply, memory

    def settle(self: Method, client: Client, memory: Memory, sent: Message, inbox: Message) -> Any:
        own = [replies[number] for number in client.clients.tolist()]
        columns = {key: torch.stack([reply[key] for reply in own]) for key in sent}
        sent = columns if client.stacked else {key: value[0] for key, value in columns.items()}
        return cls.settle(self, client, memory, sent, inbox)

    return {_act(cls): client, "settle": settle}


def _rows(client: Client, value: Tensor) -> Tensor:
    """One row a client, also of a client that is no stack."""
    return value if client.stacked else value[None]


# Rounds, ages, sizes, batches, effort


def _of_functions(method: Method, seen: Seen, divisible: bool) -> Iterator[Mutant]:
    cls = type(method)
    if "client.round" in seen.read:
        yield _mutant("round: always 0 on clients", method, _on_clients(lambda client: {"round": 0}))
        yield _mutant("round: one more on clients", method, _on_clients(lambda client: {"round": client.round + 1}))
    if "ctx.round" in seen.read:
        yield _mutant("round: always 0 at the server", method, _at_server("ctx", lambda ctx: {"round": 0}))
        yield _mutant("round: one more at the server", method, _at_server("ctx", lambda ctx: {"round": ctx.round + 1}))
    if "replies.staleness" in seen.read:
        fresh, older = (lambda r: {"staleness": 0 * r.staleness}), (lambda r: {"staleness": r.staleness + 1})
        yield _mutant("staleness: none", method, _at_server("replies", fresh))
        yield _mutant("staleness: one more", method, _at_server("replies", older))
    if "client.delay" in seen.read:
        yield _mutant("delay: none", method, _on_clients(lambda client: {"_delay": None}))
    if seen.purposes:
        yield _mutant("draw: the same in every round", method, _on_clients(_of_round_0), "draws")
    if any(seen.purposes.values()):
        yield _mutant("draw: the same in every epoch", method, _on_clients(_of_epoch_0), "draws")
    if len(seen.purposes) > 1:
        yield _mutant("draw: the same for every purpose", method, _on_clients(_of_one_purpose), "draws")
    if divisible:
        whole = _on_clients(lambda client: {"effort": None, "budget": None}, ("client", "node"))
        yield _mutant("effort: ignored", method, whole, "effort")
    yield _mutant("evaluations: one more", method, _evaluating, "work")
    if _own(cls, "work"):
        yield _mutant("work: one more", method, lambda cls: {"work": _one_more(cls)}, "work")
    if _own(cls, "done"):
        yield _mutant("done: never", method, lambda cls: {"done": lambda self, state: False})
        yield _mutant("done: at once", method, lambda cls: {"done": lambda self, state: True})
    yield from _of_models(method, seen)
    if _own(cls, "report"):
        yield _mutant(f"report: times {_FEW}", method, _reporting)


def _of_sizes(method: Method, seen: Seen) -> Iterator[Mutant]:
    """Clients count for their rows, or for the same, the wrong way round."""

    def alike(client: Client) -> dict[str, Any]:
        def count(split: str = "train") -> Tensor:
            mean = client.problem.data.splits[split].sizes.double().mean()
            return torch.full_like(Client.count(client, split), float(mean))

        return {"count": count}

    def evenly(ctx: Any) -> dict[str, Any]:
        return {"sizes": torch.full_like(ctx.sizes, int(ctx.sizes.double().mean()))}

    if "client.n" in seen.read or "client.count" in seen.read:
        yield _mutant("sizes: all the same to clients", method, _on_clients(alike))
    if "ctx.sizes" in seen.read:
        yield _mutant("sizes: all the same in the context", method, _at_server("ctx", evenly))
    if _own(type(method), "weight"):
        yield _mutant("weight: all count alike", method, _weighing(lambda client: None), "weighting")
    if seen.replies:
        yield _mutant("weight: by rows always", method, _weighing(lambda client: client.n), "weighting")


def _weighing(weight: Callable[[Client], Tensor | None]) -> Change:
    return lambda cls: {"weight": lambda self, client: weight(client)} if issubclass(cls, ServerMethod) else {}


@dataclass(frozen=True)
class _Noted(Draw):
    """Notes what is drawn."""

    purposes: dict[str, bool] = field(default_factory=dict)

    def words(self, purpose: str, clients: Any, count: int, lane: Any = 0) -> Any:
        self.purposes[purpose] = self.purposes.get(purpose, False) or bool(np.any(lane))
        return super().words(purpose, clients, count, lane)


@dataclass(frozen=True)
class _InOneOrder(Draw):
    def words(self, purpose: str, clients: Any, count: int, lane: Any = 0) -> Any:
        return super().words(purpose, clients, count)


@dataclass(frozen=True)
class _OneForAll(Draw):
    def key(self, purpose: str) -> int:
        return super().key("")


def _of_round_0(client: Client) -> dict[str, Any]:
    return {"draw": Draw(client.draw.seed, 0)}


def _of_epoch_0(client: Client) -> dict[str, Any]:
    return {"draw": _InOneOrder(client.draw.seed, client.draw.round)}


def _of_one_purpose(client: Client) -> dict[str, Any]:
    return {"draw": _OneForAll(client.draw.seed, client.draw.round)}


def _evaluating(cls: type[Any]) -> dict[str, Function]:
    def client(self: Method, client: Client, received: Message, memory: Memory) -> Any:
        client.evaluations += 1
        return getattr(cls, _act(cls))(self, client, received, memory)

    return {_act(cls): client}


def _one_more(cls: type[Any]) -> Function:
    def work(self: Method, rows: Any) -> Any:
        said = cls.work(self, rows)
        return None if said is None else said + 1

    return work


def _reporting(cls: type[Any]) -> dict[str, Function]:
    def report(self: Method, state: Any, sums: Any) -> dict[str, float]:
        return {key: _FEW * value for key, value in cls.report(self, state, sums).items()}

    return {"report": report}


# The models that are used


def _of_models(method: Method, seen: Seen) -> Iterator[Mutant]:
    cls = type(method)
    if seen.state:
        yield _mutant("model: the first", method, _first_model)
    if _own(cls, "personal") and isinstance(method, ServerMethod):
        yield _mutant("personal: the server's", method, lambda cls: {"personal": _contract(cls).personal})
    if _own(cls, "adapt"):
        for how, change in _ADAPTED.items():
            yield _mutant(f"adapt: {how}", method, change)


def _first_model(cls: type[Any]) -> dict[str, Function]:
    first: list[Any] = []

    def server_init(self: Method, ctx: Any) -> Any:
        state = cls.server_init(self, ctx)
        first[:] = [cls.model(self, state)]
        return state

    return {"server_init": server_init, "model": lambda self, state: first[0]}


def _adapting(lr: Function, steps: Function) -> Change:
    """The step size and the number of steps that are asked for are others."""

    def made(cls: type[Any]) -> dict[str, Function]:
        def adapt(self: Method, client: Client, state: Any, theta: Any, lr_: Any, steps_: Any, split: str) -> Any:
            return cls.adapt(self, client, state, theta, lr(lr_), steps(steps_), split)

        return {"adapt": adapt}

    return made


def _same(value: Any) -> Any:
    return value


_ADAPTED: dict[str, Change] = {
    "by 0.01 in the place of its own step size": _adapting(lambda lr: 0.01 if lr is None else lr, _same),
    "by its own step size in the place of the user's": _adapting(lambda lr: None, _same),
    "by two steps in the place of its own number": _adapting(_same, lambda steps: 2 if steps is None else steps),
    "by its own number of steps in the place of the user's": _adapting(_same, lambda steps: None),
    "not at all": lambda cls: {"adapt": lambda self, client, state, theta, *_: theta},
}


# Watching a method


def _options(method: Method, settings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The settings, and the first of them with each other choice of each hyper-parameter."""
    base = dict(settings[0]) if settings else {}
    choices = [{**base, name: other} for name in _values(method) for other in _others(method, name)]
    unlike = [setting for i, setting in enumerate(settings) if setting not in settings[:i]]
    return [*unlike, *choices]


def _runs(method: Method, problem: Problem, options: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Tensor]]:
    """State and memories after three short rounds with each of the options; none where an option cannot be."""
    for option in options:
        try:
            with warnings.catch_warnings(), walking(Rounds, problem, replace(method, **option)) as walk:  # type: ignore[type-var]
                warnings.simplefilter("ignore")
                for _ in range(3):
                    walk.step()
                yield everything(walk)
        except (FedloomError, ArithmeticError):
            yield {}


def _differs(sound: list[dict[str, Tensor]], mutant: Iterator[dict[str, Tensor]]) -> bool:
    """Whether a mutant ever comes elsewhere than the sound method, rounding left aside."""
    return any(difference(one, other) > _ROUNDING for one, other in zip(sound, mutant, strict=False))
