"""A node goes on from the turn that the server accepted, whatever became of its last reply."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flwr.app import RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedloom.deploy.memory import ContextKeeper, FileKeeper, Keeper, NodeMemory
from fedloom.errors import ClientError
from fedloom.types import Memory

Keepers = Callable[[], Keeper]


@pytest.fixture(params=["file", "context"])
def keeper(request: pytest.FixtureRequest, tmp_path: Path) -> Keepers:
    """Makes a keeper of the same place again and again, as a node does for every message."""
    state = RecordDict()
    return lambda: FileKeeper(tmp_path / "state", "r") if request.param == "file" else ContextKeeper(state)


def number(memory: Memory | None) -> float | None:
    return None if memory is None else float(memory["c"])


def turn(keeper: Keepers, accepted: int | None, at: int) -> None:
    """The client adds its turn to what it remembers."""
    memory = NodeMemory(keeper())
    old = memory.recall(accepted)
    value = torch.tensor(0.0) if old is None else old["c"]
    memory.offer(accepted, at, {"c": value + at, "empty": torch.zeros(0, 3)})


def test_an_accepted_turn_is_gone_on_from(keeper: Keepers) -> None:
    turn(keeper, None, 1)
    assert number(NodeMemory(keeper()).recall(1)) == 1
    turn(keeper, 1, 2)
    assert number(NodeMemory(keeper()).recall(2)) == 3


def test_a_turn_that_was_not_accepted_is_taken_back(keeper: Keepers) -> None:
    turn(keeper, None, 1)
    turn(keeper, 1, 2)
    turn(keeper, 1, 5)
    assert number(NodeMemory(keeper()).recall(1)) == 1
    assert number(NodeMemory(keeper()).recall(5)) == 6


def test_a_first_turn_that_was_not_accepted_leaves_nothing(keeper: Keepers) -> None:
    turn(keeper, None, 1)
    assert NodeMemory(keeper()).recall(None) is None
    turn(keeper, None, 2)
    assert number(NodeMemory(keeper()).recall(2)) == 2


def test_a_node_that_lost_its_memory_says_so(keeper: Keepers) -> None:
    with pytest.raises(ClientError, match="from turn 3, but this node remembers none"):
        NodeMemory(keeper()).recall(3)
    turn(keeper, None, 1)
    turn(keeper, 1, 2)
    turn(keeper, 2, 4)
    with pytest.raises(ClientError, match="from turn 1, but this node remembers 2 and 4"):
        NodeMemory(keeper()).recall(1)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_whatever_is_lost_the_memory_is_that_of_the_accepted_turns(fates: list[bool]) -> None:
    state = RecordDict()
    accepted: int | None = None
    total = 0.0
    for at, taken in enumerate(fates):
        turn(lambda: ContextKeeper(state), accepted, at)
        if taken:
            accepted, total = at, total + at
    assert number(NodeMemory(ContextKeeper(state)).recall(accepted)) == (None if accepted is None else total)


def test_only_the_memories_of_the_last_runs_stay(tmp_path: Path) -> None:
    for run in "abcdef":
        NodeMemory(FileKeeper(tmp_path, run)).offer(None, 0, {"c": torch.tensor(1.0)})
        (tmp_path / f"memory-{run}.safetensors").touch()
    assert len(list(tmp_path.iterdir())) == 4
    assert number(NodeMemory(FileKeeper(tmp_path, "f")).recall(0)) == 1
