"""Optimisers of clients: rules that turn a gradient into a step, for a vector or a stack of vectors, in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import WrapValidator
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.types import Vector


class Optimiser(ABC):
    """``slots(theta)`` makes the state, ``step`` moves θ in place; slot tensors have θ's shape."""

    @abstractmethod
    def slots(self, theta: Vector) -> list[Tensor]:
        """The state at the start."""

    @abstractmethod
    def step(self, theta: Vector, gradient: Vector, lr: float | Tensor, slots: list[Tensor], count: int) -> None:
        """The step number ``count`` (1, 2, …), in place."""


@dataclass(frozen=True)
class Momentum(Optimiser):
    """Polyak's heavy ball: m ← βm + g, θ ← θ − lr·m."""

    beta: float = 0.9

    def slots(self, theta: Vector) -> list[Tensor]:
        return [torch.zeros_like(theta)]

    def step(self, theta: Vector, gradient: Vector, lr: float | Tensor, slots: list[Tensor], count: int) -> None:
        (m,) = slots
        m.mul_(self.beta).add_(gradient)
        theta.sub_(lr * m)


@dataclass(frozen=True)
class Adam(Optimiser):
    """Kingma and Ba's Adam with bias correction, as optimisers on one machine use it."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def slots(self, theta: Vector) -> list[Tensor]:
        return [torch.zeros_like(theta), torch.zeros_like(theta)]

    def step(self, theta: Vector, gradient: Vector, lr: float | Tensor, slots: list[Tensor], count: int) -> None:
        m, v = slots
        m.mul_(self.beta1).add_(gradient, alpha=1 - self.beta1)
        v.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        m_hat = m / (1 - self.beta1**count)
        v_hat = v / (1 - self.beta2**count)
        theta.sub_(lr * m_hat / (v_hat.sqrt_().add_(self.epsilon)))


def local_optimiser(name: str) -> Optimiser | None:
    """The client's optimiser of that name; None stands for plain SGD, whose step is fused into the gradient.

    Momentum is told its β as a step size is told its schedule: "momentum:0.5".
    """
    rules: dict[str, Optimiser | None] = {"sgd": None, "momentum": Momentum(), "adam": Adam()}
    if name.startswith(_BETA):
        return Momentum(_beta(name))
    if name not in rules:
        raise ConfigError(f"there is no optimiser {name!r}; choose one of {', '.join(rules)}")
    return rules[name]


_BETA = "momentum:"


def _beta(name: str) -> float:
    try:
        beta = float(name.removeprefix(_BETA))
    except ValueError:
        beta = -1.0
    if not 0 <= beta < 1:
        raise ConfigError(f"{name!r}: the β of momentum should be a number from 0 to below 1, such as 'momentum:0.5'")
    return beta


def _legible(value: Any, otherwise: Callable[[Any], Any]) -> Any:
    """Lets in what ``local_optimiser`` reads beside the names."""
    if not isinstance(value, str) or not value.startswith(_BETA):
        return otherwise(value)
    try:
        _beta(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return value


if TYPE_CHECKING:
    LocalOptimiser = str
else:  # what forms read: one of the names, with a β of momentum let in
    LocalOptimiser = Annotated[Literal["sgd", "momentum", "adam"], WrapValidator(_legible)]
