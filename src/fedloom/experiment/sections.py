"""All sections but [data]: the top of the file, the model, the method, who takes part, and how it is judged and run.

Each function reads one section, adds to the faults what cannot be, and returns what the section means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedloom.channel import TRANSFORMS, Channel, Transform
from fedloom.engine.evaluation import Evaluation
from fedloom.engine.fleet import FLEETS, Distribution, Fleet
from fedloom.engine.schedule import Schedule
from fedloom.engine.selection import Selection, selection_for
from fedloom.errors import ConfigError
from fedloom.experiment.faults import Faults
from fedloom.experiment.forms import Field, Form, spoken
from fedloom.experiment.words import hint
from fedloom.federation.data import FederatedData
from fedloom.federation.losses import LOSSES
from fedloom.federation.metrics import METRICS, base_name
from fedloom.federation.networks import NETWORKS
from fedloom.federation.streams import Stream
from fedloom.methods import REGISTER, Method, lookup
from fedloom.types import Count, Fraction, Key, NonNegative

ALL_UP_TO, USUAL = 20, 10
"""Unless a number is given, everybody takes part in a round where clients are at most 20, and 10 of them otherwise."""
SPLITS = ("train", "test", "support", "query", "test-support", "test-query")
SECTIONS = (
    "data",
    "model",
    "prior",
    "method",
    "selection",
    "schedule",
    "fleet",
    "stream",
    "channel",
    "evaluation",
    "execution",
)

SEQUENCE = ("continual", "task")
"""Sections of a file with tasks in sequence."""


@dataclass(frozen=True)
class Top:
    """What stands before the first section."""

    name: str | None = None
    """What the run is called in reports; none: as its method."""
    seed: int = 0
    """Of everything that is random."""
    rounds: Count | None = None
    """How many rounds; none: what is usual for the method, 50 for most."""
    dtype: Literal["float32", "float64"] | None = None
    """The numbers of the model; none: what is usual for the method, float32 for most."""

    def settled(self, method: Method) -> Top:
        """With nothing left open."""
        return replace(self, rounds=self.rounds or method.default_rounds, dtype=self.dtype or method.default_dtype)


@dataclass(frozen=True)
class Prior:
    """An earlier run whose model this one holds on to or starts from."""

    run: str
    """The folder of the earlier run; a relative path starts beside the file."""
    start: bool = False
    """Whether its model is also the initial one."""
    sha256: str | None = None
    """The fingerprint that its model must have; none: any. What a run writes down, so that it can be done again."""


@dataclass(frozen=True)
class Execution:
    """Where the work is done, and what happens when something goes wrong."""

    executor: Literal["auto", "serial", "processes", "ray"] = "auto"
    """In this process, in worker processes, whichever is faster, or on a Ray cluster; the results are the same."""
    workers: Count | None = None
    """How many worker processes; none: one for each core."""
    ray_address: str | None = None
    """The Ray cluster to use: "auto" or "HOST:PORT"; none or "local": one on this machine, started for the run."""
    stack: Count | None = None
    """Clients computed together; none: what suits model, data and method."""
    on_error: Literal["stop", "drop"] = "stop"
    """A client that fails: the run stops, or goes on without its reply."""
    checkpoint_every: Count | None = None
    """Rounds between checkpoints; none: by the clock."""
    checkpoint_seconds: NonNegative = 30.0
    """Seconds between checkpoints, unless they go by rounds."""


@dataclass(frozen=True)
class SelectionPlan:
    """Who takes part in a round, before it is known how many clients there are."""

    name: Literal["uniform", "size", "all"] | None = None
    """Each client as likely as any other, in proportion to its rows, or everybody."""
    per_round: Count | None = None
    """How many clients take part in a round."""
    fraction: Fraction | None = None
    """Which share of the clients takes part in a round."""

    def settled(self, clients: int) -> tuple[str, int]:
        """The selection's name and the number a round, for so many clients."""
        wanted = self.per_round
        if self.fraction is not None:
            wanted = max(1, round(self.fraction * clients))
        if self.name == "all" or (wanted is None and clients <= ALL_UP_TO):
            return "all", clients
        return self.name or "uniform", wanted or USUAL

    def make(self, clients: int) -> Selection:
        """The selection."""
        return selection_for(*self.settled(clients))

    def resolved(self, clients: int) -> dict[str, Any]:
        """The section with nothing left open."""
        name, count = self.settled(clients)
        return {"name": name} if name == "all" else {"name": name, "per_round": count}


