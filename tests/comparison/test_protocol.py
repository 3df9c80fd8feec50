"""One protocol in one comparison: the same clients and rows for all, each method by its own model."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedloom
from fedloom.cli import app
from fedloom.errors import ConfigError

SMALL = {"data.name": "digits", "data.clients": 4, "rounds": 2, "execution.executor": "serial", "model.name": "linear"}
METHODS = ["fedavg", "per-fedavg:steps=1", "local"]


def judged(compared: fedloom.comparison.Compared) -> list[dict[str, str]]:
    return [row["judged"] for row in compared.table]


def test_where_one_method_adapts_all_are_judged_on_the_rows_that_it_was_not_fitted_to() -> None:
    compared = fedloom.compare(METHODS, settings=SMALL, seeds=1)
    assert judged(compared) == [
        {"model": "global", "on": "source", "split": "test-query"},
        {"model": "adapted", "on": "source", "split": "test-query", "adapt_split": "test-support"},
        {"model": "personal", "on": "source", "split": "test-query"},
    ]
    alone = fedloom.compare(["fedavg"], settings=SMALL | {"evaluation.split": "test-query"}, seeds=1)
    assert alone.table[0]["accuracy"] == compared.table[0]["accuracy"]
    assert compared.runs["fedavg", 0].theta.equal(alone.runs["fedavg", 0].theta)  # judging changes no model


def test_each_can_be_judged_in_its_own_way_and_methods_that_do_not_adapt_are_judged_on_all_test_rows() -> None:
    compared = fedloom.compare(METHODS, settings=SMALL, seeds=1, protocol="own")
    assert [one["split"] for one in judged(compared)] == ["test", "test-query", "test"]
    plain = fedloom.compare(["fedavg", "local"], settings=SMALL, seeds=1)
    assert [one["split"] for one in judged(plain)] == ["test", "test"]
    with pytest.raises(ConfigError, match=r"protocol = 'mine' cannot be: Input should be 'alike' or 'own'"):
        fedloom.compare(METHODS, settings=SMALL, protocol="mine")  # type: ignore[arg-type]


def test_rows_that_the_user_has_named_stay_and_target_clients_are_judged_alike_too() -> None:
    named = fedloom.compare(METHODS, settings=SMALL | {"evaluation.split": "test-support"}, seeds=1)
    assert [one["split"] for one in judged(named)] == ["test-support"] * 3
    both = fedloom.compare(METHODS[:2], settings=SMALL | {"data.target": 0.25}, seeds=1)
    for run in both.runs.values():
        seen = run.history[-1]["evaluations"]["target"]["accuracy"]["clients"]
        assert seen == 1
    rows = [row["judged"]["split"] for row in both.table]
    assert rows == ["test-query", "test-query"]


def test_a_problem_of_pythons_is_judged_alike_too() -> None:
    data = fedloom.federate("digits", clients=4)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    compared = fedloom.compare([fedloom.FedAvg(), fedloom.PerFedAvg(steps=1)], problem, rounds=1, seeds=1)
    assert [one["split"] for one in judged(compared)] == ["test-query", "test-query"]


def test_the_terminal_the_record_and_the_report_say_how_each_was_judged(tmp_path: Path) -> None:
    sets = [f"--set={key}={value}" for key, value in SMALL.items()]
    done = CliRunner().invoke(app, ["compare", *METHODS, *sets, "--repeats=1", "--out", str(tmp_path / "c"), "--quiet"])
    assert done.exit_code == 0, done.output
    said = (
        "All were evaluated alike, on the source clients, test-query split. fedavg: the global model; "
        "per-fedavg:steps=1: the adapted model, fitted to the test-support split first; local: each client's own model."
    )
    assert said in done.output
    page = html.unescape((tmp_path / "c" / "report.html").read_text())
    assert "All were evaluated alike, on the source clients, test-query split." in page
    assert "local: each client's own model" in page
    table = json.loads((tmp_path / "c" / "compare.json").read_text())["table"]
    assert [row["judged"]["split"] for row in table] == ["test-query"] * 3


def test_a_table_of_one_method_with_several_settings_warns_that_the_same_rows_choose_and_judge(tmp_path: Path) -> None:
    sets = [f"--set={key}={value}" for key, value in SMALL.items()]
    arguments = ["compare", "fedavg", *sets, "--sweep=method.lr=0.1,0.2", "--repeats=1", "--no-report"]
    done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "c")])
    assert "chooses by the rows that judge" in done.output
