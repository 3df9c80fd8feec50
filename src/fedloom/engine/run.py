"""A run from its first round to its last: evaluated, recorded, checkpointed, resumed, summed up."""

from __future__ import annotations

import dataclasses
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from fedloom import __version__
from fedloom.capacity import ALLOCATION
from fedloom.channel import Channel
from fedloom.data import describe
from fedloom.data.remedies import public_note
from fedloom.engine.arrivals import Arrivals
from fedloom.engine.decision import Decision, decide, notes_on
from fedloom.engine.engine import Clocks, Engine
from fedloom.engine.evaluation import VALIDATION, Evaluation, Verdict, headline_value, watched
from fedloom.engine.evaluator import details_of
from fedloom.engine.fleet import Fleet
from fedloom.engine.live import Live
from fedloom.engine.matrix import TaskMatrix
from fedloom.engine.rounds import Rounds
from fedloom.engine.schedule import Schedule
from fedloom.engine.sealing import go_on, seal_of
from fedloom.engine.selection import Selection
from fedloom.engine.setting import Setting
from fedloom.errors import Deserted, FedloomError, RunError
from fedloom.execution import CPU_ONLY, Executor, Remote, Serial, executor_for, one_thread
from fedloom.federation.data import SOURCE
from fedloom.federation.metrics import headline, higher_is_better, metrics_of
from fedloom.federation.model import Model
from fedloom.federation.networks import Recipe
from fedloom.federation.problem import Problem
from fedloom.federation.scores import BINS
from fedloom.federation.streams import Stream
from fedloom.fields import checked
from fedloom.methods import Method, method_of, name_of
from fedloom.methods.method import ServerMethod
from fedloom.prediction import ModelCard, Predictor, decision_of
from fedloom.report.progress import shown
from fedloom.storage import checkpoint
from fedloom.storage.belonging import hashes
from fedloom.storage.files import plain
from fedloom.storage.folder import CARD, DATA, HISTORY, MATRIX, SUMMARY, RunFolder, theta_sha256
from fedloom.storage.history import History, Row, as_frame
from fedloom.storage.meta import check_meta
from fedloom.storage.saved import open_saved, refuse_other_model, saved_model, shapes_of
from fedloom.storage.seal import Seal, opened, sealed
from fedloom.storage.store import MemoryStore, open_latest
from fedloom.tracking import Tracker, Tracking, tracker_of
from fedloom.types import State, Vector

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure
    from torch import nn

Progress = Callable[[Row, int], None]
Spread = dict[str, dict[str, float]]
"""Each metric by its statistics over clients."""

_PER_CLIENT_MOST = 10_000
_RISEN = 10.0  # times the first loss: no run that learns ends there


class Interrupted(FedloomError):
    """The user stopped the run; what it had done is saved."""

    def __init__(self, folder: Path | None, completed: int) -> None:
        where = (
            f"saved in {folder}; go on with `fedloom resume {folder}`" if folder else "nothing was saved (no folder)"
        )
        super().__init__(f"stopped after round {completed}: {where}")
        self.folder, self.completed = folder, completed


