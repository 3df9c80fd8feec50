"""The command line. Heavy libraries are imported by the commands that need them, so that help is there at once."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from typing import Annotated

import typer

from fedloom import __version__
from fedloom.cli import data, deploy
from fedloom.cli.adapt import adapt
from fedloom.cli.compare import compare
from fedloom.cli.guard import Guarded, interrupts, unraisable
from fedloom.cli.methods import check, methods
from fedloom.cli.predict import export, predict
from fedloom.cli.report import report
from fedloom.cli.reproduce import reproduce
from fedloom.cli.run import resume, run
from fedloom.cli.streams import Streams
from fedloom.cli.tune import tune

app = typer.Typer(
    cls=Guarded,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated learning for data that differ from device to device. Begin with: fedloom run --data digits",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedloom {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """What every command has."""


for command in (run, compare, tune, reproduce, resume, adapt, predict, export, report, methods, check):
    app.command()(command)
app.add_typer(data.app, name="data")
app.add_typer(deploy.app, name="deploy")


def main() -> None:
    """The entry point; a user's own models may be in the working folder."""
    sys.path.append(os.getcwd())
    warnings.formatwarning = lambda message, *_: f"note: {message}\n"
    sys.unraisablehook = unraisable
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupts)
    streams = Streams()
    try:
        app()
    except SystemExit as end:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise SystemExit(end.code or streams.close()) from None
