from __future__ import annotations

import math
from bisect import bisect_right
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedloom.engine.availability import (
    Availability,
    Events,
    Failing,
    Joint,
    Periodic,
    Presence,
    Traced,
    gathered,
    interrupted,
    turn,
)
from fedloom.engine.fleet import Distribution, Fleet
from fedloom.errors import ConfigError, RunError
from fedloom.federation.data import SOURCE, TARGET
from fedloom.federation.randomness import Draw
from problems import make_data

INF = math.inf
IDS = np.arange(6)
LINES = """client,start,end
0,0,10
0,30,40
1,5,12
2,0,3
2,20,25
2,33,40
4,39.5,40
"""


def fleet(**fields: Any) -> Fleet:
    made = Fleet(speed=Distribution("constant", 5), **fields)
    made.check()
    return made


def phases(seed: int, clients: np.ndarray = IDS) -> np.ndarray:
    return Draw(seed).uniform("phase", clients, 1)[:, 0]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    path.write_text(LINES, encoding="utf-8")
    return str(path)


def answers(there: Availability, client: int, times: list[float]) -> list[tuple[float, float]]:
    """When a client is available from each time on, and then goes away; asked in both ways."""
    found = []
    for t in times:
        (back,) = there.next_available(np.array([client]), t).tolist()
        (end,) = there.goes_away(np.array([client]), back).tolist()
        assert there.presence(client, t) == (back, end)
        found.append((back, end))
    return found


# ------------------------------------------------------------------------------------------------ one by one


def test_an_ideal_fleet_is_always_there() -> None:
    for there in (Availability(), Availability.of(Fleet(), 0, 6)):
        assert there.always
        assert there.next_available(IDS, 3.5).tolist() == [3.5] * 6
        assert there.goes_away(IDS, 3.5).tolist() == [INF] * 6
        assert there.presence(2, 3.5) == (3.5, INF)
        assert gathered(there, IDS, 3.5) == (3.5, IDS)
        assert not interrupted(there, IDS, 3.5, np.full(6, 1e9)).any()


@pytest.mark.parametrize(("share", "count"), [(0.05, 1), (0.2, 4), (0.5, 10), (0.97, 19)])
def test_exactly_that_share_is_absent_for_ever(share: float, count: int) -> None:
    ids = np.arange(20)
    there = Availability.of(fleet(absent=share), 1, 20)
    gone = np.isinf(there.next_available(ids, 7.0))
    assert gone.sum() == count
    assert np.array_equal(np.isinf(there.next_available(ids, 1e9)), gone)
    assert there.next_available(ids, 7.0)[~gone].tolist() == [7.0] * (20 - count)
    assert there.goes_away(ids[~gone], 7.0).tolist() == [INF] * (20 - count)


@given(st.lists(st.floats(0, 0.97), min_size=2, max_size=2), st.integers(0, 99))
def test_those_absent_at_a_smaller_share_are_absent_at_a_larger_one(shares: list[float], seed: int) -> None:
    ids = np.arange(16)
    few, many = (
        np.isinf(Availability.of(fleet(absent=share), seed, 16).next_available(ids, 0.0)) for share in sorted(shares)
    )
    assert not (few & ~many).any()


def test_the_share_is_of_those_who_could_take_part() -> None:
    data = make_data(sizes=(1,) * 12, roles=[SOURCE, TARGET, TARGET] * 4)
    there = Availability.of(fleet(absent=0.5), 0, 12, candidates=data.with_role(SOURCE).numpy())
    gone = np.isinf(there.next_available(np.arange(12), 0.0))
    assert gone[::3].sum() == gone.sum() == 2


def test_a_share_that_leaves_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"fleet\.absent = 0\.95 leaves none of the 5 clients; choose a smaller"):
        Availability.of(fleet(absent=0.95), 0, 5)


def test_who_leaves_does_not_come_back() -> None:
    there = Availability.of(fleet(leaves=Distribution("constant", 50)), 0, 6)
    assert answers(there, 3, [0, 49.5, 50, 1e6, INF]) == [(0, 50), (49.5, 50), (INF, INF), (INF, INF), (INF, INF)]
    spread = Distribution("uniform", 10, 100)
    ends = Availability.of(fleet(leaves=spread), 4, 6).goes_away(IDS, 0.0)
    assert np.array_equal(ends, spread.of(Draw(4), "leaves", IDS))
    assert len(set(ends)) == 6


