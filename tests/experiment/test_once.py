"""A run is read, resolved and checked once, however it is started."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import fedloom
from fedloom.cli import app
from fedloom.errors import ConfigError
from fedloom.experiment import Experiment, experiment, load_experiment
from fedloom.experiment.data import DataPlan
from fedloom.methods import FedAvg
from fedloom.methods.admm import ADMM
from problems import make_problem

SMALL = ("--data", "digits", "--clients", "3", "--model", "linear", "--rounds", "1", "--executor", "serial")
ONCE = {"check": 1, "load": 1, "build": 1}


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a method was checked, data were loaded and a model was built."""
    found: Counter[str] = Counter()

    def counted(name: str, owner: Any, attribute: str) -> None:
        original = getattr(owner, attribute)

        def call(*args: Any, **how: Any) -> Any:
            found[name] += 1
            return original(*args, **how)

        monkeypatch.setattr(owner, attribute, call)

    counted("check", FedAvg, "check")
    counted("load", DataPlan, "load")
    counted("build", experiment, "build_model")
    return found


def said(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, result.output
    return result.output


def test_one_command_checks_a_method_loads_its_data_and_builds_its_model_once(
    counts: Counter[str], tmp_path: Path
) -> None:
    said("run", "--method", "fedavg", *SMALL, "--out", str(tmp_path / "run"))
    assert counts == ONCE
    counts.clear()
    said("compare", "fedavg", "--repeats", "1", *SMALL, "--out", str(tmp_path / "compared"))
    assert counts == ONCE


def test_a_run_from_python_is_checked_once(counts: Counter[str]) -> None:
    fedloom.train(make_problem("linear"), FedAvg(), rounds=1)
    assert counts == {"check": 1}


def test_tasks_in_sequence_are_checked_once_each(counts: Counter[str], tmp_path: Path) -> None:
    file = tmp_path / "tasks.toml"
    file.write_text('rounds = 1\n[data]\nclients = 3\n[[task]]\nclasses = "first half"\n[[task]]\nclasses = "2/2"\n')
    sequence = load_experiment(file)
    sequence.check()
    sequence.run(tmp_path / "run")
    assert (counts["check"], counts["load"]) == (2, 1)


def test_a_warning_of_a_method_appears_once(recwarn: pytest.WarningsRecorder) -> None:
    mlp = {"data.clients": 3, "rounds": 1, "model.name": "mlp", "model.hidden": 4, "method.name": "admm"}
    experiment = Experiment.load(None, mlp)
    experiment.check()
    experiment.run()
    assert len([one for one in recwarn if "admm on a network" in str(one.message)]) == 1


def test_a_prior_that_is_missing_is_refused_before_anything_is_announced(tmp_path: Path) -> None:
    file = tmp_path / "exp.toml"
    file.write_text('[data]\nclients = 3\n[method]\nname = "admm-fedmeta"\nlambda_ = 1.0\n')
    told = said("run", str(file), "--out", str(tmp_path / "run"), code=2)
    assert f"{file}:5: method.lambda_ = 1.0 cannot be: ADMMFedMeta is to stay near an earlier model" in told
    assert "→" not in told
    assert not (tmp_path / "run").exists()


def test_everything_that_does_not_go_together_is_said_at_once(tmp_path: Path) -> None:
    file = tmp_path / "exp.toml"
    file.write_text(
        '[data]\nclients = 30\n[method]\nname = "admm-fedmeta"\nlambda_ = 1.0\n[schedule]\nbuffer = 3\n'
        '[evaluation]\nmetrics = ["rmse"]\n[fleet]\nabsent = 1.0\n'
    )
    with pytest.raises(ConfigError, match=r"^4 settings cannot be:") as refused:
        Experiment.load(file).check()
    for place in ("5: method.lambda_", "7: schedule.buffer = 3 belongs", "9: evaluation.metrics", "10: fleet cannot"):
        assert f"exp.toml:{place}" in str(refused.value)


def test_the_same_faults_are_found_in_objects_from_python() -> None:
    problem = make_problem("linear")
    with pytest.raises(ConfigError, match=r"^schedule\.buffer = 3 belongs to schedule\.name = 'async'"):
        fedloom.train(problem, ADMM(), rounds=1, schedule=fedloom.Schedule(buffer=3))
