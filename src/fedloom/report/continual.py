"""Tasks in sequence, drawn: the matrix of what each task left of the others, and the same as lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedloom.report import plots
from fedloom.report.groups import Group
from fedloom.report.runs import RunRecord, number
from fedloom.report.words import name_text, plain, text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure
    from rich.table import Table

    from fedloom.engine.matrix import TaskMatrix

FRESH = "nothing"
"""What a model has learnt before the first task."""
VIEWS = {"matrix": "matrix", "lines": "lines"}


def matrix_table(matrix: TaskMatrix) -> Table:
    """The matrix for a terminal."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"{name_text(matrix.metric)} after")
    for task in matrix.tasks:
        table.add_column(f"on {task}", justify="right")
    for learnt, row in zip((FRESH, *matrix.tasks), (matrix.fresh, *matrix.rows), strict=False):
        table.add_row(learnt, *(text(plain, value) for value in row))
    return table


def measures_text(matrix: TaskMatrix) -> str:
    """What the matrix comes to, in a line."""
    return "  ".join(f"{name_text(name).lower()} {text(plain, value)}" for name, value in matrix.measures().items())


def mean_matrix(runs: Sequence[RunRecord]) -> tuple[list[str], list[str], np.ndarray[Any, Any], str] | None:
    """What was learnt, the tasks, the mean over repeats of the metric on each after each, and the metric.

    None where no run has tasks; repeats that have not come so far are left out of the rows that they lack.
    """
    told = [run.matrix for run in runs if run.matrix.get("tasks")]
    if not told:
        return None
    tasks = [str(task) for task in told[0]["tasks"]]
    values = np.full((len(told), len(tasks) + 1, len(tasks)), np.nan)
    for at, matrix in enumerate(told):
        for i, row in enumerate([matrix["fresh"], *matrix["matrix"]]):
            values[at, i] = [math.nan if number(value) is None else value for value in row]
    known = np.isfinite(values)
    mean = np.where(known, values, 0).sum(0) / np.where(known.any(0), known.sum(0), np.nan)
    rows = int(known.any((0, 2)).sum())
    return [FRESH, *tasks][:rows], tasks, mean[:rows], str(told[0]["metric"])


def task_picture(group: Group, view: str = "matrix") -> Figure | None:
    """How good the model was on each task after each: as a heat map, or as a line for each task."""
    found = mean_matrix(group.runs)
    if found is None:
        return None
    return _heat_map(*found) if view == "matrix" else _lines(*found)


def _heat_map(learnt: list[str], tasks: list[str], values: np.ndarray[Any, Any], metric: str) -> Figure:
    import plotly.graph_objects as go

    figure = go.Figure(
        go.Heatmap(
            z=[plots.numbers(row) for row in values],
            x=[plots.plain_text(task) for task in tasks],
            y=[plots.plain_text(task) for task in learnt],
            texttemplate="%{z:.3f}" if len(tasks) <= 12 else None,
            hovertemplate="on %{x} after %{y}: %{z:.4g}<extra></extra>",
            xgap=2,
            ygap=2,
            colorscale=[list(stop) for stop in plots.SEQUENCES["light"]],
            colorbar={"title": {"text": name_text(metric)}, "thickness": 10, "outlinewidth": 0},
            meta={"sequence": True},
        )
    )
    plots.style(figure, height=160 + 44 * len(learnt))
    figure.update_xaxes(title_text="judged on", type="category", side="top")
    figure.update_yaxes(title_text="after", type="category", autorange="reversed")
    return figure


def _lines(learnt: list[str], tasks: list[str], values: np.ndarray[Any, Any], metric: str) -> Figure:
    import plotly.graph_objects as go

    figure = go.Figure()
    for at, task in enumerate(tasks):
        figure.add_scatter(
            x=[plots.plain_text(name) for name in learnt],
            y=plots.numbers(values[:, at]),
            name=plots.plain_text(f"on {task}"),
            mode="lines+markers",
            **plots.line_style(at),
            hovertemplate="%{y:.4g}",
        )
    plots.style(figure, height=380)
    figure.update_layout(hovermode="x unified")
    figure.update_xaxes(title_text="after", type="category")
    figure.update_yaxes(title_text=name_text(metric))
    return figure
