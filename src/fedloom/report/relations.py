"""How the models of clients are related, as a method has learnt it: a heat map, a graph, and the numbers as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedloom.report.charts import Sheet
from fedloom.report.groups import Group
from fedloom.report.look import canvas, dot_style, heat_map, line_style, numbers, plain_text
from fedloom.report.runs import RunRecord, section

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

VIEWS = {"matrix": "heat map", "graph": "graph"}
_LINES = 2
"""So many lines for each client, the strongest, has the graph."""
_NAMED = 40
"""So many clients have their names beside them; of more the mouse tells."""
_LISTED = 500
"""So many pairs, the strongest, has the table."""
_WIDTHS = {"strong": (2 / 3, 3.5), "medium": (1 / 3, 1.8), "weak": (0.0, 0.8)}
"""From which part of the strongest relation on a line is drawn how wide."""


@dataclass(frozen=True)
class Relations:
    """Of every two clients a number from −1, opposite models, over 0, unrelated, to 1, equal ones."""

    labels: tuple[str, ...]
    matrix: NDArray[np.float64]
    kind: str

    @staticmethod
    def of(run: RunRecord) -> Relations | None:
        """As the run's summary tells; None where it does not, or there is nobody to be related to."""
        told = section(run.summary, "relations")
        try:
            matrix = np.array(told["matrix"], dtype=np.float64)
            labels = tuple(str(name) for name in told["labels"])
        except (KeyError, TypeError, ValueError):
            return None
        if matrix.shape != (len(labels), len(labels)) or len(labels) < 2 or not np.isfinite(matrix).all():
            return None
        return Relations(labels, (matrix + matrix.T) / 2, str(told.get("kind", "")))

    def ordered(self) -> Relations:
        """The same clients in an order in which those with related models stand together."""
        order = np.argsort(_along(self.matrix), kind="stable")
        return Relations(tuple(self.labels[at] for at in order), self.matrix[np.ix_(order, order)], self.kind)

    def pairs(self) -> list[tuple[int, int]]:
        """Every two clients, the most strongly related first."""
        first, second = np.triu_indices(len(self.labels), 1)
        order = np.argsort(-np.abs(self.matrix[first, second]), kind="stable")
        return list(zip(first[order].tolist(), second[order].tolist(), strict=True))


def left_out(groups: Sequence[Group]) -> str:
    """Why relations that there are cannot be shown; nothing where they can, or there are none."""
    told = [str(section(group.runs[0].summary, "relations").get("left_out", "")) for group in groups]
    return next(filter(None, told), "")


def relation_picture(group: Group, view: str = "matrix") -> Figure | None:
    """How clients' models are related at the end of a group's first run, as a heat map or a graph; None where no
    method says so."""
    found = Relations.of(group.runs[0])
    if found is None:
        return None
    return _heat_map(found.ordered()) if view == "matrix" else _graph(found.ordered())


def relation_words(group: Group) -> str:
    """The most and the least alike, in words."""
    found = Relations.of(group.runs[0])
    if found is None:
        return ""
    pairs = sorted(found.pairs(), key=lambda pair: -found.matrix[pair])
    most, least = ("{} and {} ({:.2f})".format(*_named(found, pair)) for pair in (pairs[0], pairs[-1]))
    return f"{group.label}: the most alike are {most}, the least alike {least}."


def relation_sheet(group: Group) -> Sheet | None:
    """The numbers behind the picture: the pairs of clients, the strongest first."""
    found = Relations.of(group.runs[0])
    if found is None:
        return None
    pairs = found.pairs()
    cut = f", the strongest {_LISTED} of {len(pairs):,}" if len(pairs) > _LISTED else ""
    lines = [(one, other, f"{value:.2f}") for one, other, value in (_named(found, pair) for pair in pairs[:_LISTED])]
    return Sheet(f"Relations of {group.label} as a table{cut}", ("Client", "Client", "Relation"), tuple(lines))


