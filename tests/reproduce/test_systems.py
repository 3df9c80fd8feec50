"""What the programs by the MOCHA paper's cost model share."""

from __future__ import annotations

import json
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


def test_steps_cost_what_the_papers_program_counts() -> None:
    speeds = [1 / way.fleet(FLEETS["lte"], 50.0).speed.a for way in systems.ways()]
    assert speeds == pytest.approx([8, 8, 6, 4])
    deadlines = [way.fleet(FLEETS["lte"], 50.0).deadline for way in systems.ways(in_time=True)]
    assert deadlines == [50.0, None, 50.0, 50.0]
    high = systems.varied(FLEETS["lte"], 0.1)
    assert (str(high.speed), high.redraw_speed) == ("uniform:0.0125:0.125", True)


def test_a_course_tells_when_the_gap_is_small_by_the_clock_of_the_fleet(problem: Problem) -> None:
    mocha, *_, sgd = systems.ways()
    optimum = systems.optimum_of(problem)
    found = systems.course(problem, mocha, FLEETS["lte"], 0.0, optimum, 400)
    longest = int(problem.data.splits["train"].sizes.max())
    assert found["last"] <= systems.LEVEL
    assert found["seconds"] % (8 * longest + 100) == 0  # whole rounds of a pass
    assert found["at"][-1] == found["rounds"] * (8 * longest + 100)
    assert found["values"][-1] == found["last"]
    slow = systems.course(problem, sgd, FLEETS["lte"], 0.0, optimum, 3)
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
