"""From settings to a run: defaults, what is written down, and that it gives the same bits again."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedloom.errors import ConfigError
from fedloom.experiment import Experiment, Settings, Shelf
from fedloom.storage import toml

RICH = {
    "rounds": 3,
    "seed": 7,
    "name": "all at once",
    "dtype": "float64",
    "data.clients": 12,
    "data.partition": ["dirichlet", "quantity", "feature-skew"],
    "data.alpha": 0.5,
    "data.exponent": 0.5,
    "data.quantity": "power-law",
    "data.target": 0.25,
    "data.support": "none",
    "data.source_classes": [0, 1, 2, 3, 4, 5, 6],
    "model.hidden": [20, 10],
    "method.batch": "none",
    "method.steps": 2,
    "selection.fraction": 0.5,
    "selection.name": "size",
    "fleet.preset": "cross-device",
    "fleet.speed": "lognormal:1234.5678:0.25",
    "fleet.deadline": 30,
    "channel": [{"name": "quantise", "bits": 4}],
    "evaluation": [{"every": 2, "metrics": ["f1"]}, {"name": "targets", "on": "target"}],
    "execution.executor": "serial",
}


def again(experiment: Experiment, folder: Path) -> Experiment:
    path = folder / "again.toml"
    path.write_text(toml.dumps(experiment.resolved()), encoding="utf-8")
    return Experiment.load(path)


def test_an_experiment_without_any_setting_just_works() -> None:
    experiment = Experiment.load()
    resolved = experiment.resolved()
    assert resolved["data"]["name"] == "digits"
    assert resolved["data"]["clients"] == 20
    assert resolved["model"]["name"] == "mlp"
    assert resolved["method"] == {
        "name": "fedavg",
        "lr": 0.1,
        "batch": 32,
        "epochs": 1,
        "optimiser": "sgd",
        "weighting": "size",
    }
    assert resolved["rounds"] == 50
    assert resolved["selection"] == {"name": "all"}


@pytest.mark.parametrize(
    ("data", "model"), [("digits", "mlp"), ("breast-cancer", "mlp"), ("diabetes", "linear"), ("quadratics", "linear")]
)
def test_the_usual_model_suits_the_data(data: str, model: str) -> None:
    assert Experiment.load(None, {"data.name": data}).resolved()["model"]["name"] == model


def test_rows_that_are_made_for_clients_are_made_again_from_what_is_written() -> None:
    first = Experiment.load(None, {"data.name": "quadratics", "data.rows": 12, "data.partition": "iid"})
    written = first.resolved()["data"]
    again = Experiment.load(None, {f"data.{key}": value for key, value in written.items()})
    assert written["clients"] == first.data().clients == 10
    assert torch.equal(first.data().x, again.data().x)


def windows(folder: Path, **scaling: str) -> dict[str, Any]:
    """Settings for a file of windows of six clients, with two targets."""
    random = np.random.default_rng(0)
    x, clients = random.normal(size=(60, 8, 3)), np.repeat(range(6), 10)
    np.savez(folder / "windows.npz", x=x, y=500 + 90 * x[:, -1, :2], clients=clients)
    given = {"path": str(folder / "windows.npz"), "task": "regression", **scaling}
    return {"rounds": 2, "model.hidden": 4, "model.name": "lstm", **{f"data.{key}": v for key, v in given.items()}}


def test_windows_are_read_by_an_lstm_unless_another_model_is_named(tmp_path: Path) -> None:
    settings = windows(tmp_path)
    usual = {key: value for key, value in settings.items() if not key.startswith("model")}
    assert Experiment.load(None, usual).resolved()["model"]["name"] == "lstm"
    assert Experiment.load(None, usual | {"model.name": "linear"}).resolved()["model"]["name"] == "linear"


def test_metrics_of_each_column_are_written_out_and_recorded(tmp_path: Path) -> None:
    settings = windows(tmp_path, scaling="standard", scaling_by="client")
    experiment = Experiment.load(None, {**settings, "evaluation.metrics": ["mae", "mae:*", "smape:1"]})
    resolved = experiment.resolved()
    names = ["mae", "mae:0", "mae:1", "smape:1"]
    assert resolved["evaluation"]["metrics"] == names
    assert (resolved["data"]["scaling"], resolved["data"]["scaling_by"]) == ("standard", "client")
    assert experiment.measured() == [*names, "loss"]
    frame = experiment.run().frame()
    assert {"mae", "mae.pooled", "mae:1", "smape:1.worst_tenth"} < set(frame.columns)
    last = frame.iloc[-1]
    assert last["mae"] == pytest.approx((last["mae:0"] + last["mae:1"]) / 2)
    assert 20 < last["mae"] < 500  # in the targets' own units, which the loss is not in
    assert last["loss"] < 5
    assert again(experiment, tmp_path).run().summary["theta_sha256"] == experiment.run().summary["theta_sha256"]


def test_series_are_tested_on_their_end_and_what_is_written_down_says_so(tmp_path: Path) -> None:
    assert Experiment.load(None, windows(tmp_path)).resolved()["data"]["chronological"] is False
    lines = ["No,year,month,day,hour,PM2.5,PM10,SO2,NO2,CO,O3,TEMP,PRES,DEWP,RAIN,wd,WSPM,station"]
    lines += [f"{k},2013,3,{1 + k // 24},{k % 24},{k},1,2,3,4,5,6,7,8,9,N,1,Dongsi" for k in range(72)]
    (tmp_path / "beijing-air").mkdir()
    (tmp_path / "beijing-air" / "PRSA_Data_Dongsi_x.csv").write_text("\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLOOM_DATA", str(tmp_path))
        settings = {"data.name": "beijing-air", "data.window": 6, "data.stride": 1, "model.hidden": 3, "rounds": 1}
        experiment = Experiment.load(None, {**settings, "model.name": "lstm"})
        resolved = experiment.resolved()
        assert resolved["data"]["chronological"] is True
        assert resolved["data"]["window"] == 6
        data, time = experiment.data(), experiment.table().time
        assert time is not None
        assert time[data.splits["train"][0]].max() < time[data.splits["test"][0]].min()
        assert (
            Experiment.load(None, {**settings, "data.chronological": False}).resolved()["data"]["chronological"]
            is False
        )


@pytest.mark.parametrize(
    ("settings", "selection"),
    [
        ({"data.clients": 21}, {"name": "uniform", "per_round": 10}),
        ({"data.clients": 20}, {"name": "all"}),
        ({"data.clients": 30, "data.target": 0.5}, {"name": "all"}),
        ({"data.clients": 40, "selection.fraction": 0.1}, {"name": "uniform", "per_round": 4}),
        ({"data.clients": 9, "selection.fraction": 0.01}, {"name": "uniform", "per_round": 1}),
        ({"data.clients": 40, "selection.name": "size"}, {"name": "size", "per_round": 10}),
        ({"data.clients": 40, "selection.name": "all"}, {"name": "all"}),
    ],
)
def test_who_takes_part_unless_it_is_said(settings: dict[str, Any], selection: dict[str, Any]) -> None:
    assert Experiment.load(None, settings).resolved()["selection"] == selection


def test_target_clients_are_judged_too_unless_it_is_said_otherwise() -> None:
    judged = Experiment.load(None, {"data.target": 0.2}).evaluations
    assert [(e.name, e.on) for e in judged] == [("evaluation", "source"), ("target", "target")]


def test_options_of_a_network_without_its_name_are_those_of_an_mlp() -> None:
    model = Experiment.load(None, {"model.hidden": 7, "data.name": "diabetes"}).resolved()["model"]
    assert (model["name"], model["hidden"]) == ("mlp", [7])
    with pytest.raises(ConfigError, match=r"model\.layers = 2 is no setting of the model 'mlp'.*model\.name"):
        Experiment.load(None, {"model.layers": 2, "data.name": "diabetes"}).resolved()
    with pytest.raises(ConfigError, match=r"model\.hiden = 2 is no setting of the model 'mlp'.*did you mean 'hidden'"):
        Experiment.load(None, {"model.hiden": 2})


def test_for_windows_they_are_those_of_an_lstm_if_it_has_them(tmp_path: Path) -> None:
    settings = {key: value for key, value in windows(tmp_path).items() if key != "model.name"}
    model = Experiment.load(None, settings).resolved()["model"]
    assert (model["name"], model["hidden"]) == ("lstm", 4)
    model = Experiment.load(None, {**settings, "model.hidden": [5, 4]}).resolved()["model"]
    assert (model["name"], model["hidden"]) == ("mlp", [5, 4])


def test_made_data_follow_the_clients_and_the_seed() -> None:
    first = Experiment.load(None, {"data.name": "synthetic", "data.clients": 4, "data.alpha": 0.5, "data.beta": 2.0})
    other = Experiment.load(None, {"data.name": "synthetic", "data.clients": 4, "seed": 1})
    assert first.data().name == "synthetic(0.5, 2)"
    assert first.data().clients == 4
    assert first.resolved()["data"]["partition"] == "natural"
    assert not torch.equal(first.data().splits["train"].sizes, other.data().splits["train"].sizes)


def test_the_partition_has_a_seed_of_its_own_if_it_is_given_one() -> None:
    def rows(**settings: int) -> torch.Tensor:
        given = {key.replace("_", "."): value for key, value in settings.items()}
        return Experiment.load(None, given).data().splits["train"][0]

    assert torch.equal(rows(seed=1, data_seed=5), rows(seed=2, data_seed=5))
    assert not torch.equal(rows(seed=1), rows(seed=2))


def test_what_is_written_down_is_whole_and_reads_back_equal(tmp_path: Path) -> None:
    experiment = Experiment.load(None, RICH)
    resolved = experiment.resolved()
    assert resolved["method"]["batch"] == "none"
    assert resolved["data"]["support"] == "none"
    assert resolved["fleet"]["speed"] == "lognormal:1234.5678:0.25"
    assert resolved["fleet"]["unavailable"] == 0.2
    assert "deadline" in resolved["fleet"]
    assert [e["metrics"] for e in resolved["evaluation"]] == [["f1"], ["accuracy"]]
    assert tomllib.loads(toml.dumps(resolved)) == again(experiment, tmp_path).resolved()


def test_what_is_written_down_gives_the_same_bits_again(tmp_path: Path) -> None:
    experiment = Experiment.load(None, RICH)
    first, second = experiment.run(), again(experiment, tmp_path).run()
    assert first.summary["theta_sha256"] == second.summary["theta_sha256"]
    assert first.theta.dtype == torch.float64
    assert first.summary["label"] == "all at once"


def test_a_trace_is_found_beside_the_experiment_and_written_down_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there.csv").write_text("client,start,end\n1,0,50\n2,20,90\n", encoding="utf-8")
    (tmp_path / "exp.toml").write_text(
        'rounds = 4\n[data]\nclients = 4\n[model]\nname = "linear"\n[execution]\nexecutor = "serial"\n'
        '[fleet]\ndelay_up = "uniform:10:30"\ntrace = "there.csv"\ntrace_repeats = 90\nperiod = 30\naway = 0.2\n'
        'leaves = "exponential:1000"\nredraw = true',
        encoding="utf-8",
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    experiment = Experiment.load("../exp.toml")
    resolved = experiment.resolved()
    assert resolved["fleet"]["trace"] == str(tmp_path / "there.csv")
    assert resolved["fleet"]["leaves"] == "exponential:1000"
    assert "fails_every" not in resolved["fleet"]
    assert tomllib.loads(toml.dumps(resolved)) == again(experiment, tmp_path / "elsewhere").resolved()
    first, second = experiment.run(), again(experiment, tmp_path / "elsewhere").run()
    assert first.summary["theta_sha256"] == second.summary["theta_sha256"]
    assert [row.get("selected") for row in first.history] == [row.get("selected") for row in second.history]
    given = Experiment.load("../exp.toml", {"fleet.trace": "../there.csv"})  # not in the file: from the working folder
    assert given.resolved()["fleet"]["trace"] == str(tmp_path / "there.csv")


def test_a_file_of_the_user_is_found_beside_the_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f"{k / 9},{k % 7},{k % 2},{'abc'[k % 3]}\n" for k in range(60))
    (tmp_path / "table.csv").write_text("first,second,label,site\n" + rows, encoding="utf-8")
    (tmp_path / "exp.toml").write_text(
        'rounds = 2\n[data]\npath = "table.csv"\nlabel_column = "label"\nclient_column = "site"\n', encoding="utf-8"
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    experiment = Experiment.load(tmp_path / "exp.toml")
    resolved = experiment.resolved()
    assert resolved["data"]["path"] == str(tmp_path / "table.csv")
    assert (resolved["data"]["name"], resolved["data"]["clients"]) == ("table", 3)
    assert resolved["model"]["name"] == "linear"
    assert experiment.run().summary["theta_sha256"] == again(experiment, tmp_path).run().summary["theta_sha256"]


def test_a_model_of_the_user_is_given_by_its_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_networks.py").write_text(
        "from torch import nn\n\ndef narrow(shape, outputs, width=3):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Linear(width, outputs))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    experiment = Experiment.load(None, {"model.name": "my_networks:narrow", "model.width": 5, "rounds": 1})
    assert experiment.problem().model.n == 64 * 5 + 5 + 5 * 10 + 10
    assert experiment.resolved()["model"]["width"] == 5


def test_experiments_that_share_a_shelf_share_data_and_end_in_the_same_bits() -> None:
    shelf = Shelf()
    small = {"rounds": 2, "data.clients": 5}
    first = Experiment.load(None, small, shelf)
    second = Experiment.load(None, small | {"method.name": "central"}, shelf)
    third = Experiment.load(None, small | {"seed": 1}, shelf)
    assert first.problem() is second.problem()
    assert first.table() is third.table()
    assert first.data() is not third.data()
    second.run()
    alone = Experiment.load(None, small).run()
    assert first.run().summary["theta_sha256"] == alone.summary["theta_sha256"]


def test_a_method_of_linear_models_has_one_unless_the_experiment_names_another() -> None:
    digits = {"data.name": "digits", "data.clients": 3, "data.positive": "3"}
    chosen = Experiment(Settings.read(None, {**digits, "method.name": "cocoa-plus"}))
    assert chosen.resolved()["model"]["name"] == "linear"
    assert Experiment(Settings.read(None, {**digits, "method.name": "fedavg"})).resolved()["model"]["name"] == "mlp"
    with pytest.raises(ConfigError, match="needs a linear model"):
        Experiment(Settings.read(None, {**digits, "method.name": "cocoa-plus", "model.hidden": [4]})).check()
