"""Running statistics of a client in a turn: which passes have moved those that it was sent.

A model with running statistics (BatchNorm) is a vector with a tail, (w, s). Every pass in training moves the tail of
the model that it is taken at, as torch does; nothing else does. Of all that a client passes through in a turn, one line
of descent begins at the statistics that it was sent: what they are at its end is what it has to say of them. Where no
pass was at a model with these (a client that trains only a model of its own), it is those of the model that it trained
last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.types import Vector


@dataclass(eq=False)
class Trail:
    """The running statistics of one client: as it was sent them, and what passes have made of them."""

    sent: Tensor
    descended: Tensor | None = None
    """Those that descend from what was sent."""
    other: Tensor | None = None
    """Those of another model that was trained last."""
    stepping: bool = False
    """Whether a step of the method's own making is under way (``scan``), whose passes are in a row …"""
    span: tuple[Tensor, Tensor] | None = None
    """… and the statistics before the first of them, and after the last."""
    last: Tensor | None = None
    """What the passes of the last gradient have made of those that they met."""

    def passed(self, before: Tensor, after: Tensor) -> None:
        """A pass, or several in a row, met certain statistics and has made others of them."""
        line = self.sent if self.descended is None else self.descended
        if torch.equal(before, line):
            self.descended = after
        else:
            self.other = after
        self.last = after
        if self.stepping:
            self.span = (before if self.span is None else self.span[0], after)

    @property
    def now(self) -> Tensor:
        """What the client has to say of them."""
        found = self.descended if self.descended is not None else self.other
        return self.sent if found is None else found


def trails(sent: Tensor, clients: int) -> list[Trail]:
    """One for each client of a stack, which all were sent the same or each its own."""
    return [Trail(own.clone()) for own in sent.expand(clients, -1)]


def with_tail(theta: Vector, tail: Vector) -> Vector:
    """A vector, or a stack, with these numbers in the place of its last ones."""
    return torch.cat([theta[..., : theta.shape[-1] - tail.shape[-1]], tail.expand(*theta.shape[:-1], -1)], -1)


def followed(theta: Vector, found: Sequence[Trail], stacked: bool) -> Vector:
    """θ, made by a step from where the last passes were, with the statistics that these passes left behind."""
    tails = [trail.last for trail in found]
    rows = theta if stacked else theta[None]
    rows = torch.stack([one if tail is None else with_tail(one, tail) for one, tail in zip(rows, tails, strict=True)])
    return rows if stacked else rows[0]
