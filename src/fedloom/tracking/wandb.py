"""Weights & Biases: runs of a project, on their server or kept for a later `wandb sync`."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedloom.errors import RunError
from fedloom.tracking.register import TRACKERS
from fedloom.tracking.tracker import Row, TrackedRun, Tracker, figures

_INIT_SECONDS = 30.0


@TRACKERS.register("wandb")
@dataclass
class WandB(Tracker):
    """Weights & Biases.

    ``fedloom.train`` takes it as one of its ``callbacks``.

        tracker = fedloom.WandB("hospitals")
    """

    project: str = "fedloom"
    """The project that the run belongs to."""
    entity: str | None = None
    """The user or team; none: the user's default."""
    needs = "wandb"
    _run: Any = field(default=None, init=False, repr=False, compare=False)

    def begin(self, run: TrackedRun) -> int | None:
        """Begin the run of an id, or go on with it; without a login nobody is asked for one."""
        import wandb

        offline = os.environ.get("WANDB_MODE", "online") != "online"
        if not offline and wandb.api.api_key is None:
            raise RunError("there is no login: run `wandb login`, or set WANDB_MODE=offline and `wandb sync` later")
        resumed = "id" in run.kept
        run.kept.setdefault("id", f"{int(time.time()):x}{os.urandom(3).hex()}")
        place = os.environ.get("WANDB_DIR") or (None if run.folder is None else str(run.folder))
        self._run = wandb.init(
            project=self.project,
            entity=self.entity,
            id=run.kept["id"],
            resume="allow",
            name=run.title,
            group=run.group,
            config=run.settings(),
            dir=place,
            settings=wandb.Settings(silent=True, console="off", init_timeout=_INIT_SECONDS),
        )
        if not resumed:
            return -1
        return None if offline else self._run.step - 1

    def row(self, row: Row) -> None:
        """The numbers of a round; "accuracy.pooled" is "accuracy/pooled" here."""
        told = {name.replace(".", "/", 1): value for name, value in figures(row).items()}
        self._run.log(told, step=row["round"])

    def end(self, summary: dict[str, Any] | None, report: Path | None) -> None:
        """The summary, and the page among the run's files."""
        if summary is not None:
            told = {key: value for key, value in summary.items() if isinstance(value, str | int | float)}
            self._run.summary.update(told | {f"final/{name}": value for name, value in summary["metrics"].items()})
        if report is not None:
            copied = Path(self._run.dir) / report.name
            shutil.copy(report, copied)
            self._run.save(str(copied), base_path=self._run.dir, policy="now")
        self._run.finish(exit_code=0 if summary is not None else 1)
