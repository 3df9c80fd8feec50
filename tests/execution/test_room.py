"""Replies that wait on the disk: the same numbers, no names, and an error that comes in time."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedloom.errors import RunError
from fedloom.execution.room import Room
from fedloom.federation.replies import Replies


def mapped() -> int:
    """Bytes of deleted files that this process has in its memory's map."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("(deleted)") and "spooled" in line:
            begin, _, end = line.split()[0].partition("-")
            total += int(end, 16) - int(begin, 16)
    return total


def test_what_exceeds_the_memory_is_in_files_without_names_that_vanish_with_the_columns(tmp_path: Path) -> None:
    folder = tmp_path / "spooled"
    folder.mkdir()
    like = torch.zeros(1, 1000)
    room = Room(folder, memory=3 * 4000)
    held, on_disk = room.column(3, like), room.column(3, like)
    assert held.shape == on_disk.shape == (3, 1000)
    assert mapped() >= on_disk.nbytes
    assert os.listdir(folder) == []
    del room, on_disk
    gc.collect()
    assert mapped() == 0


@given(
    rows=st.integers(1, 9),
    width=st.integers(1, 40),
    kind=st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool]),
    data=st.data(),
)
def test_columns_on_the_disk_hold_what_columns_in_memory_hold(
    rows: int, width: int, kind: torch.dtype, data: st.DataObject
) -> None:
    values = torch.randint(0, 2, (rows, width), generator=torch.Generator().manual_seed(rows)).to(kind)
    kept = torch.tensor(sorted(data.draw(st.sets(st.integers(0, rows - 1), min_size=1))))
    found = []
    for room in (Room(), Room(memory=0)):
        column = room.column(rows, values)
        for at in data.draw(st.permutations(range(rows))):
            column[at] = values[at]
            room.rest()
        room.rest()
        found.append(room.only(column, kept))
        assert torch.equal(found[-1], values[kept])
    assert torch.equal(*found)


def test_sums_of_replies_on_the_disk_are_the_same_in_every_bit(tmp_path: Path) -> None:
    values = torch.randn(3, 9 << 20, generator=torch.Generator().manual_seed(1))  # a block of a sum is one row
    room = Room(tmp_path, memory=0)
    column = room.column(3, values)
    column.copy_(values)
    clients = torch.arange(3)
    ours = Replies.of(clients, {"dx": column}, rest=room.rest)
    theirs = Replies.of(clients, {"dx": values})
    assert torch.equal(ours.mean("dx"), theirs.mean("dx"))
    assert torch.equal(ours.sum("dx"), theirs.sum("dx"))


def test_a_full_disk_is_an_error_before_any_reply_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunError, match="disk is full"):
        Room(tmp_path, memory=0).column(3, torch.zeros(1, 10))
