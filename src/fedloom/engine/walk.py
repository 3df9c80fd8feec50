"""The rounds of one run, and what happens between them: evaluated, recorded, checkpointed, resumed."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from fedloom.capacity import ALLOCATION
from fedloom.data import describe
from fedloom.engine.engine import Engine
from fedloom.engine.evaluation import Evaluation, Verdict, headline_value, watched
from fedloom.errors import Deserted, FedloomError, RunError
from fedloom.federation.metrics import higher_is_better, metrics_of
from fedloom.methods.method import ServerMethod
from fedloom.prediction import ModelCard
from fedloom.storage import checkpoint
from fedloom.storage.belonging import hashes
from fedloom.storage.folder import CARD, DATA, RunFolder, theta_sha256
from fedloom.storage.history import History, Row
from fedloom.storage.saved import shapes_of
from fedloom.storage.seal import Seal
from fedloom.types import State, Vector

if TYPE_CHECKING:
    from fedloom.engine.prepared import Prepared

Progress = Callable[[Row, int], None]


class Interrupted(FedloomError):
    """The user stopped the run; what it had done is saved."""

    def __init__(self, folder: Path | None, completed: int) -> None:
        where = (
            f"saved in {folder}; go on with `fedloom resume {folder}`" if folder else "nothing was saved (no folder)"
        )
        super().__init__(f"stopped after round {completed}: {where}")
        self.folder, self.completed = folder, completed


@dataclass(frozen=True, eq=False)
class Best:
    """The round whose model was best by the metric that patience watches, and the server's state after it."""

    round: int
    value: float
    state: State | None = None
    """None where the models are the clients' own, which they keep as they are now."""


@dataclass(eq=False)
class Walk:
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
    figures: dict[str, float] = field(default_factory=dict)
    """What the method reported last: by this it may say that it has converged."""
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
        self.figures = next((row["measures"] for row in reversed(self.history.rows) if "measures" in row), {})

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
        measures = self._measured()  # first, for they may end the run
        for evaluation in sorted(evaluator.evaluations, key=lambda one: one is not self.watched):
            if not self._is_due(evaluation):
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

    def _measured(self) -> dict[str, float]:
        """The method's own figures. What clients have to measure costs as much as an evaluation: it is as often."""
        evaluator, seldom = self.engine.evaluator, self.engine.setting.method.measures
        if seldom and evaluator.evaluations and not any(map(self._is_due, evaluator.evaluations)):
            return {}
        measures = evaluator.measures()
        self.figures = measures or self.figures
        return dict(measures)

    def _is_due(self, evaluation: Evaluation) -> bool:
        """Whether this evaluation is to be made after the round that just ended."""
        return self.engine.evaluator.due(evaluation, last=self.over) and (evaluation.chooses or not self.run.blind)

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
        if clocks.round > 0 and self.engine.method.done(self.engine.state, self.figures):
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
        shapes = {name: list(shape) for name, shape in shapes_of(engine.problem.model).items()}
        meta |= {"theta": key, "shapes": shapes, "theta_sha256": theta_sha256(theta), **self._belonging()}
        checkpoint.save_latest(self.folder.path, groups, meta)
        engine.keeper.landed()
        self.saved_at = time.monotonic()

    def _best_theta(self, state: State) -> Vector:
        """The model of the best round."""
        method = self.engine.method
        assert isinstance(method, ServerMethod)
        return method.model(state)

    def _belonging(self) -> dict[str, Any]:
        """What binds a checkpoint to its run: settings, data and model, the history's rows, the files beside it."""
        assert self.seal is not None
        assert self.folder is not None
        told = {"seal": self.seal.record(), "history": self.history.chain, "files": hashes(self.folder.path)}
        return told | ({"forced": self.forced} if self.forced else {})


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
