"""Sharing ADMM against pooled solvers on real data, by hand, and its refusals; the conformance kit has the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedloom
from fedloom.channel import Channel, Quantise
from fedloom.conformance.problems import vertical
from fedloom.engine.fleet import Fleet
from fedloom.errors import ConfigError
from fedloom.experiment import Experiment
from fedloom.federation.losses import Loss
from fedloom.federation.problem import Problem
from fedloom.methods import FedAvg, SharingADMM
from problems import make_problem, start

F64 = torch.float64
BREAST_CANCER = {
    "method.name": "sharing-admm",
    "data.name": "breast-cancer",
    "data.partition": ["features"],
    "data.clients": 5,
    "evaluation.every": 0,
}


def pooled(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    rows = problem.data.splits["train"][0]
    return problem.x[rows].numpy(), problem.y[rows, 0].numpy()


def test_the_weights_on_breast_cancer_are_those_of_the_pooled_logistic_regression() -> None:
    from sklearn.linear_model import LogisticRegression

    experiment = Experiment.load(None, BREAST_CANCER)
    run = experiment.run()
    x, y = pooled(experiment.problem())
    fit = LogisticRegression(C=1 / (0.01 * len(x)), solver="newton-cholesky", tol=1e-13, max_iter=1000).fit(x, y)
    np.testing.assert_allclose(run.theta.numpy(), np.append(fit.coef_[0], fit.intercept_), rtol=0, atol=1e-8)
    assert run.summary["stopped"] == "converged"


@pytest.mark.parametrize(
    ("settings", "theirs"),
    [
        ({"regulariser": "ridge", "strength": 0.4}, lambda m, n: m.Ridge(0.4 * n, solver="cholesky")),
        ({"regulariser": "lasso", "strength": 0.05}, lambda m, n: m.Lasso(0.05, tol=1e-15, max_iter=100_000)),
    ],
)
def test_the_weights_on_diabetes_are_scikit_learns(settings: dict[str, Any], theirs: Any) -> None:
    from sklearn import linear_model

    data = fedloom.federate("diabetes", partition="features", clients=4, columns="random")
    problem = Problem(data, fedloom.build_model("linear", data), dtype=F64)
    run = fedloom.train(problem, SharingADMM(**settings, stop=1e-11), rounds=3000, evaluate=[], executor="serial")
    x, y = pooled(problem)
    fit = theirs(linear_model, len(x)).fit(x, y)
    np.testing.assert_allclose(run.theta.numpy(), np.append(fit.coef_, fit.intercept_), rtol=0, atol=1e-8)


def test_the_first_round_by_hand() -> None:
    """Two parties of one column each, two rows, no bias: the first messages are zero, the second ones are not."""
    data = fedloom.federate(
        fedloom.from_arrays([[1.0, 2.0], [3.0, -1.0]], [1.0, 2.0], task="regression"),
        partition="features",
        clients=2,
        test=0.0,
        support=None,
    )
    problem = Problem(data, fedloom.build_model("linear", data, bias=False), dtype=F64)
    method = SharingADMM(rho=2.0, adaptive=False, regulariser="ridge", strength=1.0)
    engine = start(problem, method, evaluations=())
    engine.step()
    # x = 0, so s̄ = u = 0 and z̄ = argmin ½((2z̄ − y)²) + ½·2·2/1·z̄² = 2y / (4 + 4) for rho = 2
    y = torch.tensor([[1.0], [2.0]], dtype=F64)
    z = 2 * y / (4 + 2 * 2)
    torch.testing.assert_close(engine.state["z"], z, rtol=0, atol=1e-15)
    torch.testing.assert_close(engine.state["u"], -z, rtol=0, atol=1e-15)
    engine.step()
    # b = z̄ − s̄ − u = 2z̄; x_i = (AᵀA + κn/rho)⁻¹ Aᵀb with κn/rho = 1
    b = 2 * z[:, 0]
    weights = torch.tensor([(b[0] + 3 * b[1]) / (10 + 1), (2 * b[0] - b[1]) / (5 + 1)], dtype=F64)
    torch.testing.assert_close(engine.theta(), weights, rtol=0, atol=1e-15)


def test_only_scores_and_the_shared_residual_cross_the_network() -> None:
    known = vertical("classification")
    engine = start(known.problem, SharingADMM(), evaluations=())
    engine.step()
    received = engine.setting.method.broadcast(engine.state, torch.arange(4))
    client = known.problem.client(np.arange(4))
    reply, _ = engine.setting.method.client(client, received, engine.store.gather(torch.arange(4))[0])
    assert {key: tuple(value.shape) for key, value in received.items()} == {"residual": (40, 3), "rho": ()}
    assert {key: tuple(value.shape[1:]) for key, value in reply.items()} == {
        "move": (40, 3),
        "moved": (1,),
        "size": (1,),
    }


def test_a_party_never_sees_a_label() -> None:
    known = vertical("binary")
    flipped = Problem(replace(known.problem.data, y=1 - known.problem.y), known.problem.model, dtype=F64)
    client, other = known.problem.client(np.arange(4)), flipped.client(np.arange(4))
    method = SharingADMM()
    received = {"residual": torch.ones(40, 1, dtype=F64), "rho": torch.tensor(0.1, dtype=F64)}
    one, _ = method.client(client, received, method.client_init(client, received))
    two, _ = method.client(other, received, method.client_init(other, received))
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_the_model_is_the_sum_of_the_parts_and_each_party_holds_only_its_own() -> None:
    known = vertical("classification")
    engine = start(known.problem, SharingADMM(), evaluations=())
    for _ in range(3):
        engine.step()
    clients = torch.arange(4)
    memory, _ = engine.store.gather(clients)
    parts = engine.setting.method.personal(known.problem.client(clients.numpy()), engine.state, memory)
    blocks = known.problem.data.blocks
    assert blocks is not None
    for i, columns in enumerate(blocks.columns):
        held = torch.nonzero(parts[i, :30].view(3, 10)[0]).flatten()
        assert sorted(held.tolist()) == sorted(columns.tolist())
    torch.testing.assert_close(engine.theta(), parts.sum(0) + engine.state["own"], rtol=0, atol=0)
    assert bool((engine.state["own"][:30] == 0).all())


def test_it_says_that_it_converged_and_stops() -> None:
    problem = vertical().problem
    run = fedloom.train(problem, SharingADMM(stop=1e-6), rounds=5000, executor="serial")
    measures = run.history[-1]["measures"]
    assert run.summary["stopped"] == "converged"
    assert run.summary["rounds"] < 1000
    assert set(measures) == {"primal_residual", "dual_residual", "rho"}
    first = run.history[1]["measures"]
    assert measures["primal_residual"] < 1e-4 * first["primal_residual"]


def test_an_adaptive_penalty_that_starts_far_off_needs_fewer_rounds() -> None:
    problem = vertical("binary").problem

    def rounds(adaptive: bool, most: int) -> int:
        method = SharingADMM(rho=50.0, adaptive=adaptive, stop=1e-5)
        return int(fedloom.train(problem, method, rounds=most, evaluate=[], executor="serial").summary["rounds"])

    needed = rounds(adaptive=True, most=1000)
    assert rounds(adaptive=False, most=4 * needed) == 4 * needed  # the fixed one is still at it


def test_parties_that_are_sampled_and_lose_replies_of_four_bits_end_at_the_same_weights() -> None:
    problem = vertical("binary").problem
    plain = fedloom.train(problem, SharingADMM(), rounds=3000, evaluate=[], executor="serial")
    hard = fedloom.train(
        problem,
        SharingADMM(stop=1e-11),
        rounds=5000,
        select=3,
        fleet=Fleet(loss=0.2),
        channel=Channel((Quantise(4),)),
        evaluate=[],
        executor="serial",
    )
    torch.testing.assert_close(hard.theta, plain.theta, rtol=0, atol=1e-7)


def test_a_run_on_columns_is_evaluated_once_and_is_a_folder_like_any_other(tmp_path: Path) -> None:
    experiment = Experiment.load(None, {**BREAST_CANCER, "rounds": 20, "evaluation.every": 10})
    run = experiment.run(tmp_path / "run")
    assert run.summary["spread"]["accuracy"]["clients"] == 1
    assert run.summary["parameters"] == 31
    again = Experiment.load(tmp_path / "run" / "config.toml").run()
    assert again.summary["theta_sha256"] == run.summary["theta_sha256"]


def test_central_training_on_columns_sees_the_whole_table() -> None:
    data = fedloom.federate("breast-cancer", partition="features", clients=5)
    problem = Problem(data, fedloom.build_model("linear", data))
    run = fedloom.train(problem, fedloom.Central(lr=0.1, epochs=3), rounds=5, executor="serial")
    assert run.summary["metrics"]["accuracy"] > 0.9
    assert run.summary["gradient_evaluations"] == 5 * 3 * len(data.splits["train"][0])


def test_a_horizontal_method_refuses_columns_and_says_what_to_use() -> None:
    with pytest.raises(ConfigError, match=r"fedavg trains clients that hold rows .* use sharing-admm"):
        fedloom.train(vertical().problem, FedAvg(), rounds=1)
    with pytest.raises(ConfigError, match=r"scaffold trains clients that hold rows .* use sharing-admm"):
        Experiment.load(None, {**BREAST_CANCER, "method.name": "scaffold"}).check()


def test_it_refuses_rows_and_says_what_to_use() -> None:
    with pytest.raises(ConfigError, match="hold rows; set partition = 'features', or use a method for rows"):
        fedloom.train(make_problem(), SharingADMM(), rounds=1)


def test_it_refuses_a_network() -> None:
    known = vertical("classification")
    problem = Problem(known.problem.data, fedloom.build_model("mlp", known.problem.data, hidden=[4]))
    with pytest.raises(ConfigError, match="needs a linear model"):
        fedloom.train(problem, SharingADMM(), rounds=1)


def test_it_refuses_a_loss_without_a_proximal_step_and_names_those_that_have_one() -> None:
    class Quartic(Loss):
        name, tasks = "quartic", ("regression",)

        def rows(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (out - y).pow(4).mean(-1)

        def slope(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return 4 * (out - y).pow(3) / y.shape[-1]

        def curve(self, out: torch.Tensor, y: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return 12 * (out - y).square() * v / y.shape[-1]

    known = vertical()
    problem = Problem(known.problem.data, known.problem.model, dtype=F64)
    problem.loss = Quartic()
    with pytest.raises(ConfigError, match=r"'quartic' has no proximal step.*squared"):
        fedloom.train(problem, SharingADMM(), rounds=1)


@pytest.mark.parametrize("settings", [{"rho": 0.0}, {"rho": -1.0}, {"strength": -0.1}, {"regulariser": "huber"}])
def test_parameters_that_cannot_be_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        fedloom.train(vertical().problem, SharingADMM(**settings), rounds=1)


@pytest.mark.parametrize("model", ["personal", "adapted"])
def test_a_party_has_no_model_of_its_own_to_be_judged(model: Any) -> None:
    with pytest.raises(ConfigError, match="only all of them together have a model"):
        fedloom.train(vertical().problem, SharingADMM(), rounds=1, evaluate=fedloom.Evaluation(model=model))
