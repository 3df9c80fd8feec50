"""``fedloom watch`` looks at runs that go on elsewhere, and changes nothing in their folders."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import Result

from fedloom.cli.watch import picture, sparkline
from fedloom.report.live import DONE, RUNNING, STOPPED, WAITING, Follower, Watched, as_line, newest

Call = Callable[..., Result]
SMALL = ("--data", "diabetes", "--clients", 3, "--rounds", 3, "--no-report", "--quiet")


def row(number: int, **more: Any) -> dict[str, Any]:
    evaluation = {"accuracy": {"weighted": number / 10}, "loss": {"weighted": 1.0}}
    return {"round": number, "wall_seconds": 2.0 * number, "evaluation": evaluation, **more}


def begin(folder: Path, rows: list[dict[str, Any]], pid: int | None = None, rounds: int = 10) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(f'rounds = {rounds}\n[method]\nname = "fedavg"\n')
    (folder / "history.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    mark = {"pid": os.getpid() if pid is None else pid, "host": socket.gethostname()}
    (folder / ".fedloom").write_text(json.dumps(mark))


@pytest.fixture
def ended() -> int:
    """The id of a process that is no more."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def test_a_look_tells_round_pace_time_left_metrics_and_failures(tmp_path: Path) -> None:
    begin(tmp_path, [row(0), row(1), row(2, failures=["client 3: no", "client 4: no"])])
    look = Follower(tmp_path).look()
    assert (look.label, look.state, look.round, look.rounds) == ("fedavg", RUNNING, 2, 10)
    assert (look.pace, look.left) == (0.5, 16.0)
    assert look.metrics == {"accuracy": 0.2, "loss": 1.0}
    assert look.curve == [0.0, 0.1, 0.2]
    assert look.failures == 2


def test_a_run_that_is_killed_and_resumed_is_followed_on(tmp_path: Path, ended: int) -> None:
    follower = Follower(tmp_path)
    assert follower.look().state == WAITING
    begin(tmp_path, [row(0), row(1), row(2), row(3)], pid=ended)
    look = follower.look()
    assert (look.state, look.round) == (STOPPED, 3)
    assert "fedloom resume" in look.note
    begin(tmp_path, [row(0), row(1)])  # cut back to its checkpoint
    look = follower.look()
    assert (look.state, look.round, look.curve) == (RUNNING, 1, [0.0, 0.1])
    (tmp_path / "summary.json").write_text('{"finished": true, "label": "Ours", "stopped": "target"}')
    look = follower.look()
    assert (look.state, look.label, look.note) == (DONE, "Ours", "ended by target")


@given(st.lists(st.integers(1, 200), max_size=20))
def test_however_the_lines_come_in_the_same_is_known(sizes: list[int]) -> None:
    lines = "".join(json.dumps(row(number)) + "\n" for number in range(8)).encode()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        begin(folder, [])
        follower, at = Follower(folder), 0
        for size in [*sizes, len(lines)]:
            with open(folder / "history.jsonl", "ab") as file:
                file.write(lines[at : at + size])
            at += size
            found = follower.look()
            assert found == Follower(folder).look()
        assert found.round == 7


def test_what_is_damaged_is_said(tmp_path: Path) -> None:
    begin(tmp_path, [row(0)])
    (tmp_path / "history.jsonl").write_text('{"round": 0}\nnonsense\n[1]\n')
    (tmp_path / "config.toml").write_text("rounds = [[[")
    assert "no row" in Follower(tmp_path).look().note


def test_a_sequence_of_tasks_is_followed_in_its_last_task(tmp_path: Path) -> None:
    begin(tmp_path, [])
    (tmp_path / "config.toml").write_text('rounds = 4\n[[task]]\nname = "old"\n[[task]]\nname = "new"\nrounds = 6\n')
    begin(tmp_path / "task-1", [row(number) for number in range(5)], rounds=4)
    begin(tmp_path / "task-2", [row(0), row(1)], rounds=6)
    look = Follower(tmp_path).look()
    assert (look.round, look.rounds, look.note) == (5, 10, "task 2 of 2: new")


