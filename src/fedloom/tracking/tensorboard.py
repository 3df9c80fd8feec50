"""TensorBoard: event files in a folder."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from fedloom.storage.files import slug
from fedloom.storage.folder import EVENTS
from fedloom.tracking.register import TRACKERS
from fedloom.tracking.tracker import Row, TrackedRun, Tracker, figures

_FLUSH_SECONDS = 1.0


@TRACKERS.register("tensorboard")
@dataclass
class TensorBoard(Tracker):
    """TensorBoard's event files, which `tensorboard --logdir DIR` shows.

    ``fedloom.train`` takes it as one of its ``callbacks``.

        data = fedloom.federate("digits", clients=5)
        problem = fedloom.Problem(data, fedloom.build_model("linear", data))
        fedloom.train(problem, fedloom.FedAvg(), rounds=2, callbacks=[fedloom.TensorBoard("logs")])
    """

    dir: str | None = None
    """The folder; each run has one of its own in it. None: tensorboard/ in the folder of the run."""
    needs = "tensorboard"
    _writer: Any = field(default=None, init=False, repr=False, compare=False)
    _settings: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _flushed: float = field(default=0.0, init=False, repr=False, compare=False)

    def placed(self, folder: Path) -> Self:
        """The same with a relative path that begins in this folder."""
        return self if self.dir is None else replace(self, dir=str((folder / self.dir).resolve()))

    def begin(self, run: TrackedRun) -> int | None:
        """Write the settings as a text; of a resumed run, look how far its events go."""
        from torch.utils.tensorboard import SummaryWriter

        told = Path(run.kept["path"]) if "path" in run.kept else None
        path = self._fresh(run) if told is None or not told.is_dir() else told
        known = _last_step(path) if path == told else -1
        run.kept["path"] = str(path.resolve())
        self._settings, self._flushed = run.settings(), time.monotonic()
        self._writer = SummaryWriter(log_dir=str(path))
        if known < 0:
            self._writer.add_text("settings", _table(self._settings))
        return known

    def row(self, row: Row) -> None:
        """A scalar for each number; "accuracy.pooled" is "accuracy/pooled" here, beside "accuracy"."""
        for name, value in figures(row).items():
            self._writer.add_scalar(name.replace(".", "/", 1), value, row["round"])
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._writer.flush()
            self._flushed = time.monotonic()

    def end(self, summary: dict[str, Any] | None, report: Path | None) -> None:
        """The summary as a text and beside the hyper-parameters; the page beside the events."""
        if summary is not None:
            from torch.utils.tensorboard.summary import hparams

            metrics = {name: value for name, value in summary["metrics"].items() if value is not None}
            for part in hparams(self._settings, metrics):  # type: ignore[no-untyped-call]
                self._writer.file_writer.add_summary(part)
            told = {key: value for key, value in summary.items() if isinstance(value, str | int | float)}
            self._writer.add_text("summary", _table(metrics | told), summary["rounds"])
        if report is not None:
            shutil.copy(report, Path(self._writer.log_dir) / report.name)
        self._writer.close()

    def _fresh(self, run: TrackedRun) -> Path:
        """Where a new run's events go, which nobody else's are in."""
        if self.dir is None and run.folder is not None:
            return run.folder / EVENTS
        base = Path(self.dir or EVENTS)
        place = base if run.group is None else base / slug(run.group)
        names = (slug(run.title) + ("" if number == 1 else f"-{number}") for number in itertools.count(1))
        return next(place / name for name in names if not (place / name).exists())


def _table(values: dict[str, Any]) -> str:
    """As Markdown, which TensorBoard renders."""
    rows = (f"| {key} | {value} |".replace("\n", " ") for key, value in values.items())
    return "\n".join(["| setting | value |", "| --- | --- |", *rows])


def _last_step(path: Path) -> int:
    """The last round of the events in a folder; the last event may be cut off."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    last = -1
    for file in path.glob("events.out.tfevents.*"):
        with contextlib.suppress(Exception):
            for event in LegacyEventFileLoader(str(file)).Load():
                tags = {value.tag for value in event.summary.value}
                last = max(last, event.step if "wall_seconds" in tags else -1)
    return last
