"""When each client is there: it may be absent, leave for good, be away by the clock, fail and be repaired, or follow a
trace. Each of these gives stretches of presence, [begin, end); a client is available where all of them agree.

Everything is a function of the seed, the client and the time: who asks first, and how often, changes no answer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np

from fedloom.engine.fleet import Bools, Distribution, Fleet, Floats, Ints, common_cycle
from fedloom.engine.trace import Interval, read_trace
from fedloom.errors import ConfigError, Deserted, RunError
from fedloom.federation.randomness import Draw

Stretch = tuple[Floats, Floats]

PASSES = 100_000
"""Stretches of presence after which the search for a common one is given up with an error."""
_TURNS = 2.0**40
"""Periods that can be counted in floating-point seconds, with thousands of different times in each."""
_EACH, _MOST = 2, 24
"""Random events that a block of time has on average and at most: the chance of more, 4e-18, is none for a float."""
_COUNTS: Floats = np.cumsum([math.exp(-_EACH) * _EACH**k / math.factorial(k) for k in range(_MOST)])
"""The chance of at most 0, 1, … events in a block, by Poisson's law."""


@final
class Availability:
    """When the clients of a run are there. ``Availability()`` is of clients who always are."""

    def __init__(self, parts: Sequence[Presence] = ()) -> None:
        self.always = not parts
        """Whether nobody is ever away: then there is nothing to ask."""
        self._joint = Joint(parts)
        self._known: dict[int, tuple[float, float, float]] = {}

    @staticmethod
    def of(
        fleet: Fleet, seed: int, clients: int, names: Sequence[str] | None = None, candidates: Ints | None = None
    ) -> Availability:
        """That of a fleet of so many clients, of whom the candidates (none: all) would take part."""
        parts: list[Presence] = []
        if fleet.absent > 0:
            parts.append(Absent(fleet.absent, seed, np.arange(clients) if candidates is None else candidates))
        if fleet.leaves is not None:
            parts.append(Leaving(fleet.leaves, seed))
        regular: list[Presence] = []
        if fleet.period is not None:
            regular.append(Periodic(fleet.period, fleet.away, seed))
        if fleet.trace is not None:
            trace = read_trace(fleet.trace, clients, names, fleet.trace_repeats)
            regular.append(Traced(trace, clients, fleet.trace_repeats))
        if fleet.period is not None and fleet.trace_repeats is not None:
            regular = [Joint(regular, within=2 * common_cycle(fleet.period, fleet.trace_repeats))]
        parts += regular
        if fleet.fails_every is not None:
            parts.append(Failing(fleet.fails_every, fleet.repair, seed))
        return Availability(parts)

    def next_available(self, clients: Ints, t: float | Floats) -> Floats:
        """The first time from t on at which each client is available: t itself if it is, inf if it never is again."""
        at = np.array(np.broadcast_to(t, clients.shape), dtype=np.float64)
        return at if self.always else np.maximum(self._joint.stretch(clients, at)[0], at)

    def goes_away(self, clients: Ints, t: float | Floats) -> Floats:
        """For clients that are available at t: the time at which that ends, inf if never."""
        if self.always:
            return np.full(clients.shape, np.inf)
        return self._joint.stretch(clients, np.array(np.broadcast_to(t, clients.shape), dtype=np.float64))[1]

    def presence(self, client: int, t: float) -> tuple[float, float]:
        """Both answers for one client: when it is available from t on, and when it then goes away.

        The last answer for each client is kept: it holds until the client goes away.
        """
        if self.always:
            return t, math.inf
        since, begin, end = self._known.get(client, (math.inf, 0.0, 0.0))
        if not since <= t < end:
            begins, ends = self._joint.stretch(np.array([client]), np.array([t], dtype=np.float64))
            since, begin, end = self._known[client] = (t, float(begins[0]), float(ends[0]))
        return max(begin, t), end


def gathered(
    availability: Availability, candidates: Ints, now: float, ready: Floats | None = None
) -> tuple[float, Ints]:
    """The first time from now on at which any of the candidates is there, and those who are there then.

    ``ready`` is the time from which each could take part at all.
    """
    if len(candidates) == 0 or (availability.always and ready is None):
        return now, candidates
    times = availability.next_available(candidates, now if ready is None else np.maximum(ready, now))
    start = float(times.min())
    if math.isinf(start):
        raise gone_for_good(now, len(candidates))
    return start, candidates[times <= start]


def gone_for_good(now: float, clients: int) -> Deserted:
    """The error that ends a run which nobody will ever take part in again."""
    return Deserted(
        f"after {now:,.6g} simulated seconds none of the {clients} clients will ever be there again; let them stay "
        "longer (fleet.leaves, or more lines in fleet.trace), let the trace begin again (fleet.trace_repeats), or make "
        "the run shorter"
    )


