"""Methods of another kind go through the whole kit: one that wraps another, and one of nodes without a server."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedloom.conformance import check_method, check_methods
from fedloom.errors import ConfigError
from fedloom.execution import Executor, Serial, Worker
from fedloom.execution.work import Work
from fedloom.types import Memory, Message
from kinds import on_the_bench
from ring import GOSSIP, Gossip

sys.path.append(str(Path(__file__).parents[1] / "deploy"))
from local_fleet import LocalFleet


@pytest.mark.parametrize("kind", ["fedavg", "scaffold", "nodes"])
def test_a_wrapper_and_nodes_without_a_server_go_through_the_whole_kit(kind: str) -> None:
    outcomes = check_method(*on_the_bench(kind))
    assert len(outcomes) > 20
    assert [f"{o.check}: {o.detail}" for o in outcomes if not o.passed] == []


def test_nodes_without_a_server_go_through_the_whole_kit_on_a_fleet() -> None:
    outcomes = check_method(*on_the_bench("nodes"), executor=LocalFleet)
    assert len(outcomes) > 20
    assert [f"{o.check}: {o.detail}" for o in outcomes if not o.passed] == []


def test_a_wrapper_keeps_what_is_known_of_the_method_inside_on_a_fleet() -> None:
    kinds = ["parameters", "stack-call", "workers", "resume", "order", "seeds", "effort", "sums", "asynchronous"]
    checks = [*kinds, "lost: c is the mean of the clients' c", "quantised: c is the mean of the clients' c"]
    outcomes = check_method(*on_the_bench("scaffold"), checks=checks, executor=LocalFleet)
    assert len(outcomes) == len(checks)
    assert [f"{o.check}: {o.detail}" for o in outcomes if not o.passed] == []


def test_the_kit_sees_a_client_elsewhere_that_remembers_a_reply_that_was_lost() -> None:
    class Forgetful(LocalFleet):
        """Its clients remember their newest turn, accepted or not."""

        def recalled(self, client: int, turn: int) -> Memory:
            node = self.grid.nodes[self.roster.nodes[client]].node
            assert node is not None
            return list(node._keeper(self.run).read().values())[-1]

    checks = ["lost: neighbours have what a node remembers"]
    (outcome,) = check_method(*on_the_bench("nodes"), checks=checks, executor=Forgetful)
    assert not outcome.passed


class Elsewhere(Serial):
    """Says that its clients remember, and lets nobody look."""

    name = "elsewhere"
    remembers = True


class Amiss(Serial):
    """Does the work a little wrong."""

    name = "amiss"

    def map(self, shared: Message, works: Sequence[Work]) -> Iterator[tuple[int, Any]]:
        return super().map({key: value + 1e-3 for key, value in shared.items()}, works)


def check_on(executor: type[Executor], check: str) -> str:
    (outcome,) = check_methods(["fedavg"], [check], executor=executor)
    assert not outcome.passed
    return outcome.detail


def test_the_kit_works_on_the_executor_that_it_is_given() -> None:
    assert "a run by the executor 'amiss' differs in" in check_on(Amiss, "workers")
    assert "greatest distance from the path" in check_on(Amiss, "known-answer: K local steps follow their closed form")


class Alone(Serial):
    """Of which there may be one at a time, as on a cluster whose CPUs one run takes."""

    open_ones = 0

    def open(self, worker: Worker) -> None:
        assert Alone.open_ones == 0, "another run is at work"
        Alone.open_ones += 1
        super().open(worker)

    def close(self) -> None:
        Alone.open_ones -= 1


def test_no_claim_needs_two_runs_at_a_time() -> None:
    outcomes = check_methods(["fedavg", "fedsgd"], executor=Alone)
    assert len(outcomes) > 40
    assert [f"{o.check}: {o.detail}" for o in outcomes if not o.passed] == []


def test_the_kit_refuses_clients_that_keep_to_themselves_what_it_has_to_compare() -> None:
    assert "keep what they remember to themselves" in check_on(Elsewhere, "seeds")


def test_the_kit_refuses_an_executor_that_there_is_none_of() -> None:
    with pytest.raises(ConfigError, match=r"there is no executor 'rey'.*'ray'"):
        check_methods(["fedavg"], ["declared"], executor="rey")


def test_a_method_of_nodes_is_not_said_to_look_at_single_replies() -> None:
    (outcome,) = check_method("gossip", Gossip(), GOSSIP, ["sums"])
    assert outcome.passed
    assert outcome.detail == "it has no server"
