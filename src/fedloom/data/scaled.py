"""How a table that was read from files is scaled: as its user says, or by default."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedloom.data.scaling import By, Kind, Scaling
from fedloom.data.shipped import STANDARDISED, standard_scale
from fedloom.data.table import Table
from fedloom.federation.encoding import Encoding
from fedloom.federation.scale import Scale
from fedloom.fields import with_fit_fields

UNASKED = "scaled by default (scaling = 'none' leaves numbers as they are)"


@dataclass(frozen=True)
class Scaled:
    """How the features of a table are to be scaled."""

    kind: Kind
    by: By
    standardise: bool
    chosen: bool = False
    """Whether the user left it to fedloom."""

    def done(self, table: Table, basis: Tensor | None = None) -> Table:
        """The table with its scaling, which also fills what is missing; or standardised by all rows of a ``basis``."""
        kind, notes = self.kind, list(table.notes)
        if self.standardise:
            units = _standard_units(table.x if basis is None else basis, table.encoding)
            x = ((table.x.double() - units.shift[0]) / units.factor[0]).float()
            table, notes = replace(table, x=x, units=units), [*notes, STANDARDISED]
        if self.chosen:
            measured = table.encoding is None or bool(table.encoding.measured.any())
            kind = kind if measured or table.task == "regression" else "none"
            notes += [UNASKED] if kind != "none" else []
        absent = table.x.is_floating_point() and bool(torch.isnan(table.x).any())
        scaling = with_fit_fields(Scaling(kind, self.by)) if kind != "none" or absent else None
        return replace(table, scaling=scaling, notes=tuple(notes))


def _standard_units(values: Tensor, encoding: Encoding | None) -> Scale:
    """The mean and the deviation of every measured column over all rows; of the others 0 and 1."""
    if encoding is None:
        return standard_scale(values)
    rows = values.double().reshape(-1, values.shape[-1])
    mean = rows.nanmean(0).nan_to_num(0.0)
    deviation = (rows - mean).square().nanmean(0).sqrt().nan_to_num(0.0)
    measured = torch.from_numpy(encoding.measured)
    shift, factor = torch.where(measured, mean, 0.0), torch.where(measured & (deviation > 0), deviation, 1.0)
    return Scale(shift[None], factor[None], mean)
