"""A user's own thing of every kind by its import path, in experiment files and on the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fedloom import load_run
from fedloom.cli import app
from fedloom.errors import ConfigError
from fedloom.experiment import Settings, make_experiment

MODULE = '''
from dataclasses import dataclass

import torch
from torch import nn

from fedloom.channel import Transform
from fedloom.data import load
from fedloom.data.owners import Iid
from fedloom.engine.selection import Selection
from fedloom.execution import Serial
from fedloom.federation.losses import LOSSES, Loss
from fedloom.federation.metrics import Metric, OfRows
from fedloom import Fleet


def few(rows: int = 100, step=2):
    """The first digits."""
    return load("digits").take(torch.arange(rows)[::step])


@dataclass(frozen=True)
class Deal(Iid):
    """Rows dealt out evenly."""

    cards: int = 3


@dataclass(frozen=True)
class First(Selection):
    """The first so many, from some client on."""

    count: int
    start: int = 0

    def pick(self, candidates, ctx):
        return candidates[self.start : self.start + self.count]


@dataclass(frozen=True)
class Twice(Transform):
    """Sends twice the numbers, and halves them again."""

    factor: float = 2.0

    def encode(self, message, memory, clients, draw):
        return {key: value * self.factor for key, value in message.items()}, memory

    def decode(self, sent):
        return {key: value / self.factor for key, value in sent.items()}


class Wrong(Metric):
    """The share of rows that are wrong."""

    tasks = ("classification",)
    higher_is_better = False

    def counts(self, predictions):
        each = (predictions.labels() != predictions.y).double()
        return predictions.sums(torch.stack([each, torch.ones_like(each)], -1))

    def value(self, counts):
        return counts[..., 0] / counts[..., 1]


def net(shape, outputs, width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], width), nn.Linear(width, outputs))


class Here(Serial):
    def __init__(self, workers: int | None = None, greeting: str = "hello") -> None:
        self.workers, self.greeting = workers, greeting


class Again(type(LOSSES["cross-entropy"])):
    pass


class Focal(Loss):
    """Says no more than what a row costs."""

    def rows(self, out, y):
        p = torch.log_softmax(out, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
        return -((1 - p.exp()) ** 2) * p


class Widest(OfRows):
    """The largest output of any row: no count that adds up has it."""

    def of(self, out, y):
        assert y.dtype == torch.int64
        return out.max()


office = Fleet(dropout=0.25)
number = 3
'''


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_things.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


EVERYTHING = {
    "rounds": 1,
    "data": {"name": "own_things:few", "rows": 200, "clients": 4, "partition": "own_things:Deal", "cards": 5},
    "model": {"name": "own_things:net", "width": 3, "loss": "own_things:Again"},
    "selection": {"name": "own_things:First", "per_round": 2, "start": 1},
    "fleet": {"preset": "own_things:office"},
    "channel": [{"name": "own_things:Twice", "factor": 4.0}],
    "evaluation": {"metrics": ["own_things:Wrong", "accuracy"]},
    "execution": {"executor": "own_things:Here", "greeting": "ahoy"},
}


def test_an_experiment_may_be_made_of_ones_own_things_and_what_is_written_down_gives_it_again() -> None:
    experiment = make_experiment(Settings(EVERYTHING))
    run = experiment.run()
    last = run.history[-1]["evaluation"]
    assert last["own_things:Wrong"]["pooled"] == pytest.approx(1 - last["accuracy"]["pooled"])
    written = experiment.resolved()
    assert written["data"]["cards"] == 5
    assert (len(experiment.table()), written["data"]["rows"], written["data"]["step"]) == (100, 200, 2)
    assert written["selection"] == {"name": "own_things:First", "per_round": 2, "start": 1}
    assert written["fleet"]["dropout"] == 0.25
    assert written["model"] == {"name": "own_things:net", "loss": "own_things:Again", "width": 3}
    executor: Any = experiment.prepared().executor
    assert written["execution"]["greeting"] == executor.greeting == "ahoy"
    assert make_experiment(Settings(written)).run().summary["theta_sha256"] == run.summary["theta_sha256"]


def test_flags_take_them_too() -> None:
    flags = {
        "--data": "own_things:few",
        "--partition": "own_things:Deal",
        "--model": "own_things:net",
        "--loss": "own_things:Again",
        "--selection": "own_things:First",
        "--fleet": "own_things:office",
        "--metric": "own_things:Wrong",
        "--executor": "own_things:Here",
        "--set": "channel=[{name = 'own_things:Twice'}]",
    }
    words = [word for pair in flags.items() for word in pair]
    result = CliRunner().invoke(
        app, ["run", *words, "--clients", "3", "--rounds", "1", "--quiet", "--no-report", "--out", "r"]
    )
    assert result.exit_code == 0, result.output
    config = (Path("r") / "config.toml").read_text()
    assert all(path.split("'")[-2 if "'" in path else 0] in config for path in flags.values())


@pytest.mark.parametrize(
    ("section", "what"),
    [
        ({"data": {"name": "own_things:number"}}, "is no data set: it must be a function that gives a fedloom.data"),
        ({"data": {"partition": "own_things:Wrong"}}, "is no partition: it must be a dataclass derived from"),
        ({"model": {"name": "own_things:number"}}, "is no model: it must be a callable"),
        ({"model": {"name": "own_things:net", "widht": 3}}, "model.widht = 3 is no setting .*did you mean 'width'"),
        ({"selection": {"name": "own_things:Deal"}}, "is no selection: it must be a dataclass derived from"),
        ({"selection": {"name": "own_things:First", "strat": 3}}, "selection.strat = 3 is no setting.*'start'"),
        ({"fleet": {"preset": "own_things:number"}}, "is no fleet: it must be a fedloom.Fleet"),
        ({"channel": [{"name": "own_things:Deal"}]}, "is no step of a channel: it must be a dataclass derived from"),
        ({"evaluation": {"metrics": ["own_things:number"]}}, "is no metric: it must be a fedloom.federation.metrics"),
        ({"execution": {"executor": "own_things:Deal"}}, "is no executor: it must be a class derived from"),
        ({"execution": {"executor": "own_things:Here", "greting": "x"}}, "greting = \"x\" is no setting.*'greeting'"),
    ],
)
def test_what_is_of_another_kind_is_refused_with_what_it_must_be(section: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        make_experiment(Settings(section))


@pytest.mark.parametrize("model", ["linear", "cnn"])
def test_a_loss_needs_only_its_rows_and_a_metric_only_what_it_makes_of_all_rows(model: str, tmp_path: Path) -> None:
    flags = ["--data", "digits", "--clients", "3", "--model", model, "--loss", "own_things:Focal", "--rounds", "2"]
    flags += ["--metric", "own_things:Widest", "--metric", "accuracy", "--lr", "0.5", "--out", "own"]
    result = CliRunner().invoke(app, ["run", *flags])
    assert result.exit_code == 0, result.output
    run = load_run("own")
    ends = run.history[-1]["evaluation"]["own_things:Widest"]
    assert ends["pooled"] == ends["max"]
    assert run.summary["statistics"] == {"own_things:Widest": "pooled", "accuracy": "weighted", "loss": "weighted"}
    assert run.history[-1]["evaluation"]["loss"]["weighted"] < run.history[0]["evaluation"]["loss"]["weighted"]
    assert len(run.predict(torch.zeros(2, 1, 8, 8))) == 2
    assert Path("own/report.html").is_file()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--loss", "own_things:number"], "own_things:number.*Loss"),
        (["--loss", "own_things:Fokal"], "own_things:Fokal.*cannot be had"),
        (["--metric", "own_things:number"], "own_things:number.*Metric"),
        (["--metric", "own_thing:Widest"], "own_thing"),
    ],
)
def test_a_loss_or_metric_that_is_none_is_said_in_words(flags: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["run", "--data", "digits", *flags])
    assert result.exit_code == 2
    assert re.search(said, result.output)
