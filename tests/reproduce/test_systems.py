"""What the programs by the MOCHA paper's cost model share."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fedloom
from fedloom.engine.fleet import FLEETS
from fedloom.federation.problem import Problem
from fedloom.reproduce import systems


@pytest.fixture(scope="module")
def problem() -> Problem:
    data = fedloom.federate("breast-cancer", clients=4)
    return Problem(data, fedloom.build_model("linear", data), "hinge", torch.float64)


def test_steps_cost_what_the_papers_program_counts(problem: Problem) -> None:
    speeds = [1 / way.fleet(FLEETS["lte"], problem, 100.0).speed.a for way in systems.ways()]
    assert speeds == pytest.approx([8, 8, 6, 4])
    longest = 8 * float(problem.data.splits["train"].sizes.max()) + 100
    deadlines = [way.fleet(FLEETS["lte"], problem, 100.0).deadline for way in systems.ways("largest")]
    assert deadlines == [longest, None, longest, longest]
    high = systems.varied(FLEETS["lte"], 0.1)
    assert (str(high.speed), high.redraw_speed) == ("uniform:0.0125:0.125", True)


def test_a_course_tells_when_the_gap_is_small_by_the_clock_of_the_fleet(problem: Problem) -> None:
    mocha, *_, sgd = systems.ways()
    optimum = systems.optimum_of(problem)
    found = systems.course(problem, mocha, FLEETS["lte"], 100.0, optimum, 400)
    longest = int(problem.data.splits["train"].sizes.max())
    assert found["last"] <= systems.LEVEL
    assert found["seconds"] % (8 * longest + 100) == 0  # whole rounds of a pass
    assert found["at"][-1] == found["rounds"] * (8 * longest + 100)
    assert found["values"][-1] == found["last"]
    slow = systems.course(problem, sgd, FLEETS["lte"], 100.0, optimum, 3)
    assert slow["last"] > 0
    assert slow["at"][-1] == 3 * (4 * 64 + 100)


def test_a_program_keeps_what_it_found(problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "problem_of", lambda name: problem)
    way = systems.ways()[0]
    panels = {"LTE": {way.name: (way, FLEETS["lte"], 100.0)}, "more": {}}
    systems.record(panels, ("made up", "other"), True, tmp_path / "d3-x.json")
    kept = json.loads((tmp_path / "d3-x.json").read_text())
    assert list(kept["panels"]) == ["made up, LTE"]
    assert kept["panels"]["made up, LTE"]["MOCHA"]["rounds"] == 3


def test_each_way_takes_the_best_of_its_four_values_and_says_what_came_of_all(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made_up(problem: Problem, way: systems.Way, *rest: object) -> dict[str, object]:
        epochs = getattr(way.method, "epochs", 0)
        beta = getattr(way.method, "beta", 0)
        return {"seconds": {4: 7.0, 8: 9.0}.get(epochs), "last": abs(beta - 100)}

    monkeypatch.setattr(systems, "course", made_up)
    mocha, _, sdca, _ = systems.ways("median")
    lines = {
        way.name: (way, FLEETS["lte"], 100.0) for way in (mocha, sdca, replace(mocha, name="as it is", fixed=True))
    }
    best, tried = systems.tuned(problem, {"LTE": lines}, 1.0)
    assert best == {"MOCHA": {"epochs": 4}, "mini-batch SDCA": {"beta": 100.0}}
    assert [one["seconds"] for one in tried["MOCHA"]] == [None, None, 7.0, 9.0]
