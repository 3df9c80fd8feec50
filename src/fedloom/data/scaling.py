"""Scaling that knows only the training rows, and what stands in for features that are missing.

A source says how its rows want to be scaled (:class:`Scaling`); ``federate`` does it once it is known which rows are
for training. Nobody has to see a row for it: every client tells its :class:`Sums`, which are added up in the order of
the clients' numbers, and all scale their rows by what comes of that (:func:`fitted`). The simulator and a fleet of real
devices (``fedloom.deploy``) do this by the same functions, in the same order and so in the same bits.

A standardisation takes two steps: counts and sums give the mean, and the sums of squares are then taken around it,
since squares of large numbers that differ little would lose the difference. Both steps are plain sums over clients, as
a secure sum can give them. The least and the greatest of a min-max scaling are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.data import FederatedData
from fedloom.federation.encoding import Encoding
from fedloom.federation.ragged import Ints, Ragged
from fedloom.federation.scale import Scale
from fedloom.fields import with_fit_fields

if TYPE_CHECKING:
    from fedloom.data.table import Table

Kind = Literal["none", "standard", "min-max"]
By = Literal["all", "client"]
Scales = tuple[Scale | None, Scale | None]
"""How features and how targets are scaled; None: not at all, or nobody has agreed on it yet."""
_NUMBERS = 2_000_000  # looked at at a time, so that the work needs little memory beside the table
_WORDS = {"standard": "standardised", "min-max": "scaled to 0…1"}
_VARIES = 1e-12  # of its mean: a column whose deviation is smaller does not vary, but was rounded


@dataclass(frozen=True)
class Scaling:
    """How columns are to be scaled, by what the training rows hold.

    * ``kind``: "standard" gives mean 0 and deviation 1, "min-max" 0 to 1; "none" leaves numbers as they are
    * ``by``: the training rows of "all" clients together, or of each "client" its own

    A column is a feature; of windows (steps, columns) it is a column over all steps. The targets of a regression are
    scaled in the same way. A column that does not vary is only shifted. A missing feature (NaN) becomes the mean of
    the client's training rows, or of all clients' where that client never has the feature.
    """

    kind: Kind = "standard"
    by: By = "all"


@dataclass(frozen=True, eq=False)
class Sums:
    """What clients tell of the columns of their training rows: each part has shape (clients, columns), in float64.

    ``total`` and ``squares`` are sums of the differences to a point that all know: 0 in the first step, the mean in the
    second. What is missing does not count.
    """

    count: Tensor
    total: Tensor
    squares: Tensor
    least: Tensor
    greatest: Tensor

    @staticmethod
    def nothing(clients: int, columns: int) -> Sums:
        """Of clients without rows."""
        nought = torch.zeros(clients, columns, dtype=torch.float64)
        return Sums(nought, nought.clone(), nought.clone(), nought + torch.inf, nought - torch.inf)

    @staticmethod
    def stacked(parts: Sequence[Sums]) -> Sums:
        """Those of several groups of clients, one after the other."""
        return Sums(*(torch.cat(found) for found in zip(*map(_parts, parts), strict=True)))

    def joined(self) -> Sums:
        """Of all clients as if they were one: added up one after the other, whoever adds them up."""
        count, total, squares = (
            torch.from_numpy(np.add.accumulate(part.numpy(), axis=0)[-1:].copy())
            for part in (self.count, self.total, self.squares)
        )
        return Sums(count, total, squares, self.least.amin(0, keepdim=True), self.greatest.amax(0, keepdim=True))

    def of(self, clients: Tensor) -> Sums:
        """Those of some clients (a mask)."""
        return Sums(*(part[clients] for part in _parts(self)))

    @property
    def mean(self) -> Tensor:
        """NaN where nothing is known."""
        return self.total / self.count


def _parts(sums: Sums) -> tuple[Tensor, ...]:
    return sums.count, sums.total, sums.squares, sums.least, sums.greatest


def fitted(kind: Kind, first: Sums, around: Callable[[Tensor], Sums]) -> tuple[Tensor, Tensor]:
    """Shift and factor of each column, from the first sums and, if needed, those around a mean that is known by then.

    NaN for a shift where nothing is known.
    """
    if kind == "none":
        return torch.zeros_like(first.total), torch.ones_like(first.total)
    if kind == "min-max":
        shift, factor = torch.where(first.count > 0, first.least, torch.nan), first.greatest - first.least
    else:
        second, shift = around(first.mean.nan_to_num(0.0)), first.mean
        variance = second.squares / second.count - second.mean.square()
        flat = variance <= (_VARIES * shift).square()
        factor = torch.where(flat, 0.0, variance).sqrt()
    return shift, torch.where(factor > 0, factor, 1.0)


def common_scale(kind: Kind, first: Sums, around: Callable[[Tensor], Sums]) -> Scale:
    """The scale that all clients share, from the sums of all: the first, and those ``around`` a mean."""
    shift, factor = fitted(kind, first, around)
    return Scale(shift.nan_to_num(0.0), factor, first.mean[0].nan_to_num(0.0))


@dataclass(frozen=True, eq=False)
class Holders:
    """Who has which rows, and who takes part in training."""

    owner: Tensor
    """The client of each row; -1: nobody, so that it does not matter how it is scaled."""
    train: Ragged
    seen: Tensor
    """A mask of the clients: what is fitted to all is fitted to the training rows of these."""


def planned(table: Table) -> Scaling | None:
    """The scaling that a table asks for, found fit; none: it asks for none."""
    return table.scaling and with_fit_fields(table.scaling)


def scaled(
    table: Table, holders: Holders, like: FederatedData | Scales | None = None
) -> tuple[Table, Scale | None, Scale | None]:
    """The table as its ``scaling`` says, and how its features and its targets were scaled (None: not at all).

    Data ``like`` others get the scale of those, if it is the same for all of their clients, whatever they ask for.
    Where each client had its own, new ones are scaled by their own rows too, in the way that their table asks for.
    """
    plan = planned(table)
    x_known, y_known = (like.x_scale, like.y_scale) if isinstance(like, FederatedData) else like or (None, None)
    if x_known is not None and (plan is None or plan.kind == "none"):
        if not x_known.common:
            raise ConfigError(
                f"{table.name!r} asks for no scaling, but is to be like data of which each client was scaled by its "
                "own rows; give the table such a scaling too: Scaling(kind, 'client')"
            )
        plan = Scaling()
    if plan is None:
        return table, None, None
    x, inputs, filled = _columns(table.x, plan, holders, x_known, table.encoding)
    y, targets = table.y, None
    if table.task == "regression":
        y, targets, _ = _columns(table.y, plan, holders, y_known)
    notes = (*table.notes, *_notes(plan, targets is not None, filled))
    if plan.kind == "none":
        return replace(table, x=x, notes=notes), None, None
    return replace(table, x=x, y=y, notes=notes), inputs, targets


def of_measured(scale: Scale, encoding: Encoding | None) -> Scale:
    """The scale without columns that are not measured, such as categories: they are filled and not scaled."""
    if encoding is None:
        return scale
    measured = torch.from_numpy(encoding.measured)
    shift, factor = torch.where(measured, scale.shift, 0.0), torch.where(measured, scale.factor, 1.0)
    return replace(scale, shift=shift, factor=factor)


def _columns(
    values: Tensor, plan: Scaling, holders: Holders, like: Scale | None, encoding: Encoding | None = None
) -> tuple[Tensor, Scale, float]:
    """Values with every column scaled and filled, how, and which share of them was missing."""
    wide = by_column(values)
    chunk = _rows_at_once(wide)
    missing = sum(int(torch.isnan(part).sum()) for part in torch.split(wide, chunk))
    scale, fill = _fitted(wide, holders, plan, like, missing > 0)
    scale = of_measured(scale, encoding)
    if plan.kind == "none" and missing == 0:
        return values, scale, 0.0
    made = torch.empty_like(wide)
    for at in range(0, len(wide), chunk):
        part, who = wide[at : at + chunk].double(), holders.owner[at : at + chunk].clamp(min=0)
        if missing:
            part = torch.where(torch.isnan(part), fill[who].unsqueeze(1), part)
        steps = scale.scaled(part.transpose(0, 1), who)  # which has rows and columns as its last axes
        made[at : at + chunk] = steps.transpose(0, 1).to(made.dtype)
    return made.view_as(values), scale, missing / max(values.numel(), 1)


def by_column(values: Tensor) -> Tensor:
    """Rows as (rows, steps, columns): only windows have more than one step."""
    return values.reshape(len(values), *((1, -1) if values.ndim != 3 else values.shape[1:]))


def _fitted(values: Tensor, holders: Holders, plan: Scaling, like: Scale | None, missing: bool) -> tuple[Scale, Tensor]:
    """The scale, and what stands in for a missing value of each client."""
    train, seen = holders.train, holders.seen
    own = Sums.stacked([*sums_of(values, train)]) if missing or plan.by == "client" else None
    nothing = torch.empty(0, values.shape[-1], dtype=torch.float64)
    common = like is not None and like.common
    every = None if common else own.of(seen).joined() if own is not None else _of_all(values, holders)
    mean = every.mean[0].nan_to_num(0.0) if every is not None and like is None else like.mean if like else nothing[0]
    fill = nothing if own is None else torch.where(torch.isnan(own.mean), mean, own.mean)
    if like is not None and like.common:
        return like, fill
    assert every is not None
    if plan.by == "all":
        return replace(common_scale(plan.kind, every, lambda at: _of_all(values, holders, at)), mean=mean), fill
    assert own is not None
    shift, factor = fitted(plan.kind, own, lambda at: Sums.stacked([*sums_of(values, train, at)]))
    unknown = torch.isnan(shift)
    if bool(unknown.any()):
        shared = common_scale(plan.kind, every, lambda at: _of_all(values, holders, at))
        shift, factor = torch.where(unknown, shared.shift, shift), torch.where(unknown, shared.factor, factor)
    return Scale(shift, factor, mean), fill


def _of_all(values: Tensor, holders: Holders, around: Tensor | None = None) -> Sums:
    """The sums of all that take part, of whom only a few are looked at at a time."""
    joined, first = Sums.nothing(1, values.shape[-1]), 0
    for part in sums_of(values, holders.train, around):
        taking = holders.seen[first : first + len(part.count)]
        first += len(part.count)
        if bool(taking.any()):
            joined = Sums.stacked([joined, part.of(taking)]).joined()
    return joined


def sums_of(values: Tensor, train: Ragged, around: Tensor | None = None) -> Iterator[Sums]:
    """The sums of each client over its training rows, of some clients at a time, in the order of their numbers.

    ``values`` are (rows, steps, columns); ``around`` is a row for all clients, or one for each. What a client's sums
    are depends on its own rows alone: a device gets the same bits by itself.
    """
    most, offsets = _rows_at_once(values), train.offsets.numpy()
    begins = np.flatnonzero(np.diff(offsets[:-1] // most, prepend=-1)).tolist()
    for first, last in pairwise([*begins, len(train)]):  # of these only the last client may have more than ``most``
        points = torch.zeros(1, 1) if around is None else around
        others, its = (points, points) if len(points) == 1 else (points[first : last - 1], points[last - 1 : last])
        found = Sums.nothing(last - first, values.shape[-1])
        _take_in(found, 0, values, train, offsets[first:last], others)
        for at in range(int(offsets[last - 1]), int(offsets[last]), most):
            block = np.array([at, min(at + most, int(offsets[last]))])
            _take_in(found, last - first - 1, values, train, block, its)
        yield found


def _take_in(sums: Sums, place: int, values: Tensor, train: Ragged, offsets: Ints, around: Tensor) -> None:
    """Adds consecutive rows to the sums of the clients from ``place`` on, which begin at these offsets."""
    sizes, steps = np.diff(offsets), values.shape[1]
    holding = np.flatnonzero(sizes)
    if len(holding) == 0:
        return
    rows = train.resolve(torch.arange(int(offsets[0]), int(offsets[-1])))
    points = around.numpy() if len(around) == 1 else np.repeat(around.numpy(), sizes * steps, axis=0)
    part = values[rows].double().reshape(-1, values.shape[-1]).numpy() - points
    known, begins = ~np.isnan(part), (offsets[holding] - offsets[0]) * steps
    there = np.where(known, part, 0.0)
    who = place + holding
    for summed, of in ((sums.count, known.astype(np.float64)), (sums.total, there), (sums.squares, there * there)):
        summed.numpy()[who] += np.add.reduceat(of, begins, axis=0)
    least, greatest = sums.least.numpy(), sums.greatest.numpy()
    least[who] = np.minimum(least[who], np.minimum.reduceat(np.where(known, part, np.inf), begins, axis=0))
    greatest[who] = np.maximum(greatest[who], np.maximum.reduceat(np.where(known, part, -np.inf), begins, axis=0))


def _rows_at_once(values: Tensor) -> int:
    return max(1, _NUMBERS // max(1, values[:1].numel()))


def _notes(plan: Scaling, targets: bool, filled: float) -> list[str]:
    notes = []
    if filled:
        notes.append(f"{100 * filled:.2g} % of the features were missing and are the mean of the training rows")
    if plan.kind != "none":
        what = "features and targets" if targets else "features"
        whose = "of all clients" if plan.by == "all" else "of each client"
        notes.append(f"{what} {_WORDS[plan.kind]} by the training rows {whose}")
    return notes
