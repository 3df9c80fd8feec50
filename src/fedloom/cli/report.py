"""``fedloom report``: the page and the table of runs that are there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedloom.cli.display import make_console, say
from fedloom.errors import ConfigError


def report(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="Folders of runs, or folders that hold some.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The page; else PATH/report.html.")] = None,
    title: Annotated[str | None, typer.Option(help="The page's title.")] = None,
    target: Annotated[float | None, typer.Option(help="A value to be reached: adds when it was.")] = None,
    metric: Annotated[str | None, typer.Option(help="The metric of the target; the primary one unless given.")] = None,
    table: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Also the table: .tex, .csv or .md; may be given again.")
    ] = None,
) -> None:
    """Make one self-contained HTML page out of one run or several, and print their table."""
    from fedloom.report import find_runs, group_runs, make_target, rich_table, verdict, write_report, write_table
    from fedloom.report.export import KINDS, check_kind

    if out is not None and out.suffix in KINDS:
        raise ConfigError(f"--out {out} is the HTML page; a table as {out.suffix} is written by --table {out}")
    for path in table or []:
        check_kind(path)
    file = out or (paths[0] / "report.html" if len(paths) == 1 else Path("report.html"))
    written = write_report(paths, file, title, target=target, metric=metric)
    runs = find_runs(paths)
    groups, console = group_runs(runs), make_console()
    for run in runs:
        for line in run.misfits:
            say(console, f"note: {run.folder}: {line}", "yellow")
    goal = make_target(groups, target, metric)
    console.print(rich_table(groups, goal, console.width))
    for line in verdict(groups):
        say(console, line)
    for path in table or []:
        say(console, f"table: {write_table(groups, path, goal)}")
    say(console, f"report: {written}")
