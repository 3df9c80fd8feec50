"""Mixture ADMM: where it diverges and where not, one client after the other, and what it refuses."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedloom
from fedloom.conformance import quadratics
from fedloom.conformance.declarations.admm import alike
from fedloom.conformance.declarations.personal import mixture
from fedloom.conformance.drive import product, walking
from fedloom.engine.rounds import Rounds
from fedloom.engine.selection import Chosen
from fedloom.errors import ConfigError, Diverged
from fedloom.methods import MixtureADMM
from problems import make_problem

KNOWN = quadratics(unequal=True)  # five clients
AT = mixture(KNOWN, 0.8)


def distances(rounds: int, method: MixtureADMM, **how: Any) -> list[float]:
    """How far all clients' models are from the closed form, after each round in which all have one."""
    found = []
    with walking(Rounds, KNOWN.problem, method, **how) as walk:
        for _ in range(rounds):
            walk.step()
            if len(walk.store.clients()) == 5:
                found.append(float((product(walk, KNOWN.clients) - AT).abs().max()))
    return found


@pytest.mark.parametrize("rho", [0.3, 1.0, 5.0])
def test_research_one_converges_for_every_rho_that_was_tried_from_a_bound_on(rho: float) -> None:
    found = distances(150, MixtureADMM(lambda_=0.8, rho=rho))
    assert found[-1] < found[0] * 1e-3


def test_research_one_diverges_just_above_where_it_is_well_posed() -> None:
    assert 0.8 / 5 < 0.2
    found = distances(40, MixtureADMM(lambda_=0.8, rho=0.2))
    assert found[-1] > 1e4


@pytest.mark.parametrize(("rho", "falls"), [(0.37, False), (0.43, True)])
def test_clients_alike_converge_exactly_where_the_page_says(rho: float, falls: bool) -> None:
    """Nρ(ρ + a) > λ(λ + a): for N = 3, λ = 0.8 and the least curvature a = 0.4 that is ρ > 0.4."""
    with walking(Rounds, alike(3).problem, MixtureADMM(lambda_=0.8, rho=rho)) as walk:
        moves = []
        for _ in range(120):
            before = walk.theta()
            walk.step()
            moves.append(float((walk.theta() - before).norm()))
    assert (max(moves[-10:]) < max(moves[50:60])) is falls


@pytest.mark.parametrize(
    ("penalties", "falls"), [((0.3, 5.0, 0.3), True), ((1.0, 10.0, 0.1), True), ((0.3, 20.0, 0.3), False)]
)
def test_research_two_converges_and_diverges_where_it_is_known_to(penalties: Any, falls: bool) -> None:
    rho, own, beta = penalties
    found = distances(400, MixtureADMM(lambda_=0.8, form="auxiliary", rho=rho, rho_own=own, beta=beta))
    assert (found[-1] < 0.5 * found[150]) is falls


def test_one_client_after_the_other_is_the_flexible_admm() -> None:
    """z and y move after each pass, and every client meets the newest models of those before it.

    Passes end with client 0: when it was the only one to have answered, all had.
    """
    lam, rho, n = 0.8, 0.6, 5
    in_turn = Chosen(lambda clients, ctx: [ctx.round % n])
    with walking(
        Rounds, KNOWN.problem, MixtureADMM(lambda_=lam, rho=rho, order="gauss-seidel"), select=in_turn
    ) as walk:
        for _ in range(n + 1):
            walk.step()
        x, z, y = product(walk, KNOWN.clients), walk.state["z"], walk.state["y"]
        for t in range(45 * n):
            i = (t + 1) % n
            v = (rho * (n * z - x.sum(0) + x[i]) + y) / (lam + rho)
            a = KNOWN.hessians[i]
            new = torch.linalg.solve(
                a + (lam + rho) * torch.eye(4, dtype=torch.float64), a @ KNOWN.optima[i] + (lam + rho) * v
            )
            x = x.index_copy(0, torch.tensor([i]), new[None])
            if i == 0:
                z = (rho * x.sum(0) - y) / (rho * n - lam)
                y = y + rho * (n * z - x.sum(0))
            walk.step()
            torch.testing.assert_close(product(walk, KNOWN.clients), x, rtol=0, atol=1e-11)
    torch.testing.assert_close(x, AT, rtol=0, atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.05, 20.0))
def test_the_dca_never_raises_the_objective_whoever_answers(seed: int, lam: float) -> None:
    """Each step minimises Σ f_i(x_i) + (λ/2) Σ‖x_i − z‖² over some of the x_i, then over z."""
    heard = Chosen(
        lambda clients, ctx: torch.randperm(5, generator=torch.Generator().manual_seed(seed + ctx.round))[:2]
    )
    values = []
    with walking(Rounds, KNOWN.problem, MixtureADMM(lambda_=lam, form="dca"), select=heard) as walk:
        for _ in range(25):
            walk.step()
            if len(walk.store.clients()) == 5:
                x = product(walk, KNOWN.clients)
                away = x - KNOWN.optima
                losses = (away * (KNOWN.hessians @ away.unsqueeze(-1)).squeeze(-1)).sum() / 2
                values.append(float(losses + lam / 2 * (x - x.mean(0)).square().sum()))
    assert all(after <= before + 1e-9 for before, after in pairwise(values))


def test_a_rho_without_a_minimum_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"rho = 0\.16 is not above λ/N = 0\.8/5 = 0\.16.*no minimum.*'dca'"):
        MixtureADMM(lambda_=0.8, rho=0.16).check(KNOWN.problem)
    MixtureADMM(lambda_=0.8, rho=0.17).check(KNOWN.problem)
    MixtureADMM(lambda_=0.8, rho=0.16, linearised=True).check(KNOWN.problem)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"accelerated": True}, "set form = 'dca'"),
        ({"form": "dca", "linearised": True}, "leave linearised out"),
        ({"solver": "exact"}, "closed form"),
    ],
)
def test_what_does_not_go_together_is_refused(own: dict[str, Any], said: str) -> None:
    problem = make_problem() if "solver" in own else KNOWN.problem
    with pytest.raises(ConfigError, match=said):
        MixtureADMM(**own).check(problem)


def test_what_the_dca_has_no_use_for_is_said() -> None:
    with pytest.warns(UserWarning, match="no use for rho, beta, order"):
        MixtureADMM(form="dca", rho=1.0, beta=1.0, order="gauss-seidel").check(KNOWN.problem)


def test_a_negative_lambda_is_refused() -> None:
    with pytest.raises(ConfigError, match="lambda_"):
        fedloom.train(KNOWN.problem, MixtureADMM(lambda_=-1.0), rounds=1)


def test_a_run_that_diverges_says_so() -> None:
    with pytest.raises(Diverged):
        fedloom.train(KNOWN.problem, MixtureADMM(lambda_=0.8, rho=0.165), rounds=2000, evaluate=[], executor="serial")
