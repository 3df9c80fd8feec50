"""A Ray cluster of two workers on this machine: a round beside worker processes, and the memory of the driver."""

from __future__ import annotations

from statistics import median
from typing import Any

import psutil

from benchmarks.competitor import ON_RAY, Competitor
from benchmarks.race import in_turn
from benchmarks.workloads import WORKLOADS

NAME = "RAY"
BASE = "fedavg"
"""The competitor with two worker processes."""
WORKLOAD, MANY_ROUNDS = "W2", "W3"
MOST = 1.25
"""Rounds of worker processes that a round may cost."""
ROUNDS, LOOKS = 1000, 10
WITHIN = 0.05
"""Share by which the driver's memory may differ at any look from what it was before these rounds."""


def beside_processes(turns: int, block_seconds: float) -> dict[str, Any]:
    """Worker processes and workers on Ray in turn, on one workload."""
    base, ours = in_turn((BASE, ON_RAY), WORKLOAD, turns, block_seconds)
    return {
        "title": WORKLOADS[WORKLOAD].title,
        "ratio": ours.best / base.best,
        "most": MOST,
        "median_ratio": median(mine / other for mine, other in zip(ours.blocks, base.blocks, strict=True)),
        "seconds_per_round": ours.best,
        "processes_seconds_per_round": base.best,
        "blocks": turns,
    }


def driver_memory() -> dict[str, Any]:
    """Bytes that the driver has resident, before and during many rounds, each of which leaves objects to be freed."""
    with Competitor(ON_RAY, MANY_ROUNDS) as ours:
        ours.ready()
        ours.run(ROUNDS // LOOKS)
        driver = psutil.Process(ours.pid)
        first, found = driver.memory_info().rss, []
        for _ in range(LOOKS):
            ours.run(ROUNDS // LOOKS)
            found.append(driver.memory_info().rss)
    return {
        "title": WORKLOADS[MANY_ROUNDS].title,
        "rounds": ROUNDS,
        "mb_before": round(first / 2**20, 1),
        "mb": [round(size / 2**20, 1) for size in found],
        "change": max((size / first - 1 for size in found), key=abs),
        "within": WITHIN,
    }


def race(turns: int, block_seconds: float) -> dict[str, Any]:
    """Both measurements."""
    return {"round": beside_processes(turns, block_seconds), "memory": driver_memory()}


def sentences(figures: dict[str, Any]) -> list[str]:
    """The result as lines of text."""
    one, memory = figures["round"], figures["memory"]
    return [
        f"{NAME} on {one['title']}: {one['ratio']:.2f} times worker processes (at most {one['most']:g}).",
        f"{NAME} on {memory['title']}: over {memory['rounds']:,} rounds the driver's memory changed by "
        f"{memory['change']:+.1%} of {memory['mb_before']:,.0f} MB (at most ±{memory['within']:.0%}).",
    ]
