"""What is handed over to a worker and what comes back: the work of one stack of clients, and its result.

Both know how to be taken apart into single clients and put together again: a stack that fails is tried client by
client, and a fleet of real devices does the work of each client on its own node.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.federation.ragged import Ints, Window
from fedloom.types import Memory, Message, State, Vector

if TYPE_CHECKING:
    from fedloom.execution.worker import Worker

Floats = npt.NDArray[np.float64]


class Rows:
    """Something that has a row for each client of a stack, in every field that is not ``common`` to all."""

    handed_over: ClassVar[bool] = True
    common: ClassVar[tuple[str, ...]] = ()

    def one(self, i: int) -> Self:
        """The same for the i-th client of the stack alone."""
        names = [f.name for f in dataclasses.fields(self) if f.name not in self.common]  # type: ignore[arg-type]
        return replace(self, **{name: _row(getattr(self, name), i) for name in names})  # type: ignore[type-var]


def _row(value: Any, i: int) -> Any:
    if value is None:
        return None
    if isinstance(value, Rows):
        return value.one(i)
    if isinstance(value, dict):
        return {key: _row(part, i) for key, part in value.items()}
    return tuple(_row(part, i) for part in value) if isinstance(value, tuple) else value[i : i + 1]


@dataclass(frozen=True, eq=False)
class Memories(Rows):
    """What the clients of a stack remember, as columns of those that are known; the others come for the first time."""

    known: Tensor
    columns: Memory = field(default_factory=dict)
    saved: Tensor | None = None
    """Where clients remember themselves: the turns that the server's last checkpoint has, -1 for none."""
    moved: Ints | None = None
    """Where rows keep arriving: how many first rows have left each client since."""

    def one(self, i: int) -> Memories:
        at = int(self.known[:i].sum())
        columns = {key: value[at : at + int(self.known[i])] for key, value in self.columns.items()}
        saved, moved = _row(self.saved, i), _row(self.moved, i)
        return Memories(self.known[i : i + 1], columns, saved, moved)

    def with_new(self, made: Memory) -> Memory:
        """The memory of all, ``made`` being that of the clients that come for the first time."""
        if bool(self.known.all()):
            return dict(self.columns)
        if not bool(self.known.any()):
            return made
        return {key: _merged(self.columns[key], value, self.known) for key, value in made.items()}


def _merged(old: Tensor, new: Tensor, known: Tensor) -> Tensor:
    """One column of the known clients' rows and of the others', filled up with zeros to the longer of both."""
    width = () if old.dim() == 1 else (max(old.shape[1], new.shape[1]),)
    column = old.new_zeros(len(known), *width, *old.shape[2:])
    for rows, part in ((known, old), (~known, new)):
        if width and part.shape[1] < width[0]:
            part = torch.cat([part, part.new_zeros(len(part), width[0] - part.shape[1], *part.shape[2:])], 1)
        column[rows] = part
    return column


@dataclass(frozen=True, eq=False)
class Test(Rows):
    """Rows that came since clients trained last, and the model to evaluate them by before they are trained on."""

    window: Window
    theta: Vector | None = None
    """The server's model, one for all or one for each client; None: the client's own, made from the server's state."""
    state: State | None = None

    def one(self, i: int) -> Test:
        theta = self.theta if self.theta is None or self.theta.dim() == 1 else self.theta[i : i + 1]
        return replace(self, window=_row(self.window, i), theta=theta)


@dataclass(frozen=True, eq=False)
class Work(Rows, ABC):
    """What the clients of a stack are to do, in a round."""

    common: ClassVar[tuple[str, ...]] = ("round",)

    clients: Ints
    round: int

    @abstractmethod
    def done_by(self, worker: Worker, shared: Message) -> Result:
        """The result; ``shared`` is what all stacks are given."""

    @staticmethod
    @abstractmethod
    def joined(alone: Sequence[Any], like: Any) -> Any:
        """Results of single clients as that of a stack; who has none (None) counts for nothing. ``like`` is one of
        another stack, for one in which nobody has any."""


@dataclass(frozen=True, eq=False)
class Result(Rows):
    """What came of the work of a stack."""


@dataclass(frozen=True, eq=False)
class Turn(Work):
    """A turn of the clients: with a server, what they do in a round between the message they fetch and their reply."""

    common = ("round", "turn", "drop", "wire")

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

    @staticmethod
    def joined(alone: Sequence[Trained | None], like: Trained | None = None) -> Trained:
        return Trained.joined(alone)


@dataclass(frozen=True, eq=False)
class Evaluate(Work):
    """The evaluation of the models that clients would use."""

    common = (
        *("round", "split", "model", "metrics", "theta", "reference"),
        *("adapt_split", "adapt_steps", "adapt_lr"),
    )

    split: str
    model: str = "global"
    metrics: tuple[str, ...] | None = None
    adapt_split: str | None = None
    adapt_steps: int | None = None
    adapt_lr: float | None = None
    memory: Memories | None = None
    window: Window | None = None
    theta: Vector | None = None
    """The model itself, where it is not to be made from the server's state."""
    reference: Vector | None = None

    def done_by(self, worker: Worker, shared: State) -> Evaluated:
        return worker.evaluate(shared, self)

    @staticmethod
    def joined(alone: Sequence[Evaluated | None], like: Evaluated) -> Evaluated:
        there = [result for result in alone if result is not None]
        return Evaluated(
            values=_column(alone, like, "values", torch.nan),
            counts=torch.cat([torch.zeros_like(like.counts) if one is None else one.counts for one in alone]),
            sums={
                name: sum((r.sums[name] for r in there), torch.zeros_like(value)) for name, value in like.sums.items()
            },
        )