def interrupted(availability: Availability, clients: Ints, started: float | Floats, seconds: Floats) -> Bools:
    """Which of these clients, all there when they started, go away before their reply is due so many seconds later."""
    if availability.always:
        return np.zeros(len(clients), dtype=bool)
    return availability.goes_away(clients, started) < started + seconds


class Presence(ABC):
    """One reason to be there or not, as stretches of presence that follow each other without overlap."""

    @abstractmethod
    def stretch(self, clients: Ints, t: Floats) -> Stretch:
        """For each client the first stretch that ends after its t: begin and end, both inf if there is none.

        A stretch under way has a begin of at most t; one that has no begin (or end) has an infinite one.
        """


@final
class Joint(Presence):
    """Present where all parts are.

    The search ends. Where the parts' stretches of one time t have nothing in common, the latest of their begins is not
    before the earliest of their ends, so that going on from there at least one part moves to a later stretch, and no
    common time was passed over. A departure and a trace that does not repeat have finitely many stretches. Two parts
    that repeat meet in one cycle of both (``within``), or never. And to failures each further pass is a new chance, of
    at least the share of time without failure; only where this is tiny may ``passes`` be too few.
    """

    def __init__(self, parts: Sequence[Presence], within: float = math.inf, passes: int = PASSES) -> None:
        self.parts, self.within, self.passes = tuple(parts), within, passes

    def stretch(self, clients: Ints, t: Floats) -> Stretch:
        begin, end, at = np.full(len(t), np.inf), np.full(len(t), np.inf), t.copy()
        todo = np.flatnonzero(t < np.inf)
        for _ in range(self.passes):
            if len(todo) == 0:
                break
            begins, ends = zip(*(part.stretch(clients[todo], at[todo]) for part in self.parts), strict=True)
            latest, earliest = np.maximum.reduce(begins), np.minimum.reduce(ends)
            met = latest < earliest
            begin[todo[met]], end[todo[met]] = latest[met], earliest[met]
            at[todo] = latest
            todo = todo[~met & (latest < np.inf) & (latest <= t[todo] + self.within)]
        if len(todo):
            raise RunError(
                f"client {clients[todo[0]]} is hardly ever available: not in {self.passes:,} stretches of presence; "
                "choose a shorter fleet.repair, a longer fleet.fails_every or a smaller fleet.away"
            )
        return begin, end


@final
class Absent(Presence):
    """Some of the clients are never there; those at a smaller share are also among those at a larger one."""

    def __init__(self, share: float, seed: int, candidates: Ints) -> None:
        count = round(share * len(candidates))
        if count == len(candidates) > 0:
            raise ConfigError(
                f"fleet.absent = {share:g} leaves none of the {len(candidates)} clients; choose a smaller share"
            )
        order = np.argsort(Draw(seed).words("absent", candidates, 1)[:, 0], kind="stable")
        self.who: Ints = np.sort(candidates[order[:count]])

    def stretch(self, clients: Ints, t: Floats) -> Stretch:
        return np.where(np.isin(clients, self.who), np.inf, -np.inf), np.full(len(t), np.inf)


@final
class Leaving(Presence):
    """Each client is there until it leaves for good."""

    def __init__(self, after: Distribution, seed: int) -> None:
        self.after, self.draw = after, Draw(seed)

    def stretch(self, clients: Ints, t: Floats) -> Stretch:
        end = self.after.of(self.draw, "leaves", clients)
        return np.where(t < end, -np.inf, np.inf), np.where(t < end, end, np.inf)


@final
class Periodic(Presence):
    """In every period each client is away for a share of it, and then there; where its periods begin is its own."""

    def __init__(self, period: float, away: float, seed: int) -> None:
        self.period, self.away, self.draw = period, away, Draw(seed)

    def stretch(self, clients: Ints, t: Floats) -> Stretch:
        phase = self.draw.uniform("phase", clients, 1)[:, 0]
        begin, end = (self.away - phase) * self.period, (1.0 - phase) * self.period
        whole = turn(t, self.period, end) * self.period
        return whole + begin, whole + end


