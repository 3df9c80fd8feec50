"""Proximal steps: exact where there is a closed form, to a tolerance elsewhere, the same alone and in a stack."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedloom.errors import ConfigError
from fedloom.federation.optimisers import local_optimiser
from fedloom.federation.problem import Problem
from fedloom.federation.solvers import Cache, Inner, Spectrum, has_closed_form, solver_for
from problems import make_problem

F64 = torch.float64


def regression(columns: int = 6, outputs: int = 1, **options: Any) -> Problem:
    return make_problem("linear", task="regression", shape=(columns,), outputs=outputs, dtype=F64, options=options)


def binary() -> Problem:
    return make_problem("linear", task="binary", outputs=1, dtype=F64)


def points(problem: Problem, clients: int = 5) -> torch.Tensor:
    return torch.randn(clients, problem.model.n, dtype=F64, generator=torch.Generator().manual_seed(1))


def stationary(problem: Problem, x: torch.Tensor, v: torch.Tensor, rho: torch.Tensor) -> float:
    """The norm of ∇f_i(x) + ρ(x − v)."""
    return float((problem.client(range(5)).grad(x) + rho * (x - v)).norm(dim=-1).max())


@pytest.mark.parametrize("columns", [3, 6, 40])
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_least_squares_is_solved_exactly_for_few_and_for_many_columns(columns: int, outputs: int, bias: bool) -> None:
    problem = regression(columns, outputs, bias=bias)
    v, rho = points(problem), torch.tensor([[0.1], [0.5], [1.0], [2.0], [30.0]], dtype=F64)
    x = problem.client(range(5)).prox(v, rho)
    assert stationary(problem, x, v, rho) < 1e-12


def test_large_square_bases_are_solved_one_by_one_to_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = regression(3)
    v = points(problem)
    together = problem.client(range(5)).prox(v, 0.5)
    monkeypatch.setattr("fedloom.federation.solvers._SMALL", 0)
    torch.testing.assert_close(problem.client(range(5)).prox(v, 0.5), together, rtol=0, atol=1e-14)


@pytest.mark.parametrize("solver", ["newton", "lbfgs"])
@pytest.mark.parametrize("make", [binary, regression, lambda: make_problem("linear", dtype=F64)])
def test_iterative_solvers_stop_at_their_tolerance(solver: Any, make: Any) -> None:
    problem = make()
    v, rho = points(problem), torch.tensor([[0.1], [0.5], [1.0], [2.0], [30.0]], dtype=F64)
    x = problem.client(range(5)).prox(v, rho, how=Inner(solver, 1e-9, max_iterations=200))
    assert stationary(problem, x, v, rho) < 2e-9


@pytest.mark.parametrize("solver", ["newton", "lbfgs"])
def test_a_network_gets_nearer_to_a_stationary_point(solver: Any) -> None:
    problem = make_problem("mlp", dtype=F64, options={"hidden": [8], "activation": "tanh"})
    v, rho = points(problem) / 3, torch.tensor(2.0, dtype=F64)
    before = stationary(problem, v, v, rho)
    x = problem.client(range(5)).prox(v, 2.0, how=Inner(solver, 1e-6, max_iterations=300))
    assert stationary(problem, x, v, rho) < 1e-3 * before


def test_in_single_precision_the_solvers_stop_where_rounding_begins() -> None:
    problem = make_problem("linear", task="binary", outputs=1)
    client = problem.client(range(5))
    client.prox(points(problem).float(), 0.5, how=Inner("newton", 1e-30, max_iterations=10_000))
    assert client.evaluations.max() < 10_000


def test_gradient_steps_are_pulled_by_each_clients_own_penalty() -> None:
    problem = regression(3)
    v, rho = points(problem), torch.tensor([[0.1], [0.5], [1.0], [2.0], [3.0]], dtype=F64)
    x = problem.client(range(5)).prox(v, rho, how=Inner("gradient", lr=0.1, steps=2000))
    assert stationary(problem, x, v, rho) < 1e-10


@pytest.mark.parametrize(
    "how", [Inner("gradient", lr=0.05, batch=4, epochs=2), Inner("lbfgs", max_iterations=5), Inner("newton")]
)
@pytest.mark.parametrize("model", ["linear", "mlp", "lenet"])
def test_a_stack_solves_what_its_clients_solve_alone(how: Inner, model: str) -> None:
    problem = make_problem(model, dtype=F64)
    if model == "lenet" and how.solver == "newton":
        how = Inner("newton", max_iterations=1)
    v, rho = points(problem) / 10, torch.tensor([[0.5], [1.0], [1.5], [2.0], [3.0]], dtype=F64)
    together = problem.client(range(5)).prox(v, rho, how=how)
    for i in range(5):
        alone = problem.client(i).prox(v[i], rho[i], how=how)
        torch.testing.assert_close(together[i], alone, rtol=1e-6, atol=1e-8)


def test_least_squares_alone_is_as_in_a_stack() -> None:
    problem = regression(6)
    v = points(problem)
    together = problem.client(range(5)).prox(v, 0.7)
    for i in range(5):
        torch.testing.assert_close(together[i], problem.client(i).prox(v[i], 0.7), rtol=0, atol=1e-13)


def test_factorisations_are_made_once_and_serve_every_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = regression(6)
    v = points(problem)
    problem.client(range(5)).prox(v, 0.7)
    monkeypatch.delattr("torch.linalg.eigh")
    problem.client(range(5)).prox(v, 30.0)
    problem.client(np.array([4, 1])).prox(v[:2], 0.1)


def test_the_cache_keeps_within_its_bound_and_the_answers_stay() -> None:
    problem = regression(6)
    v = points(problem)
    expected = problem.client(range(5)).prox(v, 0.7)
    problem.spectra = Cache(limit=120)
    for _ in range(2):
        assert torch.equal(problem.client(range(5)).prox(v, 0.7), expected)
        assert len(problem.spectra.kept) < 5
        assert problem.spectra.held == sum(one.numbers() for one in problem.spectra.kept.values()) <= 120


def test_a_problem_with_other_rows_has_a_cache_of_its_own() -> None:
    problem = regression(3)
    v = points(problem)
    problem.client(range(5)).prox(v, 0.7)
    for other in (problem.limited(3), problem.with_pool(), pickle.loads(pickle.dumps(problem))):
        assert not other.spectra.kept
        assert stationary(other, other.client(range(5)).prox(v, 0.7), v, torch.tensor(0.7, dtype=F64)) < 1e-12


def test_auto_takes_the_best_solver_that_fits() -> None:
    assert has_closed_form(regression())
    assert solver_for(regression(), "auto") == "exact"
    assert solver_for(binary(), "auto") == "newton"
    assert solver_for(make_problem("mlp"), "auto") == "lbfgs"
    assert solver_for(make_problem("linear", task="binary", outputs=1, loss="hinge"), "auto") == "gradient"


@pytest.mark.parametrize(
    ("make", "name", "says"),
    [
        (binary, "exact", "'exact' needs a closed form.*use solver = 'newton'"),
        (lambda: make_problem("mlp", task="regression", outputs=1), "exact", "needs a closed form"),
        (binary, "cholesky", "no solver 'cholesky'; choose one of auto, exact"),
        (lambda: make_problem("linear", task="regression", outputs=1, loss="absolute"), "newton", "has kinks; use"),
    ],
)
def test_solvers_that_do_not_fit_are_refused(make: Any, name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        solver_for(make(), name)


@pytest.mark.parametrize("model", ["linear", "lenet"])
def test_an_optimiser_is_pulled_by_each_clients_own_penalty_too(model: str) -> None:
    problem = make_problem(model, dtype=F64)
    v, rho = points(problem) / 10, torch.tensor([[0.1], [0.5], [1.0], [2.0], [3.0]], dtype=F64)
    how = {"lr": 0.02, "batch": 4, "epochs": 2, "optimiser": local_optimiser("momentum")}
    together, _ = problem.client(range(5)).sgd(v, pull=(rho, -v), **how)
    for i in range(5):
        alone, _ = problem.client(i).sgd(v[i], pull=(float(rho[i]), -v[i]), **how)
        torch.testing.assert_close(together[i], alone, rtol=0, atol=1e-12)


@given(rows=st.integers(1, 12), columns=st.integers(1, 12), t=st.floats(0, 10), seed=st.integers(0, 1000))
def test_a_spectrum_solves_the_ridge_of_every_right_hand_side(rows: int, columns: int, t: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    a, b = random.normal(size=(rows, columns)), random.normal(size=(rows, 2))
    spectrum = Spectrum.of(torch.from_numpy(a), torch.zeros(rows, 1, dtype=F64))
    found = spectrum.ridge(torch.from_numpy(a.T @ b), t).numpy()
    if t < 1e-3:  # the shortest solution: a tiny ridge of a singular system is nothing but rounding
        t, found = 0.0, spectrum.ridge(torch.from_numpy(a.T @ b), 0.0).numpy()
    expected = np.linalg.pinv(a) @ b if t == 0 else np.linalg.solve(a.T @ a + t * np.eye(columns), a.T @ b)
    small = np.linalg.svd(a, compute_uv=False).min() ** 2 + t
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * (1 + 1 / small**1.5))
    x = random.normal(size=(columns, 1))
    np.testing.assert_allclose(spectrum.bend(torch.from_numpy(x)).numpy(), a.T @ a @ x, rtol=0, atol=1e-12)
