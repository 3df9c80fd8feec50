"""How much gradients differ, against a sum that is written out."""

from __future__ import annotations

import pytest
import torch

from fedloom.engine.evaluation import Evaluation
from fedloom.engine.gradients import gradient_measures
from fedloom.engine.run import train
from fedloom.experiment import Experiment
from fedloom.methods import FedAvg


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_the_measures_agree_with_gradients_row_by_row(model: str) -> None:
    settings = {"data.name": "quadratics", "data.clients": 4, "data.unequal": True, "dtype": "float64"}
    problem = Experiment.load(None, settings | {"model.name": model}).problem()
    theta = problem.model.init(3, torch.float64)
    means, within = [], []
    for client in range(4):
        rows = problem.data.splits["train"][client]
        each = []
        for row in rows:
            at = theta.clone().requires_grad_()
            out = problem.model(at, problem.x[row : row + 1])
            each.append(torch.autograd.grad(problem.loss.rows(out, problem.y[row : row + 1]).sum(), at)[0])
        gradients = torch.stack(each)
        means.append(gradients.mean(0))
        within.append(float((gradients - gradients.mean(0)).square().sum(1).mean()))
    clients = torch.stack(means)
    found = gradient_measures(problem, theta)
    assert found["between"] == pytest.approx(float((clients - clients.mean(0)).square().sum(1).mean()))
    assert found["within"] == pytest.approx(sum(within) / 4)
    assert found["squared_norm"] == pytest.approx(float(clients.mean(0).square().sum()))


def test_convolutions_have_measures_too() -> None:
    problem = Experiment.load(None, {"model.name": "lenet", "data.clients": 10}).problem()
    found = gradient_measures(problem, problem.model.init(0))
    assert found["between"] > 0
    assert found["within"] > 0


def test_a_run_can_record_how_the_gradients_differ_along_the_way() -> None:
    experiment = Experiment.load(None, {"data.clients": 4, "model.name": "linear", "rounds": 3})
    problem = experiment.problem()
    run = train(problem, FedAvg(), rounds=3, evaluate=Evaluation(gradients=True, every=1), executor="serial")
    along = [row["measures"]["gradient_between"] for row in run.history]
    assert len(along) == 4
    assert along[-1] == gradient_measures(problem, run.theta)["between"]
    assert along[0] != along[-1]
