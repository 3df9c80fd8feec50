from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedloom.federation.data import POOL, SOURCE, TARGET
from fedloom.federation.ragged import Ragged
from problems import make_data


@given(sizes=st.lists(st.integers(0, 4), min_size=0, max_size=6))
def test_ragged_rows_come_back_client_by_client(sizes: list[int]) -> None:
    parts = [torch.arange(n) + 10 * i for i, n in enumerate(sizes)]
    owned = Ragged.of(parts)
    assert len(owned) == len(sizes)
    assert owned.sizes.tolist() == sizes
    assert all(torch.equal(owned[i], part) for i, part in enumerate(parts))


@given(sizes=st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_contiguous_rows_need_no_list_of_rows(sizes: list[int]) -> None:
    owned = Ragged.contiguous(torch.tensor(sizes))
    assert owned.rows is None
    assert torch.cat([owned[i] for i in range(len(sizes))]).tolist() == list(range(sum(sizes)))
    assert owned.resolve(torch.tensor([2, 0])).tolist() == [2, 0]


def test_without_roles_everybody_is_a_source() -> None:
    data = make_data(sizes=(2, 2, 2))
    assert data.with_role(SOURCE).tolist() == [0, 1, 2]
    assert data.with_role(TARGET).tolist() == []


def test_the_pool_holds_the_training_rows_of_the_sources_and_of_nobody_else() -> None:
    data = make_data(sizes=(4, 6, 2), roles=(SOURCE, TARGET, SOURCE), names=("a", "b", "c"))
    pooled = data.with_pool()
    assert pooled.clients == 4
    assert pooled.with_role(POOL).tolist() == [3]
    assert pooled.label(3) == "pool"
    for split in ("train", "support", "query"):
        expected = torch.cat([data.splits[split][0], data.splits[split][2]])
        assert torch.equal(pooled.splits[split][3], expected)
    assert len(pooled.splits["test"][3]) == 0
    for client in range(3):
        assert torch.equal(pooled.splits["train"][client], data.splits["train"][client])


def test_devices_with_little_storage_keep_their_first_rows() -> None:
    data = make_data(sizes=(4, 9, 2))
    limited = data.limited(3)
    assert limited.splits["train"].sizes.tolist() == [3, 3, 2]
    for client in range(3):
        kept = data.splits["train"][client][:3]
        assert torch.equal(limited.splits["train"][client], kept)
        halves = torch.cat([limited.splits["support"][client], limited.splits["query"][client]])
        assert set(halves.tolist()) == set(kept.tolist())
    assert torch.equal(limited.splits["test"][1], data.splits["test"][1])


@pytest.mark.parametrize(
    ("task", "outputs"), [("classification", 5), ("binary", 1), ("multilabel", 4), ("regression", 2)]
)
def test_the_task_says_how_many_numbers_a_model_puts_out(task: str, outputs: int) -> None:
    assert make_data(task=task, outputs=outputs).outputs == outputs  # type: ignore[arg-type]


def test_a_client_without_a_name_is_called_by_its_number() -> None:
    assert make_data(sizes=(1, 1)).label(1) == "1"
    assert make_data(sizes=(1, 1), names=("anna", "ben")).label(1) == "ben"
    assert np.array_equal(make_data(sizes=(3, 1)).splits["train"].sizes.numpy(), [3, 1])
