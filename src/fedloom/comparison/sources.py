"""Where the runs of a comparison come from: settings, from a file or not, or a problem that Python made."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedloom.comparison.entries import Entry
from fedloom.comparison.protocol import Judge, common_splits, judged_alike
from fedloom.comparison.repeats import Repeat
from fedloom.data.folds import read_folds
from fedloom.engine.run import Prepared, Run, prepare, train
from fedloom.engine.setting import Setting, evaluations_of
from fedloom.errors import ConfigError
from fedloom.experiment import Experiment, Form, Override, Settings, Shelf, TaskSequence, foreign, make_experiment
from fedloom.experiment.choosing import evaluations_in, lay
from fedloom.experiment.essence import OUTSIDE
from fedloom.experiment.faults import Faults
from fedloom.experiment.runnable import Runnable
from fedloom.experiment.sections import method_form
from fedloom.federation.problem import Problem
from fedloom.methods import Method, lookup
from fedloom.storage.folder import CONFIG, RunFolder, theta_sha256
from fedloom.storage.saved import shapes_of

_ARGUMENTS = set(inspect.signature(train).parameters) - {
    *("problem", "method", "seed", "out", "force", "resume", "config", "label", "progress")
}
_TERMS = ("select", "fleet", "channel", "evaluations", "schedule", "stack", "on_error")


class FromSettings:
    """Settings that all runs share, as far as their methods know them."""

    def __init__(self, base: Settings, judge: Judge = "alike") -> None:
        self.base, self.judge, self.shelf = base, judge, Shelf()
        self._splits: dict[tuple[str, ...], list[str | None]] = {}

    @property
    def data(self) -> str:
        """What the data are called."""
        given = self.base.get(("data", "name")) or Path(self.base.get(("data", "path")) or "digits").stem
        return str(given)

    def folds(self, entries: Sequence[Entry], seed: int) -> list[int]:
        """The folds that the settings ask for, unless they name one; loads the data where each client is a fold."""
        given = self.base.get(("data", "folds"))
        if given is None or self.base.get(("data", "fold")) is not None:
            return []
        faults, found = Faults(self.base), list[int]()
        with faults.collecting(("data", "folds")):
            known = read_folds(given)
            if known.count is not None:
                found = known.numbers(known.count)
        faults.stop()
        if found:
            return found
        first = self.make(entries[0], Repeat(seed, 1), entries)
        return known.numbers((first.experiments[0] if isinstance(first, TaskSequence) else first).data().clients)

    def make(self, entry: Entry, repeat: Repeat, entries: Sequence[Entry]) -> Experiment | TaskSequence:
        """One run's experiment: the common settings as far as its method knows them, then its own."""
        settings = self._own(entry, entries)
        if self.judge == "alike":
            self._judge(settings, entry, entries)
        settings.set(Override("seed", repeat.seed, f"seed {repeat.seed}"))
        if repeat.fold is not None:
            settings.set(Override("data.fold", repeat.fold, f"fold {repeat.fold}"))
        return make_experiment(settings, self.shelf)

    def _judge(self, settings: Settings, entry: Entry, entries: Sequence[Entry]) -> None:
        """Name the rows on which all are judged, where they would not be the same."""
        known = tuple(other.text for other in entries)
        if known not in self._splits:
            each = [evaluations_in(self._own(other, entries)) for other in entries]
            self._splits[known] = common_splits([one for one in each if one is not None])
        own = evaluations_in(settings)
        if own is not None and any(self._splits[known]):
            lay(settings.values, own[1], self._splits[known])

    def _own(self, entry: Entry, entries: Sequence[Entry]) -> Settings:
        """The common settings as far as an entry's method knows them, then its own."""
        settings = self.base.copied()
        methods = [other.method for other in entries]
        for table in _method_tables(settings.values):
            for key in [*(key for key in table if key == "name"), *foreign(table, entry.method, methods)]:
                del table[key]
        settings.set(Override("method.name", entry.method, entry.text))
        for key, value in entry.own:
            settings.set(Override(key, value, entry.text))
        return settings

    def arguments(self) -> dict[str, Any]:
        """What the comparison is known again by: all settings but the seed and where the work is done."""
        said = {key: value for key, value in self.base.values.items() if key not in ("seed", *OUTSIDE)}
        return said | ({} if self.judge == "alike" else {"judge": self.judge})


