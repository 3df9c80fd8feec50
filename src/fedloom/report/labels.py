"""Who has which labels, drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedloom.report.curves import thin
from fedloom.report.look import bar_style, canvas, colour, heat_map, meta, numbers, plain_text
from fedloom.report.runs import client_name, number, section

if TYPE_CHECKING:
    from plotly.graph_objects import Bar, Figure, Heatmap


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
    names = [client_name(data, client) for client in range(clients)]
    for trace in _size_bars(data, counts, names):
        figure.add_trace(trace, row=1, col=1)
    if heat:
        labels = [str(name) for name in data["classes"]]
        figure.add_trace(_heat_map(counts, names, labels), row=2, col=1)
        figure.update_yaxes(title_text="Label", showgrid=False, **_ticks(labels, 26), row=2, col=1)
    canvas(260 + tall, figure)
    figure.update_layout(barmode="stack", bargap=0.15)
    figure.update_yaxes(title_text="Rows", row=1, col=1)
    figure.update_xaxes(showgrid=False, range=[-0.6, clients - 0.4], **_ticks(names, 24))
    figure.update_xaxes(title_text="Client", row=1 + heat, col=1)
    return figure


def column_picture(data: dict[str, Any], columns: list[int]) -> Figure | None:
    """How many columns each party holds; None where clients have rows of their own."""
    if not columns:
        return None
    names = [plain_text(client_name(data, party)) for party in range(len(columns))]
    figure = canvas(height=260)
    figure.add_bar(
        x=names, y=columns, name="columns", hovertemplate="%{x}: %{y} columns<extra></extra>", **bar_style(0)
    )
    figure.update_xaxes(title_text="Party", type="category", showgrid=False)
    figure.update_yaxes(title_text="Columns", rangemode="tozero")
    return figure


def _counts(data: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """Shape (clients, labels); None when the file does not tell."""
    try:
        counts = np.array(data.get("counts"), dtype=np.float64)
    except (TypeError, ValueError):
        return None
    return counts if counts.ndim == 2 and counts.size else None


def _size_bars(data: dict[str, Any], counts: np.ndarray[Any, Any], names: list[str]) -> list[Bar]:
    """Rows of each client as bars: for training, by role where there is more than one, and for tests."""
    import plotly.graph_objects as go

    clients = len(counts)
    train, test = (_sizes(data, split, clients) for split in ("train", "test"))
    parts = [("rows", 0, counts.sum(axis=1))] if train is None else _by_role(data, train)
    if train is not None and test is not None and test.any():
        parts.append(("test rows", 6, test))
    return [
        go.Bar(
            x=list(range(clients)),
            y=numbers(rows),
            name=name,
            marker={"color": colour(at), "line": {"width": 0}},
            meta=meta(at),
            customdata=[plain_text(name) for name in names],
            hovertemplate="client %{customdata}: %{y:,} " + name + "<extra></extra>",
        )
        for name, at, rows in parts
    ]


def _by_role(data: dict[str, Any], rows: np.ndarray[Any, Any]) -> list[tuple[str, int, np.ndarray[Any, Any]]]:
    roles = [str(role) for role in data.get("roles") or []]
    present = sorted(set(roles))
    if len(roles) != len(rows) or len(present) < 2:
        return [("training rows", 0, rows)]
    parts = [np.where([own == role for own in roles], rows, np.nan) for role in present]
    return [(f"training rows, {plain_text(role)} clients", at, parts[at]) for at, role in enumerate(present)]


def _sizes(data: dict[str, Any], split: str, clients: int) -> np.ndarray[Any, Any] | None:
    sizes = section(data, "sizes").get(split)
    if not isinstance(sizes, list) or len(sizes) < clients:
        return None
    return np.array([number(size) or 0.0 for size in sizes[:clients]])


def _heat_map(counts: np.ndarray[Any, Any], names: list[str], labels: list[str]) -> Heatmap:
    clients = len(names)
    gap = 2 if clients <= 60 else 1 if clients <= 120 else 0
    named = [[f"client {plain_text(client)}, label {plain_text(label)}" for client in names] for label in labels]
    small = clients * len(labels) <= 4000
    return heat_map(
        np.where(counts > 0, counts, np.nan).T,
        {"title": {"text": "rows"}, "len": 0.6, "y": 0, "yanchor": "bottom"},
        customdata=named if small else None,
        hovertemplate=("%{customdata}" if small else "client no. %{x}, label no. %{y}")
        + ": %{z:,} rows<extra></extra>",
        xgap=gap,
        ygap=min(gap, 1 if len(labels) > 30 else 2),
        zmin=0,
    )


def _ticks(names: list[str], limit: int) -> dict[str, Any]:
    """Names along an axis of whole numbers, no more than fit, none too long."""
    at = thin(len(names), limit).tolist()
    short = [name if len(name) <= 14 else name[:13] + "…" for name in names]
    return {"tickvals": at, "ticktext": [plain_text(short[i]) for i in at]}
