from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.data import Task
from fedloom.federation.losses import LOSSES, Loss, loss_for

SHAPES = st.tuples(st.integers(1, 4), st.integers(0, 5), st.integers(1, 4))


def labels_for(loss: Loss, shape: tuple[int, int, int], g: torch.Generator, unknown: bool = False) -> Tensor:
    if "classification" in loss.tasks:
        return torch.randint(shape[2], shape[:2], generator=g)
    if "regression" in loss.tasks:
        return torch.randn(shape, generator=g, dtype=torch.float64)
    y = torch.randint(2, shape, generator=g).double()
    return torch.where(torch.rand(shape, generator=g) < 0.3, torch.nan, y) if unknown else y


@pytest.mark.parametrize("name", LOSSES)
@given(shape=SHAPES, seed=st.integers(0, 1000))
def test_the_slope_is_the_derivative_of_the_rows(name: str, shape: tuple[int, int, int], seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    loss = LOSSES[name]
    y = labels_for(loss, shape, g, unknown=name == "binary")
    out = (2 * torch.randn(shape, generator=g, dtype=torch.float64)).requires_grad_()
    (derivative,) = torch.autograd.grad(loss.rows(out, y).sum(), out)
    assert loss.rows(out, y).shape == shape[:2]
    torch.testing.assert_close(loss.slope(out.detach(), y), derivative, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "out", "y", "value"),
    [
        ("cross-entropy", [[0.0, 0.0, 0.0]], [1], math.log(3)),
        ("cross-entropy", [[1.0, 2.0]], [0], math.log(1 + math.e)),
        ("binary", [[0.0]], [[1.0]], math.log(2)),
        ("binary", [[2.0, -1.0]], [[0.0, 0.0]], (math.log1p(math.exp(2)) + math.log1p(math.exp(-1))) / 2),
        ("hinge", [[0.25]], [[1.0]], 0.75),
        ("hinge", [[0.25]], [[0.0]], 1.25),
        ("hinge", [[3.0]], [[1.0]], 0.0),
        ("squared", [[3.0]], [[1.0]], 2.0),
        ("squared", [[3.0, 0.0]], [[1.0, 1.0]], (2.0 + 0.5) / 2),
        ("absolute", [[3.0, 0.0]], [[1.0, 1.0]], 1.5),
    ],
)
def test_known_values(name: str, out: list[list[float]], y: list[object], value: float) -> None:
    assert float(LOSSES[name].rows(torch.tensor(out), torch.tensor(y))[0]) == pytest.approx(value, rel=1e-6)


def test_huge_outputs_neither_overflow_nor_lose_their_slope() -> None:
    out = torch.tensor([[1e4], [-1e4]])
    y = torch.tensor([[0.0], [1.0]])
    assert torch.equal(LOSSES["binary"].rows(out, y), torch.tensor([1e4, 1e4]))
    assert torch.equal(LOSSES["binary"].slope(out, y), torch.tensor([[1.0], [-1.0]]))
    scores = torch.tensor([[1e4, 0.0]])
    assert float(LOSSES["cross-entropy"].rows(scores, torch.tensor([1]))[0]) == 1e4


@pytest.mark.parametrize("columns", [1, 3])
def test_unknown_labels_do_not_count(columns: int) -> None:
    out = torch.linspace(-1, 1, columns).expand(2, columns).clone()
    y = torch.ones(2, columns)
    y[0, 0] = torch.nan
    rows, slope = LOSSES["binary"].rows(out, y), LOSSES["binary"].slope(out, y)
    known = LOSSES["binary"].rows(out[:1, 1:], y[:1, 1:]) if columns > 1 else torch.zeros(1)
    torch.testing.assert_close(rows[:1], known)
    assert slope[0, 0] == 0
    assert torch.isfinite(slope).all()


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("classification", "cross-entropy"),
        ("binary", "binary"),
        ("multilabel", "binary"),
        ("regression", "squared"),
    ],
)
def test_every_task_has_a_usual_loss(task: Task, name: str) -> None:
    assert loss_for(task) is LOSSES[name]


def test_a_loss_that_does_not_exist_or_does_not_fit_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match=r"no loss 'cross'.*cross-entropy"):
        loss_for("classification", "cross")
    with pytest.raises(ConfigError, match=r"'hinge' does not fit regression data; choose one of squared, absolute"):
        loss_for("regression", "hinge")


@pytest.mark.parametrize("name", LOSSES)
@given(shape=SHAPES, seed=st.integers(0, 1000), t=st.floats(1e-3, 1e3))
def test_the_proximal_step_is_where_slope_and_pull_balance(
    name: str, shape: tuple[int, int, int], seed: int, t: float
) -> None:
    """No other point nearby is better, and where the loss is smooth the gradient vanishes."""
    g = torch.Generator().manual_seed(seed)
    loss = LOSSES[name]
    y = labels_for(loss, shape, g, unknown=name == "binary")[0]
    v = 5 * torch.randn(shape[1:], generator=g, dtype=torch.float64)
    s = loss.prox(v, y, t)

    def value(at: Tensor) -> Tensor:
        return t * loss.rows(at, y) + (at - v).square().sum(-1) / 2

    assert s.shape == v.shape
    for size in (1e-3, 1.0):
        other = s + size * torch.randn(s.shape, generator=g, dtype=torch.float64)
        assert bool((value(other) >= value(s) - 1e-9 * (1 + value(s).abs())).all())
    if name in ("squared", "binary", "cross-entropy"):
        off = t * loss.slope(s, y) + s - v
        assert float(off.abs().max() if off.numel() else 0.0) <= 1e-11 * (1 + t)


def test_a_loss_without_a_proximal_step_says_which_have_one() -> None:
    class Odd(Loss):
        name, tasks = "odd", ("regression",)

        def rows(self, out: Tensor, y: Tensor) -> Tensor:
            return out.sum(-1)

        def slope(self, out: Tensor, y: Tensor) -> Tensor:
            return torch.ones_like(out)

        def curve(self, out: Tensor, y: Tensor, v: Tensor) -> Tensor:
            return torch.zeros_like(out)

    with pytest.raises(ConfigError, match="'odd' has no proximal step; choose one of cross-entropy, binary, hinge"):
        Odd().prox(torch.zeros(1, 1), torch.zeros(1, 1), 1.0)
