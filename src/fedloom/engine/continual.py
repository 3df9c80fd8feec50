"""Continual learning: tasks in sequence, each a run of its own, the model of one being the prior of the next."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from fedloom.engine.engine import Clocks
from fedloom.engine.evaluation import headline_value
from fedloom.engine.fleet import Fleet
from fedloom.engine.matrix import TaskMatrix
from fedloom.engine.prepared import Prepared, prepare, run_folder, told_of
from fedloom.engine.result import Run
from fedloom.engine.rounds import Rounds
from fedloom.engine.selection import All
from fedloom.engine.setting import Setting
from fedloom.engine.summary import summed_up
from fedloom.engine.walk import Interrupted, Progress
from fedloom.errors import ConfigError, RunError
from fedloom.execution import Serial, one_thread
from fedloom.federation.metrics import higher_is_better
from fedloom.federation.problem import Problem, fresh_model
from fedloom.methods import Method, method_of, name_of
from fedloom.report.progress import shown
from fedloom.storage.folder import CONFIG, HISTORY, MATRIX, SUMMARY, TASK, RunFolder, task_folders
from fedloom.storage.history import History, Row
from fedloom.storage.saved import SavedModel, open_saved, refuse_other_model, shapes_of
from fedloom.storage.store import MemoryStore
from fedloom.tracking import Tracker, Tracking, tracker_of
from fedloom.types import Vector

Start = Literal["previous", "fresh"]
Scores = dict[str, dict[str, dict[str, float]]]
"""By evaluation, metric and statistic: how one model is on one task."""
Done = Callable[[dict[str, Any]], Path | None]
"""Finds the folder of a finished task with these settings."""


@dataclass(frozen=True, eq=False)
class Task:
    """One of several tasks: what is learnt, by which method, and the further arguments of ``train``.

    ``train_tasks`` takes a list of them.

        halves = [fedloom.federate("digits", source_classes=part) for part in (range(5), range(5, 10))]
        problems = [fedloom.Problem(data, fedloom.build_model("linear", data)) for data in halves]
        tasks = [fedloom.Task(problem, fedloom.FedAvg(lr=0.1), how={"rounds": 2}) for problem in problems]
        run = fedloom.train_tasks(tasks)
    """

    problem: Problem
    """What is learnt."""
    method: Method | str
    """By which method: an object, or a name such as "fedavg" or "fedavg:lr=0.1"."""
    name: str = ""
    """What the task is called; "": by its number."""
    how: dict[str, Any] = field(default_factory=dict)
    """The further arguments of ``train``."""
    config: dict[str, Any] | None = None
    """What the task's folder says of its settings; none: as much as can be said of objects."""


@dataclass(frozen=True, eq=False)
class Lesson:
    """A task that is ready to be learnt: its name and its run, which was checked."""

    name: str
    run: Prepared

    @property
    def setting(self) -> Setting:
        """What its run combines."""
        return self.run.setting

    def evaluated_in(self, method: Method, prior: Vector | None) -> Setting:
        """What models of this task, or of another one with its own method, are evaluated in."""
        own = self.setting
        return Setting(
            problem=own.problem,
            method=method,
            select=All(),
            fleet=Fleet(storage=own.fleet.storage),
            evaluations=own.evaluations,
            seed=own.seed,
            prior=prior,
            stream=None if own.stream is None else own.stream.over(),
        )


def train_tasks(
    tasks: Sequence[Task | Problem],
    method: Method | str | None = None,
    *,
    start: Start = "previous",
    names: Sequence[str] | None = None,
    out: str | Path | None = None,
    force: bool = False,
    resume: bool = False,
    force_settings: bool = False,
    config: dict[str, Any] | None = None,
    label: str | None = None,
    progress: Progress | bool | None = None,
    callbacks: Sequence[Tracker | str] = (),
    **how: Any,
) -> Run:
    """Learn one task after the other, and evaluate the model on all tasks after each.

    * ``tasks``: problems with the same model, or Task objects, which have a method and arguments of their own.
    * ``method``: the method for tasks that are problems, or its name.
    * ``how``: for these, the further arguments of ``train``, such as ``rounds``, ``seed`` and ``select``.
    * ``start``: the initial model of each task after the first: that of the task before ("previous") or a fresh one
      ("fresh"). Either way the model of the task before is the prior θ_p.
    * ``names``: what the tasks are called; none: "task 1" and so on.
    * ``out``: the folder of the sequence, with a run for each task in a folder of its own; none: nothing is kept.
    * ``force``: replace what is in the folder. ``resume``: go on where the sequence that is there was stopped.
    * ``force_settings``: go on also where settings, data or files were changed since, and write that down.
    * ``config``: what the folder says of the settings; none: as much as can be said of objects.
    * ``label``: what the sequence is called in reports; none: as its method.
    * ``progress``: whether a bar shows the rounds; none: on a terminal and in a notebook. Or your own function, which
      is called after every round, counted over all tasks, with its row of the history and their number.
    * ``callbacks``: who else is told of the sequence, as of one run: trackers such as ``TensorBoard("logs")``.

    The result is the Run of all tasks together: the model after the last, the history with the clocks going on, and
    ``run.matrix``, which has what was forgotten and transferred.

        halves = [fedloom.federate("digits", source_classes=part) for part in (range(5), range(5, 10))]
        problems = [fedloom.Problem(data, fedloom.build_model("linear", data)) for data in halves]
        run = fedloom.train_tasks(problems, fedloom.FedAvg(lr=0.1), rounds=2)
        print(run.matrix.forgetting)
    """
    trackers = [tracker_of(one) for one in callbacks]
    lessons = Lessons(_lessons(_tasks(tasks, method, names, how)), start, config, label, callbacks=trackers)
    title = lessons.label or name_of(lessons.tasks[-1].setting.method) if lessons.tasks else ""
    with shown(progress, title) as follow:
        return lessons.run(out, force=force, resume=resume, force_settings=force_settings, progress=follow)


