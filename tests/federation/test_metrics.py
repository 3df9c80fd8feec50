from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.data import Task
from fedloom.federation.losses import LOSSES
from fedloom.federation.metrics import (
    METRICS,
    Predictions,
    base_name,
    from_counts,
    higher_is_better,
    loss_metric,
    metrics_for,
)
from fedloom.federation.scale import Scale

COUNTS = (4, 0, 9, 1)


def predictions(out: Tensor, y: Tensor, task: Task, counts: tuple[int, ...] = COUNTS) -> Predictions:
    each = torch.tensor(counts)
    return Predictions(out, y, torch.repeat_interleave(torch.arange(len(counts)), each), each, task)


def clients(p: Predictions) -> list[tuple[np.ndarray, np.ndarray]]:
    """What is true and what was said, client by client."""
    sizes = p.counts.tolist()
    said = p.out if p.task == "regression" else p.labels()
    return [(t.numpy(), s.numpy()) for t, s in zip(p.y.split(sizes), said.split(sizes), strict=True)]


@pytest.fixture
def classes() -> Predictions:
    g = torch.Generator().manual_seed(1)
    return predictions(torch.randn(14, 3, generator=g), torch.randint(3, (14,), generator=g), "classification")


@pytest.fixture
def numbers() -> Predictions:
    g = torch.Generator().manual_seed(2)
    return predictions(torch.randn(14, 2, generator=g), torch.randn(14, 2, generator=g), "regression")


SCIKIT = {
    "accuracy": lambda t, s: sk.accuracy_score(t, s),
    "f1": lambda t, s: sk.f1_score(t, s, average="macro", zero_division=0.0),
    "precision": lambda t, s: sk.precision_score(t, s, average="macro", zero_division=0.0),
    "recall": lambda t, s: sk.recall_score(t, s, average="macro", zero_division=0.0),
    "balanced-accuracy": lambda t, s: sk.balanced_accuracy_score(t, s),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", SCIKIT)
def test_metrics_of_classes_are_those_of_scikit_learn_for_each_client(name: str, classes: Predictions) -> None:
    values = METRICS[name].values(classes)
    assert values.dtype == torch.float64
    for value, count, (truth, said) in zip(values.tolist(), COUNTS, clients(classes), strict=True):
        assert value == pytest.approx(SCIKIT[name](truth, said)) if count else np.isnan(value)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
@pytest.mark.parametrize(
    ("name", "function"),
    [("mae", sk.mean_absolute_error), ("rmse", sk.root_mean_squared_error), ("r2", sk.r2_score)],
)
def test_metrics_of_numbers_are_those_of_scikit_learn_for_each_client(
    name: str, function: object, numbers: Predictions
) -> None:
    values = METRICS[name].values(numbers)
    for value, count, (truth, said) in zip(values.tolist(), COUNTS, clients(numbers), strict=True):
        wanted = function(truth.astype(float), said.astype(float)) if count else np.nan  # type: ignore[operator]
        assert value == pytest.approx(wanted, rel=1e-6, nan_ok=True)


def test_smape_is_0_where_both_are_0_and_2_at_most() -> None:
    out = torch.tensor([[0.0], [1.0], [1.0], [-2.0]])
    y = torch.tensor([[0.0], [0.0], [3.0], [2.0]])
    p = predictions(out, y, "regression", (1, 1, 1, 1))
    torch.testing.assert_close(METRICS["smape"].values(p), torch.tensor([0.0, 2.0, 1.0, 2.0], dtype=torch.float64))


def test_binary_labels_are_read_off_the_sign_of_the_output() -> None:
    out, y = torch.tensor([[0.3], [-0.3], [2.0], [0.1]]), torch.tensor([[1.0], [0.0], [0.0], [1.0]])
    p = predictions(out, y, "binary", (4,))
    assert METRICS["accuracy"].values(p).tolist() == [0.75]
    assert METRICS["precision"].values(p).tolist() == [pytest.approx(2 / 3)]
    assert METRICS["recall"].values(p).tolist() == [1.0]
    assert METRICS["f1"].values(p).tolist() == [pytest.approx(0.8)]


def test_a_model_fitted_to_0_and_1_by_squares_is_read_off_at_one_half() -> None:
    out, y = torch.tensor([[0.1], [0.4], [0.6], [1.2]]), torch.tensor([[0.0], [0.0], [1.0], [1.0]])
    p = Predictions(out, y, torch.zeros(4, dtype=torch.int64), torch.tensor([4]), "binary", LOSSES["squared"].threshold)
    assert METRICS["accuracy"].values(p).tolist() == [1.0]
    assert METRICS["f1"].values(p).tolist() == [1.0]


def test_unknown_labels_of_several_do_not_count() -> None:
    nan = torch.nan
    y = torch.tensor([[1.0, nan], [0.0, 1.0], [nan, 0.0]])
    out = torch.tensor([[1.0, 1.0], [1.0, 1.0], [-1.0, -1.0]])
    p = predictions(out, y, "multilabel", (3,))
    # known: hits 1 of 1, 1 of 2, 1 of 1; of the positives said (1, 0→1, 1) two are right, and none is missed
    assert METRICS["accuracy"].values(p).tolist() == [pytest.approx((1 + 0.5 + 1) / 3)]
    assert METRICS["precision"].values(p).tolist() == [pytest.approx(2 / 3)]
    assert METRICS["recall"].values(p).tolist() == [1.0]


@pytest.mark.parametrize("name", ["f1", "precision", "recall", "balanced-accuracy"])
def test_a_client_all_of_whose_labels_are_unknown_has_no_value(name: str) -> None:
    y = torch.tensor([[torch.nan, torch.nan], [1.0, 0.0]])
    p = predictions(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), y, "multilabel", (1, 1))
    values = METRICS[name].values(p).tolist()
    assert np.isnan(values[0])
    assert values[1] == 1.0


