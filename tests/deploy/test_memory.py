"""A node goes on from the turn that the server accepted, whatever became of its last reply."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flwr.app import RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.deploy.memory import ContextKeeper, FileKeeper, Keeper
from fedloom.errors import ClientError
from fedloom.types import Memory

Keepers = Callable[[], Keeper]


@pytest.fixture(params=["file", "context"])
def keeper(request: pytest.FixtureRequest, tmp_path: Path) -> Keepers:
    """Makes a keeper of the same place again and again, as a node does for every message."""
    state = RecordDict()
    return lambda: FileKeeper("h", tmp_path / "state", "r") if request.param == "file" else ContextKeeper("h", state)


def number(memory: Memory | None) -> float | None:
    return None if memory is None else float(memory["c"])


def turn(keeper: Keepers, accepted: int | None, at: int, saved: int | None = None) -> None:
    """The client adds its turn to what it remembers."""
    memory = keeper()
    old = memory.recall(accepted)
    value = torch.tensor(0.0) if old is None else old["c"]
    memory.offer((accepted, saved), at, {"c": value + at, "empty": torch.zeros(0, 3)})


def test_an_accepted_turn_is_gone_on_from(keeper: Keepers) -> None:
    turn(keeper, None, 1)
    assert number(keeper().recall(1)) == 1
    turn(keeper, 1, 2)
    assert number(keeper().recall(2)) == 3


def test_a_turn_that_was_not_accepted_is_taken_back(keeper: Keepers) -> None:
    turn(keeper, None, 1)
    turn(keeper, 1, 2)
    turn(keeper, 1, 5)
    assert number(keeper().recall(1)) == 1
    assert number(keeper().recall(5)) == 6


def test_a_first_turn_that_was_not_accepted_leaves_nothing(keeper: Keepers) -> None:
    turn(keeper, None, 1)
    assert keeper().recall(None) is None
    turn(keeper, None, 2)
    assert number(keeper().recall(2)) == 2


def test_a_node_that_lost_its_memory_says_so(keeper: Keepers) -> None:
    with pytest.raises(ClientError, match="from turn 3, but this node remembers none"):
        keeper().recall(3)
    turn(keeper, None, 1)
    turn(keeper, 1, 2)
    turn(keeper, 2, 4)
    with pytest.raises(ClientError, match="from turn 1, but this node remembers 2 and 4"):
        keeper().recall(1)


def test_a_server_that_was_killed_goes_on_from_what_it_had_saved(keeper: Keepers) -> None:
    turn(keeper, None, 1)
    for at in range(2, 9):
        turn(keeper, at - 1, at, saved=1)
    assert number(keeper().recall(1)) == 1
    turn(keeper, 1, 2, saved=1)
    assert number(keeper().recall(2)) == 3
    turn(keeper, 2, 3, saved=2)
    with pytest.raises(ClientError, match="remembers 2 and 3"):
        keeper().recall(1)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from(["accepted", "lost", "saved", "killed"]), min_size=1, max_size=10))
def test_whatever_happens_the_memory_is_that_of_the_accepted_turns(events: list[str]) -> None:
    state = RecordDict()
    server: tuple[int | None, float] = (None, 0.0)
    saved, at = server, 0
    for event in events:
        if event == "saved":
            saved = server
        elif event == "killed":
            server = saved
        else:
            at += 1
            turn(lambda: ContextKeeper("h", state), server[0], at, saved[0])
            server = (at, server[1] + at) if event == "accepted" else server
    assert number(ContextKeeper("h", state).recall(server[0])) == (None if server[0] is None else server[1])


def test_only_the_memories_of_the_last_runs_stay(tmp_path: Path) -> None:
    for run in "abcdef":
        FileKeeper("h", tmp_path, run).offer((), 0, {"c": torch.tensor(1.0)})
        (tmp_path / f"memory-{run}.safetensors").touch()
    assert len(list(tmp_path.iterdir())) == 4
    assert number(FileKeeper("h", tmp_path, "f").recall(0)) == 1
