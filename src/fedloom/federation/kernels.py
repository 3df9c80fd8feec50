"""The inner loop: gradients and steps for a stack of clients, as fast as the model's structure allows.

``DenseKernel`` serves models of fully connected layers: a stack is a leading axis of the same matrix products, and
the backward pass adds the weight gradient straight into the weights. ``StackKernel`` serves other small modules: a
stack is what ``torch.func`` makes of one client. ``ModuleKernel`` serves every other module, one client after the
other: per-client kernels would make grouped convolutions, which lose on a CPU once they are large.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fedloom.federation.losses import Loss
from fedloom.federation.model import Layer, Model, running_statistics, trainable
from fedloom.federation.randomness import torch_seeded
from fedloom.types import Vector

Product = Callable[[Vector], Vector]
"""v ↦ Hv with a Hessian that nobody ever writes down."""


def head(value: float | Tensor, active: int) -> float | Tensor:
    """The part for the clients still at work, of a value that may be one for all."""
    return value[:active] if isinstance(value, Tensor) and value.dim() == 2 else value


@dataclass(frozen=True, eq=False)
class Affine:
    """The part of a step that does not depend on the data: θ ← keep·θ + add (μ(θ − x0) + v, times the step size)."""

    keep: float | Tensor
    add: Tensor | float

    def apply(self, theta: Tensor) -> None:
        """In place, for the clients still at work (the first ones of the stack)."""
        keep, add = head(self.keep, len(theta)), head(self.add, len(theta))
        if isinstance(keep, Tensor):
            theta.mul_(keep).add_(add)
        elif isinstance(add, Tensor):
            torch.add(add, theta, alpha=keep, out=theta)
        else:
            theta.mul_(keep)


class Kernel(ABC):
    """Gradients and plain steps at a stack θ of shape (clients, n), for one batch a client.

    ``weight`` is what each row counts for: a number, or a tensor (clients, rows).
    """

    stacks: bool
    """Whether a stack takes its steps together; otherwise clients walk one after the other."""
    passed: Vector | None = None
    """Of a model with running statistics: what the last pass has made of them."""

    @abstractmethod
    def bind(self, theta: Vector) -> Vector:
        """The buffer in which ``step`` will move this stack: θ itself, or the kernel's own with θ copied in."""

    @abstractmethod
    def gradient(self, theta: Vector, x: Tensor, y: Tensor, weight: float | Tensor) -> Vector:
        """Σ weight·∇ℓ over the rows, shape (clients, n)."""

    @abstractmethod
    def linearise(self, theta: Vector, x: Tensor, y: Tensor, weight: float | Tensor) -> tuple[Vector, Product]:
        """Σ weight·∇ℓ, and v ↦ Σ weight·∇²ℓ·v at the same θ, which must not change in between."""

    @abstractmethod
    def step(self, theta: Vector, x: Tensor, y: Tensor, weight: float | Tensor, affine: Affine | None) -> None:
        """θ ← affine(θ) − Σ weight·∇ℓ(θ), in place; θ must be (the first clients of) a bound buffer."""


@dataclass(frozen=True, eq=False)
class Parts:
    """One layer's weights and bias inside a stack θ, as views."""

    weight: Tensor
    bias: Tensor | None
    activation: str


@dataclass(frozen=True, eq=False)
class Term:
    """One layer in a backward pass: its input h and output, and its error δ.

    The gradient of its weights is δᵀh, that of its bias Σδ.
    """

    layer: int
    delta: Tensor
    h: Tensor
    out: Tensor


