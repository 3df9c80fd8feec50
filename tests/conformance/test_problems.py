"""The known answers themselves, against a third way to find them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression

from fedloom.conformance import Known, agreeing, classification, images, least_squares, logistic, quadratics
from fedloom.conformance.declarations.common import biased_limit
from fedloom.conformance.problems import newton, relabelled
from fedloom.errors import DataError
from fedloom.methods import FedAvg

ALL = {
    "quadratics": quadratics,
    "unequal quadratics": lambda: quadratics(unequal=True),
    "agreeing": agreeing,
    "least squares": least_squares,
    "logistic": logistic,
}


@pytest.mark.parametrize("name", ALL)
def test_the_gradient_vanishes_at_the_optimum_as_autograd_sees_it(name: str) -> None:
    known = ALL[name]()
    for weighting in ("size", "uniform"):
        weights, client = known.weights(weighting), known.problem.client(known.clients.numpy())
        gradients = client.grad(known.minimiser(weighting), graph=True)
        assert torch.allclose(weights @ gradients, torch.zeros(known.problem.model.n).double(), atol=1e-10)


@pytest.mark.parametrize("name", ALL)
def test_each_clients_gradient_vanishes_at_its_own_optimum(name: str) -> None:
    known = ALL[name]()
    gradients = known.problem.client(known.clients.numpy()).grad(known.optima, graph=True)
    assert float(gradients.detach().abs().max()) < 1e-10


def test_clients_disagree_where_they_should() -> None:
    assert quadratics().scale > 1
    assert agreeing().scale < 1e-12
    hessians = quadratics().hessians
    assert float((hessians[0] - hessians[1]).abs().max()) > 0.1


def test_hessians_are_those_of_autograd() -> None:
    known = quadratics(unequal=True)
    for i in range(len(known.clients)):
        client = known.problem.client(i)
        hessian = torch.autograd.functional.hessian(client.loss, torch.zeros(known.problem.model.n).double())
        assert torch.allclose(hessian, known.hessians[i], atol=1e-12)


def test_least_squares_agree_with_scikit_learn() -> None:
    known = least_squares()
    x, y = known.problem.x.numpy(), known.problem.y.numpy()[:, 0]
    fitted = LinearRegression().fit(x, y)
    assert np.allclose(known.optimum.numpy(), [*fitted.coef_, fitted.intercept_], atol=1e-10)


def test_logistic_regression_agrees_with_scikit_learn() -> None:
    known = logistic()
    x, y = known.problem.x.numpy(), known.problem.y.numpy()[:, 0]
    fitted = LogisticRegression(C=1e10, tol=1e-12, solver="newton-cholesky").fit(x, y)
    assert np.allclose(known.optimum.numpy(), [*fitted.coef_[0], *fitted.intercept_], atol=1e-7)


def test_separable_classes_have_no_known_answer() -> None:
    z, y = torch.tensor([[-2.0, 1.0], [-1.0, 1.0], [1.0, 1.0], [2.0, 1.0]]).double(), torch.tensor([0.0, 0, 1, 1])
    with pytest.raises(DataError, match="no finite solution"):
        newton(z, y.double(), torch.full((4,), 0.25).double())


def test_a_logistic_loss_has_no_constant_hessian() -> None:
    with pytest.raises(DataError, match="no constant Hessian"):
        _ = logistic().hessians


def test_the_biased_limit_is_what_plain_loops_come_to() -> None:
    known, method = quadratics(unequal=True), FedAvg(lr=0.3, batch=None, steps=3)
    x, weights = torch.zeros(4).double(), known.weights()
    for _ in range(200):
        ends = []
        for client in range(len(known.clients)):
            (z, y), theta = known.rows(client), x.clone()
            for _ in range(3):
                theta -= 0.3 * z.T @ (z @ theta - y) / len(y)
            ends.append(theta)
        x = weights @ torch.stack(ends)
    assert torch.allclose(x, biased_limit(known, method), atol=1e-12)


def test_a_known_answer_can_be_had_for_some_of_the_clients() -> None:
    known = quadratics(unequal=True)
    some = known.only(torch.tensor([1, 3]))
    rows = [known.rows(i) for i in (1, 3)]
    z, y = torch.cat([z for z, _ in rows]), torch.cat([y for _, y in rows])
    assert torch.allclose(some.optimum, torch.linalg.lstsq(z, y).solution, atol=1e-12)
    assert torch.equal(some.optima, known.optima[[1, 3]])


def test_the_problem_for_stacks_has_ragged_clients_and_partial_batches() -> None:
    sizes = classification().data.splits["train"].sizes
    assert len(set(sizes.tolist())) == len(sizes)
    assert int(sizes.min()) < 5 < int(sizes.max())
    assert bool((sizes % 5 != 0).all())


def test_relabelled_clients_keep_their_rows() -> None:
    problem, order = classification(), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    other = relabelled(problem, order)
    for split in ("train", "test"):
        for new, old in enumerate(order.tolist()):
            assert torch.equal(other.data.splits[split][new], problem.data.splits[split][old])


def test_problems_are_small() -> None:
    assert all(isinstance(make(), Known) and len(make().problem.x) < 200 for make in ALL.values())
    assert len(images().x) < 50
