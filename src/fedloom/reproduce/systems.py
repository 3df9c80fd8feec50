"""How long methods in the dual take on a simulated fleet: what d3-stragglers, -heterogeneity and -faults share.

Smith et al. (2017) let MOCHA, CoCoA, mini-batch SDCA and mini-batch SGD solve one problem under a cost model, and draw
how far each is from the optimum against the estimated time. Here MOCHA and CoCoA solve the multi-task problem with
models held near their mean; CoCoA is MOCHA whose clients all leave the same share θ of their subproblem, whatever that
takes. The mini-batch methods have one model for all, on the same rows and with the same strength. What is told is
the duality gap as a share of the objective; of SGD, which has no dual, how far its objective is above the optimum.

Every method has one number to choose, and four values of it: the one that is first at the gap by LTE with equal speeds,
else nearest to it, is taken for all panels of a data set, and all four are kept with the result.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import fedloom
from fedloom.engine.fleet import FLEETS, Distribution, Fleet
from fedloom.errors import Diverged
from fedloom.federation.problem import Problem
from fedloom.methods import Method, name_of

LEVEL = 0.01
"""The share of the objective that the gap is to come down to."""
SPEED = 1 / 8
"""Rows a second of a client by the cost model: 8 operations for each step of SDCA …"""
_FEWER = {"mini-batch-sdca": 6, "mini-batch-sgd": 4}
"""… and fewer of methods whose steps do less."""
_STRENGTH = 0.01
GRID: dict[str, dict[str, tuple[float, ...]]] = {
    "MOCHA": {"epochs": (1, 2, 4, 8)},
    "CoCoA": {"accuracy": (0.9, 0.7, 0.5, 0.3)},
    "mini-batch SDCA": {"beta": (10.0, 100.0, 300.0, 1000.0)},
    "mini-batch SGD": {"beta": (0.03, 0.1, 0.3, 1.0)},
}
"""What each method chooses from."""
Cycle = Literal["median", "largest"]
_POINTS = 60
_FAR = 1e9
"""How far from the optimum a method is that has diverged."""


@dataclass(frozen=True)
class Way:
    """A row of a figure: a method, and whether its clients do what they can by a deadline, or their server waits."""

    name: str
    method: Method
    in_time: Cycle | None = None
    rounds: int = 1000
    fixed: bool = False
    """Whether its settings are as they are, and not tuned."""

    @property
    def operations(self) -> int:
        """For each row of a local step."""
        return _FEWER.get(name_of(self.method), 8)

    def fleet(self, fleet: Fleet, problem: Problem, communication: float) -> Fleet:
        """A fleet with the cost of its steps, and with the deadline of a clock cycle where it minds one."""
        speed, faster = fleet.speed, 8 / self.operations
        own = replace(fleet, speed=Distribution(speed.kind, speed.a * faster, speed.b * faster))
        if self.in_time is None:
            return own
        return replace(own, deadline=cycle_of(problem, self.in_time, communication), late="partial")


def ways(in_time: Cycle | None = None) -> list[Way]:
    """The four rows of the paper's figures."""
    tasks: dict[str, Any] = {"relation": "mean", "objective": "mean", "inner": 0}
    tasks |= {"lambda1": _STRENGTH / 2, "lambda2": _STRENGTH / 2, "stop": LEVEL / 2}  # a little further than is told
    sdca, sgd = (
        fedloom.MiniBatchSDCA(lambda_=_STRENGTH, batch=64, stop=LEVEL / 2),
        fedloom.MiniBatchSGD(lambda_=_STRENGTH, batch=64),
    )
    return [
        Way("MOCHA", fedloom.MOCHA(**tasks), in_time),
        Way("CoCoA, the same θ for all", fedloom.MOCHA(**tasks, accuracy=0.5)),
        Way("mini-batch SDCA, one model", sdca, in_time),
        Way("mini-batch SGD, one model", sgd, in_time),
    ]


def problem_of(name: str, seed: int = 0) -> Problem:
    """A support vector machine of one of the data sets; three quarters of each client's rows."""
    options: dict[str, Any] = {"positive": "sitting"} if name == "hapt" else {}
    data = fedloom.federate(name, test=0.25, support=None, seed=seed, **options)
    return Problem(data, fedloom.build_model("linear", data), "hinge", torch.float64)


def cycle_of(problem: Problem, who: Cycle, communication: float) -> float:
    """A clock cycle: what the client of median size, or the largest, needs for a pass at full speed, with messages."""
    sizes = problem.data.splits["train"].sizes.double()
    return communication + float(sizes.median() if who == "median" else sizes.max()) / SPEED


def varied(fleet: Fleet, least: float) -> Fleet:
    """Clients that in every round have from this share of the full speed to all of it, drawn evenly."""
    return replace(fleet, speed=Distribution("uniform", least * SPEED, SPEED), redraw_speed=True)


