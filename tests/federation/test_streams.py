"""When rows arrive, in which order, and what their labels mean by then."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.errors import ConfigError
from fedloom.federation.data import SOURCE, TARGET, FederatedData
from fedloom.federation.streams import Arrivals, Stream
from problems import make_data

INF = math.inf


def arrivals(stream: Stream, data: FederatedData, seed: int = 0) -> Arrivals:
    return stream.arrivals(stream.arranged(data, seed), seed)


def times(stream: Stream, sizes: tuple[int, ...], seed: int = 0) -> list[list[float]]:
    """The times of each client's rows."""
    found = arrivals(stream, make_data(sizes=sizes), seed)
    return [part.tolist() for part in np.split(found.times, np.cumsum(sizes)[:-1])]


def held(stream: Stream, n: int, *at: float) -> list[int]:
    """How many of a client's n rows there are at each of these times."""
    found = arrivals(stream, make_data(sizes=(n,)))
    return [int(found.held(np.array([0]), t)[0]) for t in at]


@pytest.mark.parametrize(
    ("stream", "n", "at", "counts"),
    [
        (Stream(start=0.2, rate=2), 10, (0, 0.4, 0.5, 1.9, 2, 4, 9), [2, 2, 3, 5, 6, 10, 10]),
        (Stream(start=0.1, growth=0.1), 20, (0, 0.5, 1, 5, 9, 9.1), [2, 3, 4, 12, 20, 20]),
        (Stream(start=0, growth=0.25), 4, (0, 0.9, 1, 3.9, 4), [0, 0, 1, 3, 4]),
        (Stream(start=0.5, duration=6), 10, (0, 1.1, 1.2, 3, 5.9, 6), [5, 5, 6, 7, 9, 10]),
        (Stream(start=0.2, rate=2, burst=3), 10, (0, 1.4, 1.5, 3, 4.5), [2, 2, 5, 8, 10]),
        (Stream(start=0, duration=6, burst=4), 10, (0, 1.9, 2, 4, 5.9, 6), [0, 0, 4, 8, 8, 10]),
        (Stream(duration=0), 10, (0,), [10]),
        (Stream(rate="inf"), 10, (0,), [10]),
        (Stream(start=0.3, rate=0), 10, (0, 1e9), [3, 3]),
        (Stream(start=1, rate=0), 10, (0,), [10]),
        (Stream(start=0.001, rate=1), 10, (0, 1), [1, 2]),
    ],
)
def test_rows_are_there_when_the_process_says(stream: Stream, n: int, at: tuple[float, ...], counts: list[int]) -> None:
    assert held(stream, n, *at) == counts


def test_each_client_has_its_own_start_and_pace() -> None:
    stream = Stream(start="uniform:0.1:0.5", rate="uniform:1:10")
    found = times(stream, (100,) * 40)
    starts = [row.count(0.0) for row in found]
    assert min(starts) >= 10
    assert max(starts) <= 50
    assert len(set(starts)) > 10
    gaps = [np.diff(row[row.count(0.0) :]) for row in found]
    assert all(np.allclose(gap, gap[0]) for gap in gaps)
    paces = [1 / gap[0] for gap in gaps]
    assert (min(paces) >= 1, max(paces) <= 10, len({round(pace, 9) for pace in paces})) == (True, True, 40)


def test_a_client_has_at_least_one_row_unless_the_share_is_nothing() -> None:
    assert times(Stream(start=0.001, rate=1), (3, 1)) == [[0.0, 1.0, 2.0], [0.0]]
    assert times(Stream(start=0, rate=1), (3, 1)) == [[1.0, 2.0, 3.0], [1.0]]


@pytest.mark.parametrize("burst", [1, 5])
def test_the_gaps_of_a_poisson_stream_are_exponential_with_the_same_mean(burst: int) -> None:
    (row,) = times(Stream(start=0, rate=2, process="poisson", burst=burst), (20_000,))
    at = np.array(row).reshape(-1, burst)
    assert (at == at[:, :1]).all()
    gaps = np.diff(at[:, 0], prepend=0.0)
    mean, count = burst / 2, len(gaps)
    assert abs(gaps.mean() / mean - 1) < 4 / math.sqrt(count)
    assert abs((gaps > mean).mean() - math.exp(-1)) < 4 / math.sqrt(count)
    assert abs((gaps > 2 * mean).mean() - math.exp(-2)) < 4 / math.sqrt(count)


def test_a_poisson_stream_with_a_duration_is_uniform_in_it() -> None:
    (row,) = times(Stream(start=0, duration=8, process="poisson"), (20_000,))
    at = np.array(row)
    assert (np.diff(at) >= 0).all()
    assert 0 <= at[0] <= at[-1] <= 8
    assert np.abs(np.histogram(at, 8, (0, 8))[0] - 2500).max() < 4 * math.sqrt(2500)


