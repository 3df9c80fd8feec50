"""The checks that every method goes through, whatever it computes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.channel import Channel, Quantise, Transform
from fedloom.conformance.claims import HARDSHIPS, QUANTISED, Finding, Subject
from fedloom.conformance.drive import (
    Moment,
    apart,
    copied,
    difference,
    differing,
    everything,
    few,
    in_one,
    labelled,
    product,
    replies_to,
    stepped,
    walking,
)
from fedloom.conformance.problems import relabelled
from fedloom.conformance.staggered import Staggered, column
from fedloom.conformance.taps import Tap, TappedProblem, TappedSerial
from fedloom.engine.arrivals import Arrivals
from fedloom.engine.fleet import Distribution, Fleet
from fedloom.engine.run import Run, prepare
from fedloom.engine.schedule import Schedule
from fedloom.engine.selection import All, Chosen, Selection
from fedloom.errors import ConfigError
from fedloom.execution import Executor, Processes, Serial
from fedloom.federation.model import of_each
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from fedloom.methods.method import ServerMethod, shown_to
from fedloom.storage import checkpoint
from fedloom.storage.store import MemoryStore
from fedloom.types import Message

Check = Callable[[Subject], Finding]

_ROUGH = Fleet(stragglers=0.4, loss=0.2)
_FEWEST = 3  # rows of a mini-batch that hardly come twice, in one order, by chance


def declared(subject: Subject) -> Finding:
    """There is a known answer, and it is said what each hardship does to it."""
    claims, excused = subject.declaration.claims, dict(subject.declaration.excused)
    if subject.method.exact:
        excused["quantised"] = "refused"
    covered = {name for claim in claims for name in claim.survives} | excused.keys()
    missing = [name for name in HARDSHIPS if name not in covered]
    if not claims:
        return Finding(
            False,
            0.0,
            "nothing is claimed of this method: a method without a known answer does not exist; name what is known of "
            "it where it is registered, or by --declaration module:NAME",
        )
    if missing:
        return Finding(False, len(claims), f"no claim speaks of {few(missing)} replies, and none is excused")
    return Finding(True, len(claims), f"{len(claims)} known answers")


def parameters(subject: Subject) -> Finding:
    """The method is a frozen dataclass that stores its parameters as they are, and nothing else, ever."""
    method = subject.batches()
    kind = type(method)
    if not getattr(getattr(kind, "__dataclass_params__", None), "frozen", False):
        return Finding(False, None, f"{kind.__name__} is no frozen dataclass")
    if hasattr(kind, "__post_init__"):
        return Finding(False, None, "its constructor computes (__post_init__); it may only store")
    maker = next(cls for cls in kind.__mro__ if "__init__" in vars(cls))
    if "__dataclass_params__" not in vars(maker):
        return Finding(False, None, f"its constructor is not the dataclass's own but that of {maker.__name__}")
    given = {f.name: getattr(method, f.name) for f in fields(kind)}  # type: ignore[arg-type]
    if kind(**given) != method or subject.batches() != method:
        return Finding(False, None, "made again from its own parameters it is another")
    with subject.walking(subject.declaration.table(torch.float64), method) as walk:
        stepped(walk, 2)
    left = [name for name in vars(method) if name not in given or vars(method)[name] is not given[name]]
    if left:
        return Finding(False, float(len(left)), f"a run left something on the method: {few(left)}")
    return Finding(True, float(len(given)), f"{len(given)} parameters, stored unchanged")


def stacked_call(subject: Subject) -> Finding:
    """A stack of unequal clients answers as its clients do one by one, in float32."""
    off = 0.0
    with subject.midway() as moment:
        sizes = moment.stack().sizes()
        whole = _client_half(moment, None)
        for i, n in enumerate(sizes.tolist()):
            own = {key: value[i] for key, value in whole.items()}
            for name in moment.method.per_row:
                own |= {key: value[:n] for key, value in own.items() if key.endswith(f"memory {name}")}
            off = max(off, difference(_client_half(moment, i), own))
    return Finding.within(off, 1e-6, "greatest difference between a stack and its clients")


def stacked_rounds(subject: Subject) -> Finding:
    """20 rounds with stragglers and losses end at the same place for stacks of one, of three and of all, in float64."""
    ends = []
    for stack in (1, 3, 1000):
        how = {"stack": stack, "fleet": _ROUGH}
        with subject.walking(subject.declaration.table(torch.float64), subject.batches(), **how) as walk:
            ends.append(everything(stepped(walk, 20)))
    off = max(difference(end, ends[0]) for end in ends[1:])
    return Finding.within(off, 1e-10, "greatest difference between stacks of one, three and all after 20 rounds")


def workers(subject: Subject) -> Finding:
    """The same bits in this process, in one worker process and in two; or in this process and where the kit works."""
    return _same_anywhere(subject, subject.declaration.table(torch.float32))


def workers_convolutions(subject: Subject) -> Finding:
    """The same with convolutions, whose gradients depend on the number of threads."""
    if subject.declaration.images is None:
        return Finding(True, None, "not for convolutions, as declared")
    return _same_anywhere(subject, subject.declaration.images())


def resumed(subject: Subject) -> Finding:
    """A run that breaks off between two checkpoints and is resumed ends in the same bits as one that does not."""
    problem, rounds = subject.declaration.table(torch.float32), 6

    def run(out: Path, executor: Executor, stop_after: int = rounds, resume: bool = False) -> Run:
        """A run with a method of its own, so that nothing can hide on it, and a checkpoint every second round."""

        def progress(row: dict[str, Any], last: int) -> None:
            if row["round"] == stop_after < rounds:
                raise _Stop

        prepared = prepare(
            problem, subject.batches(), rounds=rounds, fleet=_ROUGH, executor=executor, checkpoint_every=2
        )
        engine = subject.declaration.schedule
        return replace(prepared, engine=engine).run(out, resume=resume, progress=progress)

    with tempfile.TemporaryDirectory(prefix="fedloom-") as folder:
        whole, broken = Path(folder) / "whole", Path(folder) / "broken"
        one, executor = run(whole, subject.executor()), subject.executor()
        with suppress(_Stop):
            run(broken, executor, stop_after=3)
        other = run(broken, executor, resume=True)
        different = differing(_saved(whole), _saved(broken))
        if _timeless(one) != _timeless(other):
            different.append("history")
    return _bits(different, "a resumed run")


def order(subject: Subject) -> Finding:
    """Clients under other ids find the same models."""
    if not isinstance(subject.method, ServerMethod):
        return Finding(True, None, "its neighbours go by ids, so that other ids are another graph")
    problem, found = subject.declaration.table(torch.float64), []
    clients = problem.data.clients
    shuffled = torch.from_numpy(Draw(1).generator("order").permutation(clients))
    for names in (torch.arange(clients), shuffled):
        ids = torch.argsort(names)
        select, rounds = (_in_turn(ids), 2 * clients) if subject.declaration.one_by_one else (All(), 10)
        with subject.walking(relabelled(problem, names), subject.full(), select=select) as walk:
            found.append(product(stepped(walk, rounds), ids))
    off = apart(found[1], found[0])
    return Finding.within(off, 1e-10, "greatest difference after relabelling the clients")


def refused(subject: Subject) -> Finding:
    """A method that needs exact messages refuses a lossy channel; any other takes it."""
    problem, method = subject.declaration.table(torch.float64), subject.batches()
    try:
        with subject.walking(problem, method, channel=QUANTISED.channel) as walk:
            walk.step()
    except ConfigError as error:
        return Finding(method.exact, None, str(error))
    return Finding(not method.exact, None, "a lossy channel is accepted")


def messages(subject: Subject) -> Finding:
    """Messages come back from their bytes as they were, and the history counts exactly these bytes."""
    problem, method, wrong = subject.declaration.table(torch.float32), subject.batches(), 0
    channels: list[tuple[Transform, ...]] = [()] if method.exact else [(), (Quantise(8),)]
    for transforms in channels:
        up, down = Tap(), TappedSerial()
        with subject.walking(problem, method, down, channel=Channel((*transforms, up)), fleet=Fleet(loss=0.3)) as walk:
            stepped(walk, 3)
            if up.broken or down.tap.broken:
                return Finding(False, None, f"changed by serialising: {few([*up.broken, *down.tap.broken])}")
            wrong += abs(walk.clocks.bytes_up - sum(up.sizes)) + abs(walk.clocks.bytes_down - sum(down.tap.sizes))
    return Finding(wrong == 0, wrong, f"the history is {wrong} bytes off the {sum(up.sizes)} up and those down")


def plain(subject: Subject) -> Finding:
    """State, messages and memory are dicts of plain, finite tensors, and the models have the model's shape."""
    with subject.midway() as moment:
        walk, method, client, received = moment.walk, moment.method, moment.stack(), moment.received()
        reply, memory = method.turn(client, received, moment.memory())
        dicts = {
            "message": received,
            "reply": reply,
            "memory": memory,
            "first memory": method.client_init(client, received),
            "settled memory": method.settle(client, memory, reply, received),
        }
        if isinstance(method, ServerMethod):
            dicts["state"] = method.server(walk.state, replies_to(method, client, reply), walk.context(2))
            dicts["first state"] = method.server_init(walk.context(0))
        faults = [fault for name, values in dicts.items() for fault in _impurities(name, values)]
        for name in ("reply", "memory", "first memory", "settled memory"):
            short = [key for key, value in dicts[name].items() if len(value) != len(moment.ids)]
            faults += [f"{name} {key!r} has not one row a client" for key in short]
        n, clients = walk.problem.model.n, len(moment.ids)
        if walk.theta().shape != (n,):
            faults.append(f"the model has the shape {tuple(walk.theta().shape)}, not ({n},)")
        own = method.personal(client, shown_to(method, client, walk.state), memory)
        if own.shape not in {(n,), (clients, n)}:
            faults.append(f"the personal models have the shape {tuple(own.shape)}, not ({clients}, {n})")
    return Finding(not faults, len(faults), few(faults) or "plain tensors throughout")


