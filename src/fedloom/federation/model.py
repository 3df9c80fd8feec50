"""A model is a vector: any ``torch.nn.Module`` as a function of θ ∈ Rⁿ with named slices."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedloom.errors import ModelError
from fedloom.federation.randomness import torch_seeded
from fedloom.types import Vector


@dataclass(frozen=True)
class Slice:
    """Where one named tensor of the module lies in θ."""

    start: int
    stop: int
    shape: tuple[int, ...]

    def of(self, theta: Vector) -> Tensor:
        """That tensor inside θ, without copying; a stack keeps its leading axis."""
        return theta[..., self.start : self.stop].view(*theta.shape[:-1], *self.shape)


@dataclass(frozen=True)
class Layer:
    """One fully connected layer of a dense model, and what follows it."""

    weight: Slice
    bias: Slice | None
    activation: str


_ACTIVATIONS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}


class Model:
    """A network whose parameters are one vector.

    ``model(theta, x)`` takes θ of shape (n,) with a batch x, or a stack θ of shape (clients, n) with one batch a
    client. Where θ's values come from is nobody's business here: ``model.init(seed)`` gives a first one.

    * ``build``: a function that builds the ``torch.nn.Module``, so that a seed decides its first weights and every
      process can build its own.

        import torch

        model = fedloom.Model(lambda: torch.nn.Linear(4, 2))
        print(model.n, model(model.init(seed=0), torch.zeros(3, 4)).shape)
    """

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        self.build = build
        self.module = self.built().eval()
        _refuse_running_statistics(self.module)
        self.slices: dict[str, Slice] = {}
        position = 0
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad:
                self.slices[name] = Slice(position, position + parameter.numel(), tuple(parameter.shape))
                position += parameter.numel()
        if position == 0:
            raise ModelError("the model has no parameters: there is nothing to train")
        self.n = position
        named = (*self.module.named_parameters(), *self.module.named_buffers())
        self._side_by_side: dict[tuple[int, ...], bool] = {}
        self._fixed = {name: t.detach() for name, t in named if t.is_floating_point() and name not in self.slices}

    def __reduce__(self) -> tuple[type[Model], tuple[Callable[[], nn.Module]]]:
        return Model, (self.build,)  # another process builds its own module instead of sharing this one's tensors

    def built(self, seed: int = 0) -> nn.Module:
        """A new module; the global random state stays as it was, and what is not in θ is the same in each."""
        with torch_seeded(seed):
            module = self.build()
        return copy.deepcopy(module) if module is self.__dict__.get("module") else module  # a user's one object

    def init(self, seed: int, dtype: torch.dtype = torch.float32) -> Vector:
        """θ as the module's own initialisation draws it for this seed."""
        return torch.cat([p.detach().reshape(-1) for p in trainable(self.built(seed))]).to(dtype)

    def views(self, theta: Vector) -> dict[str, Tensor]:
        """The named tensors inside θ, without copying; a stack keeps its leading axis."""
        return {name: where.of(theta) for name, where in self.slices.items()}

    def mask(self, names: Iterable[str]) -> Tensor:
        """True at the coordinates of the named tensors; a name stands for all that begin with it ("head." …)."""
        mask = torch.zeros(self.n, dtype=torch.bool)
        for wanted in names:
            prefix = wanted.rstrip(".") + "."
            found = [s for name, s in self.slices.items() if name == wanted or name.startswith(prefix)]
            if not found:
                raise ModelError(f"the model has no tensor {wanted!r}; it has {', '.join(self.slices)}")
            for s in found:
                mask[s.start : s.stop] = True
        return mask

    @cached_property
    def last_layer(self) -> tuple[str, ...]:
        """The tensors of the last layer: what most papers keep personal."""
        prefix = list(self.slices)[-1].rpartition(".")[0]
        return tuple(name for name in self.slices if name.rpartition(".")[0] == prefix)

    @cached_property
    def layers(self) -> tuple[Layer, ...] | None:
        """The fully connected layers, if the module is nothing but these: such models run fast in stacks."""
        if type(self.module) is not nn.Sequential or any(map(_hooked, self.module.modules())):
            return None
        layers: list[Layer] = []
        for name, part in self.module._modules.items():
            weight, bias = self.slices.get(f"{name}.weight"), self.slices.get(f"{name}.bias")
            if type(part) is nn.Flatten and not layers and (part.start_dim, part.end_dim) == (1, -1):
                continue
            if type(part) is nn.Linear and weight is not None and (bias is None) == (part.bias is None):
                layers.append(Layer(weight, bias, "none"))
            elif type(part) in _ACTIVATIONS and layers and layers[-1].activation == "none":
                layers[-1] = Layer(layers[-1].weight, layers[-1].bias, _ACTIVATIONS[type(part)])
            else:
                return None
        return tuple(layers) if layers and layers[-1].activation == "none" else None

    def __call__(self, theta: Vector, x: Tensor) -> Tensor:
        """The outputs for a batch, or for one batch a client."""
        if self.layers is not None:
            return self._dense(theta, x, self.layers)
        if theta.dim() == 1:
            fixed = {name: tensor.to(theta.dtype) for name, tensor in self._fixed.items()}
            return torch.as_tensor(functional_call(self.module, {**fixed, **self.views(theta)}, (self.laid_out(x),)))
        return torch.stack([self(one, batch) for one, batch in zip(theta, x, strict=True)])

    def laid_out(self, x: Tensor) -> Tensor:
        """A batch as the module is quickest with it on a CPU: images with the channels of a pixel side by side."""
        if x.dim() != 4:
            return x
        shape = tuple(x.shape[1:])
        if shape not in self._side_by_side:
            self._side_by_side[shape] = self._takes_side_by_side(shape)
        return _side_by_side(x) if self._side_by_side[shape] else x

    def _takes_side_by_side(self, shape: tuple[int, ...]) -> bool:
        """Whether the module can have images so: one that calls ``view`` on what convolutions give cannot."""
        images = torch.linspace(-1, 1, 2 * math.prod(shape)).view(2, *shape)
        with torch.no_grad(), torch_seeded(0):
            try:
                return torch.allclose(self.module(_side_by_side(images)), self.module(images), rtol=1e-3, atol=1e-5)
            except Exception:  # whatever is wrong with it, it will say so where it is used
                return False

    def _dense(self, theta: Vector, x: Tensor, layers: tuple[Layer, ...]) -> Tensor:
        h = x.flatten(theta.dim())
        for layer in layers:
            h = h @ layer.weight.of(theta).transpose(-1, -2)
            if layer.bias is not None:
                h = h + layer.bias.of(theta).unsqueeze(-2)
            h = activate(h, layer.activation)
        return h


