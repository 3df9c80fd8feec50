"""The benchmark of the asynchronous schedule measures what it says; how fast that is, is not for a test to say."""

from __future__ import annotations

import torch
from benchmarks.__main__ import CHOICES
from benchmarks.competitor import ARRIVING, COMPETITORS, WAITING
from benchmarks.workloads import IN_FLIGHT

from benchmarks import asynchronous


def test_a_block_counts_replies_each_of_which_is_a_step_of_the_server() -> None:
    engine = asynchronous.fleet(clients=50, at_a_time=10)
    assert asynchronous.block(engine, 95) > 0
    assert engine.clocks.server_steps == 100
    assert engine.clocks.simulated_seconds > 10
    assert len(engine.flight) + len(engine.waiting) == 10
    assert torch.equal(engine.theta(), engine.theta0)


def test_the_clock_computes_ahead() -> None:
    engine = asynchronous.fleet(clients=200, at_a_time=100)
    asynchronous.block(engine, 1000)
    assert engine.wave < 1000 / 10


def test_both_runs_are_of_as_many_client_updates() -> None:
    assert {WAITING, ARRIVING} <= set(COMPETITORS)
    assert all(workload.per_round == 100 for workload in IN_FLIGHT.values())
    assert asynchronous.NAME in CHOICES


def test_the_result_is_said_with_its_limits() -> None:
    clock = {"clients": 10_000, "events_per_second": {"100": 21_000, "900": 30_000}, "least": 20_000}
    runs = [{"title": "large", "ratio": 1.234, "most": 1.5}, {"title": "tiny", "ratio": 2.5}]
    assert asynchronous.sentences({"clock": clock, "runs": runs}) == [
        "ASYNC: events a second with 10,000 clients: 21,000 (100 at a time), 30,000 (900 at a time); at least 20,000.",
        "ASYNC on large: 1.23 times a synchronous run (at most 1.5).",
        "ASYNC on tiny: 2.50 times a synchronous run (no limit: little else than steps of the server).",
    ]
