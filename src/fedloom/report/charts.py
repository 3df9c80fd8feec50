"""What a chart is on a page: words around it, what a reader may choose, and all that the page's script then draws."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from fedloom.report.curves import STATISTICS, Curves, Line
from fedloom.report.look import numbers
from fedloom.report.plots import curve_figure, quantity, tick_format
from fedloom.report.words import name_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


@dataclass(frozen=True)
class Choice:
    """What a reader may choose above a chart: values and their texts, at first the usual one or the first."""

    key: str
    title: str
    options: dict[str, str]
    usual: str = ""


@dataclass(frozen=True)
class Drawing:
    """Choices, and for all of them what the page's script draws."""

    choices: tuple[Choice, ...]
    content: dict[str, Any]

    @property
    def payload(self) -> dict[str, Any]:
        """All that the script needs."""
        return {"keys": [choice.key for choice in self.choices], **self.content}

    @property
    def curves(self) -> bool:
        """Whether the script puts numbers into one figure, whose scale a reader may choose as well."""
        return "lines" in self.content


@dataclass(frozen=True)
class Sheet:
    """What a chart shows as a table, for those who do not see it or want the numbers."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Chart:
    """A drawing with its words; ``key`` is its name on the page, ``alt`` is for those who do not see it."""

    key: str
    drawing: Drawing
    alt: str
    caption: str
    heading: str = ""
    sheets: tuple[Sheet, ...] = ()


def drawn_curves(curves: Curves, what: str) -> Drawing:
    """One figure, and all the numbers that the page's script may put into it."""
    name = next(iter(curves.lines))
    statistic = next(iter(curves.lines[name]))
    figure = _plain(curve_figure(curves, x=curves.usual, name=name, statistic=statistic))
    for trace in figure["data"]:
        for key in ("x", "y", "customdata"):
            trace.pop(key, None)
    statistics = {each: STATISTICS[each].capitalize() for lines in curves.lines.values() for each in lines}
    choices = (
        Choice("name", what, {key: name_text(key) for key in curves.lines}),
        Choice("statistic", "Shown as", statistics),
        Choice("x", "Against", {key: axis.title for key, axis in curves.axes.items()}, curves.usual),
    )
    content = {
        "figure": figure,
        "axes": {
            key: {"title": axis.title, "values": [numbers(x) for x in axis.values], **tick_format(key)}
            for key, axis in curves.axes.items()
        },
        "log": {key: curves.log(key) for key in curves.lines},
        "lines": {
            key: {
                each: {"title": quantity(key, each), "groups": [_numbers(line) for line in lines]}
                for each, lines in by_statistic.items()
            }
            for key, by_statistic in curves.lines.items()
        },
    }
    return Drawing(choices, content)


def drawn_figures(choices: Sequence[Choice], draw: Callable[..., Figure | None]) -> Drawing | None:
    """A figure for every combination of values for which there is one; None where there is none at all."""
    found = {values: draw(*values) for values in product(*(choice.options for choice in choices))}
    figures = {values: _plain(figure) for values, figure in found.items() if figure is not None}
    if not figures:
        return None
    left = tuple(
        replace(choice, options={value: text for value, text in choice.options.items() if value in known})
        for choice, known in zip(choices, map(set, zip(*figures, strict=True)), strict=True)
    )
    return Drawing(left, {"figures": {" ".join(values): figure for values, figure in figures.items()}})


def _numbers(line: Line) -> dict[str, list[float | None]]:
    parts = {"mean": line.mean, "low": line.low, "high": line.high, "std": line.std}
    return {key: numbers(values) for key, values in parts.items() if values is not None}


def _plain(figure: Figure) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(figure.to_json())
    plain["layout"].pop("template", None)
    return plain
