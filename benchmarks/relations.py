"""What an update of the relation between clients costs, as a multiple of one symmetric eigendecomposition."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
import torch

from fedloom.execution import one_thread
from fedloom.federation.relations import Clustered, Probabilistic, Strengths, safe

NAME = "RELATIONS"
CLIENTS, FEATURES = 1000, 100
MOST = 3.0
"""Times one numpy.linalg.eigh of 1,000 × 1,000 that it may take."""


def relation_update_ratio(repeats: int = 5) -> dict[str, Any]:
    """Ω, m̄, σ' and W = m̄V from V, for 1,000 clients, by turns with one eigh; the best of each counts."""
    random = np.random.default_rng(1)
    square = random.standard_normal((CLIENTS, CLIENTS))
    square, v = square @ square.T, torch.from_numpy(random.standard_normal((CLIENTS, FEATURES)))
    strengths, times = Strengths(0.1, 0.01), dict[str, float]()

    def update(relation: Any) -> None:
        found = relation.learned(v)
        found.matrix()
        mbar = strengths.mbar_of(found)
        safe(mbar)
        mbar @ v

    timed = {
        "eigh": lambda: np.linalg.eigh(square),
        "probabilistic": lambda: update(Probabilistic()),
        "clustered": lambda: update(Clustered(5)),
    }
    with one_thread():
        for _ in range(repeats):
            for name, run in timed.items():
                start = perf_counter()
                run()
                times[name] = min(times.get(name, np.inf), perf_counter() - start)
    each = {name: times[name] / times["eigh"] for name in ("probabilistic", "clustered")}
    return {
        "title": f"{CLIENTS:,} clients, {FEATURES} features",
        "ratio": max(each.values()),
        "most": MOST,
        "ratios": each,
        "eigh_seconds": times["eigh"],
        "repeats": repeats,
    }


def sentences(figures: dict[str, Any]) -> list[str]:
    """The result as a line of text."""
    each = ", ".join(f"{name} {ratio:.2f}" for name, ratio in figures["ratios"].items())
    return [
        f"{NAME} ({figures['title']}): an update costs so many times one eigh of {CLIENTS:,} x {CLIENTS:,} "
        f"({figures['eigh_seconds'] * 1e3:.0f} ms): {each}; at most {figures['most']:g}."
    ]