@dataclass(frozen=True, eq=False)
class Lessons:
    """Tasks that are learnt in sequence, each checked already: the arguments of ``train_tasks``."""

    tasks: list[Lesson]
    start: Start
    config: dict[str, Any] | None
    label: str | None
    done: Done = lambda config: None
    """Finds the folder of a task of another sequence that has the very settings of one, and the same model before it:
    that is copied instead of learning the task again."""
    callbacks: Sequence[Tracker] = ()
    """Who else is told of the sequence, as of one run."""

    def run(
        self,
        out: str | Path | None,
        *,
        force: bool = False,
        resume: bool = False,
        force_settings: bool = False,
        progress: Progress | None = None,
        group: str | None = None,
    ) -> Run:
        """Learn all that are left."""
        _check(self.tasks)
        for tracker in self.callbacks:
            tracker.check()
        config = self.config or {"made_by": "python", "task": [{"name": task.name} for task in self.tasks]}
        with ExitStack() as exits:
            exits.enter_context(one_thread())
            folder = run_folder(out, force, resume, config)
            if folder is None:
                folder = RunFolder(Path(exits.enter_context(TemporaryDirectory(prefix="fedloom-"))), None)
            exits.callback(folder.close)
            place, label = folder.path if out is not None else None, self.label or name_of(self.tasks[0].setting.method)
            tracking = exits.enter_context(Tracking(self.callbacks, label, config, place, group))
            known = _known_rows(folder.path) if self.callbacks else []
            tracking.begin(lambda: known, known[-1]["round"] if known else -1)
            run = _Sequence(self, folder, told_of(progress, tracking), tracking, out is not None, force_settings).go()
            tracking.end(run.summary)
            return run


@dataclass(frozen=True, eq=False)
class _Part:
    """What the history has of one task."""

    rows: Sequence[Row]
    """As the task's own run has them, which stay in its folder …"""
    last: Row
    """… but for the last, which has how good the model is on all tasks."""
    before: Clocks
    """What the tasks before took."""


