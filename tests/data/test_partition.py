from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.data import Partition, make_partition
from fedloom.data.owners import Classes, Dirichlet, Iid, Ownership, Pool
from fedloom.data.partition import options_of
from fedloom.data.sizes import Quantity, apportion
from fedloom.data.table import Table
from fedloom.data.transforms import FeatureSkew
from fedloom.errors import ConfigError, DataError
from fedloom.federation.randomness import Draw

Make = Callable[..., Table]


def shared(table: Table, clients: int, what: object, seed: int = 0, **options: object) -> Ownership:
    plan, pool = make_partition(what, **options), Pool.of(table)  # type: ignore[arg-type]
    plan.check(table, pool, clients)
    return plan.own(pool, clients, Draw(seed))


def counts(table: Table, owned: Ownership) -> np.ndarray:
    """Rows by client and class."""
    mine = owned.owner >= 0
    found = np.zeros((owned.clients, len(table.classes)), dtype=int)
    np.add.at(found, (owned.owner[mine], table.y.numpy()[mine]), 1)
    return found


@st.composite
def federations(draw: st.DrawFn) -> tuple[np.ndarray, int, int]:
    """Labels, a number of clients that can share them, and a seed."""
    labels = draw(st.lists(st.integers(0, 4), min_size=5, max_size=120))
    return np.array(labels), draw(st.integers(1, min(len(labels), 12))), draw(st.integers(0, 2**32))


@settings(deadline=None, max_examples=40)
@given(
    federation=federations(),
    owners=st.sampled_from(["iid", "dirichlet", "time"]),
    quantity=st.sampled_from([None, "uniform", "power-law"]),
    alpha=st.floats(0.001, 100),
)
def test_every_row_has_one_owner_and_every_client_has_a_row(
    labelled: Make, federation: tuple[np.ndarray, int, int], owners: str, quantity: str | None, alpha: float
) -> None:
    labels, clients, seed = federation
    steps = [owners, "quantity"] if quantity else [owners]
    options: dict[str, object] = {"quantity": quantity}
    if owners == "dirichlet":
        options |= {"alpha": alpha, "min_rows": 1}
    owned = shared(labelled(labels, 5), clients, steps, seed, **options)
    assert owned.owner.shape == labels.shape
    assert owned.owner.min() >= 0
    assert owned.owner.max() < clients
    assert owned.sizes().min() >= 1
    assert owned.sizes().sum() == len(labels)


@settings(deadline=None, max_examples=40)
@given(federation=federations(), k=st.integers(1, 5), cyclic=st.booleans())
def test_a_client_has_exactly_its_k_classes_or_the_partition_is_refused(
    labelled: Make, federation: tuple[np.ndarray, int, int], k: int, cyclic: bool
) -> None:
    labels, clients, seed = federation
    table = labelled(labels, 5)
    try:
        owned = shared(table, clients, "classes", seed, classes_per_client=k, cyclic=cyclic)
    except DataError:
        supply = np.unique(labels, return_counts=True)[1]
        assert k > len(supply) or supply.min() < -(-clients * k // len(supply))
        return
    held = counts(table, owned)
    assert ((held > 0).sum(1) == k).all()
    nobody = owned.owner < 0
    assert not set(labels[nobody]) & set(labels[~nobody])
    assert bool(owned.notes) == bool(nobody.any())


@settings(deadline=None, max_examples=40)
@given(federation=federations(), smallest=st.integers(1, 4), spread=st.integers(0, 6))
def test_asked_sizes_are_kept_when_there_are_rows_enough(
    labelled: Make, federation: tuple[np.ndarray, int, int], smallest: int, spread: int
) -> None:
    labels, clients, seed = federation
    plan = make_partition([Dirichlet(min_rows=1), Quantity("uniform", smallest, smallest + spread)])
    table = labelled(labels, 5)
    if smallest * clients > len(labels):
        with pytest.raises(DataError, match=f"{clients} clients of at least {smallest} rows"):
            shared(table, clients, plan, seed)
        return
    sizes = shared(table, clients, plan, seed).sizes()
    assert sizes.min() >= 1
    assert sizes.sum() <= len(labels)
    wanted = Quantity("uniform", smallest, smallest + spread).demand(clients, Draw(seed)).weights
    if wanted.sum() <= len(labels):
        assert sizes.tolist() == wanted.astype(int).tolist()


@settings(deadline=None, max_examples=60)
@given(
    weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=20),
    total=st.integers(0, 300),
    least=st.integers(0, 3),
)
def test_apportioned_parts_add_up_and_follow_the_weights(weights: list[float], total: int, least: int) -> None:
    if total < least * len(weights):
        return
    parts = apportion(total, np.array(weights), least)
    exact = least + (total - least * len(weights)) * np.array(weights) / sum(weights)
    assert parts.sum() == total
    assert np.abs(parts - exact).max() <= 1