def test_a_comparison_is_a_table_until_it_is_concluded(tmp_path: Path) -> None:
    begin(tmp_path / "a" / "seed-0", [row(0), row(1)])
    record = {"runs": ["a/seed-0", "b/seed-0"]}
    (tmp_path / "compare.json").write_text(json.dumps(record))
    watched = Watched(tmp_path)
    looks = watched.looks()
    assert [look.state for look in looks] == [RUNNING, WAITING]
    assert not watched.over(looks)
    (tmp_path / "compare.json").write_text(json.dumps({**record, "table": []}))
    assert watched.over(watched.looks())
    assert newest(tmp_path) == tmp_path


def files(folder: Path) -> dict[str, tuple[int, int]]:
    status = {path: path.stat() for path in folder.rglob("*")}
    return {str(path): (one.st_mtime_ns, one.st_size) for path, one in status.items()}


def test_the_command_ends_with_the_run_and_leaves_its_folder_alone(
    call: Call, summary: Callable[[Path | str], dict[str, Any]]
) -> None:
    call("run", *SMALL, "--out", "runs/one")
    before = files(Path("runs"))
    said = call("watch").output  # the newest below runs/
    assert "done  round 3 of 3" in said
    told = json.loads(call("watch", "runs/one", "--json").output)
    assert told["state"] == "done"
    assert told["metrics"]["rmse"] == pytest.approx(summary("runs/one")["metrics"]["rmse"])
    picture = call("watch", "runs/one", "--once").output
    assert "█" * 40 in picture
    assert files(Path("runs")) == before
    call("compare", "fedavg", "fedsgd", *SMALL, "--repeats", 1, "--out", "both")
    assert "2 of 2 runs done" in call("watch", "both", "--once").output


def test_what_cannot_be_watched_is_said(call: Call) -> None:
    assert "no run below runs/" in call("watch", code=2).output
    assert "there is no folder" in call("watch", "nowhere", "--once", code=2).output
    Path("file").touch()
    assert "is a file" in call("watch", "file", code=2).output


@given(st.lists(st.floats()), st.integers(1, 50))
def test_a_sparkline_is_never_wider_than_its_room(values: list[float], wide: int) -> None:
    assert len(sparkline(values, wide)) == min(len(values), wide)


def test_a_sparkline_goes_from_the_least_to_the_greatest() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([3.0, 3.0]) == "▁▁"
    assert sparkline([0.0, float("nan"), 1.0]) == "▁·█"


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
KEYS = ("finished", "rounds", "label", "stopped", "pid", "host", "runs", "table", "task", "method", "name", "failures")
TABLES = st.dictionaries(st.sampled_from((*KEYS, "evaluation", "evaluations", "wall_seconds", "bytes_up")), VALUES)
METRICS = st.dictionaries(st.text(max_size=3), st.dictionaries(st.just("weighted"), SCALARS), max_size=2)


@given(TABLES, TABLES, TABLES, st.lists(TABLES | METRICS.map(lambda found: {"evaluation": found}), max_size=3))
def test_whatever_is_in_a_folder_it_can_be_looked_at(
    summary: dict[str, Any], mark: dict[str, Any], record: dict[str, Any], rows: list[dict[str, Any]]
) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "config.toml").write_text("rounds = 3\n")
        lines = (json.dumps({"round": at - 1, **one}) + "\n" for at, one in enumerate(rows))
        (folder / "history.jsonl").write_text("".join(lines))
        for name, table in (("summary.json", summary), (".fedloom", mark), ("compare.json", record)):
            (folder / name).write_text(json.dumps(table))
        watched = Watched(folder)
        looks = watched.looks()
        watched.over(looks)
        Console(file=io.StringIO()).print(picture(looks, watched.single))
        json.loads(as_line(looks, watched.single))
