"""Verdicts and the merging of records."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.reproduce import Published
from fedloom.reproduce.keep import merge
from fedloom.reproduce.outcome import judge


@pytest.mark.parametrize(
    ("values", "published", "verdict"),
    [
        ([], Published(80.0, 1.0), "not run"),
        ([80.0], None, "no published value"),
        ([80.0], Published(80.0, 1.0, not_comparable="other data"), "not comparable"),
        ([80.0], Published(80.0), "not comparable"),  # no spread on either side
        ([math.nan, math.nan], Published(80.0, 1.0), "not comparable"),
        ([82.0], Published(80.0, 1.0), "within"),  # exactly two of their deviations
        ([82.1], Published(80.0, 1.0), "above"),
        ([77.9], Published(80.0, 1.0), "below"),
        ([81.0, 83.0], Published(80.0), "within"),  # ours is 1.41
        ([84.0, 84.0], Published(80.0, 1.0), "above"),
        ([79.0, 81.0, math.nan], Published(80.0, 0.0), "within"),  # what diverged is not in the mean
    ],
)
def test_verdicts(values: list[float], published: Published | None, verdict: str) -> None:
    assert judge(values, published)[0] == verdict


def test_both_spreads_count() -> None:
    ours = [83.0, 87.0]  # mean 85, deviation √8
    assert judge(ours, Published(85.0 + 2 * math.sqrt(8 + 9) - 0.01, 3.0))[0] == "within"
    assert judge(ours, Published(85.0 + 2 * math.sqrt(8 + 9) + 0.01, 3.0))[0] == "below"


@given(st.lists(st.floats(0, 100), min_size=1, max_size=5), st.floats(0, 100), st.floats(0.01, 10))
def test_a_wider_published_spread_never_turns_within_into_something_else(
    values: list[float], value: float, std: float
) -> None:
    if judge(values, Published(value, std))[0] == "within":
        assert judge(values, Published(value, 2 * std))[0] == "within"


def cell(title: str, values: dict[str, float], settings: str = "s", wanted: int = 2) -> dict[str, Any]:
    return {
        "title": title,
        "values": values,
        "tuned": None,
        "settings_sha256": settings,
        "done": len(values),
        "wanted": wanted,
        "published": None,
    }


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return merge({"cells": [old]}, {"cells": [new]})["cells"][0]


def test_a_recorded_cell_stays_when_it_was_not_run_now() -> None:
    old = cell("a", {"0": 80.0, "1": 81.0})
    assert merged(old, cell("a", {})) == old


def test_a_cell_that_was_run_now_takes_the_place_of_the_recorded_one() -> None:
    new = cell("a", {"0": 82.0, "1": 83.0})
    assert merged(cell("a", {"0": 80.0, "1": 81.0}), new) == new
    assert merge({}, {"cells": [new]})["cells"] == [new]


def test_fewer_repeats_of_the_same_settings_replace_nothing_but_of_others_they_do() -> None:
    old, few = cell("a", {"0": 80.0, "1": 81.0}), {"0": 80.0}
    assert merged(old, cell("a", few)) == old
    assert merged(old, cell("a", few, settings="t"))["values"] == few


def test_a_recorded_cell_whose_settings_are_gone_is_marked_as_stale() -> None:
    assert merged(cell("a", {"0": 80.0}), cell("a", {}, settings="t"))["stale"] is True


def test_how_many_repeats_are_wanted_is_what_the_file_says_now() -> None:
    assert merged(cell("a", {}, wanted=3), cell("a", {}, wanted=1))["wanted"] == 1
    assert merged(cell("a", {"0": 80.0}, wanted=3), cell("a", {}, wanted=1))["wanted"] == 1
    assert merged(cell("a", {"0": 80.0, "1": 81.0}, wanted=3), cell("a", {}, wanted=1))["wanted"] == 2  # that are there


def test_cells_that_the_file_has_no_longer_are_not_kept() -> None:
    result = merge({"cells": [cell("a", {"0": 1.0}), cell("b", {"0": 2.0})]}, {"cells": [cell("b", {})]})
    assert [one["title"] for one in result["cells"]] == ["b"]
