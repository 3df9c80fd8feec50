"""How FedAvg's error falls with rounds, local steps and clients: fedloom reproduce rate [--quick] [--record]

The error is E f(x_T) − f(x*) with the best constant step for each T, K and N, as theory has it. Every client has
f_i(x) = a_i (x − b_i)²/2 and gradients with noise of deviation σ: least squares with one feature, a row for each step.
The model has many outputs, each of them the same problem with noise of its own, so that one run is as many repeats.
What is stated of FedAvg's error is O(HN/T + σ/√(TKN)).

``--record`` keeps errors and slopes in experiments/results/rate.json, from where docs/results.md has them.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.conformance.drive import walking
from fedloom.engine.rounds import Rounds
from fedloom.federation.data import FederatedData
from fedloom.federation.networks import build_model
from fedloom.federation.problem import Problem
from fedloom.federation.ragged import Ragged
from fedloom.federation.randomness import Draw
from fedloom.methods import FedAvg

RESULT = Path(__file__).parent / "results" / "rate.json"
ROWS = 512
"""Of a client. A step takes one of them, and no row twice in a round, so K is to be small beside it."""
START, ROUNDING = 1.0, 1e-12

STATED = {"T": "−1 and −½", "K": "0 and −½", "N": "+1 and −½"}
"""Of the two terms; H is taken for a constant of the problem (its smoothness)."""


@dataclass(frozen=True)
class Grid:
    """What is run: rounds, local steps and clients, one of them varied at a time, and how many repeats."""

    rounds: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    steps: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    clients: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    base: tuple[int, int] = (4, 8)
    lengths: int = 11
    outputs: int = 400

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """K and N: one of them as in ``base``."""
        k, n = self.base
        return sorted({(steps, n) for steps in self.steps} | {(k, clients) for clients in self.clients})

    def sizes(self, steps: int) -> list[float]:
        """The step sizes η: ηK is a power of two, from 1 downwards."""
        return [2.0**-j / steps for j in range(self.lengths)]


QUICK = Grid((4, 8, 16), (1, 2, 4), (2, 4), (2, 2), 4, 20)


@dataclass(frozen=True)
class Clients:
    """Half of the clients have the first curvature and minimum, half the second; the minimum of all is 0."""

    curvature: tuple[float, float]
    minimum: tuple[float, float]
    noise: float

    @property
    def mean(self) -> float:
        return sum(self.curvature) / 2


SAME = Clients((1.0, 1.0), (0.0, 0.0), 1.0)
APART = Clients((0.5, 1.5), (1.5, -0.5), 1.0)
APART_QUIET = Clients((0.5, 1.5), (1.5, -0.5), 0.0)


@cache
def problem(kind: Clients, clients: int, outputs: int) -> Problem:
    """Least squares with one feature √a_i: rows of y around √a_i b_i, whose mean is exactly that."""
    a, b = (np.resize(pair, clients) for pair in (kind.curvature, kind.minimum))
    noise = Draw(5).generator("rate").standard_normal((clients, ROWS, outputs))
    noise -= noise.mean(1, keepdims=True)
    noise /= np.sqrt(np.square(noise).mean(1, keepdims=True))
    feature = np.sqrt(a)[:, None, None]
    y = feature * b[:, None, None] + kind.noise / feature * noise
    x = np.broadcast_to(feature, (clients, ROWS, 1))
    rows = Ragged.of(list(torch.arange(clients * ROWS).reshape(clients, ROWS)))
    data = FederatedData(
        "rate",
        torch.from_numpy(x.reshape(-1, 1).copy()),
        torch.from_numpy(y.reshape(-1, outputs)),
        "regression",
        {"train": rows},
    )
    return Problem(data, build_model("linear", data, bias=False), dtype=torch.float64)


def measured(kind: Clients, steps: int, clients: int, size: float, grid: Grid) -> dict[int, tuple[float, float]]:
    """For every T the square of the mean distance from 0 and the variance around it: FedAvg, over the outputs."""
    d = grid.outputs
    method = FedAvg(lr=size * d, batch=1, steps=steps, weighting="uniform")  # the loss is the mean over the outputs
    found = {}
    theta0 = torch.full((d,), START, dtype=torch.float64)
    with walking(Rounds, problem(kind, clients, d), method, theta0=theta0) as walk:
        for t in range(1, max(grid.rounds) + 1):
            walk.step()
            if t in grid.rounds:
                x = walk.theta()
                variance = float(x.var())
                found[t] = (float(x.mean()) ** 2 - variance / d, variance)
    return found


def expected(kind: Clients, steps: int, clients: int, size: float, grid: Grid) -> dict[int, tuple[float, float]]:
    """The same in expectation, by the recursion that the moments of one output obey."""
    a, b = (np.resize(pair, clients) for pair in (kind.curvature, kind.minimum))
    q, apart = 1 - size * a, -1 / (ROWS - 1)  # rows of a round are drawn without replacement
    powers = q[:, None] ** np.arange(steps)
    spread = (1 - apart) * np.square(powers).sum(1) + apart * powers.sum(1) ** 2
    added = size**2 * kind.noise**2 * spread.sum() / clients**2
    keep, pull = float((q**steps).mean()), float(((1 - q**steps) * b).mean())
    found, mean, variance = {}, START, 0.0
    for t in range(1, max(grid.rounds) + 1):
        mean, variance = keep * mean + pull, keep**2 * variance + added
        if t in grid.rounds:
            found[t] = (mean**2, variance)
    return found


def best(kind: Clients, moments: dict[float, dict[int, tuple[float, float]]], rounds: int) -> float:
    """The least error over the step sizes."""
    return min(kind.mean / 2 * max(sum(at[rounds]), 0.0) for at in moments.values())


def worst(moments: dict[float, dict[int, tuple[float, float]]], rounds: int, noise: float) -> float:
    """The greatest over curvatures a ≤ 1 of the least error over steps of at most 1, read off runs with a = 1.

    With another curvature, step η and noise σ the same happens as with a = 1, step ηa and noise σ/a.
    """

    def error(a: float) -> float:
        able = [at[rounds] for size, at in moments.items() if size <= a]
        stay = a / 2 * START**2
        return min([stay, *(a / 2 * (max(mean, 0.0) + (noise / a) ** 2 * variance) for mean, variance in able)])

    least = min(moments)
    return max(error(2.0**-j) for j in range(40) if 2.0**-j >= least)


def slope(line: dict[int, float]) -> float:
    """Of the logarithm of the error in that of what is varied: least squares, without errors that are rounding."""
    x, y = np.log([(at, error) for at, error in line.items() if error > ROUNDING]).T
    return float(np.polyfit(x, y, 1)[0])


def lines(errors: dict[tuple[int, int, int], float], grid: Grid) -> dict[str, dict[int, float]]:
    """The errors along each axis from the base, the other two being fixed; K and N at the last T."""
    k, n = grid.base
    last = max(grid.rounds)
    return {
        "T": {t: errors[t, k, n] for t in grid.rounds},
        "K": {steps: errors[last, steps, n] for steps in grid.steps},
        "N": {clients: errors[last, k, clients] for clients in grid.clients},
    }


def situations(grid: Grid, way: Any) -> dict[str, dict[str, dict[int, float]]]:
    """The errors along the axes, of every situation."""
    found: dict[str, dict[tuple[int, int, int], float]] = {}
    for name, kind in (("", SAME), ("different clients", APART), ("different clients, no noise", APART_QUIET)):
        for k, n in grid.pairs:
            moments = {size: way(kind, k, n, size, grid) for size in grid.sizes(k)}
            for t in grid.rounds:
                if name:
                    found.setdefault(name, {})[t, k, n] = best(kind, moments, t)
                else:
                    found.setdefault("identical clients", {})[t, k, n] = best(kind, moments, t)
                    for noise, title in (
                        (1.0, "identical clients, worst curvature"),
                        (0.0, "identical clients, worst curvature, no noise"),
                    ):
                        found.setdefault(title, {})[t, k, n] = worst(moments, t, noise)
    return {name: lines(errors, grid) for name, errors in found.items()}


def main() -> None:
    """Every situation, run and in expectation."""
    grid = QUICK if "--quick" in sys.argv else Grid()
    runs, theory = situations(grid, measured), situations(grid, expected)
    off = max(
        abs(np.log(runs[name][axis][at] / theory[name][axis][at]))
        for name in runs
        for axis in runs[name]
        for at in runs[name][axis]
        if theory[name][axis][at] > ROUNDING
    )
    record = {
        "stated": STATED,
        "base": dict(zip("KN", grid.base, strict=True)) | {"T": max(grid.rounds)},
        "furthest": round(float(np.expm1(off)), 4),
        "slopes": {
            name: {axis: [round(slope(one), 3) for one in (runs[name][axis], theory[name][axis])] for axis in "TKN"}
            for name in runs
        },
        "errors": runs,
        "expected": theory,
    }
    for name, slopes in record["slopes"].items():
        print(f"{name:36}", "   ".join(f"{axis}: {run:+.2f} ({exact:+.2f})" for axis, (run, exact) in slopes.items()))
    print(f"runs are at most {100 * record['furthest']:.0f} % off what is expected (in brackets)")
    if "--record" in sys.argv:
        RESULT.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
