"""Rows that count by their class: the optimum is scikit-learn's, whatever computes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import fedloom
from fedloom.errors import ConfigError
from fedloom.federation.data import FederatedData
from fedloom.federation.kernels import DenseKernel, ModuleKernel, StackKernel
from fedloom.federation.losses import LOSSES, Weighted
from fedloom.federation.model import Model
from fedloom.federation.ragged import Ragged

CLASSES = ("no", "yes")


def data(task: str = "binary", sizes: tuple[int, ...] = (70, 40, 90), classes: int = 2) -> FederatedData:
    """Overlapping classes, of which the later are rarer, so that the optimum is finite."""
    g = torch.Generator().manual_seed(7)
    rows = sum(sizes)
    x = torch.randn(rows, 3, generator=g, dtype=torch.float64)
    noisy = x @ torch.tensor([1.0, -0.5, 0.0], dtype=torch.float64) + 1.5 * torch.randn(rows, generator=g).double()
    label = torch.bucketize(noisy, torch.tensor([1.2, 2.0][: classes - 1], dtype=torch.float64))
    y = label if task == "classification" else label.double()[:, None]
    owned = Ragged.contiguous(torch.tensor(sizes))
    names = tuple("abc"[:classes]) if task == "classification" else CLASSES
    return FederatedData("made", x, y, task, {"train": owned, "test": owned}, names)  # type: ignore[arg-type]


def pooled(given: FederatedData) -> LogisticRegression:
    model = LogisticRegression(class_weight="balanced", C=np.inf, tol=1e-10, max_iter=5000)
    return model.fit(given.x.numpy(), given.y.numpy().ravel())


def theta_of(model: LogisticRegression) -> Tensor:
    weights, bias = torch.from_numpy(model.coef_), torch.from_numpy(model.intercept_)
    return torch.cat([weights.reshape(-1), bias])


class Odd(nn.Module):
    """A linear model that is not recognised as one."""

    def __init__(self, outputs: int, control: bool) -> None:
        super().__init__()
        self.inner, self.control = nn.Linear(3, outputs), control

    def forward(self, x: Tensor) -> Tensor:
        if self.control and float(x.sum()) > 1e9:
            return self.inner(x) * 2
        return self.inner(x * 1.0 + torch.tanh(0 * x))


MODELS: dict[type, Any] = {
    DenseKernel: lambda outputs: nn.Linear(3, outputs),
    StackKernel: lambda outputs: Odd(outputs, control=False),
    ModuleKernel: lambda outputs: Odd(outputs, control=True),
}


@pytest.mark.parametrize("kernel", MODELS)
@pytest.mark.parametrize(("task", "classes"), [("binary", 2), ("classification", 3)])
def test_the_gradient_of_all_clients_is_0_at_scikit_learns_balanced_optimum(
    kernel: type, task: str, classes: int
) -> None:
    given = data(task, classes=classes)
    outputs = 1 if task == "binary" else classes
    model = Model(lambda: MODELS[kernel](outputs))
    problem = fedloom.Problem(given, model, dtype=torch.float64, class_weights="balanced")
    assert isinstance(problem.kernel, kernel)
    clients = problem.client(np.arange(3))
    gradients = clients.grad(theta_of(pooled(given)).expand(3, -1))
    share = given.splits["train"].sizes.double() / 200
    assert float((share[:, None] * gradients).sum(0).abs().max()) < 1e-6


@pytest.mark.parametrize("solver", ["newton", "lbfgs"])
def test_admm_ends_at_scikit_learns_balanced_optimum(solver: str) -> None:
    given = data()
    problem = fedloom.Problem(
        given, fedloom.build_model("linear", given), dtype=torch.float64, class_weights="balanced"
    )
    run = fedloom.train(problem, fedloom.ADMM(rho=0.1, solver=solver), rounds=150, evaluate=[], executor="serial")
    torch.testing.assert_close(run.theta, theta_of(pooled(given)), rtol=1e-4, atol=1e-4)


def test_the_closed_form_is_weighted_least_squares() -> None:
    given = data(sizes=(60,))
    problem = fedloom.Problem(
        given, fedloom.build_model("linear", given), "squared", torch.float64, class_weights={"no": 1.0, "yes": 5.0}
    )
    run = fedloom.train(problem, fedloom.ADMM(rho=1.0, solver="exact"), rounds=60, evaluate=[], executor="serial")
    z = torch.cat([given.x, torch.ones(60, 1, dtype=torch.float64)], 1)
    w = 1 + 4 * given.y
    wanted = torch.linalg.solve(z.T @ (w * z), z.T @ (w * given.y))[:, 0]
    torch.testing.assert_close(run.theta, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["cross-entropy", "binary", "hinge", "squared"])
def test_slope_curve_and_prox_belong_to_the_weighted_rows(name: str) -> None:
    loss, g = LOSSES[name], torch.Generator().manual_seed(0)
    classes = 3 if name == "cross-entropy" else 2
    w = Weighted(loss, [0.5, 3.0, 2.0][:classes])
    out = torch.randn(6, 3 if classes == 3 else 1, generator=g, dtype=torch.float64, requires_grad=True)
    y = torch.arange(6) % 3 if classes == 3 else (torch.arange(6.0, dtype=torch.float64) % 2)[:, None]
    (slope,) = torch.autograd.grad(w.rows(out, y).sum(), out, create_graph=True)
    torch.testing.assert_close(w.slope(out.detach(), y), slope.detach())
    each = torch.tensor(w.class_weights)[y.reshape(-1).long()].double()
    torch.testing.assert_close(w.rows(out, y).detach(), loss.rows(out, y).detach() * each)
    at = w.prox(out.detach(), y, 0.7)
    for row in range(6):
        alone = loss.prox(out.detach()[[row]], y[[row]], 0.7 * float(each[row]))
        torch.testing.assert_close(at[[row]], alone)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ("even", "is nothing; choose 'balanced'"),
        ([1.0], r"1 numbers for 2 classes: no, yes"),
        ([1.0, -2.0], "from 0 on"),
        (3, "3 cannot be: give 'balanced', or a number for each class"),
        (["1", "2"], "cannot be: give 'balanced', or a number for each class"),
        ({"no": 1.0}, "need one for each class: no, yes"),
        ({"no": 1.0, "yess": 2.0}, "no class 'yess'; did you mean 'yes'"),
    ],
)
def test_weights_that_cannot_be_are_refused(weights: Any, said: str) -> None:
    given = data()
    with pytest.raises(ConfigError, match=said):
        fedloom.Problem(given, fedloom.build_model("linear", given), class_weights=weights)


def test_balanced_needs_rows_of_every_class_and_the_rows_themselves() -> None:
    given = data(sizes=(5,))
    blank = FederatedData("none", given.x[:2], given.y[:2] * 0, "binary", given.splits, CLASSES)
    with pytest.raises(ConfigError, match="those are on the nodes"):
        fedloom.Problem(blank, fedloom.build_model("linear", blank), class_weights="balanced")
    one = FederatedData("one", given.x, given.y * 0, "binary", given.splits, CLASSES)
    with pytest.raises(ConfigError, match="no client has a training row of yes"):
        fedloom.Problem(one, fedloom.build_model("linear", one), class_weights="balanced")
    numbers = fedloom.federate("diabetes", clients=2)
    with pytest.raises(ConfigError, match="regression task"):
        fedloom.Problem(numbers, fedloom.build_model("linear", numbers), class_weights="balanced")
