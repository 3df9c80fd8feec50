"""Consensus ADMM on least squares against one central ``numpy.linalg.lstsq`` on the pooled rows."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import fedloom
from fedloom.federation.ragged import Ragged

NAME = "ADMM"
TITLE = "least squares in 500 dimensions, 50 clients of 200"
CLIENTS, ROWS, FEATURES = 50, 200, 500
METHOD = {"rho": 1.5, "relaxation": 1.8}
"""About the curvature that clients have along the directions they know; found by trying a few."""
ROUNDS = 40
CLOSE = 1e-8
MOST = 20.0
"""Times one lstsq that it may take."""

Floats = npt.NDArray[np.float64]


def pooled() -> tuple[Floats, Floats]:
    """Standard normal features, and labels with noise."""
    random = np.random.default_rng(1)
    x = random.standard_normal((CLIENTS * ROWS, FEATURES))
    return x, x @ random.standard_normal(FEATURES) + random.standard_normal(len(x))


def federation(x: Floats, y: Floats) -> fedloom.FederatedData:
    """The same rows, client i having the i-th run of them."""
    none = torch.zeros(CLIENTS, dtype=torch.int64)
    splits = {"train": Ragged.contiguous(none + ROWS), "test": Ragged.contiguous(none)}
    return fedloom.FederatedData(NAME, torch.from_numpy(x), torch.from_numpy(y)[:, None], "regression", splits)


def solve(data: fedloom.FederatedData) -> tuple[float, Floats]:
    """One whole run, factorisations included: its seconds and what it found."""
    model = fedloom.build_model("linear", data, bias=False)
    start = perf_counter()
    problem = fedloom.Problem(data, model, "squared", torch.float64)
    run = fedloom.train(problem, fedloom.ADMM(**METHOD), rounds=ROUNDS, evaluate=[], executor="serial")
    return perf_counter() - start, run.theta.numpy()


def race(repeats: int = 5) -> dict[str, Any]:
    """Both in turn, so many times; ``ratio`` is the best run's time in that of the best lstsq."""
    x, y = pooled()
    data = federation(x, y)
    ours, theirs, off = [], [], 0.0
    for _ in range(repeats):
        start = perf_counter()
        optimum = np.linalg.lstsq(x, y, rcond=None)[0]
        theirs.append(perf_counter() - start)
        seconds, found = solve(data)
        ours.append(seconds)
        off = max(off, float(np.linalg.norm(found - optimum) / np.linalg.norm(optimum)))
    return {
        "title": TITLE,
        "ratio": min(ours) / min(theirs),
        "most": MOST,
        "median_ratio": median(mine / other for mine, other in zip(ours, theirs, strict=True)),
        "seconds": min(ours),
        "lstsq_seconds": min(theirs),
        "rounds": ROUNDS,
        "relative_distance": off,
        "close_enough": off <= CLOSE,
        "repeats": repeats,
    }


def sentence(figures: dict[str, Any]) -> str:
    """The result as a line of text."""
    return (
        f"{NAME} comes within {figures['relative_distance']:.1g} of the optimum in {figures['seconds']:.2f} s, "
        f"{figures['ratio']:.2f} times one lstsq ({figures['lstsq_seconds']:.2f} s; at most {MOST:.0f} times)."
    )
