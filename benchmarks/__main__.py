"""``python -m benchmarks``: fedloom against a loop written by hand, as a table and as ``benchmarks/latest.json``."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import psutil
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import (
    admm,
    asynchronous,
    cluster,
    dual,
    fleet,
    homes,
    meta,
    methods_cost,
    predict,
    relations,
    resnet,
    stacks,
    tuning,
)
from benchmarks.race import race
from benchmarks.workloads import WORKLOADS

FOLDER = Path(__file__).parent
OTHERS: dict[str, tuple[Callable[[bool, float], Any], Callable[[Any], Iterable[str]]]] = {
    admm.NAME: (lambda quick, _: admm.race(3 if quick else 5), lambda row: [admm.sentence(row)]),
    dual.NAME: (lambda quick, _: dual.race(3 if quick else 7), dual.sentences),
    meta.NAME: (lambda quick, _: meta.race(5 if quick else 25), lambda rows: map(meta.sentence, rows.values())),
    asynchronous.NAME: (lambda quick, block: asynchronous.race(3 if quick else 8, block), asynchronous.sentences),
    cluster.NAME: (lambda quick, block: cluster.race(3 if quick else 8, block), cluster.sentences),
    predict.NAME: (lambda quick, _: predict.race(2 if quick else 5), lambda row: [predict.sentence(row)]),
    relations.NAME: (lambda quick, _: relations.relation_update_ratio(3 if quick else 7), relations.sentences),
    stacks.NAME: (
        lambda quick, _: stacks.race(1 if quick else 3),
        lambda rows: [stacks.sentence(*row) for row in rows.items()],
    ),
    resnet.NAME: (lambda quick, _: resnet.race(4 if quick else 12), lambda row: [resnet.sentence(row)]),
    fleet.NAME: (lambda *_: fleet.race(), lambda figures: [fleet.sentence(figures)]),
    homes.NAME: (lambda *_: homes.race(), lambda figures: [homes.sentence(figures)]),
    tuning.NAME: (lambda quick, _: tuning.race(20 if quick else 60), lambda figures: [tuning.sentence(figures)]),
}
"""What is not FedAvg against a loop: how it is measured (quickly? seconds of a block), and the result in words."""
CHOICES = (*WORKLOADS, methods_cost.NAME, *OTHERS)
BUSY = 15
"""Per cent of the machine that others may use before the reader is told."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default=",".join(CHOICES), help="what to measure, such as W1,COST (default: all)")
    parser.add_argument("--quick", action="store_true", help="a rough answer: three short blocks of each")
    parser.add_argument("--seconds", type=float, default=240, help="about how long it may take (default: 240)")
    parser.add_argument("--out", type=Path, default=FOLDER / "latest.json", help="where the figures are written")
    chosen = parser.parse_args()
    chosen.only = chosen.only.split(",")
    if unknown := [name for name in chosen.only if name not in CHOICES]:
        parser.error(f"unknown workload {', '.join(unknown)}; there are {', '.join(CHOICES)}")
    return chosen


def start_seconds(repeats: int = 3) -> float:
    """From a fresh interpreter to the end of the first round of a small run: the middle one of some."""
    times = []
    for _ in range(repeats):
        start = perf_counter()
        subprocess.run([sys.executable, "-m", "benchmarks.first_round"], check=True, cwd=FOLDER.parent)
        times.append(perf_counter() - start)
    return median(times)


def table(figures: dict[str, Any]) -> Table:
    drawn = Table(
        title="FedAvg: samples a second, best block of each", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    drawn.add_column("", no_wrap=True)
    for column in ("one proc.", "workers", "fedloom", "ms/round", "ratio", "of sgemm", "peak MB"):
        drawn.add_column(column, justify="right", no_wrap=True)
    for name, row in figures.items():
        hand = [f"{form['samples_per_second']:,}" for form in row["hand_written"].values()]
        drawn.add_row(
            name,
            *(hand if row["baseline"] == name else [f"({rate})" for rate in hand]),
            f"{row['samples_per_second']:,}",
            f"{row['seconds_per_round'] * 1e3:.2f}",
            f"{row['ratio']:.2f}",
            f"{row['fraction_of_sgemm']:.1%}",
            f"{row['peak_rss_mb']:,.0f}",
        )
    return drawn


def save(out: Path, measured: dict[str, Any]) -> None:
    """Writes what was measured; what was not stays as it was measured last."""
    earlier = json.loads(out.read_text()) if out.is_file() else {}
    out.write_text(json.dumps({**earlier, **measured}, indent=2) + "\n")


def main() -> None:
    chosen = arguments()
    console, deadline = Console(), perf_counter() + chosen.seconds
    block_seconds = 0.3 if chosen.quick else 1.5
    busy = psutil.cpu_percent(interval=1)
    if busy > BUSY:
        console.print(f"Something else keeps the machine {busy:.0f} % busy: the figures will be rough.", style="bold")
    start = start_seconds()
    save(chosen.out, {"start_seconds": start, "busy_percent_before": busy})
    figures: dict[str, Any] = {}
    costs: dict[str, Any] = {}
    raced = [name for name in chosen.only if name in WORKLOADS]
    costed = list(methods_cost.ON) if methods_cost.NAME in chosen.only else []
    for done, name in enumerate([*raced, *costed]):
        left = 0.0 if chosen.quick else deadline - perf_counter()
        share = left / (len(raced) + len(costed) - done)
        if done < len(raced):
            console.print(f"{name}: {WORKLOADS[name].title}", style="dim")
            figures[name] = race(name, share, block_seconds)
            save(chosen.out, figures)
        else:
            console.print(f"{methods_cost.NAME} on {name}: {methods_cost.TITLE}", style="dim")
            costs[name] = methods_cost.race(name, share, block_seconds)
            save(chosen.out, {methods_cost.NAME: costs})
    others: dict[str, Any] = {}
    for name in (name for name in OTHERS if name in chosen.only):
        console.print(name, style="dim")
        others[name] = OTHERS[name][0](chosen.quick, block_seconds)
        save(chosen.out, others)
    if figures:
        console.print(table(figures))
    if "W4" in figures:
        console.print(f"A round of W4 takes {figures['W4']['round_vs_w3']:.2f} times one of W3 (its baseline is W3's).")
    if costs:
        console.print(methods_cost.table(costs))
    for name, found in others.items():
        for line in OTHERS[name][1](found):
            console.print(line)
    console.print(f"A small run starts in {start:.1f} s. Written: {chosen.out}")


if __name__ == "__main__":
    main()