def test_iid_clients_have_equal_sizes_to_one_and_shuffled_rows(labelled: Make) -> None:
    owned = shared(labelled(np.repeat([0, 1], 50)), 7, "iid")
    assert sorted(owned.sizes().tolist()) == [14, 14, 14, 14, 14, 15, 15]
    assert (np.diff(owned.owner) != 0).sum() > 50


def test_cyclic_client_u_has_the_next_k_classes(labelled: Make) -> None:
    table = labelled(np.repeat(np.arange(10), 30))
    held = counts(table, shared(table, 50, "classes", classes_per_client=2, cyclic=True)) > 0
    for u in range(50):
        assert set(np.flatnonzero(held[u])) == {(2 * u) % 10, (2 * u + 1) % 10}


def test_a_stride_of_one_gives_neighbours_a_class_in_common(labelled: Make) -> None:
    table = labelled(np.repeat(np.arange(10), 30))
    held = counts(table, shared(table, 12, "classes", cyclic=True, stride=1)) > 0
    assert [set(np.flatnonzero(row)) for row in held] == [{u % 10, (u + 1) % 10} for u in range(12)]
    for wrong in ({"stride": 1}, {"stride": 0, "cyclic": True}):
        with pytest.raises(ConfigError, match="at least 1, and goes with cyclic"):
            shared(table, 12, "classes", **wrong)


def test_given_sizes_may_say_how_many_rows_of_each_class(labelled: Make) -> None:
    table = labelled(np.repeat(np.arange(4), 20))
    how = {"cyclic": True, "stride": 1, "quantity": "given"}
    sizes = [[7, 1], [19, 3], [17, 20]]
    held = counts(table, shared(table, 3, ["classes", "quantity"], sizes=sizes, **how))
    assert held.tolist() == [[7, 1, 0, 0], [0, 19, 3, 0], [0, 0, 17, 20]]
    assert shared(table, 3, "quantity", quantity="given", sizes=sizes).sizes().tolist() == [8, 22, 37]
    for wrong, said in (
        ([[7, 1], [1, 1]], "2 sizes are given for 3 clients"),
        ([[7, 1], [1, 0], [1, 1]], "at least 1 for each"),
        ([[7, 1], 3, 3], "not both"),
        ([[1], [2], [3]], "1 numbers a client, which holds 2 classes"),
    ):
        with pytest.raises(ConfigError, match=said):
            shared(table, 3, ["classes", "quantity"], sizes=wrong, **how)


def test_random_hands_hold_every_class_equally_often_and_make_many_pairs(labelled: Make) -> None:
    table = labelled(np.repeat(np.arange(10), 60))
    held = counts(table, shared(table, 50, "classes")) > 0
    assert held.sum(0).tolist() == [10] * 10
    assert len({tuple(np.flatnonzero(row)) for row in held}) > 15


def test_classes_with_sizes_are_the_partition_of_the_admm_fedmeta_paper(labelled: Make) -> None:
    table = labelled(np.repeat(np.arange(10), 200))
    owned = shared(table, 50, ["classes", "quantity"], classes_per_client=2, cyclic=True, smallest=20, largest=40)
    held = counts(table, owned)
    assert owned.sizes().min() >= 20
    assert owned.sizes().max() <= 40
    assert ((held > 0).sum(1) == 2).all()
    of_two = np.sort(held, axis=1)[:, -2:]
    assert (np.diff(of_two, axis=1) <= 1).all()
    assert any("belong to no client" in note for note in owned.notes)


def test_given_sizes_are_given(labelled: Make) -> None:
    owned = shared(labelled([0] * 20 + [1] * 20), 3, ["quantity"], quantity="given", sizes=[5, 10, 1])
    assert owned.sizes().tolist() == [5, 10, 1]
    assert (owned.owner < 0).sum() == 24