Judge = Callable[[npt.NDArray[np.float64], npt.NDArray[np.float64]], float]
EVERY: dict[Task, dict[str, Judge]] = {
    "classification": dict(SCIKIT),
    "binary": {
        "accuracy": sk.accuracy_score,
        "f1": lambda t, s: sk.f1_score(t, s, zero_division=0.0),
        "precision": lambda t, s: sk.precision_score(t, s, zero_division=0.0),
        "recall": lambda t, s: sk.recall_score(t, s, zero_division=0.0),
        "balanced-accuracy": sk.balanced_accuracy_score,
    },
    "regression": {
        "mae": sk.mean_absolute_error,
        "rmse": sk.root_mean_squared_error,
        "r2": sk.r2_score,
        "smape": lambda t, s: float(np.mean(2 * np.abs(s - t) / (np.abs(s) + np.abs(t)))),
    },
}
"""What scikit-learn (or, for SMAPE, the formula) says of what is true and what was said."""


def drawn(task: Task, seed: int, counts: tuple[int, ...], unknown: float) -> Predictions:
    """Predictions of some clients at random, with classes and labels that hardly occur, or not at all."""
    g = torch.Generator().manual_seed(seed)
    rows = sum(counts)
    if task == "classification":
        y = torch.randint(2, (rows,), generator=g) * 3  # of five classes two
        out = torch.randn(rows, 5, generator=g) + 2 * torch.nn.functional.one_hot(y, 5)
        return predictions(out, y, task, counts)
    if task == "regression":
        return predictions(torch.randn(rows, 3, generator=g), torch.randn(rows, 3, generator=g), task, counts)
    columns = 1 if task == "binary" else 4
    y = (torch.rand(rows, columns, generator=g) < torch.linspace(0.05, 0.6, columns)).float()
    if task == "multilabel":
        y = torch.where(torch.rand(rows, columns, generator=g) < unknown, torch.nan, y)
    return predictions(torch.randn(rows, columns, generator=g), y, task, counts)


def by_scikit(name: str, p: Predictions, rows: slice = slice(None)) -> float:
    """The value that scikit-learn gives for some rows, all known labels of several being counted together."""
    truth, said = p.y[rows], (p.out if p.task == "regression" else p.labels())[rows]
    if p.task == "multilabel":
        known = ~torch.isnan(truth)
        truth, said = truth[known], said[known]
    if truth.numel() == 0:
        return float("nan")
    if p.task == "binary":
        truth, said = truth.flatten(), said.flatten()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's, of classes that do not occur
        kind: Task = "binary" if p.task == "multilabel" else p.task
        return float(EVERY[kind][name](truth.double().numpy(), said.double().numpy()))


