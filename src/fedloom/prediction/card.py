"""What is to be known of a model to use it where its training data are not: it is kept in a run's folder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedloom import __version__
from fedloom.errors import ConfigError, RunError
from fedloom.federation.data import SOURCE, FederatedData, Task
from fedloom.federation.encoding import Column, Encoding
from fedloom.federation.losses import Link
from fedloom.federation.model import Model
from fedloom.federation.networks import Recipe
from fedloom.federation.problem import Problem
from fedloom.federation.scale import Scale
from fedloom.methods import Method, name_of
from fedloom.methods.method import Product
from fedloom.register import hint
from fedloom.storage.files import guarded, plain, replacing, write_json
from fedloom.storage.folder import CARD, SCALES, RunFolder
from fedloom.storage.saved import Shapes, shapes_of
from fedloom.storage.tensors import dtype_of
from fedloom.storage.tensors import name_of as name_of_dtype

_NUMBERS = 2_000_000  # looked at at a time, so that the work needs little memory beside the rows
_FEW = 8


@dataclass(frozen=True)
class Network:
    """A network that has a name, or an import path, and the options that it was built with."""

    name: str
    options: dict[str, Any]


@dataclass(frozen=True)
class Facts:
    """The part of a card that is text: what model.json holds."""

    task: Task
    classes: tuple[str, ...]
    """The names of the classes, or of several labels."""
    targets: tuple[str, ...]
    """The names of a regression's targets."""
    features: tuple[str, ...]
    """What the numbers of a row are called; of windows, those of each step."""
    shape: tuple[int, ...]
    """The shape of a row as the network reads it."""
    outputs: int
    """How many numbers the network puts out for a row."""
    encoding: tuple[Column, ...] | None
    """How the columns of a file become these numbers; none: nothing is known of columns."""
    loss: str
    link: Link
    threshold: float
    """The output above which the model says 1, where labels are 0 and 1."""
    network: Network | None
    """None: it was made from Python, and only its ``module`` is known, as torch prints it."""
    module: str
    dtype: Literal["float16", "bfloat16", "float32", "float64"]
    tensors: Shapes
    method: str
    product: Product
    """Whether the method makes one model for all, one for each client, or one that is adapted to a client first."""
    data: str
    notes: tuple[str, ...]
    """What a reader should know of the data."""
    clients: int
    names: tuple[str, ...] | None
    """The names of the clients; none: they have numbers."""
    blocks: tuple[tuple[int, ...], ...] | None
    """Where clients hold columns of the same rows: the numbers of a row that each of them holds."""
    class_weights: tuple[float, ...] | None = None
    """What a row of each class counted for in the training; none: all counted the same."""
    format: Literal[1] = 1
    fedloom: str = __version__

    @staticmethod
    def of(problem: Problem, method: Method) -> Facts:
        """Those of a model that is trained on this problem by this method."""
        data, loss, model = problem.data, problem.loss, problem.model
        encoding = data.encoding
        if encoding is None and data.feature_names and data.x.ndim in (2, 3):
            encoding = Encoding(tuple(Column(name, "number") for name in data.feature_names))
        return Facts(
            task=data.task,
            classes=tuple(data.classes),
            targets=tuple(data.target_names),
            features=tuple(data.feature_names),
            shape=tuple(data.x.shape[1:]),
            outputs=data.outputs,
            encoding=None if encoding is None else encoding.columns,
            loss=loss.name,
            link=loss.link,
            threshold=float(loss.threshold),
            network=_network(model),
            module=repr(model.module),
            dtype=name_of_dtype(problem.dtype),  # type: ignore[arg-type]
            tensors=shapes_of(model),
            method=name_of(method),
            product=method.evaluates,
            data=data.name,
            notes=tuple(data.notes),
            clients=data.clients,
            names=data.names,
            class_weights=loss.class_weights,
            blocks=None if data.blocks is None else tuple(tuple(one.tolist()) for one in data.blocks.columns),
        )


