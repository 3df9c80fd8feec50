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
from functools import partialmethod
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from fedloom.conformance.drive import difference, everything, same_bits, stepped, walking
from fedloom.engine.rounds import Rounds
from fedloom.errors import FedloomError
from fedloom.federation.client import Client
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from fedloom.federation.replies import Replies
from fedloom.federation.schedules import rate_at
from fedloom.fields import unfit_fields
from fedloom.methods.method import Context, Method, NodeMethod, ServerMethod
from fedloom.types import Memory, Message, State, Vector

Function = Callable[..., Any]
Change = Callable[[type[Any]], dict[str, Any]]
"""From the class of the method to the functions that its mutant has instead."""

_ON_CLIENTS = ("client_init", "client", "node", "weight", "measure", "adapt", "personal", "settle")
_TURN = ("client", "node")
"""The functions by which clients act, of a method with a server and of nodes."""
_FEW = 0.9
_ROUNDING = 1e-9
_NUMBERS = (1.5, 2 / 3, 0.5)


@dataclass(frozen=True, eq=False)
class Mutant:
    """A method with one fault."""

    name: str
    """What is wrong, as "what: how"."""
    kind: str
    """Its first word; "ignored" and "frozen" for hyper-parameters that are so (``kind_of``)."""
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

    def watching(self) -> Change:
        """Functions that do the same and note it here."""

        def turn(method: Method, sound: Function, client: Client, received: Message, memory: Memory) -> Any:
            draw = _Noted(client.draw.seed, client.draw.round, self.purposes)
            with self._spied("client", client), _lent(client, draw=draw):
                reply, kept = sound(method, client, received, memory)
            self.replies |= {key: value.is_floating_point() for key, value in reply.items()}
            self.memory |= {key: value.is_floating_point() for key, value in kept.items()}
            return reply, kept

        def server(method: Method, sound: Function, state: State, replies: Replies, ctx: Context) -> State:
            with self._spied("replies", replies), self._spied("ctx", ctx):
                new: State = sound(method, state, replies, ctx)
            moved = [key for key in new if key in state and not same_bits(state[key], new[key])]
            self.state |= {key: new[key].is_floating_point() for key in moved}
            return new

        def weight(method: Method, sound: Function, client: Client) -> Any:
            with self._spied("client", client):
                return sound(method, client)

        return _both(_around(_TURN, turn), _around(("server",), server), _around(("weight",), weight))

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
    ends = list(_runs(_mutant("watched", method, seen.watching()).method, problem, options))
    of_fields = [mutant for name in _values(method) for mutant in _of_field(method, name)]
    made = [*of_fields, *_of_parts(method, seen), *_of_functions(method, seen, divisible)]
    return [m for m in made if m.kind not in _DIFFER or _differs(ends, _runs(m.method, problem, options))]


# Making a mutant


def _mutant(name: str, method: Method, change: Change, about: str = "") -> Mutant:
    cls, kind = type(method), kind_of(name)
    return Mutant(name, kind, _subclass(cls, change(cls))(**_values(method)), about or _SHOWN_BY.get(kind, ""))


def kind_of(name: str) -> str:
    """The kind of the mutant of that name; a kind is its own."""
    first, *more = name.partition(":")[0].split()
    return next((word for word in more if word in ("ignored", "frozen")), first)


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


def _around(names: Sequence[str], wrap: Function, has: Callable[[type[Any], str], bool] = hasattr) -> Change:
    """In the place of each of these functions that the method has: ``wrap`` of the method, the function, and what
    that is given."""
    return lambda cls: {name: partialmethod(wrap, getattr(cls, name)) for name in names if has(cls, name)}


def _after(names: Sequence[str], changed: Function) -> Change:
    """What these functions give is changed: by a function of that, the method, and what they were given."""
    return _around(names, lambda self, sound, *given: changed(sound(self, *given), self, *given))


def _both(*changes: Change) -> Change:
    """Several changes at once."""
    return lambda cls: {name: function for change in changes for name, function in change(cls).items()}


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

    def function(self: Method, sound: Function, client: Client, *given: Any) -> Any:
        with _lent(client, **lend(client)):
            return sound(self, client, *given)

    return _around(names, function, _own)


