"""Runs that are there already are known again when fedloom has learnt a new setting, or has renamed one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedloom.errors import ConfigError, RunError
from fedloom.experiment import Experiment, TaskSequence, load_experiment
from fedloom.experiment.essence import essence
from fedloom.methods import REGISTER, FedAvg, register

SMALL = {"data.clients": 3, "rounds": 1, "model.name": "linear", "execution.executor": "serial"}
ADMM = {**SMALL, "method.name": "admm"}


@dataclass(frozen=True)
class Young(FedAvg):
    """A method as it was."""


@dataclass(frozen=True)
class Grown(FedAvg):
    """The same with a setting that it has learnt since."""

    extra: float = 0.5


@pytest.fixture
def young() -> Iterator[None]:
    """A method of the register that can grow."""
    register("young", summary="as it was")(Young)
    yield
    REGISTER.remove("young")


def test_a_run_is_known_again_when_its_method_has_learnt_a_setting(young: None, tmp_path: Path) -> None:
    Experiment.load(None, {**SMALL, "method.name": "young"}).run(tmp_path / "run")
    REGISTER.remove("young")
    register("young", summary="grown")(Grown)
    for values in ({}, {"method.extra": 0.5}):
        assert Experiment.load(None, {**SMALL, "method.name": "young", **values}).start(tmp_path / "run") is None
    with pytest.raises(RunError, match="other settings"):
        Experiment.load(None, {**SMALL, "method.name": "young", "method.extra": 0.6}).start(tmp_path / "run")


@pytest.mark.parametrize(
    "line", ["dropout = 0.0", "every = 1", "support = 0.5", "chronological = false", "bias = true"]
)
def test_a_run_is_known_again_when_its_folder_does_not_have_a_setting_that_is_as_usual(
    line: str, tmp_path: Path
) -> None:
    Experiment.load(None, SMALL).run(tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    assert config.read_text().count(f"\n{line}\n") == 1
    config.write_text(config.read_text().replace(f"\n{line}\n", "\n"))
    assert Experiment.load(None, SMALL).start(tmp_path / "run") is None


def test_a_task_is_taken_over_from_a_folder_that_does_not_have_a_setting_that_is_as_usual(tmp_path: Path) -> None:
    file = tmp_path / "tasks.toml"
    file.write_text('rounds = 1\n[data]\nclients = 3\n[[task]]\nclasses = "first half"\n[[task]]\nclasses = "2/2"\n')
    sequence = load_experiment(file, {"execution.executor": "serial"})
    assert isinstance(sequence, TaskSequence)
    sequence.run(tmp_path / "a")
    for folder in (tmp_path / "a").glob("task-*"):
        config = folder / "config.toml"
        config.write_text(config.read_text().replace("\ndropout = 0.0\n", "\n"))
    rounds: list[int] = []
    done = sorted((tmp_path / "a").glob("task-*"))
    again = sequence.run(tmp_path / "b", done=done, progress=lambda row, last: rounds.append(last))
    assert rounds == []
    assert len(again.history) == 3


def test_what_is_as_usual_and_where_the_work_is_done_is_not_of_the_essence() -> None:
    usual = {"fleet": {"preset": "ideal", "dropout": 0}, "execution": {"workers": 3}, "evaluation": [{"every": 1}]}
    assert essence(usual) == {}
    assert essence({"fleet": {"preset": "cross-device", "dropout": 0.0}}) == {
        "fleet": {"preset": "cross-device", "dropout": 0.0}
    }
    assert essence({"method": {"name": "admm", "most": 7}}) == essence(
        {"method": {"name": "admm", "max_iterations": 7}}
    )


def test_a_setting_with_a_new_name_is_read_by_it_and_said_in_a_line(tmp_path: Path) -> None:
    file = tmp_path / "exp.toml"
    file.write_text('[method]\nname = "admm"\nmost = 7\n')
    said = f"{file}:3: method.most is called method.max_iterations now, and is read as that"
    with pytest.warns(UserWarning, match=rf"^{re.escape(said)}$"):
        experiment = Experiment.load(file)
    assert experiment.method.max_iterations == 7  # type: ignore[attr-defined]
    file.write_text('[method]\nname = "admm"\nmost = 0\n')
    with (
        pytest.warns(UserWarning, match="method.most"),
        pytest.raises(ConfigError, match=r"exp.toml:3: method.max_iterations = 0 should be"),
    ):
        Experiment.load(file)


@pytest.mark.filterwarnings("error")
def test_a_run_that_has_a_setting_by_its_old_name_is_known_again(tmp_path: Path) -> None:
    Experiment.load(None, {**ADMM, "method.max_iterations": 7}).run(tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("max_iterations", "most"))
    assert Experiment.load(None, {**ADMM, "method.max_iterations": 7}).start(tmp_path / "run") is None
    with pytest.raises(RunError, match="other settings"):
        Experiment.load(None, {**ADMM, "method.max_iterations": 8}).start(tmp_path / "run")


@pytest.mark.filterwarnings("error")
def test_a_method_that_has_a_setting_of_the_old_name_keeps_it(young: None) -> None:
    @dataclass(frozen=True)
    class Own(FedAvg):
        most: int = 3

    REGISTER.remove("young")
    register("young", summary="has a setting of that name")(Own)
    assert Experiment.load(None, {"method.name": "young", "method.most": 5}).method == Own(most=5)
