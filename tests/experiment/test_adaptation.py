"""``fedloom.adapt``: a run's model, a client's few rows, and what one step makes of both."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import fedloom
from fedloom.engine.adaptation import Adapted
from fedloom.errors import ConfigError, DataError, FedloomError, RunError
from fedloom.experiment import Experiment, Override
from fedloom.experiment.adaptation import open_run
from fedloom.federation.client import Client
from fedloom.federation.data import TARGET
from fedloom.methods import FedAvg, Local
from fedloom.methods.method import Wish
from fedloom.storage.saved import saved_model
from fedloom.types import Memory, State, Vector

SMALL = {"data.name": "digits", "data.clients": 6, "data.target": 0.3, "rounds": 2, "model.hidden": 8, "method.lr": 0.2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of digits."""
    path = tmp_path_factory.mktemp("adapt") / "run"
    Experiment.load(None, SMALL).run(path)
    return path


@pytest.fixture(scope="module")
def experiment(folder: Path) -> Experiment:
    return Experiment.load(folder / "config.toml")


def adapted_to(run: Path, client: str | None, changes: list[Override], **how: Any) -> Adapted:
    """The model of a run, fitted to a client of the data that these settings name."""
    trained = open_run(run)
    return trained.adapt(client, trained.read(changes), **how)


def by_hand(experiment: Experiment, theta: Vector, rows: torch.Tensor, lr: float, steps: int) -> Vector:
    """θ after full gradient steps, by autograd alone."""
    problem = experiment.problem()
    for _ in range(steps):
        at = theta.clone().requires_grad_()
        loss = torch.nn.functional.cross_entropy(problem.model(at, problem.x[rows]), problem.y[rows])
        theta = theta - lr * torch.autograd.grad(loss, at)[0]
    return theta


def accuracy(experiment: Experiment, theta: Vector, rows: torch.Tensor) -> float:
    problem = experiment.problem()
    return float((problem.model(theta, problem.x[rows]).argmax(1) == problem.y[rows]).double().mean())


@pytest.mark.parametrize("steps", [1, 3])
def test_a_target_client_takes_gradient_steps_on_its_support_and_is_evaluated_on_its_query(
    folder: Path, experiment: Experiment, steps: int
) -> None:
    client = int(experiment.data().with_role(TARGET)[0])
    support, query = (experiment.data().splits[split][client] for split in ("support", "query"))
    theta = saved_model(folder).theta
    wanted = by_hand(experiment, theta, support, 0.3, steps)
    done = fedloom.adapt(folder, client, lr=0.3, steps=steps)
    torch.testing.assert_close(done.theta, wanted, rtol=0, atol=1e-6)
    assert done.before["accuracy"] == accuracy(experiment, theta, query)
    assert done.after["accuracy"] == accuracy(experiment, done.theta, query)
    assert done.record["evaluated_on"] == {"split": "query", "rows": len(query)}
    assert done.after["loss"] < done.before["loss"]


def test_a_client_that_trained_is_evaluated_on_its_test_rows(folder: Path) -> None:
    done = fedloom.adapt(folder, 0 if bool(Experiment.load(folder / "config.toml").data().roles[0] == 0) else 1)  # type: ignore[index]
    assert done.record["evaluated_on"]["split"] == "test"
    assert (done.record["steps"], done.record["lr"]) == (None, None)  # as the method adapts


def test_the_runs_own_evaluation_says_how_to_adapt(tmp_path: Path) -> None:
    how = {"evaluation": {"model": "adapted", "on": "target", "split": "test", "adapt_steps": 2, "adapt_lr": 0.5}}
    run = Experiment.load(None, {**SMALL, **how}).run(tmp_path / "run")
    data = Experiment.load(None, SMALL).data()
    values = run.summary["per_client"]
    for client, expected in zip(values["clients"], values["accuracy"], strict=True):
        done = fedloom.adapt(tmp_path / "run", client)
        assert (done.record["steps"], done.record["lr"]) == (2, 0.5)
        assert done.record["evaluated_on"]["rows"] == int(data.splits["test"].sizes[client])
        assert done.after["accuracy"] == expected


def test_a_few_rows_are_enough_and_their_number_is_kept(folder: Path, experiment: Experiment) -> None:
    client = int(experiment.data().with_role(TARGET)[0])
    few, again = (fedloom.adapt(folder, client, support=3, lr=0.5) for _ in range(2))
    assert few.record["adapted_on"] == {"split": "support", "rows": 3}
    assert torch.equal(few.theta, again.theta)
    assert not torch.equal(few.theta, fedloom.adapt(folder, client, lr=0.5).theta)
    with pytest.raises(DataError, match=rf"client {client} has \d+ rows to adapt on \(support\); ask for at most"):
        fedloom.adapt(folder, client, support=10_000)


