"""Vertical partitions: every client holds some columns of the same rows, and the server holds the labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Interval
from torch import Tensor

from fedloom.data.register import STEPS
from fedloom.data.table import Table
from fedloom.errors import DataError
from fedloom.federation.blocks import Blocks
from fedloom.federation.randomness import Draw


@STEPS.register("features")
@dataclass(frozen=True)
class Columns:
    """Vertical: the columns are divided, and every client holds its own of all rows.

    * ``columns``: neighbouring columns together ("in order"), or which columns a client has is left to chance
    * ``lacking``: the share of the rows that each client lacks, at random; only rows that all hold are used

    A table that comes from several parties is divided as they hold it.
    """

    columns: Literal["in order", "random"] = "in order"
    lacking: Annotated[float, Interval(ge=0, lt=1)] = 0.0

    def check(self, table: Table, clients: int) -> None:
        """An error, before any work, if the table cannot be divided in this way."""
        features = table.x[0].numel()
        if not 1 <= clients <= features:
            raise DataError(f"{clients} clients cannot share the {features} columns of {table.name!r}; give 1 to that")
        if table.blocks is not None and clients != len(table.blocks):
            raise DataError(
                f"{table.name!r} comes from {len(table.blocks)} parties, which are its clients; leave clients away"
            )

    def blocks(self, table: Table, clients: int, draw: Draw) -> Blocks:
        """Who holds which columns."""
        if table.blocks is not None:
            return table.blocks
        features = np.arange(table.x[0].numel())
        if self.columns == "random":
            features = draw.generator("partition columns").permutation(features)
        return Blocks.of([np.sort(part).tolist() for part in np.array_split(features, clients)])

    def shared(self, table: Table, clients: int, draw: Draw) -> tuple[Tensor, tuple[str, ...]]:
        """The rows that every client holds, and what is to be said of the others."""
        absent = round(self.lacking * len(table))
        if absent == 0:
            return torch.arange(len(table)), ()
        held = np.ones(len(table), dtype=bool)
        random = draw.generator("partition lacking")
        for _ in range(clients):
            held[random.permutation(len(table))[:absent]] = False
        if not held.any():
            raise DataError(
                f"no row of {table.name!r} is held by all {clients} clients; choose a lacking below {self.lacking}"
            )
        rows = np.flatnonzero(held)
        return torch.from_numpy(rows), (
            f"each client lacks {absent:,} rows; the {len(rows):,} of {len(table):,} that all hold are used",
        )
