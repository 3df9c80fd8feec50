"""FedU: its bias, graphs from files, groups that are found, and what it warns of and refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedloom
from fedloom.conformance import quadratics
from fedloom.conformance.declarations.groups import planted
from fedloom.conformance.declarations.neighbours import biased
from fedloom.conformance.declarations.personal import mixture
from fedloom.conformance.drive import product, stepped, walking
from fedloom.engine.rounds import Rounds
from fedloom.engine.selection import Chosen
from fedloom.errors import ConfigError, FedloomError
from fedloom.methods import FedU

KNOWN = quadratics(unequal=True)
STEPS = {"batch": None, "steps": 2, "eta": 0.8}


def ended(method: FedU, rounds: int) -> torch.Tensor:
    with walking(Rounds, KNOWN.problem, method) as walk:
        return product(stepped(walk, rounds), KNOWN.clients)


def test_the_bias_is_of_the_order_of_the_way_of_a_round() -> None:
    """Twice as many steps, or steps twice as long, double the distance of the limit to the mixture solution."""

    def bias(lr: float, steps: int) -> float:
        return float((biased(KNOWN, FedU(lr=lr, steps=steps, eta=0.8)) - mixture(KNOWN, 0.8)).norm())

    small = bias(0.01, 2)
    assert bias(0.02, 2) / small == pytest.approx(2, rel=0.05)
    assert bias(0.01, 4) / small == pytest.approx(2, rel=0.2)


def test_parts_of_a_graph_learn_apart_and_that_is_said() -> None:
    """Two pairs and one client alone: each pair has the mixture of two, the last its own optimum."""
    method = FedU(**{**STEPS, "lr": 0.3, "coupling": "along"}, graph="0-1:0.5,2-3:0.5")
    with pytest.warns(UserWarning, match="3 parts .* learn apart: clients 0, 1; 2, 3; 4"):
        found = ended(method, 200)
    for pair in ([0, 1], [2, 3], [4]):
        expected = mixture(KNOWN.only(torch.tensor(pair)), 0.8)
        torch.testing.assert_close(found[pair], expected, rtol=0, atol=1e-9)


def test_a_graph_from_a_file_is_that_of_its_edges(tmp_path: Path) -> None:
    path = tmp_path / "clients.csv"
    path.write_text("0,1,0.5\n1,2,0.25\n2,3,1\n3,4,1\n")
    by_file = FedU(**STEPS, lr=0.2, graph=str(path))
    by_text = replace(by_file, graph="0-1:0.5,1-2:0.25,2-3,3-4")
    assert torch.equal(ended(by_file, 5), ended(by_text, 5))


@pytest.mark.parametrize("content", ["0,1,1\n1,0,2\n", "0,1,1,0,0\n" * 5, "0,7\n"])
def test_a_graph_that_cannot_be_is_refused_before_any_work(content: str, tmp_path: Path) -> None:
    path = tmp_path / "clients.csv"
    path.write_text(content)
    with pytest.raises(FedloomError, match=r"clients\.csv"):
        fedloom.train(KNOWN.problem, FedU(graph=str(path)), rounds=1, evaluate=[])


def test_planted_groups_become_the_parts_of_the_nearest_graph() -> None:
    known = planted(3, noise=0.2)
    method = FedU(lr=0.5, batch=None, steps=2, eta=0.3, graph="nearest", neighbours=2, warm_up=4, coupling="along")
    with walking(Rounds, known.problem, method) as walk:
        found = product(stepped(walk, 300), known.clients)
        assert [sorted(row) for row in walk.state["near"].tolist()] == [
            [other for other in range(9) if other != i and other % 3 == i % 3] for i in range(9)
        ]
    for g in range(3):
        members = known.clients[known.clients % 3 == g]
        torch.testing.assert_close(found[members], mixture(known.only(members), 0.3), rtol=0, atol=1e-9)


def test_a_client_that_never_took_part_has_the_mean_of_the_others() -> None:
    first_two = Chosen(lambda clients, ctx: [0, 1])
    with walking(Rounds, KNOWN.problem, FedU(**STEPS, lr=0.2), select=first_two) as walk:
        stepped(walk, 3)
        received = walk.fetched(np.array([0, 4]))[1]["towards"]
        torch.testing.assert_close(received[1], walk.state["u"][:2].mean(0))
        torch.testing.assert_close(received[1], walk.theta())


def test_more_neighbours_than_clients_are_refused() -> None:
    with pytest.raises(ConfigError, match="neighbours = 5, but there are 5 clients; choose 1 to 4"):
        FedU(graph="nearest").check(KNOWN.problem)


def test_a_step_beyond_the_neighbours_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="lower eta or lr"):
        FedU(lr=0.5, batch=None, steps=2, eta=2.5).check(KNOWN.problem)


def test_a_negative_strength_is_refused() -> None:
    with pytest.raises(ConfigError, match="eta"):
        fedloom.train(KNOWN.problem, FedU(eta=-1.0), rounds=1)
