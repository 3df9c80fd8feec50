"""Which mutants of a method the kit sees, and by which check."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fedloom.conformance.answers import OfRun, Same
from fedloom.conformance.claims import Claim, Declaration, Subject
from fedloom.conformance.declarations.courses import Adapts, Reported
from fedloom.conformance.kit import Trial, bench, plan, refuse_unknown
from fedloom.conformance.mutants import KINDS, Mutant, kind_of, mutants
from fedloom.conformance.problems import classification, quadratics
from fedloom.errors import ConfigError, FedloomError
from fedloom.execution import one_thread
from fedloom.federation.problem import Problem
from fedloom.methods import Method

_NOT_JUDGES = frozenset(
    ("declared", "parameters", "workers", "workers-convolutions", "resume", "lossy-channel", "messages")
)
"""Checks of how a method is written, or of the machinery around it: a mutant is made another way than a method, and
keeps hidden tables, so that these would refuse it for what it is, not for what it computes."""

_TELLING = (OfRun, Same, Adapts, Reported)
"""Claims whose ``method`` is all that they set."""


@dataclass(frozen=True)
class MutantOutcome:
    """What became of one mutant."""

    method: str
    mutant: str
    kind: str
    killed_by: str | None
    """The first check that failed; none: it survived them all."""
    excuse: str | None
    """Why no check can tell it from the method, as it is declared."""
    detail: str

    @property
    def passed(self) -> bool:
        """Whether the kit sees it, or is rightly excused from that."""
        return (self.killed_by is None) == (self.excuse is not None)


Report = Callable[[MutantOutcome], None]


def mutants_of(subject: Subject) -> list[Mutant]:
    """All mutants of a method on the test bench, the method being watched with all that its claims set."""
    declaration = subject.declaration
    settings = [declaration.batches, *(_set(claim) for claim in declaration.claims)]
    problem = quadratics(unequal=True).problem  # which is cheaper
    if declaration.table is not classification or _refuses(subject.method, problem):
        problem = declaration.table(torch.float64)
    with one_thread():
        return mutants(subject.method, problem, settings, declaration.divisible)


def _refuses(method: Method, problem: Problem) -> bool:
    """Whether the method does not take the problem, for want of layers, say."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            method.check(problem)
        except FedloomError:
            return True
    return False


def check_mutants(
    name: str,
    method: Method | type[Method] | None = None,
    claims: Declaration | Sequence[Claim] | None = None,
    only: Sequence[str] | None = None,
    report: Report | None = None,
) -> list[MutantOutcome]:
    """Run the kit on the mutants of a method, each until a check fails.

    The method and what is known of it are as for ``check_method``; ``only`` are names of mutants, or the words with
    which these begin ("reply", "default"). ``report`` is called with each outcome as soon as it is there.
    """
    for wanted in only or ():
        refuse_unknown("kind of mutants", kind_of(wanted), KINDS)
    subject = bench(name, method, claims)
    excuses, outcomes = dict(subject.declaration.equivalent), []
    trials = [trial for trial in plan(subject.declaration) if trial.kind not in _NOT_JUDGES]
    made = mutants_of(subject)
    for unknown in excuses.keys() - {mutant.name for mutant in made}:
        raise ConfigError(f"the method {name!r} is excused from the mutant {unknown!r}, but there is no such mutant")
    chosen = [m for m in made if only is None or m.name in only or m.kind in only]
    for mutant in chosen:
        outcomes.append(_hunted(subject, mutant, trials, excuses.get(mutant.name)))
        if report is not None:
            report(outcomes[-1])
    return outcomes


def _hunted(subject: Subject, mutant: Mutant, trials: list[Trial], excuse: str | None) -> MutantOutcome:
    """The checks that are made for such a fault come first, then the others, the short ones before the long ones."""
    able = [trial for trial in trials if _matters(trial, mutant, subject)]
    bent = replace(subject, method=mutant.method)
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for trial in sorted(able, key=lambda trial: (not _apt(trial, mutant), _rounds(trial))):
            outcome = trial.outcome(bent)
            if not outcome.passed:
                return MutantOutcome(subject.name, mutant.name, mutant.kind, trial.name, excuse, outcome.detail)
    detail = excuse or "it passes every check: a claim is missing"
    return MutantOutcome(subject.name, mutant.name, mutant.kind, None, excuse, detail)


def _apt(trial: Trial, mutant: Mutant) -> bool:
    """Whether a check is likely to show this fault: it sets what is wrong, or is made for it."""
    return mutant.about == trial.kind or (trial.claim is not None and mutant.about in _set(trial.claim))


def _matters(trial: Trial, mutant: Mutant, subject: Subject) -> bool:
    """Whether the mutant can differ from the method in this check; claims of other kinds may set anything."""
    if trial.claim is None:
        return mutant.bites(subject.declaration.batches) or mutant.bites(subject.without_batches())
    return not isinstance(trial.claim, _TELLING) or mutant.bites(_set(trial.claim))


def _set(claim: Claim) -> Mapping[str, Any]:
    """The hyper-parameters that a claim sets, where it tells."""
    return getattr(claim, "method", {})


def _rounds(trial: Trial) -> int:
    """About how long a check takes."""
    if trial.claim is None:
        return 100 if trial.kind == "stack-rounds" else 25
    sense = getattr(trial.claim, "hardships", {}).get(trial.hardship.name, trial.claim)
    return int(getattr(sense, "rounds", 20)) + int(getattr(sense, "warm_up", 0))
