"""Reproductions in their folders: tuning, resuming, failing, diverging."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedloom.errors import ConfigError, RunError
from fedloom.reproduce import Reproduction, page, read_plan
from fedloom.reproduce.keep import merge
from fedloom.reproduce.reproduction import essence_print

Write = Callable[..., Path]
Reproduce = Callable[..., Any]
Parts = dict[str, str]

GRID = "grid = { lr = [1e-9, 0.1] }\n"
WILD = '[[row]]\nname = "Wild"\nmethod = { name = "fedavg", lr = 1e38 }\npublished = { iid = [80.0, 1.0] }\n'
FRAGILE = """
import torch
from torch import nn

class Fragile(nn.Module):
    def __init__(self, shape, outputs):
        super().__init__()
        self.layer = nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))

    def forward(self, x):
        if torch.is_grad_enabled():
            raise RuntimeError("no gradients today")
        return self.layer(x)
"""


@pytest.mark.parametrize("rows", ["validation", "test"])
def test_tuning_chooses_on_validation_rows_unless_the_table_says_otherwise(
    rows: str, write: Write, reproduce: Reproduce, parts: Parts
) -> None:
    tune = "" if rows == "validation" else '[tune]\nrows = "test"\n'
    told = reproduce(write(parts["head"], tune, parts["column"], parts["row"], GRID))
    trial, repeat = (
        tomllib.loads(Path(f"out/FedAvg/iid/{place}/config.toml").read_text()) for place in ("tune/lr-0.1", "seed-0")
    )
    assert trial["evaluation"]["split"] == rows
    assert trial["data"].get("validation") == (0.2 if rows == "validation" else None)
    assert "validation" not in repeat["data"]
    assert repeat["evaluation"]["split"] == "test"
    before = read_plan(write(parts["head"], parts["column"], parts["row"], GRID)).cells[0]
    assert (essence_print(before) == told.cells["FedAvg / iid"]["essence_sha256"]) == (rows == "validation")


def test_tuning_takes_the_best_point_and_the_repeats_run_with_it(
    write: Write, reproduce: Reproduce, parts: Parts
) -> None:
    told = reproduce(write(parts["head"], "[tune]\nseed = 5\n", parts["column"], parts["row"], GRID))
    cell = told.cells["FedAvg / iid"]
    assert cell["tuned"] == {"method.lr": 0.1}
    assert cell["trials"]["lr=0.1"] > cell["trials"]["lr=1e-09"]
    assert len(told.done) == 4
    for seed in (0, 1):
        summary = json.loads(Path(f"out/FedAvg/iid/seed-{seed}/summary.json").read_text())
        assert cell["values"][str(seed)] == 100 * summary["spread"]["accuracy"]["weighted"]
    assert "lr = 0.1" in Path("out/FedAvg/iid/seed-1/config.toml").read_text()
    assert "seed = 5" in Path("out/FedAvg/iid/tune/lr-0.1/config.toml").read_text()
    mean = sum(cell["values"].values()) / 2
    assert cell["mean"] == pytest.approx(mean)
    assert told.record["finished"] is True


def test_where_less_is_better_the_least_is_the_best(write: Write, reproduce: Reproduce, parts: Parts) -> None:
    head = parts["head"].replace('{ metric = "accuracy", scale = "percent" }', '{ metric = "loss" }')
    told = reproduce(write(head, parts["column"], parts["row"], GRID), repeats=1)
    assert told.cells["FedAvg / iid"]["tuned"] == {"method.lr": 0.1}


def test_the_value_is_the_mean_of_the_last_rounds_that_were_evaluated(
    write: Write, reproduce: Reproduce, parts: Parts
) -> None:
    head = parts["head"].replace('scale = "percent"', "over = 2").replace("rounds = 2", "rounds = 5")
    evaluation = "evaluation = { every = 2 }\n"
    told = reproduce(write(head, evaluation, parts["column"], parts["row"]), repeats=1)
    rows = [json.loads(line) for line in Path("out/FedAvg/iid/seed-0/history.jsonl").read_text().splitlines()]
    known = {row["round"]: row["evaluation"]["accuracy"]["weighted"] for row in rows if "evaluation" in row}
    assert list(known)[-2:] == [4, 5]
    assert told.cells["FedAvg / iid"]["values"]["0"] == pytest.approx((known[4] + known[5]) / 2, rel=1e-12)


def test_the_way_to_the_target_counts_the_repeats_that_reached_it(
    write: Write, reproduce: Reproduce, parts: Parts
) -> None:
    columns = '[[column]]\nname = "low"\ntarget = 0.01\n[[column]]\nname = "high"\ntarget = 1.1\n'
    told = reproduce(write(parts["head"], columns, parts["row"]))
    low, high = (told.cells[f"FedAvg / {name}"]["target"] for name in ("low", "high"))
    assert low == {"value": 0.01, "rounds": 0.0, "bytes": 0.0, "seconds": 0.0, "reached": 2, "of": 2}
    assert high == {"value": 1.1, "rounds": None, "bytes": None, "seconds": None, "reached": 0, "of": 2}


def test_what_is_done_is_not_done_again_and_more_repeats_are_added(
    write: Write, reproduce: Reproduce, parts: Parts
) -> None:
    file = write(parts["head"], parts["column"], parts["row"], GRID)
    first = reproduce(file)
    again = reproduce(file)
    assert again.done == []
    assert again.record == first.record
    more = reproduce(file, repeats=3)
    assert [line.split(":")[0] for line in more.done] == ["[5/5] FedAvg / iid, seed 2"]
    assert more.cells["FedAvg / iid"]["values"].items() > first.cells["FedAvg / iid"]["values"].items()


def test_repeats_that_were_done_apart_are_joined_to_what_they_are_together(
    write: Write, reproduce: Reproduce, parts: Parts
) -> None:
    rows = parts["row"] + "published = { iid = [80.0, 3.0] }\n" + WILD
    file = write(parts["head"], parts["column"], "target = 0.6\n", rows)
    whole = reproduce(file, "whole", repeats=3)
    apart = [reproduce(file, out, repeats=3, seeds=seeds) for out, seeds in (("one", (1,)), ("two", (0, 2)))]
    assert [len(told.done) for told in apart] == [2, 4]
    assert apart[0].record["finished"] is False
    joined = merge(merge({}, apart[0].record), apart[1].record)
    assert joined["finished"] is True
    for cell, known in zip(joined["cells"], whole.record["cells"], strict=True):
        assert list(cell["values"]) == ["0", "1", "2"]
        for name, exact in {"values": 1e-12, "mean": 1e-12, "std": 1e-12, "target": 1e-12, "curve": 1e-4}.items():
            assert flat(cell.pop(name)) == pytest.approx(flat(known.pop(name)), rel=exact, nan_ok=True)
        assert cell.pop("wall_seconds") > 0 < known.pop("wall_seconds")
        assert cell == known


def flat(value: Any) -> list[float]:
    """All numbers in it, in order; NaN where there is none."""
    if isinstance(value, dict | list):
        return [number for part in (value.values() if isinstance(value, dict) else value) for number in flat(part)]
    return [math.nan if value is None else value]


def test_a_seed_that_no_cell_has_is_refused(write: Write, reproduce: Reproduce, parts: Parts) -> None:
    file = write(parts["head"], parts["column"], parts["row"])
    with pytest.raises(
        ConfigError, match=r"--seed 2: no cell has such a repeat, theirs are 0 to 1; for more .*--repeats"
    ):
        reproduce(file, seeds=(1, 2))
    assert not Path("out").exists()


def test_other_settings_in_the_same_folder_are_refused_unless_forced(
    write: Write, reproduce: Reproduce, parts: Parts
) -> None:
    reproduce(write(parts["head"], parts["column"], parts["row"]), repeats=1)
    file = write(parts["head"].replace("rounds = 2", "rounds = 3"), parts["column"], parts["row"])
    with pytest.raises(RunError, match="holds a run with other settings: choose another folder with --out, or"):
        reproduce(file, repeats=1)
    assert len(reproduce(file, repeats=1, force=True).done) == 1
    assert reproduce(file, repeats=1).done == []


def test_folders_of_others_are_left_alone(write: Write, reproduce: Reproduce, parts: Parts) -> None:
    file = write(parts["head"], parts["column"], parts["row"])
    Path("mine").mkdir()
    Path("mine/letter.txt").write_text("dear …")
    with pytest.raises(RunError, match="mine is there already and is no reproduction of 'digits'"):
        reproduce(file, "mine")
    reproduce(file, repeats=1)
    with pytest.raises(RunError, match="is no reproduction of 'digits'"):
        reproduce(file, "out/FedAvg/iid/seed-0")
    assert os.listdir("mine") == ["letter.txt"]


def test_only_some_cells_are_run_and_the_others_are_still_in_the_result(
    write: Write, reproduce: Reproduce, parts: Parts
) -> None:
    row = '[[row]]\nname = "FedSGD"\nmethod = { name = "fedsgd" }\n'
    file = write(parts["head"], parts["column"], parts["row"], row)
    told = reproduce(file, only=("sgd",))
    assert [cell["done"] for cell in told.record["cells"]] == [0, 2]
    assert told.record["finished"] is False
    rest = reproduce(file)
    assert [cell["done"] for cell in rest.record["cells"]] == [2, 2]
    assert len(rest.done) == 2


def test_a_cell_that_fails_says_why_and_the_others_go_on(
    write: Write, reproduce: Reproduce, parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fragile_model.py").write_text(FRAGILE)
    monkeypatch.syspath_prepend(tmp_path)
    row = '[[row]]\nname = "Broken"\nmodel = { name = "fragile_model:Fragile" }\n'
    file = write(parts["head"], parts["column"], row, parts["row"])
    told = reproduce(file)
    assert len(told.failed) == 1
    assert told.failed[0].startswith("Broken / iid: seed 1: ")
    assert "no gradients today" in told.cells["Broken / iid"]["error"]
    assert len(told.cells["FedAvg / iid"]["values"]) == 2
    stored = json.loads(Path("out/result.json").read_text())
    assert "no gradients today" in stored["cells"][0]["error"]
    rest = reproduce(file, only=("FedAvg",))
    assert "no gradients today" in rest.cells["Broken / iid"]["error"]
    assert rest.failed == []


def test_divergence_is_a_result_that_is_not_tried_again(write: Write, reproduce: Reproduce, parts: Parts) -> None:
    file = write(parts["head"], parts["column"], WILD)
    told = reproduce(file)
    cell = told.cells["Wild / iid"]
    assert told.failed == []
    assert (cell["diverged"], cell["mean"], cell["done"], cell["wanted"]) == (2, None, 2, 2)
    assert (cell["verdict"], cell["why"]) == ("not comparable", "every repeat diverged")
    assert reproduce(file).done == []
    assert len(reproduce(file, force=True).done) == 2


def test_a_point_that_diverges_is_not_chosen_and_without_another_there_are_no_repeats(
    write: Write, reproduce: Reproduce, parts: Parts
) -> None:
    wild = '[[row]]\nname = "Wild"\ngrid = { lr = [1e38, 3e38] }\n'
    file = write(parts["head"], parts["column"], parts["row"], "grid = { lr = [1e38, 0.1] }\n", wild)
    told = reproduce(file)
    assert told.cells["FedAvg / iid"]["tuned"] == {"method.lr": 0.1}
    assert told.cells["FedAvg / iid"]["trials"]["lr=1e+38"] != told.cells["FedAvg / iid"]["trials"]["lr=1e+38"]  # NaN
    cell = told.cells["Wild / iid"]
    assert (cell["tuned"], cell["values"], cell["done"], cell["wanted"]) == (None, {}, 2, 2)
    assert cell["why"] == "it diverged with every point of the grid"
    assert told.record["finished"] is True


def test_the_result_on_the_disk_is_complete_after_every_run(write: Write, parts: Parts) -> None:
    plan = read_plan(write(parts["head"], parts["column"], parts["row"]))
    work = Reproduction(plan, Path("out"))
    seen = []

    class Watch:
        def __enter__(self) -> Any:
            seen.append(json.loads(Path("out/result.json").read_text())["cells"][0]["done"])
            return lambda row, total: None

        def __exit__(self, *_: object) -> None:
            pass

    work.perform(lambda title: Watch(), lambda line: None)
    assert seen == [0, 1]
    assert json.loads(Path("out/result.json").read_text())["cells"][0]["done"] == 2


def test_a_bad_file_leaves_no_folder(write: Write, reproduce: Reproduce, parts: Parts) -> None:
    row = '[[row]]\nname = "x"\nmethod = { name = "admm", solver = "exact" }\n'
    with pytest.raises(ConfigError, match=r"digits.toml:15: method.name: solver = .exact. needs a closed form"):
        reproduce(write(parts["head"], parts["column"], row))
    assert not Path("out").exists()


def test_killed_at_any_moment_it_goes_on_to_the_same_values(write: Write, reproduce: Reproduce, parts: Parts) -> None:
    file = write(parts["head"].replace("rounds = 2", "rounds = 30"), parts["column"], parts["row"], GRID)
    command = [sys.executable, "-m", "fedloom.cli", "reproduce", str(file), "--out", "killed", "--executor", "serial"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("[2/4]"):
            os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    rest, whole = reproduce(file, "killed"), reproduce(file, "whole")
    assert len(rest.done) == 2
    assert rest.cells["FedAvg / iid"]["values"] == whole.cells["FedAvg / iid"]["values"]


def test_the_page_names_a_table_that_lies_elsewhere_by_its_path(
    write: Write, reproduce: Reproduce, parts: Parts
) -> None:
    plan = read_plan(write(parts["head"], parts["column"], parts["row"]))
    record = Reproduction(plan, Path("out")).record()
    Path("out").mkdir()
    assert "fedloom reproduce digits.toml</code>" in page.write(plan, record, Path("out")).read_text(encoding="utf-8")
    Path("experiments").mkdir()
    known = plan.file.rename("experiments/digits.toml")
    text = page.write(read_plan(known), record, Path("out")).read_text(encoding="utf-8")
    assert "fedloom reproduce digits</code>" in text
    assert "<li>1 row</li>" in text


def test_tasks_in_sequence_are_run_once_and_read_by_all_rows_that_show_them(
    write: Write, reproduce: Reproduce, parts: Parts
) -> None:
    head = parts["head"].replace('metric = "accuracy"', 'metric = "on low/accuracy"')
    column = '[[column]]\nname = "new"\nruns_of = "iid"\nmeasure = { metric = "on high/accuracy" }\n'
    rows = '[[row]]\nname = "before"\nruns_of = "FedAvg"\nmeasure = { task = 1 }\n' + parts["row"]
    told = reproduce(write(head, parts["tasks"], parts["column"], column, rows), repeats=1)
    assert len(told.done) == 1
    matrix = json.loads(Path("out/FedAvg/iid/seed-0/matrix.json").read_text())["matrix"]
    shown = {title: cell["values"]["0"] for title, cell in told.cells.items()}
    assert shown == {
        "before / iid": 100 * matrix[0][0],
        "FedAvg / iid": 100 * matrix[1][0],
        "before / new": 100 * matrix[0][1],
        "FedAvg / new": 100 * matrix[1][1],
    }
    assert shown["before / iid"] > shown["FedAvg / iid"]  # it forgets


def test_a_first_task_that_rows_share_is_learnt_once(write: Write, reproduce: Reproduce, parts: Parts) -> None:
    head = parts["head"].replace('metric = "accuracy"', 'metric = "on low/accuracy"')
    tasks = """
