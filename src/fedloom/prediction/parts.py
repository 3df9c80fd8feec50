"""A party's part of a linear model whose columns several parties hold: the whole model is the sum of the parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from fedloom.errors import RunError
from fedloom.federation.encoding import Column
from fedloom.federation.model import Model
from fedloom.federation.networks import Recipe
from fedloom.federation.scale import Scale
from fedloom.prediction.card import Facts, ModelCard, Network
from fedloom.storage.saved import shapes_of
from fedloom.types import Vector


def party(card: ModelCard, model: Model, theta: Vector, client: int) -> tuple[ModelCard, Model, Vector, Tensor]:
    """What one party has: how its columns are read, a linear model of them, its parameters, and the server's bias."""
    layers = model.layers or ()
    if len(layers) != 1 or card.facts.blocks is None:
        raise RunError("only a linear model is a sum of parts that parties could have; this one is none")
    held = list(card.facts.blocks[client])
    (layer,) = layers
    bias = theta.new_zeros(card.facts.outputs) if layer.bias is None else layer.bias.of(theta).clone()
    part = Model(Recipe("linear", (len(held),), card.facts.outputs, {"bias": False}))
    own = layer.weight.of(theta)[:, held].reshape(-1).clone()
    facts = replace(
        card.facts,
        features=tuple(card.facts.features[k] for k in held) if card.facts.features else (),
        shape=(len(held),),
        encoding=_columns(card.facts, held),
        network=Network("linear", {"bias": False}),
        module=repr(part.module),
        tensors=shapes_of(part),
        blocks=None,
    )
    fill = None if card.fill is None else card.fill[:, held]
    return ModelCard(facts, _scale(card.x_scale, held), card.y_scale, fill), part, own, bias


def _scale(scale: Scale | None, held: Sequence[int]) -> Scale | None:
    return None if scale is None else Scale(scale.shift[:, held], scale.factor[:, held], scale.mean[held])


def _columns(facts: Facts, held: Sequence[int]) -> tuple[Column, ...] | None:
    """The columns whose numbers the party holds, all of them in their order; None: they were divided otherwise."""
    found, at, taken = list[Column](), 0, list[int]()
    for column in facts.encoding or ():
        places = list(range(at, at + len(column.names)))
        at += len(places)
        if set(places) <= set(held):
            found.append(column)
            taken += places
    return tuple(found) if taken == list(held) else None
