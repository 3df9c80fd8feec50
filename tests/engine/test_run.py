"""A whole run: recorded, checkpointed, killed, resumed, interrupted."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedloom
from fedloom.engine.fleet import Distribution
from fedloom.engine.run import Interrupted, train
from fedloom.errors import ConfigError, RunError
from fedloom.execution import Auto
from fedloom.federation.client import Client
from fedloom.federation.replies import Replies
from fedloom.methods import Context, Method
from fedloom.methods.method import ServerMethod
from fedloom.types import Memory, Message, State

ROUNDS = 12


@dataclass(frozen=True)
class Remembering(ServerMethod):
    """FedAvg with momentum kept on the clients: forgets its result if memory, order or randomness is not restored."""

    lr: float = 0.1
    batch: int = 8

    def server_init(self, ctx: Context) -> State:
        return {"x": ctx.theta0}

    def client_init(self, client: Client, received: Message) -> Memory:
        return {"m": torch.zeros_like(received["x"]).expand(*client.n.shape[:-1], -1)}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {"x": state["x"]}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        y, _ = client.sgd(received["x"], self.lr, self.batch, shift=0.1 * memory["m"])
        return {"dx": y - received["x"]}, {"m": 0.9 * memory["m"] + y - received["x"]}

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return {"x": state["x"] + replies.mean("dx")}


def problem() -> fedloom.Problem:
    data = fedloom.federate(fedloom.load("digits"), clients=10, partition="dirichlet", alpha=0.5, seed=3)
    return fedloom.Problem(data, fedloom.build_model("mlp", data, hidden=[16]))


def run(out: Path | None, **options: object) -> fedloom.Run:
    settings = {"rounds": ROUNDS, "seed": 5, "select": 4, "executor": "serial", "checkpoint_every": 1, **options}
    return train(problem(), Remembering(), out=out, **settings)


CHILD = """
import sys
sys.path.insert(0, {folder!r})
from {module} import run
def tell(row, rounds):
    print(row["round"], flush=True)
