"""Cross-validation: every row, or every client, is tested exactly once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedloom
from fedloom.data.folds import Fold, read_folds
from fedloom.data.splits import Splitter
from fedloom.errors import ConfigError, DataError
from fedloom.federation.data import TARGET
from fedloom.federation.randomness import Draw


def numbers(ragged: object, clients: int) -> list[int]:
    return [int(row) for client in range(clients) for row in ragged[client]]  # type: ignore[index]


@settings(deadline=None, max_examples=60)
@given(
    owner=st.lists(st.integers(-1, 6), min_size=2, max_size=150).filter(lambda owner: max(owner) >= 0),
    count=st.integers(2, 7),
    seed=st.integers(0, 1000),
)
def test_every_row_is_tested_once_and_folds_are_even_by_client_and_class(
    owner: list[int], count: int, seed: int
) -> None:
    own, labels = np.asarray(owner), np.random.default_rng(seed).integers(0, 3, len(owner))
    splitter = Splitter(own, int(own.max()) + 1, labels, None, Draw(seed))
    tested = [Fold(number, count).tested(splitter)[1] for number in range(1, count + 1)]
    assert sorted(np.concatenate(tested).tolist()) == np.flatnonzero(own >= 0).tolist()
    for client in range(splitter.clients):
        for kind in (own == client, *((own == client) & (labels == label) for label in range(3))):
            sizes = [int(kind[rows].sum()) for rows in tested]
            assert max(sizes) - min(sizes) <= 1


def test_folds_over_rows_of_a_federation_cover_it_and_split_what_is_left() -> None:
    tested, whole = [], fedloom.federate("digits", clients=7, partition="dirichlet", alpha=0.3)
    for fold in range(1, 6):
        data = fedloom.federate(
            "digits", clients=7, partition="dirichlet", alpha=0.3, folds=5, fold=fold, validation=0.2
        )
        parts = [numbers(data.splits[name], 7) for name in ("train", "validation", "test")]
        assert sorted(row for part in parts for row in part) == list(range(len(whole.x)))
        halves = numbers(data.splits["test-support"], 7) + numbers(data.splits["test-query"], 7)
        assert sorted(halves) == sorted(parts[2])
        tested += parts[2]
        assert f"fold {fold} of 5" in " ".join(data.notes)
    assert sorted(tested) == list(range(len(whole.x)))


@pytest.mark.parametrize(("folds", "count"), [("clients", 7), ("clients:3", 3)])
def test_folds_over_clients_leave_each_out_once_with_all_of_its_rows(folds: str, count: int) -> None:
    left_out, tested = [], []
    for fold in range(1, count + 1):
        data = fedloom.federate("digits", clients=7, folds=folds, fold=fold, validation=0.1)
        targets = data.with_role(TARGET).tolist()
        left_out += targets
        assert {client for client in range(7) if len(data.splits["test"][client])} == set(targets)
        for client in range(7):
            learnt = [*data.splits["train"][client].tolist(), *data.splits["validation"][client].tolist()]
            assert bool(learnt) == (client not in targets)
        for client in targets:  # adapted models are fitted to half of the rows and judged on the others
            support, query = (set(data.splits[name][client].tolist()) for name in ("support", "query"))
            assert support | query == set(data.splits["test"][client].tolist())
            assert not support & query
            assert support == set(data.splits["test-support"][client].tolist())
        tested += numbers(data.splits["test"], 7)
    assert sorted(left_out) == list(range(7))
    assert sorted(tested) == list(range(1797))


def test_rows_in_order_of_time_are_tested_after_all_that_was_learnt() -> None:
    rows = np.arange(24.0)
    table = fedloom.from_arrays(rows[:, None], rows % 5, clients=rows >= 12, task="regression")
    tested = []
    for fold in (1, 2, 3):
        data = fedloom.federate(table, chronological=True, folds=3, fold=fold)
        for client in range(2):
            values = {name: data.x[data.splits[name][client]][:, 0].tolist() for name in ("train", "test")}
            first = 12.0 * client
            assert values["train"] == [first + k for k in range(3 * fold)]
            assert values["test"] == [first + 3 * fold + k for k in range(3)]
            tested += values["test"]
        assert "first" in " ".join(data.notes)  # the rows before the first test are never tested, which is said
    assert sorted(tested) == [*range(3, 12), *range(15, 24)]


def test_equal_seeds_give_equal_folds_and_other_seeds_others() -> None:
    def tests(seed: int, **how: object) -> list[int]:
        return numbers(fedloom.federate("digits", clients=4, seed=seed, folds=3, fold=2, **how).splits["test"], 4)  # type: ignore[arg-type]

    assert tests(1) == tests(1, support=None)
    assert tests(1) != tests(2)


def test_clients_that_hold_columns_have_folds_of_their_common_rows() -> None:
    tested = []
    for fold in (1, 2, 3):
        data = fedloom.federate("digits", clients=2, partition="features", folds=3, fold=fold)
        assert torch.equal(data.splits["test"][0], data.splits["test"][1])
        tested += data.splits["test"][0].tolist()
    assert sorted(tested) == list(range(1797))
    with pytest.raises(ConfigError, match="all have to take part"):
        fedloom.federate("digits", clients=2, partition="features", folds="clients", fold=1)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"folds": 1, "fold": 1}, "at least 2"),
        ({"folds": "client", "fold": 1}, "'clients:5'"),
        ({"folds": "clients:x", "fold": 1}, "'clients:5'"),
        ({"folds": True, "fold": 1}, "'clients:5'"),
        ({"folds": 5}, "fold = 1 to 5"),
        ({"folds": 5, "fold": 6}, "fold = 1 to 5"),
        ({"folds": "clients", "fold": 9}, "fold = 1 to 4"),
        ({"folds": "clients:9", "fold": 1}, "4 clients"),
        ({"fold": 1}, "give folds"),
        ({"folds": 5, "fold": 1, "test": 0.3}, "leave test out"),
        ({"folds": "clients:2", "fold": 1, "test": "published"}, "leave test out"),
        ({"folds": "clients:2", "fold": 1, "target": 0.2}, "leave target out"),
    ],
)
def test_what_cannot_be_is_said(how: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fedloom.federate("digits", clients=4, **how)  # type: ignore[arg-type]


def test_a_client_of_one_row_cannot_be_learnt_from_in_every_fold() -> None:
    table = fedloom.from_arrays(np.eye(5), [0, 1, 0, 1, 0], clients=["a", "a", "a", "a", "b"])
    with pytest.raises(DataError, match="client b would have no training rows; leave it out with min_rows = 2"):
        [fedloom.federate(table, folds=2, fold=fold, support=None) for fold in (1, 2)]  # the test in one of them
    fedloom.federate(table, folds=2, fold=1, support=None, partition="natural", min_rows=2)


def test_folds_are_counted_before_there_are_clients() -> None:
    assert read_folds(5).numbers(100) == [1, 2, 3, 4, 5]
    assert read_folds("clients").numbers(3) == [1, 2, 3]
    assert read_folds("clients:2").numbers(3) == [1, 2]
