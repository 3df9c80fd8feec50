from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.replies import WEIGHT, Reduce, Replies, weighted


def replies(column: Tensor, sizes: list[int] | None = None, reduce: Reduce = "each") -> Replies:
    """As they travel: multiplied by their weights where the server sees nothing but sums."""
    columns = {"dx": column}
    if sizes is not None:
        weight = torch.tensor(sizes, dtype=torch.float64)[:, None]
        columns = (weighted(columns, weight) if reduce == "sum" else columns) | {WEIGHT: weight}
    return Replies.of(torch.arange(len(column)), columns, reduce=reduce)


@pytest.mark.parametrize("reduce", ["sum", "each"])
def test_the_mean_weighs_by_rows_or_not_at_all(reduce: Reduce) -> None:
    values = torch.tensor([[1.0, 0.0], [4.0, 8.0]])
    assert replies(values, [3, 1], reduce).mean("dx").tolist() == [1.75, 2.0]
    assert replies(values, None, reduce).mean("dx").tolist() == [2.5, 4.0]
    assert replies(values, None, reduce).sum("dx").tolist() == [5.0, 8.0]


def test_a_method_that_looks_at_single_replies_may_weigh_them() -> None:
    found = replies(torch.tensor([[1.0, 0.0], [4.0, 8.0]]), [3, 1])
    assert found.sum("dx", torch.tensor([2.0, -1.0])).tolist() == [-2.0, -8.0]
    assert found.mean("dx", torch.tensor([1.0, 0.5])).tolist() == [1.25, 1.0]  # Σ w s r / Σ w
    assert found.each("dx").shape == (2, 2)


def test_of_sums_there_is_nothing_else() -> None:
    found = replies(torch.ones(3, 2), [1, 2, 3], "sum")
    assert found.columns is None
    for look in (
        lambda: found.each("dx"),
        lambda: found.sum("dx", torch.ones(3)),
        lambda: found.mean("dx", torch.ones(3)),
    ):
        with pytest.raises(ConfigError, match=r"reduce = .sum.: say .each."):
            look()


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_means_of_sums_and_of_single_replies_agree_in_every_bit(sizes: list[int], seed: int) -> None:
    values = torch.randn(len(sizes), 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    one, other = (replies(values, sizes, reduce).mean("dx") for reduce in ("sum", "each"))
    assert torch.equal(one, other)


@given(
    clients=st.integers(1, 9),
    shape=st.lists(st.integers(0, 3), max_size=3),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_sums_keep_shape_and_dtype(clients: int, shape: list[int], dtype: torch.dtype) -> None:
    column = torch.randn(clients, *shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    total = replies(column).sum("dx")
    assert total.shape == torch.Size(shape)
    assert total.dtype == dtype
    torch.testing.assert_close(total, column.sum(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("block", [1, 5, 12, 1 << 24])
def test_sums_in_blocks_are_the_direct_sum(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedloom.federation.replies._BLOCK_NUMBERS", block)
    g = torch.Generator().manual_seed(0)
    column = torch.randn(11, 4, generator=g, dtype=torch.float64)
    sizes = torch.randint(1, 9, (11,), generator=g)
    weights = sizes.double() / sizes.sum()
    found = replies(column, sizes.tolist())
    torch.testing.assert_close(found.mean("dx"), (weights[:, None] * column).sum(0), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(found.sum("dx"), column.sum(0), rtol=1e-13, atol=1e-13)


def test_the_mean_of_whole_numbers_is_no_whole_number() -> None:
    found = replies(torch.tensor([1, 2]), [1, 3])
    assert float(found.mean("dx")) == 1.75
    assert int(found.sum("dx")) == 3
    assert found.sum("dx").dtype == torch.int64
