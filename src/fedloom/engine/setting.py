"""What a run combines: a method, who takes part, a fleet, a channel, evaluations, on one problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from fedloom.channel import Channel
from fedloom.engine.availability import Availability
from fedloom.engine.evaluation import Evaluation
from fedloom.engine.fleet import Fleet
from fedloom.engine.online import check_stream
from fedloom.engine.schedule import Schedule
from fedloom.engine.selection import Selection
from fedloom.errors import ConfigError, ModelError
from fedloom.federation.data import SOURCE, FederatedData
from fedloom.federation.metrics import metrics_for
from fedloom.federation.problem import Problem
from fedloom.federation.streams import Stream
from fedloom.methods import name_of
from fedloom.methods.method import Method, check_parameters
from fedloom.types import Vector


@dataclass(frozen=True, eq=False)
class Setting:
    """What a run combines: a method × a selection × a fleet × a channel × evaluations, on one problem."""

    problem: Problem
    method: Method
    select: Selection
    fleet: Fleet = field(default_factory=Fleet)
    channel: Channel = field(default_factory=Channel)
    evaluations: Sequence[Evaluation] = (Evaluation(),)
    schedule: Schedule = field(default_factory=lambda: Schedule("rounds"))
    seed: int = 0
    stack: int | None = None
    """Clients computed together; none: what suits model, data and method."""
    on_error: Literal["stop", "drop"] = "stop"
    """A client that fails or answers with NaN: the run stops, or goes on without its reply."""
    prior: Vector | None = None
    """θ_p: the model of an earlier run, for methods that keep what it knew."""
    theta0: Vector | None = None
    """The initial model; none: as the model's own initialisation draws it for the seed."""
    stream: Stream | None = None
    """How training rows arrive by the simulated clock; none: all are there from the start."""

    def check(self) -> None:
        """Refuses what cannot be, before any work."""
        data, method = self.problem.data, self.method
        check_parameters(method)
        check_layout(method, data)
        method.check(self.problem)
        self._check_vectors()
        self.channel.check(type(method).__name__, method.exact)
        self.fleet.check()
        if self.stream is not None:
            check_stream(self.stream, data, self.fleet, self.seed)
        for evaluation in self.evaluations:
            evaluation.resolved(method).check(data)
        sources = data.with_role(SOURCE)
        first = self.evaluations[:1]
        metrics = [metric.name for e in first for metric in metrics_for(data.task, e.metrics, data.columns)]
        self.schedule.check(method, self.fleet, len(sources), [*metrics, "loss"] if first else [])
        if method.layout == "pooled":
            return
        self.availability  # noqa: B018
        self.select.check(len(sources))
        empty = sources[data.splits["train"].sizes[sources] == 0]
        if len(empty):
            raise ConfigError(
                f"client {data.label(int(empty[0]))} has no training rows (and {len(empty) - 1} more like it); give "
                "every source client some, or fewer clients"
            )

    @cached_property
    def availability(self) -> Availability:
        """When each client is there; a pool always is."""
        pooled = self.method.layout == "pooled"
        return Availability() if pooled else Availability.among(self.problem.data, self.fleet, self.seed)

    def _check_vectors(self) -> None:
        """The models that were given must be such models, and one that is needed must be there."""
        for name, vector in (("prior", self.prior), ("theta0", self.theta0)):
            if vector is not None and vector.shape != (self.problem.model.n,):
                raise ModelError(
                    f"{name} has shape {tuple(vector.shape)}, but the model has {self.problem.model.n:,} parameters; "
                    "give a vector of such a model"
                )
        if self.prior is None and self.method.needs_prior:
            raise ConfigError(
                f"{type(self.method).__name__} is to stay near an earlier model, but there is none; give the run that "
                "made it (prior = its model), or set lambda_ = 0 (of tasks in sequence: in [task.method] of the first)"
            )


def check_layout(method: Method, data: FederatedData) -> None:
    """Refuses a method whose clients hold something else than the clients of these data do."""
    name = name_of(method)
    if method.layout == "rows" and data.layout == "features":
        raise ConfigError(
            f"{name} trains clients that hold rows with their labels, but the clients of {data.name!r} hold columns of "
            "the same rows (partition = 'features'); use sharing-admm, or a partition by rows such as 'iid'"
        )
    if method.layout == "features" and data.layout == "rows":
        raise ConfigError(
            f"{name} trains clients that hold columns of the same rows, but the clients of {data.name!r} hold rows; "
            "set partition = 'features', or use a method for rows, such as admm"
        )
