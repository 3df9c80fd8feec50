"""Consensus ADMM against independent solvers, by hand, and its refusals; the conformance kit has the rest."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedloom
from fedloom.channel import Channel, Quantise
from fedloom.conformance.problems import Known, least_squares, logistic, quadratics
from fedloom.engine.fleet import Fleet
from fedloom.errors import ConfigError
from fedloom.methods import ADMM
from problems import make_problem, run, start

F64 = torch.float64


def trained(known: Known, method: ADMM, rounds: int = 200, **how: Any) -> fedloom.Run:
    return fedloom.train(known.problem, method, rounds=rounds, evaluate=[], executor="serial", **how)


def pooled(known: Known) -> tuple[np.ndarray, np.ndarray]:
    parts = [known.rows(client) for client in known.clients]
    return torch.cat([z[:, :-1] for z, _ in parts]).numpy(), torch.cat([y for _, y in parts]).numpy()


@pytest.mark.parametrize(
    ("settings", "theirs"),
    [
        ({"regulariser": "ridge", "strength": 0.4}, lambda m, n: m.Ridge(0.4 * n, solver="cholesky")),
        ({"regulariser": "lasso", "strength": 0.2}, lambda m, n: m.Lasso(0.2, tol=1e-15, max_iter=100_000)),
        (
            {"regulariser": "elastic-net", "strength": 0.3, "l1_share": 0.7},
            lambda m, n: m.ElasticNet(0.3, l1_ratio=0.7, tol=1e-15, max_iter=100_000),
        ),
    ],
)
def test_the_strength_means_what_it_means_in_scikit_learn(settings: dict[str, Any], theirs: Any) -> None:
    from sklearn import linear_model

    known = least_squares()
    x, y = pooled(known)
    fit = theirs(linear_model, len(x)).fit(x, y)
    found = trained(known, ADMM(**settings)).theta.numpy()
    np.testing.assert_allclose(found, np.append(fit.coef_, fit.intercept_), rtol=0, atol=1e-8)


def test_logistic_regression_with_ridge_is_scikit_learns() -> None:
    from sklearn.linear_model import LogisticRegression

    known = logistic()
    x, y = pooled(known)
    fit = LogisticRegression(C=1 / (0.1 * len(x)), solver="newton-cholesky", tol=1e-13, max_iter=1000).fit(x, y)
    found = trained(known, ADMM(rho=0.1, regulariser="ridge", strength=0.1)).theta.numpy()
    np.testing.assert_allclose(found, np.append(fit.coef_[0], fit.intercept_), rtol=0, atol=1e-8)


def test_the_server_counts_biases_when_asked_to() -> None:
    strong = {"regulariser": "lasso", "strength": 100.0}
    known = least_squares()
    assert torch.count_nonzero(trained(known, ADMM(**strong)).theta) == 1
    assert torch.count_nonzero(trained(known, ADMM(penalise_bias=True, **strong)).theta) == 0


def test_two_rounds_are_what_the_equations_give_by_hand() -> None:
    known, rho = quadratics(), 0.7
    engine = start(known.problem, ADMM(rho=rho, weighting="uniform"), evaluations=())
    z, a = engine.state["z"], known.hessians
    b = (a @ known.optima.unsqueeze(-1)).squeeze(-1)
    price = torch.zeros_like(b)
    eye = torch.eye(4, dtype=F64)
    for _ in range(2):
        x = torch.linalg.solve(a + rho * eye, b - price + rho * z)
        z = (x + price / rho).mean(0)
        price = price + rho * (x - z)
        z_before = engine.state["z"]
        engine.step()
        torch.testing.assert_close(engine.state["z"], z, rtol=0, atol=1e-13)
        memory, _ = engine.store.gather(torch.arange(5))
        torch.testing.assert_close(memory["m"] - rho * z, price, rtol=0, atol=1e-13)
        primal, dual = (x - z).norm(), rho * 5**0.5 * (z - z_before).norm()
        torch.testing.assert_close(engine.state["primal"], primal, rtol=0, atol=1e-12)
        torch.testing.assert_close(engine.state["dual"], dual, rtol=0, atol=1e-12)


@pytest.mark.parametrize("settings", [{"rho_by": "size"}, {"weighting": "uniform", "rho_by": "size"}, {}])
def test_residuals_count_every_client_whatever_its_penalty(settings: dict[str, Any]) -> None:
    known = quadratics(unequal=True)
    engine = run(known.problem, ADMM(relaxation=1.4, **settings), 3, evaluations=())
    memory, _ = engine.store.gather(torch.arange(5))
    primal = (memory["x"] - engine.state["z"]).norm()
    torch.testing.assert_close(engine.state["primal"], primal, rtol=1e-10, atol=0)


def test_a_new_penalty_leaves_the_prices_as_they_were() -> None:
    known = quadratics()
    engine = run(known.problem, ADMM(adaptive=True, rho=500.0), 1, evaluations=())
    assert float(engine.state["rho"]) != 500.0
    memory, _ = engine.store.gather(torch.arange(5))
    price = memory["m"] - memory["rho"] * engine.state["z"]
    engine.step()
    after, _ = engine.store.gather(torch.arange(5))
    again = after["m"] - after["rho"] * after["x"]  # m_i = ρ_i x_i + λ_i
    torch.testing.assert_close(again, price, rtol=0, atol=1e-11)


def test_an_adaptive_penalty_that_fits_badly_needs_fewer_rounds() -> None:
    known = quadratics()

    def off(method: ADMM) -> float:
        return float((trained(known, method, 40).theta - known.optimum).abs().max())

    for rho in (1e-3, 1e3):
        assert off(ADMM(rho=rho, adaptive=True)) < 1e-3 * off(ADMM(rho=rho))


def test_the_history_has_the_residuals() -> None:
    known = quadratics()
    made = fedloom.train(known.problem, ADMM(), rounds=30, evaluate=fedloom.Evaluation(split="train"))
    assert made.history[0]["measures"] == {"rho": 1.0}
    first, last = (made.history[t]["measures"] for t in (1, 30))
    assert last["primal_residual"] < 1e-3 * first["primal_residual"]
    assert last["dual_residual"] < 1e-3 * first["dual_residual"]
    assert "measures.primal_residual" in made.frame()


def test_a_run_ends_once_it_has_converged_and_says_so(tmp_path: Path) -> None:
    known = quadratics()
    made = trained(known, ADMM(stop=1e-9), 500, out=tmp_path / "run")
    assert made.summary["stopped"] == "converged"
    assert made.summary["rounds"] == made.history[-1]["round"] < 200
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["stopped"] == "converged"
    torch.testing.assert_close(made.theta, known.optimum, rtol=0, atol=1e-7)
    before = (tmp_path / "run" / "history.jsonl").read_bytes()
    again = trained(known, ADMM(stop=1e-9), 500, out=tmp_path / "run", resume=True)
    assert (again.summary["stopped"], again.summary["rounds"]) == ("converged", made.summary["rounds"])
    assert (tmp_path / "run" / "history.jsonl").read_bytes() == before


def test_the_last_round_of_a_run_that_converged_is_evaluated() -> None:
    seldom = fedloom.Evaluation(split="train", every=1000)
    made = fedloom.train(quadratics().problem, ADMM(stop=1e-6), rounds=500, evaluate=seldom)
    assert "evaluation" in made.history[-1]


def test_a_run_that_does_all_of_its_rounds_says_so() -> None:
    assert trained(quadratics(), ADMM(), 5).summary["stopped"] == "rounds"
    assert trained(quadratics(), ADMM(stop=1e-9), 5).summary["stopped"] == "rounds"


@pytest.mark.parametrize(
    "how",
    [{"select": 2}, {"fleet": Fleet(loss=0.3)}, {"channel": Channel((Quantise(4),))}],
    ids=lambda how: next(iter(how)),
)
def test_it_stops_only_at_the_optimum_when_replies_are_missing_or_rough(how: dict[str, Any]) -> None:
    known = quadratics()
    made = trained(known, ADMM(stop=1e-8), 2000, **how)
    assert made.summary["stopped"] == "converged"
    torch.testing.assert_close(made.theta, known.optimum, rtol=0, atol=1e-6)


def test_a_cold_start_finds_the_same() -> None:
    known = logistic()
    found = trained(known, ADMM(rho=0.1, warm_start=False), 150).theta
    torch.testing.assert_close(found, known.optimum, rtol=0, atol=1e-8)


@pytest.mark.parametrize("solver", ["auto", "gradient"])
@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_networks_learn_and_the_user_is_warned(model: str, solver: Any) -> None:
    problem = make_problem(model)
    method = ADMM(rho=0.5, solver=solver, max_iterations=5, lr=0.2, epochs=20)
    with pytest.warns(UserWarning, match="neither convergence nor the limit is guaranteed"):
        made = fedloom.train(problem, method, rounds=8, executor="serial")
    client, theta0 = problem.client(range(5)), start(problem, method).theta0
    assert client.loss(made.theta).mean() < 0.95 * client.loss(theta0).mean()


def test_linear_models_are_not_warned_about() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(logistic(), ADMM(rho=0.1), 1)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"rho": 0.0}, "rho = 0.0 cannot be: .*greater than 0"),
        ({"rho": -1.0}, "rho = -1.0"),
        ({"rho": float("nan")}, "rho = nan"),
        ({"relaxation": 2.0}, "relaxation = 2.0 cannot be: .*less than 2"),
        ({"stop": -1.0}, "stop = -1.0"),
        ({"regulariser": "tikhonov"}, "regulariser = 'tikhonov' cannot be: .*'none', 'ridge'"),
        ({"regulariser": "lasso", "strength": -0.1}, "strength = -0.1"),
        ({"regulariser": "box", "low": 1.0, "high": 0.0}, "low = 1.0 is above high = 0.0"),
        ({"solver": "simplex"}, "solver = 'simplex' cannot be: .*'auto'"),
        ({"solver": "exact"}, "use solver = 'newton' for other linear models"),
    ],
)
def test_impossible_settings_are_refused_before_any_work(settings: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        trained(logistic(), ADMM(**settings), 3, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
