from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass

import pytest
import torch

from fedloom.conformance import quadratics
from fedloom.errors import ConfigError
from fedloom.experiment import Experiment
from fedloom.experiment.forms import Form
from fedloom.federation.schedules import Rate, rate_at, schedule
from fedloom.methods import FedAvg, FedOpt, FedSGD
from fedloom.storage import toml
from problems import make_problem, run


@pytest.mark.parametrize(
    ("rate", "values"),
    [
        (0.1, {0: 0.1, 7: 0.1}),
        ("step:0.1:50:0.5", {0: 0.1, 49: 0.1, 50: 0.05, 99: 0.05, 100: 0.025}),
        ("cosine:0.1:0.001:200", {0: 0.1, 100: 0.0505, 200: 0.001, 1000: 0.001}),
        ("cosine:0.1:0:4", {0: 0.1, 1: 0.05 * (1 + math.sqrt(0.5)), 4: 0.0}),
        ("inverse:0.1:0.01", {0: 0.1, 100: 0.05, 300: 0.025}),
        ("exponential:0.1:0.99", {0: 0.1, 1: 0.099, 2: 0.09801}),
        ("warmup:0.1:10", {0: 0.01, 4: 0.05, 9: 0.1, 10: 0.1, 99: 0.1}),
    ],
)
def test_a_schedule_is_a_function_of_the_round(rate: float | str, values: dict[int, float]) -> None:
    assert {t: rate_at(rate, t) for t in values} == pytest.approx(values, rel=1e-14, abs=1e-17)


def test_a_number_stays_the_very_number() -> None:
    lr = 0.1
    assert rate_at(lr, 5) is lr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("linear:0.1:5", "'linear:0.1:5' is no schedule; write a number, step:LR:EVERY:FACTOR, cosine:LR:END:ROUNDS"),
        ("step:0.1:50", "has 2 numbers, not 3; write step:LR:EVERY:FACTOR"),
        ("step:0.1:2.5:0.5", "EVERY should be a valid integer"),
        ("step:0.1:0:0.5", "EVERY should be greater than or equal to 1; write step:LR:EVERY:FACTOR"),
        ("cosine:0:0:5", "LR should be greater than 0"),
        ("cosine:0.1:-1:5", "END should be greater than or equal to 0"),
        ("inverse:0.1:fast", "DECAY should be a valid number"),
        ("exponential:inf:0.5", "LR should be a finite number"),
        ("warmup", "has 0 numbers, not 2; write warmup:LR:ROUNDS"),
    ],
)
def test_what_is_no_schedule_is_refused_with_how_to_write_it(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        schedule(text)
    with pytest.raises(ConfigError, match=re.escape(words)):
        rate_at(text, 0)


@dataclass(frozen=True)
class Thing:
    lr: Rate = 0.1
    server_lr: Rate | None = None


@pytest.mark.parametrize("value", [0.5, "step:0.1:50:0.5", "warmup:1:10"])
def test_a_form_takes_numbers_and_schedules_as_they_are(value: object) -> None:
    read, wrong = Form.of(Thing, "the thing").read({"lr": value, "server_lr": value})
    assert not wrong
    assert read == {"lr": value, "server_lr": value}
    assert type(read["lr"]) is type(value)


def test_a_whole_number_becomes_a_float() -> None:
    read, _ = Form.of(Thing, "the thing").read({"lr": 1})
    assert type(read["lr"]) is float


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (-1, "should be a number above 0"),
        ("0.1", "should be a number above 0"),
        (True, "should be a number above 0"),
        ("cosine", "cannot be: 'cosine' has 0 numbers, not 3; write cosine:LR:END:ROUNDS"),
        ("step:0.1:0:1", "cannot be: 'step:0.1:0:1': EVERY should be greater than or equal to 1; write step:LR:EVERY:"),
    ],
)
def test_a_form_says_what_is_wrong_with_a_step_size(value: object, words: str) -> None:
    _, wrong = Form.of(Thing, "the thing").read({"lr": value})
    assert wrong["lr"].startswith(words)
    _, wrong = Form.of(Thing, "the thing").read({"server_lr": value})
    assert words.removeprefix("should be a number above 0") in wrong["server_lr"]


def test_an_experiment_keeps_a_schedule_through_its_file() -> None:
    given = {"method.name": "fedadam", "method.lr": "cosine:0.1:0.001:20", "method.server_lr": "step:0.1:5:0.5"}
    experiment = Experiment.load(None, given)
    written = tomllib.loads(toml.dumps(experiment.resolved()))["method"]
    assert written["lr"] == "cosine:0.1:0.001:20"
    assert written["server_lr"] == "step:0.1:5:0.5"
    again = Experiment.load(None, {f"method.{key}": value for key, value in written.items()})
    assert again.method == experiment.method


def test_an_experiment_refuses_a_schedule_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match=r'^method\.lr = "cosine:0\.1" cannot be: .* write cosine:LR:END:ROUNDS$'):
        Experiment.load(None, {"method.lr": "cosine:0.1"})


@pytest.mark.parametrize("text", ["step:0.05:3:1", "exponential:0.05:1", "inverse:0.05:0", "warmup:0.05:1"])
def test_a_schedule_that_never_changes_is_the_number(text: str) -> None:
    problem = make_problem("mlp")
    one, other = run(problem, FedAvg(lr=text, batch=4), 3), run(problem, FedAvg(lr=0.05, batch=4), 3)
    assert torch.equal(one.state["x"], other.state["x"])


def test_each_round_has_the_step_size_of_its_time() -> None:
    known, rates = quadratics(unequal=True), [0.8, 0.8, 0.4, 0.4, 0.2]
    ends = {
        "fedsgd": run(known.problem, FedSGD(lr="step:0.8:2:0.5"), 5, evaluations=()),
        "clients": run(known.problem, FedAvg(lr="step:0.8:2:0.5", batch=None, steps=1), 5, evaluations=()),
        "server": run(known.problem, FedOpt(lr=0.8, server_lr="step:1:2:0.5", batch=None, steps=1), 5, evaluations=()),
    }
    x = ends["fedsgd"].theta0
    for rate in rates:
        slopes = (known.hessians @ (x - known.optima).unsqueeze(-1)).squeeze(-1)
        x = x - rate * known.weights() @ slopes
    for name, end in ends.items():
        torch.testing.assert_close(end.state["x"], x, rtol=0, atol=1e-13, msg=name)
