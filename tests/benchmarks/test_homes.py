"""The benchmark of personal layers on disk says what it found."""

from __future__ import annotations

from benchmarks.__main__ import CHOICES

from benchmarks import homes


def test_the_figures_in_words() -> None:
    assert homes.NAME in CHOICES
    figures = {"clients": 100_000, "personal_gb": 4.0056, "peak_mb": 1264.8, "most_mb": 2048, "seconds": 100.1}
    assert homes.sentence(figures) == (
        "HOMES: fedper keeps the heads of 100,000 clients (4.0 GB on disk) with 1,265 MB (at most 2,048)."
    )
