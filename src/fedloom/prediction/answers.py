"""What a network's outputs mean: a class by its name, probabilities, targets in their own units."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.federation.metric import as_output, decided
from fedloom.prediction.card import Facts, columns_of

Array = npt.NDArray[Any]
PREDICTION, PROBABILITY, SCORE = "prediction", "probability of {}", "score of {}"
OF, SHARE = "prediction of {}", "share of {}"


def answers(facts: Facts, out: Tensor, decision: float | None = None) -> dict[str, Array]:
    """Columns, by name, of what a model says of each row; targets are in the units of ``out``.

    ``decision`` is the probability (of margins: the output) from which on a row is taken for a 1; None: the loss's own
    threshold, and of several classes the likeliest.
    """
    if facts.task == "regression":
        if facts.outputs == 1 and not facts.targets:
            return {PREDICTION: out[:, 0].numpy()}
        return {OF.format(name): out[:, k].numpy() for k, name in enumerate(columns_of(facts))}
    out = out.double()
    named = {} if facts.link == "margin" else _probabilities(facts, out)
    if facts.task == "multilabel":
        said = _ones(facts, out, decision)
        for k, name in enumerate(columns_of(facts)):
            named[OF.format(name)] = said[:, k].long().numpy()
        return _scored(facts, out, named)
    classes = np.array(facts.classes or ("0", "1"), dtype=object)
    if facts.task == "binary":
        labels = _ones(facts, out, decision)[:, 0].long()
    elif decision is not None and facts.outputs == 2:
        labels = decided(out, decision)
    else:
        labels = out.argmax(-1)
    return {PREDICTION: classes[labels.numpy()], **_scored(facts, out, named)}


def output_names(facts: Facts) -> tuple[str, ...]:
    """What each output is called; the one of yes or no is that of the second class."""
    return facts.classes[1:] or ("1",) if facts.task == "binary" else columns_of(facts)


def _probabilities(facts: Facts, out: Tensor) -> dict[str, Array]:
    if facts.task == "classification":
        p = torch.softmax(out, -1)
    else:
        p = out.clamp(0, 1) if facts.link == "probability" else torch.sigmoid(out)
    names = columns_of(facts)
    if facts.task == "binary":
        names, p = facts.classes or ("0", "1"), torch.cat([1 - p, p], -1)
    return {PROBABILITY.format(name): p[:, k].numpy() for k, name in enumerate(names)}


def _scored(facts: Facts, out: Tensor, named: dict[str, Array]) -> dict[str, Array]:
    """With the outputs themselves, where they have no probability."""
    if facts.link != "margin":
        return named
    return {**named, **{SCORE.format(name): out[:, k].numpy() for k, name in enumerate(output_names(facts))}}


def _ones(facts: Facts, out: Tensor, decision: float | None) -> Tensor:
    if decision is None:
        return out > facts.threshold
    return out >= as_output(decision, facts.link)
