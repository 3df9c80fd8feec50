from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedloom.channel import Quantise, payload
from fedloom.engine.evaluation import Evaluation
from fedloom.engine.fleet import Distribution, Fleet
from fedloom.engine.run import train
from fedloom.engine.selection import BySize, Chosen, Uniform
from fedloom.errors import ClientError, ConfigError, DataError, RunError
from fedloom.federation.client import Client
from fedloom.federation.data import SOURCE, TARGET
from fedloom.methods import Central, FedAvg, FedSGD, Local
from fedloom.methods.method import Method
from fedloom.types import Memory, Message
from problems import SIZES, LeastSquares, Marks, Shaky, Tally, Troubled, make_problem, run, start

F64 = torch.float64


def descend(problem: Any, theta: Tensor, weights: Tensor, lr: float, steps: int) -> Tensor:
    """Gradient descent on Σ p_i f_i with autograd, a mean loss for each client."""
    for _ in range(steps):
        theta = theta.detach().requires_grad_()
        total = torch.zeros((), dtype=theta.dtype)
        for i, p in enumerate(weights.tolist()):
            rows = problem.data.splits["train"][i]
            total = total + p * problem.loss.rows(problem.model(theta, problem.x[rows]), problem.y[rows]).mean()
        (gradient,) = torch.autograd.grad(total, theta)
        theta = theta.detach() - lr * gradient
    return theta


@pytest.mark.parametrize("model", ["linear", "mlp", "lenet"])
@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_fedsgd_is_gradient_descent_on_the_weighted_loss(model: str, weighting: Any) -> None:
    problem = make_problem(model, dtype=F64)
    engine = run(problem, FedSGD(lr=0.3, weighting=weighting), 8)
    sizes = torch.tensor(SIZES, dtype=F64) if weighting == "size" else torch.ones(5, dtype=F64)
    expected = descend(problem, engine.theta0, sizes / sizes.sum(), 0.3, 8)
    assert float((engine.state["x"] - expected).abs().max()) < 1e-12


def test_fedsgd_reaches_the_optimum() -> None:
    squares = LeastSquares()
    for weighting in ("size", "uniform"):
        engine = run(squares.problem, FedSGD(lr=0.8, weighting=weighting), 100)
        torch.testing.assert_close(engine.state["x"], squares.optimum(weighting), rtol=0, atol=1e-12)


def test_fedavg_with_one_client_and_full_batches_is_gradient_descent() -> None:
    problem = make_problem("mlp", sizes=(9,), dtype=F64)
    engine = run(problem, FedAvg(lr=0.2, batch=None, epochs=3), 5)
    expected = descend(problem, engine.theta0, torch.ones(1), 0.2, 15)
    assert float((engine.state["x"] - expected).abs().max()) < 1e-12


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_one_full_step_of_fedavg_is_fedsgd(weighting: Any) -> None:
    problem = make_problem("lenet", dtype=F64)
    one = run(problem, FedAvg(lr=0.1, batch=None, steps=1, weighting=weighting), 4)
    other = run(problem, FedSGD(lr=0.1, weighting=weighting), 4)
    torch.testing.assert_close(one.state["x"], other.state["x"], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("steps", "weighting"), [(2, "size"), (5, "size"), (5, "uniform"), (20, "uniform")])
def test_fedavg_with_local_steps_ends_where_theory_says_and_not_at_the_optimum(steps: int, weighting: Any) -> None:
    squares, lr = LeastSquares(), 0.3
    engine = run(squares.problem, FedAvg(lr=lr, batch=None, steps=steps, weighting=weighting), 90)
    limit, optimum = squares.fedavg_limit(lr, steps, weighting), squares.optimum(weighting)
    torch.testing.assert_close(engine.state["x"], limit, rtol=0, atol=1e-10)
    assert float((limit - optimum).norm()) > 1e-3
    torch.testing.assert_close(squares.fedavg_limit(lr, 1, weighting), optimum, rtol=0, atol=1e-10)


@pytest.mark.parametrize("method", [FedAvg(lr=0.3, batch=None, steps=5), FedSGD(lr=0.8)])
def test_the_order_of_the_clients_does_not_matter(method: Method) -> None:
    order = [2, 0, 3, 1]
    ends = [run(LeastSquares(order=o).problem, method, 100).state["x"] for o in (None, order)]
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-12)


