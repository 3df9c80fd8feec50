"""``fedloom predict`` and ``fedloom export``: the model of a run in use, here and elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedloom.cli.display import make_console, say
from fedloom.cli.run import Trust
from fedloom.errors import ConfigError

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or of `fedloom adapt`.")]
Client = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Whose model, rows or columns, where clients have their own: name or number."),
]


def predict(
    run: Run,
    data: Annotated[Path, typer.Option(metavar="FILE", help="New rows: .csv (also .gz, .bz2, .xz), .parquet, .npz.")],
    client: Client = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the predictions go, as CSV.")] = Path(
        "predictions.csv"
    ),
    keep: Annotated[
        str | None, typer.Option(metavar="all|NAMES", help="Columns of the data to keep before the predictions.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file that is there.")] = False,
    trust: Trust = False,
) -> None:
    """Predict for new rows with the model of a run: class names and probabilities, or targets in their own units."""
    from fedloom.prediction import Predictor
    from fedloom.prediction.files import predict_file

    if out.exists() and not force:
        raise ConfigError(f"{out} is there already; choose another file with --out, or replace it with --force")
    if out.suffix != ".csv":
        raise ConfigError(f"{out}: predictions are written as CSV; give --out a name that ends in .csv")
    predictor = Predictor.open(run, client, trust=trust)
    names = [name.strip() for name in (keep or "").split(",") if name.strip()]
    tally = predict_file(predictor, data, out, names)
    console = make_console()
    for line in tally.lines():
        say(console, f"note: {line}", "yellow")
    whose = f" of client {predictor.client}" if predictor.client is not None else ""
    say(console, f"{tally.rows:,} rows of {data}, {predictor.card.facts.method}{whose} in {run} → {out}")


def export(
    run: Run,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write: a new one, or an empty one.")],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="safetensors, state-dict, torchscript or onnx.")],
    client: Client = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the exported model that is there.")] = False,
    trust: Trust = False,
) -> None:
    """Write a run's model into a folder that needs no fedloom: weights, how rows are read, load.py, which predicts."""
    from fedloom.prediction import Predictor
    from fedloom.prediction.export import export as write

    done = write(Predictor.open(run, client, trust=trust), folder, to, force=force)
    console = make_console()
    for line in done.notes:
        say(console, f"note: {line}", "yellow")
    say(console, f"{', '.join(done.files)} → {folder}")
