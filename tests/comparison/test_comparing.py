"""``fedloom.compare``: methods × seeds, and sweeps, from settings and from a problem."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedloom
from fedloom import FedAvg, FedProx, FedSGD
from fedloom.comparison import Entry, entry_of, parse_entry, parse_sweep, swept
from fedloom.errors import ConfigError, RunError
from fedloom.federation.problem import Problem
from problems import make_problem

SMALL = {"data.name": "diabetes", "data.clients": 5, "rounds": 2, "execution.executor": "serial"}


@pytest.fixture
def problem() -> Problem:
    return make_problem("linear")


def test_a_comparison_has_a_run_for_each_method_and_seed_and_a_row_for_each_method() -> None:
    compared = fedloom.compare(["fedavg", FedSGD(lr=0.05)], settings={**SMALL, "seed": 4}, seeds=2)
    assert list(compared.runs) == [("fedavg", 4), ("fedsgd:lr=0.05", 4), ("fedavg", 5), ("fedsgd:lr=0.05", 5)]
    assert list(compared.frame().index) == ["fedavg", "fedsgd:lr=0.05"]
    rmse = [compared.runs["fedavg", seed].summary["metrics"]["rmse"] for seed in (4, 5)]
    assert compared.table[0]["rmse"] == pytest.approx(sum(rmse) / 2)
    assert (compared.folder, compared.report, compared.failed) == (None, None, {})


def test_a_run_of_a_comparison_is_the_same_as_the_run_alone(problem: Problem) -> None:
    compared = fedloom.compare([FedProx(mu=0.3)], problem, rounds=2, seeds=[9], select=2)
    alone = fedloom.train(problem, FedProx(mu=0.3), rounds=2, seed=9, select=2)
    (run,) = compared.runs.values()
    assert run.summary["theta_sha256"] == alone.summary["theta_sha256"]
    assert run.theta.equal(alone.theta)


def test_it_makes_the_folder_that_the_command_line_makes(tmp_path: Path) -> None:
    compared = fedloom.compare(["fedavg"], settings=SMALL, seeds=[1], out=tmp_path / "c", target=1.0)
    assert (tmp_path / "c" / "fedavg" / "seed-1" / "summary.json").is_file()
    assert compared.report == tmp_path / "c" / "report.html"
    assert json.loads((tmp_path / "c" / "compare.json").read_text())["table"] == compared.table


@pytest.mark.parametrize("kind", ["settings", "problem"])
def test_what_is_done_is_not_done_again_and_other_settings_are_refused(
    kind: str, problem: Problem, tmp_path: Path
) -> None:
    def comparison(rounds: int, seeds: int, **more: Any) -> tuple[fedloom.comparison.Compared, int]:
        told: list[str] = []
        how: dict[str, Any] = {"on": problem, "rounds": rounds} if kind == "problem" else {}
        how |= {"settings": {**SMALL, "rounds": rounds}} if kind == "settings" else {}
        how |= {"seeds": seeds, "out": tmp_path / "c", "report": False, **more}
        found = fedloom.compare(["fedavg", "local"], progress=lambda title, row, last: told.append(title), **how)
        return found, len(set(told))

    first, begun = comparison(2, 1)
    again, none = comparison(2, 1)
    _, added = comparison(2, 2)
    assert (begun, none, added) == (2, 0, 2)
    assert again.table == first.table
    with pytest.raises(RunError, match="other settings"):
        comparison(3, 1)
    assert comparison(3, 1, force=True)[1] == 2


def test_a_comparison_of_another_problem_is_not_taken_for_this_one(problem: Problem, tmp_path: Path) -> None:
    how: dict[str, Any] = {"rounds": 1, "seeds": 1, "out": tmp_path / "c", "report": False}
    fedloom.compare(["fedavg"], problem, **how)
    other = problem.on(replace(problem.data, x=problem.data.x + 1))
    roles = torch.tensor([0] * (problem.data.clients - 1) + [1])
    for changed in (
        {"on": other},
        {"on": problem.on(replace(problem.data, roles=roles))},
        {"on": problem, "fleet": fedloom.Fleet(loss=0.5)},
        {"on": problem, "theta0": torch.ones(problem.model.n, dtype=problem.dtype)},
    ):
        with pytest.raises(RunError, match="other settings"):
            fedloom.compare(["fedavg"], **{**how, **changed})


def test_a_sweep_multiplies_the_methods_that_know_the_setting() -> None:
    entries = [parse_entry("fedavg:lr=0.2"), entry_of(FedSGD())]
    texts = [entry.text for entry in swept(entries, {"method.epochs": [1, 2], "fleet.dropout": [0.0, 0.5]})]
    assert texts == [
        "fedavg:lr=0.2,epochs=1,fleet.dropout=0.0",
        "fedavg:lr=0.2,epochs=1,fleet.dropout=0.5",
        "fedavg:lr=0.2,epochs=2,fleet.dropout=0.0",
        "fedavg:lr=0.2,epochs=2,fleet.dropout=0.5",
        "fedsgd:fleet.dropout=0.0",
        "fedsgd:fleet.dropout=0.5",
    ]
    assert swept(entries, {}) == entries


def test_a_swept_value_reaches_the_run(problem: Problem) -> None:
    swept_runs = fedloom.compare([FedAvg(lr=0.05)], problem, seeds=1, rounds=1, sweep={"method.epochs": [1, 3]}).runs
    alone = fedloom.train(problem, FedAvg(lr=0.05, epochs=3), rounds=1)
    assert [run.theta.equal(alone.theta) for run in swept_runs.values()] == [False, True]


def test_a_method_as_an_object_is_the_entry_of_its_text() -> None:
    text, made = parse_entry("fedprox:mu=0.3,epochs=2"), entry_of(FedProx(mu=0.3, epochs=2))
    assert (made.method, dict(made.own)) == (text.method, dict(text.own))
    assert entry_of(FedAvg()) == Entry("fedavg", "fedavg", made=FedAvg())


def test_lists_can_be_swept_on_the_command_line() -> None:
    assert parse_sweep("model.hidden=[8,4],[16]") == ("model.hidden", [[8, 4], [16]])
    assert parse_sweep("method.optimiser=sgd,adam") == ("method.optimiser", ["sgd", "adam"])


def test_a_run_that_fails_does_not_keep_the_others_from_being_done() -> None:
    compared = fedloom.compare(["fedavg:lr=1e30", "local"], settings={**SMALL, "rounds": 20}, seeds=1)
    assert list(compared.failed) == [("fedavg:lr=1e30", 0)]
    assert list(compared.runs) == [("local", 0)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"methods": ["fedavgg"]}, "did you mean 'fedavg'"),
        ({"methods": ["fedavg", "fedavg"]}, "'fedavg' is there twice"),
        ({"seeds": [1, 1]}, "one twice"),
        ({"settings": {**SMALL, "seed": "x"}}, '^seed = "x" should be a whole number'),
        ({"seeds": 0}, "at least one method and one seed"),
        ({"sweep": {"seed": [1, 2]}}, "seed cannot be swept: give seeds"),
        ({"sweep": {"method.lr": []}}, "the sweep over method.lr has no list of values"),
        ({"methods": ["fedavg:lr=0.1"], "sweep": {"method.lr": [1]}}, "has method.lr of its own"),
        ({"sweep": {"method.rate": [1.0]}}, "method.rate = 1.0 is no setting of the method 'fedavg'"),
        ({"rounds": 3}, "rounds: arguments of train go with a Problem"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_any_run(
    arguments: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        fedloom.compare(**{"methods": ["fedavg"], "settings": SMALL, "out": tmp_path / "c", **arguments})
    assert not (tmp_path / "c").exists()


def test_an_argument_that_train_lacks_is_refused(problem: Problem) -> None:
    with pytest.raises(ConfigError, match="fedavg: round is no argument of train"):
        fedloom.compare(["fedavg"], problem, round=3)
    with pytest.raises(ConfigError, match="on a Problem give the arguments of train"):
        fedloom.compare(["fedavg"], problem, settings=SMALL)
