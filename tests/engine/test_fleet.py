from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from scipy import stats

import fedloom
from fedloom.engine.fleet import FLEETS, Distribution, Fleet, Varied, common_cycle, fleet_for
from fedloom.errors import ConfigError
from fedloom.federation.distributions import WIDEST
from fedloom.federation.randomness import Draw

IDS = np.arange(4)
MANY = np.arange(20_000)
NUMBERS = st.floats(0, 1e12, allow_nan=False)


def constant(value: float) -> Distribution:
    return Distribution("constant", value)


@given(kind=st.sampled_from(["constant", "uniform", "lognormal", "exponential"]), a=NUMBERS, b=NUMBERS)
def test_a_distribution_comes_back_from_its_text(kind: str, a: float, b: float) -> None:
    numbers = (a,) if kind in ("constant", "exponential") else (min(a, b), max(a, b))
    numbers = (a, min(b, WIDEST)) if kind == "lognormal" else numbers
    written = Distribution(kind, *numbers)  # type: ignore[arg-type]
    assert Distribution.parse(str(written)) == written
    adapter = TypeAdapter(Varied)
    assert adapter.validate_python(adapter.dump_python(written)) == written


@pytest.mark.parametrize("text", ["exponential:1e308", "uniform:0:1e300", "1e19", "lognormal:1:11"])
def test_a_distribution_of_which_no_number_can_be_computed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="give at most"):
        Distribution.parse(text)
    assert Distribution.parse("inf").a == np.inf


@pytest.mark.parametrize("change", [{"jitter": 1e4}, {"fails_every": 1e-300}, {"period": 1e-9, "away": 0.5}])
def test_a_fleet_whose_times_cannot_be_computed_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"cannot be|shorter than anything that a device does"):
        fleet_for("cross-silo", **change).check()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", Distribution("constant", 5)),
        (5, Distribution("constant", 5)),
        (0.25, Distribution("constant", 0.25)),
        ("inf", Distribution("constant", math.inf)),
        ("uniform:10:100", Distribution("uniform", 10, 100)),
        ("lognormal:500:1", Distribution("lognormal", 500, 1)),
        ("exponential:3", Distribution("exponential", 3)),
        (Distribution("uniform", 1, 2), Distribution("uniform", 1, 2)),
    ],
)
def test_what_users_write(text: object, expected: Distribution) -> None:
    assert Distribution.parse(text) == expected


@given(
    how=st.sampled_from(["7", "uniform:10:100", "lognormal:500:1", "exponential:3"]),
    seed=st.integers(0, 2**63),
    clients=st.lists(st.one_of(st.integers(0, 5000), st.integers(2**20 - 2, 2**20 + 2), st.integers(0, 2**40))),
)
def test_a_number_that_a_client_keeps_is_the_one_that_it_would_draw(how: str, seed: int, clients: list[int]) -> None:
    ids = np.array(clients, dtype=np.int64)
    found = Distribution.parse(how).kept(seed, "speed", ids)
    np.testing.assert_allclose(found, Distribution.parse(how).of(Draw(seed), "speed", ids), rtol=1e-15)
    for i, client in enumerate(clients):  # alone as among others: a client's time does not depend on its company
        assert Distribution.parse(how).kept(seed, "speed", ids[i : i + 1]) == pytest.approx(found[i], rel=1e-15), client


def test_short_numbers_are_written_short() -> None:
    assert str(constant(5)) == "5"
    assert str(Distribution("uniform", 10, 100)) == "uniform:10:100"
    assert str(constant(math.inf)) == "inf"
    assert str(Distribution("exponential", 0.1)) == "exponential:0.1"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fast",
        "uniform:1",
        "uniform:1:2:3",
        "normal:0:1",
        "-3",
        "uniform:-5:10",
        "uniform:5:1",
        "nan",
        "exponential:x",
        "exponential:inf",
    ],
)
def test_what_is_no_distribution_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no distribution of non-negative numbers|lower end"):
        Distribution.parse(text)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("uniform:10:100", stats.uniform(10, 90)),
        ("lognormal:500:0.5", stats.lognorm(0.5, scale=500)),
        ("exponential:3", stats.expon(scale=3)),
    ],
)
def test_clients_numbers_follow_the_distribution(text: str, same: stats.rv_continuous) -> None:
    values = Distribution.parse(text).of(Draw(2), "speed", MANY)
    assert stats.kstest(values, same.cdf).pvalue > 1e-4
    assert np.array_equal(Distribution.parse(text).of(Draw(2), "speed", MANY[5:9]), values[5:9])


