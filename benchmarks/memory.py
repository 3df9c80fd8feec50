"""``python -m benchmarks.memory``: what a run of 100,000 rounds, and its report, take in memory.

Each run is tiny and is done in a process of its own. The figures are written to ``benchmarks/memory.json``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil

ROUNDS, LOOKS = 100_000, 100
MOST_MB = 20.0
"""By how much a run of so many rounds may grow, and its report may take."""
SCHEDULES = ("rounds", "async")
FILE = Path(__file__).with_name("memory.json")
_MB = 2**20


def measure(schedule: str, rounds: int) -> dict[str, Any]:
    """One run, and then its report, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.memory", "--rounds", str(rounds), "--folder", folder]
        parts = [
            subprocess.run([*command, "--part", part], stdout=subprocess.PIPE, text=True, check=True).stdout
            for part in (schedule, "report")
        ]
    figures: dict[str, Any] = {}
    for part in parts:
        figures |= json.loads(part.splitlines()[-1])
    return figures


def run(schedule: str, rounds: int, folder: Path) -> dict[str, Any]:
    """Bytes resident during a run, after its first hundredth, by which all is loaded."""
    import fedloom
    from fedloom.engine.fleet import Distribution

    data = fedloom.federate("diabetes", clients=4)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    every, curve = max(rounds // LOOKS, 1), []

    def look(row: dict[str, Any], _: int) -> None:
        if row["round"] and row["round"] % every == 0:
            curve.append((row["round"], round(_resident() / _MB, 2)))

    method = fedloom.FedAvg(lr=0.01, batch=None, steps=1)
    fleet = fedloom.Fleet(delay_up=Distribution.parse("uniform:1:3")) if schedule == "async" else None
    how: dict[str, Any] = {"schedule": schedule, "fleet": fleet, "executor": "serial", "progress": look}
    started = perf_counter()
    fedloom.train(problem, method, rounds=rounds, out=folder / "run", **how)
    sizes = [size for _, size in curve]
    return {
        "rounds": rounds,
        "seconds": round(perf_counter() - started, 1),
        "mb_at_first": sizes[0],
        "growth_mb": round(max(sizes) - sizes[0], 2),
        "most_mb": MOST_MB,
        "history_mb": round((folder / "run" / "history.jsonl").stat().st_size / _MB, 1),
        "mb": dict(curve),
    }


def report(folder: Path) -> dict[str, Any]:
    """What a report takes more than that of a run of a few rounds, with which all is loaded."""
    import fedloom

    data = fedloom.federate("diabetes", clients=4)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    fedloom.train(problem, fedloom.FedAvg(), rounds=3, executor="serial", out=folder / "short")
    fedloom.write_report(folder / "short", folder / "short.html")
    before, started = psutil.Process().memory_info().rss, perf_counter()
    page = fedloom.write_report(folder / "run", folder / "report.html")
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "report_mb": round(max(peak - before, 0) / _MB, 1),
        "report_seconds": round(perf_counter() - started, 1),
        "page_mb": round(page.stat().st_size / _MB, 2),
        "page_of_three_rounds_mb": round((folder / "short.html").stat().st_size / _MB, 2),
    }


def sentence(schedule: str, figures: dict[str, Any]) -> str:
    """The result in words."""
    return (
        f"MEMORY of {schedule}: {figures['rounds']:,} rounds grow by {figures['growth_mb']:.1f} MB (at most "
        f"{figures['most_mb']:g}) and leave a history of {figures['history_mb']:,.0f} MB, whose report takes "
        f"{figures['report_mb']:.0f} MB and {figures['report_seconds']:.0f} s."
    )


def _resident() -> int:
    return int(psutil.Process().memory_info().rss)


def main() -> None:
    """All of it, or one part for the process that asks for all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=FILE, help="where the figures are written")
    parser.add_argument("--part", choices=(*SCHEDULES, "report"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.part:
        done = report(chosen.folder) if chosen.part == "report" else run(chosen.part, chosen.rounds, chosen.folder)
        print(json.dumps(done))
        return
    figures = {schedule: measure(schedule, chosen.rounds) for schedule in SCHEDULES}
    chosen.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    for schedule, one in figures.items():
        print(sentence(schedule, one))


if __name__ == "__main__":
    main()
