"""The charts, as plotly figures: usable in a notebook as they are, and by the page, which recolours them in dark mode.

A trace says its colour as ``meta["colour"]``, an index into the palette, so that the page can exchange the palette.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from fedloom.report.curves import ClientValue, Curves, client_values, describe, metric_curves, participation, thin
from fedloom.report.groups import Group, metric_names
from fedloom.report.runs import number, section
from fedloom.report.words import name_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

LIGHT = ("#0072b2", "#d55e00", "#00865f", "#b5568f", "#9a6b00", "#3e8fc4", "#5b626b")
"""Okabe and Ito's colours, darkened where they would be faint on white: at least 3 to 1 against the page."""

DARK = ("#4fa9e6", "#f0803c", "#2fbf92", "#de92be", "#e6b23a", "#9ad4f7", "#b4bcc6")
"""The same hues for a dark page."""

SEQUENCES = {
    "light": ((0.0, "#dcebf6"), (0.5, "#4a9bd1"), (1.0, "#053a63")),
    "dark": ((0.0, "#1d3a50"), (0.5, "#4fa9e6"), (1.0, "#e2f3ff")),
}
"""From few to many, on either page."""

VIEWS = {"box": "each client", "cumulative": "share of clients below", "size": "against the client's size"}
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
FATES = {"accepted": (0, ""), "late": (4, "/"), "lost": (1, "x"), "dropped": (6, "."), "failed": (3, "+")}
"""What becomes of a reply: its colour, and a pattern for those who do not tell colours apart."""
_MOST_POINTS = 400


def learning_curves(
    groups: Sequence[Group], *, x: str | None = None, metric: str | None = None, statistic: str = "weighted"
) -> Figure:
    """A metric along the run, mean over repeats with a band of ± one standard deviation.

    ``x`` is "round", "simulated_seconds", "bytes", "gradient_evaluations" or "wall_seconds", by default the round, or
    the simulated time where schedules differ; ``statistic`` is "weighted", "mean", "worst_tenth", "std", "min" or "max"
    over the clients, or "pooled".
    """
    curves = metric_curves(groups, (statistic,))
    return curve_figure(curves, x=x or curves.usual, name=metric or metric_names(groups)[0], statistic=statistic)


def curve_figure(curves: Curves, *, x: str, name: str, statistic: str) -> Figure:
    """One choice of clock, quantity and statistic out of all curves."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for at, (label, line) in enumerate(zip(curves.labels, curves.lines[name][statistic], strict=True)):
        across = numbers(curves.axes[x].values[at])
        colour = _colour(at)
        common: dict[str, Any] = {"x": across, "mode": "lines", "connectgaps": True, "legendgroup": str(at)}
        if line.low is not None and line.high is not None:
            edge = {**common, "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
            figure.add_scatter(y=numbers(line.low), meta=_meta(at, "low"), **edge)
            fill = {"fill": "tonexty", "fillcolor": _faint(colour)}
            figure.add_scatter(y=numbers(line.high), meta=_meta(at, "high"), **edge, **fill)
        mean = {**common, "mode": "lines+markers"} if _few(line.mean) else common
        figure.add_scatter(
            y=numbers(line.mean),
            name=plain_text(label),
            **line_style(at, "mean"),
            customdata=None if line.std is None else numbers(line.std),
            hovertemplate="%{y:.4g}" + ("" if line.std is None else " ± %{customdata:.2g}"),
            **mean,
        )
    style(figure, height=430)
    figure.update_layout(hovermode="x unified")
    figure.update_xaxes(title_text=curves.axes[x].title, rangemode="tozero", **tick_format(x))
    figure.update_yaxes(title_text=describe(name, statistic), type="log" if curves.log(name) else "linear")
    return figure


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
    values = [[one for run in group.runs for one in client_values(run, metric)] for group in groups]
    if view == "size":
        values = [[one for one in group if one.rows is not None] for group in values]
    if not any(values):
        return None
    samples = [_sample(group) for group in values]
    labels = [group.label for group in groups]
    if view == "box":
        return _boxes(labels, samples, metric)
    return _cumulative(labels, samples, metric) if view == "cumulative" else _by_size(labels, samples, metric)


def label_picture(data: dict[str, Any]) -> Figure | None:
    """Who has which labels: rows of each client above, rows of each label at each client below (data.json)."""
    from plotly.subplots import make_subplots

    counts = _counts(data)
    if counts is None:
        return None
    clients, classes = counts.shape
    heat = len(data.get("classes") or []) == classes and classes > 1
    tall = min(max(18 * classes, 180), 620) if heat else 0
    figure = make_subplots(
        rows=1 + heat, cols=1, shared_xaxes=True, vertical_spacing=0.05, row_heights=[150, tall][: 1 + heat]
    )
    names = _client_names(data, clients)
    for trace in _size_bars(data, counts, names):
        figure.add_trace(trace, row=1, col=1)
    if heat:
        labels = [str(name) for name in data["classes"]]
        figure.add_trace(_heat_map(counts, names, labels), row=2, col=1)
        figure.update_yaxes(title_text="Label", showgrid=False, **_ticks(labels, 26), row=2, col=1)
    style(figure, height=260 + tall)
    figure.update_layout(barmode="stack", bargap=0.15)
    figure.update_yaxes(title_text="Rows", row=1, col=1)
    figure.update_xaxes(showgrid=False, range=[-0.6, clients - 0.4], **_ticks(names, 24))
    figure.update_xaxes(title_text="Client", row=1 + heat, col=1)
    return figure


def participation_chart(group: Group) -> Figure | None:
    """What became of the selected clients in each round; None when all were accepted all the time."""
    import plotly.graph_objects as go

    table = participation(group)
    if table is None:
        return None
    figure = go.Figure()
    for fate, look in FATES.items():
        if fate == "accepted" or table[fate].any():
            figure.add_bar(
                x=numbers(table["round"]),
                y=numbers(table[fate]),
                name=fate,
                **bar_style(*look),
                hovertemplate="%{y:.3g}",
            )
    style(figure, height=330)
    figure.update_layout(barmode="stack", bargap=0.1 if len(table["round"]) <= 60 else 0, hovermode="x unified")
    figure.update_xaxes(title_text="Round", **tick_format("round"))
    figure.update_yaxes(title_text="Clients", rangemode="tozero")
    return figure


def numbers(values: Any) -> list[float | None]:
    """Numbers as JSON has them: six digits, and null for what is not finite."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]