@dataclass(frozen=True)
class ModelPlan:
    """A network by name (none: what suits the data), its options, and the loss."""

    name: str | None
    options: dict[str, Any]
    loss: str

    def settled(self, data: FederatedData) -> ModelPlan:
        """With a network chosen: lstm for windows, linear for columns, regression and few features, else an mlp.

        Options without a name are those of an lstm for windows, if it has them, else of an mlp.
        """
        if self.name is not None:
            return self
        small = data.layout == "features" or data.task == "regression" or data.x[0].numel() < 30
        windows = data.layout == "rows" and data.x.ndim == 3
        if windows and not network_form("lstm").read(self.options)[1]:
            name = "lstm"
        else:
            name = "linear" if small and not self.options else "mlp"
        read, wrong = network_form(name).read(self.options)
        if wrong:
            key, what = next(iter(wrong.items()))
            raise ConfigError(f"model.{key} = {self.options[key]!r} {what}; or name the model: model.name")
        return replace(self, name=name, options=read)

    def resolved(self, loss: str) -> dict[str, Any]:
        """The section with nothing left open."""
        assert self.name is not None
        form = network_form(self.name) if self.name in NETWORKS else Form("", {})
        return {"name": self.name, "loss": loss, **spoken(self.options, form)}


def read_top(values: Mapping[str, Any], faults: Faults) -> Top | None:
    """What stands before the first section; also refuses sections that do not exist."""
    own = {key: value for key, value in values.items() if key not in SECTIONS}
    top = Form.of(Top, "an experiment")
    read, wrong = top.read(own)
    for key, what in wrong.items():
        at: Key = (key,)
        if key in SEQUENCE:
            at = ("task", 0) if key == "task" else at
            what = "makes several runs in sequence: load the file with fedloom.experiment.load_experiment"
        elif key not in top.fields:
            what = f"is no setting or section of an experiment; {hint(key, [*top.fields, *SECTIONS, *SEQUENCE])}"
        faults.add(at, what)
    return None if wrong else Top(**read)


def read_method(values: dict[str, Any], faults: Faults) -> tuple[str, Method | None]:
    """The method's name, and the method."""
    name = values.get("name", "fedavg")
    if isinstance(name, str) and ":" in name:
        try:
            lookup(name)
        except ConfigError as error:
            faults.add(("method", "name"), f"cannot be had: {error.__cause__ or error}")
            return "", None
    elif _name(values, ("method",), REGISTER, "method", faults, "fedavg") is None:
        return "", None
    read = _read(values, ("method",), method_form(name), faults)
    return name, None if read is None else lookup(name).cls(**read)


def read_model(values: dict[str, Any], faults: Faults) -> ModelPlan | None:
    """The network by name, its options, the loss."""
    options = {key: value for key, value in values.items() if key not in ("name", "loss")}
    loss = values.get("loss", "auto")
    if loss not in (known := ["auto", *LOSSES]):
        faults.add(("model", "loss"), f"is no loss; {hint(str(loss), known)}")
    name = values.get("name")
    if isinstance(name, str) and ":" in name:
        return ModelPlan(name, options, loss)
    if name is None:  # until the data are known
        fits = not network_form("lstm").read(options)[1] or _read(options, ("model",), network_form("mlp"), faults)
        return ModelPlan(None, options, loss) if fits else None
    if _name({"name": name}, ("model",), NETWORKS, "model (nor your own as module:callable)", faults) is None:
        return None
    read = _read({**options, "name": name}, ("model",), network_form(name), faults)
    return None if read is None else ModelPlan(name, read, loss)


