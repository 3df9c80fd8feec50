"""Improvements of rows over others, columns that cannot be run, and measures that read a clock or a moment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.errors import ConfigError
from fedloom.reproduce import Reproduction, read_plan, tables
from fedloom.reproduce.outcome import improvement
from fedloom.reproduce.shelf import shipped

Write = Callable[..., Path]
Reproduce = Callable[..., Any]
Parts = dict[str, str]

SECOND = '[[row]]\nname = "Late"\nmethod = { name = "fedavg", lr = 1e-9 }\npublished = { iid = 50.0 }\n'
BETTER = '[[improvement]]\nname = "gain"\nof = "FedAvg"\nover = "Late"\n'
CLOCK = "fleet = { delay_up = 10 }\n"
GONE = '[[column]]\nname = "gone"\nunavailable = "nobody has the data"\n'


def words(record: dict[str, Any], row: str, column: str) -> tables.Word:
    grid = tables.grids(record)[0]
    return grid.body[grid.rows.index(row)][grid.columns.index(column)]


@pytest.mark.parametrize(
    ("mine", "others", "upwards", "percent"),
    [
        (0.77, [0.66], True, 16.667),
        (12.31, [13.61], False, 9.552),
        (0.88, [0.87, 0.92, 0.72], True, -4.348),
        (36.71, [44.30, 36.72], False, 0.027),
        (0.77, [0.77], True, 0.0),
        (1.0, [-2.0], True, 150.0),
    ],
)
def test_an_improvement_is_relative_to_the_best_of_the_others(
    mine: float, others: list[float], upwards: bool, percent: float
) -> None:
    assert improvement(mine, others, upwards) == pytest.approx(percent, abs=1e-3)


def test_what_is_not_known_improves_on_nothing() -> None:
    assert improvement(None, [1.0], True) is None
    assert improvement(1.0, [2.0, None], True) is None
    assert improvement(1.0, [0.0], True) is None


@given(st.floats(0.01, 100), st.lists(st.floats(0.01, 100), min_size=1, max_size=4), st.booleans())
def test_an_improvement_is_positive_exactly_where_the_row_is_better_than_all_others(
    mine: float, others: list[float], upwards: bool
) -> None:
    found = improvement(mine, others, upwards)
    better = all(mine > other if upwards else mine < other for other in others)
    assert found is not None
    assert (found > 0) == better


def test_the_published_improvements_of_table_iv_1_follow_from_its_values_but_for_two_that_are_swapped() -> None:
    plan = read_plan(shipped() / "d2-quality.toml")
    cells = {(cell.row, cell.column): cell for cell in plan.cells}

    def follows(one: Any, column: str) -> float | None:
        values = [cells[row, column].published for row in (one.of, *one.over)]
        numbers = [None if value is None else value.value for value in values]
        return improvement(numbers[0], numbers[1:], cells[one.of, column].measure.upwards)

    (first, said_first), (second, said_second) = plan.improvements
    assert len(said_first) == len(said_second) == len(plan.columns) == 11
    swapped = "Air: SMAPE"
    for one, said in ((first, said_first), (second, said_second)):
        for column in plan.columns:
            if column != swapped:
                assert follows(one, column) == pytest.approx(said[column].value, abs=0.01)
    assert follows(first, swapped) == pytest.approx(said_second[swapped].value, abs=0.01)
    assert follows(second, swapped) == pytest.approx(said_first[swapped].value, abs=0.01)
    assert "swapped" in said_first[swapped].note


def test_the_report_has_our_improvement_and_the_published_one_or_what_follows_from_published_values(
    write: Write, reproduce: Reproduce, parts: Parts
) -> None:
    row = parts["row"] + "published = { iid = 60.0 }\n"
    told = reproduce(write(parts["head"], parts["column"], row, SECOND, BETTER), repeats=1)
    ours, late = (told.cells[f"{name} / iid"]["mean"] for name in ("FedAvg", "Late"))
    word = words(told.record, "gain", "iid")
    assert word.line == f"{100 * (ours - late) / late:.2f} %"
    assert word.below == ("published 20.00 %",)
    printed = 'published = { iid = { value = 2.0, note = "misprint" } }\n'
    again = reproduce(write(parts["head"], parts["column"], row, SECOND, BETTER, printed), repeats=1)
    assert words(again.record, "gain", "iid").below == ("published 2.00 %",)
    assert "gain / iid, published: misprint" in tables.notes(again.record)


def test_a_row_that_does_not_stand_in_a_column_has_no_improvement_there(write: Write, parts: Parts) -> None:
    file = write(parts["head"], parts["column"], GONE, parts["row"], SECOND, 'columns = ["iid"]\n', BETTER)
    record = Reproduction(read_plan(file), Path("out")).record()
    assert words(record, "gain", "gone") == tables.Word("–")
    assert words(record, "gain", "iid") == tables.Word("–")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BETTER.replace('"Late"', '"Lade"'), "has 'Lade', which is no row; did you mean 'Late'?"),
        (BETTER.replace('"Late"', "[]"), "improvement.0.over = [] names no row"),
        (BETTER + "rounds = 3\n", "improvement.0.rounds = 3 is no setting of an improvement"),
        (BETTER + "published = { other = 3 }\n", "improvement.0.published.other = 3 is of no column"),
        ("improvement = 3\n", "write [[improvement]] above the keys"),
    ],
)
def test_improvements_that_cannot_be_are_refused(write: Write, parts: Parts, text: str, said: str) -> None:
    front, back = (text, "") if text.startswith("improvement") else ("", text)
    with pytest.raises(ConfigError, match="improvement") as error:
        read_plan(write(front, parts["head"], parts["column"], parts["row"], SECOND, back))
    assert said in str(error.value)


def test_a_column_that_cannot_be_run_shows_what_was_published_and_why(
    write: Write, reproduce: Reproduce, parts: Parts
) -> None:
    row = parts["row"] + "grid = { lr = [0.1] }\npublished = { gone = 12.5 }\n"
    told = reproduce(write(parts["head"], "[tune]\nseed = 9\n", GONE, parts["column"], row), repeats=1)
    assert [line.partition(",")[0] for line in told.lines] == ["[1/2] FedAvg / iid", "[2/2] FedAvg / iid"]
    assert told.record["finished"] is True
    assert words(told.record, "FedAvg", "gone") == tables.Word("–", ("published 12.50",))
    assert tables.notes(told.record)[0] == "gone: nobody has the data"
    assert told.cells["FedAvg / gone"]["verdict"] == "not run"


def test_what_cannot_be_compared_in_a_whole_column_is_said_once(
    write: Write, reproduce: Reproduce, parts: Parts
) -> None:
    columns = parts["column"] + 'not_comparable = "other people"\n' + '[[column]]\nname = "same"\nruns_of = "iid"\n'
    said = "published = { iid = 50.0, same = 60.0 }\n"
    late = SECOND.replace("published = { iid = 50.0 }\n", said)
    told = reproduce(write(parts["head"], columns, parts["row"], said, late), repeats=1)
    for row in ("FedAvg", "Late"):
        assert words(told.record, row, "iid").below == ("published 50.00", "not comparable", "1 repeat")
        assert told.cells[f"{row} / iid"]["why"] == "other people"
    (first, second) = tables.notes(told.record)
    assert first == "iid: other people"
    assert second == "same: neither side has a spread: repeat it with --repeats 2 or more"


def test_runs_that_several_columns_read_count_once(write: Write, reproduce: Reproduce, parts: Parts) -> None:
    columns = parts["column"] + '[[column]]\nname = "same"\nruns_of = "iid"\n'
    told = reproduce(write(parts["head"], columns, parts["row"], SECOND), repeats=1)
    assert tables.progress(told.record) == "2 of 2 runs done"
    assert [line.partition(",")[0] for line in told.lines] == ["[1/2] FedAvg / iid", "[2/2] Late / iid"]


def test_what_is_said_of_one_cell_wins_over_what_is_said_of_its_column(write: Write, parts: Parts) -> None:
    column = parts["column"] + 'not_comparable = "other people"\n'
    row = parts["row"] + 'published = { iid = { value = 60.0, not_comparable = "a misprint" } }\n'
    (cell,) = read_plan(write(parts["head"], column, row)).cells
    assert cell.published is not None
    assert cell.published.not_comparable == "a misprint"


def test_a_measure_may_be_the_time_to_the_target(write: Write, reproduce: Reproduce, parts: Parts) -> None:
    head = parts["head"].replace('scale = "percent"', 'reads = "minutes"') + CLOCK
    columns = '[[column]]\nname = "iid"\ntarget = 0.3\n[[column]]\nname = "high"\ntarget = 1.1\n'
    row = parts["row"] + "published = { iid = 1.0, high = 2.0 }\n"
    told = reproduce(write(head, columns, row))
    cell, never = told.cells["FedAvg / iid"], told.cells["FedAvg / high"]
    assert cell["mean"] == pytest.approx(cell["target"]["seconds"] / 60, rel=1e-12)
    assert cell["mean"] * 6 in (1.0, 1.5, 2.0)  # rounds of ten seconds, two repeats
    assert cell["measure"]["better"] == "down"
    assert (never["mean"], never["diverged"]) == (None, 0)
    assert (never["verdict"], never["why"]) == ("not comparable", "no repeat reached the target")
    assert words(told.record, "FedAvg", "high").line == "not reached"
    assert tables.grids(told.record)[0].title.startswith("Minutes to the target")
    assert [line for line in told.lines if "target not reached" in line]


def test_tuning_takes_the_point_that_reaches_the_target_first(write: Write, reproduce: Reproduce, parts: Parts) -> None:
    head = parts["head"].replace('scale = "percent"', 'reads = "minutes"').replace("rounds = 2", "rounds = 4") + CLOCK
    column = parts["column"] + "target = 0.3\n"
    slow = '[[row]]\nname = "Slow"\nmethod = { name = "fedavg" }\ngrid = { lr = [1e-9, 1e-8] }\n'
    told = reproduce(write(head, column, parts["row"] + "grid = { lr = [1e-9, 0.1] }\n", slow))
    cell, never = told.cells["FedAvg / iid"], told.cells["Slow / iid"]
    assert cell["tuned"] == {"method.lr": 0.1}
    assert cell["trials"]["lr=0.1"] == cell["mean"] == pytest.approx(1 / 6)
    assert (never["tuned"], never["why"]) == (None, "no point of the grid reached the target")
    assert words(told.record, "Slow", "iid").line == "not reached"


def test_a_time_without_a_target_is_refused(write: Write, parts: Parts) -> None:
    head = parts["head"].replace('scale = "percent"', 'reads = "seconds"')
    with pytest.raises(ConfigError, match="needs a target beside it: its measure reads seconds"):
        read_plan(write(head, parts["column"], parts["row"]))


def test_a_measure_may_be_of_a_moment_of_the_simulated_clock(write: Write, reproduce: Reproduce, parts: Parts) -> None:
    columns = parts["column"] + '[[column]]\nname = "before"\nruns_of = "iid"\nmeasure = { at_seconds = 19.9 }\n'
    told = reproduce(write(parts["head"], CLOCK, columns, parts["row"]), repeats=1)
    lines = Path("out/FedAvg/iid/seed-0/history.jsonl").read_text().splitlines()
    values = {row["simulated_seconds"]: row["evaluation"]["accuracy"]["weighted"] for row in map(json.loads, lines)}
    assert list(values) == [0.0, 10.0, 20.0]
    assert told.cells["FedAvg / before"]["mean"] == pytest.approx(100 * values[10.0])
    assert told.cells["FedAvg / iid"]["mean"] == pytest.approx(100 * values[20.0])


def test_each_column_has_its_own_best(write: Write, reproduce: Reproduce, parts: Parts) -> None:
    columns = parts["column"] + '[[column]]\nname = "loss"\nruns_of = "iid"\nmeasure = { metric = "loss" }\n'
    told = reproduce(write(parts["head"], columns, parts["row"], SECOND), repeats=1)
    assert [words(told.record, "FedAvg", name).best for name in ("iid", "loss")] == [True, True]
    assert tables.grids(told.record)[0].title == "Mean ± standard deviation over repeats"
