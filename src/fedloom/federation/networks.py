"""The networks that have a name, from ``linear`` to ``transformer``; and a user's own by import path."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedloom.capacity import refuse_larger
from fedloom.errors import ConfigError, ModelError
from fedloom.federation.data import FederatedData
from fedloom.federation.model import Model
from fedloom.federation.randomness import Draw, torch_seeded
from fedloom.register import Register
from fedloom.types import Count, Positive

_COPIES = 4
"""Of a model that is trained there are at least these: the module, θ, a client's own, and a gradient."""
_MOST_LAYERS = 1000
_DISTANT = 1000  # rows whose distances are looked at
EMBEDDED = "embedded"
"""The option of a network that says which numbers of a row are categories: the data say it, and no user."""
Build = Callable[..., nn.Module]
NETWORKS: Register[Build] = Register(
    "model",
    right=callable,
    must_be="a callable that takes (shape, outputs) and gives a torch.nn.Module",
    own="module:callable",
    group="fedloom.models",
)


class Places(nn.Module):
    """Rows in which some numbers are places in lists of categories: these become vectors, the others stay.

    ``lists`` has each such place in a row and how many categories its list has. The place 0 stands for none of them,
    missing or unknown, and becomes a vector of zeros.
    """

    def __init__(self, width: int, lists: list[tuple[int, int]]) -> None:
        super().__init__()
        self.width, self.lists = width, lists
        wide = [max(2, min(32, round(1.6 * size**0.56))) for _, size in self.lists]
        self.tables = nn.ModuleList(
            nn.Embedding(size + 1, own) for (_, size), own in zip(self.lists, wide, strict=True)
        )
        self.outputs = width - len(wide) + sum(wide)

    def forward(self, x: Tensor) -> Tensor:
        """A longer row a row."""
        parts, start = [], 0
        for (place, size), table in zip(self.lists, self.tables, strict=True):
            index = x[:, place].long().clamp(0, size)
            parts += [x[:, start:place], table(index) * (index > 0).unsqueeze(1)]
            start = place + 1
        return torch.cat([*parts, x[:, start:]], 1)


def _flat(shape: tuple[int, ...], embedded: Sequence[Sequence[int]]) -> tuple[nn.Module, int]:
    """What comes before fully connected layers, and how many numbers a row then has."""
    width = math.prod(shape)
    if not embedded:
        return nn.Flatten(), width
    if len(shape) != 1 or any(len(pair) != 2 or not 0 <= pair[0] < width or pair[1] < 1 for pair in embedded):
        raise ModelError(f"rows of shape {shape} cannot have categories at the places {embedded}")
    front = Places(width, sorted((place, size) for place, size in embedded))
    return front, front.outputs


@NETWORKS.register("linear")
def linear(
    shape: tuple[int, ...], outputs: int, bias: bool = True, embedded: Sequence[Sequence[int]] = ()
) -> nn.Module:
    """x ↦ Wx + b: linear, logistic or softmax regression, by the loss.

    Numbers of a row that are ``embedded`` (each given by its place and its number of categories) become vectors first.
    """
    front, width = _flat(shape, embedded)
    return nn.Sequential(front, nn.Linear(width, outputs, bias=bias))


@NETWORKS.register("mlp")
def mlp(
    shape: tuple[int, ...],
    outputs: int,
    hidden: Sequence[Count] = (100,),
    activation: str = "relu",
    embedded: Sequence[Sequence[int]] = (),
) -> nn.Module:
    """Fully connected layers of the given widths.

    Numbers of a row that are ``embedded`` (each given by its place and its number of categories) become vectors first.
    """
    front, width = _flat(shape, embedded)
    return nn.Sequential(front, *_dense(width, hidden, outputs, _activation(activation)))


