"""The kit at work: which checks a method goes through, and how they come out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fedloom.conformance.checks import CHECKS
from fedloom.conformance.claims import HARDSHIPS, IDEAL, Claim, Declaration, Finding, Hardship, Subject
from fedloom.conformance.declarations import DECLARATIONS
from fedloom.errors import ConfigError
from fedloom.execution import Executor, executor_for, one_thread
from fedloom.methods import REGISTER, Method, lookup
from fedloom.register import hint

_ANSWER = "known-answer"
_ROUNDS = 100  # which a run of the kit has at about the most
KINDS = (*CHECKS, _ANSWER, *HARDSHIPS)
"""The kinds of checks. A check is called by its kind, and, where a method has several of a kind, "kind: claim"."""

Report = Callable[["Outcome"], None]


@dataclass(frozen=True)
class Outcome:
    """How one check of one method came out."""

    method: str
    check: str
    passed: bool
    value: float | None
    """The figure that decided: a distance, a count; none where there is no such figure."""
    detail: str


@dataclass(frozen=True, eq=False)
class Trial:
    """A check of a method, by its name and its kind; where it judges a claim, also that and the circumstances."""

    name: str
    kind: str
    run: Callable[[Subject], Finding]
    claim: Claim | None = None
    hardship: Hardship = IDEAL

    def outcome(self, subject: Subject) -> Outcome:
        """How it comes out. A check that raises an error has failed, with the error's text as detail."""
        try:
            found = self.run(subject)
        except Exception as error:
            return Outcome(subject.name, self.name, False, None, f"{type(error).__name__}: {error}")
        value = None if found.value is None or not math.isfinite(found.value) else float(found.value)
        return Outcome(subject.name, self.name, found.passed, value, found.detail)


Where = str | Callable[[], Executor]
"""The name of an executor, or what makes one for each run."""


def check_methods(
    names: Sequence[str] | None = None,
    checks: Sequence[str] | None = None,
    report: Report | None = None,
    executor: Where = "serial",
) -> list[Outcome]:
    """Run the kit on registered methods (all of them unless named), all checks or those of the given kinds.

    ``report`` is called with each outcome as soon as it is there. ``executor`` says where clients do the work of all
    runs but those whose messages are looked at on the way.
    """
    return _checked([bench(lookup(name).name, None, None) for name in names or REGISTER], checks, report, executor)


def check_method(
    name: str,
    method: Method | type[Method],
    claims: Declaration | Sequence[Claim] | None = None,
    checks: Sequence[str] | None = None,
    report: Report | None = None,
    executor: Where = "serial",
) -> list[Outcome]:
    """Run the kit on one method: an object, or a class whose parameters all have defaults.

    ``claims`` is what is known of it; without any, what the kit knows of a method of that name.
    """
    return _checked([bench(name, method, claims)], checks, report, executor)


def _checked(
    subjects: list[Subject], checks: Sequence[str] | None, report: Report | None, where: Where
) -> list[Outcome]:
    """How the checks come out that are wanted, by their kinds or by their whole names."""
    executor = partial(executor_for, where, _ROUNDS) if isinstance(where, str) else where
    executor().check()
    subjects = [replace(subject, executor=executor) for subject in subjects]
    plans = [(subject, list(plan(subject.declaration))) for subject in subjects]
    names = [trial.name for _, trials in plans for trial in trials]
    for check in checks or ():
        refuse_unknown("check", check, names if ":" in check else KINDS)
    outcomes = []
    with one_thread():
        for subject, trial in ((subject, trial) for subject, trials in plans for trial in trials):
            if checks is None or trial.kind in checks or trial.name in checks:
                outcomes.append(trial.outcome(subject))
                if report is not None:
                    report(outcomes[-1])
    return outcomes


def check_names(
    name: str, method: Method | type[Method] | None = None, claims: Declaration | Sequence[Claim] | None = None
) -> list[str]:
    """The checks that a method goes through; each is a name that ``checks=`` takes too."""
    subject = bench(name, method, claims)
    return [trial.name for trial in plan(subject.declaration)]


def bench(name: str, method: Method | type[Method] | None, claims: Declaration | Sequence[Claim] | None) -> Subject:
    """The method, the registered one of that name unless given, with what is known of it."""
    method = method if method is not None else lookup(name).cls
    if isinstance(method, type):
        try:
            method = method()
        except TypeError as error:
            raise ConfigError(
                f"the method {name!r} cannot be made without parameters ({error}); give an object"
            ) from error
    if claims is None:
        claims = DECLARATIONS.get(name, Declaration())
    elif not isinstance(claims, Declaration):
        claims = Declaration(tuple(claims))
    return Subject(name, method, claims)


def plan(declaration: Declaration) -> Iterator[Trial]:
    """All checks of a method of which this is declared."""
    for kind, check in CHECKS.items():
        yield Trial(kind, kind, check)
    for claim in declaration.claims:
        for hardship in (IDEAL, *(HARDSHIPS[name] for name in claim.survives)):
            kind = _ANSWER if hardship is IDEAL else hardship.name
            yield Trial(f"{kind}: {claim.name}", kind, partial(claim.verify, hardship=hardship), claim, hardship)


def refuse_unknown(what: str, name: str, known: Sequence[str]) -> None:
    """Refuses a name that nothing has: where nothing is checked, nothing could fail."""
    if name not in known:
        raise ConfigError(f"there is no {what} {name!r}; {hint(name, known)}")
