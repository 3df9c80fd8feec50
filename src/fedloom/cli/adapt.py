"""``fedloom adapt``: the model of a run, fitted to one client's few rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedloom.cli.display import make_console, make_table, plain_text, say
from fedloom.cli.flags import Flags, overrides, with_flags
from fedloom.cli.run import Sets, Trust
from fedloom.storage.files import slug

if TYPE_CHECKING:
    from fedloom.engine.adaptation import Adapted


@with_flags(("none",), also=("--data",))
def adapt(
    flags: Flags,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    client: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The client: its number or its name, in the run's data or in --data."),
    ] = None,
    sets: Sets = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps on the client's rows.")] = None,
    lr: Annotated[float | None, typer.Option(min=1e-300, help="Their step size.")] = None,
    support: Annotated[int | None, typer.Option(min=1, metavar="ROWS", help="Adapt on only so many rows.")] = None,
    parts: Annotated[
        Literal["own", "average", "best"] | None,
        typer.Option(help="Whose published personal layers it begins with: the average, or the best on its rows."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the model is saved; beside the run.")] = None,
    trust: Trust = False,
) -> None:
    """Adapt a run's model to one client by the method's own rule; say how good it was before, and is now."""
    from fedloom.experiment.adaptation import open_run

    trained = open_run(run, trust=trust)
    done = trained.adapt(client, trained.read(overrides(flags, sets)), steps=steps, lr=lr, support=support, parts=parts)
    beside = run if run.name else run.resolve()
    done = done.save(out or beside.with_name(f"{run.resolve().name}-client-{slug(done.record['client'])}"))
    console = make_console()
    for note in done.record.get("notes", ()):
        say(console, f"note: {note}", "yellow")
    say(console, _headline(done))
    table = make_table("", "Before", "After", numbers=True)
    for name, before in done.before.items():
        table.add_row(name, plain_text(before), plain_text(done.after[name]))
    console.print(table)
    say(console, f"model: {done.folder}")


def _headline(done: Adapted) -> str:
    record = done.record
    unfinished = "" if record["run_finished"] else ", not finished"
    fitted, judged, steps = record["adapted_on"], record["evaluated_on"], record["steps"]
    how = "by the method's own rule" if steps is None else f"{steps} step{'s' * (steps != 1)}"
    return (
        f"{record['run']} (round {record['round']}{unfinished}), client {record['client']} of {record['data']}: "
        f"{how} on {fitted['rows']} rows ({fitted['split']}), evaluated on "
        f"{judged['rows']} rows ({judged['split']})"
    )
