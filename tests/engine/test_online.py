"""Runs on data that keep arriving: who holds what when, what the server knows, and models judged on new rows first."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import fedloom
from fedloom.channel import Channel
from fedloom.engine.evaluation import Evaluation
from fedloom.engine.fleet import FLEETS, Distribution, Fleet
from fedloom.engine.online import Online, Prequential
from fedloom.engine.rounds import Rounds
from fedloom.engine.selection import BySize, Uniform
from fedloom.errors import ConfigError, RunError
from fedloom.execution import Processes, Worker
from fedloom.execution.work import Memories, Test, Tested, Turn
from fedloom.federation.client import Client
from fedloom.federation.data import SOURCE, TARGET
from fedloom.federation.metrics import METRICS
from fedloom.federation.problem import Problem
from fedloom.federation.replies import Replies
from fedloom.federation.streams import Stream
from fedloom.methods import ADMM, Central, FedAvg, FedMetaMAML, FedSGD, Local, Scaffold
from fedloom.methods.method import Context, Method, ServerMethod
from fedloom.types import Memory, Message, State, Vector
from problems import SIZES, Marks, Shaky, Tally, make_data, make_problem, run, start

F64 = torch.float64
SECOND = Fleet(delay_up=Distribution("constant", 1.0))
"""A round takes a second."""
AT_ONCE = Stream(start=0.3, duration=0)
"""Everything is there at time 0."""


@dataclass(frozen=True)
class Witness(ServerMethod):
    """Learns nothing, and keeps what the server saw of the clients' sizes."""

    reduce = "each"

    def server_init(self, ctx: Context) -> State:
        return {"x": ctx.theta0, "known": ctx.sizes}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {"x": state["x"]}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        client.grad(received["x"])
        return {"n": client.n[..., 0].double()}, memory

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        told = ctx.sizes[replies.clients]
        return {"x": state["x"], "known": ctx.sizes, "who": replies.clients, "n": told, "said": replies.each("n")}


@dataclass(frozen=True)
class Diary(ServerMethod):
    """Per-row memory: every row that is held when its client is asked gets a mark, and its number is written down."""

    per_row: ClassVar[tuple[str, ...]] = ("marks", "row")

    def server_init(self, ctx: Context) -> State:
        return {"x": ctx.theta0}

    def client_init(self, client: Client, received: Message) -> Memory:
        empty = torch.zeros_like(client.rows().weight).double()
        return {"marks": empty, "row": empty, "asked": torch.zeros_like(client.n[..., 0])}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {"x": state["x"]}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        held = (client.rows().weight > 0).double()
        row = client.rows().x[..., 0].double() * held
        changed = (memory["row"] != 0) & (memory["row"] != row)
        assert not bool(changed.any()), "the memory of a row is beside another row"
        return {"one": client.n[..., 0]}, {"marks": memory["marks"] + held, "row": row, "asked": memory["asked"] + 1}

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return state


# ------------------------------------------------------------------------------------------------ bookkeeping


def online(sizes: Sequence[int], stream: Stream, storage: int | None = None) -> Online:
    return Online(stream.arrivals(make_data(sizes=sizes), 0), storage)


def pairs(window: tuple[Any, Any]) -> list[tuple[int, int]]:
    return list(zip(window[0].tolist(), window[1].tolist(), strict=True))


def test_windows_and_what_is_new_in_them_by_hand() -> None:
    book, ids = online((10, 4), Stream(start=0.2, rate=1)), np.arange(2)
    assert pairs(book.windows(ids, 0)) == [(0, 2), (0, 1)]
    assert pairs(book.fresh(ids, book.windows(ids, 0))) == [(0, 2), (0, 1)]
    book.taken(ids, book.fresh(ids, book.windows(ids, 0)), np.array([2, 0]))  # the second client failed
    assert pairs(book.windows(ids, 2.5)) == [(0, 4), (0, 3)]
    assert pairs(book.fresh(ids, book.windows(ids, 2.5))) == [(2, 2), (0, 3)]
    book.taken(ids, book.fresh(ids, book.windows(ids, 2.5)), np.array([2, 3]))
    assert pairs(book.fresh(ids, book.windows(ids, 2.9))) == [(4, 0), (3, 0)]
    assert [book.arrived(ids, t) for t in (0, 2.5, 3, 100)] == [3, 7, 9, 14]


