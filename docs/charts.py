"""The curves of recorded results, drawn as SVG: one picture for each column of a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from fedloom.report.look import LIGHT
from fedloom.report.words import name_text
from fedloom.storage.files import slug

Record = dict[str, Any]

HEIGHT = 400
LEFT, RIGHT, TOP, BOTTOM = 52, 590, 34, 350  # of the field; on its right stand the names of the lines
NAMES = RIGHT + 44
LETTER = 7.2  # about as wide as one is
LINE = 17  # between names
_DASHES = ("", "7 3", "2 3")
_DECADES = 2  # from here on an axis is logarithmic, where less is better
_STATED = ("#8a929b", "2 3")
_RATE_LEAST = 1e-9  # errors below it are rounding
_STYLE = (
    "text{font:13px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#33393f}.small{font-size:12px;fill:#5b626b}"
    ".grid{stroke:#e3e7eb}.line{fill:none;stroke-width:2;stroke-linejoin:round}.lead{fill:none;stroke-width:1}"
)


@dataclass(frozen=True)
class Line:
    """A row's way: where its values were taken, and what they were."""

    name: str
    at: Sequence[float]
    values: Sequence[float]
    stated: bool = False
    """Whether it is not measured but said to be so."""


@dataclass(frozen=True)
class Scale:
    """Numbers to places in the picture."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        shape: Callable[[float], float] = math.log10 if self.log else float
        share = (shape(value) - shape(self.low)) / (shape(self.high) - shape(self.low))
        return self.start + (self.end - self.start) * share

    def ticks(self) -> list[float]:
        """Round numbers between the ends, a handful."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.floor(math.log10(self.high) + 1e-9) + 1)
            parts = (1,) if self.high >= 10**_DECADES * self.low else (1, 2, 5)
            found = [part * 10.0**power for power in powers for part in parts]
            return [value for value in found if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)]
        step = 10 ** math.floor(math.log10((self.high - self.low) / 4))
        step = next(step * by for by in (1, 2, 5, 10) if (self.high - self.low) / (step * by) <= 6)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [step * at for at in range(first, last + 1)]


def charts(record: Record) -> Iterator[tuple[str, str, str]]:
    """The columns of a result that have two curves or more: title, name of the file, picture."""
    for column in record["columns"]:
        cells = [cell for cell in record["cells"] if cell["column"] == column and cell.get("curve")]
        if len(cells) > 1:
            yield column, f"{record['name']}-{slug(column).lower()}.svg", _drawn(record, column, cells)


def falls(record: Record) -> Iterator[tuple[str, str, str]]:
    """How the errors of experiments/rate.py fall along each axis: title, name of the file, picture."""
    words = {"T": "Rounds T", "K": "Local steps K", "N": "Clients N"}
    base = record["base"]
    for axis, below in words.items():
        others = ", ".join(f"{other} = {base[other]}" for other in "TKN" if other != axis)
        lines = [
            Line(name, *zip(*((float(at), error) for at, error in of[axis].items() if error > 0), strict=True))
            for name, of in record["errors"].items()
        ]
        lines = [*lines, *_stated(axis, lines[1])]
        values = [value for line in lines for value in line.values if value > _RATE_LEAST]
        x = Scale(min(min(line.at) for line in lines), max(max(line.at) for line in lines), LEFT, RIGHT, log=True)
        y = Scale(min(values), max(values), BOTTOM, TOP, log=True)
        title = f"Error of FedAvg with the best step; {others}"
        yield title, f"rate-{axis.lower()}.svg", _picture(title, below, lines, x, y)


def systems(name: str, record: Record) -> Iterator[tuple[str, str, str]]:
    """How far methods are from the optimum against the simulated time: title, name of the file, picture."""
    for panel, found in record["panels"].items():
        parts = {
            line: [(at, value) for at, value in zip(one["at"], one["values"], strict=True) if at > 0 < value]
            for line, one in found.items()
        }
        lines = [Line(line, *map(list, zip(*points, strict=True))) for line, points in parts.items() if len(points) > 1]
        values, ends = [v for line in lines for v in line.values], [at for line in lines for at in line.at]
        if not lines:
            continue
        x = Scale(min(ends), max(ends), LEFT, RIGHT, log=True)
        y = Scale(max(min(values), record["level"] / 10), min(max(values), 1.0), BOTTOM, TOP, log=True)
        title = f"{panel}: duality gap as a share of the objective"
        yield title, f"{name}-{slug(panel).lower()}.svg", _picture(title, "Simulated time (operations)", lines, x, y)


def _stated(axis: str, line: Line) -> Iterator[Line]:
    """What the two terms of O(HN/T + σ/√(TKN)) say, from where a line of the worst curvature begins."""
    for term, power in (("σ/√(TKN)", -0.5), ("HN/T", {"T": -1.0, "K": 0.0, "N": 1.0}[axis])):
        values = [line.values[0] * (at / line.at[0]) ** power for at in line.at]
        yield Line(f"stated, {term}", line.at, values, stated=True)


