"""The fleet in time: what clients did according to the history, and the pictures of it."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.report import fleet_picture
from fedloom.report.fleet import MOST_JOBS, FleetTime, summary
from fedloom.report.groups import Group
from fedloom.report.look import FATES
from fedloom.report.runs import RunRecord

TWO_ROUNDS = (
    {"round": 0, "simulated_seconds": 0.0},
    {"round": 1, "simulated_seconds": 10.0, "jobs": [[0, 0.0, 4.0, "accepted"], [1, 0.0, 10.0, "accepted"]]},
    {"round": 2, "simulated_seconds": 15.0, "jobs": [[0, 10.0, 15.0, "accepted"], [1, 10.0, 12.0, "lost"]]},
)


def run_of(rows, schedule="rounds", labels=()):
    rows = tuple(rows)
    told = {"schedule": schedule, "simulated_seconds": rows[-1]["simulated_seconds"]}
    return RunRecord(Path("run"), {}, "", {"labels": list(labels)}, rows, told)


def group_of(run, label="it"):
    return Group(label, (run,))


def spans(time, client):
    own = sorted((span for span in time.spans if span.client == client), key=lambda span: span.start)
    return [(span.kind, span.start, span.end) for span in own]


def test_in_a_round_the_fast_wait_for_the_slowest():
    time = FleetTime.of(run_of(TWO_ROUNDS))
    assert spans(time, 0) == [("accepted", 0, 4), ("waited", 4, 10), ("accepted", 10, 15)]
    assert spans(time, 1) == [("accepted", 0, 10), ("lost", 10, 12), ("waited", 12, 15)]
    assert time.busy() == pytest.approx((4 + 5 + 10 + 2) / 30)


def test_nobody_is_said_to_wait_whose_last_job_was_still_under_way():
    rows = [{"round": 1, "simulated_seconds": 9.0, "jobs": [[0, 0.0, 4.0, "accepted"], [1, 3.0, 9.0, "dropped"]]}]
    time = FleetTime.of(run_of(rows, "async"))
    assert spans(time, 0) == [("accepted", 0, 4)]
    assert spans(time, 1) == [("waited", 0, 3), ("dropped", 3, 9)]
    assert time.busy() == pytest.approx(10 / 13)


def test_a_late_reply_is_drawn_until_nobody_waits_for_it():
    rows = [{"round": 1, "simulated_seconds": 5.0, "jobs": [[0, 0.0, 60.0, "late"], [1, 0.0, 2.0, "accepted"]]}]
    assert spans(FleetTime.of(run_of(rows)), 0) == [("late", 0, 5)]


def test_who_is_away_does_not_wait_and_without_an_end_is_away_for_good():
    rows = [
        {"round": 1, "simulated_seconds": 20.0, "jobs": [[0, 0.0, 4.0, "accepted"], [0, 12.0, 20.0, "accepted"]]},
        {"round": 2, "simulated_seconds": 30.0, "jobs": [], "away": [[0, 6.0, 10.0], [1, 25.0, None]]},
    ]
    time = FleetTime.of(run_of(rows))
    assert spans(time, 0) == [
        *[("accepted", 0, 4), ("waited", 4, 6), ("away", 6, 10), ("waited", 10, 12), ("accepted", 12, 20)],
        ("waited", 20, 30),
    ]
    assert spans(time, 1) == [("waited", 0, 25), ("away", 25, 30)]


@pytest.mark.parametrize(
    "rows",
    [
        [{"round": 0, "simulated_seconds": 0.0}, {"round": 1, "simulated_seconds": 0.0}],
        [{"round": 1, "simulated_seconds": 9.0}],
        [{"round": 1, "simulated_seconds": 9.0, "jobs": []}],
        [{"round": 1, "simulated_seconds": 9.0, "away": [[0, 1.0, 2.0]]}],
    ],
    ids=["no time", "no jobs known", "no jobs", "only absences"],
)
def test_there_is_no_picture_where_nothing_took_time(rows):
    assert fleet_picture(group_of(run_of(rows))) is None


@given(
    st.lists(
        st.lists(st.tuples(st.floats(0, 50), st.floats(0.01, 50), st.sampled_from(sorted(FATES))), min_size=1),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(["rounds", "async"]),
)
def test_work_and_waiting_fill_the_time_without_a_gap_or_an_overlap(clients, schedule):
    jobs = []
    for client, entries in enumerate(clients):
        now = 0.0
        for pause, length, fate in entries:
            jobs.append([client, now + pause, now + pause + length, fate])
            now += pause + length
    end = max(job[2] for job in jobs)
    time = FleetTime.of(run_of([{"round": 1, "simulated_seconds": end, "jobs": jobs}], schedule))
    for client in range(len(clients)):
        own = spans(time, client)
        assert own[0][1] <= 1e-9 * end
        assert all(abs(after[1] - before[2]) <= 1e-9 * end for before, after in itertools.pairwise(own))
        worked = max(job[2] for job in jobs if job[0] == client)
        assert own[-1][2] == pytest.approx(end if schedule == "rounds" else worked)
    assert 0 < time.busy() <= 1 + 1e-9


def long_run(schedule="async", clients=30, rounds=200):
    """Everybody computes for 3 of every 4 seconds, the last client not at all before the second half."""
    rows = []
    for index in range(1, rounds + 1):
        late = index <= rounds / 2
        jobs = [[i, 4.0 * index - 4, 4.0 * index - 1, "accepted"] for i in range(clients - late)]
        rows.append({"round": index, "simulated_seconds": 4.0 * index, "jobs": jobs})
    return run_of(rows, schedule)


def test_of_a_long_run_the_start_and_the_end_are_drawn_as_bars_and_all_of_it_as_shares():
    run = long_run(clients=24)
    time = FleetTime.of(run)
    assert time.long
    for view, (since, until) in {"start": (0, 64), "end": (736, 800)}.items():
        figure = fleet_picture(group_of(run), view)
        assert list(figure.layout.xaxis.range) == [since, until]
        bars = [start for trace in figure.data if trace.name in FATES for start in trace.base]
        assert all(since <= start < until for start in bars)
        assert MOST_JOBS - 24 <= len(bars) <= MOST_JOBS + 24
        assert len(figure.to_json()) < 40_000
    heat = fleet_picture(group_of(run), "share").data[0]
    shares = np.array(heat.z, dtype=float)
    np.testing.assert_allclose(shares[0], 0.75, atol=0.08)
    np.testing.assert_allclose(shares[23, :29], 0)
    np.testing.assert_allclose(shares[23, 31:], 0.75, atol=0.08)


def test_a_run_that_can_be_read_at_a_glance_is_drawn_whole():
    figure = fleet_picture(group_of(run_of(TWO_ROUNDS)))
    assert list(figure.layout.xaxis.range) == [0, 15]
    bars = {trace.name: list(zip(trace.y, trace.base, trace.x, strict=True)) for trace in figure.data}
    assert bars == {
        "accepted": [("0", 0, 4), ("0", 10, 5), ("1", 0, 10)],
        "lost": [("1", 10, 2)],
        "waited": [("0", 4, 6), ("1", 12, 3)],
    }


def test_no_share_is_told_for_who_was_away_or_for_what_is_not_known():
    rows = [
        {"round": 1, "simulated_seconds": 60.0, "jobs": [[0, 0.0, 15.0, "accepted"], [0, 45.0, 60.0, "accepted"]]},
        {"round": 2, "simulated_seconds": 60.0, "jobs": [[1, 0.0, 30.0, "accepted"]], "away": [[0, 15.0, 45.0]]},
    ]
    shares = FleetTime.of(run_of(rows, "async")).shares()
    assert shares.shape == (2, 60)
    np.testing.assert_allclose(shares[0], [1] * 15 + [np.nan] * 30 + [1] * 15)
    np.testing.assert_allclose(shares[1], [1] * 30 + [np.nan] * 30)


def test_no_more_than_twenty_four_clients_are_shown_in_order():
    figure = fleet_picture(group_of(long_run(clients=40, rounds=3)))
    assert list(figure.layout.yaxis.categoryarray) == [str(client) for client in range(24)]


def test_clients_have_their_names_as_plain_text_and_namesakes_are_told_apart():
    time = FleetTime.of(run_of(TWO_ROUNDS, labels=["<b>", "same", "same"]))
    assert time.names == {0: "&lt;b&gt;", 1: "same"}
    rows = [{"round": 1, "simulated_seconds": 1.0, "jobs": [[i, 0.0, 1.0, "accepted"] for i in range(4)]}]
    time = FleetTime.of(run_of(rows, labels=["a", "same", "same"]))
    assert list(time.names.values()) == ["a", "same (1)", "same (2)", "3"]


def test_every_kind_of_bar_has_a_look_of_its_own_and_a_colour_for_the_night():
    jobs = [[at, 0.0, 2.0, fate] for at, fate in enumerate(FATES)]
    rows = [{"round": 1, "simulated_seconds": 9.0, "jobs": jobs, "away": [[0, 3.0, 4.0]]}]
    data = fleet_picture(group_of(run_of(rows))).data
    assert {trace.name for trace in data} == {*FATES, "waited", "away"}
    assert len({(trace.marker.color, trace.marker.pattern.shape, trace.width) for trace in data}) == len(data)
    assert all("colour" in trace.meta for trace in data)


def test_the_picture_is_told_in_a_sentence():
    words = summary({"it": FleetTime.of(run_of(TWO_ROUNDS))})
    assert words == "What the first 2 clients did in simulated time. At work for so much of it: it 70%."


@pytest.mark.parametrize("clients", [1, 5, 24])
def test_of_a_very_long_run_few_jobs_are_kept_and_its_shares_are_the_same(clients, monkeypatch):
    run = long_run(clients=clients, rounds=6000)
    few = FleetTime.of(run)
    monkeypatch.setattr("fedloom.report.fleet._AS_THEY_ARE", 10**9)
    whole = FleetTime.of(run)
    assert len(whole.jobs) == 6000 * clients - 3000
    assert len(few.spans) < 4 * MOST_JOBS * 5 + 4 * 60 * clients
    assert few.long
    assert few.busy() == pytest.approx(whole.busy(), rel=1e-9)
    np.testing.assert_allclose(few.shares(), whole.shares(), atol=1e-9)
    for view in ("start", "end"):
        since, until = few.part(view)
        assert (since, until) == whole.part(view)
        bars = [[(*vars(s).values(),) for s in t.spans if s.start < until and s.end > since] for t in (few, whole)]
        assert sorted(bars[0]) == sorted(bars[1])
