"""FedProx and SCAFFOLD, where a single round can be worked out by hand or a limit be named."""

from __future__ import annotations

import pytest
import torch

from fedloom.conformance import quadratics
from fedloom.engine.evaluation import Evaluation
from fedloom.engine.fleet import Distribution, Fleet
from fedloom.engine.rounds import Rounds, Setting
from fedloom.engine.run import train
from fedloom.engine.selection import All
from fedloom.engine.store import MemoryStore
from fedloom.execution import Serial
from fedloom.federation.problem import Problem
from fedloom.methods import FedAvg, FedProx, Method, Scaffold


def walk(problem: Problem, method: Method, rounds: int, fleet: Fleet | None = None) -> Rounds:
    setting = Setting(problem, method, All(), fleet or Fleet(), evaluations=())
    engine = Rounds(setting, Serial(), MemoryStore())
    for _ in range(rounds):
        engine.step()
    return engine


def test_the_controls_of_scaffold_tend_to_the_gradients_at_the_optimum() -> None:
    known = quadratics()
    engine = walk(known.problem, Scaffold(lr=0.3, batch=None, steps=4), 400)
    best = known.minimiser("uniform")
    gradients = (known.hessians @ (best - known.optima).unsqueeze(-1)).squeeze(-1)
    memory, _ = engine.store.gather(torch.arange(len(gradients)))
    assert torch.allclose(memory["c"], gradients, atol=1e-11, rtol=0)
    assert gradients.abs().max() > 0.1


def test_the_first_round_of_scaffold_is_that_of_fedavg() -> None:
    known = quadratics(unequal=True)
    one = walk(known.problem, Scaffold(lr=0.3, batch=None, steps=4), 1)
    other = walk(known.problem, FedAvg(lr=0.3, batch=None, steps=4, weighting="uniform"), 1)
    assert torch.equal(one.state["x"], other.state["x"])


def test_scaffold_reaches_what_fedavg_misses_by_its_bias() -> None:
    known = quadratics()
    best = known.minimiser("uniform")
    controlled = walk(known.problem, Scaffold(lr=0.3, batch=None, steps=4), 300).state["x"]
    drifted = walk(known.problem, FedAvg(lr=0.3, batch=None, steps=4), 300).state["x"]
    assert (controlled - best).norm() < 1e-12
    assert (drifted - best).norm() > 0.01


def test_a_slow_client_of_fedprox_is_used_or_dropped_as_the_user_chooses() -> None:
    known = quadratics()
    slow = {"speed": Distribution("uniform", 20.0, 200.0), "deadline": 1.0}
    method = FedProx(lr=0.3, batch=None, steps=10, mu=0.5)
    both = {
        late: train(known.problem, method, rounds=5, fleet=Fleet(late=late, **slow), evaluate=(), executor="serial")
        for late in ("partial", "drop")
    }
    assert all(row["accepted"] == row["selected"] for row in both["partial"].history[1:])
    assert all(row["late"] > 0 for row in both["drop"].history[1:])
    assert not torch.equal(both["partial"].theta, both["drop"].theta)


@pytest.mark.parametrize(
    ("losses", "mus", "falls"),
    [
        ([1.0, 2.0], [0.5, 0.6], 0),
        ([5.0, 4.0, 3.0, 2.0, 1.0], [0.5, 0.5, 0.5, 0.5, 0.4], 0),
        ([5.0, 4.0, 3.0], [0.5, 0.5, 0.5], 3),
    ],
)
def test_the_adaptive_mu_rises_with_the_loss_and_falls_after_five_falls(
    losses: list[float], mus: list[float], falls: int
) -> None:
    method = FedProx(mu=0.5, adaptive=True)
    state = {"mu": torch.tensor(0.5).double(), "loss": torch.tensor(torch.inf).double(), "falls": torch.tensor(0)}
    for loss, mu in zip(losses, mus, strict=True):
        state = method.adapted(state, torch.tensor(loss).double())
        assert float(state["mu"]) == pytest.approx(mu)
    assert int(state["falls"]) == falls


def test_an_adaptive_run_keeps_its_mu_in_the_state() -> None:
    known = quadratics()
    run = train(
        known.problem,
        FedProx(lr=0.3, batch=None, mu=1.0, adaptive=True),
        rounds=12,
        evaluate=Evaluation(every=0, split="train"),
        executor="serial",
    )
    assert float(run.state["mu"]) < 1.0
    assert torch.isfinite(run.theta).all()
