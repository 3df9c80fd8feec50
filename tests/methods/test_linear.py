"""The linear baselines against scikit-learn, and λ by cross-validation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC

import fedloom
from fedloom.errors import ConfigError
from fedloom.federation import linear
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw

LAMBDA = 0.05


def problem_of(loss: str, clients: int = 3, bias: bool = False, **options: Any) -> Problem:
    """Some rows of cell nuclei, standardised, for three clients."""
    table = fedloom.load("breast-cancer").take(torch.arange(240))
    x = ((table.x - table.x.mean(0)) / table.x.std(0))[:, :8]
    table = replace(table, x=x, feature_names=(), encoding=None, scaling=None)
    if loss == "squared":
        table = replace(table, y=x @ torch.arange(8.0)[:, None] / 8 + table.y, task="regression", classes=())
    data = fedloom.federate(table, clients=clients, **options)
    model = fedloom.build_model("linear", data, bias=bias)
    return Problem(data, model, loss, torch.float64, options.pop("class_weights", None))


def sklearns(problem: Problem, rows: Any, lambda_: float, bias: bool = False) -> np.ndarray[Any, Any]:
    """argmin (1/n) Σ ℓ + (λ/2)‖w‖² as scikit-learn finds it."""
    x, y = problem.x[rows].numpy(), problem.y[rows, 0].numpy()
    x = np.hstack([x, np.ones((len(x), 1))]) if bias else x
    c = 1 / (lambda_ * len(x))
    if problem.loss.name == "squared":
        return Ridge(alpha=lambda_ * len(x), fit_intercept=False, tol=1e-12).fit(x, y).coef_
    if problem.loss.name == "hinge":
        svm = LinearSVC(loss="hinge", C=c, fit_intercept=False, tol=1e-10, max_iter=1_000_000)
        return svm.fit(x, y).coef_[0]
    logistic = LogisticRegression(C=c, fit_intercept=False, tol=1e-12, max_iter=10_000, solver="newton-cg")
    return logistic.fit(x, y).coef_[0]


def models(problem: Problem, **how: Any) -> torch.Tensor:
    """The clients' own models after a round."""
    method, client = fedloom.LocalLinear(**how), problem.client(np.arange(problem.data.clients), Draw(0))
    reply, memory = method.client(client, {}, method.client_init(client, {}))
    assert reply == {}
    return memory["x"]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("loss", "tolerance"), [("hinge", 1e-4), ("squared", 1e-6), ("binary", 1e-6)])
def test_both_baselines_are_scikit_learns_models(loss: str, tolerance: float, bias: bool) -> None:
    problem = problem_of(loss, bias=bias)
    alone = models(problem, lambda_=LAMBDA, accuracy=1e-12)
    train = problem.data.splits["train"]
    for client in range(3):
        wanted = sklearns(problem, train[client], LAMBDA, bias)
        np.testing.assert_allclose(alone[client], wanted, atol=tolerance)
    pooled = fedloom.train(problem, fedloom.GlobalLinear(lambda_=LAMBDA, accuracy=1e-12), evaluate=None)
    np.testing.assert_allclose(pooled.theta, sklearns(problem, train.every(), LAMBDA, bias), atol=tolerance)
    told, w = pooled.history[-1]["measures"], pooled.theta
    loss = problem.loss.rows(problem.model(w, problem.x[train.every()]), problem.y[train.every()]).mean()
    assert told == pytest.approx({"lambda": LAMBDA, "objective": float(loss + LAMBDA / 2 * w @ w)})


@pytest.mark.parametrize("loss", ["hinge", "squared", "binary"])
def test_lambda_has_the_least_mean_error_on_the_rows_that_each_fold_leaves_out(loss: str) -> None:
    problem = problem_of(loss, validation=0.0)
    grid, folds = (1e-3, 1e-2, 0.1, 1.0, 10.0), 4
    client = problem.client(np.arange(3), Draw(7, 5))
    found = linear.chosen(client, grid, folds)
    fold = linear.dealt(client, folds)
    owner, train = np.repeat(np.arange(3), client.sizes()), problem.data.splits["train"]
    assert client.evaluations.min() > 0
    for one in range(3):
        rows, own = train[one].numpy(), fold[owner == one]
        assert sorted(np.bincount(own)) == sorted(len(part) for part in np.array_split(own, folds))
        errors = {}
        for lambda_ in grid:
            each = []
            for number in range(folds):
                w = sklearns(problem, torch.from_numpy(rows[own != number]), lambda_)
                x, y = problem.x[rows[own == number]].numpy(), problem.y[rows[own == number], 0].numpy()
                wrong = (x @ w - y) ** 2 if loss == "squared" else (x @ w > 0) != (y > 0.5)
                each.append(wrong.mean())
            errors[lambda_] = np.mean(each)
        least = min(errors.values())
        assert errors[float(np.float64(found[one]).round(12))] <= least + (1e-3 if loss == "squared" else 1e-9)


def test_lambda_does_not_depend_on_the_stack_or_the_round() -> None:
    problem = problem_of("hinge", clients=4)
    together = linear.chosen(problem.client(np.arange(4), Draw(3, 2)), (0.01, 0.1, 1.0), 5)
    for client in range(4):
        alone = linear.chosen(problem.client(client, Draw(3, 9)), (0.01, 0.1, 1.0), 5)
        assert torch.equal(alone, together[client])


def test_rows_count_in_the_choice_for_what_they_count_for_in_the_loss() -> None:
    """Rare positives: plain errors choose a model that says no to all, weighted ones do not."""
    random = np.random.default_rng(0)
    y = (np.arange(400) % 10 == 0).astype(np.float32)[:, None]
    x = (random.standard_normal((400, 2)) + 1.2 * y).astype(np.float32)
    x = np.hstack([x, np.ones((400, 1), dtype=np.float32)])
    data = fedloom.federate(fedloom.from_arrays(x, y[:, 0].astype(int)), clients=1)
    said = []
    for weights in (None, "balanced"):
        problem = Problem(data, fedloom.build_model("linear", data, bias=False), "hinge", torch.float64, weights)
        said.append(float((problem.x @ models(problem)[0] > 0).double().mean()))
    assert said[0] < 0.05 < 0.2 < said[1]


def test_a_client_with_fewer_rows_than_folds_has_a_model_too() -> None:
    table = fedloom.load("breast-cancer").take(torch.arange(12))
    table = replace(table, groups=torch.tensor([0] * 9 + [1] * 2 + [2]), group_names=("many", "two", "one"))
    data = fedloom.federate(table, test=0.0, support=None)
    problem = Problem(data, fedloom.build_model("linear", data), "hinge", torch.float64)
    found = models(problem)
    assert found.isfinite().all()
    assert found.any(1).all()


def test_several_classes_go_one_against_the_rest_and_a_network_is_refused() -> None:
    data = fedloom.federate("digits", clients=2)
    problem = Problem(data, fedloom.build_model("linear", data), "ovr-hinge")
    run = fedloom.train(problem, fedloom.GlobalLinear(lambda_=0.01, accuracy=1e-3))
    assert run.summary["metrics"]["accuracy"] > 0.9
    with pytest.raises(ConfigError, match="global-linear needs a linear model"):
        fedloom.train(Problem(data, fedloom.build_model("mlp", data), "ovr-hinge"), fedloom.GlobalLinear())
    with pytest.raises(ConfigError, match="local-linear needs a loss with a conjugate"):
        fedloom.train(Problem(data, fedloom.build_model("linear", data)), fedloom.LocalLinear())
