"""``fedloom run`` and ``fedloom resume``: one run in one folder."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedloom.cli.display import (
    confusion_table,
    decided,
    ending,
    following,
    make_console,
    matrix_table,
    measures_text,
    primary,
    say,
    shows_matrix,
    stopped,
)
from fedloom.cli.flags import EXECUTION, Flags, overrides, with_flags
from fedloom.cli.guard import Halt
from fedloom.errors import ConfigError
from fedloom.storage.files import slug

if TYPE_CHECKING:
    from rich.console import Console

    from fedloom.engine.run import Run
    from fedloom.experiment import Experiment, Override, TaskSequence

Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting, such as --set method.lr=0.1.")
]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The folder of the run; a new one below runs/.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is in the folder.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say only the result.")]
Report = Annotated[bool, typer.Option("--report/--no-report", help="Write report.html at the end.")]

Trust = Annotated[bool, typer.Option("--trust", help="Import what a folder names, though it is not signed by you.")]


@with_flags()
def run(
    flags: Flags,
    ctx: typer.Context,
    file: Annotated[Path | None, typer.Argument(help="An experiment file (TOML); flags win over it.")] = None,
    sets: Sets = None,
    out: Out = None,
    force: Force = False,
    quiet: Quiet = False,
    report: Report = True,
) -> None:
    """Run one experiment: from flags, from a file, or from both. With --folds, a run for each fold."""
    from fedloom.experiment import Settings, make_experiment

    given = overrides(flags, sets)
    refuse_fleet(file, given)
    settings = Settings.read(file, given)
    if settings.get(("data", "folds")) is not None and settings.get(("data", "fold")) is None:
        from fedloom.cli.compare import cross_validate

        return cross_validate(settings, out, ctx, force=force, quiet=quiet, report=report)
    experiment = make_experiment(settings)
    perform(experiment, out or fresh(experiment.folder_name), force=force, quiet=quiet, report=report)


@with_flags((EXECUTION,), without=("--stack", "--on-error"))
def resume(
    flags: Flags,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run that was stopped.")],
    force_settings: Annotated[
        bool, typer.Option("--force-settings", help="Go on though settings, data or files were changed: written down.")
    ] = False,
    trust: Trust = False,
    quiet: Quiet = False,
    report: Report = True,
) -> None:
    """Go on with a run that was stopped or killed; it ends in the same bits as one that was not."""
    from fedloom.experiment import load_experiment
    from fedloom.storage.folder import CONFIG, FLEET, RunFolder
    from fedloom.storage.signature import reading

    RunFolder.open(folder, write=False)
    if (folder / FLEET).is_file():
        raise ConfigError(
            f"{folder} is the run of a fleet, whose nodes have the rows: it goes on when the fleet's run.sh, or the "
            f"same `fedloom deploy up … --out {folder}`, is started again"
        )
    changes = overrides(flags)
    with reading(folder, trust, [change.value for change in changes]):
        experiment = load_experiment(folder / CONFIG, changes)
        perform(experiment, folder, resume=True, force_settings=force_settings, quiet=quiet, report=report)


def refuse_fleet(file: Path | None, given: Sequence[Override]) -> None:
    """ConfigError for the experiment of a fleet's project where nobody says which rows are meant.

    Without them the experiment would be one on the default data set.
    """
    from fedloom.experiment.settings import Settings

    if file is None or not (file.parent / "fleet_app.py").is_file():
        return
    data = Settings.read(file, given).get(("data",))
    if not isinstance(data, dict) or not {"name", "path"} & set(data):
        raise ConfigError(
            f"{file} is the experiment of a fleet, whose nodes have the rows: give a file for each client that is to "
            "be simulated (--data ONE.csv --data OTHER.csv), or start the fleet (run.sh)"
        )


def perform(experiment: Experiment | TaskSequence, folder: Path, *, quiet: bool, report: bool, **how: Any) -> None:
    """Run an experiment into a folder, from the beginning or not, and say what came of it."""
    console = make_console()
    experiment.check()
    if not quiet:
        say(console, f"{headline(experiment)} → {folder}")
        say(console, f"model: {first_of(experiment).problem().path}")
        if trackers := first_of(experiment).trackers:
            from fedloom.tracking import key_of

            say(console, f"tracked by {', '.join(map(key_of, trackers))}")
    with following(console, experiment.label, quiet) as follow, halting(folder):
        done = experiment.run(folder, progress=follow, **how)
    for note in done.notes:
        say(console, f"note: {note}", "yellow")
    if report:
        from fedloom.report import write_report

        write_report(folder, folder / "report.html")
    if quiet:
        result = primary(done.summary["spread"], "{:.6g}".format)
        say(console, f"{experiment.label}: {result} after round {done.summary['rounds']}, {folder}")
        return
    _tell(console, done)
    say(console, f"report: {folder / 'report.html'}" if report else f"run: {folder}")


def _tell(console: Console, done: Run) -> None:
    if done.matrix is None:
        tell(console, done.summary, done.folder)
        return
    console.print(matrix_table(done.matrix))
    say(console, measures_text(done.matrix))


def tell(console: Console, summary: dict[str, Any], folder: Path | None) -> None:
    """What came of one run, by its summary and what its folder calls clients."""
    from fedloom.report.gain import gain_of

    console.print(ending(summary))
    if line := decided(summary):
        say(console, line)
    for line in gain_of(summary, folder):
        say(console, line)
    if shows_matrix(summary):
        console.print(confusion_table((summary.get("decision") or {}).get("confusion") or summary["confusion"]))
    if why := stopped(summary):
        say(console, why)


@contextmanager
def halting(folder: Path) -> Iterator[None]:
    """When the user stops the run in this folder: how to go on."""
    from fedloom.engine.run import Interrupted
    from fedloom.storage.folder import CONFIG

    try:
        yield
    except Interrupted as stop:
        raise Halt(str(stop)) from stop
    except KeyboardInterrupt as stop:
        known = (folder / CONFIG).is_file()
        raise Halt(f"stopped; go on with `fedloom resume {folder}`" if known else "stopped") from stop


def headline(experiment: Experiment | TaskSequence) -> str:
    """What is about to be done, in a line."""
    from fedloom.experiment import Experiment
    from fedloom.report.words import plural

    if not isinstance(experiment, Experiment):
        first, tasks = headline(first_of(experiment)), experiment.names
        return f"{first}; {len(tasks)} tasks: {', '.join(tasks)}"
    clients, (_, count) = experiment.data().clients, experiment.selection.settled(experiment.candidates)
    schedule = experiment.schedule()
    working, how = (schedule.concurrency or count, "at a time") if schedule.asynchronous else (count, "a round")
    many = f"{clients:,} clients" + (f" ({working:,} {how})" if working < clients else "")
    model = experiment.model_plan.settled(experiment.data(), experiment.method).name
    size = f"{model} of {experiment.problem().model.n:,} parameters"
    rounds = plural(experiment.top.rounds or 0, "round")
    return f"{experiment.label} on {experiment.data().name}: {many}, {size}, {rounds}"


def first_of(experiment: Experiment | TaskSequence) -> Experiment:
    """The experiment itself, or the first of tasks in sequence."""
    from fedloom.experiment import Experiment

    return experiment if isinstance(experiment, Experiment) else experiment.experiments[0]


def fresh(name: str) -> Path:
    """A folder below runs/ that is not there yet."""
    base = Path("runs") / slug(name)
    names = itertools.chain([base], (base.with_name(f"{base.name}-{number}") for number in itertools.count(2)))
    return next(path for path in names if not path.exists())