def test_periods_by_hand() -> None:
    there = Availability.of(fleet(period=10.0, away=0.3), 2, 6)
    for client, phase in enumerate(phases(2)):
        first = 10 * (1 - phase)  # the end of the period that is under way at 0
        t = first + 20
        expected = [(t + 3, t + 10), (t + 3, t + 10), (t + 3, t + 10), (t + 9.5, t + 10), (t + 13, t + 20)]
        found = answers(there, client, [t + 0.1, t + 1, t + 2.9, t + 9.5, t + 10.1])
        assert np.allclose(found, expected, rtol=0, atol=1e-12)
        back = 3 - 10 * phase  # from then on it is there in the period under way at 0
        assert np.allclose(answers(there, client, [0.0]), [(max(back, 0), first)], rtol=0, atol=1e-12)
    assert len(set(phases(2))) == 6


def test_a_trace_by_hand(trace: str) -> None:
    there = Availability.of(fleet(trace=trace), 0, 6)
    assert answers(there, 0, [0, 9, 10, 29, 35, 40, 99]) == [
        (0, 10),
        (9, 10),
        (30, 40),
        (30, 40),
        (35, 40),
        (INF, INF),
        (INF, INF),
    ]
    assert answers(there, 1, [0, 5, 12]) == [(5, 12), (5, 12), (INF, INF)]
    assert answers(there, 2, [2, 3, 25, 39]) == [(2, 3), (20, 25), (33, 40), (39, 40)]
    assert answers(there, 3, [0, 1e9]) == [(0, INF), (1e9, INF)]
    assert there.next_available(IDS, 13.0).tolist() == [30, INF, 20, 13, 39.5, 13]


def test_a_trace_that_begins_again_goes_on_over_its_seam(trace: str) -> None:
    there = Availability.of(fleet(trace=trace, trace_repeats=40.0), 0, 6)
    # client 0 is there from 30 to 40 and from 0 to 10 of each repetition: 20 seconds in one
    assert answers(there, 0, [0, 10, 39, 40, 49, 50, 435]) == [
        (0, 10),
        (30, 50),
        (39, 50),
        (40, 50),
        (49, 50),
        (70, 90),
        (435, 450),
    ]
    assert answers(there, 1, [12, 45, 52]) == [(45, 52), (45, 52), (85, 92)]
    assert answers(there, 2, [25, 43, 4003]) == [(33, 43), (60, 65), (4020, 4025)]
    assert answers(there, 4, [0, 40]) == [(39.5, 40), (79.5, 80)]
    longer = Availability.of(fleet(trace=trace, trace_repeats=100.0), 0, 6)
    assert answers(longer, 0, [40, 99, 135]) == [(100, 110), (100, 110), (135, 140)]


def test_whom_a_repeating_trace_covers_whole_is_always_there() -> None:
    there = Availability([Traced({1: [(0.0, 40.0)], 2: [(0.0, 1.0)]}, 6, 40.0)])
    assert there.next_available(IDS, 5.0).tolist() == [5, 5, 40, 5, 5, 5]
    assert there.goes_away(np.array([1, 2]), 40.0).tolist() == [INF, 41]


def walk(events: Events, client: int, until: float) -> list[float]:
    """All events of a client up to a time, one after the other."""
    found, t = [], -1e-9
    while True:
        t = float(events.after(np.array([client]), np.array([t]))[0])
        if t > until:
            return found
        found.append(t)


def test_random_events_are_a_poisson_process() -> None:
    gaps = np.concatenate([np.diff(walk(Events("failures", 3.0, seed), 0, 1500.0)) for seed in range(4)])
    assert stats.kstest(gaps, stats.expon(scale=3).cdf).pvalue > 1e-4
    counts = [len(walk(Events("failures", 3.0, 5), client, 30.0)) for client in range(300)]
    assert np.mean(counts) == pytest.approx(10, abs=5 * (10 / 300) ** 0.5)
    assert np.var(counts) == pytest.approx(10, rel=0.45)


@pytest.mark.parametrize("client", range(3))
def test_the_events_before_and_after_a_time_are_those_around_it(client: int) -> None:
    events = Events("repairs", 2.0, 1)
    times = walk(events, client, 400.0)
    asked = np.sort(np.concatenate([np.linspace(0, 390, 400), times[:-1]]))[::-1]  # also at the events themselves
    asked = asked[asked < times[-1]]
    ids = np.full(len(asked), client)
    padded = [-INF, *times]
    places = [bisect_right(times, t) for t in asked]
    assert events.before(ids, asked).tolist() == [padded[place] for place in places]
    assert events.after(ids, asked).tolist() == [times[place] for place in places]


