"""Every registered method goes through the whole kit, and so do methods that a user brings."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

import pytest

from conformance.own_methods import CONTROLLED, ELABORATE, Controlled, Elaborate
from fedloom.conformance import (
    DECLARATIONS,
    KINDS,
    Around,
    Invariant,
    Limit,
    Outcome,
    agreeing,
    check_method,
    check_methods,
    check_names,
    quadratics,
)
from fedloom.conformance.declarations.courses import Course
from fedloom.errors import ConfigError
from fedloom.methods import REGISTER, FedAvg, Scaffold

OWN = {"controlled": (Controlled, CONTROLLED), "elaborate": (Elaborate, ELABORATE)}


@pytest.mark.parametrize(("method", "check"), [(m, c) for m in REGISTER for c in check_names(m)])
def test_a_registered_method_passes(method: str, check: str) -> None:
    (outcome,) = check_methods([method], [check])
    assert outcome.passed, outcome.detail


@pytest.mark.parametrize(
    ("method", "check"), [(m, c) for m, (cls, known) in OWN.items() for c in check_names(m, cls, known)]
)
def test_a_method_that_a_user_brings_passes(method: str, check: str) -> None:
    cls, known = OWN[method]
    (outcome,) = check_method(method, cls, known, [check])
    assert outcome.passed, outcome.detail


def test_every_registered_method_is_declared_and_nothing_else_is() -> None:
    assert DECLARATIONS.keys() == REGISTER.keys()


def test_every_method_goes_through_every_kind_of_check_that_it_is_not_excused_from() -> None:
    for name in REGISTER:
        kinds = {check.partition(":")[0] for check in check_names(name)}
        assert kinds | DECLARATIONS[name].excused.keys() == set(KINDS), name


def test_names_of_checks_are_unique() -> None:
    for name in REGISTER:
        names = check_names(name)
        assert len(set(names)) == len(names)


def test_outcomes_are_plain_json() -> None:
    outcomes = check_methods(["fedavg", "local"], ["declared", "parameters", "lossy-channel"])
    rows = json.loads(json.dumps([asdict(outcome) for outcome in outcomes], allow_nan=False))
    assert [row["method"] for row in rows] == ["fedavg"] * 3 + ["local"] * 3
    assert rows[0].keys() == {"method", "check", "passed", "value", "detail"}
    assert all(row["passed"] is True for row in rows)


def test_outcomes_are_reported_as_they_come() -> None:
    seen: list[Outcome] = []
    outcomes = check_methods(["fedsgd"], ["declared", "effort"], report=seen.append)
    assert seen == outcomes


def test_an_error_in_a_check_is_a_failure_with_the_errors_text() -> None:
    (outcome,) = check_method("fedavg", Failing, checks=["order"])
    assert not outcome.passed
    assert outcome.value is None
    assert "the battery is empty" in outcome.detail


def test_a_distance_that_is_not_finite_becomes_null() -> None:
    (outcome,) = check_method("fedavg", FedAvg(lr=1e12), checks=["known-answer: one full step is FedSGD"])
    assert outcome.passed  # the claim sets its own step size
    (outcome,) = check_method("fedavg", Exploding, checks=["known-answer: one full step is FedSGD"])
    assert not outcome.passed
    assert outcome.value is None


@pytest.mark.parametrize("kind", [Invariant, Around])
def test_a_measure_of_every_round_that_is_not_a_number_fails(kind: type[Invariant] | type[Around]) -> None:
    claim = kind("nonsense", lambda: quadratics().problem, lambda *seen: float("nan"), rounds=1)
    (outcome,) = check_method("mine", FedAvg, [claim], ["known-answer"])
    assert not outcome.passed


def test_a_limit_that_is_where_it_must_not_be_fails() -> None:
    claim = Limit("too easy", agreeing, lambda known, method: known.optimum, {"lr": 0.5}, not_at=lambda k, m: k.optimum)
    (outcome,) = check_method("mine", FedAvg, [claim], ["known-answer"])
    assert not outcome.passed


def test_an_unknown_check_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'resume'"):
        check_methods(["fedavg"], ["resumed"])


def test_a_claim_that_no_method_makes_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="did you mean 'known-answer: one full step is FedSGD'"):
        check_methods(["local", "fedavg"], ["known-answer: one full step is FedAvg"])


def test_a_claim_that_one_of_several_methods_makes_is_checked_of_that_one() -> None:
    outcomes = check_methods(["local", "fedavg"], ["known-answer: one full step is FedSGD"])
    assert [(outcome.method, outcome.passed) for outcome in outcomes] == [("fedavg", True)]


def test_a_claim_about_a_course_holds_for_the_channel_of_its_hardship() -> None:
    course = next(claim for claim in DECLARATIONS["scaffold"].claims if isinstance(claim, Course))
    (outcome,) = check_method("scaffold", Scaffold, [replace(course, stands=("quantised",))], ["quantised"])
    assert not outcome.passed, "replies of 4 bits do not follow the exact course"


def test_an_unknown_method_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fedavg'"):
        check_methods(["fedavgg"])


def test_a_class_that_needs_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match="give an object"):
        check_method("needy", Needy)


@dataclass(frozen=True)
class Failing(FedAvg):
    def client(self, client, received, memory):  # type: ignore[no-untyped-def]
        raise RuntimeError("the battery is empty")


@dataclass(frozen=True)
class Exploding(FedAvg):
    def server(self, state, replies, ctx):  # type: ignore[no-untyped-def]
        return {"x": state["x"] * float("inf")}


@dataclass(frozen=True, kw_only=True)
class Needy(FedAvg):
    temperature: float
