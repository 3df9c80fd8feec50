"""ADMM-FedMeta: what it really is, where it stops being stable, what a prior does, and its theorems as measurements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedloom.conformance import classification, quadratics
from fedloom.conformance.declarations.common import quadratic, unequal_quadratics
from fedloom.conformance.declarations.meta import adaptation, adapted_quadratic
from fedloom.conformance.declarations.meta_admm import prior_of, regularised_optimum, shares
from fedloom.conformance.problems import Known, logistic
from fedloom.engine.evaluation import Evaluation
from fedloom.engine.rounds import Rounds
from fedloom.engine.run import train
from fedloom.errors import ConfigError, ModelError
from fedloom.federation.meta import Meta
from fedloom.federation.problem import Problem
from fedloom.methods import ADMMFedMeta, ADMMMetaExact, Method, PerFedAvg
from problems import make_problem, start

F64 = torch.float64
QUERY = Evaluation(model="global", split="query")


def walk(problem: Problem, method: Method, **how: Any) -> Iterator[Rounds]:
    """The run, once after each round."""
    engine = start(problem, method, evaluations=(), **how)
    while True:
        engine.step()
        yield engine


def mean_gradient(problem: Problem, theta: Tensor, alpha: float, how: Meta = Meta()) -> Tensor:  # noqa: B008
    client = problem.client(np.arange(problem.data.clients))
    w = torch.from_numpy(client.sizes()).double()
    return w / w.sum() @ client.meta_grad(theta, alpha, how)[0]


@pytest.mark.parametrize("make", [classification, lambda: logistic().problem])
def test_without_a_prior_it_is_optimistic_gradient_descent_on_networks_too(make: Any) -> None:
    problem, rho, alpha = make(), 0.6, 0.2
    n = problem.data.clients
    theta, before = start(problem, ADMMFedMeta(), evaluations=()).theta0, torch.tensor(0.0, dtype=F64)
    rounds = walk(problem, ADMMFedMeta(rho=rho, alpha=alpha))
    for t in range(40):
        g = mean_gradient(problem, theta, alpha, Meta("difference", 1 / (t + 101)))  # k = t + 1: δ = 1/(k + 100)
        theta = theta - (2 * g - before) / (n * rho)
        before = g
        torch.testing.assert_close(next(rounds).state["x"], theta, rtol=0, atol=1e-13)


def test_it_differs_from_per_fedavg_of_the_matched_step_by_the_change_of_the_gradient_alone() -> None:
    problem, rho, alpha = classification(), 0.6, 0.2
    beta = 1 / (problem.data.clients * rho)
    admm = walk(problem, ADMMFedMeta(rho=rho, alpha=alpha, order="exact"))
    engine = next(admm)
    before = mean_gradient(problem, engine.theta0, alpha)
    for _ in range(10):
        theta = engine.state["x"]
        matched = start(problem, PerFedAvg(lr=beta, steps=1, alpha=alpha, weighting="size"), evaluations=())
        matched.state = {"x": theta}
        matched.step()
        engine = next(admm)
        g = mean_gradient(problem, theta, alpha)
        torch.testing.assert_close(matched.state["x"], theta - beta * g, rtol=0, atol=1e-14)
        torch.testing.assert_close(engine.state["x"], matched.state["x"] - beta * (g - before), rtol=0, atol=1e-13)
        before = g


def test_it_is_stable_up_to_two_thirds_and_no_further() -> None:
    known, alpha = unequal_quadratics(), 0.4
    h, _ = adapted_quadratic(known, alpha)
    largest = float(torch.linalg.eigvalsh(torch.einsum("i,ijk->jk", shares(known), h))[-1])

    def off(share: float, rounds: int = 400) -> float:
        method = ADMMFedMeta(rho=largest / (5 * share), alpha=alpha)  # s·L = L/(nρ)
        engine = next(state for t, state in enumerate(walk(known.problem, method), 1) if t == rounds)
        return float((engine.state["x"] - regularised_optimum(known, method)).norm())

    assert off(0.64) < 1e-6
    assert off(0.70) > 1e6
    method = PerFedAvg(lr=1.9 / largest, steps=1, alpha=alpha, weighting="size")  # … where plain descent stands 2
    engine = next(state for t, state in enumerate(walk(known.problem, method), 1) if t == 400)
    assert float((engine.state["x"] - regularised_optimum(known, ADMMFedMeta(alpha=alpha))).norm()) < 1e-6


@pytest.mark.parametrize("cls", [ADMMFedMeta, ADMMMetaExact])
def test_a_prior_that_counts_for_everything_is_the_model_after_one_round(cls: type[ADMMFedMeta]) -> None:
    known = unequal_quadratics()
    prior = prior_of(known)
    method = cls(lambda_=1e14, server_form="exact")
    torch.testing.assert_close(next(walk(known.problem, method, prior=prior)).state["x"], prior, rtol=0, atol=1e-12)


def test_the_linearised_server_leaves_the_prior_once_lambda_reaches_the_sum_of_the_penalties() -> None:
    known, rho = unequal_quadratics(), 200.0
    prior = prior_of(known)

    def distance(lam: float, rounds: int) -> float:
        engines = walk(known.problem, ADMMFedMeta(rho=rho, lambda_=lam), prior=prior)
        return float((next(e for t, e in enumerate(engines, 1) if t == rounds).state["x"] - prior).norm())

    assert distance(0.95 * 5 * rho, 300) < 0.1
    assert distance(1.05 * 5 * rho, 300) > 1e6
    ratio = distance(400.0, 2) / distance(400.0, 1)
    assert ratio == pytest.approx(1 - 2 * 400 / (5 * rho), abs=0.02)


def test_the_more_the_prior_counts_the_nearer_the_model_stays() -> None:
    known = unequal_quadratics()
    prior, far = prior_of(known), []
    for lam in (0.0, 0.03, 0.1, 0.3, 1.0):
        engines = walk(known.problem, ADMMFedMeta(lambda_=lam, rho=0.8), prior=prior)
        engine = next(e for t, e in enumerate(engines, 1) if t == 150)
        found = engine.setting.method.report(engine.state, {})
        far.append(float((engine.state["x"] - prior).norm()))
        if lam:
            assert found["prior_distance"] == pytest.approx(far[-1])
    assert far == sorted(far, reverse=True)
    assert far[-1] < far[0] / 2


@given(seed=st.integers(0, 10**6), lams=st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=5))
@settings(max_examples=200, deadline=None)
def test_the_optimum_never_moves_away_from_the_prior_as_lambda_grows(seed: int, lams: list[float]) -> None:
    random = torch.Generator().manual_seed(seed)
    root = torch.randn(4, 4, dtype=F64, generator=random)
    c, prior = torch.randn(2, 4, dtype=F64, generator=random)
    h = root @ root.T + 1e-3 * torch.eye(4, dtype=F64)
    far = [
        float((torch.linalg.solve(h + 2 * lam * torch.eye(4, dtype=F64), c + 2 * lam * prior) - prior).norm())
        for lam in sorted(lams)
    ]
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(far))


# Theorems


class Constants:
    """The constants of Theorems 2 and 3 on quadratics at a model θ, with the training rows as each client's population.

    Where the theorems have σ/√D, an expected deviation of a sample's gradient from the population's, this has the
    deviation itself: then the inequalities hold for every single data set, not only in the mean.
    """

    def __init__(self, known: Known, alpha: float, theta: Tensor) -> None:
        self.a, self.b = quadratic(known, "train")
        self.a_s, self.b_s = quadratic(known, "support")
        self.a_q, self.b_q = quadratic(known, "query")
        self.mu = float(torch.linalg.eigvalsh(torch.cat([self.a, self.a_s, self.a_q])).max())
        p, q = adaptation(known, alpha)
        self.phi = (p @ theta) + q
        self.mean_phi = theta - alpha * (self.a @ theta - self.b)
        self.support_off = (self._at(self.a_s, self.b_s, theta) - self._at(self.a, self.b, theta)).norm(dim=-1)
        self.query_off = (self._at(self.a_q, self.b_q, self.phi) - self._at(self.a, self.b, self.phi)).norm(dim=-1)

    @staticmethod
    def _at(a: Tensor, b: Tensor, theta: Tensor) -> Tensor:
        return (a @ theta.unsqueeze(-1)).squeeze(-1) - b


def stopped_at(known: Known, method: ADMMFedMeta, epsilon: float) -> Tensor:
    """An ε-stationary model: the first iterate whose gradient of F is below ε."""
    h, c = adapted_quadratic(known, method.alpha)
    w, prior = shares(known), prior_of(known)
    for engine in walk(known.problem, method, prior=prior):
        theta = engine.state["x"]
        slope = w @ ((h @ theta) - c) + 2 * method.lambda_ * (theta - prior)
        if float(slope.norm()) <= epsilon:
            return theta
    raise AssertionError


@pytest.mark.parametrize("lam", [0.03, 0.3, 3.0])
@pytest.mark.parametrize("epsilon", [0.3, 1e-6])
def test_what_is_forgotten_stays_below_the_bound_of_theorem_three(lam: float, epsilon: float) -> None:
    known, alpha = unequal_quadratics(), 0.3
    theta = stopped_at(known, ADMMFedMeta(alpha=alpha, lambda_=lam, rho=2.0), epsilon)
    k, w = Constants(known, alpha, theta), shares(known)
    beta = k._at(k.a, k.b, k.mean_phi).norm(dim=-1)
    rest = epsilon + float(w @ (beta + alpha * k.mu * k.support_off + k.query_off))
    random = torch.Generator().manual_seed(0)
    for _ in range(20):  # earlier tasks whose solution the prior nearly is
        root = torch.randn(4, 4, dtype=F64, generator=random)
        a_p = root @ root.T
        slope = 0.1 * torch.randn(4, dtype=F64, generator=random)
        forgotten = float((slope + a_p @ (theta - prior_of(known))).norm())
        bound = float(slope.norm()) + float(torch.linalg.eigvalsh(a_p)[-1]) / (2 * lam) * rest
        assert forgotten <= bound


@pytest.mark.parametrize("lam", [0.0, 0.3])
@pytest.mark.parametrize("target", range(5))
def test_a_newcomers_gradient_stays_below_the_bound_of_theorem_two(lam: float, target: int) -> None:
    known, alpha, epsilon = quadratics(), 0.3, 1e-3  # equal sizes: the printed bound has support and query exchanged
    sources = known.only(torch.tensor([i for i in range(5) if i != target]))
    method = ADMMFedMeta(alpha=alpha, lambda_=lam, rho=2.0)
    data = known.problem.data
    roles = torch.zeros(5, dtype=torch.int8)
    roles[target] = 1
    problem = Problem(replace(data, roles=roles), known.problem.model, "squared", F64)
    posed = Known(problem, known.solver, sources.clients)
    w, prior = torch.full((4,), 0.25, dtype=F64), prior_of(known)
    h, c = adapted_quadratic(posed, alpha)
    for engine in walk(problem, method, prior=prior):
        theta = engine.state["x"]
        if float((w @ (h @ theta - c) + 2 * lam * (theta - prior)).norm()) <= epsilon:
            break
    k, m, mine = Constants(known, alpha, theta), target, sources.clients
    am = alpha * k.mu
    beta = float(k._at(k.a_q[m : m + 1], k.b_q[m : m + 1], k.phi[m : m + 1]).norm())
    apart = [
        (k._at(k.a[m], k.b[m], at) - k._at(k.a, k.b, at.expand(5, -1))).norm(dim=-1)[mine] for at in (theta, k.phi[m])
    ]
    psi_g = torch.maximum(*apart)
    psi_h = torch.linalg.matrix_norm(k.a[m] - k.a, 2)[mine]
    hessians = torch.linalg.matrix_norm(k.a_s - k.a, 2)
    bound = epsilon + alpha * beta * float(w @ psi_h) + (am + 1) ** 2 * float(w @ psi_g)
    bound += (am + 1) * float(w @ (k.query_off[m] + k.query_off[mine]))
    bound += am * (am + 1) * float(w @ (k.support_off[m] + k.support_off[mine]))
    bound += alpha * beta * float(w @ (hessians[m] + hessians[mine]))
    h_m, c_m = adapted_quadratic(known.only(torch.tensor([m])), alpha)
    found = float((h_m[0] @ theta - c_m[0] + 2 * lam * (theta - prior)).norm())
    assert found <= bound
    assert found > epsilon  # the newcomer's task is another, or there would be nothing to bound


def test_the_least_gradient_of_the_first_rounds_falls_at_least_like_the_root_of_their_number() -> None:
    done = train(classification(), ADMMFedMeta(rho=1.0, alpha=0.2), rounds=256, evaluate=QUERY)
    norms = np.array([row["measures"]["gradient_norm"] for row in done.history])
    least = np.minimum.accumulate(norms)
    scaled = [least[t] * t**0.5 for t in (16, 32, 64, 128, 256)]
    assert max(scaled) <= 4 * norms[0]
    assert least[256] < norms[0] / 8


def test_the_norm_in_the_history_is_that_of_the_whole_gradient() -> None:
    known, prior = unequal_quadratics(), prior_of(unequal_quadratics())
    for h in ("squared", "hypentropy"):
        done = train(known.problem, ADMMFedMeta(lambda_=0.2, h=h), rounds=3, evaluate=QUERY, prior=prior)
        slope = mean_gradient(known.problem, done.theta, 0.1)
        pull = 2 * (done.theta - prior) if h == "squared" else torch.asinh(done.theta) - torch.asinh(prior)
        expected = float((slope + 0.2 * pull).norm())
        assert done.history[-1]["measures"]["gradient_norm"] == pytest.approx(expected, rel=1e-12)
    quiet = train(known.problem, ADMMFedMeta(gradient_norm=False), rounds=1, evaluate=QUERY)
    assert "measures" not in quiet.history[-1]


def test_first_prices_are_normal_numbers_cut_off_at_two_deviations() -> None:
    problem = make_problem("mlp", dtype=F64, sizes=(7, 4, 12, 5, 2), options={"hidden": [300]})
    method = ADMMFedMeta(y_init="normal")
    client = problem.client(np.arange(5))
    y = method.client_init(client, {"x": problem.model.init(0, F64)})["y"]
    assert float(y.abs().max()) <= 0.02
    assert float(y.abs().max()) > 0.0195
    assert float(y.std()) == pytest.approx(0.01 * 0.8796, rel=0.03)  # of the normal distribution cut off there
    assert not torch.equal(y[0], y[1])


def test_a_prior_is_asked_for_where_it_counts_and_must_fit() -> None:
    problem = classification()
    with pytest.raises(ConfigError, match="give the run that made it"):
        start(problem, ADMMFedMeta(lambda_=1.0), evaluations=())
    with pytest.raises(ModelError, match=r"prior has shape \(3,\), but the model has 83 parameters"):
        start(problem, ADMMFedMeta(lambda_=1.0), evaluations=(), prior=torch.zeros(3))
    start(problem, ADMMFedMeta(), evaluations=())
    assert start(problem, ADMMFedMeta(), evaluations=(), prior=torch.ones(83)).context(0).prior is not None


def test_penalties_of_clients_must_be_one_for_each_and_positive() -> None:
    with pytest.raises(ConfigError, match="rho_i has 2 numbers, but there are 7 clients"):
        start(classification(), ADMMFedMeta(rho_i=(1.0, 2.0)), evaluations=())
    with pytest.raises(ConfigError, match="rho_i"):
        start(classification(), ADMMFedMeta(rho_i=(1.0,) * 6 + (0.0,)), evaluations=())
    with pytest.raises(
        ConfigError, match=r"there is no h 'entropy'; did you mean 'hypentropy'.* choose one of squared, hypentropy"
    ):
        start(classification(), ADMMFedMeta(h="entropy"), evaluations=())


def test_the_exact_sibling_solves_its_subproblems() -> None:
    problem = make_problem("mlp", dtype=F64, sizes=(7, 4, 12, 5, 2), options={"hidden": [5], "activation": "tanh"})
    client = problem.client(np.arange(5))
    v = problem.model.init(1, F64).expand(5, -1) + 0.1
    x = client.meta_prox(v, 0.7, 0.3)
    slope = client.meta_grad(x, 0.3)[0] + 0.7 * (x - v)
    assert float(slope.norm(dim=-1).max()) < 1e-9
    for i in range(5):
        torch.testing.assert_close(problem.client(i).meta_prox(v[i], 0.7, 0.3), x[i], rtol=0, atol=1e-8)


def test_both_find_the_same_model_of_a_smooth_network() -> None:
    problem = make_problem("linear", dtype=F64, sizes=(7, 4, 6))
    ends = []
    for method, rounds in (
        (ADMMFedMeta(rho=0.5, lambda_=0.05, order="exact"), 300),
        (ADMMMetaExact(rho=0.2, lambda_=0.05, tolerance=1e-12, max_iterations=60), 100),
    ):
        engines = walk(problem, method, prior=torch.zeros(problem.model.n, dtype=F64))
        ends.append(next(e for t, e in enumerate(engines, 1) if t == rounds).state["x"])
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-8)
