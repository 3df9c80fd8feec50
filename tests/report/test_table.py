from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console

from fedloom.report import Target, find_runs, group_runs, html_table, make_target, read_run, rich_table, rows
from fedloom.report.table import cells


@pytest.fixture
def groups(comparison):
    return group_runs(find_runs(comparison))


def printed(table, width=200):
    console = Console(width=width, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_a_row_has_mean_and_standard_deviation_over_the_repeats(groups):
    row = rows(groups)[1]
    accuracy = [run.summary["metrics"]["accuracy"] for run in groups[1].runs]
    worst = [run.summary["spread"]["accuracy"]["worst_tenth"] for run in groups[1].runs]
    assert (row["label"], row["runs"], row["finished"], row["rounds"]) == ("fedavg", 3, 3, 30)
    assert row["accuracy"] == pytest.approx(np.mean(accuracy))
    assert row["accuracy_std_over_runs"] == pytest.approx(np.std(accuracy, ddof=1))
    assert row["accuracy_worst_tenth"] == pytest.approx(np.mean(worst))
    assert row["bytes_down"] == 30 * 10 * 35_880


def test_one_run_alone_has_no_spread_and_no_sign_of_one(make_run):
    groups = group_runs([read_run(make_run())])
    assert rows(groups)[0]["accuracy_std_over_runs"] is None
    assert not any("±" in cell.text for cell in cells(groups)[0])


def test_the_best_is_marked_upwards_for_accuracy_and_downwards_for_loss_and_spread(groups):
    body = cells(groups)
    best = {
        line[at].column.key: group.label
        for group, line in zip(groups, body, strict=True)
        for at in range(len(line))
        if line[at].best
    }
    assert best == dict.fromkeys(
        ("accuracy", "loss", "accuracy_std", "accuracy_worst_tenth"), "fedavg"
    )  # central: no choice


def test_values_that_read_equal_are_marked_equally(make_run):
    runs = [read_run(make_run(name, label=name, lr=lr)) for name, lr in (("a", 0.1), ("b", 0.2), ("c", 0.3))]
    for run, value in zip(runs, (0.90011, 0.90019, 0.8), strict=True):
        run.summary["spread"]["accuracy"]["weighted"] = value
    marked = {group.label: line[0].best for group, line in zip(group_runs(runs), cells(group_runs(runs)), strict=True)}
    assert marked == {"a": True, "b": True, "c": False}


def test_nothing_is_best_when_there_is_nothing_to_compare_with(make_run):
    one = group_runs([read_run(make_run("a"))])
    assert not any(cell.best for cell in cells(one)[0])
    other = make_run("b", clients=10)
    apart = group_runs([one[0].runs[0], read_run(other)])
    assert len(apart) == 2
    assert not any(cell.best for line in cells(apart) for cell in line)


def test_nothing_is_best_where_several_evaluations_differ(make_run):
    runs = []
    for where, split in (("a", "test"), ("b", "train")):
        config = make_run(where, lr=0.1 if where == "a" else 0.5) / "config.toml"
        one, _, rest = config.read_text().partition("[evaluation]\n")
        _, _, last = rest.partition("[execution]")
        lists = "".join(f'[[evaluation]]\nname = "{name}"\nsplit = "{split}"\n' for name in ("main", "other"))
        config.write_text(f"{one}{lists}[execution]{last}")
        runs.append(read_run(config.parent))
    assert not any(cell.best for line in cells(group_runs(runs)) for cell in line)


def test_the_way_to_a_target_says_who_reached_it(groups):
    target = Target("accuracy", 0.9)
    table = rows(groups, target)
    central, local = table[0], table[2]
    reached = [target.reached_at(run) for run in groups[0].runs]
    assert central["rounds_to_target"] == pytest.approx(np.mean([row["round"] for row in reached]))
    assert central["seconds_to_target"] == pytest.approx(np.mean([row["simulated_seconds"] for row in reached]))
    assert central["rounds_to_target_reached_by"] == 3
    assert local["rounds_to_target"] is None
    assert "not reached" in printed(rich_table(groups, target))


def test_bytes_to_a_target_count_both_ways(groups):
    target = Target("accuracy", 0.5)
    reached = [target.reached_at(run) for run in groups[1].runs]
    assert rows(groups, target)[1]["bytes_to_target"] == pytest.approx(
        np.mean([row["bytes_up"] + row["bytes_down"] for row in reached])
    )


def test_a_target_that_some_repeats_reached_says_how_many(make_run):
    runs = [
        read_run(make_run("a", seed=1, rounds=30)),
        read_run(make_run("b", seed=2, rounds=2, planned=30, finished=False)),
    ]
    (line,) = cells(group_runs(runs), Target("accuracy", 0.7))
    assert any(cell.text.endswith("(1 of 2)") for cell in line if cell.column.heading == "target")


def test_runs_that_were_to_end_at_a_target_tell_when_they_reached_it(make_run):
    runs = [read_run(make_run(name, schedule=name, goal=0.8)) for name in ("rounds", "async")]
    groups = group_runs(runs)
    target = make_target(groups, None)
    assert target == Target("accuracy", 0.8)
    reached = [target.reached_at(run)["simulated_seconds"] for run in runs]
    assert [row["seconds_to_target"] for row in rows(groups, target)] == pytest.approx(reached)
    assert make_target(groups, 0.5) == Target("accuracy", 0.5)


def test_there_is_no_target_in_common_where_runs_have_different_ones_or_none(make_run):
    runs = [read_run(make_run(str(goal), schedule="rounds", goal=goal)) for goal in (0.8, 0.9, None)]
    assert make_target(group_runs(runs[:2]), None) is None
    assert make_target(group_runs(runs[1:]), None) is None
    assert make_target(group_runs(runs[2:]), None) is None


def test_the_goal_of_a_finished_run_is_that_of_its_summary(make_run):
    run = read_run(make_run(schedule="rounds", goal=0.8))
    run.summary["target"] = {"metric": "loss", "value": 0.5, "reached": None}
    assert run.goal == ("loss", 0.5)


def test_the_terminal_table_fits_the_width_it_is_given(groups):
    for width in (60, 80, 100, 140):
        text = printed(rich_table(groups, width=width), width)
        assert all(len(line.rstrip()) <= width for line in text.splitlines())
        assert "0.9" in text
        assert "…" not in text
    narrow, wide = printed(rich_table(groups, width=80), 80), printed(rich_table(groups))
    assert "not shown for want of width" in narrow
    assert "not shown" not in wide
    assert "rounds: 30" in wide


def test_what_a_user_wrote_is_not_markup_in_the_terminal(make_run):
    groups = group_runs([read_run(make_run(method="[bold]x[/bold]"))])
    assert "[bold]x[/bold]" in printed(rich_table(groups))


class Balanced(HTMLParser):
    """Collects text and checks that tags close in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.rows = [], "", []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag == "tr":
            self.rows.append(0)
        if tag in ("td", "th"):
            self.rows[-1] += int(dict(attrs).get("colspan", 1))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("target", [None, Target("accuracy", 0.9)])
def test_the_html_table_is_well_formed_with_rows_of_equal_length(groups, target):
    page = Balanced(html_table(groups, target))
    assert len(set(page.rows)) == 1
    assert page.text.count("(best)") == (4 if target is None else 7)
    assert ("To accuracy ≥ 0.9" in page.text) == (target is not None)


def test_the_html_table_escapes_what_a_user_wrote(make_run):
    text = html_table(group_runs([read_run(make_run(method="<script>alert(1)</script>"))]))
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_a_metric_that_is_not_finite_is_said_to_be_so_and_is_never_best(make_run):
    runs = [read_run(make_run("a", lr=0.1)), read_run(make_run("b", lr=9.0))]
    runs[1].summary["spread"]["accuracy"]["weighted"] = float("nan")
    body = cells(group_runs(runs))
    assert [line[0].value == "not finite" for line in body] == [False, True]
    assert [line[0].best for line in body] == [True, False]