def _side_by_side(x: Tensor) -> Tensor:
    """In the layout that torch calls channels-last, which is quicker there.

    One channel alone is in the usual layout and in this one at the same time; torch is told which by the strides.
    """
    _, channels, height, width = x.shape
    strides = (height * width * channels, 1, width * channels, channels)
    return x.contiguous(memory_format=torch.channels_last).as_strided(x.shape, strides)


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that make θ, in its order: a user's frozen ones stay as they are."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def activate(h: Tensor, name: str) -> Tensor:
    """The activation of that name."""
    return h if name == "none" else _FUNCTIONS[name](h)


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _refuse_running_statistics(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats:
            raise ModelError(
                f"the layer {name!r} ({type(part).__name__}) keeps running statistics outside the parameters, which "
                "no method could average or personalise; use GroupNorm"
            )


def check_fit(model: Model, x: Tensor, outputs: int, dtype: torch.dtype) -> None:
    """Stops before any work if the model cannot read a row or puts out the wrong number of columns."""
    try:
        with torch.no_grad():
            out = model(torch.zeros(model.n, dtype=dtype), x)
    except Exception as error:  # a user's module may raise anything
        raise ModelError(f"the model cannot read rows of shape {tuple(x.shape[1:])}: {error}") from error
    if out.dim() != 2 or out.shape[1] != outputs:
        got = tuple(out.shape[1:])
        raise ModelError(f"the model puts out {got} numbers a row, the data need ({outputs},)")