def style(figure: Figure, height: int) -> None:
    """Calm: no frame, thin lines, the page's own background."""
    axis = {
        "gridcolor": "#e3e5e8",
        "zerolinecolor": "#e3e5e8",
        "linecolor": "#c4c9cf",
        "automargin": True,
        "title": {"standoff": 10, "font": {"size": 13}},
    }
    figure.update_layout(
        template=None,
        height=height,
        margin={"l": 56, "r": 16, "t": 16, "b": 48},
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#1d2329"},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom", "traceorder": "normal"},
        hoverlabel={"namelength": -1},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": "#8a929b", "activecolor": "#0072b2"},
    )
    figure.update_xaxes(**axis, showline=True, zeroline=False)
    figure.update_yaxes(**axis, zeroline=False)


def _boxes(labels: list[str], samples: list[list[ClientValue]], metric: str) -> Figure:
    import plotly.graph_objects as go

    figure = go.Figure()
    for at, (label, sample) in enumerate(zip(labels, samples, strict=True)):
        colour = _colour(at)
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
            marker={"size": 5, "opacity": 0.55, "color": colour},
            line={"width": 1.5, "color": colour},
            fillcolor=_faint(colour),
            meta=_meta(at),
            showlegend=False,
        )
    style(figure, height=110 + 80 * len(labels))
    figure.update_xaxes(title_text=name_text(metric))
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    return figure


def _cumulative(labels: list[str], samples: list[list[ClientValue]], metric: str) -> Figure:
    import plotly.graph_objects as go

    figure = go.Figure()
    for at, (label, sample) in enumerate(zip(labels, samples, strict=True)):
        figure.add_scatter(
            x=numbers(one.value for one in sample),
            y=numbers((np.arange(len(sample)) + 1) / max(len(sample), 1)),
            name=plain_text(label),
            mode="lines",
            line={"color": _colour(at), "width": 2.25, "dash": _DASHES[at % len(_DASHES)], "shape": "hv"},
            hovertemplate="%{y:.0%} of the clients at or below %{x:.4g}",
            meta=_meta(at),
        )
    style(figure, height=380)
    figure.update_xaxes(title_text=name_text(metric))
    figure.update_yaxes(title_text="Share of the clients", tickformat=".0%", range=[0, 1.02])
    return figure


def _by_size(labels: list[str], samples: list[list[ClientValue]], metric: str) -> Figure:
    import plotly.graph_objects as go

    figure = go.Figure()
    symbols = ("circle", "diamond", "square", "triangle-up", "cross", "x", "star")
    for at, (label, sample) in enumerate(zip(labels, samples, strict=True)):
        figure.add_scatter(
            x=numbers(one.rows for one in sample),
            y=numbers(one.value for one in sample),
            text=[plain_text(one.name) for one in sample],
            name=plain_text(label),
            mode="markers",
            marker={"size": 7, "opacity": 0.7, "color": _colour(at), "symbol": symbols[at % len(symbols)]},
            hovertemplate="client %{text}, %{x} rows: %{y:.4g}",
            meta=_meta(at),
        )
    style(figure, height=380)
    sizes = [one.rows for sample in samples for one in sample if one.rows]
    wide = bool(sizes) and max(sizes) > 20 * min(sizes)
    figure.update_xaxes(title_text="Training rows of the client", type="log" if wide else "linear")
    figure.update_yaxes(title_text=name_text(metric))
    return figure


def _sample(values: list[ClientValue]) -> list[ClientValue]:
    """Sorted, and of very many clients evenly spread quantiles, with both ends."""
    ordered = sorted(values, key=lambda one: one.value)
    return [ordered[at] for at in thin(len(ordered), _MOST_POINTS)]


