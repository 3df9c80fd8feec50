from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedloom.federation.randomness import Draw


def test_a_clients_numbers_do_not_depend_on_who_is_drawn_with_it() -> None:
    draw = Draw(7, 3)
    whole = draw.words("batches", np.arange(50), 12)
    for some in ([3], [49, 0, 7], list(range(10, 30))):
        assert np.array_equal(draw.words("batches", some, 12), whole[some])
    assert np.array_equal(draw.words("batches", 9, 12), whole[9])


@given(shape=st.lists(st.integers(0, 4), min_size=0, max_size=3), count=st.integers(0, 5))
def test_clients_may_have_any_shape(shape: list[int], count: int) -> None:
    ids = np.arange(int(np.prod(shape, dtype=int))).reshape(shape)
    words = Draw(1).words("x", ids, count)
    assert words.shape == (*shape, count)
    flat = Draw(1).words("x", ids.reshape(-1), count)
    assert np.array_equal(words.reshape(-1), flat.reshape(-1))


def test_fewer_numbers_are_the_first_of_more() -> None:
    draw = Draw(0, 5)
    assert np.array_equal(draw.uniform("u", [1, 2], 3), draw.uniform("u", [1, 2], 9)[:, :3])


def test_seed_round_purpose_client_lane_and_position_all_matter() -> None:
    base = Draw(1, 1).words("a", 1, 4)
    others = [
        Draw(2, 1).words("a", 1, 4),
        Draw(1, 2).words("a", 1, 4),
        Draw(1, 1).words("b", 1, 4),
        Draw(1, 1).words("a", 2, 4),
        Draw(1, 1).words("a", 1, 4, lane=1),
    ]
    words = np.concatenate([base, *others])
    assert len(np.unique(words)) == len(words)


def test_lanes_may_differ_by_client() -> None:
    draw = Draw(4)
    mixed = draw.words("a", [5, 6, 7], 3, lane=[0, 2, 1])
    for row, (client, lane) in enumerate([(5, 0), (6, 2), (7, 1)]):
        assert np.array_equal(mixed[row], draw.words("a", client, 3, lane=lane))


def test_negative_and_huge_seeds_are_seeds_too() -> None:
    keys = {Draw(seed).key("a") for seed in (-1, 0, 1, 2**63, 2**64 - 2, 2**70 + 5)}
    assert len(keys) == 6
    assert all(0 <= key < 2**64 for key in keys)


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_uniform_numbers_are_uniform_over_positions_clients_and_rounds(seed: int) -> None:
    along = {
        "positions": Draw(seed).uniform("u", 0, 20_000),
        "clients": Draw(seed).uniform("u", np.arange(20_000), 1)[:, 0],
        "rounds": np.array([Draw(seed, t).uniform("u", 0, 1)[0] for t in range(5_000)]),
        "seeds": np.array([Draw(s).uniform("u", 0, 1)[0] for s in range(5_000)]),
    }
    for u in along.values():
        assert (u >= 0).all()
        assert (u < 1).all()
        counts = np.bincount((u * 50).astype(int), minlength=50)
        assert stats.chisquare(counts).pvalue > 1e-4
        follow = np.bincount((u[:-1] * 5).astype(int) * 5 + (u[1:] * 5).astype(int), minlength=25)
        assert stats.chisquare(follow).pvalue > 1e-4


def test_normal_numbers_have_normal_moments() -> None:
    z = Draw(3).normal("z", np.arange(200), 200)
    assert z.shape == (200, 200)
    flat = z.reshape(-1)
    assert abs(flat.mean()) < 5 / 200
    assert flat.var() == pytest.approx(1, abs=5 * np.sqrt(2) / 200)
    assert stats.kstest(flat, "norm").pvalue > 1e-4
    assert np.isfinite(flat).all()
    correlation = np.corrcoef(z[:, :2].T)[0, 1]
    assert abs(correlation) < 5 / np.sqrt(200)


def test_a_generator_for_set_up_work_is_reproducible() -> None:
    assert Draw(1).generator("a").integers(1 << 40) == Draw(1).generator("a").integers(1 << 40)
    assert Draw(1).generator("a").integers(1 << 40) != Draw(1).generator("b").integers(1 << 40)
