"""The asynchronous schedule: events a second of the clock alone, and a run beside one that waits for its rounds."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fedloom
from benchmarks.competitor import ARRIVING, WAITING
from benchmarks.race import Lane, in_turn
from benchmarks.workloads import IN_FLIGHT
from fedloom.engine.arrivals import Arrivals
from fedloom.engine.fleet import Distribution, Fleet
from fedloom.engine.schedule import Schedule
from fedloom.engine.selection import Uniform
from fedloom.engine.setting import Setting
from fedloom.execution import Serial, one_thread
from fedloom.federation.client import Client
from fedloom.federation.ragged import Ragged
from fedloom.federation.replies import Replies
from fedloom.methods.method import Context, Ints, ServerMethod
from fedloom.storage.store import MemoryStore
from fedloom.types import Memory, Message, State

NAME = "ASYNC"
CLIENTS = 10_000
AT_A_TIME = (100, 1_000, 10_000)
EVENTS_LEAST = 20_000
"""Jobs a second, each fetched, worked on, replied to and stepped on, that the clock must manage beside the training."""
MOST = 1.5
"""Times a synchronous run with as many client updates that an asynchronous one may take, on the first workload."""


@dataclass(frozen=True)
class Nothing(ServerMethod):
    """Clients and server do nothing: what is left is the clock."""

    reduce = "each"  # no sum is taken that nobody asks for

    def server_init(self, ctx: Context) -> State:
        return {"x": ctx.theta0}

    def broadcast(self, state: State, clients: Tensor) -> Message:
        return {"x": state["x"]}

    def client(self, client: Client, received: Message, memory: Memory) -> tuple[Message, Memory]:
        return {"dx": torch.zeros(len(client.clients), 1)}, memory

    def server(self, state: State, replies: Replies, ctx: Context) -> State:
        return state

    def work(self, rows: Ints) -> Ints:
        return np.zeros_like(rows)


def fleet(clients: int, at_a_time: int) -> Arrivals:
    """Clients with a row each and delays of 10 to 100 seconds, so many of them at work at a time, about to begin."""
    ones, none = torch.ones(clients, dtype=torch.int64), torch.zeros(clients, dtype=torch.int64)
    splits = {"train": Ragged.contiguous(ones), "test": Ragged.contiguous(none)}
    data = fedloom.FederatedData(NAME, torch.zeros(clients, 3), torch.zeros(clients, 1), "regression", splits)
    setting = Setting(
        fedloom.Problem(data, fedloom.build_model("linear", data)),
        Nothing(),
        Uniform(at_a_time),
        fleet=Fleet(delay_up=Distribution("uniform", 10.0, 100.0)),
        evaluations=(),
        schedule=Schedule("async", at_a_time, 1),
    )
    return Arrivals(setting, Serial(), MemoryStore())


def block(engine: Arrivals, events: int) -> float:
    """At least so many events, in whole rounds; the events a second."""
    done, start = 0, perf_counter()
    while done < events:
        done += engine.step()["selected"]
    return done / (perf_counter() - start)


def events(turns: int) -> dict[str, Any]:
    """Events a second for each number of clients at a time, in turn; those of the best block of each."""
    with one_thread():
        engines = {at_a_time: fleet(CLIENTS, at_a_time) for at_a_time in AT_A_TIME}
        rates: dict[int, list[float]] = {at_a_time: [] for at_a_time in AT_A_TIME}
        for _ in range(turns + 1):
            for at_a_time, engine in engines.items():
                rates[at_a_time].append(block(engine, CLIENTS))
    best = {str(at_a_time): round(max(found[1:])) for at_a_time, found in rates.items()}
    return {
        "clients": CLIENTS,
        "events_per_second": best,
        "slowest": min(best.values()),
        "least": EVENTS_LEAST,
        "median_events_per_second": {str(key): round(median(found[1:])) for key, found in rates.items()},
        "blocks": turns,
    }


def beside_rounds(workload: str, turns: int, block_seconds: float) -> dict[str, Any]:
    """A run that waits and one that does not, in turn, with as many client updates in a round of either."""
    waiting, arriving = in_turn((WAITING, ARRIVING), workload, turns, block_seconds)
    return {"title": IN_FLIGHT[workload].title, **_ratios(arriving, waiting), "blocks": turns}


def _ratios(arriving: Lane, waiting: Lane) -> dict[str, float]:
    """``ratio`` is that of the best blocks; ``median_ratio``, of blocks that ran one after the other, is a check."""
    pairs = zip(arriving.blocks, waiting.blocks, strict=True)
    return {
        "ratio": arriving.best / waiting.best,
        "median_ratio": median(mine / other for mine, other in pairs),
        "seconds_per_round": arriving.best,
        "synchronous_seconds_per_round": waiting.best,
    }


def race(turns: int, block_seconds: float) -> dict[str, Any]:
    """Both measurements; blocks of the clock alone are short, so there are more of them."""
    first, *others = (beside_rounds(name, turns, block_seconds) for name in IN_FLIGHT)
    return {"clock": events(3 * turns), "runs": [{**first, "most": MOST}, *others]}


def sentences(figures: dict[str, Any]) -> list[str]:
    """The result as lines of text."""
    clock = figures["clock"]
    rates = ", ".join(f"{rate:,} ({int(at):,} at a time)" for at, rate in clock["events_per_second"].items())
    lines = [f"{NAME}: events a second with {clock['clients']:,} clients: {rates}; at least {clock['least']:,}."]
    for run in figures["runs"]:
        limit = f" (at most {run['most']:g})" if "most" in run else " (no limit: little else than steps of the server)"
        lines.append(f"{NAME} on {run['title']}: {run['ratio']:.2f} times a synchronous run{limit}.")
    return lines
