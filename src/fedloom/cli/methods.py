"""``fedloom methods`` and ``fedloom check``: what there is, and whether it does what its paper says."""

from __future__ import annotations

import inspect
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedloom.cli.display import make_console, say

if TYPE_CHECKING:
    from fedloom.methods import Entry

Json = Annotated[bool, typer.Option("--json", help="As JSON.")]


def methods(
    name: Annotated[str | None, typer.Argument(help="One method, with all of its hyper-parameters.")] = None,
    as_json: Json = False,
) -> None:
    """List the methods, or tell all about one."""
    from fedloom.methods import REGISTER, lookup

    if as_json:
        told = [card(entry) for entry in REGISTER.values()] if name is None else card(lookup(name))
        typer.echo(json.dumps(told, indent=1, ensure_ascii=False))
    elif name is None:
        _list(list(REGISTER.values()))
    else:
        _tell(lookup(name))


def card(entry: Entry) -> dict[str, Any]:
    """All about a method, as plain values; a hyper-parameter without a default is given as none."""
    from fedloom.experiment.sections import method_form
    from fedloom.experiment.words import type_words

    return {
        "name": entry.name,
        "family": entry.family,
        "paper": entry.paper,
        "summary": entry.summary,
        "description": inspect.cleandoc(entry.cls.__doc__ or ""),
        "reference": inspect.cleandoc(sys.modules[entry.cls.__module__].__doc__ or ""),
        "parameters": [
            {
                "name": field.name,
                "type": type_words(field.annotation),
                "default": None if field.default is ... else field.default,
                "meaning": field.meaning,
            }
            for field in method_form(entry.name).fields.values()
        ],
    }


def check(
    names: Annotated[list[str] | None, typer.Argument(metavar="METHOD…", help="Which ones; all unless given.")] = None,
    as_json: Json = False,
) -> None:
    """Run the conformance kit: every method against problems with a known answer. Exit code 1 when a check fails."""
    from fedloom.conformance import check_methods
    from fedloom.methods import REGISTER, lookup

    chosen = [lookup(name).name for name in names or REGISTER]
    results = check_methods(chosen)
    rows = [{key: getattr(one, key) for key in ("method", "check", "passed", "value", "detail")} for one in results]
    if as_json:
        typer.echo(json.dumps(rows, indent=1, ensure_ascii=False))
    else:
        _verdicts(rows)
    if not all(row["passed"] for row in rows):
        raise typer.Exit(1)


def _verdicts(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    console = make_console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("Method", "Check", "", "Value", "Detail"):
        table.add_column(title, justify="right" if title == "Value" else "left")
    for row in rows:
        verdict = Text("passed", "green") if row["passed"] else Text("FAILED", "bold red")
        value = "" if row["value"] is None else f"{row['value']:.3g}"
        table.add_row(row["method"], row["check"], verdict, value, Text(str(row["detail"])))
    console.print(table)
    failed = sum(not row["passed"] for row in rows)
    say(console, f"{len(rows)} checks, {failed} failed" if failed else f"{len(rows)} checks, all passed")


def _list(entries: list[Entry]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("Method", "Family", "Paper", "What it does"):
        table.add_column(title, no_wrap=title == "Method")
    for entry in entries:
        table.add_row(entry.name, entry.family, entry.paper, entry.summary)
    make_console().print(table)


def _tell(entry: Entry) -> None:
    from rich.table import Table
    from rich.text import Text

    console, told = make_console(), card(entry)
    say(console, f"{told['name']}: {told['summary']} ({told['family']}; {told['paper']})", "bold")
    console.print()
    console.print(Text(told["description"]))
    console.print()
    console.print(Text(told["reference"], style="dim"))
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("Hyper-parameter", "Type", "Default", "Meaning"):
        table.add_column(title, no_wrap=title == "Hyper-parameter")
    for p in told["parameters"]:
        default = "none" if p["default"] is None else str(p["default"])
        table.add_row(p["name"], p["type"], default, Text(p["meaning"]))
    console.print(table)
