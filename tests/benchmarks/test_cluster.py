"""The benchmark of the Ray executor says what it measured; how fast that is, is not for a test to say."""

from __future__ import annotations

from benchmarks.__main__ import CHOICES
from benchmarks.competitor import COMPETITORS

from benchmarks import cluster


def test_both_lanes_are_there() -> None:
    assert {cluster.BASE, cluster.ON_RAY} <= set(COMPETITORS)
    assert cluster.NAME in CHOICES


def test_the_result_is_said_with_its_limits() -> None:
    one = {"title": "large", "ratio": 1.234, "most": 1.25}
    memory = {"title": "small", "rounds": 1000, "change": -0.012, "mb_before": 345.6, "within": 0.05}
    assert cluster.sentences({"round": one, "memory": memory}) == [
        "RAY on large: 1.23 times worker processes (at most 1.25).",
        "RAY on small: over 1,000 rounds the driver's memory changed by -1.2% of 346 MB (at most ±5%).",
    ]
