"""Every method has mutants with one fault each, and the kit sees them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest
import torch
from typer.testing import CliRunner

from conformance.own_methods import CONTROLLED, Controlled
from fedloom.cli import app
from fedloom.conformance import (
    Declaration,
    Limit,
    MutantOutcome,
    check_mutants,
    classification,
    mutants,
    quadratics,
)
from fedloom.conformance.drive import differing, everything, walking
from fedloom.engine.rounds import Rounds
from fedloom.errors import ConfigError
from fedloom.methods import REGISTER, FedAvg, FedSGD, Local, Method, Scaffold

SAMPLE = {
    "fedavg": ("lr ignored", "default epochs: 2", "weight: all count alike", "reply dx: times 0.9"),
    "fedsgd": ("lr frozen at round 0", "weight: by rows always", "state x: moves 0.9 as far"),
    "admm": ("reply gap: times 0.9", "memory rho: settled though lost", "done: never"),
    "fedopt": ("server_lr ignored", "model: the first"),
    "fedavgm": ("beta ignored", "effort: ignored"),
    "fedadagrad": ("tau ignored", "evaluations: one more"),
    "fedyogi": ("beta2 ignored", "state v: stays"),
    "fedadam": ("beta1 ignored", "work: one more"),
    "feddyn": ("alpha ignored", "memory g: settled though lost"),
    "fedprox": ("mu ignored", "reply loss: times 0.9"),
    "scaffold": (
        "memory c: settled though lost",
        "memory: moved by what was computed",
        "draw: the same in every epoch",
    ),
    "sharing-admm": ("reply size: times 0.9", "memory s: settled though lost"),
    "aso-fed": ("memory visits: settled though lost", "delay: none"),
    "aso-fed-d": ("memory delays: settled though lost", "sizes: all the same to clients"),
    "aso-fed-f": ("memory w: not kept", "lambda_ ignored"),
    "fedasync": ("staleness: one more", "round: one more on clients"),
    "fedbuff": ("staleness: none", "round: always 0 at the server"),
    "admm-fedmeta": ("memory y: settled though lost", "rho_i ignored", "report: times 0.9"),
    "admm-meta-exact": ("memory y: settled though lost", "reply dm: sign"),
    "fedmeta-maml": ("inner_steps ignored", "adapt: by its own step size in the place of the user's"),
    "fedmeta-sgd": ("state delta: moves backwards", "learn_alpha ignored"),
    "fedavg-meta": ("adapt_steps ignored", "adapt: not at all"),
    "per-fedavg": ("work: one more", "draw: the same in every epoch"),
    "clustered": ("memory group: not kept", "spread ignored"),
    "ditto": ("lambda_ ignored", "memory v: settled though lost"),
    "easgd": ("reply dx: sign", "memory x: settled though lost"),
    "fedu": ("eta ignored", "state u: stays"),
    "fine-tune": ("personal_epochs ignored", "adapt: not at all"),
    "l2gd": ("lambda_ ignored", "memory x: not kept"),
    "mixture-admm": ("lambda_ ignored", "state y: stays"),
    "pfedme": ("inner_steps ignored", "personal: the server's"),
    "personal": ("layers ignored", "memory own x: not kept"),
    "fedper": ("start ignored", "memory own x: settled though lost"),
    "fedbn": ("layers ignored", "memory own x: not kept"),
    "lg-fedavg": ("layers ignored", "memory own x: not kept"),
    "fedrep": ("head_epochs ignored", "adapt: not at all"),
    "fedper-maml": ("alpha ignored", "memory own x: not kept"),
    "fedper-metasgd": ("learn_alpha ignored", "memory own x: not kept"),
    "fedper-avgmeta": ("adapt_steps ignored", "memory own x: not kept"),
    "cocoa": ("beta ignored", "order ignored", "memory alpha: settled though lost"),
    "cocoa-plus": ("sigma ignored", "accuracy ignored", "draw: the same in every epoch"),
    "mini-batch-sdca": ("beta ignored", "stop ignored"),
    "mini-batch-sgd": ("lambda_ ignored", "state x: moves 0.9 as far"),
    "mocha": ("losses ignored", "state mbar: stays", "memory alpha: settled though lost"),
    "central": ("batch ignored", "reply dx: sign"),
    "local-linear": ("folds ignored", "memory x: not kept"),
    "global-linear": ("folds ignored", "state x: stays"),
    "local": ("personal: the server's", "memory x: not kept"),
}
"""Some mutants of each method and of each kind, cheap ones; all are in ``make mutants``."""
KINDS = {"ignored", "frozen", "default", "reply", "state", "memory", "round", "staleness", "delay", "draw", "effort"}
KINDS |= {"evaluations", "work", "done", "model", "personal", "adapt", "report", "sizes", "weight"}
OPTIMUM = Limit("it finds the optimum", quadratics, lambda known, method: known.optimum, {"lr": 0.5}, rounds=100)


def names_of(method: Method) -> set[str]:
    return {mutant.name for mutant in mutants(method, classification())}


def end(method: Method, rounds: int = 3) -> dict[str, torch.Tensor]:
    with walking(Rounds, classification(), method) as walk:
        for _ in range(rounds):
            walk.step()
        return everything(walk)


@pytest.mark.parametrize("method", REGISTER)
def test_the_kit_sees_mutants_of_a_registered_method(method: str) -> None:
    outcomes = check_mutants(method, only=SAMPLE[method])
    assert {outcome.mutant for outcome in outcomes} == set(SAMPLE[method])
    assert [outcome.mutant for outcome in outcomes if outcome.killed_by is None] == []


def test_mutants_of_every_kind_are_among_those_that_the_kit_sees() -> None:
    names = [name.partition(":")[0].split() for some in SAMPLE.values() for name in some]
    assert {words[1] if words[1:2] in (["ignored"], ["frozen"]) else words[0] for words in names} == KINDS


def test_the_kit_sees_mutants_of_a_method_that_a_user_brings() -> None:
    outcomes = check_mutants("own", Controlled, CONTROLLED, only=["memory", "reply dc: sign", "reply dx: sign"])
    assert {"memory c: not kept", "memory c: settled though lost", "reply dc: sign"} <= {o.mutant for o in outcomes}
    assert [outcome.mutant for outcome in outcomes if not outcome.passed] == []


def test_every_hyper_parameter_has_a_mutant_that_ignores_it_and_one_with_another_default() -> None:
    names = names_of(FedAvg())
    fields = ("lr", "batch", "epochs", "steps", "optimiser", "weighting")
    assert {f"{name} ignored" for name in fields} <= names
    assert {name.partition(":")[0] for name in names if name.startswith("default")} == {f"default {f}" for f in fields}
    assert {name for name in names if "frozen" in name} == {"lr frozen at round 0"}


def test_what_a_method_does_not_have_cannot_go_wrong() -> None:
    assert not {
        name for name in names_of(FedSGD()) if name.startswith(("memory", "done", "adapt", "draw", "staleness"))
    }
    assert {name for name in names_of(Local()) if name.startswith(("reply", "state"))} == set()
    assert "memory c: settled though lost" in names_of(Scaffold())


@pytest.mark.parametrize("name", ["lr ignored", "memory c: settled though lost", "memory: moved by what was computed"])
def test_a_mutant_is_the_method_where_its_fault_does_not_matter(name: str) -> None:
    sound = Scaffold(batch=5)
    (mutant,) = [m for m in mutants(sound, classification(), [{}]) if m.name == name]
    assert differing(end(sound), end(mutant.method)) == []


@pytest.mark.parametrize("name", ["lr ignored", "memory c: not kept", "weight: by rows always"])
def test_a_mutant_is_not_the_method_where_its_fault_matters(name: str) -> None:
    sound = Scaffold(batch=5)
    (mutant,) = [m for m in mutants(sound, classification(), [{}]) if m.name == name]
    settings = {"lr": 0.3}
    assert differing(end(replace(sound, **settings)), end(replace(mutant.method, **settings)))  # type: ignore[type-var]


def test_a_mutant_that_no_check_sees_survives_unless_it_is_excused() -> None:
    (outcome,) = check_mutants("mine", FedSGD, [OPTIMUM], only=["weighting ignored"])
    assert outcome.killed_by is None
    assert not outcome.passed
    excused = Declaration((OPTIMUM,), equivalent={"weighting ignored": "clients are of equal sizes"})
    (outcome,) = check_mutants("mine", FedSGD, excused, only=["weighting ignored"])
    assert outcome.passed
    assert outcome.detail == "clients are of equal sizes"


def test_an_excuse_for_a_mutant_that_is_seen_fails() -> None:
    excused = Declaration((OPTIMUM,), equivalent={"reply g: sign": "both directions are downhill"})
    (outcome,) = check_mutants("mine", FedSGD, excused, only=["reply g: sign"])
    assert outcome.killed_by is not None
    assert not outcome.passed


def test_an_excuse_for_a_mutant_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="no such mutant"):
        check_mutants("mine", FedSGD, Declaration((OPTIMUM,), equivalent={"reply h: sign": "?"}))


def test_an_unknown_kind_of_mutants_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'reply'"):
        check_mutants("fedsgd", only=["relpy g: sign"])


def test_outcomes_of_mutants_are_reported_as_they_come() -> None:
    seen: list[MutantOutcome] = []
    outcomes = check_mutants("fedsgd", only=["reply"], report=seen.append)
    assert seen == outcomes
    assert {outcome.kind for outcome in outcomes} == {"reply"}


def test_the_command_line_tells_who_kills_each_mutant() -> None:
    run = CliRunner().invoke(app, ["check", "fedsgd", "--mutants", "--only", "reply"])
    assert run.exit_code == 0, run.output
    assert "killed  fedsgd  reply g: sign: by known-answer" in run.output
    assert "4 mutants, 0 excused, 0 that should not have survived" in run.output
    run = CliRunner().invoke(app, ["check", "fedsgd", "--mutants", "--only", "reply g: zero", "--json"])
    (row,) = json.loads(run.output)
    assert row["mutant"] == "reply g: zero"
    assert row["passed"] is True


@dataclass(frozen=True)
class Hidden(FedSGD):
    """Its own field is used nowhere."""

    unused: float = 1.0


def test_a_hyper_parameter_that_nothing_depends_on_survives() -> None:
    varied = replace(OPTIMUM, method={"lr": 0.5, "unused": 2.0})
    outcomes = check_mutants("mine", Hidden, [varied], only=["unused ignored"])
    assert [outcome.passed for outcome in outcomes] == [False]
