"""A run that is ready to begin, and the one place where runs are done."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedloom.engine.arrivals import Arrivals
from fedloom.engine.endnotes import endnotes
from fedloom.engine.engine import Engine
from fedloom.engine.live import Live
from fedloom.engine.result import Run
from fedloom.engine.rounds import Rounds
from fedloom.engine.sealing import go_on, seal_of
from fedloom.engine.setting import Setting
from fedloom.engine.summary import summary_of
from fedloom.engine.walk import Progress, Walk
from fedloom.errors import RunError
from fedloom.execution import Executor, Remote, executor_for, one_thread
from fedloom.federation.networks import Recipe
from fedloom.federation.problem import Problem
from fedloom.methods import Method, name_of
from fedloom.prediction import Predictor, decision_of
from fedloom.storage import checkpoint
from fedloom.storage.folder import HISTORY, RunFolder, theta_sha256
from fedloom.storage.history import History, Row
from fedloom.storage.meta import check_meta
from fedloom.storage.saved import refuse_other_model, shapes_of
from fedloom.storage.seal import Seal
from fedloom.storage.store import MemoryStore, open_latest
from fedloom.tracking import Tracker, Tracking


@dataclass(frozen=True, eq=False)
class Prepared:
    """A run that is ready to begin: a setting that was checked, how long it goes on, and where the work is done."""

    setting: Setting
    rounds: int
    executor: str | Executor = "auto"
    workers: int | None = None
    ray_address: str | None = None
    checkpoint_seconds: float = 30.0
    checkpoint_every: int | None = None
    config: dict[str, Any] | None = None
    """What its folder is to say of it; none: as much as is known of objects that Python made."""
    label: str | None = None
    """What it is called in reports; none: as its method."""
    engine: Callable[[Setting, Executor, MemoryStore], Engine] | None = None
    """What does its rounds; none: what its schedule asks for."""
    notes: Sequence[str] = ()
    """What its user should know of what it was made from."""
    blind: bool = False
    """Whether nothing but the rows to choose by is looked at: a trial is no verdict."""
    callbacks: Sequence[Tracker] = ()
    """Who else is told of it."""

    def run(
        self,
        out: str | Path | None = None,
        *,
        force: bool = False,
        resume: bool = False,
        force_settings: bool = False,
        progress: Progress | None = None,
        group: str | None = None,
    ) -> Run:
        """Do it: the one place where runs come from. Nothing is checked again but whether the work can be done here."""
        executor = self.executor
        if isinstance(executor, str):
            executor = executor_for(executor, self.rounds, self.workers, self.ray_address)
        executor.check()  # before the folder is made
        for tracker in self.callbacks:
            tracker.check()
        with ExitStack() as exits:
            exits.enter_context(one_thread())
            folder = run_folder(out, force, resume, self.described())
            place = None
            if folder is not None:
                exits.callback(folder.close)
                place = folder.path
            saved, store = open_latest(place) if place is not None and resume else (None, MemoryStore(place))
            exits.callback(store.close)
            if saved is not None and place is not None:
                check_meta(place, saved.meta)
            exits.callback(executor.close)
            seal = None if place is None else self._seal(saved)
            run = "" if seal is None else seal.run
            history = exits.enter_context(History(None if place is None else place / HISTORY, run))
            before = history.rows[-1]["round"] if len(history) else -1
            forced, said = list[str](), list(self.notes)
            if saved is not None and place is not None and seal is not None:
                forced, more = go_on(place, saved, seal, history, force_settings)
                said += [saved.note, *more]
            engine = (self.engine or engine_for)(self.setting, executor, store)
            tracking = exits.enter_context(self._tracking(place, group))
            tracking.begin(lambda: [] if saved is None else history.rows, before)
            walk = Walk(self, engine, history, folder, told_of(progress, tracking), seal)
            walk.start(saved, forced)
            walk.go()
            walk.settle()
            summary = summary_of(walk)
            tracking.end(summary)
            ended = [walk.deserted] if walk.deserted else []
            ended += [] if self.blind else engine.evaluator.strangers()
            notes = [*filter(None, said), *history.notes, *ended, *endnotes(engine, summary, history.rows)]
            product = Predictor(walk.card, self.setting.problem.model, engine.theta(), decision=decision_of(summary))
            return Run(engine.theta(), engine.state, history.kept(), summary, place, notes, product=product)

    def _seal(self, saved: checkpoint.Checkpoint | None) -> Seal:
        """What the run belongs to; one that goes on keeps its name, and must have a model of the same shape."""
        seal = seal_of(self.setting)
        if saved is None:
            return seal
        there = {name: tuple(shape) for name, shape in saved.meta["shapes"].items()}
        refuse_other_model("the model in the folder", there, shapes_of(self.setting.problem.model))
        return replace(seal, run=saved.meta["seal"]["run"]) if "seal" in saved.meta else seal

    def _tracking(self, place: Path | None, group: str | None) -> Tracking:
        label = self.label or name_of(self.setting.method)
        return Tracking(self.callbacks, label, self.described(), place, group)

    def described(self) -> dict[str, Any]:
        """What the run's folder says of it in config.toml."""
        return self.config or _python_config(self.setting, self.rounds)


