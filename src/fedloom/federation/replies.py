"""What the server gets of its clients' replies: sums over those who answered, or, if it must, the single replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NoReturn

import torch
from torch import Tensor

from fedloom.errors import ConfigError

if TYPE_CHECKING:
    from fedloom.federation.client import Client

Weighting = Literal["size", "uniform"]
Reduce = Literal["sum", "each"]

WEIGHT = "weight"
"""The key under which a reply says what its client counts for."""
_BLOCK_NUMBERS = 1 << 24  # a sum over replies reads so many numbers at a time


def weight_by(weighting: Weighting, client: Client) -> Tensor | None:
    """What a client's reply counts for: its training rows, or the same as any other's (None)."""
    return client.n if weighting == "size" else None


def weighted(reply: Mapping[str, Tensor], weight: Tensor, *, undo: bool = False) -> dict[str, Tensor]:
    """Replies of a stack times their clients' weights; with ``undo``, as they were before that."""
    found = {}
    for key, value in reply.items():
        column = weight.reshape(len(weight), *(1,) * (value.dim() - 1))
        found[key] = value / column if undo else value * column
    return found


@dataclass(frozen=True, eq=False)
class Replies:
    """What a server's step may look at: ``replies.mean("dx")`` is what most methods need.

    Of a method that says ``reduce = "sum"`` there is nothing but one sum over clients for each key that they sent, as
    a secure sum gives it. Their weights were applied by the clients themselves, and the sum of the weights is such a
    sum too. A method that says "each" also has ``each``: columns with one row a client, in order of client id.
    """

    clients: Tensor
    """The ids of those who answered, in order."""
    sums: Mapping[str, Tensor]
    staleness: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))
    """t − τ: how many steps the server took since each client fetched its model, one number a reply; 0 in a round,
    where all answer what they were just sent."""
    columns: Columns | None = None
    """The single replies, of a method that looks at them."""

    @staticmethod
    def of(
        clients: Tensor,
        columns: Mapping[str, Tensor],
        staleness: Tensor | None = None,
        reduce: Reduce = "sum",
        rest: Callable[[], None] = lambda: None,
    ) -> Replies:
        """From the decoded replies as columns, in order of client id; ``rest`` is called after each block of a sum."""
        found = Columns(columns, rest)
        sums = {key: found.sum(key) for key in columns} if reduce == "sum" else {}
        age = torch.zeros_like(clients) if staleness is None else staleness
        return Replies(clients, sums, age, found if reduce == "each" else None)

    @staticmethod
    def alone(reply: Mapping[str, Tensor]) -> Replies:
        """Of a federation of one, or of a stack of such federations, each with one client that has answered."""
        one = torch.zeros(1, dtype=torch.int64)
        return Replies(one, reply, one, One(reply))

    def sum(self, key: str, weights: Tensor | None = None) -> Tensor:
        """Σ r_i over those who answered; ``weights`` (one a reply) are for methods that look at single replies."""
        if self.columns is not None:
            return self.columns.sum(key, weights)
        if weights is not None:
            self._refuse(f"weights the replies {key!r} itself")
        return self.sums[key]

    def mean(self, key: str, worth: Tensor | None = None) -> Tensor:
        """Σ w_i r_i / Σ w_i, w_i being what the clients count for; the plain mean where they all count alike.

        With ``worth`` (one a reply), for methods that look at single replies, it is Σ w_i s_i r_i / Σ w_i.
        """
        if self.columns is not None:
            if isinstance(self.columns, One):
                return self.columns.sum(key, worth)
            weight = self.columns.weight
            return self.columns.sum(key, weight if worth is None else weight * worth) / weight.sum()
        if worth is not None:
            self._refuse(f"weights the replies {key!r} itself")
        total = self.sums[WEIGHT].reshape(()) if WEIGHT in self.sums else len(self.clients)
        return self.sums[key] / total

    def each(self, key: str) -> Tensor:
        """A column, one row a client."""
        if self.columns is None or isinstance(self.columns, One):
            self._refuse(f"looks at the single replies {key!r}")
        return self.columns.values[key]

    @property
    def weights(self) -> Tensor:
        """What each reply counts for, in float64; for methods that look at single replies."""
        if self.columns is None:
            self._refuse("looks at single weights")
        return self.columns.weight

    def _refuse(self, what: str) -> NoReturn:
        raise ConfigError(f'the server {what}, but its method says reduce = "sum": say "each", or send a sum more')


@dataclass(frozen=True, eq=False)
class Columns:
    """Replies as columns in order of client id, whoever answered first.

    Floating-point sums depend on the order, and only so do all executors agree in every bit.
    """

    values: Mapping[str, Tensor]
    rest: Callable[[], None] = lambda: None
    """Called after each block of a sum: columns that are on the disk need not stay in memory."""

    @property
    def weight(self) -> Tensor:
        """What each reply counts for."""
        known = self.values.get(WEIGHT)
        count = len(next(iter(self.values.values())))
        return torch.ones(count, dtype=torch.float64) if known is None else known.double().reshape(-1)

    def sum(self, key: str, weights: Tensor | None = None) -> Tensor:
        """Σ w_i r_i (w_i = 1 unless given), in blocks of clients whose size depends on the message alone.

        A reply is multiplied before it is added, as clients do with theirs, so that the bits are the same.
        """
        column = self.values[key]
        if weights is None and len(column) == 1:
            self.rest()
            return column[0].clone()
        if weights is not None and not column.is_floating_point():
            column = column.double()
        flat = column.reshape(len(column), -1)
        w = None if weights is None else weights.to(flat.dtype)[:, None]
        ones, block = torch.ones(len(flat), dtype=flat.dtype), max(1, _BLOCK_NUMBERS // max(1, flat.shape[1]))
        total: Tensor | None = None
        for at in range(0, max(len(flat), 1), block):
            part = flat[at : at + block] if w is None else w[at : at + block] * flat[at : at + block]
            added = ones[at : at + block] @ part
            total = added if total is None else total.add_(added)
            self.rest()
        assert total is not None
        return total.view(column.shape[1:])


@dataclass(frozen=True, eq=False)
class One(Columns):
    """The reply of the only client; with a leading axis, of as many federations as that is long.

    Its sum and its mean are the reply itself, whatever its weight.
    """

    def sum(self, key: str, weights: Tensor | None = None) -> Tensor:
        """w r, w being 1 unless given."""
        value = self.values[key]
        if weights is None:
            return value
        value = value if value.is_floating_point() else value.double()
        return weights.to(value.dtype).reshape(()) * value
