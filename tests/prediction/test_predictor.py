"""A model in use: new rows are read as the training rows were, and predictions are in the user's words."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import fedloom
from fedloom.data import Scaling
from fedloom.errors import ConfigError, DataError, RunError, Untrusted
from fedloom.prediction import Predictor
from fedloom.prediction.answers import answers
from fedloom.prediction.card import Facts, ModelCard
from hospitals import COLUMNS, encoded, federation, frame, trained

STANDARD = Scaling("standard", "all")


def test_the_rows_of_a_file_are_read_as_the_training_rows_were(tmp_path: Path) -> None:
    problem, run = trained(federation(scaling=STANDARD), tmp_path / "run")
    rows = Predictor.open(tmp_path / "run").rows(frame()[["came", "ward", "site", "age", "smokes"]])
    torch.testing.assert_close(rows, problem.x, rtol=1e-6, atol=1e-6)
    out = torch.sigmoid(problem.model(run.theta, problem.x)[:, 0].double())
    found = fedloom.load_run(tmp_path / "run").predict(frame())
    np.testing.assert_allclose(found["probability of well"], out, atol=1e-6)
    np.testing.assert_allclose(found["probability of sick"], 1 - out, atol=1e-6)
    assert found["prediction"].tolist() == np.where(out > 0.5, "well", "sick").tolist()


def test_a_run_that_is_kept_nowhere_predicts_too(tmp_path: Path) -> None:
    data = federation(scaling=STANDARD)
    _, alone = trained(data, None)
    _, kept = trained(data, tmp_path / "run")
    pd.testing.assert_frame_equal(alone.predict(frame()), kept.predict(frame()))


def test_targets_come_back_in_their_own_units(tmp_path: Path) -> None:
    problem, run = trained(federation("regression", STANDARD), tmp_path / "run", dtype=torch.float64)
    found = run.predict(frame())
    assert list(found) == ["prediction of cost", "prediction of loss of weight"]
    scale = problem.data.y_scale
    assert scale is not None
    expected = problem.model(run.theta, problem.x) * scale.factor + scale.shift
    np.testing.assert_allclose(found, expected.detach(), rtol=1e-6)
    assert 1000 < found["prediction of cost"].mean() < 2000


def test_several_labels_and_several_classes_have_a_column_each(tmp_path: Path) -> None:
    labels = trained(federation("multilabel", STANDARD), None)[1].predict(frame(4))
    assert list(labels) == ["probability of ill", "probability of tired", "prediction of ill", "prediction of tired"]
    assert (labels["prediction of ill"] == (labels["probability of ill"] > 0.5)).all()
    classes = trained(federation("classification", STANDARD), None)[1].predict(frame(4))
    assert list(classes) == ["prediction", "probability of high", "probability of low", "probability of mid"]
    probabilities = classes.iloc[:, 1:].to_numpy()
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert classes["prediction"].tolist() == [["high", "low", "mid"][k] for k in probabilities.argmax(1)]


@pytest.mark.parametrize(("loss", "columns"), [("hinge", ["score of well"]), ("squared", ["sick", "well"])])
def test_outputs_that_are_no_logits_are_not_turned_into_probabilities(loss: str, columns: list[str]) -> None:
    problem, run = trained(federation(scaling=STANDARD), None, loss=loss)
    found, out = run.predict(frame()), problem.model(run.theta, problem.x)[:, 0].detach()
    if loss == "hinge":
        assert list(found) == ["prediction", *columns]
        np.testing.assert_allclose(found["score of well"], out, atol=1e-6)
        assert found["prediction"].tolist() == np.where(out > 0, "well", "sick").tolist()
    else:
        assert list(found)[1:] == [f"probability of {name}" for name in columns]
        np.testing.assert_allclose(found["probability of well"], out.clamp(0, 1), atol=1e-6)


def test_the_threshold_that_a_run_has_chosen_decides() -> None:
    facts = Facts.of(*_setting("binary"))
    out = torch.tensor([[-2.0], [0.0], [2.0]])
    assert answers(facts, out)["prediction"].tolist() == ["sick", "sick", "well"]
    assert answers(facts, out, 0.5)["prediction"].tolist() == ["sick", "well", "well"]
    assert answers(facts, out, 0.9)["prediction"].tolist() == ["sick", "sick", "sick"]
    assert answers(facts, out, 0.1)["prediction"].tolist() == ["well", "well", "well"]  # sigmoid(−2) = 0.119
    two = replace(Facts.of(*_setting("classification")), classes=("no", "yes"), outputs=2)
    pairs = torch.tensor([[0.0, -2.0], [1.0, 3.5]])
    assert answers(two, pairs, 0.1)["prediction"].tolist() == ["yes", "yes"]
    assert answers(two, pairs, 0.93)["prediction"].tolist() == ["no", "no"]


def test_the_threshold_is_read_from_the_summary(tmp_path: Path) -> None:
    trained(federation(scaling=STANDARD), tmp_path / "run")
    path = tmp_path / "run" / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"decision": {"threshold": 1.5}}))
    with pytest.warns(UserWarning, match=r"summary\.json was changed"):
        assert set(Predictor.open(tmp_path / "run").predict(frame())["prediction"]) == {"sick"}


def test_what_is_missing_or_unknown_is_filled_and_said() -> None:
    problem, run = trained(federation(scaling=STANDARD), None)
    rows = frame(6)
    rows["age"] = [np.nan, 50.0, np.nan, 60.0, 70.0, 80.0]
    rows.loc[3, "ward"] = "moon"
    with pytest.warns(UserWarning, match="read as|filled by") as said:
        found = run.predictor().rows(rows)
    assert {str(one.message) for one in said} == {
        "missing values, filled by the mean of the training rows: age (2)",
        "categories that the model does not know, read as none of its own: ward (1)",
    }
    assert problem.data.x_scale is not None
    filled = rows.assign(age=rows["age"].fillna(float(problem.data.x_scale.mean[0])))
    expected = (encoded(filled) - problem.data.x_scale.shift.numpy()) / problem.data.x_scale.factor.numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_where_nothing_was_scaled_the_training_mean_fills_too() -> None:
    problem, run = trained(federation(), None)
    rows = frame(2).assign(age=[np.nan, 40.0])
    with pytest.warns(UserWarning, match="age"):
        found = run.predictor().rows(rows)
    assert float(found[0, 0]) == pytest.approx(float(problem.x[problem.data.splits["train"].every(), 0].mean()))


def test_columns_that_are_not_read_are_named_and_columns_that_lack_refused() -> None:
    _, run = trained(federation(), None)
    with pytest.warns(UserWarning, match="columns that the model does not read: sick, note"):
        run.predict(frame(3).assign(sick=1, note="x"))
    with pytest.raises(DataError, match="no column 'ward', which the model reads"):
        run.predict(frame(3).drop(columns="ward"))
    with pytest.raises(DataError, match="holds 'old' in row 2, which is no number"):
        run.predict(frame(3).assign(age=["1", "old", "3"]))
    with pytest.raises(DataError, match="column 'age' is infinite in row 2"):
        run.predict(frame(3).assign(age=[1.0, np.inf, 3.0]))
    with pytest.raises(DataError, match=r"columns of different lengths \(age \(2\), ward \(3\)"):
        run.predict({**{name: frame(3)[name] for name in frame(3)}, "age": [1.0, 2.0]})


def test_arrays_are_the_numbers_of_rows_or_their_columns_in_order() -> None:
    _, run = trained(federation(scaling=STANDARD), None)
    by_name = run.predict(frame())
    pd.testing.assert_frame_equal(run.predict(encoded(frame())), by_name)
    pd.testing.assert_frame_equal(run.predict(frame().to_numpy(dtype=object)), by_name)
    assert len(run.predict(encoded(frame(1))[:0])) == 0
    with pytest.raises(DataError, match=r"shape \(60, 3\); the model reads rows of shape \(9,\)"):
        run.predict(encoded(frame())[:, :3])
    with pytest.raises(DataError, match="has 2 columns; the model reads 5: age, ward"):
        run.predict(frame().to_numpy(dtype=object)[:, :2])


def test_standardised_files_are_read_in_the_units_of_the_file(tmp_path: Path) -> None:
    rows = frame(40)[["age"]].assign(dose=np.arange(40.0), owner=np.arange(40) % 2, y=np.arange(40) % 4 > 1)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    table = fedloom.load_file(tmp_path / "rows.csv", client_column="owner", label_column="y", standardise=True)
    problem, run = trained(fedloom.federate(table), None)
    torch.testing.assert_close(run.predictor().rows(rows[["dose", "age"]]), problem.x, rtol=1e-6, atol=1e-6)


def test_a_clients_own_model_predicts(tmp_path: Path) -> None:
    problem, run = trained(federation(scaling=STANDARD), tmp_path / "run", fedloom.Local(lr=0.05))
    with fedloom.saved_model(tmp_path / "run").memory() as store:
        own = {label: store.gather(torch.tensor([k]))[0]["x"][0] for k, label in enumerate(["north", "south", "west"])}
    for label, theta in own.items():
        expected = torch.sigmoid(problem.model(theta, problem.x)[:, 0].double())
        np.testing.assert_allclose(run.predict(frame(), client=label)["probability of well"], expected, atol=1e-6)
    assert not torch.equal(own["north"], own["west"])
    with pytest.raises(ConfigError, match=r"local makes a model for each client.*they are north, south, west"):
        run.predict(frame())
    with pytest.raises(ConfigError, match="no client 'nroth'; they are north, south, west"):
        run.predict(frame(), client="nroth")
    with pytest.raises(RunError, match="this run has no folder"):
        trained(federation(), None, fedloom.Local())[1].predict(frame(), client="north")


def test_a_client_that_never_took_part_has_no_model_of_its_own(tmp_path: Path) -> None:
    data = federation()
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    fedloom.train(problem, fedloom.Local(), rounds=1, select=1, out=tmp_path / "run")
    said = []
    for client in range(3):
        try:
            Predictor.open(tmp_path / "run", client)
        except RunError as error:
            said.append(str(error))
    assert len(said) == 2
    assert all("never took part" in line for line in said)


def test_rows_are_scaled_by_the_client_where_training_rows_were(tmp_path: Path) -> None:
    problem, run = trained(federation("regression", Scaling("standard", "client")), tmp_path / "run")
    with pytest.raises(ConfigError, match="scaled by its own training rows: say whose"):
        run.predict(frame())
    owned = np.flatnonzero(np.arange(60) % 3 == 1)
    rows = Predictor.open(tmp_path / "run", "south").rows(frame().iloc[owned])
    torch.testing.assert_close(rows, problem.x[owned], rtol=1e-5, atol=1e-5)


def test_an_adapted_model_predicts_from_its_folder(tmp_path: Path) -> None:
    data = federation(scaling=STANDARD)
    problem, run = trained(data, tmp_path / "run", fedloom.PerFedAvg())
    with pytest.warns(UserWarning, match="one before that: `fedloom adapt"):
        Predictor.open(tmp_path / "run")
    adapted = fedloom.adapt(run, "south", problem=problem, method=fedloom.PerFedAvg(), steps=3, lr=0.1)
    adapted.save(tmp_path / "own")
    found = Predictor.open(tmp_path / "own").predict(frame())
    expected = torch.sigmoid(problem.model(adapted.theta, problem.x)[:, 0].double())
    np.testing.assert_allclose(found["probability of well"], expected, atol=1e-6)
    with pytest.raises(ConfigError, match="has the model of client south and no other"):
        Predictor.open(tmp_path / "own", "north")
    (tmp_path / "own" / "model.json").write_text("{}")
    with pytest.raises(RunError, match=r"model\.json is not what adapted\.json says"):
        Predictor.open(tmp_path / "own")


def test_the_module_has_the_weights_and_needs_nothing_of_fedloom() -> None:
    problem, run = trained(federation(scaling=STANDARD), None, dtype=torch.float64)
    module = run.module()
    assert type(module) is torch.nn.Sequential
    torch.testing.assert_close(module(problem.x), problem.model(run.theta, problem.x))


def test_a_network_made_in_python_predicts_at_once_and_later_with_its_module(tmp_path: Path) -> None:
    data = federation(scaling=STANDARD)
    model = fedloom.Model(lambda: torch.nn.Sequential(torch.nn.Linear(9, 4), torch.nn.GELU(), torch.nn.Linear(4, 1)))
    problem = fedloom.Problem(data, model)
    run = fedloom.train(problem, fedloom.Local(), rounds=1, out=tmp_path / "run")
    at_once = run.predict(frame(), client="west")
    with pytest.raises(RunError, match=r"made in Python.*give the module") as refusal:
        Predictor.open(tmp_path / "run", "west")
    assert "GELU" in str(refusal.value)
    later = Predictor.open(tmp_path / "run", "west", module=model.module).predict(frame())
    pd.testing.assert_frame_equal(at_once, later)
    with pytest.raises(RunError, match="is another one than this run's"):
        Predictor.open(tmp_path / "run", "west", module=torch.nn.Linear(9, 1))


def test_a_card_that_was_changed_is_refused(tmp_path: Path) -> None:
    trained(federation(scaling=STANDARD), tmp_path / "run")
    path = tmp_path / "run" / "model.json"
    card = path.read_text()
    path.write_text(card.replace('"north",\n', '"moon",\n', 1))
    with pytest.raises(RunError, match=r"model\.json is not as the run wrote it"):
        Predictor.open(tmp_path / "run")
    path.write_text(card)
    (tmp_path / "run" / "scales.safetensors").unlink()
    with pytest.raises(RunError, match=r"scales\.safetensors is not as the run wrote it"):
        Predictor.open(tmp_path / "run")


def test_a_folder_of_an_older_fedloom_says_what_to_do_and_resuming_does_it(tmp_path: Path) -> None:
    data = federation(scaling=STANDARD)
    problem, run = trained(data, tmp_path / "run")
    expected = run.predict(frame())
    for name in ("model.json", "scales.safetensors"):
        (tmp_path / "run" / name).unlink()
    with pytest.raises(RunError, match="not as the run wrote it"):
        Predictor.open(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "memory", ignore_errors=True)
    fedloom.train(problem, fedloom.FedAvg(lr=0.01), rounds=2, out=tmp_path / "run", resume=True)
    pd.testing.assert_frame_equal(Predictor.open(tmp_path / "run").predict(frame()), expected)
    with pytest.raises(RunError, match=r"has no model\.json.*`fedloom resume"):
        ModelCard.read(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"task": "guessing"},
        {"shape": [0]},
        {"outputs": 2},
        {"classes": ["one"]},
        {"encoding": [{"name": "age", "kind": "number"}]},
        {"names": ["north"]},
        {"dtype": "object"},
        {"format": 2},
        {"blocks": [[0, 99]]},
    ],
)
def test_a_card_that_cannot_be_is_refused_in_words(change: dict[str, object], tmp_path: Path) -> None:
    ModelCard.of(*_setting("binary")).write(tmp_path)
    path = tmp_path / "model.json"
    assert ModelCard.read(tmp_path).facts == Facts.of(*_setting("binary"))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RunError, match="damaged"):
        ModelCard.read(tmp_path)


def test_code_is_imported_only_if_the_signed_settings_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    code = "from torch import nn\n\n\ndef net(shape, outputs):\n    return nn.Linear(shape[0], outputs)\n"
    (tmp_path / "ours.py").write_text(code)
    (tmp_path / "theirs.py").write_text(f"raise SystemExit('ran')\n{code}")
    _, run = trained(federation(), tmp_path / "run", model="ours:net")
    assert Predictor.open(tmp_path / "run").predict(frame(2)).equals(run.predict(frame(2)))
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    (tmp_path / "copy" / "config.sig").write_text("0" * 64)
    with pytest.raises(Untrusted, match="asks to import the model 'ours:net'"):
        Predictor.open(tmp_path / "copy")
    assert len(Predictor.open(tmp_path / "copy", trust=True).predict(frame(2))) == 2
    card = json.loads((tmp_path / "run" / "model.json").read_text())
    card["network"]["name"] = "theirs:net"
    (tmp_path / "run" / "model.json").write_text(json.dumps(card))
    monkeypatch.setattr("fedloom.prediction.predictor.changed", lambda folder: [])  # as if the hash were forged too
    with pytest.raises(Untrusted, match="which you signed, does not name it"):
        Predictor.open(tmp_path / "run")


def test_the_encoding_of_plain_columns_is_made_of_their_names() -> None:
    data = replace(federation(), encoding=None)
    card = ModelCard.of(fedloom.Problem(data, fedloom.build_model("linear", data)), fedloom.FedAvg())
    assert card.encoding is not None
    assert [(column.name, column.kind) for column in card.encoding.columns] == [(n, "number") for n in COLUMNS.names]


def _setting(task: str) -> tuple[fedloom.Problem, fedloom.Method]:
    data = federation(task, STANDARD)
    return fedloom.Problem(data, fedloom.build_model("linear", data)), fedloom.FedAvg()