class DenseKernel(Kernel):
    """Batched matrix products over the stack; the backward pass is written out."""

    stacks = True

    def __init__(self, layers: tuple[Layer, ...], loss: Loss) -> None:
        self.layers, self.loss = layers, loss
        self.last: tuple[Tensor, list[Parts]] | None = None

    def bind(self, theta: Vector) -> Vector:
        return theta

    def gradient(self, theta: Vector, x: Tensor, y: Tensor, weight: float | Tensor) -> Vector:
        return self._gathered(theta, self._backward(self._cut(theta), x, y, weight))

    def linearise(self, theta: Vector, x: Tensor, y: Tensor, weight: float | Tensor) -> tuple[Vector, Product]:
        parts = self._cut(theta)
        terms = self._backward(parts, x, y, weight)
        return self._gathered(theta, terms), lambda v: self._along(v, parts, terms, y, weight)

    def _along(self, v: Vector, parts: list[Parts], terms: list[Term], y: Tensor, weight: float | Tensor) -> Vector:
        """How fast the gradient changes when θ moves along v: Pearlmutter's R operator.

        Rq is the pace of a quantity q: Rh of a layer's input, Rδ of its error. The gradient of the weights being δᵀh,
        its pace is (Rδ)ᵀh + δᵀRh.
        """
        paces: list[Tensor | None] = [None]  # of the layers' inputs; the data do not move
        along = self._cut(v)
        for layer, part in enumerate(parts):
            term = terms[-1 - layer]
            rz = _affine_map(term.h, along[layer])
            before = paces[-1]
            if before is not None:
                rz.baddbmm_(before, part.weight.transpose(1, 2))
            paces.append(_times_derivative_(rz, term.out, part.activation))
        product = torch.empty_like(v)
        into = self._cut(product)
        each = weight.unsqueeze(-1) if isinstance(weight, Tensor) else weight
        rdelta = self.loss.curve(terms[0].out, y, torch.as_tensor(paces[-1])).mul_(each)
        for term in terms:
            at, rh = into[term.layer], paces[term.layer]
            torch.bmm(rdelta.transpose(1, 2), term.h, out=at.weight)
            if at.bias is not None:
                torch.sum(rdelta, 1, keepdim=True, out=at.bias)
            if rh is None:
                break
            at.weight.baddbmm_(term.delta.transpose(1, 2), rh)
            name = parts[term.layer - 1].activation
            back = torch.bmm(rdelta, parts[term.layer].weight).baddbmm_(term.delta, along[term.layer].weight)
            rdelta = _times_derivative_(back, term.h, name)
            bend = _bend(term.h, rh, name)
            if bend is not None:
                rdelta.add_(bend.mul_(torch.bmm(term.delta, parts[term.layer].weight)))
        return product

    def _gathered(self, theta: Vector, terms: list[Term]) -> Vector:
        gradient = torch.empty_like(theta)
        parts = self._cut(gradient)
        for term in terms:
            torch.bmm(term.delta.transpose(1, 2), term.h, out=parts[term.layer].weight)
            bias = parts[term.layer].bias
            if bias is not None:
                torch.sum(term.delta, 1, keepdim=True, out=bias)
        return gradient

    def step(self, theta: Vector, x: Tensor, y: Tensor, weight: float | Tensor, affine: Affine | None) -> None:
        if self.last is None or self.last[0] is not theta:  # a walk comes back with the same θ in every step
            self.last = (theta, self._cut(theta))
        parts = self.last[1]
        terms = self._backward(parts, x, y, weight)
        if affine is not None:
            affine.apply(theta)
        for term in terms:
            parts[term.layer].weight.baddbmm_(term.delta.transpose(1, 2), term.h, alpha=-1)
            bias = parts[term.layer].bias
            if bias is not None:
                bias.sub_(term.delta.sum(1, keepdim=True))

    def _cut(self, theta: Vector) -> list[Parts]:
        parts = []
        for layer in self.layers:  # as Slice.of does, but quicker: a walk cuts whenever a client is done
            weight = theta[:, layer.weight.start : layer.weight.stop].view(len(theta), *layer.weight.shape)
            bias = theta[:, None, layer.bias.start : layer.bias.stop] if layer.bias is not None else None
            parts.append(Parts(weight, bias, layer.activation))
        return parts

    def _backward(self, parts: list[Parts], x: Tensor, y: Tensor, weight: float | Tensor) -> list[Term]:
        """The terms of the gradient, last layer first."""
        outputs = [x.flatten(2)]
        for part in parts:
            outputs.append(_IN_PLACE[part.activation](_affine_map(outputs[-1], part)))
        delta = self.loss.slope(outputs[-1], y).mul_(weight.unsqueeze(-1) if isinstance(weight, Tensor) else weight)
        terms = []
        for layer in range(len(parts) - 1, -1, -1):
            terms.append(Term(layer, delta, outputs[layer], outputs[layer + 1]))
            if layer:
                delta = torch.bmm(delta, parts[layer].weight)
                delta = _times_derivative_(delta, outputs[layer], parts[layer - 1].activation)
        return terms


