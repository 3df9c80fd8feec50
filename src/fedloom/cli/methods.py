"""``fedloom methods`` and ``fedloom check``: what there is, and whether it does what its paper says."""

from __future__ import annotations

import inspect
import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from fedloom.cli.display import make_console, make_table, say, say_json
from fedloom.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from fedloom.conformance import MutantOutcome, Outcome
    from fedloom.methods import Entry

Json = Annotated[bool, typer.Option("--json", help="As JSON.")]


def methods(
    name: Annotated[str | None, typer.Argument(help="One method, with all of its hyper-parameters.")] = None,
    as_json: Json = False,
) -> None:
    """List the methods, or tell all about one."""
    from fedloom.methods import REGISTER, lookup

    if as_json:
        say_json([card(entry) for entry in REGISTER.values()] if name is None else card(lookup(name)))
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
    only: Annotated[
        list[str] | None, typer.Option(metavar="CHECK", help="Only checks (or mutants) of this kind; repeatable.")
    ] = None,
    declaration: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="What is known of the one METHOD that is yours: its Declaration."),
    ] = None,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Run it on mutants of the methods instead: each must fail a check.")
    ] = False,
    executor: Annotated[
        str, typer.Option(metavar="NAME", help="Where clients do the work of the checks: serial, processes, ray, ….")
    ] = "serial",
    as_json: Json = False,
) -> None:
    """Run the conformance kit: every method against problems with a known answer. Exit code 1 when a check fails.

    With --mutants it is the kit that is checked: of each method, mutants with one fault each are made, and the exit
    code is 1 when one of them passes every check.
    """
    from fedloom.conformance import Declaration, check_method, check_methods
    from fedloom.conformance.declarations import own_declaration
    from fedloom.methods import REGISTER, lookup
    from fedloom.storage.files import plain

    chosen = [lookup(name).name for name in names or REGISTER]
    known: Declaration | None = None
    if declaration is not None:
        if len(names or ()) != 1:
            raise ConfigError("--declaration is what is known of one method: name that one, fedloom check mine:Class")
        known = own_declaration(declaration)
    console = make_console()
    if mutants:
        if executor != "serial":
            raise ConfigError("mutants are checked in this process; leave --executor out, or --mutants")
        return _hunt(chosen, declaration, only or None, console, as_json)
    told = None if as_json else partial(_verdict, console)
    if known is None:
        outcomes = check_methods(chosen, only or None, told, executor)
    else:
        outcomes = check_method(chosen[0], lookup(chosen[0]).cls, known, only or None, told, executor)
    failed = sum(not outcome.passed for outcome in outcomes)
    if as_json:
        say_json(plain([vars(outcome) for outcome in outcomes], "check"))
    else:
        say(console, f"{len(outcomes)} checks, {f'{failed} failed' if failed else 'all passed'}")
    if failed:
        raise typer.Exit(1)


def hunted(name: str, declaration: str | None, only: list[str] | None) -> list[MutantOutcome]:
    """The mutants of one method; what a user declares of it has functions, and so is imported where it is needed."""
    from fedloom.conformance import check_mutants
    from fedloom.conformance.declarations import own_declaration
    from fedloom.methods import lookup

    known = None if declaration is None else own_declaration(declaration)
    return check_mutants(name, lookup(name).cls, known, only)


def _hunt(names: list[str], declaration: str | None, only: list[str] | None, console: Console, as_json: bool) -> None:
    """Methods are done side by side, each in a process of its own, and told of in their order."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    outcomes = []
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        for found in pool.map(partial(hunted, declaration=declaration, only=only), names):
            outcomes += found
            for outcome in [] if as_json else found:
                _fate(console, outcome)
    survivors = sum(not outcome.passed for outcome in outcomes)
    if as_json:
        say_json([asdict(outcome) | {"passed": outcome.passed} for outcome in outcomes])
    else:
        excused = sum(outcome.excuse is not None for outcome in outcomes)
        say(console, f"{len(outcomes)} mutants, {excused} excused, {survivors} that should not have survived")
    if survivors:
        raise typer.Exit(1)


def _fate(console: Console, outcome: MutantOutcome) -> None:
    """One line for each mutant."""
    if outcome.killed_by is None:
        words = ("excused", "yellow") if outcome.passed else ("SURVIVED", "bold red")
        rest = outcome.detail
    else:
        words = ("killed", "green") if outcome.passed else ("KILLED THOUGH EXCUSED", "bold red")
        rest = f"by {outcome.killed_by}"
    say(console, Text.assemble(words, f"  {outcome.method}  {outcome.mutant}: {rest}"))


def _verdict(console: Console, outcome: Outcome) -> None:
    """One line as soon as a check is done."""
    verdict = ("passed", "green") if outcome.passed else ("FAILED", "bold red")
    say(console, Text.assemble(verdict, f"  {outcome.method}  {outcome.check}: {outcome.detail}"))


def _list(entries: list[Entry]) -> None:
    table = make_table("Method", "Family", "Paper", "What it does")
    for entry in entries:
        table.add_row(entry.name, entry.family, entry.paper, entry.summary)
    make_console().print(table)


def _tell(entry: Entry) -> None:
    console, told = make_console(), card(entry)
    say(console, f"{told['name']}: {told['summary']} ({told['family']}; {told['paper']})", "bold")
    console.print()
    console.print(Text(told["description"]))
    console.print()
    console.print(Text(told["reference"], style="dim"))
    console.print()
    table = make_table("Hyper-parameter", "Type", "Default", "Meaning")
    for p in told["parameters"]:
        default = "none" if p["default"] is None else str(p["default"])
        table.add_row(p["name"], p["type"], default, Text(p["meaning"]))
    console.print(table)
