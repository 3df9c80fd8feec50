"""FedProx and SCAFFOLD, where a single round can be worked out by hand or a limit be named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedloom.conformance import quadratics
from fedloom.conformance.problems import classification
from fedloom.engine.evaluation import Evaluation
from fedloom.engine.fleet import Distribution, Fleet
from fedloom.engine.rounds import Rounds
from fedloom.engine.run import train
from fedloom.engine.selection import All, Selection, Uniform
from fedloom.engine.setting import Setting
from fedloom.execution import Serial
from fedloom.federation.problem import Problem
from fedloom.methods import FedAvg, FedProx, Method, Scaffold
from fedloom.storage.store import MemoryStore


def walk(
    problem: Problem, method: Method, rounds: int, fleet: Fleet | None = None, select: Selection | None = None
) -> Rounds:
    setting = Setting(problem, method, select or All(), fleet or Fleet(), evaluations=())
    engine = Rounds(setting, Serial(), MemoryStore())
    for _ in range(rounds):
        engine.step()
    return engine


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("select", [All(), Uniform(2)])
def test_the_controls_of_scaffold_tend_to_the_gradients_at_the_optimum(option: Any, select: Selection) -> None:
    known = quadratics()
    engine = walk(known.problem, Scaffold(lr=0.3, batch=None, steps=4, option=option), 450, select=select)
    best = known.minimiser("uniform")
    gradients = (known.hessians @ (best - known.optima).unsqueeze(-1)).squeeze(-1)
    memory, _ = engine.store.gather(torch.arange(len(gradients)))
    assert torch.allclose(memory["c"], gradients, atol=1e-11, rtol=0)
    assert gradients.abs().max() > 0.1


@pytest.mark.parametrize("steps", [1, 4])
def test_the_controls_of_scaffold_are_mean_gradients_of_the_local_steps_while_the_step_size_falls(steps: int) -> None:
    """Option II in its own words: c_i is the mean of ∇f_i over the places where client i took its steps."""
    known = quadratics()
    method = Scaffold(lr="exponential:0.3:0.7", batch=None, steps=steps)
    engine = walk(known.problem, method, 0)
    ids, controls = torch.arange(len(known.clients)), torch.zeros_like(known.optima)
    for t in range(6):
        x, c, lr = engine.state["x"], engine.state["c"], 0.3 * 0.7**t
        y, total = x.expand_as(known.optima), torch.zeros_like(known.optima)
        for _ in range(steps):
            g = (known.hessians @ (y - known.optima).unsqueeze(-1)).squeeze(-1)
            y, total = y - lr * (g - controls + c), total + g
        controls = total / steps
        engine.step()
        assert torch.allclose(engine.store.gather(ids)[0]["c"], controls, atol=1e-12, rtol=0)


def test_the_server_of_scaffold_steps_by_its_schedule() -> None:
    known = quadratics()
    plain = Scaffold(lr=0.3, batch=None, steps=2)
    falling = replace(plain, server_lr="exponential:1:0.5")
    assert torch.equal(walk(known.problem, falling, 1).state["x"], walk(known.problem, plain, 1).state["x"])
    first = walk(known.problem, plain, 1).state["x"]
    full, half = (walk(known.problem, method, 2).state["x"] - first for method in (plain, falling))
    assert torch.allclose(half, full / 2, atol=1e-14, rtol=0)


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
    "fleet",
    [
        Fleet(stragglers=0.5),
        Fleet(stragglers=0.9, loss=0.2),
        Fleet(speed=Distribution("uniform", 5.0, 50.0), deadline=1.0, late="partial"),
        Fleet(speed=Distribution("uniform", 5.0, 50.0), deadline=1.0, late="drop"),
    ],
    ids=["half are slow", "most are slow", "a part", "dropped"],
)
def test_without_its_term_fedprox_treats_slow_clients_as_fedavg_does_bit_by_bit(fleet: Fleet) -> None:
    problem, how = classification(torch.float32), {"lr": 0.1, "batch": 5, "epochs": 3}
    one, other = walk(problem, FedProx(mu=0.0, **how), 6, fleet), walk(problem, FedAvg(**how), 6, fleet)  # type: ignore[arg-type]
    ideal = walk(problem, FedAvg(**how), 6)  # type: ignore[arg-type]
    assert torch.equal(one.state["x"], other.state["x"])
    assert not torch.equal(other.state["x"], ideal.state["x"])


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