def told_of(progress: Progress | None, tracking: Tracking) -> Progress:
    """Tells of a round who shows it, and who tracks it."""

    def told(row: Row, rounds: int) -> None:
        tracking.row(row)
        if progress is not None:
            progress(row, rounds)

    return told


def prepare(problem: Problem, method: Method, *, rounds: int, **how: Any) -> Prepared:
    """A run from the arguments of ``train``, checked: those that are no fields of the run are its setting's."""
    if rounds < 1:
        raise RunError(f"rounds = {rounds}: a run has at least one round")
    own = {known.name: how.pop(known.name) for known in dataclasses.fields(Prepared) if known.name in how}
    setting = Setting.of(problem, method, **how)
    setting.check()
    return Prepared(setting, rounds, **own)


def engine_for(setting: Setting, executor: Executor, store: MemoryStore) -> Engine:
    """What does the rounds of a run."""
    if not setting.schedule.asynchronous:
        return Rounds(setting, executor, store)
    return Live(setting, executor, store) if isinstance(executor, Remote) else Arrivals(setting, executor, store)


def run_folder(out: str | Path | None, force: bool, resume: bool, config: dict[str, Any]) -> RunFolder | None:
    """The folder that a run is written into, locked: a new one that says what the run is, or the one that is there."""
    if out is None:
        if resume:
            raise RunError("resume=True needs the folder of the run: give out=…")
        return None
    if resume:
        return RunFolder.open(out)
    folder = RunFolder.create(out, force)
    folder.describe(config)
    return folder


def _described(method: Method) -> dict[str, Any]:
    """A method's name and hyper-parameters, those of one that it wraps inside."""
    values = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}  # type: ignore[arg-type]
    inner = {key: _described(value) for key, value in values.items() if isinstance(value, Method)}
    return {"name": name_of(method), **{key: value for key, value in values.items() if value is not None}, **inner}


def _python_config(setting: Setting, rounds: int) -> dict[str, Any]:
    """For a run that was made from Python: enough to know what it was."""
    build = setting.problem.model.build
    return {
        "made_by": "python",
        "seed": setting.seed,
        "rounds": rounds,
        "data": {"name": setting.problem.data.name},
        "method": _described(setting.method),
        **({"model": {"name": build.name}} if isinstance(build, Recipe) else {}),
        **({"stream": setting.stream.written()} if setting.stream is not None else {}),
        **({"prior": {"sha256": theta_sha256(setting.prior)}} if setting.prior is not None else {}),
        **({"decision": setting.decision} if setting.decision is not None else {}),
    }
