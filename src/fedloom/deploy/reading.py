"""The one place where the server reads what a node sent: a valid value comes out of it, or a refusal that says why.

A node may be broken, or somebody else's. Nothing that it sends ends a run, and what is taken from it is of the right
form, finite, within its bounds, and an answer to the very question that was asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedloom.channel import Channel, finite_rows
from fedloom.data.scaling import Sums
from fedloom.deploy.codec import Tree, decode
from fedloom.deploy.link import NONCE, Reply
from fedloom.deploy.terms import Terms
from fedloom.errors import ClientError, FedloomError, MessageError
from fedloom.execution.work import Evaluated, Measured, Trained
from fedloom.federation.metrics import Metric
from fedloom.federation.replies import WEIGHT
from fedloom.storage.tensors import name_of
from fedloom.types import Message

T = TypeVar("T")
UNFORESEEN = "it cannot be taken in"
"""How the refusal of a reply begins in which nothing else found a fault, and which could not be taken all the same."""
_MOST_LETTERS = 500  # of what a node says in its own words
_MOST_GRADIENTS = 10**12  # evaluations of single rows in one turn: sums over any fleet stay far below 2⁶³
_ROUNDING = 1e-6
_NUMBER = 1e38  # more than this no number of float32 is
_LARGE = 1e9  # numbers of which no sum of squares over rows is larger than counts can be


def read(reply: Reply, limit: int, valid: Callable[[Tree], T]) -> T:
    """What a reply says, by a function that takes only what is valid; a ClientError, and nothing else, if it is not.

    It must have at most ``limit`` bytes, which is known before it is decoded, and the nonce of the letter that it
    answers: an old reply, or another's, has another one.
    """
    try:
        return valid(_opened(reply, limit))
    except FedloomError as error:
        kind = MessageError if isinstance(error, MessageError) else ClientError
        raise kind(clean(str(error))) from None
    except Exception as error:  # whatever a stranger can think of is his failure, and never the run's
        raise MessageError(clean(f"the reply is refused: {UNFORESEEN} ({type(error).__name__}: {error})")) from None


def clean(text: str) -> str:
    """A stranger's text for logs and files: of bounded length, and without characters that do something to them."""
    cut = text if len(text) <= _MOST_LETTERS else text[: _MOST_LETTERS - 1] + "…"
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in cut)


def _opened(reply: Reply, limit: int) -> Tree:
    message = reply.message
    if message is None:
        raise MessageError("the reply cannot be read: Flower cannot put it together")
    if not message.has_content():
        raise ClientError(f"Flower says: {message.error.reason or 'no reply'} (code {message.error.code})")
    try:
        tree = decode(message.content, limit)
    except MessageError as error:
        raise MessageError(f"the reply cannot be read: {error}") from None
    if tree.pop(NONCE, None) != reply.nonce:
        raise MessageError(
            "the reply answers another question than the one that was asked: it is an old one, or foreign"
        )
    if "error" in tree:
        raise ClientError(tree["error"] if isinstance(tree["error"], str) else "it failed, and says not why")
    return tree


def trained(
    tree: Tree, channel: Channel, like: Mapping[str, Tensor] | None, weight: Tensor | None, sums: bool, terms: Terms
) -> Trained:
    """The reply to a turn, as the engine wants it.

    It must look like ``like`` (None: nobody knows) and say that it counts for ``weight`` (None: nobody knows).
    ``sums`` says that it was multiplied by that, since the server will see only sums.
    """
    if set(tree) != {"wire", "evaluations", "figures"}:
        raise MessageError("the reply is no reply to a turn")
    wire, evaluations, figures = tree["wire"], tree["evaluations"], tree["figures"]
    if not _are_rows(wire) or not isinstance(evaluations, np.ndarray) or evaluations.dtype != np.int64:
        raise MessageError("the reply is no reply to a turn")
    if not _are_rows(figures):
        raise MessageError("the reply's figures are no numbers")
    if evaluations.shape != (1,) or not 0 <= int(evaluations[0]) <= _MOST_GRADIENTS:
        raise MessageError("the reply does not say how many gradients it took, or it says what cannot be")
    if like is not None:
        refuse_other_form(like, form(tree))
    try:
        arrived = channel.receive(wire)
    except (ValueError, RuntimeError, KeyError) as error:
        raise MessageError(f"the reply cannot be decoded: {error}") from None
    if not bool(finite_rows(wire).all() and arrived.finite.all()):
        raise ClientError("the reply is not finite")
    _refuse_large("figure", figures, terms.metric)
    if all(transform.stage != "message" for transform in channel.transforms):  # behind masks nobody can see any of this
        _refuse_overweight(arrived.reply, weight, sums, terms.norm)
    return Trained(arrived.reply, {}, arrived.bytes, evaluations, torch.ones(1, dtype=torch.bool), figures)


