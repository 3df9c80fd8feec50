"""MOCHA as a user runs it: the convex optimum, scikit-learn, faults, new tasks, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from sklearn.svm import LinearSVC
from torch import Tensor

import fedloom
from fedloom.conformance import DECLARATIONS, check_method
from fedloom.engine.engine import _placed
from fedloom.errors import ConfigError, DataError
from fedloom.federation.ragged import Ragged
from fedloom.federation.randomness import Draw
from fedloom.federation.relations import safe
from fedloom.methods.method import Context
from fedloom.methods.mocha import MOCHA
from fedloom.types import State

F64 = torch.float64
TIGHT = {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}


@cache
def problem(
    tasks: int = 5, features: int = 3, loss: str = "hinge", targets: int = 0, noise: float = 0.5
) -> fedloom.Problem:
    """Yes or no of tasks in two groups that want the opposite; the last ones may be targets, which never train."""
    random, rows = np.random.default_rng(2), 12
    sides = np.where(np.arange(tasks) % 2, -1.0, 1.0)
    direction = random.standard_normal(features)
    x = random.standard_normal((tasks * 2 * rows, features))
    score = np.repeat(sides, 2 * rows) * (x @ direction) + noise * random.standard_normal(len(x))
    own = torch.arange(len(x)).view(tasks, 2, rows)
    train, test = Ragged.of(list(own[:, 0])), Ragged.of(list(own[:, 1]))
    splits = {"train": train, "test": test, "support": Ragged.of(list(own[:, 0, :5])), "query": test}
    roles = torch.tensor([0] * (tasks - targets) + [1] * targets, dtype=torch.int8) if targets else None
    y = torch.from_numpy((score > 0).astype(float))[:, None]
    data = fedloom.FederatedData("made up", torch.from_numpy(x), y, "binary", splits, roles=roles)
    return fedloom.Problem(data, fedloom.build_model("linear", data, bias=False), loss, F64)


def rows_of(one: fedloom.Problem, client: int) -> tuple[np.ndarray, np.ndarray]:
    at = one.data.splits["train"][client]
    return one.x[at].numpy(), 2 * one.y[at, 0].numpy() - 1


def trained(one: fedloom.Problem, rounds: int = 300, **method: Any) -> fedloom.Run:
    evaluate = fedloom.Evaluation(every=25)
    return fedloom.train(one, MOCHA(**{"stop": 0.0, **method}), rounds=rounds, evaluate=evaluate)


def figures(run: fedloom.Run) -> dict[str, float]:
    return next(row["measures"] for row in reversed(run.history) if "measures" in row)


def hinges(one: fedloom.Problem, w: cp.Variable) -> Any:
    """Σ_t Σ_i max(0, 1 − y w_t·x), W having one row a task."""
    return cp.sum(
        [cp.sum(cp.pos(1 - cp.multiply(y, x @ w[t]))) for t in range(w.shape[0]) for x, y in [rows_of(one, t)]]
    )


# The optimum


def test_primal_and_dual_come_to_the_optimum_of_an_independent_solver() -> None:
    one = problem()
    w = cp.Variable((5, 3))
    apart = cp.sum_squares(w - np.full((5, 5), 0.2) @ w)
    best = cp.Problem(cp.Minimize(hinges(one, w) + 0.4 * apart + 0.1 * cp.sum_squares(w))).solve("CLARABEL", **TIGHT)
    told = figures(trained(one, 400, relation="mean", lambda1=0.4, lambda2=0.1, epochs=5))
    assert told["primal"] == pytest.approx(best, rel=1e-6)
    assert told["dual"] == pytest.approx(best, rel=1e-6)
    assert 0 <= told["gap"] + 1e-12 <= 1e-6 * best


def test_models_and_covariance_come_to_the_joint_optimum_of_an_independent_solver() -> None:
    one, floor = problem(), 0.3
    w, covariance = cp.Variable((5, 3)), cp.Variable((5, 5), symmetric=True)
    related = cp.sum([cp.matrix_frac(w[:, j], covariance) for j in range(3)])
    bounds = [covariance >> floor / 5 * np.eye(5), cp.trace(covariance) == 1]
    objective = hinges(one, w) + 0.1 * related + 0.05 * cp.sum_squares(w)
    best = cp.Problem(cp.Minimize(objective), bounds).solve("CLARABEL")
    run = trained(one, 500, lambda1=0.1, lambda2=0.05, floor=floor, epochs=5, inner=10)
    assert figures(run)["primal"] == pytest.approx(best, rel=2e-6)
    assert torch.linalg.inv(run.state["omega"]).numpy() == pytest.approx(covariance.value, abs=1e-3)


def test_tasks_that_are_not_related_are_support_vector_machines_of_their_own() -> None:
    one, lambda1 = problem(), 0.02  # Σ = I/m: each task has λ₁m‖w‖², and λ = 2λ₁
    run = trained(one, lambda1=lambda1, lambda2=0.0, inner=0, epochs=10)
    for t in range(5):
        x, y = rows_of(one, t)
        C = 1 / (2 * lambda1 * 5)
        alone = LinearSVC(C=C, loss="hinge", fit_intercept=False, tol=1e-10, max_iter=10**6, dual=True).fit(x, y)
        assert run.state["w"][t].numpy() == pytest.approx(alone.coef_[0], abs=1e-4)


def test_the_gap_of_a_fixed_covariance_comes_to_nothing() -> None:
    told = figures(trained(problem(), 600, relation="mean", lambda1=0.4, lambda2=0.2, epochs=5))
    assert -1e-12 <= told["gap"] <= 1e-10


def test_related_tasks_need_the_safe_factor() -> None:
    one = problem(loss="squared")
    how = {"relation": "mean", "lambda1": 1.0, "lambda2": 0.001, "epochs": 5, "rounds": 30}
    safe_run, rash_run = trained(one, **how), trained(one, sigma=1.0, **how)
    assert figures(safe_run)["gap"] < 0.2 * figures(rash_run)["primal"]
    assert not figures(rash_run)["gap"] < figures(safe_run)["gap"] * 10


def test_a_node_that_drops_now_and_then_moves_no_limit_and_one_that_always_does_moves_it() -> None:
    how: dict[str, Any] = {"relation": "mean", "lambda1": 0.4, "lambda2": 0.2, "epochs": 5}
    whole = trained(problem(), 300, **how)
    method, evaluate = MOCHA(stop=0.0, **how), fedloom.Evaluation(every=0)
    often = fedloom.train(problem(), method, rounds=600, fleet=fedloom.Fleet(dropout=0.5), evaluate=evaluate)
    assert torch.allclose(often.state["w"], whole.state["w"], atol=1e-5)
    never = fedloom.train(problem(), method, rounds=300, fleet=fedloom.Fleet(absent=0.3), evaluate=evaluate)
    gone = ~never.state["heard"]
    assert 0 < int(gone.sum()) < 5
    assert bool((never.state["v"][gone] == 0).all())
    assert float((never.state["w"] - whole.state["w"]).abs().max()) > 1e-2


def test_more_tasks_than_features_are_handled() -> None:
    one = problem(tasks=9, features=2)
    for relation in ("probabilistic", "clustered"):
        run = trained(one, 60, relation=relation, lambda1=0.05, lambda2=0.0, inner=5, epochs=2)
        assert bool(torch.isfinite(run.state["omega"]).all())
        assert figures(run)["gap"] >= -1e-9
        matrix = torch.tensor(run.summary["relations"]["matrix"])
        assert float(matrix[0, 2]) > 0.3 > -0.3 > float(matrix[0, 1])  # of one group, and of both


def test_the_mean_of_the_dual_variables_is_as_near_as_theorem_2_says() -> None:
    """Of the objective that is a sum, n in the theorem is 1; the hinge is 1-Lipschitz, and θ is at most ``theta``."""
    one, theta = problem(), 0.1
    how: dict[str, Any] = {"relation": "mean", "lambda1": 40.0, "lambda2": 30.0, "accuracy": theta}
    mbar = trained(one, 1, **how).state["mbar"]
    spread = [float(mbar[t, t]) * np.linalg.norm(rows_of(one, t)[0], 2) ** 2 * 12 for t in range(5)]
    constant = sum(spread) * safe(mbar)  # σσ'
    start, best = 0.0, figures(trained(one, 200, **how))["dual"]
    eps = constant / 2
    assert eps < 0.5 * (best - start)  # so that the bound says something
    early = max(0, int(np.ceil(1 + np.log(2 * (best - start) / (4 * constant)) / (1 - theta))))
    after = int(np.ceil(early + 16 * constant / ((1 - theta) * eps)))
    rounds = after + int(np.ceil(2 / (1 - theta) * max(1, 2 * constant / eps)))
    assert best - figures(trained(one, rounds, average_after=after, **how))["dual"] <= eps


# The trap


@dataclass(frozen=True)
class Stale(MOCHA):
    """Its W is that of the Ω before, as in the authors' code."""

    def _models(self, state: State, steps: int) -> State:
        new = super()._models(state, steps)
        if self.inner and steps and steps % self.inner == 0 and "w" in state:
            return {**new, "w": state["w"]}
        return new


