"""``fedloom reproduce``: the tables of ``experiments/``, ours beside the published values."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedloom.cli.display import Follow, following, make_console, say
from fedloom.cli.flags import EXECUTION, Flags, overrides, with_flags
from fedloom.cli.guard import Halt
from fedloom.cli.run import Force, Quiet, Report
from fedloom.errors import ConfigError, FedloomError, RunError

if TYPE_CHECKING:
    from rich.console import Console

    from fedloom.reproduce import Reproduction

_AGAIN = "go on by the same command again: what is done is not done twice"


@with_flags((EXECUTION,), without=("--stack", "--on-error"))
def reproduce(
    flags: Flags,
    name: Annotated[str | None, typer.Argument(help="A table of experiments: its name or file; none: list.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small version, to see that it works.")] = False,
    repeats: Annotated[int | None, typer.Option(min=1, help="Seeds for each cell; else as the file says.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Only this row, column or cell, or part of a name; repeatable."),
    ] = None,
    seed: Annotated[
        list[int] | None, typer.Option(help="Only the repeats with this seed; repeatable. --record joins them.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder; else runs/reproduce-NAME.")] = None,
    record: Annotated[bool, typer.Option("--record", help="Keep the result beside the file, in results/.")] = False,
    force: Force = False,
    quiet: Quiet = False,
    report: Report = True,
) -> None:
    """Run a table of experiments and compare it with the published one. Started again, it goes on where it stopped."""
    from fedloom.reproduce import Reproduction, read_plan
    from fedloom.reproduce.shelf import find, known, programs, recorded

    console = make_console()
    if name is None:
        _list(console)
        return
    if quick and record:
        raise ConfigError("--record keeps results of the whole experiment: leave --quick out")
    if name in programs() and name not in known():
        given = {"--repeats": repeats, "--only": only, "--seed": seed, "--out": out, "--force": force}
        _run_program(name, {"--quick": quick, "--record": record}, [key for key, value in given.items() if value])
        return
    plan = read_plan(find(name), quick=quick, repeats=repeats)
    folder = out or Path("runs") / f"reproduce-{plan.name}{'-quick' * quick}"
    work = Reproduction(plan, folder, plan.matching(only or []), overrides(flags), force, seed or ())
    failed = _perform(work, console, quiet)
    _conclude(work, console, report, recorded(plan.file) if record else None)
    if failed:
        raise RunError("\n  ".join([f"{len(failed)} of {len(work.chosen)} cells failed:", *failed]))


def _run_program(name: str, wanted: dict[str, bool], foreign: list[str]) -> None:
    """An experiment that is a program of its own, in this process."""
    import runpy
    import sys

    from fedloom.reproduce.shelf import programs

    if foreign:
        raise ConfigError(f"{name} is a program and no table: it knows --quick and --record; leave {foreign[0]} out")
    before = sys.argv
    sys.argv = [name, *(flag for flag, on in wanted.items() if on)]
    try:
        runpy.run_path(str(programs()[name]), run_name="__main__")
    except KeyboardInterrupt as stop:
        raise Halt("stopped; a program begins anew") from stop
    finally:
        sys.argv = before


def _perform(work: Reproduction, console: Console, quiet: bool) -> list[str]:
    """All runs that are not there yet; what went wrong in those that failed."""
    from fedloom.engine.run import Interrupted

    def watch(title: str) -> AbstractContextManager[Follow]:
        return following(console, title, quiet or not console.is_terminal)

    def tell(line: str) -> None:
        if not quiet:
            say(console, line)

    try:
        return work.perform(watch, tell)
    except (KeyboardInterrupt, Interrupted) as stop:
        raise Halt(f"stopped; {_AGAIN}") from stop


def _conclude(work: Reproduction, console: Console, report: bool, kept: Path | None) -> None:
    """The tables, the page, and the record that is kept."""
    from fedloom.reproduce import page, tables
    from fedloom.reproduce.keep import keep

    result = work.record(detailed=True)
    for grid in tables.grids(result):
        say(console, grid.title, "bold")
        console.print(tables.rich_grid(grid))
        console.print()
    for note in tables.notes(result):
        say(console, f"note: {note}", "yellow")
    say(console, f"{tables.progress(result)}; result: {work.folder / 'result.json'}")
    if report:
        say(console, f"report: {page.write(work.plan, result, work.folder)}")
    if kept is not None:
        keep(result, kept)
        say(console, f"recorded: {kept}")


def _list(console: Console) -> None:
    """What there is, and how much of it is recorded."""
    from fedloom.report.runs import read_record
    from fedloom.reproduce import read_plan, tables
    from fedloom.reproduce.shelf import known, programs, recorded

    rows = []
    for name, file in known().items():
        try:
            plan = read_plan(file)
        except FedloomError as error:
            say(console, f"{name}: {error}", "red")
            continue
        published = sum(cell.published is not None for cell in plan.cells)
        done = sum(bool(cell["values"]) for cell in read_record(recorded(file)).get("cells", []))
        rows.append((name, plan.head.title, str(len(plan.cells)), str(published), str(done)))
    console.print(tables.listing(rows))
    for name, file in programs().items():
        say(console, f"{name}, a program of its own{', recorded' * recorded(file).is_file()}")
