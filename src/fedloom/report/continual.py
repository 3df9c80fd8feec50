"""Tasks in sequence, drawn: the matrix of what each task left of the others, and the same as lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedloom.report.curves import over_runs
from fedloom.report.groups import Group
from fedloom.report.look import canvas, heat_map, line_style, numbers, plain_text
from fedloom.report.runs import RunRecord, number
from fedloom.report.words import name_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

FRESH = "nothing"
"""What a model has learnt before the first task."""
VIEWS = {"matrix": "matrix", "lines": "lines"}


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
            values[at, i] = [np.nan if number(value) is None else value for value in row]
    mean = over_runs(np.nanmean, values)
    rows = int(np.isfinite(mean).any(1).sum())
    return [FRESH, *tasks][:rows], tasks, mean[:rows], str(told[0]["metric"])


def task_picture(group: Group, view: str = "matrix") -> Figure | None:
    """How good the model was on each task after each: as a heat map, or as a line for each task."""
    found = mean_matrix(group.runs)
    if found is None:
        return None
    return _heat_map(*found) if view == "matrix" else _lines(*found)


def _heat_map(learnt: list[str], tasks: list[str], values: np.ndarray[Any, Any], metric: str) -> Figure:
    figure = canvas(height=160 + 44 * len(learnt))
    figure.add_trace(
        heat_map(
            values,
            {"title": {"text": plain_text(name_text(metric))}},
            x=[plain_text(task) for task in tasks],
            y=[plain_text(task) for task in learnt],
            texttemplate="%{z:.3f}" if len(tasks) <= 12 else None,
            hovertemplate="on %{x} after %{y}: %{z:.4g}<extra></extra>",
            xgap=2,
            ygap=2,
        )
    )
    figure.update_xaxes(title_text="evaluated on", type="category", side="top")
    figure.update_yaxes(title_text="after", type="category", autorange="reversed")
    return figure


def _lines(learnt: list[str], tasks: list[str], values: np.ndarray[Any, Any], metric: str) -> Figure:
    figure = canvas(height=380)
    for at, task in enumerate(tasks):
        figure.add_scatter(
            x=[plain_text(name) for name in learnt],
            y=numbers(values[:, at]),
            name=plain_text(f"on {task}"),
            mode="lines+markers",
            **line_style(at),
            hovertemplate="%{y:.4g}",
        )
    figure.update_layout(hovermode="x unified")
    figure.update_xaxes(title_text="after", type="category")
    figure.update_yaxes(title_text=plain_text(name_text(metric)))
    return figure
