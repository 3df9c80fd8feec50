"""The commands that look at things: data, methods, report, check, help."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import Result

from fedloom import __version__
from fedloom.federation.replies import Replies
from fedloom.methods import REGISTER, Context, FedSGD
from fedloom.types import State

Call = Callable[..., Result]


def test_the_version_is_said(call: Call) -> None:
    assert call("--version").output == f"fedloom {__version__}\n"


@pytest.mark.parametrize("command", ["run", "compare", "resume", "report", "methods", "check", "data"])
def test_every_command_has_help(call: Call, command: str) -> None:
    assert command in call("--help").output
    assert "Usage" in call(command, "--help").output


def test_the_data_sets_are_listed_in_words_and_as_json(call: Call) -> None:
    assert "breast-cancer" in call("data", "list").output
    listed = {source["name"]: source for source in json.loads(call("data", "list", "--json").output)}
    assert listed["diabetes"]["task"] == "regression"
    assert listed["synthetic"]["natural"] is True


def test_data_are_described_with_who_has_what(call: Call) -> None:
    flags = ("--partition", "classes", "--classes-per-client", 2, "--clients", 5)
    assert "5 clients" in call("data", "describe", "digits", *flags).output
    told = json.loads(call("data", "describe", "digits", *flags, "--json").output)
    assert [sum(rows > 0 for rows in counts) for counts in told["counts"]] == [2] * 5
    assert "gradients" not in told


def test_given_a_model_the_gradients_are_described_too(call: Call) -> None:
    flags = ("--clients", 4, "--model", "linear")
    told = json.loads(call("data", "describe", "diabetes", *flags, "--json").output)
    assert told["gradients"]["within"] > told["gradients"]["between"] > 0
    assert "between" in call("data", "describe", "diabetes", *flags).output


def test_who_has_what_is_drawn_into_a_page(call: Call) -> None:
    call("data", "describe", "breast-cancer", "--clients", 3, "--html", "who.html")
    assert "plotly" in Path("who.html").read_text()
    refused = call("data", "describe", "breast-cancer", "--clients", 3, "--html", "nowhere/who.html", code=2)
    assert "nowhere/who.html cannot be used" in refused.stderr


def test_a_data_set_that_does_not_exist_is_refused_with_the_nearest(call: Call) -> None:
    assert "did you mean 'digits'?" in call("data", "describe", "digts", code=2).stderr
    assert "did you mean 'mnist'?" in call("data", "fetch", "mnits", code=2).stderr


def test_there_is_nothing_to_fetch_of_what_is_shipped(call: Call) -> None:
    assert call("data", "fetch", "digits", "diabetes").output.count("nothing to fetch") == 2


def test_the_methods_are_listed_with_paper_and_summary(call: Call) -> None:
    output = call("methods").output
    assert all(name in output for name in REGISTER)
    assert {row["name"] for row in json.loads(call("methods", "--json").output)} == set(REGISTER)


def test_a_method_is_told_with_all_its_hyper_parameters(call: Call) -> None:
    output = call("methods", "fedavg").output
    assert "Communication-efficient" in output
    assert "the local step size" in output
    told = json.loads(call("methods", "fedavg", "--json").output)
    batch = next(p for p in told["parameters"] if p["name"] == "batch")
    assert batch["type"] == "a whole number of at least 1 or none"
    assert batch["default"] == 32
    assert all(p["meaning"] for p in told["parameters"])
    assert "did you mean 'fedavg'?" in call("methods", "fedavgg", code=2).stderr


def test_a_report_is_made_of_runs_that_are_there(call: Call) -> None:
    for seed in (0, 1):
        call("run", "--data", "diabetes", "--rounds", 1, "--seed", seed, "--out", f"r/{seed}", "--no-report")
    result = call("report", "r", "--out", "page.html", "--title", "Two seeds", "--target", 2.0)
    assert "report: page.html" in result.output
    assert "Two seeds" in Path("page.html").read_text()
    call("report", "r", "--table", "t.tex", "--table", "t.csv")
    assert Path("t.tex").read_text().startswith("% needs")
    assert Path("t.csv").read_text().startswith("label,runs,finished,")
    assert "is written by --table t.csv" in call("report", "r", "--out", "t.csv", code=2).stderr
    assert "a table ends in .tex, .csv or .md" in call("report", "r", "--table", "t.xls", code=2).stderr
    assert Path("r/report.html").exists()
    assert "no such folder" in call("report", "nowhere", code=2).stderr


def test_the_checks_of_a_method_are_said_and_given_as_json(call: Call) -> None:
    output = call("check", "fedsgd", "--only", "seeds", "--only", "messages").output
    assert "passed  fedsgd  seeds: " in output
    assert "2 checks, all passed" in output
    rows = json.loads(call("check", "fedsgd", "--only", "seeds", "--json").output)
    assert [(row["method"], row["check"], row["passed"]) for row in rows] == [("fedsgd", "seeds", True)]
    assert set(rows[0]) == {"method", "check", "passed", "value", "detail"}
    assert "did you mean 'fedsgd'?" in call("check", "fedsdg", code=2).stderr


def test_checks_are_made_by_the_executor_that_is_given(call: Call) -> None:
    output = call("check", "fedsgd", "--only", "workers", "--executor", "processes").output
    assert "a run by the executor 'processes': the same bits" in output
    assert "did you mean 'processes'?" in call("check", "fedsgd", "--executor", "proceses", code=2).stderr
    assert "leave --executor out" in call("check", "fedsgd", "--mutants", "--executor", "ray", code=2).stderr


@dataclass(frozen=True)
class Forgetful(FedSGD):
    """Its server steps by something that is not in its state."""

    calls: ClassVar[Iterator[int]] = itertools.count()

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": super().server(state, replies, ctx)["x"] * (1 + 0.01 * next(self.calls))}


def test_a_broken_method_fails_the_checks_with_exit_code_1(call: Call) -> None:
    REGISTER.register("forgetful", Forgetful)
    try:
        result = call("check", "forgetful", "--only", "seeds", code=1)
    finally:
        REGISTER.remove("forgetful")
    assert "FAILED  forgetful  seeds" in result.output
    assert "1 checks, 1 failed" in result.output
