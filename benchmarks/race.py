"""Runs the competitors of one workload in turn (A B C A B C …) and keeps the best block of each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks import machine
from benchmarks.competitor import Competitor
from benchmarks.workloads import WORKLOADS

HAND_WRITTEN = ("one process", "worker processes")
LEAST_BLOCKS = 3


@dataclass
class Lane:
    """A competitor and the seconds per round of each of its blocks."""

    competitor: Competitor
    rounds: int
    blocks: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        """Seconds per round in the best block: the one that the rest of the machine disturbed least."""
        return min(self.blocks)

    @property
    def samples_per_second(self) -> float:
        """Training samples a second in the best block."""
        return WORKLOADS[self.competitor.workload].samples_per_round / self.best

    def run_block(self) -> None:
        self.blocks.append(self.competitor.run(self.rounds) / self.rounds)

    def figures(self, threads: int, processes: int) -> dict[str, Any]:
        return {
            "samples_per_second": round(self.samples_per_second),
            "seconds_per_round": self.best,
            "median_seconds_per_round": median(self.blocks),
            "threads": threads,
            "processes": processes,
        }


def race(name: str, seconds: float, block_seconds: float) -> dict[str, Any]:
    """The figures of one workload, from about so many seconds of work, set-up included.

    A million clients (W4) are measured beside ten thousand (W3) and beside the loop written by hand for W3: its time
    for a round would not change, and what is asked is whether ours does.
    """
    baseline = "W3" if name == "W4" else name
    entries = [("fedloom", name), *((hand, baseline) for hand in HAND_WRITTEN), ("sgemm", name)]
    if name != baseline:
        entries.append(("fedloom", baseline))
    deadline = perf_counter() + seconds
    with ExitStack() as stack:
        ours = stack.enter_context(Competitor(*entries[0]))
        watch = machine.MemoryWatch(ours.pid)
        stack.callback(watch.stop)
        setup_seconds = ours.ready()  # alone on the machine; the others may start beside each other
        others = [stack.enter_context(Competitor(*entry)) for entry in entries[1:]]
        for other in others:
            other.ready()
        lanes = {entries[0]: warmed(ours, block_seconds)}
        watch.stop()
        lanes |= {(other.name, other.workload): warmed(other, block_seconds) for other in others}
        turns = 0
        while turns < LEAST_BLOCKS or perf_counter() < deadline:
            for lane in lanes.values():
                lane.run_block()
            turns += 1
        watch.look()
        memory = {"peak_rss_mb": round(watch.peak / 2**20, 1), "setup_seconds": setup_seconds}
        return _figures(name, baseline, lanes) | memory


def warmed(competitor: Competitor, block_seconds: float) -> Lane:
    """Warms a competitor up, and chooses how many rounds are a block of its."""
    return Lane(competitor, max(1, round(block_seconds / competitor.warm_up())))


def in_turn(names: Sequence[str], workload: str, turns: int, block_seconds: float) -> list[Lane]:
    """So many blocks of each competitor on one workload, one competitor after the other in every turn."""
    with ExitStack() as stack:
        competitors = [stack.enter_context(Competitor(name, workload)) for name in names]
        for competitor in competitors:
            competitor.ready()
        lanes = [warmed(competitor, block_seconds) for competitor in competitors]
        for _ in range(turns):
            for lane in lanes:
                lane.run_block()
    return lanes


def _figures(name: str, baseline: str, lanes: dict[tuple[str, str], Lane]) -> dict[str, Any]:
    workload, cores = WORKLOADS[name], machine.cores()
    ours, sgemm = lanes["fedloom", name], lanes["sgemm", name]
    hand = {form: lanes[form, baseline] for form in HAND_WRITTEN}
    flops = machine.flops_per_sample(workload)
    sgemm_rate = machine.SGEMM_FLOPS / sgemm.best
    figures = {
        "title": workload.title,
        "ratio": ours.samples_per_second / max(lane.samples_per_second for lane in hand.values()),
        "median_ratio": _median_ratio(ours, list(hand.values())),
        "samples_per_second": round(ours.samples_per_second),
        "fraction_of_sgemm": ours.samples_per_second * flops / sgemm_rate,
        "seconds_per_round": ours.best,
        "median_seconds_per_round": median(ours.blocks),
        "baseline": baseline,
        "hand_written": {
            "one process": hand["one process"].figures(threads=cores, processes=1),
            "worker processes": hand["worker processes"].figures(threads=1, processes=cores),
        },
        "flops_per_sample": flops,
        "sgemm_gflops": sgemm_rate / 1e9,
        "cores": cores,
        "blocks": len(ours.blocks),
        "rounds_per_block": ours.rounds,
    }
    if name != baseline:
        figures["round_vs_w3"] = ours.best / lanes["fedloom", baseline].best
    return figures


def _median_ratio(ours: Lane, hand: list[Lane]) -> float:
    """The ratio of blocks that ran one after the other, the middle one: a check on the ratio of the best blocks.

    The two differ when something else kept the machine busy. (Rounds of one race are all of so many samples.)
    """
    turns = zip(ours.blocks, *(lane.blocks for lane in hand), strict=True)
    return median(min(theirs) / mine for mine, *theirs in turns)
