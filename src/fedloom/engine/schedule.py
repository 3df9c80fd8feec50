"""When the server acts, and when a run ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedloom.engine.fleet import Fleet
from fedloom.federation.metrics import higher_is_better
from fedloom.methods import name_of
from fedloom.methods.method import Method
from fedloom.types import Count, Positive


@dataclass(frozen=True)
class Schedule:
    """Rounds in which the server waits for all, or replies taken as they arrive; and what ends the run early.

    ``train`` takes a schedule, or the name of one.

        data = fedloom.federate("digits", clients=10)
        problem = fedloom.Problem(data, fedloom.build_model("linear", data))
        schedule = fedloom.Schedule("async", concurrency=5, buffer=2, seconds=60.0)
        fleet = fedloom.FLEETS["cross-device"]
        run = fedloom.train(problem, fedloom.FedBuff(), rounds=3, schedule=schedule, fleet=fleet)
    """

    name: Literal["rounds", "async"] | None = None
    """The server waits for all whom it asked, or takes replies as they arrive; none: the method's default."""
    concurrency: Count | None = None
    """Of async: clients that work at a time; none: as many as the selection takes for a round."""
    buffer: Count | None = None
    """Of async: replies that the server gathers for a step; none: the method's default, 1 for most."""
    seconds: Positive | None = None
    """Simulated seconds after which the run ends, if not all rounds are done by then."""
    metric: str | None = None
    """The metric that has a target, in the main evaluation, or that patience watches, on the validation rows; none:
    patience watches the first one."""
    target: float | None = None
    """The run ends when the metric has reached this value."""
    patience: Count | None = None
    """The run ends when the metric has not become better for so many rounds, and its model is that of the best round.
    Chosen on validation rows, unless data.validation = 0."""

    @property
    def asynchronous(self) -> bool:
        """Whether replies are taken as they arrive."""
        return self.name == "async"

    def settled(self, method: Method, per_round: int) -> Schedule:
        """With nothing left open, for a method and as many clients as would take part in a round."""
        name = self.name or method.default_schedule
        if name == "rounds":
            return replace(self, name=name)
        working = self.concurrency or per_round
        return replace(self, name=name, concurrency=working, buffer=self.buffer or min(method.default_buffer, working))

    def faults(
        self, method: Method, fleet: Fleet, clients: int, metrics: Sequence[str] | None
    ) -> Iterator[tuple[str, str]]:
        """What cannot be: the setting, and what is wrong with it. Metrics that are not known are not asked for."""
        if self.asynchronous and method.needs_rounds is not None:
            why = f"{name_of(method)} cannot take replies as they arrive, {method.needs_rounds}"
            yield "name", f"cannot be: {why}; set it to 'rounds'"
        if self.asynchronous and fleet.unavailable == 1:
            yield "name", "cannot be: with fleet.unavailable = 1 nobody can ever be reached; choose less"
        for key in ("concurrency", "buffer"):
            if getattr(self, key) is not None and not self.asynchronous:
                yield key, "belongs to schedule.name = 'async'; set that, or leave this out"
        if self.asynchronous and (self.concurrency or 0) > clients and method.layout != "pooled":
            yield "concurrency", f"cannot be: {clients} clients can take part; choose 1 to {clients}"
        if self.seconds is not None and fleet.timeless:
            yield "seconds", "cannot be: on this fleet nothing takes time; give fleet.speed or fleet.delay_up"
        if self.metric is None and self.target is not None:
            yield "target", "needs schedule.metric beside it"
        elif self.metric is not None and self.target is None and self.patience is None:
            yield "metric", "needs schedule.target beside it, or schedule.patience"
        elif self.patience is not None and not metrics and metrics is not None:
            yield "patience", "needs an evaluation to watch, and there is none"
        elif self.metric is not None and metrics is not None and self.metric not in metrics:
            yield "metric", f"is not evaluated; the evaluation has {', '.join(metrics) or 'no metric'}"

    def reached(self, value: float | None) -> bool:
        """Whether this value of the metric is as good as the target."""
        if self.metric is None or self.target is None or value is None:
            return False
        return value >= self.target if higher_is_better(self.metric) else value <= self.target
