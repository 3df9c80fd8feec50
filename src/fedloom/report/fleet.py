"""The fleet in time, drawn: who computed, who waited, who was away, on the simulated clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedloom.report.groups import Group
from fedloom.report.look import FATES, bar_style, canvas, heat_map, numbers, plain_text
from fedloom.report.runs import RunRecord, client_name, number
from fedloom.report.words import time_unit

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MOST_CLIENTS = 24
MOST_JOBS = 16 * MOST_CLIENTS
"""So many jobs can be told apart in a picture; of a longer run its start, its end and a summary are drawn."""
VIEWS = {"start": "the start", "end": "the end", "share": "share of the time at work, whole run"}
LEGEND = (
    "A bar is a job, from the fetch of the model until the reply was there or nobody waited for it any longer, by what "
    "became of the reply. A thin line is waiting: for the slower ones of a round, or to be asked again."
)
WAITED, AWAY = "waited", "away"
_LOOKS = {
    **{fate: (*look, 0.72) for fate, look in FATES.items()},
    WAITED: (6, "", 0.08),
    AWAY: (2, "\\", 0.3),
}
"""Colour, pattern and thickness."""
_BINS = 60
_AS_THEY_ARE = 4 * MOST_JOBS
"""So many jobs at either end of a run are known one by one."""


@dataclass(frozen=True)
class Span:
    """What a client did for some time: a job with this fate, or else it waited or was away."""

    client: int
    start: float
    end: float
    kind: str


@dataclass(frozen=True)
class FleetTime:
    """What the first clients of a run did from its start until its end, in simulated seconds."""

    names: dict[int, str]
    """The clients by id, in order."""
    until: float
    spans: tuple[Span, ...]

    @staticmethod
    def of(run: RunRecord) -> FleetTime | None:
        """As the history tells; None where no time passed or no job is known."""
        until = run.clock("simulated_seconds") or 0.0
        told = [*_few(_jobs(run), until), *_few(_absences(run, until), until)]
        clients = sorted({span.client for span in told})[:MOST_CLIENTS]
        if not any(span.kind != AWAY for span in told):
            return None
        spans: list[Span] = []
        for client in clients:
            own = sorted((span for span in told if span.client == client), key=lambda span: span.start)
            # Whoever works when an asynchronous run ends has a job that the history does not know.
            known = max(span.end for span in own) if run.asynchronous else until
            spans += [*own, *_gaps(own, known)]
        return FleetTime(_names(run, clients), until, tuple(spans))

    @property
    def jobs(self) -> list[Span]:
        """The work alone."""
        return [span for span in self.spans if span.kind not in (WAITED, AWAY)]

    @property
    def long(self) -> bool:
        """Whether there are more jobs than one picture can show."""
        return len(self.jobs) > MOST_JOBS

    def part(self, view: str) -> tuple[float, float]:
        """From when until when the view "start" or "end" goes: about as many jobs as a picture can show."""
        starts = sorted(job.start for job in self.jobs)
        if not self.long:
            return 0.0, self.until
        return (0.0, starts[MOST_JOBS]) if view == "start" else (starts[-MOST_JOBS], self.until)

    def busy(self) -> float:
        """The share of their time for which the clients were at work."""
        ends = {span.client: span.end for span in sorted(self.spans, key=lambda span: span.end)}
        return sum(job.end - job.start for job in self.jobs) / sum(ends.values())

    def shares(self) -> np.ndarray[Any, Any]:
        """Shape (clients, bins): the share of each part of the run at work; NaN where away throughout, or not known."""
        edges = np.linspace(0.0, self.until, _BINS + 1)
        found = np.full((len(self.names), _BINS), np.nan)
        for at, client in enumerate(self.names):
            own = [span for span in self.spans if span.client == client]
            work = _overlap((span for span in own if span.kind not in (WAITED, AWAY)), edges)
            here = _overlap((span for span in own if span.kind != AWAY), edges)
            np.divide(work, here, out=found[at], where=here > 1e-9 * self.until)
        return found


def fleet_picture(group: Group, view: str = "start") -> Figure | None:
    """What the clients of a group's first run did in simulated time; None where no time passed.

    ``view`` is "start" or "end", bars for a part of the run that is short enough to be read (all of it where it can
    be), or "share", a heat map of the whole run.
    """
    time = FleetTime.of(group.runs[0])
    if time is None:
        return None
    figure = canvas(height=120 + 20 * len(time.names))
    if view == "share":
        _add_shares(figure, time)
    else:
        _add_bars(figure, time, *time.part(view))
    names = list(time.names.values())
    order = {"type": "category", "categoryorder": "array", "categoryarray": names, "range": [len(names) - 0.5, -0.5]}
    figure.update_yaxes(title_text="Client", showgrid=False, **order)
    return figure


def fleet_times(groups: Sequence[Group]) -> dict[str, FleetTime]:
    """The groups in which time passed, by their labels: the first run of each."""
    found = ((group.label, FleetTime.of(group.runs[0])) for group in groups)
    return {label: time for label, time in found if time is not None}


def summary(times: dict[str, FleetTime]) -> str:
    """The pictures in a sentence."""
    most = max(len(time.names) for time in times.values())
    busy = ", ".join(f"{label} {time.busy():.0%}" for label, time in times.items())
    return f"What the first {most} clients did in simulated time. At work for so much of it: {busy}."


def _add_bars(figure: Figure, time: FleetTime, since: float, until: float) -> None:
    unit, size = time_unit(until - since)
    for kind, (colour, pattern, width) in _LOOKS.items():
        spans = [span for span in time.spans if span.kind == kind and span.start < until and span.end > since]
        if spans:
            figure.add_bar(
                base=numbers(span.start / size for span in spans),
                x=numbers((span.end - span.start) / size for span in spans),
                y=[time.names[span.client] for span in spans],
                width=width,
                orientation="h",
                name=kind,
                **bar_style(colour, pattern),
                hovertemplate=f"client %{{y}}: {kind}, %{{base:.5~g}} to %{{x:.5~g}} {unit}<extra></extra>",
            )
    figure.update_layout(barmode="overlay", hovermode="closest")
    figure.update_xaxes(title_text=f"Simulated time ({unit})", range=numbers((since / size, until / size)))


def _add_shares(figure: Figure, time: FleetTime) -> None:
    unit, size = time_unit(time.until)
    middles = (np.arange(_BINS) + 0.5) * time.until / _BINS / size
    figure.add_trace(
        heat_map(
            np.round(time.shares(), 3),
            {"title": {"text": "at work"}, "tickformat": ".0%"},
            x=numbers(middles),
            y=list(time.names.values()),
            zmin=0,
            zmax=1,
            ygap=2,
            hovertemplate="client %{y} at %{x:.4~g} " + unit + ": at work for %{z:.0%} of the time<extra></extra>",
        )
    )
    figure.update_xaxes(title_text=f"Simulated time ({unit})")


def _jobs(run: RunRecord) -> Iterable[Span]:
    """Every job that ended, as long as anybody waited for it: a round does not wait after its deadline."""
    for row in run.history:
        ended = number(row.get("simulated_seconds"))
        for client, start, end, fate in row.get("jobs") or ():
            if ended is not None and fate in FATES:
                yield Span(client, float(start), min(float(end), ended), fate)


def _absences(run: RunRecord, until: float) -> Iterable[Span]:
    """When clients were away; without an end: for good."""
    for row in run.history:
        for client, start, end in row.get("away") or ():
            yield Span(client, float(start), until if end is None else min(float(end), until), AWAY)


def _few(spans: Iterable[Span], until: float) -> Iterable[Span]:
    """The first and the last of these as they are. Of very many, those between, of which only the share of the time is
    shown, are one for each client and part of the run, which is as long as they are together.
    """
    last: deque[Span] = deque()
    between: dict[tuple[int, int], Span] = {}
    width = until / _BINS
    for count, span in enumerate(span for span in spans if span.end > span.start):
        if count < _AS_THEY_ARE:
            yield span
            continue
        last.append(span)
        if len(last) <= _AS_THEY_ARE:
            continue
        past = last.popleft()
        if past.end - past.start > width:  # there are few of these
            yield past
            continue
        for part, piece in _cut(past, width):
            before = between.get((past.client, part))
            longer = piece if before is None else replace(before, end=before.end + piece.end - piece.start)
            between[past.client, part] = longer
    yield from between.values()
    yield from last


def _cut(span: Span, width: float) -> Iterable[tuple[int, Span]]:
    """A span by the number of the part of the run that it is in; in two where it goes on in the next part."""
    part = int(span.start // width)
    border = (part + 1) * width
    if span.end <= border:
        return [(part, span)]
    return [(part, replace(span, end=border)), (part + 1, replace(span, start=border))]


def _gaps(spans: Sequence[Span], until: float) -> Iterable[Span]:
    """The time between what one client did."""
    now = 0.0
    for span in spans:
        if span.start > now + 1e-9 * until:
            yield Span(span.client, now, span.start, WAITED)
        now = max(now, span.end)
    if until > now * (1 + 1e-9):
        yield Span(spans[0].client, now, until, WAITED)


def _overlap(spans: Iterable[Span], edges: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """How much of each bin these take."""
    times = np.array([(span.start, span.end) for span in spans]).reshape(-1, 2)
    ends = np.minimum(times[:, 1:], edges[1:])
    return np.asarray(np.clip(ends - np.maximum(times[:, :1], edges[:-1]), 0, None).sum(0))


def _names(run: RunRecord, clients: Sequence[int]) -> dict[int, str]:
    """What the clients are called, each by a name of its own."""
    names = {client: client_name(run.data, client) for client in clients}
    known = list(names.values())
    return {
        client: plain_text(name if known.count(name) == 1 else f"{name} ({client})") for client, name in names.items()
    }