@final
class Traced(Presence):
    """What a trace says of the clients that it lists; others are always there."""

    def __init__(self, trace: Mapping[int, list[Interval]], clients: int, repeats: float | None) -> None:
        listed = {client: _circular(intervals, repeats) for client, intervals in trace.items()}
        counts = np.zeros(clients, dtype=np.int64)
        for client, intervals in listed.items():
            counts[client] = len(intervals)
        self.repeats = repeats
        self.counts, self.last = counts, np.cumsum(counts) - 1
        flat = np.array([interval for client in sorted(listed) for interval in listed[client]]).reshape(-1, 2)
        self.starts, self.ends = flat[:, 0].copy(), flat[:, 1].copy()

    def stretch(self, clients: Ints, t: Floats) -> Stretch:
        begin, end = np.full(len(t), -np.inf), np.full(len(t), np.inf)
        listed = np.flatnonzero(self.counts[clients] > 0)
        if len(listed) == 0:
            return begin, end
        last, t = self.last[clients[listed]], t[listed]
        base = np.zeros(len(t))
        if self.repeats is not None:
            base = turn(t, self.repeats, self.ends[last]) * self.repeats
        place = self._first_after(last - self.counts[clients[listed]] + 1, last, base, t)
        over = base + self.ends[place] <= t
        begin[listed] = np.where(over, np.inf, base + self.starts[place])
        end[listed] = np.where(over, np.inf, base + self.ends[place])
        return begin, end

    def _first_after(self, low: Ints, high: Ints, base: Floats, t: Floats) -> Ints:
        """Among each client's intervals, from low to high, the first that ends after t, else the last: by bisection."""
        while (low < high).any():
            middle = (low + high) // 2
            over = (base + self.ends[middle] <= t) & (low < high)
            low, high = np.where(over, middle + 1, low), np.where(over, high, middle)
        return low


def _circular(intervals: list[Interval], repeats: float | None) -> list[Interval]:
    """With a last interval that goes on in the next repetition as one; none for a client that is always there."""
    (first, last) = (intervals[0], intervals[-1])
    if repeats is None or first[0] > 0 or last[1] < repeats:
        return intervals
    return [*intervals[1:-1], (last[0], repeats + first[1])] if len(intervals) > 1 else []


@final
class Failing(Presence):
    """Each client fails again and again, and is there again once it is repaired; at first it is there.

    Failures and repairs are two independent Poisson processes, and a client is up unless its last event was a failure.
    So times up and down are exponential, as in an alternating renewal process, but any time can be looked up without
    those before it. A repair that takes no time at all only breaks off what the client was doing.
    """

    def __init__(self, every: float, repair: float, seed: int) -> None:
        self.failures = Events("failures", every, seed)
        self.repairs = Events("repairs", repair, seed) if repair > 0 else None

    def stretch(self, clients: Ints, t: Floats) -> Stretch:
        begin = self.failures.before(clients, t)
        if self.repairs is not None:
            failed = np.flatnonzero(begin > -np.inf)
            begin[failed] = self.repairs.after(clients[failed], begin[failed])
        return begin, self.failures.after(clients, np.maximum(begin, t))


@final
class Events:
    """A Poisson process for each client: in every block of time a random number of events at random places."""

    def __init__(self, purpose: str, mean: float, seed: int) -> None:
        self.purpose, self.draw, self.block = purpose, Draw(seed), _EACH * mean

    def after(self, clients: Ints, t: Floats) -> Floats:
        """The first event after t."""
        found, blocks, todo = np.full(len(t), np.inf), turn(t, self.block, self.block), np.arange(len(t))
        while len(todo):
            times = self._times(clients[todo], blocks[todo])
            found[todo] = np.where(times > t[todo, None], times, np.inf).min(axis=1, initial=np.inf)
            blocks[todo] += 1
            todo = todo[np.isinf(found[todo])]
        return found

    def before(self, clients: Ints, t: Floats) -> Floats:
        """The last event up to and at t, -inf if there was none since 0."""
        found, blocks, todo = np.full(len(t), -np.inf), turn(t, self.block, self.block), np.arange(len(t))
        while len(todo):
            times = self._times(clients[todo], blocks[todo])
            found[todo] = np.where(times <= t[todo, None], times, -np.inf).max(axis=1, initial=-np.inf)
            blocks[todo] -= 1
            todo = todo[np.isinf(found[todo]) & (blocks[todo] >= 0)]
        return found

    def _times(self, clients: Ints, blocks: Floats) -> Floats:
        """The events of a block, in no order, among NaN: shape (clients, the most that there can be)."""
        drawn = self.draw.uniform(self.purpose, clients, 1 + _MOST, blocks.astype(np.int64))
        counts = np.searchsorted(_COUNTS, drawn[:, 0], "right")
        start, limit = blocks * self.block, np.nextafter((blocks + 1) * self.block, 0.0)
        times = np.minimum(start[:, None] + drawn[:, 1:] * self.block, limit[:, None])
        return np.where(np.arange(_MOST) < counts[:, None], times, np.nan)


def turn(t: Floats, period: float, end: float | Floats) -> Floats:
    """The first whole number k with k·period + end > t, in the very arithmetic in which callers compute that sum."""
    k = np.floor((t - end) / period) + 1.0
    k += k * period + end <= t
    k -= (k - 1.0) * period + end > t
    if k.max(initial=0.0) > _TURNS:
        raise RunError(
            f"after {t.max():,.6g} simulated seconds spans of {period:g} seconds cannot be told apart any more; choose "
            "longer times for the fleet's coming and going"
        )
    return np.asarray(k)
