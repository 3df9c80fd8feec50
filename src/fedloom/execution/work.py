"""What is handed over to a worker and what comes back: the work of one stack of clients, and its result.

Both know how to be taken apart into single clients and put together again: a stack that fails is tried client by
client, and a fleet of real devices does the work of each client on its own node.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.execution.trees import HandedOver
from fedloom.federation.ragged import Ints, Window
from fedloom.types import Memory, Message, State, Vector

if TYPE_CHECKING:
    from fedloom.execution.worker import Worker

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Rows(HandedOver):
    """Something that has a row for each client of a stack; numbers, words and what is ``common`` are for all of it."""

    common: ClassVar[tuple[str, ...]] = ()

    def one(self, i: int) -> Self:
        """The same for the i-th client of the stack alone."""
        return replace(self, **{name: _row(part, i) for name, part in vars(self).items() if name not in self.common})


def _row(value: Any, i: int) -> Any:
    if isinstance(value, Rows):
        return value.one(i)
    if isinstance(value, dict):
        return {key: _row(part, i) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_row(part, i) for part in value)
    return value[i : i + 1] if isinstance(value, Tensor | np.ndarray) else value


@dataclass(frozen=True, eq=False)
class Memories(Rows):
    """What the clients of a stack remember, as columns of those that are known; the others come for the first time."""

    common = ("columns",)

    known: Tensor
    columns: Memory = field(default_factory=dict)
    saved: Tensor | None = None
    """Where clients remember themselves: the turns that the server's last checkpoint has, -1 for none."""
    moved: Ints | None = None
    """Where rows keep arriving: how many first rows have left each client since."""

    def one(self, i: int) -> Memories:
        at = int(self.known[:i].sum())
        columns = {key: value[at : at + int(self.known[i])] for key, value in self.columns.items()}
        return replace(super().one(i), columns=columns)

    def with_new(self, made: Memory) -> Memory:
        """The memory of all, ``made`` being that of the clients that come for the first time."""
        if bool(self.known.all()):
            return dict(self.columns)
        if not bool(self.known.any()):
            return made
        places = [self.known, ~self.known]
        return {key: _filled(len(self.known), places, [self.columns[key], new]) for key, new in made.items()}


def _filled(rows: int, places: Sequence[Any], parts: Sequence[Tensor]) -> Tensor:
    """A column with these parts at their places, each filled up with zeros to the longest."""
    widths = (max(lengths) for lengths in zip(*(part.shape[1:] for part in parts), strict=True))
    column = parts[0].new_zeros(rows, *widths)
    for place, part in zip(places, parts, strict=True):
        column[(place, *map(slice, part.shape[1:]))] = part
    return column


@dataclass(frozen=True, eq=False)
class Test(Rows):
    """Rows that came since clients trained last, and the model to evaluate them by before they are trained on."""

    common = ("theta", "state")

    window: Window
    theta: Vector | None = None
    """The server's model, one for all or one for each client; None: the client's own, made from the server's state."""
    state: State | None = None
    """What all are shown of that …"""
    own: State = field(default_factory=dict)
    """… and columns of what each is."""

    def one(self, i: int) -> Test:
        theta = self.theta if self.theta is None or self.theta.dim() == 1 else self.theta[i : i + 1]
        return replace(super().one(i), theta=theta)


@dataclass(frozen=True, eq=False)
class Work(Rows, ABC):
    """What the clients of a stack are to do, in a round."""

    kind: ClassVar[str]
    """The word that stands for it in a message."""

    clients: Ints
    round: int

    @abstractmethod
    def done_by(self, worker: Worker, shared: Message) -> Result:
        """The result; ``shared`` is what all stacks are given."""


@dataclass(frozen=True, eq=False)
class Turn(Work):
    """A turn of the clients: with a server, what they do in a round between the message they fetch and their reply."""

    kind = "turn"

    turn: int
    """Which numbers they draw; no client has two turns of one number."""
    own: Message = field(default_factory=dict)
    """What each received beside what all did: columns."""
    memory: Memories | None = None
    effort: Floats | None = None
    budget: Floats | None = None
    delay: Floats | None = None
    window: Window | None = None
    test: Test | None = None
    drop: bool = False
    """Whether a client that fails is left out; otherwise that is an error."""
    wire: bool = False
    """Whether the replies are wanted as they travel, too."""

    def done_by(self, worker: Worker, shared: Message) -> Trained:
        return worker.turn(shared, self)


@dataclass(frozen=True, eq=False)
class Evaluate(Work):
    """The evaluation of the models that clients would use."""

    kind = "evaluate"
    common = ("theta", "reference", "received")

    split: str
    model: str = "global"
    metrics: tuple[str, ...] | None = None
    adapt_split: str | None = None
    adapt_steps: int | None = None
    adapt_lr: float | None = None
    lent: str = "own"
    """Whose personal parts clients use."""
    shown: State = field(default_factory=dict)
    """What each is shown of the server's state, beside what all are: columns."""
    received: Message = field(default_factory=dict)
    """What all would be sent, where some come for the first time, …"""
    own: Message = field(default_factory=dict)
    """… and columns of what each would be."""
    memory: Memories | None = None
    window: Window | None = None
    theta: Vector | None = None
    """The model itself, where it is not to be made from the server's state."""
    reference: Vector | None = None
    decision: float | None = None
    """The probability from which on a row is taken for a 1; none: as the loss has it."""

    def done_by(self, worker: Worker, shared: State) -> Evaluated:
        return worker.evaluate(shared, self)