class FromProblem:
    """A problem, or one for each fold, and the arguments of ``train`` that all runs share."""

    def __init__(self, problem: Problem | Sequence[Problem], how: dict[str, Any], judge: Judge = "alike") -> None:
        self.problems = [problem] if isinstance(problem, Problem) else list(problem)
        self.how, self.judge = how, judge
        if not isinstance(how.get("executor", "auto"), str):
            raise ConfigError("a comparison takes an executor by its name, for each run has its own")

    @property
    def data(self) -> str:
        """What the data are called."""
        return self.problems[0].data.name

    def folds(self, entries: Sequence[Entry], seed: int) -> list[int]:
        """One for each problem, where there are several."""
        return list(range(1, len(self.problems) + 1)) if len(self.problems) > 1 else []

    def make(self, entry: Entry, repeat: Repeat, entries: Sequence[Entry]) -> PythonRun:
        """A run of one of the methods."""
        how = {**self.how, **_further(entry), "seed": repeat.seed}
        problem = self.problems[(repeat.fold or 1) - 1]
        if self.judge == "alike":
            evaluations = evaluations_of(how.get("evaluate"), problem.data)
            if any(splits := common_splits([(_method(one), evaluations) for one in entries])):
                how["evaluate"] = judged_alike(evaluations, splits)
        return PythonRun(self, problem, _method(entry), how, entry.text, repeat)

    def arguments(self) -> dict[str, Any]:
        """What the comparison is known again by: the arguments of ``train`` as texts, and what is learnt."""
        said = {key: repr(value) for key, value in self.how.items() if key not in ("executor", "callbacks")}
        return {"problem": self.known, **said, **({} if self.judge == "alike" else {"judge": self.judge})}

    @cached_property
    def known(self) -> dict[str, str]:
        """What the problem is known again by; those of all folds together."""
        digest = hashlib.sha256()
        for data in (problem.data for problem in self.problems):
            owned = [part for split in data.splits.values() for part in (split.offsets, split.rows)]
            for tensor in (data.x, data.y, *owned, data.roles):
                if tensor is not None:
                    digest.update(tensor.contiguous().numpy().tobytes())
        first = self.problems[0]
        shapes = json.dumps(shapes_of(first.model))
        return {"data": digest.hexdigest(), "model": f"{shapes} {first.loss.name} {first.dtype}"}


Source = FromSettings | FromProblem
"""What is common to all runs of a comparison."""


class PythonRun(Runnable):
    """A run on a problem that Python made."""

    def __init__(
        self, source: FromProblem, problem: Problem, method: Method, how: dict[str, Any], text: str, repeat: Repeat
    ) -> None:
        self.source, self.problem, self.method, self.how, self.text = source, problem, method, how, text
        self.repeat = repeat

    def check(self) -> None:
        """Refuse what cannot be; what was checked is not again."""
        self.prepared  # noqa: B018

    @cached_property
    def prepared(self) -> Prepared:
        """The run, ready to begin."""
        for key in self.how:
            if key not in {*_ARGUMENTS, "seed"}:
                raise ConfigError(f"{self.text}: {key} is no argument of train that a comparison could have")
        made = prepare(self.problem, self.method, **self.how)
        terms = {"terms": _terms(made.setting), "problem": self.source.known}
        fold = {} if self.repeat.fold is None else {"fold": self.repeat.fold, "folds": self.repeat.folds}
        return replace(made, config={**made.described(), **terms, **fold})

    def resolved(self) -> dict[str, Any]:
        """What its folder says of it."""
        return self.prepared.described()

    def _settings_in(self, place: Path) -> Iterator[dict[str, Any]]:
        yield RunFolder(place, None).read_toml(CONFIG)

    def _perform(self, label: str | None, done: Iterable[Path], **how: Any) -> Run:
        return replace(self.prepared, label=label).run(**how)


def _further(entry: Entry) -> dict[str, Any]:
    """The settings of an entry that are not its method's."""
    return {key: value for key, value in entry.own if not key.startswith("method.")}


def _terms(setting: Setting) -> dict[str, str]:
    """What a run combines beside problem and method, as texts; a model that it starts from by its fingerprint."""
    start = {} if setting.theta0 is None else {"theta0": theta_sha256(setting.theta0)}
    decided = {} if setting.decision is None else {"decision": repr(setting.decision)}
    return {key: repr(getattr(setting, key)) for key in _TERMS} | start | decided


def _method(entry: Entry) -> Method:
    """The entry's method with its own hyper-parameters."""
    own = {key.removeprefix("method."): value for key, value in entry.own if key.startswith("method.")}
    form: Form = method_form(entry.method) if entry.made is None else Form.of(type(entry.made), f"{entry.text!r}")
    known = own if entry.made is None else {f: v for f, v in own.items() if v is not getattr(entry.made, f, ...)}
    read, wrong = form.read(known)
    for key, what in wrong.items():
        raise ConfigError(f"{entry.text}: method.{key} = {own.get(key)!r} {what}")
    if entry.made is not None:
        return replace(entry.made, **{key: read[key] for key in known})  # type: ignore[type-var]
    return lookup(entry.method).cls(**read)


def _method_tables(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The [method] of all, and those of single tasks."""
    tasks = values.get("task")
    tables = [values, *(task for task in (tasks if isinstance(tasks, list) else []) if isinstance(task, dict))]
    return [table["method"] for table in tables if isinstance(table.get("method"), dict)]
