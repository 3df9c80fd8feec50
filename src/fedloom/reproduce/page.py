"""The page of a table of experiments: ours beside the published values, and the curves of each column."""

from __future__ import annotations

from pathlib import Path

from fedloom.report.html import render_page, write_page
from fedloom.report.sections import Section, learning_section
from fedloom.report.words import command, plural
from fedloom.reproduce.curve import repeats
from fedloom.reproduce.plan import Plan
from fedloom.reproduce.shelf import called
from fedloom.reproduce.tables import Record, grids, notes, progress


def write(plan: Plan, record: Record, folder: Path) -> Path:
    """Write report.html into the folder of a reproduction."""
    sections = _curves(plan, folder)
    facts = [plural(len(record["rows"]), "row"), plural(len(record["columns"]), "column"), progress(record)]
    page = render_page(
        "reproduction.html",
        [chart for section in sections for chart in section.charts],
        title=plan.head.title,
        facts=facts + ["a quick version, not the experiment"] * plan.quick,
        about=[part for text in (plan.head.about, plan.head.paper) for part in text.strip().split("\n\n") if part],
        grids=grids(record),
        notes=notes(record),
        sections=sections,
        command=command("reproduce", called(plan.file), *["--quick"] * plan.quick),
    )
    file = folder / "report.html"
    write_page(file, page)
    return file


def _curves(plan: Plan, folder: Path) -> list[Section]:
    """The curves of each column that has runs of its own."""
    found = []
    for number, column in enumerate(plan.columns, 1):
        cells = [cell for cell in plan.cells if column == cell.column == cell.home[1]]
        groups = [group for cell in cells if (group := repeats(cell, folder)) is not None]
        if groups:
            heading = f"Learning curves: {column}"
            found.append(learning_section(groups, f"curves-{number}", heading, f"learning-{number}"))
    return found
