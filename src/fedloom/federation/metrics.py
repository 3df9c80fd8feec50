"""How good predictions are: one number a client for each metric, and one for the rows of all clients together.

A metric is worked out from counts that add up over rows, so that what holds for each client and what holds for all of
them (the pooled value, which papers report) come of the same few numbers, and a client need not show its rows. All
metrics agree with scikit-learn's, client by client and pooled.
"""

from __future__ import annotations

import importlib.util
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.data import Task
from fedloom.federation.losses import Loss
from fedloom.federation.scale import Scale
from fedloom.register import Register, example_of, hint, named

OF = ":"
"""Between a metric and the column that it is of: "mae:PM2.5"."""
EACH = "*"
"""In the place of a column: each of them."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """Outputs and labels of many clients' rows, one client after the other, and the client of each row."""

    out: Tensor
    y: Tensor
    owner: Tensor
    """0, 1, … for each row, ascending."""
    counts: Tensor
    """Rows of each client."""
    task: Task
    threshold: float = 0.0
    """The output above which a model says 1, where labels are 0 and 1."""

    def labels(self) -> Tensor:
        """The predicted classes (or 0 and 1)."""
        if self.task == "classification":
            return self.out.argmax(-1)
        return (self.out > self.threshold).to(self.y.dtype)

    def column(self, number: int) -> Predictions:
        """Those of one target, or of one of several labels."""
        return replace(self, out=self.out[:, [number]], y=self.y[:, [number]])

    def original(self, scale: Scale | None, clients: Tensor) -> Predictions:
        """In the units in which targets were measured; ``clients`` are the numbers of the owners 0, 1, …"""
        if scale is None:
            return self
        rows = clients[self.owner]
        return replace(self, out=scale.original(self.out, rows), y=scale.original(self.y, rows))

    def sums(self, each: Tensor) -> Tensor:
        """The sum over each client's rows, in float64."""
        sums = torch.zeros(len(self.counts), *each.shape[1:], dtype=torch.float64)
        return sums.index_add_(0, self.owner, each.double())


class Metric(ABC):
    """A number for each client; better when higher, or when lower."""

    name: str
    tasks: tuple[Task, ...]
    higher_is_better = True
    bounds: tuple[float, float] = (-math.inf, math.inf)
    """No value is below the first or above the second. Where the first is 0, no count is negative."""

    @abstractmethod
    def counts(self, predictions: Predictions) -> Tensor:
        """What adds up over rows, of each client: shape (clients, …), in float64."""

    @abstractmethod
    def value(self, counts: Tensor) -> Tensor:
        """The metric from such counts, or from sums of them; NaN where there is nothing to evaluate."""

    def counted(self, counts: Tensor) -> Tensor | None:
        """How many rows, or labels of rows, went into such counts. Default: they do not say."""
        return None

    def values(self, predictions: Predictions) -> Tensor:
        """One number a client (NaN for a client without rows), in float64."""
        return self.value(self.counts(predictions))


METRICS: Register[Metric] = Register(
    "metric",
    entry=named,
    right=example_of(Metric),
    must_be="a fedloom.federation.metrics.Metric, or a class derived from it",
    own="module:metric",
    group="fedloom.metrics",
    order=lambda metric: "regression" in metric.tasks,
)


class RowMean(Metric):
    """A metric that is a mean over rows of something."""

    def __init__(
        self,
        name: str,
        tasks: tuple[Task, ...],
        each: Callable[[Predictions], Tensor],
        higher: bool,
        bounds: tuple[float, float] = Metric.bounds,
    ) -> None:
        self.name, self.tasks, self.each, self.higher_is_better, self.bounds = name, tasks, each, higher, bounds

    def counts(self, predictions: Predictions) -> Tensor:
        each = self.each(predictions)
        return predictions.sums(torch.stack([each, torch.ones_like(each)], -1))

    def value(self, counts: Tensor) -> Tensor:
        return counts[..., 0] / counts[..., 1]

    def counted(self, counts: Tensor) -> Tensor:
        return counts[..., 1]


@METRICS.register("accuracy")
class Accuracy(Metric):
    """The share of rows that are right; of several labels, the mean over rows of the share of known labels."""

    tasks = ("classification", "binary", "multilabel")
    bounds = (0.0, 1.0)

    def counts(self, predictions: Predictions) -> Tensor:
        y = predictions.y
        hit, known = ((part.unsqueeze(-1).flatten(1)) for part in (predictions.labels() == y, ~torch.isnan(y)))
        share = (hit & known).sum(-1) / known.sum(-1).clamp(min=1)
        return predictions.sums(torch.stack([share, known.any(-1)], -1))

    def value(self, counts: Tensor) -> Tensor:
        return counts[..., 0] / counts[..., 1]

    def counted(self, counts: Tensor) -> Tensor:
        return counts[..., 1]


