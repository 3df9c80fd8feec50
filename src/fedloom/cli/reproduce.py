"""``fedloom reproduce``: the tables of ``experiments/``, ours beside the published values."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import typer

from fedloom.cli.display import Follow, following, make_console, say
from fedloom.cli.flags import EXECUTION, Flags, overrides, with_flags
from fedloom.cli.guard import Halt
from fedloom.cli.run import Force, Quiet, Report
from fedloom.errors import RunError

_AGAIN = "go on by the same command again: what is done is not done twice"


@with_flags((EXECUTION,), without=("--stack", "--on-error"))
def reproduce(
    flags: Flags,
    name: Annotated[str | None, typer.Argument(help="A table of experiments: its name or file; none: list.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small version, to see that it works.")] = False,
    repeats: Annotated[int | None, typer.Option(min=1, help="Seeds for each cell; else as the file says.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Only cells with this in their name; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder; else runs/reproduce-NAME.")] = None,
    record: Annotated[bool, typer.Option("--record", help="Keep the result beside the file, in results/.")] = False,
    force: Force = False,
    quiet: Quiet = False,
    report: Report = True,
) -> None:
    """Run a table of experiments and compare it with the published one. Started again, it goes on where it stopped."""
    from fedloom.engine.run import Interrupted
    from fedloom.reproduce import Plan, Reproduction

    console = make_console()
    assert name is not None
    plan = Plan.read(Path(name), quick=quick, repeats=repeats)
    folder = out or Path("runs") / f"reproduce-{plan.name}{'-quick' * quick}"
    work = Reproduction(plan, folder, plan.matching(only or []), overrides(flags), force)

    def watch(title: str) -> AbstractContextManager[Follow]:
        return following(console, title, quiet or not console.is_terminal)

    def tell(line: str) -> None:
        if not quiet:
            say(console, line)
            console.file.flush()

    try:
        failed = work.perform(watch, tell)
    except (KeyboardInterrupt, Interrupted) as stop:
        raise Halt(f"stopped; {_AGAIN}") from stop
    if failed:
        raise RunError("\n  ".join([f"{len(failed)} cells failed:", *failed]))
