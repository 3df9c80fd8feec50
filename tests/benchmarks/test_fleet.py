"""The benchmark of a fleet's server says what it found."""

from __future__ import annotations

from benchmarks import fleet


def test_the_figures_in_words() -> None:
    figures = {"nodes": 200, "parameters": 10_003_135, "reply_gb": 8.0, "peak_mb": 1104.4, "most_mb": 2048}
    assert fleet.sentence(figures) == (
        "FLEET: the server takes 200 replies of 10,003,135 parameters (8.0 GB) with 1,104 MB (at most 2,048)."
    )
