"""Ray: on a cluster of several nodes on this machine, and on clusters that runs start for themselves."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import fedloom
import kinds
import truths
from fedloom.cli import app
from fedloom.conformance import check_method
from fedloom.engine.run import train
from fedloom.errors import ClientError, ConfigError, RunError
from fedloom.execution import Executor, Ray, Worker, executor_for
from fedloom.execution.cluster import parts_of, tensor_of
from fedloom.execution.work import Turn, Work
from fedloom.methods import FedAvg
from fedloom.types import Message
from problems import Located, Troubled, make_problem, start

ray = pytest.importorskip("ray", reason="needs the extra fedloom[ray]")

NODE = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 80 << 20}
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}
QUICK |= {"prestart_worker_first_driver": False}
"""So that a dead node is found dead after seconds, and no worker is started that nobody asked for."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three raylets, one worker each; the first is where tests are at home."""
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False, "_system_config": QUICK})
    for _ in range(2):
        found.add_node(**NODE)
    yield found
    found.shutdown()


@pytest.fixture
def workers(cluster: Any) -> Iterator[Ray]:
    """One worker on the cluster, for each takes seconds to start."""
    executor = Ray(cluster.address, 1)
    yield executor
    executor.close()
    assert not ray.is_initialized()


@pytest.mark.parametrize("kind", kinds.METHODS)
def test_a_wrapper_and_nodes_without_a_server_end_in_the_same_bits(workers: Ray, tmp_path: Path, kind: str) -> None:
    path = kinds.written(tmp_path, kind)
    assert kinds.ending(kinds.run(path, kind, workers)) == kinds.ending(kinds.run(path, kind, "serial"))


@pytest.mark.parametrize("kind", ["fedavg", "nodes"])
def test_the_kit_works_on_a_cluster(cluster: Any, kind: str) -> None:
    claim = {
        "fedavg": "lost: K local steps follow their closed form",
        "nodes": "late: neighbours have what a node remembers",
    }
    outcomes = check_method(
        *kinds.on_the_bench(kind), checks=["workers", claim[kind]], executor=lambda: Ray(cluster.address, 1)
    )
    assert [outcome.passed for outcome in outcomes] == [True, True]
    assert outcomes[0].detail == "a run by the executor 'ray': the same bits"


class Meddling(Executor):
    """Does something else as soon as the first result of a call is there: one thing for each call, in order."""

    def __init__(self, inner: Ray, deeds: Sequence[Callable[[], None]]) -> None:
        self.inner, self.deeds = inner, list(deeds)
        self.name = inner.name

    def open(self, worker: Worker) -> None:
        self.inner.open(worker)

    def map(self, shared: Message, works: Sequence[Work]) -> Iterator[tuple[int, Any]]:
        deed = self.deeds.pop(0) if self.deeds else None
        for found in self.inner.map(shared, works):
            if deed is not None:
                deed()
                deed = None
            yield found

    def close(self) -> None:
        self.inner.close()


def call(*arguments: str) -> None:
    """A command, in this process and in the folder where it is now."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output


def hash_of(folder: str) -> str:
    """The fingerprint of a run's model."""
    return str(json.loads((Path(folder) / "summary.json").read_text())["theta_sha256"])


@pytest.mark.parametrize("method", truths.CASES)
def test_a_cluster_gives_the_same_bits_as_one_process(method: str, cluster: Any, tmp_path: Path) -> None:
    workers = f'ray_address = "{cluster.address}"\nworkers = {2 if method == "scaffold" else 1}'
    here, there = truths.summary(tmp_path, method), truths.summary(tmp_path, method, "ray", workers)
    assert (here["executor"], there["executor"]) == ("serial", "ray")
    assert there["theta_sha256"] == here["theta_sha256"]
    assert there["metrics"] == here["metrics"]


def test_workers_and_nodes_that_die_at_work_change_no_bit(cluster: Any) -> None:
    doomed = cluster.add_node(**NODE)
    inner = Ray(cluster.address)
    first = []

    def end_a_worker() -> None:
        first.extend(inner.crew)
        ray.kill(inner.crew[0].actor)

    def end_a_node() -> None:
        os.kill(doomed.all_processes["raylet"][0].process.pid, signal.SIGKILL)

    executor = Meddling(inner, [end_a_worker, end_a_node])
    try:
        engine = start(make_problem("lenet"), FedAvg(batch=4), executor=executor, stack=1)
        assert len(inner.crew) == 4
        other = start(make_problem("lenet"), FedAvg(batch=4), stack=1)
        for _ in range(4):
            engine.step()
            other.step()
        assert torch.equal(engine.state["x"], other.state["x"])
        assert first[0] not in inner.crew
        assert len(inner.crew) + len(inner.coming) == 4  # somebody starts in the place of each who died
    finally:
        executor.close()
        cluster.remove_node(doomed, allow_graceful=False)


