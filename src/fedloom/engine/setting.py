"""What a run combines: a method, who takes part, a fleet, a channel, evaluations, on one problem."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np

from fedloom.channel import Channel
from fedloom.engine.availability import Availability
from fedloom.engine.decision import Decision, check_decision
from fedloom.engine.evaluation import VALIDATION, Evaluation, watched
from fedloom.engine.fleet import Fleet, Ints
from fedloom.engine.online import check_stream
from fedloom.engine.schedule import Schedule
from fedloom.engine.selection import All, Selection, Uniform
from fedloom.engine.trace import numbered
from fedloom.errors import ConfigError, ModelError, Unfit
from fedloom.federation.data import SOURCE, FederatedData
from fedloom.federation.metrics import Metric, metrics_of
from fedloom.federation.problem import Problem
from fedloom.federation.streams import Stream
from fedloom.methods import name_of
from fedloom.methods.method import Method, check_parameters
from fedloom.methods.statistics import with_statistics
from fedloom.types import Key, Vector


class Gatherer(Protocol):
    """Takes in what is wrong: raises it at once, or gathers it until ``stop``."""

    def collecting(self, *keys: Key) -> AbstractContextManager[None]:
        """An error inside the block is about one of these settings, the likeliest first."""

    def about(self, *keys: Key) -> AbstractContextManager[None]:
        """An error inside the block, which itself says what is wrong, is raised with the place of these settings."""

    def stop(self) -> None:
        """Raise what was gathered, if anything was."""


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
    decision: Decision | None = None
    """From which probability on a row is taken for a 1, or what that is to make best; none: the likelier."""

    @staticmethod
    def of(
        problem: Problem,
        method: Method,
        *,
        select: Selection | int | None = None,
        schedule: Schedule | Literal["rounds", "async"] | None = None,
        evaluate: Evaluation | Sequence[Evaluation] | None = None,
        fleet: Fleet | None = None,
        channel: Channel | None = None,
        **others: Any,
    ) -> Setting:
        """From the arguments of ``train``, with nothing left open: how many are selected, the default evaluation, …"""
        chosen_by = Uniform(select) if isinstance(select, int) else select or All()
        schedule = schedule if isinstance(schedule, Schedule) else Schedule(schedule)
        return Setting(
            problem,
            method,
            chosen_by,
            fleet or Fleet(),
            channel or Channel(),
            with_watched(evaluations_of(evaluate, problem.data), schedule, method, VALIDATION in problem.data.splits),
            schedule.settled(method, getattr(chosen_by, "count", len(problem.data.with_role(SOURCE)))),
            **others,
        )

    def check(self, faults: Gatherer | None = None) -> None:
        """Refuses what cannot be, before any work: the one place where a run is checked, wherever its parts come from.

        Each part is checked under the settings that it may be about, as an experiment file calls them, so that
        ``faults`` can say where they were set, and say all that is wrong at once. Without it the first fault is raised.
        """
        faults = faults or _Strict()
        data, method = self.problem.data, self.method
        sources = data.with_role(SOURCE)
        with faults.collecting(("method",)):
            check_parameters(method, self.problem.dtype)
        with faults.collecting(("method", "name"), ("data", "partition"), ("method",)):
            check_layout(method, data)
        with faults.collecting(("data", "augment"), ("method", "batch"), ("data",)):
            _check_augment(method, data)
        with faults.collecting(("channel",)):
            self.channel.check(name_of(method), method.exact)
        with faults.collecting(("fleet",)):
            self.fleet.check()
            with faults.collecting(("fleet", "trace"), ("fleet", "absent")):
                self.availability  # noqa: B018
            with faults.collecting(("fleet", "drops")):
                self.dropping  # noqa: B018
        if self.stream is not None:
            with faults.collecting(("stream",)):
                check_stream(self.stream, data, self.fleet, self.seed)
        if method.layout != "pooled":
            with faults.collecting(("selection", "per_round"), ("selection", "fraction")):
                self.select.check(len(sources))
            with faults.collecting(("data", "clients"), ("data",)):
                _check_rows(data)
        with faults.collecting(("decision",)):
            check_decision(self.decision, self.problem, len(self.evaluations))
        metrics = self._check_evaluations(faults)
        for key, what in self.schedule.faults(method, self.fleet, len(sources), metrics):
            with faults.collecting(("schedule", key)):
                raise Unfit(f"schedule.{key} = {getattr(self.schedule, key)!r} {what}", what)
        self._check_vectors(faults)
        faults.stop()
        with faults.about(("method", "name"), ("method",)):
            method.check(self.problem)
            if (runs := with_statistics(method, self.problem.model)) is not method:
                runs.check(self.problem)
        if self.theta0 is not None and method.starts_without is not None:
            warnings.warn(f"the initial model is not used for {method.starts_without}", stacklevel=1)

    def _check_evaluations(self, faults: Gatherer) -> list[str] | None:
        """The metrics that may end the run: of the main evaluation, or of the one that patience watches; None where
        these cannot be."""
        data, found, patient = self.problem.data, list[str](), self.schedule.patience is not None
        ending = watched(self.evaluations) if patient and self.evaluations else next(iter(self.evaluations), None)
        known = ending is None
        for index, evaluation in enumerate(self.evaluations):
            at = ("evaluation", index)
            with faults.collecting((*at, "metrics")):
                names = [metric.name for metric in self._metrics(evaluation)]
                if evaluation is ending:
                    found, known = [*names, "loss"], True
                with faults.collecting((*at, "parts"), ("method", "publish"), at):
                    evaluation.resolved(self.method).check_parts(self.method)
                with faults.collecting((*at, "split"), ("data", "test"), at):
                    evaluation.resolved(self.method).check(data)
            if patient and evaluation is ending and evaluation.every == 0:
                with faults.collecting((*at, "every"), ("schedule", "patience")):
                    raise ConfigError(
                        f"{evaluation.name}: every = 0 evaluates after the last round alone, and schedule.patience has "
                        "nothing to watch; evaluate every round (every = 1), or every few"
                    )
        return found if known else None

    def _metrics(self, evaluation: Evaluation) -> list[Metric]:
        """The metrics of an evaluation; refuses those that the outputs do not do for."""
        metrics = metrics_of(self.problem.data, evaluation.metrics)
        unsure = [metric.name for metric in metrics if metric.needs_probabilities]
        if unsure and self.problem.loss.link == "margin":
            raise ConfigError(
                f"{', '.join(unsure)} needs probabilities, and a model trained with the loss "
                f"{self.problem.loss.name!r} has none; choose another loss, or roc-auc"
            )
        return metrics

    @cached_property
    def availability(self) -> Availability:
        """When each client is there; a pool always is."""
        data = self.problem.data
        if self.method.layout == "pooled":
            return Availability()
        return Availability.of(self.fleet, self.seed, data.clients, data.names, data.with_role(SOURCE).numpy())

    @cached_property
    def dropping(self) -> Ints:
        """The clients that give up whenever they are selected; a pool never does."""
        data, called = self.problem.data, () if self.method.layout == "pooled" else self.fleet.drops or ()
        return np.array(numbered(called, data.clients, data.names), dtype=np.int64)

    def _check_vectors(self, faults: Gatherer) -> None:
        """The models that were given must be such models, and one that is needed must be there."""
        for name, vector in (("prior", self.prior), ("theta0", self.theta0)):
            if vector is not None and vector.shape not in ((self.problem.model.n,), (self.problem.model.width,)):
                with faults.collecting(("prior", "run")):
                    raise ModelError(
                        f"{name} has shape {tuple(vector.shape)}, but the model has {self.problem.model.n:,} "
                        "parameters; give a vector of such a model"
                    )
        if self.prior is None and self.method.needs_prior:
            with faults.collecting(*([("method", "lambda_")] * hasattr(self.method, "lambda_")), ("method", "name")):
                raise ConfigError(
                    f"{type(self.method).__name__} is to stay near an earlier model, but there is none; give the run "
                    "that made it (prior = its model), or set lambda_ = 0 (of tasks in sequence: in [task.method] of "
                    "the first)"
                )


def evaluations_of(evaluate: Evaluation | Sequence[Evaluation] | None, data: FederatedData) -> Sequence[Evaluation]:
    """One evaluation, several, or, with none given, the default one: on targets, if they alone have test rows."""
    if evaluate is None:
        here, apart = (len(Evaluation(on=on).clients(data)) for on in ("source", "target"))
        return (Evaluation(on="target" if apart and not here else "source"),)
    return (evaluate,) if isinstance(evaluate, Evaluation) else tuple(evaluate)


def with_watched(
    evaluations: Sequence[Evaluation], schedule: Schedule, method: Method, validation: bool
) -> Sequence[Evaluation]:
    """The evaluations, and one on the validation rows where patience needs it and there are such rows."""
    if schedule.patience is None or not validation or not evaluations or watched(evaluations).chooses:
        return evaluations
    return (*evaluations, evaluations[0].on_validation(method))


class _Strict:
    """Raises the first fault."""

    def collecting(self, *keys: Key) -> AbstractContextManager[None]:
        return nullcontext()

    about = collecting

    def stop(self) -> None:
        return


def _check_rows(data: FederatedData) -> None:
    """Refuses a client that is to train and has nothing to train on."""
    sources = data.with_role(SOURCE)
    empty = sources[data.splits["train"].sizes[sources] == 0]
    if len(empty):
        raise ConfigError(
            f"client {data.label(int(empty[0]))} has no training rows (and {len(empty) - 1} more like it); give "
            "every source client some, or fewer clients"
        )


def _check_augment(method: Method, data: FederatedData) -> None:
    """Refuses images that are to be changed where no client ever takes a mini-batch of them."""
    if data.augment is not None and method.local_batch is None:
        raise ConfigError(
            f"augment = {str(data.augment)!r} changes the images of mini-batches, but clients of {name_of(method)} "
            "take all of their rows in every step; give it a batch, if it has one, or leave augment out"
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
