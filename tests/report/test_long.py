"""The history of a long run is thinned on its way into the page, and nowhere else."""

from __future__ import annotations

import gc
import json
import tracemalloc
from pathlib import Path

import numpy as np

from fedloom.report import find_runs, group_runs, write_report
from fedloom.report.curves import LIMIT, metric_curves, participation
from fedloom.report.groups import Target
from fedloom.storage.history import History
from fedloom.storage.rows import Rows

PAD = {"gap": 0.5, "text": "x" * 1000}


def long_run(folder: Path, rounds: int) -> Path:
    """Accuracy t/rounds; of every ten clients one is lost; one job of half a second in each second, of one client."""
    folder.mkdir()
    with History(folder / "history.jsonl") as history:
        for t in range(rounds + 1):
            row = {"round": t, "simulated_seconds": float(t), "bytes_up": t, "selected": 10, "accepted": 9, "lost": 1}
            metrics = {"accuracy": {"weighted": t / rounds, "mean": t / rounds}, "loss": {"weighted": 1.0}}
            jobs = [[0, t - 1.0, t - 0.5, "accepted"]] if t else []
            history.append({**row, "evaluation": metrics, "measures": PAD, "jobs": jobs})
    return folder


def peak_of_report(folder: Path, page: Path) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        write_report(folder, page)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_report_of_a_long_history_has_bounded_memory_and_a_small_page(tmp_path: Path) -> None:
    short, long = long_run(tmp_path / "short", LIMIT), long_run(tmp_path / "long", 2 * LIMIT)
    write_report(long_run(tmp_path / "warm", 10), tmp_path / "warm.html")
    peaks = [peak_of_report(folder, tmp_path / f"{folder.name}.html") for folder in (short, long)]
    assert peaks[1] - peaks[0] <= 200 * LIMIT  # a row has 1,500 bytes in its file, and 3,000 in memory
    sizes = [(tmp_path / f"{folder.name}.html").stat().st_size for folder in (short, long)]
    assert sizes[1] < 1.1 * sizes[0]


def test_what_is_told_of_a_long_history_is_exact(tmp_path: Path) -> None:
    rounds = LIMIT + 501
    groups = group_runs(find_runs(long_run(tmp_path / "run", rounds)))
    run = groups[0].runs[0]
    assert isinstance(run.history, Rows)
    assert len(run.history) == rounds + 1 == (tmp_path / "run" / "history.jsonl").read_bytes().count(b"\n")
    assert run.rounds == rounds
    assert run.final("accuracy") == 1.0
    reached = Target("accuracy", 1002 / rounds).reached_at(run)
    assert reached is not None
    assert reached["round"] == 1002
    curves = metric_curves(groups)
    assert curves.thinned
    (line,) = curves.lines["accuracy"]["weighted"]
    shown = curves.axes["round"].values[0]
    assert len(shown) == LIMIT
    assert (shown[0], shown[-1]) == (0, rounds)
    np.testing.assert_allclose(line.mean, shown / rounds, rtol=1e-12)
    told = participation(groups[0])
    assert told is not None
    assert set(told["lost"].tolist()) == {1.0}
    assert set(told["accepted"].tolist()) == {9.0}


def test_rows_that_stand_in_another_order_or_twice_are_taken_by_their_rounds(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    lines = [{"round": t, "bytes_up": at} for at, t in enumerate([0, 2, 1, 3, 2])]
    (tmp_path / "run" / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run,) = find_runs(tmp_path / "run")
    assert [(row["round"], row["bytes_up"]) for row in run.history] == [(0, 0), (1, 2), (2, 4), (3, 3)]
