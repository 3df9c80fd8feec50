from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score, mean_absolute_error, root_mean_squared_error

from fedloom.data import Scaling, federate, from_arrays
from fedloom.engine.evaluation import Evaluation, Verdict, collect, pieces, summarise
from fedloom.engine.rounds import Rounds
from fedloom.errors import ConfigError
from fedloom.execution.work import Evaluated
from fedloom.federation.data import POOL, SOURCE, TARGET
from fedloom.federation.networks import build_model
from fedloom.federation.problem import Problem
from fedloom.methods import FedAvg, Local
from problems import LeastSquares, Tally, make_problem, run, start

F64 = torch.float64
ROLES = (SOURCE, TARGET, SOURCE, SOURCE, TARGET)


def judged(engine: Rounds, **how: Any) -> Verdict:
    evaluation = Evaluation(**{"model": "global", **how})
    evaluation.check(engine.problem.data)
    return engine.evaluator.evaluate(evaluation)


def test_the_summary_by_hand_with_unequal_clients() -> None:
    values = torch.tensor([0.9, 0.5, 0.7, 0.1], dtype=F64)
    found = summarise(values, torch.tensor([1, 2, 3, 4]), higher=True)
    assert found["weighted"] == pytest.approx((0.9 + 1.0 + 2.1 + 0.4) / 10)
    assert found["mean"] == pytest.approx(0.55)
    assert found["std"] == pytest.approx(math.sqrt((0.35**2 + 0.05**2 + 0.15**2 + 0.45**2) / 4))
    assert found["worst_tenth"] == 0.1
    assert (found["min"], found["max"], found["clients"]) == (0.1, 0.9, 4)


