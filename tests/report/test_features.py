"""What was measured of single input columns, as a heat map."""

from __future__ import annotations

from pathlib import Path

from fedloom.report import feature_picture
from fedloom.report.curves import measure_curves
from fedloom.report.features import feature_table
from fedloom.report.groups import Group
from fedloom.report.runs import RunRecord


def run_of(rows):
    return RunRecord(Path("run"), {}, "", {}, tuple(rows), {})


def rows_with(measures, count):
    return [{"round": index, "measures": measures(index)} for index in range(count)]


def test_forty_eight_rounds_are_shown_evenly_spread_with_both_ends():
    run = run_of(rows_with(lambda t: {"feature/pm25": t, "feature/no2": -t, "drift": 0.1}, 471))
    names, rounds, values = feature_table(run)
    assert names == ["pm25", "no2"]
    assert rounds == list(range(0, 471, 10))
    assert values.tolist() == [rounds, [-t for t in rounds]]


def test_a_short_run_is_shown_whole_with_numbered_columns_and_gaps():
    run = run_of([{"round": 0}, *rows_with(lambda t: {"feature/0": 1.0, "feature/1": None if t == 2 else 2.0}, 4)[1:]])
    heat = feature_picture(Group("it", (run,))).data[0]
    assert list(heat.y) == ["column 0", "column 1"]
    assert list(heat.x) == ["1", "2", "3"]
    assert [list(row) for row in heat.z] == [[1, 1, 1], [2, None, 2]]
    assert heat.meta == {"sequence": True}


def test_columns_are_not_drawn_as_curves():
    run = run_of(rows_with(lambda t: {"feature/0": 1.0, "drift": 0.5}, 3))
    assert list(measure_curves([Group("it", (run,))]).lines) == ["drift"]


def test_there_is_no_picture_where_no_column_was_measured():
    assert feature_picture(Group("it", (run_of(rows_with(lambda t: {"drift": 0.5}, 3)),))) is None


def test_very_many_columns_are_thinned_and_their_names_are_plain_text():
    run = run_of(rows_with(lambda t: {f"feature/<b>{at}": at for at in range(1000)}, 60))
    heat = feature_picture(Group("it", (run,))).data[0]
    assert len(heat.z) == 256
    assert heat.y[0] == "&lt;b&gt;0"
    assert heat.y[-1] == "&lt;b&gt;999"