def test_a_clients_times_do_not_depend_on_the_other_clients() -> None:
    for stream in (
        Stream(rate="uniform:1:2", process="poisson", burst=2),
        Stream(start="uniform:0:1", duration="exponential:4", process="poisson"),
    ):
        assert times(stream, (9, 30, 4))[1] == times(stream, (2, 30))[1]
        assert times(stream, (9, 30))[1] != times(stream, (9, 30), seed=1)[1]


STREAMS = st.builds(
    Stream,
    start=st.sampled_from([0, 0.1, 0.5, 1, "uniform:0:1", "exponential:0.4"]),
    burst=st.integers(1, 4),
    process=st.sampled_from(["regular", "poisson"]),
    order=st.sampled_from(["given", "shuffled", "label"]),
    rate=st.none(),
).flatmap(
    lambda stream: st.sampled_from(["rate", "growth", "duration"]).flatmap(
        lambda pace: st.sampled_from([0.5, 3, "uniform:0.1:2", "lognormal:1:1"]).map(
            lambda value: replace(stream, **{pace: value})
        )
    )
)


@settings(max_examples=80)
@given(
    stream=STREAMS,
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=12),
    when=st.lists(st.floats(0, 30), min_size=2, max_size=6),
    seed=st.integers(0, 5),
)
def test_rows_only_ever_come_and_in_the_end_all_are_there(
    stream: Stream, sizes: list[int], when: list[float], seed: int
) -> None:
    data = make_data(sizes=sizes)
    found = arrivals(stream, data, seed)
    ids, n = np.arange(len(sizes)), np.array(sizes)
    before = found.held(ids, 0.0)
    for t in sorted(when):
        now = found.held(ids, t)
        assert (now >= before).all()
        assert (now <= n).all()
        assert now.tolist() == [int(found.held(ids[i : i + 1], t)[0]) for i in ids]
        before = now
    assert (found.held(ids, found.ends) == n).all()
    first = found.first(ids)
    assert (np.isinf(first) == (n == 0)).all()
    known = ids[n > 0]
    assert all(found.held(known[i : i + 1], t)[0] >= 1 for i, t in enumerate(first[known]))
    assert all(found.held(known[i : i + 1], np.nextafter(t, -1))[0] == 0 for i, t in enumerate(first[known]))
    for part in np.split(found.times, np.cumsum(n)[:-1]):
        assert (np.diff(part) >= 0).all()


def test_many_clients_are_looked_up_as_one_is() -> None:
    found = arrivals(Stream(rate="uniform:0.1:3", process="poisson"), make_data(sizes=tuple(range(40))))
    ids = np.arange(40)[::-1].copy()
    for t in (0.0, 1.0, 7.5, 100.0):
        assert found.held(ids, t).tolist() == [int(found.held(ids[i : i + 1], t)[0]) for i in range(40)]


# ------------------------------------------------------------------------------------------------ order and meaning


def test_rows_come_as_they_are_at_random_or_class_after_class() -> None:
    data = make_data(sizes=(30, 20))
    before = [data.splits["train"][i].tolist() for i in range(2)]
    orders: dict[Any, list[list[int]]] = {}
    for order in ("given", "shuffled", "label"):
        train = Stream(rate=1, order=order).arranged(data, 3).splits["train"]
        orders[order] = [train[i].tolist() for i in range(2)]
        assert [sorted(rows) for rows in orders[order]] == [sorted(rows) for rows in before]
    assert orders["given"] == before
    assert orders["shuffled"] != before
    assert orders["shuffled"] == [
        Stream(rate=1, order="shuffled").arranged(data, 3).splits["train"][i].tolist() for i in (0, 1)
    ]
    for rows, given_ in zip(orders["label"], before, strict=True):
        labels = data.y[torch.tensor(rows)].tolist()
        assert labels == sorted(labels)
        for c in range(3):
            assert [r for r in rows if data.y[r] == c] == [r for r in given_ if data.y[r] == c]


def test_a_drift_moves_the_classes_on_by_one_from_its_place_in_the_stream_on() -> None:
    data = make_data(sizes=(10, 4), outputs=3)
    after = Stream(rate=1, drift=0.7).arranged(data, 0)
    for client, kept in ((0, 7), (1, 3)):
        rows = data.splits["train"][client]
        assert torch.equal(after.y[rows[:kept]], data.y[rows[:kept]])
        assert torch.equal(after.y[rows[kept:]], (data.y[rows[kept:]] + 1) % 3)
        judged = data.splits["test"][client]
        assert torch.equal(after.y[judged], (data.y[judged] + 1) % 3)
    assert after.splits is data.splits