@dataclass(eq=False, repr=False)
class Run:
    """What came of a run.

    ``train`` gives it back.

        data = fedloom.federate("digits", clients=5)
        problem = fedloom.Problem(data, fedloom.build_model("linear", data))
        run = fedloom.train(problem, fedloom.FedAvg(), rounds=2)
        print(run.summary["metrics"]["accuracy"], run.frame()["bytes_up"].iloc[-1])
    """

    theta: Vector
    """The server's model."""
    state: State
    """What the server keeps between rounds."""
    history: Sequence[Row]
    """A row for each round, the first of them before any. Those of a run that is kept in a folder stay on the disk, and
    are read when they are asked for; ``list(run.history)`` has them all."""
    summary: dict[str, Any]
    """The run in one object, as summary.json has it."""
    folder: Path | None = None
    """Where the run is kept; none: nowhere."""
    notes: list[str] = field(default_factory=list)
    """What had to be recovered on the way."""
    matrix: TaskMatrix | None = None
    """Of tasks in sequence: how good the model was on each task after each."""
    product: Predictor | None = None
    """The server's model, ready for new rows; none: it is read from the folder when it is asked for."""

    def predictor(self, client: int | str | None = None) -> Predictor:
        """The model, ready for new rows; that of a ``client``, where the method makes one for each."""
        if client is None and self.product is not None:
            return self.product.for_all()
        if self.folder is None:
            raise RunError("this run has no folder, so what its clients remember was not kept: train with out=DIR")
        module = None if self.product is None else self.product.model.module
        return Predictor.open(self.folder, client, module=module)

    def predict(self, x: object, client: int | str | None = None) -> pd.DataFrame:
        """What the model says of new rows, by the names of the classes or in the units of the targets.

        * ``x``: a data frame or a dict with the columns of the training data, or an array with the numbers of each row.
        * ``client``: whose model, where the method makes one for each client; whose rows, where each client's rows were
          scaled by its own. None: the model of all.

        The result has a row for each row: "prediction", and "probability of CLASS" for each class.
        """
        return self.predictor(client).predict(x)

    def module(self, client: int | str | None = None) -> nn.Module:
        """The network as a plain ``torch.nn.Module`` with its weights, for rows that are encoded and scaled."""
        return self.predictor(client).module()

    def frame(self) -> pd.DataFrame:
        """The history as a data frame: a row a round, columns such as "accuracy" and "bytes_up"."""
        return as_frame(self.history)

    def plot(
        self,
        kind: Literal["curves", "clients", "participation", "fleet", "tasks"] = "curves",
        metric: str | None = None,
        **how: Any,
    ) -> Figure:
        """The run as a plotly figure, which a notebook shows and ``write_html`` keeps.

        * ``kind``: learning "curves"; the "clients" at the end; what became of replies ("participation"); the "fleet"
          in simulated time; "tasks" in sequence.
        * ``metric``: the metric of curves and clients; none: the primary one.
        * ``how``: of curves what they are drawn against (``x="bytes"``) and the ``statistic``; of others the ``view``.
        """
        from fedloom.report.notebook import draw, grouped

        return draw(grouped({str(self.summary.get("label", "run")): [self]}), kind, metric, **how)

    def __repr__(self) -> str:
        from fedloom.report.notebook import run_text

        return f"Run({'; note: '.join([run_text(self.summary, self.folder), *self.notes])})"

    def _repr_html_(self) -> str:
        from fedloom.report.notebook import run_html

        return run_html(self.summary, self.folder)


def load_run(folder: str | Path, kept: bool = True) -> Run:
    """Read a run that is done from its folder.

    * ``folder``: the folder of the run. ``kept``: whether it stays; if not, the history is read at once.

    The result is a Run, as ``train`` gave it back.

        data = fedloom.federate("digits", clients=5)
        problem = fedloom.Problem(data, fedloom.build_model("linear", data))
        fedloom.train(problem, fedloom.FedAvg(), rounds=2, out="done")
        print(fedloom.load_run("done").predict(data.x[:3]))
    """
    path, saved = Path(folder), open_saved(folder)
    files = RunFolder(path, None)
    history, summary = History.read(path / HISTORY).rows, opened(files.read_json(SUMMARY))
    rows = history if kept else list(history)
    matrix = TaskMatrix.read(files.read_json(MATRIX)) if (path / MATRIX).is_file() else None
    return Run(saved.theta, saved.state, rows, summary, path if kept else None, list(saved.notes), matrix)


def _hyper_parameter(name: str, given: Mapping[str, Any]) -> str:
    """How a hyper-parameter is given, for a call that has it as an argument of its own; and what there is not yet."""
    if name == "device":
        return CPU_ONLY
    if name in ("folds", "fold"):
        return "compare(…, folds=5) has all folds, and federate(…, folds=5, fold=1) gives the data of one"
    method = method_of(given["method"]) if "method" in given else None
    known = [] if method is None else [field.name for field in dataclasses.fields(method)]  # type: ignore[arg-type]
    if method is None or name not in known:
        return ""
    cls = type(method).__name__
    return f"it is a hyper-parameter of the method: {cls}({name}=…), or '{name_of(method)}:{name}=…'"


