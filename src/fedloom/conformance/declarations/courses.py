"""Claims of methods that remember more than a model, of defaults, of mini-batches and of adaptation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import count
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedloom.conformance.answers import OfRun, accepted, greatest, in_round
from fedloom.conformance.checks import CHECKS
from fedloom.conformance.claims import IDEAL, Claim, Finding, Hardship, Subject
from fedloom.conformance.declarations.common import Adapted, unequal_quadratics
from fedloom.conformance.drive import Walk, apart, few, has_converged, memory_of, product, recall
from fedloom.conformance.problems import Known, normal_equations
from fedloom.engine.fleet import Fleet
from fedloom.federation.data import FederatedData
from fedloom.federation.networks import build_model
from fedloom.federation.problem import Problem
from fedloom.federation.ragged import Ragged
from fedloom.federation.randomness import Draw
from fedloom.methods.method import Method, Wish, shown_to


@dataclass(eq=False)
class Ledger:
    """What theory says that a method has after a round: the server's state, and what each client remembers."""

    state: dict[str, Tensor]
    memory: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    done: bool = False
    """Whether the method should say that it has converged."""
    kept: dict[str, Any] = field(default_factory=dict)
    """What theory needs from round to round and the method has under no such name."""
    turns: int = 0
    """The rounds in which somebody was heard."""


Start = Callable[[Known, Any, Tensor], Ledger]
"""From the problem, the method and the first model to what it has before the first round."""
Turn = Callable[[Known, Any, Ledger, list[int]], None]
"""Does a round: from the problem, the method with the step sizes of the round, and the ids of those who are heard."""


@dataclass(frozen=True, eq=False)
class Course(OfRun):
    """Every round is what theory says, for methods whose server or clients remember more than a model."""

    name: str
    start: Start
    turn: Turn
    method: Mapping[str, Any] = field(default_factory=dict)
    known: Callable[[], Known] = unequal_quadratics
    rounds: int = 30
    tolerance: float = 1e-11
    stands: tuple[str, ...] = ()
    prior: Callable[[Known], Tensor] | None = None
    """The earlier model that the method is given, if any."""
    fleet: Fleet = field(default_factory=Fleet)
    seed: int = 4

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        known = self.known()
        prior = self.prior(known) if self.prior is not None else None
        with self.walking(subject, known.problem, hardship, prior) as walk:
            return greatest(self._distances(known, walk), self.rounds, self.tolerance, "distance from the course")

    def _distances(self, known: Known, walk: Walk) -> Iterator[float]:
        """After each round, how far the method is from where it must be."""
        method = walk.setting.method
        ledger = self.start(known, method, walk.context(0).theta0)
        for t in count():
            heard = accepted(walk, t).tolist()
            walk.step()
            if heard:
                self.turn(known, in_round(method, t), ledger, heard)
                ledger.turns += 1
            yield self._off(walk, ledger)

    def _off(self, walk: Walk, ledger: Ledger) -> float:
        if has_converged(walk) != ledger.done:
            return float("inf")
        pairs = [(walk.state[key], value) for key, value in ledger.state.items()]
        for client, own in ledger.memory.items():
            memory = memory_of(walk, client)
            pairs += [(memory[key], value) for key, value in own.items()]
        return max(apart(*pair) for pair in pairs)


def started(*slots: str, model: str = "x") -> Start:
    """The first model under its name, and zeros under these."""
    return lambda known, method, x: Ledger({model: x, **{slot: torch.zeros_like(x) for slot in slots}})


@dataclass(frozen=True, eq=False)
class Defaults(Claim):
    """What is not given is as the documentation says, field by field: of a method that was given nothing."""

    values: Mapping[str, Any]
    """Of every field, and of other attributes of the class."""
    name: str = "its defaults are those of the documentation"

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        method = subject.method
        names = {f.name for f in fields(method)} | self.values.keys()  # type: ignore[arg-type]
        unlike = [name for name in sorted(names) if not self._alike(method, name)]
        return Finding(not unlike, float(len(unlike)), f"other than documented: {few(unlike)}" if unlike else "all are")

    def _alike(self, method: Method, name: str) -> bool:
        given, said = getattr(method, name, ...), self.values.get(name, ...)
        return type(given) is type(said) and given == said


