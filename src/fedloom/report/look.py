"""How plots look: the colours, lines, bars and heat maps that all of them share.

A trace says its colour as ``meta["colour"]``, an index into the palette, so that the page can exchange the palette.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from plotly.graph_objects import Figure, Heatmap

LIGHT = ("#0072b2", "#d55e00", "#00865f", "#b5568f", "#9a6b00", "#3e8fc4", "#5b626b")
"""Okabe and Ito's colours, darkened where they would be faint on white: at least 3 to 1 against the page."""

DARK = ("#4fa9e6", "#f0803c", "#2fbf92", "#de92be", "#e6b23a", "#9ad4f7", "#b4bcc6")
"""The same hues for a dark page."""

SEQUENCES = {
    "light": ((0.0, "#dcebf6"), (0.5, "#4a9bd1"), (1.0, "#053a63")),
    "dark": ((0.0, "#1d3a50"), (0.5, "#4fa9e6"), (1.0, "#e2f3ff")),
}
"""From few to many, on either page."""
DIVERGING = {
    "light": ((0.0, "#8a3a00"), (0.25, "#e08a4a"), (0.5, "#f3f4f5"), (0.75, "#4a9bd1"), (1.0, "#053a63")),
    "dark": ((0.0, "#ffc79b"), (0.25, "#c4682b"), (0.5, "#23282e"), (0.75, "#3583b8"), (1.0, "#c5e6ff")),
}
"""From below 0 over 0, which is the page's own shade, to above."""

FATES = {"accepted": (0, ""), "late": (4, "/"), "lost": (1, "x"), "dropped": (6, "."), "failed": (3, "+")}
"""What becomes of a reply: its colour, and a pattern for those who do not tell colours apart."""
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x", "star")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def canvas(height: int, figure: Figure | None = None) -> Figure:
    """A figure to draw on, a new one unless given. Calm: no frame, thin lines, the page's own background."""
    import plotly.graph_objects as go

    figure = go.Figure() if figure is None else figure
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
    return figure


def numbers(values: Any) -> list[float | None]:
    """Numbers as JSON has them: six digits, and null for what is not finite."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]


def plain_text(text: str) -> str:
    """A user's words in a figure: plotly reads some tags, so they are escaped."""
    return escape(text, quote=False)


def heat_map(
    values: np.ndarray[Any, Any], bar: dict[str, Any] | None = None, *, diverging: bool = False, **settings: Any
) -> Heatmap:
    """Values in the colours from few to many, or away from 0 to both sides, with a thin bar that explains them."""
    import plotly.graph_objects as go

    scale = DIVERGING if diverging else SEQUENCES
    return go.Heatmap(
        z=[numbers(row) for row in values],
        colorscale=[list(stop) for stop in scale["light"]],
        colorbar={"thickness": 10, "outlinewidth": 0, **(bar or {})},
        meta={"diverging": True} if diverging else {"sequence": True},
        **settings,
    )


def line_style(at: int, part: str = "", **line: Any) -> dict[str, Any]:
    """Colour and dashes of the line number ``at``; ``part`` tells the page's script what it is."""
    return {
        "line": {"color": colour(at), "width": 2.25, "dash": _DASHES[at % len(_DASHES)], **line},
        "marker": {"size": 5, "color": colour(at)},
        "meta": meta(at, part),
    }


def dot_style(at: int, size: int) -> dict[str, Any]:
    """Colour and shape of the dots number ``at``."""
    marker = {"size": size, "opacity": 0.7, "color": colour(at), "symbol": _SYMBOLS[at % len(_SYMBOLS)]}
    return {"mode": "markers", "marker": marker, "meta": meta(at)}


def bar_style(at: int, pattern: str = "") -> dict[str, Any]:
    """A colour of the palette, and a pattern over it."""
    over = {"shape": pattern, "size": 6, "solidity": 0.25, "fillmode": "overlay", "fgcolor": "#ffffff"}
    marker = {"color": colour(at), "line": {"width": 0}, "pattern": over}
    return {"opacity": 0.75, "marker": marker, "meta": meta(at)}


def colour(at: int) -> str:
    """The colour of what is number ``at``."""
    return LIGHT[at % len(LIGHT)]


def faint(at: int) -> str:
    """The same colour for an area behind lines."""
    red, green, blue = bytes.fromhex(colour(at)[1:])
    return f"rgba({red},{green},{blue},0.16)"


def meta(at: int, part: str = "") -> dict[str, object]:
    """What a trace tells the page's script of itself."""
    return {"colour": at, "part": part} if part else {"colour": at}
