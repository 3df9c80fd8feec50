"""``fedloom tune``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from typer.testing import Result

SMALL = ("--data", "digits", "--clients", 4, "--model", "linear", "--rounds", 2, "--trials", 2)
Call = Callable[..., Result]


def test_it_says_the_table_and_the_best_file_runs_as_it_is(call: Call, tmp_path: Path) -> None:
    said = call("tune", "fedavg", "fedprox", *SMALL, "--space", "method.lr=0.1..1:log").output
    folder = tmp_path / "runs/tune-fedavg-fedprox-digits"
    assert "run it: fedloom run runs/tune-fedavg-fedprox-digits/best.toml" in said
    assert (folder / "report.html").is_file()
    table = json.loads((folder / "table.json").read_text())
    assert all(0.1 <= row["values"].get("method.lr", 0.1) <= 1 for row in table)
    call("run", folder / "best.toml", "--out", "again")


def test_the_same_command_and_the_folder_alone_go_on(call: Call, tmp_path: Path) -> None:
    call("tune", "fedavg", *SMALL, "--out", "t", "--quiet")
    table = json.loads((tmp_path / "t/table.json").read_text())
    (tmp_path / "t/table.json").unlink()
    assert json.loads(call("tune", "--resume", "t", "--json").output) == table
    assert json.loads(call("tune", "fedavg", *SMALL, "--out", "t", "--json").output) == table
    assert "other settings" in call("tune", "fedsgd", *SMALL, "--out", "t", code=2).output


def test_what_cannot_be_is_one_line(call: Call, tmp_path: Path) -> None:
    assert "say which methods" in call("tune", code=2).output
    assert "no tuning was begun there" in call("tune", "--resume", "nowhere", code=2).output
    assert "give nothing else" in call("tune", "fedavg", "--resume", "t", code=2).output
    assert "did you mean 'lr'" in call("tune", "fedavg", *SMALL, "--space", "method.lrr=1,2", code=2).output
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/plan.json").write_text("[]")
    assert "damaged" in call("tune", "--resume", "mine", code=2).output


def test_a_plan_of_somebody_else_names_no_code(call: Call, tmp_path: Path) -> None:
    call("tune", "fedavg", *SMALL, "--out", "t", "--quiet")
    plan = json.loads((tmp_path / "t/plan.json").read_text())
    plan["arguments"]["methods"] = ["os:abort"]
    (tmp_path / "t/plan.json").write_text(json.dumps(plan))
    assert "--trust" in call("tune", "--resume", "t", code=2).output
