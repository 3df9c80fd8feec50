"""Bregman divergences: their gradients, their sign, and the point that a server wants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.divergences import (
    DIVERGENCES,
    Divergence,
    Hypentropy,
    Squared,
    divergence_for,
    register_divergence,
)

F64 = torch.float64
ALL = [Squared(), Hypentropy(), Hypentropy(0.1), Hypentropy(20.0)]
numbers = st.lists(st.floats(-50, 50), min_size=3, max_size=3).map(lambda values: torch.tensor(values, dtype=F64))


@dataclass(frozen=True)
class Fourth(Divergence):
    """A user's own: h = Σ θ⁴/4 + θ²/2."""

    def value(self, theta: Tensor) -> Tensor:
        return (theta**4 / 4 + theta**2 / 2).sum(-1)

    def gradient(self, theta: Tensor) -> Tensor:
        return theta**3 + theta

    def curvature(self, theta: Tensor) -> Tensor:
        return 3 * theta**2 + 1


@pytest.fixture
def fourth() -> Iterator[str]:
    register_divergence("fourth", Fourth())
    yield "fourth"
    DIVERGENCES.remove("fourth")


@pytest.mark.parametrize("h", [*ALL, Fourth()])
@given(theta=numbers)
def test_gradients_and_curvatures_are_the_derivatives(h: Divergence, theta: Tensor) -> None:
    at = theta.clone().requires_grad_()
    (slope,) = torch.autograd.grad(h.value(at), at, create_graph=True)
    torch.testing.assert_close(h.gradient(theta), slope.detach(), rtol=1e-9, atol=1e-9)
    (bend,) = torch.autograd.grad(h.gradient(at).sum(), at) if h != Squared() else (torch.full_like(theta, 2.0),)
    torch.testing.assert_close(h.curvature(theta), bend, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("h", [*ALL, Fourth()])
@given(theta=numbers, prior=numbers)
def test_a_divergence_is_zero_at_the_prior_and_positive_elsewhere(h: Divergence, theta: Tensor, prior: Tensor) -> None:
    assert float(h.between(prior, prior)) == 0
    scale = float(h.value(theta).abs() + h.value(prior).abs() + 1)
    assert float(h.between(theta, prior)) >= -1e-12 * scale


@given(theta=numbers, prior=numbers)
def test_the_squared_norm_gives_the_squared_distance(theta: Tensor, prior: Tensor) -> None:
    torch.testing.assert_close(Squared().between(theta, prior), (theta - prior).square().sum(), rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("h", [*ALL, Fourth()])
@given(v=numbers, prior=numbers, rho=st.floats(0.01, 100), strength=st.floats(0, 1000))
def test_the_nearest_point_is_stationary(h: Divergence, v: Tensor, prior: Tensor, rho: float, strength: float) -> None:
    theta = h.nearest(v, rho, strength, prior)
    slope = rho * theta - v + strength * h.pull(theta, prior)
    curve = rho + strength * h.curvature(theta)
    size = (rho * theta).abs() + v.abs() + strength * (h.gradient(theta).abs() + h.gradient(prior).abs())
    assert bool(((slope / curve).abs() <= 1e-12 * (theta.abs() + size / curve)).all())


def test_the_closed_form_of_the_squared_norm_is_what_newton_finds() -> None:
    v, prior = torch.tensor([3.0, -1.0], dtype=F64), torch.tensor([0.5, 2.0], dtype=F64)
    torch.testing.assert_close(Squared().nearest(v, 0.7, 2.0, prior), Divergence.nearest(Squared(), v, 0.7, 2.0, prior))


def test_ones_own_is_found_by_name_and_an_unknown_name_is_answered_with_all(fourth: str) -> None:
    assert divergence_for(fourth) == Fourth()
    remedy = r"choose one of squared, hypentropy, .*fourth, or your own as module:object, .*fedloom.register_divergence"
    with pytest.raises(ConfigError, match=rf"no h 'fith'; did you mean 'fourth'\? Or {remedy}"):
        divergence_for("fith")
