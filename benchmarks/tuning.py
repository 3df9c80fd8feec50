"""The share of a tuning in which rounds are done: a budget for small runs, each of a fraction of a second."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NAME = "TUNE"
METHODS = ("fedavg", "fedprox", "scaffold", "fedadam")
LEAST = 0.85
"""The share that training is to have."""


def race(seconds: float) -> dict[str, Any]:
    """A tuning on the digits within a budget, in a process of its own, whose start counts."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "fedloom.cli", "tune", *METHODS, "--data", "digits", "--budget", f"{seconds:g}s"]
        subprocess.run([*words, "--out", "tuned", "--quiet"], check=True, cwd=folder, capture_output=True)
        record = json.loads((Path(folder) / "tuned" / "tune.json").read_text())
    (session,) = record["sessions"]
    return {"budget": seconds, "least": LEAST, "share_training": record["share_training"], **session}


def sentence(figures: dict[str, Any]) -> str:
    """The result in words."""
    return (
        f"{NAME}: a tuning with a budget of {figures['budget']:g} s took {figures['seconds']:.0f} s, "
        f"{figures['share_training']:.0%} of it in {figures['rounds']:,} rounds (at least {figures['least']:.0%})."
    )
