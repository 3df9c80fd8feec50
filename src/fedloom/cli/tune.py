"""``fedloom tune``: the settings of methods, found by trials that are judged on validation rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedloom.cli.display import make_console, plain_text, say, say_json, seconds_text
from fedloom.cli.flags import Flags, overrides, with_flags
from fedloom.cli.guard import ARGUMENTS, Halt
from fedloom.cli.run import Force, Quiet, Report, Sets, Trust
from fedloom.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from fedloom.tuning import Moment, Tuning
    from fedloom.tuning.walk import Tell

_LINE_SECONDS = 5.0
"""Seconds between two lines where there is no terminal."""


@with_flags(without=("--method", "--until"))
def tune(
    flags: Flags,
    ctx: typer.Context,
    methods: Annotated[
        list[str] | None,
        typer.Argument(metavar="METHOD…", help="Methods; settings that they are given stay: fedavg:epochs=5."),
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="An experiment file to start from.")] = None,
    sets: Sets = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long it may take: 90s, 10m, 2h; shared by all methods.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Or so many trials of each method, without a clock. [9]")
    ] = None,
    space: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=SPACE", help="Where to look: method.lr=0.001..1:log, or method.epochs=1,2,5."),
    ] = None,
    sampler: Annotated[
        str, typer.Option(metavar="NAME", help="sobol, random, grid; with optuna tpe, gp, cmaes.")
    ] = "sobol",
    repeats: Annotated[int, typer.Option(min=1, help="With how many seeds the finalists are compared.")] = 1,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with the tuning in this folder; nothing else is needed.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder; else one below runs/.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The table as JSON, and nothing else.")] = False,
    force: Force = False,
    trust: Trust = False,
    quiet: Quiet = False,
    report: Report = True,
) -> None:
    """Find good settings for methods, on validation rows. Started again with the same arguments, it goes on."""
    from fedloom.comparison import entries_of
    from fedloom.experiment import Settings
    from fedloom.tuning import Asked, Tuning
    from fedloom.tuning.plan import parse_budget
    from fedloom.tuning.spaces import parse_space
    from fedloom.tuning.tuned import concluded, from_settings

    started = time.perf_counter()
    command = ["fedloom", *ctx.meta.get(ARGUMENTS, [])]
    if resume is not None:
        if methods or flags or config or sets or budget or trials or space or out or force:
            raise ConfigError("--resume goes on with what is in the folder: give nothing else but how it is shown")
        tuning, folder = _there(resume, trust), resume
    elif methods:
        base, first = from_settings(Settings.read(config, overrides(flags, sets)))
        told = dict(map(parse_space, space or []))
        asked = Asked(told, sampler, trials, None if budget is None else parse_budget(budget), repeats)
        tuning = Tuning(base, entries_of(methods), first, asked)
        tuning.check()
        folder = out or tuning.default_folder()
    else:
        raise ConfigError("say which methods are to be tuned, such as `fedloom tune fedavg fedprox --budget 2m`")
    tuning.started = started
    console = make_console()
    hushed = quiet or json
    if not hushed:
        say(console, f"{len(tuning.entries)} methods on {tuning.source.data} by {tuning.metric} → {folder}")
    with _following(console, hushed) as tell, _halting(folder):
        table = tuning.perform(folder, command, force, tell)
    done = concluded(tuning, folder, table, report)
    if json:
        say_json(table)
        return
    _conclude(console, tuning, folder, done.share_training, done.notes, report, quiet)


def _there(folder: Path, trust: bool) -> Tuning:
    """The tuning of a folder, from its plan alone; code that it names is imported only if the user trusts it."""
    from contextlib import nullcontext

    from fedloom.trust import doubting
    from fedloom.tuning.again import from_plan

    with nullcontext() if trust else doubting(folder, "its plan.json is not signed"):
        tuning = from_plan(folder)
        tuning.check()
    return tuning


def _conclude(
    console: Console, tuning: Tuning, folder: Path, share: float, notes: list[str], report: bool, quiet: bool
) -> None:
    from fedloom.tuning.page import rich_table, sentences
    from fedloom.tuning.tuning import best_row

    assert tuning.plan is not None
    table = tuning.table
    best = best_row(table, tuning.higher)
    if not quiet:
        console.print(rich_table(table, tuning.higher))
    for line in sentences(table, best, tuning.plan.split):
        say(console, line)
    for note in notes:
        say(console, f"note: {note}", "yellow")
    seconds = time.perf_counter() - tuning.started
    if not quiet:
        say(console, f"{seconds_text(seconds)}, {share:.0%} of it in training")
    if best is not None and (folder / "best.toml").is_file():
        say(console, f"run it: fedloom run {folder / 'best.toml'}")
    say(console, f"report: {folder / 'report.html'}" if report else f"tuning: {folder}")


@contextmanager
def _following(console: Console, quiet: bool) -> Iterator[Tell]:
    """A bar with the time left on a terminal, a line every few seconds elsewhere."""
    if quiet:
        yield lambda moment: None
    elif console.is_terminal:
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:.0f} %"),
            TextColumn("{task.fields[words]}", markup=False),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("tune", total=1, words="")
            yield lambda moment: progress.update(
                task, description=moment.label, completed=moment.done, total=moment.total, words=_words(moment)
            )
    else:
        yield _lines(console)


def _lines(console: Console) -> Tell:
    said, label = 0.0, ""

    def tell(moment: Moment) -> None:
        nonlocal said, label
        if moment.label != label or time.monotonic() - said >= _LINE_SECONDS:
            said, label = time.monotonic(), moment.label
            say(console, f"{moment.done / max(moment.total, 1):4.0%}  {moment.label}  {_words(moment)}")

    return tell


def _words(moment: Moment) -> str:
    best = "" if moment.best is None else f"best {moment.metric} {plain_text(moment.best)}"
    left = f"{seconds_text(moment.seconds_left)} left" if moment.seconds_left else ""
    return "  ".join(word for word in (moment.doing, best, left) if word)


@contextmanager
def _halting(folder: Path) -> Iterator[None]:
    """When the user stops it: how to go on."""
    from fedloom.engine.run import Interrupted

    try:
        yield
    except (Interrupted, KeyboardInterrupt) as stop:
        raise Halt(f"stopped; go on by the same command, or with `fedloom tune --resume {folder}`") from stop
