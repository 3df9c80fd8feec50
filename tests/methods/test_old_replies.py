"""Methods made for rounds, with replies that were made from states of long ago: the limits stay, or they say no."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedloom.conformance.declarations.meta_admm import regularised_optimum
from fedloom.conformance.declarations.personal import mixture
from fedloom.conformance.declarations.vertical import ridge
from fedloom.conformance.problems import quadratics, vertical
from fedloom.conformance.staggered import Staggered
from fedloom.methods import (
    ADMM,
    REGISTER,
    ADMMFedMeta,
    ADMMMetaExact,
    FedAvg,
    Method,
    MixtureADMM,
    Scaffold,
    SharingADMM,
)
from problems import make_problem, run

UNEVEN = [1.0, 1.3, 1.7, 2.1, 2.6]


@pytest.mark.parametrize(
    ("method", "steps"),
    [
        (Scaffold(lr=0.05, batch=None, steps=4), 600),
        (Scaffold(lr=0.05, batch=None, steps=4, option="I"), 600),
        (Scaffold(lr=0.3, batch=None, steps=4, server_lr=0.2), 500),
        (ADMM(weighting="uniform", relaxation=1.6), 300),
        (ADMM(weighting="uniform", rho=2.0), 700),
    ],
)
def test_single_old_replies_lead_to_the_same_optimum(method: Method, steps: int) -> None:
    known = quadratics()
    engine = Staggered(known.problem, method, UNEVEN)
    found = engine.run(steps)
    assert max(engine.staleness) >= 5
    assert torch.allclose(found, known.minimiser("uniform"), atol=1e-10, rtol=0)


@pytest.mark.parametrize("buffer", [2, 5])
@pytest.mark.parametrize(
    "method",
    [
        ADMM(relaxation=1.6),
        ADMM(relaxation=1.6, rho_by="size"),
        ADMM(relaxation=1.6, adaptive=True),
    ],
)
def test_buffers_of_old_replies_lead_consensus_admm_to_the_optimum(method: ADMM, buffer: int) -> None:
    known = quadratics(unequal=True)
    engine = Staggered(known.problem, method, UNEVEN, buffer)
    assert torch.allclose(engine.run(250), known.optimum, atol=1e-10, rtol=0)
    assert max(engine.staleness) > 0


def test_the_server_of_admm_keeps_the_sum_of_what_its_clients_remember_when_answers_are_old() -> None:
    known = quadratics(unequal=True)
    engine = Staggered(known.problem, ADMM(rho=0.7), UNEVEN)
    for _ in range(20):
        engine.run(1)
        remembered = torch.cat([memory["m"] for memory in engine.memories.values()]).sum(0)
        held = sum(float(memory["rho"]) for memory in engine.memories.values())
        assert torch.allclose(engine.state["m"], remembered, atol=1e-13, rtol=0)
        assert float(engine.state["held"].sum()) == pytest.approx(held, rel=1e-14)


@pytest.mark.parametrize(
    "method",
    [ADMMFedMeta(alpha=0.4, rho=0.2, order="exact"), ADMMMetaExact(alpha=0.4, rho=0.1, tolerance=1e-10)],
)
def test_old_replies_lead_meta_admm_to_the_same_start_for_adaptation(method: Any) -> None:
    known = quadratics(unequal=True)
    steps = 100 if isinstance(method, ADMMMetaExact) else 300
    found = Staggered(known.problem, method, UNEVEN, buffer=5).run(steps)
    assert torch.allclose(found, regularised_optimum(known, method), atol=1e-9, rtol=0)


def test_sharing_admm_says_that_it_needs_rounds_and_is_right() -> None:
    """With the same ρ rounds find the joint ridge regression, and old answers lead away from it."""
    known, method = vertical(), SharingADMM(stop=0.0, adaptive=False, rho=0.5)
    assert SharingADMM.needs_rounds is not None
    best = ridge(known, method)
    assert torch.allclose(run(known.problem, method, 600, evaluations=()).theta(), best, atol=1e-10, rtol=0)
    engine = Staggered(known.problem, method, [1.0, 1.7, 2.3, 5.1], apiece=False)
    engine.run(400)
    client = known.problem.client(torch.arange(4).numpy())
    memory = {"x": torch.cat([engine.memories[k]["x"] for k in range(4)])}
    found = method.model(engine.state) + method.personal(client, engine.state, memory).sum(0)
    assert float((found - best).abs().max()) > 1.0


def test_all_other_methods_can_take_single_replies() -> None:
    refusing = {name for name, entry in REGISTER.items() if entry.cls().needs_rounds is not None}
    assert refusing == {"sharing-admm", "clustered", "l2gd"}  # clustered for its first step, unless init = "random"


@pytest.mark.parametrize(
    ("own", "finds"),
    [({}, True), ({"rho": 0.3}, False), ({"form": "dca"}, True), ({"form": "dca", "accelerated": True}, True)],
)
def test_mixture_admm_bears_old_replies_where_its_penalty_is_large_enough(own: dict[str, Any], finds: bool) -> None:
    known = quadratics(unequal=True)
    engine = Staggered(known.problem, MixtureADMM(lambda_=0.8, **own), [1.0, 1.7, 2.3, 5.1, 9.7])
    engine.run(400)
    x = torch.cat([engine.memories[client]["x"] for client in range(5)])
    assert (float((x - mixture(known, 0.8)).abs().max()) < 1e-4) is finds


def test_the_hand_written_loop_is_a_round_when_all_are_alike() -> None:
    problem, method = make_problem("mlp"), FedAvg(lr=0.1, batch=4, epochs=2)
    assert torch.equal(Staggered(problem, method, [2.0] * 5, buffer=5).run(6), run(problem, method, 6).theta())


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("scaffold", {"option": "I", "batch": 4}),
        ("scaffold", {"option": "II", "steps": 7, "batch": 4}),
        ("fedprox", {"adaptive": True, "batch": 4, "epochs": 3}),
        ("admm", {"solver": "exact"}),
        ("admm", {"solver": "gradient", "steps": 3}),
        ("per-fedavg", {"episodes": "independent", "batch": 4, "steps": 5, "order": "first"}),
        ("per-fedavg", {"episodes": "independent", "batch": 4, "steps": 5, "order": "difference"}),
        ("per-fedavg", {"episodes": "independent", "steps": 2, "order": "exact"}),
        ("aso-fed", {"batch": 4, "epochs": 3}),
        ("aso-fed", {"batch": 4, "steps": 5}),
        ("aso-fed", {}),
    ],
)
def test_clients_do_the_work_that_was_said_beforehand(name: str, settings: dict[str, Any]) -> None:
    problem = make_problem("linear", task="regression", outputs=1)
    method = REGISTER[name].cls(**settings)
    engine = run(problem, method, 1)
    ids = torch.arange(problem.data.clients)
    client = problem.client(ids.numpy())
    received = {**method.broadcast(engine.state, ids), **method.unicast(engine.state, ids)}
    method.client(client, received, method.client_init(client, received))
    said = method.work(client.sizes())
    assert said is not None
    assert said.tolist() == client.evaluations.tolist()


@pytest.mark.parametrize("settings", [{"solver": "auto"}, {"solver": "newton"}, {"solver": "lbfgs"}])
def test_solvers_that_stop_when_they_are_content_say_nothing_beforehand(settings: dict[str, Any]) -> None:
    assert ADMM(**settings).work(torch.tensor([3, 4]).numpy()) is None