class Fourier(nn.Module):
    """x ↦ √(2/D) cos(Ωx + b), Ω of N(0, 1/bandwidth²) and b even in [0, 2π): D random Fourier features.

    Their inner products approximate exp(−‖x − x'‖²/(2·bandwidth²)) (Rahimi and Recht, 2007). Nothing of it is trained.
    """

    omega: Tensor
    shift: Tensor

    def __init__(self, width: int, features: int, bandwidth: float, seed: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        omega = torch.randn(features, width, generator=draw, dtype=torch.float64) / bandwidth
        self.register_buffer("omega", omega)
        self.register_buffer("shift", 2 * math.pi * torch.rand(features, generator=draw, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """The features of rows."""
        omega, shift = self.omega.to(x.dtype), self.shift.to(x.dtype)
        return math.sqrt(2 / len(shift)) * torch.cos(x @ omega.T + shift)


@NETWORKS.register("fourier")
def fourier(
    shape: tuple[int, ...],
    outputs: int,
    features: Count = 300,
    bandwidth: Positive | None = None,
    feature_seed: int = 0,
    bias: bool = True,
) -> nn.Module:
    """A linear model of random Fourier features: an approximation of a Gaussian kernel, whose head alone is trained.

    ``features`` is their number. ``bandwidth`` is the width of the kernel; none: the median of the distances between
    training rows. ``feature_seed`` draws them, the same for all seeds of a run.
    """
    if bandwidth is None:
        raise ConfigError("a fourier model needs its bandwidth, or rows to take the median of their distances of")
    front = Fourier(math.prod(shape), features, bandwidth, feature_seed)
    return nn.Sequential(nn.Flatten(), front, nn.Linear(features, outputs, bias=bias))


@NETWORKS.register("trained")
def trained(shape: tuple[int, ...], outputs: int, run: str = "", bias: bool = True) -> nn.Module:
    """A linear model of what the network of an earlier run makes of a row: all of it but its last layer, as it is.

    ``run`` is the folder of that run. Its rows must have been scaled as those here are.
    """
    front, width = resolve_name("fedloom.prediction.features:front_of")(run)
    return nn.Sequential(front, nn.Linear(width, outputs, bias=bias))


@NETWORKS.register("lenet")
def lenet(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """LeNet-5: 5x5 convolutions with 6 and 16 channels, each halved by max pooling, then 120-84-outputs.

    Made for 32x32; images of 28 to 31 are padded to that by the first convolution, as LeCun did, and smaller ones
    keep their size in both.
    """
    channels, height, width = _image(shape, "lenet", 4)
    first, second = (0, 0) if min(height, width) >= 32 else (2, 0) if min(height, width) >= 28 else (2, 2)
    features = [  # ReLU after the pool gives what ReLU before it would, on a quarter of the numbers
        nn.Conv2d(channels, 6, 5, padding=first),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(6, 16, 5, padding=second),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
    ]
    flat = nn.Sequential(*features)(torch.zeros(1, *shape)).shape[1]
    head = [nn.Linear(flat, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, outputs)]
    return nn.Sequential(*features, *head)


class Words(nn.Module):
    """Numbers of words as vectors; 0 stands for no word."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary + 1, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The vectors, shape (rows, steps, width), and what each step counts for: 1, or 0 where there is no word."""
        return self.table(x), (x > 0).to(self.table.weight.dtype)


class Steps(nn.Module):
    """Windows of a series as they are: every step counts."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The windows, shape (rows, steps, columns), and nothing more to say of their steps."""
        return x, None


class Cells(nn.Module):
    """An LSTM over windows or words, and a linear head on its hidden state after the last of them."""

    def __init__(
        self, front: nn.Module, inner: int, outputs: int, hidden: int, layers: int, dense: int, dropout: float
    ) -> None:
        super().__init__()
        self.front = front
        self.lstm = nn.LSTM(inner, hidden, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.dropout = nn.Dropout(dropout)
        width = hidden
        self.dense: nn.Module = nn.Identity()
        if dense:
            self.dense, width = nn.Sequential(nn.Linear(hidden, dense), nn.ReLU()), dense
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """One output row a row."""
        found, counts = self.front(x)
        states, _ = self.lstm(found)
        state = states[:, -1] if counts is None else last_state(states, counts)
        return torch.as_tensor(self.head(self.dense(self.dropout(state))))


def last_state(states: Tensor, counts: Tensor) -> Tensor:
    """The states after the last word of each row."""
    last = (counts * torch.arange(counts.shape[1])).argmax(1)
    return states.gather(1, last.view(-1, 1, 1).expand(-1, 1, states.shape[-1])).squeeze(1)


@NETWORKS.register("lstm")
def lstm(
    shape: tuple[int, ...],
    outputs: int,
    hidden: int = 64,
    layers: int = 1,
    dense: int = 0,
    dropout: float = 0.0,
    vocabulary: int | None = None,
    width: Count = 32,
) -> nn.Module:
    """An LSTM for windows of sensor series (steps, columns): its last state, perhaps a dense layer of ReLUs, outputs.

    ``dense`` is the width of that layer, 0 for none. A share ``dropout`` of what each layer of cells puts out is left
    out at random in training: of what goes to the next layer in every step, of the last in the last step. Rows of
    words, which are numbers up to ``vocabulary``, become vectors of a certain ``width`` first.
    """
    for option, value, least in (("hidden", hidden, 1), ("layers", layers, 1), ("dense", dense, 0)):
        if value < least:
            raise ConfigError(f"lstm cannot have {option} = {value}; give at least {least}")
    _check_steps("lstm", layers, dropout)
    return Cells(*_front("lstm", shape, vocabulary, width), outputs, hidden, layers, dense, dropout)


class Attention(nn.Module):
    """A layer of a transformer: every step looks at all others, then a small network looks at each step.

    Written out, and not torch's own, so that torch.func can run it in stacks and any exporter can follow it. Norms come
    first, as in most transformers since 2019.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.looks, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout: nn.Module = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, h: Tensor, counts: Tensor | None) -> Tensor:
        """The steps after this layer; one that counts for nothing is not looked at."""
        rows, steps, width = h.shape
        query, key, value = self.looks(self.before(h)).view(rows, steps, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        score = query @ key.transpose(-1, -2) / math.sqrt(width / self.heads)
        if counts is not None:
            score = score.masked_fill((counts == 0).view(rows, 1, 1, steps), -1e9)
        seen = (torch.softmax(score, -1) @ value).transpose(1, 2).reshape(rows, steps, width)
        h = h + self.dropout(self.mixed(seen))
        return torch.as_tensor(h + self.dropout(self.network(self.between(h))))


class Transformer(nn.Module):
    """Attention over words or over the steps of a window, and a linear head on the mean of what comes out."""

    def __init__(
        self, front: nn.Module, inner: int, steps: int, outputs: int, width: int, heads: int, layers: int, drop: float
    ) -> None:
        super().__init__()
        self.front = front
        self.wide: nn.Module = nn.Identity() if inner == width else nn.Linear(inner, width)
        self.places = nn.Parameter(torch.empty(steps, width).normal_(std=0.02))
        self.layers = nn.ModuleList(Attention(width, heads, drop) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """One output row a row."""
        found, counts = self.front(x)
        h = self.wide(found) + self.places
        for layer in self.layers:
            h = layer(h, counts)
        h = self.norm(h)
        if counts is None:
            return torch.as_tensor(self.head(h.mean(1)))
        total = (h * counts.unsqueeze(-1)).sum(1)
        return torch.as_tensor(self.head(total / counts.sum(1, keepdim=True).clamp(min=1)))


@NETWORKS.register("transformer")
def transformer(
    shape: tuple[int, ...],
    outputs: int,
    width: Count = 32,
    heads: Count = 4,
    layers: Count = 1,
    dropout: float = 0.0,
    vocabulary: int | None = None,
) -> nn.Module:
    """A small transformer for rows of words, or for windows (steps, columns): attention, its mean over steps, outputs.

    Words are numbers up to ``vocabulary``; 0 stands for none. Every step is a vector of a certain ``width``, which
    ``heads`` share; a share ``dropout`` of what a layer adds is left out at random in training.
    """
    _check_steps("transformer", layers, dropout)
    if width % heads:
        raise ConfigError(f"transformer cannot share width = {width} among heads = {heads}; give a multiple of them")
    front, inner = _front("transformer", shape, vocabulary, width)
    return Transformer(front, inner, shape[0], outputs, width, heads, layers, dropout)


def _check_steps(name: str, layers: int, dropout: float) -> None:
    if layers > _MOST_LAYERS:
        raise ConfigError(f"{name} cannot have layers = {layers}; give at most {_MOST_LAYERS:,}")
    if not 0 <= dropout < 1:
        raise ConfigError(f"{name} cannot drop a share of {dropout}; give a dropout from 0 to below 1")


def _front(name: str, shape: tuple[int, ...], vocabulary: int | None, width: int) -> tuple[nn.Module, int]:
    """What reads words or windows first, and how many numbers a step then has; refuses what is neither."""
    if vocabulary is not None and vocabulary < 1:
        raise ConfigError(f"{name} cannot have vocabulary = {vocabulary}; give the number of different words")
    if len(shape) == 1 and vocabulary is not None:
        return Words(vocabulary, width), width
    if len(shape) == 2 and vocabulary is None:
        return Steps(), shape[1]
    raise ModelError(
        f"{name} reads windows of shape (steps, columns), or words (steps) with model.vocabulary; the data have rows "
        f"of shape {shape}. Take data that are windows (some sets make them: data.window = 24), or another model, such "
        "as mlp"
    )


@NETWORKS.register("cnn")
def cnn(
    shape: tuple[int, ...],
    outputs: int,
    channels: Sequence[Count] = (32, 64),
    kernel: Count = 3,
    pool: Sequence[str] = ("max",),
    activation: str = "relu",
    hidden: Sequence[Count] = (),
    windows: Literal["centred", "aligned"] = "centred",
    init: Literal["torch", "truncated-normal"] = "torch",
) -> nn.Module:
    """3x3 convolutions that keep the size, each followed by an activation and a halving pool, then dense layers.

    ``pool`` names the pool after each convolution ("max" or "avg", 3x3 with stride 2); the last one is repeated. Its
    ``windows`` are centred on every second pixel, or, for even sizes, begin at the first pixel as TensorFlow's "SAME"
    pools do. ``init`` "truncated-normal" draws weights with standard deviation 0.1, cut off at two of them, and sets
    biases to 0.1, as TensorFlow's tutorials did.
    """
    act = _activation(activation)
    if kernel % 2 == 0:
        raise ConfigError(f"cnn keeps the size of the image, which needs an odd kernel, not {kernel}")
    depth, height, width = _image(shape, "cnn", 2)
    layers: list[nn.Module] = []
    for index, units in enumerate(channels):
        layers += [nn.Conv2d(depth, units, kernel, padding=kernel // 2), act()]
        layers.append(_pool(pool[min(index, len(pool) - 1)], windows, (height, width)))
        depth, height, width = units, (height + 1) // 2, (width + 1) // 2
    network = nn.Sequential(*layers, nn.Flatten(), *_dense(depth * height * width, hidden, outputs, act))
    return network.apply(_truncated_normal) if init == "truncated-normal" else network


class Block(nn.Module):
    """Two 3x3 convolutions, each normalised, beside a way past them."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), normalised(norm, outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), normalised(norm, outputs)
        self.past: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.past = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), normalised(norm, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """ReLU(what the convolutions make of x, and x itself)."""
        h = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(h)) + self.past(x))


class ResNet(nn.Module):
    """A residual network for small images: a 3x3 convolution, stages of blocks, the mean over pixels, a linear head.

    Each stage but the first has half the height and width of the one before, and twice its channels.
    """

    def __init__(self, channels: int, outputs: int, blocks: tuple[int, ...], width: int, norm: str) -> None:
        super().__init__()
        self.made_of = (channels, outputs, blocks, width, norm)
        self.conv, self.first = nn.Conv2d(channels, width, 3, 1, 1, bias=False), normalised(norm, width)
        stages, inputs = [], width
        for stage, count in enumerate(blocks):
            wide = width * 2**stage
            for block in range(count):
                stages.append(Block(inputs, wide, 2 if stage and not block else 1, norm))
                inputs = wide
        self.blocks, self.head = nn.Sequential(*stages), nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """One output row a row."""
        h = self.blocks(torch.relu(self.first(self.conv(x))))
        return torch.as_tensor(self.head(h.mean((2, 3))))


def normalised(norm: str, channels: int) -> nn.Module:
    """The layer that normalises so many channels: BatchNorm, or GroupNorm with about 16 channels a group."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(math.gcd(channels, max(1, channels // 16)), channels)


@NETWORKS.register("resnet8")
def resnet8(
    shape: tuple[int, ...], outputs: int, norm: Literal["batch", "group"] = "batch", width: Count = 16
) -> nn.Module:
    """ResNet-8 for small images: a 3x3 convolution with ``width`` channels, three stages of one block, outputs.

    ``norm`` "batch" is BatchNorm, whose running statistics are averaged beside the parameters; "group" is GroupNorm,
    which has none.
    """
    return _resnet("resnet8", shape, outputs, (1, 1, 1), width, norm)


@NETWORKS.register("resnet18")
def resnet18(
    shape: tuple[int, ...], outputs: int, norm: Literal["batch", "group"] = "batch", width: Count = 64
) -> nn.Module:
    """ResNet-18 as it is used on small images: a 3x3 convolution and no pool first, four stages of two blocks.

    ``norm`` "batch" is BatchNorm, whose running statistics are averaged beside the parameters; "group" is GroupNorm,
    which has none. The first stage has ``width`` channels.
    """
    return _resnet("resnet18", shape, outputs, (2, 2, 2, 2), width, norm)


def _resnet(
    name: str, shape: tuple[int, ...], outputs: int, blocks: tuple[int, ...], width: int, norm: str
) -> nn.Module:
    if norm not in ("batch", "group"):
        raise ConfigError(f"there is no norm {norm!r}; choose one of batch, group")
    return ResNet(_image(shape, name, 4)[0], outputs, blocks, width, norm)


@dataclass(frozen=True)
class Recipe:
    """How to build a network: plain values, so that another process can follow it too."""

    name: str
    shape: tuple[int, ...]
    outputs: int
    options: dict[str, Any]

    def __call__(self) -> nn.Module:
        build = NETWORKS.find(self.name)
        try:
            return build(self.shape, self.outputs, **self.options)
        except (TypeError, RuntimeError, ValueError, OverflowError) as error:  # torch, of sizes that cannot be
            why = str(error).partition("\n")[0]
            raise ConfigError(
                f"the model {self.name!r} cannot be built with the options {self.options}: {why}"
            ) from error

    def refuse_larger(self) -> None:
        """A ConfigError, before anything is allocated, if the machine cannot hold the network.

        Its tensors are made without their numbers; a user's own network is not asked.
        """
        if NETWORKS.find(self.name).__module__ != __name__:
            return
        with torch_seeded(0), torch.device("meta"):
            size = sum(parameter.numel() * parameter.element_size() for parameter in self().parameters())
        options = ", ".join(f"{option} = {value}" for option, value in self.options.items())
        what = f"the model {self.name!r} with {options}" if options else f"the model {self.name!r}"
        refuse_larger(_COPIES * size, what, "Choose a smaller model.", ConfigError)


@dataclass(frozen=True, eq=False)
class Given:
    """A user's own module, or what builds one, as something that builds it: each time a copy with the same weights."""

    module: nn.Module | Callable[[], nn.Module]

    def __call__(self) -> nn.Module:
        try:
            made = copy.deepcopy(self.module) if isinstance(self.module, nn.Module) else self.module()
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"{_called(self.module)} gives no module: {error}. With data it is called with the shape of a row and "
                "the number of outputs, else without arguments; give such a function, or a module"
            ) from error
        if not isinstance(made, nn.Module):
            raise ModelError(f"{self.module!r} gives a {type(made).__name__}; it must give a torch.nn.Module")
        return made


def _called(build: object) -> str:
    """What a user calls it."""
    inner = build.func if isinstance(build, functools.partial) else build
    return str(getattr(inner, "__qualname__", repr(inner)))


def build_model(
    name: str | nn.Module | Callable[..., nn.Module], data: FederatedData | None = None, **options: Any
) -> Model:
    """Build the model of that name, or the user's own, with the inputs and outputs that the data need.

    * ``name``: "linear", "mlp", "lenet", "cnn", "resnet8", "resnet18", "lstm", "transformer", "fourier", "trained", or
      a callable, "package.module:callable", which is given the shape of a row, the number of outputs and the options.
      Or a ``torch.nn.Module``, whose weights are then the first ones for every seed; or a function or class that
      gives one, called with (shape, outputs, options) where data are given, else without arguments.
    * ``data``: the federation that the model is for; a module needs none.
    * ``options``: those of the network, such as ``hidden=[64]`` of an mlp.

    The result is a Model.

        data = fedloom.federate("digits", clients=5)
        model = fedloom.build_model("mlp", data, hidden=[16])
        print(model.n, "parameters")
    """
    if isinstance(name, nn.Module):
        if options:
            raise ConfigError(f"{', '.join(options)}: a module is built already; options are those of a network's name")
        return Model(Given(name))
    if not isinstance(name, str) and not callable(name):
        raise ConfigError(f"{name!r} is no model; {NETWORKS.hint(str(name))}, a torch.nn.Module, or what gives one")
    if data is None:
        if isinstance(name, str):
            raise ConfigError(f"build_model needs the data that the model is for: build_model({name!r}, data)")
        return Model(Given(functools.partial(name, **options)))
    if not isinstance(data, FederatedData):
        raise ConfigError(f"build_model needs the data of a federation, not {data!r}; make one with fedloom.federate")
    shape = tuple(data.x.shape[1:])
    if not isinstance(name, str):
        return Model(Given(functools.partial(name, shape, data.outputs, **options, **_embedded(name, data))))
    build = NETWORKS.find(name)
    recipe = Recipe(name, shape, data.outputs, options | _embedded(build, data) | _measured(build, data, options))
    recipe.refuse_larger()
    return Model(recipe)


def _embedded(build: Build, data: FederatedData) -> dict[str, Any]:
    """The option by which a network hears which numbers of a row are categories, if some are and it listens."""
    lists = {} if data.encoding is None or data.x.ndim != 2 or data.blocks is not None else data.encoding.embedded
    listens = bool(lists) and EMBEDDED in inspect.signature(build).parameters
    return {EMBEDDED: [[place, size] for place, size in lists.items()]} if listens else {}


def _measured(build: Build, data: FederatedData, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a network with fixed features is told of the rows, or where it finds the run that they are of."""
    if build is trained:
        return {"run": str(Path(options.get("run", "")).resolve())} if options.get("run") else {}
    if build is not fourier or options.get("bandwidth") is not None:
        return {}
    if not data.here:
        raise ConfigError("model.bandwidth: the rows are on their devices, and nobody knows their distances; give it")
    return {"bandwidth": median_distance(data)}


def median_distance(data: FederatedData) -> float:
    """The median of the distances between training rows: of a thousand of them, drawn by counter."""
    rows = torch.from_numpy(np.unique(data.splits["train"].every().numpy()))
    some = rows[torch.from_numpy(np.argsort(Draw(0).words("median", 0, len(rows)), kind="stable")[:_DISTANT])]
    found = float(torch.pdist(data.x[some].flatten(1).double()).median()) if len(some) > 1 else 0.0
    if found <= 0:
        raise ConfigError("model.bandwidth: half of the training rows are the same, and say nothing of it; give it")
    return found


def _dense(width: int, hidden: Sequence[int], outputs: int, act: Callable[[], nn.Module]) -> list[nn.Module]:
    """Fully connected layers of these widths, each with its activation, and one for the outputs."""
    layers: list[nn.Module] = []
    for units in hidden:
        layers += [nn.Linear(width, units), act()]
        width = units
    return [*layers, nn.Linear(width, outputs)]


def _image(shape: tuple[int, ...], name: str, least: int) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ModelError(f"{name} reads images of shape (channels, height, width), the data have rows of shape {shape}")
    if min(shape[1:]) < least:
        raise ModelError(f"{name} needs images of at least {least}x{least}, these are {shape[1]}x{shape[2]}")
    return shape[0], shape[1], shape[2]


def _activation(name: str) -> Callable[[], nn.Module]:
    known: dict[str, Callable[[], nn.Module]] = {
        "relu": nn.ReLU,
        "tanh": nn.Tanh,
        "sigmoid": nn.Sigmoid,
        "elu": nn.ELU,
        "leaky-relu": lambda: nn.LeakyReLU(0.2),
    }
    if name not in known:
        raise ConfigError(f"there is no activation {name!r}; choose one of {', '.join(known)}")
    return known[name]


def _pool(name: str, windows: str, shape: tuple[int, int]) -> nn.Module:
    """A pool of 3x3 windows with stride 2, such that n pixels become n/2, rounded up."""
    beyond = windows == "aligned"  # an even length then needs a pixel beyond its end only, which no window counts
    padding = (shape[0] % 2, shape[1] % 2) if beyond else (1, 1)
    pools: dict[str, Callable[[], nn.Module]] = {
        "max": lambda: nn.MaxPool2d(3, 2, padding, ceil_mode=beyond),
        "avg": lambda: nn.AvgPool2d(3, 2, padding, ceil_mode=beyond, count_include_pad=False),
    }
    if name not in pools:
        raise ConfigError(f"there is no pool {name!r}; choose one of {', '.join(pools)}")
    return pools[name]()


def _truncated_normal(part: nn.Module) -> None:
    if isinstance(part, nn.Conv2d | nn.Linear):
        nn.init.trunc_normal_(part.weight, std=0.1, a=-0.2, b=0.2)
        if part.bias is not None:
            nn.init.constant_(part.bias, 0.1)
