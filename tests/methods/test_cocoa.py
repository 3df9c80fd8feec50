"""CoCoA, CoCoA+ and mini-batch SDCA as a user runs them: the convex optimum, any schedule, rows that come and go."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedloom
from fedloom.errors import ConfigError
from fedloom.federation.distributions import Distribution
from fedloom.federation.ragged import Ragged

F64 = torch.float64
LAM = 0.05
ALL = {"cocoa": fedloom.CoCoA, "cocoa-plus": fedloom.CoCoAPlus}


@cache
def problem(loss: str, bias: bool = True) -> fedloom.Problem:
    """A few noisy rows of four clients, of two classes or three, or with a number as a label."""
    random, sizes = np.random.default_rng(1), [14, 9, 20, 12]
    n = sum(sizes)
    x = random.standard_normal((2 * n, 4))
    score = x @ [1.0, -1.0, 0.5, 0.0] + 0.5 + random.standard_normal(2 * n)
    task: Any = "regression" if loss == "regression" else "classification" if loss.startswith("ovr") else "binary"
    labels = {
        "binary": (score > 0).astype(float)[:, None],
        "regression": score[:, None],
        "classification": np.digitize(score, [-1.0, 1.0]),
    }
    first = torch.arange(n).split(sizes)
    splits = {"train": Ragged.of(list(first)), "test": Ragged.of([rows + n for rows in first])}
    classes = ("low", "middle", "high") if task == "classification" else ()
    data = fedloom.FederatedData(
        "made up", torch.from_numpy(x), torch.from_numpy(labels[task]), task, splits, classes=classes
    )
    model = fedloom.build_model("linear", data, bias=bias)
    return fedloom.Problem(data, model, "squared" if loss == "regression" else loss, F64)


def pooled(one: fedloom.Problem) -> tuple[np.ndarray, Tensor]:
    """All training rows, with a one more where the model has a bias, and their labels."""
    rows = one.data.splits["train"].every()
    x = one.x[rows].flatten(1).numpy().astype(float)
    wide = one.model.n > x.shape[1] * one.data.outputs
    return (np.concatenate([x, np.ones((len(x), 1))], 1) if wide else x), one.y[rows]


def convex_optimum(one: fedloom.Problem) -> float:
    """min (λ/2)‖W‖² + (1/n) Σ ℓ, by an independent solver."""
    import cvxpy as cp

    x, y = pooled(one)
    outputs = one.data.outputs
    target, share = one.loss.parts(y, outputs)
    W, t, s = cp.Variable((x.shape[1], outputs)), target.numpy(), share.numpy() / len(x)
    out = x @ W
    name = one.loss.name.removeprefix("ovr-")
    short = cp.pos(1 - cp.multiply(t, out))
    each = {
        "hinge": lambda: short,
        "smoothed-hinge": lambda: cp.huber(short, 1.0) / 2,
        "binary": lambda: cp.logistic(-cp.multiply(t, out)),
        "squared": lambda: cp.square(out - t) / 2,
    }[name]()
    found = cp.Problem(cp.Minimize(LAM / 2 * cp.sum_squares(W) + cp.sum(cp.multiply(s, each))))
    return float(found.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11))


def figures(run: fedloom.Run) -> dict[str, float]:
    """The method's own, of the last round that has any."""
    return next(row["measures"] for row in reversed(run.history) if "measures" in row)


@pytest.mark.parametrize("loss", ["hinge", "smoothed-hinge", "binary", "squared", "regression", "ovr-hinge"])
def test_both_objectives_come_to_that_of_an_independent_solver(loss: str) -> None:
    one = problem(loss)
    best = convex_optimum(one)
    method = fedloom.CoCoAPlus(lambda_=LAM, epochs=5, stop=3e-7)
    run = fedloom.train(one, method, rounds=600, evaluate=fedloom.Evaluation(every=25))
    assert run.summary["stopped"] == "converged"
    told = figures(run)
    assert told["primal"] == pytest.approx(best, rel=1e-6)
    assert told["dual"] == pytest.approx(best, rel=1e-6)
    assert told["gap"] == pytest.approx(told["primal"] - told["dual"])