def _at_server(of: Literal["replies", "ctx"], lend: Callable[[Any], dict[str, Any]]) -> Change:
    """The server's step meets replies, or a context, with other attributes."""

    def server(self: Method, sound: Function, state: State, replies: Replies, ctx: Context) -> Any:
        given = {"replies": copy.copy(replies), "ctx": copy.copy(ctx)}
        vars(given[of]).update(lend(given[of]))
        return sound(self, state, **given)

    return _around(("server",), server)


# Hyper-parameters


def _of_field(method: Method, name: str) -> Iterator[Mutant]:
    value = getattr(method, name)
    ignored = _mutant(f"{name} ignored", method, _instead(name, lambda method: value), name)
    yield replace(ignored, bites=lambda settings: bool(settings.get(name, value) != value))
    if _admits(method, name, "step:0.1:50:0.5"):
        first = _instead(name, lambda method: rate_at(getattr(method, name), 0))
        frozen = _mutant(f"{name} frozen at round 0", method, first, name)
        yield replace(frozen, bites=lambda settings: isinstance(settings.get(name), str))
    for other in _others(method, name)[:1]:
        changed = replace(method, **{name: other})  # type: ignore[type-var]
        yield Mutant(f"default {name}: {other!r}", "default", changed, bites=lambda settings: name not in settings)


