"""[[task]]: tasks in sequence. Each lays its own settings over those of the file; otherwise they are equal."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedloom.engine.continual import Lesson, Lessons
from fedloom.engine.run import Run
from fedloom.experiment.essence import alike
from fedloom.experiment.experiment import Experiment, Shelf, settings_in
from fedloom.experiment.faults import Faults
from fedloom.experiment.forms import Form, spoken
from fedloom.experiment.runnable import Runnable
from fedloom.experiment.sections import SEQUENCE
from fedloom.experiment.settings import Override, Overrides, Settings
from fedloom.storage import toml
from fedloom.storage.folder import CONFIG, SUMMARY
from fedloom.trust import doubting
from fedloom.types import Count, Key

_HALVES = {"first half": (1, 2), "second half": (2, 2)}
_PART = re.compile(r"([1-9]\d*)/([1-9]\d*)")


@dataclass(frozen=True)
class Continual:
    """What holds between tasks."""

    start: Literal["previous", "fresh"] = "previous"
    """The initial model of each task after the first: that of the task before, or a fresh one. Either way the model of
    the task before is the prior."""


@dataclass(frozen=True)
class TaskPlan:
    """One task, as far as it differs from the others."""

    name: str | None = None
    """What it is called; none: "task 1" and so on."""
    classes: Sequence[int | str] | None = None
    """The classes of this task, for all roles: a list, "first half", "second half", or "2/5" for the second fifth."""
    source_classes: Sequence[int | str] | None = None
    """The same for training clients alone."""
    target_classes: Sequence[int | str] | None = None
    """The same for target clients alone."""
    rounds: Count | None = None
    """How many rounds; none: as the file says."""


OVERLAYS = ("data", "method")
"""Sections that a task may have of its own: their keys are laid over those of the file."""


class TaskSequence(Runnable):
    """An experiment with tasks: what an ``Experiment`` is for one run, this is for several in sequence."""

    def __init__(self, settings: Settings, shelf: Shelf | None = None) -> None:
        self.settings, self.shelf = settings, shelf or Shelf()
        self.base = Experiment(_without_tasks(settings), self.shelf, follows=True)
        self.label, self.folder_name = self.base.label, self.base.folder_name
        faults = Faults(settings)
        form = Form.of(Continual, "continual learning")
        read = faults.read(form, faults.table(("continual",)), ("continual",))
        self.plans = _read_tasks(faults)
        faults.stop()
        self.continual = Continual(**(read or {}))
        for number in range(len(self.plans)):
            self._experiment(number, expand=False)  # what can be said without the data is said now

    @property
    def names(self) -> list[str]:
        """The tasks by name."""
        return [str(plan.name) for plan in self.plans]

    @cached_property
    def experiments(self) -> list[Experiment]:
        """The experiment of each task."""
        return [self._experiment(number, expand=True) for number in range(len(self.plans))]

    def check(self) -> None:
        """All that remains to be checked once the data are there; loads them."""
        for experiment in self.experiments:
            experiment.check()

    def measured(self) -> list[str]:
        """Every metric that the history will have; that of the model on a task, after each, as "on TASK/metric"."""
        first, *_ = names = self.base.measured()
        main = [name for name in names if "/" not in name]
        return [*names, f"average_{first}", *(f"on {task}/{name}" for task in self.names for name in main)]

    def resolved(self) -> dict[str, Any]:
        """Every setting, with nothing left open: as a file, it gives the same bits again."""
        tasks = []
        for number, plan in enumerate(self.plans):
            own = vars(plan)
            own = own | {key: self._expanded(own[key]) for key in _CLASSES if own[key] is not None}
            task = spoken(own, Form.of(TaskPlan, ""))
            for section in OVERLAYS:
                overlay = dict(self.settings.get(("task", number, section)) or {})
                if section == "data" and "path" in overlay:
                    place = self.settings.folder_of(("task", number, "data", "path"))
                    overlay["path"] = str((place / overlay["path"]).resolve())
                task |= {section: overlay} if overlay else {}
            tasks.append(task)
        return {**self.base.resolved(), "continual": vars(self.continual), "task": tasks}

    def _perform(self, label: str | None, done: Iterable[Path], **how: Any) -> Run:
        tasks = [Lesson(name, e.prepared()) for name, e in zip(self.names, self.experiments, strict=True)]
        finished = partial(_finished, list(done))
        settings, callbacks = self.resolved(), self.base.trackers
        return Lessons(tasks, self.continual.start, settings, label or self.label, finished, callbacks).run(**how)

    def _settings_in(self, place: Path) -> Iterator[dict[str, Any]]:
        return settings_in(place, lambda there: TaskSequence(there, self.shelf))

    def _experiment(self, number: int, expand: bool) -> Experiment:
        """The settings of the file with those of one task over them."""
        settings, at = _without_tasks(self.settings), ("task", number)
        plan = self.plans[number]
        if "name" in (self.settings.get((*at, "method")) or {}):
            settings.values["method"] = {}
        if number > 0:
            settings.values.pop("prior", None)  # it is the task before
        for section in OVERLAYS:
            for key, value in (self.settings.get((*at, section)) or {}).items():
                self._lay(settings, f"{section}.{key}", value, (*at, section, key))
        if plan.rounds is not None:
            self._lay(settings, "rounds", plan.rounds, (*at, "rounds"))
        for key, roles in _CLASSES.items():
            classes = getattr(plan, key)
            for role in roles if classes is not None else ():
                listed = self._expanded(classes) if expand else list(classes)
                self._lay(settings, f"data.{role}", listed, (*at, key))
        if not expand:
            return Experiment(settings, self.shelf, follows=number > 0)
        self.base.table()  # which all tasks share
        return Experiment(settings, self.shelf.beside("table"), follows=number > 0)

    def _lay(self, settings: Settings, key: str, value: Any, at: Key) -> None:
        settings.set(Override(key, value, self.settings.place(at) or ""))

    def _expanded(self, classes: Sequence[int | str]) -> list[int | str]:
        """A part of all classes ("first half", "2/5") as a list."""
        part = _part(classes)
        known = self.base.table().classes
        if part is None or str(classes[0]) in known:
            return list(classes)
        pieces = np.array_split(np.array(known), part[1])
        return [str(name) for name in pieces[part[0] - 1]]


_CLASSES = {
    "classes": ("source_classes", "target_classes"),
    "source_classes": ("source_classes",),
    "target_classes": ("target_classes",),
}
"""Which roles a list of classes in a task is for."""


def make_experiment(settings: Settings, shelf: Shelf | None = None) -> Experiment | TaskSequence:
    """What the settings are about: one run, or tasks in sequence."""
    sequence = any(section in settings.values for section in SEQUENCE)
    return TaskSequence(settings, shelf) if sequence else Experiment(settings, shelf)


def load_experiment(path: str | Path | None = None, overrides: Overrides = ()) -> Experiment | TaskSequence:
    """The experiment of a file, or its tasks in sequence, with some settings changed: ``{"method.lr": 0.1}``."""
    return make_experiment(Settings.read(path, overrides))


def _finished(folders: list[Path], config: dict[str, Any]) -> Path | None:
    """The first of the folders that has a finished run with these settings."""
    mine = tomllib.loads(toml.dumps(config))
    for folder in folders:
        with doubting(folder, "it is not what you ask for", [mine]):
            if (folder / SUMMARY).is_file() and alike(Settings.read(folder / CONFIG).values, mine):
                return folder
    return None


def _read_tasks(faults: Faults) -> list[TaskPlan]:
    tables = faults.settings.values.get("task", [])
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        faults.add(("task",), "should be a table for each task: write [[task]] above its keys")
        return []
    form = Form.of(TaskPlan, "a task")
    found: list[TaskPlan] = []
    for number, table in enumerate(tables):
        at: Key = ("task", number)
        for section in OVERLAYS:
            faults.table((*at, section))
        read = faults.read(form, {key: value for key, value in table.items() if key not in OVERLAYS}, at)
        if read is None:
            continue
        for key in _CLASSES:
            part = _part(read[key] or ())
            if part is not None and part[0] > part[1]:
                faults.add((*at, key), f"cannot be: there are {part[1]} parts")
        if read["classes"] is not None and (read["source_classes"] or read["target_classes"]):
            faults.add((*at, "classes"), "is for all roles: give it alone, or source_classes and target_classes")
        read["name"] = read["name"] or f"task {number + 1}"
        if read["name"] in [plan.name for plan in found]:
            faults.add((*at, "name"), f"needs a name of its own: another task is called {read['name']!r} already")
        found.append(TaskPlan(**read))
    return found


def _part(classes: Sequence[int | str]) -> tuple[int, int] | None:
    """The second of five, for "2/5"; None for a list of classes."""
    if len(classes) != 1 or not isinstance(classes[0], str):
        return None
    match = _PART.fullmatch(classes[0])
    return _HALVES.get(classes[0]) or ((int(match[1]), int(match[2])) if match else None)


def _without_tasks(settings: Settings) -> Settings:
    base = settings.copied()
    for key in SEQUENCE:
        base.values.pop(key, None)
    return base
