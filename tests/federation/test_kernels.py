from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedloom.federation.kernels import Affine, DenseKernel, ModuleKernel, StackKernel
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from problems import make_problem

F64 = torch.float64


def by_autograd(problem: Problem, theta: Tensor, x: Tensor, y: Tensor, weight: Tensor | float) -> Tensor:
    theta = theta.clone().requires_grad_()
    out = torch.stack([problem.model(one, batch) for one, batch in zip(theta, x, strict=True)])
    total = (problem.loss.rows(out, y) * weight).sum()
    (gradient,) = torch.autograd.grad(total, theta, materialize_grads=True)
    return gradient


def stack_of(problem: Problem, clients: int = 4, rows: int = 6) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    at = torch.randint(len(problem.x), (clients, rows), generator=g)
    theta = torch.stack([problem.model.init(seed, problem.dtype) for seed in range(clients)])
    weight = torch.rand(clients, rows, generator=g, dtype=problem.dtype)
    weight[0, -2:] = 0  # padding
    return theta, problem.x[at], problem.y[at], weight


PROBLEMS: dict[str, dict[str, Any]] = {
    "linear": {"model": "linear"},
    "linear without bias": {"model": "linear", "options": {"bias": False}},
    "relu": {"model": "mlp", "options": {"hidden": [5, 4]}},
    "tanh": {"model": "mlp", "options": {"hidden": [5, 4], "activation": "tanh"}},
    "sigmoid": {"model": "mlp", "options": {"hidden": [5], "activation": "sigmoid"}},
    "image rows": {"model": "mlp", "shape": (1, 3, 2)},
    "squared": {"model": "mlp", "task": "regression", "outputs": 2},
    "absolute": {"model": "linear", "task": "regression", "outputs": 2, "loss": "absolute"},
    "binary": {"model": "mlp", "task": "binary", "outputs": 1},
    "hinge": {"model": "linear", "task": "binary", "outputs": 1, "loss": "hinge"},
    "several labels": {"model": "mlp", "task": "multilabel", "outputs": 3},
}
MODULES: dict[str, dict[str, Any]] = {
    "lenet": {"model": "lenet"},
    "lstm": {"model": "lstm", "options": {"hidden": 4}},
    "lstm of two layers, squared": {
        "model": "lstm",
        "options": {"hidden": 3, "layers": 2, "dense": 3},
        "task": "regression",
        "outputs": 2,
    },
    "lstm, absolute": {
        "model": "lstm",
        "task": "regression",
        "outputs": 2,
        "loss": "absolute",
        "options": {"hidden": 3},
    },
    "lstm, several labels": {"model": "lstm", "task": "multilabel", "outputs": 3, "options": {"hidden": 3}},
    "lstm, hinge": {"model": "lstm", "task": "binary", "outputs": 1, "loss": "hinge", "options": {"hidden": 3}},
    "rows that depend on each other": {"model": "problems:centred"},
}
STACKED: dict[str, dict[str, Any]] = {
    "cnn": {"model": "cnn", "options": {"channels": [3], "activation": "elu"}},
    "elu": {"model": "mlp", "options": {"hidden": [5], "activation": "elu"}},
    "tied, frozen and unused tensors": {"model": "problems:mixed"},
    "layer norm, squared": {"model": "problems:normed", "task": "regression", "outputs": 2},
    "layer norm, several labels": {"model": "problems:normed", "task": "multilabel", "outputs": 3},
}
EVERY = PROBLEMS | MODULES | STACKED


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_written_out_gradient_of_dense_models_is_autograds(name: str) -> None:
    problem = make_problem(**PROBLEMS[name], dtype=F64)
    assert isinstance(problem.kernel, DenseKernel)
    theta, x, y, weight = stack_of(problem)
    for w in (weight, 0.3):
        expected = by_autograd(problem, theta, x, y, w)
        torch.testing.assert_close(problem.kernel.gradient(theta, x, y, w), expected, rtol=1e-11, atol=1e-12)