@pytest.mark.parametrize("name", ALL)
def test_it_is_the_pooled_support_vector_machine_of_scikit_learn(name: str) -> None:
    from sklearn.svm import LinearSVC

    one = problem("hinge", bias=False)
    x, y = pooled(one)
    run = fedloom.train(one, ALL[name](lambda_=LAM, epochs=5, stop=1e-9), rounds=400)
    fit = LinearSVC(C=1 / (LAM * len(x)), loss="hinge", fit_intercept=False, tol=1e-9, max_iter=10**6, random_state=0)
    assert np.abs(run.theta.numpy() - fit.fit(x, y[:, 0].numpy()).coef_[0]).max() < 1e-4


def test_it_is_the_pooled_logistic_regression_of_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression

    one = problem("binary", bias=False)
    x, y = pooled(one)
    run = fedloom.train(one, fedloom.CoCoA(lambda_=LAM, epochs=5, stop=1e-12), rounds=400)
    fit = LogisticRegression(C=1 / (LAM * len(x)), fit_intercept=False, solver="newton-cholesky", tol=1e-12)
    assert np.abs(run.theta.numpy() - fit.fit(x, y[:, 0].numpy()).coef_[0]).max() < 1e-6


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "how",
    [
        {"select": 2},
        {"schedule": "async", "fleet": fedloom.Fleet(delay_up=Distribution("exponential", 10.0), redraw=True)},
        {"schedule": "async", "fleet": fedloom.Fleet(speed=Distribution("uniform", 10.0, 1000.0))},
        {"fleet": fedloom.Fleet(loss=0.4, stragglers=0.5)},
    ],
    ids=["sampled", "any order", "unequal speeds", "lost and slow"],
)
def test_whoever_answers_and_whenever_the_optimum_is_the_same(name: str, how: dict[str, Any]) -> None:
    """With σ′ = γK, or averaged over all K, replies to an older w only delay it."""
    one = problem("binary")
    best = convex_optimum(one)
    run = fedloom.train(
        one, ALL[name](lambda_=LAM, epochs=4, stop=1e-8), rounds=2000, evaluate=fedloom.Evaluation(every=50), **how
    )
    assert run.summary["stopped"] == "converged"
    assert figures(run)["primal"] == pytest.approx(best, rel=1e-7)


def test_rows_that_come_and_go_leave_no_trace() -> None:
    """Of a stream a client keeps its last eight rows: in the end w is the optimum of these alone."""
    one = problem("binary")
    fleet = fedloom.Fleet(speed=Distribution("constant", 100.0), storage=8)
    stream = fedloom.Stream(start=Distribution("constant", 0.3), duration=Distribution("constant", 5.0))
    method = fedloom.CoCoAPlus(lambda_=LAM, epochs=4, stop=1e-9)
    run = fedloom.train(one, method, rounds=400, stream=stream, fleet=fleet)
    assert min(row["measures"]["gap"] for row in run.history) >= -1e-15
    left = Ragged.of([one.data.splits["train"][k][-8:] for k in range(4)])
    rest = fedloom.Problem(replace(one.data, splits={**one.data.splits, "train": left}), one.model, "binary", F64)
    assert figures(run)["primal"] == pytest.approx(convex_optimum(rest), rel=1e-7)


def test_a_run_that_is_resumed_stops_where_it_would_have(tmp_path: Path) -> None:
    one, method = problem("binary"), fedloom.CoCoAPlus(lambda_=LAM, stop=1e-4)
    whole = fedloom.train(one, method, rounds=300, out=tmp_path / "whole")
    fedloom.train(one, method, rounds=4, out=tmp_path / "part")
    rest = fedloom.train(one, method, rounds=300, out=tmp_path / "part", resume=True, force_settings=True)
    assert whole.summary["stopped"] == rest.summary["stopped"] == "converged"
    assert whole.summary["rounds"] == rest.summary["rounds"]
    assert whole.summary["theta_sha256"] == rest.summary["theta_sha256"]
    again = fedloom.train(one, method, rounds=300, out=tmp_path / "part", resume=True, force_settings=True)
    assert again.summary["rounds"] == whole.summary["rounds"]


