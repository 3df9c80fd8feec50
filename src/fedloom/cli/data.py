"""``fedloom data``: which data sets there are, who would have what, and their files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedloom.cli.display import make_console, make_table, say, say_json
from fedloom.cli.flags import DATA, FLAGS, MODEL, Flags, overrides, with_flags
from fedloom.cli.methods import Json
from fedloom.cli.run import Sets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from fedloom.data.survey import Fate
    from fedloom.experiment import Experiment

app = typer.Typer(no_args_is_help=True, help="The data sets: list them, see who would have what, fetch their files.")


@app.command("list")
def list_sources(as_json: Json = False) -> None:
    """List the data sets that have a name."""
    from fedloom.data import SOURCES

    if as_json:
        keys = ("name", "summary", "task", "rows", "features", "origin", "licence", "natural", "options")
        say_json([{key: getattr(source, key) for key in keys} for source in SOURCES.values()])
        return
    table = make_table("Name", "Task", "Rows", "Features", "What it is", "Own clients")
    for source in SOURCES.values():
        own = "yes" if source.natural else ""
        table.add_row(source.name, source.task, source.rows, source.features, source.summary, own)
    make_console().print(table)


@app.command()
@with_flags((DATA, MODEL), also=("--seed",), without=("--data",))
def describe(
    flags: Flags,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME|FILE…",
            help="A data set, or a .csv, .parquet or .npz file; several, or a folder: a client each.",
        ),
    ],
    sets: Sets = None,
    as_json: Json = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Draw who has what into a page.")] = None,
) -> None:
    """Say who would have what and how much clients differ; with --model, also how much their gradients do."""
    from fedloom.data import describe as described
    from fedloom.experiment import Experiment
    from fedloom.storage.files import guarded

    named = replace(next(flag for flag in FLAGS if flag.option == "--data"), option=" ".join(names))
    experiment = Experiment.load(None, overrides([(named, names), *flags], sets))
    description, fates = described(experiment.data()), experiment.table().fates
    gradients = _gradients(experiment) if experiment.model_plan.name is not None else {}
    if html is not None:
        with guarded(html):
            description.figure().write_html(html, include_plotlyjs=True)
    if as_json:
        record = description.record() | ({"read": [_told(fate) for fate in fates]} if fates else {})
        typer.echo(json.dumps(record | ({"gradients": gradients} if gradients else {}), ensure_ascii=False))
        return
    console = make_console()
    if fates:
        console.print(_columns(fates))
    console.print(description.table())
    if gradients:
        words = ", ".join(f"{key.replace('_', ' ')} {value:.4g}" for key, value in gradients.items())
        say(console, f"gradients of {experiment.model_plan.name} at its first model: {words}")
    if html is not None:
        say(console, f"drawing: {html}")


@app.command()
def fetch(names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Data sets.")]) -> None:
    """Have the files of data sets on this machine, checked by their checksums."""
    from fedloom.data import fetch as fetched

    console = make_console()
    for name in names:
        paths = fetched(name)
        for path in paths:
            say(console, f"{name}: {path}")
        if not paths:
            say(console, f"{name}: nothing to fetch, it is there")


_LISTED, _SHOWN = 60, 4
_KINDS = {"number": "a number", "boolean": "0 or 1", "category": "0 or 1 for each category", "index": "embedded"}


def _columns(fates: Sequence[Fate]) -> Table:
    """What is in the columns of a file, and what becomes of each."""
    from rich.text import Text

    table = make_table("Column", "Holds", "Missing", "Categories", "Becomes")
    for fate in fates[:_LISTED]:
        told = _told(fate)
        shown = [*told["categories"][:_SHOWN], *(["…"] if len(told["categories"]) > _SHOWN else [])]
        counted = f"{len(told['categories']):,}: {', '.join(shown)}" if shown else ""
        missing = f"{told['missing']:,} of {told['rows']:,}" if told["missing"] else ""
        table.add_row(*map(Text, (told["column"], told["holds"], missing, counted, told["becomes"])))
    if len(fates) > _LISTED:
        table.add_row(f"and {len(fates) - _LISTED:,} more", "", "", "", "")
    return table


def _told(fate: Fate) -> dict[str, Any]:
    """One column in words and numbers."""
    column, found = fate.column, fate.found
    if column is None:
        becomes = "left out" + (f": {fate.detail}" if fate.detail else "")
    else:
        becomes = ", ".join(column.parts) if column.kind == "date" else _KINDS[column.kind]
        becomes += ", and where it is missing" if column.indicator else ""
    return {
        "column": found.name,
        "holds": found.looks,
        "rows": found.rows,
        "missing": found.missing,
        "categories": [] if column is None else list(column.categories),
        "becomes": becomes,
    }


def _gradients(experiment: Experiment) -> dict[str, Any]:
    """E‖∇f_i − ∇f‖² between clients and within them, at the model that a run with this seed would start from."""
    from fedloom.engine.gradients import gradient_measures
    from fedloom.federation.randomness import Draw

    problem = experiment.problem()
    return gradient_measures(problem, problem.model.init(Draw(experiment.top.seed).key("model"), problem.dtype))
