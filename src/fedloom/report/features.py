"""What a method measured of single input columns ("feature/NAME" in the history), as a heat map along the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedloom.report.curves import thin
from fedloom.report.groups import FEATURE, Group
from fedloom.report.look import canvas, heat_map, plain_text
from fedloom.report.runs import RunRecord, number, section

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

STEPS = 48
"""So many recorded rounds are shown, evenly spread."""
MOST_COLUMNS = 256


def feature_table(run: RunRecord) -> tuple[list[str], list[int], np.ndarray[Any, Any]] | None:
    """The input columns, some rounds, and the values: shape (columns, rounds). None where nothing was measured."""
    places = [
        at for at, row in enumerate(run.history) if any(name.startswith(FEATURE) for name in section(row, "measures"))
    ]
    if not places:
        return None
    rows = [run.history[places[at]] for at in thin(len(places), STEPS)]
    names = list(dict.fromkeys(name for row in rows for name in row["measures"] if name.startswith(FEATURE)))
    names = [names[at] for at in thin(len(names), MOST_COLUMNS)]
    values = np.array([[number(row["measures"].get(name)) for row in rows] for name in names], dtype=np.float64)
    columns = [name.removeprefix(FEATURE) for name in names]
    columns = [f"column {name}" if name.isdecimal() else name for name in columns]
    return columns, [row["round"] for row in rows], values


def feature_picture(group: Group) -> Figure | None:
    """The learned representation of the input columns along the first run of a group; None where it is not measured."""
    found = feature_table(group.runs[0])
    if found is None:
        return None
    names, rounds, values = found
    figure = canvas(height=min(160 + 20 * len(names), 900))
    figure.add_trace(
        heat_map(
            values,
            x=[str(index) for index in rounds],
            y=[plain_text(name) for name in names],
            hovertemplate="%{y}, round %{x}: %{z:.4g}<extra></extra>",
        )
    )
    figure.update_xaxes(title_text="Round", type="category", nticks=13)
    figure.update_yaxes(title_text="Input column", type="category", autorange="reversed", showgrid=False)
    return figure