def test_a_power_law_gives_the_kth_client_a_kth_of_the_first(labelled: Make) -> None:
    owned = shared(labelled(np.zeros(2200, dtype=int), 2), 4, "quantity", quantity="power-law", exponent=1.0)
    sizes = np.sort(owned.sizes())[::-1]
    assert np.abs(sizes - 2200 * np.array([1, 1 / 2, 1 / 3, 1 / 4]) / (25 / 12)).max() <= 2


def test_more_rows_than_there_are_scale_every_size_down_and_say_so(labelled: Make) -> None:
    owned = shared(labelled([0] * 30), 3, ["quantity"], quantity="given", sizes=[20, 20, 20])
    assert owned.sizes().tolist() == [10, 10, 10]
    assert any("60 rows were asked for, 30 are there" in note for note in owned.notes)


def test_a_small_alpha_gives_few_classes_and_a_large_one_all(labelled: Make) -> None:
    table = labelled(np.repeat(np.arange(10), 200))
    few = counts(table, shared(table, 20, "dirichlet", alpha=0.05))
    all_ = counts(table, shared(table, 20, "dirichlet", alpha=100.0))
    assert (few > 5).sum(1).mean() < 3.5
    assert (all_ > 0).sum(1).min() == 10
    assert np.abs(all_.sum(1) - 100).max() < 40


def test_a_dirichlet_split_that_cannot_reach_its_minimum_by_luck_still_ends_and_says_what_it_did(
    labelled: Make,
) -> None:
    owned = shared(labelled(np.repeat([0, 1], 100)), 20, "dirichlet", alpha=0.01, min_rows=10)
    assert owned.sizes().tolist() == [10] * 20
    assert any("in none of 20 draws" in note and "rows were moved" in note for note in owned.notes)


def test_a_dirichlet_split_that_needed_several_draws_says_which_it_kept(labelled: Make) -> None:
    table = labelled(np.repeat(np.arange(5), 40))
    notes = [shared(table, 8, "dirichlet", seed, alpha=0.5, min_rows=6).notes for seed in range(30)]
    assert any("gave every client at least 6 rows" in note for found in notes for note in found)


def test_periods_follow_one_another_in_time(labelled: Make) -> None:
    when = torch.tensor(np.random.default_rng(0).permutation(40).astype(float))
    owned = shared(labelled([0, 1] * 20, time=when), 4, "time")
    for client in range(4):
        assert sorted(when.numpy()[owned.owner == client]) == list(range(10 * client, 10 * client + 10))


def test_without_times_periods_follow_the_rows(labelled: Make) -> None:
    assert shared(labelled([0] * 9), 3, "time").owner.tolist() == [0] * 3 + [1] * 3 + [2] * 3


def test_natural_clients_keep_their_rows_and_names(labelled: Make) -> None:
    table = labelled([0] * 6, groups=torch.tensor([2, 0, 2, 2, 1, 0]), group_names=("ann", "bob", "cy"))
    owned = shared(table, 3, "natural")
    assert owned.owner.tolist() == [2, 0, 2, 2, 1, 0]
    assert owned.names == ("ann", "bob", "cy")
    larger = shared(table, 2, "natural", min_rows=2)
    assert larger.owner.tolist() == [1, 0, 1, 1, -1, 0]
    assert larger.names == ("ann", "cy")
    assert any("1 clients with fewer than 2 rows left out" in note for note in larger.notes)


def test_fewer_natural_clients_are_chosen_at_random(labelled: Make) -> None:
    table = labelled([0] * 300, groups=torch.arange(100).repeat(3))
    chosen = [shared(table, 10, "natural", seed) for seed in (1, 1, 2)]
    assert chosen[0].owner.tolist() == chosen[1].owner.tolist() != chosen[2].owner.tolist()
    assert chosen[0].sizes().tolist() == [3] * 10


def test_natural_clients_can_be_thinned_to_a_size(labelled: Make) -> None:
    table = labelled([0] * 50, groups=torch.tensor([0] * 30 + [1] * 20))
    owned = shared(table, 2, ["natural", "quantity"], quantity="given", sizes=[7, 25])
    assert owned.sizes().tolist() == [7, 20]
    assert (owned.owner[:30] != 1).all()


