"""Continual learning: tasks in sequence, each a run of its own, the model of one being the prior of the next."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fedloom import __version__
from fedloom.channel import Channel
from fedloom.engine.engine import Clocks
from fedloom.engine.evaluation import Evaluation
from fedloom.engine.fleet import Fleet
from fedloom.engine.matrix import TaskMatrix
from fedloom.engine.rounds import Rounds
from fedloom.engine.run import Interrupted, Progress, Run, evaluations_of, train
from fedloom.engine.selection import All
from fedloom.engine.setting import Setting
from fedloom.errors import ConfigError, RunError
from fedloom.execution import Serial, one_thread
from fedloom.federation.metrics import higher_is_better
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from fedloom.methods import Method, name_of
from fedloom.storage import toml
from fedloom.storage.folder import CONFIG, HISTORY, MATRIX, SUMMARY, TASK, RunFolder, theta_sha256
from fedloom.storage.history import History, Row
from fedloom.storage.saved import SavedModel, refuse_other_model, saved_model, shapes_of
from fedloom.storage.store import MemoryStore
from fedloom.types import Vector

Start = Literal["previous", "fresh"]
Scores = dict[str, dict[str, dict[str, float]]]
"""By evaluation, metric and statistic: how one model is on one task."""


@dataclass(frozen=True, eq=False)
class Task:
    """One of several tasks: what is learnt, by which method, and the further arguments of ``train``."""

    problem: Problem
    method: Method
    name: str = ""
    how: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] | None = None

    @property
    def evaluations(self) -> Sequence[Evaluation]:
        """How models are judged on this task."""
        return evaluations_of(self.how.get("evaluate"))

    def fresh(self) -> Vector:
        """The model before anything is learnt."""
        return self.problem.model.init(Draw(self.how.get("seed", 0)).key("model"), self.problem.dtype)

    def setting(self, method: Method, prior: Vector | None) -> Setting:
        """What models of this task, or of another one with its own method, are judged in."""
        return Setting(
            problem=self.problem,
            method=method,
            select=All(),
            fleet=Fleet(storage=(self.how.get("fleet") or Fleet()).storage),
            channel=Channel(),
            evaluations=self.evaluations,
            seed=self.how.get("seed", 0),
            prior=prior,
            stream=None if self.how.get("stream") is None else self.how["stream"].over(),
        )


def train_tasks(
    tasks: Sequence[Task | Problem],
    method: Method | None = None,
    *,
    start: Start = "previous",
    names: Sequence[str] | None = None,
    out: str | Path | None = None,
    force: bool = False,
    resume: bool = False,
    config: dict[str, Any] | None = None,
    label: str | None = None,
    progress: Progress | None = None,
    done: Iterable[Path] = (),
    **how: Any,
) -> Run:
    """Learn one task after the other, and judge the model on all tasks after each.

    ``tasks`` are problems with the same model (and then ``method`` and ``how``, the arguments of ``train``, hold for
    all), or ``Task`` objects. The model of each task is the prior θ_p of the next and, unless ``start`` is "fresh",
    its initial model. With ``out`` each task is a run in a folder of its own, and ``resume=True`` goes on where the
    sequence was stopped. ``done`` are folders of tasks of other sequences: one with the very settings of a task, and
    the same model before it, is copied instead of learning that task again. ``run.matrix`` has what was forgotten and
    transferred.

        halves = [fedloom.federate("digits", source_classes=part) for part in (range(5), range(5, 10))]
        problems = [fedloom.Problem(data, fedloom.build_model("mlp", data)) for data in halves]
        run = fedloom.train_tasks(problems, fedloom.FedAvg(lr=0.1), rounds=20)
        run.matrix.forgetting
    """
    named = _tasks(tasks, method, names, how)
    _check(named)
    with ExitStack() as exits:
        exits.enter_context(one_thread())
        if out is None:
            if resume:
                raise RunError("resume=True needs the folder of the tasks: give out=…")
            path = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="fedloom-")))
        else:
            folder = RunFolder.open(out) if resume else RunFolder.create(out, force)
            exits.callback(folder.close)
            path = folder.path
            if not resume:
                folder.write_toml(CONFIG, config or {"made_by": "python", "task": [{"name": t.name} for t in named]})
        walk = _Sequence(named, path, start, label or name_of(named[0].method), progress, out is not None, list(done))
        return walk.go()


class _Sequence:
    """The tasks of one sequence, and what is known of them so far."""

    def __init__(
        self,
        tasks: list[Task],
        path: Path,
        start: Start,
        label: str,
        progress: Progress | None,
        kept: bool,
        done: list[Path],
    ) -> None:
        self.tasks, self.path, self.start, self.label = tasks, path, start, label
        self.progress, self.kept, self.done = progress, kept, done
        self.scores: list[list[Scores]] = []
        """First those of a fresh model, then those after each task; in each row one for each task."""
        self.history: list[Row] = []
        self.notes: list[str] = []
        self.clocks = Clocks()

    def go(self) -> Run:
        """All tasks that are left."""
        self.scores = self._recorded()
        if not self.scores:
            self.scores.append(self._judged(None))
        saved: SavedModel | None = None
        for number, task in enumerate(self.tasks):
            place = self.path / f"{TASK}{number + 1}"
            self._learn(task, place, saved)
            saved = saved_model(place)
            if len(self.scores) < number + 2:
                self.scores.append(self._judged((task.method, saved)))
            self._take_in(place, number)
            self._write()
        assert saved is not None
        summary = self._summary(saved.theta)
        folder = self.path if self.kept else None
        return Run(saved.theta, saved.state, self.history, summary, folder, self.notes, self.matrix())

    def _learn(self, task: Task, place: Path, before: SavedModel | None) -> None:
        """One task, from the beginning or from where it was stopped; nothing when it is done."""
        how, config = dict(task.how), task.config
        if before is not None:
            how |= {"prior": before.theta, "theta0": before.theta if self.start == "previous" else None}
            written = {"run": f"../{before.folder.name}", "start": self.start == "previous", "sha256": before.sha256}
            config = None if config is None else {**config, "prior": written}
            _refuse_other_prior(place, before)
        if config is not None and not (place / CONFIG).is_file():
            _take_over(config, self.done, place)
        if (place / SUMMARY).is_file():
            return
        try:
            run = train(
                task.problem,
                task.method,
                out=place,
                resume=(place / CONFIG).is_file(),
                config=config,
                label=self.label,
                progress=self._following(),
                **how,
            )
        except Interrupted as stop:
            done = self.clocks.round + stop.completed
            raise Interrupted(self.path if self.kept else None, done) from stop
        self.notes += run.notes

    def _judged(self, learnt: tuple[Method, SavedModel] | None) -> list[Scores]:
        """A model, the fresh one of each task unless one is given, on every task."""
        found: list[Scores] = []
        for task in self.tasks:
            method, saved = learnt or (task.method, None)
            with ExitStack() as exits:
                store = exits.enter_context(MemoryStore() if saved is None else saved.memory())
                executor = Serial()
                exits.callback(executor.close)
                engine = Rounds(task.setting(method, task.fresh() if saved is None else saved.theta), executor, store)
                if saved is not None:
                    engine.state, engine.clocks.round = saved.state, saved.round
                found.append({e.name: engine.evaluator.evaluate(e).summary() for e in engine.evaluator.evaluations})
        return found

    def _take_in(self, place: Path, number: int) -> None:
        """A task's history after those of the tasks before it, with the clocks going on."""
        rows = [_later(row, self.clocks) for row in History.read(place / HISTORY).rows]
        rows = [row for row in rows if row["round"] > self.clocks.round or number == 0]
        last = dict(rows[-1])
        judged = self.scores[number + 1]
        name = self.tasks[0].evaluations[0].name
        others = {f"on {task.name}": judged[j][name] for j, task in enumerate(self.tasks)}
        matrix = self.matrix().so_far(number + 1)
        average = {f"average_{matrix.metric}": {"weighted": matrix.average}}
        last["evaluation"] = {**last.get("evaluation", {}), **average}
        last["evaluations"] = {**last.get("evaluations", {}), **others}
        self.history += [*({**row, "task": number + 1} for row in rows[:-1]), {**last, "task": number + 1}]
        self.clocks = Clocks(**{key: last[key] for key in asdict(self.clocks)})

    def matrix(self) -> TaskMatrix:
        """The first evaluation's first metric on each task after each."""
        evaluation = self.tasks[0].evaluations[0].name
        names = self.scores[0][0][evaluation]
        metric = next((name for name in names if name != "loss"), "loss")
        fresh, *rows = (tuple(_value(scores[evaluation][metric]) for scores in row) for row in self.scores)
        return TaskMatrix(tuple(task.name for task in self.tasks), tuple(rows), fresh, metric, higher_is_better(metric))

    def _recorded(self) -> list[list[Scores]]:
        """What was judged before the sequence was stopped."""
        file = self.path / MATRIX
        if not file.is_file():
            return []
        found: list[list[Scores]] = RunFolder(self.path, None).read_json(MATRIX)["scores"]
        return found

    def _write(self) -> None:
        """matrix.json, then the history of all tasks so far."""
        matrix = self.matrix()
        folder = RunFolder(self.path, None)
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
        folder.write_json(MATRIX, described)
        History.write(folder.file(HISTORY), self.history)

    def _summary(self, theta: Vector) -> dict[str, Any]:
        matrix, first = self.matrix(), self.tasks[0]
        measured = {
            f"average_{matrix.metric}" if name == "average" else name: v for name, v in matrix.measures().items()
        }
        clocks = asdict(self.clocks)
        summary = {
            "label": self.label,
            "method": name_of(first.method),
            "data": first.problem.data.name,
            "seed": first.how.get("seed", 0),
            "rounds": clocks.pop("round"),
            "tasks": [task.name for task in self.tasks],
            "metrics": measured,
            "spread": {name: {"weighted": value} for name, value in measured.items()},
            "theta_sha256": theta_sha256(theta),
            "parameters": theta.numel(),
            **clocks,
            "finished": True,
            "fedloom": __version__,
        }
        if self.kept:
            RunFolder(self.path, None).write_json(SUMMARY, summary)
        return summary

    def _following(self) -> Progress | None:
        """The user's progress, told of the rounds of all tasks."""
        if self.progress is None:
            return None
        follow, before = self.progress, self.clocks
        total = sum(task.how.get("rounds", 0) for task in self.tasks)

        def told(row: Row, _: int) -> None:
            if row["round"] > 0 or before.round == 0:
                follow(_later(row, before), total)

        return told