def test_the_saved_model_is_ordinary_safetensors_by_the_names_of_the_module(folder: Path, tmp_path: Path) -> None:
    done = fedloom.adapt(folder, 2, lr=0.1, out=tmp_path / "own")
    tensors = safetensors.torch.load_file(tmp_path / "own" / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == saved_model(folder).shapes
    assert torch.equal(torch.cat([tensors[name].reshape(-1) for name in saved_model(folder).shapes]), done.theta)
    record = json.loads((tmp_path / "own" / "adapted.json").read_text())
    assert record["after"] == done.after
    assert record["run_theta_sha256"] == saved_model(folder).sha256
    fedloom.adapt(folder, 3, out=tmp_path / "own")
    assert json.loads((tmp_path / "own" / "adapted.json").read_text())["client"] == "3"


def test_a_folder_with_other_things_in_it_is_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "letters").write_text("mine")
    with pytest.raises(RunError, match="holds no adapted model; choose another folder"):
        fedloom.adapt(folder, 2, out=tmp_path)


def test_a_client_with_a_model_of_its_own_starts_from_that(tmp_path: Path) -> None:
    run = Experiment.load(None, {**SMALL, "method.name": "local"}).run(tmp_path / "run")
    values = run.summary["per_client"]
    source = values["clients"][0]
    assert fedloom.adapt(tmp_path / "run", source).before["accuracy"] == values["accuracy"][0]


def table(rows: slice, classes: list[str] | None = None) -> fedloom.data.Table:  # type: ignore[name-defined]
    digits = fedloom.load("digits")
    labels = np.array(["0123456789"[k] for k in digits.y[rows].tolist()])
    return fedloom.data.from_arrays(digits.x[rows].numpy(), labels, classes=classes, task="classification")


def test_a_new_client_brings_its_own_rows_and_classes_go_by_name(folder: Path, experiment: Experiment) -> None:
    theirs = table(slice(0, 40))
    done = fedloom.adapt(folder, data=theirs, lr=0.5, steps=2)
    assert done.record["adapted_on"]["rows"] + done.record["evaluated_on"]["rows"] == 40
    shared = fedloom.federate(theirs, clients=1, test=0.0)
    turned = replace(shared, y=9 - shared.y, classes=tuple("9876543210"))
    one, other = (fedloom.adapt(folder, 0, data=data, lr=0.5) for data in (shared, turned))
    assert torch.equal(one.theta, other.theta)
    assert one.after == other.after


def test_a_class_that_the_model_does_not_know_is_refused(folder: Path) -> None:
    x, y = np.zeros((4, 1, 8, 8)), np.array(["1", "2", "cat", "2"])
    with pytest.raises(DataError, match="has the class cat, which the model does not know; it knows 0, 1, 2"):
        fedloom.adapt(folder, data=fedloom.data.from_arrays(x, y))


def test_rows_of_another_shape_and_another_task_are_refused(folder: Path) -> None:
    with pytest.raises(FedloomError, match=r"the model cannot read rows of shape \(3,\)"):
        fedloom.adapt(
            folder, data=fedloom.data.from_arrays(np.zeros((4, 3)), np.array(list("1212")), task="classification")
        )
    with pytest.raises(DataError, match="is a regression task, but the model was trained for classification"):
        fedloom.adapt(folder, data=fedloom.data.from_arrays(np.zeros((4, 1, 8, 8)), np.linspace(0, 1, 4)))


@pytest.mark.parametrize(
    ("client", "message"),
    [("6", "'digits' has no client '6'; they are 0 to 5"), (None, "say which client of 'digits'"), ("x", "no client")],
)
def test_a_client_that_is_not_there_is_refused(folder: Path, client: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fedloom.adapt(folder, client)


def test_a_client_without_rows_to_judge_it_on_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match=r"client 0 has no rows to adapt on \(support\)"):
        fedloom.adapt(folder, data=table(slice(0, 1), classes=list("0123456789")))


