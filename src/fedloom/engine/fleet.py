"""The fleet: how fast, how far away and how reliable each client is, in simulated time.

Every property of a client is a function of the seed and its id, computed when it is needed: a fleet of a million
clients takes no memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction as Ratio
from functools import cache
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Interval
from pydantic import TypeAdapter, ValidationError

from fedloom.errors import ConfigError
from fedloom.federation.distributions import WIDEST
from fedloom.federation.distributions import Distribution as Distribution
from fedloom.federation.distributions import Varied as Varied
from fedloom.federation.randomness import Draw
from fedloom.register import Register
from fedloom.types import Count, Fraction, NonNegative, Positive

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_BY_THE_CLOCK = ("leaves", "period", "fails_every", "trace", "trace_repeats")
_CHANCES = ("unavailable", "dropout", "loss", "stragglers", "deadline", "absent", "away", "repair")
_MISHAPS = (*_CHANCES, "drops", "least_effort", *_BY_THE_CLOCK)
_LEAST = 0.1
_TOGETHER = (("period", "away"), ("away", "period"), ("repair", "fails_every"), ("trace_repeats", "trace"))
"""Fields that mean nothing without another one."""
_LONGEST = 1e12
"""Seconds, some 30,000 years: beyond that simulated times could not be told apart."""
_SHORTEST = 1e-6
"""Seconds: what comes again more often could not be counted in a run of some hours."""
_CYCLES = 1000
"""Of two repetitions the longer one at most comes so many times before both begin together again."""


@dataclass(frozen=True)
class Fleet:
    """What the clients' devices are like. The default is ideal: no delays, nobody fails, computing takes no time.

    What differs between clients is a distribution, from which each client draws a number of its own.

        from fedloom.engine.fleet import Distribution

        data = fedloom.federate("digits", clients=10)
        problem = fedloom.Problem(data, fedloom.build_model("linear", data))
        fleet = fedloom.Fleet(speed=Distribution.parse("uniform:50:500"), loss=0.1, deadline=20.0)
        run = fedloom.train(problem, fedloom.FedAvg(), rounds=3, fleet=fleet)
        print(run.summary["simulated_seconds"])
    """

    speed: Varied = Distribution("constant", math.inf)
    """Gradient evaluations of single rows that a client does in a second."""
    delay_down: Varied = Distribution()
    """Seconds until the server's message is there, beside its transfer."""
    delay_up: Varied = Distribution()
    """Seconds until the reply is there, beside its transfer."""
    bandwidth_down: Varied = Distribution("constant", math.inf)
    """Bytes a second from the server to the client."""
    bandwidth_up: Varied = Distribution("constant", math.inf)
    """Bytes a second from the client to the server."""
    redraw: bool = False
    """Whether delays are drawn anew for every exchange instead of once for each client."""
    redraw_speed: bool = False
    """Whether speeds are drawn anew in every round instead of once for each client."""
    jitter: Annotated[float, Interval(ge=0, le=WIDEST)] = 0.0
    """How much a client's speed varies from round to round: the standard deviation of its logarithm."""
    unavailable: Fraction = 0.0
    """Chance that a client cannot be reached in a round; it is not selected then."""
    dropout: Fraction = 0.0
    """Chance that a selected client gives up in a round and never answers."""
    drops: Sequence[int | str] | None = None
    """Clients, by name or number, that give up in every round in which they are selected; none: nobody does."""
    loss: Fraction = 0.0
    """Chance that a reply is lost on its way."""
    stragglers: Fraction = 0.0
    """Share of the selected clients that manage only a part of their work in a round, drawn evenly …"""
    least_effort: Annotated[float, Interval(gt=0, le=1)] = _LEAST
    """… from this part of it to all."""
    deadline: Positive | None = None
    """Seconds after which a round ends; none: the server waits for everybody."""
    late: Literal["drop", "partial"] = "drop"
    """A client that would be late: its reply is dropped, or it does only as many local steps as fit (at least one)."""
    storage: Count | None = None
    """Rows that a device can keep: the first so many of its own or, where they come in a stream, the newest."""
    absent: Fraction = 0.0
    """Share of the clients that never take part; those absent at 0.2 are also among those at 0.4."""
    leaves: Varied | None = None
    """Seconds after which a client leaves for good; none: nobody leaves."""
    period: Positive | None = None
    """Seconds after which a client's regular absence comes again, at a time of its own; none: nobody has any."""
    away: Fraction = 0.0
    """Share of each period for which a client is away."""
    fails_every: Positive | None = None
    """Seconds from one failure of a client to the next on average, exponential; none: nobody fails in this way."""
    repair: NonNegative = 0.0
    """Seconds until a client that failed is back on average, exponential; 0: at once, but its work is broken off."""
    trace: str | None = None
    """A CSV file with the columns client, start, end: seconds between which each is there; others always are."""
    trace_repeats: Positive | None = None
    """Seconds after which the trace begins again; none: whom it lists does not come back after its last line."""

    def reliable(self) -> Fleet:
        """The same fleet if nobody ever failed or was away."""
        return replace(self, **{name: getattr(Fleet, name) for name in _MISHAPS})

    def check(self) -> None:
        """Refuses what no fleet can be, one on which a round would never end, and one in which nobody is there."""
        try:
            read = _adapter().validate_python(vars(self))
        except ValidationError as error:
            wrong = error.errors()[0]
            raise ConfigError(f"fleet.{wrong['loc'][0]} = {wrong['input']!r} cannot be: {wrong['msg']}") from None
        for name, how in vars(read).items():
            if isinstance(how, Distribution):
                _check_distribution(name, getattr(self, name))
        self._check_presence()

    def _check_presence(self) -> None:
        """Refuses coming and going that cannot be, or that would change nothing."""
        for name, other in _TOGETHER:
            if getattr(self, name) and not getattr(self, other):
                raise ConfigError(
                    f"fleet.{name} = {getattr(self, name)} means nothing without fleet.{other}; give both or neither"
                )
        if self.least_effort != _LEAST and self.stragglers == 0:
            raise ConfigError(
                f"fleet.least_effort = {self.least_effort:g} means nothing without stragglers; give their share "
                "(fleet.stragglers = 1.0: all clients)"
            )
        for name in ("absent", "away"):
            if getattr(self, name) == 1:
                raise ConfigError(f"fleet.{name} = 1: nobody would ever be there; choose less than 1")
        if self.leaves is not None and self.leaves.nought:
            raise ConfigError(f"fleet.leaves = '{self.leaves}': everybody would leave at the start; choose more")
        moving = [name for name in _BY_THE_CLOCK if getattr(self, name) is not None]
        for name in moving:
            if isinstance(value := getattr(self, name), float) and math.isinf(value):
                raise ConfigError(f"fleet.{name} = inf: it would never come; leave it out")
        for name in (*_BY_THE_CLOCK, "repair", "deadline"):
            if isinstance(value := getattr(self, name), int | float) and _LONGEST < value < math.inf:
                raise ConfigError(f"fleet.{name} = {value:g} seconds is longer than any run; give at most {_LONGEST:g}")
        for name in ("period", "fails_every", "trace_repeats"):
            if (value := getattr(self, name)) is not None and value < _SHORTEST:
                raise ConfigError(
                    f"fleet.{name} = {value:g} seconds is shorter than anything that a device does; give at least "
                    f"{_SHORTEST:g}"
                )
        if math.isinf(self.repair):
            raise ConfigError("fleet.repair = inf: nobody who fails would ever come back; use fleet.leaves for that")
        if moving and self.timeless:
            raise ConfigError(
                f"fleet.{moving[0]} needs time that passes, but nothing takes time in this fleet; give it a speed "
                "(fleet.speed = 500, say) or delays"
            )
        if self.period is not None and self.trace_repeats is not None:
            longest = max(self.period, self.trace_repeats)
            if common_cycle(self.period, self.trace_repeats) > _CYCLES * longest:
                raise ConfigError(
                    f"fleet.period = {self.period:g} and fleet.trace_repeats = {self.trace_repeats:g} begin together "
                    f"only once in more than {_CYCLES:,} times; choose numbers of which one divides the other"
                )

    def reachable(self, candidates: Ints, draw: Draw) -> Ints:
        """Who could be selected in this round."""
        if self.unavailable == 0:
            return candidates
        return candidates[draw.uniform("available", candidates, 1)[:, 0] >= self.unavailable]

    def effort(self, clients: Ints, draw: Draw) -> Floats | None:
        """The part of its work that each client manages; None: all of it."""
        if self.stragglers == 0:
            return None
        slow = draw.uniform("straggler", clients, 2)
        least = self.least_effort
        return np.where(slow[:, 0] < self.stragglers, least + (1 - least) * slow[:, 1], 1.0)

    @property
    def instant(self) -> bool:
        """Whether messages take no time."""
        fast = math.isinf(self.bandwidth_down.a) and math.isinf(self.bandwidth_up.a)
        return fast and self.delay_down.nought and self.delay_up.nought

    @property
    def timeless(self) -> bool:
        """Whether a round takes no time, whatever is done in it."""
        waits = self.deadline is not None and (self.dropout > 0 or self.loss > 0)
        return self.instant and not waits and math.isinf(self.speed.a)

    def budget(self, clients: Ints, seed: int, down: int | Ints, up: int | Ints, round: int = 0) -> Floats | None:
        """Gradient evaluations that fit before the deadline; None: no limit. ``up`` estimates the reply's bytes."""
        if self.deadline is None or self.late == "drop":
            return None
        spare = self.deadline - self.travel(clients, seed, down, up, round)
        speed = self.pace(clients, seed, round)
        return np.where(np.isinf(speed), np.inf, np.maximum(spare, 0.0) * np.where(np.isinf(speed), 1.0, speed))

    def travel(self, clients: Ints, seed: int, down: int | Ints, up: int | Ints, round: int = 0) -> Floats:
        """Seconds that a client's two messages take."""
        there = self._delay("delay_down", clients, seed, round) + down / self.bandwidth_down.kept(seed, "down", clients)
        back = self._delay("delay_up", clients, seed, round)
        return there + back + up / self.bandwidth_up.kept(seed, "up", clients)

    def _delay(self, which: Literal["delay_down", "delay_up"], clients: Ints, seed: int, round: int) -> Floats:
        how: Distribution = getattr(self, which)
        return how.of(Draw(seed, round), which, clients) if self.redraw else how.kept(seed, which, clients)

    def pace(self, clients: Ints, seed: int, round: int) -> Floats:
        """Gradient evaluations a second of each client in this round."""
        anew = self.redraw_speed
        speed = self.speed.of(Draw(seed, round), "speed", clients) if anew else self.speed.kept(seed, "speed", clients)
        if self.jitter == 0:
            return speed
        return np.asarray(speed * np.exp(self.jitter * Draw(seed, round).normal("jitter", clients, 1)[:, 0]))

    def seconds(
        self, clients: Ints, seed: int, down: int | Ints, up: int | Ints, evaluations: Ints, round: int = 0
    ) -> Floats:
        """Seconds from the start of the round until each client's reply is there."""
        return self.travel(clients, seed, down, up, round) + evaluations / self.pace(clients, seed, round)

    def fates(self, clients: Ints, seconds: Floats, draw: Draw, gone: Bools | None = None) -> dict[str, Bools]:
        """What became of each client: dropped (also those who are ``gone`` before the end), lost, late, or accepted."""
        nobody = np.zeros(len(clients), dtype=bool)
        chance = draw.uniform("fate", clients, 2) if self.dropout or self.loss else None
        dropped = chance[:, 0] < self.dropout if chance is not None else nobody
        dropped = dropped if gone is None else dropped | gone
        lost = (chance[:, 1] < self.loss) & ~dropped if chance is not None else nobody
        late = nobody
        if self.deadline is not None:
            late = (seconds > self.deadline * (1 + 1e-9)) & ~dropped & ~lost
        return {"dropped": dropped, "lost": lost, "late": late, "accepted": ~(dropped | lost | late)}

    def round_seconds(self, seconds: Floats, fates: dict[str, Bools]) -> float:
        """How long the server waits: for its slowest participant, or until the deadline when somebody is missing.

        Without a deadline a server would wait for ever for those who never answer; it is told of failures when their
        reply was due.
        """
        missing = not bool(fates["accepted"].all())
        if self.deadline is not None and missing:
            return self.deadline
        longest = float(seconds.max(initial=0.0))
        return min(longest, self.deadline) if self.deadline is not None else longest


