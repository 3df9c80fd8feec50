"""MLflow: runs of an experiment on a tracking server, or in a database."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from fedloom.tracking.register import TRACKERS
from fedloom.tracking.tracker import Row, TrackedRun, Tracker, figures

_BATCH_SECONDS, _BATCH_MOST = 1.0, 900
"""Numbers are sent together: those of a second, and no more than a request may have."""
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "15"}
"""How long a server is waited for, unless the user says; MLflow's own default is many minutes."""
_SQLITE = "sqlite:///"


@TRACKERS.register("mlflow")
@dataclass
class MLflow(Tracker):
    """MLflow's tracking store.

    ``fedloom.train`` takes it as one of its ``callbacks``.

        tracker = fedloom.MLflow("sqlite:///mlflow.db", experiment="hospitals")
    """

    uri: str | None = None
    """The tracking server or database; none: that of MLFLOW_TRACKING_URI, or MLflow's default."""
    experiment: str = "fedloom"
    """The experiment that the run belongs to; it is made where there is none."""
    needs = "mlflow"
    _client: Any = field(default=None, init=False, repr=False, compare=False)
    _run: str = field(default="", init=False, repr=False, compare=False)
    _waiting: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)
    _sent: float = field(default=0.0, init=False, repr=False, compare=False)

    def placed(self, folder: Path) -> Self:
        """The same with a relative path that begins in this folder."""
        if self.uri is None:
            return self
        if self.uri.startswith(_SQLITE):
            return replace(self, uri=f"{_SQLITE}{(folder / self.uri.removeprefix(_SQLITE)).resolve()}")
        return self if ":" in self.uri else replace(self, uri=(folder / self.uri).resolve().as_uri())

    def begin(self, run: TrackedRun) -> int | None:
        """Find the run again, or make one with the settings as its parameters and the group as a tag."""
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        for noisy in ("mlflow", "alembic"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        self._client, self._waiting, self._sent = MlflowClient(tracking_uri=self.uri), [], time.monotonic()
        if "run_id" in run.kept:
            try:
                self._run = self._client.get_run(run.kept["run_id"]).info.run_id
                self._client.update_run(self._run, status="RUNNING")
                history = self._client.get_metric_history(self._run, "wall_seconds")
                return max((metric.step for metric in history), default=-1)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
        self._run = self._create(run)
        run.kept["run_id"] = self._run
        return -1

    def _create(self, run: TrackedRun) -> str:
        from mlflow.entities import Param

        found = self._client.get_experiment_by_name(self.experiment)
        number = self._client.create_experiment(self.experiment) if found is None else found.experiment_id
        tags = {"fedloom.group": run.group} if run.group else {}
        made: str = self._client.create_run(number, run_name=run.title, tags=tags).info.run_id
        params = [Param(key, str(value)) for key, value in run.settings().items()]
        for at in range(0, len(params), 100):
            self._client.log_batch(made, params=params[at : at + 100])
        return made

    def row(self, row: Row) -> None:
        """Numbers go in batches, so that a quick run does not wait for each."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._waiting += [Metric(name, value, now, row["round"]) for name, value in figures(row).items()]
        if len(self._waiting) >= _BATCH_MOST or time.monotonic() - self._sent > _BATCH_SECONDS:
            self._send()

    def _send(self) -> None:
        for at in range(0, len(self._waiting), _BATCH_MOST):
            self._client.log_batch(self._run, metrics=self._waiting[at : at + _BATCH_MOST])
        self._waiting, self._sent = [], time.monotonic()

    def end(self, summary: dict[str, Any] | None, report: Path | None) -> None:
        """What is left, the summary and the page as artifacts."""
        self._send()
        if summary is not None:
            self._client.log_dict(self._run, summary, "summary.json")
        if report is not None:
            self._client.log_artifact(self._run, str(report))
        self._client.set_terminated(self._run, "KILLED" if summary is None else "FINISHED")
