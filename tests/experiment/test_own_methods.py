"""A user's own method by import path, wherever a method has a name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedloom.cli import app
from fedloom.errors import ConfigError
from fedloom.experiment import Settings, make_experiment
from fedloom.methods import lookup

MODULE = '''
from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fedloom import FedAvg, Method


@dataclass(frozen=True)
class Halfway(FedAvg):
    """Goes only a part of the way to the mean."""

    part: float = 0.5
    """The part."""

    def server(self, state, replies, ctx):
        return {"x": state["x"] + self.part * replies.mean("dx")}


@dataclass(frozen=True)
class Prudent(Halfway):
    """Remembers the way that it does not go."""

    @cached_property
    def rest(self):
        return 1 - self.part

    def check(self, problem):
        assert self.rest >= 0


class Bare(Method):
    pass


number = 3
'''


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "halfway_methods.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


def summary(folder: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((Path(folder) / "summary.json").read_text())
    return found


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


COMMON = ("--data", "digits", "--clients", "4", "--rounds", "2", "--quiet", "--no-report", "--executor", "serial")


def test_it_runs_by_its_path_and_all_the_way_it_is_the_method_it_comes_from() -> None:
    run("run", "--method", "halfway_methods:Halfway", "--set", "method.part=1.0", *COMMON, "--out", "own")
    run("run", "--method", "fedavg", *COMMON, "--out", "plain")
    run("run", "--method", "halfway_methods:Halfway", *COMMON, "--out", "half")
    hashes = [summary(folder)["theta_sha256"] for folder in ("own", "plain", "half")]
    assert hashes[0] == hashes[1] != hashes[2]


def test_what_it_computes_on_the_way_is_no_setting_of_it() -> None:
    experiment = make_experiment(Settings({"method": {"name": "halfway_methods:Prudent"}}))
    experiment.check()
    assert "rest" not in experiment.resolved()["method"]


def test_a_run_of_it_is_resumed() -> None:
    run("run", "--method", "halfway_methods:Halfway", *COMMON, "--out", "own")
    before = summary("own")
    (Path("own") / "summary.json").unlink()
    run("resume", "own", "--quiet", "--no-report")
    assert summary("own")["theta_sha256"] == before["theta_sha256"]
    assert 'name = "halfway_methods:Halfway"' in (Path("own") / "config.toml").read_text()


def test_it_is_compared_with_others_and_with_itself() -> None:
    entries = ("fedavg", "halfway_methods:Halfway", "halfway_methods:Halfway:part=0.9,lr=0.2")
    output = run("compare", *entries, *COMMON[:-2], "--executor", "serial", "--out", "compared")
    assert "halfway_methods:Halfway:part=0.9,lr=0.2" in output.replace("\n", "")
    assert "halfway_methods:Halfway" in run("methods", "halfway_methods:Halfway")


@pytest.mark.parametrize(
    ("method", "what"),
    [
        ({"name": "no_such_module:Halfway"}, "cannot be had: No module named 'no_such_module'"),
        ({"name": "halfway_methods:Third"}, "cannot be had: .*has no attribute 'Third'"),
        ({"name": "halfway_methods:number"}, "'halfway_methods:number' is no method.*dataclass derived from"),
        ({"name": "halfway_methods:Bare"}, "'halfway_methods:Bare' is no method.*dataclass derived from"),
        ({"name": "halfway_methods:Halfway", "portion": 1}, "method.portion = 1 is no setting"),
        ({"name": ":"}, "cannot be had: Empty module name"),
    ],
)
def test_what_is_no_method_is_refused(method: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        make_experiment(Settings({"data": {"name": "digits"}, "method": method}))


def test_its_first_line_says_what_it_does() -> None:
    entry = lookup("halfway_methods:Halfway")
    assert (entry.family, entry.summary) == ("own", "Goes only a part of the way to the mean")