def test_a_drift_goes_by_the_order_of_arrival() -> None:
    data = make_data(sizes=(10,), outputs=3)
    stream = Stream(rate=1, drift=0.5, order="label")
    rows = stream.arranged(data, 0).splits["train"][0]
    assert torch.equal(stream.arranged(data, 0).y[rows] - data.y[rows] != 0, torch.arange(10) >= 5)


@pytest.mark.parametrize(
    ("task", "outputs", "meaning"),
    [
        ("binary", 1, lambda y: 1 - y),
        ("regression", 2, lambda y: -y),
        ("multilabel", 3, lambda y: y[:, [2, 0, 1]]),
        ("multilabel", 1, lambda y: 1 - y),
    ],
)
def test_other_labels_are_exchanged_negated_or_moved_by_a_column(task: Any, outputs: int, meaning: Any) -> None:
    data = make_data(task, sizes=(6,), outputs=outputs)
    after = Stream(rate=1, drift=0).arranged(data, 0)
    for split in ("train", "test"):
        rows = data.splits[split][0]
        assert torch.equal(after.y[rows], meaning(data.y[rows]))


def test_target_clients_have_everything_from_the_start_and_the_new_meaning() -> None:
    data = make_data(sizes=(6, 6), roles=(SOURCE, TARGET))
    stream = Stream(start=0, rate=1, drift=0.5)
    found = arrivals(stream, data)
    assert found.held(np.arange(2), 0.0).tolist() == [0, 6]
    theirs = data.splits["train"][1]
    assert torch.equal(stream.arranged(data, 0).y[theirs], (data.y[theirs] + 1) % 3)


# ------------------------------------------------------------------------------------------------ the rows' own times


def timed(*clients: list[float], **how: Any) -> FederatedData:
    """A client for each list of times of its rows."""
    data = make_data(sizes=[len(own) for own in clients], **how)
    time = torch.zeros(len(data.x), dtype=torch.float64)
    for i, own in enumerate(clients):
        time[data.splits["train"][i]] = torch.tensor(own, dtype=torch.float64)
    return replace(data, time=time)


def test_rows_come_at_their_own_times_from_the_first_one_on() -> None:
    data = timed([1000.0, 1010.0, 1030.0], [1005.0, 1100.0])
    found = arrivals(Stream(start=0, timestamps=True, speedup=10), data)
    assert found.times.tolist() == [0, 1, 3, 0.5, 10]
    assert (found.ends, found.first(np.arange(2)).tolist()) == (10, [0, 0.5])


def test_the_clock_starts_when_a_share_of_all_rows_had_been_seen() -> None:
    data = timed([1.0, 2.0, 30.0], [4.0, 8.0], [0.0], roles=(SOURCE, SOURCE, TARGET))
    assert arrivals(Stream(start=0.6, timestamps=True), data).times.tolist() == [0, 0, 26, 0, 4, 0]
    assert arrivals(Stream(start=1, timestamps=True), data).ends == 0


def test_rows_that_are_not_in_order_of_time_are_put_into_it() -> None:
    data = timed([30.0, 10.0, 20.0, 10.0])
    stream = Stream(start=0, timestamps=True)
    rows = data.splits["train"][0].tolist()
    assert stream.arranged(data, 0).splits["train"][0].tolist() == [rows[i] for i in (1, 3, 2, 0)]
    assert arrivals(stream, data).times.tolist() == [0, 0, 10, 20]


# ------------------------------------------------------------------------------------------------ the pool


def test_rows_come_to_the_pool_when_they_come_to_the_sources() -> None:
    data = make_data(sizes=(3, 4, 2), roles=(SOURCE, SOURCE, TARGET))
    stream = Stream(start=0, duration=12)
    flat = arrivals(stream, data)
    both, found = flat.with_pool(data)
    own = [data.splits["train"][i].tolist() for i in range(3)]
    assert found.times[:9].tolist() == flat.times.tolist() == [4, 8, 12, 3, 6, 9, 12, 0, 0]
    assert found.times[9:].tolist() == [3, 4, 6, 8, 9, 12, 12]
    assert both.splits["train"][3].tolist() == [
        own[1][0],
        own[0][0],
        own[1][1],
        own[0][1],
        own[1][2],
        own[0][2],
        own[1][3],
    ]
    for t in (0, 3, 5, 8, 12):
        come = [data.splits["train"][i][: int(flat.held(np.array([i]), t)[0])].tolist() for i in (0, 1)]
        pool = both.splits["train"][3][: int(found.held(np.array([3]), t)[0])].tolist()
        assert sorted(pool) == sorted(come[0] + come[1])