def test_a_small_store_holds_the_newest_rows() -> None:
    book, ids = online((10,), Stream(start=0.2, rate=1), storage=3), np.arange(1)
    assert [pairs(book.windows(ids, t))[0] for t in (0, 1, 2, 5, 100)] == [(0, 2), (0, 3), (1, 3), (4, 3), (7, 3)]
    book.taken(ids, book.fresh(ids, book.windows(ids, 1)), np.array([3]))
    assert pairs(book.fresh(ids, book.windows(ids, 2))) == [(3, 1)]
    assert pairs(book.fresh(ids, book.windows(ids, 6))) == [(5, 3)]  # two rows came and went and were never judged
    book.keep(ids, book.windows(ids, 2))
    assert book.moved(ids, book.windows(ids, 6)).tolist() == [4]


def test_the_server_knows_what_it_was_told() -> None:
    book, ids = online((10, 4, 5), Stream(start=0.2, rate=1)), np.arange(3)
    assert book.sizes.tolist() == [2, 1, 1]
    before = book.sizes
    book.tell(ids[:1], book.windows(ids[:1], 3)[1])
    assert book.sizes.tolist() == [5, 1, 1]
    assert before.tolist() == [2, 1, 1]
    assert online((10, 4), Stream(start=0.5, rate=1), storage=3).sizes.tolist() == [3, 2]
    late = online((3, 4), Stream(start=0, rate="uniform:0.1:0.5"))
    opens = late.arrivals.first(np.arange(2)).min()
    assert opens > 0
    present = late.present(np.arange(2), opens)
    assert len(present) == 1
    late.meet(present, opens)
    assert late.sizes.sum() == late.sizes[present[0]] == 1


def test_a_snapshot_brings_everything_back() -> None:
    ids = np.arange(2)

    def book() -> Online:
        return online((10, 4), Stream(start=0.2, rate=1), storage=3)

    one, other = book(), book()
    one.taken(ids, one.fresh(ids, one.windows(ids, 4)), one.fresh(ids, one.windows(ids, 4))[1])
    one.tell(ids, one.windows(ids, 4)[1])
    one.keep(ids, one.windows(ids, 4))
    other.restore(one.snapshot())
    assert {key: value.tolist() for key, value in one.snapshot().items()} == {
        "told": [3, 3],
        "judged": [6, 4],
        "kept": [3, 1],
    }
    assert pairs(other.fresh(ids, other.windows(ids, 6))) == pairs(one.fresh(ids, one.windows(ids, 6)))
    assert torch.equal(other.sizes, one.sizes)