def untouched(subject: Subject) -> Finding:
    """No function of the method changes what it was given."""
    touched: list[str] = []

    @contextmanager
    def watch(function: str, **given: dict[str, Tensor]) -> Iterator[None]:
        before = {name: copied(values) for name, values in given.items()}
        yield
        for name, values in given.items():
            touched.extend(f"{function} changes {name} {key!r}" for key in differing(before[name], values))

    with subject.midway() as moment:
        walk, method, state = moment.walk, moment.method, moment.walk.state
        with watch("what is sent", state=state):
            received = copied(moment.received())
        memory = copied(moment.memory())
        with watch("client", received=received, memory=memory):
            reply, provisional = method.turn(moment.stack(), received, memory)
        reply, provisional = copied(reply), copied(provisional)
        with watch("settle", received=received, memory=provisional, sent=reply):
            kept = copied(method.settle(moment.stack(), provisional, reply, received))
        with watch("personal", state=state, memory=kept):
            method.personal(moment.stack(), shown_to(method, moment.stack(), state), kept)
        if isinstance(method, ServerMethod):
            with watch("server", state=state, replies=reply):
                method.server(state, replies_to(method, moment.stack(), reply), walk.context(2))
    return Finding(not touched, len(touched), few(touched) or "nothing given is changed")


