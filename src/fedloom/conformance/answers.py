"""The kinds of known answers: a limit, every step of the way, equality with another method, what each round keeps."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor

from fedloom.conformance.claims import IDEAL, Claim, Finding, Hardship, Subject
from fedloom.conformance.drive import Walk, apart, product, stepped
from fedloom.conformance.problems import Known
from fedloom.engine.fleet import Fleet
from fedloom.federation.problem import Problem
from fedloom.methods.method import Method, inner_methods
from fedloom.types import Vector

Limits = Callable[[Known, Any], Tensor]
"""From the problem and the method (for its hyper-parameters) to a vector, or to one a client for a personal method."""

Look = Callable[[Walk, Tensor], Tensor]
"""What is looked at of a run, for these clients: by default what the method makes."""

_BATCHES = 30  # of consecutive iterates, for the standard error of their mean
_ERRORS = 4.5  # standard errors that a mean may be off: by chance once in ten thousand
_SHARP = 0.02  # … which says little unless the standard error is this small, measured by how far clients disagree


@dataclass(frozen=True, eq=False)
class Target:
    """Where a method must end, and, if it is often mistaken to end elsewhere, that rival place."""

    limit: Tensor
    rival: Tensor | None
    tolerance: float
    scale: float
    """How far the clients disagree."""
    look: Look = product

    def unlike_rival(self, found: Finding, away: Callable[[Tensor], float], least: float) -> Finding:
        """The same finding, but failed unless the rival is further away than ``least``."""
        if self.rival is None:
            return found
        elsewhere = away(self.rival)
        detail = f"{found.detail}; {elsewhere:.2g} from where it must not end"
        return replace(found, passed=found.passed and elsewhere > least, detail=detail)


class Sense(ABC):
    """In what sense a limit is reached."""

    @abstractmethod
    def judge(self, walk: Walk, clients: Tensor, target: Target) -> Finding:
        """Walk, and see."""


@dataclass(frozen=True)
class Exactly(Sense):
    """The iterates themselves come to the limit within so many rounds, and stay there.

    A twentieth of the rounds is between two looks. Two in a row at the limit are enough, for it is far too near to be
    passed by chance.
    """

    rounds: int

    def judge(self, walk: Walk, clients: Tensor, target: Target) -> Finding:
        there = False
        for t in range(1, self.rounds + 1):
            walk.step()
            if t % max(self.rounds // 20, 1) and t < self.rounds:
                continue
            found = target.look(walk, clients)
            off = apart(found, target.limit)
            there, stayed = off <= target.tolerance, there
            if there and stayed:
                break
        finding = Finding.within(off, target.tolerance, f"distance to the limit after {t} rounds")
        return target.unlike_rival(finding, partial(apart, found), 1000 * target.tolerance)


@dataclass(frozen=True)
class OnAverage(Sense):
    """The iterates keep wandering, with the limit as their mean.

    Consecutive iterates depend on each other, so the standard error is that of the means of long batches of them.
    """

    rounds: int
    warm_up: int = 60

    def judge(self, walk: Walk, clients: Tensor, target: Target) -> Finding:
        path = []
        for t in range(self.warm_up + self.rounds):
            walk.step()
            if t >= self.warm_up:
                path.append(target.look(walk, clients))
        means = torch.stack([part.mean(0) for part in torch.stack(path).chunk(_BATCHES)])
        error = means.std(0).clamp(min=target.tolerance) / len(means) ** 0.5

        def away(place: Tensor) -> float:
            return float(((means.mean(0) - place).abs() / error).max())

        off, coarse = away(target.limit), float(error.max()) / target.scale
        passed = off <= _ERRORS and coarse <= _SHARP
        detail = (
            f"the mean of {self.rounds} rounds is {off:.2g} standard errors from the limit, at most {_ERRORS} allowed; "
            f"one is {coarse:.2g} of how far clients disagree, at most {_SHARP} allowed"
        )
        return target.unlike_rival(Finding(passed, off, detail), away, _ERRORS)


class OfRun(Claim):
    """What claims about one run share: how that is set up, and what a hardship changes."""

    method: Mapping[str, Any]
    """Hyper-parameters."""
    stands: tuple[str, ...] = ()
    """The hardships under which it holds too."""
    fleet: Fleet = Fleet()
    """The fleet when there is no further hardship."""
    seed: int = 4
    """Of this seed's delays some, but not most, miss the deadline."""

    @property
    def survives(self) -> tuple[str, ...]:
        return self.stands

    def fleet_in(self, hardship: Hardship) -> Fleet:
        """The fleet of the run."""
        return self.fleet if hardship is IDEAL else hardship.fleet

    def walking(
        self, subject: Subject, problem: Problem, hardship: Hardship, prior: Vector | None = None
    ) -> AbstractContextManager[Walk]:
        """The run at its start."""
        how = {"select": hardship.selection(problem.data.clients), "channel": hardship.channel, "prior": prior}
        how |= {"fleet": self.fleet_in(hardship), "seed": self.seed}
        return subject.walking(problem, subject.tuned(self.method), **how)


