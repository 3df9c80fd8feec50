from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedloom.engine.selection import All, BySize, Chosen, Selection, Uniform, selection_for
from fedloom.errors import ConfigError
from fedloom.federation.randomness import Draw
from fedloom.methods.method import Context


def context(sizes: torch.Tensor | int, t: int = 0, seed: int = 0) -> Context:
    sizes = torch.ones(sizes, dtype=torch.int64) if isinstance(sizes, int) else sizes
    return Context(t, len(sizes), sizes, {}, torch.zeros(1), Draw(seed, t), torch.arange(len(sizes)))


@given(
    candidates=st.sets(st.integers(0, 60), min_size=1, max_size=40),
    share=st.floats(0, 1),
    name=st.sampled_from(["uniform", "size"]),
    seed=st.integers(0, 99),
)
def test_those_picked_are_candidates_distinct_and_in_order(
    candidates: set[int], share: float, name: str, seed: int
) -> None:
    ids = np.array(sorted(candidates))
    count = max(1, round(share * len(ids)))
    picked = selection_for(name, count).pick(ids, context(torch.arange(61) + 1, seed=seed))
    assert len(picked) == count
    assert (np.diff(picked) > 0).all()
    assert set(picked.tolist()) <= candidates


@pytest.mark.parametrize("select", [Uniform(3), BySize(3), Uniform(8), BySize(8)])
def test_every_round_and_seed_has_its_own_draw(select: Selection) -> None:
    ids = np.arange(10)
    picks = [tuple(select.pick(ids, context(10, t, seed))) for t in range(10) for seed in range(2)]
    assert len(set(picks)) > 10
    assert picks[0] == tuple(select.pick(ids, context(10)))


@pytest.mark.parametrize(("count", "clients"), [(3, 12), (6, 12), (9, 12), (1, 5), (4, 5)])
def test_everybody_is_picked_equally_often(count: int, clients: int) -> None:
    rounds, ids = 1500, np.arange(clients)
    picks = np.concatenate([Uniform(count).pick(ids, context(clients, t)) for t in range(rounds)])
    counts = np.bincount(picks, minlength=clients)
    expected, p = rounds * count / clients, count / clients
    # one draw of a set has inclusions of variance p(1 − p) that sum to a constant
    chi = ((counts - expected) ** 2).sum() / (rounds * p * (1 - p)) * (clients - 1) / clients
    assert stats.chi2.sf(chi, clients - 1) > 1e-4


@pytest.mark.parametrize("count", [2, 3])
def test_every_set_is_equally_likely(count: int) -> None:
    rounds, clients = 2000, 5
    ids = np.arange(clients)
    picks = np.array([Uniform(count).pick(ids, context(clients, t)) for t in range(rounds)])
    sets, counts = np.unique(picks, axis=0, return_counts=True)
    assert len(sets) == 10
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("sizes", [[5, 1, 2, 8, 4, 6, 3, 7, 2, 2], [10, 1, 1]])
def test_by_size_the_first_pick_is_proportional_to_the_rows(sizes: list[int]) -> None:
    rounds, ids = 2000, np.arange(len(sizes))
    picks = np.array([BySize(1).pick(ids, context(torch.tensor(sizes), t))[0] for t in range(rounds)])
    expected = np.array(sizes) / sum(sizes) * rounds
    assert stats.chisquare(np.bincount(picks, minlength=len(sizes)), expected).pvalue > 1e-4


@pytest.mark.parametrize("sizes", [[6, 3, 1], [6, 3, 1, 1, 1, 1, 1], [60, 3, 1, 1, 1, 1, 1]])
def test_by_size_the_second_pick_is_proportional_among_the_others(sizes: list[int]) -> None:
    rounds, n = 2000, len(sizes)
    w = np.array(sizes) / sum(sizes)
    pairs = {(i, j): w[i] * w[j] / (1 - w[i]) + w[j] * w[i] / (1 - w[j]) for i in range(n) for j in range(i + 1, n)}
    picks = [tuple(BySize(2).pick(np.arange(n), context(torch.tensor(sizes), t)).tolist()) for t in range(rounds)]
    counts = np.array([picks.count(pair) for pair in pairs])
    assert counts.sum() == rounds
    assert stats.chisquare(counts, np.array(list(pairs.values())) * rounds).pvalue > 1e-4


def test_one_giant_does_not_keep_the_draw_going_for_ever() -> None:
    sizes = torch.ones(10, dtype=torch.int64)
    sizes[3] = 10**12
    picked = BySize(4).pick(np.arange(10), context(sizes))
    assert len(picked) == 4
    assert 3 in picked


@pytest.mark.parametrize("select", [Uniform(100), BySize(100)])
def test_a_hundred_of_a_million_need_no_permutation_of_a_million(select: Selection) -> None:
    million = 1_000_000
    ids, ctx = np.arange(million), context(million)
    tracemalloc.start()
    picked = select.pick(ids, ctx)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(picked) == 100
    assert peak < (200_000 if isinstance(select, Uniform) else 40_000_000)  # by size needs the sizes, not their order


def test_everybody_means_everybody() -> None:
    assert All().pick(np.array([2, 5]), context(6)).tolist() == [2, 5]


def test_if_too_few_can_be_reached_all_of_them_are_picked() -> None:
    for select in (Uniform(5), BySize(5)):
        assert select.pick(np.array([1, 4, 7]), context(9)).tolist() == [1, 4, 7]
        assert select.pick(np.array([], dtype=np.int64), context(9)).tolist() == []


def test_a_users_rule_is_followed_in_order_and_without_repeats() -> None:
    select = Chosen(lambda ids, ctx: [ids[-1], ids[ctx.round], ids[-1]])
    assert select.pick(np.arange(5), context(5, t=1)).tolist() == [1, 4]
    assert Chosen(lambda ids, ctx: []).pick(np.arange(5), context(5)).tolist() == []


def test_a_users_rule_may_not_pick_strangers() -> None:
    with pytest.raises(ConfigError, match=r"chose clients \[7\], who cannot take part"):
        Chosen(lambda ids, ctx: [1, 7]).pick(np.arange(5), context(5))


@pytest.mark.parametrize("count", [0, 11])
@pytest.mark.parametrize("name", ["uniform", "size"])
def test_more_than_there_are_is_refused_before_any_work(name: str, count: int) -> None:
    with pytest.raises(ConfigError, match=rf"selection.per_round = {count}, but 10 clients can take part; .* 1 to 10"):
        selection_for(name, count).check(10)
    selection_for(name, 10).check(10)
    All().check(10)


def test_a_selection_that_does_not_exist_is_refused() -> None:
    choices = "choose one of uniform, size, all, or your own as module:Class"
    with pytest.raises(ConfigError, match=f"no selection 'random'; {choices}"):
        selection_for("random", 3)
