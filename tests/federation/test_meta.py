"""Meta-gradients against autograd through the inner steps, stacks against single clients, and what they count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedloom.federation.batches import Rows
from fedloom.federation.client import Client
from fedloom.federation.kernels import _without_onednn
from fedloom.federation.meta import Meta
from fedloom.federation.optimisers import Adam
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from problems import make_problem

F64 = torch.float64
SIZES = (7, 4, 12, 5, 2)
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("linear", {"task": "regression", "outputs": 2}),
    ("linear", {}),
    ("mlp", {}),
    ("mlp", {"options": {"hidden": [5, 4], "activation": "tanh"}}),
    ("mlp", {"options": {"hidden": [5], "activation": "sigmoid"}, "task": "multilabel", "outputs": 2}),
    ("lenet", {}),
    ("cnn", {"options": {"channels": [2, 3], "pool": ["max", "avg"], "activation": "elu"}}),
    ("lstm", {"options": {"hidden": 3}}),
]
NAMES = [f"{name} {how.get('task', 'classification')} {number}" for number, (name, how) in enumerate(MODELS)]


def posed(model: str, how: dict[str, Any]) -> Problem:
    return make_problem(model, dtype=F64, sizes=SIZES, **how)


def somewhere(problem: Problem, clients: int, seed: int = 0) -> Tensor:
    """A θ of each client's own, away from the kinks that zeros would sit on."""
    noise = torch.randn(clients, problem.model.n, dtype=F64, generator=torch.Generator().manual_seed(seed))
    return problem.model.init(seed, F64) + 0.1 * noise


def by_autograd(client: Client, theta: Tensor, alpha: Tensor, inner: list[Rows], query: list[Rows]) -> list[Tensor]:
    """∇_θ and ∇_α of the mean query loss, through the whole computation."""
    theta, alpha = theta.clone().requires_grad_(), alpha.clone().requires_grad_()
    phi = theta
    for rows in inner:
        phi = phi - alpha * client.grad(phi, rows, graph=True)
    parts = torch.stack([client.loss(phi, rows) for rows in query])
    counted = torch.stack([(rows.weight > 0).any(-1) for rows in query]).sum(0).clamp(min=1)
    return list(torch.autograd.grad((parts.sum(0) / counted).sum(), (theta, alpha)))


@pytest.mark.parametrize(("model", "how"), MODELS, ids=NAMES)
def test_curvature_is_the_derivative_of_the_gradient(model: str, how: dict[str, Any]) -> None:
    problem = posed(model, how)
    client = problem.client(np.arange(5))
    theta, v = somewhere(problem, 5), somewhere(problem, 5, 1)
    point = theta.clone().requires_grad_()
    with _without_onednn():  # for the recurrent cells
        slope = client.grad(point, graph=True)
        (expected,) = torch.autograd.grad(slope, point, v)
    torch.testing.assert_close(client.linearise(theta)[1](v), expected, rtol=1e-10, atol=1e-12)


def test_curvature_of_an_lstm_in_single_precision_is_that_in_double() -> None:
    found = {}
    for dtype in (torch.float32, F64):
        how = {"task": "regression", "outputs": 2, "shape": (24, 17), "options": {"hidden": 32, "dense": 8}}
        problem = make_problem("lstm", sizes=(16,), tests=(1,), dtype=dtype, **how)  # type: ignore[arg-type]
        theta, v = problem.model.init(0, dtype), problem.model.init(1, dtype)
        problem = Problem(replace(problem.data, x=problem.x * 0.5), problem.model, dtype=dtype)
        gradient, product = problem.client(0).linearise(theta)
        found[dtype] = (gradient.double(), product(v).double())
    for single, double in zip(*found.values(), strict=True):
        assert float((single - double).norm() / double.norm()) < 1e-5


