"""Parties, tasks and streams are told as what they are, and every report begins with words."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedloom.cli import app
from fedloom.report import find_runs, group_runs, write_report
from fedloom.report.groups import Group
from fedloom.report.kinds import arrivals, columns_of, is_sequence, is_vertical, said, tasks_text
from fedloom.report.runs import RunRecord
from fedloom.report.story import story
from fedloom.report.table import Results


def record(method: str = "fedavg", **more: Any) -> RunRecord:
    history = [
        {"round": 0, "evaluation": {"accuracy": {"weighted": 0.1}}},
        {"round": 8, "evaluation": {"accuracy": {"weighted": 0.8}}},
    ]
    summary = {"method": method, "label": method, "finished": True, "seed": 0}
    summary["spread"] = {"accuracy": {"weighted": 0.8, "std": 0.0, "worst_tenth": 0.7}}
    made: dict[str, Any] = {"data": {}, "history": history, "summary": summary} | more
    return RunRecord(folder=Path(method), config={"rounds": 8}, config_text="", **made)


def groups(*runs: RunRecord) -> list[Group]:
    return [Group(run.label, (run,)) for run in runs]


VERTICAL = {
    "clients": 2,
    "labels": ["clinic", "laboratory"],
    "columns": [2, 3],
    "sizes": {"train": [240, 240], "test": [60, 60]},
}
STREAM = {"clients": 3, "sizes": {"train": [30, 50, 20]}, "roles": ["source", "source", "target"]}


def test_one_run_is_told_in_words() -> None:
    assert story(groups(record())) == [
        "fedavg has accuracy 0.800 after round 8, from 0.100 before any.",
        "The tenth of the clients that fares worst has 0.700.",
    ]


def test_what_pools_all_rows_is_a_bound_beside_it() -> None:
    spread = {"accuracy": {"weighted": 0.9}}
    bound = record("central", summary={"method": "central", "label": "central", "finished": True, "spread": spread})
    assert story(groups(record(), bound))[-1] == (
        "central pools all rows, a bound and no choice: 0.900, 0.100 better than fedavg."
    )


def test_a_run_that_has_no_number_says_so() -> None:
    broken = record(summary={"label": "fedavg", "spread": {"accuracy": {"weighted": None}}, "finished": True})
    assert story(groups(broken)) == ["fedavg has no accuracy: the model or its evaluation is not finite."]
    assert story(groups(record(summary={}, history=[{"round": 0}]))) == []


def test_parties_hold_columns_of_the_same_rows() -> None:
    found = groups(record("sharing-admm", data=VERTICAL))
    assert is_vertical(found)
    assert story(found)[1:] == [
        "2 parties hold columns of the same 300 rows (clinic: 2, laboratory: 3). Their scores are summed into one "
        "prediction, so there is one figure for all and none for each."
    ]
    assert "Over clients" not in dict(Results.of(found).headings)
    assert "Over clients" in dict(Results.of(groups(record())).headings)
    assert columns_of({"columns": "abc"}) == columns_of({"columns": ["name"]}) == columns_of({}) == []


def test_a_stream_says_which_share_of_the_rows_came() -> None:
    rows = [
        {"round": 0, "simulated_seconds": 0.0, "arrived": 20},
        {"round": 5, "simulated_seconds": 60.0, "arrived": 60},
    ]
    found = groups(record(data=STREAM, history=rows))
    assert said(found) == ["60 of 80 training rows (75 %) had arrived by the end."]  # a target client has none
    curves = arrivals(found)
    assert curves is not None
    assert curves.usual == "simulated_seconds"
    assert curves.lines["rows_arrived"]["value"][0].mean.tolist() == [20, 60]
    assert curves.lines["share_of_all_rows"]["value"][0].mean.tolist() == [0.25, 0.75]
    assert arrivals(groups(record())) is None
    unlisted = groups(record(data={**STREAM, "clients": 4}, history=rows))  # the rows of one are not known
    assert said(unlisted) == []


def test_tasks_are_told_by_name_with_what_was_forgotten() -> None:
    matrix = {"tasks": ["old", "new"], "metric": "accuracy", "fresh": [0.1, 0.2], "matrix": [[0.9, 0.3], [0.4, 0.8]]}
    spread = {"average_accuracy": {"weighted": 0.6}, "forgetting": {"weighted": 0.5}, "accuracy": {"weighted": 0.8}}
    summary = {"label": "fedavg", "method": "fedavg", "finished": True, "spread": spread}
    found = groups(record(matrix=matrix, summary=summary))
    assert is_sequence(found)
    assert said(found) == [
        "What is left of each task, accuracy: old 0.400 (0.900 when learnt); new, the last, 0.800. "
        "Forgotten on the mean: 0.500."
    ]
    assert tasks_text(found[0].runs[0]) == "2 tasks in sequence: old, new"
    assert [column.key for column in Results.of(found).columns][:3] == ["average_accuracy", "forgetting", "rounds"]


def test_trackers_do_not_make_another_experiment() -> None:
    def told(**config: Any) -> RunRecord:
        return RunRecord(Path("a"), {"rounds": 1, **config}, "", {}, [{"round": 0}], {"label": "fedavg"})

    found = group_runs([told(seed=0, tracking=[{"name": "wandb"}]), told(seed=1), told(seed=2, tracking={"name": "x"})])
    assert [len(group.runs) for group in found] == [3]


TASKS = """
rounds = 1
[data]
name = "digits"
clients = 3
[[task]]
name = "low digits"
classes = ["first half"]
[[task]]
name = "high digits"
classes = ["second half"]
"""


def test_pages_of_all_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user would: run, and read the page."""
    monkeypatch.chdir(tmp_path)
    Path("tasks.toml").write_text(TASKS)
    small = ["--rounds", "2", "--no-report", "--quiet"]
    vertical = ["--method", "sharing-admm", "--data", "diabetes", "--clients", "2", "--partition", "features"]
    stream = ["--data", "diabetes", "--clients", "2", "--stream-start", "0.5", "--stream-duration", "100"]
    pages = {}
    for name, words in (
        ("tasks", ["tasks.toml", "--no-report", "--quiet"]),
        ("vertical", [*vertical, *small]),
        ("stream", [*stream, "--delay", "constant:10", *small]),
    ):
        done = CliRunner().invoke(app, ["run", *words, "--out", name])
        assert done.exit_code == 0, done.output
        pages[name] = write_report(name, f"{name}.html").read_text()
    assert "digits, low digits" in pages["tasks"]
    assert (
        "Each round is evaluated on the task being learnt: low digits up to round 1, high digits up to"
        in pages["tasks"]
    )
    assert "2 parties with 5 + 5 columns" in pages["vertical"]
    assert "Spread over clients" not in re.sub(r'<script type="application/json".*?</script>', "", pages["vertical"])
    assert "Rows that arrive" in pages["stream"]
    assert json.loads((Path("stream") / "history.jsonl").read_text().splitlines()[-1])["arrived"] > 0
    assert len(find_runs("tasks")[0].parts) == 2