@dataclass(frozen=True, eq=False)
class Also(Claim):
    """One of the checks that every method goes through, passed with further hyper-parameters too."""

    check: str
    method: Mapping[str, Any]

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.check} with " + ", ".join(f"{name} = {value!r}" for name, value in self.method.items())

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        known = subject.declaration
        more = replace(known, batches={**known.batches, **self.method})
        return CHECKS[self.check](replace(subject, declaration=more))


@dataclass(frozen=True, eq=False)
class Costs(Claim):
    """The history counts as many gradients of single rows in a round as theory needs."""

    name: str
    gradients: Callable[[Known, Any], int]
    """From the problem and the method to their number."""
    method: Mapping[str, Any] = field(default_factory=dict)
    known: Callable[[], Known] = unequal_quadratics

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        known, method = self.known(), subject.tuned(self.method)
        with subject.walking(known.problem, method) as walk:
            told = int(walk.step()["gradient_evaluations"])
        due = self.gradients(known, method)
        return Finding(told == due, float(told), f"{told} gradients of single rows are told, {due} are due")


TRAINING = {"lr": 0.1, "batch": 32, "epochs": 1, "steps": None, "optimiser": "sgd"}
"""The defaults of local training."""
ROUNDS = {"default_schedule": "rounds", "default_rounds": 50, "default_dtype": "float32", "evaluates": "global"}
"""The defaults of a method that waits for all who were asked, and has one model for all."""


# Mini-batches

_ROWS, _BATCH, _EPOCHS, _LR = 11, 4, 3, 0.8


@cache
def one_by_one() -> Known:
    """One client whose row j is the j-th axis, so that θ_j tells in which mini-batches row j was."""
    x = torch.eye(_ROWS, dtype=torch.float64)
    y = torch.linspace(2, 3, _ROWS, dtype=torch.float64).unsqueeze(1)
    rows = Ragged.of([torch.arange(_ROWS)])
    splits = {"train": rows, "test": Ragged.of([torch.arange(0)]), "support": rows, "query": rows}
    data = FederatedData("one by one", x, y, "regression", splits)
    return Known.of(Problem(data, build_model("linear", data, bias=False), "squared", torch.float64), normal_equations)


@dataclass(frozen=True, eq=False)
class Passes(Claim):
    """Epochs are passes in mini-batches: each takes every row once, the last batch of each has what is left over.

    With rows along the axes a step with a batch of b rows takes the part η/b off θ_j − y_j of each row in it, so that
    after E epochs (1 − η/B)^(E − m)·(1 − η/r)^m of it is left for a row that was m times among the r that were left
    over. The m sum to E·r, and differ from row to row beyond 0 and E only if every epoch is shuffled anew.
    """

    method: Mapping[str, Any] = field(default_factory=dict)
    """What makes a round plain steps, apart from the step size, B and E."""
    name: str = "an epoch takes every row once, in an order of its own"
    tolerance: float = 1e-9

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        known, seen, off = one_by_one(), [], 0.0
        with subject.walking(known.problem, subject.tuned(self.given())) as walk:
            for _ in range(4):
                before, after = self.around(walk)
                times = self._times((after - known.optimum) / (before - known.optimum))
                off = max(off, float((times - times.round()).abs().max()), abs(float(times.sum()) - _EPOCHS * 3))
                seen.append(tuple(times.round().int().tolist()))
        mixed = all(set(times) - {0, _EPOCHS} for times in seen) and len(set(seen)) == len(seen)
        what = f"how far a row's batches are from whole ones; {'shuffled' if mixed else 'not shuffled'} anew each time"
        return Finding(mixed and off <= self.tolerance, off, f"{what}: {off:.3g}")

    def given(self) -> dict[str, Any]:
        """All that the method is told."""
        return {"lr": _LR, "batch": _BATCH, "epochs": _EPOCHS, **self.method}

    def around(self, walk: Walk) -> tuple[Tensor, Tensor]:
        """The model before and after the passes."""
        before = self._model(walk)
        walk.step()
        return before, self._model(walk)

    def _model(self, walk: Walk) -> Tensor:
        return walk.theta() if walk.setting.method.evaluates != "personal" else self._own(walk)

    def _own(self, walk: Walk) -> Tensor:
        return product(walk, torch.tensor([0]))[0] if walk.clocks.round else walk.theta()

    def _times(self, left: Tensor) -> Tensor:
        """How often each row was left over."""
        whole, short = np.log(1 - _LR / _BATCH), np.log(1 - _LR / (_ROWS % _BATCH))
        return torch.as_tensor((left.log() - _EPOCHS * float(whole)) / float(short - whole))


