from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.data import Task
from fedloom.federation.losses import LOSSES
from fedloom.federation.metrics import METRICS, Predictions, higher_is_better, loss_metric, metrics_for

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


@pytest.mark.parametrize(("name", "function"), [("mae", sk.mean_absolute_error), ("rmse", sk.root_mean_squared_error)])
def test_metrics_of_numbers_are_those_of_scikit_learn_for_each_client(
    name: str, function: object, numbers: Predictions
) -> None:
    values = METRICS[name].values(numbers)
    for value, count, (truth, said) in zip(values.tolist(), COUNTS, clients(numbers), strict=True):
        assert value == pytest.approx(function(truth, said), rel=1e-6) if count else np.isnan(value)  # type: ignore[operator]


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