[[run.task]]
name = "low"
classes = "first half"
method = { name = "fedavg", lr = 0.3 }
[[run.task]]
name = "high"
classes = "second half"
"""
    other = '[[row]]\nname = "FedProx"\nmethod = { name = "fedprox", mu = 1.0, lr = 0.1 }\n'
    file = write(head, tasks, parts["column"], parts["row"], other)
    told, alone = reproduce(file, repeats=1), reproduce(file, "alone", only=("FedProx",), repeats=1)
    first, second, again = (
        Path(run, "iid/seed-0/task-1/history.jsonl").read_bytes()
        for run in ("out/FedAvg", "out/FedProx", "alone/FedProx")
    )
    assert first == second != again  # with the seconds that it took
    assert told.cells["FedProx / iid"]["values"] == alone.cells["FedProx / iid"]["values"]
    assert told.cells["FedProx / iid"]["values"] != told.cells["FedAvg / iid"]["values"]


def test_what_a_task_ended_with_counts_although_a_later_one_diverged(
    write: Write, reproduce: Reproduce, parts: Parts
) -> None:
    head = parts["head"].replace('metric = "accuracy"', 'metric = "on low/accuracy"')
    tasks = parts["tasks"] + "method = { lr = 1e38 }\n"  # of the second one
    rows = "".join(
        f'[[row]]\nname = "{name}"\nruns_of = "FedAvg"\nmeasure = {{ task = {task} }}\n'
        for task, name in enumerate(("first", "second"), 1)
    )
    told = reproduce(write(head, tasks, parts["column"], parts["row"], rows), repeats=1)
    known = json.loads(Path("out/FedAvg/iid/seed-0/matrix.json").read_text())["matrix"]
    assert told.cells["first / iid"]["values"]["0"] == 100 * known[0][0] > 50
    assert [told.cells[f"{row} / iid"]["diverged"] for row in ("first", "second", "FedAvg")] == [0, 1, 1]


def test_recorded_cells_are_known_again_when_the_file_says_what_is_as_usual(
    write: Write, reproduce: Reproduce, parts: Parts
) -> None:
    first = reproduce(write(parts["head"], parts["column"], parts["row"]), repeats=1)
    said = parts["row"].replace("lr = 0.1", "lr = 0.1, weighting = 'size'") + "fleet = { dropout = 0.0 }\n"
    file = write(parts["head"], parts["column"], said)
    again = reproduce(file, repeats=1)
    assert again.done == []
    unrun = reproduce(file, "elsewhere", only=("FedAvg",), repeats=2, seeds=(1,))
    joined = merge(first.record, unrun.record)["cells"][0]
    assert list(joined["values"]) == ["0", "1"]
    assert "stale" not in joined


def test_a_recorded_cell_of_a_setting_that_has_a_new_name_is_the_same(write: Write, parts: Parts) -> None:
    admm = '[[row]]\nname = "ADMM"\nmethod = { name = "admm", most = 7 }\ngrid = { most = [3, 4] }\n'
    prints = []
    for row in (admm, admm.replace("most", "max_iterations")):
        (cell,) = read_plan(write(parts["head"], parts["column"], row)).cells
        prints.append(essence_print(cell))
    assert prints[0] == prints[1]