@checked(itself=("method",), elsewhere=_hyper_parameter)
def train(
    problem: Problem,
    method: Method | str,
    *,
    rounds: int | None = None,
    seed: int = 0,
    select: Selection | int | None = None,
    schedule: Schedule | Literal["rounds", "async"] | None = None,
    fleet: Fleet | None = None,
    stream: Stream | None = None,
    channel: Channel | None = None,
    evaluate: Evaluation | Sequence[Evaluation] | None = None,
    decision: Decision | None = None,
    executor: str | Executor = "auto",
    workers: int | None = None,
    ray_address: str | None = None,
    stack: int | None = None,
    on_error: Literal["stop", "drop"] = "stop",
    prior: Vector | Run | str | Path | None = None,
    theta0: Vector | Run | str | Path | None = None,
    out: str | Path | None = None,
    force: bool = False,
    resume: bool = False,
    force_settings: bool = False,
    config: dict[str, Any] | None = None,
    label: str | None = None,
    progress: Progress | bool | None = None,
    callbacks: Sequence[Tracker | str] = (),
    checkpoint_seconds: float = 30.0,
    checkpoint_every: int | None = None,
) -> Run:
    """Train a method on a problem for so many rounds.

    What is trained:

    * ``problem``: the clients' data, the model and the loss.
    * ``method``: the method with its hyper-parameters, ``FedAvg(lr=0.1)``, or its name, "fedavg" or "fedavg:lr=0.1".
    * ``rounds``: how many rounds at most; none: the method's default. ``seed``: of everything that is random.
    * ``select``: who takes part: a number of clients each round, a Selection, or none for everybody.
    * ``schedule``: whether the server waits for them ("rounds") or takes replies as they arrive ("async"); none: the
      method's default. A Schedule also says what ends the run early.
    * ``fleet``: how fast, reliable and near the clients are; none: an ideal one, on which nothing takes time.
    * ``stream``: how the clients' training rows arrive; none: all are there.
    * ``channel``: what messages go through, such as a quantisation; none: they arrive as they were sent.
    * ``evaluate``: one Evaluation or several; none: the default one; an empty list: nothing is evaluated.
    * ``decision``: of yes or no, from which probability on a row is a yes: a number, or "f1", "balanced-accuracy" or
      "youden", which the threshold is to make best on the validation rows. None: the likelier.
    * ``prior``: θ_p, the model of an earlier run, for methods that hold on to one: a vector, a Run, or its folder.
    * ``theta0``: the model to start from, likewise; none: as the model's own initialisation draws it for the seed.
    * ``on_error``: a client that fails, or answers with NaN, ends the run ("stop") or is left out ("drop").

    Where the work is done, on which the result does not depend:

    * ``executor``: "auto", "serial", "processes", "ray", or an Executor. ``workers``: how many processes.
    * ``ray_address``: the cluster for "ray"; none: one on this machine, for this run.
    * ``stack``: how many clients are computed together; none: what suits model, data and method.

    What is kept:

    * ``out``: the folder of the run, which can be looked at, resumed and reported on; none: nothing is written.
    * ``force``: replace what is in the folder. ``resume``: go on with the run that is there, to the same bits.
    * ``force_settings``: go on also where settings, data or files were changed since, and write that down.
    * ``checkpoint_seconds``: seconds between checkpoints. ``checkpoint_every``: rounds between them, instead.
    * ``config``: what the folder says of the settings; none: as much as can be said of objects.
    * ``label``: what the run is called in reports; none: as its method.
    * ``progress``: whether a bar shows the rounds; none: on a terminal and in a notebook. Or your own function, which
      is called after every round with its row of the history and the number of rounds.
    * ``callbacks``: who else is told of the run: trackers such as ``TensorBoard("logs")``, or their names. They change
      nothing of it, and one that fails is left out.

    The result is a Run: the model, the server's state, the history (also as a data frame) and a summary.

        data = fedloom.federate(fedloom.load("digits"), clients=20, partition="dirichlet", alpha=0.3)
        problem = fedloom.Problem(data, fedloom.build_model("mlp", data))
        run = fedloom.train(problem, fedloom.FedAvg(lr=0.1), rounds=5, select=10)
        print(run.frame()["accuracy"])
    """
    chosen = method_of(method)
    prepared = prepare(
        problem,
        chosen,
        rounds=chosen.default_rounds if rounds is None else rounds,
        seed=seed,
        select=select,
        schedule=schedule,
        fleet=fleet,
        stream=stream,
        channel=channel,
        evaluate=evaluate,
        decision=decision,
        executor=executor,
        workers=workers,
        ray_address=ray_address,
        stack=stack,
        on_error=on_error,
        prior=_vector(prior, problem.model),
        theta0=_vector(theta0, problem.model),
        config=config,
        label=label,
        callbacks=[tracker_of(one) for one in callbacks],
        checkpoint_seconds=checkpoint_seconds,
        checkpoint_every=checkpoint_every,
    )
    with shown(progress, prepared.label or name_of(chosen)) as follow:
        return prepared.run(out, force=force, resume=resume, force_settings=force_settings, progress=follow)


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
            walk = _Walk(self, engine, history, folder, told_of(progress, tracking), seal)
            walk.start(saved, forced)
            walk.go()
            walk.settle()
            summary = walk.summary()
            tracking.end(summary)
            said.append(public_note(self.setting.problem.data))
            found = [*said, *history.notes, walk.deserted, _missed(summary), *_chosen(summary), *notes_on(summary)]
            found += [*_inexact(summary), _diverged(engine) or _risen(history.rows), _undelivered(engine)]
            notes = [note for note in found if note]
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