class StackKernel(Kernel):
    """A small module of any kind: torch.func writes the computation of one client for a whole stack."""

    stacks = True

    def __init__(self, model: Model, loss: Loss) -> None:
        self.model, self.loss = model, loss

    def bind(self, theta: Vector) -> Vector:
        return theta

    def gradient(self, theta: Vector, x: Tensor, y: Tensor, weight: float | Tensor) -> Vector:
        return self._mapped(grad(self._total), (theta, self.model.whole(x), y, weight))

    def linearise(self, theta: Vector, x: Tensor, y: Tensor, weight: float | Tensor) -> tuple[Vector, Product]:
        rows = (self.model.whole(x), y, weight)

        def along(at: Tensor, v: Tensor, *own: Any) -> Tensor:
            return torch.dot(grad(self._total)(at, *own), v)

        return self.gradient(theta, x, y, weight), lambda v: self._mapped(grad(along), (theta, v, *rows))

    def step(self, theta: Vector, x: Tensor, y: Tensor, weight: float | Tensor, affine: Affine | None) -> None:
        gradient = self.gradient(theta, x, y, weight)
        if affine is not None:
            affine.apply(theta)
        theta.sub_(gradient)

    def _total(self, theta: Vector, x: Tensor, y: Tensor, weight: float | Tensor) -> Tensor:
        return (self.loss.rows(self.model.alone(theta, x), y) * weight).sum()

    @staticmethod
    def _mapped(one: Callable[..., Any], values: tuple[Any, ...]) -> Tensor:
        """What it gives for each client; a number is the same for all of them."""
        axes = tuple(0 if isinstance(value, Tensor) else None for value in values)
        return torch.as_tensor(vmap(one, axes)(*values)).detach()


class ModuleKernel(Kernel):
    """Any module, one client after the other, its parameters being views of one flat buffer.

    So are its running statistics, where it has some: a pass forward moves them as torch does, and nothing else ever
    does. Of gradients that part is 0.
    """

    stacks = False

    def __init__(self, model: Model, loss: Loss, dtype: torch.dtype) -> None:
        self.loss, self.laid_out, self.tailed, self.n = loss, model.laid_out, model.tailed, model.n
        self.module = model.built().to(dtype).train()
        self.flat = torch.zeros(model.width, dtype=dtype)
        self.parameters: list[Tensor] = list(trainable(self.module))
        self.recurs = any(isinstance(part, nn.RNNBase) for part in self.module.modules())
        self.running = [part for part in self.module.modules() if getattr(part, "running_mean", None) is not None]
        self.refused: dict[tuple[int, ...], bool] = {}
        self.tail = self.flat[self.n :]
        tensors = [*self.parameters, *running_statistics(self.module).values()]
        for tensor, view in zip(tensors, model.views(self.flat).values(), strict=True):
            tensor.data = view

    def gradient(self, theta: Vector, x: Tensor, y: Tensor, weight: float | Tensor) -> Vector:
        gradients = []
        for i in range(len(theta)):
            with self._at(theta[i]):
                gradients.append(self._flat(self._backward(x[i], y[i], _of(weight, i)), theta))
        return torch.stack(gradients)

    def linearise(self, theta: Vector, x: Tensor, y: Tensor, weight: float | Tensor) -> tuple[Vector, Product]:
        pairs = [self._graph(theta[i], x[i], y[i], _of(weight, i)) for i in range(len(theta))]
        gradients = torch.stack([self._flat(gradients, theta) for gradients in pairs])
        return gradients, lambda v: torch.stack(
            [self._twice(at, gradients, one) for at, gradients, one in zip(theta, pairs, v, strict=True)]
        )

    def _graph(self, theta: Vector, x: Tensor, y: Tensor, weight: float | Tensor) -> tuple[Tensor, ...]:
        """The gradient, ready to be differentiated."""
        with self._at(theta), _without_onednn() if self.recurs else nullcontext():
            return self._backward(x, y, weight, graph=True)

    def _twice(self, theta: Vector, gradients: tuple[Tensor, ...], v: Vector) -> Vector:
        """The gradient of ⟨∇f, v⟩: a second pass backwards through the first, at the same θ."""
        along = torch.split(v[: self.n], [parameter.numel() for parameter in self.parameters])
        pairs = [(g, part.view_as(g)) for g, part in zip(gradients, along, strict=True) if g.requires_grad]
        if not pairs:
            return torch.zeros_like(v)
        slopes, parts = zip(*pairs, strict=True)
        with self._at(theta), _without_onednn() if self.recurs else nullcontext():
            found = torch.autograd.grad(slopes, self.parameters, parts, materialize_grads=True, retain_graph=True)
            return self._flat(found, v)

    @contextmanager
    def _at(self, theta: Vector) -> Iterator[None]:
        """The module's parameters at θ, and then back: a walk may ask for a gradient elsewhere between two steps."""
        under_way = self.flat.clone()
        self.flat.copy_(self.tailed(theta))
        try:
            yield
        finally:
            self.passed = self.tail.clone()
            self.flat.copy_(under_way)

    def bind(self, theta: Vector) -> Vector:
        self.flat.copy_(self.tailed(theta[0]))
        return self.flat[: theta.shape[-1]].unsqueeze(0)

    def step(self, theta: Vector, x: Tensor, y: Tensor, weight: float | Tensor, affine: Affine | None) -> None:
        gradients = self._backward(x[0], y[0], _of(weight, 0))
        if affine is not None:
            affine.apply(theta[:, : self.n])
        with torch.no_grad():
            torch._foreach_sub_(self.parameters, list(gradients))

    def _backward(self, x: Tensor, y: Tensor, weight: float | Tensor, graph: bool = False) -> tuple[Tensor, ...]:
        with torch.enable_grad(), self._lonely(x) if self.running and len(x) == 1 else nullcontext():
            total = (self.loss.rows(self.module(self.laid_out(x)), y) * weight).sum()
            return torch.autograd.grad(total, self.parameters, materialize_grads=True, create_graph=graph)

    @contextmanager
    def _lonely(self, x: Tensor) -> Iterator[None]:
        """One row may have a single number a channel, of which no statistics can be made, and torch refuses it: such a
        row is normalised by the running statistics, which stay as they are."""
        shape = tuple(x.shape[1:])
        if shape not in self.refused:
            self.refused[shape] = self._refuses(x)
        for part in self.running:
            part.train(not self.refused[shape])
        try:
            yield
        finally:
            for part in self.running:
                part.train()

    def _refuses(self, x: Tensor) -> bool:
        before = self.tail.clone()
        try:
            with torch.no_grad(), torch_seeded(0):
                self.module(self.laid_out(x))
        except ValueError:
            return True
        finally:
            self.tail.copy_(before)
        return False

    def _flat(self, tensors: tuple[Tensor, ...], like: Vector) -> Vector:
        """All numbers as one vector, out of the graph; as long as another, with zeros in its tail."""
        parts = [tensor.detach().reshape(-1) for tensor in tensors]
        return torch.cat([*parts, parts[0].new_zeros(like.shape[-1] - self.n)])


