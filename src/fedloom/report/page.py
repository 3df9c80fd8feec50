"""The report's page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedloom.errors import RunError
from fedloom.report import lead
from fedloom.report.again import Again
from fedloom.report.data import data_of
from fedloom.report.groups import Group, Target, every_run, group_runs, headline, metric_names
from fedloom.report.html import render, render_page, write_page
from fedloom.report.runs import find_runs
from fedloom.report.sections import chart_sections
from fedloom.report.story import story
from fedloom.report.table import Results


def write_report(
    paths: str | Path | Iterable[str | Path],
    out: str | Path,
    title: str | None = None,
    *,
    target: float | None = None,
    metric: str | None = None,
) -> Path:
    """Write the report of runs as one HTML file that needs no network.

    * ``paths``: folders of runs, or folders with such folders in them.
    * ``out``: the file, or a folder that is to hold ``report.html``.
    * ``title``: the heading of the page; none: one is made of the runs.
    * ``target``: a value; the table then says when each run reached it. None: that at which the runs were to end.
    * ``metric``: whose value that is; none: the primary one.

    The result is the path of the file.

        data = fedloom.federate("digits", clients=5)
        problem = fedloom.Problem(data, fedloom.build_model("linear", data))
        fedloom.train(problem, fedloom.FedAvg(), rounds=2, out="first")
        page = fedloom.write_report("first", "report.html", target=0.5)
    """
    given = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    groups = group_runs(find_runs(given))
    if not any(run.history for run in every_run(groups)):
        raise RunError(
            f"{given[0]}: no round has been recorded yet, so there is nothing to report. Wait for the first one"
        )
    file = Path(out) / "report.html" if Path(out).is_dir() else Path(out)
    chosen = make_target(groups, target, metric)
    asked = {"title": title, "target": target, "metric": metric}
    write_page(file, _render(groups, chosen, title, Again.of(groups, given, file, asked)))
    return file


def make_target(groups: Sequence[Group], value: float | None, metric: str | None = None) -> Target | None:
    """A target on a metric that the runs have, the primary one unless another is named; by default the runs' own goal,
    where they have one in common.
    """
    if value is None:
        if metric is not None:
            raise RunError(f"the metric {metric!r} has no value to be reached: give a target as well")
        goals = {run.goal for run in every_run(groups)}
        own = goals.pop() if len(goals) == 1 else None
        return None if own is None else Target(*own, statistic=headline(groups, own[0]))
    names = metric_names(groups)
    chosen = metric or (names[0] if names else "")
    if chosen not in names:
        raise RunError(f"no metric {chosen!r} in these runs; they have: {', '.join(names) or 'none'}")
    return Target(chosen, value, headline(groups, chosen))


def html_table(groups: Sequence[Group], target: Target | None = None) -> str:
    """The page's table alone, for a notebook."""
    return render("results.html", table=Results.of(groups, target))


def _render(groups: Sequence[Group], target: Target | None, title: str | None, again: Again) -> str:
    sections, data = chart_sections(groups), data_of(groups)
    charts = [chart for section in sections for chart in section.charts]
    return render_page(
        "report.html",
        charts if data is None or data.chart is None else [*charts, data.chart],
        title=title or lead.default_title(groups),
        facts=lead.facts(groups),
        evaluated=lead.evaluated(groups),
        notices=lead.notices(groups),
        verdict=story(groups),
        cards=lead.cards(groups),
        table=Results.of(groups, target),
        sections=sections,
        data=data,
        again=again,
    )