@dataclass(eq=False)
class _Sequence:
    """The tasks of one sequence, and what is known of them so far."""

    lessons: Lessons
    folder: RunFolder
    progress: Progress
    tracking: Tracking
    kept: bool
    force_settings: bool
    scores: list[list[Scores]] = field(default_factory=list)
    """First those of a fresh model, then those after each task; in each row one for each task."""
    parts: list[_Part] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    clocks: Clocks = field(default_factory=Clocks)

    @property
    def tasks(self) -> list[Lesson]:
        """All tasks."""
        return self.lessons.tasks

    def go(self) -> Run:
        """All tasks that are left."""
        recorded = self.folder.file(MATRIX).is_file()
        self.scores = self.folder.read_json(MATRIX)["scores"] if recorded else [self._judged(None)]
        saved: SavedModel | None = None
        for number, task in enumerate(self.tasks):
            place = self.folder.file(f"{TASK}{number + 1}")
            self._learn(task, place, saved)
            saved = open_saved(place)
            self.notes += saved.notes
            new = len(self.scores) < number + 2
            if new:
                self.scores.append(self._judged((task.setting.method, saved)))
            self._take_in(place, number)
            self._write()
            if new:
                self.tracking.further(_on_tasks(self.parts[-1].last))
        assert saved is not None
        summary = self._summary(saved.theta)
        history = History.read(self.folder.file(HISTORY)).rows
        rows = history if self.kept else list(history)
        return Run(saved.theta, saved.state, rows, summary, self._place, self.notes, self.matrix())

    @property
    def _place(self) -> Path | None:
        return self.folder.path if self.kept else None

    def _learn(self, task: Lesson, place: Path, before: SavedModel | None) -> None:
        """One task, from the beginning or from where it was stopped; nothing when it is done."""
        label = self.lessons.label or name_of(self.tasks[0].setting.method)
        run = replace(task.run, label=label, callbacks=())
        if before is not None:
            start = before.theta if self.lessons.start == "previous" else None
            written = {"run": f"../{before.folder.name}", "start": start is not None, "sha256": before.sha256}
            run = replace(
                run,
                setting=replace(run.setting, prior=before.theta, theta0=start),
                config=None if run.config is None else {**run.config, "prior": written},
            )
            _refuse_other_prior(place, before)
        if run.config is not None and not (place / CONFIG).is_file():
            _take_over(self.lessons.done(run.config), place)
        if (place / SUMMARY).is_file():
            return
        try:
            made = run.run(
                place,
                resume=(place / CONFIG).is_file(),
                force_settings=self.force_settings,
                progress=self._following(),
            )
        except Interrupted as stop:
            raise Interrupted(self._place, self.clocks.round + stop.completed) from stop
        self.notes += made.notes

    def _judged(self, learnt: tuple[Method, SavedModel] | None) -> list[Scores]:
        """A model, the fresh one of each task unless one is given, on every task."""
        found: list[Scores] = []
        for task in self.tasks:
            method, saved = learnt or (task.setting.method, None)
            with ExitStack() as exits:
                store = exits.enter_context(MemoryStore() if saved is None else saved.memory())
                executor = Serial()
                exits.callback(executor.close)
                prior = fresh_model(task.setting.problem, task.setting.seed) if saved is None else saved.theta
                engine = Rounds(task.evaluated_in(method, prior), executor, store)
                if saved is not None:
                    engine.state, engine.clocks.round = saved.state, saved.round
                found.append({e.name: engine.evaluator.evaluate(e).summary() for e in engine.evaluator.evaluations})
        return found

    def _take_in(self, place: Path, number: int) -> None:
        """A task's history after those of the tasks before it, with the clocks going on."""
        rows = History.read(place / HISTORY).rows
        last = _later(rows[-1], self.clocks)
        judged = self.scores[number + 1]
        name = self.tasks[0].setting.evaluations[0].name
        others = {f"on {task.name}": judged[j][name] for j, task in enumerate(self.tasks)}
        matrix = self.matrix().so_far(number + 1)
        average = {f"average_{matrix.metric}": {"weighted": matrix.average}}
        last["evaluation"] = {**last.get("evaluation", {}), **average}
        last["evaluations"] = {**last.get("evaluations", {}), **others}
        self.parts.append(_Part(rows, last, self.clocks))
        self.clocks = Clocks(**{key: last[key] for key in asdict(self.clocks)})

    def _history(self) -> Iterator[Row]:
        """The rows of all tasks so far."""
        for number, part in enumerate(self.parts, start=1):
            for at, row in enumerate(part.rows, start=1):
                later = part.last if at == len(part.rows) else _later(row, part.before)
                if later["round"] > part.before.round or number == 1:
                    yield {**later, "task": number}

    def matrix(self) -> TaskMatrix:
        """The first evaluation's first metric that all tasks have (their labels decide which these are by default), on
        each task after each."""
        evaluation = self.tasks[0].setting.evaluations[0].name
        told = [[scores[evaluation] for scores in row] for row in self.scores]
        names = [name for name in told[0][0] if all(name in values for row in told for values in row)]
        metric = next((name for name in names if name != "loss"), "loss")
        fresh, *rows = (tuple(_value(metric, values[metric]) for values in row) for row in told)
        return TaskMatrix(tuple(task.name for task in self.tasks), tuple(rows), fresh, metric, higher_is_better(metric))

    def _write(self) -> None:
        """matrix.json, then the history of all tasks so far."""
        matrix = self.matrix()
        described = {
            "tasks": matrix.tasks,
            "metric": matrix.metric,
            "higher_is_better": matrix.higher,
            "matrix": matrix.rows,
            "fresh": matrix.fresh,
            "forgotten": matrix.forgotten,
            **matrix.measures(),
            "scores": self.scores,
        }
        self.folder.write_json(MATRIX, described)
        History.write(self.folder.file(HISTORY), self._history())

    def _summary(self, theta: Vector) -> dict[str, Any]:
        matrix, first = self.matrix(), self.tasks[0].setting
        named = {"average": f"average_{matrix.metric}"}
        spread = {named.get(name, name): {"weighted": value} for name, value in matrix.measures().items()}
        summary = summed_up(self.lessons.label, first, self.clocks, theta, spread) | {"tasks": list(matrix.tasks)}
        if self.kept:
            self.folder.write_json(SUMMARY, summary)
        return summary

    def _following(self) -> Progress:
        """The user's progress, told of the rounds of all tasks."""
        follow, before = self.progress, self.clocks
        total = sum(task.run.rounds for task in self.tasks)

        def told(row: Row, _: int) -> None:
            if row["round"] > 0 or before.round == 0:
                follow(_later(row, before), total)

        return told