@given(
    task=st.sampled_from(["classification", "binary", "multilabel", "regression"]),
    seed=st.integers(0, 999),
    counts=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    unknown=st.sampled_from([0.0, 0.3, 0.95]),
)
def test_every_metric_is_scikit_learns_for_each_client_and_for_all_rows_together(
    task: Task, seed: int, counts: list[int], unknown: float
) -> None:
    p = drawn(task, seed, tuple(counts), unknown)
    ends = np.cumsum(counts).tolist()
    slices = [slice(start, stop) for start, stop in zip([0, *ends[:-1]], ends, strict=True)]
    for name in EVERY["binary" if task == "multilabel" else task]:
        if (task, name) == ("multilabel", "accuracy"):
            continue  # is a mean over rows
        found = METRICS[name].counts(p)
        expected = [by_scikit(name, p, rows) for rows in slices]
        assert METRICS[name].value(found).tolist() == pytest.approx(expected, rel=1e-6, abs=1e-9, nan_ok=True)
        assert from_counts(name, found.sum(0)) == pytest.approx(by_scikit(name, p), rel=1e-6, abs=1e-9, nan_ok=True)


@given(seed=st.integers(0, 999), unknown=st.sampled_from([0.0, 0.5]))
def test_a_metric_of_one_label_is_scikit_learns_on_that_column_alone(seed: int, unknown: float) -> None:
    p = drawn("multilabel", seed, (7, 5), unknown)
    names = ("lying", "sitting", "walking", "running")
    for name in ("f1", "precision", "recall", "balanced-accuracy"):
        for number, metric in enumerate(metrics_for("multilabel", (f"{name}:*",), names)):
            assert metric.name == f"{name}:{names[number]}"
            column = p.column(number)
            expected = [by_scikit(name, column, rows) for rows in (slice(0, 7), slice(7, 12))]
            assert metric.values(p).tolist() == pytest.approx(expected, rel=1e-9, nan_ok=True)


def test_a_metric_of_one_target_is_that_of_its_column_and_not_of_a_row_of_its_number() -> None:
    """Published code took ``predictions[i]``, row i, for target i: another number altogether."""
    g = torch.Generator().manual_seed(5)
    y = torch.randn(50, 2, generator=g) * torch.tensor([1.0, 100.0])
    out = y + torch.randn(50, 2, generator=g) * torch.tensor([0.5, 20.0])
    p = predictions(out, y, "regression", (50,))
    speed, heart = (float(metric.values(p)) for metric in metrics_for("regression", ("mae:*",), ("speed", "heart")))
    by_column = sk.mean_absolute_error(y, out, multioutput="raw_values")
    assert [speed, heart] == pytest.approx(by_column.tolist(), rel=1e-6)
    by_row = [float((out[i] - y[i]).abs().mean()) for i in range(2)]
    assert heart / speed > 20
    assert 0.2 < by_row[1] / by_row[0] < 5  # targets of such different sizes cannot have errors that alike
    assert [speed, heart] != pytest.approx(by_row, rel=0.2)
    overall = float(METRICS["mae"].values(p))
    assert overall == pytest.approx((speed + heart) / 2)


def test_what_is_judged_is_in_the_units_of_the_targets() -> None:
    g = torch.Generator().manual_seed(6)
    raw = torch.randn(14, 2, generator=g, dtype=torch.float64) * torch.tensor([30.0, 900.0]) + torch.tensor(
        [80.0, 1200.0]
    )
    guess = raw + torch.randn(14, 2, generator=g, dtype=torch.float64) * 25
    shift = torch.tensor([[80.0, 1200.0], [70.0, 1000.0], [0.0, 0.0], [10.0, 20.0], [5.0, 5.0]], dtype=torch.float64)
    factor = torch.tensor([[30.0, 900.0], [20.0, 800.0], [1.0, 1.0], [2.0, 3.0], [4.0, 5.0]], dtype=torch.float64)
    for scale in (Scale(shift[:1], factor[:1], shift[0]), Scale(shift, factor, shift[0])):
        ids = torch.tensor([4, 0, 1, 3])  # the clients that are judged, by their numbers
        owner = torch.repeat_interleave(torch.arange(4), torch.tensor(COUNTS))
        small = [scale.scaled(values, ids[owner]).float() for values in (guess, raw)]
        p = predictions(*small, "regression").original(scale, ids)  # type: ignore[arg-type]
        for name, judge in EVERY["regression"].items():
            expected = judge(raw.numpy(), guess.numpy())
            assert from_counts(name, METRICS[name].counts(p).sum(0)) == pytest.approx(expected, rel=1e-5)
    same = predictions(guess, raw, "regression")
    assert same.original(None, torch.arange(4)) is same


def test_a_target_that_does_not_vary_has_r2_1_when_met_and_0_when_not() -> None:
    y = torch.full((6, 1), 0.1)
    out = torch.tensor([[0.1], [0.1], [0.1], [0.1], [0.1], [0.3]])
    p = predictions(out, y, "regression", (3, 3))
    assert METRICS["r2"].values(p).tolist() == [1.0, 0.0]


