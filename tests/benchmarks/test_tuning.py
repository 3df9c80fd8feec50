"""The benchmark of tuning says what it found."""

from __future__ import annotations

from benchmarks import tuning


def test_the_figures_in_words() -> None:
    figures = {"budget": 30.0, "seconds": 27.4, "share_training": 0.912, "rounds": 8123, "least": 0.85}
    assert tuning.sentence(figures) == (
        "TUNE: a tuning with a budget of 30 s took 27 s, 91% of it in 8,123 rounds (at least 85%)."
    )