@pytest.mark.parametrize("loss", ["squared", "absolute", "hinge", "binary"])
def test_curvature_knows_every_loss(loss: str) -> None:
    task = "binary" if loss in ("hinge", "binary") else "regression"
    problem = make_problem("mlp", loss=loss, task=task, outputs=1, dtype=F64, options={"hidden": [4]})
    client, theta, v = problem.client(np.arange(5)), somewhere(problem, 5), somewhere(problem, 5, 1)
    step = 1e-6
    difference = (client.grad(theta + step * v) - client.grad(theta - step * v)) / (2 * step)
    torch.testing.assert_close(client.linearise(theta)[1](v), difference, rtol=0, atol=1e-7)


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize(("model", "how"), MODELS[1:6], ids=NAMES[1:6])
def test_the_exact_meta_gradient_is_autograd_through_the_inner_steps(
    model: str, how: dict[str, Any], vector: bool, steps: int, batch: int | None
) -> None:
    problem = posed(model, how)
    client = problem.client(np.arange(5), Draw(1, 2))
    theta = somewhere(problem, 5)
    alpha = somewhere(problem, 5, 2).abs() if vector else torch.full_like(theta, 0.3)
    inner = client.batches("support", batch, epochs=steps)
    query = client.batches("query", batch, purpose="query batches")
    g, slope = client.meta_grad(theta, alpha if vector else 0.3, Meta(steps=steps, batch=batch))
    expected, expected_slope = by_autograd(client, theta, alpha, inner, query)
    torch.testing.assert_close(g, expected, rtol=1e-10, atol=1e-12)
    if vector:
        torch.testing.assert_close(slope, expected_slope, rtol=1e-10, atol=1e-12)
    else:
        assert slope is None


@pytest.mark.parametrize("how", [Meta(), Meta("first"), Meta("difference"), Meta(steps=2, batch=2)])
@pytest.mark.parametrize("model", ["linear", "mlp", "lenet"])
def test_a_stack_has_the_meta_gradients_of_its_clients(model: str, how: Meta) -> None:
    problem = posed(model, {})
    draw, ids = Draw(3, 1), np.array([2, 0, 4, 1, 3])
    stack = problem.client(ids, draw)
    theta, alpha = somewhere(problem, 5), somewhere(problem, 5, 2).abs()
    found = {"vector": stack.meta_grad(theta, alpha, how), "number": stack.meta_grad(theta[0], 0.2, how)}
    for i, client in enumerate(ids.tolist()):
        alone = problem.client(client, draw)
        single = {"vector": alone.meta_grad(theta[i], alpha[i], how), "number": alone.meta_grad(theta[0], 0.2, how)}
        for kind, pair in single.items():
            for mine, ours in zip(pair, found[kind], strict=True):
                if mine is None or ours is None:
                    assert mine is ours is None
                    continue
                torch.testing.assert_close(mine, ours[i], rtol=1e-10, atol=1e-12)
        assert alone.evaluations[0] == stack.evaluations[i]


def test_first_order_is_the_gradient_at_the_adapted_model() -> None:
    problem = posed("mlp", {})
    client, theta = problem.client(np.arange(5)), somewhere(problem, 5)
    phi = theta - 0.3 * client.grad(theta, "support")
    torch.testing.assert_close(client.meta_grad(theta, 0.3, Meta("first"))[0], client.grad(phi, "query"))


def test_the_difference_is_exact_for_quadratics_and_closes_in_with_the_square_of_delta_elsewhere() -> None:
    squares = posed("linear", {"task": "regression", "outputs": 1})
    client, theta = squares.client(np.arange(5)), somewhere(squares, 5)
    exact, _ = client.meta_grad(theta, 0.3)
    for delta in (1e-3, 1e-1, 10.0):
        torch.testing.assert_close(
            client.meta_grad(theta, 0.3, Meta("difference", delta))[0], exact, rtol=0, atol=1e-11
        )
    problem = posed("mlp", {"options": {"hidden": [5], "activation": "tanh"}})
    client, theta = problem.client(np.arange(5)), somewhere(problem, 5)
    exact, _ = client.meta_grad(theta, 0.3)
    off = [float((client.meta_grad(theta, 0.3, Meta("difference", d))[0] - exact).norm()) for d in (0.2, 0.1, 0.05)]
    assert off[0] / off[1] == pytest.approx(4, rel=0.1)
    assert off[1] / off[2] == pytest.approx(4, rel=0.1)


def test_an_empty_support_set_leaves_the_model_as_it_is() -> None:
    problem = make_problem("mlp", dtype=F64)  # the last client has a single row, and it is for the query
    client, theta = problem.client(np.arange(5)), somewhere(problem, 5)
    for how in (Meta(), Meta(batch=2), Meta("difference")):
        g, slope = client.meta_grad(theta, torch.full_like(theta, 0.3), how)
        torch.testing.assert_close(g[4], client.grad(theta, "query")[4])
        assert slope is not None
        assert not slope[4].any()