def test_the_pooled_f1_is_not_the_mean_of_the_clients() -> None:
    out = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]])
    y = torch.tensor([[1.0], [0.0], [1.0], [0.0]])
    counts = METRICS["f1"].counts(predictions(out, y, "binary", (1, 3)))
    assert METRICS["f1"].value(counts).tolist() == [1.0, 0.0]
    assert from_counts("f1", counts.sum(0)) == pytest.approx(2 * 1 / (2 * 1 + 1 + 1))


def test_a_row_without_a_known_label_counts_neither_as_right_nor_as_wrong() -> None:
    y = torch.tensor([[1.0, 0.0], [torch.nan, torch.nan]])
    p = predictions(torch.tensor([[1.0, 1.0], [1.0, 1.0]]), y, "multilabel", (2,))
    assert METRICS["accuracy"].values(p).tolist() == [0.5]


@pytest.mark.parametrize(
    ("task", "columns", "name", "complaint"),
    [
        ("regression", ("CO", "NO2"), "mae:NO", r"'mae:NO' is of a column that is not there; did you mean 'NO2'"),
        ("regression", ("CO", "NO2"), "mae:x", r"not there; there are CO, NO2"),
        ("regression", ("0", "1"), "mae:2", r"not there"),
        ("classification", (), "f1:cat", r"'f1:cat' is of one column, but rows have one label; ask for 'f1'"),
        ("regression", ("CO",), "mea:CO", r"no metric 'mea'"),
    ],
)
def test_a_column_that_is_not_there_is_refused(task: Task, columns: tuple[str, ...], name: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        metrics_for(task, (name,), columns)


def test_a_column_can_be_given_by_its_number_and_its_metric_has_its_name_and_its_better_end() -> None:
    (metric,) = metrics_for("regression", ("r2:1",), ("CO", "NO2"))
    assert (metric.name, metric.higher_is_better) == ("r2:NO2", True)
    assert (base_name("mae:CO"), base_name("mae")) == ("mae", "mae")
    assert higher_is_better("recall:SITTING")
    assert not higher_is_better("smape:CO")


def test_the_loss_is_a_metric_too(classes: Predictions) -> None:
    metric = loss_metric(LOSSES["cross-entropy"])
    rows = LOSSES["cross-entropy"].rows(classes.out, classes.y)
    expected = [float(part.double().mean()) for part in rows.split(list(COUNTS))]
    torch.testing.assert_close(
        metric.values(classes), torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0, equal_nan=True
    )
    assert not metric.higher_is_better


@pytest.mark.parametrize(
    ("name", "higher"), [("accuracy", True), ("f1", True), ("rmse", False), ("loss", False), ("fidelity", False)]
)
def test_every_metric_knows_its_better_end(name: str, higher: bool) -> None:
    assert higher_is_better(name) is higher


def test_a_metric_that_does_not_exist_or_does_not_fit_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match=r"no metric 'acc'.*accuracy"):
        metrics_for("classification", ("acc",))
    with pytest.raises(ConfigError, match=r"'mae' does not fit binary data; choose among accuracy"):
        metrics_for("binary", ("mae",))
    assert [m.name for m in metrics_for("regression", None)] == ["rmse", "mae"]


@given(st.integers(0, 2**31), st.sampled_from(["classification", "binary", "multilabel", "regression"]))
def test_a_metric_keeps_its_bounds_and_counts_no_more_rows_than_there_are(seed: int, task: Task) -> None:
    g = torch.Generator().manual_seed(seed)
    width = {"classification": 3, "binary": 1, "multilabel": 2, "regression": 2}[task]
    out, y = (10 * torch.randn(14, width, generator=g) for _ in range(2))
    if task == "classification":
        y = torch.randint(3, (14,), generator=g)
    elif task != "regression":
        y = torch.where(torch.rand(14, width, generator=g) < 0.2, torch.nan, (y > 0).float())
    p = predictions(out, y, task)
    for metric in [m for m in METRICS.values() if task in m.tasks]:
        counts, (low, high) = metric.counts(p), metric.bounds
        values = metric.value(counts)
        assert bool(((values >= low) & (values <= high) | torch.isnan(values)).all()), metric.name
        counted = metric.counted(counts)
        assert counted is not None
        most = p.counts.reshape(-1, *(1,) * (counted.dim() - 1)) * (width if task != "classification" else 1)
        assert bool(((counted >= 0) & (counted <= most)).all()), metric.name
        assert low != 0 or bool((counts >= 0).all()), metric.name
