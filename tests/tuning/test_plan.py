"""A time becomes a plan: trials, rungs, rounds."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.errors import ConfigError, RunError
from fedloom.tuning.ledger import Ledger, Outcome
from fedloom.tuning.plan import (
    MethodPlan,
    Pace,
    Plan,
    Rung,
    affordable,
    cost,
    parse_budget,
    planned_rounds,
    read_plan,
    rungs_of,
    shares,
)


def test_a_third_of_the_trials_goes_on_for_three_times_the_rounds() -> None:
    assert rungs_of(9, 27) == (Rung(3, 9), Rung(9, 3), Rung(27, 1))
    assert rungs_of(10, 2) == (Rung(2, 10),)
    assert rungs_of(0, 10) == ()
    assert planned_rounds(rungs_of(9, 27), 27) == 9 * 3 + 3 * 6 + 1 * 18 + 27
    assert planned_rounds(rungs_of(9, 27), 27, repeats=3) == 9 * 3 + 3 * 6 + 1 * 18 + 27 + 2 * 27 * 2


@given(st.integers(1, 500), st.integers(1, 3000))
def test_rungs_rise_in_rounds_fall_in_trials_and_end_with_all_rounds(trials: int, rounds: int) -> None:
    rungs = rungs_of(trials, rounds)
    assert rungs[-1].rounds == rounds
    assert rungs[0].trials == trials
    for before, after in pairwise(rungs):
        assert before.rounds < after.rounds
        assert before.trials > after.trials >= 1


@settings(max_examples=50)
@given(st.floats(0.1, 1e3), st.integers(1, 500), st.floats(1e-4, 1.0), st.floats(1e-4, 0.1), st.integers(1, 3))
def test_a_plan_costs_no_more_than_it_may_and_more_time_pays_for_as_many_trials(
    seconds: float, rounds: int, pace: float, start: float, repeats: int
) -> None:
    speed = Pace(pace, start)
    rungs, more = (affordable(time, rounds, speed, repeats, limit=40) for time in (seconds, seconds * 2))
    if rungs:
        assert cost(rungs, rounds, speed, repeats) <= seconds
        assert more[0].trials >= rungs[0].trials


def test_a_budget_that_does_not_pay_for_all_defaults_says_how_much_is_needed() -> None:
    assert shares(100.0, 3.0, {"a": 5.0, "b": 40.0}) == pytest.approx(45.0)
    with pytest.raises(ConfigError, match=r"a full run of b with its defaults takes 50.0 s; give at least 111s"):
        shares(100.0, 3.0, {"a": 5.0, "b": 50.0})


def test_times_are_written_as_people_do() -> None:
    assert [parse_budget(one) for one in ("90", "90s", "10m", "1.5h", 2.5)] == [90, 90, 600, 5400, 2.5]
    for wrong in ("soon", "0s", "-3", "10 parsecs", ""):
        with pytest.raises(ConfigError, match="write it as 90s, 10m or 2h"):
            parse_budget(wrong)


def test_a_plan_is_read_as_it_was_written_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    own = MethodPlan("fedavg", 27, rungs_of(9, 27), ({"method.lr": 0.1},), {"method.lr": "0..1"}, Pace(0.1, 0.2))
    plan = Plan((own,), {"methods": ["fedavg"]}, "accuracy", True, "validation", seed=3, notes=["said"])
    plan.write(tmp_path)
    assert read_plan(tmp_path) == plan
    assert read_plan(tmp_path / "nowhere") is None
    (tmp_path / "plan.json").write_text('{"methods": [{}]}')
    with pytest.raises(RunError, match="damaged"):
        read_plan(tmp_path)
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        read_plan(tmp_path)


def test_a_line_that_a_kill_has_cut_off_is_done_again_and_damage_is_said(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    one, two = (Outcome("fedavg", at, 0, 3, 0.5, {"method.lr": 0.1}) for at in (1, 2))
    with Ledger(path) as ledger:
        ledger.add(one)
        ledger.add(two)
    whole = path.read_bytes()
    for cut in range(1, len(whole) // 2):
        path.write_bytes(whole[:-cut])
        with Ledger(path) as ledger:
            assert list(ledger.outcomes.values()) == [one]
            ledger.add(two)
        assert path.read_bytes() == whole
    path.write_bytes(b"nonsense\n" + whole)
    with pytest.raises(RunError, match="line 1 is damaged"):
        Ledger(path)
