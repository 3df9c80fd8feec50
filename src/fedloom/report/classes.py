"""What a model makes of classes, drawn: which it takes for which, and how far its probabilities can be believed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedloom.report.groups import Group
from fedloom.report.look import canvas, heat_map, line_style, numbers, plain_text
from fedloom.report.runs import RunRecord, section

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

THRESHOLDS = {"chosen": "chosen", "usual": "usual"}
_WRITTEN = 12  # so many classes have their numbers written into the cells


def confusion(run: RunRecord, threshold: str = "usual") -> tuple[list[str], np.ndarray[Any, Any]] | None:
    """The classes, and how many rows of each were taken for each; None where the summary does not tell."""
    place = section(run.summary, "decision") if threshold == "chosen" else run.summary
    told = section(place, "confusion")
    try:
        counts = np.array(told["counts"], dtype=np.float64)
        names = [str(name) for name in told["classes"]]
    except (KeyError, TypeError, ValueError):
        return None
    return (names, counts) if counts.shape == (len(names), len(names)) and len(names) > 1 else None


def confusion_picture(group: Group, threshold: str = "usual") -> Figure | None:
    """The confusion matrix of a group's first run as a heat map of shares, with the numbers in it."""
    found = confusion(group.runs[0], threshold)
    if found is None:
        return None
    names, counts = found
    figure = canvas(height=min(180 + 44 * len(names), 720))
    rows = np.maximum(counts.sum(1, keepdims=True), 1)
    figure.add_trace(
        heat_map(
            counts / rows,
            {"title": {"text": "Share of the line"}, "tickformat": ".0%"},
            x=[plain_text(name) for name in names],
            y=[plain_text(name) for name in names],
            zmin=0,
            zmax=1,
            text=[[f"{int(count):,}" for count in line] for line in counts],
            texttemplate="%{text}" if len(names) <= _WRITTEN else None,
            hovertemplate="%{text} rows of %{y} said to be %{x}<extra></extra>",
            xgap=2,
            ygap=2,
        )
    )
    figure.update_xaxes(title_text="said", type="category", side="top")
    figure.update_yaxes(title_text="is", type="category", autorange="reversed")
    return figure


def calibration_picture(groups: Sequence[Group]) -> Figure | None:
    """How often what is said with a probability is true: a line for each group's first run that has it."""
    known = [(group, told) for group in groups if (told := _calibration(group.runs[0])) is not None]
    if not known:
        return None
    figure = canvas(height=420)
    figure.add_shape(type="line", x0=0, y0=0, x1=1, y1=1, line={"dash": "dash", "width": 1, "color": "#888888"})
    for at, (group, (rows, said, true)) in enumerate(known):
        style = line_style(at)
        style["marker"] = {**style["marker"], "size": list(5 + 15 * np.sqrt(rows / rows.max()))}
        figure.add_scatter(
            x=numbers(said / rows),
            y=numbers(true / rows),
            customdata=rows.tolist(),
            name=plain_text(group.label),
            mode="lines+markers",
            hovertemplate="said %{x:.2f}, true %{y:.2f}, %{customdata:,} rows",
            **style,
        )
    figure.update_xaxes(title_text="Probability said", range=[-0.03, 1.03])
    figure.update_yaxes(title_text="Share that is true", range=[-0.03, 1.03])
    return figure


def _calibration(run: RunRecord) -> tuple[np.ndarray[Any, Any], ...] | None:
    """Of each bin that has rows: how many, the sum of probabilities, how many are true."""
    told = section(run.summary, "calibration")
    try:
        parts = [np.array(told[key], dtype=np.float64) for key in ("rows", "said", "true")]
    except (KeyError, TypeError, ValueError):
        return None
    if any(part.ndim != 1 or part.shape != parts[0].shape for part in parts) or not (parts[0] > 0).any():
        return None
    return tuple(part[parts[0] > 0] for part in parts)
