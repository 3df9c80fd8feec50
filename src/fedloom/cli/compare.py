"""``fedloom compare``: several methods, each with several seeds, otherwise equal; mean ± standard deviation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedloom.cli.display import Follow, following, make_console, primary, say, seconds_text
from fedloom.cli.flags import Flags, overrides, with_flags
from fedloom.cli.guard import ARGUMENTS, Halt
from fedloom.cli.run import Force, Quiet, Report, Sets, halting
from fedloom.errors import ConfigError, FedloomError, RunError

if TYPE_CHECKING:
    from rich.console import Console

    from fedloom.comparison import Comparison, FromSettings
    from fedloom.engine.run import Run
    from fedloom.experiment import Settings

_AGAIN = "go on with the whole comparison by the same command again: what is done is not done twice"


@with_flags(without=("--method",))
def compare(
    flags: Flags,
    ctx: typer.Context,
    methods: Annotated[
        list[str],
        typer.Argument(metavar="METHOD…", help="Methods, perhaps with settings and a name: Ours=fedavg:lr=0.1."),
    ],
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="An experiment file to start from.")] = None,
    sets: Sets = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE,…", help="Each method with each of the values, such as method.lr=0.1,0.01."),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Seeds for each method: --seed and those after it. [3; with --folds 1]")
    ] = None,
    seeds: Annotated[str | None, typer.Option(metavar="1,2,3", help="The seeds themselves.")] = None,
    target: Annotated[
        float | None, typer.Option(help="A value of the metric: adds when each method reached it.")
    ] = None,
    protocol: Annotated[
        str, typer.Option(metavar="alike|own", help="All on the same rows, or each method on the rows of its own kind.")
    ] = "alike",
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder; else one below runs/.")] = None,
    force: Force = False,
    quiet: Quiet = False,
    report: Report = True,
) -> None:
    """Compare methods under equal settings. Started again with the same arguments, it goes on where it stopped."""
    from fedloom.comparison import Comparison, FromSettings, parse_entry, parse_sweep, swept
    from fedloom.comparison.protocol import checked_judge
    from fedloom.experiment import Settings

    base = Settings.read(config, overrides(flags, sets))
    entries = swept([parse_entry(text) for text in methods], dict(map(parse_sweep, sweep or [])))
    source = FromSettings(base, checked_judge(protocol))
    comparison = Comparison(source, entries, _seeds(source, repeats, seeds))
    perform_all(comparison, out, ctx, target, force=force, quiet=quiet, report=report)


def cross_validate(
    base: Settings, out: Path | None, ctx: typer.Context, *, force: bool, quiet: bool, report: bool
) -> None:
    """One method, a run for each fold: what ``fedloom run`` does where the settings ask for folds."""
    from fedloom.comparison import Comparison, Entry, FromSettings
    from fedloom.comparison.comparing import first_seed
    from fedloom.experiment.sections import DEFAULT_METHOD

    method = str(base.get(("method", "name")) or DEFAULT_METHOD)
    entry = Entry(str(base.get(("name",)) or method), method)
    comparison = Comparison(FromSettings(base), [entry], [first_seed(base)])
    perform_all(comparison, out, ctx, None, force=force, quiet=quiet, report=report)


def perform_all(
    comparison: Comparison,
    out: Path | None,
    ctx: typer.Context,
    target: float | None,
    *,
    force: bool,
    quiet: bool,
    report: bool,
) -> None:
    """All runs of a comparison, and what they come to."""
    comparison.check()
    folder = out or comparison.default_folder()
    console = make_console()
    for line in [] if quiet else comparison.fold_notes():
        say(console, line)
    comparison.claim(folder, ["fedloom", *ctx.meta.get(ARGUMENTS, [])], force)
    failed = _run_all(comparison, folder, console, force, quiet)
    _conclude(comparison, folder, console, target, report)
    if failed:
        raise RunError("\n  ".join([f"{len(failed)} of {len(comparison)} runs failed:", *failed]))


def _run_all(comparison: Comparison, folder: Path, console: Console, force: bool, quiet: bool) -> list[str]:
    """All runs that are not there yet; what went wrong in those that failed."""
    from fedloom.comparison.comparing import told

    @contextmanager
    def watch(title: str, place: Path) -> Iterator[Follow]:
        with following(console, title, quiet or not console.is_terminal) as follow, halting(place):
            yield follow

    said = set[str]()

    def tell(title: str, done: Run | FedloomError | None) -> None:
        if isinstance(done, FedloomError):
            say(console, f"{title}: failed", "red")
            return
        if not quiet:
            say(console, f"{title}: {'done already' if done is None else _result(done.summary)}")
        for note in [] if done is None else done.notes:
            if note not in said:  # what holds for all runs is said once
                say(console, f"note: {title.partition('] ')[2]}: {note}", "yellow")
                said.add(note)

    try:
        failed = comparison.perform(folder, force, watch, tell)
    except Halt as halt:
        raise Halt(f"{halt}\nor {_AGAIN}") from halt
    except KeyboardInterrupt as stop:
        raise Halt(f"stopped; {_AGAIN}") from stop
    return [f"{told(key)}: {error}" for key, error in failed.items()]


def _conclude(comparison: Comparison, folder: Path, console: Console, target: float | None, report: bool) -> None:
    """The table, compare.json, the page."""
    from fedloom.comparison.protocol import SAME_ROWS
    from fedloom.report import rich_table, verdict
    from fedloom.report.lead import base_rate, evaluated

    groups, goal = comparison.conclude(folder, target)
    console.print(rich_table(groups, goal, console.width))
    for line in verdict(groups):
        say(console, line)
    if said := evaluated(groups):
        say(console, said)
    for line in sorted({base_rate(run) for group in groups for run in group.runs} - {""}):
        say(console, f"For comparison, {line}.")
    if len(groups) > len({group.runs[0].method for group in groups}):
        say(console, f"note: {SAME_ROWS}", "yellow")
    if report:
        comparison.write_report(folder, target)
    say(console, f"report: {folder / 'report.html'}" if report else f"runs: {folder}")


def _seeds(source: FromSettings, repeats: int | None, listed: str | None) -> list[int]:
    from fedloom.comparison.comparing import first_seed, usual_seeds

    if listed is None:
        first = first_seed(source.base)
        return list(range(first, first + (repeats or usual_seeds(source))))
    if repeats is not None:
        raise ConfigError("--seeds lists the seeds, --repeats counts them: give one of the two")
    try:
        found = [int(seed) for seed in listed.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds: {listed!r} is no list of whole numbers such as 1,2,3") from None
    if len(set(found)) < len(found):
        raise ConfigError(f"--seeds: {listed} has a seed twice, which would be the same run")
    return found


def _result(summary: dict[str, Any]) -> str:
    return f"{primary(summary['spread'])} in {seconds_text(summary['wall_seconds'])}"
