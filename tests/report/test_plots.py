from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest

from fedloom.report import (
    client_spread,
    find_runs,
    group_runs,
    label_picture,
    learning_curves,
    participation_chart,
    read_run,
)
from fedloom.report.curves import LIMIT, client_values, measure_curves, metric_curves, thin
from fedloom.report.groups import Group
from fedloom.report.look import DARK, LIGHT
from fedloom.report.words import time_unit, timed


@pytest.fixture
def groups(comparison):
    return group_runs(find_runs(comparison))


def in_memory(folder):
    """A run whose rows a test may change."""
    run = read_run(folder)
    return replace(run, history=list(run.history))


def traces(figure, part):
    return [trace for trace in figure.data if trace.meta.get("part") == part]


def test_a_curve_is_the_mean_over_repeats_with_a_band_of_one_standard_deviation(groups):
    figure = learning_curves(groups)
    values = np.array([[row["evaluation"]["accuracy"]["weighted"] for row in run.history] for run in groups[1].runs])
    mean, std = values.mean(axis=0), values.std(axis=0, ddof=1)
    assert [trace.name for trace in traces(figure, "mean")] == ["central", "fedavg", "local"]
    np.testing.assert_allclose(traces(figure, "mean")[1].y, mean, rtol=1e-5)
    np.testing.assert_allclose(traces(figure, "low")[1].y, mean - std, rtol=1e-5)
    np.testing.assert_allclose(traces(figure, "high")[1].y, mean + std, rtol=1e-5)
    assert list(traces(figure, "mean")[1].x) == list(range(31))


def test_one_run_has_a_line_and_no_band(make_run):
    figure = learning_curves(group_runs([read_run(make_run())]))
    assert [trace.meta["part"] for trace in figure.data] == ["mean"]


def test_curves_can_be_drawn_against_every_clock(groups):
    runs = groups[1].runs
    for clock, read in {
        "simulated_seconds": lambda row: row["simulated_seconds"],
        "bytes": lambda row: row["bytes_up"] + row["bytes_down"],
        "gradient_evaluations": lambda row: row["gradient_evaluations"],
        "wall_seconds": lambda row: row["wall_seconds"],
    }.items():
        line = traces(learning_curves(groups, x=clock, metric="loss", statistic="std"), "mean")[1]
        expected = np.mean([[read(row) for row in run.history] for run in runs], axis=0)
        np.testing.assert_allclose(line.x, expected, rtol=1e-5)


def test_rounds_are_the_usual_axis_unless_schedules_differ_or_nobody_waits(make_run, groups):
    assert metric_curves(groups).usual == "round"
    waiting, arriving = (read_run(make_run(name, schedule=name)) for name in ("rounds", "async"))
    assert metric_curves(group_runs([waiting])).usual == "round"
    for runs in ([waiting, arriving], [arriving]):
        curves = metric_curves(group_runs(runs))
        assert curves.usual == "simulated_seconds"
        assert learning_curves(group_runs(runs)).layout.xaxis.title.text == curves.axes["simulated_seconds"].title
        assert learning_curves(group_runs(runs), x="round").layout.xaxis.title.text == "Rounds"
    other = read_run(make_run("other", schedule="rounds", goal=0.9))
    assert metric_curves(group_runs([waiting, other])).usual == "simulated_seconds"


def test_without_simulated_time_rounds_are_the_usual_axis_of_every_schedule(make_run):
    run = in_memory(make_run(schedule="async"))
    for row in run.history:
        row["simulated_seconds"] = 0.0
    assert metric_curves(group_runs([run])).usual == "round"


def test_the_age_of_replies_has_curves_among_the_measures(make_run):
    runs = [read_run(make_run(name, schedule=name, rounds=4)) for name in ("rounds", "async")]
    lines = measure_curves(group_runs(runs)).lines
    assert list(lines) == ["gradient_norm", "drift", "mean_staleness", "max_staleness"]
    waiting, arriving = lines["max_staleness"]["value"]
    assert not np.isfinite(waiting.mean).any()
    assert arriving.mean[1:].tolist() == [7] * 4


def test_what_was_tested_before_it_was_trained_on_has_a_curve_beside_the_evaluation(make_run):
    groups = group_runs([read_run(make_run(schedule="async", rounds=4, every=2))])
    curves = metric_curves(groups)
    assert list(curves.lines) == ["accuracy", "loss", "prequential/accuracy"]
    assert list(curves.lines["prequential/accuracy"]) == ["weighted"]
    assert curves.lines["prequential/accuracy"]["weighted"][0].mean[1:].tolist() == [0.25, 0.5, 0.75, 1.0]
    assert "prequential/accuracy" not in metric_curves(groups, ("worst_tenth",)).lines


