"""What a metric is, and what it is worked out from: the outputs for clients' rows, and their labels."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedloom.errors import ConfigError
from fedloom.federation.data import Task
from fedloom.federation.losses import Link
from fedloom.federation.scale import Scale
from fedloom.register import Register, example_of, named

LABELS: tuple[Task, ...] = ("classification", "binary", "multilabel")
NUMBERS: tuple[Task, ...] = ("regression",)
_LEAST = 1e-12  # share of the votes that has a logarithm


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
    link: Link = "logit"
    """What the outputs are, where rows have labels."""
    decision: float | None = None
    """The probability (of margins: the output) from which on a row is taken for a 1; none: by the threshold, and of
    classes the likeliest."""

    def labels(self) -> Tensor:
        """The predicted classes (or 0 and 1)."""
        if self.task == "classification":
            return self.out.argmax(-1) if self.decision is None else decided(self.out, self.decision)
        if self.decision is None:
            return (self.out > self.threshold).to(self.y.dtype)
        return (self.out.double() >= as_output(self.decision, self.link)).to(self.y.dtype)

    def truths(self) -> Tensor:
        """1 where a row has the class or the label, else 0, NaN where that is not known: (rows, classes or labels)."""
        if self.task != "classification":
            return self.y.double()
        return one_hot(self.y, self.out.shape[-1]).double()

    def probabilities(self) -> Tensor:
        """Of each class, or of each label's 1: (rows, classes or labels), in float64."""
        out = self.out.double()
        if self.link == "probability":
            return out.clamp(0, 1)
        return torch.softmax(out, -1) if self.task == "classification" else torch.sigmoid(out)

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


def together(several: Iterable[Predictions], vote: bool) -> Predictions:
    """What several models say of the same rows: the mean of their probabilities, or how many of them say so.

    Of numbers, and of margins that nobody votes on, it is the mean.
    """
    total, count, last = torch.zeros((), dtype=torch.float64), 0, None
    for last in several:
        total, count = total + _said(last, vote), count + 1
    assert last is not None
    return replace(last, out=_as_outputs(last, total / count, vote).to(last.out.dtype))


def _said(one: Predictions, vote: bool) -> Tensor:
    if one.task == "regression" or (one.link == "margin" and not vote):
        return one.out.double()
    if not vote:
        return one.probabilities()
    labels = one.labels()
    return one_hot(labels, one.out.shape[-1]).double() if one.task == "classification" else labels.double()


def _as_outputs(one: Predictions, share: Tensor, vote: bool) -> Tensor:
    """The outputs that stand for probabilities, or for shares of the votes."""
    if one.task == "regression" or one.link == "probability" or (one.link == "margin" and not vote):
        return share
    if one.link == "margin":
        return 2 * share - 1
    return share.clamp(min=_LEAST).log() if one.task == "classification" else torch.logit(share, _LEAST)


def as_output(decision: float, link: Link) -> float:
    """The output that stands for a probability."""
    return log_odds(decision) if link == "logit" else decision


def decided(out: Tensor, decision: float) -> Tensor:
    """Of two classes the second where its probability is at least so large, else the first."""
    out = out.double()
    return (out[:, 1] - out[:, 0] >= log_odds(decision)).long()


def log_odds(p: float) -> float:
    """log p/(1 − p)."""
    return math.inf if p >= 1 else -math.inf if p <= 0 else math.log(p / (1 - p))


