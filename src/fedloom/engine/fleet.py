"""The fleet: how fast, how far away and how reliable each client is, in simulated time.

Every property of a client is a function of the seed and its id, computed when it is needed: a fleet of a million
clients takes no memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedloom.errors import ConfigError
from fedloom.federation.distributions import Distribution as Distribution
from fedloom.federation.distributions import Varied as Varied
from fedloom.federation.randomness import Draw
from fedloom.types import Count, Fraction, NonNegative, Positive

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Fleet:
    """What the devices are like. The default is ideal: no delays, nobody fails, and computing takes no time."""

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
    jitter: NonNegative = 0.0
    """How much a client's speed varies from round to round: the standard deviation of its logarithm."""
    unavailable: Fraction = 0.0
    """Chance that a client cannot be reached in a round; it is not selected then."""
    dropout: Fraction = 0.0
    """Chance that a selected client gives up in a round and never answers."""
    loss: Fraction = 0.0
    """Chance that a reply is lost on its way."""
    stragglers: Fraction = 0.0
    """Share of the selected clients that manage only a part of their work in a round, 10 to 100 % of it."""
    deadline: Positive | None = None
    """Seconds after which a round ends; none: the server waits for everybody."""
    late: Literal["drop", "partial"] = "drop"
    """A client that would be late: its reply is dropped, or it does only as many local steps as fit (at least one)."""
    storage: Count | None = None
    """Rows that a device can keep: the first so many of its own or, where they come in a stream, the newest."""

    @property
    def instant(self) -> bool:
        """Whether a round takes no time: computing and messages cost nothing, and nobody is waited for."""
        nothing = self.delay_down.nought and self.delay_up.nought
        rates = (self.speed, self.bandwidth_down, self.bandwidth_up)
        waits = self.deadline is not None and (self.dropout > 0 or self.loss > 0)
        return nothing and not waits and all(rate == Distribution("constant", math.inf) for rate in rates)

    def reliable(self) -> Fleet:
        """The same fleet if nobody ever failed."""
        return replace(self, unavailable=0.0, dropout=0.0, loss=0.0, stragglers=0.0, deadline=None)

    def check(self) -> None:
        """Refuses a fleet on which a round would never end."""
        for name in ("speed", "bandwidth_down", "bandwidth_up"):
            how = getattr(self, name)
            if how.a == 0:
                raise ConfigError(f"fleet.{name} = {str(how)!r} can be 0, and such a client never answers; choose more")

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
        return np.where(slow[:, 0] < self.stragglers, 0.1 + 0.9 * slow[:, 1], 1.0)

    def budget(self, clients: Ints, seed: int, down: int, up: int, round: int = 0) -> Floats | None:
        """Gradient evaluations that fit before the deadline; None: no limit. ``up`` estimates the reply's bytes."""
        if self.deadline is None or self.late == "drop":
            return None
        spare = self.deadline - self.travel(clients, seed, down, np.full(len(clients), up))
        speed = self.pace(clients, seed, round)
        return np.where(np.isinf(speed), np.inf, np.maximum(spare, 0.0) * np.where(np.isinf(speed), 1.0, speed))

    def travel(self, clients: Ints, seed: int, down: int, up: Ints) -> Floats:
        """Seconds that a client's two messages take."""
        fixed = Draw(seed)
        there = self.delay_down.of(fixed, "delay_down", clients) + down / self.bandwidth_down.of(fixed, "down", clients)
        return there + self.delay_up.of(fixed, "delay_up", clients) + up / self.bandwidth_up.of(fixed, "up", clients)

    def pace(self, clients: Ints, seed: int, round: int) -> Floats:
        """Gradient evaluations a second of each client in this round."""
        speed = self.speed.of(Draw(seed), "speed", clients)
        if self.jitter == 0:
            return speed
        return np.asarray(speed * np.exp(self.jitter * Draw(seed, round).normal("jitter", clients, 1)[:, 0]))

    def seconds(self, clients: Ints, seed: int, down: int, up: Ints, evaluations: Ints, round: int = 0) -> Floats:
        """Seconds from the start of the round until each client's reply is there."""
        return self.travel(clients, seed, down, up) + evaluations / self.pace(clients, seed, round)

    def fates(self, clients: Ints, seconds: Floats, draw: Draw) -> dict[str, npt.NDArray[np.bool_]]:
        """What became of each client: dropped, lost, late, or accepted."""
        nobody = np.zeros(len(clients), dtype=bool)
        chance = draw.uniform("fate", clients, 2) if self.dropout or self.loss else None
        dropped = chance[:, 0] < self.dropout if chance is not None else nobody
        lost = (chance[:, 1] < self.loss) & ~dropped if chance is not None else nobody
        late = nobody
        if self.deadline is not None:
            late = (seconds > self.deadline * (1 + 1e-9)) & ~dropped & ~lost
        return {"dropped": dropped, "lost": lost, "late": late, "accepted": ~(dropped | lost | late)}

    def round_seconds(self, seconds: Floats, fates: dict[str, npt.NDArray[np.bool_]]) -> float:
        """How long the server waits: for its slowest participant, or until the deadline when somebody is missing.

        Without a deadline a server would wait for ever for those who never answer; it is told of failures when their
        reply was due.
        """
        missing = not bool(fates["accepted"].all())
        if self.deadline is not None and missing:
            return self.deadline
        longest = float(seconds.max(initial=0.0))
        return min(longest, self.deadline) if self.deadline is not None else longest


FLEETS: dict[str, Fleet] = {
    "ideal": Fleet(),
    "cross-silo": Fleet(
        speed=Distribution("lognormal", 20_000.0, 0.3),
        delay_down=Distribution("constant", 0.05),
        delay_up=Distribution("constant", 0.05),
        bandwidth_down=Distribution("constant", 12.5e6),
        bandwidth_up=Distribution("constant", 12.5e6),
    ),
    "cross-device": Fleet(
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
}


def fleet_for(preset: str, **changes: object) -> Fleet:
    """A preset, with some of its properties changed."""
    if preset not in FLEETS:
        raise ConfigError(f"there is no fleet {preset!r}; choose one of {', '.join(FLEETS)}")
    return replace(FLEETS[preset], **changes)  # type: ignore[arg-type]