@dataclass(frozen=True, eq=False)
class Measure(Work):
    """What the method wants measured on clients."""

    kind = "measure"

    own: Message = field(default_factory=dict)
    memory: Memories | None = None
    window: Window | None = None

    def done_by(self, worker: Worker, shared: Message) -> Measured:
        return worker.measure(shared, self)


@dataclass(frozen=True, eq=False)
class Result(HandedOver, ABC):
    """What came of the work of a stack."""

    failures: tuple[str, ...] = field(default=(), kw_only=True)
    """Why clients have no part in it."""

    def failing(self, failures: Sequence[str]) -> Self:
        """The same, with further reasons why clients failed."""
        return replace(self, failures=(*self.failures, *failures))

    @staticmethod
    @abstractmethod
    def joined(alone: Sequence[Any], like: Any) -> Any:
        """Results of single clients as that of a stack; who has none (None) counts for nothing. ``like`` is one of
        another stack, for one in which nobody has any."""


@dataclass(frozen=True, eq=False)
class Tested(HandedOver):
    """What models said of new rows, one client's after the other's, and the labels."""

    counts: Tensor
    out: Tensor
    y: Tensor


@dataclass(frozen=True, eq=False)
class Trained(Result):
    """Replies of a stack as the server decoded them, what clients remember if it accepts them, and what they cost."""

    sent: Message
    memory: Memory
    bytes: int
    """Of each client's reply on its way."""
    evaluations: Ints
    finite: Tensor
    """Whether all numbers of a client's reply and memory are finite; False for one that failed."""
    figures: dict[str, Tensor] = field(default_factory=dict)
    """What the channel has to say of each reply."""
    tested: Tested | None = None
    wire: Message | None = None

    @staticmethod
    def joined(alone: Sequence[Trained | None], like: Trained | None = None) -> Trained:
        """Who has none is marked as not finite."""
        found = [result for result in alone if result is not None]
        good = torch.tensor([result is not None for result in alone])
        places = [slice(i, i + 1) for i, result in enumerate(alone) if result is not None]

        def columns(part: str) -> dict[str, Tensor]:
            parts: list[dict[str, Tensor]] = [getattr(result, part) for result in found]
            return {key: _filled(len(alone), places, [own[key] for own in parts]) for key in parts[0]}

        finite, evaluations = torch.zeros(len(alone), dtype=torch.bool), np.zeros(len(alone), dtype=np.int64)
        if not found:
            return Trained({}, {}, 0, evaluations, finite)
        finite[good] = torch.cat([result.finite for result in found])
        evaluations[good.numpy()] = np.concatenate([result.evaluations for result in found])
        tested = None
        if found[0].tested is not None:
            parts = [result.tested for result in found if result.tested is not None]
            counts = torch.zeros(len(alone), dtype=torch.int64)
            counts[good] = torch.cat([part.counts for part in parts])
            tested = Tested(counts, torch.cat([part.out for part in parts]), torch.cat([part.y for part in parts]))
        size = found[0].bytes
        return Trained(columns("sent"), columns("memory"), size, evaluations, finite, columns("figures"), tested)


@dataclass(frozen=True, eq=False)
class Evaluated(Result):
    """Each metric for each client; what its counts sum to over the clients; and how many rows each has."""

    values: dict[str, Tensor]
    sums: dict[str, Tensor]
    counts: Tensor
    points: dict[str, Tensor] = field(default_factory=dict)
    """Of metrics whose counts do not add up: what they need of each row. Never of a real device."""

    @staticmethod
    def joined(alone: Sequence[Evaluated | None], like: Evaluated) -> Evaluated:
        there = [result for result in alone if result is not None]
        sums = {key: sum((one.sums[key] for one in there), torch.zeros_like(like.sums[key])) for key in like.sums}
        counts = [torch.zeros_like(like.counts) if one is None else one.counts for one in alone]
        return Evaluated(_column(alone, like), sums, torch.cat(counts))


@dataclass(frozen=True, eq=False)
class Measured(Result):
    """What was measured on each client."""

    values: dict[str, Tensor]

    @staticmethod
    def joined(alone: Sequence[Measured | None], like: Measured) -> Measured:
        return Measured(_column(alone, like))


def _column(alone: Sequence[Any], like: Any) -> dict[str, Tensor]:
    """The values of single clients one below the other; those of who has none are not known (nan)."""
    return {
        name: torch.cat([torch.full_like(blank, torch.nan) if one is None else one.values[name] for one in alone])
        for name, blank in like.values.items()
    }


_KINDS: dict[str, type[Work]] = {work.kind: work for work in (Turn, Evaluate, Measure)}


def as_tree(work: Work) -> dict[str, Any]:
    """A work for a message: a dict of tensors, arrays, numbers and words, in dicts."""
    return {"kind": work.kind, **_tree(work)}


def _tree(value: Any) -> Any:
    if isinstance(value, Rows):
        return {name: _tree(part) for name, part in vars(value).items() if part is not None}
    return value


def read_tree(tree: dict[str, Any]) -> Work:
    """The work in a message; KeyError, TypeError or ValueError when it is none."""
    kind = _KINDS[tree["kind"]]
    parts = {name: value for name, value in tree.items() if name != "kind"}
    if "memory" in parts:
        parts["memory"] = Memories(**parts["memory"])
    if parts.get("metrics") is not None:
        parts["metrics"] = tuple(parts["metrics"])
    return kind(**parts)
