"""What old replies are worth, at points that can be checked by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedloom.federation.staleness import constant, hinge, polynomial


def test_a_polynomial_falls_as_a_power_of_the_age_plus_one() -> None:
    assert polynomial(torch.tensor([0, 3, 8, 99]), 0.5).tolist() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 10], rel=1e-15)
    assert polynomial(torch.tensor([0, 1, 4]), 2.0).tolist() == pytest.approx([1, 1 / 4, 1 / 25], rel=1e-15)


def test_a_hinge_is_flat_up_to_its_edge_and_falls_from_there() -> None:
    """Neither 1/(a(Δ + b) + 1) nor 1/(a(Δ − b)), as it is written in places."""
    worth = hinge(torch.tensor([0, 3, 4, 5, 6, 14]), 10.0, 4.0).tolist()
    assert worth == pytest.approx([1, 1, 1, 1 / 11, 1 / 21, 1 / 101], rel=1e-15)
    assert hinge(torch.tensor([6, 8]), 0.5, 6.0).tolist() == [1.0, 0.5]


def test_in_a_round_one_number_stands_for_all() -> None:
    fresh = torch.zeros((), dtype=torch.int64)
    assert [float(worth) for worth in (constant(fresh), polynomial(fresh, 0.5), hinge(fresh, 10.0, 4.0))] == [1.0] * 3


@given(st.lists(st.integers(0, 10**6), min_size=2), st.floats(0.01, 20), st.floats(0, 100))
def test_what_is_older_is_never_worth_more(ages: list[int], a: float, b: float) -> None:
    age = torch.tensor(sorted(ages))
    for worth in (constant(age), polynomial(age, a), hinge(age, a, b)):
        assert worth.dtype == torch.float64
        assert bool((worth.diff() <= 0).all())
        assert bool(((worth > 0) & (worth <= 1)).all())
