"""A measurement in a process of its own, whose memory is then its alone."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from typing import Any


def measured(module: str) -> dict[str, Any]:
    """What ``python -m MODULE`` says in its last line."""
    done = subprocess.run([sys.executable, "-m", module], capture_output=True, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def say(figures: dict[str, Any]) -> None:
    """The last line of such a process: the figures, and the most memory that it has had."""
    peak = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    print(json.dumps({**figures, "peak_mb": peak}))
