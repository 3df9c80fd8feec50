"""What a node says about itself, and the federation that a server without rows knows from it."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, field
from typing import Any

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked
from torch import Tensor

from fedloom import __version__
from fedloom.data.scaling import By, Kind, Scaling
from fedloom.deploy.agreement import Agreed, elsewhere
from fedloom.deploy.codec import Tree
from fedloom.deploy.terms import ROWS
from fedloom.errors import ConfigError, MessageError
from fedloom.federation.data import SOURCE, TARGET, FederatedData, Task
from fedloom.federation.encoding import Column, Encoding
from fedloom.federation.ragged import Ragged

_AGREED = ("fedloom", "task", "shape", "classes", "targets", "features", "splits", "scaling", "scaling_by", "encoding")
_MOST_NUMBERS = 1 << 28  # of one row's features
_MOST_AXES = 8
_MOST_OUTPUTS = 1_000_000
_MOST_SPLITS = 16
_MOST_CLIENTS = 1 << 31
_MOST_LETTERS = 200  # of the client's name, the data's, a split's
_MOST_WORDS = 1000  # letters of a class, a target, a feature
_FEW_LETTERS = 160


@checked(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class Card:
    """A node's answer to "who are you?": numbers and names of its rows, never the rows."""

    name: str
    """The client's name, which never changes; the server keeps its number by it."""
    sizes: dict[str, int]
    """Rows in each split."""
    shape: list[int]
    """Of one row's features."""
    task: Task
    classes: list[str]
    targets: list[str]
    features: list[str]
    role: int
    data: str
    """What the data are called."""
    client: int | None = None
    """Its number in a rehearsal, where it is that of the simulation; otherwise the server gives it one."""
    outputs: int = 1
    scaling: Kind = "none"
    """How its numbers are to be scaled …"""
    scaling_by: By = "all"
    """… and by whose training rows."""
    encoding: list[dict[str, Any]] = field(default_factory=list)
    """How columns of a file became its features, where that was known before anybody was asked."""
    gaps: bool = False
    """Whether features are missing in its rows."""
    wide: list[str] = field(default_factory=list)
    """Of features and targets those whose numbers float32 would round."""
    fedloom: str = __version__

    @property
    def splits(self) -> list[str]:
        """The names of its splits."""
        return list(self.sizes)

    def tree(self) -> Tree:
        """For a message, or JSON."""
        return asdict(self)

    @property
    def form(self) -> str:
        """All in which the nodes of a fleet agree."""
        return json.dumps([getattr(self, what) for what in _AGREED])

    @staticmethod
    def read(tree: Any, rows: int = ROWS) -> Card:
        """The card in a message; MessageError when it is none, or says what cannot be."""
        try:
            card = Card(**tree)
        except TypeError:
            raise MessageError("its description is none (it is no table of names)") from None
        except ValidationError as error:
            wrong = error.errors()[0]
            raise MessageError(
                f"its description is none ({'.'.join(map(str, wrong['loc']))}: {wrong['msg']})"
            ) from None
        card._refuse_impossible(rows)
        return card

    def _refuse_impossible(self, rows: int) -> None:
        if {"train", "test"} - set(self.sizes) or min(self.sizes.values()) < 0 or self.role not in (SOURCE, TARGET):
            raise MessageError("its description is none (splits, sizes or role)")
        if max(self.sizes.values()) > rows:
            raise MessageError(
                f"it says to have {max(self.sizes.values()):,} rows; at most {rows:,} are believed (rows)"
            )
        if len(self.shape) > _MOST_AXES or min(self.shape, default=1) < 1 or math.prod(self.shape) > _MOST_NUMBERS:
            raise MessageError(f"its rows have the shape {_short(self.shape)}, which cannot be")
        if not 1 <= self.outputs <= _MOST_OUTPUTS:
            raise MessageError(
                f"it has {_short(self.outputs)} outputs; at least 1 and at most {_MOST_OUTPUTS:,} can be"
            )
        if self.client is not None and not 0 <= self.client < _MOST_CLIENTS:
            raise MessageError(f"its number {_short(self.client)} is none that a client can have")
        if len(self.sizes) > _MOST_SPLITS or max(map(len, (self.classes, self.targets))) > _MOST_OUTPUTS:
            raise MessageError("it has too many splits, classes or targets")
        if len(self.features) > _MOST_NUMBERS:
            raise MessageError("it has too many features")
        if self.encoding and len(_encoding(self.encoding).names) != self.columns["x"]:
            raise MessageError("its columns become other numbers than its rows have")
        if set(self.wide) - {"x", "y"}:
            raise MessageError("it has other numbers than features (x) and targets (y)")
        if not self.name:
            raise MessageError("its client has no name")
        _refuse_odd([self.name, self.data, self.fedloom, *self.sizes], _MOST_LETTERS, ("Cc", "Cf", "Cs", "Zl", "Zp"))
        _refuse_odd([*self.classes, *self.targets, *self.features], _MOST_WORDS, ("Cc", "Cs"))

    @staticmethod
    def of(data: FederatedData, client: int | None, scaling: Scaling | None = None) -> Card:
        """The card of a federation of one client, whose rows are to be scaled in this way; none: they are ready."""
        asked = scaling or Scaling("none")
        return Card(
            name=data.label(0),
            sizes={name: int(split.sizes[0]) for name, split in data.splits.items()},
            shape=list(data.x.shape[1:]),
            task=data.task,
            classes=list(data.classes),
            targets=list(data.target_names),
            features=list(data.feature_names),
            role=SOURCE if data.roles is None else int(data.roles[0]),
            data=data.name,
            client=client,
            outputs=data.outputs,
            scaling=asked.kind,
            scaling_by=asked.by,
            encoding=[] if data.encoding is None else data.encoding.record(),
            gaps=data.x.is_floating_point() and bool(torch.isnan(data.x).any()),
            wide=[part for part in ("x", "y") if getattr(data, part).dtype == torch.float64],
        )

    @property
    def known_encoding(self) -> Encoding | None:
        """How columns of a file became features, if that is known."""
        return _encoding(self.encoding) if self.encoding else None

    @property
    def columns(self) -> dict[str, int]:
        """How many columns a scaling knows of features and, for a regression, of targets."""
        features = self.shape[-1] if len(self.shape) == 2 else math.prod(self.shape)
        return {"x": features} | ({"y": self.outputs} if self.task == "regression" else {})

    def refuse_other(self, other: Card) -> None:
        """ConfigError when another node cannot be of the same federation, saying in what it differs."""
        for what in _AGREED:
            ours, theirs = getattr(self, what), getattr(other, what)
            if ours != theirs:
                raise ConfigError(
                    f"the node of {other.name!r} has {what} = {_short(theirs)}, but that of {self.name!r} has "
                    f"{_short(ours)}{_apart(ours, theirs)}; all nodes of a fleet must agree"
                )


