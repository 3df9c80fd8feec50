from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fedloom.errors import RunError
from fedloom.report import find_runs, read_run


def test_a_finished_run_is_read_whole(make_run):
    run = read_run(make_run(method="fedavg", seed=3, rounds=7))
    assert (run.method, run.label, run.seed, run.rounds, run.finished) == ("fedavg", "fedavg", 3, 7, True)
    assert run.metrics == ("accuracy", "loss")
    assert run.final("accuracy") == run.summary["spread"]["accuracy"]["weighted"]
    assert run.clock("bytes_up") == run.summary["bytes_up"]
    assert 'name = "fedavg"' in run.config_text


def test_an_unfinished_run_tells_its_latest_values(make_run):
    run = read_run(make_run(rounds=5, planned=50, finished=False, seed=2))
    assert not run.finished
    assert (run.method, run.seed, run.rounds, run.planned_rounds) == ("fedavg", 2, 5, 50)
    assert run.final("accuracy", "worst_tenth") == run.history[-1]["evaluation"]["accuracy"]["worst_tenth"]
    assert run.clock("simulated_seconds") == run.history[-1]["simulated_seconds"]


def test_the_final_value_is_that_of_the_last_round_that_was_evaluated(make_run):
    folder = make_run(rounds=5, finished=False)
    with (folder / "history.jsonl").open("a") as file:
        file.write(json.dumps({"round": 6}) + "\n")
    run = read_run(folder)
    assert run.rounds == 6
    assert run.final("accuracy") == run.history[5]["evaluation"]["accuracy"]["weighted"]


def test_a_value_that_became_null_is_not_replaced_by_an_earlier_one(make_run):
    folder = make_run(rounds=2, finished=False)
    row = {"round": 3, "evaluation": {"accuracy": {"weighted": None, "mean": None}}}
    with (folder / "history.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    assert math.isnan(read_run(folder).final("accuracy"))


def test_half_a_last_line_of_a_killed_run_is_left_out(make_run):
    folder = make_run(rounds=4, finished=False)
    with (folder / "history.jsonl").open("a") as file:
        file.write('{"round": 5, "simulat')
    assert read_run(folder).rounds == 4


def test_half_a_last_line_of_a_finished_run_is_damage(make_run):
    folder = make_run(rounds=4)
    with (folder / "history.jsonl").open("a") as file:
        file.write('{"round": 5, "simulat')
    with pytest.raises(RunError, match=r"history\.jsonl, line 6: damaged"):
        read_run(folder)


def test_a_last_line_without_its_newline_still_counts(make_run):
    folder = make_run(rounds=4, finished=False)
    path = folder / "history.jsonl"
    path.write_text(path.read_text().rstrip("\n"))
    assert read_run(folder).rounds == 4


@pytest.mark.parametrize("line", ["{", "[1, 2]", '{"round": "three"}', '{"round": 1.5}', '{"round": NaN}', '{"x": 1}'])
def test_a_damaged_line_of_history_is_named_with_its_number(make_run, line):
    folder = make_run(rounds=4)
    path = folder / "history.jsonl"
    lines = path.read_text().splitlines()
    lines[2] = line
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(RunError, match=r"history\.jsonl, line 3: damaged.*Restore the file"):
        read_run(folder)


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("summary.json", '{\n"method": \n}', 3),
        ("data.json", '{"name": "digits",\n', 2),
        ("data.json", "[]", 1),
        ("config.toml", "seed = 1\nrounds = = 3\n", 2),
    ],
)
def test_a_damaged_file_is_named_with_its_line(make_run, file, text, line):
    folder = make_run(rounds=2)
    (folder / file).write_text(text)
    with pytest.raises(RunError, match=rf"{file}, line {line}: damaged"):
        read_run(folder)


def test_a_file_that_is_not_text_is_named_with_its_line(make_run):
    folder = make_run(rounds=2)
    path = folder / "history.jsonl"
    path.write_bytes(path.read_bytes() + b"\xff\xfe\n")
    with pytest.raises(RunError, match=r"history\.jsonl, line 4: damaged: not text"):
        read_run(folder)


def test_a_run_without_settings_or_data_can_be_read(make_run):
    folder = make_run(rounds=2, finished=False)
    (folder / "config.toml").unlink()
    (folder / "data.json").unlink()
    run = read_run(folder)
    assert (run.method, run.seed, run.data) == (folder.name, None, {})


def test_rounds_that_a_resumed_run_wrote_again_count_once(make_run):
    folder = make_run(rounds=3, finished=False)
    with (folder / "history.jsonl").open("a") as file:
        file.write(json.dumps({"round": 2, "bytes_up": 77}) + "\n")
    run = read_run(folder)
    assert [row["round"] for row in run.history] == [0, 1, 2, 3]
    assert run.history[2]["bytes_up"] == 77


def test_named_evaluations_are_metrics_of_their_own_after_the_main_ones(make_run):
    folder = make_run(rounds=1, finished=False)
    row = {"round": 2, "evaluations": {"target": {"accuracy": {"mean": 0.5}}}}
    with (folder / "history.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    run = read_run(folder)
    assert run.metrics == ("accuracy", "loss", "target/accuracy")
    assert run.final("target/accuracy") == 0.5


def test_runs_are_found_at_any_depth_with_numbers_in_order(make_run, tmp_path):
    for where in (
        "all/fedavg/seed-10",
        "all/fedavg/seed-2",
        "all/a-0.1/seed-1",
        "all/a-0.03/seed-1",
        "all/.old/seed-1",
    ):
        make_run(where, rounds=1)
    (tmp_path / "all/fedavg/seed-2/memory").mkdir()
    found = [str(run.folder.relative_to(tmp_path / "all")) for run in find_runs(tmp_path / "all")]
    assert found == ["a-0.03/seed-1", "a-0.1/seed-1", "fedavg/seed-2", "fedavg/seed-10"]


def test_a_run_given_twice_is_found_once(make_run, tmp_path):
    folder = make_run("all/one", rounds=1)
    assert len(find_runs([tmp_path / "all", folder, str(folder)])) == 1


def test_a_path_without_runs_is_an_error_that_says_so(tmp_path):
    with pytest.raises(RunError, match="no run in it"):
        find_runs([tmp_path])
    with pytest.raises(RunError, match="no such folder"):
        find_runs(tmp_path / "absent")
    with pytest.raises(RunError, match="not a run"):
        read_run(Path(tmp_path))