def _vector(given: Vector | Run | str | Path | None, model: Model) -> Vector | None:
    """The model that is meant: a vector, a run's, or that of a run's folder."""
    if isinstance(given, str | Path):
        saved = saved_model(given)
        saved.refuse_other(model)
        return saved.theta
    return given.theta if isinstance(given, Run) else given


def engine_for(setting: Setting, executor: Executor, store: MemoryStore) -> Engine:
    """What does the rounds of a run."""
    if not setting.schedule.asynchronous:
        return Rounds(setting, executor, store)
    return Live(setting, executor, store) if isinstance(executor, Remote) else Arrivals(setting, executor, store)


class Course:
    """A run in memory that goes as far as it is told, and waits there: it goes on in the same bits, if it ever does.

    So many of them can wait beside each other; nothing is written, and the work is done in this process.
    """

    def __init__(self, run: Prepared) -> None:
        with one_thread():
            engine = (run.engine or engine_for)(run.setting, Serial(), MemoryStore())
            self._walk = _Walk(run, engine, History(), None, None, None)
            self._begun = False

    def to(self, rounds: int) -> Row:
        """Go on until so many rounds are done, or until the run is over; the last row of its history."""
        walk = self._walk
        walk.run = replace(walk.run, rounds=rounds)
        with one_thread():
            if not self._begun:
                walk.start(None, [])
                self._begun = True
            walk.go()
        return walk.history.rows[-1]

    @property
    def stopped(self) -> str | None:
        """What ended the run: "rounds" where it could go on."""
        return self._walk.stopped

    @property
    def best(self) -> float | None:
        """The best value so far of the metric that patience watches, where it does."""
        return None if self._walk.best is None else self._walk.best.value

    @property
    def theta_sha256(self) -> str:
        """The fingerprint of the server's model."""
        return theta_sha256(self._walk.engine.theta())

    def keep(self, out: str | Path, config: dict[str, Any], label: str) -> dict[str, Any]:
        """Write the run into a folder, with all of its evaluations of the model as it is now; its summary.

        It ends here: who wants to go on does so from the folder.
        """
        walk, engine, rows = self._walk, self._walk.engine, list(self._walk.history.rows)
        walk.run = replace(walk.run, blind=False, config=config, label=label)
        folder = run_folder(out, False, False, config)
        assert folder is not None
        with folder, one_thread(), MemoryStore(folder.path) as store:
            for client in engine.store.clients().tolist():
                store.put(client, engine.store.get(client) or {})
            walk.seal = seal_of(engine.setting)
            with History(folder.path / HISTORY, walk.seal.run) as history:
                for row in rows[:-1]:
                    history.append(row)
                walk.history, walk.folder, engine.store = history, folder, store
                walk.introduce()
                walk._record(rows[-1])
                walk._save()
                walk.settle()
                return walk.summary()


@dataclass(frozen=True, eq=False)
class Best:
    """The round whose model was best by the metric that patience watches, and the server's state after it."""

    round: int
    value: float
    state: State | None = None
    """None where the models are the clients' own, which they keep as they are now."""