def _drawn(record: Record, column: str, cells: Sequence[Record]) -> str:
    timed = all("seconds" in cell["curve"] for cell in cells)
    clock, size, below = ("seconds", 60.0, "Simulated minutes") if timed else ("rounds", 1.0, "Rounds")
    lines = [
        Line(cell["row"], [at / size for at in cell["curve"][clock]], cell["curve"]["values"])
        for cell in sorted(cells, key=lambda cell: record["rows"].index(cell["row"]))
    ]
    measure = cells[0]["measure"]
    x = Scale(0.0, max(line.at[-1] for line in lines), LEFT, RIGHT)
    y = _upright(lines, measure["better"] == "down")
    unit = "" if measure["scale"] == "plain" else f" in {measure['scale']}"
    what = f"{name_text(measure['metric'].rpartition('/')[2])}{unit}"
    what += ", on the task that is being learnt" * ("task" in record["settings"]["run"])
    return _picture(f"{column}: {what[0].lower()}{what[1:]}", below, lines, x, y)


def _picture(title: str, below: str, lines: Sequence[Line], x: Scale, y: Scale) -> str:
    width = round(NAMES + LETTER * max(len(line.name) for line in lines) + 8)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" role="img">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style>",
            f'<rect width="{width}" height="{HEIGHT}" rx="6" fill="#fff"/>',
            f'<clipPath id="field"><rect x="{LEFT}" y="{TOP - 2}" width="{RIGHT - LEFT}" height="{BOTTOM - TOP + 4}"/>'
            "</clipPath>",
            _text(LEFT - 40, 20, title),
            _text((LEFT + RIGHT) / 2, HEIGHT - 12, below, "small", "middle"),
            *_grid(x, y),
            *_lines(lines, x, y),
            "</svg>\n",
        ]
    )


def _upright(lines: Sequence[Line], falls: bool) -> Scale:
    """The upward axis. Where less is better, starts and leaps upwards are cut off: they would press the rest flat."""
    values = [value for line in lines for value in line.values]
    low, high = min(values), max(values)
    if falls:
        start = max(line.values[0] for line in lines)
        if low > 0 and start > 10**_DECADES * low:
            return Scale(low, min(high, start), BOTTOM, TOP, log=True)
        high = min(high, max(line.values[1] for line in lines))
    room = 0.03 * (high - low) or 1.0
    return Scale(low - room, high + room, BOTTOM, TOP)


def _grid(x: Scale, y: Scale) -> Iterator[str]:
    for value in y.ticks():
        yield f'<path class="grid" d="M{LEFT} {y(value):.1f}H{RIGHT}"/>'
        yield _text(LEFT - 8, y(value) + 4, f"{value:.4g}", "small", "end")
    for value in x.ticks():
        yield f'<path class="grid" d="M{x(value):.1f} {BOTTOM}v4"/>'
        yield _text(x(value), BOTTOM + 18, f"{value:,.4g}", "small", "middle")


def _lines(lines: Sequence[Line], x: Scale, y: Scale) -> Iterator[str]:
    """The lines, and to the right of them their names, near where they end and in that order."""
    ends = [min(max(y(line.values[-1]), TOP), BOTTOM) for line in lines]
    places = _apart(ends)
    for at, line in enumerate(lines):
        colour, dashes = LIGHT[at % len(LIGHT)], _DASHES[at // len(LIGHT) % len(_DASHES)]
        if line.stated:
            colour, dashes = _STATED
        look = f'stroke="{colour}"' + (f' stroke-dasharray="{dashes}"' if dashes else "")
        points = " ".join(f"{x(a):.1f},{y(v):.1f}" for a, v in zip(line.at, line.values, strict=True))
        yield f'<polyline class="line" clip-path="url(#field)" {look} points="{points}"/>'
        lead = f"M{x(line.at[-1]) + 3:.1f} {ends[at]:.1f}L{RIGHT + 22} {places[at]:.1f}h16"
        yield f'<path class="lead" {look} d="{lead}"/>'
        yield _text(NAMES, places[at] + 4, line.name)


def _apart(ends: Sequence[float]) -> list[float]:
    """Places that keep their order and a distance, as near to where they should be as the field allows."""
    order = sorted(range(len(ends)), key=lambda at: ends[at])
    places = list(ends)
    floor = TOP - LINE / 2
    for at in order:
        places[at] = floor = max(places[at], floor + LINE)
    ceiling = max(BOTTOM + LINE, TOP + LINE * len(ends))
    for at in reversed(order):
        places[at] = ceiling = min(places[at], ceiling - LINE)
    return places


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "") -> str:
    more = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(words)}</text>'