def test_a_long_time_is_told_in_hours(make_run):
    folder = make_run(rounds=1, finished=False)
    row = {"round": 2, "simulated_seconds": 36_000.0, "evaluation": {"accuracy": {"mean": 0.5}}}
    with (folder / "history.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    axis = metric_curves(group_runs([read_run(folder)])).axes["simulated_seconds"]
    assert axis.title == "Simulated time (hours)"
    assert axis.values[0][-1] == 10.0


@pytest.mark.parametrize(
    ("seconds", "unit"), [(179.0, "seconds"), (180.0, "minutes"), (7_200.0, "hours"), (172_800.0, "days")]
)
def test_an_axis_has_the_unit_that_the_table_has_for_as_long_a_time(seconds, unit):
    name, size = time_unit(seconds)
    assert name == unit
    assert timed(seconds).size == size


def test_a_round_that_a_run_passed_without_being_evaluated_is_not_in_the_mean(make_run):
    runs = [read_run(make_run(str(seed), seed=seed, rounds=rounds, every=2)) for seed, rounds in ((0, 5), (1, 8))]
    curves = metric_curves([Group("by the clock", tuple(runs))])
    (line,) = curves.lines["accuracy"]["weighted"]
    shown = curves.axes["round"].values[0][np.isfinite(line.mean)]
    assert shown.tolist() == [0, 2, 4, 6, 8]  # one run was evaluated after its last round, 5


def test_a_clock_that_stood_still_is_no_axis(make_run):
    axes = metric_curves(group_runs([read_run(make_run(method="local"))])).axes
    assert "bytes" not in axes
    assert "gradient_evaluations" in axes


def test_only_rounds_that_were_evaluated_are_drawn(make_run):
    figure = learning_curves(group_runs([read_run(make_run(rounds=12, every=5))]))
    assert list(figure.data[0].x) == [0, 5, 10, 12]


def test_repeats_that_stopped_earlier_count_as_far_as_they_got(make_run):
    runs = [
        read_run(make_run("a", seed=1, rounds=6)),
        read_run(make_run("b", seed=2, rounds=3, planned=6, finished=False)),
    ]
    (line,) = metric_curves(group_runs(runs)).lines["accuracy"]["weighted"]
    assert len(line.mean) == 7
    assert line.mean[6] == pytest.approx(runs[0].final("accuracy"))
    assert line.std[6] == 0


def test_a_band_around_positive_values_stays_positive(make_run):
    runs = [in_memory(make_run(str(seed), seed=seed, rounds=1)) for seed in (1, 2, 3)]
    for run, value in zip(runs, (0.01, 0.01, 5.0), strict=True):
        run.history[1]["evaluation"]["loss"]["weighted"] = value
    (line,) = metric_curves(group_runs(runs)).lines["loss"]["weighted"]
    assert line.mean[1] - line.std[1] < 0
    assert line.low[1] == 0.01


def test_a_long_history_is_thinned_evenly_and_keeps_its_ends(make_run):
    rows = LIMIT + 500
    folder = make_run(rounds=1, finished=False)
    lines = ({"round": at, "evaluation": {"accuracy": {"mean": at / rows}}} for at in range(rows + 1))
    (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    curves = metric_curves(group_runs([read_run(folder)]))
    x = curves.axes["round"].values[0]
    assert curves.thinned
    assert len(x) == LIMIT
    assert (x[0], x[-1]) == (0, rows)
    assert np.diff(x).max() <= 2


@pytest.mark.parametrize("count", [0, 1, 5, 10, 11, 1000])
def test_thinning_never_shows_a_point_twice(count):
    at = thin(count, 10)
    assert len(at) == len(set(at.tolist())) == min(count, 10)


def test_a_value_that_is_not_finite_leaves_a_gap(make_run):
    run = in_memory(make_run(rounds=3, finished=False))
    run.history[2]["evaluation"]["loss"]["weighted"] = float("inf")
    figure = learning_curves(group_runs([run]), metric="loss")
    assert [value is None for value in figure.data[0].y] == [False, False, True, False]
    assert "Infinity" not in figure.to_json()


def test_measures_have_curves_and_a_log_axis_where_it_suits(groups):
    curves = measure_curves(groups)
    assert list(curves.lines) == ["gradient_norm", "drift"]
    assert curves.log("gradient_norm")
    assert not curves.log("drift")
    assert not metric_curves(groups).log("accuracy")


def test_clients_are_shown_each_cumulatively_and_by_size(groups):
    expected = sorted(value for run in groups[2].runs for value in run.summary["per_client"]["accuracy"])
    for view in ("box", "cumulative"):
        np.testing.assert_allclose(client_spread(groups, "accuracy", view).data[2].x, expected, rtol=1e-5)
    assert client_spread(groups, "accuracy", "cumulative").data[2].y[-1] == 1
    by_size = client_spread(groups, "accuracy", "size")
    sizes = {size for run in groups[2].runs for size in run.data["sizes"]["train"]}
    assert set(by_size.data[2].x) == sizes


def test_very_many_clients_are_shown_as_quantiles(make_run):
    run = read_run(make_run(rounds=1))
    run.summary["per_client"] = {"clients": list(range(10_000)), "accuracy": np.linspace(0, 1, 10_000).tolist()}
    box = client_spread(group_runs([run]), "accuracy").data[0]
    assert len(box.x) == 400
    assert (box.x[0], box.x[-1]) == (0, 1)
    assert np.median(box.x) == pytest.approx(0.5, abs=0.01)


def test_clients_without_a_value_are_left_out(make_run):
    run = read_run(make_run(rounds=1))
    run.summary["per_client"]["accuracy"][:2] = [None, float("nan")]
    assert len(client_values(run, "accuracy")) == 18


def test_no_chart_of_clients_without_their_values(make_run):
    run = read_run(make_run(rounds=1, finished=False))
    assert client_spread(group_runs([run])) is None


def test_the_picture_of_labels_has_every_client_and_label(groups):
    data = groups[0].runs[0].data
    figure = label_picture(data)
    heat = figure.data[-1]
    assert np.array(heat.z).shape == (10, 20)
    filled = np.array(data["counts"]).T > 0
    assert [[value is not None for value in row] for row in heat.z] == filled.tolist()
    bars = {trace.name: trace.y for trace in figure.data[:-1]}
    assert sum(value or 0 for name, rows in bars.items() if name.startswith("training") for value in rows) == sum(
        data["sizes"]["train"]
    )
    assert set(bars) == {"training rows, source clients", "training rows, target clients", "test rows"}


def test_the_picture_of_labels_is_fine_for_two_hundred_clients_and_a_hundred_labels(make_run):
    figure = label_picture(read_run(make_run(clients=300, classes=100, rounds=1)).data)
    assert np.array(figure.data[-1].z).shape == (100, 200)
    assert len(figure.to_json()) < 400_000


def test_data_without_classes_show_sizes_alone():
    figure = label_picture(
        {"name": "diabetes", "clients": 2, "labels": ["a", "b"], "counts": [[30], [12]], "classes": []}
    )
    assert [trace.type for trace in figure.data] == ["bar"]
    assert list(figure.data[0].y) == [30, 12]


@pytest.mark.parametrize("counts", [None, [], [[1, 2], [3]], "many"])
def test_no_picture_of_data_that_do_not_tell(counts):
    assert label_picture({"counts": counts}) is None


def test_participation_is_drawn_when_replies_went_missing(groups):
    figure = participation_chart(groups[1])
    shares = {trace.name: np.array(trace.y) for trace in figure.data}
    np.testing.assert_allclose(sum(shares.values()), 10, rtol=1e-4)
    lost = np.mean([[row["lost"] for row in run.history[1:]] for run in groups[1].runs], axis=0)
    np.testing.assert_allclose(shares["lost"], lost, rtol=1e-4)


def test_participation_is_not_drawn_when_all_were_accepted(make_run):
    assert participation_chart(group_runs([read_run(make_run(lossy=False))])[0]) is None


def test_what_a_user_wrote_is_plain_text_in_a_figure(make_run):
    run = in_memory(make_run(method="<a href='x'>me</a>", rounds=2))
    run.data["labels"][0] = "<b>bold</b>"
    run.data["roles"][0] = "<b>role</b>"
    metric = "<b>metric"
    for row in run.history:
        row["evaluation"] = {metric: row["evaluation"]["accuracy"]}
    run.summary["per_client"][metric] = run.summary["per_client"]["accuracy"]
    groups = group_runs([run])
    spreads = (client_spread(groups, metric, view) for view in ("box", "cumulative", "size"))
    for figure in (learning_curves(groups, metric=metric), *spreads, label_picture(run.data)):
        text = figure.to_json().encode().decode("unicode_escape")
        assert "<a" not in text
        assert "<b" not in text


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_is_readable_by_day_and_by_night():
    style = files("fedloom.report").joinpath("assets", "page.css").read_text(encoding="utf-8")
    day, night = (
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", style, re.S)
    )
    for colours in (day, night):
        for ground in ("page", "card", "code"):
            for ink in ("ink", "soft", "accent"):
                assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
        assert contrast(colours["mark-ink"], colours["mark"]) >= 4.5
        assert contrast(colours["warn-ink"], colours["warn"]) >= 4.5


def test_lines_stand_out_from_the_page_by_day_and_by_night():
    assert all(contrast(colour, "#ffffff") >= 3 for colour in LIGHT)
    assert all(contrast(colour, "#1b1f25") >= 3 for colour in DARK)
    assert len(LIGHT) == len(DARK)
