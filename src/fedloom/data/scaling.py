"""Scaling that knows only the training rows, and what stands in for features that are missing.

A source says how its rows want to be scaled (:class:`Scaling`); ``federate`` does it once it is known which rows are
for training. Of every client this takes no more than five numbers a column (how many, their sum, the sum of their
squares, the least, the greatest), so that a real federation could do the same without showing a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.data import FederatedData
from fedloom.federation.ragged import Ragged
from fedloom.federation.scale import Scale
from fedloom.fields import with_fit_fields

if TYPE_CHECKING:
    from fedloom.data.table import Table

Kind = Literal["none", "standard", "min-max"]
By = Literal["all", "client"]
_NUMBERS = 2_000_000  # looked at at a time, so that the work needs little memory beside the table
_WORDS = {"standard": "standardised", "min-max": "scaled to 0…1"}


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
    """What the clients of a federation would tell: five numbers for each of them and each column."""

    count: Tensor
    total: Tensor
    squares: Tensor
    least: Tensor
    greatest: Tensor

    @staticmethod
    def nothing(clients: int, columns: int) -> Sums:
        """Before anybody has been asked."""
        nought = torch.zeros(clients, columns, dtype=torch.float64)
        return Sums(nought, nought.clone(), nought.clone(), nought + torch.inf, nought - torch.inf)

    def take_in(self, values: Tensor, owner: Tensor) -> None:
        """Some rows (rows, steps, columns) and who owns each; what is NaN does not count."""
        known = ~torch.isnan(values)
        found = values.nan_to_num(0.0)
        self.count.index_add_(0, owner, known.double().sum(1))
        self.total.index_add_(0, owner, found.sum(1))
        self.squares.index_add_(0, owner, found.square().sum(1))
        place = owner.unsqueeze(1).expand(-1, values.shape[-1])
        self.least.scatter_reduce_(0, place, values.nan_to_num(torch.inf).amin(1), "amin")
        self.greatest.scatter_reduce_(0, place, values.nan_to_num(-torch.inf).amax(1), "amax")

    def together(self, who: Tensor) -> Sums:
        """Those of some clients (a mask) as if they were one."""
        count, total, squares = (part[who].sum(0, keepdim=True) for part in (self.count, self.total, self.squares))
        least, greatest = self.least[who].amin(0, keepdim=True), self.greatest[who].amax(0, keepdim=True)
        return Sums(count, total, squares, least, greatest)

    @property
    def mean(self) -> Tensor:
        """NaN where nothing is known."""
        return self.total / self.count

    def scale(self, kind: Kind) -> tuple[Tensor, Tensor]:
        """Shift and factor of each column; NaN for a shift where nothing is known."""
        if kind == "none":
            return torch.zeros_like(self.total), torch.ones_like(self.total)
        if kind == "min-max":
            shift, factor = torch.where(self.count > 0, self.least, torch.nan), self.greatest - self.least
        else:
            variance = self.squares / self.count - self.mean.square()
            small = variance <= 1e-12 * self.squares / self.count  # rounding, not variation
            shift, factor = self.mean, torch.where(small, 0.0, variance).sqrt()
        return shift, torch.where(factor > 0, factor, 1.0)


@dataclass(frozen=True, eq=False)
class Holders:
    """Who has which rows, and who takes part in training."""

    owner: Tensor
    """The client of each row; -1: nobody, so that it does not matter how it is scaled."""
    train: Ragged
    seen: Tensor
    """A mask of the clients: what is fitted to all is fitted to the training rows of these."""


def scaled(
    table: Table, holders: Holders, like: FederatedData | None = None
) -> tuple[Table, Scale | None, Scale | None]:
    """The table as its ``scaling`` says, and how its features and its targets were scaled (None: not at all).

    Data ``like`` others get the scale of those, if it is the same for all of their clients, whatever they ask for.
    Where each client had its own, new ones are scaled by their own rows too, in the way that their table asks for.
    """
    plan = table.scaling and with_fit_fields(table.scaling)
    x_known, y_known = (None, None) if like is None else (like.x_scale, like.y_scale)
    if x_known is not None and (plan is None or plan.kind == "none"):
        if not x_known.common:
            raise ConfigError(
                f"{table.name!r} asks for no scaling, but is to be like data of which each client was scaled by its "
                "own rows; give the table such a scaling too: Scaling(kind, 'client')"
            )
        plan = Scaling()
    if plan is None:
        return table, None, None
    measured = None if table.encoding is None else torch.from_numpy(table.encoding.measured)
    x, inputs, filled = _columns(table.x, plan, holders, x_known, measured)
    y, targets = table.y, None
    if table.task == "regression":
        y, targets, _ = _columns(table.y, plan, holders, y_known)
    notes = (*table.notes, *_notes(plan, targets is not None, filled))
    if plan.kind == "none":
        return replace(table, x=x, notes=notes), None, None
    return replace(table, x=x, y=y, notes=notes), inputs, targets


def _columns(
    values: Tensor, plan: Scaling, holders: Holders, like: Scale | None, measured: Tensor | None = None
) -> tuple[Tensor, Scale, float]:
    """Values with every column scaled and filled, how, and which share of them was missing.

    Columns that are not ``measured`` (a mask) are filled and not scaled.
    """
    wide = values.reshape(len(values), *((1, -1) if values.ndim != 3 else values.shape[1:]))
    chunk = _rows_at_once(wide)
    missing = sum(int(torch.isnan(part).sum()) for part in torch.split(wide, chunk))
    sums, every = _summed(wide, holders, own=plan.by == "client" or missing > 0)
    scale, fill = _fitted(sums, every, plan, like)
    if measured is not None:
        scale = replace(
            scale, shift=torch.where(measured, scale.shift, 0.0), factor=torch.where(measured, scale.factor, 1.0)
        )
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


def _fitted(sums: Sums, every: Sums, plan: Scaling, like: Scale | None) -> tuple[Scale, Tensor]:
    """The scale, and what stands in for a missing value of each client."""
    mean = every.mean[0].nan_to_num(0.0) if like is None else like.mean
    fill = torch.where(torch.isnan(sums.mean), mean, sums.mean)
    if like is not None and like.common:
        return like, fill
    shift, factor = every.scale(plan.kind)
    shift = shift.nan_to_num(0.0)
    if plan.by == "client":
        own_shift, own_factor = sums.scale(plan.kind)
        unknown = torch.isnan(own_shift)
        shift, factor = torch.where(unknown, shift, own_shift), torch.where(unknown, factor, own_factor)
    return Scale(shift, factor, mean), fill


def _summed(values: Tensor, holders: Holders, own: bool) -> tuple[Sums, Sums]:
    """The sums of each client (unless nobody needs them: then again those of all), and of all that take part."""
    seen = holders.seen
    sums = Sums.nothing(len(holders.train) if own else 1, values.shape[-1])
    for rows, who in _parts(holders.train, _rows_at_once(values)):
        if own:
            sums.take_in(values[rows].double(), who)
        else:
            sums.take_in(values[rows[seen[who]]].double(), torch.zeros_like(who[seen[who]]))
    return sums, sums.together(seen) if own else sums


def _parts(train: Ragged, chunk: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The training rows and whose they are, so many at a time."""
    owner = torch.repeat_interleave(torch.arange(len(train)), train.sizes)
    for places in torch.split(torch.arange(len(owner)), chunk):
        yield train.resolve(places), owner[places]


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