def test_models_that_are_not_made_again_after_an_update_are_found_out() -> None:
    kit = DECLARATIONS["mocha"]
    names = [f"known-answer: {claim.name}" for claim in kit.claims if claim.name.startswith(("v = Xα", "every round"))]
    assert [outcome.passed for outcome in check_method("mocha", Stale(), kit, checks=names)] == [False, False]


# New tasks, and clients that join


def test_a_new_task_has_a_better_model_from_five_rows_than_alone() -> None:
    one, ours, alone = problem(24, features=8, targets=8, noise=0.1), [], []
    method = MOCHA(lambda1=0.05, epochs=5, stop=0.0)
    run = fedloom.train(one, method, rounds=60, evaluate=fedloom.Evaluation(every=0))
    for client in range(16, 24):
        if len(one.y[one.data.splits["support"][client]].unique()) == 1:
            continue  # nobody could tell anything from one class alone
        adapted = fedloom.adapt(run, client, problem=one, method=method)
        ours.append(adapted.after["accuracy"])
        few, query = one.data.splits["support"][client], one.data.splits["query"][client]
        x, y, there, right = one.x[few], one.y[few, 0], one.x[query], one.y[query, 0]
        fits = [LinearSVC(C=C, fit_intercept=False).fit(x, y) for C in (0.01, 0.1, 1.0, 10.0)]
        alone.append(max(float(fit.score(there, right)) for fit in fits))  # the best, as nobody could know it
        assert adapted.record["adapted_on"]["rows"] == 5
    assert len(ours) >= 5
    assert np.mean(ours) > np.mean(alone) + 0.05