def seeds(subject: Subject) -> Finding:
    """Equal seeds give equal bits, whatever torch's and NumPy's own generators do; other seeds give other batches."""
    problem, method, ends = subject.declaration.table(torch.float32), subject.batches(), []
    for disturbance in (1, 2):
        with _disturbed(disturbance), subject.walking(problem, method, seed=5) as walk:
            moment = Moment.after(walk, 3)
            ends.append(everything(walk))
            draws = [_joined(moment, draw=Draw(seed, 3)) for seed in (5, 6)]
    different = differing(*ends)
    if different:
        return _bits(different, "a run with the same seed")
    if method.local_batch is not None and not differing(*draws):
        return Finding(False, 0.0, "another seed gives the same replies, though there are mini-batches")
    return Finding(True, 0.0, "equal seeds, equal bits")


def effort(subject: Subject) -> Finding:
    """A client that manages half of its work computes fewer gradients, and the history says so."""
    problem, method = subject.declaration.table(torch.float32), subject.batches()
    counts, recorded = [], []
    for part, fleet in ((1.0, Fleet()), (0.5, Fleet(stragglers=1.0))):
        with subject.walking(problem, method, fleet=fleet) as walk:
            recorded.append(int(walk.step()["gradient_evaluations"]))
            moment = Moment(walk)
            client = moment.stack(effort=part)
            method.turn(client, moment.received(), moment.memory())
            counts.append(client.evaluations)
    if not subject.declaration.divisible:
        same = bool((counts[0] == counts[1]).all()) and recorded[0] == recorded[1]
        what = "its work has no parts, as declared" if same else "declared to have no parts, but has"
        return Finding(same, 1.0, what)
    share = float(counts[1].sum() / counts[0].sum())
    pooled = method.layout == "pooled"  # a pool is no device that could be slow, whatever the fleet
    fewer = bool((counts[1] < counts[0]).all()) and (pooled or recorded[1] < recorded[0])
    return Finding(fewer, share, f"half the effort is {share:.0%} of the gradient evaluations; every client must save")


