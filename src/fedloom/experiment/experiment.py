"""An experiment: everything that a run needs, from a file, flags or both, checked before any work is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import torch

from fedloom.data import Table
from fedloom.engine.evaluation import Evaluation
from fedloom.engine.run import Prepared, Run
from fedloom.engine.schedule import Schedule
from fedloom.engine.setting import Setting, with_watched
from fedloom.errors import FedloomError
from fedloom.experiment import sections
from fedloom.experiment.data import read_data
from fedloom.experiment.essence import with_new_names
from fedloom.experiment.faults import Faults
from fedloom.experiment.forms import Form, spoken
from fedloom.experiment.runnable import Runnable
from fedloom.experiment.settings import Overrides, Settings
from fedloom.federation.data import SOURCE, FederatedData
from fedloom.federation.losses import loss_for, weighted
from fedloom.federation.metrics import metrics_of
from fedloom.federation.networks import build_model
from fedloom.federation.problem import Problem, fresh_model
from fedloom.storage.folder import CONFIG
from fedloom.storage.saved import SavedModel, open_saved

T = TypeVar("T")


class Shelf:
    """Keeps the last thing of each kind, for experiments on the same data that are run one after the other."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Any, Any]] = {}

    def get(self, kind: str, key: Any, make: Callable[[], T]) -> T:
        """The thing that was made for this key last time, or a new one in its place."""
        if kind not in self._kept or self._kept[kind][0] != key:
            self._kept.pop(kind, None)
            self._kept[kind] = (key, make())
        thing: T = self._kept[kind][1]
        return thing

    def beside(self, kind: str) -> Shelf:
        """Another shelf, which begins with the thing of one kind that this one has."""
        other = Shelf()
        other._kept = {key: kept for key, kept in self._kept.items() if key == kind}
        return other


