"""[[task]]: tasks in sequence, what is known of each after each, and what cannot be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedloom
from fedloom.engine.continual import Task
from fedloom.engine.run import Interrupted
from fedloom.errors import ConfigError, FedloomError, RunError
from fedloom.experiment import Experiment, TaskSequence, load_experiment
from fedloom.methods import FedAvg, Local
from fedloom.storage import toml
from fedloom.storage.history import History
from fedloom.storage.saved import saved_model
from fedloom.types import Vector

HALVES = """
rounds = 4
[data]
name = "digits"
clients = 5
[model]
hidden = 12
[method]
lr = 0.3
[[task]]
name = "low"
classes = "first half"
[[task]]
name = "high"
classes = [5, 6, 7, 8, 9]
rounds = 3
[task.method]
epochs = 2
"""


def written(folder: Path, text: str = HALVES) -> Path:
    path = folder / "exp.toml"
    path.write_text(text)
    return path


def sequence(folder: Path, text: str = HALVES, **changes: Any) -> TaskSequence:
    found = load_experiment(written(folder, text), {key.replace("__", "."): value for key, value in changes.items()})
    assert isinstance(found, TaskSequence)
    return found


def accuracy(experiment: Experiment, theta: Vector) -> float:
    """On the test rows of all clients, by hand."""
    problem = experiment.problem()
    rows = torch.cat([problem.data.splits["test"][client] for client in range(problem.data.clients)])
    return float((problem.model(theta, problem.x[rows]).argmax(1) == problem.y[rows]).double().mean())


def test_the_matrix_is_what_the_saved_models_are_on_each_task(tmp_path: Path) -> None:
    tasks = sequence(tmp_path)
    run = tasks.run(tmp_path / "run")
    assert run.matrix is not None
    first, second = tasks.experiments
    models = [saved_model(tmp_path / "run" / f"task-{k}").theta for k in (1, 2)]
    for i, theta in enumerate(models):
        for j, task in enumerate((first, second)):
            assert run.matrix.rows[i][j] == pytest.approx(accuracy(task, theta), abs=1e-12)
    fresh = first.problem().model.init(fedloom.federation.randomness.Draw(0).key("model"))  # type: ignore[attr-defined]
    assert run.matrix.fresh == pytest.approx([accuracy(task, fresh) for task in (first, second)], abs=1e-12)
    assert torch.equal(run.theta, models[1])
    assert run.matrix.rows[0][0] > 0.6 > run.matrix.rows[1][0]


def test_tasks_share_the_classes_of_the_model_and_have_each_their_own_rows(tmp_path: Path) -> None:
    low, high = (experiment.data() for experiment in sequence(tmp_path).experiments)
    assert low.classes == high.classes
    for data, wanted in ((low, {0, 1, 2, 3, 4}), (high, {5, 6, 7, 8, 9})):
        owned = torch.cat([data.splits[split][client] for split in ("train", "test") for client in range(5)])
        assert set(data.y[owned].tolist()) == wanted


def test_each_task_starts_from_the_model_of_the_one_before_or_afresh(tmp_path: Path) -> None:
    run = sequence(tmp_path).run(tmp_path / "a")
    assert run.matrix is not None
    start = History.read(tmp_path / "a" / "task-2" / "history.jsonl").rows[0]
    assert start["evaluation"]["accuracy"]["weighted"] == pytest.approx(run.matrix.rows[0][1], abs=1e-12)
    fresh = sequence(tmp_path, continual__start="fresh").run(tmp_path / "b")
    start = History.read(tmp_path / "b" / "task-2" / "history.jsonl").rows[0]
    assert fresh.matrix is not None
    assert start["evaluation"]["accuracy"]["weighted"] == pytest.approx(fresh.matrix.fresh[1], abs=1e-12)
    for folder, starts in (("a", True), ("b", False)):
        config = tomllib.loads((tmp_path / folder / "task-2" / "config.toml").read_text())
        assert config["prior"] == {
            "run": "../task-1",
            "start": starts,
            "sha256": saved_model(tmp_path / folder / "task-1").sha256,
        }


def test_a_single_task_can_be_done_again_from_its_own_settings(tmp_path: Path) -> None:
    run = sequence(tmp_path).run(tmp_path / "a")
    again = Experiment.load(tmp_path / "a" / "task-2" / "config.toml").run()
    assert torch.equal(again.theta, run.theta)


def test_the_settings_that_a_sequence_wrote_give_the_same_bits_again(tmp_path: Path) -> None:
    run = sequence(tmp_path).run(tmp_path / "a")
    again = load_experiment(tmp_path / "a" / "config.toml").run(tmp_path / "b")
    assert again.summary["theta_sha256"] == run.summary["theta_sha256"]
    assert (tmp_path / "b" / "config.toml").read_text() == (tmp_path / "a" / "config.toml").read_text()
    assert again.matrix == run.matrix


def test_the_history_goes_on_from_task_to_task(tmp_path: Path) -> None:
    run = sequence(tmp_path).run(tmp_path / "a")
    assert [row["round"] for row in run.history] == list(range(8))
    assert [row["task"] for row in run.history] == [1] * 5 + [2] * 3
    for key in ("bytes_up", "gradient_evaluations", "wall_seconds"):
        values = [row[key] for row in run.history]
        assert values == sorted(values)
        parts = [History.read(tmp_path / "a" / f"task-{k}" / "history.jsonl").rows[-1][key] for k in (1, 2)]
        assert run.summary[key] == pytest.approx(sum(parts))
    assert run.matrix is not None
    assert run.history[4]["evaluations"]["on high"]["accuracy"]["weighted"] == run.matrix.rows[0][1]
    assert run.history[7]["evaluation"]["average_accuracy"]["weighted"] == run.matrix.average
    assert History.read(tmp_path / "a" / "history.jsonl").rows == run.history


def test_the_summary_has_what_was_forgotten_and_transferred(tmp_path: Path) -> None:
    run = sequence(tmp_path).run(tmp_path / "a")
    summary, matrix = (json.loads((tmp_path / "a" / name).read_text()) for name in ("summary.json", "matrix.json"))
    assert run.matrix is not None
    assert summary["metrics"] == {
        "average_accuracy": run.matrix.average,
        "forgetting": run.matrix.forgetting,
        "backward_transfer": run.matrix.backward_transfer,
        "forward_transfer": run.matrix.forward_transfer,
    }
    assert summary["rounds"] == 7
    assert matrix["matrix"] == [list(row) for row in run.matrix.rows]
    assert matrix["forgetting"] == run.matrix.forgetting
    assert summary["theta_sha256"] == saved_model(tmp_path / "a").sha256  # the last task's


def test_without_a_folder_it_is_the_same(tmp_path: Path) -> None:
    one, other = sequence(tmp_path).run(), sequence(tmp_path).run(tmp_path / "a")
    assert torch.equal(one.theta, other.theta)
    assert (one.matrix, one.folder) == (other.matrix, None)


def test_an_evaluation_that_adapts_target_clients_is_honoured(tmp_path: Path) -> None:
    text = HALVES.replace("clients = 5", "clients = 8\ntarget = 0.25")
    text += "[evaluation]\nmodel = 'adapted'\non = 'target'\nsplit = 'query'\nadapt_lr = 0.4\nadapt_steps = 2\n"
    run = sequence(tmp_path, text).run(tmp_path / "a")
    assert run.matrix is not None
    config = tomllib.loads((tmp_path / "a" / "task-1" / "config.toml").read_text())
    low = Experiment.load(tmp_path / "a" / "task-1" / "config.toml")
    assert config["data"]["target_classes"] == ["0", "1", "2", "3", "4"]
    total, right = 0, 0.0
    for client in low.data().with_role(1).tolist():
        done = fedloom.adapt(
            tmp_path / "a" / "task-2", client, problem=low.problem(), method=low.method, lr=0.4, steps=2
        )
        rows = done.record["evaluated_on"]["rows"]
        total, right = total + rows, right + rows * done.after["accuracy"]
    assert run.matrix.rows[1][0] == pytest.approx(right / total, abs=1e-12)


def test_roles_may_have_classes_of_their_own(tmp_path: Path) -> None:
    text = HALVES.replace("clients = 5", "clients = 8\ntarget = 0.25").replace(
        'classes = "first half"', 'source_classes = "1/5"\ntarget_classes = [0, 9]'
    )
    data = sequence(tmp_path, text).experiments[0].data()
    roles = data.roles
    assert roles is not None
    for role, wanted in ((0, {0, 1}), (1, {0, 9})):
        owned = torch.cat([data.splits["train"][client] for client in torch.nonzero(roles == role).flatten().tolist()])
        assert set(data.y[owned].tolist()) == wanted


def test_clients_with_models_of_their_own_are_judged_with_them(tmp_path: Path) -> None:
    run = sequence(tmp_path, HALVES.replace("lr = 0.3", 'name = "local"\nlr = 0.3')).run(tmp_path / "a")
    assert run.matrix is not None
    summary = json.loads((tmp_path / "a" / "task-1" / "summary.json").read_text())
    assert run.matrix.rows[0][0] == summary["metrics"]["accuracy"]
    assert run.matrix.rows[0][0] > run.matrix.fresh[0] + 0.3


def test_stopped_anywhere_it_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = sequence(tmp_path).run(tmp_path / "whole")
    for stop in (2, 5):
        folder = tmp_path / f"stopped-{stop}"

        def press(row: dict[str, Any], total: int, stop: int = stop) -> None:
            if row["round"] == stop:
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(Interrupted, match=rf"stopped after round {stop}: .*fedloom resume {folder}`"):
            sequence(tmp_path).run(folder, progress=press)
        again = load_experiment(folder / "config.toml")
        run = again.run(folder, resume=True)
        assert run.summary["theta_sha256"] == whole.summary["theta_sha256"]
        assert run.matrix == whole.matrix
        assert run.summary["rounds"] == 7


_KILLED = """
import os, signal, sys
from fedloom.experiment import load_experiment

