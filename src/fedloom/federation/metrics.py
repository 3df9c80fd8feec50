"""How good predictions are: one number a client for each metric (scikit-learn's wherever it has it)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.data import Task
from fedloom.federation.losses import Loss


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


class Metric(ABC):
    """A number for each client; better when higher, or when lower."""

    name: str
    tasks: tuple[Task, ...]
    higher_is_better = True

    @abstractmethod
    def values(self, predictions: Predictions) -> Tensor:
        """One number a client (NaN for a client without rows), in float64."""


class RowMean(Metric):
    """A metric that is a mean over rows of something."""

    def __init__(self, name: str, tasks: tuple[Task, ...], each: Callable[[Predictions], Tensor], higher: bool) -> None:
        self.name, self.tasks, self.each, self.higher_is_better = name, tasks, each, higher

    def values(self, predictions: Predictions) -> Tensor:
        return _means(predictions, self.each(predictions))


class RootMeanSquare(Metric):
    """The root of the mean squared error of each column, then the mean over columns."""

    name = "rmse"
    tasks = ("regression",)
    higher_is_better = False

    def values(self, predictions: Predictions) -> Tensor:
        return _means(predictions, (predictions.out - predictions.y).square()).sqrt().mean(-1)


class PerClient(Metric):
    """A metric of scikit-learn, called for one client at a time."""

    def __init__(self, name: str, tasks: tuple[Task, ...], function: str) -> None:
        self.name, self.tasks, self.function = name, tasks, function

    def values(self, predictions: Predictions) -> Tensor:
        import warnings

        from sklearn import metrics

        function = getattr(metrics, self.function)
        options: dict[str, Any] = {} if self.function == "balanced_accuracy_score" else {"zero_division": 0.0}
        if options and predictions.task == "classification":
            options["average"] = "macro"
        ends = torch.cumsum(predictions.counts, 0).tolist()
        truth, guess = predictions.y, predictions.labels()
        values = []
        for start, stop in zip([0, *ends[:-1]], ends, strict=True):
            t, g = truth[start:stop].reshape(-1), guess[start:stop].reshape(-1)
            known = ~torch.isnan(t)
            if not bool(known.any()):
                values.append(float("nan"))
                continue
            with warnings.catch_warnings():
                # A client with one class is no news in federated learning.
                warnings.simplefilter("ignore", UserWarning)
                values.append(float(function(t[known].long().numpy(), g[known].long().numpy(), **options)))
        return torch.tensor(values, dtype=torch.float64)


def _means(p: Predictions, each: Tensor) -> Tensor:
    """The mean over each client's rows, in float64."""
    sums = torch.zeros(len(p.counts), *each.shape[1:], dtype=torch.float64)
    sums.index_add_(0, p.owner, each.double())
    return sums / p.counts.reshape(-1, *(1,) * (each.dim() - 1))


def _correct(p: Predictions) -> Tensor:
    hit = p.labels() == p.y
    if hit.dim() == 1:
        return hit
    known = ~torch.isnan(p.y)
    return (hit & known).sum(-1) / known.sum(-1).clamp(min=1)


def _smape(p: Predictions) -> Tensor:
    """2|p − a|/(|p| + |a|), and 0 where both are 0: between 0 and 2."""
    size = p.out.abs() + p.y.abs()
    return torch.where(size > 0, 2 * (p.out - p.y).abs() / size, torch.zeros_like(size)).mean(-1)


_LABELS: tuple[Task, ...] = ("classification", "binary", "multilabel")
_NUMBERS: tuple[Task, ...] = ("regression",)
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        RowMean("accuracy", _LABELS, _correct, higher=True),
        PerClient("f1", _LABELS, "f1_score"),
        PerClient("precision", _LABELS, "precision_score"),
        PerClient("recall", _LABELS, "recall_score"),
        PerClient("balanced-accuracy", _LABELS, "balanced_accuracy_score"),
        RowMean("mae", _NUMBERS, lambda p: (p.out - p.y).abs().mean(-1), higher=False),
        RootMeanSquare(),
        RowMean("smape", _NUMBERS, _smape, higher=False),
    )
}
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


def metrics_for(task: Task, names: tuple[str, ...] | None) -> list[Metric]:
    """The metrics of these names, or the usual ones for the task."""
    chosen = []
    for name in names or _DEFAULT[task]:
        if name not in METRICS:
            raise ConfigError(f"there is no metric {name!r}; choose among {', '.join(METRICS)}")
        if task not in METRICS[name].tasks:
            fitting = ", ".join(m.name for m in METRICS.values() if task in m.tasks)
            raise ConfigError(f"the metric {name!r} does not fit {task} data; choose among {fitting}")
        chosen.append(METRICS[name])
    return chosen


def higher_is_better(name: str) -> bool:
    """Whether more of this metric is better."""
    return METRICS[name].higher_is_better if name in METRICS else False
