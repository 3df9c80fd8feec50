"""Metrics of probabilities and of the order in which a model puts rows: what a threshold cannot spoil.

The order of rows (ROC-AUC, average precision) does not come of counts that add up. Where the rows are here, all scores
are joined and the value is exact. Where a node must not show single rows, it counts positives and negatives in bins of
the score: bins add up, and how far their value may be from the exact one follows from the bins themselves.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.metric import LABELS, METRICS, NUMBERS, Mean, Metric, Predictions, RowMean

BINS = 1000
"""In how many bins of equal width in log-odds scores are counted where single rows are not shown …"""
WIDEST = 15.0
"""… from −15 to 15; the first and the last have what is beyond."""
CALIBRATION_BINS = 10
"""Bins of the calibration error, of equal width in the probability."""


@dataclass(frozen=True, eq=False)
class Steps:
    """Scores of several owners' rows in ascending order: what is equal is one step, with its positives and negatives.

    An owner's steps follow one another.
    """

    score: Tensor
    owner: Tensor
    positives: Tensor
    negatives: Tensor
    owners: int

    @staticmethod
    def of(score: Tensor, truth: Tensor, owner: Tensor, owners: int) -> Steps:
        """From one score and one truth (1, 0, or NaN for unknown) a row."""
        known = ~torch.isnan(truth)
        score, truth, owner = score[known].double(), truth[known], owner[known]
        order = torch.argsort(score, stable=True)
        order = order[torch.argsort(owner[order], stable=True)]
        score, truth, owner = score[order], truth[order], owner[order]
        new = torch.ones(len(score), dtype=torch.bool)
        new[1:] = (score[1:] != score[:-1]) | (owner[1:] != owner[:-1])
        at = new.cumsum(0) - 1
        blank = torch.zeros(int(new.sum()), dtype=torch.float64)
        positives = blank.index_add(0, at, truth)
        return Steps(score[new], owner[new], positives, blank.index_add(0, at, 1 - truth), owners)

    @staticmethod
    def of_bins(bins: Tensor) -> Steps:
        """From numbers of negatives and positives, (owners, bins, 2); of a bin all scores count as equal."""
        owners, many = bins.shape[:2]
        places = torch.arange(many, dtype=torch.float64).repeat(owners)
        owner = torch.arange(owners).repeat_interleave(many)
        return Steps(places, owner, bins[..., 1].reshape(-1), bins[..., 0].reshape(-1), owners)

    def total(self, each: Tensor) -> Tensor:
        """The sum over the steps of each owner."""
        return torch.zeros(self.owners, dtype=torch.float64).index_add_(0, self.owner, each)

    def above(self, each: Tensor) -> Tensor:
        """The sum over the steps of the same owner that are higher."""
        ends = self.total(each).cumsum(0)[self.owner]
        return (ends - each.cumsum(0)).clamp(min=0)

    def auc(self) -> Tensor:
        """How often a positive row is above a negative one, equal ones counting half; NaN where one kind is missing."""
        pairs = self.total(self.positives) * self.total(self.negatives)
        higher = self.total(self.negatives * (self.above(self.positives) + self.positives / 2))
        return torch.where(pairs > 0, higher / pairs, torch.nan)

    def precision(self) -> Tensor:
        """The mean over positive rows of the share of positives among the rows that are at least as high."""
        return self._mean(self.positives, self.positives + self.negatives)

    def _mean(self, hits: Tensor, rows: Tensor) -> Tensor:
        """Over positive rows, where each counts when so many hits among so many rows of its step came before it."""
        hits = self.above(self.positives) + hits
        share = hits / (self.above(self.positives) + self.above(self.negatives) + rows)
        positives = self.total(self.positives)
        both = (positives > 0) & (self.total(self.negatives) > 0)
        found = self.total(torch.where(self.positives > 0, self.positives * share, 0))
        return torch.where(both, found / positives, torch.nan)

    def auc_error(self) -> Tensor:
        """By how much the AUC may change if the rows of a step were told apart."""
        pairs = self.total(self.positives) * self.total(self.negatives)
        return torch.where(pairs > 0, self.total(self.positives * self.negatives) / (2 * pairs), 0.0)

    def precision_error(self) -> Tensor:
        """By how much the average precision may change, if all positives of a step came first, or all last."""
        value = self.precision()
        one = torch.ones_like(self.positives)
        low, high = self._mean(one, one + self.negatives), self._mean(self.positives, self.positives)
        return torch.nan_to_num(torch.maximum(high - value, value - low))


class Ranked(Metric):
    """A metric of the order of rows: of a binary task that of its 1s, of several labels the mean over them.

    Of classes it is the mean over the classes, each against the rest; a class or a label that all rows have, or none,
    is left out.
    """

    tasks = LABELS
    bounds = (0.0, 1.0)
    joined = True

    @abstractmethod
    def of(self, steps: Steps) -> Tensor:
        """The metric of each owner."""

    @abstractmethod
    def error_of(self, steps: Steps) -> Tensor:
        """How far it may be off where steps are bins."""

    def ordered(self, predictions: Predictions) -> tuple[Tensor, Tensor]:
        """Scores and truths of each class or label: (rows, classes)."""
        if predictions.task == "classification":
            return predictions.probabilities(), predictions.truths()
        return predictions.out.double(), predictions.truths()

    def values(self, predictions: Predictions) -> Tensor:
        owner, owners = predictions.owner, len(predictions.counts)
        columns = zip(*(part.unbind(-1) for part in self.ordered(predictions)), strict=True)
        return _mean_known([self.of(Steps.of(score, truth, owner, owners)) for score, truth in columns])

    def points(self, predictions: Predictions) -> Tensor:
        return torch.stack(self.ordered(predictions), -1)

    def of_points(self, points: Tensor) -> float:
        nobody = torch.zeros(len(points), dtype=torch.int64)
        columns = (points[:, k].unbind(-1) for k in range(points.shape[1]))
        return float(_mean_known([self.of(Steps.of(score, truth, nobody, 1)) for score, truth in columns]))

    def counts(self, predictions: Predictions) -> Tensor:
        score, truth = self.ordered(predictions)
        if predictions.task == "classification" or predictions.link == "probability":
            score = torch.logit(score.clamp(0, 1))
        bins = bin_of(score)
        places = (predictions.owner.unsqueeze(-1) * bins.shape[-1] + torch.arange(bins.shape[-1])) * BINS + bins
        kinds = torch.stack([truth == 0, truth == 1], -1).double().reshape(-1, 2)
        blank = torch.zeros(len(predictions.counts) * bins.shape[-1] * BINS, 2, dtype=torch.float64)
        counted = blank.index_add_(0, places.reshape(-1), kinds)
        return counted.view(len(predictions.counts), bins.shape[-1], BINS, 2)

    def value(self, counts: Tensor) -> Tensor:
        return _over_columns(counts, self.of)

    def counted(self, counts: Tensor) -> Tensor:
        return counts.sum((-1, -2)).amax(-1)

    def error(self, counts: Tensor) -> float:
        return float(_over_columns(counts, self.error_of))


@METRICS.register("roc-auc")
class AreaUnderCurve(Ranked):
    """The area under the ROC curve: how often a positive row is above a negative one."""

    def of(self, steps: Steps) -> Tensor:
        return steps.auc()

    def error_of(self, steps: Steps) -> Tensor:
        return steps.auc_error()


@METRICS.register("average-precision")
class AveragePrecision(Ranked):
    """The mean over positive rows of the precision at each; of two classes that of the second, as of yes and no."""

    def of(self, steps: Steps) -> Tensor:
        return steps.precision()

    def error_of(self, steps: Steps) -> Tensor:
        return steps.precision_error()

    def ordered(self, predictions: Predictions) -> tuple[Tensor, Tensor]:
        score, truth = super().ordered(predictions)
        second = slice(1, 2) if predictions.task == "classification" and score.shape[-1] == 2 else slice(None)
        return score[:, second], truth[:, second]


def bin_of(score: Tensor) -> Tensor:
    """The number of the bin that a score, in log-odds, falls into."""
    place = (score.clamp(-WIDEST, WIDEST) + WIDEST) * (BINS / (2 * WIDEST))
    return torch.nan_to_num(place, nan=0.0).long().clamp(max=BINS - 1)


def bin_edge(number: int) -> float:
    """The score at which a bin begins."""
    return -WIDEST + number * 2 * WIDEST / BINS


def _mean_known(columns: list[Tensor]) -> Tensor:
    """The mean over classes or labels of what is known; NaN where nothing is."""
    return torch.stack(columns, -1).nanmean(-1)


def _over_columns(counts: Tensor, of: object) -> Tensor:
    assert callable(of)
    columns = counts.reshape(-1, *counts.shape[-3:]).unbind(1)
    found = _mean_known([of(Steps.of_bins(column)) for column in columns])
    return found.reshape(counts.shape[:-3])


class OfProbabilities(Mean):
    """A mean of something over all rows, or over all known labels of all rows, that needs probabilities."""

    tasks = LABELS
    higher_is_better = False
    needs_probabilities = True

    @abstractmethod
    def each(self, p: Tensor, truth: Tensor) -> Tensor:
        """Of each known label: (n,)."""

    def counts(self, predictions: Predictions) -> Tensor:
        p, truth = predictions.probabilities(), predictions.truths()
        if predictions.task == "classification":
            each, known = self.each_row(p, truth), torch.ones(len(p), dtype=torch.float64)
        else:
            there = ~torch.isnan(truth)
            each, known = (self.each(p, torch.nan_to_num(truth)) * there).sum(-1), there.double().sum(-1)
        return predictions.sums(torch.stack([each, known], -1))

    def each_row(self, p: Tensor, truth: Tensor) -> Tensor:
        """Of each row with a class: (rows,)."""
        return self.each(p, truth).sum(-1)


@METRICS.register("log-loss")
class LogLoss(OfProbabilities):
    """−log of the probability of what is true, whatever the training loss is."""

    bounds = (0.0, math.inf)

    def each(self, p: Tensor, truth: Tensor) -> Tensor:
        p = p.clamp(_EPS, 1 - _EPS)
        return -(truth * p.log() + (1 - truth) * torch.log1p(-p))

    def each_row(self, p: Tensor, truth: Tensor) -> Tensor:
        return -(truth * p.clamp(min=_EPS).log()).sum(-1)


@METRICS.register("brier")
class Brier(OfProbabilities):
    """(p − y)²; of more than two classes summed over them, so between 0 and 2."""

    bounds = (0.0, 2.0)

    def each(self, p: Tensor, truth: Tensor) -> Tensor:
        return (p - truth).square()

    def each_row(self, p: Tensor, truth: Tensor) -> Tensor:
        return self.each(p, truth).sum(-1) / (2 if p.shape[-1] == 2 else 1)


@METRICS.register("calibration-error")
class CalibrationError(Metric):
    """The mean distance of probability and frequency over ten bins of equal width, weighted by their rows (ECE).

    Of yes and no, and of labels, the probability is that of a 1; of more than two classes that of the class said.
    """

    tasks = LABELS
    bounds = (0.0, 1.0)
    higher_is_better = False
    needs_probabilities = True

    def counts(self, predictions: Predictions) -> Tensor:
        p, truth = predictions.probabilities(), predictions.truths()
        if predictions.task == "classification":
            p, truth = _certain(p, truth)
        there = ~torch.isnan(truth)
        edges = torch.linspace(0, 1, CALIBRATION_BINS + 1, dtype=torch.float64)[1:-1]
        at = predictions.owner.unsqueeze(-1) * CALIBRATION_BINS + torch.bucketize(p.contiguous(), edges)
        each = torch.stack([there.double(), p * there, torch.nan_to_num(truth)], -1)
        blank = torch.zeros(len(predictions.counts) * CALIBRATION_BINS, 3, dtype=torch.float64)
        return blank.index_add_(0, at.reshape(-1), each.reshape(-1, 3)).view(-1, CALIBRATION_BINS, 3)

    def value(self, counts: Tensor) -> Tensor:
        return (counts[..., 1] - counts[..., 2]).abs().sum(-1) / counts[..., 0].sum(-1)

    def counted(self, counts: Tensor) -> Tensor:
        return counts[..., 0].sum(-1)


def _certain(p: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Of two classes the second; of more the one that is said."""
    said = torch.ones(len(p), 1, dtype=torch.int64) if p.shape[-1] == 2 else p.argmax(-1, keepdim=True)
    return p.gather(-1, said), truth.gather(-1, said)


