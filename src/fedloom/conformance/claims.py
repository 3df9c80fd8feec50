"""What is said about a method: its claims, what the other checks need to know of it, and how a claim is judged."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from fedloom.channel import Channel, Quantise
from fedloom.conformance.drive import Moment, Schedule, Walk, walking
from fedloom.conformance.problems import classification, images
from fedloom.engine.fleet import Distribution, Fleet
from fedloom.engine.rounds import Rounds
from fedloom.engine.selection import All, Selection, Uniform
from fedloom.execution import Executor, Serial
from fedloom.federation.problem import Problem
from fedloom.methods.method import Method, inner_methods
from fedloom.methods.wrapper import Wrapper


@dataclass(frozen=True)
class Finding:
    """How a check came out: the figure that decided, and a sentence about it."""

    passed: bool
    value: float | None
    detail: str

    @staticmethod
    def within(value: float, bound: float, what: str) -> Finding:
        """Passed if the value is at most the bound (NaN is not)."""
        return Finding(value <= bound, value, f"{what}: {value:.3g}, at most {bound:.3g} allowed")


@dataclass(frozen=True)
class Hardship:
    """Circumstances under which a method's limit may stay where it is."""

    name: str
    fleet: Fleet = field(default_factory=Fleet)
    channel: Channel = field(default_factory=Channel)
    share: float = 1.0
    """The share of the clients that is selected in each round."""

    def selection(self, clients: int) -> Selection:
        """Who takes part in a round."""
        return All() if self.share == 1.0 else Uniform(math.ceil(self.share * clients))


IDEAL = Hardship("ideal")
SAMPLED = Hardship("sampled", share=0.6)
LOST = Hardship("lost", fleet=Fleet(loss=0.3))
LATE = Hardship("late", fleet=Fleet(delay_up=Distribution("uniform", 0.0, 10.0), deadline=6.0))
QUANTISED = Hardship("quantised", channel=Channel((Quantise(4),)))
HARDSHIPS = {hardship.name: hardship for hardship in (SAMPLED, LOST, LATE, QUANTISED)}
"""Clients are sampled; 30 % of the replies are lost; some clients always miss the deadline; a number has 4 bits."""


class Claim(ABC):
    """Something that is true of a method and can be computed. A claim may bring its own problem and its own driver."""

    name: str
    """The claim in a few words: the check is called so."""

    @property
    def survives(self) -> tuple[str, ...]:
        """The names of the hardships under which the claim is checked again. Default: none."""
        return ()

    @abstractmethod
    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        """Whether it holds."""


@dataclass(frozen=True)
class Declaration:
    """All that the kit has to be told about one method; what is not particular to it has a default."""

    claims: tuple[Claim, ...] = ()
    """The known answers."""
    batches: Mapping[str, Any] = field(default_factory=dict)
    """Hyper-parameters for the checks without a known answer: several steps of mini-batches, if it has such."""
    full: Mapping[str, Any] = field(default_factory=dict)
    """What makes it deterministic instead (full-batch steps), for the check that the clients' order does not matter."""
    one_by_one: bool = False
    """Whether its server takes the replies of a step one after the other, so that their order matters: clients then
    answer one at a time in the check that their ids do not."""
    divisible: bool = True
    """Whether a slow client can do a part of its work."""
    excused: Mapping[str, str] = field(default_factory=dict)
    """Hardships that no claim speaks of, each with the reason."""
    equivalent: Mapping[str, str] = field(default_factory=dict)
    """Mutants that no check can tell from the method, by name, each with the reason."""
    table: Callable[[torch.dtype], Problem] = classification
    """The problem for the checks without a known answer."""
    images: Callable[[], Problem] | None = images
    """The same with convolutions; none for a method that cannot have them."""
    schedule: Schedule = Rounds
    """What makes its rounds."""


def tuned(method: Method, parameters: Mapping[str, Any]) -> Method:
    """A method with other hyper-parameters, its own or those of the method that it wraps."""
    own = {f.name for f in fields(method)}  # type: ignore[arg-type]
    inside = {key: value for key, value in parameters.items() if key not in own}
    if not inside or not isinstance(method, Wrapper) or not inner_methods(type(method)):
        return replace(method, **parameters)  # type: ignore[type-var]
    mine = {key: value for key, value in parameters.items() if key in own}
    return replace(method, inner=tuned(method.inner, inside), **mine)  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class Subject:
    """A method on the test bench."""

    name: str
    method: Method
    declaration: Declaration
    executor: Callable[[], Executor] = Serial
    """What makes the executors of its runs."""

    def tuned(self, parameters: Mapping[str, Any]) -> Method:
        """The method with other hyper-parameters; what a wrapper does not have is for the method inside."""
        return tuned(self.method, parameters)

    def batches(self) -> Method:
        """The method for the checks without a known answer."""
        return self.tuned(self.declaration.batches)

    def full(self) -> Method:
        """The method without mini-batches."""
        return self.tuned(self.without_batches())

    def without_batches(self) -> dict[str, Any]:
        """Hyper-parameters for that."""
        innermost = self.method
        while isinstance(innermost, Wrapper):
            innermost = innermost.inner
        names = {f.name for f in fields(innermost)}  # type: ignore[arg-type]
        whole = {"batch": None} if "batch" in names else {}
        return {**self.declaration.batches, **whole, **self.declaration.full}

    def walking(
        self, problem: Problem, method: Method, executor: Executor | None = None, /, **how: Any
    ) -> AbstractContextManager[Walk]:
        """A run at its start."""
        return walking(self.declaration.schedule, problem, method, executor or self.executor(), **how)

    @contextmanager
    def midway(self, dtype: torch.dtype = torch.float32, rounds: int = 2, full: bool = False) -> Iterator[Moment]:
        """The midst of a run without a known answer; ``full`` is without mini-batches."""
        with self.walking(self.declaration.table(dtype), self.full() if full else self.batches()) as walk:
            yield Moment.after(walk, rounds)
