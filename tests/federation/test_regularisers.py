from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedloom.errors import ConfigError
from fedloom.federation.regularisers import regulariser_for, soft_threshold

EVERY: list[dict[str, Any]] = [
    {"name": "none"},
    {"name": "ridge", "strength": 0.7},
    {"name": "lasso", "strength": 0.7},
    {"name": "elastic-net", "strength": 0.7, "l1_share": 0.3},
    {"name": "box", "low": -0.4, "high": 0.9},
]


@pytest.mark.parametrize("which", EVERY, ids=lambda which: which["name"])
@given(v=st.floats(-3, 3), t=st.floats(0.01, 5))
def test_no_point_is_better_than_the_proximal_step(which: dict[str, Any], v: float, t: float) -> None:
    g = regulariser_for(**which)
    at = torch.tensor([v], dtype=torch.float64)

    def cost(z: torch.Tensor) -> float:
        return float(t * g.value(z) + (z - at).square().sum() / 2)

    best = cost(g.prox(at, t))
    grid = torch.linspace(-4, 4, 161, dtype=torch.float64)
    assert best <= min(cost(z.unsqueeze(0)) for z in grid) + 1e-12


def test_soft_thresholding_moves_towards_zero_and_not_beyond() -> None:
    v = torch.tensor([3.0, -3.0, 0.5, -0.5, 0.0])
    assert soft_threshold(v, 1.0).tolist() == [2.0, -2.0, 0.0, 0.0, 0.0]


def test_no_regulariser_leaves_the_model_as_it_is() -> None:
    v = torch.randn(5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(regulariser_for("none", strength=3.0).prox(v, 2.0), v)


def test_an_elastic_net_has_ridge_and_lasso_as_its_ends() -> None:
    v = torch.linspace(-2, 2, 9)
    for share, name in ((0.0, "ridge"), (1.0, "lasso")):
        net, end = regulariser_for("elastic-net", 0.4, share), regulariser_for(name, 0.4)
        assert torch.equal(net.prox(v, 0.5), end.prox(v, 0.5))


def test_a_point_outside_the_box_has_no_finite_value() -> None:
    box = regulariser_for("box", low=0.0, high=1.0)
    assert box.value(torch.tensor([0.0, 1.0])) == 0
    assert box.value(torch.tensor([0.0, 1.1])) == float("inf")


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        ({"name": "tikhonov"}, "no regulariser 'tikhonov'; choose one of none, ridge"),
        ({"name": "lasso", "strength": -1.0}, "strength = -1.0"),
        ({"name": "lasso", "strength": float("nan")}, "strength = nan"),
        ({"name": "elastic-net", "strength": 1.0, "l1_share": 1.5}, "l1_share = 1.5"),
        ({"name": "box", "low": 2.0, "high": 1.0}, "low = 2.0 is above high = 1.0"),
    ],
)
def test_impossible_regularisers_are_refused(given_: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        regulariser_for(**given_)
