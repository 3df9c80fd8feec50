"""Clustered learning: k-means, rotated digits, newcomers, empty groups, ties, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedloom
from fedloom.conformance.declarations.groups import planted, points
from fedloom.conformance.drive import product, stepped, walking
from fedloom.engine.rounds import Rounds
from fedloom.engine.selection import Chosen, Uniform
from fedloom.errors import ConfigError
from fedloom.federation.data import TARGET, FederatedData
from fedloom.federation.grouping import by_means, by_silhouette, silhouette
from fedloom.federation.randomness import Draw
from fedloom.methods import Clustered, FedAvg
from fedloom.methods.method import shown_to
from problems import make_problem

SQUARE = points((0.0, 0.0), (0.0, 2.0), (5.0, 0.0), (5.0, 2.0))
ONE_STEP: dict[str, Any] = {"lr": 1.0, "batch": None, "steps": 1, "init": "random"}


def from_models(known: Any, models: list[list[float]], rounds: int, **own: Any) -> tuple[list[list[float]], list[int]]:
    """The groups' models and the clients' groups after some rounds from these first models."""
    with walking(Rounds, known.problem, Clustered(**{**ONE_STEP, "groups": len(models), **own})) as walk:
        walk.state = {**walk.state, "x": torch.tensor(models, dtype=torch.float64)}
        stepped(walk, rounds)
        return walk.state["x"].tolist(), walk.state["group"].tolist()


@pytest.mark.parametrize("by", ["loss", "weights"])
def test_on_points_it_is_k_means(by: str) -> None:
    models, groups = from_models(SQUARE, [[1, 1], [4, 1]], 2, by=by)
    torch.testing.assert_close(torch.tensor(models), torch.tensor([[0.0, 1.0], [5.0, 1.0]]))
    assert groups == [0, 0, 1, 1]


def test_like_k_means_it_gets_stuck_between_groups() -> None:
    models, groups = from_models(SQUARE, [[2.5, 0], [2.5, 2]], 30)
    torch.testing.assert_close(torch.tensor(models), torch.tensor([[2.5, 0.0], [2.5, 2.0]]))
    assert groups == [0, 1, 0, 1]


def test_first_models_from_the_clients_do_not_get_stuck() -> None:
    with walking(Rounds, SQUARE.problem, Clustered(**{**ONE_STEP, "init": "clients"})) as walk:
        found = product(stepped(walk, 2), SQUARE.clients)
    torch.testing.assert_close(found, torch.tensor([[0.0, 1.0]] * 2 + [[5.0, 1.0]] * 2).double())


def test_an_empty_group_stays_and_of_equal_models_the_first_is_taken() -> None:
    models, groups = from_models(SQUARE, [[2.5, 1], [2.5, 1], [99, 99]], 1)
    assert groups == [0, 0, 0, 0]
    assert models[1:] == [[2.5, 1], [99, 99]]


def test_moves_as_parts_of_all_have_all_clients_in_the_denominator() -> None:
    models, _ = from_models(SQUARE, [[1, 1], [4, 1]], 1, average="gradients")
    torch.testing.assert_close(torch.tensor(models), torch.tensor([[0.5, 1.0], [4.5, 1.0]]))


def test_one_group_is_fedavg() -> None:
    problem, how = make_problem(), {"lr": 0.1, "batch": 4, "epochs": 2, "weighting": "size"}
    one, other = (
        fedloom.train(problem, method, rounds=4, evaluate=[], executor="serial").theta
        for method in (Clustered(groups=1, **how), FedAvg(**how))
    )
    torch.testing.assert_close(one, other)


def test_sums_alone_give_the_same_models() -> None:
    problem = planted(3, noise=0.3).problem
    runs = [
        fedloom.train(
            problem,
            Clustered(lr=0.3, steps=3, batch=4, init="random", groups=3, reply=reply, weighting="size"),
            rounds=5,
            evaluate=[],
            executor="serial",
        )
        for reply in ("own", "all")
    ]
    torch.testing.assert_close(runs[0].theta, runs[1].theta, rtol=0, atol=1e-12)
    assert runs[1].summary["bytes_up"] > runs[0].summary["bytes_up"]


def test_few_replies_train_one_model_until_there_are_enough_for_the_groups() -> None:
    known = planted(3)
    early = Chosen(lambda clients, ctx: [0, 1] if ctx.round < 2 else clients)
    with walking(Rounds, known.problem, Clustered(groups=3, lr=0.6, batch=None, steps=1), select=early) as walk:
        counts = [int(stepped(walk).state["count"]) for _ in range(3)]
        assert counts == [0, 0, 3]
        assert len({tuple(row) for row in product(stepped(walk, 40), known.clients).round(decimals=6).tolist()}) == 3


def turned(clients: int = 12, turns: int = 4, target: float = 0.0) -> FederatedData:
    """Digits, client i's turned by i mod 4 quarters."""
    data = fedloom.federate("digits", clients=clients, target=target, seed=3)
    x = data.x.clone()
    for client in range(clients):
        for split in ("train", "test"):
            rows = data.splits[split][client]
            pictures = torch.rot90(x[rows].reshape(-1, 8, 8), client % turns, (1, 2))
            x[rows] = pictures.reshape(x[rows].shape)
    return replace(data, x=x)