@dataclass(eq=False)
class _Walk:
    """The rounds of one run, with everything that happens between them."""

    run: Prepared
    engine: Engine
    history: History
    folder: RunFolder | None
    progress: Progress | None
    seal: Seal | None
    """What the run belongs to, if it is kept in a folder …"""
    forced: list[dict[str, Any]] = field(default_factory=list)
    """… and what was changed on the way all the same, each time with the round after which it was."""
    saved_at: float = field(default_factory=time.monotonic)
    started: float = field(default_factory=time.perf_counter)
    wall_before: float = 0.0
    verdict: Verdict | None = None
    reached: Row | None = None
    """The row at which the schedule's target was reached."""
    best: Best | None = None
    """The best round so far, where patience watches a metric."""
    deserted: str | None = None
    """Why there is nobody left, if so."""
    resumed: bool = False
    """Whether it goes on from a checkpoint."""

    def start(self, saved: checkpoint.Checkpoint | None, forced: list[str]) -> None:
        """From the beginning, or from where a checkpoint left off, with what was changed since by force."""
        if saved is None:
            self.introduce()
            self.history.truncate(-1)
            self._record({**asdict(self.engine.clocks), **self.engine.arrived()})
            self._save()
            return
        assert self.folder is not None
        if not self.folder.file(CARD).is_file():  # begun by an older fedloom
            self.card.write(self.folder.path)
        self.resumed = True
        with checkpoint.as_written(self.folder.path / checkpoint.NEWEST):
            self.engine.restore(saved.groups, saved.meta)
        now = [{"round": self.engine.clocks.round, "changes": forced}] if forced else []
        self.forced = [*saved.meta.get("forced", []), *now]
        self.wall_before = self.engine.clocks.wall_seconds
        if "best" in saved.meta and self.engine.setting.schedule.patience is not None:
            self.best = Best(**saved.meta["best"], state=saved.groups.get("best"))
        self.history.truncate(self.engine.clocks.round)
        self.reached = next(filter(self._on_target, self.history.rows), None)

    def introduce(self) -> None:
        """Say in the folder what the data are like, and what the model needs to be used."""
        if self.folder is not None:
            self.folder.write_json(DATA, dict(describe(self.engine.setting.problem.data).record()))
            self.card.write(self.folder.path)

    @cached_property
    def card(self) -> ModelCard:
        """What is needed to use the model without the data."""
        return ModelCard.of(self.engine.setting.problem, self.engine.setting.method)

    def go(self) -> None:
        """All rounds that are left, or until the method has converged; Ctrl-C ends it after the round under way."""
        with _gentle_interrupt() as interrupted:
            while not self.over:
                try:
                    row = self._step()
                except Deserted as error:
                    self._desert(error)
                    return
                self._record(row)
                last = self.over
                if last or interrupted() or self._save_is_due():
                    self._save()
                if interrupted() and not last:
                    raise Interrupted(self.folder.path if self.folder else None, self.engine.clocks.round)

    def _step(self) -> Row:
        """One round. What a forged checkpoint leads to may show only here, such as a reply in flight that fits none."""
        try:
            return self.engine.step()
        except checkpoint.MISREAD as error:
            if not self.resumed or ALLOCATION in str(error):
                raise
            raise RunError(
                f"round {self.engine.clocks.round + 1} fails after the run was resumed ({type(error).__name__}: "
                f"{error}): its checkpoint was changed, or the code of its method was. Start the run again"
            ) from error

    def _desert(self, error: Deserted) -> None:
        """The run ends here, as nobody is left; if nobody ever came, it was no run."""
        if self.engine.clocks.round == 0:
            raise error
        self.deserted = str(error)
        self.verdict = None  # evaluated by the last model, whenever it was evaluated last
        self._save()

    def _record(self, row: Row) -> None:
        """Evaluate what is due, then write the row of the round."""
        evaluator, clocks, due = self.engine.evaluator, self.engine.clocks, list[Evaluation]()
        for evaluation in sorted(evaluator.evaluations, key=lambda one: one is not self.watched):
            if not evaluator.due(evaluation, last=self.over) or (self.run.blind and not evaluation.chooses):
                continue
            due.append(evaluation)
            main = evaluation is evaluator.evaluations[0]
            verdict = evaluator.evaluate(evaluation, details=main and self.over)
            if main:
                row["evaluation"], self.verdict = verdict.summary(), verdict
                if self.reached is None and self._on_target(row):
                    self.reached = row  # so this round is the last, after which the other evaluations are due too
            else:
                row.setdefault("evaluations", {})[evaluation.name] = verdict.summary()
            if evaluation is self.watched:
                self._note_best(verdict)
        method = self.engine.setting.method  # what clients have to measure costs as much as an evaluation: as often
        measures = evaluator.measures() if due or not (method.measures and evaluator.evaluations) else {}
        if any(evaluation.gradients for evaluation in due):
            measures |= evaluator.gradients()
        if measures:
            row["measures"] = measures
        if evaluator.unanswered:
            row["failures"], evaluator.unanswered = [*row.get("failures", []), *evaluator.unanswered], []
        row["wall_seconds"] = clocks.wall_seconds = self.wall_before + time.perf_counter() - self.started
        self.history.append(row)
        if self.progress is not None:
            told = time.perf_counter()
            self.progress(row, self.run.rounds)
            self.started += time.perf_counter() - told  # who is told of a run takes no time of it

    @cached_property
    def watched(self) -> Evaluation | None:
        """The evaluation that patience watches; it is made first, for it may end the run."""
        found = self.engine.evaluator.evaluations
        return watched(found) if found and self.engine.setting.schedule.patience is not None else None

    @property
    def metric(self) -> str:
        """The metric that patience watches: the user's choice, or the first that is not the loss."""
        data, chosen = self.engine.setting.problem.data, self.watched
        names = metrics_of(data, chosen.metrics if chosen is not None else None)
        return self.engine.setting.schedule.metric or next((one.name for one in names), "loss")

    def _note_best(self, verdict: Verdict) -> None:
        """Keep the server's state where it is the best so far."""
        metric = self.metric
        value = headline_value(metric, verdict.summary()[metric])
        higher = higher_is_better(metric)
        if math.isnan(value) or (
            self.best is not None and not (value > self.best.value if higher else value < self.best.value)
        ):
            return
        state = {key: tensor.clone() for key, tensor in self.engine.state.items()} if self._keeps_best else None
        self.best = Best(self.engine.clocks.round, value, state)

    @property
    def _keeps_best(self) -> bool:
        """Whether the model follows from the server's state alone, so that it can be kept."""
        data, method = self.engine.setting.problem.data, self.engine.setting.method
        return data.layout == "rows" and method.evaluates != "personal" and isinstance(method, ServerMethod)

    def settle(self) -> None:
        """Where patience has watched, the run's model is that of the best round."""
        if self.best is not None and self.best.state is not None and self.best.round < self.engine.clocks.round:
            self.engine.state, self.verdict = self.engine.grown(self.best.state), None

    @property
    def over(self) -> bool:
        """Whether there is no round left to do."""
        return self.stopped is not None

    @property
    def stopped(self) -> str | None:
        """What ends the run, if something does."""
        clocks, setting = self.engine.clocks, self.engine.setting
        if self.deserted is not None:
            return "deserted"
        if self.reached is not None:
            return "target"
        patience, since = setting.schedule.patience, self.best.round if self.best is not None else 0
        if patience is not None and clocks.round - since >= patience:
            return "patience"
        if clocks.round > 0 and setting.method.done(self.engine.state):
            return "converged"
        if setting.schedule.seconds is not None and clocks.simulated_seconds >= setting.schedule.seconds:
            return "seconds"
        return "rounds" if clocks.round >= self.run.rounds else None

    def _on_target(self, row: Row) -> bool:
        """Whether the model of this row is as good as was wanted."""
        schedule = self.engine.setting.schedule
        found = row.get("evaluation", {}).get(schedule.metric)
        return schedule.metric is not None and schedule.reached(found and headline_value(schedule.metric, found))

    def target(self) -> dict[str, Any] | None:
        """What was to be reached, and when it was; None where nothing was."""
        schedule, at = self.engine.setting.schedule, self.reached
        if schedule.metric is None or schedule.target is None:
            return None
        when = None if at is None else {key: at[key] for key in ("round", "simulated_seconds", "server_steps")}
        return {"metric": schedule.metric, "value": schedule.target, "reached": when}

    def _save_is_due(self) -> bool:
        if self.folder is None:
            return False
        if self.run.checkpoint_every is not None:
            return self.engine.clocks.round % self.run.checkpoint_every == 0
        return time.monotonic() - self.saved_at >= self.run.checkpoint_seconds

    def _save(self) -> None:
        """The history, then the clients' memory, then the checkpoint that counts on both."""
        if self.folder is None:
            return
        engine = self.engine
        self.history.flush()
        groups, meta = engine.snapshot()
        groups["memory"] = engine.store.commit()
        theta, key = engine.theta(), None
        if self.best is not None:
            meta["best"] = {"round": self.best.round, "value": self.best.value}
        if self.best is not None and self.best.state is not None:
            groups["best"] = self.best.state
            theta = self._best_theta(self.best.state)
        else:
            key = next((key for key, value in engine.state.items() if value is theta), None)
        if key is None:  # a model that is computed from the state, which only the method's code could do again
            groups["model"] = {"theta": theta}
        shapes = {name: list(piece.shape) for name, piece in engine.problem.model.slices.items()}
        meta |= {"theta": key, "shapes": shapes, "theta_sha256": theta_sha256(theta), **self._belonging()}
        checkpoint.save_latest(self.folder.path, groups, meta)
        engine.keeper.landed()
        self.saved_at = time.monotonic()

    def _best_theta(self, state: State) -> Vector:
        """The model of the best round."""
        method = self.engine.setting.method
        assert isinstance(method, ServerMethod)
        return method.model(state)

    def _belonging(self) -> dict[str, Any]:
        """What binds a checkpoint to its run: settings, data and model, the history's rows, the files beside it."""
        assert self.seal is not None
        assert self.folder is not None
        told = {"seal": self.seal.record(), "history": self.history.chain, "files": hashes(self.folder.path)}
        return told | ({"forced": self.forced} if self.forced else {})

    def summary(self) -> dict[str, Any]:
        """The run in one object, written as summary.json."""
        engine, evaluator = self.engine, self.engine.evaluator
        whole = self.verdict is not None and all(name in self.verdict.counts for name in evaluator.details)
        if not whole and evaluator.evaluations and not self.run.blind:  # resumed after the last round, or nobody knew
            self.verdict = evaluator.evaluate(evaluator.evaluations[0], details=True)
        spread = self.verdict.summary() if self.verdict is not None else {}
        summary = summed_up(self.run.label, engine.setting, engine.clocks, engine.theta(), spread) | {
            "stopped": self.stopped,
            "schedule": engine.setting.schedule.name,
            "stack": engine.stack,
            "executor": engine.executor.name,
        }
        if (shared := engine.setting.problem.data.shared) is not None:
            summary["public"] = shared
        if self.verdict is not None:
            summary["judged"] = evaluator.evaluations[0].told()
            means = [name for name in self.verdict.values if headline(name) == "weighted"]
            summary["judged"] |= {"rows": int(self.verdict.rows.sum()), "row_means": means}
            summary |= details_of(self.verdict, engine.setting.problem.data)
            if self.verdict.inexact:
                summary["inexact"] = self.verdict.inexact
        if engine.setting.decision is not None and evaluator.evaluations:
            summary["decision"] = decide(engine.setting.decision, evaluator)
        if (target := self.target()) is not None:
            summary["target"] = target
        if self.best is not None and self.watched is not None:
            told = {"round": self.best.round, "metric": self.metric, "value": self.best.value}
            kept = self.best.state is not None or self.best.round == engine.clocks.round
            summary["best"] = {**told, "split": self.watched.evaluated, "kept": kept}
        if self.verdict is not None and len(self.verdict.clients) <= _PER_CLIENT_MOST:
            values = {name: value.tolist() for name, value in self.verdict.values.items()}
            summary["per_client"] = {"clients": self.verdict.clients.tolist(), **values}
        if self.forced:
            summary["forced"] = self.forced
        if self.folder is not None and self.seal is not None:
            self.folder.write_json(SUMMARY, sealed(plain(summary, SUMMARY), self.seal.run))
        return summary