def test_times_by_hand() -> None:
    fleet = Fleet(
        speed=constant(50),
        delay_down=constant(1),
        delay_up=constant(2),
        bandwidth_down=constant(1000),
        bandwidth_up=constant(100),
    )
    seconds = fleet.seconds(IDS, 0, 500, np.array([100, 200, 0, 50]), np.array([100, 0, 25, 50]))
    assert seconds.tolist() == pytest.approx([1 + 0.5 + 2 + 1 + 2, 3.5 + 2 + 0, 3.5 + 0 + 0.5, 3.5 + 0.5 + 1])
    assert fleet.travel(IDS, 0, 500, np.array([100, 200, 0, 50])).tolist() == pytest.approx([4.5, 5.5, 3.5, 4.0])


def test_an_ideal_fleet_takes_no_time_and_loses_nothing() -> None:
    fleet = FLEETS["ideal"]
    seconds = fleet.seconds(IDS, 0, 10**9, np.full(4, 10**9), np.full(4, 10**9))
    fates = fleet.fates(IDS, seconds, Draw(0))
    assert not seconds.any()
    assert fates["accepted"].all()
    assert fleet.reachable(IDS, Draw(0)) is IDS
    assert fleet.effort(IDS, Draw(0)) is None
    assert fleet.budget(IDS, 0, 1, 1) is None
    assert fleet.round_seconds(seconds, fates) == 0


def test_a_clients_speed_is_its_own_for_the_whole_run() -> None:
    fleet = FLEETS["cross-device"]
    first = fleet.seconds(IDS, 3, 100, np.full(4, 100), np.full(4, 50))
    assert np.array_equal(first, fleet.seconds(IDS, 3, 100, np.full(4, 100), np.full(4, 50)))
    assert len(np.unique(first)) == 4
    assert not np.array_equal(first, fleet.seconds(IDS, 4, 100, np.full(4, 100), np.full(4, 50)))


@pytest.mark.parametrize(("dropout", "loss"), [(0.3, 0.0), (0.0, 0.2), (0.3, 0.2)])
def test_so_many_give_up_and_so_many_replies_are_lost(dropout: float, loss: float) -> None:
    fates = Fleet(dropout=dropout, loss=loss).fates(MANY, np.zeros(len(MANY)), Draw(1))
    assert fates["dropped"].mean() == pytest.approx(dropout, abs=0.02)
    assert fates["lost"].mean() == pytest.approx(loss * (1 - dropout), abs=0.02)
    assert not fates["late"].any()
    total = sum(fates[fate].astype(int) for fate in ("dropped", "lost", "late", "accepted"))
    assert (total == 1).all()
    other = Fleet(dropout=dropout, loss=loss).fates(MANY, np.zeros(len(MANY)), Draw(1, 1))
    assert not np.array_equal(other["accepted"], fates["accepted"])


def test_the_unreachable_are_not_selected() -> None:
    reached = Fleet(unavailable=0.4).reachable(MANY, Draw(0))
    assert len(reached) / len(MANY) == pytest.approx(0.6, abs=0.02)
    assert (np.diff(reached) > 0).all()
    assert len(Fleet(unavailable=1.0).reachable(MANY, Draw(0))) == 0


def test_stragglers_do_a_tenth_to_all_of_their_work() -> None:
    effort = Fleet(stragglers=0.5).effort(MANY, Draw(0))
    assert effort is not None
    slow = effort[effort < 1]
    assert len(slow) / len(MANY) == pytest.approx(0.5, abs=0.02)
    assert stats.kstest(slow, stats.uniform(0.1, 0.9).cdf).pvalue > 1e-4


def test_who_comes_after_the_deadline_is_late_and_the_round_ends_there() -> None:
    fleet = Fleet(deadline=10.0)
    seconds = np.array([3.0, 10.0, 10.1, 50.0])
    fates = fleet.fates(IDS, seconds, Draw(0))
    assert fates["late"].tolist() == [False, False, True, True]
    assert fates["accepted"].tolist() == [True, True, False, False]
    assert fleet.round_seconds(seconds, fates) == 10.0


def test_a_round_lasts_as_long_as_its_slowest_participant() -> None:
    fleet = Fleet(deadline=10.0)
    seconds = np.array([3.0, 4.0, 2.0, 7.5])
    assert fleet.round_seconds(seconds, fleet.fates(IDS, seconds, Draw(0))) == 7.5
    assert fleet.round_seconds(seconds[:0], fleet.fates(IDS[:0], seconds[:0], Draw(0))) == 0
    unlimited = Fleet(dropout=1.0)
    assert unlimited.round_seconds(seconds, unlimited.fates(IDS, seconds, Draw(0))) == 7.5


