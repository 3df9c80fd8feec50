from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedloom.federation.replies import Replies


def replies(column: Tensor, sizes: list[int] | None = None) -> Replies:
    count = len(column)
    return Replies(torch.arange(count), torch.tensor(sizes or [1] * count), {"dx": column})


def test_the_mean_weighs_by_rows_or_not_at_all() -> None:
    found = replies(torch.tensor([[1.0, 0.0], [4.0, 8.0]]), [3, 1])
    assert found.mean("dx").tolist() == [1.75, 2.0]
    assert found.mean("dx", "uniform").tolist() == [2.5, 4.0]
    assert found.weights().tolist() == [0.75, 0.25]
    assert found.sum("dx").tolist() == [5.0, 8.0]
    assert found.sum("dx", torch.tensor([2.0, -1.0])).tolist() == [-2.0, -8.0]


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


def test_replies_are_a_mapping_of_columns() -> None:
    found = replies(torch.zeros(2, 3))
    assert dict(found).keys() == {"dx"}
    assert len(found) == 1
    assert found["dx"].shape == (2, 3)