@dataclass(frozen=True, eq=False)
class Measure(Work):
    """What the method wants measured on clients."""

    own: Message = field(default_factory=dict)
    memory: Memories | None = None
    window: Window | None = None

    def done_by(self, worker: Worker, shared: Message) -> Measured:
        return worker.measure(shared, self)

    @staticmethod
    def joined(alone: Sequence[Measured | None], like: Measured) -> Measured:
        return Measured(_column(alone, like, "values", torch.nan))


def _column(alone: Sequence[Any], like: Any, part: str, unknown: float) -> dict[str, Tensor]:
    """The tensors of single clients' results one below the other, with an unknown value for those who have none."""
    return {
        name: torch.cat([torch.full_like(blank, unknown) if one is None else getattr(one, part)[name] for one in alone])
        for name, blank in getattr(like, part).items()
    }


@dataclass(frozen=True, eq=False)
class Tested:
    """What models said of new rows, one client's after the other's, and the labels."""

    handed_over: ClassVar[bool] = True

    counts: Tensor
    out: Tensor
    y: Tensor


@dataclass(frozen=True, eq=False)
class Trained(Result):
    """Replies of a stack as the server decoded them, provisional memory, and what they cost."""

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
    failures: tuple[str, ...] = ()
    wire: Message | None = None

    def failing(self, failures: Sequence[str]) -> Trained:
        """The same, with the reasons why clients failed."""
        return replace(self, failures=(*self.failures, *failures))

    @staticmethod
    def joined(alone: Sequence[Trained | None]) -> Trained:
        """Results of single clients as that of a stack; who has none is marked as not finite."""
        found = [result for result in alone if result is not None]
        good = torch.tensor([result is not None for result in alone])

        def columns(part: str) -> dict[str, Tensor]:
            return {key: _filled([getattr(r, part)[key][0] for r in found], good) for key in getattr(found[0], part)}

        finite, evaluations = torch.zeros(len(alone), dtype=torch.bool), np.zeros(len(alone), dtype=np.int64)
        if not found:
            return Trained({}, {}, 0, evaluations, finite)
        finite[good] = torch.tensor([bool(result.finite[0]) for result in found])
        evaluations[good.numpy()] = [result.evaluations[0] for result in found]
        tested = None
        if found[0].tested is not None:
            parts = [result.tested for result in found if result.tested is not None]
            counts = torch.zeros(len(alone), dtype=torch.int64)
            counts[good] = torch.cat([part.counts for part in parts])
            tested = Tested(counts, torch.cat([part.out for part in parts]), torch.cat([part.y for part in parts]))
        size = found[0].bytes
        return Trained(columns("sent"), columns("memory"), size, evaluations, finite, columns("figures"), tested)


def _filled(rows: list[Tensor], places: Tensor) -> Tensor:
    """Rows of unequal length at their places in a column, filled up with zeros."""
    whole = rows[0].new_zeros(len(places), *(max(row.shape[d] for row in rows) for d in range(rows[0].dim())))
    for at, row in zip(torch.nonzero(places).flatten().tolist(), rows, strict=True):
        whole[(at, *(slice(0, length) for length in row.shape))] = row
    return whole


@dataclass(frozen=True, eq=False)
class Evaluated(Result):
    """Each metric for each client; what its counts sum to over the clients; and how many rows each has."""

    values: dict[str, Tensor]
    sums: dict[str, Tensor]
    counts: Tensor
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Measured(Result):
    """What was measured on each client."""

    values: dict[str, Tensor]
    failures: tuple[str, ...] = ()


KINDS: dict[str, type[Work]] = {"turn": Turn, "evaluate": Evaluate, "measure": Measure}
"""What a worker can be asked for, by the word that stands for it in a message."""


def kind_of(work: Work) -> str:
    """The word for a work."""
    return next(word for word, kind in KINDS.items() if type(work) is kind)


def as_tree(work: Work) -> dict[str, Any]:
    """A work for a message: a dict of tensors, arrays, numbers and words, in dicts."""
    return {"kind": kind_of(work), **_tree(work)}


def _tree(value: Any) -> Any:
    if isinstance(value, Rows):
        parts = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}  # type: ignore[arg-type]
        return {name: _tree(part) for name, part in parts.items() if part is not None}
    return value


def read_tree(tree: dict[str, Any]) -> Work:
    """The work in a message; KeyError, TypeError or ValueError when it is none."""
    kind = KINDS[tree["kind"]]
    parts = {name: value for name, value in tree.items() if name != "kind"}
    if "memory" in parts:
        parts["memory"] = Memories(**parts["memory"])
    if parts.get("metrics") is not None:
        parts["metrics"] = tuple(parts["metrics"])
    return kind(**parts)
