"""Trackers that note what they are told; a command line finds them by their import path."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.tracking import TrackedRun, Tracker

HEARD: list[tuple[Any, ...]] = []


@dataclass
class Listening(Tracker):
    """Notes everything; raises where it is to."""

    fails: str = ""

    def begin(self, run: TrackedRun) -> int | None:
        HEARD.append(("begin", run.label, run.group, dict(run.kept)))
        run.kept["id"] = 7
        self._heard("begin")
        return None

    def row(self, row: dict[str, Any]) -> None:
        HEARD.append(("row", row["round"]))
        self._heard(f"row {row['round']}")

    def end(self, summary: dict[str, Any] | None, report: Path | None) -> None:
        HEARD.append(("end", None if summary is None else summary["rounds"], report is not None and report.is_file()))
        self._heard("end")

    def _heard(self, what: str) -> None:
        if what == self.fails:
            raise OSError(f"no line\n  at {what}")