@METRICS.register("rmse")
class RootMeanSquare(Metric):
    """The root of the mean squared error of each column, then the mean over columns."""

    tasks = ("regression",)
    higher_is_better = False
    bounds = (0.0, math.inf)

    def counts(self, predictions: Predictions) -> Tensor:
        square = (predictions.out - predictions.y).double().square()
        return predictions.sums(torch.stack([square, torch.ones_like(square)], -1))

    def value(self, counts: Tensor) -> Tensor:
        return (counts[..., 0] / counts[..., 1]).sqrt().mean(-1)

    def counted(self, counts: Tensor) -> Tensor:
        return counts[..., 1]


@METRICS.register("r2")
class Determination(Metric):
    """R²: 1 − Σ(p − a)²/Σ(a − ā)² of each column, then the mean over columns; undefined for a single row.

    A column that does not vary counts 1 when it is met exactly, and else 0.
    """

    tasks = ("regression",)
    bounds = (-math.inf, 1.0)

    def counts(self, predictions: Predictions) -> Tensor:
        y = predictions.y.double()
        error = (predictions.out - y).square()
        return predictions.sums(torch.stack([error, y.square(), y, torch.ones_like(y)], -1))

    def value(self, counts: Tensor) -> Tensor:
        error, square, total, n = counts.unbind(-1)
        spread = square - total.square() / n
        constant = spread <= 1e-12 * square  # rounding, not variation
        share = torch.where(constant, torch.where(error > 0, 1.0, error), error / spread)
        return torch.where(n < 2, torch.nan, 1 - share).mean(-1)

    def counted(self, counts: Tensor) -> Tensor:
        return counts[..., 3]


