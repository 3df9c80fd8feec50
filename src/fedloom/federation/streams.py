"""Data that arrive on a clock: when each training row is there, in which order they come, what their labels mean."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Interval
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.data import HALVES, SOURCE, TARGET, FederatedData
from fedloom.federation.distributions import Distribution, Floats, Varied
from fedloom.federation.ragged import Ints, Ragged
from fedloom.federation.randomness import Draw
from fedloom.fields import unfit_fields
from fedloom.types import Count, Positive

_PACES = ("rate", "growth", "duration")
_FEW = 8  # up to so many clients are looked up one by one


@dataclass(frozen=True)
class Stream:
    """How the training rows of the clients arrive: a share at the start, then more and more by the simulated clock.

    Exactly one of ``rate``, ``growth``, ``duration`` and ``timestamps`` says how fast. A client holds the rows that
    have come and trains on nothing else; test rows, and target clients with all that they have, are there from the
    start.

    With ``drift`` the labels change their meaning on the way: classes move on by one (the last becomes the first), 0
    and 1 are exchanged, several labels move on by one column, and the targets of a regression change their sign. What
    is evaluated, test rows and target clients, is evaluated by the new meaning all the time.

        from fedloom.engine.fleet import Distribution

        data = fedloom.federate("digits", clients=5)
        problem = fedloom.Problem(data, fedloom.build_model("linear", data))
        stream = fedloom.Stream(rate=Distribution("constant", 2.0))
        fleet = fedloom.Fleet(speed=Distribution("constant", 100.0))
        run = fedloom.train(problem, fedloom.FedAvg(), rounds=3, stream=stream, fleet=fleet)
        print(run.history[-1]["arrived"])
    """

    start: Varied = Distribution("constant", 0.1)
    """Share of its rows that a client has at the start, at least one row unless it is 0. With timestamps: the share of
    all rows that had been seen when the clock starts."""
    rate: Varied | None = None
    """Rows a second that come to a client after that."""
    growth: Varied | None = None
    """Share of a client's rows that comes in a second."""
    duration: Varied | None = None
    """Seconds until all rows of a client are there."""
    burst: Count = 1
    """Rows that come together; the mean rate stays."""
    process: Literal["regular", "poisson"] = "regular"
    """Equal times between bursts, or those of a Poisson process with the same mean (or, with a duration, one of whose
    bursts all fall into it)."""
    order: Literal["given", "shuffled", "label"] = "given"
    """In which order a client's rows come: as they are (by time where that is known), at random, or class after
    class."""
    drift: Annotated[float, Interval(ge=0, lt=1)] | None = None
    """From this share of a client's stream on the labels mean something else; none: they never do."""
    timestamps: bool = False
    """Rows come when they were seen, by their own times."""
    speedup: Positive = 1.0
    """Seconds of these times that pass in a simulated second."""

    def __post_init__(self) -> None:
        """Numbers and texts stand for distributions."""
        for name in ("start", *_PACES):
            value = getattr(self, name)
            if value is None:
                continue
            try:
                object.__setattr__(self, name, Distribution.parse(value))
            except ValueError as error:
                raise ConfigError(f"stream.{name}: {error}") from None

    def faults(self) -> Iterator[tuple[str, str]]:
        """The settings that cannot be together: key ("" for all of them), and what is wrong with it."""
        unfit = [(name, f"cannot be: {why}") for name, _, why in unfit_fields(self)]
        yield from unfit
        if unfit:
            return
        given = [name for name in _PACES if getattr(self, name) is not None]
        if self.timestamps:
            changed = [name for name in ("burst", "process", "order") if getattr(self, name) != getattr(Stream, name)]
            for name in (*given, *changed):
                yield name, "cannot be beside stream.timestamps, by which rows come when they were seen: keep one"
            if self.start.kind != "constant":
                yield "start", "cannot be: with stream.timestamps one clock starts for all; give one share"
        elif not given:
            yield "", "does not say how fast rows come; give one of rate, growth, duration, or timestamps = true"
        else:
            for name in given[1:]:
                yield name, f"cannot be beside stream.{given[0]}: keep one of {', '.join(_PACES)}"
        if not self.timestamps and self.speedup != 1:
            yield "speedup", "is for stream.timestamps alone, which is not set; change the rate instead"
        if max(self.start.a, self.start.b) > 1 and self.start.kind in ("constant", "uniform"):
            yield "start", "should be a share of at most 1"
        if self.duration == Distribution("constant", math.inf):
            yield "duration", "should be finite, or most rows would never come; if that is meant, set rate = 0"

    def check(self, data: FederatedData, seed: int = 0) -> None:
        """Refuses, before any work, settings that cannot be and a stream from which some client never gets a row."""
        for key, what in self.faults():
            raise ConfigError(f"stream{f'.{key} = {str(getattr(self, key))!r}' if key else ''} {what}")
        if data.layout == "features":
            raise ConfigError(
                f"the clients of {data.name!r} hold columns of the same rows, which cannot come to one of them alone; "
                "use a partition by rows such as 'iid', or leave the stream out"
            )
        if data.repeated:
            raise ConfigError(
                "rows that come again to fill up rare labels (data.fill) are known only once all rows are there; leave "
                "data.fill or the stream out"
            )
        if self.drift is not None and data.public is not None:
            raise ConfigError(
                f"stream.drift = {self.drift} changes what labels mean at another row of each client, so a public row "
                "would mean several things at once; leave data.public or the drift out"
            )
        if self.timestamps and data.time is None:
            raise ConfigError(
                f"stream.timestamps = true, but the rows of {data.name!r} have no times; name the column that has them "
                "(data.timestamp_column), or say how fast rows come (stream.rate)"
            )
        if self.order == "label" and _classes(data) is None:
            raise ConfigError(
                f"stream.order = 'label' needs a class for each row, but this is a {data.task} task; set 'shuffled'"
            )
        sources = data.with_role(SOURCE).numpy()
        sources = sources[data.splits["train"].sizes.numpy()[sources] > 0]
        silent = sources[np.isinf(self.arrivals(self.arranged(data, seed), seed).first(sources))]
        if len(silent):
            raise ConfigError(
                f"no row would ever come to client {data.label(int(silent[0]))} (and {len(silent) - 1} more like it): "
                f"stream.start is {self.start}, stream.{self._pace} is {getattr(self, self._pace)}; raise one of them"
            )

    def written(self) -> dict[str, Any]:
        """The settings as a [stream] section of an experiment file has them."""
        given = {key: value for key, value in vars(self).items() if value is not None}
        return {key: str(value) if isinstance(value, Distribution) else value for key, value in given.items()}

    @property
    def still(self) -> bool:
        """Whether all that ever comes is there from the start."""
        pace = getattr(self, self._pace)
        return self.start == Distribution("constant", 1.0) or (isinstance(pace, Distribution) and pace.nought)

    def over(self) -> Stream:
        """The same stream once everything has come."""
        return replace(self, start=Distribution("constant", 1.0))

    def arranged(self, data: FederatedData, seed: int) -> FederatedData:
        """The same federation, each client's training rows in the order of their arrival and with their labels then."""
        train = data.splits["train"]
        order = self._order(data, Draw(seed))
        if order is not None:
            rows = train.resolve(torch.from_numpy(order))
            data = replace(data, splits={**data.splits, "train": Ragged(train.offsets, rows)})
        return data if self.drift is None else replace(data, y=_drifted(data, self.drift))

    def arrivals(self, data: FederatedData, seed: int) -> Arrivals:
        """When each training row of arranged data is there."""
        train = data.splits["train"]
        client, place = _places(train)
        times = self._seen(data) if self.timestamps else self._coming(client, place, train.sizes.numpy(), Draw(seed))
        there = np.isin(client, data.with_role(TARGET).numpy())
        return Arrivals(np.where(there, 0.0, times), train)

    @property
    def _pace(self) -> str:
        return next((name for name in _PACES if getattr(self, name) is not None), "timestamps")

    def _order(self, data: FederatedData, draw: Draw) -> Ints | None:
        """The flat positions of all training rows by client and then by arrival; None: as they are."""
        train = data.splits["train"]
        client, place = _places(train)
        if self.order == "shuffled":
            return np.lexsort((draw.words("stream order", client, 1, lane=place)[:, 0], client))
        values = data.time if self.timestamps else _classes(data) if self.order == "label" else None
        return None if values is None else np.lexsort((values[train.every()].numpy(), client))

    def _seen(self, data: FederatedData) -> Floats:
        """The rows' own times, as the clock has them."""
        assert data.time is not None
        train = data.splits["train"]
        times: Floats = data.time[train.every()].double().numpy()
        known = np.sort(times[train.span(data.with_role(SOURCE).numpy()).positions()])
        zero = known[max(int(np.rint(self.start.a * len(known))), 1) - 1] if len(known) else 0.0
        return np.maximum((times - zero) / self.speedup, 0.0)

    def _coming(self, client: Ints, place: Ints, sizes: Ints, draw: Draw) -> Floats:
        """0 for the first share of each client's rows, then the times of the bursts in which they come."""
        clients = np.arange(len(sizes))
        share = np.minimum(self.start.of(draw, "stream start", clients), 1.0)
        ready = np.where(share > 0, np.maximum(np.rint(share * sizes), 1), 0).astype(np.int64)
        later = place - ready[client]
        number = later // self.burst + 1
        head = (later >= 0) & (later % self.burst == 0)
        bursts = _Bursts(client[head], number[head], np.bincount(client[head], minlength=len(sizes)), draw)
        pace: Distribution = getattr(self, self._pace)
        speed = pace.of(draw, f"stream {self._pace}", clients)
        if self.duration is not None:
            found = bursts.within(speed, self.process)
        else:
            rate = speed * sizes if self.growth is not None else speed
            found = bursts.apart(rate, self.burst, self.process)
        return np.where(later >= 0, np.append(found, 0.0)[np.cumsum(head) - 1], 0.0)


