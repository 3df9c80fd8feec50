"""What was forgotten and transferred, on matrices made by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.engine.matrix import TaskMatrix

THREE = TaskMatrix(
    tasks=("a", "b", "c"),
    rows=((0.9, 0.2, 0.3), (0.95, 0.8, 0.4), (0.5, 0.7, 1.0)),
    fresh=(0.1, 0.1, 0.2),
)


def test_the_four_measures_by_hand() -> None:
    assert THREE.average == pytest.approx((0.5 + 0.7 + 1.0) / 3)
    assert THREE.forgotten == pytest.approx((0.95 - 0.5, 0.8 - 0.7))  # the best of a came after b
    assert THREE.forgetting == pytest.approx((0.45 + 0.1) / 2)
    assert THREE.backward_transfer == pytest.approx((0.5 - 0.9 + 0.7 - 0.8) / 2)
    assert THREE.forward_transfer == pytest.approx((0.2 - 0.1 + 0.4 - 0.2) / 2)


def test_the_best_before_may_come_before_a_task_was_learnt() -> None:
    """Chaudhry et al. take the maximum over all earlier models, not only over those that had seen the task."""
    matrix = TaskMatrix(("a", "b", "c"), ((0.5, 0.9, 0.0), (0.5, 0.6, 0.0), (0.5, 0.6, 0.9)), (0.0, 0.0, 0.0))
    assert matrix.forgotten == pytest.approx((0.0, 0.3))


def test_an_error_that_grows_is_forgetting_too() -> None:
    matrix = replace(THREE, higher=False)
    assert matrix.average == THREE.average
    assert matrix.forgotten == pytest.approx((0.5 - 0.9, 0.7 - 0.2))
    assert matrix.backward_transfer == pytest.approx(-THREE.backward_transfer)
    assert matrix.forward_transfer == pytest.approx(-THREE.forward_transfer)


def test_one_task_alone_forgets_and_transfers_nothing() -> None:
    assert THREE.so_far(1).measures() == {"average": 0.9}
    assert math.isnan(THREE.so_far(1).forgetting)
    assert THREE.so_far(0).measures() == {}


def test_a_matrix_under_way_counts_the_tasks_learnt_so_far() -> None:
    two = THREE.so_far(2)
    assert two.average == pytest.approx((0.95 + 0.8) / 2)
    assert two.forgetting == pytest.approx(-0.05)
    assert two.forward_transfer == pytest.approx(0.1)


unit = st.floats(0, 1)


@given(st.integers(2, 5).flatmap(lambda n: st.lists(st.lists(unit, min_size=n, max_size=n), min_size=n, max_size=n)))
def test_forgetting_is_never_less_than_what_backward_transfer_lost(rows: list[list[float]]) -> None:
    tasks = tuple(map(str, range(len(rows))))
    matrix = TaskMatrix(tasks, tuple(map(tuple, rows)), tuple(rows[0]))
    assert matrix.forgetting >= -matrix.backward_transfer - 1e-12
    assert 0 <= matrix.average <= 1