def course(problem: Problem, way: Way, fleet: Fleet, cost: float, optimum: float, rounds: int) -> dict[str, Any]:
    """How far it is from the optimum against the simulated time, and when that is ``LEVEL``; messages have a cost."""
    try:
        run = fedloom.train(
            problem,
            way.method,
            rounds=rounds,
            fleet=way.fleet(fleet, problem, cost),
            evaluate=fedloom.Evaluation(every=1, metrics=("error",)),
            progress=False,
        )
    except Diverged:
        return {"seconds": None, "rounds": rounds, "last": _FAR, "at": [], "values": []}
    history = [row for row in run.history if row.get("measures")]
    told = [(row["simulated_seconds"], _distance(row["measures"], optimum)) for row in history]
    reached = next((seconds for seconds, distance in told if distance <= LEVEL), None)
    kept = sorted({round(at) for at in np.geomspace(1, len(told), _POINTS)} | {len(told)})
    return {
        "seconds": reached,
        "rounds": int(run.summary["rounds"]),
        "last": told[-1][1],
        "at": [told[at - 1][0] for at in kept],
        "values": [told[at - 1][1] for at in kept],
    }


def optimum_of(problem: Problem) -> float:
    """The least objective of one model for all, by an exact solution."""
    run = fedloom.train(problem, fedloom.GlobalLinear(lambda_=_STRENGTH, accuracy=1e-6), progress=False)
    return float(run.history[-1]["measures"]["objective"])


def kind_of(way: Way) -> str:
    """What is tuned once for all lines of it."""
    return "" if way.fixed else way.name.partition(",")[0]


def tuned(problem: Problem, panels: Panels, optimum: float) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """For each kind of way the best of its four values by LTE with equal speeds; and what came of each."""
    best, tried = dict[str, dict[str, Any]](), dict[str, Any]()
    for way in {kind_of(way): way for lines in panels.values() for way, _, _ in lines.values()}.values():
        if not (kind := kind_of(way)):
            continue
        ((name, values),) = GRID[kind].items()
        results = []
        for value in values:
            own = replace(way, method=replace(way.method, **{name: value}), in_time=None)  # type: ignore[type-var]
            one = course(problem, own, *networks()["LTE"], optimum, way.rounds)
            results.append({name: value, "seconds": one["seconds"], "last": one["last"]})
            print(f"  {kind}, {name} = {value}: {one['seconds']}, last {one['last']:.2e}", flush=True)
        order = [(math.inf if r["seconds"] is None else r["seconds"], r["last"]) for r in results]
        best[kind] = {name: values[order.index(min(order))]}
        tried[kind] = results
    return best, tried


def _distance(measures: Mapping[str, float], optimum: float) -> float:
    found = measures["gap"] / measures["primal"] if "gap" in measures else measures["primal"] / optimum - 1
    return found if math.isfinite(found) else _FAR


Panels = Mapping[str, Mapping[str, tuple[Way, Fleet, float]]]
"""For each panel of a figure its lines: a way, the fleet, and what the messages of a round cost."""


def record(panels: Panels, data: tuple[str, ...], quick: bool, keep: Path | None) -> None:
    """Runs all lines of all panels on these data, tells each, and keeps what came of them."""
    found: dict[str, Any] = {"level": LEVEL, "panels": {}}
    for source in data[:1] if quick else data:
        problem = problem_of(source)
        optimum = optimum_of(problem)
        best, tried = ({}, {}) if quick else tuned(problem, panels, optimum)
        found.setdefault("tuned", {})[source] = tried
        for title, lines in _some(panels, quick):
            panel = found["panels"].setdefault(f"{source}, {title}", {})
            for line, (way, fleet, cost) in lines.items():
                rounds = 3 if quick else way.rounds
                own = replace(way, method=replace(way.method, **best.get(kind_of(way), {})))  # type: ignore[type-var]
                panel[line] = course(problem, own, fleet, cost, optimum, rounds)
                seconds, last = panel[line]["seconds"], panel[line]["last"]
                said = "not reached" if seconds is None else f"{seconds:,.0f}"
                print(f"{source}, {title:28} {line:34} {said:>14}  last {last:.2e}", flush=True)
    if keep is not None:
        keep.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _some(panels: Panels, quick: bool) -> Iterator[tuple[str, Mapping[str, tuple[Way, Fleet, float]]]]:
    yield from list(panels.items())[:1] if quick else panels.items()


def main(name: str, panels: Panels, data: tuple[str, ...], results: Path) -> None:
    """A program: ``--quick`` has the first panel of the first data set with three rounds, ``--record`` keeps it."""
    torch.set_num_threads(1)
    keep = results / f"{name}.json" if "--record" in sys.argv else None
    record(panels, data, "--quick" in sys.argv, keep)


def networks() -> dict[str, tuple[Fleet, float]]:
    """The fleets of the cost model, and what the messages of a round cost in each."""
    return {"WiFi": (FLEETS["wifi"], 10.0), "LTE": (FLEETS["lte"], 100.0), "3G": (FLEETS["3g"], 1000.0)}
