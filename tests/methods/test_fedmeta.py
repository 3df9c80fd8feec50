"""FedMeta, FedAvg(Meta) and Per-FedAvg: how they adapt, how they are judged, what they refuse, what they measure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fedloom
from fedloom.channel import Quantise
from fedloom.conformance import classification
from fedloom.conformance.declarations.common import unequal_quadratics, weights
from fedloom.conformance.declarations.meta import meta_gradients
from fedloom.engine.evaluation import Evaluation
from fedloom.engine.run import train
from fedloom.errors import ConfigError
from fedloom.federation.data import TARGET, FederatedData
from fedloom.federation.meta import Meta
from fedloom.federation.optimisers import Adam
from fedloom.federation.problem import Problem
from fedloom.federation.ragged import Ragged
from fedloom.federation.randomness import Draw
from fedloom.methods import REGISTER, FedAvgMeta, FedMetaMAML, FedMetaSGD, Method, PerFedAvg
from fedloom.methods.method import Wish
from problems import make_problem, run, start

F64 = torch.float64
SIZES = (7, 4, 12, 5, 2)
META = sorted(name for name, entry in REGISTER.items() if entry.family == "meta-learning")


def own_adaptation(problem: Problem, method: Method, rounds: int = 3, **wish: Any) -> tuple[Any, torch.Tensor]:
    """The run, and what its method makes of the model for the clients."""
    engine = run(problem, method, rounds, evaluations=())
    client = problem.client(np.arange(5), Draw(0, rounds))
    return engine, method.adapt(client, engine.state, {}, method.model(engine.state), Wish(**wish))


def test_maml_adapts_by_its_own_inner_steps_unless_the_user_says_otherwise() -> None:
    problem = make_problem("mlp", dtype=F64, sizes=SIZES)
    client = problem.client(np.arange(5))
    for wish, alpha, steps in (({}, 0.2, 3), ({"lr": 0.05}, 0.05, 3), ({"steps": 1}, 0.2, 1)):
        engine, found = own_adaptation(problem, FedMetaMAML(alpha=0.2, inner_steps=3), **wish)
        theta = engine.state["x"]
        for _ in range(steps):
            theta = theta - alpha * client.grad(theta, "support")
        torch.testing.assert_close(found, theta)


def test_meta_sgd_adapts_by_the_step_sizes_it_has_learnt() -> None:
    problem = make_problem("mlp", dtype=F64, sizes=SIZES)
    method = FedMetaSGD(alpha=0.2, lr=0.5)
    engine, found = own_adaptation(problem, method, 20)
    theta, alpha = engine.state["x"].chunk(2)
    assert float((alpha - 0.2).abs().max()) > 1e-3
    torch.testing.assert_close(method.model(engine.state), theta)
    torch.testing.assert_close(found, theta - alpha * problem.client(np.arange(5)).grad(theta, "support"))


def test_step_sizes_that_are_not_learnt_stay_where_they_are_whatever_the_channel_loses() -> None:
    problem = make_problem("mlp", dtype=F64, sizes=SIZES)
    method = FedMetaSGD(alpha=0.2, lr=0.5, learn_alpha=False)
    engine = run(problem, method, 20, transforms=(Quantise(4),), evaluations=())
    theta, alpha = method.parted(engine.state["x"])
    torch.testing.assert_close(alpha, torch.full_like(theta, 0.2), rtol=0, atol=0)
    client = problem.client(np.arange(5))
    found = method.adapt(client, engine.state, {}, theta, Wish())
    torch.testing.assert_close(found, theta - 0.2 * client.grad(theta, "support"))


def test_fedavg_meta_adapts_with_the_optimiser_it_is_given() -> None:
    problem = make_problem("mlp", dtype=F64, sizes=SIZES)
    method = FedAvgMeta(alpha=0.05, adapt_batch=2, adapt_steps=2, adapt_optimiser="adam")
    engine, found = own_adaptation(problem, method)
    client = problem.client(np.arange(5), Draw(0, 3))
    expected, _ = client.sgd(engine.state["x"], 0.05, 2, 2, optimiser=Adam(), split="support")
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", META)
def test_meta_methods_are_judged_after_adaptation_on_rows_that_nobody_trained_on(name: str) -> None:
    data = fedloom.federate("digits", clients=6, partition="classes", classes_per_client=2, target=0.34)
    problem = Problem(data, fedloom.build_model("linear", data))
    for on, split, few in (("source", "test-query", "test-support"), ("target", "query", "support")):
        judged = Evaluation(on=on).resolved(REGISTER[name].cls())  # type: ignore[arg-type]
        assert (judged.model, judged.split, judged.adapt_split) == ("adapted", split, few)
        judged.check(data)
    method = REGISTER[name].cls()
    evaluations = [Evaluation(), Evaluation("target", on="target"), Evaluation("plain", model="global")]
    done = train(problem, method, rounds=2, evaluate=evaluations)
    client = problem.client(data.with_role(TARGET).numpy())
    theta = method.adapt(client, done.state, {}, done.theta, Wish())
    loss, rows = client.loss(theta, "query"), torch.from_numpy(client.sizes("query"))
    expected = float((loss * rows / rows.sum()).sum())
    assert done.history[-1]["evaluations"]["target"]["loss"]["weighted"] == pytest.approx(expected, rel=1e-5)


def test_a_split_that_the_user_names_is_left_alone() -> None:
    judged = Evaluation(split="test", adapt_split="train").resolved(FedMetaMAML())
    assert (judged.split, judged.adapt_split) == ("test", "train")
    assert Evaluation(model="adapted", split="test").resolved(FedMetaMAML()).adapt_split == "support"
    assert Evaluation().resolved(fedloom.FedAvg()).split == "test"


def test_clients_of_the_variant_take_one_step_of_adam_on_mini_batches() -> None:
    problem = make_problem("lenet", dtype=F64, sizes=SIZES)
    method = FedMetaSGD(alpha=0.1, lr=0.01, batch=2, meta_step="client", optimiser="adam", weighting="query")
    engine = start(problem, method, evaluations=())
    x = engine.state["x"]
    client = problem.client(np.arange(5), Draw(0, 0))
    g = torch.cat(client.meta_grad(*x.chunk(2), Meta(batch=2)), -1)  # type: ignore[arg-type]
    moved = x - 0.01 * g / (g.abs() + 1e-8)
    rows = torch.from_numpy(client.sizes("query")).double()
    engine.step()
    torch.testing.assert_close(engine.state["x"], rows / rows.sum() @ moved, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("weighting", ["uniform", "size", "query"])
def test_the_norm_of_the_gradient_is_in_the_history_when_asked_for(weighting: Any) -> None:
    known = unequal_quadratics()
    methods: list[Any] = [FedMetaMAML(alpha=0.3, gradient_norm=True, weighting=weighting)]
    if weighting != "query":
        methods.append(PerFedAvg(alpha=0.3, gradient_norm=True, weighting=weighting))
    evaluation = Evaluation(model="global", split="query")
    for method in methods:
        for stack in (1, 2, 5):
            done = train(known.problem, method, rounds=3, evaluate=evaluation, stack=stack)
            slope = weights(known, method) @ meta_gradients(known, method, done.theta)
            assert done.history[-1]["measures"]["gradient_norm"] == pytest.approx(float(slope.norm()), rel=1e-12)
        quiet = train(known.problem, replace(method, gradient_norm=False), rounds=1, evaluate=evaluation)
        assert "measures" not in quiet.history[-1]


@pytest.mark.parametrize(
    ("name", "key"),
    [*((name, "alpha") for name in META), *((name, "rho") for name in META if name.startswith("admm"))],
)
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_step_sizes_and_penalties_must_be_positive(name: str, key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{key} = {value}"):
        train(classification(), REGISTER[name].cls(**{key: value}), rounds=1)


def without(data: FederatedData, split: str, client: int) -> FederatedData:
    """The data with nothing in that split for that client."""
    parts = [data.splits[split][i] for i in range(data.clients)]
    parts[client] = parts[client][:0]
    return replace(data, splits={**data.splits, split: Ragged.of(parts)})


@pytest.mark.parametrize("split", ["support", "query"])
@pytest.mark.parametrize("name", [name for name in META if name != "fedavg-meta"])
def test_a_client_without_support_or_query_is_named(name: str, split: str) -> None:
    problem = make_problem("linear", sizes=SIZES, names=["Ann", "Bob", "Cem", "Dag", "Eva"])
    bad = Problem(without(problem.data, split, 2), problem.model)
    with pytest.raises(ConfigError, match=f"client Cem has no {split} rows"):
        start(bad, REGISTER[name].cls(), evaluations=())
    target = replace(bad.data, roles=torch.tensor([0, 0, TARGET, 0, 0], dtype=torch.int8))
    start(Problem(target, problem.model), REGISTER[name].cls(), evaluations=())  # who never trains needs none


def test_data_without_support_rows_are_refused_with_the_remedy() -> None:
    data = fedloom.federate("digits", clients=4, support=None)
    problem = Problem(data, fedloom.build_model("linear", data))
    with pytest.raises(ConfigError, match=r"the data have none; set data.support"):
        start(problem, FedMetaMAML(), evaluations=())
    with pytest.raises(ConfigError, match=r"no split 'test-query'.*data.support = 0.5"):
        start(problem, FedAvgMeta(), evaluations=[Evaluation()])


def test_a_server_optimiser_beside_clients_that_step_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match="'adam' has nothing to do"):
        start(classification(), FedMetaMAML(meta_step="client", server_optimiser="adam"), evaluations=())
    with pytest.raises(ConfigError, match="'sgd' has no tau"):
        start(classification(), FedMetaMAML(tau=0.1), evaluations=())


def test_independent_episodes_need_no_support() -> None:
    problem = make_problem("linear", sizes=SIZES)
    bad = Problem(without(problem.data, "support", 2), problem.model)
    engine = run(bad, PerFedAvg(episodes="independent", batch=2, steps=2), 2, evaluations=())
    assert not torch.equal(engine.theta(), engine.theta0)