def _tasks(
    tasks: Sequence[Task | Problem], method: Method | str | None, names: Sequence[str] | None, how: dict[str, Any]
) -> list[Task]:
    """All as tasks that have a name."""
    if names is not None and len(names) != len(tasks):
        raise ConfigError(f"{len(names)} names for {len(tasks)} tasks; give each one")
    found = []
    for number, task in enumerate(tasks):
        if isinstance(task, Problem):
            if method is None:
                raise ConfigError("train_tasks needs a method for its problems")
            task = Task(task, method, how=how)
        name = names[number] if names is not None else task.name or f"task {number + 1}"
        found.append(replace(task, name=name))
    return found


def _lessons(tasks: list[Task]) -> list[Lesson]:
    """The runs of the tasks, checked: each with a model before it, but for the first."""
    found: list[Lesson] = []
    for task in tasks:
        if not isinstance(task.how.get("executor", "auto"), str):
            raise ConfigError("tasks in sequence take an executor by its name, for each has its own")
        before = {"prior": fresh_model(task.problem, task.how.get("seed", 0))} if found else {}
        method = method_of(task.method)
        how = {"rounds": method.default_rounds, **task.how, **before}
        run = prepare(task.problem, method, config=task.config, **how)
        found.append(Lesson(task.name, run))
    return found


def _check(lessons: list[Lesson]) -> None:
    """Refuses, before any work, tasks that no one model could learn."""
    if not lessons:
        raise ConfigError("there is no task; give at least one")
    first = lessons[0]
    if not first.setting.evaluations:
        raise ConfigError("tasks in sequence are evaluated on each other: give an evaluation")
    known = first.setting.problem
    for lesson in lessons:
        problem = lesson.setting.problem
        if problem.data.classes != known.data.classes:
            raise ConfigError(
                f"the task {lesson.name!r} has other classes than {first.name!r}: {_few(problem.data.classes)} and "
                f"{_few(known.data.classes)}; tasks share one list of classes, of which each may have a part"
            )
        refuse_other_model(f"the model of the task {first.name!r}", shapes_of(known.model), shapes_of(problem.model))


def _known_rows(folder: Path) -> list[Row]:
    """The rows of a sequence that were recorded before: those of its tasks, with the clocks going on."""
    found: list[Row] = []
    clocks = Clocks()
    for place in task_folders(folder):
        if not (place / HISTORY).is_file():
            break
        rows = [_later(row, clocks) for row in History.read(place / HISTORY).rows]
        found += [row for row in rows if row["round"] > clocks.round or not found]
        if rows:
            clocks = Clocks(**{key: rows[-1][key] for key in asdict(clocks)})
    return found


def _on_tasks(last: Row) -> Row:
    """Of the last row of a task, what is known only once the model was evaluated on all tasks."""
    averages = {name: value for name, value in last["evaluation"].items() if name.startswith("average_")}
    others = {name: value for name, value in last["evaluations"].items() if name.startswith("on ")}
    return {"round": last["round"], "evaluation": averages, "evaluations": others}


def _take_over(other: Path | None, place: Path) -> None:
    """Copy the folder of a finished task, if there is one."""
    if other is None:
        return
    copy = place.with_name(f".{place.name}.partial")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(other, copy)
    os.replace(copy, place)


def _refuse_other_prior(place: Path, before: SavedModel) -> None:
    """A task that began with another model of the task before it cannot go on."""
    if not (place / CONFIG).is_file():
        return
    prior = RunFolder(place, None).read_toml(CONFIG).get("prior", {})
    if prior.get("sha256") != before.sha256:
        raise RunError(
            f"{place} began with another model than {before.folder} has now, which was changed since: begin anew with "
            "--force"
        )


def _later(row: Row, before: Clocks) -> Row:
    """A row of a task with the clocks of all tasks before it."""
    later = {**row, **{key: value + row.get(key, 0) for key, value in asdict(before).items()}}
    for key in ("jobs", "away"):
        if key in row:
            now = before.simulated_seconds
            later[key] = [[client, *(_after(when, now) for when in times)] for client, *times in row[key]]
    return later


def _after(when: Any, now: float) -> Any:
    """A time of an entry so much later; what is no time (a fate, or "for ever") stays."""
    return when + now if isinstance(when, int | float) else when


def _value(metric: str, statistics: dict[str, Any]) -> float:
    value = headline_value(metric, statistics)
    return math.nan if value is None else float(value)


def _few(names: tuple[str, ...]) -> str:
    return json.dumps(list(names[:6]))[1:-1] + (" …" if len(names) > 6 else "")