def test_adapting_has_no_step_size_and_says_so() -> None:
    one, method = problem(tasks=6, targets=1), MOCHA(epochs=2)
    run = fedloom.train(one, method, rounds=3, evaluate=fedloom.Evaluation(every=0))
    with pytest.raises(ConfigError, match="steps in the dual, which have no step size"):
        fedloom.adapt(run, 5, problem=one, method=method, lr=0.1)


@pytest.mark.parametrize("relation", ["probabilistic", "clustered", "mean"])
def test_clients_that_join_find_all_models_made_anew(relation: Any) -> None:
    method = MOCHA(relation=relation, inner=2, average_after=1)
    few = fedloom.train(problem(4), method, rounds=5, evaluate=[]).state
    many = fedloom.train(problem(6), method, rounds=1, evaluate=[])
    engine = many.state
    sizes = torch.full((6,), 12)
    ctx = Context(5, 6, sizes, problem(6).model.slices, torch.zeros(3, dtype=F64), Draw(0), torch.arange(6))
    blank = method.server_init(ctx)
    kept = (*method.per_client, *method.per_pair)
    grown = {key: _placed(blank[key], few[key], key in method.per_pair) if key in kept else few[key] for key in few}
    state = method.welcome(grown, ctx)
    assert {key: value.shape for key, value in state.items()} == {key: value.shape for key, value in engine.items()}
    assert torch.allclose(state["w"], state["mbar"] @ state["v"])
    if relation == "probabilistic":
        assert float(torch.linalg.inv(state["omega"]).trace()) == pytest.approx(1.0)
    if relation == "mean":
        assert torch.allclose(state["omega"], torch.eye(6, dtype=F64) - 1 / 6)
        assert torch.allclose(state["w"][4], state["w"][5])  # both near the mean of the others


# What is told, and what is refused


