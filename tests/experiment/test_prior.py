"""[prior]: the model of an earlier run, held on to or started from."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import fedloom
from fedloom.errors import ConfigError, ModelError, RunError
from fedloom.experiment import Experiment
from fedloom.methods import FedAvg
from fedloom.methods.method import Context
from fedloom.storage import checkpoint
from fedloom.storage.folder import theta_sha256
from fedloom.storage.saved import saved_model
from fedloom.types import State, Vector
from problems import make_problem

SMALL = {"data.name": "digits", "data.clients": 4, "rounds": 2, "model.name": "mlp", "model.hidden": 8}


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A run of two rounds."""
    folder = tmp_path / "earlier"
    Experiment.load(None, SMALL).run(folder)
    return folder


def experiment(run: Path, **more: Any) -> Experiment:
    return Experiment.load(None, {**SMALL, "seed": 5, "prior.run": str(run), **more})


@dataclass(frozen=True)
class Remembers(FedAvg):
    """FedAvg whose server keeps θ_p, and whose model is computed from its state."""

    def server_init(self, ctx: Context) -> State:
        assert ctx.prior is not None
        return {"x": ctx.theta0, "p": ctx.prior}

    def server(self, state: State, replies: Any, ctx: Context) -> State:
        assert ctx.prior is not None
        assert torch.equal(ctx.prior, state["p"])
        return {**super().server(state, replies, ctx), "p": state["p"]}

    def model(self, state: State) -> Vector:
        return state["x"] + state["p"]


def test_a_run_may_start_from_the_model_of_an_earlier_one(earlier: Path, tmp_path: Path) -> None:
    before = saved_model(earlier)
    run = experiment(earlier, **{"prior.start": True, "seed": 0}).run(tmp_path / "later")
    ended = Experiment.load(earlier / "config.toml").run(tmp_path / "same")
    assert run.history[0]["evaluation"] == ended.history[-1]["evaluation"]
    assert before.sha256 == ended.summary["theta_sha256"]
    assert (before.round, before.finished) == (2, True)


def test_a_prior_alone_changes_nothing_for_a_method_that_does_not_use_it(earlier: Path) -> None:
    plain = Experiment.load(None, {**SMALL, "seed": 5}).run()
    assert torch.equal(experiment(earlier).run().theta, plain.theta)
    assert not torch.equal(experiment(earlier, **{"prior.start": True}).run().theta, plain.theta)


def test_the_prior_reaches_the_method_in_every_round_and_a_computed_model_is_saved(tmp_path: Path) -> None:
    problem = make_problem("linear")
    prior = torch.arange(problem.model.n).double()
    run = fedloom.train(problem, Remembers(), rounds=2, prior=prior, out=tmp_path / "a", evaluate=())
    assert run.state["p"].tolist() == list(range(problem.model.n))
    assert run.state["p"].dtype == torch.float32
    assert (
        saved_model(tmp_path / "a").sha256 == theta_sha256(run.theta) == theta_sha256(run.state["x"] + run.state["p"])
    )


@pytest.mark.parametrize("name", ["prior", "theta0"])
def test_a_vector_of_another_length_is_refused(name: str) -> None:
    problem = make_problem("linear")
    with pytest.raises(ModelError, match=rf"{name} has shape \(3,\), but the model has {problem.model.n} parameters"):
        fedloom.train(problem, FedAvg(), rounds=1, **{name: torch.zeros(3)})  # type: ignore[arg-type]


def test_a_run_writes_down_its_prior_and_can_be_done_again(earlier: Path, tmp_path: Path) -> None:
    first = experiment(earlier, **{"prior.start": True}).run(tmp_path / "a")
    config = (tmp_path / "a" / "config.toml").read_text()
    assert f'run = "{earlier.resolve()}"' in config
    assert f'sha256 = "{saved_model(earlier).sha256}"' in config
    again = Experiment.load(tmp_path / "a" / "config.toml").run(tmp_path / "b")
    assert first.summary["theta_sha256"] == again.summary["theta_sha256"]
    assert (tmp_path / "b" / "config.toml").read_text() == config


def test_a_prior_that_has_changed_is_refused(earlier: Path, tmp_path: Path) -> None:
    experiment(earlier).run(tmp_path / "a")
    old = saved_model(earlier).sha256
    Experiment.load(None, {**SMALL, "rounds": 1}).run(earlier, force=True)
    new = saved_model(earlier).sha256
    with pytest.raises(ConfigError, match=rf"config.toml:\d+: prior.sha256 = \"{old[:40]}.* it has {new} now"):
        Experiment.load(tmp_path / "a" / "config.toml").check()


def test_a_prior_of_another_model_is_refused_with_the_shapes_of_both(earlier: Path, tmp_path: Path) -> None:
    file = tmp_path / "exp.toml"
    file.write_text("[data]\nclients = 4\n[model]\nhidden = [6, 5]\n[prior]\nrun = 'earlier'\n")
    with pytest.raises(RunError) as error:
        Experiment.load(file).check()
    assert str(error.value) == (
        f"{file}:6: prior.run: the model in {earlier} is another one than this run's: "
        "1.weight is (8, 64) there and (6, 64) here; 1.bias is (8,) there and (6,) here; "
        "3.weight is (10, 8) there and (5, 6) here; 3.bias is (10,) there and (5,) here; and 2 more. Use the same model"
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prior.run": "nowhere"}, "prior.run: nowhere has no model: it is no folder of a run"),
        ({"prior.start": True}, "prior.run is missing; the prior needs a text"),
        ({"prior.run": "x", "prior.stat": True}, "did you mean 'start'?"),
    ],
)
def test_a_prior_that_cannot_be_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, RunError), match=message.replace("?", r"\?")):
        Experiment.load(None, {**SMALL, **values}).check()


def test_looking_at_a_damaged_run_does_not_change_it(earlier: Path) -> None:
    newest = earlier / checkpoint.NEWEST
    whole = newest.read_bytes()
    shutil.copy(newest, earlier / checkpoint.PREVIOUS)
    newest.write_bytes(whole[:-9])
    assert saved_model(earlier).round == 2
    assert newest.read_bytes() == whole[:-9]
