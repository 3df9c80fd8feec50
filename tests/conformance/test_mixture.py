"""The closed form of min Σ f_i(x_i) + (λ/2) Σ‖x_i − x̄‖², against what is known of it by other ways."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.conformance.declarations.common import prox, slopes
from fedloom.conformance.declarations.personal import mixture
from fedloom.conformance.problems import quadratics

KNOWN = quadratics(unequal=True)


def test_without_coupling_each_client_has_its_own_optimum():
    torch.testing.assert_close(mixture(KNOWN, 0.0), KNOWN.optima, rtol=0, atol=1e-12)


def test_with_strong_coupling_all_have_the_optimum_of_the_plain_mean():
    consensus = KNOWN.minimiser("uniform").expand_as(KNOWN.optima)
    errors = [float((mixture(KNOWN, strength) - consensus).abs().max()) for strength in (1e2, 1e4, 1e6)]
    assert errors[2] < 1e-5
    assert errors[0] / errors[1] == pytest.approx(100, rel=0.05)  # it is near by 1/λ
    assert errors[1] / errors[2] == pytest.approx(100, rel=0.05)


@settings(max_examples=25, deadline=None)
@given(st.floats(1e-3, 1e3))
def test_the_slopes_balance_and_each_model_is_near_the_mean(strength):
    x = mixture(KNOWN, strength)
    mean = x.mean(0)
    torch.testing.assert_close(slopes(KNOWN, x).sum(0), torch.zeros_like(mean), rtol=0, atol=1e-9)  # Σ∇f_i(x_i*) = 0
    torch.testing.assert_close(x, prox(KNOWN, strength, mean), rtol=0, atol=1e-9)  # x_i* = prox_{f_i}(x̄*)


def test_no_other_models_are_better():
    strength, x = 0.8, mixture(KNOWN, 0.8).requires_grad_()
    away = x - KNOWN.optima
    losses = (away * (KNOWN.hessians @ away.unsqueeze(-1)).squeeze(-1)).sum() / 2  # up to constants
    (gradient,) = torch.autograd.grad(losses + strength / 2 * (x - x.mean(0)).square().sum(), x)
    assert float(gradient.abs().max()) < 1e-12  # the objective is convex