def read_prior(values: dict[str, Any], faults: Faults) -> Prior | None:
    """The earlier run, if there is one."""
    read = _read(values, ("prior",), Form.of(Prior, "the prior"), faults, named=False) if values else None
    return None if read is None else Prior(**read)


def read_selection(values: dict[str, Any], clients: int | None, faults: Faults) -> SelectionPlan | None:
    """Who takes part of so many clients, if their number is known yet."""
    form = Form.of(SelectionPlan, "the selection")
    read = _read(values, ("selection",), form, faults, named=False)
    if read is None:
        return None
    if read["per_round"] is not None and read["fraction"] is not None:
        faults.add(("selection", "fraction"), "cannot be beside selection.per_round: keep one of the two")
    for key in ("per_round", "fraction"):
        if read["name"] == "all" and read[key] is not None:
            faults.add(("selection", key), "cannot be: the selection is 'all'; choose 'uniform' or 'size'")
    if clients is not None and (read["per_round"] or 0) > clients:
        faults.add(("selection", "per_round"), f"cannot be: there are {clients} clients; choose 1 to {clients}")
    if read["fraction"] == 0:
        faults.add(("selection", "fraction"), "should be above 0")
    return SelectionPlan(**read)


def read_schedule(values: dict[str, Any], faults: Faults) -> Schedule | None:
    """Whether the server waits, and what ends the run early."""
    read = _read(values, ("schedule",), Form.of(Schedule, "the schedule"), faults, named=False)
    return None if read is None else Schedule(**read)


def read_fleet(values: dict[str, Any], faults: Faults) -> tuple[Fleet, dict[str, Any]] | None:
    """The fleet, and its section with nothing left open."""
    form = Form.of(Fleet, "the fleet").joined(Form("", {"preset": Field("preset", str, "ideal")}))
    read = _read(values, ("fleet",), form, faults, named=False)
    if read is None:
        return None
    preset = read["preset"]
    if preset not in FLEETS:
        faults.add(("fleet", "preset"), f"is no fleet; {hint(preset, FLEETS)}")
        return None
    given = {key: value for key, value in values.items() if key != "preset"}
    usual = {
        key: str(value) if isinstance(value, Distribution) else value for key, value in vars(FLEETS[preset]).items()
    }
    changed = {key: read[key] for key in given}
    if read["trace"] is not None:
        path = faults.settings.folder_of(("fleet", "trace")) / read["trace"]
        changed["trace"], given["trace"] = str(path), str(path.resolve())
    fleet = replace(FLEETS[preset], **changed)
    return fleet, {"preset": preset, **spoken(usual | given, form)}


def read_stream(values: dict[str, Any], faults: Faults) -> Stream | None:
    """How training rows arrive; None when all are there, or when something is wrong."""
    read = _read(values, ("stream",), Form.of(Stream, "the stream"), faults, named=False) if values else None
    if read is None:
        return None
    stream = Stream(**read)
    for key, what in stream.faults():
        faults.add(("stream", key) if key else ("stream",), what)
    return stream


def read_channel(values: Any, faults: Faults) -> tuple[Channel, list[dict[str, Any]]] | None:
    """The channel's steps in order, and the section with nothing left open."""
    if not _tables(values, ("channel",), faults):
        return None
    transforms: list[Transform] = []
    written: list[dict[str, Any]] = []
    for index, step in enumerate(values):
        name = _name(step, ("channel", index), TRANSFORMS, "step of a channel", faults)
        if name is None:
            continue
        form = Form.of(TRANSFORMS[name], f"the channel step {name!r}")
        read = _read(step, ("channel", index), form, faults)
        if read is not None:
            transforms.append(TRANSFORMS[name](**read))
            written.append({"name": name, **spoken(read, form)})
    return Channel(tuple(transforms)), written


