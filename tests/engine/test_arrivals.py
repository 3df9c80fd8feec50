"""The asynchronous schedule: the order of events, staleness, computing ahead, and equality with the rounds."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.problems import LeastSquares, make_problem, run
from tests.problems import start as start_rounds
from torch import Tensor

import fedloom
from fedloom.conformance.staggered import Staggered
from fedloom.engine.arrivals import Arrivals
from fedloom.engine.fleet import Distribution, Fleet
from fedloom.engine.run import Interrupted
from fedloom.engine.schedule import Schedule
from fedloom.engine.selection import All, BySize, Chosen, Selection, Uniform
from fedloom.engine.setting import Setting
from fedloom.errors import ClientError, ConfigError
from fedloom.execution import Executor, Processes, Serial
from fedloom.federation.client import Client
from fedloom.federation.problem import Problem
from fedloom.federation.replies import Replies
from fedloom.federation.streams import Stream
from fedloom.methods.method import Context, Ints, Method, ServerMethod
from fedloom.storage.store import MemoryStore
from fedloom.types import Memory, Message, State

SLOW = Distribution("uniform", 10.0, 100.0)


def fly(
    problem: Problem, method: Method, *, select: Selection | None = None, executor: Executor | None = None, **how: Any
) -> Arrivals:
    """An asynchronous run that is about to begin."""
    schedule = Schedule("async", how.pop("concurrency", None), how.pop("buffer", 1), how.pop("seconds", None))
    setting = Setting(problem, method, select or All(), schedule=schedule, **{"evaluations": (), **how})
    setting.check()
    return Arrivals(setting, executor or Serial(), MemoryStore())


def flown(rounds: int, *args: Any, **how: Any) -> Arrivals:
    """An asynchronous run after so many rounds."""
    engine = fly(*args, **how)
    for _ in range(rounds):
        engine.step()
    return engine


@dataclass(frozen=True)
class Log(ServerMethod):
    """Writes down who answered, from which state, when the server was in which."""

    reduce = "each"

    gradients: int = 1
    """Rows for which a client computes gradients."""

    def server_init(self, ctx: Context) -> State:
        return {"x": ctx.theta0, "log": torch.zeros(0, 3, dtype=torch.int64), "t": torch.tensor(0)}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {"x": state["x"], "t": state["t"]}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        client.evaluations += self.gradients
        return {"saw": received["t"].reshape(-1).expand(len(client.clients)).clone()}, memory

    def work(self, rows: Ints) -> Ints:
        return np.full_like(rows, self.gradients)

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        rows = torch.stack([replies.clients, replies.each("saw"), replies.staleness], 1)
        return {**state, "log": torch.cat([state["log"], rows]), "t": state["t"] + 1}


def log_of(engine: Arrivals) -> list[list[int]]:
    """Client, the state that it fetched, its age on arrival."""
    found: list[list[int]] = engine.state["log"].tolist()
    return found


EVERYWHERE = [
    fedloom.FedAvg(batch=4),
    fedloom.FedProx(batch=4, adaptive=True),
    fedloom.Scaffold(batch=4),
    fedloom.FedAdam(batch=4),
    fedloom.FedSGD(),
]


@pytest.mark.parametrize("method", EVERYWHERE, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("delay", [0.0, 7.0])
def test_equal_speeds_and_a_buffer_for_all_are_the_rounds_bit_by_bit(method: Method, delay: float) -> None:
    problem, fleet = make_problem("mlp"), Fleet(delay_up=Distribution("constant", delay))
    waited = run(problem, method, 5, fleet=fleet, evaluations=())
    arrived = flown(5, problem, method, fleet=fleet, buffer=5)
    assert torch.equal(arrived.theta(), waited.theta())
    clocks, expected = (dict(vars(engine.clocks)) for engine in (arrived, waited))
    clocks.pop("wall_seconds"), expected.pop("wall_seconds")
    assert clocks == expected
    for client in range(5):
        for memory, other in zip(_memory(arrived, client), _memory(waited, client), strict=True):
            assert torch.equal(memory, other)


def _memory(engine: Any, client: int) -> list[Tensor]:
    return list((engine.store.get(client) or {}).values())


@pytest.mark.parametrize("buffer", [1, 3])
@pytest.mark.parametrize(
    "method",
    [
        fedloom.FedAsync(batch=None, rho=0.1),
        fedloom.FedBuff(batch=None),
        fedloom.ASOFed(batch=None, lr=0.1),
        fedloom.Scaffold(batch=None, lr=0.1),
        fedloom.ADMM(weighting="uniform"),
        fedloom.FedAvg(batch=None),
    ],
    ids=lambda method: type(method).__name__,
)
def test_the_clock_agrees_with_an_asynchronous_loop_written_by_hand(method: Method, buffer: int) -> None:
    problem, fleet = make_problem("linear", dtype=torch.float64), Fleet(delay_up=SLOW)
    engine = flown(9, problem, method, fleet=fleet, buffer=buffer, seed=0)
    ticks = fleet.travel(np.arange(5), 0, 0, 0).tolist()
    by_hand = Staggered(problem, method, ticks, buffer)
    expected = by_hand.run(45 // buffer)
    assert engine.clocks.server_steps == 45 // buffer
    assert max(by_hand.staleness) >= 4 // buffer
    assert torch.allclose(engine.theta(), expected, rtol=0, atol=1e-12)


def test_replies_of_one_instant_are_taken_in_order_of_client_id_before_anybody_fetches() -> None:
    engine = flown(2, make_problem("linear"), Log())
    assert log_of(engine) == [[i, 0, i] for i in range(5)] + [[i, 5, i] for i in range(5)]


def test_the_clock_decides_the_order_and_the_age_of_replies() -> None:
    # One gradient takes 1 s of client 0 and 1/3 s of client 1, say: speeds of their own, known by hand below.
    problem = make_problem("linear")
    fleet = Fleet(delay_up=Distribution("uniform", 1.0, 4.0))
    engine = flown(4, problem, Log(), fleet=fleet)
    delay = fleet.travel(np.arange(5), 0, 0, 0)
    ends = sorted((round_ * delay[i], i) for i in range(5) for round_ in range(1, 100))
    expected, fetched = [], dict.fromkeys(range(5), 0)
    for step, (_, client) in enumerate(ends[:20]):
        expected.append([client, fetched[client], step - fetched[client]])
        fetched[client] = step + 1
    assert log_of(engine) == expected
    assert engine.clocks.simulated_seconds == pytest.approx(ends[19][0])
    assert engine.clocks.server_steps == 20


def test_a_buffer_makes_the_server_wait_for_so_many_replies() -> None:
    engine = flown(6, make_problem("linear"), Log(), fleet=Fleet(delay_up=SLOW), buffer=3)
    assert engine.clocks.server_steps == 10
    assert len(log_of(engine)) == 30
    batches = [log_of(engine)[at : at + 3] for at in range(0, 30, 3)]
    assert all([row[0] for row in batch] == sorted(row[0] for row in batch) for batch in batches)


def test_fedavg_that_takes_each_reply_by_hand() -> None:
    squares = LeastSquares()
    lr, fleet = 0.05, Fleet(delay_up=Distribution("uniform", 1.0, 4.0))
    method = fedloom.FedAvg(lr=lr, batch=None)
    engine = flown(3, squares.problem, method, fleet=fleet)
    clients = len(squares.sizes)
    delay = fleet.travel(np.arange(clients), 0, 0, 0)
    ends = sorted((turn * delay[i], i) for i in range(clients) for turn in range(1, 50))[: 3 * clients]
    x = engine.theta0.clone()
    fetched = {i: x.clone() for i in range(clients)}
    for _, i in ends:
        gradient = squares.hessians[i] @ (fetched[i] - squares.minimisers[i])
        x = x - lr * gradient
        fetched[i] = x.clone()
    torch.testing.assert_close(engine.theta(), x, rtol=1e-12, atol=1e-12)


@dataclass(frozen=True)
class Taciturn(fedloom.FedAvg):
    """Does not say how much work it is, so that jobs are computed earlier."""

    def work(self, rows: Ints) -> None:
        return None


@pytest.mark.parametrize("stack", [2, None])
@pytest.mark.parametrize("kind", [fedloom.FedAvg, Taciturn])
def test_a_step_size_goes_by_the_round_in_which_a_client_fetched(kind: type[Any], stack: int | None) -> None:
    squares, rate = LeastSquares(), "exponential:0.05:0.5"
    fleet = Fleet(speed=Distribution("uniform", 3.0, 40.0), delay_up=Distribution("uniform", 0.1, 0.4))
    method = kind(lr=rate, batch=None)
    engine = flown(6, squares.problem, method, fleet=fleet, stack=stack)
    clients = len(squares.sizes)
    took = fleet.seconds(np.arange(clients), 0, 0, 0, squares.sizes.numpy())
    ends = sorted((turn * took[i], i) for i in range(clients) for turn in range(1, 80))[: 6 * clients]
    x = engine.theta0.clone()
    fetched = {i: (x.clone(), 0) for i in range(clients)}
    for ended, (_, i) in enumerate(ends, 1):
        y, t = fetched[i]
        x = x - 0.05 * 0.5**t * squares.hessians[i] @ (y - squares.minimisers[i])
        fetched[i] = x.clone(), ended // clients
    assert len({t for _, t in fetched.values()}) > 1
    torch.testing.assert_close(engine.theta(), x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("delay", [0.0, 7.0])
def test_step_sizes_that_change_by_the_round_are_those_of_the_rounds(delay: float) -> None:
    problem, fleet = make_problem("mlp"), Fleet(delay_up=Distribution("constant", delay))
    method = fedloom.Scaffold(batch=4, lr="exponential:0.1:0.5")
    waited = run(problem, method, 5, fleet=fleet, evaluations=())
    assert torch.equal(flown(5, problem, method, fleet=fleet, buffer=5).theta(), waited.theta())


@pytest.mark.parametrize("stack", [1, 3, None])
def test_stacks_whose_clients_fetched_different_states_agree_with_clients_one_by_one(stack: int | None) -> None:
    problem = make_problem("mlp", dtype=torch.float64)
    for method in EVERYWHERE:
        alone = flown(6, problem, method, fleet=Fleet(delay_up=SLOW), stack=1)
        together = flown(6, problem, method, fleet=Fleet(delay_up=SLOW), stack=stack)
        torch.testing.assert_close(together.theta(), alone.theta(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("method", [fedloom.FedAvg(batch=4), fedloom.Scaffold(batch=4)])
def test_the_executor_does_not_matter(method: Method) -> None:
    problem, fleet = make_problem("mlp"), Fleet(delay_up=SLOW, speed=Distribution("lognormal", 50.0, 1.0), loss=0.2)
    serial = flown(4, problem, method, fleet=fleet, stack=2)
    processes = fly(problem, method, fleet=fleet, stack=2, executor=Processes(2))
    try:
        for _ in range(4):
            processes.step()
        assert torch.equal(processes.theta(), serial.theta())
    finally:
        processes.executor.close()


def test_clients_in_flight_are_computed_together() -> None:
    engine = flown(20, make_problem("linear", sizes=[3] * 40), Log(), fleet=Fleet(delay_up=SLOW))
    assert engine.clocks.server_steps == 800
    assert engine.wave < 800 / 4


@pytest.mark.parametrize("select", [Uniform(3), BySize(3), Chosen(lambda ids, ctx: ids[:3])])
def test_no_more_clients_work_at_a_time_than_allowed(select: Selection) -> None:
    engine = fly(make_problem("linear"), Log(), select=select, fleet=Fleet(delay_up=SLOW), concurrency=3)
    for _ in range(10):
        row = engine.step()
        assert row["selected"] == 3
        assert len(engine.flight) + len(engine.waiting) == 3
    clients = [client for client, _, _ in log_of(engine)]
    assert set(clients) == set(range(5)) if not isinstance(select, Chosen) else len(set(clients)) >= 3


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    concurrency=st.integers(1, 5),
    buffer=st.integers(1, 7),
    dropout=st.sampled_from([0.0, 0.3]),
    loss=st.sampled_from([0.0, 0.3]),
    unavailable=st.sampled_from([0.0, 0.5]),
    deadline=st.sampled_from([None, 40.0]),
)
def test_the_books_balance(
    seed: int,
    concurrency: int,
    buffer: int,
    dropout: float,
    loss: float,
    unavailable: float,
    deadline: float | None,
) -> None:
    fleet = Fleet(delay_up=SLOW, dropout=dropout, loss=loss, unavailable=unavailable, deadline=deadline)
    engine = fly(
        make_problem("linear"), Log(), select=Uniform(concurrency), fleet=fleet, buffer=buffer, concurrency=concurrency,
        seed=seed,
    )  # fmt: skip
    rows = [engine.step() for _ in range(8)]
    accepted = sum(row["accepted"] for row in rows)
    assert engine.clocks.server_steps == accepted // buffer
    assert len(engine.buffer) == accepted % buffer
    assert len(log_of(engine)) == accepted - accepted % buffer
    assert all(sum(row[fate] for fate in ("accepted", "lost", "late", "dropped")) == row["selected"] for row in rows)
    times = [row["simulated_seconds"] for row in rows]
    assert times == sorted(times)
    at_work = [job.client for job in [*(job for *_, job in engine.flight), *engine.waiting]]
    assert sorted([*at_work, *engine.idle]) == list(range(5))
    for _, saw, age in log_of(engine):
        assert saw >= 0
        assert age >= 0
    jobs = sorted((job[0], job[1], job[2]) for row in rows for job in row["jobs"])
    for (client, _, end), (following, start, _) in pairwise(jobs):
        assert client != following or start >= end


def test_a_late_reply_is_dropped_at_the_deadline_and_its_memory_is_not_kept() -> None:
    fleet = Fleet(delay_up=Distribution("uniform", 10.0, 100.0), deadline=50.0)
    engine = fly(make_problem("linear"), fedloom.Scaffold(batch=4), fleet=fleet)
    rows = [engine.step() for _ in range(6)]
    late = [job for row in rows for job in row["jobs"] if job[3] == "late"]
    assert all(end - start == pytest.approx(50.0) for _, start, end, _ in late)
    delays = fleet.travel(np.arange(5), 0, 0, 0)
    slow = set(np.flatnonzero(delays > 50.0).tolist())
    assert {client for client, *_ in late} == slow
    assert slow
    assert all((engine.store.get(client) is None) == (client in slow) for client in range(5))


def test_scaffold_reaches_the_optimum_although_replies_are_stale_and_lost() -> None:
    squares = LeastSquares()
    fleet = Fleet(delay_up=Distribution("uniform", 1.0, 3.0), loss=0.2)
    method = fedloom.Scaffold(lr=0.2, server_lr=0.3, batch=None, steps=2)
    engine = flown(300, squares.problem, method, fleet=fleet)
    torch.testing.assert_close(engine.theta(), squares.optimum("uniform"), rtol=1e-12, atol=1e-12)


def test_who_goes_away_drops_its_job_and_fetches_again_when_it_is_back() -> None:
    fleet = Fleet(delay_up=Distribution("constant", 4.0), period=10.0, away=0.3)
    engine = fly(make_problem("linear"), Log(), fleet=fleet)
    rows = [engine.step() for _ in range(30)]
    jobs = [job for row in rows for job in row["jobs"]]
    availability = engine.setting.availability
    assert {fate for *_, fate in jobs} == {"accepted", "dropped"}
    for client, start, end, fate in jobs:
        back, leaves = availability.presence(client, start)
        assert back == start
        assert (fate == "dropped") == (leaves < end)
    for client in range(5):
        own = sorted(job[1:3] for job in jobs if job[0] == client)
        for (_, end), (start, _) in pairwise(own):
            assert start == availability.next_available(np.array([client]), end)[0]


def test_absent_clients_never_work_and_are_not_waited_for() -> None:
    engine = flown(10, make_problem("linear"), Log(), fleet=Fleet(delay_up=SLOW, absent=0.4))
    assert len({client for client, *_ in log_of(engine)}) == 3


@pytest.mark.parametrize("schedule", ["rounds", "async"])
def test_a_run_that_everybody_has_left_ends_there_and_says_so(schedule: Any, tmp_path: Path) -> None:
    fleet = Fleet(delay_up=SLOW, leaves=Distribution("uniform", 200.0, 900.0))
    problem = make_problem("linear")
    done = fedloom.train(
        problem, fedloom.FedAvg(), rounds=500, schedule=schedule, fleet=fleet, executor="serial", out=tmp_path / "run"
    )
    assert done.summary["stopped"] == "deserted"
    assert done.summary["rounds"] == done.history[-1]["round"] < 500
    assert "will ever be there again" in done.notes[0]


def test_delays_that_are_drawn_anew_differ_from_job_to_job() -> None:
    engine = fly(make_problem("linear"), Log(), fleet=Fleet(delay_up=SLOW, redraw=True))
    rows = [engine.step() for _ in range(10)]
    lengths = [end - start for row in rows for client, start, end, _ in row["jobs"] if client == 0]
    assert len({round(length, 6) for length in lengths}) == len(lengths) > 3
    assert all(10.0 <= length <= 100.0 + 1e-9 for length in lengths)


def test_a_run_ends_when_its_simulated_time_is_over() -> None:
    problem = make_problem("linear")
    schedule = Schedule("async", seconds=500.0)
    done = fedloom.train(
        problem, fedloom.FedAvg(), rounds=1000, schedule=schedule, fleet=Fleet(delay_up=SLOW), executor="serial"
    )
    assert done.summary["stopped"] == "seconds"
    assert done.summary["simulated_seconds"] == 500.0
    assert all(job[2] <= 500.0 for row in done.history for job in row.get("jobs", []))


def test_a_run_ends_when_its_target_is_reached_and_says_when() -> None:
    problem = make_problem("mlp")
    schedule = Schedule("async", metric="loss", target=0.9)
    done = fedloom.train(
        problem,
        fedloom.FedAvg(lr=0.3),
        rounds=400,
        schedule=schedule,
        fleet=Fleet(delay_up=SLOW),
        evaluate=fedloom.Evaluation(split="train"),
        executor="serial",
    )
    losses = [row["evaluation"]["loss"]["weighted"] for row in done.history]
    first = next(at for at, loss in enumerate(losses) if loss <= 0.9)
    assert done.summary["stopped"] == "target"
    assert done.summary["target"]["reached"]["round"] == first == len(losses) - 1
    assert done.summary["target"]["reached"]["simulated_seconds"] == done.summary["simulated_seconds"]
    assert done.notes == []


def test_what_is_evaluated_only_after_the_last_round_is_so_after_the_one_that_reached_the_target() -> None:
    main = fedloom.Evaluation(split="train")
    once = fedloom.Evaluation("once", split="train", every=0)
    schedule = Schedule("rounds", metric="loss", target=0.9)
    done = fedloom.train(
        make_problem("mlp"), fedloom.FedAvg(lr=0.3), rounds=400, schedule=schedule, evaluate=[main, once]
    )
    assert done.summary["stopped"] == "target"
    assert [row["round"] for row in done.history if "evaluations" in row] == [done.summary["rounds"]]
    assert done.history[-1]["evaluations"]["once"] == done.history[-1]["evaluation"]


def test_a_target_that_is_never_reached_ends_at_the_limit_and_says_so() -> None:
    schedule = Schedule("rounds", metric="loss", target=1e-9)
    done = fedloom.train(make_problem("linear"), fedloom.FedAvg(), rounds=3, schedule=schedule, executor="serial")
    assert done.summary["stopped"] == "rounds"
    assert done.summary["target"]["reached"] is None
    assert "target loss = 1e-09 was not reached" in done.notes[0]


@dataclass(frozen=True)
class Stroked(ServerMethod):
    """Everything that it sends and keeps has a name with a stroke in it."""

    def client_init(self, client: Client, received: Message) -> Memory:
        return {"own/shift": torch.zeros_like(received["for/each"])}

    def server_init(self, ctx: Context) -> State:
        return {"x": ctx.theta0}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {"for/all": state["x"]}

    def unicast(self, state: State, clients: Tensor) -> Message:
        return {"for/each": state["x"] * clients[:, None] / 10}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        x = received["for/all"]
        y, _ = client.sgd(x, 0.1, 4, steps=1, shift=0.1 * (memory["own/shift"] + received["for/each"]))
        return {"step/dx": y - x}, {"own/shift": y - x}

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] + replies.mean("step/dx")}


@pytest.mark.parametrize(
    "method",
    [fedloom.FedAvg(batch=4), fedloom.Scaffold(batch=4), fedloom.FedAvg(batch=4, lr="exponential:0.1:0.5"), Stroked()],
    ids=["fedavg", "scaffold", "schedule", "strokes"],
)
@pytest.mark.parametrize("stop", [1, 4])
def test_a_run_that_was_stopped_and_resumed_ends_in_the_same_bits(tmp_path: Path, method: Method, stop: int) -> None:
    problem = make_problem("mlp")
    fleet = Fleet(delay_up=SLOW, loss=0.2, dropout=0.1)
    how: dict[str, Any] = {
        "rounds": 9,
        "schedule": Schedule("async", concurrency=3, buffer=2),
        "select": 3,
        "fleet": fleet,
        "executor": "serial",
        "stack": 2,
    }
    whole = fedloom.train(problem, method, out=tmp_path / "whole", **how)

    def interrupt(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == stop:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        fedloom.train(problem, method, out=tmp_path / "cut", progress=interrupt, **how)
    resumed = fedloom.train(problem, method, out=tmp_path / "cut", resume=True, **how)
    assert resumed.summary["theta_sha256"] == whole.summary["theta_sha256"]
    for row, other in zip(resumed.history, whole.history, strict=True):
        assert {**row, "wall_seconds": 0} == {**other, "wall_seconds": 0}


def test_work_that_is_less_than_promised_is_found_out() -> None:
    @dataclass(frozen=True)
    class Boaster(Log):
        def work(self, rows: Ints) -> Ints:
            return np.full_like(rows, 10 * self.gradients)

    engine = fly(make_problem("linear"), Boaster(), fleet=Fleet(speed=Distribution("constant", 1.0)))
    with pytest.raises(ClientError, match="work says"):
        engine.step()


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"schedule": Schedule("async", concurrency=6)}, "concurrency = 6 cannot be: 5 clients"),
        ({"schedule": Schedule("rounds", buffer=2)}, "buffer = 2 belongs to schedule.name = 'async'"),
        ({"schedule": Schedule("rounds", seconds=3.0)}, "nothing takes time"),
        ({"schedule": Schedule("async"), "fleet": Fleet(unavailable=1.0)}, "nobody can ever be reached"),
        ({"schedule": Schedule("rounds", metric="f1")}, "needs schedule.target"),
        ({"schedule": Schedule("rounds", metric="f2", target=1.0)}, "is not evaluated"),
    ],
)
def test_impossible_schedules_are_refused_before_any_work(how: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        fedloom.train(make_problem("linear"), fedloom.FedAvg(), rounds=3, **how)


def test_a_method_that_needs_everybody_says_why() -> None:
    @dataclass(frozen=True)
    class Together(Log):
        needs_rounds: ClassVar[str | None] = "its server solves for all clients at once"

    with pytest.raises(ConfigError, match="cannot take replies as they arrive, its server solves for all"):
        fly(make_problem("linear"), Together())


def test_a_do_nothing_fleet_of_many_clients_is_walked_through() -> None:
    problem = make_problem("linear", sizes=[3] * 200)
    engine = fly(problem, Log(), select=Uniform(50), concurrency=50, fleet=Fleet(delay_up=SLOW))
    for _ in range(20):
        engine.step()
    assert engine.clocks.server_steps == 1000
    assert len({client for client, _, _ in log_of(engine)}) > 150


@dataclass(frozen=True)
class Held(Log):
    """Also writes down how many rows each client trained on, and what the server believes that all have."""

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        reply, memory = super().client(client, received, memory)
        return {**reply, "rows": client.n.reshape(-1).long()}, memory

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        told = ctx.sizes[replies.clients]
        assert torch.equal(replies.each("rows"), told)
        rows = torch.stack([replies.clients, told, ctx.sizes[ctx.sources].sum().reshape(1)], 1)
        return {**state, "log": torch.cat([state["log"], rows]), "t": state["t"] + 1}


def test_only_rows_that_had_come_when_a_client_fetched_are_trained_on_and_told_to_the_server() -> None:
    problem = make_problem("linear", sizes=[20] * 5)
    stream, fleet = Stream(start=0.1, rate="0.05"), Fleet(delay_up=SLOW)
    engine = fly(problem, Held(), fleet=fleet, stream=stream)
    rows = [engine.step() for _ in range(8)]
    come = stream.arrivals(problem.data, 0)
    jobs = sorted((end, client, start) for row in rows for client, start, end, _ in row["jobs"])
    told = dict(enumerate(come.held(np.arange(5), 0.0).tolist()))
    for (_, client, start), (logged, held, known) in zip(jobs, log_of(engine), strict=True):
        told[client] = int(come.held(np.array([client]), start)[0])
        assert [logged, held, known] == [client, told[client], sum(told.values())]
    assert log_of(engine)[-1][1] > log_of(engine)[0][1]


def test_a_client_without_rows_fetches_when_its_first_one_comes() -> None:
    problem = make_problem("linear", sizes=[4] * 5)
    stream = Stream(start=0, rate="uniform:0.005:0.05")
    engine = fly(problem, Held(), fleet=Fleet(delay_up=Distribution("constant", 3.0)), stream=stream)
    rows = [engine.step() for _ in range(60)]
    first = stream.arrivals(problem.data, 0).first(np.arange(5))
    begun = {client: start for row in rows[::-1] for client, start, _, _ in row["jobs"][::-1]}
    assert begun == {client: pytest.approx(first[client]) for client in range(5)}


@pytest.mark.parametrize("method", [fedloom.FedAvg(batch=4), fedloom.Scaffold(batch=4), fedloom.Local(batch=4)])
def test_a_stream_that_is_there_at_once_changes_nothing_under_either_schedule(method: Method) -> None:
    problem, fleet = make_problem("mlp"), Fleet(delay_up=SLOW)
    plain = flown(4, problem, method, fleet=fleet)
    streamed = flown(4, problem, method, fleet=fleet, stream=Stream(start=1.0, duration="0"))
    assert torch.equal(streamed.theta(), plain.theta())
    for client in range(5):
        for memory, other in zip(_memory(streamed, client), _memory(plain, client), strict=True):
            assert torch.equal(memory, other)


def test_streams_under_equal_speeds_and_a_buffer_for_all_are_the_rounds_bit_by_bit() -> None:
    problem, fleet = make_problem("mlp", sizes=[20] * 5), Fleet(delay_up=Distribution("constant", 7.0))
    stream = Stream(start=0.2, rate="0.1")
    waited = start_rounds(problem, fedloom.FedAvg(batch=4), fleet=fleet, stream=stream, evaluations=())
    arrived = fly(problem, fedloom.FedAvg(batch=4), fleet=fleet, stream=stream, buffer=5)
    for _ in range(6):
        row, other = waited.step(), arrived.step()
        assert row["prequential"] == other["prequential"]
        assert row["arrived"] == other["arrived"]
    assert torch.equal(arrived.theta(), waited.theta())


def test_every_row_is_evaluated_once_before_it_is_trained_on() -> None:
    problem = make_problem("linear", sizes=[30] * 3)
    stream, fleet = Stream(start=0.1, rate="0.2"), Fleet(delay_up=Distribution("uniform", 5.0, 20.0))
    engine = fly(problem, fedloom.FedAvg(lr=0.3, batch=4), fleet=fleet, stream=stream)
    rows = [engine.step() for _ in range(9)]
    come = stream.arrivals(engine.problem.data, 0)
    last = {client: start for row in rows for client, start, _, _ in row["jobs"]}
    last |= {job.client: job.started for *_, job in engine.flight}
    fetched = sum(int(come.held(np.array([client]), when)[0]) for client, when in last.items())
    assert sum(row["prequential"]["rows"] for row in rows) == fetched
    assert 40 < fetched < 90


def test_a_streaming_run_that_was_stopped_and_resumed_ends_in_the_same_bits(tmp_path: Path) -> None:
    problem = make_problem("mlp", sizes=[20] * 5)
    how: dict[str, Any] = {
        "rounds": 8,
        "schedule": Schedule("async", concurrency=3),
        "select": 3,
        "fleet": Fleet(delay_up=SLOW, period=400.0, away=0.2),
        "stream": Stream(start=0.1, rate="0.02"),
        "executor": "serial",
    }
    whole = fedloom.train(problem, fedloom.Scaffold(batch=4), out=tmp_path / "whole", **how)

    def interrupt(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        fedloom.train(problem, fedloom.Scaffold(batch=4), out=tmp_path / "cut", progress=interrupt, **how)
    resumed = fedloom.train(problem, fedloom.Scaffold(batch=4), out=tmp_path / "cut", resume=True, **how)
    assert resumed.summary["theta_sha256"] == whole.summary["theta_sha256"]
    for row, other in zip(resumed.history, whole.history, strict=True):
        assert {**row, "wall_seconds": 0} == {**other, "wall_seconds": 0}


def test_central_and_local_run_on_the_same_stream_and_clock() -> None:
    problem = make_problem("mlp", sizes=[20] * 5)
    stream, fleet = Stream(start=0.1, duration="300"), Fleet(delay_up=SLOW)
    for method in (fedloom.Central(batch=4), fedloom.Local(batch=4)):
        done = fedloom.train(
            problem, method, rounds=12, schedule=Schedule("async"), fleet=fleet, stream=stream, executor="serial"
        )
        come = [row["arrived"] for row in done.history]
        assert come[0] == 10
        assert come == sorted(come)
        assert come[-1] == 100