def _tasks(
    tasks: Sequence[Task | Problem], method: Method | None, names: Sequence[str] | None, how: dict[str, Any]
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


def _check(tasks: list[Task]) -> None:
    """Refuses, before any work, tasks that no one model could learn, and settings that cannot be."""
    if not tasks:
        raise ConfigError("there is no task; give at least one")
    first = tasks[0]
    if not first.evaluations:
        raise ConfigError("tasks in sequence are judged on each other: give an evaluation")
    if any(not isinstance(task.how.get("executor", "auto"), str) for task in tasks):
        raise ConfigError("tasks in sequence take an executor by its name, for each has its own")
    for task in tasks:
        if task.problem.data.classes != first.problem.data.classes:
            raise ConfigError(
                f"the task {task.name!r} has other classes than {first.name!r}: {_few(task.problem.data.classes)} and "
                f"{_few(first.problem.data.classes)}; tasks share one list of classes, of which each may have a part"
            )
        refuse_other_model(
            f"the model of the task {first.name!r}", shapes_of(first.problem.model), shapes_of(task.problem.model)
        )
        task.setting(task.method, task.how.get("prior") if task is first else task.fresh()).check()


def _take_over(config: dict[str, Any], done: list[Path], place: Path) -> None:
    """Copy the first finished task of others that has these settings, if there is one."""
    written = tomllib.loads(toml.dumps(config))
    for other in done:
        if (other / SUMMARY).is_file() and tomllib.loads(RunFolder(other, None).read_text(CONFIG)) == written:
            copy = place.with_name(f".{place.name}.partial")
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(other, copy)
            os.replace(copy, place)
            return


def _refuse_other_prior(place: Path, before: SavedModel) -> None:
    """A task that began with another model of the task before it cannot go on."""
    if not (place / CONFIG).is_file():
        return
    prior = tomllib.loads(RunFolder(place, None).read_text(CONFIG)).get("prior", {})
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


def _value(statistics: dict[str, Any]) -> float:
    value = statistics["weighted"]
    return math.nan if value is None else float(value)


def _few(names: tuple[str, ...]) -> str:
    return json.dumps(list(names[:6]))[1:-1] + (" …" if len(names) > 6 else "")
