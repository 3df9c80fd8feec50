from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedloom.errors import RunError
from fedloom.execution.arena import Inbox, Outbox

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
TENSORS = st.builds(
    lambda shape, dtype, turned: (
        torch.arange(int(np.prod(shape, dtype=int))).reshape(shape).to(dtype).T
        if turned and len(shape) == 2
        else torch.arange(int(np.prod(shape, dtype=int))).reshape(shape).to(dtype)
    ),
    st.lists(st.integers(0, 5), max_size=3),
    st.sampled_from(DTYPES),
    st.booleans(),
)
VALUES = st.recursive(
    TENSORS | st.integers() | st.text(max_size=3) | st.none(),
    lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


@given(values=st.lists(VALUES, min_size=1, max_size=3))
def test_nested_tensors_of_any_dtype_come_back(values: list[Any]) -> None:
    outbox, inbox = Outbox(), Inbox()
    for value in values:
        assert same(inbox.unpack(outbox.pack(value)), value)
    outbox.close()


def test_what_passes_is_small_whatever_the_tensors() -> None:
    outbox = Outbox()
    packed = outbox.pack({"x": torch.zeros(10**6), "n": 3})
    assert not any(isinstance(part, Tensor) for part in packed[1].values())
    assert len(repr(packed)) < 300
    outbox.close()


def test_the_memory_grows_and_older_views_stay_readable() -> None:
    outbox, inbox = Outbox(), Inbox()
    first = inbox.unpack(outbox.pack({"x": torch.arange(10)}))
    path = outbox.path
    again = inbox.unpack(outbox.pack({"x": torch.arange(20)}))
    assert outbox.path == path  # there was room
    large = inbox.unpack(outbox.pack({"x": torch.arange(3_000_000)}))
    assert outbox.path != path
    assert torch.equal(large["x"], torch.arange(3_000_000))
    assert torch.equal(again["x"], torch.arange(20))
    assert first["x"].shape == (10,)
    outbox.close()


def test_several_tensors_do_not_overlap() -> None:
    outbox, inbox = Outbox(), Inbox()
    value = {str(i): torch.full((i + 1,), i, dtype=torch.int8) for i in range(100)}
    assert same(inbox.unpack(outbox.pack(value)), value)
    outbox.close()


def test_no_file_is_left_whether_it_was_read_or_not() -> None:
    read, unread = Outbox(), Outbox()
    inbox = Inbox()
    inbox.unpack(read.pack({"x": torch.ones(3)}))
    unread.pack({"x": torch.ones(3)})
    paths = [read.path, unread.path]
    assert paths[0] is not None
    assert paths[1] is not None
    assert not paths[0].exists()  # the reader removed the name
    assert paths[1].exists()
    read.close()
    unread.close()
    assert not any(path.exists() for path in paths if path is not None)


def test_nothing_needs_no_memory() -> None:
    outbox, inbox = Outbox(), Inbox()
    assert inbox.unpack(outbox.pack({"a": 1, "b": {}})) == {"a": 1, "b": {}}
    empty = inbox.unpack(outbox.pack({"x": torch.empty(0, 3)}))
    assert empty["x"].shape == (0, 3)
    assert outbox.path is None


def test_no_room_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(handle: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedloom.execution.arena.shared_folder", lambda: str(tmp_path))
    monkeypatch.setattr("os.posix_fallocate", full)
    outbox = Outbox()
    with pytest.raises(RunError, match=r"no room for 1 MiB.*No space left on device.*use the executor 'serial'"):
        outbox.pack({"x": torch.ones(3)})
    assert list(tmp_path.iterdir()) == []


def test_a_tensor_that_carries_a_graph_travels_without_it() -> None:
    outbox, inbox = Outbox(), Inbox()
    value = torch.ones(3, requires_grad=True) * 2
    assert not inbox.unpack(outbox.pack(value)).requires_grad
    outbox.close()
