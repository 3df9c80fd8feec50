"""What the server gets in a round: the accepted replies as columns, in order of client id."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

Weighting = Literal["size", "uniform"]

_BLOCK_NUMBERS = 1 << 24  # a sum over replies reads so many numbers at a time


@dataclass(frozen=True, eq=False)
class Replies(Mapping[str, Tensor]):
    """``replies["dx"]`` is a column, one row a client; ``replies.mean("dx")`` is what most methods need.

    Rows are in order of client id, whoever answered first: floating-point sums depend on the order, and only so do
    all executors agree in every bit.
    """

    clients: Tensor
    sizes: Tensor
    """How many rows each client trained on."""
    columns: dict[str, Tensor]
    staleness: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64))
    """t − τ: how many steps the server took since each client fetched its model, one number a reply; 0 in a round,
    where all answer what they were just sent."""
    rest: Callable[[], None] = lambda: None
    """Called after each block of a sum: columns that are on the disk need not stay in memory."""

    def __getitem__(self, key: str) -> Tensor:
        return self.columns[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def weights(self, weighting: Weighting = "size") -> Tensor:
        """Weights that sum to one: n_i/Σn over those who answered, or the same for each."""
        if weighting == "uniform":
            return torch.full((len(self.clients),), 1.0 / len(self.clients), dtype=torch.float64)
        sizes = self.sizes.double()
        return sizes / sizes.sum()

    def sum(self, key: str, weights: Tensor | None = None) -> Tensor:
        """Σ w_i r_i (w_i = 1 unless given), in blocks of clients whose size depends on the message alone."""
        column = self.columns[key]
        if weights is not None and not column.is_floating_point():
            column = column.double()
        flat = column.reshape(len(column), -1)
        w = torch.ones(len(flat), dtype=flat.dtype) if weights is None else weights.to(flat.dtype)
        block = max(1, _BLOCK_NUMBERS // max(1, flat.shape[1]))
        total = w[:block] @ flat[:block]
        for at in range(block, len(flat), block):
            self.rest()
            total += w[at : at + block] @ flat[at : at + block]
        self.rest()
        return total.view(column.shape[1:])

    def mean(self, key: str, weighting: Weighting = "size") -> Tensor:
        """Σ w_i r_i with weights that sum to one."""
        return self.sum(key, self.weights(weighting))