def test_a_budget_is_what_fits_before_the_deadline() -> None:
    fleet = Fleet(
        speed=constant(50), delay_down=constant(1), delay_up=constant(2), bandwidth_up=constant(100), deadline=10.0
    )
    assert fleet.budget(IDS, 0, 0, 100) is None
    partial = fleet_for("ideal", **{**vars(fleet), "late": "partial"})
    budget = partial.budget(IDS, 0, 0, 100)
    assert budget is not None
    assert budget.tolist() == [300.0] * 4
    seconds = partial.seconds(IDS, 0, 0, np.full(4, 100), np.full(4, 300))
    fates = partial.fates(IDS, seconds, Draw(0))
    assert fates["accepted"].all()
    assert partial.round_seconds(seconds, fates) == pytest.approx(10.0)


def test_jitter_varies_a_clients_speed_from_round_to_round_and_the_budget_knows_it() -> None:
    fleet = Fleet(speed=constant(50), jitter=0.5, deadline=10.0, late="partial")
    paces = np.stack([fleet.pace(MANY, 0, t) for t in range(2)])
    assert stats.kstest(np.log(paces / 50).reshape(-1), stats.norm(0, 0.5).cdf).pvalue > 1e-4
    assert abs(np.corrcoef(np.log(paces))[0, 1]) < 5 / len(MANY) ** 0.5
    budget = fleet.budget(MANY, 0, 0, 0, 1)
    assert budget is not None
    seconds = fleet.seconds(MANY, 0, 0, np.zeros(len(MANY), dtype=np.int64), np.floor(budget).astype(np.int64), 1)
    assert fleet.fates(MANY, seconds, Draw(0, 1))["accepted"].all()
    assert np.isinf(Fleet(jitter=0.5).pace(IDS, 0, 0)).all()


def test_infinite_speed_has_an_infinite_budget() -> None:
    budget = Fleet(deadline=1.0, late="partial").budget(IDS, 0, 10, 10)
    assert budget is not None
    assert np.isinf(budget).all()


def test_who_is_too_far_away_is_late_however_little_it_does() -> None:
    fleet = Fleet(speed=constant(10), delay_up=constant(60), deadline=5.0, late="partial")
    budget = fleet.budget(IDS, 0, 0, 0)
    assert budget is not None
    assert budget.tolist() == [0.0] * 4
    seconds = fleet.seconds(IDS, 0, 0, np.zeros(4, dtype=np.int64), np.ones(4, dtype=np.int64))
    fates = fleet.fates(IDS, seconds, Draw(0))
    assert fates["late"].all()
    assert fleet.round_seconds(seconds, fates) == 5.0


def test_delays_are_a_clients_own_unless_they_are_drawn_anew_for_every_exchange() -> None:
    how = {"delay_down": Distribution("uniform", 10, 100), "delay_up": Distribution("exponential", 5)}
    own, anew = Fleet(**how), Fleet(**how, redraw=True)
    nothing = np.zeros(len(MANY), dtype=np.int64)
    assert np.array_equal(own.travel(MANY, 3, 0, nothing, 1), own.travel(MANY, 3, 0, nothing, 2))
    one, other = (anew.seconds(MANY, 3, 0, nothing, nothing, t) for t in (1, 2))
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / len(MANY) ** 0.5
    assert one.mean() == pytest.approx(60, abs=1)
    assert np.array_equal(one, anew.travel(MANY, 3, 0, nothing, 1))
    assert np.array_equal(
        one, how["delay_down"].of(Draw(3, 1), "delay_down", MANY) + how["delay_up"].of(Draw(3, 1), "delay_up", MANY)
    )
    fixed = Fleet(speed=Distribution("uniform", 1, 9), bandwidth_up=Distribution("uniform", 1, 9), redraw=True)
    work = nothing + 7
    assert np.array_equal(fixed.seconds(MANY, 3, 0, work, work, 1), fixed.seconds(MANY, 3, 0, work, work, 2))


def test_the_budget_knows_the_delays_that_are_drawn_anew() -> None:
    fleet = Fleet(
        speed=constant(50), delay_up=Distribution("uniform", 1, 9), redraw=True, deadline=10.0, late="partial"
    )
    nothing = np.zeros(len(MANY), dtype=np.int64)
    budget = fleet.budget(MANY, 0, 0, 0, 7)
    assert budget is not None
    assert np.allclose(budget, 50 * (10 - fleet.travel(MANY, 0, 0, nothing, 7)))
    seconds = fleet.seconds(MANY, 0, 0, nothing, np.floor(budget).astype(np.int64), 7)
    assert fleet.fates(MANY, seconds, Draw(0, 7))["accepted"].all()


