from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

import kinds
from fedloom.channel import Quantise
from fedloom.engine.evaluation import Evaluation
from fedloom.engine.fleet import Fleet
from fedloom.engine.rounds import Rounds
from fedloom.engine.selection import Uniform
from fedloom.errors import ClientError, ConfigError, RunError
from fedloom.execution import Auto, Executor, Processes, Serial, executor_for
from fedloom.execution.executor import one_thread
from fedloom.execution.work import Turn
from fedloom.federation.model import Model
from fedloom.federation.problem import Problem
from fedloom.methods import Central, FedAvg, FedPer, FedSGD, Local
from fedloom.methods.method import Method
from problems import Marks, Tally, Troubled, make_problem, start

FLEET = Fleet(loss=0.2, stragglers=0.5)


@pytest.fixture
def workers() -> Iterator[Processes]:
    executor = Processes(2)
    yield executor
    executor.close()


def everything(problem: Problem, method: Method, executor: Executor, rounds: int = 3, **how: Any) -> dict[str, Any]:
    """All that a run leaves: state, memory, clocks, verdicts, measures."""
    evaluations = [Evaluation(model=model, on="source") for model in ("global", "personal", "adapted")]
    try:
        engine = start(problem, method, executor=executor, evaluations=evaluations, **{"fleet": FLEET, **how})
        rows = [engine.step() for _ in range(rounds)]
        verdicts = [engine.evaluator.evaluate(evaluation).values for evaluation in engine.evaluator.evaluations]
        memory = {client: engine.store.get(client) for client in engine.store.clients().tolist()}
        measures = engine.evaluator.measures()
    finally:
        executor.close()
    for row in rows:
        row.pop("wall_seconds")
    return {"state": engine.state, "memory": memory, "rows": rows, "verdicts": verdicts, "measures": measures}


def assert_same_bits(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
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


CASES: dict[str, tuple[dict[str, Any], Method, dict[str, Any]]] = {
    "linear": ({"model": "linear"}, FedAvg(batch=4, epochs=2), {"select": Uniform(4), "stack": 2}),
    "mlp": ({"model": "mlp"}, FedAvg(batch=4, optimiser="adam"), {"transforms": (Quantise(4),), "stack": 1}),
    "lenet": ({"model": "lenet"}, FedAvg(batch=4), {}),
    "dropout": ({"model": "problems:dropping"}, FedSGD(), {}),
    "own models": ({"model": "mlp"}, Local(batch=4), {"stack": 2, "select": Uniform(3)}),
    "personal layers": ({"model": "mlp"}, FedPer(batch=4), {"stack": 2, "select": Uniform(3)}),
    "pool": ({"model": "mlp"}, Central(batch=4), {}),
    "memory and own messages": ({"model": "linear"}, Tally(), {"stack": 1}),
    "memory of rows": ({"model": "linear"}, Marks(), {"stack": 2}),
}


@pytest.mark.parametrize("case", CASES)
def test_any_number_of_workers_gives_the_same_bits(case: str) -> None:
    how, method, setting = CASES[case]
    expected = everything(make_problem(**how), method, Serial(), **setting)
    for count in (1, 2) if case in ("linear", "mlp", "lenet") else (2,):
        assert_same_bits(everything(make_problem(**how), method, Processes(count), **setting), expected)


def test_more_workers_than_stacks_and_rounds_without_clients(workers: Processes) -> None:
    problem = make_problem("linear")
    engine = start(problem, FedAvg(), executor=workers, fleet=Fleet(unavailable=0.9), select=Uniform(1))
    other = start(problem, FedAvg(), fleet=Fleet(unavailable=0.9), select=Uniform(1))
    selected = []
    for _ in range(6):
        selected.append(engine.step()["selected"])
        other.step()
    assert 0 in selected
    assert torch.equal(engine.state["x"], other.state["x"])


def files_of(executor: Processes) -> list[Path]:
    boxes = [box.path for process in executor.crew for box in (process.shared, process.outbox, process.inbox)]
    return [Path(path) for path in boxes if path]


def running(pids: list[int]) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def test_closing_leaves_no_process_and_no_file(workers: Processes) -> None:
    engine = start(make_problem("lenet"), FedAvg(batch=4), executor=workers)
    engine.step()
    pids, files = [process.process.pid for process in workers.crew], files_of(workers)
    assert len(running(pids)) == 2
    assert len(files) >= 4  # to each worker what all are sent, and back what it found
    workers.close()
    assert running(pids) == []
    assert not any(path.exists() for path in files)
    workers.close()  # twice does no harm


def test_opening_again_ends_the_workers_of_before(workers: Processes) -> None:
    first = start(make_problem("linear"), FedAvg(), executor=workers)
    first.step()
    pids = [process.process.pid for process in workers.crew]
    start(make_problem("linear"), FedAvg(), executor=workers).step()
    assert running(pids) == []


@pytest.mark.parametrize("when", ["at work", "between rounds"])
def test_a_killed_worker_is_an_error_with_a_remedy_and_nothing_is_left(when: str, workers: Processes) -> None:
    method = Troubled(trouble="die") if when == "at work" else FedAvg()
    engine = start(make_problem("linear"), method, executor=workers, stack=1)
    engine.step()
    pids, files = [process.process.pid for process in workers.crew], files_of(workers)
    if when == "between rounds":
        os.kill(pids[0], signal.SIGKILL)
    with pytest.raises(RunError, match=r"a worker process ended by signal 9; if memory ran out, use fewer --workers"):
        engine.step()
    assert running(pids) == []
    assert not any(path.exists() for path in files)
    with pytest.raises(RunError, match="worker processes were ended"):
        engine.step()


@pytest.mark.parametrize(
    ("trouble", "complaint"),
    [
        ("raise", r"client 2 failed in round 2: ZeroDivisionError: the sensor is broken"),
        ("step", r"client 2 failed in round 2, local step 3: FloatingPointError: the third step went wrong"),
        ("nan", r"the reply of client 2 in round 2 is not finite"),
    ],
)
def test_a_client_that_fails_in_a_worker_is_named(trouble: str, complaint: str, workers: Processes) -> None:
    engine = start(make_problem("linear"), Troubled(trouble=trouble), executor=workers, stack=3)
    engine.step()
    with pytest.raises(ClientError, match=complaint) as caught:
        engine.step()
    if trouble != "nan":
        assert "In the worker process" in caught.value.__notes__[0]
        assert "problems.py" in caught.value.__notes__[0]


def test_or_the_run_goes_on_without_it(workers: Processes) -> None:
    ends = [
        start(make_problem("linear"), Troubled(), executor=executor, on_error="drop", stack=3)
        for executor in (workers, Serial())
    ]
    rows = [[engine.step() for _ in range(3)] for engine in ends]
    assert [row["failed"] for row in rows[0]] == [0, 1, 0]
    assert torch.equal(ends[0].state["x"], ends[1].state["x"])


def test_an_abandoned_round_is_not_taken_for_the_next(workers: Processes) -> None:
    engine = start(make_problem("linear"), FedAvg(), executor=workers, stack=1)
    works = [Turn(engine.candidates[[i]], round=0, turn=0) for i in range(5)]
    results = workers.map({"x": engine.state["x"]}, works)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert workers.crew == []


def test_the_data_set_lies_in_memory_that_all_share(workers: Processes) -> None:
    problem = make_problem("linear")
    before = problem.x.clone()
    start(problem, FedAvg(), executor=workers).step()
    assert problem.x.is_shared()
    assert problem.data.splits["train"].offsets.is_shared()
    assert torch.equal(problem.x, before)


def unsendable() -> Problem:
    problem = make_problem("linear")
    return Problem(problem.data, Model(lambda: nn.Linear(6, 3)))


def test_a_model_that_cannot_be_sent_is_refused_with_the_remedy(workers: Processes) -> None:
    with pytest.raises(ConfigError, match=r"cannot be sent to worker processes.*use the executor 'serial'"):
        start(unsendable(), FedAvg(), executor=workers)
    assert workers.crew == []


def too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 0))


