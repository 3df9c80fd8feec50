"""What a server may ask of a model beside a small loss: regularisers g, each as its proximal step.

prox(v, t) = argmin g(z)·t + ½‖z − v‖², coordinate by coordinate, so one line each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.types import Vector

RegulariserName = Literal["none", "ridge", "lasso", "elastic-net", "box"]


class Regulariser(ABC):
    """g, a convex function of the model that is a sum over its coordinates."""

    @abstractmethod
    def value(self, z: Vector) -> Tensor:
        """g(z)."""

    @abstractmethod
    def prox(self, v: Vector, t: float | Tensor) -> Vector:
        """argmin t·g(z) + ½‖z − v‖²."""


@dataclass(frozen=True)
class ElasticNet(Regulariser):
    """g(z) = a‖z‖₁ + (b/2)‖z‖²: lasso for b = 0, ridge for a = 0, nothing for both."""

    absolute: float = 0.0
    square: float = 0.0

    def value(self, z: Vector) -> Tensor:
        return self.absolute * z.abs().sum() + self.square / 2 * z.square().sum()

    def prox(self, v: Vector, t: float | Tensor) -> Vector:
        return soft_threshold(v, t * self.absolute) / (1 + t * self.square)


@dataclass(frozen=True)
class Box(Regulariser):
    """g(z) = 0 if every coordinate is between low and high, else infinite."""

    low: float
    high: float

    def value(self, z: Vector) -> Tensor:
        inside = bool(((z >= self.low) & (z <= self.high)).all())
        return z.new_tensor(0.0 if inside else float("inf"))

    def prox(self, v: Vector, t: float | Tensor) -> Vector:
        return v.clamp(self.low, self.high)


def soft_threshold(v: Vector, by: float | Tensor) -> Vector:
    """Every coordinate moved towards 0 by so much, and not beyond it: the proximal step of by·‖·‖₁."""
    return torch.sign(v) * (v.abs() - by).clamp(min=0)


def regulariser_for(
    name: str, strength: float = 0.0, l1_share: float = 0.5, low: float = -1.0, high: float = 1.0
) -> Regulariser:
    """The regulariser of that name; refuses what is not convex or cannot be met.

    "ridge" is (strength/2)‖z‖², "lasso" strength·‖z‖₁, and "elastic-net" the mixture
    strength·(s‖z‖₁ + (1 − s)/2·‖z‖²) with s = l1_share, as scikit-learn has it.
    """
    if not strength >= 0:
        raise ConfigError(f"strength = {strength}: a regulariser's strength is 0 or more (a negative one has no limit)")
    if not 0 <= l1_share <= 1:
        raise ConfigError(f"l1_share = {l1_share}: it is a share, from 0 (ridge) to 1 (lasso)")
    match name:
        case "none":
            return ElasticNet()
        case "ridge":
            return ElasticNet(square=strength)
        case "lasso":
            return ElasticNet(absolute=strength)
        case "elastic-net":
            return ElasticNet(strength * l1_share, strength * (1 - l1_share))
        case "box":
            if not low <= high:
                raise ConfigError(f"low = {low} is above high = {high}: no model is in that box; exchange the two")
            return Box(low, high)
    raise ConfigError(f"there is no regulariser {name!r}; choose one of none, ridge, lasso, elastic-net, box")