def test_who_is_gone_is_dropped_whatever_else_would_have_happened() -> None:
    seconds = np.array([3.0, 3.0, 50.0, 50.0])
    gone = np.array([False, True, False, True])
    fates = Fleet(deadline=10.0).fates(IDS, seconds, Draw(0), gone)
    assert {fate: who.tolist() for fate, who in fates.items()} == {
        "dropped": [False, True, False, True],
        "lost": [False] * 4,
        "late": [False, False, True, False],
        "accepted": [True, False, False, False],
    }
    assert Fleet(loss=1.0).fates(IDS, seconds, Draw(0), gone)["lost"].tolist() == [True, False, True, False]


TIMED: dict[str, Any] = {"speed": constant(5)}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"absent": 1.0}, "fleet.absent = 1: nobody would ever be there; choose less than 1"),
        ({"absent": 1.5}, "fleet.absent = 1.5 cannot be: Input should be less than or equal to 1"),
        ({**TIMED, "period": 10.0, "away": 1.0}, "fleet.away = 1: nobody would ever be there; choose less than 1"),
        ({**TIMED, "period": 10.0}, "fleet.period = 10.0 means nothing without fleet.away; give both or neither"),
        ({**TIMED, "away": 0.5}, "fleet.away = 0.5 means nothing without fleet.period; give both or neither"),
        ({**TIMED, "period": -1.0, "away": 0.5}, "fleet.period = -1.0 cannot be: Input should be greater than 0"),
        ({**TIMED, "period": math.inf, "away": 0.5}, "fleet.period = inf: it would never come; leave it out"),
        ({**TIMED, "repair": 5.0}, "fleet.repair = 5.0 means nothing without fleet.fails_every"),
        ({**TIMED, "fails_every": 5.0, "repair": -1.0}, "fleet.repair = -1.0 cannot be"),
        ({**TIMED, "fails_every": math.inf}, "fleet.fails_every = inf: it would never come; leave it out"),
        (
            {**TIMED, "fails_every": 5.0, "repair": math.inf},
            "fleet.repair = inf: nobody who fails would ever come back",
        ),
        ({**TIMED, "trace_repeats": 5.0}, "fleet.trace_repeats = 5.0 means nothing without fleet.trace"),
        ({**TIMED, "leaves": constant(0)}, "fleet.leaves = '0': everybody would leave at the start; choose more"),
        ({**TIMED, "leaves": Distribution("uniform", 0, 0)}, "fleet.leaves = 'uniform:0:0': everybody would leave"),
        ({**TIMED, "leaves": "5"}, "fleet.leaves = '5' is no Distribution; write Distribution.parse('5')"),
        ({"period": 10.0, "away": 0.5}, "fleet.period needs time that passes, but nothing takes time in this fleet"),
        ({"leaves": constant(9)}, "fleet.leaves needs time that passes"),
        ({"fails_every": 9.0}, "fleet.fails_every needs time that passes"),
        ({"trace": "there.csv"}, "fleet.trace needs time that passes"),
        (
            {**TIMED, "period": 10.0, "away": 0.5, "trace": "there.csv", "trace_repeats": 86400.001},
            "fleet.period = 10 and fleet.trace_repeats = 86400 begin together only once in more than 1,000 times",
        ),
        (
            {"delay_up": Distribution("uniform", -5, 10)},
            "fleet.delay_up: 'uniform:-5:10' is no distribution of non-neg",
        ),
        ({"delay_down": constant(-1)}, "fleet.delay_down: '-1' is no distribution of non-negative numbers"),
        ({"delay_up": constant(math.inf)}, "fleet.delay_up = 'inf': such a client never answers; choose less"),
        ({"speed": constant(0)}, "fleet.speed = '0' can be 0, and such a client never answers; choose more"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Fleet(**fields).check()
    assert said in str(caught.value)


def test_all_reasons_to_be_away_can_be_combined() -> None:
    away = {"period": 3600.0, "away": 0.2, "leaves": Distribution("exponential", 1e6), "absent": 0.1}
    away |= {"fails_every": 600.0, "repair": 0.0, "trace": "there.csv", "trace_repeats": 86400.0}
    for how in (TIMED, {"delay_up": Distribution("uniform", 0, 1)}, {"bandwidth_down": constant(9)}):
        fleet = Fleet(**how, **away)
        fleet.check()
        assert fleet.reliable() == Fleet(**how)
    Fleet(absent=0.5).check()  # which needs no time


@pytest.mark.parametrize(
    ("one", "other", "cycle"), [(10, 20, 20), (20.0, 19.0, 380), (0.1, 0.25, 0.5), (3600, 86400, 86400), (1e-5, 1, 1)]
)
def test_repetitions_begin_together_after_their_least_common_multiple(one: float, other: float, cycle: float) -> None:
    assert common_cycle(one, other) == common_cycle(other, one) == cycle


def test_presets_can_be_changed_and_must_exist() -> None:
    assert set(FLEETS) == {"ideal", "cross-silo", "cross-device", "wifi", "lte", "3g"}
    changed = fleet_for("cross-device", dropout=0.5)
    assert changed.dropout == 0.5
    assert changed.speed == FLEETS["cross-device"].speed
    with pytest.raises(
        ConfigError, match="no fleet 'office'; choose one of ideal, cross-silo, cross-device, wifi, lte, 3g"
    ):
        fleet_for("office")


def test_silos_are_faster_and_more_reliable_than_devices() -> None:
    silo, client = FLEETS["cross-silo"], FLEETS["cross-device"]
    work = (0, 100_000, np.full(len(MANY), 100_000), np.full(len(MANY), 1000))
    assert np.median(silo.seconds(MANY, *work)) < np.median(client.seconds(MANY, *work)) / 5
    assert (silo.dropout, silo.loss, silo.unavailable) == (0, 0, 0)
    assert min(client.dropout, client.loss, client.unavailable) > 0


@pytest.mark.parametrize(("name", "communication"), [("wifi", 10), ("lte", 100), ("3g", 1000)])
def test_the_published_cost_model_charges_eight_a_row_and_a_price_a_round(name: str, communication: int) -> None:
    work = np.array([0, 1, 105, 306])
    seconds = FLEETS[name].seconds(IDS, 0, 10**9, np.full(4, 10**9), work)
    assert seconds.tolist() == (8 * work + communication).tolist()
    data = fedloom.federate("breast-cancer", clients=3)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    run = fedloom.train(problem, fedloom.FedAvg(epochs=2), rounds=3, fleet=FLEETS[name], evaluate=None)
    longest = int(data.splits["train"].sizes.max())
    assert run.summary["simulated_seconds"] == 3 * (8 * 2 * longest + communication)


def test_stragglers_do_at_least_what_the_fleet_says() -> None:
    effort = Fleet(stragglers=1.0, least_effort=0.9).effort(MANY, Draw(0))
    assert effort is not None
    assert stats.kstest(effort, stats.uniform(0.9, 0.1).cdf).pvalue > 1e-4
    with pytest.raises(ConfigError, match=r"fleet.least_effort = 0.9 means nothing without stragglers"):
        Fleet(least_effort=0.9).check()


def test_speeds_are_drawn_anew_in_each_round_where_that_is_asked_for() -> None:
    speed = Distribution.parse("uniform:0.0125:0.125")
    fleet = fleet_for("wifi", speed=speed, redraw_speed=True)
    first, second = fleet.pace(MANY, 0, 0), fleet.pace(MANY, 0, 1)
    for paces in (first, second):
        assert stats.kstest(paces, stats.uniform(0.0125, 0.1125).cdf).pvalue > 1e-4
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert np.array_equal(fleet.pace(MANY, 0, 1), second)
    kept = fleet_for("wifi", speed=speed)
    assert np.array_equal(kept.pace(MANY, 0, 0), kept.pace(MANY, 0, 1))


@pytest.mark.parametrize("schedule", ["rounds", "async"])
def test_named_clients_give_up_in_every_round_and_nobody_else_does(schedule: Any) -> None:
    data = fedloom.federate("breast-cancer", clients=4)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    run = fedloom.train(
        problem,
        fedloom.FedAvg(),
        rounds=3,
        fleet=fleet_for("wifi", drops=(1, "3")),
        evaluate=None,
        schedule=fedloom.Schedule(schedule, concurrency=4) if schedule == "async" else None,
    )
    rows = run.history[1:]
    if schedule == "rounds":
        assert [(row["selected"], row["accepted"], row["dropped"]) for row in rows] == [(4, 2, 2)] * 3
    ends = {(job[0], job[3]) for row in rows for job in row["jobs"]}
    assert {client for client, fate in ends if fate == "dropped"} == {1, 3}
    assert {client for client, fate in ends if fate == "accepted"} == {0, 2}
    with pytest.raises(ConfigError, match=r"there is no client '9'; the 4 clients are 0, 1, 2, 3"):
        fedloom.train(problem, fedloom.FedAvg(), rounds=1, fleet=Fleet(drops=(9,)))