@dataclass(frozen=True, eq=False)
class Limit(OfRun):
    """The method comes to where theory says, and stays there, also under the hardships that it survives."""

    name: str
    known: Callable[[], Known]
    limit: Limits
    method: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 300
    tolerance: float = 1e-9
    hardships: Mapping[str, Sense] = field(default_factory=dict)
    """The hardships under which the limit stays where it is, and in what sense it is reached then."""
    not_at: Limits | None = None
    """Where the method must not end: what it is often mistaken to reach."""
    fleet: Fleet = field(default_factory=Fleet)
    """The fleet when there is no further hardship."""
    seed: int = 4
    """Of this seed's delays some, but not most, miss the deadline."""
    prior: Callable[[Known], Tensor] | None = None
    """The earlier model that the method is given, if any."""
    look: Look = product
    ideally: Sense | None = None
    """In what sense it is reached without any hardship; none: exactly."""

    @property
    def survives(self) -> tuple[str, ...]:
        return tuple(self.hardships)

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        known = self._in_time(self.known(), self.fleet_in(hardship))
        method, prior = subject.tuned(self.method), self.prior(known) if self.prior is not None else None
        rival = self.not_at(known, method) if self.not_at is not None else None
        target = Target(self.limit(known, method), rival, self.tolerance, known.scale, self.look)
        sense = self.hardships.get(hardship.name, self.ideally or Exactly(self.rounds))
        with self.walking(subject, known.problem, hardship, prior) as walk:
            return sense.judge(walk, known.clients, target)

    def _in_time(self, known: Known, fleet: Fleet) -> Known:
        """Without the clients that always miss the deadline: the limit is that of the others."""
        if fleet.deadline is None or fleet.late != "drop":
            return known
        ids = known.clients.numpy()
        seconds = fleet.travel(ids, self.seed, 0, 0 * ids)
        some = known.only(known.clients[torch.from_numpy(seconds <= fleet.deadline)])
        if not 1 < len(some.clients) < len(ids):
            raise AssertionError(f"{len(some.clients)} of {len(ids)} clients are in time; choose another seed")
        return some


def greatest(deviations: Iterable[float], rounds: int, bound: float, what: str) -> Finding:
    """The greatest deviation of so many rounds is to be within the bound; after one that is not there are no more."""
    off = 0.0
    for deviation in islice(deviations, rounds):
        off = math.inf if math.isnan(deviation) else max(off, deviation)
        if off > bound:
            break
    return Finding.within(off, bound, f"greatest {what} in {rounds} rounds")


