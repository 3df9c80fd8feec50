"""The page of a table of experiments: ours beside the published values, and the curves of each column."""

from __future__ import annotations

import shlex
from html import escape
from pathlib import Path

from fedloom.report.page import Chart, compose, learning, write_page
from fedloom.reproduce.curve import repeats
from fedloom.reproduce.plan import Plan
from fedloom.reproduce.tables import Record, grids, html_grid, notes, progress


def write(plan: Plan, record: Record, folder: Path) -> Path:
    """Write report.html into the folder of a reproduction."""
    charts: dict[str, Chart] = {}
    parts = [("results", "Results", _results(record)), *_curves(plan, folder, charts), ("again", "Again", _again(plan))]
    file = folder / "report.html"
    write_page(file, compose(plan.head.title, _lead(plan, record), parts, charts))
    return file


def _lead(plan: Plan, record: Record) -> str:
    facts = [f"{len(record['rows'])} rows", f"{len(record['columns'])} columns", progress(record)]
    facts += ["a quick version, not the experiment"] * plan.quick
    chips = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    said = [part for text in (plan.head.about, plan.head.paper) for part in text.strip().split("\n\n") if part]
    return f'<ul class="chips">{chips}</ul>' + "".join(f"<p>{escape(part)}</p>" for part in said)


def _results(record: Record) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes(record))
    return "".join(map(html_grid, grids(record))) + (f'<ul class="plain">{items}</ul>' if items else "")


def _curves(plan: Plan, folder: Path, charts: dict[str, Chart]) -> list[tuple[str, str, str]]:
    """A chart for each column that has runs of its own."""
    found = []
    for number, column in enumerate(plan.columns, 1):
        cells = [cell for cell in plan.cells if column == cell.column == cell.home[1]]
        groups = [group for cell in cells if (group := repeats(cell, folder)) is not None]
        if groups:
            content = learning(groups, charts, f"learning-{number}")
            found.append((f"curves-{number}", f"Learning curves: {escape(column)}", content))
    return found


def _again(plan: Plan) -> str:
    command = f"fedloom reproduce {shlex.quote(plan.name)}{' --quick' * plan.quick}"
    return (
        "<p>Runs that are done are not done again; the same settings and seeds give the same bits.</p>"
        f"<pre><code>{escape(command)}</code></pre>"
    )