@dataclass(frozen=True, eq=False)
class ModelCard:
    """The facts, and the numbers by which rows and targets are scaled and filled: ``scales.safetensors``.

    The numbers of a scale are those of a whole row, or, of windows, those of each step.
    """

    facts: Facts
    x_scale: Scale | None = None
    y_scale: Scale | None = None
    fill: Tensor | None = None
    """What stands in for a missing number, in the units of the rows; none: nothing can."""

    @staticmethod
    def of(problem: Problem, method: Method) -> ModelCard:
        """The card of a model that is trained on this problem by this method."""
        data = problem.data
        scale = data.units if data.x_scale is None else data.x_scale
        return ModelCard(Facts.of(problem, method), _flat(scale), _flat(data.y_scale), _fill(data, scale))

    @cached_property
    def encoding(self) -> Encoding | None:
        """How the columns of a file become the numbers of a row."""
        return None if self.facts.encoding is None else Encoding(self.facts.encoding)

    @property
    def dtype(self) -> torch.dtype:
        """The numbers of the network."""
        return dtype_of(self.facts.dtype)

    @property
    def own_scales(self) -> bool:
        """Whether each client's rows were scaled by its own."""
        return any(scale is not None and not scale.common for scale in (self.x_scale, self.y_scale))

    def label(self, client: int) -> str:
        """The name of a client, for people."""
        return self.facts.names[client] if self.facts.names is not None else str(client)

    def number(self, client: int | str) -> int:
        """The number of a client that is given by number or by name."""
        names, count = self.facts.names or (), self.facts.clients
        if str(client) in names:
            return names.index(str(client))
        if str(client).isdecimal() and int(client) < count:
            return int(client)
        near = hint(str(client), names) if len(names) > _FEW else f"they are {', '.join(names) or f'0 to {count - 1}'}"
        raise ConfigError(f"the run has no client {str(client)!r}; {near}")

    def for_client(self, client: int) -> ModelCard:
        """The same for the rows of one client."""
        if self.own_scales and not all(scale is None or len(scale.shift) for scale in (self.x_scale, self.y_scale)):
            raise ConfigError(
                f"the scale of {self.label(client)!r} stayed on its device, as scaling_by = 'client' asks for: how "
                "rows are read is known there alone. For a model to be used elsewhere train with scaling_by = 'all'"
            )
        x, y = (scale and scale.of(client) for scale in (self.x_scale, self.y_scale))
        fill = self.fill if self.fill is None or len(self.fill) == 1 else self.fill[[client]]
        return replace(self, x_scale=x, y_scale=y, fill=fill)

    def for_all(self) -> ModelCard:
        """The same for rows of anybody: what is missing is filled by the mean of all clients' training rows."""
        mean = None if self.x_scale is None else self.x_scale.mean[None]
        return self if self.fill is None or len(self.fill) == 1 else replace(self, fill=mean)

    def recipe(self) -> Recipe:
        """How the network is built again; a RunError where that is known to nobody."""
        network = self.facts.network
        if network is None:
            raise RunError(
                "the network of this run was made in Python, so its folder has the weights and not the code: give the "
                "module, fedloom.Predictor.open(folder, module=…). It was\n" + self.facts.module
            )
        return Recipe(network.name, self.facts.shape, self.facts.outputs, dict(network.options))

    def write(self, folder: Path) -> None:
        """Writes both files into a folder, each all or nothing."""
        tensors = dict[str, Tensor]()
        for name, scale in (("x", self.x_scale), ("y", self.y_scale)):
            if scale is not None:
                tensors |= {f"{name}.shift": scale.shift, f"{name}.factor": scale.factor, f"{name}.mean": scale.mean}
        if self.fill is not None:
            tensors["fill"] = self.fill
        if tensors:
            with replacing(folder / SCALES) as file:
                file.write(safetensors.torch.save({name: part.clone() for name, part in tensors.items()}))
        write_json(folder / CARD, asdict(self.facts))

    @staticmethod
    def read(folder: Path) -> ModelCard:
        """The card in a folder; a RunError where it is missing or damaged."""
        path = folder / CARD
        if not path.is_file():
            raise RunError(
                f"{folder} has no {CARD}, which says how new rows are read: it was written by an older fedloom. "
                f"`fedloom resume {folder}` writes it, if the training data are there still"
            )
        facts = _facts(path, RunFolder(folder, None).read_text(CARD))
        scales = _scales(folder / SCALES)
        card = ModelCard(facts, _scale(scales, "x"), _scale(scales, "y"), scales.get("fill"))
        wrong = card._misfit()
        if wrong:
            raise RunError(f"{folder} is damaged: {wrong}. Put {CARD} and {SCALES} back as they were")
        return card

    def _misfit(self) -> str | None:
        """What in the card cannot be, if something cannot."""
        facts, size = self.facts, math.prod(self.facts.shape)
        if min(facts.shape, default=0) < 1 or facts.outputs < 1 or facts.clients < 0:
            return f"{CARD} has a row of shape {facts.shape} and {facts.outputs} outputs"
        if facts.task == "classification" and facts.outputs != len(facts.classes):
            return f"{CARD} has {facts.outputs} outputs for {len(facts.classes)} classes"
        if facts.task == "binary" and (facts.outputs, len(facts.classes)) not in ((1, 0), (1, 2)):
            return f"{CARD} has {facts.outputs} outputs and {len(facts.classes)} classes for yes or no"
        if len(_named(facts)) not in (0, facts.outputs) and facts.task in ("multilabel", "regression"):
            return f"{CARD} has {facts.outputs} outputs for {len(_named(facts))} names"
        if facts.names is not None and len(facts.names) != facts.clients:
            return f"{CARD} has {len(facts.names)} names for {facts.clients} clients"
        wide = facts.shape[-1] if len(facts.shape) == 2 else size
        if self.encoding is not None and len(self.encoding.names) != wide:
            return f"{CARD} has columns that become {len(self.encoding.names)} numbers of a row of {wide}"
        for held in facts.blocks or ():
            if not held or len(set(held)) < len(held) or min(held) < 0 or max(held) >= size:
                return f"{CARD} gives a client columns that a row does not have"
        if facts.blocks is not None and len(facts.blocks) < facts.clients:
            return f"{CARD} does not say which columns each client holds"
        for what, scale, widths in (("x", self.x_scale, {size, facts.shape[-1]}), ("y", self.y_scale, {facts.outputs})):
            if scale is not None and (
                scale.shift.shape[1] not in widths or len(scale.shift) not in (0, 1, facts.clients)
            ):
                return f"{SCALES} has a scale of {what} that fits no row"
        fill = self.fill
        if fill is not None and (fill.dim() != 2 or fill.shape[1] not in (size, facts.shape[-1]) or len(fill) == 0):
            return f"{SCALES} has a filling that fits no row"
        return None


