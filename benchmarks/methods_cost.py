"""What a round of a method costs beside a round of FedAvg: the same clients, the same local steps, in turn."""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median
from time import perf_counter
from typing import Any

from rich import box
from rich.table import Table

from benchmarks.competitor import Competitor
from benchmarks.ours import METHODS
from benchmarks.race import Lane, warmed

NAME = "COST"
TITLE = "a round of other methods in rounds of FedAvg, two workers"
ON = ("W1", "W2")
BASE = "fedavg"
MOST = {"fedadam": 1.1, "fedprox": 1.25, "scaffold": 1.4, "fedper": 1.05}
"""Rounds of FedAvg that a round of each may cost."""
LEAST_TURNS = 10
"""The costs differ by less than blocks do, so it takes more of these than a race against a hand-written loop."""


def race(workload: str, seconds: float, block_seconds: float) -> dict[str, Any]:
    """The methods in turn (A B C D A B C D …) on one workload for about so many seconds, set-up included."""
    deadline = perf_counter() + seconds
    with ExitStack() as stack:
        competitors = [stack.enter_context(Competitor(name, workload)) for name in METHODS]
        for competitor in competitors:
            competitor.ready()
        lanes = {competitor.name: warmed(competitor, block_seconds) for competitor in competitors}
        turns = 0
        while turns < LEAST_TURNS or perf_counter() < deadline:
            for lane in lanes.values():
                lane.run_block()
            turns += 1
    return {
        "seconds_per_round": lanes[BASE].best,
        "blocks": turns,
        "methods": {name: _figures(lanes[name], lanes[BASE], most) for name, most in MOST.items()},
    }


def _figures(lane: Lane, base: Lane, most: float) -> dict[str, Any]:
    """``ratio`` is that of the best blocks; ``median_ratio``, of blocks that ran one after the other, is a check."""
    return {
        "ratio": lane.best / base.best,
        "most": most,
        "median_ratio": median(mine / other for mine, other in zip(lane.blocks, base.blocks, strict=True)),
        "seconds_per_round": lane.best,
    }


def table(figures: dict[str, Any]) -> Table:
    """The result for people, each cost beside its limit."""
    drawn = Table(
        title="Rounds of FedAvg that a round costs, best block of each",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    drawn.add_column("", no_wrap=True)
    for column in (*figures, "at most"):
        drawn.add_column(column, justify="right", no_wrap=True)
    for name, most in MOST.items():
        drawn.add_row(name, *(f"{row['methods'][name]['ratio']:.2f}" for row in figures.values()), f"{most:g}")
    return drawn