def _named(found: Relations, pair: tuple[int, int]) -> tuple[str, str, float]:
    return found.labels[pair[0]], found.labels[pair[1]], float(found.matrix[pair])


def _along(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """A number for each client by which related ones are neighbours: the direction in which they differ most.

    That is the first principal coordinate of the distances 2(1 − r); its sign is such that the first client is low.
    """
    centred = matrix - matrix.mean(0) - matrix.mean(1)[:, None] + matrix.mean()
    vector = np.linalg.eigh(centred)[1][:, -1]
    return np.round(vector * (-1.0 if vector[0] > 0 else 1.0), 9)


def _heat_map(found: Relations) -> Figure:
    count = len(found.labels)
    others = np.where(np.eye(count, dtype=bool), np.nan, found.matrix)
    greatest = max(float(np.nanmax(np.abs(others))), 1e-9)
    names = [plain_text(name) for name in found.labels]
    figure = canvas(height=min(200 + 24 * count, 760))
    figure.add_trace(
        heat_map(
            others,
            {"title": {"text": "Relation"}},
            diverging=True,
            x=names,
            y=names,
            zmin=-greatest,
            zmax=greatest,
            hovertemplate="%{y} and %{x}: %{z:.3f}<extra></extra>",
            hoverongaps=False,
        )
    )
    figure.update_xaxes(title_text="Client", type="category", showgrid=False)
    figure.update_yaxes(title_text="Client", type="category", autorange="reversed", showgrid=False)
    return figure


def _graph(found: Relations) -> Figure:
    """Clients on a circle, related ones beside each other; lines between the most strongly related."""
    count = len(found.labels)
    angle = np.pi / 2 - 2 * np.pi * np.arange(count) / count
    x, y = np.cos(angle), np.sin(angle)
    figure = canvas(height=520)
    pairs = [pair for pair in found.pairs()[: _LINES * count] if abs(found.matrix[pair]) > 0]
    greatest = max((abs(found.matrix[pair]) for pair in pairs), default=1.0)
    for at, (sign, words) in enumerate(((1, "alike"), (-1, "opposite"))):
        upper = np.inf
        for size, (least, width) in _WIDTHS.items():
            part = [
                pair
                for pair in pairs
                if sign * found.matrix[pair] > 0 and least <= abs(found.matrix[pair]) / greatest < upper
            ]
            upper = least
            if part:
                figure.add_scatter(
                    x=[value for one, other in part for value in (*numbers(x[[one, other]]), None)],
                    y=[value for one, other in part for value in (*numbers(y[[one, other]]), None)],
                    mode="lines",
                    name=f"{words}, {size}",
                    hoverinfo="skip",
                    **line_style(at, width=width),
                )
    few = count <= _NAMED
    dots: dict[str, Any] = dot_style(6, 10) | {"mode": "markers+text" if few else "markers"}
    figure.add_scatter(
        x=numbers(x),
        y=numbers(y),
        text=[plain_text(name) for name in found.labels],
        textposition=[_beside(*place) for place in zip(x, y, strict=True)],
        hovertext=[plain_text(_nearest(found, at)) for at in range(count)],
        hovertemplate="%{hovertext}<extra></extra>",
        showlegend=False,
        cliponaxis=False,
        **dots,
    )
    figure.update_xaxes(visible=False, range=[-1.6, 1.6])
    figure.update_yaxes(visible=False, range=[-1.2, 1.2], scaleanchor="x")
    return figure


def _nearest(found: Relations, at: int) -> str:
    """A client with those whose models are most like its own."""
    others = [other for other in np.argsort(-found.matrix[at], kind="stable").tolist() if other != at]
    near = ", ".join(f"{found.labels[other]} {found.matrix[at, other]:.2f}" for other in others[:3])
    return f"{found.labels[at]}: most alike {near}"


def _beside(x: float, y: float) -> str:
    """Where a name stands, outside the circle."""
    if abs(x) < 0.2:
        return "top center" if y > 0 else "bottom center"
    return "middle right" if x > 0 else "middle left"
