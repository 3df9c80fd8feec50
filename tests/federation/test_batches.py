from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedloom.federation.batches import Plan, Step, order_of, steps_of
from fedloom.federation.ragged import Ragged
from fedloom.federation.randomness import Draw
from problems import visited

SIZES = st.lists(st.integers(0, 11), min_size=1, max_size=6)


def plan_of(
    sizes: list[int],
    batch: int | None,
    epochs: int = 1,
    steps: int | None = None,
    effort: list[float] | None = None,
    draw: Draw | None = None,
    clients: list[int] | None = None,
) -> Plan:
    owned = Ragged.of([torch.arange(n) + 100 * i for i, n in enumerate(sizes)])
    ids = np.arange(len(sizes)) if clients is None else np.array(clients)
    count = steps_of(
        np.array(sizes)[ids], batch, epochs, steps, None if effort is None else np.array(effort)[ids], None
    )
    return Plan.of(owned.span(ids), ids, draw or Draw(5), batch, count)


@given(sizes=SIZES, batch=st.integers(1, 12), epochs=st.integers(1, 3))
def test_every_row_comes_once_an_epoch_and_only_the_last_batch_is_partial(
    sizes: list[int], batch: int, epochs: int
) -> None:
    for client, steps in visited(plan_of(sizes, batch, epochs)).items():
        n = sizes[client]
        per_epoch = -(-n // batch)
        assert len(steps) == epochs * per_epoch
        for epoch in range(epochs):
            mine = steps[epoch * per_epoch : (epoch + 1) * per_epoch]
            assert sorted(row for rows in mine for row in rows) == [100 * client + j for j in range(n)]
            assert all(len(rows) == batch for rows in mine[:-1])


@given(sizes=SIZES, batch=st.integers(1, 5), steps=st.integers(1, 9), some=st.integers(0, 100))
def test_a_clients_batches_do_not_depend_on_its_stack(sizes: list[int], batch: int, steps: int, some: int) -> None:
    whole = visited(plan_of(sizes, batch, steps=steps))
    client = some % len(sizes)
    assert visited(plan_of(sizes, batch, steps=steps, clients=[client]))[client] == whole[client]


@given(sizes=SIZES, steps=st.integers(1, 4))
def test_full_batch_steps_take_all_rows_in_their_own_order(sizes: list[int], steps: int) -> None:
    for client, walked in visited(plan_of(sizes, None, steps=steps)).items():
        rows = [100 * client + j for j in range(sizes[client])]
        assert walked == ([rows] * steps if rows else [])


def test_full_batch_steps_are_the_same_object_so_that_rows_are_read_once() -> None:
    steps = list(plan_of([3, 5], None, epochs=4))
    assert len(steps) == 4
    assert all(step is steps[0] for step in steps)


def test_every_epoch_round_and_client_has_its_own_order() -> None:
    orders = []
    for t in range(2):
        walked = visited(plan_of([30, 30], 30, epochs=2, draw=Draw(0, t)))
        orders += [tuple(row % 100 for row in rows) for steps in walked.values() for rows in steps]
    assert len(set(orders)) == len(orders) == 8
    assert all(sorted(order) == list(range(30)) for order in orders)


def test_all_orders_of_three_rows_are_equally_likely() -> None:
    clients, rounds = np.arange(600), 10
    plan = Plan.of(
        Ragged.contiguous(torch.full((600,), 3)).span(clients), clients, Draw(0), 3, np.ones(600, dtype=np.int64)
    )
    sizes, epoch = np.full(600, 3), np.zeros(600, dtype=np.int64)
    found = np.concatenate([plan.shuffle(clients, sizes, epoch + e) for e in range(rounds)])
    _, counts = np.unique(found, axis=0, return_counts=True)
    assert len(counts) == 6
    assert ((counts - 1000) ** 2 / 1000).sum() < 25.7  # χ² with 5 degrees of freedom exceeds that once in 10⁴


def test_padding_repeats_a_row_of_the_same_client() -> None:
    step = next(iter(plan_of([5, 2], 4)))
    assert step.counts is not None
    assert step.counts.tolist() == [4, 2]
    assert step.rows.shape == (2, 4)
    assert set(step.rows[1].tolist()) == {100, 101}


def test_clients_still_at_work_are_the_first_of_the_plans_order() -> None:
    plan = plan_of([2, 9, 0, 5], 2)
    assert plan.order.tolist() == [1, 3, 0, 2]
    assert [step.active for step in plan] == [3, 2, 2, 1, 1]


def test_a_federation_without_rows_has_no_steps() -> None:
    assert list(plan_of([0, 0], 4)) == []
    assert list(plan_of([0], None)) == []


@given(width=st.integers(1, 40), rows=st.integers(1, 3), seed=st.integers(0, 99))
def test_both_ways_to_sort_give_the_same_order(width: int, rows: int, seed: int) -> None:
    keys = np.random.default_rng(seed).integers(0, 20, (rows, width)).astype(np.uint64)
    assert np.array_equal(order_of(keys.copy()), order_of(keys.copy(), limit=0))


@pytest.mark.parametrize(
    ("batch", "epochs", "steps", "effort", "budget", "expected"),
    [
        (4, 1, None, None, None, [2, 1, 0, 3]),
        (4, 2, None, None, None, [4, 2, 0, 6]),
        (4, 2, 5, None, None, [5, 5, 0, 5]),
        (None, 3, None, None, None, [3, 3, 0, 3]),
        (None, 1, 7, None, None, [7, 7, 0, 7]),
        (4, 4, None, [0.5, 0.3, 1.0, 1.0], None, [4, 1, 0, 12]),
        (4, 1, 10, [0.3, 0.01, 0.5, 0.99], None, [3, 1, 0, 9]),  # 10·0.3 is three steps, whatever the rounding
        (4, 4, None, None, [11.0, 9.0, 9.0, 0.0], [3, 4, 0, 1]),  # 4 + 3 + 4; a client that takes part does a step
        (4, 4, None, None, [10.9, 4.0, 9.0, 10.0], [2, 2, 0, 3]),
        (20, 4, None, None, [13.9, 4.0, 9.0, 20.0], [1, 2, 0, 2]),
        (None, 4, None, None, [14.0, 100.0, 9.0, 23.9], [2, 4, 0, 2]),
        (4, 4, None, None, [np.inf, 1e300, np.inf, np.inf], [8, 4, 0, 12]),
        (4, 4, None, [0.5] * 4, [8.0, np.inf, 0.0, np.inf], [2, 2, 0, 6]),
    ],
)
def test_the_number_of_steps(
    batch: int | None,
    epochs: int,
    steps: int | None,
    effort: list[float] | None,
    budget: list[float] | None,
    expected: list[int],
) -> None:
    sizes = np.array([7, 2, 0, 10])
    count = steps_of(
        sizes,
        batch,
        epochs,
        steps,
        None if effort is None else np.array(effort),
        None if budget is None else np.array(budget),
    )
    assert count.tolist() == expected
    assert count.dtype == np.int64


def test_less_effort_is_a_prefix_of_the_same_steps() -> None:
    whole, part = visited(plan_of([9, 6], 2, 2)), visited(plan_of([9, 6], 2, 2, effort=[0.4, 0.5]))
    assert part[0] == whole[0][:4]
    assert part[1] == whole[1][:3]


def test_a_step_knows_when_all_rows_count() -> None:
    step = next(iter(plan_of([4, 4], 4)))
    assert isinstance(step, Step)
    assert step.counts is None