def common_cycle(one: float, other: float) -> float:
    """Seconds until two repetitions begin together again: the least common multiple of their decimal numbers."""
    a, b = Ratio(repr(float(one))), Ratio(repr(float(other)))
    cycle = Ratio(math.lcm(a.numerator * b.denominator, b.numerator * a.denominator), a.denominator * b.denominator)
    return float(cycle)


@cache
def _adapter() -> TypeAdapter[Fleet]:
    return TypeAdapter(Fleet)


def _check_distribution(name: str, how: object) -> None:
    """Refuses numbers that cannot be what the field stands for."""
    if not isinstance(how, Distribution):
        raise ConfigError(f"fleet.{name} = {how!r} is no Distribution; write Distribution.parse({how!r})")
    try:
        Distribution.parse(str(how))
    except ValueError as error:
        raise ConfigError(f"fleet.{name}: {error}") from None
    if name in ("speed", "bandwidth_down", "bandwidth_up") and how.a == 0:
        raise ConfigError(f"fleet.{name} = {str(how)!r} can be 0, and such a client never answers; choose more")
    if name in ("delay_down", "delay_up") and math.isinf(how.a):
        raise ConfigError(f"fleet.{name} = {str(how)!r}: such a client never answers; choose less")


FLEETS: Register[Fleet] = Register(
    "fleet", right=lambda thing: isinstance(thing, Fleet), must_be="a fedloom.Fleet", own="module:fleet"
)
FLEETS.register("ideal", Fleet())
FLEETS.register(
    "cross-silo",
    Fleet(
        speed=Distribution("lognormal", 20_000.0, 0.3),
        delay_down=Distribution("constant", 0.05),
        delay_up=Distribution("constant", 0.05),
        bandwidth_down=Distribution("constant", 12.5e6),
        bandwidth_up=Distribution("constant", 12.5e6),
    ),
)
FLEETS.register(
    "cross-device",
    Fleet(
        speed=Distribution("lognormal", 500.0, 1.0),
        jitter=0.3,
        delay_down=Distribution("uniform", 0.1, 2.0),
        delay_up=Distribution("uniform", 0.1, 2.0),
        bandwidth_down=Distribution("lognormal", 2.5e6, 0.7),
        bandwidth_up=Distribution("lognormal", 6e5, 0.7),
        unavailable=0.2,
        dropout=0.05,
        loss=0.02,
    ),
)


def _relative(communication: float) -> Fleet:
    """The cost model of Smith et al. (2017): 8 operations for each row of a local step, and so many for a round's two
    messages, whatever their bytes. A second stands for an operation: times are relative.
    """
    half = Distribution("constant", communication / 2)
    return Fleet(speed=Distribution("constant", 1 / 8), delay_down=half, delay_up=half)


for _name, _communication in (("wifi", 10.0), ("lte", 100.0), ("3g", 1000.0)):
    FLEETS.register(_name, _relative(_communication))


def fleet_for(preset: str, **changes: object) -> Fleet:
    """A preset, with some of its properties changed."""
    return replace(FLEETS.find(preset), **changes)  # type: ignore[arg-type]