def test_the_last_round_of_a_run_that_converged_is_evaluated_in_full() -> None:
    one = problem("binary")
    run = fedloom.train(
        one, fedloom.CoCoAPlus(lambda_=LAM, stop=1e-3), rounds=300, evaluate=fedloom.Evaluation(every=3)
    )
    assert run.summary["stopped"] == "converged"
    assert "evaluation" in run.history[-1]
    assert run.history[-1]["measures"]["gap"] <= 1e-3 * run.history[-1]["measures"]["primal"]


def test_the_history_says_which_loop_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedloom.federation import client, coordinates, dual

    one, method = problem("binary"), fedloom.CoCoA(lambda_=LAM)
    pytest.importorskip("numba")
    fast = fedloom.train(one, method, rounds=2, executor="serial")
    for place in (client, coordinates, dual):
        monkeypatch.setattr(place, "loop", coordinates.Plain)
    slow = fedloom.train(one, method, rounds=2, executor="serial")
    assert (figures(fast)["compiled"], figures(slow)["compiled"]) == (1.0, 0.0)
    assert torch.allclose(fast.theta, slow.theta, rtol=1e-12, atol=1e-12)


def test_every_class_against_the_rest_is_a_machine_of_its_own() -> None:
    from sklearn.svm import LinearSVC

    one = problem("ovr-hinge", bias=False)
    x, y = pooled(one)
    run = fedloom.train(one, fedloom.CoCoAPlus(lambda_=LAM, epochs=5, stop=1e-8), rounds=600)
    fit = LinearSVC(C=1 / (LAM * len(x)), loss="hinge", fit_intercept=False, tol=1e-9, max_iter=10**6, random_state=0)
    assert np.abs(run.theta.view(3, -1).numpy() - fit.fit(x, y.numpy()).coef_).max() < 1e-4
    assert run.summary["metrics"]["accuracy"] > 0.5


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (fedloom.CoCoA(lambda_=0.0), "lambda_ = 0.0 cannot be"),
        (fedloom.CoCoA(beta=5.0), "beta = 5, but there are 4 clients.*choose 1 to 4"),
        (fedloom.CoCoAPlus(steps=3, accuracy=0.1), "steps = 3 and accuracy = 0.1 say two things.*leave one out"),
        (fedloom.CoCoAPlus(accuracy=1.0), "accuracy = 1.0 cannot be"),
        (fedloom.CoCoAPlus(gamma=0.0), "gamma = 0.0 cannot be"),
        (fedloom.MiniBatchSDCA(beta=-1.0), "beta = -1.0 cannot be"),
    ],
)
def test_settings_that_cannot_be_are_refused(method: fedloom.Method, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fedloom.train(problem("hinge"), method, rounds=1)


def test_a_lossy_channel_a_network_and_several_classes_are_refused() -> None:
    wine = problem("ovr-hinge").data
    with pytest.raises(ConfigError, match="needs exact messages"):
        fedloom.train(problem("hinge"), fedloom.CoCoA(), channel=fedloom.Channel((fedloom.Quantise(8),)))
    with pytest.raises(ConfigError, match=r"cocoa needs a linear model.*no strong duality"):
        fedloom.train(fedloom.Problem(wine, fedloom.build_model("mlp", wine)), fedloom.CoCoA())
    with pytest.raises(ConfigError, match=r"'cross-entropy' has none here.*ovr-hinge.*positive = \"NAME\""):
        fedloom.train(fedloom.Problem(wine, fedloom.build_model("linear", wine)), fedloom.CoCoAPlus())