class Arrivals:
    """When each training row is there: ``times`` in the order of "train", which within a client is that of time."""

    def __init__(self, times: Floats, train: Ragged) -> None:
        self.times, self.train = times, train
        self._offsets = train.offsets.numpy().copy()  # executors may move the original into shared memory
        self._first = np.append(times, np.inf)[np.where(train.sizes.numpy() > 0, self._offsets[:-1], len(times))]
        self._views = self.times.data, self._offsets.data  # to read a number, much faster than an array

    @property
    def ends(self) -> float:
        """When everything has come; infinity if something never does."""
        return float(self.times.max(initial=0.0))

    def first(self, clients: Ints) -> Floats:
        """When the first row of each client comes; infinity if none does."""
        return self._first[clients]

    def held(self, clients: Ints, now: float) -> Ints:
        """How many rows of each client have come by now."""
        if len(clients) <= _FEW:
            times, at = self._views
            return np.array([bisect_right(times, now, at[i], at[i + 1]) - at[i] for i in clients.tolist()], np.int64)
        starts, stops = self._offsets[clients], self._offsets[clients + 1]
        low, high = starts, stops
        while (low < high).any():  # all clients at once: halve the part of each in which its last row must be
            middle = (low + high) // 2
            come = (low < high) & (self.times[np.minimum(middle, len(self.times) - 1)] <= now)
            low, high = np.where(come, middle + 1, low), np.where(come, high, np.minimum(middle, high))
        counts: Ints = low - starts
        return counts

    def with_pool(self, data: FederatedData) -> tuple[FederatedData, Arrivals]:
        """With one more client, to which the rows of all sources come when they come to these."""
        both = data.with_pool(self.times)
        own = np.sort(self.times[self.train.span(data.with_role(SOURCE).numpy()).positions()])
        return both, Arrivals(np.concatenate([self.times, own]), both.splits["train"])