@METRICS.register("top-k")
class Top(Mean):
    """The share of rows whose class is among the K likeliest: "top-k:3"; without a number, 5."""

    tasks = ("classification",)
    bounds = (0.0, 1.0)
    takes = "K"

    def __init__(self, k: int = 5) -> None:
        self.k = k

    def given(self, argument: str) -> Metric:
        if not argument.isdecimal() or int(argument) < 1:
            raise ConfigError(f"the metric 'top-k:{argument}' needs a whole number from 1 on, such as top-k:3")
        return Top(int(argument))

    def counts(self, predictions: Predictions) -> Tensor:
        out, y = predictions.out, predictions.y.unsqueeze(-1)
        own = out.gather(-1, y)
        later = torch.arange(out.shape[-1]) > y  # of equal ones the later class comes first, as in scikit-learn
        before = ((out > own) | ((out == own) & later)).sum(-1)
        return predictions.sums(torch.stack([before < self.k, torch.ones_like(before)], -1))


@METRICS.register("kappa")
class Kappa(Metric):
    """Cohen's κ, of the confusion matrix: how much oftener classes are right than by chance."""

    tasks = LABELS
    bounds = (-1.0, 1.0)

    def counts(self, predictions: Predictions) -> Tensor:
        return matrices(predictions)

    def value(self, counts: Tensor) -> Tensor:
        rows = counts.sum((-1, -2))
        chance = (counts.sum(-1) * counts.sum(-2)).sum(-1) / rows.square()
        right = counts.diagonal(dim1=-2, dim2=-1).sum(-1) / rows
        return torch.where(chance < 1, (right - chance) / (1 - chance), torch.nan)

    def counted(self, counts: Tensor) -> Tensor:
        return torch.where((counts >= 0).all(-1).all(-1), counts.sum((-1, -2)), -1.0)  # less than none cannot be


