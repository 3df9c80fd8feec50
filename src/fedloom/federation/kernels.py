"""The inner loop: gradients and steps for a stack of clients, as fast as the model's structure allows.

``DenseKernel`` serves models of fully connected layers: a stack is a leading axis of the same matrix products, and
the backward pass adds the weight gradient straight into the weights. ``ModuleKernel`` serves every other module, one
client after the other: per-client kernels would make grouped convolutions, which lose on a CPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.federation.losses import Loss
from fedloom.federation.model import Layer, Model, trainable
from fedloom.types import Vector


@dataclass(frozen=True, eq=False)
class Affine:
    """The part of a step that does not depend on the data: θ ← keep·θ + add (μ(θ − x0) + v, times the step size)."""

    keep: float | Tensor
    add: Tensor | float

    def apply(self, theta: Tensor) -> None:
        """In place, for the clients still at work (the first ones of the stack)."""
        add = self.add
        if isinstance(add, Tensor) and add.dim() == 2:
            add = add[: len(theta)]
        if isinstance(self.keep, Tensor):
            theta.mul_(self.keep[: len(theta)] if self.keep.dim() == 2 else self.keep).add_(add)
        elif isinstance(add, Tensor):
            torch.add(add, theta, alpha=self.keep, out=theta)
        else:
            theta.mul_(self.keep)


class Kernel(ABC):
    """Gradients and plain steps at a stack θ of shape (clients, n), for one batch a client.

    ``weight`` is what each row counts for: a number, or a tensor (clients, rows).
    """

    stacks: bool
    """Whether a stack takes its steps together; otherwise clients walk one after the other."""

    @abstractmethod
    def bind(self, theta: Vector) -> Vector:
        """The buffer in which ``step`` will move this stack: θ itself, or the kernel's own with θ copied in."""

    @abstractmethod
    def gradient(self, theta: Vector, x: Tensor, y: Tensor, weight: float | Tensor) -> Vector:
        """Σ weight·∇ℓ over the rows, shape (clients, n)."""

    @abstractmethod
    def step(self, theta: Vector, x: Tensor, y: Tensor, weight: float | Tensor, affine: Affine | None) -> None:
        """θ ← affine(θ) − Σ weight·∇ℓ(θ), in place; θ must be (the first clients of) a bound buffer."""


@dataclass(frozen=True, eq=False)
class Parts:
    """One layer's weights and bias inside a stack θ, as views."""

    weight: Tensor
    bias: Tensor | None
    activation: str


class DenseKernel(Kernel):
    """Batched matrix products over the stack; the backward pass is written out."""

    stacks = True

    def __init__(self, layers: tuple[Layer, ...], loss: Loss) -> None:
        self.layers, self.loss = layers, loss
        self.last: tuple[Tensor, list[Parts]] | None = None

    def bind(self, theta: Vector) -> Vector:
        return theta

    def gradient(self, theta: Vector, x: Tensor, y: Tensor, weight: float | Tensor) -> Vector:
        gradient = torch.zeros_like(theta)
        parts = self._cut(gradient)
        for layer, delta, h in self._backward(self._cut(theta), x, y, weight):
            parts[layer].weight.baddbmm_(delta.transpose(1, 2), h)
            bias = parts[layer].bias
            if bias is not None:
                torch.sum(delta, 1, keepdim=True, out=bias)
        return gradient

    def step(self, theta: Vector, x: Tensor, y: Tensor, weight: float | Tensor, affine: Affine | None) -> None:
        if self.last is None or self.last[0] is not theta:  # a walk comes back with the same θ in every step
            self.last = (theta, self._cut(theta))
        parts = self.last[1]
        terms = self._backward(parts, x, y, weight)
        if affine is not None:
            affine.apply(theta)
        for layer, delta, h in terms:
            parts[layer].weight.baddbmm_(delta.transpose(1, 2), h, alpha=-1)
            bias = parts[layer].bias
            if bias is not None:
                bias.sub_(delta.sum(1, keepdim=True))

    def _cut(self, theta: Vector) -> list[Parts]:
        parts = []
        for layer in self.layers:
            weight = theta[:, layer.weight.start : layer.weight.stop].view(len(theta), *layer.weight.shape)
            bias = theta[:, None, layer.bias.start : layer.bias.stop] if layer.bias is not None else None
            parts.append(Parts(weight, bias, layer.activation))
        return parts

    def _backward(
        self, parts: list[Parts], x: Tensor, y: Tensor, weight: float | Tensor
    ) -> list[tuple[int, Tensor, Tensor]]:
        """For each layer its error δ and its input h: the gradient of its weights is δᵀh, of its bias Σδ."""
        inputs = []
        h = x.flatten(2)
        for part in parts:
            inputs.append(h)
            w = part.weight.transpose(1, 2)
            h = torch.bmm(h, w) if part.bias is None else torch.baddbmm(part.bias, h, w)
            h = _IN_PLACE[part.activation](h)
        delta = self.loss.slope(h, y).mul_(weight.unsqueeze(-1) if isinstance(weight, Tensor) else weight)
        terms = []
        for layer in range(len(parts) - 1, -1, -1):
            h = inputs[layer]
            terms.append((layer, delta, h))
            if layer:
                delta = torch.bmm(delta, parts[layer].weight)
                delta = _times_derivative_(delta, h, parts[layer - 1].activation)
        return terms