def csv(path: Path, rows: range, columns: tuple[str, ...] = ("a", "b"), extra: str = "") -> Path:
    draw = np.random.default_rng(rows.start)
    lines = [",".join([*columns, "label", *([extra] if extra else [])])]
    for row in rows:
        values = {"a": draw.normal(100 + 10 * (row % 3), 5), "b": draw.normal(row % 3)}
        cells = [f"{values[column]:.6f}" for column in columns]
        lines.append(",".join([*cells, ("low", "mid", "top")[row % 3], *([str(row % 2)] if extra else [])]))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("by", ["all", "client"])
def test_a_new_client_is_scaled_as_the_model_learnt_it_and_judged_in_its_own_units(tmp_path: Path, by: str) -> None:
    draw = np.random.default_rng(0)

    def written(path: Path, rows: int, shift: float) -> Path:
        x = draw.normal(loc=100 + shift, scale=20, size=rows)
        lines = [f"{k % 3},{a},{7 * a + 30 * draw.normal()}" for k, a in enumerate(x)]
        path.write_text("who,a,goal\n" + "\n".join(lines) + "\n")
        return path

    how = {"client_column": "who", "label_column": "goal", "scaling": "standard", "scaling_by": by}
    settings: dict[str, Any] = {f"data.{key}": value for key, value in how.items()}
    settings |= {"data.path": str(written(tmp_path / "trained.csv", 90, 0)), "rounds": 5, "evaluation.metrics": ["mae"]}
    experiment = Experiment.load(None, settings)
    run = experiment.run(tmp_path / "run")
    new = written(tmp_path / "new.csv", 24, 15)
    done = adapted_to(tmp_path / "run", "1", [Override("data.path", str(new), "--data")], lr=0.01)
    table = fedloom.load_file(new, client_column="who", label_column="goal")
    data = fedloom.federate(table, test=0.0)
    known = experiment.data()
    support, query = (data.splits[split][1] for split in ("support", "query"))
    fitted = torch.cat([support, query]) if by == "client" else None
    (x_shift, x_factor), (y_shift, y_factor) = (
        (values[fitted].double().mean(0), values[fitted].double().std(0, correction=0))
        if fitted is not None
        else (scale.shift[0], scale.factor[0])  # type: ignore[union-attr]
        for values, scale in ((table.x, known.x_scale), (table.y, known.y_scale))
    )
    w, b = run.theta.double()
    guess = ((table.x[query].double() - x_shift) / x_factor * w + b) * y_factor + y_shift
    expected = (guess - table.y[query].double()).abs().mean()
    assert done.before["mae"] == pytest.approx(float(expected), rel=1e-5)


def test_a_file_is_read_as_the_runs_own_was_whatever_the_order_of_its_columns(tmp_path: Path) -> None:
    trained = csv(tmp_path / "trained.csv", range(90))
    settings = {"data.path": str(trained), "data.label_column": "label", "data.standardise": True, "data.clients": 3}
    Experiment.load(None, {**settings, "rounds": 2}).run(tmp_path / "run")
    one = csv(tmp_path / "one.csv", range(200, 212))
    turned = csv(tmp_path / "turned.csv", range(200, 212), columns=("a", "b"))
    turned.write_text(
        "\n".join(",".join([b, a, label]) for a, b, label in (line.split(",") for line in one.read_text().split()))
    )
    first, second = (
        adapted_to(tmp_path / "run", None, [Override("data.path", str(path), "--data")]) for path in (one, turned)
    )
    assert torch.equal(first.theta, second.theta)
    assert first.before == second.before
    raw = fedloom.load_file(trained, label_column="label")
    mean, deviation = raw.x.double().mean(0), raw.x.double().std(0, correction=0)
    read = fedloom.load_file(one, label_column="label", standardise=True, like=trained)
    new = fedloom.load_file(one, label_column="label")
    torch.testing.assert_close(read.x, ((new.x.double() - mean) / deviation).float())


def test_a_file_with_one_class_or_several_clients_will_do_and_a_strange_label_will_not(tmp_path: Path) -> None:
    trained = csv(tmp_path / "trained.csv", range(90))
    settings = {"data.path": str(trained), "data.label_column": "label", "data.clients": 3, "rounds": 1}
    Experiment.load(None, settings).run(tmp_path / "run")
    single = tmp_path / "single.csv"
    single.write_text("a,b,label\n100,1,mid\n101,2,mid\n102,3,mid\n")
    changes = [Override("data.path", str(single), "--data")]
    assert adapted_to(tmp_path / "run", None, changes).record["adapted_on"]["rows"] == 2
    many = csv(tmp_path / "many.csv", range(300, 320), extra="who")
    changes = [Override("data.path", str(many), "--data"), Override("data.client_column", "who", "--set")]
    assert adapted_to(tmp_path / "run", "1", changes).record["client"] == "1"
    single.write_text("a,b,label\n100,1,mid\n101,2,huge\n")
    with pytest.raises(DataError, match="not among its classes: huge; they are low, mid, top"):
        adapted_to(tmp_path / "run", None, [Override("data.path", str(single), "--data")])


