"""Python's face: names and paths as on the command line, wrong calls told in words, objects that show themselves."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console

import fedloom
from fedloom.errors import ConfigError, DataError, ModelError, RunError
from fedloom.methods.method import Method
from fedloom.report.progress import bar, shown


@pytest.fixture(scope="module")
def problem() -> fedloom.Problem:
    data = fedloom.federate("digits", clients=3)
    return fedloom.Problem(data, fedloom.build_model("linear", data))


@pytest.fixture(scope="module")
def run(problem: fedloom.Problem) -> fedloom.Run:
    return fedloom.train(problem, "fedavg:lr=0.2,epochs=2", rounds=2)


def test_a_method_is_trained_by_its_name_and_by_its_object_to_the_same_bits(
    problem: fedloom.Problem, run: fedloom.Run
) -> None:
    made = fedloom.train(problem, fedloom.FedAvg(lr=0.2, epochs=2), rounds=2)
    assert made.summary["theta_sha256"] == run.summary["theta_sha256"]
    plain = fedloom.train(problem, "fedavg", rounds=np.int64(2))
    assert plain.summary["theta_sha256"] == fedloom.train(problem, fedloom.FedAvg(), rounds=2).summary["theta_sha256"]


def test_without_a_number_of_rounds_the_method_says_how_many(problem: fedloom.Problem) -> None:
    assert fedloom.train(problem, "fedsgd", evaluate=[]).summary["rounds"] == fedloom.FedSGD().default_rounds == 50


def test_hyper_parameters_in_a_text_are_read_as_toml_has_them() -> None:
    from fedloom.methods import method_of

    assert method_of("fedavg:batch=none,lr=cosine:0.1:0.001:200") == fedloom.FedAvg(
        batch=None, lr="cosine:0.1:0.001:200"
    )
    assert method_of("fedprox: mu = 0.5") == fedloom.FedProx(mu=0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: fedloom.train(p, "fedavgg"), "no method 'fedavgg'; did you mean 'fedavg'"),
        (
            lambda p: fedloom.train(p, fedloom.FedAvg),
            r"the class of a method; give an object of it: FedAvg\(\)",
        ),
        (lambda p: fedloom.train(p, 3), "a int is no method; give its name"),
        (lambda p: fedloom.train(p, "fedavg:lrr=1"), "lrr is no hyper-parameter of fedavg; did you mean 'lr'"),
        (lambda p: fedloom.train(p, "fedavg:lr"), "write hyper-parameters after the method as fedavg:key=value"),
        (lambda p: fedloom.train(p, "fedavg:epochs=two"), "FedAvg: epochs = 'two' cannot be"),
        (
            lambda p: fedloom.train(p, "fedavg", lr=1),
            r"no argument 'lr'; it is a hyper-parameter .*: FedAvg\(",
        ),
        (lambda p: fedloom.train(p, "fedavg", round=1), "train has no argument 'round'; did you mean 'rounds'"),
        (lambda p: fedloom.train(p, "fedavg", rounds="ten"), "train: rounds = 'ten' cannot be"),
        (lambda p: fedloom.train(p, "fedavg", on_error="go"), "on_error = 'go' cannot be: .*'stop' or 'drop'"),
        (lambda p: fedloom.train(p), r"train needs method; it is called as train\(problem, method, …\)"),
        (lambda p: fedloom.train(p.data, "fedavg"), r"problem = FederatedData\('digits': .*\) cannot be: .*of Problem"),
        (lambda p: fedloom.FedAvg(learning_rate=1), "FedAvg has no hyper-parameter 'learning_rate'; did you mean 'lr'"),
        (lambda p: fedloom.build_model("mlp"), "build_model needs the data"),
        (lambda p: fedloom.build_model("mlp", p), "needs the data of a federation, not Problem"),
        (lambda p: fedloom.build_model(torch.nn.Linear(2, 1), bias=False), "bias: a module is built already"),
        (lambda p: fedloom.federate("mine.csv"), r"'mine.csv' is a file, .* fedloom.load_file\('mine.csv'"),
        (
            lambda p: fedloom.federate(np.zeros((3, 2))),
            "a ndarray is no table of rows; make one with",
        ),
        (lambda p: fedloom.compare([fedloom.FedAvg], p), "FedAvg is the class of a method"),
        (
            lambda p: fedloom.compare(["fedavg"], p.data),
            "compare needs a Problem or the file of .*, not Fed",
        ),
        (lambda p: fedloom.compare(["fedavg"], p, seeds="x"), "compare: seeds = 'x' cannot be"),
        (lambda p: fedloom.compare(["=fedavg"], p), "'fedavg' is to have an empty name; write it as NAME=METHOD"),
        (lambda p: fedloom.train(p, "fedavg", rounds="3"), "train: rounds = '3' cannot be: .* a number, not a text"),
        (lambda p: fedloom.train(p, "fedavg", folds=5), r"no argument 'folds'; compare\(…, folds=5\) has all folds"),
        (lambda p: fedloom.Problem(p.model, p.data), "a Problem is of data and a model, not of Model"),
        (lambda p: fedloom.Problem(p.data, torch.nn.Linear(64, 10)), "'Linear' is no Model; make one with"),
        (lambda p: fedloom.build_model(3, p.data), "3 is no model; choose one of linear, mlp"),
    ],
)
def test_a_wrong_call_is_told_as_the_command_line_tells_it(
    call: Callable[[fedloom.Problem], object], message: str, problem: fedloom.Problem
) -> None:
    with pytest.raises(ConfigError, match=message):
        call(problem)


def test_a_function_that_gives_no_module_is_told_how_it_is_called(problem: fedloom.Problem) -> None:
    with pytest.raises(ModelError, match=r"Linear gives no module: .* the shape of a row and the number of outputs"):
        fedloom.build_model(torch.nn.Linear, problem.data)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"kind": "curve"}, "no plot 'curve'; choose one of curves, clients"),
        ({"x": "time"}, "no x = 'time'; choose one of round, simulated_seconds"),
        ({"x": "simulated_seconds"}, "no simulated_seconds to be drawn against; they have round, bytes"),
        ({"statistic": "median"}, "no statistic = 'median'; choose one of weighted"),
        ({"colour": "red"}, "no argument 'colour'; it has x, statistic"),
        ({"kind": "clients", "view": "pie"}, "no view = 'pie'; choose one of box, cumulative, size"),
    ],
)
def test_a_plot_that_cannot_be_is_told_in_words(how: dict[str, str], message: str, run: fedloom.Run) -> None:
    with pytest.raises(ConfigError, match=message):
        run.plot(**how)  # type: ignore[arg-type]


def test_what_should_be_known_of_a_run_is_in_its_text(problem: fedloom.Problem) -> None:
    run = fedloom.train(problem, "fedavg:lr=1e6", rounds=2)
    assert "after 2 rounds; note: the run is diverging: the loss rose from" in repr(run)
    compared = fedloom.compare(["fedavg:lr=1e6"], problem, rounds=2, seeds=1)
    assert "1 run; note: fedavg:lr=1e6, seed 0: the run is diverging" in repr(compared)


def test_a_method_with_a_constructor_of_its_own_takes_what_that_takes() -> None:
    class Free(fedloom.FedAvg):
        def __init__(self, speed: float) -> None:
            super().__init__(lr=speed)

    assert Free(speed=0.3).lr == 0.3
    assert pickle.loads(pickle.dumps(fedloom.FedAvg(lr=0.3))) == fedloom.FedAvg(lr=0.3)
    assert issubclass(Free, Method)


def test_a_users_module_is_a_model_with_its_own_weights_for_every_seed(problem: fedloom.Problem) -> None:
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    model = fedloom.build_model(module)
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
    assert torch.equal(model.init(1), weights)
    assert torch.equal(model.init(2), weights)
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again.init(3), weights)
    trained = fedloom.train(fedloom.Problem(problem.data, model), "fedavg", rounds=1)
    assert not torch.equal(trained.theta, weights)
    assert torch.equal(torch.cat([p.detach().reshape(-1) for p in module.parameters()]), weights)


def test_a_function_that_builds_a_module_is_asked_with_the_shape_of_the_data(problem: fedloom.Problem) -> None:
    def network(shape: tuple[int, ...], outputs: int, width: int = 5) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, width), torch.nn.Linear(width, outputs))

    assert fedloom.build_model(network, problem.data, width=3).n == 64 * 3 + 3 + 3 * 10 + 10
    assert fedloom.build_model(lambda: torch.nn.Linear(4, 2)).n == 10
    with pytest.raises(fedloom.errors.ModelError, match="gives a int; it must give a"):
        fedloom.build_model(lambda: 3)


def test_the_columns_of_data_frames_keep_their_names() -> None:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(20, 2)), columns=["age", "sbp"])
    table = fedloom.from_arrays(frame, (2 * frame["age"]).rename("days"), clients=np.arange(20) % 2)
    assert (table.feature_names, table.target_names) == (("age", "sbp"), ("days",))
    assert fedloom.federate(table).feature_names == ("age", "sbp")
    two = fedloom.from_arrays(frame, frame.rename(columns={"age": "a", "sbp": "b"}))
    assert two.target_names == ("a", "b")
    assert fedloom.from_arrays(frame.to_numpy(), frame["age"].to_numpy()).feature_names == ()
    assert fedloom.from_arrays(frame, frame["age"] > 0).target_names == ()
    parts = {"clinic": (frame[:10], frame["age"][:10]), "lab": (frame[10:], frame["age"][10:])}
    assert fedloom.from_clients(parts, task="regression").feature_names == ("age", "sbp")
    parts["lab"] = (frame[10:][["sbp", "age"]], frame["age"][10:])
    with pytest.raises(DataError, match="client 'lab' has the columns sbp, age, client 'clinic' has age, sbp"):
        fedloom.from_clients(parts)


def test_paths_are_texts_and_runs_stand_for_their_models(problem: fedloom.Problem, tmp_path: Path) -> None:
    first = fedloom.train(problem, "fedavg", rounds=1, out=str(tmp_path / "first"))
    on = [
        fedloom.train(problem, "fedavg", rounds=1, theta0=start).summary["theta_sha256"]
        for start in (first.theta, first, str(tmp_path / "first"), tmp_path / "first")
    ]
    assert len(set(on)) == 1
    with pytest.raises(RunError, match="has no model: it is no folder of a run"):
        fedloom.train(problem, "fedavg", rounds=1, prior=str(tmp_path / "none"))
    file = tmp_path / "mine.csv"
    file.write_text("a,b,y\n1,2,0\n3,4,1\n5,6,0\n", encoding="utf-8")
    assert fedloom.load(str(file), label_column="y").feature_names == ("a", "b")


def test_objects_show_themselves_in_a_line(problem: fedloom.Problem, run: fedloom.Run) -> None:
    accuracy = run.summary["metrics"]["accuracy"]
    assert repr(run) == f"Run(fedavg on digits: accuracy {accuracy:.3f} after 2 rounds)"
    assert repr(problem.data) == ("FederatedData('digits': classification, 3 clients, 1,437 training rows of 1×8×8)")
    assert repr(problem.model) == "Model(Sequential, 650 parameters)"
    assert repr(fedloom.load("digits")) == "Table('digits': classification, 1,797 rows of 1×8×8)"
    html = run._repr_html_()
    assert html.startswith("<table>")
    assert f">{accuracy:.3f}<" in html
    empty = fedloom.train(problem, "fedavg", rounds=1, evaluate=[])
    assert repr(empty) == "Run(fedavg on digits: not evaluated after 1 round)"


def test_a_label_that_looks_like_html_stays_text(problem: fedloom.Problem) -> None:
    run = fedloom.train(problem, "fedavg", rounds=1, label="<b>ours</b>")
    assert "&lt;b&gt;ours&lt;/b&gt;" in run._repr_html_()


def test_a_run_draws_its_curves_and_its_clients(run: fedloom.Run) -> None:
    curves = run.plot()
    assert list(curves.data[0].y) == pytest.approx(run.frame()["accuracy"].tolist(), rel=1e-5)
    assert run.plot(metric="loss", x="bytes").data[0].x[0] == 0
    assert sorted(run.plot("clients").data[0].x) == pytest.approx(
        sorted(run.summary["per_client"]["accuracy"]), rel=1e-5
    )
    with pytest.raises(ConfigError, match="there is no plot 'bars'; choose one of curves, clients"):
        run.plot("bars")
    with pytest.raises(ConfigError, match="no metric 'f1'; they have accuracy, loss"):
        run.plot(metric="f1")
    with pytest.raises(ConfigError, match="nothing to draw as 'fleet': no time passed"):
        run.plot("fleet")


def test_a_comparison_has_the_names_that_its_user_chose(problem: fedloom.Problem, tmp_path: Path) -> None:
    how: dict[str, Any] = {"rounds": 1, "seeds": 2, "report": False}
    compared = fedloom.compare({"Ours": fedloom.FedProx(mu=0.1), "alone": "local"}, problem, **how)
    assert list(compared.frame().index) == ["Ours", "alone"]
    assert repr(compared) == "Compared(Ours, alone: 4 runs)"
    assert '<th style="text-align:left">Ours</th>' in compared._repr_html_()
    assert [trace.name for trace in compared.plot().data if trace.name] == ["Ours", "alone"]
    out = tmp_path / "kept"
    fedloom.compare(["Ours=fedprox:mu=0.1", "fedavg"], problem, out=out, **how)
    assert (out / "Ours" / "seed-1" / "summary.json").is_file()
    with pytest.raises(RunError, match="holds a run with other settings"):
        fedloom.compare(["Ours=fedprox:mu=0.2", "fedavg"], problem, out=out, **how)
    swept = fedloom.compare(["Ours=fedavg"], problem, rounds=1, seeds=1, sweep={"method.epochs": [1, 2]})
    assert list(swept.frame().index) == ["Ours:epochs=1", "Ours:epochs=2"]


def test_a_bar_shows_the_rounds_with_the_metric_that_was_known_last(problem: fedloom.Problem) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=120)
    with bar(screen, "[bold]ours") as follow:
        run = fedloom.train(problem, "fedavg", rounds=2, evaluate=fedloom.Evaluation(every=0), progress=follow)
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "[bold]ours" in text
    assert "round 2/2" in text
    assert f"accuracy {run.summary['metrics']['accuracy']:.3f}" in text


def test_progress_is_shown_where_somebody_sees_it(capsys: pytest.CaptureFixture[str], problem: fedloom.Problem) -> None:
    fedloom.train(problem, "fedavg", rounds=1)
    assert capsys.readouterr() == ("", "")  # no terminal
    seen: list[int] = []
    fedloom.train(problem, "fedavg", rounds=2, progress=lambda row, total: seen.append(row["round"]))
    assert seen == [0, 1, 2]
    with shown(False, "quiet") as follow:
        assert follow is None
    with shown(None, "quiet") as follow:
        assert follow is None
