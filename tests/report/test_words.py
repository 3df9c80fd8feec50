from __future__ import annotations

import pytest

from fedloom.report.words import counted, lower_first, name_text, plain, plural, sized, spread_text, text, timed


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (plain, 0.91234, "0.912"),
        (plain, 0, "0.000"),
        (plain, 44.301, "44.30"),
        (plain, 0.0000123, "1.23e-05"),
        (plain, float("inf"), "not finite"),
        (plain, None, "–"),
        (counted, 12345, "12,345"),
        (counted, 1_234_567, "1.23 M"),
        (counted, 11.67, "11.7"),
        (sized, 999, "999 B"),
        (sized, 12_345_678, "12.3 MB"),
        (sized, 1_000, "1.00 kB"),
        (timed, 0.417, "0.42 s"),
        (timed, 12.5, "12.5 s"),
        (timed, 600, "10.0 min"),
        (timed, 7_560, "2.1 h"),
        (timed, 200_000, "2.3 d"),
    ],
)
def test_numbers_are_said_in_the_unit_that_suits_them(kind, value, words):
    assert text(kind, value) == words


def test_a_spread_has_the_unit_and_decimals_of_its_mean():
    assert spread_text(plain, 0.912, 0.0123) == "± 0.012"
    assert spread_text(plain, 0.912, 0.0001) == "± <0.001"
    assert spread_text(sized, 12_300_000, 145_000) == "± 0.1"
    assert spread_text(plain, 0.912, None) == ""
    assert spread_text(plain, 1.0, float("nan")) == "± not finite"


def test_names_of_metrics_become_words():
    assert name_text("balanced_accuracy") == "Balanced accuracy"
    assert name_text("mae") == "MAE"
    assert name_text("target/f1") == "F1 (target)"
    assert name_text("target/mae:PM2.5") == "MAE: PM2.5 (target)"
    assert name_text("r2:CO") == "R²: CO"
    assert lower_first("Balanced accuracy") == "balanced accuracy"
    assert lower_first("MAE") == "MAE"
    assert (plural(1, "run"), plural(2000, "run")) == ("1 run", "2,000 runs")