@dataclass(frozen=True, eq=False)
class _Bursts:
    """The bursts in which rows come, client after client: whose each is, its number 1, 2, …, and how many each has."""

    client: Ints
    number: Ints
    counts: Ints
    draw: Draw

    def within(self, duration: Floats, process: str) -> Floats:
        """Times of bursts that all fall into a client's duration; those of a Poisson process are uniform in it."""
        if process == "poisson":
            part = self._uniform()
            return duration[self.client] * part[np.lexsort((part, self.client))]
        last, seconds = self.counts[self.client], duration[self.client]
        return np.where(self.number == last, seconds, seconds * self.number / last)

    def apart(self, rate: Floats, burst: int, process: str) -> Floats:
        """Times of bursts of so many rows at a mean rate of rows; never, if that is 0."""
        waited = self.number.astype(np.float64)
        if process == "poisson":
            waits = np.split(-np.log1p(-self._uniform()), np.cumsum(self.counts)[:-1])
            waited = np.concatenate([np.cumsum(own) for own in waits])
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(rate[self.client] > 0, waited * burst / rate[self.client], np.inf)

    def _uniform(self) -> Floats:
        return self.draw.uniform("stream bursts", self.client, 1, lane=self.number)[:, 0]


def _places(owned: Ragged) -> tuple[Ints, Ints]:
    """Whose each flat position is, and its place 0, 1, … among the rows of that client."""
    client = owned.owners
    return client, np.arange(len(client)) - owned.offsets.numpy()[client]


def _classes(data: FederatedData) -> Tensor | None:
    """The class of each row, where rows have one."""
    if data.task == "classification":
        return data.y
    return data.y[:, 0] if data.task == "binary" else None


def _drifted(data: FederatedData, share: float) -> Tensor:
    """The labels once they have changed their meaning: of later training rows, and of all that is evaluated."""
    train = data.splits["train"]
    client, place = _places(train)
    later = place >= np.rint(share * train.sizes.numpy())[client]
    judged = torch.zeros(len(data.x), dtype=torch.bool)
    for split, owned in data.splits.items():
        if split not in ("train", *HALVES):
            judged[owned.every()] = True
    rows, target = train.every(), torch.from_numpy(np.isin(client, data.with_role(TARGET).numpy()))
    if bool(judged[rows[~target]].any()):
        raise ConfigError(
            f"stream.drift needs test rows that nobody trains on, as the label of a row has one meaning; those of "
            f"{data.name!r} are training rows: give data.test as a share"
        )
    judged[rows[target | torch.from_numpy(later)]] = True
    y = data.y.clone()
    y[judged] = _meaning(y[judged], data)
    return y


def _meaning(y: Tensor, data: FederatedData) -> Tensor:
    """What labels become when their meaning changes."""
    if data.task == "classification":
        return (y + 1) % len(data.classes)
    if data.task == "regression":
        return -y
    return y.roll(1, -1) if y.shape[-1] > 1 else 1 - y