class Experiment(Runnable):
    """Settings that were found to be possible, and the run that they make.

    What each section says is checked when an experiment is made, and that all of them go together by ``check`` (or at
    the latest by ``run``, before its folder is made), once. Either way all that is wrong is said at once: key, place,
    remedy. One that ``follows`` is a task whose prior is the model of the task before.
    """

    def __init__(self, settings: Settings, shelf: Shelf | None = None, follows: bool = False) -> None:
        settings = with_new_names(settings)
        self.settings, self.shelf, self.follows = settings, shelf or Shelf(), follows
        self._checked = False
        faults = Faults(settings)
        top = sections.read_top(faults)
        plan = read_data(faults)
        model = sections.read_model(faults)
        self.prior_plan = sections.read_plain(sections.Prior, "prior", faults, needed=False)
        self.method_name, method = sections.read_method(faults)
        selection = sections.read_selection(plan.division.clients if plan else None, faults)
        schedule = sections.read_plain(Schedule, "schedule", faults)
        fleet = sections.read_fleet(faults)
        self.stream = sections.read_stream(faults)
        channel = sections.read_channel(faults)
        self.evaluations: Sequence[Evaluation] = sections.read_evaluations(
            plan is None or plan.division.target > 0 or plan.division.leaves_out,
            faults,
            plan is not None and plan.division.leaves_out,
        )
        execution = sections.read_execution(faults)
        self.trackers = sections.read_tracking(faults)
        faults.stop()
        chooses = _sure(schedule).patience is not None or isinstance(_sure(top).decision, str)
        self.data_plan, self.model_plan = _sure(plan).choosing() if chooses else _sure(plan), _sure(model)
        held = bool(self.data_plan.division.validation)
        self.evaluations = with_watched(self.evaluations, _sure(schedule), _sure(method), held)
        self.method, self.selection, self.execution = _sure(method), _sure(selection), _sure(execution)
        self.schedule_plan = _sure(schedule)
        self.top = _sure(top).settled(self.method)
        self.label = self.top.name or sections.titled(self.method, self.method_name)
        """What the run is called in reports."""
        self.folder_name = f"{self.method_name}-{self.data_plan.name}-{self.top.seed}"
        """What its folder is called, unless that is said."""
        self.fleet, self._fleet_written = _sure(fleet)
        self.channel = _sure(channel)

    @classmethod
    def load(cls, path: str | Path | None = None, overrides: Overrides = (), shelf: Shelf | None = None) -> Self:
        """The experiment of a file, with some settings changed.

        * ``path``: the file; none: all settings are the defaults.
        * ``overrides``: settings that win over those of the file, by their full keys: ``{"method.lr": 0.1}``.
        * ``shelf``: where data and models are kept for experiments that share them; none: a shelf of its own.

        All that is wrong with any section is said at once, with its place in the file, as a ConfigError.

            experiment = Experiment.load("experiment.toml", {"method.lr": 0.05})
            experiment.run("runs/mine").summary["metrics"]
        """
        return cls(Settings.read(path, overrides), shelf)

    def table(self) -> Table:
        """All rows, before anybody owns them."""
        plan, seed = self.data_plan, self.top.seed
        key = (plan.name, plan.path, plan.arguments(seed))
        with Faults(self.settings).about(("data", "path"), ("data", "name"), ("data",)):
            return self.shelf.get("table", key, lambda: plan.load(seed))

    def data(self) -> FederatedData:
        """Who has which rows."""
        return self.shelf.get("data", (self.data_plan, self.top.seed), self._federated)

    def on(self, data: FederatedData) -> Self:
        """The same experiment on data that are there already, in the place of those that [data] would load."""
        shelf = Shelf()
        shelf.get("data", (self.data_plan, self.top.seed), lambda: data)
        return type(self)(self.settings, shelf)

    def _federated(self) -> FederatedData:
        table, faults = self.table(), Faults(self.settings)
        self.data_plan.check(table, faults)
        faults.stop()
        with Faults(self.settings).about(("data", "partition"), ("data",)):
            return self.data_plan.federate(table, self.top.seed)

    def problem(self) -> Problem:
        """What is to be learnt: the clients' data, the model, the loss."""
        plan = self.model_plan.settled(self.data(), self.method)
        return self.shelf.get("problem", (self.data_plan, self.top, plan), lambda: self._posed(plan))

    def _posed(self, plan: sections.ModelPlan) -> Problem:
        data, faults = self.data(), Faults(self.settings)
        with faults.collecting(("model", "loss")):
            loss = loss_for(data.task, plan.loss)
            with faults.collecting(("model", "class_weights")):
                weighted(loss, plan.class_weights, data)
        faults.stop()
        with Faults(self.settings).about(("model", "name"), ("model",), ("data", "name")):
            model = build_model(_sure(plan.name), data, **plan.options)
            return Problem(data, model, plan.loss, getattr(torch, _sure(self.top.dtype)), plan.class_weights)

    @cached_property
    def prior(self) -> SavedModel | None:
        """The model of the earlier run, if one is asked for: refused when it is of another kind, or has changed."""
        if self.prior_plan is None:
            return None
        folder, wanted = self.settings.folder_of(("prior", "run")) / self.prior_plan.run, self.prior_plan.sha256
        with Faults(self.settings).about(("prior", "run"), ("prior",)):
            found = open_saved(folder)
            found.refuse_other(self.problem().model)
        if wanted not in (None, found.sha256):
            faults = Faults(self.settings)
            faults.add(
                ("prior", "sha256"),
                f"is the model that {folder} had; it has {found.sha256} now: the run went on, or was made anew. Give "
                "that run again, or leave prior.sha256 out to use the model that is there",
            )
            faults.stop()
        return found

    def _prior_written(self) -> dict[str, Any]:
        """The section with nothing left open."""
        if self.prior_plan is None or self.prior is None:
            return {}
        where = str(self.prior.folder.resolve())
        return {"prior": {"run": where, "start": self.prior_plan.start, "sha256": self.prior.sha256}}

    def _priors(self) -> dict[str, Any]:
        """θ_p and, if the run is to start from it, the initial model."""
        if self.prior_plan is None or self.prior is None:
            return {"prior": fresh_model(self.problem(), self.top.seed)} if self.follows else {}
        theta = self.prior.theta
        return {"prior": theta, "theta0": theta} if self.prior_plan.start else {"prior": theta}

    def schedule(self) -> Schedule:
        """Whether the server waits, with nothing left open."""
        return self.schedule_plan.settled(self.method, self.selection.settled(self.candidates)[1])

    @property
    def candidates(self) -> int:
        """How many clients can take part in a round."""
        return len(self.data().with_role(SOURCE))

    def setting(self) -> Setting:
        """What the run combines; loads the data."""
        problem = self.problem()
        return Setting(
            problem=problem,
            method=self.method,
            select=self.selection.make(self.candidates),
            fleet=self.fleet,
            channel=self.channel,
            evaluations=self.evaluations,
            schedule=self.schedule(),
            seed=self.top.seed,
            stack=self.execution.stack,
            on_error=self.execution.on_error,
            stream=self.stream,
            decision=self.top.decision,
            **self._priors(),
        )

    def check(self) -> None:
        """All that remains to be checked once the data are there, which it loads; what was checked is not again."""
        if not self._checked:
            self.setting().check(Faults(self.settings))
            self._checked = True

    def measured(self) -> list[str]:
        """Every metric that the history will have: those of the first evaluation by name, others as NAME/metric."""
        found = []
        for index, evaluation in enumerate(self.evaluations):
            names = [*_metrics(self.data(), evaluation), "loss"]
            found += [f"{evaluation.name}/{name}" if index else name for name in dict.fromkeys(names)]
        return found

    def resolved(self) -> dict[str, Any]:
        """Every setting of this run, with nothing left open: as a file, it gives the same bits again."""
        evaluations = [
            sections.resolved_evaluation(e.resolved(self.method), _metrics(self.data(), e)) for e in self.evaluations
        ]
        return {
            **spoken(vars(self.top), Form.of(sections.Top, "")),
            "data": self.data_plan.resolved(self.table(), self.data()),
            "model": self.model_plan.settled(self.data(), self.method).resolved(self.problem().loss.name),
            **self._prior_written(),
            "method": sections.written_method(self.method, self.method_name),
            "selection": self.selection.resolved(self.candidates),
            "schedule": spoken(vars(self.schedule()), Form.of(Schedule, "")),
            "fleet": self._fleet_written,
            **({} if self.stream is None else {"stream": self.stream.written()}),
            **sections.written_channel(self.channel, self.settings),
            "evaluation": evaluations[0] if len(evaluations) == 1 else evaluations,
            "execution": self.execution.resolved(),
            **sections.written_tracking(self.trackers),
        }

    def prepared(self, label: str | None = None, config: dict[str, Any] | None = None) -> Prepared:
        """The run, checked as a whole and ready to begin; its folder says ``config``, or else every setting of it."""
        self.check()
        rounds = _sure(self.top.rounds)
        how = self.execution.arguments(rounds) | {"callbacks": self.trackers}
        notes = () if self.prior is None else self.prior.notes
        written = self.resolved() if config is None else config
        return Prepared(self.setting(), rounds, config=written, label=label or self.label, notes=notes, **how)

    def _perform(self, label: str | None, done: Iterable[Path], **how: Any) -> Run:
        return self.prepared(label).run(**how)

    def _settings_in(self, place: Path) -> Iterator[dict[str, Any]]:
        return settings_in(place, lambda there: Experiment(there, self.shelf))


def _sure(part: T | None) -> T:
    """A part that was read without a fault."""
    assert part is not None
    return part


def settings_in(place: Path, made: Callable[[Settings], Runnable]) -> Iterator[dict[str, Any]]:
    """The settings of a folder's run, then with those that its version of fedloom did not know, as they are usual."""
    there = Settings.read(place / CONFIG)
    yield there.values
    with suppress(FedloomError):
        yield made(with_new_names(there, quiet=True)).resolved()


def _metrics(data: FederatedData, evaluation: Evaluation) -> list[str]:
    """The names of an evaluation's metrics, with nothing left open."""
    return [metric.name for metric in metrics_of(data, evaluation.metrics)]