def test_of_the_halves_the_pool_holds_what_has_come_too() -> None:
    data = make_data(sizes=(4, 6))
    both, found = arrivals(Stream(start=0, duration=12), data).with_pool(data)
    pool = np.array([2])
    for t in (0.0, 4.0, 7.0, 12.0):
        window = np.zeros(1, dtype=np.int64), found.held(pool, t)
        rows = {half: both.span(half, pool, window).rows().tolist() for half in ("support", "query")}
        assert sorted(rows["support"] + rows["query"]) == sorted(both.span("train", pool, window).rows().tolist())
        for half in rows:
            assert set(rows[half]) <= set(both.splits[half][2].tolist())


# ------------------------------------------------------------------------------------------------ what cannot be


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({}, "stream does not say how fast rows come; give one of rate, growth, duration, or timestamps = true"),
        ({"rate": 1, "duration": 3}, "stream.duration = '3' cannot be beside stream.rate: keep one of rate"),
        ({"rate": 1, "speedup": 3}, "stream.speedup = '3' is for stream.timestamps alone"),
        ({"rate": 1, "start": 2}, "stream.start = '2' should be a share of at most 1"),
        ({"rate": 1, "start": "uniform:0:2"}, "stream.start = 'uniform:0:2' should be a share of at most 1"),
        ({"duration": "inf"}, "stream.duration = 'inf' should be finite"),
        ({"timestamps": True, "rate": 1}, "stream.rate = '1' cannot be beside stream.timestamps"),
        ({"timestamps": True, "order": "label"}, "stream.order = 'label' cannot be beside stream.timestamps"),
        (
            {"timestamps": True, "start": "uniform:0:1"},
            "stream.start = 'uniform:0:1' cannot be: with stream.timestamps",
        ),
        ({"timestamps": True}, "the rows of 'made up' have no times; name the column that has them"),
        ({"rate": 1, "burst": 0}, "stream.burst = '0' cannot be: Input should be greater than or equal to 1"),
        ({"rate": 1, "drift": 1}, "stream.drift = '1' cannot be: Input should be less than 1"),
        (
            {"rate": 1, "process": "poison"},
            "stream.process = 'poison' cannot be: Input should be 'regular' or 'poisson'",
        ),
        (
            {"rate": 0, "start": 0},
            "no row would ever come to client ann (and 1 more like it): stream.start is 0, stream.rate",
        ),
    ],
)
def test_a_stream_that_cannot_be_is_refused_with_key_and_remedy(how: dict[str, Any], said: str) -> None:
    data = make_data(sizes=(4, 5), names=("ann", "ben"))
    with pytest.raises(ConfigError) as caught:
        Stream(**how).check(data)
    assert said in str(caught.value)


def test_a_text_that_is_no_distribution_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"stream\.rate: 'fast' is no distribution"):
        Stream(rate="fast")


def test_class_after_class_needs_classes_and_a_drift_needs_test_rows() -> None:
    with pytest.raises(ConfigError, match="needs a class for each row, but this is a regression task"):
        Stream(rate=1, order="label").check(make_data("regression"))
    data = make_data()
    trained_on = replace(data, splits={**data.splits, "test": data.splits["train"]})
    with pytest.raises(ConfigError, match="drift needs test rows that nobody trains on"):
        Stream(rate=1, drift=0.5).check(trained_on)


def test_what_is_possible_is_not_refused() -> None:
    Stream(rate=1).check(make_data(sizes=(3, 0)))  # a client without any rows is for others to refuse
    Stream(start=0.5, rate=0).check(make_data())
    Stream(timestamps=True).check(timed([1.0], [2.0, 3.0]))
    Stream(rate=1, order="label").check(make_data("binary", outputs=1))
    Stream(start="exponential:0.5", growth="lognormal:0.1:1", drift=0.0).check(make_data())


def test_a_stream_can_be_written_down() -> None:
    stream = Stream(start="uniform:0.1:0.3", rate=5, drift=0.5)
    written = stream.written()
    assert written["start"] == "uniform:0.1:0.3"
    assert written["rate"] == "5"
    assert "duration" not in written
    assert Stream(**written) == stream


@pytest.mark.parametrize(
    ("stream", "still"),
    [
        (Stream(rate=1), False),
        (Stream(rate=0), True),
        (Stream(duration=0), True),
        (Stream(start=1, rate=1), True),
        (Stream(timestamps=True), False),
        (Stream(timestamps=True).over(), True),
        (Stream(growth=0.1).over(), True),
    ],
)
def test_a_stream_that_stands_still_says_so(stream: Stream, still: bool) -> None:
    assert stream.still is still