def test_local_is_every_client_alone() -> None:
    problem = make_problem("mlp", dtype=F64)
    engine = run(problem, Local(lr=0.1, batch=4, epochs=2), 5)
    for client in range(5):
        theta = engine.theta0
        for t in range(5):
            theta, _ = problem.client(client, engine.context(t).draw).sgd(theta, 0.1, 4, 2)
        memory = engine.store.get(client)
        assert memory is not None
        torch.testing.assert_close(memory["x"], theta, rtol=0, atol=1e-12)
    assert torch.equal(engine.state["x"], engine.theta0)


def test_local_reaches_each_clients_own_minimum() -> None:
    squares = LeastSquares()
    engine = run(squares.problem, Local(lr=0.5, batch=None, steps=100), 8)
    for client, best in enumerate(squares.minimisers):
        memory = engine.store.get(client)
        assert memory is not None
        torch.testing.assert_close(memory["x"], best, rtol=0, atol=1e-9)


def test_central_is_training_on_the_pooled_rows_of_the_sources() -> None:
    roles = (SOURCE, TARGET, SOURCE, SOURCE, TARGET)
    problem = make_problem("mlp", dtype=F64, roles=roles)
    engine = run(problem, Central(lr=0.1, batch=None, steps=3), 4, select=Uniform(2))
    rows = torch.cat([problem.data.splits["train"][i] for i in (0, 2, 3)])
    theta = engine.theta0
    for _ in range(12):
        theta = theta.detach().requires_grad_()
        loss = nn.functional.cross_entropy(problem.model(theta, problem.x[rows]), problem.y[rows])
        theta = theta.detach() - 0.1 * torch.autograd.grad(loss, theta)[0]
    torch.testing.assert_close(engine.state["x"], theta, rtol=0, atol=1e-12)
    assert engine.clocks.gradient_evaluations == 12 * len(rows)