def test_relations_are_in_the_summary_unless_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(problem(tasks=6, targets=1), 5, relation="clustered")
    told = run.summary["relations"]
    assert told["kind"] == "correlation of the models (clustered)"
    assert told["labels"] == ["0", "1", "2", "3", "4"]
    assert np.array(told["matrix"]).shape == (5, 5)
    monkeypatch.setattr("fedloom.engine.summary._RELATED_MOST", 4)
    told = trained(problem(), 2).summary["relations"]
    assert "matrix" not in told
    assert told["left_out"] == "5 clients are more than the 4 whose relations are written down"
    assert "relations" not in fedloom.train(problem(loss="auto"), fedloom.FedAvg(), rounds=1).summary


def test_a_run_stops_when_the_gap_is_small_and_the_relation_rests() -> None:
    how: dict[str, Any] = {"lambda1": 0.1, "lambda2": 0.05, "floor": 0.3, "epochs": 5, "inner": 5, "stop": 1e-3}
    run = fedloom.train(problem(), MOCHA(**how), rounds=400, evaluate=fedloom.Evaluation())
    assert run.summary["stopped"] == "converged"
    told = figures(run)
    assert told["gap"] <= 1e-3 * told["primal"]
    assert told["omega_moved"] <= 1e-3


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"relation": "mean", "lambda2": 0.0}, "give lambda2 a value above 0"),
        ({"relation": "graph"}, "needs the edges"),
        ({"relation": "graph", "graph": "0-9"}, "clients are numbered 0 to 4"),
        ({"relation": "fixed"}, "is no file"),
        ({"relation": "clustered", "clusters": 6}, "clusters = 6, but 5 clients train"),
        ({"steps": 3, "accuracy": 0.1}, "say two things"),
        ({"losses": "hinge"}, "is not CLIENT:LOSS"),
        ({"losses": "7:hinge"}, "losses has client 7"),
        ({"losses": "0:squared-hinge"}, "squared-hinge"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises((ConfigError, DataError), match=says):
        trained(problem(), 1, **settings)


def test_a_network_is_refused_with_the_reason() -> None:
    one = problem()
    network = fedloom.Problem(one.data, fedloom.build_model("mlp", one.data, hidden=[4]), "hinge", F64)
    with pytest.raises(ConfigError, match="not convex in the model has no strong duality"):
        trained(network, 1)


def test_several_classes_are_refused_unless_each_is_against_the_rest() -> None:
    data = fedloom.federate("digits", clients=3)
    model = fedloom.build_model("linear", data)
    with pytest.raises(ConfigError, match="one class against the rest"):
        trained(fedloom.Problem(data, model, dtype=F64), 1)
    run = trained(fedloom.Problem(data, model, "ovr-hinge", F64), 3)
    assert run.summary["metrics"]["accuracy"] > 0.8


def test_a_client_with_rows_of_one_class_is_named() -> None:
    one = problem()
    y = one.data.y.clone()
    y[one.data.splits["train"][3]] = 1.0
    odd = fedloom.Problem(replace(one.data, y=y), one.model, "hinge", F64)
    with pytest.warns(UserWarning, match=r"training rows of one class only, .*: 3$"):
        trained(odd, 1)


def test_the_models_of_clients_that_never_took_part_are_the_mean_of_the_others() -> None:
    one = problem(tasks=6, targets=1)
    evaluate = fedloom.Evaluation(on="target")
    run = fedloom.train(one, MOCHA(epochs=2), rounds=3, evaluate=evaluate)
    mean: Tensor = run.state["w"][:5].mean(0)
    assert torch.allclose(run.state["x"], mean)
    test = one.data.splits["test"][5]
    right = ((one.x[test] @ mean > 0) == (one.y[test, 0] > 0)).double().mean()
    assert run.summary["metrics"]["accuracy"] == pytest.approx(float(right))


def test_losses_of_single_tasks_and_class_weights_go_together() -> None:
    one = problem()
    weighted = fedloom.Problem(one.data, one.model, "hinge", F64, [1.0, 3.0])
    how: dict[str, Any] = {"relation": "mean", "lambda1": 0.4, "lambda2": 0.1, "epochs": 5}
    named = ",".join(f"{t}:hinge" for t in range(5))
    same = [trained(weighted, 5, losses=losses, **how).state["w"] for losses in ("", named)]
    assert torch.equal(*same)
    plain = trained(one, 5, **how).state["w"]
    assert float((plain - same[0]).abs().max()) > 1e-3
