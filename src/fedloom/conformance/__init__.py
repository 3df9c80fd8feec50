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

from fedloom.conformance.answers import Around, Exactly, Invariant, Limit, OnAverage, Path, Same, Sense
from fedloom.conformance.checks import CHECKS
from fedloom.conformance.claims import HARDSHIPS, Claim, Declaration, Finding, Hardship, Subject
from fedloom.conformance.declarations import DECLARATIONS
from fedloom.conformance.hunting import MutantOutcome, check_mutants
from fedloom.conformance.kit import KINDS, Outcome, check_method, check_methods, check_names
from fedloom.conformance.mutants import Mutant, mutants
from fedloom.conformance.problems import (
    Known,
    agreeing,
    classification,
    images,
    least_squares,
    logistic,
    quadratics,
)

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
    "Mutant",
    "MutantOutcome",
    "OnAverage",
    "Outcome",
    "Path",
    "Same",
    "Sense",
    "Subject",
    "agreeing",
    "check_method",
    "check_methods",
    "check_mutants",
    "check_names",
    "classification",
    "images",
    "least_squares",
    "logistic",
    "mutants",
    "quadratics",
]
