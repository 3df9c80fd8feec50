"""A threshold that is chosen on validation rows, and the metrics that see a rare class."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from typer.testing import CliRunner

import fedloom
from fedloom.cli import app
from fedloom.data import from_arrays
from fedloom.engine.decision import ORDER, Decision, best_threshold
from fedloom.engine.evaluation import Verdict
from fedloom.engine.run import Run
from fedloom.errors import ConfigError
from fedloom.federation.metrics import METRICS, Predictions, names_for

RULES: dict[str, Any] = {
    "f1": sk.f1_score,
    "balanced-accuracy": sk.balanced_accuracy_score,
    "youden": lambda y, said: 2 * sk.balanced_accuracy_score(y, said) - 1,
}


def rare(rows: int = 700, share: float = -3.2, names: tuple[str, str] = ("no", "yes")) -> Any:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 4)).astype(np.float32)
    yes = rng.random(rows) < 1 / (1 + np.exp(-(share + x @ np.array([1.5, -1.0, 0.5, 0.0]))))
    return x, np.where(yes, names[1], names[0]), rng.integers(0, 4, rows)


def problem(validation: float | None = 0.25, loss: str = "auto", **made: Any) -> fedloom.Problem:
    x, y, groups = rare(**made)
    data = fedloom.federate(from_arrays(x, y, clients=groups), validation=validation)
    return fedloom.Problem(data, fedloom.build_model("linear", data), loss)


def trained(on: fedloom.Problem, decision: Decision | None = None, **how: Any) -> Run:
    how = {"rounds": 15, "executor": "serial", "evaluate": fedloom.Evaluation(every=0), **how}
    return fedloom.train(on, fedloom.FedAvg(lr=0.5), decision=decision, **how)


@pytest.fixture(scope="module")
def on() -> fedloom.Problem:
    return problem()


def scored(run: Run, on: fedloom.Problem, split: str) -> tuple[Any, Any]:
    rows = on.data.splits[split].every()
    p = torch.sigmoid(on.model(run.theta, on.x[rows]).double())
    return on.y[rows, 0].numpy(), p[:, 0].detach().numpy()


@pytest.mark.parametrize("rule", RULES)
def test_the_threshold_is_the_best_on_the_validation_rows_and_told_on_the_test_rows(
    rule: Any, on: fedloom.Problem
) -> None:
    run = trained(on, rule)
    told = run.summary["decision"]
    y, p = scored(run, on, "validation")
    best = max(RULES[rule](y, p >= at) for at in p)
    assert told["value"] == pytest.approx(best)
    assert RULES[rule](y, p >= told["threshold"]) == pytest.approx(best)
    assert (told["rule"], told["split"]) == (rule, "validation")
    y, p = scored(run, on, "test")
    assert told["metrics"]["f1"] == pytest.approx(sk.f1_score(y, p >= told["threshold"]))
    assert told["usual"]["f1"] == pytest.approx(sk.f1_score(y, p > 0.5))
    assert told["confusion"]["counts"] == sk.confusion_matrix(y, p >= told["threshold"]).tolist()
    assert run.summary["confusion"] == {"classes": ["no", "yes"], "counts": sk.confusion_matrix(y, p > 0.5).tolist()}
    assert run.summary["base_rate"] == {"class": "no", "share": pytest.approx(1 - y.mean())}
    assert run.notes == []
    said = run.predict(on.data.x)["prediction"].to_numpy()
    assert (said[on.data.splits["test"].every().numpy()] == np.where(p >= told["threshold"], "yes", "no")).all()


@st.composite
def scores(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    rows = draw(st.integers(2, 12))
    out = draw(st.lists(st.sampled_from([-3.0, -1.0, -0.5, 0.0, 2.0]), min_size=rows, max_size=rows))
    y = draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=rows, max_size=rows))
    return out, y


@settings(max_examples=25)
@given(scores(), st.sampled_from(list(RULES)), st.booleans())
def test_no_threshold_is_better_from_rows_or_from_bins(
    on: fedloom.Problem, given_: tuple[list[float], list[float]], rule: str, binned: bool
) -> None:
    out, y = (torch.tensor(part)[:, None] for part in given_)
    p = Predictions(out, y, torch.zeros(len(y), dtype=torch.int64), torch.tensor([len(y)]), "binary")
    metric, none = METRICS[ORDER], torch.zeros(0)
    counts, points = ({ORDER: metric.counts(p)[0]}, {}) if binned else ({}, {ORDER: metric.points(p)})
    found = best_threshold(rule, Verdict(np.zeros(1, dtype=np.int64), none, {}, {}, counts, points), on)
    if y.unique().numel() < 2:
        assert found is None
        return
    said, truth = torch.sigmoid(out.double())[:, 0].numpy(), y[:, 0].numpy()
    assert found is not None
    best = max(RULES[rule](truth, said >= at) for at in said)
    assert RULES[rule](truth, said >= found.at) == pytest.approx(best) == pytest.approx(found.value)


def test_a_threshold_may_be_given_and_a_resumed_run_keeps_it(on: fedloom.Problem, tmp_path: Path) -> None:
    run = trained(on, 0.2, out=tmp_path / "run")
    y, p = scored(run, on, "test")
    assert run.summary["decision"]["metrics"]["recall"] == pytest.approx(sk.recall_score(y, p >= 0.2))
    opened = fedloom.Predictor.open(tmp_path / "run")
    assert opened.decision == 0.2
    again = trained(on, 0.2, out=tmp_path / "run", resume=True)
    assert again.summary["decision"] == run.summary["decision"]


def test_rows_that_choose_and_judge_are_said() -> None:
    run = trained(problem(validation=None), "f1")
    assert run.summary["decision"]["split"] == "test"
    assert any("chose the threshold, and judge it" in note for note in run.notes)


@pytest.mark.parametrize(
    ("decision", "data", "said"),
    [("f1", "digits", "10 classes"), (0.3, "diabetes", "a regression"), (1.5, None, "no probability")],
)
def test_a_decision_where_there_is_none_to_take_is_refused(decision: Any, data: str | None, said: str) -> None:
    given_ = problem()
    if data is not None:
        federated = fedloom.federate(data, clients=2)
        given_ = fedloom.Problem(federated, fedloom.build_model("linear", federated))
    with pytest.raises(ConfigError, match=said):
        trained(given_, decision)


def test_margins_have_a_threshold_of_their_own_and_no_probabilities(on: fedloom.Problem) -> None:
    hinge = problem(loss="hinge")
    run = trained(hinge, "balanced-accuracy")
    rows = hinge.data.splits["validation"].every()
    out, y = hinge.model(run.theta, hinge.x[rows])[:, 0].detach().numpy(), hinge.y[rows, 0].numpy()
    best = max(sk.balanced_accuracy_score(y, out >= at) for at in out)
    assert sk.balanced_accuracy_score(y, out >= run.summary["decision"]["threshold"]) == pytest.approx(best)
    assert "calibration" not in run.summary
    with pytest.raises(ConfigError, match=r"log-loss needs probabilities.*'hinge' has none"):
        trained(hinge, evaluate=fedloom.Evaluation(metrics=("log-loss",)))


def test_the_metrics_follow_the_data_and_the_headline_is_pooled(on: fedloom.Problem) -> None:
    wanted = ("roc-auc", "average-precision", "balanced-accuracy", "accuracy")
    assert names_for(on.data, None) == wanted
    assert names_for(on.data, ("f1",)) == ("f1",)
    assert names_for(fedloom.federate("breast-cancer", clients=2), None) == ("accuracy",)
    run = trained(on)
    y, p = scored(run, on, "test")
    assert run.summary["metrics"]["roc-auc"] == pytest.approx(sk.roc_auc_score(y, p))
    assert run.summary["metrics"]["average-precision"] == pytest.approx(sk.average_precision_score(y, p))
    assert [run.summary["statistics"][name] for name in wanted] == ["pooled", "pooled", "pooled", "weighted"]
    assert "roc-auc" in repr(run).lower()
    assert "pooled" in repr(run)


def test_patience_and_targets_go_by_the_pooled_value_of_a_regression() -> None:
    data = fedloom.federate("diabetes", clients=6, validation=0.2)
    on = fedloom.Problem(data, fedloom.build_model("linear", data))
    metrics = fedloom.Evaluation(metrics=("r2", "rmse"))
    run = trained(on, evaluate=metrics, schedule=fedloom.Schedule(patience=3), rounds=6)
    rows = [row["evaluations"]["validation"]["r2"]["pooled"] for row in run.history]
    assert run.summary["best"]["value"] == max(rows)
    last = run.summary["spread"]
    assert run.summary["metrics"] == {
        "r2": last["r2"]["pooled"],
        "rmse": last["rmse"]["pooled"],
        "loss": last["loss"]["weighted"],
    }
    middle = sorted(row["evaluation"]["rmse"]["pooled"] for row in run.history)[1]
    until = trained(on, evaluate=metrics, schedule=fedloom.Schedule(metric="rmse", target=middle), rounds=6)
    assert until.history[-1]["evaluation"]["rmse"]["pooled"] <= middle


def test_from_a_file_to_predictions_by_the_chosen_threshold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x, y, groups = rare(rows=600, share=-2.5)
    with open("rows.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["site", "a", "b", "c", "d", "died"])
        writer.writerows([f"S{g}", *row, label] for g, row, label in zip(groups, x.tolist(), y, strict=True))
    columns = ["--set", "data.client_column=site", "--set", "data.label_column=died"]
    words = ["--data", "rows.csv", *columns, "--rounds", "5", "--decision", "f1", "--class-weights", "balanced"]
    result = CliRunner().invoke(app, ["run", *words, "--out", "run"])
    assert result.exit_code == 0, result.output
    summary = json.loads(Path("run/summary.json").read_text())
    threshold = summary["decision"]["threshold"]
    share = f"{summary['base_rate']['share']:.3f}"
    assert f'accuracy (always "no": {share})' in result.output
    assert f'decision: "yes" from {threshold:.4g} on, best for f1 on the validation rows' in result.output
    assert "said yes" in result.output
    card = json.loads(Path("run/model.json").read_text())
    assert card["class_weights"][1] > card["class_weights"][0]
    assert 'decision = "f1"' in Path("run/config.toml").read_text()
    page = Path("run/report.html").read_text()
    assert "Classes and probabilities" in page
    assert f"always &#34;no&#34; has accuracy {share}" in page
    made = CliRunner().invoke(app, ["predict", "run", "--data", "rows.csv", "--out", "said.csv"])
    assert made.exit_code == 0, made.output
    with open("said.csv", newline="") as file:
        for row in csv.DictReader(file):
            assert (row["prediction"] == "yes") == (float(row["probability of yes"]) >= threshold)