def matrices(predictions: Predictions) -> Tensor:
    """How many rows of each class (the lines) were taken for each class: (clients, classes, classes).

    Labels of 0 and 1 have two classes, all known labels of all rows being counted together.
    """
    said, truth = predictions.labels(), predictions.y
    owner = predictions.owner
    classes = predictions.out.shape[-1] if predictions.task == "classification" else 2
    if predictions.task != "classification":
        known = ~torch.isnan(truth)
        owner = owner.unsqueeze(-1).expand_as(truth)[known]
        said, truth = said[known].long(), truth[known].long()
    cells = torch.bincount(
        (owner * classes + truth) * classes + said, minlength=len(predictions.counts) * classes * classes
    )
    return cells.view(-1, classes, classes).double()


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


@METRICS.register("quantile")
class Quantile(RowMean):
    """The pinball loss of a quantile, "quantile:0.9"; without a number, that of the median."""

    takes = "Q"

    def __init__(self, q: float = 0.5) -> None:
        super().__init__("quantile", NUMBERS, self._pinball, higher=False, bounds=(0.0, math.inf))
        self.q = q

    def given(self, argument: str) -> Metric:
        try:
            q = float(argument)
        except ValueError:
            q = math.nan
        if not 0 < q < 1:
            raise ConfigError(f"the metric 'quantile:{argument}' needs a number between 0 and 1, such as quantile:0.9")
        return Quantile(q)

    def _pinball(self, p: Predictions) -> Tensor:
        short = p.y - p.out
        return torch.maximum(self.q * short, (self.q - 1) * short).mean(-1)


_EPS = torch.finfo(torch.float64).eps
