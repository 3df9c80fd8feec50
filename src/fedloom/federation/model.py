"""A model is a vector: any ``torch.nn.Module`` as a function of θ ∈ Rⁿ with named slices."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedloom.errors import ModelError
from fedloom.federation.chains import ACTIVATIONS, NoChainError, chain_of
from fedloom.federation.randomness import torch_seeded
from fedloom.types import Vector


@dataclass(frozen=True)
class Slice:
    """Where one named tensor of the module lies in θ."""

    start: int
    stop: int
    shape: tuple[int, ...]
    norm: bool = False
    """Whether it belongs to a layer that normalises."""

    def of(self, theta: Vector) -> Tensor:
        """That tensor inside θ, without copying; a stack keeps its leading axis."""
        return theta[..., self.start : self.stop].view(*theta.shape[:-1], *self.shape)


@dataclass(frozen=True)
class Layer:
    """One fully connected layer of a dense model, and what follows it."""

    weight: Slice
    bias: Slice | None
    activation: str


def last_layer(slices: Mapping[str, Slice]) -> tuple[str, ...]:
    """The tensors of the last layer with parameters, by the names of all."""
    prefix = [name for name in slices if name.rpartition(".")[2] not in _RUNNING][-1].rpartition(".")[0]
    return tuple(name for name in slices if name.rpartition(".")[0] == prefix)


def of_each(value: Tensor, n: int, part: Callable[[Tensor], Tensor]) -> Tensor:
    """Of numbers for each of n coordinates, one or several side by side (θ and α), a part of each."""
    return part(value.view(*value.shape[:-1], -1, n)).flatten(-2)


NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm, nn.RMSNorm)
"""The layers that normalise, whatever a network calls them."""
_RUNNING = ("running_mean", "running_var")
_STACKED_MOST = 10_000
"""Parameters of a module that is not of fully connected layers alone, above which a stack of it gains nothing."""


class Model:
    """A network whose parameters are one vector.

    ``model(theta, x)`` takes θ of shape (n,) with a batch x, or a stack θ of shape (clients, n) with one batch a
    client. Where θ's values come from is nobody's business here: ``model.init(seed)`` gives a first one.

    Running statistics (of BatchNorm) are no parameters. A vector may carry them as a tail, (w, s), s being all that
    ``statistics`` names; a vector without one stands for the model with the statistics that the module is built with.

    * ``build``: a function that builds the ``torch.nn.Module``, so that a seed decides its first weights and every
      process can build its own.

        import torch

        model = fedloom.Model(lambda: torch.nn.Linear(4, 2))
        print(model.n, model(model.init(seed=0), torch.zeros(3, 4)).shape)
    """

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        self.build = build
        self.module = self.built().eval()
        normal = {prefix for prefix, part in self.module.named_modules() if isinstance(part, NORMS)}
        kept = {name: parameter for name, parameter in self.module.named_parameters() if parameter.requires_grad}
        self.slices, self.n = _laid(kept, normal, 0)
        if self.n == 0:
            raise ModelError("the model has no parameters: there is nothing to train")
        running = running_statistics(self.module)
        self.statistics, self.width = _laid(running, normal, self.n)
        """The running statistics, and how long a vector is that carries them."""
        first = [tensor.detach().reshape(-1) for tensor in running.values()]
        self._running = torch.cat(first).clone() if first else torch.empty(0)
        named = (*self.module.named_parameters(), *self.module.named_buffers())
        self._takes: dict[tuple[int, ...], Callable[[Tensor], Tensor]] = {}
        self._singles: dict[tuple[int, ...], str | None] = {}
        self._fixed = {name: t.detach() for name, t in named if t.is_floating_point() and name not in self.slices}

    def __repr__(self) -> str:
        return f"Model({type(self.module).__name__}, {self.n:,} parameters)"

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

    @property
    def tensors(self) -> dict[str, Slice]:
        """All that a vector with its tail has: the parameters, then the running statistics."""
        return {**self.slices, **self.statistics}

    def tailed(self, theta: Vector) -> Vector:
        """θ with a tail: its own, or the statistics that the module is built with."""
        if not self.statistics or theta.shape[-1] == self.width:
            return theta
        return torch.cat([theta, self._running.to(theta.dtype).expand(*theta.shape[:-1], -1)], -1)

    def views(self, theta: Vector) -> dict[str, Tensor]:
        """The named tensors inside θ, without copying; a stack keeps its leading axis."""
        tailed = theta.shape[-1] == self.width
        return {name: where.of(theta) for name, where in (self.tensors if tailed else self.slices).items()}

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
        return last_layer(self.slices)

    @cached_property
    def layers(self) -> tuple[Layer, ...] | None:
        """The fully connected layers, if the module is nothing but these: such models run fast in stacks."""
        return None if isinstance(self._chain, str) else self._chain

    @cached_property
    def _chain(self) -> tuple[Layer, ...] | str:
        """The fully connected layers, or why the module is something else."""
        try:
            links = chain_of(self.module)
        except NoChainError as error:
            return str(error)
        names = [name for link in links for name in (link.weight, link.bias) if name is not None]
        strange = next((name for name in names if name not in self.slices), None)
        if strange is not None:
            return f"its tensor {strange!r} is frozen or shared"
        return tuple(
            Layer(self.slices[link.weight], None if link.bias is None else self.slices[link.bias], link.activation)
            for link in links
        )

    @cached_property
    def head(self) -> tuple[nn.Module, Layer] | None:
        """Of a model whose last layer alone is trained: what makes that layer's inputs of a row, and the layer."""
        module = self.module
        if not isinstance(module, nn.Sequential) or not isinstance(module[-1], nn.Linear) or self.statistics:
            return None
        weight, bias = (f"{len(module) - 1}.{name}" for name in ("weight", "bias"))
        if weight not in self.slices or set(self.slices) - {weight, bias}:
            return None
        return module[:-1], Layer(self.slices[weight], self.slices.get(bias), "")

    def single(self, shape: tuple[int, ...]) -> str | None:
        """Why clients do not compute with rows of this shape in stacks, one beside the other; None: they do."""
        if shape not in self._singles:
            self._singles[shape] = None if self.layers is not None else self._why_single(shape)
        return self._singles[shape]

    def path(self, shape: tuple[int, ...]) -> str:
        """How clients compute with this model, and why, for people."""
        if self.layers is not None:
            return "fully connected layers: many clients at once, in stacks"
        why = self.single(shape)
        if why is None:
            return f"a small module: many clients at once, in stacks by torch.func ({self._chain})"
        return f"one client after the other: {self._chain}, and {why}"

    def _why_single(self, shape: tuple[int, ...]) -> str | None:
        """Tries a stack of two on rows of zeros and ones, in training and otherwise.

        The choice follows from the model and the rows' shape alone, not from a measurement on this machine: results
        must not depend on one.
        """
        if self.statistics:
            return "it keeps running statistics"
        if self.n > _STACKED_MOST:
            return f"above {_STACKED_MOST:,} parameters (it has {self.n:,}) a stack is no faster"
        theta = torch.stack([self.init(seed) for seed in (0, 1)])
        was = self.module.training
        found = []
        try:
            with torch_seeded(0), _warnings_stop():
                x = torch.randint(2, (2, 3, *shape)).to(theta.dtype)
                for training in (True, False):
                    self.module.train(training)
                    found += [self.stack(theta, part).detach() for part in (x, x[:, :2])]
                    vmap(grad(lambda one, rows: self.alone(one, rows).sum()))(theta, self.whole(x))
        except Exception as error:  # whatever torch.func cannot do
            return f"torch.func cannot run it in a stack ({type(error).__name__})"
        finally:
            self.module.train(was)
        if not torch.allclose(found[0][:, :2], found[1], rtol=1e-4, atol=1e-6):
            return "what it makes of a row depends on the others"
        return None if torch.equal(found[0], found[2]) else "it does something else in training"

    def stack(self, theta: Vector, x: Tensor) -> Tensor:
        """The outputs of a stack, for one batch a client."""
        return torch.as_tensor(vmap(self.alone)(theta, self.whole(x)))

    def whole(self, x: Tensor) -> Tensor:
        """The batches of a stack, as whole numbers where the module reads such."""
        return x.long() if self._way(tuple(x.shape[2:])) is _whole_numbers else x

    def __call__(self, theta: Vector, x: Tensor) -> Tensor:
        """The outputs for a batch, or for one batch a client."""
        if self.layers is not None:
            return self._dense(theta, x, self.layers)
        if theta.dim() == 1:
            return self.alone(theta, self.laid_out(x))
        if self.single(tuple(x.shape[2:])) is None:
            return self.stack(theta, x)
        return torch.stack([self(one, batch) for one, batch in zip(theta, x, strict=True)])

    def alone(self, theta: Vector, x: Tensor) -> Tensor:
        """The outputs of one client for a batch that is laid out already."""
        fixed = {name: tensor.to(theta.dtype) for name, tensor in self._fixed.items()}
        return torch.as_tensor(functional_call(self.module, {**fixed, **self.views(theta)}, (x,)))

    def laid_out(self, x: Tensor) -> Tensor:
        """A batch as the module takes it: whole numbers where it reads places in a list (an Embedding); images with the
        channels of a pixel side by side where it can have them so, which is quicker on a CPU.
        """
        return self._way(tuple(x.shape[1:]))(x)

    def _way(self, shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
        if shape not in self._takes:
            self._takes[shape] = self._taken(shape)
        return self._takes[shape]

    def _taken(self, shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
        """How the module takes rows of a shape. Whatever else is wrong with it, it will say so where it is used.

        One that calls ``view`` on what convolutions give cannot have channels side by side.
        """
        if self._can(_whole_numbers, shape) and not self._can(_as_it_is, shape):
            return _whole_numbers
        if len(shape) != 3:
            return _as_it_is
        rows = torch.linspace(-1, 1, 2 * math.prod(shape)).view(2, *shape)
        with torch.no_grad(), torch_seeded(0):
            try:
                same = torch.allclose(self.module(_side_by_side(rows)), self.module(rows), rtol=1e-3, atol=1e-5)
            except Exception:
                same = False
        return _side_by_side if same else _as_it_is

    def _can(self, take: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> bool:
        """Whether the module can read rows of zeros that are laid out so."""
        with torch.no_grad(), torch_seeded(0):
            try:
                self.module(take(torch.zeros(2, *shape)))
            except Exception:
                return False
        return True

    def _dense(self, theta: Vector, x: Tensor, layers: tuple[Layer, ...]) -> Tensor:
        h = x.flatten(theta.dim())
        for layer in layers:
            h = h @ layer.weight.of(theta).transpose(-1, -2)
            if layer.bias is not None:
                h = h + layer.bias.of(theta).unsqueeze(-2)
            h = activate(h, layer.activation)
        return h


@contextmanager
def _warnings_stop() -> Iterator[None]:
    """torch.func warns where it takes a stack apart again, which is slower than to have none: here that is an error."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        torch.set_warn_always(before)


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _whole_numbers(x: Tensor) -> Tensor:
    return x.long()


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
    return h if name == "none" else ACTIVATIONS[name](h)


def _laid(tensors: Mapping[str, Tensor], normal: set[str], start: int) -> tuple[dict[str, Slice], int]:
    """Named tensors one after the other, from a place on, and where they end."""
    found = {}
    for name, tensor in tensors.items():
        stop = start + tensor.numel()
        found[name] = Slice(start, stop, tuple(tensor.shape), name.rpartition(".")[0] in normal)
        start = stop
    return found, start


def running_statistics(module: nn.Module) -> dict[str, Tensor]:
    """The running statistics of a module's layers, by name, in the order of the layers."""
    found = {}
    for prefix, part in module.named_modules():
        if not isinstance(part, nn.modules.batchnorm._NormBase) or not part.track_running_stats:
            continue
        if part.momentum is None:
            raise ModelError(
                f"the layer {prefix!r} ({type(part).__name__}) has momentum=None: its running statistics are the mean "
                "over all batches since the start, which clients that take turns cannot keep; give a momentum, such as "
                "0.1"
            )
        for name in _RUNNING:
            found[f"{prefix}.{name}" if prefix else name] = getattr(part, name)
    return found


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
