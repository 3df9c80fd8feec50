"""The conformance kit: every method is proved right against known answers, over many rounds.

    from fedloom.conformance import check_method, check_methods

    for outcome in check_methods():               # every registered method, every check
        print(outcome)

A user's own method is checked in the same way. What is particular to it is declared, the rest has a default:

    from fedloom.conformance import Declaration, Exactly, Limit, check_method, quadratics

    claim = Limit(
        "it finds the optimum",
        quadratics,                               # the problem …
        lambda known, method: known.optimum,      # … and where the method must end
        {"lr": 0.5, "batch": None},
        hardships={name: Exactly(300) for name in ("sampled", "lost", "late", "quantised")},
    )
    check_method("mine", Mine(), Declaration(claims=(claim,), batches={"batch": 5, "epochs": 2}))

A method without a known answer fails: one that is not in the kit does not exist.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fedloom.conformance.answers import Around, Exactly, Invariant, Limit, OnAverage, Path, Same, Sense
from fedloom.conformance.checks import CHECKS
from fedloom.conformance.claims import HARDSHIPS, IDEAL, Claim, Declaration, Finding, Hardship, Subject
from fedloom.conformance.declarations import DECLARATIONS
from fedloom.conformance.problems import (
    Known,
    agreeing,
    classification,
    images,
    least_squares,
    logistic,
    quadratics,
)
from fedloom.errors import ConfigError
from fedloom.execution import one_thread
from fedloom.methods import REGISTER, Method, lookup
from fedloom.register import hint

__all__ = [
    "CHECKS",
    "DECLARATIONS",
    "HARDSHIPS",
    "KINDS",
    "Around",
    "Claim",
    "Declaration",
    "Exactly",
    "Finding",
    "Hardship",
    "Invariant",
    "Known",
    "Limit",
    "OnAverage",
    "Outcome",
    "Path",
    "Same",
    "Sense",
    "Subject",
    "agreeing",
    "check_method",
    "check_methods",
    "check_names",
    "classification",
    "images",
    "least_squares",
    "logistic",
    "quadratics",
]

_ANSWER = "known-answer"
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


def check_methods(
    names: Sequence[str] | None = None, checks: Sequence[str] | None = None, report: Report | None = None
) -> list[Outcome]:
    """Run the kit on registered methods (all of them unless named), all checks or those of the given kinds.

    ``report`` is called with each outcome as soon as it is there.
    """
    entries = [lookup(name) for name in names or REGISTER]
    return [o for entry in entries for o in check_method(entry.name, entry.cls, checks=checks, report=report)]


def check_method(
    name: str,
    method: Method | type[Method],
    claims: Declaration | Sequence[Claim] | None = None,
    checks: Sequence[str] | None = None,
    report: Report | None = None,
) -> list[Outcome]:
    """Run the kit on one method: an object, or a class whose parameters all have defaults.

    ``claims`` is what is known of it; without any, what the kit knows of a method of that name.
    """
    outcomes = []
    subject = _subject(name, method, claims)
    with one_thread():
        for check, run in _plan(subject, _kinds(checks)):
            outcomes.append(_outcome(name, check, run))
            if report is not None:
                report(outcomes[-1])
    return outcomes


def check_names(
    name: str, method: Method | type[Method] | None = None, claims: Declaration | Sequence[Claim] | None = None
) -> list[str]:
    """The checks that a method goes through; each is a name that ``checks=`` takes too."""
    subject = _subject(name, method if method is not None else lookup(name).cls, claims)
    return [check for check, _ in _plan(subject, _kinds(None))]


def _subject(name: str, method: Method | type[Method], claims: Declaration | Sequence[Claim] | None) -> Subject:
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


def _plan(subject: Subject, wanted: Callable[[str, str], bool]) -> Iterator[tuple[str, Callable[[], Finding]]]:
    """The names of a method's checks, and how to run each."""
    for kind, check in CHECKS.items():
        if wanted(kind, kind):
            yield kind, lambda check=check: check(subject)  # type: ignore[misc]
    for claim in subject.declaration.claims:
        for hardship in (IDEAL, *(HARDSHIPS[name] for name in claim.survives)):
            kind = _ANSWER if hardship is IDEAL else hardship.name
            name = f"{kind}: {claim.name}"
            if wanted(kind, name):
                yield name, lambda claim=claim, hardship=hardship: claim.verify(subject, hardship)  # type: ignore[misc]


def _kinds(checks: Sequence[str] | None) -> Callable[[str, str], bool]:
    """Whether a check is wanted, by its kind or by its whole name."""
    if checks is None:
        return lambda kind, name: True
    for check in checks:
        if check.partition(":")[0] not in KINDS:
            raise ConfigError(f"there is no check {check!r}; {hint(check, KINDS)}")
    return lambda kind, name: kind in checks or name in checks


def _outcome(method: str, check: str, run: Callable[[], Finding]) -> Outcome:
    """A check that raises an error has failed, with the error's text as detail."""
    try:
        found = run()
    except Exception as error:
        return Outcome(method, check, False, None, f"{type(error).__name__}: {error}")
    value = None if found.value is None or not math.isfinite(found.value) else float(found.value)
    return Outcome(method, check, found.passed, value, found.detail)
