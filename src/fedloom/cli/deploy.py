"""``fedloom deploy``: a project for a fleet of real devices, and its rehearsal on this machine."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedloom.cli.display import following, make_console, say
from fedloom.cli.flags import DATA, EVALUATION, METHOD, MODEL, ROUNDS, Flags, overrides, with_flags
from fedloom.cli.guard import Halt
from fedloom.cli.run import Force, Out, Quiet, Sets, fresh, headline, refuse_fleet, tell
from fedloom.errors import ConfigError

if TYPE_CHECKING:
    from fedloom.experiment import Experiment, Override

app = typer.Typer(no_args_is_help=True, help="Real devices, by Flower: a project for a fleet, and its rehearsal here.")


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make.")],
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="For how many nodes to make keys.")] = 3,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="A node's name; may be given again, instead of --nodes.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="What nodes call the server: its name or address.")] = "localhost",
    module: Annotated[
        bool, typer.Option("--module", help="Write a data.py to fill in, for rows that no file has ready.")
    ] = False,
) -> None:
    """Write a project for a fleet: the app, certificates, node keys, scripts to start."""
    _needs_flower()
    from fedloom.deploy.project import write_project

    names = name or [f"node-{number}" for number in range(1, nodes + 1)]
    write_project(folder, names, host, module)
    console, fill = make_console(), "data.py and experiment.toml" if module else "experiment.toml"
    say(console, f"{folder}: fill in {fill}, then on the server ./server.sh 0.0.0.0 and ./run.sh,")
    say(console, f"and on each node SUPERLINK={host}:9092 ./node.sh NAME ROWS, for {', '.join(names)}")
    say(console, "nodes/NAME is that node's secret: it goes there and nowhere else; certificates/ca.key stays with you")
    say(console, "./server.sh without an address listens on its own machine alone")


@app.command()
@with_flags((DATA, MODEL, METHOD, ROUNDS, EVALUATION), also=("--quantise", "--track"), without=("--folds",))
def up(
    flags: Flags,
    file: Annotated[Path | None, typer.Argument(help="An experiment file (TOML); flags win over it.")] = None,
    experiment: Annotated[Path | None, typer.Option("--experiment", help="The same.")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="How many nodes: one for each client.")] = None,
    deadline: Annotated[float, typer.Option("--deadline", help="Seconds that nodes have for a reply.")] = 600.0,
    minimum: Annotated[int | None, typer.Option("--minimum", help="Replies that a round needs; all nodes'.")] = None,
    sets: Sets = None,
    out: Out = None,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Rehearse a deployment: a SuperLink and SuperNodes on this machine, a run, and everything stopped again."""
    _needs_flower()
    from fedloom.deploy.rehearsal import rehearse
    from fedloom.deploy.roster import agreed_in
    from fedloom.deploy.terms import Terms
    from fedloom.experiment import Experiment, load_experiment

    if file is not None and experiment is not None:
        raise ConfigError(f"{file} and --experiment {experiment} are two experiments; give one of them")
    given, experiment, console = overrides(flags, sets), file or experiment, make_console()
    refuse_fleet(experiment, given)
    loaded = load_experiment(experiment, given)
    if not isinstance(loaded, Experiment):
        raise ConfigError("a fleet learns one task; an experiment with [[task]] can only be simulated (fedloom run)")
    if nodes is not None and loaded.data_plan.division.clients is None:
        override, left_out = _of_so_many(loaded, nodes)
        loaded = Experiment.load(experiment, [*given, override])
        if left_out:
            say(console, f"note: --nodes {nodes} leaves out {left_out}", "yellow")
    place = out or fresh(f"fleet-{loaded.folder_name}")
    terms = Terms(deadline=deadline, minimum=minimum or loaded.data().clients, force=force)
    loaded.check()
    if not quiet:
        say(console, f"{headline(loaded)}, on {loaded.data().clients} nodes → {place}")
    with following(console, loaded.label, quiet) as follow, _orderly(place):
        summary = rehearse(loaded, place, nodes=nodes, terms=terms, follow=follow)
    for note in agreed_in(place):
        say(console, f"agreed: {note}")
    tell(console, summary, place)
    say(console, f"report: {place / 'report.html'}")


def _of_so_many(experiment: Experiment, nodes: int) -> tuple[Override, str]:
    """The setting that leaves so many clients, and who is left out by it, in words."""
    from fedloom.data.arrays import some
    from fedloom.deploy.rehearsal import files_of
    from fedloom.experiment import Override

    table, files = experiment.table(), files_of(experiment)
    natural = table.groups is not None and experiment.data_plan.division.partition in (None, ["natural"], ("natural",))
    if not natural or nodes >= experiment.data().clients:
        return Override("data.clients", nodes, "--nodes"), ""
    every = experiment.data()
    names = [every.label(client) for client in range(every.clients)]
    if files is not None:
        kept = [str(files[name]) for name in names[:nodes]]
        return Override("data.path", kept, "--nodes"), f"{len(names) - nodes} of {len(names)}: {some(names[nodes:])}"
    left = f"{every.clients - nodes} of the {every.clients} clients of the data, which are chosen at random"
    return Override("data.clients", nodes, "--nodes"), left


@contextmanager
def _orderly(place: Path) -> Iterator[None]:
    """Ctrl-C, or being told to end: everything is stopped first, and the user told how to go on."""

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt as stop:
        raise Halt(f"stopped, and all nodes with it; the same command with --out {place} goes on") from stop
    finally:
        signal.signal(signal.SIGTERM, before)


def _needs_flower() -> None:
    from importlib.util import find_spec

    if find_spec("flwr") is None or find_spec("psutil") is None:
        raise ConfigError("deployment needs Flower; install it with `pip install fedloom[flower]`")