def _encoding(record: list[dict[str, Any]]) -> Encoding:
    """What a node says of its columns; MessageError when it is nothing that can be."""
    try:
        return Encoding(TypeAdapter(tuple[Column, ...]).validate_python(record))
    except ValidationError as error:
        raise MessageError(f"its columns are none ({error.errors()[0]['msg']})") from None


def _apart(ours: Any, theirs: Any) -> str:
    """Of two lists of names that are too long to see it, in what they differ."""
    if not isinstance(ours, list) or len(repr(ours)) + len(repr(theirs)) <= _FEW_LETTERS:
        return ""
    for words, one, other in ((" it lacks", ours, theirs), (" it alone has", theirs, ours)):
        if lacking := [name for name in one if name not in other]:
            return f";{words} {_short(lacking[0])}"
    return "; the order differs"


def _refuse_odd(texts: Sequence[str], letters: int, odd: Sequence[str]) -> None:
    """MessageError for a name that is too long, or has what is no letter: it will stand in logs and in files."""
    for text in texts:
        if len(text) > letters:
            raise MessageError(f"the name {_short(text)} has {len(text):,} letters; at most {letters} are taken")
        if any(unicodedata.category(letter) in odd for letter in text):
            raise MessageError(f"the name {_short(text)} has control characters")


def described(cards: Sequence[Card], agreed: Agreed | None = None) -> FederatedData:
    """The federation of these clients, in the order of their numbers, without a single row."""
    first, agreed = cards[0], agreed or Agreed()
    x_scale, y_scale = agreed.scales
    if first.scaling != "none" and first.scaling_by == "client":
        x_scale, y_scale = (elsewhere(first.columns[part]) if part in first.columns else None for part in ("x", "y"))
    splits = {name: Ragged.contiguous(torch.tensor([card.sizes[name] for card in cards])) for name in first.sizes}
    x, y = _blank(first)
    targets = any(card.role == TARGET for card in cards)
    return FederatedData(
        first.data,
        x,
        y,
        first.task,
        splits,
        classes=tuple(first.classes),
        roles=torch.tensor([card.role for card in cards], dtype=torch.int8) if targets else None,
        names=tuple(card.name for card in cards),
        notes=agreed.notes,
        feature_names=tuple(first.features),
        target_names=tuple(first.targets),
        x_scale=x_scale,
        y_scale=y_scale,
        encoding=agreed.encoding,
    )


def sample(card: Card, dtype: torch.dtype) -> FederatedData:
    """A federation of one client that has two made-up rows in every split: enough to see what a reply looks like."""
    x, y = (value.to(dtype) if value.is_floating_point() else value for value in _blank(card))
    both = Ragged(torch.tensor([0, 2]), torch.arange(2))
    return FederatedData(card.data, x, y, card.task, dict.fromkeys(card.sizes, both), classes=tuple(card.classes))


def _blank(card: Card) -> tuple[Tensor, Tensor]:
    """Features and targets of two rows in which everything is 0."""
    x = torch.zeros(2, *card.shape)
    return x, torch.zeros(2, dtype=torch.int64) if card.task == "classification" else torch.zeros(2, card.outputs)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
