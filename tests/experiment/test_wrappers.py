"""A method that wraps another, in files and on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import kinds
from fedloom.cli import app
from fedloom.engine.run import Interrupted
from fedloom.errors import ConfigError
from fedloom.experiment import Experiment
from wrappers import STEPS

PLAIN = {
    "data.name": "digits",
    "data.clients": 3,
    "model.name": "linear",
    "rounds": 3,
    "seed": 4,
    "evaluation.every": 0,
}
INNER = {"name": "scaffold", "lr": 0.05, "batch": 16}


def test_a_wrapper_that_only_counts_ends_in_the_bits_of_the_method_inside() -> None:
    wrapped = Experiment.load(None, {**PLAIN, "method.name": "wrappers:Counting", "method.inner": INNER})
    plain = Experiment.load(None, {**PLAIN, **{f"method.{key}": value for key, value in INNER.items()}})
    run, expected = wrapped.run(), plain.run()
    assert run.summary["theta_sha256"] == expected.summary["theta_sha256"]
    assert run.summary["bytes_up"] == expected.summary["bytes_up"]
    assert int(run.state[STEPS]) == 3


def test_the_config_of_its_run_says_all_of_the_method_inside_and_is_resumed(tmp_path: Path) -> None:
    experiment = Experiment.load(kinds.written(tmp_path, "wrapper"))
    written = experiment.resolved()["method"]
    assert written["name"] == "wrappers:Counting"
    assert written["by"] == 1
    assert {key: written["inner"][key] for key in (*INNER, "server_lr")} == {**INNER, "server_lr": 1.0}
    whole = experiment.run(tmp_path / "whole")

    def stop(row: dict[str, object], last: int) -> None:
        if row["round"] == 2:
            raise Interrupted(None, 2)

    changed = Experiment.load(tmp_path / "whole" / "config.toml", {"execution.checkpoint_every": 1})
    with pytest.raises(Interrupted):
        changed.run(tmp_path / "broken", progress=stop)
    resumed = Experiment.load(tmp_path / "broken" / "config.toml").run(tmp_path / "broken", resume=True)
    assert kinds.ending(resumed) == kinds.ending(whole)


def test_it_is_given_on_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "run"
    flags = [
        "--data",
        "digits",
        "--clients",
        "3",
        "--model",
        "linear",
        "--rounds",
        "2",
        "--method",
        "wrappers:Counting",
    ]
    sets = ["--set", "method.inner.name=scaffold", "--set", "method.inner.lr=0.05", "--no-report", "--out", str(out)]
    result = CliRunner().invoke(app, ["run", *flags, *sets])
    assert result.exit_code == 0, result.output
    assert json.loads((out / "summary.json").read_text())["rounds"] == 2


@pytest.mark.parametrize(
    ("inner", "complaint"),
    [
        ({"name": "scafold"}, r"method\.inner\.name = \"scafold\".*did you mean 'scaffold'"),
        ({"name": "scaffold", "lr": -1}, r"method\.inner\.lr = -1 should be a number above 0"),
        ("scaffold", r"method\.inner = \"scaffold\" should be a table: write \[method\.inner\]"),
    ],
)
def test_what_is_wrong_with_the_method_inside_is_said_at_its_key(inner: object, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Experiment.load(None, {**PLAIN, "method.name": "wrappers:Counting", "method.inner": inner})