@dataclass(frozen=True, eq=False)
class Path(OfRun):
    """Every round is what theory says: ``step`` maps where the method was to where it must be next.

    Where it is known whose replies are accepted (sampled clients, lost and late replies), ``step`` gets the problem
    with these clients alone, and of a personal method their models alone. Its method has numbers for schedules.
    """

    name: str
    known: Callable[[], Known]
    step: Callable[[Known, Any, Tensor], Tensor]
    method: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 30
    tolerance: float = 1e-11
    stands: tuple[str, ...] = ()
    """The hardships under which it holds too."""
    seed: int = 4

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        known = self.known()
        with self.walking(subject, known.problem, hardship) as walk:
            return greatest(self._distances(known, walk), self.rounds, self.tolerance, "distance from the path")

    def _distances(self, known: Known, walk: Walk) -> Iterator[float]:
        """After each round, how far the method is from where it must be."""
        method, at = walk.setting.method, walk.context(0).theta0.clone()
        personal = method.evaluates == "personal"
        at = at.repeat(len(known.clients), 1) if personal else at
        seen = torch.zeros(len(known.clients), dtype=torch.bool)
        for t in count():
            answered = known.clients if method.layout == "pooled" else accepted(walk, t)
            walk.step()
            if len(answered):
                where = answered if personal else ...
                at[where] = self.step(known.only(answered), in_round(method, t), at[where])
                seen[answered] = True
            who = known.clients[seen]
            yield apart(product(walk, who), at[who] if personal else at)


def in_round(method: Method, t: int) -> Any:
    """The method with the number of round t in the place of every schedule "exponential:LR:FACTOR"."""
    for name in inner_methods(type(method)):
        method = replace(method, **{name: in_round(getattr(method, name), t)})  # type: ignore[type-var]
    texts = {f.name: getattr(method, f.name) for f in fields(method)}  # type: ignore[arg-type]
    falling = {name: text.split(":")[1:] for name, text in texts.items() if str(text).startswith("exponential:")}
    numbers = {name: float(lr) * float(factor) ** t for name, (lr, factor) in falling.items()}
    return replace(method, **numbers)  # type: ignore[type-var]


def accepted(walk: Walk, t: int) -> Tensor:
    """The ids of those whose replies will be accepted in round t, computed without the engine's walk."""
    ctx, setting = walk.context(t), walk.setting
    chosen = setting.select.pick(walk.candidates, ctx)
    seconds = setting.fleet.seconds(chosen, setting.seed, 0, 0 * chosen, 0 * chosen)
    return torch.from_numpy(chosen[setting.fleet.fates(chosen, seconds, ctx.draw)["accepted"]])


@dataclass(frozen=True, eq=False)
class Same(Claim):
    """With these hyper-parameters it is another method: bit by bit, or up to a tolerance."""

    name: str
    problem: Callable[[], Problem]
    method: Mapping[str, Any]
    other: Method
    rounds: int = 20
    tolerance: float = 0.0
    look: Look = product

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        problem = self.problem()
        clients = torch.arange(problem.data.clients)

        def path(method: Method) -> list[Tensor]:
            """One run after the other: on a cluster two at a time would wait for each other's workers."""
            with subject.walking(problem, method) as walk:
                return [self.look(stepped(walk), clients).clone() for _ in range(self.rounds)]

        distances = map(apart, path(subject.tuned(self.method)), path(self.other))
        return greatest(distances, self.rounds, self.tolerance, f"difference from {type(self.other).__name__}")


@dataclass(frozen=True, eq=False)
class Measured(OfRun):
    """After every round a measure of the run is zero."""

    name: str
    problem: Callable[[], Problem]
    measure: Callable[..., float]
    """Of the run; with the state before the round, and the ids of those who were heard, where that is asked for."""
    method: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 20
    tolerance: float = 1e-12
    stands: tuple[str, ...] = ()
    """The hardships under which it holds too."""
    seed: int = 4

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        with self.walking(subject, self.problem(), hardship) as walk:
            deviations = (self.deviation(walk, t) for t in count())
            return greatest(deviations, self.rounds, self.tolerance, "deviation")

    @abstractmethod
    def deviation(self, walk: Walk, t: int) -> float:
        """What is measured after round t, which is still to be walked."""


@dataclass(frozen=True, eq=False)
class Invariant(Measured):
    """After every round this measure of a run is zero."""

    def deviation(self, walk: Walk, t: int) -> float:
        walk.step()
        return self.measure(walk)


@dataclass(frozen=True, eq=False)
class Around(Measured):
    """From the state before a round to the run after it this measure is zero.

    It is one of three things: the state before, the run after, and the ids of those whose replies were accepted.
    Rounds without such are left out.
    """

    def deviation(self, walk: Walk, t: int) -> float:
        before, who = walk.state, accepted(walk, t)
        walk.step()
        return self.measure(before, walk, who) if len(who) else 0.0