def test_too_little_shared_memory_is_said_before_any_work(workers: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    too_small(monkeypatch)
    with pytest.raises(RunError, match=r"needs 0 MiB of shared memory .*use the executor 'serial', or enlarge it"):
        start(make_problem("linear"), FedAvg(), executor=workers)


# ------------------------------------------------------------------------------------------------ the other executors


def pace(engine: Rounds, rounds: int) -> list[str]:
    names = []
    for _ in range(rounds):
        engine.step()
        names.append(engine.executor.name)
    return names


def test_auto_moves_to_workers_when_that_pays_and_the_bits_stay_the_same() -> None:
    problem = make_problem("lenet")
    eager = Auto(10, 2, start_seconds=0, task_seconds=0)
    try:
        engine = start(problem, FedAvg(batch=4), executor=eager)
        assert pace(engine, 3) == ["processes"] * 3  # it moves at the end of the first round
        assert isinstance(eager.inner, Processes)
    finally:
        eager.close()
    other = start(make_problem("lenet"), FedAvg(batch=4))
    pace(other, 3)
    assert torch.equal(engine.state["x"], other.state["x"])


def test_auto_stays_here_when_it_does_not_pay_or_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = Auto(10, 2, start_seconds=1e9)
    assert pace(start(make_problem("linear"), FedAvg(), executor=lazy), 2) == ["serial"] * 2
    alone = Auto(10, 1, start_seconds=0, task_seconds=0)
    assert pace(start(make_problem("linear"), FedAvg(), executor=alone, stack=1), 2) == ["serial"] * 2
    bound = Auto(10, 2, start_seconds=0, task_seconds=0)
    assert pace(start(unsendable(), FedAvg(), executor=bound, stack=1), 2) == ["serial"] * 2
    too_small(monkeypatch)
    cramped = Auto(10, 2, start_seconds=0, task_seconds=0)
    assert pace(start(make_problem("linear"), FedAvg(), executor=cramped, stack=1), 2) == ["serial"] * 2


def test_executors_have_names() -> None:
    assert isinstance(executor_for("serial", 1), Serial)
    assert isinstance(executor_for("auto", 1), Auto)
    chosen = executor_for("processes", 1, 3)
    assert isinstance(chosen, Processes)
    assert chosen.workers == 3
    with pytest.raises(ConfigError, match="no executor 'threads'; choose one of auto, serial, processes, ray"):
        executor_for("threads", 1)


def test_one_thread_for_the_time_being() -> None:
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("kind", kinds.METHODS)
def test_a_wrapper_and_nodes_without_a_server_end_in_the_same_bits(
    workers: Processes, tmp_path: Path, kind: str
) -> None:
    path = kinds.written(tmp_path, kind)
    assert kinds.ending(kinds.run(path, kind, workers)) == kinds.ending(kinds.run(path, kind, "serial"))
