"""Linear models fitted exactly to a client's own rows, in the dual, and λ by cross-validation within these rows.

The model of client i is argmin (1/n_i) Σ ℓ(w·x, y) + (λ/2)‖w‖²: a support vector machine for the hinge, ridge
regression for the squared loss, logistic regression for the logistic one. A bias is one of the weights, and is
regularised too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.federation.batches import Rows, order_of
from fedloom.federation.client import Client
from fedloom.federation.problem import Problem
from fedloom.federation.ragged import Ints, Ragged
from fedloom.federation.randomness import Draw
from fedloom.types import Vector

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
_PASSES = 1000  # at the most
_CHOOSING = 1e-6  # of the dual's distance to its optimum so much may be left of models that only choose λ
_TRIES = 200  # passes of such a model at the most
_HELD = "held out"


@dataclass(frozen=True, eq=False)
class Fit:
    """Models of a client or of a stack of clients."""

    w: Vector
    alpha: Tensor


def exact(client: Client, lambda_: float | Tensor, accuracy: float) -> Fit:
    """argmin (1/n) Σ ℓ + (λ/2)‖w‖²: passes until at most a share ``accuracy`` is left, then as many again.

    The model is wrong by the square root of what the objective is wrong by; twice the passes square what is left.
    """
    before = client.evaluations.copy()
    first = fitted(client, lambda_, accuracy)
    left = (client.evaluations - before).astype(np.float64)
    if client.budget is not None:
        left = np.minimum(left, np.maximum(client.budget - client.evaluations, 0))
    ids = client.clients if client.stacked else int(client.clients[0])
    again = client.problem.client(ids, client.draw, budget=left, round=client.round, window=client.window)
    found = fitted(again, lambda_, None, first.alpha)
    client.evaluations += again.evaluations
    return found


def fitted(client: Client, lambda_: float | Tensor, accuracy: float | None, begun: Tensor | None = None) -> Fit:
    """The same until at most a share ``accuracy`` is left, none: as far as the client's budget goes.

    It begins at the dual numbers ``begun``, none: at zeros.
    """
    alpha = client.duals() if begun is None else begun
    strength = torch.as_tensor(lambda_, dtype=torch.float64)
    c = 1 / client.n.double().clamp(min=1)
    w = client.combined(alpha, c) / strength
    alpha, _ = client.ascend(alpha, w.to(alpha.dtype), 1 / strength, c, epochs=_PASSES, accuracy=accuracy)
    return Fit((client.combined(alpha, c) / strength).to(alpha.dtype), alpha)


def chosen(client: Client, grid: Sequence[float], folds: int) -> Tensor:
    """λ of each client, shape (…, 1): that of the grid with the least error on held-out rows, mean over the folds.

    Each client deals its own rows, shuffled by its seed, into folds that differ by one row at most; who has fewer rows
    than folds has a fold for each row, and with a single row nothing to choose by. Of equals the greatest λ is taken.
    """
    ordered = sorted(grid, reverse=True)
    total = np.zeros((len(ordered), len(client.clients)))
    for number in range(folds):
        part, held = _without_fold(client, number, folds)
        begun: Tensor | None = None
        for at, lambda_ in enumerate(ordered):  # a smaller λ begins where the greater one before it ended
            fit = fitted(part, lambda_, _CHOOSING, begun)
            begun = fit.alpha
            total[at] += np.where(held, _mistakes(part, fit.w), 0.0)
        client.evaluations += part.evaluations
    best = np.array(ordered)[np.round(total, 12).argmin(0)]
    return client.column(best).reshape(*client.n.shape[:-1], 1)


def _without_fold(client: Client, number: int, folds: int) -> tuple[Client, Bools]:
    """The same clients without the rows of a fold, which are held out, and which of them have such a fold."""
    span = client.span()
    fold = dealt(client, folds)
    rows, owner = span.rows(), np.repeat(client.clients, span.sizes)
    out = fold == number
    problem, clients = client.problem, client.problem.data.clients
    splits = {"train": _owned(rows, owner, ~out, clients), _HELD: _owned(rows, owner, out, clients)}
    other = problem.on(replace(problem.data, splits=splits))
    draw = Draw(client.draw.seed)  # as in every round
    ids = client.clients if client.stacked else int(client.clients[0])
    part = other.client(ids, draw, round=client.round, budget=_TRIES * span.sizes.astype(np.float64))
    return part, np.bincount(np.repeat(np.arange(len(span.sizes)), span.sizes)[out], minlength=len(span.sizes)) > 0


def dealt(client: Client, folds: int) -> Ints:
    """The fold of every training row, one client after the other."""
    sizes = client.sizes()
    width = int(sizes.max(initial=0))
    keys = Draw(client.draw.seed).words("folds", client.clients, width) >> np.uint64(24)
    keys[np.arange(width) >= sizes[:, None]] = np.uint64(2**64 - 1)
    order = order_of(keys)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(width)[None, :], axis=1)
    found: Ints = (place % folds)[np.arange(width) < sizes[:, None]]
    return found


def _owned(rows: Tensor, owner: Ints, which: Bools, clients: int) -> Ragged:
    """Of these rows, in the order of their owners, those that are chosen, as every client's own."""
    order = np.argsort(owner[which], kind="stable")
    sizes = torch.from_numpy(np.bincount(owner[which], minlength=clients))
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    return Ragged(offsets, rows[torch.from_numpy(which)][torch.from_numpy(order)])


def _mistakes(client: Client, w: Vector) -> Floats:
    """What is wrong on the rows that were held out: the share of wrong labels, or the mean squared error; rows count
    for what they count for in the loss."""
    problem, rows = client.problem, client.rows(_HELD)
    out = problem.model(w, rows.x)
    counts = rows.weight * _worth(problem, rows)
    total = (counts * _wrong(problem, out, rows.y)).sum(-1) / counts.sum(-1).clamp(min=1e-300)
    return total.double().reshape(-1).numpy()


def _worth(problem: Problem, rows: Rows) -> Tensor:
    by_class = problem.loss.row_weights(rows.y)
    return torch.ones_like(rows.weight) if by_class is None else by_class.to(rows.weight.dtype)


def _wrong(problem: Problem, out: Tensor, y: Tensor) -> Tensor:
    """Of each row."""
    task = problem.data.task
    if task == "regression":
        return (out - y).square().mean(-1)
    if task == "classification":
        return (out.argmax(-1) != y).to(out.dtype)
    known = ~torch.isnan(y)
    wrong = ((out > problem.loss.threshold) != (y > 0.5)) & known
    return wrong.sum(-1) / known.sum(-1).clamp(min=1)