def kernel_for(model: Model, loss: Loss, dtype: torch.dtype, x: Tensor, y: Tensor) -> Kernel:
    """The fastest kernel that this model and this loss allow, for rows like these."""
    if model.layers is not None:
        return DenseKernel(model.layers, loss)
    if model.single(tuple(x.shape[1:])) is None and len(x):
        stack = StackKernel(model, loss)
        try:
            stack.gradient(torch.zeros(1, model.n, dtype=dtype), x[None, :1], y[None, :1], 1.0)
        except Exception:  # a user's loss that torch.func cannot run; it will say what else is wrong where it is used
            return ModuleKernel(model, loss, dtype)
        return stack
    return ModuleKernel(model, loss, dtype)


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Its recurrent cells have no second derivatives; torch's own have."""
    switch: Any = torch.backends.mkldnn
    before = switch.enabled
    switch.enabled = False
    try:
        yield
    finally:
        switch.enabled = before


def _of(weight: float | Tensor, i: int) -> float | Tensor:
    return weight[i] if isinstance(weight, Tensor) else weight


_IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "tanh": torch.tanh_,
    "sigmoid": torch.sigmoid_,
    "none": lambda h: h,
}


def _affine_map(h: Tensor, part: Parts) -> Tensor:
    """hWᵀ + b."""
    w = part.weight.transpose(1, 2)
    return torch.bmm(h, w) if part.bias is None else torch.baddbmm(part.bias, h, w)


def _bend(h: Tensor, rh: Tensor, name: str) -> Tensor | None:
    """How fast the activation's derivative changes, in terms of its output h and that one's pace; None: it does not."""
    match name:
        case "tanh":
            return -2 * h * rh
        case "sigmoid":
            return (1 - 2 * h) * rh
        case _:
            return None


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