def _counts(data: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """Shape (clients, labels); None when the file does not tell."""
    try:
        counts = np.array(data.get("counts"), dtype=np.float64)
    except (TypeError, ValueError):
        return None
    return counts if counts.ndim == 2 and counts.size else None


def _size_bars(data: dict[str, Any], counts: np.ndarray[Any, Any], names: list[str]) -> list[Any]:
    """Rows of each client as bars: for training, by role where there is more than one, and for tests."""
    import plotly.graph_objects as go

    clients = len(counts)
    sizes = {split: _sized(section(data, "sizes").get(split), clients) for split in ("train", "test")}
    if sizes["train"] is None:
        parts = [("rows", 0, counts.sum(axis=1))]
    else:
        parts = _by_role(data, sizes["train"])
        if sizes["test"] is not None and any(sizes["test"]):
            parts.append(("test rows", 6, np.array(sizes["test"])))
    return [
        go.Bar(
            x=list(range(clients)),
            y=numbers(rows),
            name=name,
            marker={"color": _colour(colour), "line": {"width": 0}},
            meta=_meta(colour),
            customdata=[plain_text(name) for name in names],
            hovertemplate="client %{customdata}: %{y:,} " + name + "<extra></extra>",
        )
        for name, colour, rows in parts
    ]


def _by_role(data: dict[str, Any], rows: list[float]) -> list[tuple[str, int, np.ndarray[Any, Any]]]:
    roles = [str(role) for role in data.get("roles") or []]
    present = sorted(set(roles))
    if len(roles) != len(rows) or len(present) < 2:
        return [("training rows", 0, np.array(rows))]
    split = [
        (role, np.array([n if of == role else np.nan for n, of in zip(rows, roles, strict=True)])) for role in present
    ]
    return [(f"training rows, {plain_text(role)} clients", at, part) for at, (role, part) in enumerate(split)]


def _sized(values: object, clients: int) -> list[float] | None:
    if not isinstance(values, list) or len(values) < clients:
        return None
    return [number(value) or 0.0 for value in values[:clients]]


def _heat_map(counts: np.ndarray[Any, Any], names: list[str], labels: list[str]) -> Any:
    import plotly.graph_objects as go

    clients = len(names)
    gap = 2 if clients <= 60 else 1 if clients <= 120 else 0
    named = [[f"client {plain_text(client)}, label {plain_text(label)}" for client in names] for label in labels]
    small = clients * len(labels) <= 4000
    return go.Heatmap(
        z=[numbers(row) for row in np.where(counts > 0, counts, np.nan).T],
        customdata=named if small else None,
        hovertemplate=("%{customdata}" if small else "client no. %{x}, label no. %{y}")
        + ": %{z:,} rows<extra></extra>",
        xgap=gap,
        ygap=min(gap, 1 if len(labels) > 30 else 2),
        zmin=0,
        colorscale=[list(stop) for stop in SEQUENCES["light"]],
        colorbar={
            "title": {"text": "rows"},
            "thickness": 10,
            "outlinewidth": 0,
            "len": 0.6,
            "y": 0,
            "yanchor": "bottom",
        },
        meta={"sequence": True},
    )


def _client_names(data: dict[str, Any], clients: int) -> list[str]:
    names = data.get("labels") or []
    return [str(names[at]) if at < len(names) else str(at) for at in range(clients)]


def _ticks(names: list[str], limit: int) -> dict[str, Any]:
    """Names along an axis of whole numbers, no more than fit, none too long."""
    at = thin(len(names), limit).tolist()
    short = [name if len(name) <= 14 else name[:13] + "…" for name in names]
    return {"tickvals": at, "ticktext": [plain_text(short[i]) for i in at]}


def plain_text(text: str) -> str:
    """A user's words in a figure: plotly reads some tags, so they are escaped."""
    return escape(text, quote=False)


def _few(values: Any) -> bool:
    return int(np.isfinite(values).sum()) <= 12


def line_style(at: int, part: str = "") -> dict[str, Any]:
    """Colour and dashes of the line number ``at``; ``part`` tells the page's script what it is."""
    colour = _colour(at)
    return {
        "line": {"color": colour, "width": 2.25, "dash": _DASHES[at % len(_DASHES)]},
        "marker": {"size": 5, "color": colour},
        "meta": _meta(at, part),
    }


def bar_style(colour: int, pattern: str = "") -> dict[str, Any]:
    """A colour of the palette, and a pattern over it."""
    over = {"shape": pattern, "size": 6, "solidity": 0.25, "fillmode": "overlay", "fgcolor": "#ffffff"}
    marker = {"color": _colour(colour), "line": {"width": 0}, "pattern": over}
    return {"opacity": 0.75, "marker": marker, "meta": _meta(colour)}


def _colour(at: int) -> str:
    return LIGHT[at % len(LIGHT)]


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"


def _meta(at: int, part: str = "") -> dict[str, object]:
    return {"colour": at, "part": part} if part else {"colour": at}