def _refuse_overweight(reply: Message, weight: Tensor | None, sums: bool, norm: float) -> None:
    """MessageError for a reply that counts for more than its client does, or is longer than any honest one."""
    said = reply.get(WEIGHT)
    if said is not None and (said.numel() != 1 or (weight is None and not float(said) >= 0)):
        raise MessageError("the reply does not say what it counts for")
    if said is not None and weight is not None and float(said) != float(weight):
        raise MessageError(f"the reply wants to count for {float(said):g}; its client counts for {float(weight):g}")
    factor = float(said) if said is not None and sums else 1.0
    for key, value in reply.items():
        if key != WEIGHT:
            length = float(torch.linalg.vector_norm(value if value.is_floating_point() else value.double()))
            if not length <= norm * factor:
                found = length / factor if factor else math.inf
                raise MessageError(
                    f"{key!r} of the reply has the norm {found:.3g}; at most {norm:g} is taken (norm in the terms)"
                )


def evaluated(
    tree: Tree, metrics: Sequence[Metric], rows: int, labels: int, like: Mapping[str, Tensor] | None, terms: Terms
) -> Evaluated:
    """The reply to an evaluation of so many rows with so many labels each, by these metrics.

    Each value must be what its counts come to, of no more rows than there are, and within the metric's bounds.
    """
    if set(tree) != {"values", "sums", "counts"} or not (_are_tensors(tree["values"]) and _are_tensors(tree["sums"])):
        raise MessageError("the reply is no reply to this question")
    values, sums, counts = tree["values"], tree["sums"], tree["counts"]
    if not isinstance(counts, Tensor):
        raise MessageError("the reply is no reply to this question")
    if like is not None:
        refuse_other_form(like, form(tree))
    names = {metric.name for metric in metrics}
    if set(values) != names or set(sums) != names:
        raise MessageError(f"the reply has other metrics than {', '.join(sorted(names))}")
    if counts.dtype != torch.int64 or counts.shape != (1,) or int(counts) != rows:
        raise MessageError(f"the reply is of another number of rows than the {rows:,} that its client has")
    for metric in metrics:
        _refuse_implausible(metric, values[metric.name], sums[metric.name], rows, labels, terms.metric)
    return Evaluated(values, sums, counts)


def _refuse_implausible(metric: Metric, value: Tensor, sums: Tensor, rows: int, labels: int, most: float) -> None:
    name, (low, high) = metric.name, metric.bounds
    lowest, highest = (low if math.isfinite(low) else -most), (high if math.isfinite(high) else most)
    if value.dtype != torch.float64 or value.shape != (1,) or sums.dtype != torch.float64:
        raise MessageError(f"the {name} of the reply is not one number")
    if not bool(torch.isfinite(sums).all()):
        raise ClientError(f"the {name} of the reply is not finite")
    counted = metric.counted(sums)
    if counted is not None and not bool(((counted >= 0) & (counted <= rows * labels)).all()):
        raise MessageError(f"the {name} of the reply is of more rows than the {rows:,} that its client has")
    if not bool(torch.isclose(metric.value(sums), value[0], rtol=_ROUNDING, equal_nan=True).all()):
        raise MessageError(f"the {name} of the reply is not what its counts come to")
    if (low == 0 and bool((sums < 0).any())) or bool((sums.abs() > max(_LARGE, most) ** 2 * rows * labels).any()):
        raise MessageError(f"the {name} of the reply is made of counts that cannot be")
    found = float(value)
    if math.isnan(found):  # nothing to evaluate: the counts come to it too. A loss there always is.
        if name == "loss":
            raise ClientError("the loss of the reply is not finite")
        return
    if not lowest <= found <= highest:
        raise MessageError(f"the {name} of the reply is {found:.3g}; it lies between {lowest:g} and {highest:g}")


