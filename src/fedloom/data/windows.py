"""Windows over a user's own series: the rows of each client in their order, and what is to be said of what follows."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from fedloom.capacity import refuse_larger
from fedloom.data.series import Series, Windows, filled_forward, table_of
from fedloom.data.table import Table
from fedloom.errors import ConfigError, DataError


def windowed(table: Table, windows: Windows, horizon: int, columns: tuple[str, ...]) -> Table:
    """The same table with a row for each window of a client's rows.

    A window's target is that of the row ``horizon`` steps after its last one; ``columns`` are the names of a step's
    numbers. Rows are in the order of their times, or else as they stand. What is missing is what was known last.
    """
    if horizon < 0:
        raise ConfigError(f"{table.name!r}: horizon = {horizon} cannot be; give 0 or more")
    owner = np.zeros(len(table), dtype=np.int64) if table.groups is None else table.groups.numpy()
    time = np.arange(len(table), dtype=np.float64) if table.time is None else table.time.numpy()
    order = np.lexsort((time, owner))
    bounds = np.flatnonzero(np.diff(owner[order], prepend=-1, append=-1))
    names = table.group_names or (table.name,)
    count = len(table) // windows.stride * windows.length * table.x.shape[1]
    refuse_larger(4 * count, f"{table.name}, as windows", "Choose a larger stride or a smaller window.", DataError)
    x, y, series, uneven = table.x.float().numpy(), table.y.numpy(), list[Series](), 0
    for first, last in pairwise(bounds.tolist()):
        rows = order[first:last]
        kept = max(len(rows) - horizon, 0)
        steps = np.diff(time[rows])
        uneven += len(steps) > 0 and steps.max() - steps.min() > 1e-6 * max(abs(steps.max()), 1.0)
        series.append(
            Series(names[int(owner[rows[0]])], filled_forward(x[rows])[:kept], y[rows[horizon:]], time[rows[horizon:]])
        )
    ahead = f"{horizon} step{'s' * (horizon != 1)} after its end" if horizon else "its last step"
    said = [f"windows of {windows.length} steps, one every {windows.stride}, each to the label of {ahead}"]
    if uneven and table.time is not None:
        said.append(f"{uneven:,} of {len(series):,} clients have steps of different lengths; a window counts rows")
    made = table_of(table.name, table.task, series, windows)
    return replace(
        table,
        x=made.x,
        y=made.y,
        groups=made.groups,
        group_names=made.group_names,
        time=made.time if table.time is not None else torch.arange(len(made), dtype=torch.float64),
        series=True,
        feature_names=columns,
        notes=(*table.notes, *said),
    )