def read_evaluations(values: Any, targets: bool, faults: Faults) -> list[Evaluation]:
    """What is judged. Unless it is said, all target clients are judged too where there are any."""
    if values is None:
        return [Evaluation()] + ([Evaluation(name="target", on="target")] if targets else [])
    listed = isinstance(values, list)
    tables = values if listed else [values]
    if not _tables(tables, ("evaluation",), faults):
        return []
    form = Form.of(Evaluation, "the evaluation", skip=("reference",))
    found: list[Evaluation] = []
    for index, table in enumerate(tables):
        at: Key = ("evaluation", index) if listed else ("evaluation",)
        read = _read(table, at, form, faults, named=False)
        if read is None:
            continue
        _check_evaluation(read, at, targets, faults)
        if read["name"] in [other.name for other in found]:
            faults.add((*at, "name"), f"needs a name of its own: another one is called {read['name']!r} already")
        found.append(Evaluation(**read))
    return found


def read_execution(values: dict[str, Any], faults: Faults) -> Execution | None:
    """Where the work is done."""
    read = _read(values, ("execution",), Form.of(Execution, "the execution"), faults, named=False)
    if read is None:
        return None
    if read["ray_address"] is not None and read["executor"] == "auto":
        faults.add(("execution", "ray_address"), 'goes with executor = "ray"')
    return Execution(**read)


def resolved_evaluation(evaluation: Evaluation, metrics: Sequence[str]) -> dict[str, Any]:
    """An [evaluation] section with nothing left open."""
    form = Form.of(Evaluation, "the evaluation", skip=("reference",))
    return spoken({key: getattr(evaluation, key) for key in form.fields} | {"metrics": list(metrics)}, form)


def method_form(name: str) -> Form:
    """The hyper-parameters of a method."""
    return Form.of(lookup(name).cls, f"the method {name!r}")


def foreign(given: Iterable[str], method: str, others: Iterable[str]) -> list[str]:
    """Those of the hyper-parameters given for all methods that this one lacks and one of the others has."""
    known = {name: set(method_form(name).fields) for name in (method, *others) if name in REGISTER or ":" in name}
    anywhere: set[str] = set().union(*known.values())
    return [key for key in given if key != "name" and key in anywhere and key not in known.get(method, anywhere)]


def network_form(name: str) -> Form:
    """The options of a network that has a name."""
    return Form.of(NETWORKS[name], f"the model {name!r}", skip=("shape", "outputs"))


def _check_evaluation(read: dict[str, Any], at: Key, targets: bool, faults: Faults) -> None:
    for metric in read["metrics"] or ():
        if base_name(metric) not in METRICS:
            faults.add((*at, "metrics"), f"has no metric {metric!r}; {hint(metric, METRICS)}")
    for key in ("split", "adapt_split"):
        if read[key] not in (None, *SPLITS):
            faults.add((*at, key), f"is no split; {hint(read[key], SPLITS)}")
    if read["on"] != "source" and not targets:
        faults.add((*at, "on"), "cannot be: no client is a target; give data.target a share, such as 0.2")


def _read(values: Mapping[str, Any], at: Key, form: Form, faults: Faults, named: bool = True) -> dict[str, Any] | None:
    """The fields of a form from a section; None when something is wrong with them."""
    read, wrong = form.read({key: value for key, value in values.items() if not (named and key == "name")})
    for key, what in wrong.items():
        faults.add((*at, key), what)
    return None if wrong else read


def _name(
    values: Mapping[str, Any],
    at: Key,
    known: Mapping[str, Any],
    what: str,
    faults: Faults,
    default: str | None = None,
) -> str | None:
    """The name that a section gives, if something has that name."""
    name = values.get("name", default)
    if name is None:
        faults.add(at, f"has no name; choose one of {', '.join(known)}")
    elif not isinstance(name, str) or name not in known:
        faults.add((*at, "name"), f"is no {what}; {hint(str(name), known)}")
    else:
        return name
    return None


def _tables(values: Any, at: Key, faults: Faults) -> bool:
    if isinstance(values, list) and all(isinstance(value, dict) for value in values):
        return True
    faults.add(at, f"should be a table: write [[{at[0]}]] above its keys")
    return False