def test_prequential_figures_are_those_of_all_rows_together_whoever_came_first() -> None:
    problem = make_problem("linear", outputs=2)
    metrics = [METRICS["accuracy"], METRICS["recall"]]
    out = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 1.0], [3.0, 0.0], [1.0, 0.0]])  # says 0, 1, 1, 0, 0
    y = torch.tensor([0, 1, 0, 1, 1])
    parts = [
        (np.array([4, 7]), (np.array([0, 3]), np.array([2, 1])), slice(0, 3), [2, 1]),
        (np.array([5, 4]), (np.array([9, 2]), np.array([1, 1])), slice(3, 5), [1, 1]),
    ]
    found = []
    for order in (parts, parts[::-1]):
        tested = Prequential(problem, metrics)
        for clients, fresh, rows, counts in order:
            tested.add(clients, fresh, Tested(torch.tensor(counts), out[rows], y[rows]))
        found.append(tested.summary())
    assert found[0] == found[1]
    assert found[0]["rows"] == 5
    assert found[0]["accuracy"] == pytest.approx(2 / 5)
    assert found[0]["recall"] == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert found[0]["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(out, y)), rel=1e-6)
    assert Prequential(problem, metrics).summary() == {"rows": 0}


# ------------------------------------------------------------------------------------------------ rounds


def everything(engine: Rounds, rounds: int) -> dict[str, Any]:
    rows = [engine.step() for _ in range(rounds)]
    memory = {i: engine.store.get(i) for i in engine.store.clients().tolist()}
    verdicts = [engine.evaluator.evaluate(e).values for e in engine.evaluator.evaluations]
    for row in rows:
        for key in ("wall_seconds", "arrived", "prequential"):
            row.pop(key, None)
    return {
        "rows": rows,
        "state": engine.state,
        "memory": memory,
        "verdicts": verdicts,
        "measures": engine.evaluator.measures(),
    }


def assert_same_bits(a: Any, b: Any) -> None:
    if isinstance(a, Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same_bits(a[key], b[key])
    elif isinstance(a, list):
        for one, other in zip(a, b, strict=True):
            assert_same_bits(one, other)
    else:
        assert a == b


EVALUATIONS = [
    Evaluation(name=name, model=model, split=split)
    for name, model, split in (("a", "global", "test"), ("b", "personal", "train"), ("c", "adapted", "query"))
]


@pytest.mark.parametrize(
    ("model", "method"),
    [
        ("mlp", FedAvg(batch=4, epochs=2)),
        ("mlp", Local(batch=4)),
        ("mlp", Central(batch=4)),
        ("mlp", Scaffold(batch=4)),
        ("mlp", FedMetaMAML()),
        ("lenet", FedAvg(batch=4)),
        ("problems:dropping", FedAvg(batch=4)),
        ("linear", ADMM()),
        ("linear", Tally()),
        ("linear", Marks()),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_stream_that_brings_everything_at_once_changes_no_bit(model: str, method: Method) -> None:
    problem = make_problem(model, sizes=(7, 3, 12, 5, 2))
    how: dict[str, Any] = {"evaluations": EVALUATIONS, "fleet": Fleet(loss=0.2, stragglers=0.5), "select": Uniform(4)}
    plain, streamed = (
        everything(start(problem, method, stack=2, stream=stream, **how), 4) for stream in (None, AT_ONCE)
    )
    assert_same_bits(plain, streamed)


@pytest.mark.parametrize(
    "method", [FedAvg(batch=4), Local(batch=4), Central(batch=4), Diary()], ids=lambda m: type(m).__name__
)
@pytest.mark.parametrize("storage", [None, 3])
def test_a_stream_gives_the_same_bits_in_worker_processes(method: Method, storage: int | None) -> None:
    stream = Stream(start=0.2, rate="uniform:0.5:2", process="poisson", order="shuffled", drift=0.5)
    fleet = replace(SECOND, loss=0.2, storage=storage)
    found = []
    for executor in (None, Processes(2)):
        engine = start(make_problem("mlp"), method, stream=stream, fleet=fleet, stack=2, executor=executor)
        try:
            rows = [engine.step() for _ in range(5)]
            verdict = engine.evaluator.evaluate(Evaluation(model="personal", split="train"))
        finally:
            engine.executor.close()
        for row in rows:
            row.pop("wall_seconds")
        memory = {i: engine.store.get(i) for i in engine.store.clients().tolist()}
        found.append({"rows": rows, "state": engine.state, "memory": memory, "verdict": verdict.values})
    assert_same_bits(found[0], found[1])


def test_clients_train_on_what_has_come_and_the_server_is_told_so() -> None:
    problem = make_problem("linear", sizes=(10, 4))
    engine = start(problem, Witness(), stream=Stream(start=0.2, rate=1), fleet=SECOND)
    assert engine.state["known"].tolist() == [2, 1]
    evaluations = 0
    for n in ([2, 1], [3, 2], [4, 3], [5, 4], [6, 4]):
        row = engine.step()
        assert engine.state["n"].tolist() == engine.state["said"].tolist() == engine.state["known"].tolist() == n
        evaluations += sum(n)
        assert row["gradient_evaluations"] == evaluations
    assert row["arrived"] == 7 + 4  # five seconds have passed


def test_those_whose_reply_was_lost_are_known_by_their_last_one() -> None:
    engine = start(
        make_problem("linear", sizes=(30,) * 6),
        Witness(),
        stream=Stream(start=0.1, rate=1),
        fleet=replace(SECOND, loss=0.5),
    )
    known = [3] * 6
    for t in range(8):
        engine.step()
        for client in engine.state["who"].tolist():
            known[client] = 3 + t
        assert engine.state["known"].tolist() == known
        assert engine.state["n"].tolist() == [3 + t] * len(engine.state["who"])


def test_clients_without_rows_are_not_selected_and_the_clock_waits_for_the_first_row() -> None:
    problem = make_problem("linear", sizes=(5, 5, 5))
    stream = Stream(start=0, rate="uniform:0.05:0.2")
    engine = start(problem, Witness(), stream=stream, fleet=SECOND)
    first = stream.arrivals(problem.data, 0).first(np.arange(3))
    assert engine.step()["simulated_seconds"] == first.min() + 1
    assert engine.state["who"].tolist() == [int(first.argmin())]
    for _ in range(25):
        before = engine.now
        row = engine.step()
        assert row["selected"] == (first <= before).sum()
        assert engine.state["known"].count_nonzero() == (first <= before).sum()
    assert row["selected"] == 3


@pytest.mark.parametrize("select", [Uniform(2), BySize(2)])
def test_whoever_gets_rows_later_takes_part_later(select: Any) -> None:
    problem = make_problem("linear", sizes=(40,) * 5)
    engine = start(problem, Witness(), stream=Stream(start=0, rate="uniform:0.05:5"), fleet=SECOND, select=select)
    seen = set()
    for _ in range(300):  # who was last known to have one row is rarely drawn by size
        engine.step()
        seen |= set(engine.state["who"].tolist())
    assert seen == set(range(5))


def test_fedsgd_on_a_stream_is_gradient_descent_on_what_there_is() -> None:
    problem = make_problem("mlp", dtype=F64, sizes=(9, 6))
    engine = run(problem, FedSGD(lr=0.3), 8, stream=Stream(start=0.4, duration=5), fleet=SECOND)
    theta = engine.theta0
    for t in range(8):
        rows = [problem.data.splits["train"][i][:n] for i, n in enumerate(counts(t))]
        both = torch.cat(rows)
        theta = theta.detach().requires_grad_()
        loss = torch.nn.functional.cross_entropy(problem.model(theta, problem.x[both]), problem.y[both])
        theta = theta.detach() - 0.3 * torch.autograd.grad(loss, theta)[0]
    torch.testing.assert_close(engine.state["x"], theta, rtol=0, atol=1e-12)


def counts(t: int) -> tuple[int, int]:
    """Of 9 rows 4 at once and one a second for 5 seconds; of 6 rows 2 at once and one every 1.25 seconds."""
    return min(9, 4 + t), min(6, 2 + int(t / 1.25))


def test_central_on_a_stream_sees_only_what_has_come() -> None:
    problem = make_problem("mlp", dtype=F64, sizes=(9, 5, 6), roles=(SOURCE, TARGET, SOURCE))
    stream = Stream(start=0.4, duration=5)
    engine = run(problem, Central(lr=0.3, batch=None, steps=1), 8, stream=stream, fleet=replace(SECOND, storage=3))
    theta, seen = engine.theta0, 0
    for t in range(8):
        rows = torch.cat([problem.data.splits["train"][i][:n] for i, n in zip((0, 2), counts(t), strict=True)])
        seen += len(rows)
        theta = theta.detach().requires_grad_()
        loss = torch.nn.functional.cross_entropy(problem.model(theta, problem.x[rows]), problem.y[rows])
        theta = theta.detach() - 0.3 * torch.autograd.grad(loss, theta)[0]
    torch.testing.assert_close(engine.state["x"], theta, rtol=0, atol=1e-12)
    assert engine.clocks.gradient_evaluations == seen


# ------------------------------------------------------------------------------------------------ memory of rows


def numbered(sizes: Sequence[int]) -> Problem:
    """Each client's training rows say in their first column which one of the client's they are: 1, 2, …"""
    data = make_data(sizes=sizes)
    x = data.x.clone()
    for client, n in enumerate(sizes):
        x[data.splits["train"][client], 0] = torch.arange(1.0, n + 1)
    problem = make_problem("linear", sizes=sizes)
    return problem.on(replace(data, x=x))


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("storage", [None, 3])
def test_the_memory_of_a_row_stays_with_it_and_new_rows_start_at_zero(stack: int, storage: int | None) -> None:
    fleet = replace(SECOND, storage=storage, loss=0.3)
    engine = start(
        numbered((8, 5, 3)), Diary(), stream=Stream(start=0.3, rate=1), fleet=fleet, stack=stack, select=Uniform(2)
    )
    starts = (2, 2, 1)
    asked: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for t in range(12):
        engine.step()
        for client in range(3):
            memory = engine.store.get(client)
            if memory is None or int(memory["asked"]) == len(asked[client]):
                continue
            asked[client].append(min((8, 5, 3)[client], starts[client] + t))  # rows that had come when it was asked
            come = asked[client][-1]
            first = 0 if storage is None else max(0, come - storage)
            assert memory["row"].tolist() == list(range(first + 1, come + 1))
            visits = [
                sum(n > row and (storage is None or row >= n - storage) for n in asked[client])
                for row in range(first, come)
            ]
            assert memory["marks"].tolist() == visits
    assert all(len(times) > 3 for times in asked.values())


# ------------------------------------------------------------------------------------------------ judged first


def accuracy(problem: Problem, theta: Vector, rows: Tensor) -> float:
    return float((problem.model(theta, problem.x[rows]).argmax(-1) == problem.y[rows]).double().mean())


def test_every_row_is_evaluated_once_by_the_model_that_was_there_when_it_came() -> None:
    problem = make_problem("mlp", sizes=(20, 12))
    engine = start(problem, FedAvg(lr=0.5, batch=None), stream=Stream(start=0.25, rate=2), fleet=SECOND)
    judged = 0
    for t in range(10):
        theta = engine.state["x"].clone()
        new = [(0, 5), (0, 3)] if t == 0 else [(3 + 2 * t, 5 + 2 * t), (1 + 2 * t, 3 + 2 * t)]
        rows = torch.cat([problem.data.splits["train"][i][a:b] for i, (a, b) in enumerate(new)])
        row = engine.step()
        judged += len(rows)
        assert row["prequential"]["rows"] == len(rows)
        if len(rows):
            assert row["prequential"]["accuracy"] == pytest.approx(accuracy(problem, theta, rows))
            loss = problem.loss.rows(problem.model(theta, problem.x[rows])[None], problem.y[rows][None]).mean()
            assert row["prequential"]["loss"] == pytest.approx(float(loss), rel=1e-6)
    assert judged == 32
    assert row["prequential"] == {"rows": 0}


def test_a_model_of_ones_own_is_judged_before_it_is_trained() -> None:
    problem = make_problem("mlp", sizes=(20, 12), dtype=F64)
    engine = start(problem, Local(lr=0.5, batch=None), stream=Stream(start=0.25, rate=2), fleet=SECOND)
    for t in range(6):
        hits, rows = 0.0, 0
        for i, (a, b) in enumerate([(0, 5), (0, 3)] if t == 0 else [(3 + 2 * t, 5 + 2 * t), (1 + 2 * t, 3 + 2 * t)]):
            memory = engine.store.get(i)
            new = problem.data.splits["train"][i][a:b]
            if len(new):
                hits += accuracy(problem, engine.theta0 if memory is None else memory["x"], new) * len(new)
                rows += len(new)
        found = engine.step()["prequential"]
        assert (found["rows"], found["accuracy"]) == (rows, pytest.approx(hits / rows))


@pytest.mark.parametrize("broken", [False, True])
def test_each_client_of_a_stack_may_be_judged_by_a_model_of_its_own(broken: bool) -> None:
    problem = make_problem("mlp", sizes=(6, 5, 4))
    worker = Worker(problem, Shaky(), Channel(), 0)
    thetas = torch.randn(3, problem.model.n, generator=torch.Generator().manual_seed(0))
    window, fresh = (np.zeros(3, dtype=np.int64), np.array([6, 4, 3])), (np.array([4, 4, 0]), np.array([2, 0, 3]))
    work = Turn(
        np.arange(3),
        round=int(broken),
        turn=int(broken),
        own={"secret": torch.zeros(3)},
        memory=Memories(torch.zeros(3, dtype=torch.bool), moved=np.zeros(3, dtype=np.int64)),
        window=window,
        test=Test(fresh, thetas),
        drop=True,
    )
    found = worker.turn({"x": thetas[0]}, work).tested
    assert found is not None
    counts = [2, 0, 0] if broken else [2, 0, 3]  # in that round client 2 breaks down, and is judged on nothing
    assert found.counts.tolist() == counts
    rows = [problem.data.splits["train"][i][a : a + n] for i, (a, n) in enumerate(zip(fresh[0], counts, strict=True))]
    expected = [problem.model(thetas[i], problem.x[own]) for i, own in enumerate(rows) if len(own)]
    torch.testing.assert_close(found.out, torch.cat(expected))
    assert torch.equal(found.y, problem.y[torch.cat(rows)])


def test_prequential_uses_the_metrics_of_the_first_evaluation() -> None:
    problem = make_problem("linear", task="regression", outputs=2)
    evaluations = [Evaluation(metrics=("rmse", "smape")), Evaluation(name="other", metrics=("mae",))]
    row = start(problem, FedAvg(), stream=AT_ONCE, evaluations=evaluations).step()
    assert set(row["prequential"]) == {"rows", "rmse", "smape", "loss"}


@pytest.mark.parametrize("stack", [1, 2, 5])
def test_rows_of_a_client_that_failed_are_judged_when_it_works_again(stack: int) -> None:
    problem = make_problem("linear", sizes=(9,) * 5)
    stream = Stream(start=1 / 3, rate=1)
    engine = start(problem, Shaky(), stream=stream, fleet=SECOND, stack=stack, on_error="drop")
    found = [engine.step()["prequential"]["rows"] for _ in range(4)]
    assert found == [15, 4, 4 + 2, 4]  # client 2 fails in every other round


def test_a_drift_is_seen_in_the_models_evaluated_on_new_rows() -> None:
    data = fedloom.federate("digits", clients=5, partition="iid")
    problem = Problem(data, fedloom.build_model("linear", data))
    fleet = Fleet(delay_up=Distribution("constant", 10.0))
    stream = Stream(start=0.2, duration=200, drift=0.6)
    done = fedloom.train(problem, FedAvg(epochs=10), rounds=21, stream=stream, fleet=fleet, executor="serial")
    before, after = (done.history[t]["prequential"]["accuracy"] for t in (11, 12))  # 0.2 + 0.8·100/200 = 0.6
    assert before > 0.9
    assert after < 0.1
    frame = done.frame()
    assert frame["prequential.accuracy"].tolist()[11:13] == [before, after]
    assert frame["arrived"].tolist()[0] == sum(round(0.2 * n) for n in data.splits["train"].sizes.tolist())
    assert frame["arrived"].iloc[-1] == int(data.splits["train"].sizes.sum())


# ------------------------------------------------------------------------------------------------ evaluation, measures


def test_evaluation_of_test_rows_has_all_of_them_and_of_training_rows_those_that_have_come() -> None:
    problem = make_problem("mlp", sizes=(10, 4, 6))
    engine = start(problem, FedAvg(), stream=Stream(start=0, rate="uniform:0.1:1"), fleet=SECOND)
    for split, now in (("test", 0.0), ("train", 0.0), ("train", 4.0), ("query", 4.0), ("train", 1e3)):
        engine.clocks.simulated_seconds = now
        verdict = engine.evaluator.evaluate(Evaluation(split=split))
        assert engine.online is not None
        window = engine.online.windows(np.arange(3), now)
        assert verdict.rows.tolist() == problem.data.span(split, np.arange(3), window).sizes.tolist()
        summary = verdict.summary()
        assert summary["loss"]["clients"] == int((verdict.rows > 0).sum())
        if verdict.rows.sum():
            rows = problem.data.span(split, np.arange(3), window).rows()
            loss = problem.loss.rows(problem.model(engine.theta0, problem.x[rows])[None], problem.y[rows][None]).mean()
            assert summary["loss"]["weighted"] == pytest.approx(float(loss), rel=1e-6)


def test_measures_and_gradients_are_of_those_who_have_rows() -> None:
    engine = start(
        make_problem("linear", sizes=(10, 4, 6)), Tally(), stream=Stream(start=0, rate="uniform:0.1:1"), fleet=SECOND
    )
    assert engine.evaluator.measures() == {}
    assert engine.evaluator.gradients() == {}
    engine.clocks.simulated_seconds = 1e3
    assert engine.evaluator.measures()["thirds"] == pytest.approx(20 / 3)
    whole = start(make_problem("linear", sizes=(10, 4, 6)), Tally())
    assert engine.evaluator.gradients() == whole.evaluator.gradients()


# ------------------------------------------------------------------------------------------------ whole runs

STREAM = Stream(start="uniform:0.1:0.4", rate="uniform:2:9", process="poisson", order="shuffled", drift=0.7)


def streamed(out: Path | None, **options: Any) -> fedloom.Run:
    """A run in which much can go wrong when it is not brought back: memory, clocks, what was judged and told."""
    data = fedloom.federate("digits", clients=10, partition="dirichlet", alpha=0.5, seed=3)
    problem = Problem(data, fedloom.build_model("mlp", data, hidden=[8]))
    settings = {"rounds": 10, "seed": 5, "select": BySize(4), "executor": "serial", "checkpoint_every": 1}
    fleet = replace(FLEETS["cross-device"], storage=40)
    return fedloom.train(problem, Scaffold(), out=out, stream=STREAM, fleet=fleet, **settings | options)


CHILD = """
import sys
sys.path[:0] = {folders!r}
from test_online import streamed
streamed({out!r}, progress=lambda row, rounds: print(row["round"], flush=True))
"""


@pytest.mark.parametrize("killed_after", [0, 4])
def test_a_stream_killed_and_resumed_ends_in_the_same_bits(tmp_path: Path, killed_after: int) -> None:
    here = Path(__file__).parent
    code = CHILD.format(folders=[str(here), str(here.parent)], out=str(tmp_path / "run"))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert any(int(line) >= killed_after for line in child.stdout)
        child.send_signal(signal.SIGKILL)
    assert not (tmp_path / "run" / "summary.json").exists()
    resumed, whole = streamed(tmp_path / "run", resume=True), streamed(None)
    assert resumed.summary["theta_sha256"] == whole.summary["theta_sha256"]
    for one, other in zip(resumed.history, whole.history, strict=True):
        assert {**one, "wall_seconds": 0} == {**other, "wall_seconds": 0}


def test_a_run_on_a_stream_is_not_resumed_without_it(tmp_path: Path) -> None:
    streamed(tmp_path / "run", rounds=2)
    data = fedloom.federate("digits", clients=10, partition="dirichlet", alpha=0.5, seed=3)
    problem = Problem(data, fedloom.build_model("mlp", data, hidden=[8]))
    again = {"rounds": 3, "out": tmp_path / "run", "resume": True}
    with pytest.raises(RunError, match="settings: seed was 5 and is 0"):
        fedloom.train(problem, Scaffold(), **again)
    with pytest.raises(RunError, match="was begun with a stream; resume it as it was begun"):
        fedloom.train(problem, Scaffold(), **again, force_settings=True)


def test_tasks_in_sequence_may_have_streams() -> None:
    halves = [fedloom.federate("digits", clients=4, source_classes=part) for part in (range(5), range(5, 10))]
    problems = [Problem(data, fedloom.build_model("linear", data)) for data in halves]
    done = fedloom.train_tasks(problems, FedAvg(), rounds=4, stream=Stream(duration=3), fleet=SECOND, executor="serial")
    assert done.matrix is not None
    assert done.history[-1]["arrived"] == int(halves[1].splits["train"].sizes.sum())


# ------------------------------------------------------------------------------------------------ what cannot be


def test_a_clock_that_stands_still_is_refused_where_rows_are_to_come() -> None:
    problem = make_problem("linear")
    with pytest.raises(
        ConfigError, match=r"a round takes no time, so that none would ever come; give the fleet a speed"
    ):
        start(problem, FedAvg(), stream=Stream(rate=1))
    for stream in (AT_ONCE, Stream(start=0.5, rate=0), Stream(rate=1).over()):
        start(problem, FedAvg(), stream=stream)
    for fleet in (
        Fleet(speed=Distribution("constant", 9.0)),
        Fleet(bandwidth_up=Distribution("constant", 9.0)),
        Fleet(deadline=1.0, dropout=0.5),
    ):
        start(problem, FedAvg(), stream=Stream(rate=1), fleet=fleet)


def test_a_stream_that_never_delivers_is_refused_before_any_work(tmp_path: Path) -> None:
    problem = make_problem("linear", names="abcde")
    with pytest.raises(ConfigError, match=r"no row would ever come to client a \(and 4 more like it\)"):
        fedloom.train(problem, FedAvg(), rounds=1, stream=Stream(start=0, rate=0), fleet=SECOND, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_columns_of_the_same_rows_cannot_come_to_one_client_alone() -> None:
    data = fedloom.federate("digits", clients=4, partition="features")
    problem = Problem(data, fedloom.build_model("linear", data))
    with pytest.raises(ConfigError, match="hold columns of the same rows, which cannot come to one of them alone"):
        fedloom.train(problem, fedloom.SharingADMM(), rounds=1, stream=Stream(rate=1), fleet=SECOND)


def test_sizes_are_those_of_the_problem() -> None:
    assert start(make_problem("linear"), FedAvg(), stream=AT_ONCE).context(0).sizes.tolist() == list(SIZES)