@given(
    hidden=st.lists(st.integers(1, 5), max_size=3),
    activation=st.sampled_from(["relu", "tanh", "sigmoid"]),
    clients=st.integers(1, 4),
    rows=st.integers(1, 5),
)
def test_dense_models_of_any_shape(hidden: list[int], activation: str, clients: int, rows: int) -> None:
    problem = make_problem("mlp", options={"hidden": hidden, "activation": activation}, dtype=F64)
    theta, x, y, weight = stack_of(problem, clients, max(rows, 2))
    expected = by_autograd(problem, theta, x, y, weight)
    torch.testing.assert_close(problem.kernel.gradient(theta, x, y, weight), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", [*MODULES, *STACKED])
def test_the_gradient_of_any_other_module_is_autograds(name: str) -> None:
    problem = make_problem(**(MODULES | STACKED)[name], dtype=F64)
    assert type(problem.kernel) is (ModuleKernel if name in MODULES else StackKernel)
    theta, x, y, weight = stack_of(problem)
    for w in (weight, 0.3):
        expected = by_autograd(problem, theta, x, y, w)
        torch.testing.assert_close(problem.kernel.gradient(theta, x, y, w), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("how", EVERY.values(), ids=EVERY)
@pytest.mark.parametrize("pulled", [False, True])
def test_a_step_is_the_affine_map_minus_the_gradient(how: dict[str, Any], pulled: bool) -> None:
    problem = make_problem(**how, dtype=F64)
    theta, x, y, weight = stack_of(problem)
    affine = Affine(0.9, torch.randn(problem.model.n, dtype=F64)) if pulled else None
    for i in range(len(theta)) if not problem.kernel.stacks else [slice(None)]:
        one = slice(i, i + 1) if isinstance(i, int) else i
        at = problem.kernel.bind(theta[one].clone())
        gradient = by_autograd(problem, theta[one], x[one], y[one], weight[one])
        start = theta[one] if affine is None else 0.9 * theta[one] + affine.add
        problem.kernel.step(at, x[one], y[one], weight[one], affine)
        torch.testing.assert_close(at, start - gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("keep", [0.5, torch.tensor(0.5), torch.tensor([0.5]), torch.full((3, 1), 0.5)])
@pytest.mark.parametrize("add", [torch.arange(4.0), torch.arange(12.0).view(3, 4)])
@pytest.mark.parametrize("active", [1, 2, 3])
def test_an_affine_map_holds_for_the_clients_still_at_work(keep: float | Tensor, add: Tensor, active: int) -> None:
    theta = torch.ones(3, 4)
    Affine(keep, add).apply(theta[:active])
    expected = torch.ones(3, 4)
    expected[:active] = 0.5 + (add[:active] if add.dim() == 2 else add)
    assert torch.equal(theta, expected)


def test_an_affine_map_may_only_shrink() -> None:
    theta = torch.ones(2, 3)
    Affine(0.25, 0.0).apply(theta)
    assert torch.equal(theta, torch.full((2, 3), 0.25))


@pytest.mark.parametrize("name", ["lenet", "mlp"])
def test_asking_for_a_gradient_does_not_disturb_a_walk_that_is_under_way(name: str) -> None:
    problem = make_problem(name, dtype=F64)
    theta, x, y, weight = stack_of(problem, clients=1)
    at = problem.kernel.bind(theta.clone())
    before = at.clone()
    problem.kernel.gradient(theta + 1, x, y, weight)
    assert torch.equal(at, before)


def test_what_is_not_in_the_vector_stays_as_it_was() -> None:
    problem = make_problem("problems:mixed", dtype=F64)
    frozen = problem.model.module.get_parameter("frozen").clone()
    y, _ = problem.client([0, 2]).sgd(problem.model.init(0, F64), 0.1, 4, epochs=2)
    assert torch.equal(problem.model.module.get_parameter("frozen"), frozen)
    spare = problem.model.slices["spare"]
    assert torch.equal(y[:, spare.start : spare.stop], torch.ones(2, 2, dtype=F64))


def test_the_kernel_follows_from_the_model() -> None:
    for name, kind in (("linear", DenseKernel), ("mlp", DenseKernel), ("lenet", ModuleKernel), ("lstm", ModuleKernel)):
        assert type(make_problem(name).kernel) is kind


@pytest.mark.parametrize("name", STACKED)
def test_a_client_in_a_stack_walks_as_it_does_alone(name: str) -> None:
    problem = make_problem(**STACKED[name], dtype=F64)
    theta, draw = problem.model.init(0, F64), Draw(3)
    together, steps = problem.client([0, 1, 2], draw).sgd(theta, 0.1, 4, epochs=2)
    for client in range(3):
        alone, count = problem.client(client, draw).sgd(theta, 0.1, 4, epochs=2)
        assert steps[client] == count
        torch.testing.assert_close(together[client], alone, rtol=1e-12, atol=1e-14)
