"""Tuning: exact, resumable, never worse than the defaults on the rows that choose."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedloom
from fedloom.engine.run import Course
from fedloom.errors import ConfigError, RunError
from fedloom.execution import Processes
from fedloom.execution.kept import Kept
from fedloom.experiment import Experiment
from fedloom.storage.belonging import misfits
from fedloom.tuning import contenders
from fedloom.tuning.again import from_plan
from fedloom.tuning.contenders import Contender, Stopwatch
from fedloom.tuning.walk import Moment

SMALL = {"data.name": "digits", "data.clients": 5, "model.name": "linear", "rounds": 9}
METHODS = ["fedavg", "scaffold"]


class Killed(BaseException):
    """As if the process had been killed."""


def small(out: Path | None = None, methods: Any = METHODS, **more: Any) -> fedloom.Tuned:
    how: dict[str, Any] = {"settings": SMALL, "trials": 9, "report": False, "progress": False, **more}
    return fedloom.tune(methods, out=out, **how)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> fedloom.Tuned:
    return small(tmp_path_factory.mktemp("tuned") / "whole", report=True)


def test_what_is_found_is_never_worse_than_the_defaults_on_the_validation_rows(whole: fedloom.Tuned) -> None:
    for row in whole.table:
        assert row["validation"] >= row["validation_default"]
        assert (row["trials"], row["rounds"], row["lost"]) == (9, 9, 0)
    assert whole.best["validation"] == max(row["validation"] for row in whole.table)
    assert len(whole.trials) == 20
    rungs = [line["rounds"] for line in whole.trials if line["label"] == "fedavg"]
    assert (rungs[0], sorted(rungs[1:])) == (9, [1] * 6 + [3] * 2 + [9])


class SlowAtFirst:
    """A clock by which the first round takes a minute and all others a moment."""

    def __init__(self) -> None:
        self.looks, self.now = 0, 0.0

    def perf_counter(self) -> float:
        self.looks += 1
        self.now += 60.0 if self.looks == 2 else 1e-3
        return self.now


def test_a_first_round_that_takes_long_is_not_taken_for_the_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contenders, "time", SlowAtFirst())
    done = small(tmp_path / "tuned", ["fedavg"], trials=None, budget="20s", sampler="grid", space={"method.lr": [0.1]})
    plan = json.loads((tmp_path / "tuned" / "plan.json").read_text())
    assert plan["methods"][0]["pace"]["round"] < 0.1
    assert done.table[0]["rounds"] == 9


def test_a_promoted_trial_is_the_run_that_was_never_stopped_in_the_same_bits(
    whole: fedloom.Tuned, tmp_path: Path
) -> None:
    assert whole.folder is not None
    for row in whole.table:
        alone = Experiment.load(whole.folder / f"{row['label']}.toml").run(tmp_path / row["label"])
        kept = whole.runs[row["label"]]
        assert alone.summary["theta_sha256"] == kept.summary["theta_sha256"]
        assert alone.summary["metrics"] == kept.summary["metrics"]
        assert alone.summary["metrics"]["accuracy"] == row["test"]
        told = alone.history[-1]["evaluations"]["validation"]["accuracy"]["weighted"]
        assert told == row["validation"]
        assert not misfits(whole.folder / row["folder"])
    assert Experiment.load(whole.folder / "best.toml").method_name == whole.best["label"]


@pytest.mark.parametrize("after", [1, 9, 17, 23])
def test_killed_at_any_moment_and_resumed_it_ends_in_the_same_table(
    after: int, whole: fedloom.Tuned, tmp_path: Path
) -> None:
    told = 0

    def dying(moment: Moment) -> None:
        nonlocal told
        told += 1
        if told == after:
            raise Killed

    with pytest.raises(Killed):
        small(tmp_path / "t", progress=dying)
    assert small(tmp_path / "t").table == whole.table


def test_a_process_that_is_killed_goes_on_from_its_folder_alone(whole: fedloom.Tuned, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "fedloom.cli", "tune", *METHODS, "--trials", "9", "--out", "t", "--no-report"]
    for key, value in SMALL.items():
        words += ["--set", f"{key}={value}"]
    first = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    for line in first.stdout:
        if "scaffold  defaults" in line:
            break
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    first.stdout.close()
    assert not (tmp_path / "t" / "table.json").exists()
    tuning_again = from_plan(tmp_path / "t")
    tuning_again.check()
    table = tuning_again.perform(tmp_path / "t", [], False, lambda moment: None)
    assert table == whole.table


def test_long_trials_wait_in_their_folders_and_end_in_the_same_table(
    whole: fedloom.Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedloom.tuning.tuning._IN_MEMORY_SECONDS", 0.0)
    table = small(tmp_path / "t").table
    assert table == whole.table
    assert len(list((tmp_path / "t").glob("fedavg/trial-*"))) == 10


def test_a_course_goes_on_as_a_run_that_did_not_wait() -> None:
    prepared = Experiment.load(None, {**SMALL, "method.name": "scaffold"}).prepared()
    course, other = Course(prepared), Course(prepared)
    course.to(2)
    other.to(4)
    course.to(7)
    course.to(9)
    assert course.theta_sha256 == prepared.run().summary["theta_sha256"]
    assert course.stopped == "rounds"


def test_trials_never_see_the_test_rows(tmp_path: Path) -> None:
    seen = []
    made = Contender(*_only("fedavg"), 0, None)
    row = Course(made.trial({"method.lr": 0.3}, 0, Stopwatch())).to(3)
    seen += list(row.get("evaluations", {}))
    assert seen == ["validation"]
    assert "evaluation" not in row
    assert made.value(row) == row["evaluations"]["validation"]["accuracy"]["weighted"]


def _only(name: str) -> tuple[Any, Any, Any]:
    from fedloom.comparison import parse_entry
    from fedloom.experiment import Settings
    from fedloom.tuning.tuned import from_settings

    entry = parse_entry(name)
    return from_settings(Settings.read(None, SMALL))[0], entry, [entry]


def test_trials_that_diverge_lose_and_are_said() -> None:
    data = fedloom.federate("diabetes", clients=4, validation=0.2)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    tuned = fedloom.tune("fedavg", problem, rounds=6, space={"method.lr": [1e30, 0.01]}, trials=2, progress=False)
    (row,) = tuned.table
    assert (row["lost"], row["trials"]) == (1, 2)
    assert row["validation"] <= row["validation_default"]
    (lost,) = [line for line in tuned.trials if line["lost"]]
    assert lost["method.lr"] == 1e30
    assert "not finite" in lost["lost"]


def test_a_problem_of_pythons_is_tuned_and_known_again(tmp_path: Path) -> None:
    data = fedloom.federate("digits", clients=4, validation=0.2)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    how: dict[str, Any] = {"rounds": 3, "trials": 3, "progress": False, "out": tmp_path / "t", "select": 2}
    first = fedloom.tune([fedloom.FedProx(epochs=2), "fedavg"], problem, **how)
    again = fedloom.tune([fedloom.FedProx(epochs=2), "fedavg"], problem, **how)
    assert first.table == again.table
    values = first.frame().loc["fedprox:epochs=2", "values"]
    found = fedloom.FedProx(epochs=2, **{key.removeprefix("method."): one for key, one in values.items()})
    alone = fedloom.train(problem, found, rounds=3, select=2)
    assert alone.summary["metrics"]["accuracy"] == first.frame().loc["fedprox:epochs=2", "test"]
    with pytest.raises(RunError, match="other settings"):
        fedloom.tune([fedloom.FedProx(epochs=3), "fedavg"], problem, **how)


def test_settings_that_are_not_the_methods_are_tuned_too() -> None:
    settings = {"data.name": "digits", "data.clients": 4, "rounds": 2, "model.name": "mlp"}
    tuned = fedloom.tune(
        ["fedavg:lr=0.3"], settings=settings, space={"model.hidden": [8, 32]}, sampler="grid", progress=False
    )
    assert {line["model.hidden"] for line in tuned.trials if line["trial"]} == {8, 32}
    assert tuned.table[0]["values"].get("method.lr") is None


def test_several_seeds_choose_among_the_finalists(tmp_path: Path) -> None:
    tuned = small(tmp_path / "t", methods="fedavg", trials=3, repeats=2)
    (row,) = tuned.table
    seeds = [Experiment.load(tmp_path / "t" / "fedavg.toml", {"seed": seed}).run() for seed in (0, 1)]
    assert row["test"] == pytest.approx(sum(run.summary["metrics"]["accuracy"] for run in seeds) / 2)
    assert row["test_std"] > 0


def test_where_one_method_adapts_all_are_chosen_by_the_same_rows() -> None:
    tuned = small(methods=["fedavg", "per-fedavg"], trials=1, settings={**SMALL, "rounds": 1})
    assert tuned.notes == []
    judged = {run.summary["judged"]["split"] for run in tuned.runs.values()}
    assert judged == {"test-query"}


def test_a_pool_of_all_rows_is_a_bound_and_is_not_the_best() -> None:
    tuned = small(methods=["central", "fedsgd"], trials=1)
    assert tuned.best["label"] == "fedsgd"


def test_optunas_samplers_go_on_as_if_nobody_had_stopped_them(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    how: dict[str, Any] = {"methods": "fedprox", "sampler": "tpe", "trials": 14, "settings": {**SMALL, "rounds": 3}}
    once = small(tmp_path / "once", **how)
    told = 0

    def dying(moment: Moment) -> None:
        nonlocal told
        told += 1
        if told == 13:
            raise Killed

    with pytest.raises(Killed):
        small(tmp_path / "twice", progress=dying, **how)
    again = small(tmp_path / "twice", **how)
    assert again.table == once.table
    assert again.trials == once.trials


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"space": {"method.lrr": "1,2"}}, "method.lrr, which is no hyper-parameter.*did you mean 'lr'"),
        ({"space": {"method.lr": (1.0, 0.1)}}, "the range is empty"),
        ({"space": {"method.lr": [0.1, -1.0]}}, r"has -1.0, which cannot be: .*above 0"),
        ({"space": {"model.width": [1, 2]}}, "model.width.*is no setting of"),
        ({"space": {"data.clients": [2, 4]}}, r"other \[data\] cannot be compared"),
        ({"space": {"rounds": [2, 4]}}, "same number of rounds"),
        ({"settings": {**SMALL, "data.validation": 0.0}}, "no validation rows to choose by"),
        ({"budget": "soon"}, "write it as 90s"),
        ({"budget": "0.001s", "trials": None}, "too small.*give at least"),
        ({"budget": "1m"}, "one of the two"),
        ({"trials": 0}, "at least one"),
        ({"repeats": 0}, "at least once"),
        ({"sampler": "magic"}, "no sampler 'magic'"),
        ({"methods": []}, "at least one method"),
        ({"methods": ["fedavg", "fedavg"]}, "twice"),
        ({"methods": ["fedavg:lr=0.1"], "space": {"method.lr": [1, 2]}}, "keep one of the two"),
        ({"methods": ["fedavgg"]}, "did you mean 'fedavg'"),
        ({"settings": {**SMALL, "schedule.metric": "accuracy", "schedule.target": 0.9}}, "must not see"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_written(how: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"(?s){said}"):
        small(tmp_path / "t", **how)
    assert not list((tmp_path / "t").glob("plan.json"))


def test_no_validation_rows_in_a_problem_is_said() -> None:
    data = fedloom.federate("digits", clients=4)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    with pytest.raises(ConfigError, match=r"federate\(…, validation=0.2\)"):
        fedloom.tune("fedavg", problem)


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="is no tuning"):
        small(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_what_it_says_of_itself(whole: fedloom.Tuned) -> None:
    assert repr(whole).startswith(f"Tuned(best of 2 methods: {whole.best['label']} with lr = ")
    assert "scaffold" in whole._repr_html_()
    assert whole.plot("method.lr", "fedavg").data
    with pytest.raises(ConfigError, match="they have method"):
        whole.plot("method.nothing", "fedavg")
    assert whole.folder is not None
    assert whole.report == whole.folder / "report.html"
    page = (whole.folder / "report.html").read_text()
    assert "is the best that can be used" in page
    record = json.loads((whole.folder / "tune.json").read_text())
    assert 0 < record["share_training"] <= 1
    assert (whole.folder / "table.csv").read_text().count("\n") == 3


def test_patience_ends_trials_by_the_validation_rows() -> None:
    tuned = small(methods="fedavg", trials=3, settings={**SMALL, "rounds": 12, "schedule.patience": 2})
    (row,) = tuned.table
    assert row["validation"] >= row["validation_default"]
    assert tuned.runs["fedavg"].summary["best"]["value"] == row["validation"]


def test_a_schedule_made_for_another_number_of_rounds_is_said() -> None:
    tuned = small(methods=["scaffold:lr=cosine:0.1:0.001:200"], trials=1, settings={**SMALL, "rounds": 2})
    (note,) = tuned.notes
    assert note.endswith("method.lr = cosine:0.1:0.001:200 is made for 200 rounds, but trials have 2")
    assert "method.lr" not in tuned.table[0]["values"]


def test_a_kept_executor_has_the_same_processes_for_all_runs_and_the_same_bits() -> None:
    pids: list[list[int]] = []
    kept = Kept(Processes(1))
    runs = []
    for name in METHODS:
        prepared = Experiment.load(None, {**SMALL, "rounds": 2, "method.name": name}).prepared()
        runs.append((replace(prepared, executor=kept).run().summary, prepared.run().summary))
        assert isinstance(kept.inner, Processes)
        pids.append([process.process.pid or 0 for process in kept.inner.crew])
    kept.end()
    assert pids[0] == pids[1]
    assert all(there["theta_sha256"] == here["theta_sha256"] for there, here in runs)
