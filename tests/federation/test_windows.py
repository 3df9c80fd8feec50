"""A client with a window of its training rows is a client that owns nothing but these."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedloom.errors import DataError
from fedloom.federation.client import Client
from fedloom.federation.data import HALVES, FederatedData
from fedloom.federation.meta import Meta
from fedloom.federation.problem import Problem
from fedloom.federation.ragged import Ragged, Window
from fedloom.federation.randomness import Draw
from fedloom.federation.solvers import Inner
from problems import SIZES, LeastSquares, make_data, make_problem

F64 = torch.float64
DRAW = Draw(3, 2)
EVERYBODY = np.arange(5)
SOME: Window = (np.array([2, 0, 5, 5, 0]), np.array([4, 3, 6, 0, 1]))
"""In the midst, all, up to nearly the last, nothing at all, and the only one."""
MODELS = ["linear", "mlp", "lenet", "lstm"]


def only(data: FederatedData, window: Window) -> FederatedData:
    """The federation whose clients own the rows of a window, split by split, without any window."""
    rows = [data.splits["train"][i][a : a + n] for i, (a, n) in enumerate(zip(*window, strict=True))]
    splits = {**data.splits, "train": Ragged.of(rows)}
    for half in HALVES:
        theirs = [data.splits[half][i].tolist() for i in range(data.clients)]
        splits[half] = Ragged.of(
            [
                torch.tensor([r for r in own.tolist() if r in there], dtype=torch.int64)
                for own, there in zip(rows, theirs, strict=True)
            ]
        )
    return replace(data, splits=splits)


def pair(problem: Problem, window: Window = SOME, clients: int | list[int] | None = None) -> tuple[Client, Client]:
    """The same clients with a window, and owning nothing else."""
    ids = EVERYBODY if clients is None else clients
    at = np.atleast_1d(np.asarray(ids))
    held = problem.client(ids, DRAW, window=(window[0][at], window[1][at]))
    return held, problem.on(only(problem.data, window)).client(ids, DRAW)


def thetas(problem: Problem, clients: int | None = None) -> Tensor:
    shape = (problem.model.n,) if clients is None else (clients, problem.model.n)
    return 0.3 * torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=F64)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("split", ["train", "support", "query", "test"])
def test_sizes_losses_and_gradients_are_those_of_the_rows_in_the_window(model: str, split: str) -> None:
    problem = make_problem(model, dtype=F64)
    window, other = pair(problem)
    theta = thetas(problem, 5)
    assert window.sizes(split).tolist() == other.sizes(split).tolist()
    assert torch.equal(window.count(split), other.count(split))
    assert torch.equal(window.loss(theta, split), other.loss(theta, split))
    assert torch.equal(window.grad(theta, split), other.grad(theta, split))
    assert window.evaluations.tolist() == other.evaluations.tolist() == window.sizes(split).tolist()


@pytest.mark.parametrize("model", MODELS)
def test_the_gradient_is_the_mean_over_exactly_these_rows(model: str) -> None:
    problem = make_problem(model, dtype=F64)
    theta = thetas(problem, 5)
    found = pair(problem)[0].grad(theta)
    for i, (first, held) in enumerate(zip(*SOME, strict=True)):
        rows = problem.data.splits["train"][i][first : first + held]
        own = theta[i].clone().requires_grad_()
        expected = torch.zeros_like(own)
        if held:
            loss = problem.loss.rows(problem.model(own, problem.x[rows]), problem.y[rows]).mean()
            (expected,) = torch.autograd.grad(loss, own)
        torch.testing.assert_close(found[i], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("batch", [None, 2, 4])
@pytest.mark.parametrize("split", ["train", "support", "query"])
def test_local_steps_take_rows_of_the_window_alone(model: str, batch: int | None, split: str) -> None:
    problem = make_problem(model, dtype=F64)
    window, other = pair(problem)
    theta = thetas(problem)
    (y, k), (y2, k2) = (
        d.sgd(theta, 0.1, batch, 2, split=split, shift=0.1 * thetas(problem, 5)) for d in (window, other)
    )
    assert torch.equal(y, y2)
    assert torch.equal(k, k2)
    assert window.evaluations.tolist() == other.evaluations.tolist()
    empty = window.sizes(split) == 0
    assert torch.equal(y[torch.from_numpy(empty)], theta.expand(int(empty.sum()), -1))


def test_a_client_whose_window_is_empty_behaves_as_one_without_rows() -> None:
    problem = make_problem("mlp", dtype=F64)
    nothing = problem.client(2, DRAW, window=(np.array([4]), np.array([0])))
    theta = thetas(problem)
    assert (nothing.sizes().tolist(), float(nothing.n)) == ([0], 0.0)
    assert torch.equal(nothing.grad(theta), torch.zeros_like(theta))
    y, steps = nothing.sgd(theta, 0.1, 2, 3)
    assert torch.equal(y, theta)
    assert float(steps) == 0


@pytest.mark.parametrize("model", ["mlp", "lenet"])
def test_adaptation_and_meta_gradients_stay_inside_the_window(model: str) -> None:
    problem = make_problem(model, dtype=F64)
    window, other = pair(problem, clients=[0, 2])
    theta = thetas(problem, 2)
    for how in (Meta(), Meta(batch=2, steps=2), Meta(order="difference")):
        assert torch.equal(window.meta_grad(theta, 0.1, how)[0], other.meta_grad(theta, 0.1, how)[0])
    assert torch.equal(window.meta_sgd(theta, 0.1, 0.1, 2)[0], other.meta_sgd(theta, 0.1, 0.1, 2)[0])
    assert torch.equal(window.adapt(theta, 0.1), other.adapt(theta, 0.1))


@pytest.mark.parametrize("solver", ["exact", "newton", "lbfgs"])
def test_proximal_steps_stay_inside_the_window_and_follow_it(solver: str) -> None:
    problem = LeastSquares().problem
    v = torch.ones(problem.model.n, dtype=F64)
    for first, held in ((0, 3), (0, 5), (1, 5), (0, 3), (2, 0)):
        mine = (np.array([first] * 4), np.array([held] * 4))
        client = problem.client(np.arange(4), DRAW, window=mine)
        found = client.prox(v.expand(4, -1), 0.7, how=Inner(solver=solver, tolerance=1e-13))
        for i in range(4):
            rows = problem.data.splits["train"][i][first : first + held]
            x, y = problem.x[rows], problem.y[rows, 0]
            left = x.T @ x / max(held, 1) + 0.7 * torch.eye(3, dtype=F64)
            best = torch.linalg.solve(left, x.T @ y / max(held, 1) + 0.7 * v)
            torch.testing.assert_close(found[i], best, rtol=0, atol=1e-10)
    whole = problem.client(np.arange(4), DRAW).prox(v.expand(4, -1), 0.7, how=Inner(solver=solver, tolerance=1e-13))
    full = (np.zeros(4, dtype=np.int64), problem.data.splits["train"].sizes.numpy())
    again = problem.client(np.arange(4), DRAW, window=full).prox(v.expand(4, -1), 0.7, how=Inner(solver, 1e-13))
    assert torch.equal(whole, again)


def test_factorisations_of_windows_that_are_gone_take_no_memory() -> None:
    problem = LeastSquares().problem
    for held in range(1, 6):
        problem.client(0, DRAW, window=(np.array([0]), np.array([held]))).prox(torch.ones(3, dtype=F64), 1.0)
    assert len(problem.spectra.kept) == 1
    assert problem.spectra.held == problem.spectra.kept[0].numbers()


def test_a_window_of_everything_changes_no_bit() -> None:
    problem = make_problem("mlp")
    full = (np.zeros(5, dtype=np.int64), np.array(SIZES))
    theta = problem.model.init(0, torch.float32)
    whole, window = problem.client(EVERYBODY, DRAW), problem.client(EVERYBODY, DRAW, window=full)
    for split in ("train", "support", "query", "test", "test-support"):
        for batch in (None, 3):
            assert torch.equal(
                whole.sgd(theta, 0.1, batch, 2, split=split)[0], window.sgd(theta, 0.1, batch, 2, split=split)[0]
            )


@settings(max_examples=60)
@given(st.data())
def test_any_window_is_a_client_that_owns_nothing_else(draw: st.DataObject) -> None:
    sizes = draw.draw(st.lists(st.integers(0, 9), min_size=1, max_size=5))
    first = [draw.draw(st.integers(0, n)) for n in sizes]
    held = [draw.draw(st.integers(0, n - a)) for n, a in zip(sizes, first, strict=True)]
    window = np.array(first, dtype=np.int64), np.array(held, dtype=np.int64)
    data = make_data(sizes=sizes)
    ids = np.arange(len(sizes))
    alike = only(data, window)
    for split in ("train", *HALVES, "test"):
        span, own = data.span(split, ids, window), alike.span(split, ids)
        assert span.sizes.tolist() == own.sizes.tolist()
        assert span.rows().tolist() == own.rows().tolist()


def test_halves_are_found_in_whatever_order_they_are_kept() -> None:
    data = make_data(sizes=(6, 4))
    backwards = {half: Ragged.of([data.splits[half][i].flip(0) for i in range(2)]) for half in HALVES}
    turned = replace(data, splits={**data.splits, **backwards})
    window = np.array([1, 0]), np.array([4, 3])
    for half in HALVES:
        found = turned.span(half, np.arange(2), window).rows().tolist()
        assert found == data.span(half, np.arange(2), window).rows().tolist()


def test_a_half_that_is_not_made_of_training_rows_has_no_window() -> None:
    data = make_data(sizes=(6, 4))
    strange = replace(data, splits={**data.splits, "support": data.splits["test"]})
    with pytest.raises(DataError, match="the split 'support' of 'made up' has rows that are not in 'train'"):
        strange.span("support", np.arange(2), (np.zeros(2, dtype=np.int64), np.ones(2, dtype=np.int64)))
    assert strange.span("support", np.arange(2)).sizes.tolist() == data.splits["test"].sizes.tolist()


def test_one_client_of_a_stack_alone_has_its_own_window_effort_and_round() -> None:
    problem = make_problem("linear")
    stack = problem.client(EVERYBODY, DRAW, window=SOME, effort=np.arange(5) / 4, delay=np.arange(5.0), round=9)
    alone = stack.alone(2)
    assert (alone.clients.tolist(), alone.sizes().tolist(), alone.round) == ([2], [6], 9)
    assert alone.effort is not None
    assert (float(alone.effort[0]), float(alone.delay)) == (0.5, 2.0)
