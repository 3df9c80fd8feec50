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

DATA, MODEL, METHOD, ROUNDS, STREAM, EVALUATION = "Data", "Model", "Method", "Rounds", "Stream", "Evaluation"
FLEET, EXECUTION = "Fleet and channel", "Execution"
_PANELS = {
    "prior": MODEL,
    "selection": ROUNDS,
    "schedule": ROUNDS,
    "fleet": FLEET,
    "channel": FLEET,
    "tracking": EXECUTION,
}
"""Where help shows the flags of a section that has no panel of its own name."""
_FILES = {".csv", ".gz", ".parquet", ".pq", ".npz"}


@dataclass(frozen=True)
class Flag:
    """A flag, the key that it sets, and, where the value is not simply that of the key, what it stands for."""

    option: str
    key: str
    type: Any
    help: str
    metavar: str | None = None
    means: Callable[[str, Any], dict[str, Any]] = lambda key, value: {key: value}

    @property
    def panel(self) -> str:
        """Under which title help shows it."""
        section, dot, _ = self.key.partition(".")
        return _PANELS.get(section, section.capitalize() if dot else ROUNDS)

    @property
    def parameter(self) -> str:
        """The name of the command's parameter."""
        return "flag_" + self.option.lstrip("-").replace("-", "_")

    def overrides(self, value: Any) -> list[Override]:
        """The settings that the flag with this value stands for."""
        from fedloom.experiment import Override

        return [Override(key, meant, self.option) for key, meant in self.means(self.key, value).items()]

    def declared(self) -> inspect.Parameter:
        """The parameter as typer wants it."""
        option = typer.Option(self.option, help=self.help, metavar=self.metavar, rich_help_panel=self.panel)
        kind: Any = self.type | None
        annotation = Annotated[kind, option]
        return inspect.Parameter(self.parameter, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _data(key: str, values: list[str]) -> dict[str, Any]:
    """A data set's name; or a file, a folder or a pattern, or several of these."""
    files = [value for value in values if _is_file(value)]
    if not files and len(values) == 1:
        return {key: values[0]}
    if len(files) < len(values):
        from fedloom.errors import ConfigError

        odd = next(value for value in values if value not in files)
        raise ConfigError(f"--data {odd}: only files can be several, a client each; this is none that is there")
    return {"data.path": files[0] if len(files) == 1 else files}


def _is_file(value: str) -> bool:
    path = Path(value)
    if path.suffix in _FILES or any(sign in value for sign in "*?["):
        return True
    if not path.is_dir():
        return False
    from fedloom.data import SOURCES

    return "/" in value or not SOURCES.knows(value)  # a folder that is called as a data set is, is meant by ./NAME


def _names(key: str, values: list[str]) -> dict[str, Any]:
    """Names with commas between them."""
    return {key: [name.strip() for value in values for name in value.split(",") if name.strip()]}


def _one_or_more(key: str, values: list[str]) -> dict[str, Any]:
    names = _names(key, values)[key]
    return {key: names[0] if len(names) == 1 else names}


def _parsed(key: str, value: str) -> dict[str, Any]:
    """A number, or a word."""
    from fedloom.experiment import parse_value

    return {key: parse_value(value)}


def _widths(key: str, value: str) -> dict[str, Any]:
    from fedloom.experiment import parse_value

    parts = [parse_value(part.strip()) for part in value.split(",") if part.strip()]
    return {key: parts[0] if len(parts) == 1 else parts}


def _weights(key: str, value: str) -> dict[str, Any]:
    """ "balanced", "1,20", or "no=1,yes=20"."""
    from fedloom.experiment import parse_value

    parts = [part.strip() for part in value.split(",") if part.strip()]
    if all("=" in part for part in parts):
        named = (part.rpartition("=") for part in parts)
        return {key: {name.strip(): parse_value(number.strip()) for name, _, number in named}}
    return {key: value if value == "balanced" else [parse_value(part) for part in parts]}


def _until(key: str, value: str) -> dict[str, Any]:
    metric, _, target = value.partition("=")
    return {"schedule.metric": metric.strip(), **_parsed(key, target.strip() or "none")}


def _quantised(key: str, bits: int) -> dict[str, Any]:
    return {key: [{"name": "quantise", "bits": bits}]}


def _tracked(key: str, names: list[str]) -> dict[str, Any]:
    from fedloom.tracking import parse_tracker

    return {key: [parse_tracker(name) for name in names if name != "none"]}


FLAGS: tuple[Flag, ...] = (
    Flag(
        "--data",
        "data.name",
        list[str],
        "A data set, module:function, or a .csv, .parquet or .npz file; a folder, a pattern, or --data again: a file "
        "for each client.",
        "NAME|FILE",
        _data,
    ),
    Flag("--label-column", "data.label_column", list[str], "Of a file: the labels.", "NAME", _one_or_more),
    Flag("--client-column", "data.client_column", str, "Of a file: whose each row is.", "NAME"),
    Flag("--timestamp-column", "data.timestamp_column", str, "Of a file: when each row was seen.", "NAME"),
    Flag("--task", "data.task", str, "Of a file: auto, binary, classification, multilabel or regression.", "NAME"),
    Flag("--drop", "data.drop", list[str], "Of a file: columns to leave out, such as id,name.", "NAMES", _names),
    Flag(
        "--numbers",
        "data.numbers",
        list[str],
        "Of a file: columns of numbers; a cell that is none counts as missing.",
        "NAMES",
        _names,
    ),
    Flag(
        "--categories",
        "data.categories",
        list[str],
        "Of a file: columns of categories that look like numbers.",
        "NAMES",
        _names,
    ),
    Flag("--embed-from", "data.embed_from", int, "Of a file: embed columns with more categories than this; 20."),
    Flag("--dates", "data.dates", str, "Of a file: dates as days, parts (month, weekday, …), or drop.", "HOW"),
    Flag(
        "--missing",
        "data.missing",
        str,
        "Of a file, what is missing: mean of the training rows, also an indicator, or error.",
        "HOW",
    ),
    Flag(
        "--scaling",
        "data.scaling",
        str,
        "By the training rows: standard, min-max or none; of a table standard unless given.",
        "HOW",
    ),
    Flag("--window", "data.window", int, "Of a series: so many steps make a row.", "STEPS"),
    Flag("--stride", "data.stride", int, "Of a series: steps from one window to the next.", "STEPS"),
    Flag("--horizon", "data.horizon", int, "Of a series: steps from a window's last to its label; 1.", "STEPS"),
    Flag("--clients", "data.clients", int, "How many clients."),
    Flag(
        "--partition",
        "data.partition",
        list[str],
        "Who owns which rows; given again, they combine. Or module:Class.",
        "NAME",
    ),
    Flag("--classes-per-client", "data.classes_per_client", int, "For --partition classes."),
    Flag("--cyclic", "data.cyclic", bool, "For --partition classes: in turn, not at random."),
    Flag("--alpha", "data.alpha", float, "For --partition dirichlet: small is skewed. Also of synthetic data."),
    Flag("--target-clients", "data.target", float, "Share of clients that never train and are evaluated too."),
    Flag("--roles", "data.target", bool, "The same as --target-clients 0.2.", None, lambda key, _: {key: 0.2}),
    Flag(
        "--test",
        "data.test",
        str,
        "Share of each client's rows for its test, or 'published'.",
        "SHARE|published",
        _parsed,
    ),
    Flag(
        "--validation",
        "data.validation",
        float,
        "Share of each client's other rows to choose by; 0.2 where something is chosen.",
        "SHARE",
    ),
    Flag(
        "--folds",
        "data.folds",
        str,
        "Cross-validation: 5 folds of each client's rows, or each client, or groups of them, left out once.",
        "5|clients|clients:5",
        _parsed,
    ),
    Flag("--support", "data.support", str, "Share of the rows for adaptation, or 'none'.", "SHARE|none", _parsed),
    Flag("--positive", "data.positive", str, "Of several classes: this one against the rest, as yes and no.", "CLASS"),
    Flag("--public", "data.public", float, "Share of the training rows that every client gets, known to all.", "SHARE"),
    Flag("--fill", "data.fill", bool, "Repeat rows of each client's rare labels until its labels are even."),
    Flag("--augment", "data.augment", str, "Change images of mini-batches: flip, crop, or flip:0.5,crop:4.", "HOW"),
    Flag(
        "--model",
        "model.name",
        str,
        "linear, mlp, lenet, cnn, resnet8, resnet18, lstm, transformer, fourier, trained, or module:callable.",
        "NAME",
    ),
    Flag("--hidden", "model.hidden", str, "Widths of the hidden layers, such as 200,100.", "WIDTHS", _widths),
    Flag("--loss", "model.loss", str, "The loss; what suits the task unless given.", "NAME"),
    Flag(
        "--class-weights",
        "model.class_weights",
        str,
        "What rows count for by class: balanced, or numbers such as no=1,yes=20.",
        "balanced|NUMBERS",
        _weights,
    ),
    Flag("--prior", "prior.run", str, "The folder of an earlier run, whose model is held on to.", "RUN"),
    Flag("--prior-start", "prior.start", bool, "Also start from the model of --prior."),
    Flag(
        "--method",
        "method.name",
        str,
        "The method (`fedloom methods` lists them), or your own as module:Class.",
        "NAME",
    ),
    Flag(
        "--personal",
        "method.personal",
        str,
        "Layers that stay with each client, whatever the method: head, body, norm, names or patterns.",
        "LAYERS",
    ),
    Flag(
        "--lr", "method.lr", str, "Step size, or a schedule such as cosine:0.1:0.001:200.", "NUMBER|SCHEDULE", _parsed
    ),
    Flag("--batch", "method.batch", str, "Rows of a mini-batch, or 'none' for all rows.", "ROWS|none", _parsed),
    Flag("--epochs", "method.epochs", int, "Passes over a client's rows in a round."),
    Flag("--steps", "method.steps", int, "Local steps in a round, instead of epochs."),
    Flag("--rounds", "rounds", int, "How many rounds."),
    Flag("--seed", "seed", int, "The seed of everything that is random."),
    Flag("--dtype", "dtype", str, "float32 or float64.", "TYPE"),
    Flag("--per-round", "selection.per_round", int, "Clients a round; 10 unless given, all where at most 20."),
    Flag("--fraction", "selection.fraction", float, "Share of the clients that takes part in a round."),
    Flag("--selection", "selection.name", str, "How they are chosen: uniform, size, all, or module:Class.", "NAME"),
    Flag("--schedule", "schedule.name", str, "rounds, or async: replies are taken as they arrive.", "NAME"),
    Flag("--concurrency", "schedule.concurrency", int, "For --schedule async: clients that work at a time."),
    Flag("--buffer", "schedule.buffer", int, "For --schedule async: replies for a step of the server."),
    Flag("--seconds", "schedule.seconds", float, "Simulated seconds after which the run ends."),
    Flag(
        "--until",
        "schedule.target",
        str,
        "End when a metric has reached a value, such as accuracy=0.9.",
        "METRIC=VALUE",
        _until,
    ),
    Flag(
        "--patience",
        "schedule.patience",
        int,
        "End when the metric is no better for so many rounds, on validation rows.",
        "ROUNDS",
    ),
    Flag("--fleet", "fleet.preset", str, "ideal, cross-silo, cross-device, wifi, lte, 3g, or module:fleet.", "NAME"),
    Flag("--delay", "fleet.delay_up", str, "Seconds a reply takes, such as uniform:10:100.", "DISTRIBUTION"),
    Flag("--speed", "fleet.speed", str, "Gradients of single rows a second, as --delay.", "DISTRIBUTION"),
    Flag("--deadline", "fleet.deadline", float, "Simulated seconds after which a round ends."),
    Flag("--dropout", "fleet.dropout", float, "Chance that a client gives up in a round."),
    Flag("--loss-rate", "fleet.loss", float, "Chance that a reply is lost on its way."),
    Flag("--quantise", "channel", int, "Send replies with so many bits a number.", "BITS", _quantised),
    Flag("--stream-start", "stream.start", str, "Share of its rows that a client starts with.", "SHARE"),
    Flag("--stream-rate", "stream.rate", str, "Rows a second that come to a client.", "NUMBER"),
    Flag("--stream-growth", "stream.growth", str, "Share of its rows that comes in a second.", "SHARE"),
    Flag("--stream-duration", "stream.duration", str, "Seconds until all of its rows are there.", "SECONDS"),
    Flag("--stream-timestamps", "stream.timestamps", bool, "Rows come by their own times."),
    Flag("--eval-every", "evaluation.every", int, "Evaluate every so many rounds; 0: only after the last."),
    Flag(
        "--decision",
        "decision",
        str,
        "When yes: a probability, or what to make best (f1, balanced-accuracy, youden).",
        "RULE|NUMBER",
        _parsed,
    ),
    Flag("--metric", "evaluation.metrics", list[str], "A metric, or module:metric; may be given again.", "NAME"),
    Flag("--executor", "execution.executor", str, "auto, serial, processes, ray, or module:Class."),
    Flag("--workers", "execution.workers", int, "Worker processes."),
    Flag("--ray-address", "execution.ray_address", str, "A cluster: auto, HOST:PORT or local.", "ADDRESS"),
    Flag("--stack", "execution.stack", int, "Clients computed together."),
    Flag("--checkpoint-every", "execution.checkpoint_every", int, "Rounds between checkpoints."),
    Flag(
        "--track",
        "tracking",
        list[str],
        "Also tell tensorboard[:DIR], mlflow[:URI], wandb[:PROJECT] or module:Class; may be given again; none: nobody.",
        "NAME",
        _tracked,
    ),
    Flag("--on-error", "execution.on_error", str, "A client that fails: stop, or drop its reply."),
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
