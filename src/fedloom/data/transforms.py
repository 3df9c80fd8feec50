"""What makes equal rows differ from client to client: the transform steps of a partition."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.data.register import STEPS
from fedloom.data.sizes import Whole
from fedloom.data.table import Table
from fedloom.errors import DataError
from fedloom.federation.randomness import Draw
from fedloom.types import Fraction, NonNegative

_CHUNK = 4096  # rows changed at a time, so that the work needs little memory beside the table


class Transform(ABC):
    """A change of the rows that depends on who owns them. Rows that nobody owns stay as they are."""

    def check(self, table: Table) -> None:  # noqa: B027 - most transforms fit every table
        """An error, before any work, if the table cannot be changed in this way."""

    @abstractmethod
    def apply(self, table: Table, owner: Tensor, clients: int, draw: Draw) -> Table:
        """The table with changed features or targets."""


@STEPS.register("feature-skew")
@dataclass(frozen=True)
class FeatureSkew(Transform):
    """Feature skew: each client has its own level, evenly spread over the clients in random order.

    * "noise": x + level · N(0, 1), levels from 0 to ``strength`` (in deviations of all x)
    * "rotation": x turned by an angle from -``strength`` to ``strength`` degrees; images are turned about their
      middle, other features in the planes of the 1st and 2nd, the 3rd and 4th … feature
    * "brightness": x times a factor from 1 - ``strength`` to 1 + ``strength``

    Without ``strength`` it is 1 deviation, 45 degrees, and a factor of 0.5 to 1.5.
    """

    feature_skew: Literal["noise", "rotation", "brightness"] = "noise"
    strength: NonNegative | None = None

    def check(self, table: Table) -> None:
        """There must be a plane to turn in."""
        if self.feature_skew == "rotation" and table.x[0].numel() < 2:
            raise DataError(f"{table.name!r} has one feature, which cannot be rotated; choose noise or brightness")

    def levels(self, clients: int, draw: Draw) -> Tensor:
        """The level of each client."""
        strength = _STRENGTHS[self.feature_skew] if self.strength is None else self.strength
        spread = draw.generator(f"partition {self.feature_skew} levels").permutation(np.linspace(0.0, 1.0, clients))
        low, high = {"noise": (0.0, strength), "rotation": (-strength, strength)}.get(
            self.feature_skew, (1 - strength, 1 + strength)
        )
        return torch.from_numpy(low + (high - low) * spread).float()

    def apply(self, table: Table, owner: Tensor, clients: int, draw: Draw) -> Table:
        """Change the features of each row by the level of its owner."""
        levels, x = self.levels(clients, draw), table.x.clone()
        random, deviation = draw.generator("partition noise"), float(x.std(correction=0))
        for rows in torch.split(torch.nonzero(owner >= 0).flatten(), _CHUNK):
            part, level = x[rows], levels[owner[rows]]
            if self.feature_skew == "noise":
                noise = torch.from_numpy(random.standard_normal(part.shape, dtype=np.float32))
                x[rows] = part + deviation * _spread(level, part) * noise
            elif self.feature_skew == "rotation":
                x[rows] = rotated(part, level)
            else:
                x[rows] = part * _spread(level, part)
        note = f"features: {self.feature_skew} of {float(levels.min()):.3g} to {float(levels.max()):.3g} by client"
        return replace(table, x=x, notes=(*table.notes, note))


@STEPS.register("concept")
@dataclass(frozen=True)
class Concept(Transform):
    """Concept skew: a share of the clients, chosen at random, labels the same x differently.

    * "permute" (classes): each of them has its own permutation of the labels, never the identity
    * "sign" (regression): y becomes -y
    * "offset" (regression): y moves by its own N(0, 1) deviations of all y

    "auto" is "permute" where there are classes, else "sign".
    """

    concept: Literal["auto", "permute", "sign", "offset"] = "auto"
    concept_share: Fraction = 0.5

    def check(self, table: Table) -> None:
        """The kind must fit the task."""
        if (self._kind(table) == "permute") != (table.task != "regression"):
            raise DataError(f"concept skew {self.concept!r} does not fit the {table.task} task of {table.name!r}")

    def apply(self, table: Table, owner: Tensor, clients: int, draw: Draw) -> Table:
        """Change the targets of the rows of those clients."""
        random = draw.generator("partition concept")
        changed = np.sort(random.permutation(clients)[: round(self.concept_share * clients)])
        mine, kind = owner >= 0, self._kind(table)
        y, owners = table.y.clone(), owner[mine]
        if kind == "permute":
            labels = y.shape[1] if table.task == "multilabel" else len(table.classes)
            orders = torch.from_numpy(_orders(changed, clients, labels, random))
            y[mine] = _permuted(y[mine], orders[owners], table)
        elif kind == "sign":
            signs = torch.ones(clients)
            signs[changed] = -1
            y[mine] *= signs[owners].unsqueeze(1)
        else:
            offsets = np.zeros((clients, y.shape[1]), dtype=np.float32)
            offsets[changed] = random.standard_normal((len(changed), y.shape[1]))
            y[mine] += y.std(0, correction=0) * torch.from_numpy(offsets)[owners]
        note = f"concept: {len(changed)} of {clients} clients have their targets changed ({kind})"
        return replace(table, y=y, notes=(*table.notes, note))

    def _kind(self, table: Table) -> str:
        if self.concept == "auto":
            return "sign" if table.task == "regression" else "permute"
        return self.concept


_STRENGTHS = {"noise": 1.0, "rotation": 45.0, "brightness": 0.5}


def rotated(x: Tensor, degrees: Tensor) -> Tensor:
    """Each row turned by its own angle, anticlockwise: an image about its middle, a vector in consecutive planes."""
    angle = degrees * (math.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    if x.ndim == 4:
        ratio = x.shape[2] / x.shape[3]
        zero = torch.zeros_like(cos)
        rows = [torch.stack([cos, -sin * ratio, zero], 1), torch.stack([sin / ratio, cos, zero], 1)]
        grid = F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    flat = x.flatten(1).clone()
    pairs = 2 * (flat.shape[1] // 2)
    first, second = flat[:, 0:pairs:2].clone(), flat[:, 1:pairs:2].clone()
    flat[:, 0:pairs:2] = cos[:, None] * first - sin[:, None] * second
    flat[:, 1:pairs:2] = sin[:, None] * first + cos[:, None] * second
    return flat.view_as(x)


def _spread(level: Tensor, x: Tensor) -> Tensor:
    return level.view(-1, *[1] * (x.ndim - 1))


def _orders(changed: Whole, clients: int, labels: int, random: np.random.Generator) -> Whole:
    """A permutation of the labels for each client: the identity, or for the changed ones any other."""
    orders = np.tile(np.arange(labels), (clients, 1))
    for client in changed:
        while labels > 1 and (orders[client] == np.arange(labels)).all():
            orders[client] = random.permutation(labels)
    return orders


def _permuted(y: Tensor, orders: Tensor, table: Table) -> Tensor:
    if table.task == "multilabel":
        return y.gather(1, orders)
    numbers = y.long().view(-1, 1)
    return orders.gather(1, numbers).to(y.dtype).view_as(y)
