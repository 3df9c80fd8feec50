"""Metrics of probabilities and of order are scikit-learn's, client by client and pooled, also with ties."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.data import Task
from fedloom.federation.metrics import METRICS, Metric, Predictions, headline, metrics_for
from fedloom.federation.scores import BINS

Scikit = Callable[[Any, Any], float]


def made(out: Tensor, y: Tensor, counts: tuple[int, ...], task: Task) -> Predictions:
    each = torch.tensor(counts)
    return Predictions(out, y, torch.repeat_interleave(torch.arange(len(counts)), each), each, task)


def pooled(metric: Metric, p: Predictions) -> float:
    return metric.of_points(metric.points(p)) if metric.joined else float(metric.value(metric.counts(p).sum(0)))


def agree(name: str, p: Predictions, wanted: Scikit) -> None:
    """The metric of each client, and that of all rows; ``wanted`` is nan where there is nothing to say."""
    (metric,) = metrics_for(p.task, (name,))
    sizes = p.counts.tolist()
    said = p.probabilities() if metric.needs_probabilities or p.task == "classification" else p.out.double()
    parts = list(zip(p.y.split(sizes), said.split(sizes), strict=True))
    for value, (y, s) in zip(metric.values(p).tolist(), parts, strict=True):
        assert value == pytest.approx(wanted(y.numpy(), s.numpy()), rel=1e-9, abs=1e-12, nan_ok=True)
    assert pooled(metric, p) == pytest.approx(wanted(p.y.numpy(), said.numpy()), rel=1e-9, abs=1e-12, nan_ok=True)


def some(scikit: Scikit) -> Scikit:
    """nan unless there are rows."""
    return lambda y, s: scikit(y, s) if len(y) else math.nan


def expected_error(y: Any, p: Any) -> float:
    frequency, said = calibration_curve(y[:, 0], p[:, 0], n_bins=10)
    edges = np.linspace(0, 1, 11)
    rows = np.bincount(np.searchsorted(edges[1:-1], p[:, 0]), minlength=10)
    return float((rows[rows > 0] * np.abs(frequency - said)).sum() / rows.sum())


BINARY: dict[str, Scikit] = {
    "roc-auc": lambda y, s: sk.roc_auc_score(y, s) if len(np.unique(y)) == 2 else math.nan,
    "average-precision": lambda y, s: sk.average_precision_score(y, s) if len(np.unique(y)) == 2 else math.nan,
    "log-loss": some(lambda y, p: sk.log_loss(y, p, labels=[0.0, 1.0])),
    "brier": some(lambda y, p: float(np.mean((y - p) ** 2))),
    "calibration-error": some(expected_error),
}


@st.composite
def binary_rows(draw: st.DrawFn) -> Predictions:
    """Few different outputs, so that many rows are tied; clients of any size, some of one class."""
    counts = tuple(draw(st.lists(st.integers(0, 8), min_size=1, max_size=4).filter(any)))
    rows = sum(counts)
    out = draw(st.lists(st.sampled_from([-2.0, -0.5, 0.0, 0.25, 3.0]), min_size=rows, max_size=rows))
    y = draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=rows, max_size=rows))
    return made(torch.tensor(out)[:, None], torch.tensor(y)[:, None], counts, "binary")


@settings(max_examples=40)
@given(binary_rows())
@pytest.mark.parametrize("name", BINARY)
def test_of_yes_and_no_they_are_scikit_learns_with_ties_and_clients_of_one_class(name: str, p: Predictions) -> None:
    agree(name, p, BINARY[name])


def test_the_brier_score_of_yes_and_no_is_scikit_learns() -> None:
    y, out = torch.tensor([[1.0], [0.0], [1.0]]), torch.tensor([[0.3], [-1.0], [-2.0]])
    wanted = sk.brier_score_loss(y[:, 0].numpy(), torch.sigmoid(out.double())[:, 0].numpy())
    assert pooled(METRICS["brier"], made(out, y, (3,), "binary")) == pytest.approx(wanted)


def ovr(scikit: Scikit) -> Scikit:
    """The mean over the classes that some rows have and some have not."""

    def mean(y: Any, p: Any) -> float:
        truths = [(y == k).astype(int) for k in range(p.shape[1])]
        found = [scikit(truth, p[:, k]) for k, truth in enumerate(truths) if 0 < truth.sum() < len(truth)]
        return float(np.mean(found)) if found else math.nan

    return mean


CLASSES: dict[str, Scikit] = {
    "roc-auc": ovr(sk.roc_auc_score),
    "average-precision": ovr(sk.average_precision_score),
    "log-loss": some(lambda y, p: sk.log_loss(y, p, labels=[0, 1, 2])),
    "brier": some(lambda y, p: sk.brier_score_loss(y, p, labels=[0, 1, 2])),
    "top-k:2": some(lambda y, p: sk.top_k_accuracy_score(y, p, k=2, labels=[0, 1, 2])),
    "kappa": lambda y, p: kappa(y, p.argmax(1)),
}


def kappa(y: Any, said: Any) -> float:
    return sk.cohen_kappa_score(y, said) if len(set(y) | set(said)) > 1 else math.nan


@st.composite
def class_rows(draw: st.DrawFn) -> Predictions:
    counts = tuple(draw(st.lists(st.integers(0, 8), min_size=1, max_size=3).filter(any)))
    rows = sum(counts)
    row = st.sampled_from([[0.0, 0.0, 0.0], [1.0, 0.0, 2.0], [1.0, 1.0, -1.0], [0.5, 2.0, 0.5], [-3.0, 1.0, 2.0]])
    out = torch.tensor(draw(st.lists(row, min_size=rows, max_size=rows)))
    y = torch.tensor(draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows)), dtype=torch.int64)
    return made(out, y, counts, "classification")


@settings(max_examples=25)
@given(class_rows())
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CLASSES)
def test_of_classes_they_are_scikit_learns_with_ties_and_absent_classes(name: str, p: Predictions) -> None:
    agree(name, p, CLASSES[name])


def test_where_all_classes_are_there_the_auc_is_scikit_learns_own_one_against_the_rest() -> None:
    g = torch.Generator().manual_seed(3)
    p = made(torch.randn(60, 4, generator=g), torch.arange(60) % 4, (60,), "classification")
    wanted = sk.roc_auc_score(p.y.numpy(), p.probabilities().numpy(), multi_class="ovr")
    assert pooled(METRICS["roc-auc"], p) == pytest.approx(wanted)


def test_of_two_classes_the_average_precision_is_that_of_the_second_and_brier_is_halved() -> None:
    g = torch.Generator().manual_seed(4)
    p = made(torch.randn(30, 2, generator=g), torch.arange(30) % 5 // 4, (30,), "classification")
    y, second = p.y.numpy(), p.probabilities()[:, 1].numpy()
    assert pooled(METRICS["average-precision"], p) == pytest.approx(sk.average_precision_score(y, second))
    assert pooled(METRICS["brier"], p) == pytest.approx(sk.brier_score_loss(y, second))
    assert pooled(METRICS["roc-auc"], p) == pytest.approx(sk.roc_auc_score(y, second))


def test_of_several_labels_the_auc_is_the_mean_over_them_and_what_is_not_known_counts_nowhere() -> None:
    g, nan = torch.Generator().manual_seed(5), torch.nan
    out, y = torch.randn(40, 3, generator=g), (torch.rand(40, 3, generator=g) < 0.4).float()
    y[::3, 0], y[:, 2] = nan, 1.0  # some of the first label are unknown, and all rows have the third
    known = ~torch.isnan(y[:, 0])
    wanted = [sk.roc_auc_score(y[known, 0], out[known, 0]), sk.roc_auc_score(y[:, 1], out[:, 1])]
    p = made(out, y, (40,), "multilabel")
    assert pooled(METRICS["roc-auc"], p) == pytest.approx(np.mean(wanted))
    (first,) = metrics_for("multilabel", ("roc-auc:b",), ("b", "c", "d"))
    assert pooled(first, p) == pytest.approx(wanted[0])


def test_a_quantile_is_scikit_learns_pinball_loss() -> None:
    g = torch.Generator().manual_seed(6)
    p = made(torch.randn(20, 2, generator=g), torch.randn(20, 2, generator=g), (20,), "regression")
    for q in (0.1, 0.5, 0.9):
        (metric,) = metrics_for("regression", (f"quantile:{q}",))
        wanted = sk.mean_pinball_loss(p.y.double(), p.out.double(), alpha=q)
        assert (metric.name, pooled(metric, p)) == (f"quantile:{q}", pytest.approx(wanted, rel=1e-6))
    (column,) = metrics_for("regression", ("quantile:0.9:NO2",), ("CO", "NO2"))
    wanted = sk.mean_pinball_loss(p.y[:, 1].double(), p.out[:, 1].double(), alpha=0.9)
    assert (column.name, pooled(column, p)) == ("quantile:0.9:NO2", pytest.approx(wanted, rel=1e-6))


@pytest.mark.parametrize("name", ["top-k:0", "top-k:many", "quantile:1", "quantile:x", "top-k:"])
def test_what_a_metric_cannot_take_is_said(name: str) -> None:
    with pytest.raises(ConfigError, match="needs a"):
        metrics_for("classification" if name.startswith("top") else "regression", (name,))


@settings(max_examples=30)
@given(
    st.integers(0, 2**31), st.sampled_from(["roc-auc", "average-precision"]), st.sampled_from(["binary", "multilabel"])
)
def test_bins_are_as_near_as_they_say_and_add_up_over_clients(seed: int, name: str, task: Task) -> None:
    g = torch.Generator().manual_seed(seed)
    width = 1 if task == "binary" else 2
    out = torch.randn(400, width, generator=g) * 0.3 - 3
    y = (torch.rand(400, width, generator=g) < torch.sigmoid(out + 1)).float()
    y[0], y[1] = 0.0, 1.0
    p = made(out, y, (100, 0, 300), task)
    metric = METRICS[name]
    counts = metric.counts(p)
    assert counts.shape == (3, width, BINS, 2)
    total = counts.sum(0)
    torch.testing.assert_close(total, metric.counts(made(out, y, (400,), task))[0])
    error = metric.error(total)
    assert 0 < error < 0.1
    assert abs(float(metric.value(total)) - pooled(metric, p)) <= error + 1e-12


def test_a_million_rows_are_pooled_exactly() -> None:
    g = torch.Generator().manual_seed(0)
    out = torch.randn(1_000_000, 1, generator=g).round(decimals=3)
    y = (torch.rand(1_000_000, 1, generator=g) < 0.03).float()
    p = made(out, y, (1_000_000,), "binary")
    assert pooled(METRICS["roc-auc"], p) == pytest.approx(sk.roc_auc_score(y[:, 0], out[:, 0]), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "statistic"),
    [("accuracy", "weighted"), ("mae:CO", "weighted"), ("loss", "weighted"), ("average_f1", "weighted"),
     ("f1", "pooled"), ("rmse", "pooled"), ("r2:1", "pooled"), ("roc-auc", "pooled"), ("top-k:3", "weighted")],
)  # fmt: skip
def test_what_is_no_mean_over_rows_is_told_pooled(name: str, statistic: str) -> None:
    assert headline(name) == statistic
