"""A model in two parts, by the names of its layers: coordinates that are shared and coordinates that are personal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedloom.errors import ModelError
from fedloom.federation.model import Model, Slice, last_layer, of_each

Layers = str | Sequence[str]
"""Names of tensors or of layers, patterns such as "conv*", "head" or "last" (the last layer), "body" (all others), or
"norm" (all layers that normalise, such as BatchNorm, whatever they are called)."""


def named(slices: Mapping[str, Slice], layers: Layers) -> tuple[str, ...]:
    """The tensors that are meant, in the model's order; a text may have several, with commas between them."""
    words = [word.strip() for word in layers.split(",")] if isinstance(layers, str) else list(layers)
    last = last_layer(slices)
    found: set[str] = set()
    own: Sequence[str]
    for word in words:
        if word in ("head", "last", "body") and not _matching(slices, word):
            own = last if word != "body" else [name for name in slices if name not in last]
        elif word == "norm" and not _matching(slices, word):
            own = [name for name, where in slices.items() if where.norm]
        else:
            own = _matching(slices, word)
        if not own:
            raise ModelError(_unknown(slices, word, last))
        found.update(own)
    return tuple(name for name in slices if name in found)


def _matching(slices: Mapping[str, Slice], word: str) -> list[str]:
    """The tensors of that name, of the layer of that name, or of names that the pattern fits."""
    whole, below = word.rstrip("."), word.rstrip(".") + "."
    return [name for name in slices if name == whole or name.startswith(below) or fnmatchcase(name, word)]


def _unknown(slices: Mapping[str, Slice], word: str, last: Sequence[str]) -> str:
    if word == "body":
        return f"the model has no body: {', '.join(last)} is all that it has; name layers of a model with several"
    if word == "norm":
        return (
            f"the model has no layer that normalises; it has {', '.join(slices)}. Take one with BatchNorm or GroupNorm"
        )
    return f"the model has no layer {word!r}; it has {', '.join(slices)}, and 'head' is {', '.join(last)}"


_KNOWN: WeakKeyDictionary[Model, dict[Layers, Parts]] = WeakKeyDictionary()
"""Of models that are at work: their names are looked through once, not in every turn."""


def parts_of(model: Model, layers: Layers) -> Parts:
    """The two parts of a model, the named layers being personal."""
    known, key = _KNOWN.setdefault(model, {}), layers if isinstance(layers, str) else tuple(layers)
    if key not in known:
        known[key] = Parts.of(model.slices, layers)
    return known[key]


@dataclass(frozen=True)
class Parts:
    """Which coordinates of the n are personal: the runs of neighbours that are alike, and whether they are."""

    runs: tuple[tuple[int, bool], ...]
    """Lengths, in order, and whether the coordinates are personal."""

    @staticmethod
    def of(slices: Mapping[str, Slice], layers: Layers) -> Parts:
        """The named layers are personal; with none named, no coordinate is."""
        names = set(named(slices, layers)) if layers else set()
        each = [(where.stop - where.start, name in names) for name, where in slices.items()]
        runs = [(sum(size for size, _ in run), mine) for mine, run in groupby(each, key=lambda one: one[1])]
        return Parts(tuple(runs))

    def count(self, personal: bool) -> int:
        """How many coordinates are personal, or shared."""
        return sum(size for size, mine in self.runs if mine == personal)

    @property
    def n(self) -> int:
        """All coordinates."""
        return sum(size for size, _ in self.runs)

    def where(self, personal: bool) -> Tensor:
        """For each coordinate whether it is personal, or shared."""
        return torch.cat([torch.full((size,), mine == personal) for size, mine in self.runs])

    def take(self, vector: Tensor, personal: bool) -> Tensor:
        """The personal or the shared coordinates of a vector, or of several side by side (θ and α of Meta-SGD)."""
        return of_each(vector, self.n, lambda each: self._taken(each, personal))

    def _taken(self, each: Tensor, personal: bool) -> Tensor:
        pieces = torch.split(each, [size for size, _ in self.runs], -1)
        own = [piece for piece, (_, mine) in zip(pieces, self.runs, strict=True) if mine == personal]
        return own[0] if len(own) == 1 else torch.cat(own, -1) if own else each[..., :0]

    def joined(self, shared: Tensor, personal: Tensor) -> Tensor:
        """The whole vector, or several side by side, of its two parts; one part may be a stack and the other not."""
        sizes = {mine: self.count(mine) for mine in (False, True)}
        values = {False: shared, True: personal}
        several = max(values[mine].shape[-1] // size for mine, size in sizes.items() if size)
        each = {mine: value.reshape(*value.shape[:-1], several, sizes[mine]) for mine, value in values.items()}
        lead = torch.broadcast_shapes(*(value.shape[:-1] for value in each.values()))  # type: ignore[no-untyped-call]
        each = {mine: value.expand(*lead, value.shape[-1]) for mine, value in each.items()}
        rest = {mine: iter(torch.split(value, self._sizes(mine), -1)) for mine, value in each.items()}
        return torch.cat([next(rest[mine]) for _, mine in self.runs], -1).flatten(-2)

    def _sizes(self, personal: bool) -> list[int]:
        """The lengths of the runs of one part."""
        return [size for size, mine in self.runs if mine == personal]

    def fits(self, value: Tensor, personal: bool | None = None) -> bool:
        """Whether a tensor has a number (or several) for each coordinate, of one part if that is given."""
        if value.dim() == 0:
            return False
        n, last = self.n if personal is None else self.count(personal), value.shape[-1]
        return last == 0 if n == 0 else last > 0 and last % n == 0

    def part(self, tensors: Mapping[str, Tensor], personal: bool) -> dict[str, Tensor]:
        """Of all that has a number for each coordinate one part; what has not is left out of the personal part."""
        own = {key: value for key, value in tensors.items() if self.fits(value)}
        rest = {} if personal else {key: value for key, value in tensors.items() if key not in own}
        return {**rest, **{key: self.take(value, personal) for key, value in own.items()}}

    def whole(self, shared: Mapping[str, Tensor], personal: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Both parts together; what has no number for each coordinate is as in the shared part."""
        found = dict(shared)
        for key, value in personal.items():
            if key in shared and self.fits(shared[key], False) and self.fits(value, True):
                found[key] = self.joined(shared[key], value)
        return found