@pytest.mark.parametrize(("groups", "by"), [(4, "loss"), (None, "loss"), (None, "weights")])
def test_rotated_digits_are_grouped_by_their_angle(groups: int | None, by: str) -> None:
    data = turned()
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    with walking(Rounds, problem, Clustered(groups=groups, by=by), select=Uniform(11)) as walk:
        stepped(walk, 6)
        group = walk.state["group"].tolist()
        assert int(walk.state["count"]) == 4
    assert len({(group[i], i % 4) for i in range(12)}) == 4 == len(set(group))


def test_a_newcomer_is_assigned_by_its_loss() -> None:
    data = turned(16, target=0.25)
    targets = data.with_role(TARGET).tolist()
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    with walking(Rounds, problem, Clustered(groups=4)) as walk:
        stepped(walk, 6)
        group, sources = walk.state["group"], [i for i in range(16) if i not in targets]
        newcomers, received = problem.client(np.array(targets), Draw(0)), walk.fetched(np.array(targets))[0]
        method = Clustered(groups=4)
        shown = shown_to(method, newcomers, walk.state)
        models = method.personal(newcomers, shown, method.client_init(newcomers, received))
        for newcomer, model in zip(targets, models, strict=True):
            like = next(i for i in sources if i % 4 == newcomer % 4)
            assert int(group[newcomer]) == -1
            assert torch.equal(model, walk.state["x"][int(group[like])])


@pytest.mark.parametrize("own", [{}, {"by": "weights"}, {"init": "random", "reply": "all"}])
def test_a_model_in_use_elsewhere_is_that_of_the_clients_group(own: dict[str, Any], tmp_path: Path) -> None:
    """There are no rows of the client then to choose by."""
    data = turned(8, turns=2)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    run = fedloom.train(problem, Clustered(**own), rounds=3, out=tmp_path / "run", executor="serial")
    with walking(Rounds, problem, Clustered(**own)) as walk:
        models = product(stepped(walk, 3), torch.arange(8))
    for client in range(8):
        torch.testing.assert_close(run.predictor(client).theta, models[client])


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"groups": 5}, "groups = 5, but there are 4 clients; choose at most 4 groups"),
        ({"groups": None, "init": "random"}, "say how many groups"),
        ({"reply": "all"}, "set init = 'random' or reply = 'own'"),
    ],
)
def test_what_cannot_be_is_refused(own: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fedloom.train(SQUARE.problem, Clustered(**own), rounds=1, evaluate=[])


def test_silhouettes_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import silhouette_score

    generator = torch.Generator().manual_seed(1)
    places = torch.randn(30, 5, generator=generator).double()
    for groups in (2, 4, 7):
        group = by_means(places, groups)
        assert silhouette(places, group) == pytest.approx(silhouette_score(places.numpy(), group.numpy()), abs=1e-12)


def test_groups_do_not_depend_on_the_order_of_the_points() -> None:
    generator = torch.Generator().manual_seed(2)
    places = torch.randn(20, 3, generator=generator) + 6 * torch.eye(3)[torch.arange(20) % 3]
    mixed = torch.randperm(20, generator=generator)
    one, other = by_silhouette(places, 8), by_silhouette(places[mixed], 8)
    assert len(set(one.tolist())) == 3
    assert len(set(zip(one[mixed].tolist(), other.tolist(), strict=True))) == 3
