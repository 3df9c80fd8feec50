"""Meta-gradients against plain gradients over the same rows, in the same run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

import fedloom
from fedloom.execution import one_thread
from fedloom.execution.executor import keep_buffers
from fedloom.federation.meta import Meta
from fedloom.federation.ragged import Ragged

NAME = "META"
EXACT_MOST, ADMM_MOST = 3.0, 6.0
"""Plain gradients that one exact meta-gradient may take (of support and query together), and ADMM-FedMeta's client (of
the support alone)."""


@dataclass(frozen=True)
class Case:
    """Clients that are computed together, as many as a run would take; half of each one's rows are its support."""

    model: str
    shape: tuple[int, ...]
    clients: int
    rows: int

    @property
    def title(self) -> str:
        """What is measured, in a few words."""
        return f"{self.model}, {self.clients} client{'s' * (self.clients > 1)} of {self.rows} rows"

    def problem(self) -> fedloom.Problem:
        """Random rows."""
        random = torch.Generator().manual_seed(1)
        total = self.clients * self.rows
        x = torch.randn(total, *self.shape, generator=random)
        y = torch.randint(10, (total,), generator=random)
        train = Ragged.contiguous(torch.full((self.clients,), self.rows))
        half = self.rows // 2
        splits = {
            "train": train,
            "test": Ragged.contiguous(torch.zeros(self.clients, dtype=torch.int64)),
            "support": Ragged.of([train[i][:half] for i in range(self.clients)]),
            "query": Ragged.of([train[i][half:] for i in range(self.clients)]),
        }
        data = fedloom.FederatedData(NAME, x, y, "classification", splits, classes=tuple("0123456789"))
        return fedloom.Problem(data, fedloom.build_model(self.model, data))


CASES = (Case("mlp", (1, 28, 28), 4, 40), Case("lenet", (3, 32, 32), 1, 64))


def race(repeats: int = 25) -> dict[str, Any]:
    """Every kind of gradient in turn, so many times; ratios are those of the best times."""
    keep_buffers()  # as every executor does
    with one_thread():
        return {case.model: _figures(case, repeats) for case in CASES}


def sentence(figures: dict[str, Any]) -> str:
    """The result as a line of text."""
    return (
        f"{NAME} on {figures['title']}: an exact meta-gradient takes {figures['exact_ratio']:.2f} plain gradients (at "
        f"most {EXACT_MOST:.0f}), with step sizes of its own {figures['meta_sgd_ratio']:.2f}; a client of ADMM-FedMeta "
        f"{figures['admm_ratio']:.2f} of its support (at most {ADMM_MOST:.0f})."
    )


def _figures(case: Case, repeats: int) -> dict[str, Any]:
    problem = case.problem()
    assert case.clients == problem.stack_size(None)
    client, theta = problem.client(np.arange(case.clients)), problem.model.init(0)
    alpha, method = torch.full_like(theta, 0.01), fedloom.ADMMFedMeta(alpha=0.01)
    received = {"x": theta, "rows": client.n.sum(), "rho": torch.full((case.clients, 1), 0.35)}
    memory = method.client_init(client, received)
    kinds: dict[str, Callable[[], Any]] = {
        "plain": lambda: client.grad(theta),
        "support": lambda: client.grad(theta, "support"),
        "exact": lambda: client.meta_grad(theta, 0.01),
        "meta_sgd": lambda: client.meta_grad(theta, alpha),
        "first": lambda: client.meta_grad(theta, 0.01, Meta("first")),
        "admm": lambda: method.client(client, received, memory),
    }
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(repeats + 2):
        for kind, work in kinds.items():
            start = perf_counter()
            work()
            times[kind].append(perf_counter() - start)
    best = {kind: min(seconds[2:]) for kind, seconds in times.items()}
    return {
        "title": case.title,
        "seconds": best,
        "exact_ratio": best["exact"] / best["plain"],
        "exact_median_ratio": median(times["exact"][2:]) / median(times["plain"][2:]),
        "exact_most": EXACT_MOST,
        "meta_sgd_ratio": best["meta_sgd"] / best["plain"],
        "first_ratio": best["first"] / best["plain"],
        "admm_ratio": best["admm"] / best["support"],
        "admm_most": ADMM_MOST,
        "repeats": repeats,
    }
