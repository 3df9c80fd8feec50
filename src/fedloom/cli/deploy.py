"""``fedloom deploy``: a project for a fleet of real devices, and its rehearsal on this machine."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedloom.cli.display import following, make_console, say
from fedloom.cli.flags import DATA, EVALUATION, METHOD, MODEL, ROUNDS, Flags, overrides, with_flags
from fedloom.cli.guard import Halt
from fedloom.cli.run import Force, Out, Quiet, Sets, fresh, headline, tell
from fedloom.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Real devices, by Flower: a project for a fleet, and its rehearsal here.")


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to make.")],
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="For how many nodes to make keys.")] = 3,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="A node's name; may be given again, instead of --nodes.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="What nodes call the server: its name or address.")] = "localhost",
) -> None:
    """Write a project for a fleet: the app, a data module to fill in, certificates, node keys, scripts to start."""
    _needs_flower()
    from fedloom.deploy.project import write_project

    names = name or [f"node-{number}" for number in range(1, nodes + 1)]
    write_project(folder, names, host)
    console = make_console()
    say(console, f"{folder}: fill in data.py and experiment.toml, then on the server ./server.sh 0.0.0.0 and ./run.sh,")
    say(console, f"and on each node SUPERLINK={host}:9092 ./node.sh NAME ROWS, for {', '.join(names)}")
    say(console, "nodes/NAME is that node's secret: it goes there and nowhere else; certificates/ca.key stays with you")
    say(console, "./server.sh without an address listens on its own machine alone")


@app.command()
@with_flags((DATA, MODEL, METHOD, ROUNDS, EVALUATION), also=("--quantise", "--track"), without=("--folds",))
def up(
    flags: Flags,
    experiment: Annotated[Path | None, typer.Option("--experiment", help="An experiment file; flags win.")] = None,
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
    from fedloom.deploy.terms import Terms
    from fedloom.experiment import Experiment, Override, load_experiment

    given = overrides(flags, sets)
    loaded = load_experiment(experiment, given)
    if not isinstance(loaded, Experiment):
        raise ConfigError("a fleet learns one task; an experiment with [[task]] can only be simulated (fedloom run)")
    if nodes is not None and loaded.data_plan.division.clients is None:
        loaded = Experiment.load(experiment, [*given, Override("data.clients", nodes, "--nodes")])
    place = out or fresh(f"fleet-{loaded.folder_name}")
    terms = Terms(deadline=deadline, minimum=minimum or loaded.data().clients, force=force)
    loaded.check()
    console = make_console()
    if not quiet:
        say(console, f"{headline(loaded)}, on {loaded.data().clients} nodes → {place}")
    with following(console, loaded.label, quiet) as follow, _orderly(place):
        summary = rehearse(loaded, place, nodes=nodes, terms=terms, follow=follow)
    tell(console, summary)
    say(console, f"report: {place / 'report.html'}")


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
