"""How much the clients' gradients differ at a model: between clients, and within each of them."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.data.heterogeneity import gradient_heterogeneity
from fedloom.federation.data import SOURCE
from fedloom.federation.problem import Problem
from fedloom.federation.ragged import Window
from fedloom.types import Vector

MOST_CLIENTS, MOST_ROWS = 200, 64
"""At most so many clients are asked, and within each at most so many rows are looked at one by one."""
_NUMBERS = 4_000_000  # of gradients that are held at a time


def gradient_measures(problem: Problem, theta: Vector, window: Window | None = None) -> dict[str, float]:
    """E‖∇f_i − ∇f‖² over source clients (``between``), E‖∇f_is − ∇f_i‖² over the samples s of one (``within``), ‖∇f‖².

    ``within`` is of the first 64 training rows of each client, both of the first 200 clients. With a ``window`` for
    each client of the problem, it has only these rows. Nothing is known where nobody has any.
    """
    theta = theta[: problem.model.n]  # running statistics have no gradient
    clients = problem.data.with_role(SOURCE)[:MOST_CLIENTS].numpy()
    devices = [problem.client(int(i), window=None if window is None else _at(window, int(i))) for i in clients]
    devices = [client for client in devices if client.sizes()[0]]
    if not devices:
        return {}
    gradients = torch.stack([client.grad(theta) for client in devices])
    within = gradient_heterogeneity(*_by_rows(problem, theta, [client.span().rows() for client in devices]))["within"]
    return gradient_heterogeneity(gradients) | {"within": within}


def _at(window: Window, client: int) -> Window:
    return window[0][client : client + 1], window[1][client : client + 1]


def _by_rows(problem: Problem, theta: Vector, owned: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The mean gradient over some rows of each client, and the mean of their squared norms."""
    means, squares = [], []
    step = max(1, _NUMBERS // problem.model.n)
    for rows in (own[:MOST_ROWS] for own in owned):
        total, square = torch.zeros(problem.model.n, dtype=torch.float64), 0.0
        for start in range(0, len(rows), step):
            each = _one_by_one(problem, theta, rows[start : start + step]).double()
            total += each.sum(0)
            square += float(each.square().sum())
        means.append(total / len(rows))
        squares.append(square / len(rows))
    return torch.stack(means), torch.tensor(squares)


def _one_by_one(problem: Problem, theta: Vector, rows: Tensor) -> Tensor:
    """The gradient of each row: a stack of clients that have one row each."""
    x, y = problem.x[rows].unsqueeze(1), problem.y[rows].unsqueeze(1)
    return problem.kernel.gradient(theta.expand(len(rows), -1), x, y, x.new_ones(len(rows), 1))
