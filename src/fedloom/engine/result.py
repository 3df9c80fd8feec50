"""What came of a run: its model, its history and its summary; from a run that just ended, or from a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedloom.engine.matrix import TaskMatrix
from fedloom.errors import RunError
from fedloom.prediction import Predictor
from fedloom.storage.folder import HISTORY, MATRIX, SUMMARY, RunFolder
from fedloom.storage.history import History, Row, as_frame
from fedloom.storage.saved import open_saved
from fedloom.storage.seal import opened
from fedloom.types import State, Vector

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure
    from torch import nn


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
        kind: Literal["curves", "clients", "gain", "participation", "fleet", "tasks", "relations"] = "curves",
        metric: str | None = None,
        **how: Any,
    ) -> Figure:
        """The run as a plotly figure, which a notebook shows and ``write_html`` keeps.

        * ``kind``: learning "curves"; the "clients" at the end; what they "gain" by models of their own, a dot each;
          what became of replies ("participation"); the "fleet" in simulated time; "tasks" in sequence;
          how clients' models are related ("relations").
        * ``metric``: the metric of curves, clients and gain; none: the primary one.
        * ``how``: of curves what they are drawn against (``x="bytes"``) and the ``statistic``; of the gain what it is
          over (``beside="local"``); of others the ``view``.
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