@dataclass(frozen=True, eq=False)
class AdaptsInPasses(Passes):
    """The same of a client that adapts a model to its support rows."""

    name: str = "adapting in mini-batches takes every row once, in an order of its own"

    def given(self) -> dict[str, Any]:
        return {"alpha": _LR, **self.method}

    def around(self, walk: Walk) -> tuple[Tensor, Tensor]:
        walk.step()
        client = walk.problem.client(np.array([0]), Draw(1, walk.clocks.round))
        method, memory = walk.setting.method, recall(walk, torch.tensor([0]))
        state = shown_to(method, client, walk.state)
        before = method.personal(client, state, memory).reshape(-1)
        return before, method.adapt(client, state, memory, before, Wish(steps=_EPOCHS))[0]


@dataclass(frozen=True, eq=False)
class Episodes(Claim):
    """A meta-step on mini-batches: the rows to adapt on, to be judged on, and for second derivatives.

    With rows along the axes and batches of B, θ_j moves by β/B·(1 − α/B)ᵏ(θ_j − y_j) where j is judged, k counting
    whether j is among the rows to adapt on and among those for second derivatives.
    """

    name: str
    kinds: frozenset[int]
    """The k that must be seen."""
    method: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = 12
    tolerance: float = 1e-9

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        known, seen, off = one_by_one(), set(), 0.0
        given = {"alpha": _LR, "lr": 0.5, "batch": _BATCH, "steps": 1, **self.method}
        with subject.walking(known.problem, subject.tuned(given)) as walk:
            for _ in range(self.rounds):
                before = walk.theta()
                walk.step()
                moved = (before - walk.theta()) / (before - known.optimum) * (_BATCH / 0.5)
                judged = moved[moved.abs() > 1e-6]
                times = judged.log() / np.log(1 - _LR / _BATCH)
                off = max(off, float((times - times.round()).abs().max()), float(abs(len(judged) - _BATCH)))
                seen |= {int(k) for k in times.round()}
        right = seen == self.kinds
        what = f"rows were in {sorted(seen)} further batches, {sorted(self.kinds)} are right; greatest deviation"
        return Finding(right and off <= self.tolerance, off, f"{what} {off:.3g}")


# Adaptation


@dataclass(frozen=True, eq=False)
class Adapts(Claim):
    """Clients fit a model to their support rows as theory says, whatever the user wishes, or if he wishes nothing."""

    name: str
    adapted: Adapted
    method: Mapping[str, Any] = field(default_factory=dict)
    known: Callable[[], Known] = unequal_quadratics
    tolerance: float = 1e-12

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        known, method, off = self.known(), subject.tuned(self.method), 0.0
        with subject.walking(known.problem, method) as walk:
            walk.step()
            client = known.problem.client(known.clients.numpy(), Draw(1, 1))
            memory = recall(walk, known.clients)
            state = shown_to(method, client, walk.state)
            theta = method.personal(client, state, memory)
            for lr, steps in ((None, None), (0.23, None), (None, 3), (0.37, 2)):
                found = walk.setting.method.adapt(client, state, memory, theta, Wish(lr, steps))
                off = max(off, apart(found, self.adapted(known, method, walk.state, theta, lr, steps)))
        return Finding.within(off, self.tolerance, "greatest distance from what theory says")


@dataclass(frozen=True, eq=False)
class Reported(Claim):
    """The figures of the method's own that the history tells are those of theory."""

    name: str
    figures: Callable[[Known, Any, Tensor], dict[str, float]]
    """From the problem, the method and the model to what must be told."""
    method: Mapping[str, Any] = field(default_factory=dict)
    prior: Callable[[Known], Tensor] | None = None
    """The earlier model that the method is given, if any."""
    known: Callable[[], Known] = unequal_quadratics
    tolerance: float = 1e-12

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        known, method, off = self.known(), subject.tuned(self.method), 0.0
        how = {"prior": self.prior(known)} if self.prior is not None else {}
        with subject.walking(known.problem, method, **how) as walk:
            for _ in range(3):
                walk.step()
                said, due = cast(Any, walk).evaluator.measures(), self.figures(known, method, walk.theta())
                if said.keys() != due.keys():
                    return Finding(False, None, f"told are {few(list(said))}, to be told are {few(list(due))}")
                off = max([off, *(abs(said[name] - value) for name, value in due.items())])
        return Finding.within(off, self.tolerance, "greatest distance from what is to be told")
