"""Tasks in sequence from the command line: run, resume, compare, adapt, report."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import Result

Call = Callable[..., Result]
Summary = Callable[[Path | str], dict[str, Any]]
FILE = """
rounds = 3
[data]
name = "digits"
clients = 4
[model]
hidden = 8
[method]
lr = 0.3
[[task]]
name = "low"
classes = "first half"
[[task]]
name = "high"
classes = "second half"
[task.method]
mu = 0.5
"""


def chart(page: Path, name: str) -> dict[str, Any]:
    found = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    charts: dict[str, Any] = json.loads(found[1])["charts"]
    return dict(charts[name])


def test_a_run_with_tasks_ends_with_its_matrix_and_draws_it(call: Call, summary: Summary) -> None:
    Path("exp.toml").write_text(FILE)
    result = call("run", "exp.toml", "--method", "fedprox", "--out", "a")
    assert "2 tasks: low, high" in result.output
    assert "Accuracy after" in result.output
    assert "on high" in result.output
    assert f"forgetting {summary('a')['metrics']['forgetting']:.3f}" in result.output
    matrix = json.loads(Path("a/matrix.json").read_text())
    drawn = chart(Path("a/report.html"), "tasks")["figures"]
    rows = [[round(value, 6) for value in row] for row in [matrix["fresh"], *matrix["matrix"]]]
    assert drawn["fedprox matrix"]["data"][0]["z"] == [[float(f"{value:.6g}") for value in row] for row in rows]
    assert [line["name"] for line in drawn["fedprox lines"]["data"]] == ["on low", "on high"]


def test_a_sequence_that_was_stopped_is_resumed(call: Call, summary: Summary) -> None:
    Path("exp.toml").write_text(FILE)
    flags = ("--method", "fedprox", "--no-report")
    call("run", "exp.toml", *flags, "--out", "whole")
    shutil.copytree("whole", "part")
    shutil.rmtree("part/task-2")
    Path("part/summary.json").unlink()
    matrix = json.loads(Path("part/matrix.json").read_text())
    Path("part/matrix.json").write_text(json.dumps({**matrix, "scores": matrix["scores"][:2]}))
    call("resume", "part", "--no-report")
    assert summary("part")["theta_sha256"] == summary("whole")["theta_sha256"]
    assert Path("part/matrix.json").read_text() == Path("whole/matrix.json").read_text()


def test_methods_are_compared_on_tasks_by_average_and_forgetting(call: Call, summary: Summary) -> None:
    Path("exp.toml").write_text(FILE)
    arguments = ("compare", "fedavg", "fedprox", "--config", "exp.toml", "--repeats", 2, "--out", "c")
    result = call(*arguments)
    assert "Forgetting" in result.output
    assert "Average" in result.output
    table = json.loads(Path("c/compare.json").read_text())["table"]
    assert [row["label"] for row in table] == ["fedavg", "fedprox"]
    runs = [summary(f"c/fedavg/seed-{seed}")["metrics"] for seed in (0, 1)]
    assert table[0]["forgetting"] == sum(run["forgetting"] for run in runs) / 2
    assert table[0]["average_accuracy"] == sum(run["average_accuracy"] for run in runs) / 2
    assert set(chart(Path("c/report.html"), "tasks")["figures"]) == {
        f"{method} {view}" for method in ("fedavg", "fedprox") for view in ("matrix", "lines")
    }
    assert "done already" in call(*arguments).output


def test_a_sequence_under_way_can_be_reported(call: Call) -> None:
    Path("exp.toml").write_text(FILE)
    call("run", "exp.toml", "--method", "fedprox", "--out", "a", "--no-report")
    Path("a/summary.json").unlink()
    assert "report" in call("report", "a").output
    assert "round 6 of 6" in Path("a/report.html").read_text()


def test_a_client_can_be_adapted_to_from_a_sequence(call: Call) -> None:
    Path("exp.toml").write_text(FILE)
    call("run", "exp.toml", "--method", "fedprox", "--out", "a", "--no-report")
    assert "task-2 (round 3), client 1 of digits" in call("adapt", "a", "--client", 1).output
    assert Path("a-client-1/model.safetensors").is_file()


def test_the_prior_of_a_run_is_given_by_flags(call: Call, summary: Summary) -> None:
    flags = ("--data", "digits", "--clients", 4, "--hidden", 8, "--rounds", 2, "--no-report")
    call("run", *flags, "--out", "a")
    call("run", *flags, "--out", "b", "--prior", "a", "--prior-start")
    first = json.loads(Path("b/history.jsonl").read_text().splitlines()[0])
    assert first["evaluation"]["accuracy"]["weighted"] == summary("a")["metrics"]["accuracy"]
    assert "start = true" in Path("b/config.toml").read_text()
    assert "prior.run" in call("run", "--prior", "nowhere", "--out", "c", code=2).stderr
