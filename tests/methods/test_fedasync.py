"""FedAsync and FedBuff by hand, alone with one client, and with replies that come when they come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedloom.conformance.problems import quadratics
from fedloom.conformance.staggered import Staggered
from fedloom.errors import ConfigError
from fedloom.methods import FedAsync, FedAvg, FedBuff, FedProx, Local, Method
from fedloom.methods.method import check_parameters
from problems import LeastSquares, make_problem, replies_of, run, start

F64 = torch.float64
BATCHES: dict[str, Any] = {"lr": 0.1, "batch": 3, "epochs": 2}


def stepped(method: Method, x: list[float], key: str, columns: list[list[float]], staleness: list[int]) -> list[float]:
    """The server's model after one step on these replies."""
    ctx = start(make_problem("linear", dtype=F64), method).context(7)
    clients = list(range(len(columns)))
    sizes = [client + 1 for client in clients]
    replies = replies_of(method, clients, {key: torch.tensor(columns, dtype=F64)}, sizes, staleness)
    return method.model(method.server({"x": torch.tensor(x, dtype=F64)}, replies, ctx)).tolist()


def test_an_old_model_is_mixed_in_as_it_is_with_the_weight_that_its_age_leaves() -> None:
    """α_t = 0.6/√4 = 0.3: (1 − 0.3)·(1, 1) + 0.3·(3, 5)."""
    assert stepped(FedAsync(), [1, 1], "x", [[3, 5]], [3]) == pytest.approx([1.6, 2.2], rel=1e-15)
    assert stepped(FedAsync(staleness="constant"), [1, 1], "x", [[3, 5]], [3]) == pytest.approx([2.2, 3.4], rel=1e-15)
    assert stepped(FedAsync(staleness="hinge"), [1, 1], "x", [[3, 5]], [5]) == pytest.approx(
        [1 + 2 * 0.6 / 11, 1 + 4 * 0.6 / 11], rel=1e-15
    )


def test_an_old_reply_does_not_make_the_next_one_count_for_less() -> None:
    method = FedAsync(alpha=0.5)
    once = stepped(method, [0], "x", [[8]], [15])
    assert once == pytest.approx([1.0], rel=1e-15)  # 0.5/4 of 8
    assert stepped(method, once, "x", [[9]], [0]) == pytest.approx([5.0], rel=1e-15)  # half way, as ever


def test_several_replies_in_one_step_are_taken_one_after_the_other() -> None:
    method, x = FedAsync(), [1.0, -2.0]
    columns, staleness = [[3.0, 5.0], [-1.0, 0.5], [2.0, 2.0]], [0, 8, 3]
    for new, age in zip(columns, staleness, strict=True):
        x = stepped(method, x, "x", [new], [age])
    assert stepped(method, [1.0, -2.0], "x", columns, staleness) == pytest.approx(x, rel=1e-14)


def test_with_alpha_one_and_a_single_client_it_is_local_training_bit_by_bit() -> None:
    problem = make_problem("mlp", sizes=[13])
    alone = run(problem, Local(**BATCHES), 12)
    method = FedAsync(**BATCHES, alpha=1.0, rho=0.0, staleness="constant")
    found = Staggered(problem, method, ticks=[7.0]).run(12)
    own = alone.store.get(0)
    assert own is not None
    assert torch.equal(found, own["x"])
    assert not torch.equal(found, alone.theta())


def test_with_alpha_zero_it_stays_where_it_is() -> None:
    problem = make_problem("mlp")
    engine = Staggered(problem, FedAsync(**BATCHES, alpha=0.0), ticks=[1, 2, 3, 4, 5])
    assert torch.equal(engine.run(9), engine.base.theta0)


def test_its_clients_take_the_proximal_steps_of_fedprox() -> None:
    problem = make_problem("mlp", dtype=F64)
    ctx = start(problem, FedAsync()).context(0)
    client = problem.client(torch.arange(5).numpy())
    received = {"x": ctx.theta0}
    ours, _ = FedAsync(**BATCHES, rho=0.7).client(client, received, {})
    theirs, _ = FedProx(**BATCHES, mu=0.7).client(client, received, {})
    assert torch.allclose(ours["x"], ctx.theta0 + theirs["dx"], atol=1e-15, rtol=0)
    free, _ = FedAsync(**BATCHES, rho=0.0).client(client, received, {})
    assert not torch.allclose(ours["x"], free["x"], atol=1e-3)


def test_replies_that_come_one_by_one_find_the_neighbourhood_of_the_optimum() -> None:
    """The slowest client answers a tenth as often as the fastest: what is found leans towards the fast ones."""
    known = quadratics()
    method = FedAsync(lr=0.3, batch=None, steps=2, alpha=0.1)
    engine = Staggered(known.problem, method, ticks=[1.0, 1.7, 2.3, 5.1, 9.7])
    engine.run(300)
    assert max(engine.staleness) > 15
    off = (engine.run(1) - known.optimum).norm()
    away = (engine.base.theta0 - known.optimum).norm()
    assert off < away / 2


@pytest.mark.parametrize("alpha", [-0.1, 1.1])
def test_a_share_outside_of_zero_and_one_is_refused(alpha: float) -> None:
    with pytest.raises(ConfigError, match="alpha"):
        check_parameters(FedAsync(alpha=alpha))


def test_fedbuff_divides_by_the_number_of_replies_and_the_root_of_their_age() -> None:
    """(1, 1) + ½·½·[(4, 0)/√4 + (0, 8)/√1]."""
    moves = [[4.0, 0.0], [0.0, 8.0]]
    assert stepped(FedBuff(server_lr=0.5), [1, 1], "dx", moves, [3, 0]) == pytest.approx([1.5, 3.0], rel=1e-15)
    assert stepped(FedBuff(staleness="none"), [1, 1], "dx", moves, [3, 0]) == [3.0, 5.0]
    by_size = stepped(FedBuff(staleness="none", weighting="size"), [1, 1], "dx", moves, [3, 0])
    assert by_size == pytest.approx([1 + 4 / 3, 1 + 16 / 3], rel=1e-15)


def test_the_server_of_fedbuff_steps_by_its_schedule() -> None:
    method = FedBuff(server_lr="exponential:1:0.5")  # in step 7
    assert stepped(method, [0.0], "dx", [[128.0]], [0]) == [1.0]


def test_a_full_buffer_of_fresh_replies_makes_fedbuff_fedavg_bit_by_bit() -> None:
    problem = make_problem("mlp")
    rounds = run(problem, FedAvg(**BATCHES, weighting="uniform"), 8)
    engine = Staggered(problem, FedBuff(**BATCHES), ticks=[3.0] * 5, buffer=5)
    assert torch.equal(engine.run(8), rounds.theta())
    assert set(engine.staleness) == {0}


def test_the_buffer_takes_two_replies_of_a_fast_client_at_once() -> None:
    problem = LeastSquares().problem
    method = FedBuff(lr=0.1, batch=None, steps=2)
    engine = Staggered(problem, method, ticks=[1.0, 1.0, 100.0, 100.0], buffer=4)
    x = engine.base.theta0
    moves = [method.client(problem.client(k), {"x": x}, {})[0]["dx"] for k in (0, 1)]
    assert torch.allclose(engine.run(1), x + (moves[0] + moves[1]) / 2, atol=1e-15, rtol=0)


def test_asynchronous_methods_say_how_they_are_usually_run() -> None:
    assert (FedAsync().default_schedule, FedAsync().default_buffer) == ("async", 1)
    assert (FedBuff().default_schedule, FedBuff().default_buffer) == ("async", 10)
    assert replace(FedAvg()).default_schedule == "rounds"