def test_a_stack_in_which_nobody_has_a_support_takes_its_steps_on_the_query_alone() -> None:
    problem = make_problem("mlp", dtype=F64)
    client, theta = problem.client(np.array([4])), somewhere(problem, 5)[4:]
    found, steps = client.meta_sgd(theta, 0.1, 0.3, 2, Meta(batch=2))
    for _ in range(2):
        theta = theta - 0.1 * problem.client(np.array([4])).grad(theta, "query")
    torch.testing.assert_close(found, theta, rtol=1e-10, atol=1e-12)
    assert steps.tolist() == [[2.0]]


def test_gradients_are_counted_for_what_they_cost() -> None:
    problem = posed("mlp", {})
    theta = somewhere(problem, 5)
    support, query = (problem.client(np.arange(5)).sizes(split) for split in ("support", "query"))
    for how, times in ((Meta(), 3), (Meta("first"), 1), (Meta("difference"), 3), (Meta(steps=4), 12)):
        client = problem.client(np.arange(5))
        client.meta_grad(theta, 0.3, how)
        assert client.evaluations.tolist() == (times * support + query).tolist()


@pytest.mark.parametrize("how", [Meta(), Meta(batch=3), Meta("first"), Meta(batch=2, episodes="independent")])
@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_local_meta_steps_of_a_stack_are_those_of_its_clients_also_when_some_do_less(model: str, how: Meta) -> None:
    problem = posed(model, {})
    draw, effort = Draw(3, 1), np.array([1.0, 0.5, 1.0, 0.2, 0.7])
    theta = somewhere(problem, 5)
    for rule in (None, Adam()):
        stack = problem.client(np.arange(5), draw, effort=effort)
        found, count = stack.meta_sgd(theta, 0.1, 0.2, 4, how, rule)
        assert count.flatten().tolist() == [4, 2, 4, 1, 2]
        for i in range(5):
            alone = problem.client(i, draw, effort=effort[i : i + 1])
            mine, steps = alone.meta_sgd(theta[i], 0.1, 0.2, 4, how, rule)
            torch.testing.assert_close(mine, found[i], rtol=1e-10, atol=1e-12)
            assert float(steps) == float(count[i])
            assert alone.evaluations[0] == stack.evaluations[i]


def test_local_meta_steps_repeat_the_meta_gradient() -> None:
    problem = posed("mlp", {})
    client, theta = problem.client(np.arange(5)), somewhere(problem, 5)
    found, _ = client.meta_sgd(theta, 0.1, 0.2, 3)
    for _ in range(3):
        theta = theta - 0.1 * client.meta_grad(theta, 0.2)[0]
    torch.testing.assert_close(found, theta)


def test_independent_episodes_use_three_other_batches_in_each_step() -> None:
    problem = posed("mlp", {})
    client, theta = problem.client(np.arange(5), Draw(4)), somewhere(problem, 5)
    how = Meta(batch=3, episodes="independent")
    found, _ = client.meta_sgd(theta, 0.1, 0.2, 2, how)
    purposes = ("batches", "query batches", "curvature batches")
    adapt, judge, curve = (client.batches("train", 3, 2, purpose=purpose) for purpose in purposes)
    assert not torch.equal(adapt[0].x, judge[0].x)
    assert not torch.equal(adapt[0].x, curve[0].x)
    for k in range(2):
        r = client.grad(theta - 0.2 * client.grad(theta, adapt[k]), judge[k])
        theta = theta - 0.1 * (r - 0.2 * client.linearise(theta, curve[k])[1](r))
    torch.testing.assert_close(found, theta)


def test_batches_are_those_of_sgd() -> None:
    problem = posed("mlp", {})
    client, theta = problem.client(np.arange(5), Draw(4)), somewhere(problem, 5)
    expected, _ = client.sgd(theta, 0.1, 3, 2)
    for rows in client.batches("train", 3, epochs=2):
        theta = theta - 0.1 * client.grad(theta, rows)
    torch.testing.assert_close(theta, expected, rtol=1e-12, atol=1e-13)


def test_the_loss_of_query_batches_is_the_mean_of_their_means() -> None:
    problem = posed("mlp", {})
    client, theta = problem.client(2), somewhere(problem, 1)[0]
    g, _ = client.meta_grad(theta, 0.0, Meta(batch=4))  # six rows: four of them in one batch, two in the other
    parts = client.batches("query", 4, purpose="query batches")
    assert [int((rows.weight > 0).sum()) for rows in parts] == [4, 2]
    torch.testing.assert_close(g, sum(client.grad(theta, rows) for rows in parts) / 2)
    assert replace(parts[0]).weight.sum() == pytest.approx(1.0)