def summed_up(label: str | None, setting: Setting, clocks: Clocks, theta: Vector, spread: Spread) -> dict[str, Any]:
    """What the summary of every run says: one run's, or that of tasks in sequence."""
    counted = asdict(clocks)
    return {
        "label": label or name_of(setting.method),
        "method": name_of(setting.method),
        "data": setting.problem.data.name,
        "seed": setting.seed,
        "rounds": counted.pop("round"),
        "metrics": {name: headline_value(name, values) for name, values in spread.items()},
        "statistics": {name: headline(name) if "pooled" in values else "weighted" for name, values in spread.items()},
        "spread": spread,
        "theta_sha256": theta_sha256(theta),
        "parameters": theta.numel(),
        **counted,
        "finished": True,
        "fedloom": __version__,
    }


@contextmanager
def _gentle_interrupt() -> Iterator[Callable[[], bool]]:
    """Tells whether Ctrl-C was pressed, so that a round is never cut in half; a second one is as ever."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    pressed = threading.Event()
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: FrameType | None) -> None:
        if pressed.is_set() and callable(before):
            before(number, frame)
        pressed.set()

    signal.signal(signal.SIGINT, handle)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)


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


def _missed(summary: dict[str, Any]) -> str | None:
    """A note when a run ended before it reached its target."""
    target = summary.get("target")
    if target is None or target["reached"] is not None:
        return None
    limit = f"round {summary['rounds']}, {summary['simulated_seconds']:g} simulated seconds"
    found = summary["metrics"].get(target["metric"], float("nan"))
    return (
        f"the target {target['metric']} = {target['value']:g} was not reached: the run ended by its limit of "
        f"{summary['stopped']} ({limit}) at {found:.4g}"
    )


def _diverged(engine: Engine) -> str | None:
    """A note when a run ended with a model or a state that is not finite: replies are looked at, their sums are not."""
    theta = engine.theta()
    like = {f"state {key!r}": value for key, value in engine.state.items() if value.shape == theta.shape}
    wrong = [name for name, value in {"model": theta, **like}.items() if not bool(value.isfinite().all())]
    if not wrong:
        return None
    return (
        f"the run has diverged: after round {engine.clocks.round} the server's {', '.join(wrong)} is not finite; "
        "try smaller step sizes"
    )


def _risen(rows: Sequence[Row]) -> str | None:
    """A note when the loss is far above where it began: such a run is on its way to infinity, or has learnt nothing."""
    if not rows:
        return None
    before, after = (((row.get("evaluation") or {}).get("loss") or {}).get("weighted") for row in (rows[0], rows[-1]))
    if before is None or after is None or not after > _RISEN * before > 0:
        return None
    return f"the run is diverging: the loss rose from {before:.3g} to {after:.3g}; try smaller step sizes"


def _undelivered(engine: Engine) -> str | None:
    """A note when a run ended before its stream had brought all rows."""
    if engine.online is None:
        return None
    clients, sizes = engine.problem.data.with_role(SOURCE), engine.problem.data.splits["train"].sizes
    come, whole = engine.online.arrived(clients.numpy(), engine.clocks.simulated_seconds), int(sizes[clients].sum())
    if come >= whole:
        return None
    return (
        f"the stream had brought {come:,} of {whole:,} training rows ({come / whole:.0%}) when the run ended, after "
        f"{engine.clocks.simulated_seconds:g} simulated seconds; run it longer, or let rows come faster"
    )


def _chosen(summary: dict[str, Any]) -> Iterator[str]:
    """What a user should know of how patience chose the model."""
    best = summary.get("best")
    if best is None:
        return
    if not best["split"].startswith(VALIDATION):
        yield (
            f"the {best['split']} rows chose when to stop, and judge the result: it looks better than it is. Give "
            "data.validation a share, such as 0.2, to choose on other rows"
        )
    if not best["kept"]:
        yield (
            f"round {best['round']} was best, but the models are those of round {summary['rounds']}: clients keep "
            f"their own models as they are. Run it for {best['round']} rounds to have those"
        )


def _inexact(summary: dict[str, Any]) -> Iterator[str]:
    """How exact metrics are that were worked out from bins."""
    for name, error in summary.get("inexact", {}).items():
        yield f"{name} is that of scores in {BINS:,} bins, for nodes show no single rows: right to ± {error:.2g}"


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