@pytest.mark.parametrize("client", range(3))
def test_a_client_that_failed_is_back_with_its_next_repair(client: int) -> None:
    part = Failing(7.0, 3.0, 9)
    assert part.repairs is not None
    events = [(t, "down") for t in walk(part.failures, client, 500.0)]
    events += [(t, "up") for t in walk(part.repairs, client, 500.0)]
    up, stretches = 0.0, []
    for t, what in sorted(events):
        if what == "down" and up is not None:
            stretches.append((up, t))
            up = None
        elif what == "up" and up is None:
            up = t
    there = Availability([part])
    assert len(stretches) > 25
    assert there.presence(client, 0.0) == stretches[0]
    for (begin, end), (later, its_end) in pairwise(stretches):
        assert answers(there, client, [begin, (begin + end) / 2]) == [(begin, end), ((begin + end) / 2, end)]
        assert answers(there, client, [end, (end + later) / 2]) == [(later, its_end)] * 2


def test_times_up_and_down_are_exponential() -> None:
    there = Availability.of(fleet(fails_every=50.0, repair=8.0), 3, 1)
    ups, downs, t = [], [], 0.0
    for _ in range(1500):
        begin, end = there.presence(0, t)
        ups.append(end - begin)
        downs.append(begin - t)
        t = end
    assert stats.kstest(ups, stats.expon(scale=50).cdf).pvalue > 1e-4
    assert stats.kstest(downs[1:], stats.expon(scale=8).cdf).pvalue > 1e-4
    assert downs[0] == 0


def test_a_repair_that_takes_no_time_only_breaks_off_what_was_going_on() -> None:
    there = Availability.of(fleet(fails_every=5.0), 0, 6)
    times = np.linspace(0, 100, 41)
    for t in times:
        assert there.next_available(IDS, t).tolist() == [t] * 6
    ends = there.goes_away(IDS, 20.0)
    assert (ends > 20).all()
    assert np.array_equal(there.next_available(IDS, ends), ends)
    assert (there.goes_away(IDS, ends) > ends).all()


@pytest.mark.parametrize(
    ("fields", "share"),
    [
        ({"period": 10.0, "away": 0.3}, 0.3),
        ({"fails_every": 30.0, "repair": 10.0}, 0.25),
        ({"fails_every": 1.0, "repair": 9.0}, 0.9),
        ({"period": 7.0, "away": 0.5, "fails_every": 30.0, "repair": 10.0}, 1 - 0.5 * 0.75),
    ],
)
def test_in_the_long_run_clients_are_away_for_the_right_share_of_time(fields: dict[str, Any], share: float) -> None:
    there = Availability.of(fleet(**fields), 0, 2000)
    clients = np.arange(2000)
    away = [(there.next_available(clients, t) > t).mean() for t in (201.3, 402.9, 1003.1, 4000.7)]
    assert np.mean(away) == pytest.approx(share, abs=5 * 0.5 / 8000**0.5)


# ------------------------------------------------------------------------------------------------ together


def test_a_client_is_there_only_where_all_agree(trace: str) -> None:
    there = Availability.of(fleet(trace=trace, leaves=Distribution("constant", 35), absent=0.3), 1, 6)
    gone = np.isinf(Availability.of(fleet(absent=0.3), 1, 6).next_available(IDS, 0.0))
    expected = {0: [(0, 10), (30, 35), (30, 35), (INF, INF)], 2: [(0, 3), (20, 25), (33, 35), (INF, INF)]}
    assert gone.sum() == 2
    for client in IDS[gone]:
        assert answers(there, int(client), [0, 20]) == [(INF, INF)] * 2
    for client in set(expected) - set(IDS[gone].tolist()):
        assert answers(there, client, [0, 12, 26, 35]) == expected[client]
    assert {0, 2} - set(IDS[gone].tolist())