class Metric(ABC):
    """A number for each client; better when higher, or when lower."""

    name: str
    tasks: tuple[Task, ...] = (*LABELS, *NUMBERS)
    higher_is_better = True
    bounds: tuple[float, float] = (-math.inf, math.inf)
    """No value is below the first or above the second. Where the first is 0, no count is negative."""
    by_rows = False
    """Whether it is a mean over rows, so that the clients' values, weighted by their rows, come to that of all rows."""
    needs_probabilities = False
    """Whether outputs must have probabilities: margins have none."""
    joined = False
    """Whether it depends on all rows at once, by ``points``; its counts are then of bins, and near it."""

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

    def points(self, predictions: Predictions) -> Tensor:
        """Of a metric that is ``joined``: what it needs of each row, the rows being the first axis."""
        raise NotImplementedError

    def of_points(self, points: Tensor) -> float:
        """Of a metric that is ``joined``: its value for all these rows."""
        raise NotImplementedError

    def error(self, counts: Tensor) -> float:
        """How far the value from such counts may be from that of the rows themselves."""
        return 0.0

    def given(self, argument: str) -> Metric:
        """The metric with what is written behind its name and a colon, where it takes such a thing."""
        raise ConfigError(f"the metric {self.name!r} takes nothing behind a colon but a column")

    takes = ""
    """What it takes behind a colon, in a word; nothing: it takes none."""


METRICS: Register[Metric] = Register(
    "metric",
    entry=named,
    right=example_of(Metric),
    must_be="a fedloom.federation.metrics.Metric, or a class derived from it",
    own="module:metric",
    group="fedloom.metrics",
    order=lambda metric: "regression" in metric.tasks,
)


class OfRows(Metric):
    """A metric of your own that is worked out from all rows at once: say ``of``, and nothing else.

    Real devices show no single rows, so that a fleet of them cannot have it.
    """

    joined = True

    @abstractmethod
    def of(self, out: Tensor, y: Tensor) -> float:
        """The metric of some rows, at least one, from outputs in float64 and labels; NaN where it means nothing."""

    def values(self, predictions: Predictions) -> Tensor:
        parts = torch.split(self.points(predictions), predictions.counts.tolist())
        return torch.tensor([self.of_points(part) for part in parts], dtype=torch.float64)

    def points(self, predictions: Predictions) -> Tensor:
        """How many outputs there are, the outputs, the labels."""
        out, y = predictions.out.double(), predictions.y.double()
        many = out.new_full((len(out), 1), out.shape[-1])
        return torch.cat([many, out, y if y.dim() > 1 else y.unsqueeze(-1)], -1)

    def of_points(self, points: Tensor) -> float:
        if len(points) == 0:
            return math.nan
        many = int(points[0, 0])
        out, y = points[:, 1 : 1 + many], points[:, 1 + many :]
        return float(self.of(out, y if y.shape[1] == many else y[:, 0].long()))

    def counts(self, predictions: Predictions) -> Tensor:
        raise ConfigError(f"the metric {self.name!r} needs single rows, which real devices do not show; leave it out")

    def value(self, counts: Tensor) -> Tensor:
        raise NotImplementedError  # of counts that there are none of


class Mean(Metric):
    """A metric that is a mean over rows, or over their labels: its counts are a sum, and how many went into it."""

    by_rows = True

    def value(self, counts: Tensor) -> Tensor:
        return counts[..., 0] / counts[..., 1]

    def counted(self, counts: Tensor) -> Tensor:
        return counts[..., 1]


class RowMean(Mean):
    """The mean over rows of something that one function says of each."""

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


class Labelled(Mean):
    """What is counted of rows whose labels are right or wrong."""

    tasks = LABELS
    bounds = (0.0, 1.0)

    def counts(self, predictions: Predictions) -> Tensor:
        y = predictions.y
        hit, known = ((part.unsqueeze(-1).flatten(1)) for part in (predictions.labels() == y, ~torch.isnan(y)))
        share = (hit & known).sum(-1) / known.sum(-1).clamp(min=1)
        return predictions.sums(torch.stack([share, known.any(-1)], -1))


@METRICS.register("accuracy")
class Accuracy(Labelled):
    """The share of rows that are right; of several labels, the mean over rows of the share of known labels."""


@METRICS.register("error")
class Error(Labelled):
    """The share of rows that are wrong: 1 − accuracy."""

    higher_is_better = False

    def value(self, counts: Tensor) -> Tensor:
        return 1 - super().value(counts)
