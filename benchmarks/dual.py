"""Coordinate ascent in the dual against LIBLINEAR (scikit-learn's LinearSVC): one pool of rows, and many tasks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.svm import LinearSVC

import fedloom
from fedloom.errors import FedloomError
from fedloom.federation.client import Client
from fedloom.federation.coordinates import loop
from fedloom.federation.ragged import Ragged
from fedloom.federation.randomness import Draw

NAME = "DUAL"
LAM = 1e-3
CLOSE = 1e-3
"""How near the objective comes to the optimum, relative to it."""
MOST, MOST_OF_A_PASS = 2.0, 3.0
"""Times LIBLINEAR's time that it may take, and times one pass of it."""
TASKS, ROWS, FEATURES = 1000, 100, 100
_LIKE_HAPT = 10_411, 134
_PASSES = (*range(1, 10), *range(10, 100, 5), *range(100, 1000, 50))

Floats = npt.NDArray[np.float64]


@cache
def hapt() -> tuple[str, Floats, Floats]:
    """All windows of HAPT, sitting against the rest; made-up rows of about their number where the data are not."""
    try:
        data = fedloom.federate("hapt", test=0)
        x, sits = data.x.flatten(1).double().numpy(), data.y.numpy() == data.classes.index("sitting")
        return f"HAPT, {len(x):,} rows of {x.shape[1]}", np.ascontiguousarray(x), sits.astype(np.float64)
    except FedloomError:
        random = np.random.default_rng(1)
        x = random.standard_normal(_LIKE_HAPT)
        score = x @ random.standard_normal(x.shape[1]) / 4 + random.standard_normal(len(x))
        return f"made up, {len(x):,} rows of {x.shape[1]}", x, (score > 2).astype(np.float64)


def clients(x: Floats, y: Floats, sizes: list[int]) -> Client:
    """A stack of clients that have these rows one after the other, with a hinge loss and no bias."""
    count = torch.tensor(sizes)
    splits = {"train": Ragged.contiguous(count), "test": Ragged.contiguous(0 * count)}
    data = fedloom.FederatedData(NAME, torch.from_numpy(x), torch.from_numpy(y)[:, None], "binary", splits)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data, bias=False), "hinge", torch.float64)
    return problem.client(np.arange(len(sizes)), Draw(1))


def objective(x: Floats, y: Floats, w: Floats) -> float:
    """(λ/2)‖w‖² + the mean hinge."""
    return float(LAM / 2 * w @ w + np.maximum(0, 1 - (2 * y - 1) * (x @ w)).mean())


def liblinear(x: Floats, y: Floats, passes: int) -> Floats:
    """LIBLINEAR's w after so many passes."""
    fit = LinearSVC(
        C=1 / (LAM * len(x)), loss="hinge", dual=True, fit_intercept=False, tol=1e-12, max_iter=passes, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Floats = fit.fit(x, y).coef_[0]
    return found


def ours(stack: Client, passes: int) -> Floats:
    """Each client's w after so many passes from nothing."""
    kappa = 1 / (LAM * stack.n.double())
    w = torch.zeros(len(stack.clients), stack.problem.model.n, dtype=torch.float64)
    alpha, _ = stack.ascend(stack.duals(), w, kappa, 1.0, epochs=passes)
    found: Floats = (kappa * stack.combined(alpha, 1.0)).numpy()
    return found


def race(repeats: int = 5) -> dict[str, Any]:
    """Both in turn, so many times, as few passes as are enough for each; the best of each counts."""
    title, x, y = hapt()
    stack = clients(x, y, [len(x)])
    best = min(objective(x, y, liblinear(x, y, 3000)), objective(x, y, ours(stack, 1000)[0]))

    def enough(solve: Callable[[int], Floats]) -> int:
        return next(passes for passes in _PASSES if objective(x, y, solve(passes)) <= (1 + CLOSE) * best)

    mine, their = enough(lambda passes: ours(stack, passes)[0]), enough(lambda passes: liblinear(x, y, passes))
    pool = _timed(repeats, lambda: ours(stack, mine), lambda: liblinear(x, y, their))
    rows, labels = _tasks()
    many = clients(rows, labels, [ROWS] * TASKS)
    ours(many, 1)
    one = _timed(repeats, lambda: ours(many, 1), lambda: liblinear(rows, labels, 1))
    return {
        "title": title,
        "loop": loop().name,
        "ratio": pool[0] / pool[1],
        "most": MOST,
        "seconds": pool[0],
        "liblinear_seconds": pool[1],
        "passes": mine,
        "liblinear_passes": their,
        "tasks": f"{TASKS:,} tasks of {ROWS} rows and {FEATURES} features",
        "pass_ratio": one[0] / one[1],
        "most_of_a_pass": MOST_OF_A_PASS,
        "pass_seconds": one[0],
        "liblinear_pass_seconds": one[1],
        "repeats": repeats,
    }


def _tasks() -> tuple[Floats, Floats]:
    random = np.random.default_rng(2)
    x = random.standard_normal((TASKS * ROWS, FEATURES))
    return x, (x[:, 0] + random.standard_normal(len(x)) > 0).astype(np.float64)


def _timed(repeats: int, *solve: Callable[[], object]) -> list[float]:
    """The best time of each, in turn."""
    times: list[list[float]] = [[] for _ in solve]
    for _ in range(repeats):
        for one, its in zip(solve, times, strict=True):
            start = perf_counter()
            one()
            its.append(perf_counter() - start)
    return [min(its) for its in times]


def sentences(figures: dict[str, Any]) -> list[str]:
    """The result in two lines of text."""
    return [
        f"{NAME} ({figures['title']}) is within {CLOSE:g} of the optimum in {figures['seconds'] * 1e3:.0f} ms and "
        f"{figures['passes']} passes, {figures['ratio']:.2f} times LIBLINEAR ({figures['liblinear_seconds'] * 1e3:.0f} "
        f"ms, {figures['liblinear_passes']} passes; at most {MOST:g} times).",
        f"One pass over {figures['tasks']} takes {figures['pass_seconds'] * 1e3:.0f} ms, {figures['pass_ratio']:.2f} "
        f"times LIBLINEAR's ({figures['liblinear_pass_seconds'] * 1e3:.0f} ms; at most {MOST_OF_A_PASS:g} times).",
    ]
