from __future__ import annotations

import math

import numpy as np
import pytest

from fedloom.report import Target, direction, find_runs, group_runs, read_run
from fedloom.report.groups import mean_and_std


def groups_of(*folders):
    return group_runs([read_run(folder) for folder in folders])


def test_runs_that_differ_in_the_seed_alone_are_one_group(comparison):
    groups = group_runs(find_runs(comparison))
    assert [group.label for group in groups] == ["central", "fedavg", "local"]
    assert [[run.seed for run in group.runs] for group in groups] == [[1, 2, 3]] * 3


def test_one_method_with_two_settings_is_two_groups_named_by_what_differs(make_run):
    groups = groups_of(make_run("a", lr=0.1, seed=1), make_run("b", lr=0.5, seed=1), make_run("c", lr=0.5, seed=2))
    assert [group.label for group in groups] == ["fedavg (lr=0.1)", "fedavg (lr=0.5)"]
    assert [len(group.runs) for group in groups] == [1, 2]


def test_groups_with_labels_of_their_own_need_no_settings_in_them(make_run):
    groups = groups_of(make_run("a", lr=0.1, label="slow"), make_run("b", lr=0.5, label="fast"))
    assert [group.label for group in groups] == ["slow", "fast"]


def test_settings_of_the_same_name_in_two_sections_are_told_apart(make_run):
    first, second = make_run("a"), make_run("b")
    text = (second / "config.toml").read_text()
    changed = text.replace('name = "digits"', 'name = "mnist"').replace('name = "mlp"', 'name = "linear"')
    (second / "config.toml").write_text(changed + '[[channel]]\nname = "quantise"\nbits = 8\n')
    labels = [group.label for group in groups_of(first, second)]
    assert labels[0] == "fedavg (data.name=digits, model.name=mlp)"
    assert labels[1] == "fedavg (data.name=mnist, model.name=linear, channel=[quantise bits=8])"


def test_an_unfinished_repeat_belongs_to_the_group_of_its_settings(make_run):
    groups = groups_of(make_run("a", seed=1, label="mine"), make_run("b", seed=2, finished=False))
    assert [(group.label, len(group.runs), group.finished) for group in groups] == [("mine", 2, 1)]


def test_the_same_seed_on_another_executor_is_not_a_repeat(make_run):
    first, second = make_run("a", seed=1), make_run("b", seed=1, finished=False)
    config = second / "config.toml"
    config.write_text(config.read_text().replace('executor = "serial"', 'executor = "processes"'))
    (group,) = groups_of(second, first)
    assert [run.folder for run in group.runs] == [first]
    assert group.repeated == 1


def test_runs_of_python_programs_are_repeats_only_under_the_same_label(make_run):
    folders = [
        make_run("a", seed=1, label="mine"),
        make_run("b", seed=2, label="mine"),
        make_run("c", seed=3, label="other"),
    ]
    for folder in folders:
        config = folder / "config.toml"
        config.write_text('made_by = "python"\n' + config.read_text())
    assert [(group.label, len(group.runs)) for group in groups_of(*folders)] == [("mine", 2), ("other", 1)]


def test_spread_over_repeats_has_n_minus_one_in_the_denominator():
    assert mean_and_std([1.0, 2.0, 4.0]) == pytest.approx((7 / 3, np.std([1, 2, 4], ddof=1)))
    assert mean_and_std([3.0]) == (3.0, None)
    assert mean_and_std([]) == (None, None)
    assert all(math.isnan(value) for value in mean_and_std([1.0, math.nan]))


@pytest.mark.parametrize(
    ("metric", "better"),
    [
        ("accuracy", "up"),
        ("balanced_accuracy", "up"),
        ("F1", "up"),
        ("target/recall", "up"),
        ("loss", "down"),
        ("MAE", "down"),
        ("smape", "down"),
        ("query/rmse", "down"),
        ("query/r2:distance", "up"),
        ("mae:accuracy", "down"),
        ("something", None),
    ],
)
def test_a_metric_knows_which_way_is_better(metric, better):
    assert direction(metric) == better


def test_a_target_is_reached_from_below_or_from_above_as_the_metric_goes(make_run):
    run = read_run(make_run(rounds=30))
    row = Target("accuracy", 0.7).reached_at(run)
    values = [each["evaluation"]["accuracy"]["weighted"] for each in run.history]
    assert row["round"] == next(at for at, value in enumerate(values) if value >= 0.7)
    losses = [each["evaluation"]["loss"]["weighted"] for each in run.history]
    assert Target("loss", 0.9).reached_at(run)["round"] == next(at for at, value in enumerate(losses) if value <= 0.9)
    assert Target("accuracy", 1.1).reached_at(run) is None
