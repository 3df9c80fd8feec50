"""The page: one HTML file that holds everything it needs, plotly included, and asks the network for nothing.

A content security policy in the page itself forbids every request and every script but the two that are written here
(by their hashes), so that neither a library nor a run's name can do otherwise.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from fedloom.errors import RunError
from fedloom.report import continual, features, fleet, plots, sections
from fedloom.report.curves import Curves, describe, measure_curves, metric_curves
from fedloom.report.groups import Group, Target, group_runs, metric_names
from fedloom.report.runs import find_runs
from fedloom.report.words import name_text

Chart = dict[str, Any]

_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; "
    "form-action 'none'; base-uri 'none'"
)


def write_report(
    paths: str | Path | Iterable[str | Path],
    out: str | Path,
    title: str | None = None,
    *,
    target: float | None = None,
    metric: str | None = None,
) -> Path:
    """Write the report of the runs in ``paths`` as one self-contained HTML file and return its path.

    ``out`` is the file, or a folder that is to hold ``report.html``. With a ``target`` the table says when the
    ``metric`` (by default the primary one) reached it; without one, it does so for the target at which the runs were to
    end.
    """
    given = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    groups = group_runs(find_runs(given))
    if not any(run.history for group in groups for run in group.runs):
        raise RunError(
            f"{given[0]}: no round has been recorded yet, so there is nothing to report. Wait for the first one"
        )
    file = Path(out) / "report.html" if Path(out).is_dir() else Path(out)
    write_page(file, render(groups, given, file, title, make_target(groups, target, metric)))
    return file


def make_target(groups: Sequence[Group], value: float | None, metric: str | None = None) -> Target | None:
    """A target on a metric that the runs have, the primary one unless another is named; by default the runs' own goal,
    where they have one in common.
    """
    if value is None:
        goals = {run.goal for group in groups for run in group.runs}
        own = goals.pop() if len(goals) == 1 else None
        return None if own is None else Target(*own)
    names = metric_names(groups)
    chosen = metric or (names[0] if names else "")
    if chosen not in names:
        raise RunError(f"no metric {chosen!r} in these runs; they have: {', '.join(names) or 'none'}")
    return Target(chosen, value)


def render(groups: Sequence[Group], paths: Sequence[Path], out: Path, title: str | None, target: Target | None) -> str:
    """The whole page as text."""
    charts: dict[str, Chart] = {}
    lead = sections.lead(groups) + sections.notices(groups) + sections.cards(groups)
    parts = _sections(groups, paths, out, target, charts)
    return compose(title or sections.default_title(groups), lead, parts, charts)


def compose(title: str, lead: str, parts: Iterable[tuple[str, str, str]], charts: dict[str, Chart]) -> str:
    """A page of parts (key, heading, content as HTML; one without content is left out) and the charts in them."""
    from plotly.offline import get_plotlyjs

    body = "".join(
        f'<section aria-labelledby="{key}"><h2 id="{key}">{heading}</h2>{content}</section>'
        for key, heading, content in parts
        if content
    )
    payload = {
        "charts": charts,
        "palettes": {"light": plots.LIGHT, "dark": plots.DARK},
        "sequences": plots.SEQUENCES,
    }
    library, script = _one_kind_of_newline(get_plotlyjs()), _asset("page.js")
    return Template(_asset("page.html")).substitute(
        title=escape(title),
        policy=_POLICY.format(scripts=f"{_hash(library)} {_hash(script)}"),
        style=_asset("page.css"),
        lead=lead,
        body=body,
        payload=_json(payload),
        library=library,
        script=script,
    )


def _sections(
    groups: Sequence[Group], paths: Sequence[Path], out: Path, target: Target | None, charts: dict[str, Chart]
) -> list[tuple[str, str, str]]:
    return [
        ("results", "Results", sections.results(groups, target)),
        ("tasks", "Tasks in sequence", _tasks(groups, charts)),
        ("curves", "Learning curves", learning(groups, charts)),
        ("clients", "Spread over clients", _clients(groups, charts) + _spread_along(groups, charts)),
        ("participation", "Participation", _participation(groups, charts)),
        ("fleet", "The fleet in time", _fleet(groups, charts)),
        ("measures", "Measures of the method", _measures(groups, charts)),
        ("features", "Input columns", _features(groups, charts)),
        ("data", "Data", _data(groups, charts)),
        ("again", "How to get this again", sections.again(groups, paths, out)),
    ]


def _tasks(groups: Sequence[Group], charts: dict[str, Chart]) -> str:
    figures = {}
    labels, views = {}, {}
    for group in groups:
        for view, title in continual.VIEWS.items():
            drawn = continual.task_picture(group, view)
            if drawn is not None:
                figures[f"{group.label} {view}"] = _plain(drawn)
                labels[group.label], views[view] = group.label, title.capitalize()
    if not figures:
        return ""
    charts["tasks"] = {"keys": ["group", "view"], "figures": figures}
    averages = sections.finals_text(groups, next(name for name in metric_names(groups) if name.startswith("average")))
    controls = sections.select("tasks", "group", "Experiment", labels) + sections.select(
        "tasks", "view", "Shown as", views
    )
    return sections.figure(
        "tasks",
        f"How good the model was on each task after each. Average at the end: {averages}",
        controls,
        "A row is what the model was after learning a task, a column the task that it was judged on; the first row is "
        "a model that has learnt nothing. Below the diagonal is what was forgotten, above it what was of use before it "
        "was learnt. Means over repeats.",
    )


def learning(groups: Sequence[Group], charts: dict[str, Chart], key: str = "learning") -> str:
    """The chart of the learning curves, under a key that no other chart of the page has."""
    curves = metric_curves(groups, ("weighted", "mean"))
    if not curves.lines:
        return "<p>No round has been evaluated yet.</p>"
    charts[key] = _curve_chart(curves)
    first = next(iter(curves.lines))
    return sections.figure(
        key,
        f"Learning curves. {sections.finals_text(groups, first)}",
        sections.curve_controls(key, curves, "Metric"),
        _curve_caption(
            groups, curves, "Choose the clock that counts for you: rounds, time, bytes or gradient evaluations."
        ),
    )


def _clients(groups: Sequence[Group], charts: dict[str, Chart]) -> str:
    figures = {}
    metrics, views = {}, {}
    for metric in metric_names(groups):
        for view, title in plots.VIEWS.items():
            figure = plots.client_spread(groups, metric, view)
            if figure is not None:
                figures[f"{metric} {view}"] = _plain(figure)
                metrics[metric], views[view] = name_text(metric), title.capitalize()
    if not figures:
        return ""
    charts["clients"] = {"keys": ["metric", "view"], "figures": figures}
    controls = sections.select("clients", "metric", "Metric", metrics) + sections.select(
        "clients", "view", "Shown as", views
    )
    return "<h3>At the end</h3>" + sections.figure(
        "clients",
        f"Final metric of each client. Worst tenth: {sections.finals_text(groups, next(iter(metrics)), 'worst_tenth')}",
        controls,
        "All clients of all repeats; a dot is a client, a box holds the middle half of them, its line is the median. "
        "A good mean with a long tail serves some clients badly.",
    )


def _spread_along(groups: Sequence[Group], charts: dict[str, Chart]) -> str:
    curves = metric_curves(groups, ("worst_tenth", "std", "min", "max"))
    if not curves.lines:
        return ""
    charts["spread"] = _curve_chart(curves)
    first = next(iter(curves.lines))
    return "<h3>Along the run</h3>" + sections.figure(
        "spread",
        f"Worst tenth of the clients along the run. {sections.finals_text(groups, first, 'worst_tenth')}",
        sections.curve_controls("spread", curves, "Metric"),
        _curve_caption(groups, curves, "The worst tenth is the mean over the tenth of the clients that fare worst."),
    )


def _participation(groups: Sequence[Group], charts: dict[str, Chart]) -> str:
    drawn = {group.label: figure for group in groups if (figure := plots.participation_chart(group)) is not None}
    if not drawn:
        return ""
    charts["fates"] = {"keys": ["group"], "figures": {label: _plain(figure) for label, figure in drawn.items()}}
    return sections.figure(
        "fates",
        "Clients in each round by what became of their replies: accepted, late, lost, dropped or failed.",
        sections.select("fates", "group", "Experiment", {label: label for label in drawn}),
        "Clients selected in each round and what became of them. Only accepted replies move the model.",
    )


def _fleet(groups: Sequence[Group], charts: dict[str, Chart]) -> str:
    times = fleet.fleet_times(groups)
    if not times:
        return ""
    views = fleet.VIEWS if any(time.long for time in times.values()) else {"start": "all jobs"}
    figures = {
        f"{group.label} {view}": _plain(fleet.fleet_picture(group, view))
        for group in groups
        for view in views
        if group.label in times
    }
    charts["fleet"] = {"keys": ["group", "view"], "figures": figures}
    controls = sections.select("fleet", "group", "Experiment", {label: label for label in times}) + sections.select(
        "fleet", "view", "Shown", {view: title.capitalize() for view, title in views.items()}
    )
    words = fleet.summary(times)
    repeated = " Of repeats, the first." * any(len(group.runs) > 1 for group in groups)
    return sections.figure("fleet", words, controls, f"{escape(words)} {fleet.LEGEND}{repeated}")


def _features(groups: Sequence[Group], charts: dict[str, Chart]) -> str:
    drawn = {group.label: figure for group in groups if (figure := features.feature_picture(group)) is not None}
    if not drawn:
        return ""
    charts["features"] = {"keys": ["group"], "figures": {label: _plain(figure) for label, figure in drawn.items()}}
    return sections.figure(
        "features",
        "What the method measured of each input column along the run, as a heat map.",
        sections.select("features", "group", "Experiment", {label: label for label in drawn}),
        f"A row is a column of the input, as the first layer of the model weighs it; a column is a round, up to "
        f"{features.STEPS} of them, evenly spread." + " Of repeats, the first." * any(len(g.runs) > 1 for g in groups),
    )


def _measures(groups: Sequence[Group], charts: dict[str, Chart]) -> str:
    curves = measure_curves(groups)
    if not curves.lines:
        return ""
    charts["measures"] = _curve_chart(curves)
    return sections.figure(
        "measures",
        f"What methods measured about themselves along the run: {', '.join(map(name_text, curves.lines))}.",
        sections.curve_controls("measures", curves, "Measure"),
        _curve_caption(groups, curves, _measures_words(curves)),
    )


def _measures_words(curves: Curves) -> str:
    words = "What the methods measured about themselves. Methods without this measure have no line."
    if "mean_staleness" in curves.lines:
        words += " Staleness is the age of a reply: steps that the server took since the client fetched its model."
    return words


def _data(groups: Sequence[Group], charts: dict[str, Chart]) -> str:
    data = sections.distinct_data(groups)
    if not data:
        return ""
    drawn = [(name, plots.label_picture(one)) for name, one in list(data.items())[: sections.MOST_PICTURES]]
    figures = {name: _plain(figure) for name, figure in drawn if figure is not None}
    facts = sections.data_facts(data)
    if not figures:
        return facts
    charts["labels"] = {"keys": ["data"], "figures": figures}
    first = data[next(iter(figures))]
    return facts + "<h3>Who has what</h3>" + sections.figure(
        "labels",
        f"Rows of each client and of each label at each client, {first.get('clients', 'all')} clients.",
        sections.select("labels", "data", "Data", {name: name for name in figures}),
        _data_caption(data, first),
    )  # fmt: skip


def _data_caption(data: dict[str, dict[str, Any]], first: dict[str, Any]) -> str:
    words = ["Above: rows of each client."]
    if first.get("classes"):
        words.append(
            "Below: rows of each label at each client; an empty field is a label that the client does not have."
        )
    listed, clients = len(first.get("labels") or []), first.get("clients")
    if isinstance(clients, int) and 0 < listed < clients:
        words.append(f"The first {listed} of {clients:,} clients.")
    if len(data) > sections.MOST_PICTURES:
        words.append(f"The first {sections.MOST_PICTURES} of {len(data)} partitions.")
    return " ".join(words)


def _curve_caption(groups: Sequence[Group], curves: Curves, words: str) -> str:
    most = max(len(group.runs) for group in groups)
    parts = []
    if most > 1:
        parts.append("Lines are means over repeats, bands ± one standard deviation.")
    if any(len({run.rounds for run in group.runs}) > 1 for group in groups):
        parts.append("Where fewer repeats reached a round, the mean is over those that did.")
    if any(not any(group.clocks("bytes_up")) for group in groups) and "bytes" in curves.axes:
        parts.append("What sends nothing stands at 0 bytes.")
    if curves.thinned:
        parts.append("Long histories are thinned evenly.")
    return " ".join([words, *parts])


def _curve_chart(curves: Curves) -> Chart:
    """One figure, and all the numbers that the page's script may put into it."""
    name = next(iter(curves.lines))
    statistic = next(iter(curves.lines[name]))
    figure = _plain(plots.curve_figure(curves, x=curves.usual, name=name, statistic=statistic))
    for trace in figure["data"]:
        for key in ("x", "y", "customdata"):
            trace.pop(key, None)
    return {
        "keys": ["name", "statistic", "x"],
        "figure": figure,
        "axes": {
            key: {"title": axis.title, "values": [plots.numbers(x) for x in axis.values], **plots.tick_format(key)}
            for key, axis in curves.axes.items()
        },
        "log": {key: curves.log(key) for key in curves.lines},
        "lines": {
            key: {
                each: {"title": describe(key, each), "groups": [_line(line) for line in lines]}
                for each, lines in statistics.items()
            }
            for key, statistics in curves.lines.items()
        },
    }


def _line(line: Any) -> dict[str, list[float | None]]:
    parts = {"mean": line.mean, "low": line.low, "high": line.high, "std": line.std}
    return {key: plots.numbers(values) for key, values in parts.items() if values is not None}


def _plain(figure: Any) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(figure.to_json())
    plain["layout"].pop("template", None)
    return plain


def _json(value: object) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _asset(name: str) -> str:
    return _one_kind_of_newline(files("fedloom.report").joinpath("assets", name).read_text(encoding="utf-8"))


def _one_kind_of_newline(text: str) -> str:
    """Browsers hash a script after making its newlines one kind."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def write_page(path: Path, text: str) -> None:
    """All or nothing: a reader sees the old page or the new one, also when the disk is full."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise RunError(
            f"{path}: the report cannot be written: {error.strerror}. Free space or choose another --out"
        ) from error
