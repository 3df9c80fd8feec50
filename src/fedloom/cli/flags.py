"""The flags of the common settings: each is a name for one key of an experiment file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fedloom.experiment import Override

DATA, MODEL, METHOD, ROUNDS, FLEET, STREAM, EVALUATION, EXECUTION = (
    "Data",
    "Model",
    "Method",
    "Rounds",
    "Fleet and channel",
    "Stream",
    "Evaluation",
    "Execution",
)
_FILES = {".csv", ".gz", ".parquet", ".pq", ".npz"}


@dataclass(frozen=True)
class Flag:
    """A flag, the key that it sets, and, where the value is not simply that of the key, what it stands for."""

    option: str
    key: str
    type: Any
    help: str
    panel: str
    metavar: str | None = None
    means: Callable[[Any], dict[str, Any]] | None = None

    @property
    def parameter(self) -> str:
        """The name of the command's parameter."""
        return "flag_" + self.option.lstrip("-").replace("-", "_")

    def overrides(self, value: Any) -> list[Override]:
        """The settings that the flag with this value stands for."""
        from fedloom.experiment import Override

        found = {self.key: value} if self.means is None else self.means(value)
        return [Override(key, meant, self.option) for key, meant in found.items()]

    def declared(self) -> inspect.Parameter:
        """The parameter as typer wants it."""
        option = typer.Option(self.option, help=self.help, metavar=self.metavar, rich_help_panel=self.panel)
        kind: Any = self.type | None
        annotation = Annotated[kind, option]
        return inspect.Parameter(self.parameter, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _data(value: str) -> dict[str, Any]:
    return {"data.path": value} if Path(value).suffix in _FILES else {"data.name": value}


def _number_or_word(key: str) -> Callable[[str], dict[str, Any]]:
    def meant(value: str) -> dict[str, Any]:
        from fedloom.experiment import parse_value

        return {key: parse_value(value)}

    return meant


def _widths(value: str) -> dict[str, Any]:
    from fedloom.experiment import parse_value

    parts = [parse_value(part.strip()) for part in value.split(",") if part.strip()]
    return {"model.hidden": parts[0] if len(parts) == 1 else parts}


def _until(value: str) -> dict[str, Any]:
    from fedloom.experiment import parse_value

    metric, _, target = value.partition("=")
    return {"schedule.metric": metric.strip(), "schedule.target": parse_value(target.strip() or "none")}


FLAGS: tuple[Flag, ...] = (
    Flag(
        "--data",
        "data.name",
        str,
        "A data set, a .csv, .parquet or .npz file, or module:function.",
        DATA,
        "NAME|FILE",
        _data,
    ),
    Flag("--clients", "data.clients", int, "How many clients.", DATA),
    Flag(
        "--partition",
        "data.partition",
        list[str],
        "Who owns which rows; given again, they combine. Or module:Class.",
        DATA,
        "NAME",
    ),
    Flag("--classes-per-client", "data.classes_per_client", int, "For --partition classes.", DATA),
    Flag("--cyclic", "data.cyclic", bool, "For --partition classes: in turn, not at random.", DATA),
    Flag("--alpha", "data.alpha", float, "For --partition dirichlet: small is skewed. Also of synthetic data.", DATA),
    Flag("--target-clients", "data.target", float, "Share of clients that never train and are evaluated too.", DATA),
    Flag(
        "--roles", "data.target", bool, "The same as --target-clients 0.2.", DATA, None, lambda _: {"data.target": 0.2}
    ),
    Flag(
        "--test",
        "data.test",
        str,
        "Share of each client's rows for its test, or 'published'.",
        DATA,
        "SHARE|published",
        _number_or_word("data.test"),
    ),
    Flag(
        "--support",
        "data.support",
        str,
        "Share of the rows for adaptation, or 'none'.",
        DATA,
        "SHARE|none",
        _number_or_word("data.support"),
    ),
    Flag("--model", "model.name", str, "linear, mlp, lenet, cnn, lstm, or your own as module:callable.", MODEL, "NAME"),
    Flag("--hidden", "model.hidden", str, "Widths of the hidden layers, such as 200,100.", MODEL, "WIDTHS", _widths),
    Flag("--loss", "model.loss", str, "The loss; what suits the task unless given.", MODEL, "NAME"),
    Flag("--prior", "prior.run", str, "The folder of an earlier run, whose model is held on to.", MODEL, "RUN"),
    Flag("--prior-start", "prior.start", bool, "Also start from the model of --prior.", MODEL),
    Flag(
        "--method",
        "method.name",
        str,
        "The method (`fedloom methods` lists them), or your own as module:Class.",
        METHOD,
        "NAME",
    ),
    Flag(
        "--lr",
        "method.lr",
        str,
        "Step size, or a schedule such as cosine:0.1:0.001:200.",
        METHOD,
        "NUMBER|SCHEDULE",
        _number_or_word("method.lr"),
    ),
    Flag(
        "--batch",
        "method.batch",
        str,
        "Rows of a mini-batch, or 'none' for all rows.",
        METHOD,
        "ROWS|none",
        _number_or_word("method.batch"),
    ),
    Flag("--epochs", "method.epochs", int, "Passes over a client's rows in a round.", METHOD),
    Flag("--steps", "method.steps", int, "Local steps in a round, instead of epochs.", METHOD),
    Flag("--rounds", "rounds", int, "How many rounds.", ROUNDS),
    Flag("--seed", "seed", int, "The seed of everything that is random.", ROUNDS),
    Flag("--dtype", "dtype", str, "float32 or float64.", ROUNDS, "TYPE"),
    Flag("--per-round", "selection.per_round", int, "Clients a round; 10 unless given, all where at most 20.", ROUNDS),
    Flag("--fraction", "selection.fraction", float, "Share of the clients that takes part in a round.", ROUNDS),
    Flag(
        "--selection",
        "selection.name",
        str,
        "How they are chosen: uniform, size, all, or module:Class.",
        ROUNDS,
        "NAME",
    ),
    Flag("--schedule", "schedule.name", str, "rounds, or async: replies are taken as they arrive.", ROUNDS, "NAME"),
    Flag("--concurrency", "schedule.concurrency", int, "For --schedule async: clients that work at a time.", ROUNDS),
    Flag("--buffer", "schedule.buffer", int, "For --schedule async: replies for a step of the server.", ROUNDS),
    Flag("--seconds", "schedule.seconds", float, "Simulated seconds after which the run ends.", ROUNDS),
    Flag(
        "--until",
        "schedule.target",
        str,
        "End when a metric has reached a value, such as accuracy=0.9.",
        ROUNDS,
        "METRIC=VALUE",
        _until,
    ),
    Flag("--fleet", "fleet.preset", str, "ideal, cross-silo, cross-device, or module:fleet.", FLEET, "NAME"),
    Flag("--delay", "fleet.delay_up", str, "Seconds a reply takes, such as uniform:10:100.", FLEET, "DISTRIBUTION"),
    Flag("--speed", "fleet.speed", str, "Gradients of single rows a second, as --delay.", FLEET, "DISTRIBUTION"),
    Flag("--deadline", "fleet.deadline", float, "Simulated seconds after which a round ends.", FLEET),
    Flag("--dropout", "fleet.dropout", float, "Chance that a client gives up in a round.", FLEET),
    Flag("--loss-rate", "fleet.loss", float, "Chance that a reply is lost on its way.", FLEET),
    Flag(
        "--quantise",
        "channel",
        int,
        "Send replies with so many bits a number.",
        FLEET,
        "BITS",
        lambda bits: {"channel": [{"name": "quantise", "bits": bits}]},
    ),
    Flag("--stream-start", "stream.start", str, "Share of its rows that a client starts with.", STREAM, "SHARE"),
    Flag("--stream-rate", "stream.rate", str, "Rows a second that come to a client.", STREAM, "NUMBER"),
    Flag("--stream-growth", "stream.growth", str, "Share of its rows that comes in a second.", STREAM, "SHARE"),
    Flag("--stream-duration", "stream.duration", str, "Seconds until all of its rows are there.", STREAM, "SECONDS"),
    Flag("--stream-timestamps", "stream.timestamps", bool, "Rows come by their own times.", STREAM),
    Flag("--eval-every", "evaluation.every", int, "Evaluate every so many rounds; 0: only after the last.", EVALUATION),
    Flag(
        "--metric",
        "evaluation.metrics",
        list[str],
        "A metric, or module:metric; may be given again.",
        EVALUATION,
        "NAME",
    ),
    Flag("--executor", "execution.executor", str, "auto, serial, processes, ray, or module:Class.", EXECUTION),
    Flag("--workers", "execution.workers", int, "Worker processes.", EXECUTION),
    Flag("--ray-address", "execution.ray_address", str, "A cluster: auto, HOST:PORT or local.", EXECUTION, "ADDRESS"),
    Flag("--stack", "execution.stack", int, "Clients computed together.", EXECUTION),
    Flag("--checkpoint-every", "execution.checkpoint_every", int, "Rounds between checkpoints.", EXECUTION),
    Flag("--on-error", "execution.on_error", str, "A client that fails: stop, or drop its reply.", EXECUTION),
)


Flags = list[tuple[Flag, Any]]
"""The flags that were given, and their values."""


def overrides(flags: Flags, sets: list[str] | None = None) -> list[Override]:
    """The settings that flags stand for and, winning over them, those of ``--set key=value``."""
    from fedloom.experiment import parse_set

    found = [override for flag, value in flags for override in flag.overrides(value)]
    return [*found, *map(parse_set, sets or [])]


def with_flags(
    panels: Collection[str] = (), *, also: Collection[str] = (), without: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command whose parameter ``flags`` is what was given of the flags: of all, or of some panels and others."""
    chosen = [flag for flag in FLAGS if (not panels or flag.panel in panels or flag.option in also)]
    chosen = [flag for flag in chosen if flag.option not in without]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "flags"]

        def wrapped(**given: Any) -> None:
            values = [(flag, given.pop(flag.parameter)) for flag in chosen]
            command(**given, flags=[(flag, value) for flag, value in values if value not in (None, [])])

        wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
        wrapped.__annotations__ = {}
        wrapped.__signature__ = inspect.Signature([*own, *(flag.declared() for flag in chosen)])  # type: ignore[attr-defined]
        return wrapped

    return decorate
