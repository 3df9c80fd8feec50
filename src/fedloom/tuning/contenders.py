"""A method that is tuned: its runs with any values, evaluated on validation rows, prepared in a moment."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from fedloom.comparison.entries import Entry
from fedloom.comparison.sources import FromProblem, FromSettings, PythonRun, Source
from fedloom.engine.engine import Engine
from fedloom.engine.evaluation import VALIDATION, Evaluation, watched
from fedloom.engine.run import Prepared, engine_for
from fedloom.engine.setting import Setting, evaluations_of
from fedloom.errors import ConfigError
from fedloom.execution import Executor
from fedloom.experiment import Experiment, Override
from fedloom.experiment.faults import Faults
from fedloom.experiment.sections import read_method
from fedloom.federation.data import SOURCE
from fedloom.federation.metrics import metrics_for
from fedloom.methods import Method
from fedloom.storage.history import Row
from fedloom.storage.store import MemoryStore
from fedloom.tuning.spaces import Values

_QUERY = f"{VALIDATION}-query"
_METHOD = "method."
_NOT_COPIED = ("name", "on", "split", "adapt_split", "every", "gradients")
"""What an evaluation on validation rows does not have from the main one."""


class Stopwatch:
    """How long rounds have taken, of all runs together."""

    def __init__(self) -> None:
        self.seconds, self.rounds = 0.0, 0

    def engine(self, setting: Setting, executor: Executor, store: MemoryStore) -> Engine:
        """The engine of a run, timed."""
        made = engine_for(setting, executor, store)
        step = made.step

        def timed() -> Row:
            start = time.perf_counter()
            try:
                return step()
            finally:
                self.seconds += time.perf_counter() - start
                self.rounds += 1

        setattr(made, "step", timed)  # noqa: B010
        return made


class Contender:
    """One of the methods: the trial with given values, as a run that looks at the validation rows."""

    def __init__(self, source: Source, entry: Entry, entries: Sequence[Entry], seed: int, split: str | None) -> None:
        self.source, self.entry, self.entries, self.seed, self.split = source, entry, entries, seed, split
        self.label = entry.text

    @cached_property
    def made(self) -> Experiment | PythonRun:
        """The run with the values that the user gave, or the defaults."""
        return self.runnable({}, self.seed)

    @property
    def method(self) -> Method:
        """The method with its defaults."""
        return self.made.method

    @cached_property
    def default(self) -> Prepared:
        """The same, checked and ready."""
        return prepared_of(self.made)

    @property
    def rounds(self) -> int:
        """How many rounds a whole run has."""
        return self.default.rounds

    @cached_property
    def chooses(self) -> Evaluation:
        """The evaluation by which trials are compared."""
        return watched(self.default.setting.evaluations)

    @cached_property
    def metric(self) -> str:
        """The metric by which they are: that of patience, or the first that is not the loss."""
        data, chosen = self.default.setting.problem.data, self.default.setting.schedule.metric
        names = metrics_for(data.task, self.chooses.metrics, data.columns)
        return chosen or next((one.name for one in names), "loss")

    def fixed(self) -> list[str]:
        """The hyper-parameters that the user has given, and that stay."""
        own = [key for key, _ in self.entry.own]
        if isinstance(self.made, Experiment):
            own += _flat(self.made.settings.get(("method",)) or {})
        return own

    def value_now(self, key: str) -> Any:
        """The value of a setting in the default trial; None where it is left open, or is not the method's."""
        found: Any = self.method
        for name in key.removeprefix(_METHOD).split("."):
            found = getattr(found, name, None) if key.startswith(_METHOD) else None
        return found

    def named(self, values: Mapping[str, Any]) -> Entry:
        """The entry of a trial."""
        for key in values:
            if key in dict(self.entry.own):
                raise ConfigError(
                    f"{self.label!r} has {key} of its own, which is in the space too; keep one of the two"
                )
        return self.entry.having(values)

    def runnable(self, values: Values, seed: int) -> Experiment | PythonRun:
        """The run of a trial, as its folder keeps it."""
        made = self.source.make(self.named(values), seed, self.entries)
        if isinstance(made, PythonRun):
            return self._python(made)
        if not isinstance(made, Experiment):
            raise ConfigError("tasks in sequence are not tuned; tune the first task alone, in a file without [[task]]")
        if not made.data_plan.division.validation:
            raise ConfigError(
                "there are no validation rows to choose by: data.validation is 0; leave it out, or give it a share "
                "such as 0.2"
            )
        return made if watched(made.evaluations).chooses else self._laid(made)

    def _laid(self, made: Experiment) -> Experiment:
        """The experiment with one evaluation more, on the validation rows."""
        settings = made.settings.copied()
        given = settings.values.get("evaluation") or [{"name": one.name, "on": one.on} for one in made.evaluations]
        tables = given if isinstance(given, list) else [given]
        main = {key: value for key, value in tables[0].items() if key not in _NOT_COPIED}
        split = self.split or made.evaluations[0].on_validation(made.method).split
        more = {**main, "name": VALIDATION, "on": "source", "split": split, "every": 0}
        settings.set(Override("evaluation", [*tables, more], ""))
        assert isinstance(self.source, FromSettings)
        return Experiment(settings, self.source.shelf)

    def _python(self, made: PythonRun) -> PythonRun:
        evaluations = evaluations_of(made.how.get("evaluate"))
        if VALIDATION not in made.source.problem.data.splits:
            raise ConfigError(
                "the problem's data have no validation rows to choose by; make them with federate(…, validation=0.2)"
            )
        if not evaluations or watched(evaluations).chooses or getattr(made.how.get("schedule"), "patience", None):
            return made
        more = evaluations[0].on_validation(made.method)
        more = replace(more, split=self.split or more.split, every=0)
        return PythonRun(made.source, made.method, {**made.how, "evaluate": [*evaluations, more]}, made.text)

    def trial(self, values: Values, seed: int, stopwatch: Stopwatch) -> Prepared:
        """A trial, ready to begin; one that differs in its method alone is made from the default one."""
        if seed != self.seed or any(not key.startswith(_METHOD) for key in values):
            ready = prepared_of(self.runnable(values, seed))
        else:
            ready = replace(self.default, setting=replace(self.default.setting, method=self.with_values(values)))
            ready.setting.check()
        return replace(ready, blind=True, engine=stopwatch.engine)

    def with_values(self, values: Values) -> Method:
        """The method with other hyper-parameters."""
        if not values:
            return self.method
        if isinstance(self.source, FromProblem):
            return self.source.make(self.named(values), self.seed, self.entries).method
        assert isinstance(self.made, Experiment)
        settings = self.made.settings.copied()
        for key, value in values.items():
            settings.set(Override(key, value, self.label))
        faults = Faults(settings)
        _, method = read_method(faults)
        faults.stop()
        assert method is not None
        return method

    def value(self, row: Row) -> float | None:
        """The metric on the validation rows, in a row of the history; None where it is not finite."""
        first = self.chooses.name == self.default.setting.evaluations[0].name
        told = row.get("evaluation") if first else row.get("evaluations", {}).get(self.chooses.name)
        found = ((told or {}).get(self.metric) or {}).get("weighted")
        return None if found is None else float(found)

    def work(self, trials: Sequence[Values]) -> float:
        """How much more the rounds of trials cost than those of the defaults, where the method can tell."""
        data = self.default.setting.problem.data
        rows = data.splits["train"].sizes[data.with_role(SOURCE)].numpy()
        usual = self.method.work(rows)
        if usual is None or not trials:
            return 1.0
        found = []
        for values in trials:
            work = self.with_values({k: v for k, v in values.items() if k.startswith(_METHOD)}).work(rows)
            found.append(1.0 if work is None else float(work.sum() / usual.sum()))
        return sum(found) / len(found)


def prepared_of(made: Experiment | PythonRun) -> Prepared:
    """A run that is ready to begin."""
    return made.prepared if isinstance(made, PythonRun) else made.prepared()


def common_split(contenders: Sequence[Contender]) -> str | None:
    """The validation rows on which all can be judged: where one of the methods adapts, those that it is not fitted
    to."""
    splits = {contender.chooses.split for contender in contenders}
    return _QUERY if len(splits) > 1 and splits <= {VALIDATION, _QUERY} else None


def _flat(table: Mapping[str, Any], prefix: str = _METHOD) -> list[str]:
    """The full keys of a [method] table."""
    found = []
    for key, value in table.items():
        found += _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [f"{prefix}{key}"]
    return found