def _instead(name: str, value: Function) -> Change:
    """Every function is that of the sound method with another value of this hyper-parameter."""

    def change(cls: type[Any]) -> dict[str, Any]:
        def sound(self: Method) -> Method:
            made: Method = cls(**{**_values(self), name: value(self)})
            return made

        def wrapped(function: str) -> Function:
            return lambda self, *given: getattr(sound(self), function)(*given)

        def wrapped_property(asked: str) -> property:
            return property(lambda self: getattr(sound(self), asked))

        contract = {**vars(Method), **vars(_contract(cls))}
        return {
            known: (wrapped_property if isinstance(function, property) else wrapped)(known)
            for known, function in contract.items()
            if not known.startswith("_") and _own(cls, known)
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
    def replied(sent: tuple[Message, Memory], self: Method, client: Client, *_: Any) -> tuple[Message, Memory]:
        reply, memory = sent
        if key in reply and (client.stacked or changed is not _rolled):
            reply = {**reply, key: changed(reply[key])}
        return reply, memory

    return _after(_TURN, replied)


def _moving(key: str, factor: float) -> Change:
    """The server's state moves by another factor of its way."""

    def moved(new: State, self: Method, state: State, *_: Any) -> State:
        if key not in new or key not in state:
            return new
        old, now = state[key], new[key]
        if factor == 0:
            return {**new, key: old}
        return {**new, key: torch.where(old.isfinite(), old + factor * (now - old), now)}

    return _after(("server",), moved)


def _not_kept(key: str) -> Change:
    """A client begins anew each time."""

    def begun(kept: Memory, self: Method, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
        return {**kept, key: self.client_init(client, inbox)[key]} if key in kept else kept

    return _after(("settle",), begun)


def _keeping_neighbours(key: str) -> Change:
    """What a client of a stack keeps is another's."""

    def rolled(kept: Memory, self: Method, client: Client, *_: Any) -> Memory:
        return {**kept, key: _rolled(kept[key])} if key in kept and client.stacked else kept

    return _after(("settle",), rolled)


def _settled_though_lost(key: str) -> Change:
    """What the memory would be had the reply been accepted comes back the next time, though it was lost."""

    def change(cls: type[Any]) -> dict[str, Any]:
        hidden: dict[int, Tensor] = {}

        def begin(state: State, *_: Any) -> State:
            hidden.clear()  # another run
            return state

        def turn(self: Method, sound: Function, client: Client, received: Message, memory: Memory) -> Any:
            ids = client.clients.tolist()
            if key in memory:
                rows = _rows(client, memory[key]).clone()
                for i, number in enumerate(ids):
                    if number in hidden and hidden[number].shape == rows[i].shape:
                        rows[i] = hidden[number]
                memory = {**memory, key: rows if client.stacked else rows[0]}
            return sound(self, client, received, memory)

        def settled(kept: Memory, self: Method, client: Client, *_: Any) -> Memory:
            if key in kept:
                hidden.update(zip(client.clients.tolist(), _rows(client, kept[key]), strict=True))
            return kept

        return _both(_after(("server_init",), begin), _around(_TURN, turn), _after(("settle",), settled))(cls)

    return change


def _undecoded(cls: type[Any]) -> dict[str, Any]:
    """Memory moves by what the client computed, not by what the server has seen of it."""
    replies: dict[int, Message] = {}

    def noted(sent: tuple[Message, Memory], self: Method, client: Client, *_: Any) -> tuple[Message, Memory]:
        for i, number in enumerate(client.clients.tolist()):
            replies[number] = {key: _rows(client, value)[i] for key, value in sent[0].items()}
        return sent

    def settle(self: Method, sound: Function, client: Client, memory: Memory, sent: Message, inbox: Message) -> Any:
        own = [replies[number] for number in client.clients.tolist()]
        columns = {key: torch.stack([reply[key] for reply in own]) for key in sent}
        computed = columns if client.stacked else {key: value[0] for key, value in columns.items()}
        return sound(self, client, memory, computed, inbox)

    return _both(_after(_TURN, noted), _around(("settle",), settle))(cls)


def _rows(client: Client, value: Tensor) -> Tensor:
    """One row a client, also of a client that is no stack."""
    return value if client.stacked else value[None]


# Rounds, ages, batches, effort, models, sizes


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


def _counted(sent: Any, self: Method, client: Client, *_: Any) -> Any:
    client.evaluations += 1
    return sent


def _first_model(cls: type[Any]) -> dict[str, Any]:
    first: list[Vector] = []

    def begin(state: State, self: Method, *_: Any) -> State:
        first[:] = [cls.model(self, state)]
        return state

    return _both(_after(("server_init",), begin), _after(("model",), lambda *_: first[0]))(cls)


def _adapting(wish: Callable[[Any, Any], tuple[Any, Any]]) -> Change:
    """The step size and the number of steps that are asked for are others."""

    def adapt(self: Method, sound: Function, client: Client, state: State, memory: Memory, *others: Any) -> Any:
        theta, asked = others
        lr, steps = wish(asked.lr, asked.steps)
        return sound(self, client, state, memory, theta, replace(asked, lr=lr, steps=steps))

    return _around(("adapt",), adapt)


def _drawing(other: Callable[[int, int], Draw]) -> Change:
    """Clients have another randomness, made from the seed and the round."""
    return _on_clients(lambda client: {"draw": other(client.draw.seed, client.draw.round)})


def _alike(client: Client) -> dict[str, Any]:
    """All clients have the same number of rows."""

    def count(split: str = "train") -> Tensor:
        mean = client.problem.data.splits[split].sizes.double().mean()
        return torch.full_like(Client.count(client, split), float(mean))

    return {"count": count}


def _evenly(ctx: Any) -> dict[str, Any]:
    """The same, as the server knows it."""
    return {"sizes": torch.full_like(ctx.sizes, int(ctx.sizes.double().mean()))}


_FAULTS: Mapping[str, Mapping[str, Change]] = {
    "client.round": {
        "round: always 0 on clients": _on_clients(lambda client: {"round": 0}),
        "round: one more on clients": _on_clients(lambda client: {"round": client.round + 1}),
    },
    "ctx.round": {
        "round: always 0 at the server": _at_server("ctx", lambda ctx: {"round": 0}),
        "round: one more at the server": _at_server("ctx", lambda ctx: {"round": ctx.round + 1}),
    },
    "replies.staleness": {
        "staleness: none": _at_server("replies", lambda replies: {"staleness": 0 * replies.staleness}),
        "staleness: one more": _at_server("replies", lambda replies: {"staleness": replies.staleness + 1}),
    },
    "client.delay": {"delay: none": _on_clients(lambda client: {"_delay": None})},
    "draws": {"draw: the same in every round": _drawing(lambda seed, t: Draw(seed, 0))},
    "draws of several epochs": {"draw: the same in every epoch": _drawing(_InOneOrder)},
    "draws for several purposes": {"draw: the same for every purpose": _drawing(_OneForAll)},
    "divisible work": {"effort: ignored": _on_clients(lambda client: {"effort": None, "budget": None}, _TURN)},
    "anything": {"evaluations: one more": _after(_TURN, _counted)},
    "own work": {"work: one more": _after(("work",), lambda said, *_: None if said is None else said + 1)},
    "own done": {
        "done: never": _after(("done",), lambda *_: False),
        "done: at once": _after(("done",), lambda *_: True),
    },
    "state": {"model: the first": _first_model},
    "own personal": {"personal: the server's": lambda cls: {"personal": _contract(cls).personal}},
    "own adapt": {
        "adapt: by 0.01 in the place of its own step size": _adapting(lambda lr, n: (0.01 if lr is None else lr, n)),
        "adapt: by its own step size in the place of the user's": _adapting(lambda lr, n: (None, n)),
        "adapt: by two steps in the place of its own number": _adapting(lambda lr, n: (lr, 2 if n is None else n)),
        "adapt: by its own number of steps in the place of the user's": _adapting(lambda lr, n: (lr, None)),
        "adapt: not at all": _after(("adapt",), lambda adapted, self, client, state, theta, *_: theta),
    },
    "own report": {
        f"report: times {_FEW}": _after(("report",), lambda said, *_: {key: _FEW * said[key] for key in said}),
    },
    "client.sizes": {"sizes: all the same to clients": _on_clients(_alike)},
    "ctx.sizes": {"sizes: all the same in the context": _at_server("ctx", _evenly)},
    "own weight": {"weight: all count alike": _after(("weight",), lambda *_: None)},
    "replies to a server": {"weight: by rows always": _after(("weight",), lambda weight, self, client: client.n)},
}
"""By what a method must have for it (see ``_of_functions``): the mutants' names, and what these change."""
_OF_FUNCTIONS = dict.fromkeys(kind_of(name) for faults in _FAULTS.values() for name in faults)
KINDS = ("ignored", "frozen", "default", "reply", "state", "memory", *_OF_FUNCTIONS)
"""The kinds of mutants."""
_SHOWN_BY = {"draw": "draws", "effort": "effort", "evaluations": "work", "work": "work", "weight": "weighting"}
"""By kind of mutant: the check, or the hyper-parameter of claims, that is likely to show it."""
_DIFFER = ("sizes", "weight")
"""Kinds that may be the method itself: such mutants are left out unless they are seen to differ from it."""


def _of_functions(method: Method, seen: Seen, divisible: bool) -> Iterator[Mutant]:
    served, cls = isinstance(method, ServerMethod), type(method)
    has = {
        **dict.fromkeys(seen.read, True),
        **{f"own {name}": _own(cls, name) for name in ("work", "done", "adapt", "report", "weight")},
        "own personal": served and _own(cls, "personal"),
        "client.sizes": not seen.read.isdisjoint(("client.n", "client.count")),
        "draws": bool(seen.purposes),
        "draws of several epochs": any(seen.purposes.values()),
        "draws for several purposes": len(seen.purposes) > 1,
        "divisible work": divisible,
        "state": bool(seen.state),
        "replies to a server": served and bool(seen.replies),
        "anything": True,
    }
    for need, faults in _FAULTS.items():
        if has.get(need, False):
            yield from (_mutant(name, method, change) for name, change in faults.items())


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
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with walking(Rounds, problem, replace(method, **option)) as walk:  # type: ignore[type-var]
                    end = everything(stepped(walk, 3))
            yield end
        except (FedloomError, ArithmeticError):
            yield {}


def _differs(sound: list[dict[str, Tensor]], mutant: Iterator[dict[str, Tensor]]) -> bool:
    """Whether a mutant ever comes elsewhere than the sound method, rounding left aside."""
    return any(difference(one, other) > _ROUNDING for one, other in zip(sound, mutant, strict=False))