def test_a_task_that_ends_its_worker_again_and_again_is_an_error_that_names_the_clients(
    workers: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedloom.execution.ray._DEATHS", 2)  # a worker takes seconds to start
    engine = start(make_problem("linear"), Troubled(trouble="die"), executor=workers, stack=3)
    engine.step()
    with pytest.raises(RunError, match=r"a worker was lost 2 times at the work of clients .*2.*can be resumed"):
        engine.step()
    with pytest.raises(RunError, match="workers on Ray were ended"):
        engine.step()


def test_a_client_that_fails_is_named_and_not_tried_again(workers: Ray) -> None:
    engine = start(make_problem("linear"), Troubled(), executor=workers, stack=3)
    engine.step()
    with pytest.raises(ClientError, match="client 2 failed in round 2: ZeroDivisionError") as caught:
        engine.step()
    assert "problems.py" in caught.value.__notes__[0]
    assert workers.crew == []
    assert not ray.is_initialized()


def test_the_data_set_is_read_in_place_and_results_may_be_written_to(workers: Ray) -> None:
    problem = make_problem("linear")
    engine = start(problem, Located(), executor=workers, stack=1)
    assert engine.evaluator.measures() == {"elsewhere": problem.data.clients}
    works = [Turn(engine.candidates[[i]], round=0, turn=0) for i in range(5)]
    found = dict(workers.map({"x": engine.state["x"]}, works))
    assert found.keys() == set(range(5))
    for result in found.values():
        result.sent["dx"].zero_()
        result.evaluations[:] = 0


def test_a_node_with_another_version_is_refused_and_a_connection_that_was_there_stays(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fedloom, "__version__", "0.0.0")
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        with pytest.raises(ConfigError, match=r"of the cluster has fedloom .*and this machine has fedloom 0\.0\.0"):
            start(make_problem("linear"), FedAvg(), executor=Ray(workers=1))
        assert ray.is_initialized()
    finally:
        ray.shutdown()


# --------------------------------------------------------------------------------------------------- before any work


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("127.0.0.1:1", r"no Ray cluster at '127\.0\.0\.1:1': .*refused.*ray start --head"),
        ("nowhere.invalid:6379", r"no Ray cluster at 'nowhere\.invalid:6379'"),
        ("nonsense", "no Ray cluster at 'nonsense'"),
        ("ray://127.0.0.1:10001", "start the run on a node of the cluster"),
    ],
)
def test_a_wrong_address_is_refused_before_any_work(address: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=complaint):
        train(make_problem("linear"), FedAvg(), rounds=1, executor="ray", ray_address=address, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_without_ray_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"needs Ray: pip install 'fedloom\[ray\]'"):
        train(make_problem("linear"), FedAvg(), rounds=1, executor="ray")


@given(
    shape=st.lists(st.integers(0, 3), max_size=3),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.bool]),
    turned=st.booleans(),
)
def test_a_tensor_comes_back_from_its_bytes(shape: list[int], dtype: torch.dtype, turned: bool) -> None:
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(dtype)
    tensor = tensor.permute(tuple(range(tensor.dim()))[::-1]) if turned else tensor
    again = tensor_of(parts_of(tensor))
    assert again.dtype == dtype
    assert torch.equal(again, tensor)


def test_an_address_goes_with_ray() -> None:
    chosen = executor_for("ray", 1, 3, "auto")
    assert isinstance(chosen, Ray)
    assert (chosen.address, chosen.workers) == ("auto", 3)
    assert executor_for("ray", 1, None, "local").address is None  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="a Ray address goes with the executor 'ray'"):
        executor_for("auto", 1, None, "auto")


# ------------------------------------------------------------------------------------------- a cluster of the run's own


FEDLOOM = (sys.executable, "-m", "fedloom.cli")
DIGITS = ("--data", "digits", "--clients", "10", "--stack", "2", "--no-report")
HELPERS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""What Ray itself lets live on for a while when everything else was killed."""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Where runs keep what is not to stay; short, for the system limits the names of sockets."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def began(folder: Path, temporary: Path, rounds: int) -> subprocess.Popen[str]:
    """A run on a cluster of its own, in a process group of its own, after its first round."""
    command = (*FEDLOOM, "run", *DIGITS, "--rounds", str(rounds), "--executor", "ray", "--workers", "2", "--out", "run")
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(temporary)}
    run = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert run.stdout is not None
    assert any(line.startswith("round ") for line in run.stdout), run.communicate()[1]
    return run


def test_ctrl_c_leaves_nothing_behind_and_the_run_can_be_resumed_without_the_cluster(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with began(tmp_path, temporary, 150) as run:
        theirs = psutil.Process(run.pid).children(recursive=True)
        names = [process.name() for process in theirs]
        assert "raylet" in names
        assert len(list(temporary.iterdir())) == 1
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does
        _, said = run.communicate()
    assert run.returncode == 130, said
    assert "fedloom resume run" in said
    assert "Traceback" not in said
    _, alive = psutil.wait_procs(theirs, timeout=10)
    assert alive == []
    assert list(temporary.iterdir()) == []
    monkeypatch.chdir(tmp_path)
    call("resume", "run", "--executor", "serial", "--no-report")
    call("run", *DIGITS, "--rounds", "150", "--executor", "serial", "--out", "whole")
    assert hash_of("run") == hash_of("whole")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux lets processes die with their parent")
@pytest.mark.parametrize("victim", ["the run", "the cluster"])
def test_a_run_and_its_cluster_end_together(victim: str, tmp_path: Path, temporary: Path) -> None:
    with began(tmp_path, temporary, 100_000) as run:
        theirs = psutil.Process(run.pid).children(recursive=True)
        most = [process for process in theirs if process.cmdline()[:1] not in [[name] for name in HELPERS]]
        assert len(most) >= 4  # the head, the raylet and two workers
        if victim == "the run":
            run.kill()
        else:
            next(process for process in theirs if process.name() == "raylet").kill()
        _, said = run.communicate()
    _, alive = psutil.wait_procs(most, timeout=30)
    assert alive == []
    assert run.returncode != 0
    if run.returncode == 2:  # unless Ray noticed first, which ends the process on the spot
        assert "the Ray daemon of this node is gone; the run can be resumed" in said
        assert "Traceback" not in said
