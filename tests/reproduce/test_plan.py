"""Files of experiments: which cells they make, and what is said of those that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedloom.errors import ConfigError
from fedloom.experiment import Shelf
from fedloom.reproduce import read_plan
from fedloom.reproduce.plan import check

Write = Callable[..., Path]
Parts = dict[str, str]


def refusal(file: Path, **how: bool) -> str:
    with pytest.raises(ConfigError) as caught:
        read_and_check(file, **how)
    return str(caught.value)


def read_and_check(file: Path, **how: bool) -> None:
    plan = read_plan(file, **how)
    check(plan.cells, plan, [], Shelf())


def test_a_cell_has_the_common_settings_then_its_columns_then_its_rows_then_its_own(write: Write, parts: Parts) -> None:
    file = write(
        parts["head"],
        "[run.method]\nlr = 0.5\nbatch = 8\nepochs = 7\n",
        '[[column]]\nname = "a"\nrounds = 5\nmethod = { epochs = 3 }\n[[column]]\nname = "b"\ntarget = 0.5\n',
        '[[row]]\nname = "x"\nmethod = { name = "fedavg", batch = 16 }\ncell = { b = { rounds = 9, repeats = 1 } }\n',
        '[[row]]\nname = "y"\nmethod = { name = "fedsgd" }\nrepeats = 4\n',
    )
    plan = read_plan(file)
    assert [cell.title for cell in plan.cells] == ["x / a", "y / a", "x / b", "y / b"]
    xa, ya, xb, yb = plan.cells
    assert xa.settings.values["method"] == {"name": "fedavg", "lr": 0.5, "batch": 16, "epochs": 3}
    assert ya.settings.values["method"] == {"name": "fedsgd", "lr": 0.5}
    assert (xa.settings.values["rounds"], xb.settings.values["rounds"], yb.settings.values["rounds"]) == (5, 9, 2)
    assert [cell.repeats for cell in plan.cells] == [2, 4, 1, 4]
    assert (xa.target, xb.target) == (None, 0.5)


def test_a_section_with_another_name_takes_the_place_of_the_common_one(write: Write, parts: Parts) -> None:
    head = parts["head"].replace('{ name = "linear" }', '{ name = "mlp", hidden = [7] }')
    column = '[[column]]\nname = "a"\nmodel = { name = "linear" }\n[[column]]\nname = "b"\nmodel = { hidden = [9] }\n'
    linear, mlp = read_plan(write(head, column, parts["row"])).cells
    assert linear.settings.values["model"] == {"name": "linear"}
    assert mlp.settings.values["model"] == {"name": "mlp", "hidden": [9]}


def test_a_grid_is_all_combinations_of_lists_or_a_list_of_points(write: Write, parts: Parts) -> None:
    rows = (
        '[[row]]\nname = "x"\ngrid = { lr = [0.1, 0.2], "data.clients" = [2, 3] }\n'
        '[[row]]\nname = "y"\ngrid = [{ lr = 1 }, { lr = 2, batch = 4 }, { lr = 3 }, { lr = 4 }]\n'
    )
    x, y = read_plan(write(parts["head"], parts["column"], rows)).cells
    assert x.points == tuple({"method.lr": lr, "data.clients": n} for lr in (0.1, 0.2) for n in (2, 3))
    assert y.points[1] == {"method.lr": 2, "method.batch": 4}
    assert str(x.tuning_place(x.points[0])) == "x/iid/tune/lr-0.1-data.clients-2"


def test_only_the_least_and_the_greatest_number_are_the_ends_of_a_grid(write: Write, parts: Parts) -> None:
    rows = (
        '[[row]]\nname = "x"\ngrid = { lr = [0.3, 0.1, 1.0] }\n'
        '[[row]]\nname = "y"\ngrid = [{ lr = 1, batch = 1 }, { lr = 2, batch = 4 }, { lr = 3, batch = 2 }]\n'
        '[[row]]\nname = "z"\ngrid = { weighting = ["size", "uniform", "size "] }\n'
    )
    x, y, z = read_plan(write(parts["head"], parts["column"], rows)).cells
    assert [x.at_end(point) for point in x.points] == [False, True, True]
    assert not x.at_end(None)
    assert not any(y.at_end(point) for point in y.points)
    assert not any(z.at_end(point) for point in z.points)


def test_published_values_are_pairs_numbers_or_tables(write: Write, parts: Parts) -> None:
    columns = "".join(f'[[column]]\nname = "{name}"\n' for name in "abcd")
    row = parts["row"] + 'published = { a = [81.5, 0.5], b = 80, c = { value = 1.0, not_comparable = "other data" } }\n'
    a, b, c, d = (cell.published for cell in read_plan(write(parts["head"], columns, row)).cells)
    assert (a.value, a.std) == (81.5, 0.5)
    assert (b.value, b.std) == (80.0, None)
    assert (c.value, c.not_comparable) == (1.0, "other data")
    assert d is None


def test_quick_wins_over_every_other_setting_also_in_tuning(write: Write, parts: Parts) -> None:
    file = write(
        parts["head"],
        "[tune]\nrounds = 9\nseed = 77\n[quick]\nrounds = 1\npoints = 1\ntune = { dtype = 'float64' }\n",
        '[[column]]\nname = "a"\nrounds = 5\n',
        parts["row"],
        "grid = { lr = [0.1, 0.2] }\nrounds = 6\n",
    )
    (whole,), (quick,) = read_plan(file).cells, read_plan(file, quick=True).cells
    assert (whole.settings.values["rounds"], quick.settings.values["rounds"]) == (6, 1)
    assert (whole.repeats, quick.repeats) == (2, 1)
    assert (len(whole.points), len(quick.points)) == (2, 1)
    trial = quick.trial(77, quick.points[0], [], Shelf())
    assert (trial.top.rounds, trial.top.dtype, trial.top.seed) == (1, "float64", 77)
    assert whole.trial(77, whole.points[0], [], Shelf()).top.rounds == 9


def test_all_that_is_wrong_with_the_file_is_said_at_once_with_its_lines(write: Write) -> None:
    file = write(
        "titel = 'x'\nrepeats = 0\n",
        '[[column]]\nname = "a"\ntarget = "high"\n',
        '[[row]]\nname = "x"\npublished = { b = 1.0 }\n[[row]]\nname = "x"\n',
    )
    text = refusal(file)
    assert "digits.toml:1: titel = \"x\" is no setting of an experiment's table; did you mean 'title'?" in text
    assert "digits.toml:2: repeats = 0 should be a whole number of at least 1" in text
    assert 'digits.toml:5: column.0.target = "high" should be a number' in text
    assert 'digits.toml:10: row.1.name = "x" is there twice' in text
    assert "title is missing" in text


def test_what_is_wrong_with_any_run_is_said_once_with_its_line_before_the_first_run(write: Write, parts: Parts) -> None:
    file = write(
        parts["head"].replace("clients = 3", "clients = -3"),
        '[[column]]\nname = "a"\n[[column]]\nname = "b"\nmodel = { nam = "mlp" }\n',
        '[[row]]\nname = "x"\nmethod = { name = "fedavgg" }\n',
        '[[row]]\nname = "y"\nmethod = { name = "fedavg" }\ngrid = { lr = [0.1, -0.1] }\n',
    )
    text = refusal(file)
    assert text.count("digits.toml:8: data.clients = -3 should be") == 1
    assert "digits.toml:14: model.nam" in text
    assert "digits.toml:17: method.name = \"fedavgg\" is no method; did you mean 'fedavg'?" in text
    assert "digits.toml:21: method.lr = -0.1 " in text


def test_rows_speak_only_of_columns_that_are_there(write: Write, parts: Parts) -> None:
    row = parts["row"] + "published = { idd = 80.0 }\n"
    assert "row.0.published.idd = 80.0 is of no column; did you mean 'iid'?" in refusal(
        write(parts["head"], parts["column"], row)
    )


def test_a_published_value_that_is_none_is_refused(write: Write, parts: Parts) -> None:
    row = parts["row"] + 'published = { iid = { value = "high", stdd = 1.0 } }\n'
    text = refusal(write(parts["head"], parts["column"], row))
    assert "value should be a number" in text
    assert "did you mean 'std'?" in text


def test_grids_of_different_sizes_are_unfair_and_refused(write: Write, parts: Parts) -> None:
    rows = '[[row]]\nname = "x"\ngrid = { lr = [0.1, 0.2] }\n[[row]]\nname = "y"\ngrid = { lr = [0.1] }\n'
    assert "grids differ in their number of points" in refusal(write(parts["head"], parts["column"], rows))


def test_the_seed_of_tuning_must_be_none_of_the_results(write: Write, parts: Parts) -> None:
    file = write(parts["head"], "[tune]\nseed = 1\n", parts["column"], parts["row"], "grid = { lr = [0.1] }\n")
    assert "digits.toml:11: tune.seed = 1 cannot be: 1 is the seed of a result, too" in refusal(file)


def test_a_measure_that_the_runs_do_not_evaluate_is_refused(write: Write, parts: Parts) -> None:
    head = parts["head"].replace('"accuracy"', '"target/accuracy"')
    text = refusal(write(head, parts["column"], parts["row"]))
    assert 'digits.toml:4: measure.metric = "target/accuracy" is not evaluated; did you mean' in text


def test_only_chooses_cells_by_a_part_of_their_name(write: Write, parts: Parts) -> None:
    columns = '[[column]]\nname = "iid"\n[[column]]\nname = "skewed"\n'
    rows = '[[row]]\nname = "FedAvg"\n[[row]]\nname = "FedSGD"\nmethod = { name = "fedsgd" }\n'
    plan = read_plan(write(parts["head"], columns, rows))
    assert [cell.title for cell in plan.matching(["fedsgd"])] == ["FedSGD / iid", "FedSGD / skewed"]
    assert [cell.title for cell in plan.matching(["fedavg / iid"])] == ["FedAvg / iid"]
    with pytest.raises(ConfigError, match="no cell of 'digits' has 'fedsdg' in its name; did you mean 'FedSGD'"):
        plan.matching(["fedsdg"])


def test_only_takes_the_name_of_a_row_or_column_as_just_that(write: Write, parts: Parts) -> None:
    columns = '[[column]]\nname = "ten"\n[[column]]\nname = "ten more"\n'
    rows = '[[row]]\nname = "FedAvg"\n[[row]]\nname = "FedAvg, twice"\n'
    plan = read_plan(write(parts["head"], columns, rows))
    assert [cell.title for cell in plan.matching(["ten"])] == ["FedAvg / ten", "FedAvg, twice / ten"]
    assert [cell.title for cell in plan.matching(["fedavg"])] == ["FedAvg / ten", "FedAvg / ten more"]
    assert [cell.title for cell in plan.matching(["FedAvg / ten", "twice / ten m"])] == [
        "FedAvg / ten",
        "FedAvg, twice / ten more",
    ]


def test_a_row_may_stand_in_some_columns_only(write: Write, parts: Parts) -> None:
    columns = "".join(f'[[column]]\nname = "{name}"\n' for name in "ab")
    rows = parts["row"] + '[[row]]\nname = "y"\ncolumns = ["b"]\n'
    plan = read_plan(write(parts["head"], columns, rows))
    assert [cell.title for cell in plan.cells] == ["FedAvg / a", "FedAvg / b", "y / b"]
    wrong = refusal(write(parts["head"], columns, rows.replace('["b"]', '["c"]')))
    assert "row.1.columns" in wrong
    assert "'c', which is no column" in wrong


def test_a_row_or_column_that_reads_the_runs_of_another_has_its_settings_and_its_own_measure(
    write: Write, parts: Parts
) -> None:
    columns = (
        '[[column]]\nname = "a"\nrounds = 5\ntarget = 0.5\n'
        '[[column]]\nname = "b"\nruns_of = "a"\nmeasure = { metric = "on high/accuracy" }\n'
    )
    rows = parts["row"] + 'published = { a = 1.0 }\n[[row]]\nname = "y"\nruns_of = "FedAvg"\nmeasure = { task = 1 }\n'
    file = write(parts["head"], parts["tasks"], columns, rows)
    read_and_check(file)
    cells = {cell.title: cell for cell in read_plan(file).cells}
    assert {str(cell.folder) for cell in cells.values()} == {"FedAvg/a"}
    assert all(cell.settings.values["rounds"] == 5 for cell in cells.values())
    last = cells["y / b"]
    assert (last.measure.metric, last.measure.task, last.measure.scale) == ("on high/accuracy", 1, "percent")
    assert (last.published, last.target) == (None, None)
    assert cells["FedAvg / a"].measure == read_plan(file).measure


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ('runs_of = "FedAvg"', "row.0.runs_of"),
        ('runs_of = "nobody"', "is no row with runs of its own"),
        ('measure = { metric = "on high/beauty" }', "has no metric 'beauty'"),
        ('measure = { metric = "on third/accuracy" }', "is not evaluated; did you mean"),
        ("measure = { task = 3 }", "task = 3 cannot be: FedAvg / iid has 2 tasks"),
        ("measure = 7", "should be a table"),
    ],
)
def test_measures_and_runs_that_cannot_be_are_refused(write: Write, parts: Parts, rows: str, said: str) -> None:
    assert said in refusal(write(parts["head"], parts["tasks"], parts["column"], parts["row"], rows + "\n"))