class ModuleKernel(Kernel):
    """Any module, one client after the other, its parameters being views of one flat buffer."""

    stacks = False

    def __init__(self, model: Model, loss: Loss, dtype: torch.dtype) -> None:
        self.loss = loss
        self.module = model.built().to(dtype).train()
        self.flat = torch.zeros(model.n, dtype=dtype)
        self.parameters: list[Tensor] = list(trainable(self.module))
        for parameter, view in zip(self.parameters, model.views(self.flat).values(), strict=True):
            parameter.data = view

    def gradient(self, theta: Vector, x: Tensor, y: Tensor, weight: float | Tensor) -> Vector:
        gradients = []
        under_way = self.flat.clone()  # a walk may ask for a gradient elsewhere between two of its steps
        for i in range(len(theta)):
            self.flat.copy_(theta[i])
            gradients.append(torch.cat([g.reshape(-1) for g in self._backward(x[i], y[i], _of(weight, i))]))
        self.flat.copy_(under_way)
        return torch.stack(gradients)

    def bind(self, theta: Vector) -> Vector:
        self.flat.copy_(theta[0])
        return self.flat.unsqueeze(0)

    def step(self, theta: Vector, x: Tensor, y: Tensor, weight: float | Tensor, affine: Affine | None) -> None:
        gradients = self._backward(x[0], y[0], _of(weight, 0))
        if affine is not None:
            affine.apply(theta)
        with torch.no_grad():
            torch._foreach_sub_(self.parameters, list(gradients))

    def _backward(self, x: Tensor, y: Tensor, weight: float | Tensor) -> tuple[Tensor, ...]:
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)  # convolutions on a CPU are quicker so
        with torch.enable_grad():
            total = (self.loss.rows(self.module(x), y) * weight).sum()
            return torch.autograd.grad(total, self.parameters, materialize_grads=True)


def kernel_for(model: Model, loss: Loss, dtype: torch.dtype) -> Kernel:
    """The fastest kernel that this model allows."""
    return DenseKernel(model.layers, loss) if model.layers is not None else ModuleKernel(model, loss, dtype)


def _of(weight: float | Tensor, i: int) -> float | Tensor:
    return weight[i] if isinstance(weight, Tensor) else weight


_IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "tanh": torch.tanh_,
    "sigmoid": torch.sigmoid_,
    "none": lambda h: h,
}


def _times_derivative_(delta: Tensor, h: Tensor, name: str) -> Tensor:
    """δ·σ′, with the derivative written in terms of the activation's own output h."""
    match name:
        case "relu":
            return torch.ops.aten.threshold_backward(delta, h, 0)  # type: ignore[no-any-return]
        case "tanh":
            return delta.mul_(1 - h * h)
        case "sigmoid":
            return delta.mul_(h * (1 - h))
        case _:
            return delta
