from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.data import federate, load, synthetic_linear
from fedloom.data.table import Table
from fedloom.errors import ConfigError, DataError
from fedloom.federation.data import SOURCE, TARGET, FederatedData

Make = Callable[..., Table]


def held(data: FederatedData, client: int, *splits: str) -> list[int]:
    """The sorted labels of a client's rows."""
    return sorted(
        label for split in splits or ("train", "test") for label in data.y[data.splits[split][client]].tolist()
    )


def owned(data: FederatedData) -> list[int]:
    """All rows of train and test of all clients."""
    return [row for split in ("train", "test") for k in range(data.clients) for row in data.splits[split][k].tolist()]


def test_one_call_makes_a_federation_of_a_named_source() -> None:
    data = federate("digits", clients=10, partition="classes", seed=1)
    assert data.clients == 10
    assert set(data.splits) == {"train", "test", "support", "query", "test-support", "test-query"}
    assert sorted(owned(data)) == list(range(1797))
    assert all(len(set(held(data, client))) == 2 for client in range(10))
    assert data.notes[0] == "pixels divided by 16"


def test_without_further_words_a_table_with_clients_keeps_them_and_another_is_shared_by_twenty(labelled: Make) -> None:
    assert federate(labelled([0, 1] * 30, groups=torch.arange(60) % 3)).clients == 3
    assert federate(labelled([0, 1] * 30)).clients == 20


@pytest.mark.parametrize("clients", [0, -1])
def test_a_federation_without_clients_is_refused(clients: int) -> None:
    with pytest.raises(DataError, match=f"a federation of {clients} clients cannot be; give at least 1"):
        federate("digits", clients=clients)


def test_the_same_seed_gives_the_same_federation() -> None:
    first, again, other = (federate("digits", clients=5, seed=seed) for seed in (4, 4, 5))
    assert owned(first) == owned(again) != owned(other)


def test_target_clients_are_a_share_and_all_others_are_sources() -> None:
    data = federate("digits", clients=10, target=0.2)
    assert (len(data.with_role(SOURCE)), len(data.with_role(TARGET))) == (8, 2)
    assert federate("digits", clients=10).roles is None


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "classes"])
def test_each_role_holds_only_the_classes_of_its_list_and_no_row_is_held_twice(partition: str) -> None:
    data = federate(
        "digits", clients=10, target=0.3, partition=partition, source_classes=range(8), target_classes=["8", "9", 0]
    )
    assert {label for k in data.with_role(SOURCE).tolist() for label in held(data, k)} <= set(range(8))
    assert {label for k in data.with_role(TARGET).tolist() for label in held(data, k)} <= {8, 9, 0}
    rows = owned(data)
    assert len(rows) == len(set(rows)) == 1797


def test_a_list_for_sources_alone_leaves_targets_all_classes() -> None:
    data = federate("digits", clients=20, target=0.5, source_classes=range(8))
    targets = {label for k in data.with_role(TARGET).tolist() for label in held(data, k)}
    assert targets == set(range(10))


def test_natural_clients_give_up_the_rows_that_their_role_may_not_hold(labelled: Make) -> None:
    table = labelled([0, 1, 2] * 40, groups=torch.arange(120) % 4)
    data = federate(table, target=0.25, source_classes=[0, 1])
    for client in data.with_role(SOURCE).tolist():
        assert set(held(data, client)) == {0, 1}
    for client in data.with_role(TARGET).tolist():
        assert set(held(data, client)) == {0, 1, 2}


def test_given_sizes_stay_with_their_clients_when_roles_are_served_apart() -> None:
    sizes = [10, 20, 30, 40, 50]
    data = federate(
        "digits",
        clients=5,
        target=0.4,
        target_classes=[1, 2],
        partition="quantity",
        quantity="given",
        sizes=sizes,
    )
    assert (data.splits["train"].sizes + data.splits["test"].sizes).tolist() == sizes


def test_a_class_list_with_too_few_classes_or_an_unknown_one_is_refused() -> None:
    with pytest.raises(DataError, match="2 classes per client cannot be had of 1"):
        federate("digits", clients=4, partition="classes", target=0.5, target_classes=[3])
    with pytest.raises(DataError, match="no class 'eleven'"):
        federate("digits", clients=4, target=0.5, target_classes=["eleven"])


def test_published_test_rows_are_only_tested_and_follow_the_labels_of_the_training_rows(labelled: Make) -> None:
    labels = np.tile(np.arange(10), 60)
    published = torch.arange(600) >= 400
    data = federate(labelled(labels, published_split=published), clients=10, partition="classes", test="published")
    for client in range(10):
        assert not published[data.splits["train"][client]].any()
        assert published[data.splits["test"][client]].all()
        assert set(held(data, client, "test")) == set(held(data, client, "train"))
        assert len(data.splits["test"][client]) == 20
    assert sorted(owned(data)) == list(range(600))


def test_a_regression_shares_published_test_rows_by_size() -> None:
    table = Table("r", torch.rand(100, 2), torch.rand(100, 1), "regression", published_split=torch.arange(100) % 2 == 0)
    data = federate(table, clients=2, partition="quantity", quantity="given", sizes=[40, 10], test="published")
    assert data.splits["train"].sizes.tolist() == [40, 10]
    assert data.splits["test"].sizes.tolist() == [40, 10]