def work(subject: Subject) -> Finding:
    """A method that says beforehand how many gradients its clients compute is right, with and without mini-batches."""
    off = 0
    for full in (False, True):
        with subject.midway(rounds=1, full=full) as moment:
            client, method = moment.stack(), moment.method
            said = method.work(client.sizes())
            if said is None:
                return Finding(True, None, "known only when a client is done, as it says")
            method.turn(client, moment.received(), moment.memory())
            off = max(off, int(np.abs(said - client.evaluations).max()))
    return Finding(off == 0, off, f"a client's gradient evaluations are up to {off} off what was said beforehand")


def columns(subject: Subject) -> Finding:
    """Clients of a stack answer the same when each has fetched for itself: all that they received is then a column."""
    if subject.method.needs_rounds is not None:
        return Finding(True, None, f"it needs rounds: {subject.method.needs_rounds}")
    with subject.midway() as moment:
        shared, own = moment.walk.fetched(moment.ids)
        apiece = {**{key: column(value, len(moment.ids)) for key, value in shared.items()}, **own}
        replies, firsts = [], []
        for received in (moment.received(), apiece):
            replies.append(_client_half(moment, None, received))
            firsts.append(moment.method.client_init(moment.stack(), received))
        off = max(difference(replies[1], replies[0]), difference(firsts[1], firsts[0]))
    return Finding.within(off, 1e-6, "greatest difference between what all received and what each received")


def sums(subject: Subject) -> Finding:
    """A method that says that sums are enough has a server that gets nothing else, and it does not matter who adds up.

    The sums are put together here from two halves of the clients, as a secure sum would from those of two helpers.
    """
    method = subject.batches()
    if not isinstance(method, ServerMethod):
        return Finding(True, None, "it has no server")
    if method.reduce == "each":
        return Finding(True, None, "it looks at single replies, as it says")
    with subject.midway(torch.float64) as moment:
        walk = moment.walk
        reply, _ = method.client(moment.stack(), moment.received(), moment.memory())
        whole = replies_to(method, moment.stack(), reply)
        if whole.columns is not None:
            return Finding(False, None, "the server gets single replies")
        sent = Channel().send(reply, method.weight(moment.stack()), {}, moment.ids, moment.draw).wire
        half = len(moment.ids) // 2
        added = {key: value[:half].sum(0) + value[half:].sum(0) for key, value in sent.items()}
        ends = [method.server(walk.state, r, walk.context(2)) for r in (whole, replace(whole, sums=added))]
    return Finding.within(difference(*ends), 1e-10, "greatest difference of a state made from sums of two halves")


def joining(subject: Subject) -> Finding:
    """Of the server's state exactly those parts have an entry for each client that are said to: they grow as clients
    join."""
    method = subject.batches()
    if not isinstance(method, ServerMethod):
        return Finding(True, None, "it has no server")
    with subject.walking(subject.declaration.table(torch.float64), method) as walk:
        now = walk.context(0)
        more = torch.cat([now.sizes, now.sizes[:2]])
        ids = torch.arange(len(now.sizes), len(more))
        later = replace(now, sizes=more, clients=now.clients + 2, sources=torch.cat([now.sources, ids]))
        before, after = (method.server_init(ctx) for ctx in (now, later))
    grown = {key for key in after if key not in before or after[key].shape != before[key].shape}
    wrong = sorted(grown ^ {*method.per_client, *method.per_pair})
    for key in grown & before.keys():
        axes = 2 if key in method.per_pair else 1
        if [n - 2 for n in after[key].shape[:axes]] != list(before[key].shape[:axes]):
            wrong.append(key)
    said = "per_client or per_pair"
    what = f"{said} is wrong about {few(wrong)}" if wrong else f"{len(grown)} parts of the state grow, as it says"
    return Finding(not wrong, float(len(wrong)), what)


