"""How far a model is from an earlier one, as Bregman divergences D_h(θ, θ_p) = h(θ) − h(θ_p) − ⟨∇h(θ_p), θ − θ_p⟩.

A divergence is its convex function h, a sum over the coordinates. ``register_divergence("mine", Mine())`` makes one of
your own known by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.register import Register
from fedloom.types import Vector

_MOST = 200


class Divergence(ABC):
    """h, strictly convex, twice differentiable, and a sum over the coordinates.

    Its functions work on one vector θ or on a stack of them.

        import torch

        from fedloom.federation.divergences import divergence_for

        h = divergence_for("squared")
        print(h.between(torch.ones(3), torch.zeros(3)))
    """

    @abstractmethod
    def value(self, theta: Vector) -> Tensor:
        """h(θ)."""

    @abstractmethod
    def gradient(self, theta: Vector) -> Vector:
        """∇h(θ)."""

    @abstractmethod
    def curvature(self, theta: Vector) -> Vector:
        """The diagonal of ∇²h(θ), which is all of it."""

    def between(self, theta: Vector, prior: Vector) -> Tensor:
        """D_h(θ, θ_p)."""
        return self.value(theta) - self.value(prior) - (self.gradient(prior) * (theta - prior)).sum(-1)

    def pull(self, theta: Vector, prior: Vector) -> Vector:
        """∇_θ D_h(θ, θ_p) = ∇h(θ) − ∇h(θ_p)."""
        return self.gradient(theta) - self.gradient(prior)

    def nearest(self, v: Vector, rho: float | Tensor, strength: float, prior: Vector) -> Vector:
        """argmin (ρ/2)‖θ‖² − ⟨v, θ⟩ + strength·D_h(θ, θ_p).

        Newton's method in each coordinate, kept between θ_p and v/ρ, where the solution is; if a step leaves what is
        left of that interval, the interval is halved instead.
        """
        free = v / rho
        low, high = torch.minimum(free, prior), torch.maximum(free, prior)
        theta = free
        for _ in range(_MOST):
            slope = rho * theta - v + strength * self.pull(theta, prior)
            low, high = torch.where(slope < 0, theta, low), torch.where(slope > 0, theta, high)
            step = theta - slope / (rho + strength * self.curvature(theta))
            inside = (step >= low) & (step <= high)
            before, theta = theta, torch.where(inside, step, (low + high) / 2)
            if bool(((theta - before).abs() <= 4 * torch.finfo(theta.dtype).eps * before.abs()).all()):
                break
        return theta


DIVERGENCES: Register[Divergence] = Register(
    "h",
    right=lambda thing: isinstance(thing, Divergence),
    must_be="an object of a class derived from fedloom.Divergence",
    own="module:object, or made known by fedloom.register_divergence",
)
divergence_for = DIVERGENCES.find


@dataclass(frozen=True)
class Squared(Divergence):
    """h = ‖·‖², so that D_h(θ, θ_p) = ‖θ − θ_p‖²."""

    def value(self, theta: Vector) -> Tensor:
        return theta.square().sum(-1)

    def gradient(self, theta: Vector) -> Vector:
        return 2 * theta

    def curvature(self, theta: Vector) -> Vector:
        return torch.full_like(theta, 2.0)

    def nearest(self, v: Vector, rho: float | Tensor, strength: float, prior: Vector) -> Vector:
        return (v + 2 * strength * prior) / (rho + 2 * strength)


@dataclass(frozen=True)
class Hypentropy(Divergence):
    """The hyperbolic entropy h(θ) = Σ θ asinh(θ/b) − √(θ² + b²) (Ghai, Hazan and Singer, ALT 2020).

    Near 0 it is θ²/(2b); far out it grows like |θ| log|θ|, so that large weights may move more freely than small ones.
    """

    b: float = 1.0

    def value(self, theta: Vector) -> Tensor:
        return (theta * torch.asinh(theta / self.b) - (theta.square() + self.b**2).sqrt()).sum(-1)

    def gradient(self, theta: Vector) -> Vector:
        return torch.asinh(theta / self.b)

    def curvature(self, theta: Vector) -> Vector:
        return (theta.square() + self.b**2).rsqrt()


DIVERGENCES.register("squared", Squared())
DIVERGENCES.register("hypentropy", Hypentropy())


def register_divergence(name: str, h: Divergence) -> None:
    """Make a user's own h known by name to methods and experiment files of this process.

    * ``name``: what it is called. ``h``: the function, as a Divergence.

    Nothing is returned; ``ADMMFedMeta(h=name)`` then goes by it.

        from fedloom.federation.divergences import Hypentropy

        fedloom.register_divergence("wide", Hypentropy(10.0))
        method = fedloom.ADMMFedMeta(h="wide", lambda_=0.1)
    """
    DIVERGENCES.register(name, h)