def test_central_on_least_squares_reaches_the_optimum() -> None:
    squares = LeastSquares()
    engine = run(squares.problem, Central(lr=0.5, batch=None, steps=50), 8)
    torch.testing.assert_close(engine.state["x"], squares.optimum(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("model", "stack"), [("linear", 2), ("linear", 4), ("mlp", 2), ("mlp", 4), ("lenet", 2), ("problems:dropping", 2)]
)
def test_twenty_rounds_agree_whatever_the_stack(model: str, stack: int) -> None:
    problem = make_problem(model, dtype=F64, sizes=(5, 3, 8, 2, 1))
    fleet = Fleet(stragglers=0.5, loss=0.2)
    method = FedAvg(lr=0.1, batch=4, epochs=2)
    one = run(problem, method, 20, stack=1, fleet=fleet, select=Uniform(4))
    other = run(problem, method, 20, stack=stack, fleet=fleet, select=Uniform(4))
    assert float((one.state["x"] - other.state["x"]).abs().max()) < 1e-10
    assert replace(one.clocks, wall_seconds=0) == replace(other.clocks, wall_seconds=0)


def test_a_run_is_a_function_of_its_seed() -> None:
    problem = make_problem("mlp")
    ends = [run(problem, FedAvg(), 3, seed=seed, select=Uniform(2)).state["x"] for seed in (1, 1, 2)]
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_clients_of_like_size_are_computed_together_in_even_groups() -> None:
    engine = start(make_problem("linear", sizes=(3, 9, 1, 7, 5, 11, 2)), FedAvg(), stack=3)
    call = engine.call(np.array([0, 1, 2, 3, 4, 5, 6]), 0)
    assert [stack.tolist() for stack in engine.stacks(call)] == [[5, 1, 3], [4, 0], [6, 2]]


@pytest.mark.parametrize("bits", [4, 8])
def test_a_quantised_channel_still_leads_to_the_neighbourhood_and_costs_less(bits: int) -> None:
    squares = LeastSquares()
    method = FedSGD(lr=0.2)
    exact, lossy = (run(squares.problem, method, 150, transforms=t) for t in ((), (Quantise(bits),)))
    assert float((lossy.state["x"] - squares.optimum()).norm()) < 0.2
    assert not torch.equal(exact.state["x"], lossy.state["x"])
    big = make_problem("mlp", options={"hidden": [500]})
    full, small = (run(big, FedAvg(), 1, transforms=t).clocks.bytes_up for t in ((), (Quantise(bits),)))
    assert small < full * bits / 32 * 1.5


# ------------------------------------------------------------------------------------------------ clocks and fates


def test_bytes_and_evaluations_by_hand() -> None:
    problem = make_problem("linear", dtype=F64)
    engine = start(problem, FedAvg(batch=4, epochs=2), select=Chosen(lambda ids, ctx: [0, 2]))
    row = engine.step()
    n = problem.model.n
    assert row["bytes_down"] == 2 * payload({"x": torch.zeros(n, dtype=F64)})
    assert row["bytes_up"] == 2 * payload({"dx": torch.zeros(n, dtype=F64), "weight": torch.zeros(1, dtype=F64)})
    assert row["gradient_evaluations"] == 2 * (7 + 12)
    assert (row["round"], row["selected"], row["accepted"]) == (1, 2, 2)
    second = engine.step()
    assert second["bytes_up"] == 2 * row["bytes_up"]
    assert second["gradient_evaluations"] == 2 * row["gradient_evaluations"]


def test_a_round_takes_as_long_as_its_slowest_client() -> None:
    problem = make_problem("linear")
    fleet = Fleet(speed=Distribution("constant", 4), delay_down=Distribution("constant", 1))
    engine = run(problem, FedAvg(batch=4, epochs=2), 3, fleet=fleet)
    assert engine.clocks.simulated_seconds == pytest.approx(3 * (1 + 24 / 4))


def test_late_replies_are_dropped_at_the_deadline() -> None:
    problem = make_problem("linear", dtype=F64)
    fleet = Fleet(speed=Distribution("constant", 4), deadline=3.0)
    engine = start(problem, FedAvg(batch=4, epochs=2), fleet=fleet)
    row = engine.step()
    assert (row["accepted"], row["late"]) == (3, 2)  # 14, 6, 24, 10 and 2 evaluations; 12 fit
    assert row["simulated_seconds"] == 3.0
    only = run(problem, FedAvg(batch=4, epochs=2), 1, select=Chosen(lambda ids, ctx: [1, 3, 4]))
    torch.testing.assert_close(engine.state["x"], only.state["x"], rtol=0, atol=1e-14)


def test_late_clients_deliver_the_part_that_they_managed() -> None:
    problem = make_problem("linear", dtype=F64)
    fleet = Fleet(speed=Distribution("constant", 4), deadline=3.0, late="partial")
    engine = start(problem, FedAvg(batch=4, epochs=2), fleet=fleet)
    row = engine.step()
    assert (row["accepted"], row["late"]) == (5, 0)
    # 12 evaluations are 3 steps of 4 rows; of the first client's three batches the second has 3 rows
    assert row["gradient_evaluations"] == (4 + 3 + 4) + 6 + 12 + 10 + 2
    assert row["simulated_seconds"] == 3.0


def test_a_method_that_does_not_trim_its_work_is_late_under_a_deadline() -> None:
    fleet = Fleet(speed=Distribution("constant", 4), deadline=2.0, late="partial")
    row = start(make_problem("linear"), FedSGD(), fleet=fleet).step()
    assert (row["accepted"], row["late"]) == (4, 1)
    assert row["simulated_seconds"] == 2.0


def test_fates_add_up_and_only_the_accepted_count() -> None:
    fleet = Fleet(dropout=0.3, loss=0.3)
    engine = start(make_problem("linear", sizes=(3,) * 30), Tally(), fleet=fleet)
    seen, lost, dropped = 0, 0, 0
    for _ in range(10):
        row = engine.step()
        assert row["accepted"] + row["lost"] + row["dropped"] == row["selected"] == 30
        seen, lost, dropped = seen + row["accepted"], lost + row["lost"], dropped + row["dropped"]
    assert int(engine.state["seen"].sum()) == seen
    assert min(lost, dropped) > 0
    size = payload({"secret": torch.zeros(()), "born_with": torch.zeros(())})
    assert engine.clocks.bytes_up == size * (seen + lost)


@pytest.mark.parametrize("fleet", [Fleet(dropout=1.0), Fleet(loss=1.0), Fleet(unavailable=1.0)])
def test_a_round_without_replies_leaves_everything_as_it_was(fleet: Fleet) -> None:
    for method in (FedAvg(), Tally()):
        engine = start(make_problem("linear"), method, fleet=fleet)
        before = engine.state["x"].clone()
        row = engine.step()
        assert row["accepted"] == 0
        assert torch.equal(engine.state["x"], before)
        assert len(engine.store.clients()) == 0
        assert engine.clocks.round == 1


def test_unreachable_clients_are_not_selected() -> None:
    engine = start(make_problem("linear", sizes=(3,) * 40), FedAvg(), fleet=Fleet(unavailable=0.5), select=Uniform(30))
    row = engine.step()
    assert 10 < row["selected"] < 30


def there(folder: Path, lines: str) -> str:
    path = folder / "there.csv"
    path.write_text("client,start,end\n" + lines.replace(" ", "\n"), encoding="utf-8")
    return str(path)


def test_a_round_waits_for_somebody_and_drops_who_goes_away_before_its_reply_is_due(tmp_path: Path) -> None:
    problem, method = make_problem("linear", dtype=F64), FedAvg(batch=4, epochs=2)
    trace = there(tmp_path, "0,5,100 1,5,6 2,50,100 3,5,7.5 4,5,30")
    engine = start(problem, method, fleet=Fleet(speed=Distribution("constant", 4), trace=trace))
    row = engine.step()  # 3.5, 1.5, 6, 2.5 and 0.5 seconds of work, from 5 on; client 3 is ready at 7.5 exactly
    assert (row["selected"], row["accepted"], row["dropped"]) == (4, 3, 1)
    assert row["simulated_seconds"] == 5 + 3.5
    only = run(problem, method, 1, select=Chosen(lambda ids, ctx: [0, 3, 4]))
    torch.testing.assert_close(engine.state["x"], only.state["x"], rtol=0, atol=1e-14)
    row = engine.step()
    assert (row["selected"], row["accepted"], row["simulated_seconds"]) == (2, 2, 12.0)
    engine.clocks.simulated_seconds = 95.0
    row = engine.step()
    assert (row["selected"], row["accepted"], row["dropped"], row["simulated_seconds"]) == (2, 1, 1, 101.0)
    with pytest.raises(
        RunError, match=r"after 101 simulated seconds none of the 5 clients will ever be there again; let"
    ):
        engine.step()
    assert engine.clocks.round == 3


def test_who_returns_has_what_it_remembered_when_it_was_last_heard_of(tmp_path: Path) -> None:
    trace = there(tmp_path, "1,0,3 1,20,23 3,0,1 3,18,100")
    fleet = Fleet(delay_up=Distribution("constant", 2), trace=trace)
    engine = start(make_problem("linear"), Tally(), fleet=fleet)
    rows = [engine.step() for _ in range(12)]  # at 0, 2, 4, …: 1 goes away in the second and twelfth, 3 in the first
    assert [row["selected"] for row in rows] == [5, 4, 3, 3, 3, 3, 3, 3, 3, 4, 5, 5]
    assert [row["dropped"] for row in rows] == [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    memories = [engine.store.get(client) for client in range(5)]
    assert [int(memory["accepted"]) for memory in memories if memory is not None] == [12, 2, 12, 3, 12]
    assert engine.state["seen"].tolist() == [12, 2, 12, 3, 12]


def test_the_absent_take_no_part_but_a_pool_has_the_rows_of_all() -> None:
    problem = make_problem("linear", sizes=(3,) * 10)
    rows = [start(problem, FedAvg(), fleet=Fleet(absent=share)).step() for share in (0.0, 0.3, 0.8)]
    assert [row["selected"] for row in rows] == [10, 7, 2]
    row = start(problem, Central(), fleet=Fleet(absent=0.8)).step()
    assert (row["selected"], row["gradient_evaluations"]) == (1, 30)


@pytest.mark.parametrize("stack", [1, 3])
def test_those_who_come_and_go_do_so_alike_whatever_the_stack(stack: int) -> None:
    problem = make_problem("linear", dtype=F64, sizes=(3,) * 12)
    fleet = Fleet(
        delay_up=Distribution("uniform", 1, 9), redraw=True, period=20.0, away=0.4, fails_every=40.0, repair=10.0
    )
    how = {"fleet": fleet, "select": Uniform(5)}
    one, other = (run(problem, Tally(), 30, stack=size, **how) for size in (stack, 12))
    assert torch.equal(one.state["seen"], other.state["seen"])
    assert 60 < int(one.state["seen"].sum()) < 150
    assert replace(one.clocks, wall_seconds=0) == replace(other.clocks, wall_seconds=0)


def test_devices_with_little_storage_train_on_fewer_rows() -> None:
    row = start(make_problem("linear"), FedAvg(batch=4), fleet=Fleet(storage=4)).step()
    assert row["gradient_evaluations"] == 4 + 3 + 4 + 4 + 1


# ------------------------------------------------------------------------------------------------ memory and messages


@pytest.mark.parametrize("stack", [1, 2, 5])
def test_memory_is_rolled_back_when_a_reply_is_lost(stack: int) -> None:
    engine = start(make_problem("linear"), Tally(), fleet=Fleet(loss=0.4, dropout=0.2), select=Uniform(3), stack=stack)
    for _ in range(12):
        engine.step()
    seen = engine.state["seen"]
    assert 0 < int(seen.sum()) < 36
    for client in range(5):
        memory = engine.store.get(client)
        assert (0.0 if memory is None else float(memory["accepted"])) == float(seen[client])


@pytest.mark.parametrize("stack", [1, 2, 5])
def test_every_client_gets_its_own_message(stack: int) -> None:
    engine = start(make_problem("linear"), Tally(), select=BySize(3), stack=stack)
    for _ in range(6):
        engine.step()
        assert engine.state["last"].tolist() == [100.0 + i for i in engine.state["who"].tolist()]
        assert torch.equal(engine.state["born"], engine.state["last"])


def test_what_each_client_is_sent_is_counted() -> None:
    problem = make_problem("linear")
    row = start(problem, Tally()).step()
    assert row["bytes_down"] == 5 * payload({"x": torch.zeros(problem.model.n), "secret": torch.zeros(())})


@pytest.mark.parametrize("stack", [1, 2, 5])
def test_memory_of_single_rows_comes_back_to_its_rows(stack: int) -> None:
    engine = start(make_problem("linear"), Marks(), select=Uniform(3), stack=stack, fleet=Fleet(loss=0.3))
    visits = dict.fromkeys(range(5), 0)
    for _ in range(10):
        engine.step()
        for client in engine.store.clients().tolist():
            memory = engine.store.get(client)
            assert memory is not None
            assert memory["marks"].shape == (SIZES[client],)
            assert (memory["marks"] == memory["marks"][0]).all()
            visits[client] = int(memory["marks"][0]) - 1
    assert 0 < sum(visits.values()) < 30


def test_settle_sees_what_the_server_decoded() -> None:
    @dataclass(frozen=True)
    class Settling(FedAvg):
        def client_init(self, client: Client, received: Message) -> Memory:
            return {"sent": torch.zeros_like(received["x"].expand(*client.n.shape[:-1], -1))}

        def settle(self, client: Client, memory: Memory, sent: Message, inbox: Message) -> Memory:
            return {"sent": sent["dx"] + 0 * inbox["x"]}

    engine = start(make_problem("linear"), Settling(), transforms=(Quantise(2),))
    engine.step()
    memories = [engine.store.get(client) for client in range(5)]
    for memory in memories:
        assert memory is not None
        assert len(memory["sent"].unique()) <= 4


def test_measures_sum_over_clients_in_their_order() -> None:
    engine = run(make_problem("linear", dtype=F64), Tally(), 3, stack=2)
    expected = math.fsum(3 + n / 3 for n in SIZES)
    assert engine.evaluator.measures()["thirds"] == pytest.approx(expected, rel=1e-15)
    assert start(make_problem("linear"), FedAvg()).evaluator.measures() == {}


@pytest.mark.parametrize(
    ("evaluate", "measured"),
    [
        ([Evaluation(split="train", every=2)], [0, 2, 4]),
        ([Evaluation(split="train", every=0)], [4]),
        ([Evaluation(split="train", every=0), Evaluation("second", split="train", every=3)], [0, 3, 4]),
        ([], [0, 1, 2, 3, 4]),
    ],
)
def test_clients_measure_only_when_something_is_evaluated(evaluate: list[Evaluation], measured: list[int]) -> None:
    done = train(make_problem("linear"), Tally(), rounds=4, evaluate=evaluate, executor="serial")
    assert [row["round"] for row in done.history if "thirds" in row.get("measures", {})] == measured


# ------------------------------------------------------------------------------------------------ trouble


@pytest.mark.parametrize("stack", [1, 5])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_reply_that_is_not_finite_stops_the_run_and_names_client_and_round(stack: int, value: str) -> None:
    engine = start(make_problem("linear", names="abcde"), Troubled(trouble=value), stack=stack)
    engine.step()
    with pytest.raises(ClientError, match=r"reply of client c in round 2 is not finite; try a smaller step size"):
        engine.step()


@pytest.mark.parametrize("stack", [1, 5])
@pytest.mark.parametrize("trouble", ["nan", "raise", "step"])
def test_or_the_run_goes_on_without_it(stack: int, trouble: str) -> None:
    problem = make_problem("linear", dtype=F64)
    engine = start(problem, Troubled(trouble=trouble), on_error="drop", stack=stack)
    rows = [engine.step() for _ in range(3)]
    assert [row["failed"] for row in rows] == [0, 1, 0]
    assert [row["accepted"] for row in rows] == [5, 4, 5]
    others = Chosen(lambda ids, ctx: ids if ctx.round != 1 else [0, 1, 3, 4])
    expected = run(problem, FedAvg(), 3, select=others)
    torch.testing.assert_close(engine.state["x"], expected.state["x"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("stack", [2, 3, 5])
def test_the_others_of_a_stack_keep_their_own_memory_and_messages_when_one_fails(stack: int) -> None:
    engine = start(make_problem("linear"), Shaky(), on_error="drop", stack=stack, select=Uniform(4))
    for _ in range(9):
        engine.step()
        assert torch.equal(engine.state["last"], 100.0 + engine.state["who"])
        assert torch.equal(engine.state["born"], engine.state["last"])
    for client in range(5):
        memory = engine.store.get(client)
        assert memory is not None
        assert float(memory["accepted"]) == float(engine.state["seen"][client])


@pytest.mark.parametrize("stack", [1, 5])
def test_a_client_that_fails_is_named_with_round_and_reason(stack: int) -> None:
    engine = start(make_problem("linear", names="abcde"), Troubled(), stack=stack)
    engine.step()
    with pytest.raises(ClientError, match=r"client c failed in round 2: ZeroDivisionError: the sensor is broken") as e:
        engine.step()
    assert isinstance(e.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("stack", [1, 5])
def test_a_client_that_fails_on_its_way_is_named_with_the_step(stack: int) -> None:
    engine = start(make_problem("linear"), Troubled(trouble="step"), stack=stack)
    engine.step()
    with pytest.raises(ClientError, match=r"client 2 failed in round 2, local step 3: FloatingPointError"):
        engine.step()


def test_a_step_size_far_too_large_ends_in_a_clear_error() -> None:
    method = FedAvg(lr=1e6, batch=None, steps=9)
    with pytest.raises(ClientError, match="not finite; try a smaller step size"):
        run(make_problem("linear", task="regression", outputs=1), method, 5)


def test_large_numbers_are_not_taken_for_infinite_ones() -> None:
    @dataclass(frozen=True)
    class Loud(FedAvg):
        def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
            return {"dx": torch.full_like(received["x"].expand(*client.n.shape[:-1], -1), 1e38)}, memory

    assert start(make_problem("linear"), Loud(weighting="uniform")).step()["accepted"] == 5


def test_a_reply_without_its_axis_of_clients_is_refused() -> None:
    @dataclass(frozen=True)
    class Flat(FedAvg):
        def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
            return {"dx": received["x"]}, memory

    with pytest.raises(ClientError, match=r"the reply 'dx' .* has shape \(21,\): its first axis must be the clients"):
        start(make_problem("linear"), Flat()).step()


def test_when_everybody_fails_the_run_goes_on_with_nothing() -> None:
    @dataclass(frozen=True)
    class Hopeless(Local):
        def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
            raise OSError("no power")

    engine = start(make_problem("linear"), Hopeless(), on_error="drop", stack=2)
    row = engine.step()
    assert (row["accepted"], row["failed"]) == (0, 5)
    assert len(engine.store.clients()) == 0


def test_what_cannot_be_is_refused_before_any_work() -> None:
    problem = make_problem("linear")
    with pytest.raises(ConfigError, match="per_round = 6, but 5 clients can take part"):
        start(problem, FedAvg(), select=Uniform(6))
    with pytest.raises(ConfigError, match=r"client b has no training rows \(and 1 more like it\)"):
        start(make_problem("linear", sizes=(3, 0, 2, 0), names="abcd"), FedAvg())
    with pytest.raises(ConfigError, match="needs exact messages"):
        start(problem, Exact(), transforms=(Quantise(8),))
    with pytest.raises(DataError, match=r"gone\.csv is not there"):
        start(problem, FedAvg(), fleet=Fleet(delay_up=Distribution("constant", 1), trace="gone.csv"))
    with pytest.raises(ConfigError, match=r"fleet\.absent = 0\.95 leaves none of the 5 clients"):
        start(problem, FedAvg(), fleet=Fleet(absent=0.95))
    start(make_problem("linear", sizes=(3, 0), roles=(SOURCE, TARGET)), FedAvg())
    start(problem, Central(), select=Uniform(500))  # the pool is one


@dataclass(frozen=True)
class Exact(FedAvg):
    exact: ClassVar[bool] = True