def test_natural_clients_keep_their_own_published_test_rows(labelled: Make) -> None:
    table = labelled([0, 1] * 10, groups=torch.arange(20) // 10, published_split=torch.arange(20) % 5 == 0)
    data = federate(table, test="published")
    assert [data.splits["test"][k].tolist() for k in (0, 1)] == [[0, 5], [10, 15]]


def test_natural_clients_without_training_rows_are_named(labelled: Make) -> None:
    table = labelled([0, 1] * 10, groups=torch.arange(20) // 10, published_split=torch.arange(20) >= 10)
    with pytest.raises(DataError, match="client 1 would have no training rows; give test as a fraction"):
        federate(table, test="published")


def test_a_published_split_that_is_not_there_and_a_test_that_is_no_number_are_refused() -> None:
    with pytest.raises(DataError, match="no published test rows"):
        federate("digits", test="published")
    with pytest.raises(ConfigError, match="give a fraction, or 'published'"):
        federate("digits", test="official")  # type: ignore[arg-type]


def test_rows_that_nobody_owns_are_dropped_when_they_are_the_greater_part(labelled: Make) -> None:
    table = labelled(np.tile(np.arange(10), 100))
    data = federate(table, clients=5, partition=["classes", "quantity"], cyclic=True, smallest=10, largest=10, test=0.2)
    assert len(data.x) == 50
    assert sorted(owned(data)) == list(range(50))
    assert [sorted(set(held(data, client))) for client in range(5)] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert torch.equal(data.x[:, 0].long() % 10, data.y)


def test_transforms_change_the_federations_rows_and_not_the_tables(labelled: Make) -> None:
    table = labelled([0, 1] * 50)
    before = table.x.clone()
    data = federate(table, clients=5, partition=["iid", "feature-skew"], feature_skew="brightness")
    assert torch.equal(table.x, before)
    assert not torch.equal(data.x, before)
    assert "features: brightness of 0.5 to 1.5 by client" in data.notes
    assert federate(table, clients=5).x is table.x


def test_options_of_the_partition_and_unknown_ones_are_told_apart() -> None:
    with pytest.raises(ConfigError, match="the partition iid has no option 'alpha'"):
        federate("digits", partition="iid", alpha=1.0)


def test_a_million_rows_of_a_hundred_thousand_clients_are_divided_without_a_loop() -> None:
    groups = torch.arange(100_000).repeat_interleave(10)
    table = Table("many", torch.zeros(1_000_000, 1), groups % 2, "classification", ("a", "b"), groups=groups)
    data = federate(table)
    assert data.clients == 100_000
    assert set(data.splits["train"].sizes.tolist()) == {8}
    assert set(data.splits["test-query"].sizes.tolist()) == {1}


def test_benchmark_clients_own_consecutive_rows() -> None:
    data = synthetic_linear(clients=50, rows=4, features=3, test_rows=2)
    assert data.splits["train"].rows is None
    assert sorted(owned(data)) == list(range(300))
    assert 0.3 < float(data.y.double().mean()) < 0.7
    assert synthetic_linear(clients=3).splits["test"].sizes.tolist() == [0, 0, 0]


def test_the_real_qmnist_is_a_federation_of_539_writers(real: Callable[..., Path]) -> None:
    real("mnist", "qmnist")
    data = federate(load("qmnist"), target=0.2)
    assert data.clients == 539
    assert data.label(0).startswith("writer ")
    assert len(data.with_role(TARGET)) == 108
    assert len(set(owned(data))) == 60_000


def test_the_real_mnist_keeps_its_published_test(real: Callable[..., Path]) -> None:
    real("mnist")
    data = federate("mnist", clients=100, partition="classes", test="published")
    assert int(data.splits["train"].sizes.sum()) == 60_000
    assert int(data.splits["test"].sizes.sum()) == 10_000


def test_the_times_of_the_rows_stay_with_them(labelled: Make) -> None:
    time = torch.arange(60.0, dtype=torch.float64).flip(0)
    table = labelled([0, 1] * 30, time=time)
    data = federate(table, clients=3)
    assert data.time is not None
    assert torch.equal(data.time, time)
    for client in range(3):
        seen = data.time[data.splits["train"][client]].tolist()
        assert seen == sorted(seen)
    few = federate(table, clients=2, partition=["iid", "quantity"], quantity="given", sizes=[5, 5], test=0.0)
    assert few.time is not None
    assert len(few.time) == len(few.x) == 10  # rows that nobody owns are left out, and so are their times
    for row, seen in zip(few.x, few.time.tolist(), strict=True):
        assert seen in time[(table.x == row).flatten(1).all(1)].tolist()


def test_a_positive_class_makes_a_binary_federation(
    labelled: Callable[..., Table],
) -> None:
    table = labelled([k % 4 for k in range(80)], groups=torch.arange(80) // 40)
    data, before = federate(table, positive="c3", test=0.25), federate(table, test=0.25)
    assert (data.task, data.classes, data.clients) == ("binary", ("not c3", "c3"), 2)
    for client in range(2):
        rows = torch.cat([data.splits[split][client] for split in ("train", "test")])
        assert torch.equal(data.y[rows, 0] == 1, before.y[rows] == 3)
    assert "'c3' against the rest: 20 of 80 rows are positive" in data.notes
    single = federate(table, positive="c3", clients=4, partition="classes", classes_per_client=1)
    assert {len(single.y[single.splits["train"][client]].unique()) for client in range(4)} == {1}
