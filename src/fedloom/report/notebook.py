"""How runs show themselves in Python: a line, a small table for a notebook, a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.errors import ConfigError
from fedloom.report import gain
from fedloom.report.continual import task_picture
from fedloom.report.fleet import fleet_picture
from fedloom.report.groups import Group, Target, metric_names
from fedloom.report.html import render
from fedloom.report.plots import client_spread, learning_curves, participation_chart
from fedloom.report.progress import headline
from fedloom.report.relations import relation_picture
from fedloom.report.runs import RunRecord, pick, primary_first
from fedloom.report.table import Results
from fedloom.report.words import name_text, plain, plural, text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

KINDS = ("curves", "clients", "gain", "participation", "fleet", "tasks", "relations")
"""What ``plot`` can draw."""
_STATISTICS = {"weighted": "Mean over rows", "mean": "Mean over clients", "std": "Spread", "worst_tenth": "Worst tenth"}
_CHOICES: dict[str, dict[str, tuple[str, ...]]] = {
    "curves": {
        "x": ("round", "simulated_seconds", "bytes", "gradient_evaluations", "wall_seconds"),
        "statistic": ("weighted", "mean", "worst_tenth", "std", "min", "max", "pooled"),
    },
    "clients": {"view": ("box", "cumulative", "size")},
    "gain": {"beside": tuple(gain.BESIDE)},
    "participation": {},
    "fleet": {"view": ("start", "end", "share")},
    "tasks": {"view": ("matrix", "lines")},
    "relations": {"view": ("matrix", "graph")},
}
"""The further arguments of each kind, and their values."""
_NOTHING = {
    "curves": "no round was evaluated",
    "clients": "the summary has no values of single clients",
    "gain": "there are no models of clients' own, or nothing to set them beside",
    "participation": "all replies were accepted all the time",
    "fleet": "no time passed on the fleet",
    "tasks": "it is no sequence of tasks",
    "relations": "its method says nothing of how clients are related",
}
_OF_ONE: dict[str, Callable[..., Figure | None]] = {
    "participation": participation_chart,
    "fleet": fleet_picture,
    "tasks": task_picture,
    "relations": relation_picture,
}


def run_text(summary: Mapping[str, Any], folder: Path | None) -> str:
    """A run in a line: "fedavg on digits: accuracy 0.934 after 30 rounds"."""
    said = headline(dict(summary.get("spread") or {}), summary.get("statistics"))
    kept = f", in {folder}" if folder is not None else ""
    name, data = summary.get("label", "run"), summary.get("data")
    where = f"{name} on {data}" if data else str(name)
    return f"{where}: {said or 'not evaluated'} after {plural(int(summary.get('rounds', 0)), 'round')}{kept}"


def run_html(summary: Mapping[str, Any], folder: Path | None) -> str:
    """A run as a small table: a row for each metric, and how clients differ in it."""
    spread = dict(summary.get("spread") or {})
    pooled = "pooled" in (summary.get("statistics") or {}).values()
    titles = ({"pooled": "Pooled"} if pooled else {}) | _STATISTICS
    lines = [
        (name_text(name), [(text(plain, pick(spread[name], statistic)), False) for statistic in titles])
        for name in primary_first(spread)
    ]
    return render("notebook.html", caption=run_text(summary, folder), titles=["", *titles.values()], lines=lines)


def table_html(groups: Sequence[Group], target: Target | None, caption: str) -> str:
    """A comparison as a small table: a row for each method, the best values in bold."""
    shown = Results.of(groups, target, gains=True)
    kept = [at for at, column in enumerate(shown.columns) if column.heading != "cost"]
    titles = ["Method", "Runs", *(shown.columns[at].full_title for at in kept)]
    lines = [
        (group.label, [(group.count, False), *((cells[at].text, cells[at].best) for at in kept)])
        for group, cells in shown.lines
    ]
    return render("notebook.html", caption=caption, titles=titles, lines=lines)


def grouped(runs: Mapping[str, Sequence[Any]]) -> list[Group]:
    """Runs of Python's as the report has them: for each label its repeats."""
    return [Group(label, tuple(_record(label, run) for run in some)) for label, some in runs.items()]


def draw(groups: Sequence[Group], kind: str, metric: str | None, **how: Any) -> Figure:
    """A figure of these runs; a ConfigError that says what there is to draw, or why there is nothing."""
    if kind not in KINDS:
        raise ConfigError(f"there is no plot {kind!r}; choose one of {', '.join(KINDS)}")
    known = metric_names(groups)
    if metric is not None and metric not in known:
        raise ConfigError(f"these runs have no metric {metric!r}; they have {', '.join(known) or 'none'}")
    if kind in ("participation", "fleet", "tasks", "relations") and len(groups) > 1:
        raise ConfigError(f"the plot {kind!r} is of one run: take one, as compared.runs[LABEL, SEED].plot({kind!r})")
    for name, value in how.items():
        choices = _CHOICES[kind].get(name)
        if choices is None:
            raise ConfigError(
                f"the plot {kind!r} has no argument {name!r}; it has {', '.join(_CHOICES[kind]) or 'none'}"
            )
        if value not in choices:
            raise ConfigError(f"the plot {kind!r} has no {name} = {value!r}; choose one of {', '.join(choices)}")
    figure: Figure | None = None
    if kind == "curves":
        figure = learning_curves(groups, metric=metric, **how) if known else None
    elif kind == "clients":
        figure = client_spread(groups, metric, **how) if known else None
    elif kind == "gain":
        figure = _gain(groups, metric, **how)
    else:
        figure = _OF_ONE[kind](groups[0], **how)
    if figure is None:
        raise ConfigError(f"there is nothing to draw as {kind!r}: {_NOTHING[kind]}")
    return figure


def _gain(groups: Sequence[Group], metric: str | None, beside: str | None = None) -> Figure | None:
    """What clients gain beside one of the models, by default the first that there is."""
    found = gain.gains(groups, metric)
    key = beside or next((key for key in gain.BESIDE if any(one.key == key for one in found)), "")
    return gain.gain_picture([one for one in found if one.key == key])


def _record(label: str, run: Any) -> RunRecord:
    """A run that may never have been in a folder."""
    told = run.matrix
    matrix = (
        {} if told is None else {"tasks": told.tasks, "matrix": told.rows, "fresh": told.fresh, "metric": told.metric}
    )
    return RunRecord(run.folder or Path(label), {}, "", {}, run.history, run.summary, matrix)