@pytest.mark.parametrize(
    ("what", "options", "clients", "complaint"),
    [
        ("classes", {"classes_per_client": 11}, 5, "11 classes per client cannot be had of 10 classes"),
        ("classes", {"classes_per_client": 2}, 80, "class .* has 10 rows but 16 clients are to hold it"),
        ("iid", {}, 101, "101 clients cannot share 100 rows"),
        ("iid", {}, 0, "0 clients"),
        ("dirichlet", {"min_rows": 21}, 5, "need 105 rows"),
        ("natural", {}, 5, "no natural clients"),
        (["classes", "quantity"], {"quantity": "given", "sizes": [1, 5]}, 2, "1 rows cannot hold 2 classes"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(
    labelled: Make, what: object, options: dict[str, object], clients: int, complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint):
        shared(labelled(np.repeat(np.arange(10), 10)), clients, what, **options)


@pytest.mark.parametrize(
    ("what", "options", "complaint"),
    [
        ("dirichlet", {"alpha": 0.0}, "Dirichlet: alpha = 0.0 cannot be: Input should be greater than 0"),
        ("dirichlet", {"min_rows": -1}, "min_rows = -1 cannot be: Input should be greater than or equal to 0"),
        ("quantity", {"smallest": 3}, "both smallest and largest"),
        ("quantity", {"smallest": 5, "largest": 4}, "sizes from 5 to 4"),
        ("quantity", {"quantity": "given", "sizes": [1]}, "1 sizes are given for 2 clients"),
        (
            "quantity",
            {"quantity": "zipf"},
            "quantity = 'zipf' cannot be: Input should be 'uniform', 'power-law' or 'given'",
        ),
        (
            "quantity",
            {"quantity": "power-law", "exponent": -1.0},
            "exponent = -1.0 cannot be: Input should be greater than or equal to 0",
        ),
        ("dirichlet", {"alpha": "much"}, "alpha = 'much' cannot be: Input should be a valid number"),
        ("diriclet", {}, "did you mean 'dirichlet'"),
        ("iid", {"alpha": 0.5}, "'alpha'; it belongs to dirichlet"),
        (make_partition("dirichlet"), {"alpha": 0.5}, "Dirichlet has no option 'alpha'; it belongs to dirichlet"),
        (Partition(Dirichlet(alpha=-1.0)), {}, "alpha = -1.0 cannot be"),
        ("dirichlet", {"alhpa": 0.5}, "did you mean 'alpha'"),
        (["iid", "dirichlet"], {}, "iid and dirichlet both say who owns the rows"),
        (["quantity", "quantity"], {}, "both say how many"),
    ],
)
def test_a_wrong_name_option_or_combination_is_answered_with_the_right_one(
    labelled: Make, what: object, options: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        shared(labelled([0, 1] * 20), 2, what, **options)


def test_classes_cannot_be_told_apart_in_a_regression() -> None:
    table = Table("r", torch.zeros(9, 1), torch.zeros(9, 1), "regression")
    for what in ("classes", "dirichlet"):
        with pytest.raises(DataError, match="needs one class a row"):
            shared(table, 3, what)
    assert shared(table, 3, ["iid", "quantity"]).sizes().sum() == 9


def test_names_steps_and_lists_of_both_make_the_same_partition() -> None:
    by_name = make_partition(["classes", "feature-skew"], classes_per_client=3, feature_skew="rotation")
    by_step = make_partition([Classes(3), FeatureSkew("rotation")])
    assert by_name == by_step
    assert make_partition(by_step) is by_step
    assert make_partition(Dirichlet(0.1)).owners == Dirichlet(0.1)
    assert make_partition("quantity").owners == Iid()
    assert make_partition("iid", alpha=None).owners == Iid()


def test_the_options_of_a_step_are_its_fields() -> None:
    assert options_of("classes") == ("classes_per_client", "cyclic", "stride")


def test_the_same_seed_gives_the_same_partition_and_another_seed_another(labelled: Make) -> None:
    table = labelled(np.repeat(np.arange(4), 50))
    for what in ("iid", "classes", "dirichlet"):
        first, again, other = (shared(table, 6, what, seed).owner.tolist() for seed in (1, 1, 2))
        assert first == again != other
