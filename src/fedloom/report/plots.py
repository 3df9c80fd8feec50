"""The charts of groups of runs, as plotly figures: usable in a notebook as they are, and by the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedloom.errors import ConfigError
from fedloom.report.curves import STATISTICS, ClientValue, Curves, client_values, metric_curves, participation, thin
from fedloom.report.groups import Group, headline, metric_names
from fedloom.report.look import (
    FATES,
    bar_style,
    canvas,
    colour,
    dot_style,
    faint,
    line_style,
    meta,
    numbers,
    plain_text,
)
from fedloom.report.words import name_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

VIEWS = {"box": "each client", "cumulative": "share of clients below", "size": "against the client's size"}
_MOST_POINTS = 400
Samples = list[tuple[str, list[ClientValue]]]
"""The label of each group, and its clients."""


def learning_curves(
    groups: Sequence[Group], *, x: str | None = None, metric: str | None = None, statistic: str | None = None
) -> Figure:
    """A metric along the run, mean over repeats with a band of ± one standard deviation.

    ``x`` is "round", "simulated_seconds", "bytes", "gradient_evaluations" or "wall_seconds", by default the round, or
    the simulated time where schedules differ; ``statistic`` is "weighted", "mean", "worst_tenth", "std", "min" or "max"
    over the clients, or "pooled"; by default the metric's headline.
    """
    name = metric or metric_names(groups)[0]
    statistic = statistic or headline(groups, name)
    curves = metric_curves(groups, (statistic,))
    if x is not None and x not in curves.axes:
        raise ConfigError(f"these runs have no {x} to be drawn against; they have {', '.join(curves.axes)}")
    return curve_figure(curves, x=x or curves.usual, name=name, statistic=statistic)


def curve_figure(curves: Curves, *, x: str, name: str, statistic: str) -> Figure:
    """One choice of clock, quantity and statistic out of all curves."""
    figure = canvas(height=430)
    for at, (label, line) in enumerate(zip(curves.labels, curves.lines[name][statistic], strict=True)):
        common: dict[str, Any] = {
            "x": numbers(curves.axes[x].values[at]),
            "mode": "lines",
            "connectgaps": True,
            "legendgroup": str(at),
        }
        if line.low is not None and line.high is not None:
            edge = {**common, "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
            figure.add_scatter(y=numbers(line.low), meta=meta(at, "low"), **edge)
            figure.add_scatter(y=numbers(line.high), meta=meta(at, "high"), fill="tonexty", fillcolor=faint(at), **edge)
        few = int(np.isfinite(line.mean).sum()) <= 12
        figure.add_scatter(
            y=numbers(line.mean),
            name=plain_text(label),
            customdata=None if line.std is None else numbers(line.std),
            hovertemplate="%{y:.4g}" + ("" if line.std is None else " ± %{customdata:.2g}"),
            **common | {"mode": "lines+markers" if few else "lines"},
            **line_style(at, "mean"),
        )
    figure.update_layout(hovermode="x unified")
    figure.update_xaxes(title_text=curves.axes[x].title, rangemode="tozero", **tick_format(x))
    figure.update_yaxes(title_text=quantity(name, statistic), type="log" if curves.log(name) else "linear")
    return figure


def quantity(name: str, statistic: str) -> str:
    """What a line shows, for the y axis."""
    return plain_text(name_text(name) if statistic == "value" else f"{name_text(name)}, {STATISTICS[statistic]}")


def tick_format(clock: str) -> dict[str, str]:
    """How the ticks of a clock are written."""
    return {
        "tickformat": "~s" if clock in ("bytes", "gradient_evaluations") else "~r",
        "ticksuffix": "B" * (clock == "bytes"),
    }


def client_spread(groups: Sequence[Group], metric: str | None = None, view: str = "box") -> Figure | None:
    """How well the finished models serve the single clients; all repeats together. None when no run tells.

    ``view`` is "box" (a dot for each client), "cumulative" (share of clients at or below a value) or "size" (against
    the client's number of training rows).
    """
    metric = metric or metric_names(groups)[0]
    samples = []
    for group in groups:
        values = [one for run in group.runs for one in client_values(run, metric)]
        samples.append((group.label, _sample([one for one in values if view != "size" or one.rows is not None])))
    if not any(sample for _, sample in samples):
        return None
    draw = {"box": _boxes, "cumulative": _cumulative, "size": _by_size}[view]
    return draw(samples, plain_text(name_text(metric)))


def participation_chart(group: Group) -> Figure | None:
    """What became of the selected clients in each round; None when all were accepted all the time."""
    table = participation(group)
    if table is None:
        return None
    figure = canvas(height=330)
    for fate, look in FATES.items():
        if fate == "accepted" or table[fate].any():
            figure.add_bar(
                x=numbers(table["round"]),
                y=numbers(table[fate]),
                name=fate,
                hovertemplate="%{y:.3g}",
                **bar_style(*look),
            )
    figure.update_layout(barmode="stack", bargap=0.1 if len(table["round"]) <= 60 else 0, hovermode="x unified")
    figure.update_xaxes(title_text="Round", **tick_format("round"))
    figure.update_yaxes(title_text="Clients", rangemode="tozero")
    return figure


def _boxes(samples: Samples, title: str) -> Figure:
    figure = canvas(height=110 + 80 * len(samples))
    for at, (label, sample) in enumerate(samples):
        figure.add_box(
            x=numbers(one.value for one in sample),
            y0=plain_text(label),
            name=plain_text(label),
            text=[plain_text(one.name) for one in sample],
            hovertemplate="client %{text}: %{x:.4g}<extra></extra>",
            boxpoints="all",
            jitter=0.55,
            pointpos=0,
            orientation="h",
            width=0.6,
            marker={"size": 5, "opacity": 0.55, "color": colour(at)},
            line={"width": 1.5, "color": colour(at)},
            fillcolor=faint(at),
            meta=meta(at),
            showlegend=False,
        )
    figure.update_xaxes(title_text=title)
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    return figure


def _cumulative(samples: Samples, title: str) -> Figure:
    figure = canvas(height=380)
    for at, (label, sample) in enumerate(samples):
        figure.add_scatter(
            x=numbers(one.value for one in sample),
            y=numbers((np.arange(len(sample)) + 1) / max(len(sample), 1)),
            name=plain_text(label),
            mode="lines",
            hovertemplate="%{y:.0%} of the clients at or below %{x:.4g}",
            **line_style(at, shape="hv"),
        )
    figure.update_xaxes(title_text=title)
    figure.update_yaxes(title_text="Share of the clients", tickformat=".0%", range=[0, 1.02])
    return figure


def _by_size(samples: Samples, title: str) -> Figure:
    figure = canvas(height=380)
    for at, (label, sample) in enumerate(samples):
        figure.add_scatter(
            x=numbers(one.rows for one in sample),
            y=numbers(one.value for one in sample),
            text=[plain_text(one.name) for one in sample],
            name=plain_text(label),
            hovertemplate="client %{text}, %{x} rows: %{y:.4g}",
            **dot_style(at, 7),
        )
    sizes = [one.rows for _, sample in samples for one in sample if one.rows]
    wide = bool(sizes) and max(sizes) > 20 * min(sizes)
    figure.update_xaxes(title_text="Training rows of the client", type="log" if wide else "linear")
    figure.update_yaxes(title_text=title)
    return figure


def _sample(values: list[ClientValue]) -> list[ClientValue]:
    """Sorted, and of very many clients evenly spread quantiles, with both ends."""
    ordered = sorted(values, key=lambda one: one.value)
    return [ordered[at] for at in thin(len(ordered), _MOST_POINTS)]
