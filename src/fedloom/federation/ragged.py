"""Row numbers of every client, of unequal counts, kept in two flat arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Ints = npt.NDArray[np.int64]
Window = tuple[Ints, Ints]
"""The rows that each of some clients holds now: its ``first`` one in the order of its training rows, and how many."""


@dataclass(frozen=True, eq=False)
class Ragged:
    """Client i owns ``rows[offsets[i]:offsets[i + 1]]``; without ``rows`` it owns those positions themselves.

    Two flat arrays instead of a list per client: a million clients cost 8 MB, and a stack of clients is
    gathered without a Python loop.
    """

    offsets: Tensor
    rows: Tensor | None = None

    @staticmethod
    def of(parts: list[Tensor]) -> Ragged:
        """From one tensor of row numbers per client."""
        sizes = torch.tensor([len(part) for part in parts], dtype=torch.int64)
        rows = torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)
        return Ragged(_offsets(sizes), rows.to(torch.int64))

    @staticmethod
    def contiguous(sizes: Tensor) -> Ragged:
        """Clients that own consecutive rows: the first ``sizes[0]``, then the next ``sizes[1]``, …"""
        return Ragged(_offsets(sizes))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Tensor:
        """How many rows each client owns."""
        return self.offsets[1:] - self.offsets[:-1]

    def __getitem__(self, client: int) -> Tensor:
        """The row numbers of one client."""
        start, stop = int(self.offsets[client]), int(self.offsets[client + 1])
        return torch.arange(start, stop) if self.rows is None else self.rows[start:stop]

    @property
    def owners(self) -> Ints:
        """Whose each flat position is."""
        return np.repeat(np.arange(len(self)), self.sizes.numpy())

    def every(self) -> Tensor:
        """The row numbers of all clients, one client after the other."""
        return self.resolve(torch.arange(int(self.offsets[-1])))

    def resolve(self, positions: Tensor) -> Tensor:
        """Row numbers at the given flat positions (``offsets[i] + j`` is client i's j-th row)."""
        return positions if self.rows is None else self.rows[positions]

    def span(self, clients: Ints) -> Span:
        """All rows of some clients."""
        offsets = self.offsets.numpy()
        starts = offsets[clients]
        return Span(self, starts, offsets[clients + 1] - starts)


@dataclass(frozen=True, eq=False)
class Span:
    """Consecutive rows of some clients: client i's are at the flat positions ``starts[i]``, …, ``sizes[i]`` of them."""

    owned: Ragged
    starts: Ints
    sizes: Ints

    def positions(self) -> Ints:
        """Their flat positions, one client after the other."""
        inside = np.arange(int(self.sizes.sum())) - np.repeat(np.cumsum(self.sizes) - self.sizes, self.sizes)
        positions: Ints = np.repeat(self.starts, self.sizes) + inside
        return positions

    def rows(self) -> Tensor:
        """Their row numbers, one client after the other."""
        return self.owned.resolve(torch.from_numpy(self.positions()))


def _offsets(sizes: Tensor) -> Tensor:
    offsets = torch.zeros(len(sizes) + 1, dtype=torch.int64)
    torch.cumsum(sizes.to(torch.int64), 0, out=offsets[1:])
    return offsets