def kill(row, total):
    if row["round"] == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

load_experiment(sys.argv[1], {"execution.checkpoint_every": 1}).run(sys.argv[2], progress=kill)
"""


@pytest.mark.parametrize("round", [0, 4, 6])
def test_killed_at_any_moment_it_goes_on_to_the_same_bits(tmp_path: Path, round: int) -> None:
    whole = sequence(tmp_path).run()
    script = [sys.executable, "-c", _KILLED, str(written(tmp_path)), str(tmp_path / "a"), str(round)]
    assert subprocess.run(script, check=False).returncode == -signal.SIGKILL
    run = load_experiment(tmp_path / "a" / "config.toml").run(tmp_path / "a", resume=True)
    assert run.summary["theta_sha256"] == whole.summary["theta_sha256"]
    assert run.matrix == whole.matrix


def test_a_task_whose_prior_was_changed_cannot_go_on(tmp_path: Path) -> None:
    sequence(tmp_path).run(tmp_path / "a")
    sequence(tmp_path, seed=3).run(tmp_path / "b")
    newest = "checkpoint.safetensors"
    (tmp_path / "a" / "task-1" / newest).write_bytes((tmp_path / "b" / "task-1" / newest).read_bytes())
    with pytest.raises(RunError, match="task-2 began with another model than"):
        load_experiment(tmp_path / "a" / "config.toml").run(tmp_path / "a", resume=True)


def test_force_replaces_a_sequence_with_all_its_tasks(tmp_path: Path) -> None:
    three = HALVES + '[[task]]\nname = "all"\n'
    sequence(tmp_path, three).run(tmp_path / "a")
    assert (tmp_path / "a" / "task-3").is_dir()
    with pytest.raises(RunError, match="already holds a run"):
        sequence(tmp_path).run(tmp_path / "a")
    sequence(tmp_path).run(tmp_path / "a", force=True)
    assert not (tmp_path / "a" / "task-3").exists()
    Experiment.load(None, {"rounds": 1}).run(tmp_path / "a", force=True)
    assert not (tmp_path / "a" / "task-1").exists()
    assert not (tmp_path / "a" / "matrix.json").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[task]]\nclases = [1]", "exp.toml:2: task.0.clases = [1] is no setting of a task; did you mean 'classes'?"),
        ("[[task]]\n[[task]]\nrounds = 0", "exp.toml:3: task.1.rounds = 0 should be a whole number of at least 1"),
        ("[[task]]\nclasses = [12, 1]", "exp.toml:2: data.source_classes = [12, 1] cannot be: there is no class 12"),
        ("[[task]]\nclasses = '3/2'", 'exp.toml:2: task.0.classes = "3/2" cannot be: there are 2 parts'),
        ("[[task]]\nclasses = [1]\nsource_classes = [2]", "exp.toml:2: task.0.classes = [1] is for all roles: give it"),
        ("[[task]]\nname = 'a'\n[[task]]\nname = 'a'", 'exp.toml:4: task.1.name = "a" needs a name of its own'),
        (
            "[[task]]\n[task.method]\nlrr = 1",
            "exp.toml:3: method.lrr = 1 is no setting of the method 'fedavg'; did you",
        ),
        ("[[task]]\n[task.data]\nclients = 0", "exp.toml:3: data.clients = 0 should be a whole number of at least 1"),
        ("[[task]]\nname = 'task 2'\n[[task]]", "task.1.name needs a name of its own: another task is called 'task 2'"),
        ("[[task]]\ndata = 3", "exp.toml:2: task.0.data = 3 should be a table: write [task.data]"),
        ("[continual]\nstart = 'fresh'", "task should be a table for each task: write [[task]] above its keys"),
        (
            "[[task]]\n[continual]\nstart = 'now'",
            'exp.toml:3: continual.start = "now" should be one of previous, fresh',
        ),
        ("[[task]]\n[[task]]\n[task.data]\nname = 'breast-cancer'", "has other classes than 'task 1'"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(FedloomError) as caught:
        load_experiment(written(tmp_path, text)).run(tmp_path / "run")
    assert said in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_plain_experiment_says_how_tasks_are_loaded(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"exp.toml:\d+: task.0 makes several runs in sequence: load the file with .*load_experiment",
    ):
        Experiment.load(written(tmp_path))


def test_a_file_round_trips_with_its_tasks(tmp_path: Path) -> None:
    resolved = sequence(tmp_path).resolved()
    assert tomllib.loads(toml.dumps(resolved))["task"] == [
        {"name": "low", "classes": ["0", "1", "2", "3", "4"]},
        {"name": "high", "classes": [5, 6, 7, 8, 9], "rounds": 3, "method": {"epochs": 2}},
    ]


def problems() -> list[fedloom.Problem]:
    halves = [fedloom.federate("digits", clients=4, source_classes=list(part)) for part in (range(5), range(5, 10))]
    return [fedloom.Problem(data, fedloom.build_model("linear", data)) for data in halves]


def test_python_learns_problems_in_sequence(tmp_path: Path) -> None:
    low, high = problems()
    run = fedloom.train_tasks([low, high], FedAvg(lr=0.5), rounds=3, out=tmp_path / "a", names=["low", "high"])
    first = fedloom.train(low, FedAvg(lr=0.5), rounds=3)
    second = fedloom.train(high, FedAvg(lr=0.5), rounds=3, prior=first.theta, theta0=first.theta)
    assert torch.equal(run.theta, second.theta)
    assert run.matrix is not None
    assert run.matrix.tasks == ("low", "high")
    assert run.matrix.rows[1][1] == second.summary["metrics"]["accuracy"]
    assert len(run.frame()) == 7


def test_python_may_give_each_task_a_method_of_its_own() -> None:
    low, high = problems()
    tasks = [Task(low, FedAvg(lr=0.5), "low", {"rounds": 2}), Task(high, Local(lr=0.1), "high", {"rounds": 1})]
    run = fedloom.train_tasks(tasks)
    assert run.matrix is not None
    assert run.summary["rounds"] == 3


def test_the_matrix_is_of_a_metric_that_every_task_has() -> None:
    even = fedloom.federate("breast-cancer", clients=3)
    rare = replace(even, y=(torch.arange(len(even.y))[:, None] % 20 == 0).to(even.y.dtype))
    model = fedloom.build_model("linear", even)
    tasks = [fedloom.Problem(part, model) for part in (rare, even)]  # rare labels are told by the order of the rows too
    run = fedloom.train_tasks(tasks, FedAvg(lr=0.1), rounds=1)
    assert run.matrix is not None
    assert next(iter(fedloom.train(tasks[0], FedAvg(lr=0.1), rounds=1).summary["metrics"])) == "roc-auc"
    assert run.matrix.metric == "accuracy"


def test_python_is_told_what_cannot_be() -> None:
    low, high = problems()
    other = fedloom.Problem(high.data, fedloom.build_model("mlp", high.data, hidden=(3,)))
    with pytest.raises(
        RunError, match=r"the model of the task 'task 1' is another one.*1.weight is \(10, 64\) there and"
    ):
        fedloom.train_tasks([low, other], FedAvg(), rounds=1)
    with pytest.raises(ConfigError, match="needs a method"):
        fedloom.train_tasks([low, high], rounds=1)
    with pytest.raises(ConfigError, match="there is no task"):
        fedloom.train_tasks([], FedAvg(), rounds=1)
    with pytest.raises(ConfigError, match="give an evaluation"):
        fedloom.train_tasks([low, high], FedAvg(), rounds=1, evaluate=())


def test_the_jobs_of_later_tasks_are_told_on_the_clock_that_goes_on(tmp_path: Path) -> None:
    run = sequence(tmp_path, HALVES + "[fleet]\ndelay_up = 'uniform:1:5'\n").run(tmp_path / "run")
    rows = run.history[1:]
    ends = [0.0, *(row["simulated_seconds"] for row in rows)]
    assert ends == sorted(ends)
    for began, row in zip(ends, rows, strict=False):
        assert len(row["jobs"]) == 5
        for _, start, end, fate in row["jobs"]:
            assert start == pytest.approx(began)
            assert began < end <= row["simulated_seconds"] * (1 + 1e-9)
            assert fate == "accepted"
