"""Early stopping: what it watches, when it ends a run, and which model it leaves."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import fedloom
from fedloom.engine.run import Run
from fedloom.errors import ConfigError
from fedloom.experiment import Experiment
from fedloom.storage.saved import open_saved

LR, ROUNDS, PATIENCE = 1.5, 25, 3


def problem(validation: float | None = 0.25) -> fedloom.Problem:
    data = fedloom.federate("digits", clients=4, partition="dirichlet", alpha=0.3, validation=validation)
    return fedloom.Problem(data, fedloom.build_model("linear", data))


def trained(method: Any = None, on: fedloom.Problem | None = None, **how: Any) -> Run:
    how = {"rounds": ROUNDS, "executor": "serial", "schedule": fedloom.Schedule(patience=PATIENCE), **how}
    return fedloom.train(on or problem(), method or fedloom.FedAvg(lr=LR), **how)


def course(run: Run, metric: str = "accuracy") -> list[float]:
    return [row["evaluations"]["validation"][metric]["weighted"] for row in run.history]


def expected(values: list[float], patience: int, sign: int = 1) -> tuple[int, int]:
    """By hand: the round after which to stop, and the best round so far."""
    best = 0
    for round_, value in enumerate(values):
        best = round_ if sign * value > sign * values[best] else best
        if round_ - best >= patience:
            return round_, best
    return len(values) - 1, best


@pytest.fixture(scope="module")
def whole() -> Run:
    """The same run, never stopped early."""
    return trained(schedule=None, evaluate=[fedloom.Evaluation(), fedloom.Evaluation("validation", split="validation")])


def test_a_run_ends_when_it_was_not_better_for_so_long_and_its_model_is_that_of_the_best_round(whole: Run) -> None:
    stop, best = expected(course(whole), PATIENCE)
    assert 0 < best < stop < ROUNDS  # so that there is something to see
    run = trained()
    assert run.summary["stopped"] == "patience"
    assert run.summary["rounds"] == stop
    assert course(run) == course(whole)[: stop + 1]
    told = run.summary["best"]
    assert told == {
        "round": best,
        "metric": "accuracy",
        "value": course(whole)[best],
        "split": "validation",
        "kept": True,
    }
    short = trained(schedule=None, rounds=best)
    assert torch.equal(run.theta, short.theta)
    assert run.summary["theta_sha256"] == short.summary["theta_sha256"]
    assert run.summary["metrics"] == short.summary["metrics"]  # those of the test rows, of the best model
    assert not run.notes


def test_a_loss_is_better_when_it_is_lower_and_a_limit_of_rounds_leaves_the_best_model_too(whole: Run) -> None:
    losses = course(whole, "loss")
    run = trained(schedule=fedloom.Schedule(metric="loss", patience=ROUNDS))
    best = min(range(len(losses)), key=losses.__getitem__)
    assert best < ROUNDS
    assert (run.summary["stopped"], run.summary["rounds"], run.summary["best"]["round"]) == ("rounds", ROUNDS, best)
    assert torch.equal(run.theta, trained(schedule=None, rounds=best).theta)


@pytest.mark.parametrize("killed", [1, 4, 6])
def test_a_patient_run_that_was_killed_ends_as_if_it_had_not_been(tmp_path: Path, killed: int) -> None:
    class Kill(BaseException):
        pass

    def kill(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == killed:
            raise Kill

    how = {"out": tmp_path / "run", "checkpoint_every": 2}
    with pytest.raises(Kill):
        trained(progress=kill, **how)
    run, plain = trained(resume=True, **how), trained()
    clocks = ("wall_seconds",)
    assert {k: v for k, v in run.summary.items() if k not in clocks} == {
        k: v for k, v in plain.summary.items() if k not in clocks
    }
    assert torch.equal(open_saved(tmp_path / "run").theta, plain.theta)
    again = trained(resume=True, **how)  # summed up once more
    assert again.summary["metrics"] == plain.summary["metrics"]


def test_where_the_test_rows_choose_the_run_says_so() -> None:
    run = trained(on=problem(None))
    assert run.summary["best"]["split"] == "test"
    assert any("the test rows chose when to stop, and judge the result" in note for note in run.notes)


def test_models_that_clients_keep_stay_those_of_the_last_round_and_the_run_says_so() -> None:
    run = trained(fedloom.Local(lr=LR))
    assert run.summary["best"]["kept"] is False
    assert any("Run it for" in note and "own models" in note for note in run.notes)


def test_an_adapting_method_is_watched_on_validation_rows_that_it_was_not_fitted_to() -> None:
    run = trained(fedloom.PerFedAvg(lr=0.5), rounds=6)
    assert run.summary["best"]["split"] == "validation-query"
    assert all(math.isfinite(value) for value in course(run))


def test_an_experiment_with_patience_has_validation_rows_and_writes_down_how_many() -> None:
    experiment = Experiment.load(overrides={"schedule.patience": 5, "data.clients": 3})
    assert experiment.resolved()["data"]["validation"] == 0.2
    assert [one["split"] for one in experiment.resolved()["evaluation"]] == ["test", "validation"]
    assert "validation" in experiment.data().splits
    plain = Experiment.load(overrides={"data.clients": 3})
    assert "validation" not in plain.resolved()["data"]
    assert "validation" not in plain.data().splits
    chosen = Experiment.load(overrides={"schedule.patience": 5, "data.validation": 0.0, "data.clients": 3})
    assert "validation" not in chosen.data().splits


def test_what_patience_cannot_watch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"schedule.metric = 'f2' is not evaluated"):
        trained(schedule=fedloom.Schedule(metric="f2", patience=2))
    with pytest.raises(ConfigError, match=r"every = 0 evaluates after the last round alone"):
        trained(on=problem(None), evaluate=fedloom.Evaluation(every=0))
    with pytest.raises(ConfigError, match=r"schedule.patience = 3 needs an evaluation to watch"):
        trained(evaluate=[])
