"""Which rows each client of a stack takes in each local step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.federation.augment import Augment
from fedloom.federation.ragged import Ints, Span
from fedloom.federation.randomness import Draw

_POSITION_BITS = 24  # 40 bits of a key decide the order, the others may hold the position of 16.7 million rows


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a client (or of each client of a stack, padded to the longest): x, y and what each row counts for.

    ``weight`` is 1/n for a client's own rows and 0 for padding, so that Σ weight·ℓ is the client's mean loss.
    """

    x: Tensor
    y: Tensor
    weight: Tensor

    def counts(self) -> Ints:
        """How many rows each client has, without padding."""
        return torch.count_nonzero(self.weight, -1).reshape(-1).numpy()


@dataclass(frozen=True, eq=False)
class Step:
    """One local step of the clients that still have work: always the first ``active`` ones of the plan's order."""

    active: int
    rows: Tensor
    """Row numbers, shape (active, widest batch); a client with fewer repeats a row that ``counts`` leaves out."""
    counts: Tensor | None
    """How many of the rows count, shape (active,); None when all do."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The local steps of a stack of clients: shuffled epochs in mini-batches, cut short for a client with less effort.

    ``order`` sorts the clients by their number of steps, most first, so that those still at work are a prefix and
    the tensors of a step are views of the stack, never copies. ``span`` has their rows in this order.
    """

    span: Span
    clients: Ints
    draw: Draw
    batch: int | None
    steps: Ints
    order: Ints
    purpose: str = "batches"
    """Plans of other purposes draw other mini-batches."""
    augment: Augment | None = None
    """How the images of mini-batches are changed; None: not at all."""

    @staticmethod
    def of(
        span: Span,
        clients: Ints,
        draw: Draw,
        batch: int | None,
        steps: Ints,
        purpose: str = "batches",
        augment: Augment | None = None,
    ) -> Plan:
        """A plan in which client i takes ``steps[i]`` steps on its rows of the span."""
        order = np.argsort(-steps, kind="stable")
        ordered = Span(span.owned, span.starts[order], span.sizes[order])
        return Plan(ordered, clients, draw, batch, steps, order, purpose, None if batch is None else augment)

    def shown(self, x: Tensor, clients: Ints, step: int) -> Tensor:
        """The rows x of some clients' mini-batches as these are shown them in their local step, counted from 1."""
        return x if self.augment is None else self.augment.images(x, self.draw, self.purpose, clients, step)

    @property
    def sizes(self) -> Ints:
        """The rows of each client, in the plan's order."""
        return self.span.sizes

    def __iter__(self) -> Iterator[Step]:
        steps, sizes = self.steps[self.order], self.sizes
        if self.batch is None:
            return self._whole(steps)
        if len(steps) and steps[0] == steps[-1] and (sizes == sizes[0]).all():
            return self._together(int(steps[0]), int(sizes[0]), self.batch)
        return self._shuffled(steps, self.batch)

    def _whole(self, steps: Ints) -> Iterator[Step]:
        """Full-batch steps: every row, in its own order; the same Step object while the same clients are at work."""
        sizes = self.sizes
        last: Step | None = None
        for step in range(int(steps[0]) if len(steps) else 0):
            active = int(np.searchsorted(-steps, -step, side="left"))
            if last is None or last.active != active:
                width = int(sizes[:active].max())
                local = np.minimum(np.arange(width), sizes[:active, None] - 1)
                last = self._step(local, sizes[:active])
            yield last

    def _together(self, steps: int, size: int, batch: int) -> Iterator[Step]:
        """The same batches as ``_shuffled`` for clients that are alike, whose steps are slices of one table."""
        ids, sizes = self.clients[self.order], self.sizes
        per_epoch = -(-size // batch)
        for step in range(steps):
            epoch, position = divmod(step, per_epoch)
            if position == 0:
                table = self._rows(self.shuffle(ids, sizes, np.full_like(ids, epoch)))
            yield Step(len(ids), table[:, position * batch : (position + 1) * batch], None)

    def _shuffled(self, steps: Ints, batch: int) -> Iterator[Step]:
        """Mini-batches of epochs that are shuffled anew; every client walks at its own pace through its own epochs."""
        ids, sizes = self.clients[self.order], self.sizes
        per_epoch = -(-sizes // batch)
        shuffled = np.zeros((len(ids), int(sizes.max(initial=0))), dtype=np.int64)
        column = np.arange(batch)
        for step in range(int(steps[0]) if len(steps) else 0):
            active = int(np.searchsorted(-steps, -step, side="left"))
            epoch, position = np.divmod(step, per_epoch[:active])
            fresh = np.flatnonzero(position == 0)
            if len(fresh) == len(ids):
                shuffled = self.shuffle(ids, sizes, epoch)
            elif len(fresh):
                width = int(sizes[fresh].max())
                shuffled[fresh, :width] = self.shuffle(ids[fresh], sizes[fresh], epoch[fresh])
            counts = np.minimum(batch, sizes[:active] - position * batch)
            at = position[:, None] * batch + np.minimum(column[: int(counts.max())], counts[:, None] - 1)
            yield self._step(np.take_along_axis(shuffled[:active], at, 1), counts)

    def shuffle(self, ids: Ints, sizes: Ints, epoch: Ints) -> Ints:
        """A random order of each client's rows, shape (clients, most rows).

        Sorting random keys is a shuffle without a generator per client.
        """
        width = int(sizes.max())
        position = np.arange(width, dtype=np.uint64)
        keys = self.draw.words(self.purpose, ids, width, lane=epoch) >> np.uint64(_POSITION_BITS)
        if int(sizes.min()) < width:
            keys[position >= sizes[:, None].astype(np.uint64)] = np.uint64(2**64 - 1)
        return order_of(keys)

    def _step(self, local: Ints, counts: Ints) -> Step:
        ragged = int(counts.min()) < local.shape[1]
        return Step(len(local), self._rows(local), torch.from_numpy(counts) if ragged else None)

    def _rows(self, local: Ints) -> Tensor:
        """Row numbers in the data of the j-th rows of each client that is at work; these are the first of the order."""
        return self.span.owned.resolve(torch.from_numpy(local + self.span.starts[: len(local), None]))


def order_of(keys: npt.NDArray[np.uint64], limit: int = 2**_POSITION_BITS) -> Ints:
    """The order that sorts each row of keys, the first of equal keys first; overwrites the keys.

    A sort of keys that carry their position in the low bits is much faster than an argsort, and gives the same.
    """
    width = keys.shape[1]
    if width > limit:
        return np.argsort(keys, axis=1, kind="stable")
    keys <<= np.uint64(_POSITION_BITS)
    keys |= np.arange(width, dtype=np.uint64)
    keys.sort(axis=1)
    return (keys & np.uint64(2**_POSITION_BITS - 1)).astype(np.int64)


def steps_of(
    sizes: Ints,
    batch: int | None,
    epochs: int,
    steps: int | None,
    effort: npt.NDArray[np.float64] | None = None,
    budget: npt.NDArray[np.float64] | None = None,
) -> Ints:
    """How many local steps each client takes: all of them, or the part that its effort or its budget allows.

    A client that takes part does at least one step; a client without rows does none. The budget counts gradient
    evaluations of single rows.
    """
    per_epoch = np.ones_like(sizes) if batch is None else -(-sizes // batch)
    count = epochs * per_epoch if steps is None else np.full_like(sizes, steps)
    if effort is not None:
        count = np.floor(count * effort + 1e-9).astype(np.int64)
    if budget is not None:
        rows = np.minimum(np.floor(budget), count * sizes.astype(np.float64)).astype(np.int64)  # it may be infinite
        whole, rest = np.divmod(rows, np.maximum(sizes, 1))
        count = np.minimum(count, whole * per_epoch + (0 if batch is None else rest // batch))
    return np.where(sizes > 0, np.maximum(count, 1), 0)


def evaluations_of(sizes: Ints, batch: int | None, steps: Ints) -> Ints:
    """Rows that are visited in so many steps."""
    if batch is None:
        return sizes * steps
    epochs, rest = np.divmod(steps, np.maximum(-(-sizes // batch), 1))
    visited: Ints = epochs * sizes + rest * batch
    return visited
