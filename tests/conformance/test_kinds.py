"""Methods of another kind go through the whole kit: one that wraps another, and one of nodes without a server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedloom.conformance import DECLARATIONS, check_method
from fedloom.conformance.declarations.courses import Defaults
from fedloom.methods import FedAvg, Scaffold
from fedloom.methods.method import ServerMethod
from ring import GOSSIP, Gossip
from wrappers import Counting


@pytest.mark.parametrize(("name", "inner"), [("fedavg", FedAvg()), ("scaffold", Scaffold())])
def test_a_wrapper_keeps_what_is_known_of_the_method_inside(name: str, inner: ServerMethod) -> None:
    known = DECLARATIONS[name]
    claims = tuple(claim for claim in known.claims if not isinstance(claim, Defaults))  # they are the inner method's
    outcomes = check_method("counting", Counting(inner), replace(known, claims=claims))
    assert len(outcomes) > 20
    assert [f"{o.check}: {o.detail}" for o in outcomes if not o.passed] == []


def test_a_method_of_nodes_goes_through_the_whole_kit() -> None:
    outcomes = check_method("gossip", Gossip(), GOSSIP)
    assert len(outcomes) > 20
    assert [f"{o.check}: {o.detail}" for o in outcomes if not o.passed] == []


def test_a_method_of_nodes_is_not_said_to_look_at_single_replies() -> None:
    (outcome,) = check_method("gossip", Gossip(), GOSSIP, ["sums"])
    assert outcome.passed
    assert outcome.detail == "it has no server"
