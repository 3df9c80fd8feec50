"""The benchmark of a long run's memory, and the figures that are kept of it."""

from __future__ import annotations

import json

from benchmarks import memory


def test_the_recorded_runs_of_a_hundred_thousand_rounds_are_flat() -> None:
    kept = json.loads(memory.FILE.read_text(encoding="utf-8"))
    assert list(kept) == list(memory.SCHEDULES)
    for figures in kept.values():
        assert figures["rounds"] == 100_000
        assert len(figures["mb"]) == memory.LOOKS
        assert max(figures["mb"].values()) - figures["mb_at_first"] <= memory.MOST_MB
        assert figures["page_mb"] < figures["page_of_three_rounds_mb"] + 3


def test_the_figures_in_words() -> None:
    figures = {"rounds": 100_000, "growth_mb": 3.21, "most_mb": 20.0, "history_mb": 71.6, "report_mb": 12.2}
    assert memory.sentence("rounds", figures | {"report_seconds": 14.6}) == (
        "MEMORY of rounds: 100,000 rounds grow by 3.2 MB (at most 20) and leave a history of 72 MB, whose report takes "
        "12 MB and 15 s."
    )