run({out!r}, progress=tell{more})
"""


def start_child(out: Path, more: str = "") -> subprocess.Popen[str]:
    here = Path(__file__)
    code = CHILD.format(folder=str(here.parent), module=here.stem, out=str(out), more=more)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def wait_for_round(child: subprocess.Popen[str], wanted: int) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        if int(line) >= wanted:
            return
    raise AssertionError("the child ended before that round")


@pytest.fixture(scope="module")
def whole() -> fedloom.Run:
    return run(None)


@pytest.mark.parametrize("killed_after", [0, 1, 7])
def test_a_run_killed_at_any_round_and_resumed_ends_in_the_same_bits(
    tmp_path: Path, whole: fedloom.Run, killed_after: int
) -> None:
    child = start_child(tmp_path / "run")
    wait_for_round(child, killed_after)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (tmp_path / "run" / "summary.json").exists()
    resumed = run(tmp_path / "run", resume=True)
    assert resumed.summary["theta_sha256"] == whole.summary["theta_sha256"]
    assert [row["round"] for row in resumed.history] == list(range(ROUNDS + 1))
    for clock in ("bytes_up", "bytes_down", "gradient_evaluations", "simulated_seconds"):
        assert [row[clock] for row in resumed.history] == [row[clock] for row in whole.history]
    assert [row["evaluation"] for row in resumed.history] == [row["evaluation"] for row in whole.history]


def test_the_first_ctrl_c_saves_after_the_round_and_says_how_to_resume(tmp_path: Path, whole: fedloom.Run) -> None:
    pressed = []

    def press_once(row: dict[str, object], rounds: int) -> None:
        if row["round"] == 3 and not pressed:
            pressed.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match=r"stopped after round 3.*fedloom resume"):
        run(tmp_path / "run", progress=press_once, checkpoint_every=1000)
    resumed = run(tmp_path / "run", resume=True)
    assert resumed.summary["theta_sha256"] == whole.summary["theta_sha256"]


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path, whole: fedloom.Run) -> None:
    run(tmp_path / "run")
    before = (tmp_path / "run" / "history.jsonl").read_bytes()
    again = run(tmp_path / "run", resume=True)
    assert again.summary["theta_sha256"] == whole.summary["theta_sha256"]
    assert (tmp_path / "run" / "history.jsonl").read_bytes() == before


def test_a_finished_run_can_be_given_more_rounds(tmp_path: Path, whole: fedloom.Run) -> None:
    run(tmp_path / "run", rounds=5)
    assert run(tmp_path / "run", resume=True).summary["theta_sha256"] == whole.summary["theta_sha256"]


def test_a_run_whose_clients_come_and_go_is_resumed_in_the_same_bits(tmp_path: Path) -> None:
    trace = tmp_path / "there.csv"
    trace.write_text("client,start,end\n3,0,40\n3,45,60\n7,20,55\n", encoding="utf-8")
    fleet = fedloom.Fleet(
        delay_up=Distribution("uniform", 1, 9),
        redraw=True,
        absent=0.2,
        leaves=Distribution("exponential", 500),
        period=30.0,
        away=0.3,
        fails_every=40.0,
        repair=5.0,
        trace=str(trace),
        trace_repeats=60.0,
    )
    through = run(None, fleet=fleet)
    run(tmp_path / "run", fleet=fleet, rounds=5)
    resumed = run(tmp_path / "run", fleet=fleet, resume=True)
    assert resumed.summary["theta_sha256"] == through.summary["theta_sha256"]
    for column in ("simulated_seconds", "selected", "accepted", "dropped"):
        assert [row.get(column) for row in resumed.history] == [row.get(column) for row in through.history]
    assert sum(row.get("dropped", 0) for row in through.history) > 0


def test_a_run_that_nobody_is_left_for_ends_with_what_it_had_and_can_be_resumed(tmp_path: Path) -> None:
    fleet = fedloom.Fleet(delay_up=Distribution("constant", 10), leaves=Distribution("constant", 35))
    done = run(tmp_path / "run", fleet=fleet)
    assert done.summary["stopped"] == "deserted"
    assert "after 40 simulated seconds none of the 10 clients will ever be there again" in done.notes[0]
    longer = dataclasses.replace(fleet, leaves=None)
    resumed = run(tmp_path / "run", fleet=longer, resume=True, force_settings=True)
    assert [row.get("accepted") for row in resumed.history] == [None, 4, 4, 4, 0, *[4] * (ROUNDS - 4)]


def test_a_damaged_checkpoint_costs_rounds_but_not_the_run(tmp_path: Path, whole: fedloom.Run) -> None:
    run(tmp_path / "run", rounds=6)
    newest = tmp_path / "run" / "checkpoint.safetensors"
    newest.write_bytes(newest.read_bytes()[:-7])
    resumed = run(tmp_path / "run", resume=True)
    assert resumed.summary["theta_sha256"] == whole.summary["theta_sha256"]
    assert "checkpoint.previous" in resumed.notes[0]


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-7])])
def test_a_damaged_memory_costs_rounds_but_not_the_run(
    tmp_path: Path, whole: fedloom.Run, damage: Callable[[Path], object]
) -> None:
    run(tmp_path / "run", rounds=6)
    newest = max((tmp_path / "run" / "memory").iterdir())
    damage(newest)
    resumed = run(tmp_path / "run", resume=True)
    assert resumed.summary["theta_sha256"] == whole.summary["theta_sha256"]
    assert resumed.notes[0].startswith(str(newest))
    assert "goes on from checkpoint.previous" in resumed.notes[0]


def test_the_memory_of_clients_may_live_on_disk(
    tmp_path: Path, whole: fedloom.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedloom.storage.store.MemoryStore.__init__.__defaults__", (None, 1))
    assert run(tmp_path / "run").summary["theta_sha256"] == whole.summary["theta_sha256"]


def test_two_runs_cannot_write_into_one_folder(tmp_path: Path) -> None:
    child = start_child(tmp_path / "run", ", rounds=1_000_000")
    wait_for_round(child, 1)
    try:
        with pytest.raises(RunError, match="in use"):
            run(tmp_path / "run", resume=True)
        with pytest.raises(RunError, match="in use"):
            run(tmp_path / "run", force=True)
    finally:
        child.kill()
        child.wait()


def test_a_run_that_is_there_already_is_not_overwritten(tmp_path: Path) -> None:
    run(tmp_path / "run", rounds=1)
    before = (tmp_path / "run" / "summary.json").read_bytes()
    with pytest.raises(RunError, match="--force"):
        run(tmp_path / "run", rounds=1)
    assert (tmp_path / "run" / "summary.json").read_bytes() == before
    assert run(tmp_path / "run", rounds=2, force=True).summary["rounds"] == 2


def test_moving_to_worker_processes_in_the_middle_changes_no_bit(whole: fedloom.Run) -> None:
    moved = train(
        problem(),
        fedloom.FedAvg(batch=8),
        rounds=4,
        select=4,
        stack=2,
        executor=Auto(4, 2, start_seconds=0.0, task_seconds=0.0),
    )
    stayed = train(problem(), fedloom.FedAvg(batch=8), rounds=4, select=4, stack=2, executor="serial")
    assert (moved.summary["executor"], stayed.summary["executor"]) == ("processes", "serial")
    assert moved.summary["theta_sha256"] == stayed.summary["theta_sha256"]
    assert [r["evaluation"] for r in moved.history] == [r["evaluation"] for r in stayed.history]


def test_the_folder_tells_everything_about_the_run(tmp_path: Path) -> None:
    done = run(tmp_path / "run", rounds=3)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    for key in (
        "method",
        "data",
        "seed",
        "rounds",
        "metrics",
        "theta_sha256",
        "bytes_up",
        "bytes_down",
        "simulated_seconds",
        "wall_seconds",
        "stack",
        "executor",
    ):
        assert key in summary
    assert summary["metrics"]["accuracy"] == done.history[-1]["evaluation"]["accuracy"]["weighted"]
    assert len(summary["per_client"]["accuracy"]) == 10
    assert json.loads((tmp_path / "run" / "data.json").read_text())["name"] == "digits"
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["method"]["lr"] == 0.1
    frame = done.frame()
    assert list(frame["round"]) == [0, 1, 2, 3]
    assert {"accuracy", "accuracy.std", "bytes_up", "selected"} <= set(frame.columns)


def test_bytes_are_those_of_the_serialised_messages() -> None:
    from fedloom.channel import serialise

    done = run(None, rounds=2)
    size = len(serialise({"dx": done.theta}))
    assert done.summary["bytes_up"] == 2 * 4 * size


def test_what_cannot_be_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"selection.per_round = 11.*10 clients"):
        run(tmp_path / "run", select=11)
    assert not (tmp_path / "run").exists()
    with pytest.raises(RunError, match="at least one round"):
        run(None, rounds=0)
    with pytest.raises(RunError, match="needs the folder"):
        run(None, resume=True)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (fedloom.FedProx(mu=-1.0), r"FedProx.*mu = -1.0.*greater than or equal to 0"),
        (fedloom.FedAvg(lr=0.0), r"FedAvg.*lr = 0.0"),
        (fedloom.FedAvg(batch=0), r"FedAvg.*batch = 0.*greater than or equal to 1"),
        (fedloom.ADMM(rho=0.0), r"ADMM.*rho = 0.0.*greater than 0"),
        (fedloom.Scaffold(option="III"), r"Scaffold.*option = 'III'.*'I' or 'II'"),  # type: ignore[arg-type]
    ],
)
def test_a_hyper_parameter_that_cannot_be_is_refused_before_any_work(tmp_path: Path, method: Method, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        train(problem(), method, rounds=1, out=tmp_path / "run", executor="serial")
    assert not (tmp_path / "run").exists()


def test_a_full_disk_loses_nothing_that_was_saved(tmp_path: Path, whole: fedloom.Run) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))\n"
    here = Path(__file__)
    code = limit + CHILD.format(folder=str(here.parent), module=here.stem, out=str(tmp_path / "run"), more="")
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert child.returncode == 1
    assert "disk is full" in child.stderr
    resumed = run(tmp_path / "run", resume=True)
    assert resumed.summary["theta_sha256"] == whole.summary["theta_sha256"]
