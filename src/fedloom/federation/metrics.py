"""How good predictions are: one number a client for each metric, and one for the rows of all clients together.

A metric is worked out from counts that add up over rows, so that what holds for each client and what holds for all of
them (the pooled value, which papers report) come of the same few numbers, and a client need not show its rows. All
metrics agree with scikit-learn's, client by client and pooled.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from copy import copy
from typing import Literal

import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.data import FederatedData, Task
from fedloom.federation.losses import Loss
from fedloom.federation.metric import LABELS, METRICS, NUMBERS, Metric, OfRows, Predictions, RowMean
from fedloom.federation.scores import confusion
from fedloom.register import hint

__all__ = ["METRICS", "Metric", "OfRows", "Predictions", "RowMean"]

OF = ":"
"""Between a metric and the column that it is of: "mae:PM2.5"."""
EACH = "*"
"""In the place of a column: each of them."""


@METRICS.register("rmse")
class RootMeanSquare(Metric):
    """The root of the mean squared error of each column, then the mean over columns."""

    tasks = NUMBERS
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

    tasks = NUMBERS
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

    tasks = LABELS
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

    tasks = LABELS
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
        self.name = f"{metric.name}{OF}{column}"
        for kept in ("tasks", "higher_is_better", "bounds", "by_rows", "needs_probabilities", "joined"):
            setattr(self, kept, getattr(metric, kept))

    def counts(self, predictions: Predictions) -> Tensor:
        return self.metric.counts(predictions.column(self.number))

    def value(self, counts: Tensor) -> Tensor:
        return self.metric.value(counts)

    def counted(self, counts: Tensor) -> Tensor | None:
        return self.metric.counted(counts)

    def values(self, predictions: Predictions) -> Tensor:
        return self.metric.values(predictions.column(self.number))

    def points(self, predictions: Predictions) -> Tensor:
        return self.metric.points(predictions.column(self.number))

    def of_points(self, points: Tensor) -> float:
        return self.metric.of_points(points)

    def error(self, counts: Tensor) -> float:
        return self.metric.error(counts)


def _smape(p: Predictions) -> Tensor:
    """2|p − a|/(|p| + |a|), and 0 where both are 0: between 0 and 2."""
    size = p.out.abs() + p.y.abs()
    return torch.where(size == 0, 0.0, 2 * (p.out - p.y).abs() / size).mean(-1)


METRICS.register("f1", Confusion(lambda hits, alarms, misses: (2 * hits, 2 * hits + alarms + misses)))
METRICS.register("precision", Confusion(lambda hits, alarms, misses: (hits, hits + alarms)))
METRICS.register("recall", Confusion(lambda hits, alarms, misses: (hits, hits + misses)))
_ABOVE_0 = (0.0, math.inf)
METRICS.register("mae", RowMean("mae", NUMBERS, lambda p: (p.out - p.y).abs().mean(-1), higher=False, bounds=_ABOVE_0))
METRICS.register("smape", RowMean("smape", NUMBERS, _smape, higher=False, bounds=(0.0, 2.0)))
_DEFAULT: dict[Task, tuple[str, ...]] = {
    "classification": ("accuracy",),
    "binary": ("accuracy",),
    "multilabel": ("f1", "balanced-accuracy"),
    "regression": ("rmse", "mae"),
}
RARE = 0.2
"""Where the rarer of two classes has less than this share of the training rows, accuracy would mislead …"""
_RARE = ("roc-auc", "average-precision", "balanced-accuracy", "accuracy")
"""… and these are the default metrics."""


def names_for(data: FederatedData, names: Sequence[str] | None) -> tuple[str, ...]:
    """These metrics, or the defaults for the task; of two classes of which one is rare, those that see it."""
    if names:
        return tuple(names)
    two = data.task == "binary" or (data.task == "classification" and data.outputs == 2)
    return _RARE if two and data.here and 0 < _rarest(data) < RARE else _DEFAULT[data.task]


def metrics_of(data: FederatedData, names: Sequence[str] | None) -> list[Metric]:
    """The metrics of these names, or the defaults for the data."""
    return metrics_for(data.task, names_for(data, names), data.columns)


def _rarest(data: FederatedData) -> float:
    """The share of the rarer of two classes among the training rows; 1 where there are no rows."""
    counts = data.class_counts()
    return float(counts.min() / counts.sum()) if float(counts.sum()) else 1.0


def loss_metric(loss: Loss) -> Metric:
    """The training loss as a metric."""
    return RowMean(
        "loss", (*LABELS, *NUMBERS), lambda p: loss.rows(p.out.unsqueeze(0), p.y.unsqueeze(0))[0], higher=False
    )


def fidelity(reference: Tensor) -> Metric:
    """The mean distance of the outputs to those of another model."""
    return RowMean(
        "fidelity",
        (*LABELS, *NUMBERS),
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
        base, _, column = _parted(name)
        metric = metric_of(name)
        if task not in metric.tasks:
            fitting = ", ".join(m.name for m in METRICS.values() if task in m.tasks)
            raise ConfigError(f"the metric {base!r} does not fit {task} data; choose among {fitting}")
        numbers = [] if column is None else _numbers(name, column, columns)
        chosen += [OfColumn(metric, columns[number], number) for number in numbers] if numbers else [metric]
    return chosen


def metric_of(name: str) -> Metric:
    """The metric of a name, with its argument and without the column that it is of; an error where there is none."""
    base, argument, _ = _parted(name)
    metric = METRICS.find(base)
    if argument is not None:
        metric = copy(metric.given(argument))
        metric.name = f"{base}{OF}{argument}"
    return metric


def from_counts(name: str, counts: Tensor) -> float:
    """A metric by name, of all rows that were counted; the loss and the fidelity are means over rows, too."""
    metric = _metric(name)
    return float(counts[0] / counts[1] if metric is None else metric.value(counts))


def from_points(name: str, points: Tensor) -> float:
    """A metric by name, of all rows whose points were joined."""
    metric = _metric(name)
    assert metric is not None
    return metric.of_points(points)


def error_of(name: str, counts: Tensor) -> float:
    """How far a metric of binned rows may be from that of the rows themselves; 0 for most, which add up."""
    metric = _metric(name)
    return 0.0 if metric is None else metric.error(counts)


def headline(name: str) -> Literal["weighted", "pooled"]:
    """By which statistic a metric is told where there is room for one: that of all clients' rows together.

    Of a mean over rows that is the clients' mean weighted by rows; what is not such a mean must be pooled.
    """
    metric = _metric(name)
    return "weighted" if metric is None or metric.by_rows else "pooled"


def base_name(name: str) -> str:
    """The metric without the column that it is of."""
    return _parted(name)[0]


def higher_is_better(name: str) -> bool:
    """Whether more of this metric is better."""
    metric = _metric(name)
    return metric is not None and metric.higher_is_better


def _metric(name: str) -> Metric | None:
    """The metric that a history calls so; none for the loss and the fidelity, which have no entry."""
    base = base_name(name)
    return METRICS.find(base) if base in METRICS or OF in base else None


def _parted(name: str) -> tuple[str, str | None, str | None]:
    """A metric, what it takes, and the column that it is of: "mae:PM2.5", "top-k:3", "quantile:0.9:PM2.5"; or with a
    user's own, "module:metric:PM2.5"."""
    base, of, column = name.partition(OF)
    if of and base not in METRICS and _is_module(base):
        attribute, of, column = column.partition(OF)
        base = f"{base}{OF}{attribute}"
    argument = None
    if of and base in METRICS and METRICS[base].takes:
        argument, of, column = column.partition(OF)
    return base, argument, column if of else None


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
