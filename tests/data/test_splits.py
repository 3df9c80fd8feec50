from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.data.order import grouped, places
from fedloom.data.splits import Splitter, choose_roles, split
from fedloom.data.table import Table
from fedloom.errors import ConfigError, DataError
from fedloom.federation.data import TARGET
from fedloom.federation.ragged import Ragged
from fedloom.federation.randomness import Draw

Make = Callable[..., Table]


def rows(ragged: Ragged) -> list[list[int]]:
    return [ragged[client].tolist() for client in range(len(ragged))]


def splits(owner: list[int] | np.ndarray, labels: object = None, **options: object) -> dict[str, Ragged]:
    owner = np.asarray(owner, dtype=np.int64)
    test, support = options.pop("test", 0.2), options.pop("support", 0.5)
    validation = options.pop("validation", 0.0)
    time = options.pop("time", None)
    known = None if labels is None else np.asarray(labels)
    splitter = Splitter(owner, int(owner.max()) + 1, known, time, Draw(0), **options)  # type: ignore[arg-type]
    return split(splitter, test, support, validation)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=60)
@given(
    owner=st.lists(st.integers(-1, 6), min_size=1, max_size=150).filter(lambda owner: max(owner) >= 0),
    test=st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.9]),
    support=st.sampled_from([None, 0.0, 0.2, 0.5, 1.0]),
    validation=st.sampled_from([0.0, 0.2, 0.9]),
    seed=st.integers(0, 1000),
)
def test_splits_are_disjoint_complete_and_leave_every_client_something_to_learn_from(
    owner: list[int], test: float, support: float | None, validation: float, seed: int
) -> None:
    labels = np.random.default_rng(seed).integers(0, 3, len(owner))
    found = splits(owner, labels, test=test, support=support, validation=validation)
    before = splits(owner, labels, test=test, support=support)
    held = ["validation"] if validation else []
    for client in range(max(owner) + 1):
        mine = {row for row, who in enumerate(owner) if who == client}
        train, tested = set(found["train"][client].tolist()), set(found["test"][client].tolist())
        chosen_by = set(found["validation"][client].tolist()) if validation else set()
        assert not train & tested
        assert not chosen_by & (train | tested)
        assert train | tested | chosen_by == mine
        assert tested == set(before["test"][client].tolist())  # validation rows are taken from those for training
        if validation and len(train | chosen_by) > 1:
            assert abs(len(chosen_by) - validation * len(train | chosen_by)) <= 1
            assert chosen_by
        assert train or not mine
        if len(mine) > 1 and test > 0:
            assert abs(len(tested) - test * len(mine)) <= 1
            assert tested
        if support is None:
            assert set(found) == {"train", "test", *held}
            continue
        halved = [(name, f"{name}-support", f"{name}-query") for name in ("test", *held)]
        for whole, first, second in [("train", "support", "query"), *halved]:
            a, b = set(found[first][client].tolist()), set(found[second][client].tolist())
            assert not a & b
            assert a | b == set(found[whole][client].tolist())
            if 0 < support < 1 and len(a | b) > 1:
                assert a
                assert b


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), min_size=1, max_size=5),
    test=st.sampled_from([0.1, 0.25, 0.5]),
)
def test_each_class_of_a_client_gives_its_part_to_the_test(sizes: list[list[int]], test: float) -> None:
    cells = [(client, c, n) for client, row in enumerate(sizes) for c, n in enumerate(row)]
    owner = np.concatenate([np.full(n, client) for client, _, n in cells])
    labels = np.concatenate([np.full(n, c) for _, c, n in cells])
    if len(owner) == 0:
        return
    found = splits(owner, labels, test=test)
    for client in range(len(found["test"])):
        mine, tested = labels[owner == client], labels[found["test"][client].numpy()]
        for c in range(3):
            share = (mine == c).sum() * len(tested) / max(len(mine), 1)
            assert abs((tested == c).sum() - share) < 1 + 1e-9