def columns_of(facts: Facts) -> tuple[str, ...]:
    """The names of several outputs: of classes, labels or targets; numbers where they have none."""
    return _named(facts) or tuple(str(k) for k in range(facts.outputs))


def _named(facts: Facts) -> tuple[str, ...]:
    return facts.targets if facts.task == "regression" else facts.classes


def _network(model: Model) -> Network | None:
    """The recipe of a network, if it has one that a file can hold."""
    if not isinstance(model.build, Recipe):
        return None
    try:
        return Network(model.build.name, plain(model.build.options, "options"))
    except RunError:
        return None


def _flat(scale: Scale | None) -> Scale | None:
    """Each number of a row once, also of images."""
    if scale is None:
        return None
    shift, factor = (part.double().flatten(1) for part in (scale.shift, scale.factor))
    return Scale(shift, factor, scale.mean.double().reshape(-1))


def _fill(data: FederatedData, scale: Scale | None) -> Tensor | None:
    """What stands in for what is missing: the mean of the training rows, if rows are numbers that are measured."""
    if scale is not None:
        fills = getattr(scale, "fills", None)
        return (scale.mean if fills is None else fills).double().reshape(1 if fills is None else len(fills), -1)
    if not data.here or data.x.ndim not in (2, 3) or not data.x.is_floating_point():
        return None
    rows = data.splits["train"].span(data.with_role(SOURCE).numpy()).rows()
    if data.blocks is not None:  # which all clients share
        rows = data.splits["train"][0]
    total, width = torch.zeros(data.x.shape[-1], dtype=torch.float64), data.x[:1].numel()
    for part in torch.split(rows, max(1, _NUMBERS // width)):
        total += data.x[part].double().reshape(-1, data.x.shape[-1]).sum(0)
    count = len(rows) * width // data.x.shape[-1]
    return (total / count)[None] if count else None


def _facts(path: Path, text: str) -> Facts:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(Facts).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        said = f"{where}: {first['msg']}" if where else first["msg"]
        raise RunError(f"{path} is damaged, or of a later fedloom ({said}). Put it back as it was") from None


def _scales(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        return {}
    with guarded(path):
        content = path.read_bytes()
    try:
        found = safetensors.torch.load(content)
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise RunError(f"{path} is damaged ({error}). Put it back as it was") from None
    for name, value in found.items():
        if value.dtype != torch.float64 or not bool(torch.isfinite(value).all()):
            raise RunError(f"{path} is damaged: {name} has numbers that cannot be. Put it back as it was")
    return found


def _scale(tensors: dict[str, Tensor], name: str) -> Scale | None:
    parts = [tensors.get(f"{name}.{part}") for part in ("shift", "factor", "mean")]
    there: Sequence[Tensor] = [part for part in parts if part is not None]
    if not there:
        return None
    if (
        len(there) < 3
        or there[0].dim() != 2
        or there[1].shape != there[0].shape
        or there[2].shape != there[0].shape[1:]
    ):
        raise RunError(f"{SCALES} is damaged: the scale of {name} is not whole. Put it back as it was")
    return Scale(*there)