def summed(tree: Tree, wanted: Sequence[str], columns: Mapping[str, int], values: int) -> dict[str, Sums]:
    """The sums that a client tells of so many ``columns`` of features (x) and targets (y).

    Each is of at most so many ``values``. Only what was ``wanted`` is there; the rest is as if it had no rows.
    """
    sums = tree.get("sums")
    if set(tree) != {"sums"} or not isinstance(sums, dict) or set(sums) != set(columns):
        raise MessageError("the reply is no reply to this question")
    found = {}
    for part, width in columns.items():
        told = sums[part]
        if not _are_tensors(told) or set(told) != set(wanted):
            raise MessageError("the reply is no reply to this question")
        for name, value in told.items():
            if value.dtype != torch.float64 or value.shape != (width,):
                raise MessageError(f"the {name} of {part!r} is {_described(value)}, not float64 of shape [{width}]")
        whole = Sums.nothing(1, width)
        found[part] = replace(whole, **{name: value.unsqueeze(0) for name, value in told.items()})
        _refuse_sums(found[part], part, values, set(wanted))
    return found


def _refuse_sums(sums: Sums, part: str, values: int, wanted: set[str]) -> None:
    """MessageError for sums that no numbers have."""
    count, total, squares = sums.count, sums.total, sums.squares
    known = count > 0
    if not bool(((count >= 0) & (count <= values) & (count == count.round())).all()):
        raise MessageError(f"the count of {part!r} is no number of values from 0 to {values:,}")
    for name in sorted(wanted - {"count"}):
        value = getattr(sums, name)
        bounds = _NUMBER * count.clamp(min=1) * (_NUMBER if name == "squares" else 1.0)
        if not bool((value.abs() <= bounds)[known].all()):  # neither is NaN
            raise MessageError(f"the {name} of {part!r} is not finite, or larger than numbers of this kind can be")
    if bool((total != 0)[~known].any()) or bool((squares != 0)[~known].any()):
        raise MessageError(f"the sums of {part!r} are of values that are not there")
    if "squares" in wanted and bool((total.square() > count * squares * (1 + _ROUNDING))[known].any()):
        raise MessageError(f"the squares of {part!r} are smaller than any with such a sum")
    if "least" in wanted:
        slack = _ROUNDING * (sums.least.abs() + sums.greatest.abs())
        mean = sums.mean
        if not bool(((sums.least - slack <= mean) & (mean <= sums.greatest + slack))[known].all()):
            raise MessageError(f"the mean of {part!r} is not between the least and the greatest")


def measured(tree: Tree, rows: int, like: Mapping[str, Tensor] | None, terms: Terms) -> Measured:
    """The reply to a measurement; what is measured may be multiplied by the number of the client's rows."""
    if set(tree) != {"values"} or not _are_rows(tree["values"]):
        raise MessageError("the reply is no reply to this question")
    if like is not None:
        refuse_other_form(like, form(tree))
    _refuse_large("measure", tree["values"], terms.metric * max(1, rows))
    return Measured(tree["values"])


def _refuse_large(what: str, message: Message, most: float) -> None:
    """MessageError for numbers that are not finite or too large."""
    for key, value in message.items():
        if not bool((value.double().abs() <= most).all()):
            raise MessageError(
                f"the {what} {key!r} of the reply is not finite, or above {most:g} (metric in the terms)"
            )


def form(tree: Tree) -> Message:
    """What has to have a certain form in a reply: its tensors by their paths, without their numbers."""
    wire = dict(tree.get("wire", {}))
    for part, found in tree.items():
        if part not in ("wire", "evaluations"):
            wire |= {
                f"{part}/{key}": value for key, value in (found.items() if isinstance(found, dict) else [("", found)])
            }
    return {key: value.to("meta") for key, value in wire.items()}


def refuse_other_form(like: Mapping[str, Tensor], reply: Message) -> None:
    """MessageError when the tensors of a reply have other names, kinds or shapes than those that it must be like."""
    for key in sorted({*like, *reply}):
        ours, theirs = (_described(message.get(key)) for message in (like, reply))
        if ours != theirs:
            raise MessageError(f"the reply has another form than it must have: {key!r} is {theirs}, not {ours}")


def _described(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{name_of(tensor.dtype)} of shape {list(tensor.shape)}"


def _are_tensors(message: Any) -> bool:
    return isinstance(message, dict) and all(isinstance(value, Tensor) for value in message.values())


def _are_rows(message: Any) -> bool:
    """Whether this is a message of one client, as columns of one row."""
    return _are_tensors(message) and all(value.dim() > 0 and len(value) == 1 for value in message.values())