@pytest.mark.parametrize(("clients", "worst"), [(1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (21, 3)])
def test_the_worst_tenth_is_at_least_one_client_and_lies_at_the_worse_end(clients: int, worst: int) -> None:
    values = torch.randperm(clients, generator=torch.Generator().manual_seed(0)).double()
    rows = torch.ones(clients, dtype=torch.int64)
    assert summarise(values, rows, higher=True)["worst_tenth"] == pytest.approx((worst - 1) / 2)
    assert summarise(values, rows, higher=False)["worst_tenth"] == pytest.approx(clients - 1 - (worst - 1) / 2)


def test_a_client_for_whom_a_metric_means_nothing_is_left_out_but_a_diverged_one_is_not() -> None:
    nan = torch.nan
    values = {"f1": torch.tensor([nan, 1.0], dtype=F64), "loss": torch.tensor([0.5, 0.25], dtype=F64)}
    found = Verdict(np.arange(2), torch.tensor([3, 1]), values).summary()
    assert found["f1"]["mean"] == found["f1"]["weighted"] == 1.0
    assert found["f1"]["clients"] == 1
    assert found["loss"]["clients"] == 2
    values = {"rmse": torch.tensor([nan, 1.0], dtype=F64), "loss": torch.tensor([nan, 0.25], dtype=F64)}
    diverged = Verdict(np.arange(2), torch.tensor([3, 1]), values).summary()
    assert math.isnan(diverged["rmse"]["mean"])
    assert math.isnan(diverged["loss"]["weighted"])
    values = {"f1": torch.tensor([nan], dtype=F64), "loss": torch.tensor([0.5], dtype=F64)}
    nothing = Verdict(np.arange(1), torch.tensor([3]), values).summary()
    assert nothing["f1"]["clients"] == 0


@pytest.mark.parametrize("model", ["linear", "lenet"])
def test_the_servers_model_is_evaluated_on_each_clients_rows(model: str) -> None:
    problem = make_problem(model, dtype=F64)
    engine = run(problem, FedAvg(batch=4), 2)
    verdict = judged(engine, metrics=("accuracy", "f1"))
    assert verdict.clients.tolist() == [0, 1, 2, 3, 4]
    assert verdict.rows.tolist() == [2, 3, 4, 2, 3]
    assert list(verdict.values) == ["accuracy", "f1", "loss"]
    for i in range(5):
        rows = problem.data.splits["test"][i]
        out = problem.model(engine.state["x"], problem.x[rows])
        hits = (out.argmax(1) == problem.y[rows]).double().mean()
        assert float(verdict.values["accuracy"][i]) == pytest.approx(float(hits))
        loss = torch.nn.functional.cross_entropy(out, problem.y[rows])
        assert float(verdict.values["loss"][i]) == pytest.approx(float(loss))


def test_any_split_can_be_judged() -> None:
    engine = start(make_problem("linear"), FedAvg())
    assert judged(engine, split="train").rows.tolist() == [7, 3, 12, 5, 1]
    support = judged(engine, split="support")
    assert support.clients.tolist() == [0, 1, 2, 3]  # the last client has no support row
    assert support.rows.tolist() == [3, 1, 6, 2]


@pytest.mark.parametrize(("on", "expected"), [("source", [0, 2, 3]), ("target", [1, 4]), ("all", [0, 1, 2, 3, 4])])
def test_sources_targets_or_all(on: str, expected: list[int]) -> None:
    engine = run(make_problem("linear", roles=ROLES), FedAvg(), 1)
    assert engine.candidates.tolist() == [0, 2, 3]
    assert judged(engine, on=on).clients.tolist() == expected


def test_the_pool_is_nobody_to_be_judged() -> None:
    problem = make_problem("linear", roles=ROLES).with_pool()
    assert problem.data.with_role(POOL).tolist() == [5]
    assert Evaluation(on="all").clients(problem.data).tolist() == [0, 1, 2, 3, 4]


def test_personal_models_are_each_clients_own() -> None:
    problem = make_problem("linear", dtype=F64, roles=ROLES)
    engine = run(problem, Local(batch=4), 2)
    verdict = judged(engine, model="personal", on="all")
    for i in range(5):
        memory = engine.store.get(i)
        theta = engine.theta0 if memory is None else memory["x"]
        assert (memory is None) == (ROLES[i] == TARGET)
        rows = problem.data.splits["test"][i]
        loss = torch.nn.functional.cross_entropy(problem.model(theta, problem.x[rows]), problem.y[rows])
        assert float(verdict.values["loss"][i]) == pytest.approx(float(loss), rel=1e-12)


def test_auto_is_what_the_method_makes() -> None:
    problem = make_problem("linear")
    assert start(problem, Local()).evaluator.evaluations[0].model == "personal"
    assert start(problem, FedAvg()).evaluator.evaluations[0].model == "global"
    assert start(problem, Local(), evaluations=[Evaluation(model="global")]).evaluator.evaluations[0].model == "global"


@pytest.mark.parametrize("model", ["linear", "lenet"])
def test_adapted_models_take_full_gradient_steps_on_the_support_first(model: str) -> None:
    problem = make_problem(model, dtype=F64)
    engine = run(problem, FedAvg(batch=4), 1)
    verdict = judged(engine, model="adapted", split="query", adapt_steps=3, adapt_lr=0.2)
    for i, number in enumerate(verdict.clients.tolist()):
        theta = engine.state["x"]
        client = problem.client(number)
        for _ in range(3):
            theta = theta - 0.2 * client.grad(theta, "support")
        expected = float(client.loss(theta, "query"))
        assert float(verdict.values["loss"][i]) == pytest.approx(expected, rel=1e-10)
    assert verdict.clients.tolist() == [0, 1, 2, 3, 4]  # adaptation on an empty support is the identity


def test_judging_changes_nothing() -> None:
    problem = make_problem("linear", roles=ROLES)
    engine = run(problem, Local(batch=4), 1)
    state, known = {key: value.clone() for key, value in engine.state.items()}, engine.store.clients().tolist()
    for model in ("global", "personal", "adapted"):
        judged(engine, model=model, on="all", split="test")
    assert all(torch.equal(engine.state[key], state[key]) for key in state)
    assert engine.store.clients().tolist() == known


def test_newcomers_get_their_own_message_when_personal_models_are_judged() -> None:
    problem = make_problem("linear", task="regression", outputs=1, roles=ROLES, dtype=F64)
    engine = run(problem, Tally(), 2)
    verdict = judged(engine, model="personal", on="all", metrics=("mae",))
    for i in range(5):
        theta = torch.full((problem.model.n,), 100.0 + i, dtype=F64)
        rows = problem.data.splits["test"][i]
        expected = (problem.model(theta, problem.x[rows]) - problem.y[rows]).abs().mean()
        assert float(verdict.values["mae"][i]) == pytest.approx(float(expected))


def test_a_model_is_at_distance_0_from_itself_and_as_far_from_another_as_its_outputs() -> None:
    problem = make_problem("mlp", dtype=F64)
    engine = run(problem, FedAvg(batch=4), 1)
    assert not judged(engine, reference=engine.state["x"].clone()).values["fidelity"].any()
    other = problem.model.init(99, F64)
    verdict = judged(engine, reference=other)
    for i in range(5):
        x = problem.x[problem.data.splits["test"][i]]
        apart = torch.linalg.vector_norm(problem.model(engine.state["x"], x) - problem.model(other, x), dim=1)
        assert float(verdict.values["fidelity"][i]) == pytest.approx(float(apart.mean()), rel=1e-12)
    assert verdict.summary()["fidelity"]["mean"] > 0


def test_squares_and_the_loss_agree() -> None:
    squares = LeastSquares()
    verdict = judged(run(squares.problem, FedAvg(batch=None), 3))
    torch.testing.assert_close(verdict.values["rmse"].square() / 2, verdict.values["loss"], rtol=1e-10, atol=0)


@given(rows=st.lists(st.integers(1, 9000), min_size=1, max_size=40))
def test_pieces_are_consecutive_and_whole(rows: list[int]) -> None:
    clients = np.arange(len(rows)) + 7
    parts = pieces(clients, np.array(rows))
    assert np.array_equal(np.concatenate(parts), clients)
    for part in parts:
        held = [rows[i - 7] for i in part]
        assert sum(held[1:]) < 5000  # apart from one large client a piece has few rows


def test_pieces_are_small_even_after_a_giant() -> None:
    rows = np.ones(5000, dtype=np.int64)
    rows[0] = 10**6
    assert max(len(part) for part in pieces(np.arange(5000), rows)) <= 1000


def test_pieces_become_one_verdict() -> None:
    parts = [
        Evaluated({"loss": torch.tensor([1.0])}, {"loss": torch.tensor([4.0, 4])}, torch.tensor([4])),
        Evaluated({"loss": torch.tensor([2.0, 3.0])}, {"loss": torch.tensor([28.0, 11])}, torch.tensor([5, 6])),
    ]
    verdict = collect(np.array([1, 3, 4]), parts)
    assert verdict.values["loss"].tolist() == [1, 2, 3]
    assert verdict.rows.tolist() == [4, 5, 6]
    assert verdict.pooled["loss"] == pytest.approx(32 / 15)
    summary = verdict.summary()["loss"]
    assert summary["pooled"] == pytest.approx(summary["weighted"])


def test_the_pooled_value_is_that_of_the_rows_of_all_clients_together(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem("linear", dtype=F64)
    engine = run(problem, FedAvg(batch=4), 2)
    rows = torch.cat([problem.data.splits["test"][i] for i in range(5)])
    said = problem.model(engine.state["x"], problem.x[rows]).argmax(1)
    expected = f1_score(problem.y[rows], said, average="macro", zero_division=0.0)
    for rows_at_once in (5000, 3):  # in one piece, and in several
        monkeypatch.setattr("fedloom.engine.evaluation._ROWS_AT_ONCE", rows_at_once)
        summary = judged(engine, metrics=("f1",)).summary()["f1"]
        assert summary["pooled"] == pytest.approx(expected, rel=1e-12)
        assert summary["weighted"] != pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("by", ["all", "client"])
@pytest.mark.parametrize("kind", ["standard", "min-max"])
def test_a_regression_is_judged_in_the_units_of_its_targets_and_trained_in_those_of_its_scale(
    kind: str, by: str
) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(90, 3))
    y = np.column_stack([50 + 20 * x[:, 0] + random.normal(size=90), 900 + 300 * x[:, 1] * (1 + np.arange(90) % 3)])
    table = from_arrays(x, y, np.arange(90) % 3, task="regression")
    table = replace(table, scaling=Scaling(kind, by), target_names=("speed", "heart"))  # type: ignore[arg-type]
    data = federate(table)
    problem = Problem(data, build_model("linear", data), dtype=F64)
    engine = run(problem, FedAvg(batch=8), 3)
    verdict = judged(engine, metrics=("mae", "mae:heart", "rmse", "smape"))
    assert data.y_scale is not None
    guesses, truths = [], []
    for i in range(3):
        rows = data.splits["test"][i]
        out = problem.model(engine.state["x"], problem.x[rows])
        loss = ((out - problem.y[rows]) ** 2).mean() / 2
        assert float(verdict.values["loss"][i]) == pytest.approx(float(loss))
        scale = data.y_scale.of(i)
        guesses.append((out * scale.factor + scale.shift).detach().numpy())
        truths.append(y[rows.numpy()])
        assert float(verdict.values["mae"][i]) == pytest.approx(mean_absolute_error(truths[i], guesses[i]), rel=1e-6)
        heart = mean_absolute_error(truths[i][:, 1], guesses[i][:, 1])
        assert float(verdict.values["mae:heart"][i]) == pytest.approx(heart, rel=1e-6)
    truth, guess = np.concatenate(truths), np.concatenate(guesses)
    assert verdict.pooled["mae"] == pytest.approx(mean_absolute_error(truth, guess), rel=1e-6)
    assert verdict.pooled["rmse"] == pytest.approx(root_mean_squared_error(truth, guess), rel=1e-6)


def test_large_evaluations_in_pieces_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = run(make_problem("linear", dtype=F64, roles=ROLES), Local(batch=4), 1)
    whole = {model: judged(engine, model=model, on="all") for model in ("personal", "global")}
    monkeypatch.setattr("fedloom.engine.evaluation._ROWS_AT_ONCE", 3)
    monkeypatch.setattr("fedloom.execution.worker._EVALUATION_NUMBERS", 7)
    for model, expected in whole.items():
        found = judged(engine, model=model, on="all")
        torch.testing.assert_close(found.values["loss"], expected.values["loss"], rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ({"split": "tset"}, r"evaluation: the data have no split 'tset'; they have train, test, support"),
        ({"model": "adapted", "adapt_split": "few"}, r"no split 'few'"),
        ({"on": "target"}, r"on = 'target', but no client is a target; set data.target"),
        ({"metrics": ("mae",)}, r"'mae' does not fit classification"),
        ({"name": "late", "split": "test-support"}, r"late: no source client has rows in the split 'test-support'"),
    ],
)
def test_what_cannot_be_judged_is_refused_before_any_work(how: dict[str, Any], complaint: str) -> None:
    problem = make_problem("linear", tests=(1, 1, 1, 1, 1))
    with pytest.raises(ConfigError, match=complaint):
        start(problem, FedAvg(), evaluations=[Evaluation(**how)])


def test_evaluations_are_due_every_so_many_rounds_and_at_the_end() -> None:
    engine = start(make_problem("linear"), FedAvg())
    third, last = Evaluation(every=3), Evaluation(every=0)
    due = []
    for t in range(1, 8):
        engine.step()
        due += [t] if engine.evaluator.due(third, last=t == 7) else []
        assert engine.evaluator.due(last, last=t == 7) == (t == 7)
    assert due == [3, 6, 7]
