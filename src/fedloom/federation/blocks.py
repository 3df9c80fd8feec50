"""The columns that clients of a vertical federation hold of the rows that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Blocks:
    """Which columns each client holds. A column belongs to one client at the most."""

    columns: tuple[Tensor, ...]
    """For each client the numbers of its columns of x, images being flattened."""

    @staticmethod
    def of(columns: Sequence[Sequence[int]]) -> Blocks:
        """From lists of column numbers."""
        return Blocks(tuple(torch.tensor(list(one), dtype=torch.int64) for one in columns))

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def width(self) -> int:
        """How many columns the widest block has."""
        return max(len(one) for one in self.columns)

    def with_all(self, columns: int) -> Blocks:
        """The same and one more client that holds every column."""
        return Blocks((*self.columns, torch.arange(columns)))