def test_a_run_made_from_python_needs_its_problem_and_its_method(tmp_path: Path) -> None:
    data = fedloom.federate("digits", clients=4, target=0.25)
    problem, method = fedloom.Problem(data, fedloom.build_model("linear", data)), FedAvg(lr=0.1)
    run = fedloom.train(problem, method, rounds=1, out=tmp_path / "run")
    with pytest.raises(RunError, match=r"was made from Python.*cannot be rebuilt"):
        fedloom.adapt(tmp_path / "run", 0)
    target = int(data.with_role(TARGET)[0])
    one = fedloom.adapt(run, target, problem=problem, method=method)
    other = fedloom.adapt(fedloom.train(problem, method, rounds=1), target, problem=problem, method=method)
    assert torch.equal(one.theta, other.theta)
    finer = fedloom.Problem(data, problem.model, dtype=torch.float64)
    with pytest.raises(RunError, match=r"the model of the checkpoint in .* is float32, but its problem says float64"):
        fedloom.adapt(run, target, problem=finer, method=method)


def test_rows_are_drawn_by_the_seed_of_the_run_however_it_is_given(tmp_path: Path) -> None:
    data = fedloom.federate("digits", clients=4)
    problem, method = fedloom.Problem(data, fedloom.build_model("linear", data)), FedAvg(lr=0.1)
    run = fedloom.train(problem, method, rounds=1, seed=7, out=tmp_path / "run")
    how: dict[str, Any] = {"problem": problem, "method": method, "support": 5, "lr": 0.1}
    assert torch.equal(fedloom.adapt(run, 1, **how).theta, fedloom.adapt(tmp_path / "run", 1, **how).theta)


@dataclass(frozen=True)
class Signed(FedAvg):
    """FedAvg whose clients adapt by the sign of the gradient."""

    def adapt(self, client: Client, state: State, memory: Memory, theta: Vector, wish: Wish) -> Vector:
        return theta - (wish.lr or 0.01) * client.grad(theta, wish.split).sign()


def test_the_methods_own_rule_adapts() -> None:
    data = fedloom.federate("digits", clients=4)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    run = fedloom.train(problem, Signed(), rounds=1, evaluate=())
    done = fedloom.adapt(run, 1, problem=problem, method=Signed(), lr=0.25)
    moved = (done.theta - run.theta).abs()
    assert set(moved[moved > 1e-3].round(decimals=4).tolist()) == {0.25}


def test_an_unfinished_run_says_how_far_it_came(folder: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    done = fedloom.adapt(tmp_path / "run", 2)
    assert (done.record["round"], done.record["run_finished"]) == (2, False)


def test_a_method_with_personal_models_starts_a_stranger_from_the_servers() -> None:
    data = fedloom.federate("digits", clients=4)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    run = fedloom.train(problem, Local(), rounds=1, evaluate=())
    done = fedloom.adapt(run, data=table(slice(0, 30), list("0123456789")), problem=problem, method=Local(), lr=1e-12)
    torch.testing.assert_close(done.theta, run.state["x"])


def test_a_new_clients_classes_are_one_against_the_rest_as_the_runs_were(tmp_path: Path) -> None:
    trained = csv(tmp_path / "trained.csv", range(90))
    settings = {"data.path": str(trained), "data.label_column": "label", "data.positive": "mid", "data.clients": 3}
    Experiment.load(None, {**settings, "rounds": 1}).run(tmp_path / "run")
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert config["data"]["positive"] == "mid"
    new = csv(tmp_path / "new.csv", range(200, 212))
    by_file = adapted_to(tmp_path / "run", None, [Override("data.path", str(new), "--data")])
    names = ["low", "mid", "top"]
    table = fedloom.load_file(new, label_column="label", task="classification", class_names=names, like=trained)
    assert torch.equal(fedloom.adapt(tmp_path / "run", data=table).theta, by_file.theta)
    with pytest.raises(RunError, match="other settings"):
        Experiment.load(None, {**settings, "data.positive": "low", "rounds": 1}).start(tmp_path / "run")