class Confusion(Metric):
    """A metric of the numbers of true and false positives and negatives.

    With classes it is the mean over the classes that occur (macro); with labels of 0 and 1 it is that of the 1s, all
    known labels of all rows being counted together (micro).
    """

    tasks = ("classification", "binary", "multilabel")
    bounds = (0.0, 1.0)

    def __init__(self, share: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
        self.share = share

    def counts(self, predictions: Predictions) -> Tensor:
        return confusion(predictions)

    def value(self, counts: Tensor) -> Tensor:
        hits, alarms, misses, rest = counts.unbind(-1)
        part, whole = self.share(hits, alarms, misses)
        ratio = torch.where(whole > 0, part / whole, 0.0)
        if counts.shape[-2] == 1:
            return torch.where(hits + alarms + misses + rest > 0, ratio, torch.nan)[..., 0]
        occurs = hits + alarms + misses > 0
        return ratio.sum(-1) / occurs.sum(-1)

    def counted(self, counts: Tensor) -> Tensor:
        return counts.sum(-1)


@METRICS.register("balanced-accuracy")
class BalancedAccuracy(Metric):
    """The mean over the classes that rows have of the share of their rows that is found; of labels, over 0 and 1."""

    tasks = ("classification", "binary", "multilabel")
    bounds = (0.0, 1.0)

    def counts(self, predictions: Predictions) -> Tensor:
        return confusion(predictions)

    def value(self, counts: Tensor) -> Tensor:
        hits, alarms, misses, rest = counts.unbind(-1)
        if counts.shape[-2] == 1:  # what is 0 is the other class
            hits, misses = torch.cat([hits, rest], -1), torch.cat([misses, alarms], -1)
        there = hits + misses > 0
        return torch.where(there, hits / (hits + misses), 0.0).sum(-1) / there.sum(-1)

    def counted(self, counts: Tensor) -> Tensor:
        return counts.sum(-1)


class OfColumn(Metric):
    """Another metric, of one target or of one of several labels alone."""

    def __init__(self, metric: Metric, column: str, number: int) -> None:
        self.metric, self.number = metric, number
        self.name, self.tasks = f"{metric.name}{OF}{column}", metric.tasks
        self.higher_is_better, self.bounds = metric.higher_is_better, metric.bounds

    def counts(self, predictions: Predictions) -> Tensor:
        return self.metric.counts(predictions.column(self.number))

    def value(self, counts: Tensor) -> Tensor:
        return self.metric.value(counts)

    def counted(self, counts: Tensor) -> Tensor | None:
        return self.metric.counted(counts)


def confusion(p: Predictions) -> Tensor:
    """True positives, false positives, false negatives and true negatives: shape (clients, classes, 4).

    Labels of 0 and 1 have one class, the 1s; a label that is not known counts nowhere.
    """
    said, truth = p.labels(), p.y
    if p.task != "classification":
        known, one, yes = ~torch.isnan(truth), truth == 1, said == 1
        cells = [known & yes & one, known & yes & ~one, known & ~yes & one, known & ~yes & ~one]
        return p.sums(torch.stack([cell.sum(-1) for cell in cells], -1)).unsqueeze(1)
    classes, clients = p.out.shape[-1], len(p.counts)

    def count(rows: Tensor, labels: Tensor) -> Tensor:
        cells = torch.bincount(p.owner[rows] * classes + labels[rows], minlength=clients * classes)
        return cells.view(clients, classes).double()

    every = torch.arange(len(truth))
    hits = count(torch.nonzero(said == truth).flatten(), truth)
    positive, there = count(every, said), count(every, truth)
    rest = p.counts.double().unsqueeze(1) - positive - there + hits
    return torch.stack([hits, positive - hits, there - hits, rest], -1)


def _smape(p: Predictions) -> Tensor:
    """2|p − a|/(|p| + |a|), and 0 where both are 0: between 0 and 2."""
    size = p.out.abs() + p.y.abs()
    return torch.where(size == 0, 0.0, 2 * (p.out - p.y).abs() / size).mean(-1)


_LABELS: tuple[Task, ...] = ("classification", "binary", "multilabel")
_NUMBERS: tuple[Task, ...] = ("regression",)
METRICS.register("f1", Confusion(lambda hits, alarms, misses: (2 * hits, 2 * hits + alarms + misses)))
METRICS.register("precision", Confusion(lambda hits, alarms, misses: (hits, hits + alarms)))
METRICS.register("recall", Confusion(lambda hits, alarms, misses: (hits, hits + misses)))
_ABOVE_0 = (0.0, math.inf)
METRICS.register("mae", RowMean("mae", _NUMBERS, lambda p: (p.out - p.y).abs().mean(-1), higher=False, bounds=_ABOVE_0))
METRICS.register("smape", RowMean("smape", _NUMBERS, _smape, higher=False, bounds=(0.0, 2.0)))
_DEFAULT: dict[Task, tuple[str, ...]] = {
    "classification": ("accuracy",),
    "binary": ("accuracy",),
    "multilabel": ("f1", "balanced-accuracy"),
    "regression": ("rmse", "mae"),
}


def loss_metric(loss: Loss) -> Metric:
    """The training loss as a metric."""
    return RowMean(
        "loss", (*_LABELS, *_NUMBERS), lambda p: loss.rows(p.out.unsqueeze(0), p.y.unsqueeze(0))[0], higher=False
    )


def fidelity(reference: Tensor) -> Metric:
    """The mean distance of the outputs to those of another model."""
    return RowMean(
        "fidelity",
        (*_LABELS, *_NUMBERS),
        lambda p: torch.linalg.vector_norm(p.out - reference, dim=-1),
        higher=False,
        bounds=_ABOVE_0,
    )


def metrics_for(task: Task, names: Sequence[str] | None, columns: Sequence[str] = ()) -> list[Metric]:
    """The metrics of these names, or the defaults for the task.

    "mae:PM2.5" is a metric of one of the ``columns`` (targets, or several labels) alone, by name or number, and
    "mae:*" that of each of them.
    """
    chosen: list[Metric] = []
    for name in names or _DEFAULT[task]:
        base, column = _parted(name)
        metric = METRICS.find(base)
        if task not in metric.tasks:
            fitting = ", ".join(m.name for m in METRICS.values() if task in m.tasks)
            raise ConfigError(f"the metric {base!r} does not fit {task} data; choose among {fitting}")
        numbers = [] if column is None else _numbers(name, column, columns)
        chosen += [OfColumn(metric, columns[number], number) for number in numbers] if numbers else [metric]
    return chosen


def from_counts(name: str, counts: Tensor) -> float:
    """A metric by name, of all rows that were counted; the loss and the fidelity are means over rows, too."""
    metric = _metric(name)
    return float(counts[0] / counts[1] if metric is None else metric.value(counts))


def base_name(name: str) -> str:
    """The metric without the column that it is of."""
    return _parted(name)[0]


def higher_is_better(name: str) -> bool:
    """Whether more of this metric is better."""
    metric = _metric(name)
    return metric is not None and metric.higher_is_better


def is_row_mean(name: str) -> bool:
    """Whether a metric is a mean over rows, so that its values on parts of the rows make that on all of them."""
    metric = _metric(name)
    return metric is None or isinstance(metric, RowMean | Accuracy)


def _metric(name: str) -> Metric | None:
    """The metric that a history calls so; none for the loss and the fidelity, which have no entry."""
    base = base_name(name)
    return METRICS.find(base) if base in METRICS or OF in base else None


def _parted(name: str) -> tuple[str, str | None]:
    """A metric and the column that it is of: "mae", "mae:PM2.5"; or with a user's own, "module:metric:PM2.5"."""
    base, of, column = name.partition(OF)
    if of and base not in METRICS and _is_module(base):
        attribute, of, column = column.partition(OF)
        base = f"{base}{OF}{attribute}"
    return base, column if of else None


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _numbers(name: str, column: str, columns: Sequence[str]) -> list[int]:
    """Which columns a metric is of."""
    if not columns:
        raise ConfigError(f"the metric {name!r} is of one column, but rows have one label; ask for {base_name(name)!r}")
    if column == EACH:
        return list(range(len(columns)))
    if column in columns:
        return [list(columns).index(column)]
    if column.isdecimal() and int(column) < len(columns):
        return [int(column)]
    raise ConfigError(f"the metric {name!r} is of a column that is not there; {hint(column, columns)}")
