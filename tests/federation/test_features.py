"""Linear models of fixed features: random Fourier features, and those of a trained run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedloom
from fedloom.errors import ConfigError, ModelError
from fedloom.federation.networks import Fourier, median_distance
from fedloom.federation.problem import Problem


def test_inner_products_of_fourier_features_are_the_gaussian_kernel() -> None:
    x = torch.randn(20, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    kernel = torch.exp(-torch.cdist(x, x).square() / (2 * 1.7**2))
    errors = []
    for features in (1_000, 100_000):
        z = Fourier(5, features, 1.7, seed=3)(x)
        errors.append(float((z @ z.T - kernel).abs().max()))
    assert errors[0] < 0.15
    assert errors[1] < 0.015  # as 1/√D


def test_the_bandwidth_is_the_median_of_distances_and_is_kept_with_the_model(tmp_path: Path) -> None:
    data = fedloom.federate("breast-cancer", clients=3)
    model = fedloom.build_model("fourier", data, features=50)
    train = data.x[data.splits["train"].every()].double()
    assert median_distance(data) == pytest.approx(float(torch.pdist(train).median()))
    assert model.build.options["bandwidth"] == median_distance(data)  # type: ignore[attr-defined]
    assert model.n == 51
    problem = Problem(data, model, dtype=torch.float64)
    run = fedloom.train(problem, fedloom.FedAvg(lr=1.0), rounds=3, out=tmp_path / "run")
    again = fedloom.prediction.Predictor.open(tmp_path / "run").model
    assert torch.equal(again(run.theta, problem.x[:9]), model(run.theta, problem.x[:9]))


@pytest.mark.parametrize("loss", ["hinge", "binary"])
def test_methods_in_the_dual_see_the_features_and_not_the_rows(loss: str) -> None:
    """Two rings, which no straight line tells apart."""
    random = np.random.default_rng(0)
    angle, ring = random.uniform(0, 2 * np.pi, 300), np.arange(300) % 2
    x = ((1 + 2 * ring) * np.stack([np.cos(angle), np.sin(angle)])).T + 0.1 * random.standard_normal((300, 2))
    data = fedloom.federate(fedloom.from_arrays(x.astype(np.float32), ring), clients=3)
    plain, rich = (
        Problem(data, fedloom.build_model(name, data), loss, torch.float64) for name in ("linear", "fourier")
    )
    for method in (fedloom.GlobalLinear(lambda_=1e-3), fedloom.CoCoAPlus(lambda_=1e-3), fedloom.MOCHA(lambda1=1e-3)):
        wrong = fedloom.train(plain, method, rounds=20).summary["metrics"]["accuracy"]
        right = fedloom.train(rich, method, rounds=20).summary["metrics"]["accuracy"]
        assert wrong < 0.8
        assert right > 0.97
    w = fedloom.train(rich, fedloom.GlobalLinear(lambda_=1e-2, accuracy=1e-10), evaluate=None).theta
    rows = data.splits["train"].every()
    at = w.clone().requires_grad_()
    value = rich.loss.rows(rich.model(at, rich.x[rows]), rich.y[rows]).mean() + 1e-2 / 2 * at @ at
    if loss == "binary":
        assert float(torch.autograd.grad(value, at)[0].norm()) < 1e-6


def test_a_linear_method_on_the_features_of_a_run_is_no_worse_than_the_runs_own_head(tmp_path: Path) -> None:
    data = fedloom.federate("digits", clients=5)
    network = Problem(data, fedloom.build_model("mlp", data, hidden=[32]))
    first = fedloom.train(network, fedloom.FedAvg(lr=0.2), rounds=8, out=tmp_path / "first")
    model = fedloom.build_model("trained", data, run=str(tmp_path / "first"))
    assert model.n == 33 * 10
    problem = Problem(data, model, "ovr-hinge", torch.float64)
    run = fedloom.train(problem, fedloom.GlobalLinear(lambda_=1e-3, accuracy=1e-3), out=tmp_path / "second")
    assert run.summary["metrics"]["accuracy"] >= first.summary["metrics"]["accuracy"] > 0.5
    assert len(run.predict(data.x[:4].numpy())) == 4
    before = network.model(first.theta, network.x[:5])
    layer = first.module()[-1]
    head = torch.cat([layer.weight.detach().reshape(-1), layer.bias.detach()])
    torch.testing.assert_close(model(head, network.x[:5]), before)


def test_what_has_no_features_is_refused(tmp_path: Path) -> None:
    data = fedloom.federate("digits", clients=3)
    with pytest.raises(ConfigError, match="needs the folder of the run"):
        fedloom.build_model("trained", data)
    images = Problem(data, fedloom.build_model("resnet8", data, width=4))
    fedloom.train(images, fedloom.FedAvg(), rounds=1, out=tmp_path / "norm", evaluate=None)
    with pytest.raises(ModelError, match="BatchNorm has statistics that move"):
        fedloom.build_model("trained", data, run=str(tmp_path / "norm"))
    same = fedloom.federate(fedloom.from_arrays(np.ones((20, 2), dtype=np.float32), np.arange(20) % 2), clients=2)
    with pytest.raises(ConfigError, match="half of the training rows are the same"):
        fedloom.build_model("fourier", same)
