"""Personal layers of 100,000 clients, which together exceed what the process may take: they stay on disk."""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.apart import measured, say

NAME = "HOMES"
CLIENTS, ASKED, ROWS, FEATURES, HIDDEN, CLASSES = 100_000, 2_000, 2, 20, 1000, 10
MOST_MB = 2048
"""What the process may take."""


def race() -> dict[str, Any]:
    """Rounds until every client was asked once, in a process of its own."""
    return measured(__name__)


def sentence(figures: dict[str, Any]) -> str:
    """The result in words."""
    return (
        f"{NAME}: fedper keeps the heads of {figures['clients']:,} clients ({figures['personal_gb']:.1f} GB on disk) "
        f"with {figures['peak_mb']:,.0f} MB (at most {figures['most_mb']:,})."
    )


def main() -> None:
    """One pass over all clients."""
    import numpy as np
    import torch

    import fedloom
    from fedloom.engine.selection import Chosen
    from fedloom.federation.ragged import Ragged

    random = np.random.default_rng(1)
    x = torch.from_numpy(random.standard_normal((CLIENTS * ROWS, FEATURES), dtype=np.float32))
    y = torch.from_numpy(random.integers(0, CLASSES, CLIENTS * ROWS))
    none = torch.zeros(CLIENTS, dtype=torch.int64)
    splits = {"train": Ragged.contiguous(none + ROWS), "test": Ragged.contiguous(none)}
    classes = tuple(map(str, range(CLASSES)))
    data = fedloom.FederatedData(NAME, x, y, "classification", splits, classes=classes)
    problem = fedloom.Problem(data, fedloom.build_model("mlp", data, hidden=[HIDDEN]))
    method = fedloom.FedPer(steps=1)
    asked = Chosen(lambda candidates, ctx: candidates[ctx.round * ASKED :][:ASKED])
    started = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run = fedloom.train(
            problem, method, rounds=CLIENTS // ASKED, select=asked, evaluate=[], executor="serial", out=out
        )
        kept = sum(file.stat().st_size for file in (out / "memory").iterdir())
    assert run.summary["rounds"] == CLIENTS // ASKED
    figures = {
        "clients": CLIENTS,
        "personal_gb": kept / 1e9,
        "most_mb": MOST_MB,
        "seconds": round(perf_counter() - started, 1),
    }
    say(figures)


if __name__ == "__main__":
    main()
