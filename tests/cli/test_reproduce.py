"""``fedloom reproduce``."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from typer.testing import Result

from fedloom.reproduce.shelf import shipped

Call = Callable[..., Result]

TABLE = """
title = "Digits, twice"
about = "A <first> try."
repeats = 2
measure = { metric = "accuracy", scale = "percent" }

[run]
rounds = 2
data = { name = "digits", clients = 3 }
model = { name = "linear" }

[quick]
rounds = 1

[[column]]
name = "iid"
target = 0.2

[[row]]
name = "FedAvg"
method = { name = "fedavg" }
published = { iid = [99.9, 0.01] }

[[row]]
name = "FedSGD"
method = { name = "fedsgd" }
"""


@pytest.fixture
def table(call: Call) -> Path:
    """A table in the working folder's experiments/."""
    Path("experiments").mkdir()
    file = Path("experiments/twice.toml")
    file.write_text(TABLE, encoding="utf-8")
    return file


def test_a_table_has_a_result_a_verdict_and_a_page(call: Call, table: Path) -> None:
    result = call("reproduce", "twice")
    assert "Accuracy in percent; mean ± standard deviation over repeats" in result.output
    assert "published 99.90 ± 0.01" in result.output
    assert "below" in result.output
    assert "4 of 4 runs done; result: runs/reproduce-twice/result.json" in result.output
    record = json.loads(Path("runs/reproduce-twice/result.json").read_text())
    assert [cell["verdict"] for cell in record["cells"]] == ["below", "no published value"]
    page = Path("runs/reproduce-twice/report.html").read_text()
    assert "A &lt;first&gt; try." in page
    assert "Learning curves: iid" in page
    assert "published 99.90 ± 0.01" in page
    assert 'id="chart-learning-1"' in page


def test_quick_has_a_folder_of_its_own_and_cannot_be_recorded(call: Call, table: Path) -> None:
    call("reproduce", "twice", "--quick", "--no-report")
    assert len(list(Path("runs/reproduce-twice-quick").rglob("summary.json"))) == 2
    assert not Path("runs/reproduce-twice").exists()
    assert "leave --quick out" in call("reproduce", "twice", "--quick", "--record", code=2).output


def test_a_record_keeps_the_cells_that_were_not_run_now(call: Call, table: Path) -> None:
    call("reproduce", "twice", "--only", "FedAvg", "--record", "--no-report", "--out", "a")
    kept = Path("experiments/results/twice.json")
    first = json.loads(kept.read_text())["cells"]
    call("reproduce", "twice", "--only", "FedSGD", "--record", "--no-report", "--out", "b")
    second = json.loads(kept.read_text())["cells"]
    assert [len(cell["values"]) for cell in first] == [2, 0]
    assert [len(cell["values"]) for cell in second] == [2, 2]
    assert second[0] == first[0]
    assert [set(cell["curve"]) for cell in second] == [{"rounds", "values"}] * 2


def test_without_a_name_the_tables_are_listed(call: Call, table: Path) -> None:
    call("reproduce", "twice", "--only", "FedAvg", "--record", "--no-report", "--repeats", 1)
    lines = call("reproduce").output.splitlines()
    row = next(line for line in lines if line.startswith("twice"))
    assert row.split()[-3:] == ["2", "1", "1"]  # cells, published, recorded
    assert any(line.startswith("optimisation") for line in lines)


def test_a_program_is_run_by_its_name_and_takes_no_settings_of_tables(call: Call) -> None:
    said = call("reproduce", "rate", "--quick").output
    assert "identical clients, worst curvature" in said
    assert "rate, a program of its own" in call("reproduce").output
    refused = call("reproduce", "rate", "--only", "T", code=2).output
    assert "rate is a program and no table: it knows --quick and --record; leave --only out" in " ".join(
        refused.split()
    )


def test_a_table_of_the_working_folder_hides_a_program_of_its_name(call: Call, table: Path) -> None:
    table.rename(table.with_name("rate.toml"))
    assert "Accuracy in percent" in call("reproduce", "rate", "--quick", "--no-report").output


def test_a_name_that_is_no_table_is_refused_with_the_nearest(call: Call, table: Path) -> None:
    assert (
        "there is no table of experiments 'twise'; did you mean 'twice'?" in call("reproduce", "twise", code=2).output
    )
    assert "there is no file other.toml" in call("reproduce", "other.toml", code=2).output


def test_a_damaged_table_is_refused_with_its_line_and_leaves_the_list_whole(call: Call, table: Path) -> None:
    bad = table.with_name("bad.toml")
    bad.write_text("title = \n", encoding="utf-8")
    assert "bad.toml:1: not valid TOML" in call("reproduce", "bad", code=2).output
    assert "twice" in call("reproduce").output


def test_every_table_that_ships_can_be_read_also_its_quick_version() -> None:
    from fedloom.reproduce import read_plan

    files = sorted(shipped().glob("*.toml"))
    assert "optimisation" in [file.stem for file in files]
    for file in files:
        assert read_plan(file).cells
        assert read_plan(file, quick=True).cells


def test_the_wheel_has_the_tables(tmp_path: Path) -> None:
    root, copy = shipped().parent, tmp_path / "copy"
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".venv", ".git", "runs", "tests", "docs", "site"))
    (wheel,) = WheelBuilder(str(copy)).build(directory=str(tmp_path), versions=["standard"])
    assert "fedloom/experiments/optimisation.toml" in zipfile.ZipFile(wheel).namelist()
