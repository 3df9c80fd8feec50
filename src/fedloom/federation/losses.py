"""Losses of one row, with their slope in the model's output.

The slope is written out, and not left to autograd, because stacks of small models spend most of their time there.
A loss is a mean over a row's columns and, for a client, a mean over its rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.data import Task


class Loss(ABC):
    """ℓ(out, y): ``out`` has shape (..., rows, columns), the result one number a row."""

    name: str
    tasks: tuple[Task, ...]
    threshold = 0.0
    """The output above which a model trained with this loss says 1, where labels are 0 and 1."""

    @abstractmethod
    def rows(self, out: Tensor, y: Tensor) -> Tensor:
        """The loss of each row, shape (..., rows)."""

    @abstractmethod
    def slope(self, out: Tensor, y: Tensor) -> Tensor:
        """∂ℓ/∂out of each row, shape (..., rows, columns)."""

    @abstractmethod
    def curve(self, out: Tensor, y: Tensor, v: Tensor) -> Tensor:
        """(∂²ℓ/∂out²)·v of each row, shape (..., rows, columns): how the slope changes when the output moves by v."""


class CrossEntropy(Loss):
    """−log softmax(out)[y] for labels y = 0, 1, …"""

    name = "cross-entropy"
    tasks = ("classification",)

    def rows(self, out: Tensor, y: Tensor) -> Tensor:
        return torch.logsumexp(out, -1) - out.gather(-1, y.unsqueeze(-1)).squeeze(-1)

    def slope(self, out: Tensor, y: Tensor) -> Tensor:
        p = torch.softmax(out, -1)
        return p.scatter_add_(-1, y.unsqueeze(-1), p.new_full((), -1.0).expand(*y.shape, 1))

    def curve(self, out: Tensor, y: Tensor, v: Tensor) -> Tensor:
        p = torch.softmax(out, -1)
        return p * (v - (p * v).sum(-1, keepdim=True))


class Binary(Loss):
    """−y log σ(out) − (1 − y) log σ(−out) for y of 0 and 1; an unknown label (NaN) does not count."""

    name = "binary"
    tasks = ("binary", "multilabel")

    def rows(self, out: Tensor, y: Tensor) -> Tensor:
        known = ~torch.isnan(y)
        y = torch.nan_to_num(y)
        each = torch.clamp(out, min=0) - out * y + torch.log1p(torch.exp(-out.abs()))
        return (each * known).sum(-1) / known.sum(-1).clamp(min=1)

    def slope(self, out: Tensor, y: Tensor) -> Tensor:
        slope = torch.sigmoid(out).sub_(y).masked_fill_(torch.isnan(y), 0)
        return slope if y.shape[-1] == 1 else slope / (~torch.isnan(y)).sum(-1, keepdim=True).clamp(min=1)

    def curve(self, out: Tensor, y: Tensor, v: Tensor) -> Tensor:
        p, known = torch.sigmoid(out), ~torch.isnan(y)
        return p * (1 - p) * v * known / known.sum(-1, keepdim=True).clamp(min=1)


class Hinge(Loss):
    """max(0, 1 − s·out) with s = 2y − 1 for y of 0 and 1."""

    name = "hinge"
    tasks = ("binary",)

    def rows(self, out: Tensor, y: Tensor) -> Tensor:
        return torch.clamp(1 - (2 * y - 1) * out, min=0).mean(-1)

    def slope(self, out: Tensor, y: Tensor) -> Tensor:
        s = 2 * y - 1
        return torch.where(s * out < 1, -s, torch.zeros_like(s)) / y.shape[-1]

    def curve(self, out: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return torch.zeros_like(v)


class Squared(Loss):
    """½(out − y)²."""

    name = "squared"
    tasks = ("regression", "binary")
    threshold = 0.5

    def rows(self, out: Tensor, y: Tensor) -> Tensor:
        return (out - y).square().mean(-1) / 2

    def slope(self, out: Tensor, y: Tensor) -> Tensor:
        return (out - y) / y.shape[-1]

    def curve(self, out: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return v / y.shape[-1]


class Absolute(Loss):
    """|out − y|."""

    name = "absolute"
    tasks = ("regression",)

    def rows(self, out: Tensor, y: Tensor) -> Tensor:
        return (out - y).abs().mean(-1)

    def slope(self, out: Tensor, y: Tensor) -> Tensor:
        return torch.sign(out - y) / y.shape[-1]

    def curve(self, out: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return torch.zeros_like(v)


LOSSES: dict[str, Loss] = {loss.name: loss for loss in (CrossEntropy(), Binary(), Hinge(), Squared(), Absolute())}
_DEFAULT: dict[Task, str] = {
    "classification": "cross-entropy",
    "binary": "binary",
    "multilabel": "binary",
    "regression": "squared",
}


def loss_for(task: Task, name: str = "auto") -> Loss:
    """The loss of that name, or the usual one for the task; refuses a loss that the task has no labels for."""
    name = _DEFAULT[task] if name == "auto" else name
    if name not in LOSSES:
        raise ConfigError(f"there is no loss {name!r}; choose one of {', '.join(LOSSES)}")
    if task not in LOSSES[name].tasks:
        fitting = ", ".join(loss.name for loss in LOSSES.values() if task in loss.tasks)
        raise ConfigError(f"the loss {name!r} does not fit {task} data; choose one of {fitting}")
    return LOSSES[name]
