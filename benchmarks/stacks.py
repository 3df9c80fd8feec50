"""Methods with a model for each client, on many small clients: all in stacks against one client at a time."""

from __future__ import annotations

from statistics import median
from time import process_time
from typing import Any

import numpy as np
import torch

import fedloom
from fedloom.execution import one_thread
from fedloom.federation.ragged import Ragged

NAME = "STACKS"
TITLE = "logistic regression on 20 features, 1,000 clients of 50 rows"
CLIENTS, ROWS, FEATURES = 1000, 50, 20
METHODS: dict[str, fedloom.ServerMethod] = {
    "l2gd": fedloom.L2GD(lambda_=0.1, p=0.2, lr=0.5),
    "easgd": fedloom.EASGD(batch=None),
    "pfedme": fedloom.PFedMe(batch=None, local_rounds=5),
    "fedu": fedloom.FedU(batch=None),
}
LEAST = 20.0
"""Times as fast that stacks must be."""


def problem() -> fedloom.Problem:
    """Clients whose labels follow directions of their own."""
    random = np.random.default_rng(1)
    x = random.standard_normal((CLIENTS * ROWS, FEATURES)).astype(np.float32)
    own = random.standard_normal((CLIENTS, FEATURES)).repeat(ROWS, 0)
    y = torch.from_numpy((x * own).sum(1) > 0).float()[:, None]
    none = torch.zeros(CLIENTS, dtype=torch.int64)
    splits = {"train": Ragged.contiguous(none + ROWS), "test": Ragged.contiguous(none)}
    data = fedloom.FederatedData(NAME, torch.from_numpy(x), y, "binary", splits)
    return fedloom.Problem(data, fedloom.build_model("linear", data))


def seconds(problem: fedloom.Problem, method: fedloom.ServerMethod, stack: int | None) -> float:
    """Of this process's own time for the second round, the first of which every client remembers something."""
    ends: list[float] = []
    with one_thread():
        fedloom.train(
            problem,
            method,
            rounds=2,
            stack=stack,
            evaluate=[],
            executor="serial",
            progress=lambda *_: ends.append(process_time()),
        )
    return ends[-1] - ends[-2]


def race(repeats: int = 3) -> dict[str, Any]:
    """Each method one by one and in stacks, the same rounds; ``ratio`` is how many times as fast stacks are."""
    solved, figures = problem(), dict[str, Any]()
    for name, method in METHODS.items():
        alone = min(seconds(solved, method, 1) for _ in range(repeats))
        stacked = [seconds(solved, method, None) for _ in range(5 * repeats)]
        figures[name] = {
            "title": TITLE,
            "ratio": alone / min(stacked),
            "least": LEAST,
            "median_ratio": alone / median(stacked),
            "seconds_per_round": min(stacked),
            "repeats": repeats,
        }
    return figures


def sentence(name: str, figures: dict[str, Any]) -> str:
    """The result as a line of text."""
    return (
        f"{NAME}: a round of {name} takes {figures['seconds_per_round'] * 1e3:.0f} ms in stacks, one client at a time "
        f"{figures['ratio']:.0f} times that (at least {figures['least']:.0f} times)."
    )