class Given(Presence):
    """The same stretches for everybody."""

    def __init__(self, *stretches: tuple[float, float]) -> None:
        self.stretches = [*stretches, (INF, INF)]

    def stretch(self, clients: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        chosen = np.array([next(s for s in self.stretches if s[1] > at or s[0] == INF) for at in t]).reshape(-1, 2)
        return chosen[:, 0], chosen[:, 1]


def test_three_reasons_by_hand() -> None:
    parts = [Given((0, 10), (20, 30), (40, 50)), Given((8, 22), (29, 41)), Given((9, 21), (30, 60))]
    there = Availability(parts)
    assert answers(there, 0, [0, 9.5, 10, 20.5, 21, 41, 99]) == [
        (9, 10),
        (9.5, 10),
        (20, 21),
        (20.5, 21),
        (40, 41),
        (INF, INF),
        (INF, INF),
    ]


def test_stretches_that_only_touch_have_nothing_in_common() -> None:
    assert Availability([Given((0, 10), (20, 30)), Given((10, 20))]).presence(0, 0.0) == (INF, INF)


@pytest.mark.parametrize("repeats", [20.0, 30.0])
def test_repetitions_that_never_meet_are_found_out(tmp_path: Path, repeats: float) -> None:
    starts = 10 * (1 - phases(3))  # everybody is away by the clock for 6 seconds from here on, and there by the trace
    lines = [f"{client},{start + 0.001},{start + 5.999}\n" for client, start in enumerate(starts.tolist())]
    path = tmp_path / "trace.csv"
    path.write_text("client,start,end\n" + "".join(lines), encoding="utf-8")
    for fields in ({}, {"fails_every": 1.0, "repair": 5.0}):
        made = fleet(period=10.0, away=0.6, trace=str(path), trace_repeats=repeats, **fields)
        there = Availability.of(made, 3, 6)
        assert there.next_available(IDS, 0.0).tolist() == [INF] * 6
        assert there.next_available(IDS, 12345.6).tolist() == [INF] * 6
        with pytest.raises(RunError, match=r"after 12,345\.6 simulated seconds none of the 6 clients will ever be"):
            gathered(there, IDS, 12345.6)


def test_repetitions_that_drift_meet_in_the_end() -> None:
    # 20 repetitions of 19 s are 19 periods of 20 s: meanwhile the trace's one second wanders through the whole period
    period = Periodic(20.0, 0.9, 3)
    there = Availability([Joint([period, Traced({c: [(0.0, 1.0)] for c in range(6)}, 6, 19.0)], within=2 * 380.0)])
    times = there.next_available(IDS, 0.0)
    assert (times < 380).all()
    assert times.max() > 40
    again = there.next_available(IDS, times + 380.0)
    assert np.allclose(again, times + 380.0, rtol=0, atol=1e-9)


def test_a_client_that_is_hardly_ever_there_ends_in_an_error_not_in_a_loop() -> None:
    joint = Joint([Periodic(1.0, 0.999, 0), Failing(1e-4, 1e4, 0)], passes=50)
    with pytest.raises(RunError, match=r"client \d is hardly ever available: not in 50 stretches .*fleet\.repair"):
        joint.stretch(IDS, np.full(6, 5.0))
    begin, end = Joint([Given((0, 10), (20, 30)), Given((25, 35))], passes=2).stretch(IDS, np.zeros(6))  # just enough
    assert (begin.tolist(), end.tolist()) == ([25] * 6, [30] * 6)


def test_times_too_late_for_a_period_are_refused_and_do_not_hang() -> None:
    for made in (fleet(period=1e-6, away=0.5), fleet(fails_every=1e-6)):
        with pytest.raises(RunError, match=r"after 1e\+11 simulated seconds spans of .* cannot be told apart"):
            Availability.of(made, 0, 6).next_available(IDS, 1e11)


def some_fleets(trace: str) -> st.SearchStrategy[dict[str, dict[str, Any]]]:
    """Fields of fleets, one table for each reason that a client may be away."""
    traced = st.sampled_from([{}, {"trace_repeats": 40.0}, {"trace_repeats": 100.0}, {"trace_repeats": 41.25}])
    reasons = {
        "absent": st.floats(0, 0.6).map(lambda share: {"absent": share}),
        "leaves": st.floats(1, 500).map(lambda mean: {"leaves": Distribution("exponential", mean)}),
        "period": st.fixed_dictionaries(
            {"period": st.sampled_from([2.5, 10.0, 40.0, 60.0]), "away": st.floats(0.01, 0.9)}
        ),
        "failing": st.fixed_dictionaries(
            {"fails_every": st.floats(1, 60), "repair": st.sampled_from([0.0, 0.5, 20.0])}
        ),
        "trace": traced.map(lambda more: {"trace": trace, **more}),
    }
    return st.lists(st.sampled_from(sorted(reasons)), max_size=5, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({name: reasons[name] for name in chosen})
    )


TIMES = st.lists(st.floats(0, 300), min_size=1, max_size=5)


@given(data=st.data(), seed=st.integers(0, 999), times=TIMES)
def test_answers_hold_together_for_any_fleet(trace: str, data: st.DataObject, seed: int, times: list[float]) -> None:
    reasons = data.draw(some_fleets(trace))
    made = fleet(**{key: value for fields in reasons.values() for key, value in fields.items()})
    there = Availability.of(made, seed, 6)
    parts = [Availability.of(fleet(**fields), seed, 6) for fields in reasons.values()]
    before = np.zeros(6)
    for t in sorted(times):
        back = there.next_available(IDS, t)
        assert (back >= np.maximum(before, t)).all()  # never earlier for a later question
        before = back
        assert np.array_equal(there.next_available(IDS, back), back)
        ends = there.goes_away(IDS, back)
        comes = np.isfinite(back)
        assert (ends[comes] > back[comes]).all()
        for part in parts:  # it is there for every reason, until just before the end
            assert np.array_equal(part.next_available(IDS, back), back)
            last = np.where(comes, np.nextafter(np.minimum(ends, 1e6), 0), INF)
            assert np.array_equal(part.next_available(IDS, last), last)
        gaps = t + (np.minimum(back, 1e4) - t) * np.linspace(0, 0.999, 7)[:, None]
        for moment in gaps:  # and not before: somebody is against it
            against = np.maximum.reduce([part.next_available(IDS, moment) for part in parts] or [moment])
            assert ((against > moment) | (back == t)).all()


@given(data=st.data(), seed=st.integers(0, 999), times=TIMES)
def test_one_by_one_all_at_once_and_in_any_order_the_answers_are_the_same(
    trace: str, data: st.DataObject, seed: int, times: list[float]
) -> None:
    reasons = data.draw(some_fleets(trace))
    made = fleet(**{key: value for fields in reasons.values() for key, value in fields.items()})
    there, fresh = Availability.of(made, seed, 6), Availability.of(made, seed, 6)
    questions = [(client, t) for t in times for client in range(6)]
    one = {(client, t): there.presence(client, t) for client, t in questions}
    other = {(client, t): fresh.presence(client, t) for client, t in data.draw(st.permutations(questions))}
    assert one == other
    for t in times:
        back = fresh.next_available(IDS, t)
        assert [one[client, t][0] for client in range(6)] == back.tolist()
        assert [one[client, t][1] for client in range(6)] == fresh.goes_away(IDS, back).tolist()
    clients, moments = np.array([c for c, _ in questions]), np.array([t for _, t in questions])
    assert there.next_available(clients, moments).tolist() == [one[question][0] for question in questions]


@given(
    t=st.floats(0, 1e6),
    period=st.floats(1e-3, 1e6),
    part=st.floats(1e-6, 1),
    turns=st.integers(0, 10**6),
    on=st.booleans(),
)
def test_a_turn_is_the_first_that_ends_after_t(t: float, period: float, part: float, turns: int, on: bool) -> None:
    end = part * period
    t = turns * period + end if on else t
    (k,) = turn(np.array([t]), period, end).tolist()
    assert k * period + end > t
    assert k == 0 or (k - 1) * period + end <= t


# ------------------------------------------------------------------------------------------------ who takes part


def test_those_who_are_there_gather_and_if_nobody_is_time_passes_until_somebody_is(trace: str) -> None:
    there = Availability.of(fleet(trace=trace), 0, 6)
    start, who = gathered(there, IDS, 6.0)
    assert (start, who.tolist()) == (6.0, [0, 1, 3, 5])
    start, who = gathered(there, np.array([0, 1, 2, 4]), 12.0)
    assert (start, who.tolist()) == (20.0, [2])
    with pytest.raises(RunError, match=r"after 50 simulated seconds none of the 4 clients .*fleet\.trace_repeats"):
        gathered(there, np.array([0, 1, 2, 4]), 50.0)
    assert len(gathered(there, IDS[:0], 50.0)[1]) == 0


def test_who_goes_away_before_its_reply_is_due_is_interrupted(trace: str) -> None:
    there = Availability.of(fleet(trace=trace), 0, 6)
    cut = interrupted(there, np.array([0, 1, 3]), 6.0, np.array([4.0, 6.5, 1e9]))
    assert cut.tolist() == [False, True, False]
