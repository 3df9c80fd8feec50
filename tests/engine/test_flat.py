"""Memory does not grow with the rounds."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import fedloom
from fedloom.engine.fleet import Distribution
from fedloom.storage.rows import Rows

WARM, ROUNDS = 200, 1000
"""A pool of some hundred small objects is full after about a thousand rounds, and is not to be taken for a leak."""
MOST = 100
"""Bytes a round: of 100,000 rounds 10 MB."""


@pytest.mark.parametrize("schedule", ["rounds", "async"])
@pytest.mark.parametrize("method", [fedloom.FedAvg(lr=0.01, batch=None, steps=1), fedloom.Scaffold(lr=0.01, steps=1)])
def test_memory_does_not_grow_with_the_rounds(tmp_path: Path, schedule: Any, method: fedloom.Method) -> None:
    data = fedloom.federate("diabetes", clients=4)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    fleet = fedloom.Fleet(delay_up=Distribution.parse("uniform:1:3"), loss=0.1)
    held: list[tracemalloc.Snapshot] = []

    def look(row: dict[str, Any], _: int) -> None:
        if row["round"] in (WARM, ROUNDS):
            gc.collect()
            held.append(tracemalloc.take_snapshot())

    tracemalloc.start()
    try:
        how: dict[str, Any] = {"schedule": schedule, "fleet": fleet, "executor": "serial", "checkpoint_every": 50}
        run = fedloom.train(problem, method, rounds=ROUNDS, out=tmp_path / "run", progress=look, **how)
    finally:
        tracemalloc.stop()
    before, after = (each.filter_traces([tracemalloc.Filter(False, tracemalloc.__file__)]) for each in held)
    grown = after.compare_to(before, "lineno")
    assert sum(place.size_diff for place in grown) <= MOST * (ROUNDS - WARM), "\n".join(map(str, grown[:10]))
    assert isinstance(run.history, Rows)
    assert [row["round"] for row in run.history] == list(range(ROUNDS + 1))
    assert len(run.frame()) == ROUNDS + 1