def test_every_row_is_as_likely_to_be_tested_as_any_other() -> None:
    owner, labels, times = np.zeros(10, dtype=np.int64), np.array([0] * 7 + [1] * 3), np.zeros(10)
    for seed in range(1200):
        found = split(Splitter(owner, 1, labels, None, Draw(seed)), 0.3, None)
        times[found["test"][0].numpy()] += 1
    assert np.abs(times / 1200 - 0.3).max() < 0.055


def test_a_client_of_one_row_trains_on_it_and_asks_about_it() -> None:
    found = splits([0, 1, 1])
    assert found["train"].sizes.tolist() == [1, 1]
    assert found["test"].sizes.tolist() == [0, 1]
    assert found["support"].sizes.tolist() == [0, 0]
    assert found["query"].sizes.tolist() == [1, 1]


def test_a_chronological_split_tests_on_the_last_rows_and_supports_on_the_first() -> None:
    time = np.array([5.0, 1.0, 4.0, 2.0, 3.0])
    found = splits([0] * 5, time=time, test=0.4, support=1 / 3, chronological=True)
    assert rows(found["train"]) == [[1, 3, 4]]
    assert rows(found["test"]) == [[2, 0]]
    assert rows(found["support"]) == [[1]]
    assert rows(found["query"]) == [[3, 4]]
    held = splits([0] * 5, time=time, test=0.4, validation=1 / 3, support=None, chronological=True)
    assert rows(held["train"]) == [[1, 3]]
    assert rows(held["validation"]) == [[4]]
    assert rows(held["test"]) == [[2, 0]]


def test_rows_stand_in_order_of_time_and_without_it_in_the_tables_order() -> None:
    found = splits([0] * 50, time=np.arange(50.0)[::-1].copy())
    assert all(a > b for a, b in pairwise(rows(found["train"])[0]))
    plain = splits([0] * 50)
    assert all(a < b for a, b in pairwise(rows(plain["train"])[0]))


def test_without_a_test_clients_of_consecutive_rows_need_no_row_numbers() -> None:
    found = splits([0, 0, 1, 1, 1], test=0.0, support=None)
    assert found["train"].rows is None
    assert rows(found["train"]) == [[0, 1], [2, 3, 4]]
    assert found["test"].sizes.tolist() == [0, 0]


@pytest.mark.parametrize("options", [{"test": 1.0}, {"test": -0.1}, {"support": 1.5}, {"validation": 1.0}])
def test_a_fraction_that_cannot_be_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="cannot be"):
        splits([0, 0, 0], **options)


def test_a_fifth_of_the_clients_are_targets() -> None:
    assert int((choose_roles(50, 0.2, Draw(0)) == TARGET).sum()) == 10
    assert int((choose_roles(3, 0.01, Draw(0)) == TARGET).sum()) == 1
    assert int((choose_roles(3, 0.99, Draw(0)) == TARGET).sum()) == 2
    assert int((choose_roles(3, 0.0, Draw(0)) == TARGET).sum()) == 0
    with pytest.raises(DataError, match="one client cannot be source and target"):
        choose_roles(1, 0.2, Draw(0))
    with pytest.raises(ConfigError, match="a share of 1"):
        choose_roles(5, 1.0, Draw(0))


@settings(deadline=None, max_examples=60)
@given(groups=st.lists(st.integers(-1, 9), max_size=80), shuffled=st.booleans())
def test_grouped_rows_are_all_rows_of_a_group_and_in_order_unless_shuffled(groups: list[int], shuffled: bool) -> None:
    given_groups = np.array(groups, dtype=np.int64)
    order = grouped(given_groups, Draw(1).generator("test") if shuffled else None)
    expected = np.argsort(given_groups, kind="stable")[(given_groups < 0).sum() :]
    if not shuffled:
        assert order.tolist() == expected.tolist()
    assert sorted(order.tolist()) == sorted(expected.tolist())
    assert (np.diff(given_groups[order]) >= 0).all()


def test_places_count_from_zero_in_every_group() -> None:
    assert places(np.array([2, 0, 3])).tolist() == [0, 1, 0, 1, 2]
    assert torch.equal(torch.from_numpy(places(np.array([1]))), torch.zeros(1, dtype=torch.int64))