def coordinates(subject: Subject) -> Finding:
    """A server's step that is said to work coordinate by coordinate gives on half of them half of what it gives."""
    method = subject.batches()
    if not isinstance(method, ServerMethod) or not method.coordinatewise:
        return Finding(True, None, "its server's step is not said to work coordinate by coordinate")
    with subject.midway(torch.float64) as moment:
        walk, n = moment.walk, moment.walk.problem.model.n
        reply, _ = method.client(moment.stack(), moment.received(), moment.memory())
        whole = method.server(walk.state, replies_to(method, moment.stack(), reply), walk.context(2))
        off = 0.0
        for half in (slice(0, n // 2), slice(n // 2, n)):
            part = replies_to(method, moment.stack(), _half(reply, n, half))
            found = method.server(_half(walk.state, n, half), part, walk.context(2))
            off = max(off, difference(found, _half(whole, n, half)))
    return Finding.within(off, 1e-12, "greatest difference between a step on half the coordinates and half the step")


def asynchronous(subject: Subject) -> Finding:
    """Replies that are taken as they arrive, most of them old, end where a loop written by hand does, in float64."""
    method, problem = subject.full(), subject.declaration.table(torch.float64)
    if not isinstance(method, ServerMethod):
        return Finding(True, None, "it has no server")
    if method.needs_rounds is not None:
        return Finding(True, None, f"it needs rounds: {method.needs_rounds}")
    if method.layout == "pooled":
        return Finding(True, None, "a pool has nobody to wait for")
    fleet, off, oldest = Fleet(delay_up=Distribution("uniform", 10.0, 100.0)), 0.0, 0
    ticks = fleet.travel(np.arange(problem.data.clients), 0, 0, 0).tolist()
    for buffer in (1, 3):
        by_hand, schedule = Staggered(problem, method, ticks, buffer), Schedule("async", buffer=buffer)
        with walking(Arrivals, problem, method, subject.executor(), fleet=fleet, schedule=schedule) as walk:
            by_hand.run(stepped(walk, 3).clocks.server_steps)
            alone = {who: {key: row[0] for key, row in own.items()} for who, own in by_hand.memories.items()}
            off = max(off, difference(everything(walk), in_one(by_hand.state, alone)))
        oldest = max(oldest, *by_hand.staleness)
    finding = Finding.within(off, 1e-10, f"greatest difference from a loop by hand, replies up to {oldest} steps old")
    return replace(finding, passed=finding.passed and oldest > 0)


def draws(subject: Subject) -> Finding:
    """Every round has mini-batches of its own, every epoch an order of its own, and every purpose rows of its own."""
    method = subject.batches()
    if method.local_batch is None:
        return Finding(True, None, "it has no mini-batches")
    with subject.midway() as moment:
        if not differing(*(_joined(moment, draw=Draw(5, t)) for t in (3, 4))):
            return Finding(False, 0.0, "two rounds have the same mini-batches")
        client, received, memory = moment.alone(int(moment.stack().sizes().argmax()))
        client.problem = tap = TappedProblem.of(client.problem)
        method.turn(client, received, memory)
        batches = [tap.places(rows, client) for rows in tap.taken if _FEWEST <= len(rows) < int(client.sizes()[0])]
    again = sum(not one.isdisjoint(other) for i, one in enumerate(batches) for other in batches[:i])
    return Finding(again == 0, again, f"{again} of {len(batches)} mini-batches of a client are one that it had before")


CHECKS: dict[str, Check] = {
    "declared": declared,
    "parameters": parameters,
    "plain-tensors": plain,
    "untouched": untouched,
    "stack-call": stacked_call,
    "stack-rounds": stacked_rounds,
    "workers": workers,
    "workers-convolutions": workers_convolutions,
    "resume": resumed,
    "order": order,
    "lossy-channel": refused,
    "messages": messages,
    "seeds": seeds,
    "effort": effort,
    "sums": sums,
    "joining": joining,
    "coordinates": coordinates,
    "work": work,
    "columns": columns,
    "draws": draws,
    "asynchronous": asynchronous,
}
"""The checks that every method goes through, by name."""


class _Stop(Exception):
    """The end of a run that is broken off on purpose."""


def _same_anywhere(subject: Subject, problem: Problem) -> Finding:
    there = subject.executor()
    others: Sequence[Executor] = (Processes(1), Processes(2)) if type(there) is Serial else (there,)
    method, ends = subject.batches(), []
    stack = 1 if there.remembers else 2  # a client that remembers elsewhere works alone there
    how = {"stack": stack, "fleet": _ROUGH, "channel": Channel() if method.exact else QUANTISED.channel}
    for executor in (Serial(), *others):
        with subject.walking(problem, method, executor, **how) as walk:
            ends.append(everything(stepped(walk, 3)))
    different = [key for end in ends[1:] for key in differing(ends[0], end)]
    where = "in worker processes" if type(there) is Serial else f"by the executor {there.name!r}"
    return _bits(sorted(set(different)), f"a run {where}")


def _bits(different: list[str], who: str) -> Finding:
    what = f"{who} differs in {few(different)}" if different else f"{who}: the same bits"
    return Finding(not different, float(len(different)), what)


def _in_turn(clients: Tensor) -> Selection:
    """One client a round, in this order."""
    return Chosen(lambda _, ctx: [int(clients[ctx.round % len(clients)])])


def _half(tensors: Mapping[str, Tensor], n: int, half: slice) -> dict[str, Tensor]:
    """Of every tensor that has a number (or several) for each of n coordinates, those of a part of these."""

    def part(value: Tensor) -> Tensor:
        if value.dim() == 0 or value.shape[-1] == 0 or value.shape[-1] % n:
            return value
        return of_each(value, n, lambda each: each[..., half])

    return {key: part(value) for key, value in tensors.items()}


def _client_half(moment: Moment, position: int | None, received: Message | None = None) -> dict[str, Tensor]:
    """Everything that the client's functions give, for the stack or for one client that is no stack."""
    method = moment.method
    if position is None:
        client, memory = moment.stack(), moment.memory()
        received = moment.received() if received is None else received
    else:
        client, received, memory = moment.alone(position)
    reply, provisional = method.turn(client, received, memory)
    kept = method.settle(client, provisional, reply, received)
    model = method.personal(client, shown_to(method, client, moment.walk.state), kept)
    shape = moment.stack().n.shape[:1] if position is None else ()
    parts = labelled({"reply": reply, "provisional memory": provisional, "memory": kept})
    return {**parts, "model": model.expand(*shape, model.shape[-1])}


def _joined(moment: Moment, draw: Draw) -> dict[str, Tensor]:
    """The reply and the memory of the stack with this randomness."""
    reply, memory = moment.method.turn(moment.stack(draw), moment.received(), moment.memory())
    return labelled({"reply": reply, "memory": memory})


def _saved(folder: Path) -> dict[str, Tensor]:
    """State and memories in the newest checkpoint of a run."""
    found = checkpoint.load(folder / checkpoint.NEWEST)
    with MemoryStore.restore(folder, found.groups["memory"]) as store:
        known = {client: store.get(client) or {} for client in store.clients().tolist()}
        return in_one(found.groups["state"], known)


def _timeless(run: Run) -> list[dict[str, Any]]:
    """The history without the one clock that is never the same."""
    return [{key: value for key, value in row.items() if key != "wall_seconds"} for row in run.history]


def _impurities(name: str, values: Any) -> Iterator[str]:
    """What keeps a dict of tensors from being plain."""
    if type(values) is not dict:
        yield f"{name} is a {type(values).__name__}, not a dict"
        return
    for key, value in values.items():
        if type(key) is not str or type(value) is not Tensor:
            yield f"{name} {key!r} is a {type(value).__name__}, not a tensor under a word"
        elif value.requires_grad or value.device.type != "cpu":
            yield f"{name} {key!r} carries a gradient or is not in main memory"
        elif value.is_floating_point() and not bool(torch.isfinite(value).all()):
            yield f"{name} {key!r} is not finite"


@contextmanager
def _disturbed(seed: int) -> Iterator[None]:
    """The global generators of torch and NumPy somewhere else for the time being."""
    before = np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(before)
