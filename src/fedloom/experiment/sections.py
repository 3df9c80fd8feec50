"""All sections but [data]: the top of the file, the model, the method, who takes part, and how it is evaluated and run.

Each function reads one section, adds to the faults what cannot be, and returns what the section means.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from fedloom.channel import TRANSFORMS, Channel, Transform
from fedloom.engine.evaluation import Evaluation
from fedloom.engine.fleet import FLEETS, Distribution, Fleet
from fedloom.engine.schedule import Schedule
from fedloom.engine.selection import SELECTIONS, BySize, Selection, Uniform, counts, selection_for
from fedloom.errors import ConfigError
from fedloom.execution import EXECUTORS, TOLD, executor_for
from fedloom.experiment.faults import Faults
from fedloom.experiment.forms import NONE, Field, Form, spoken
from fedloom.experiment.words import hint
from fedloom.federation.data import FederatedData
from fedloom.federation.losses import LOSSES
from fedloom.federation.metrics import METRICS, base_name
from fedloom.federation.networks import NETWORKS
from fedloom.federation.streams import Stream
from fedloom.methods import REGISTER, Method, lookup
from fedloom.methods.method import inner_methods
from fedloom.register import OWN
from fedloom.types import Count, Fraction, Key, NonNegative

ALL_UP_TO, DEFAULT_COUNT = 20, 10
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
    """How many rounds; none: the method's default, 50 for most."""
    dtype: Literal["float32", "float64"] | None = None
    """The numbers of the model; none: the method's default, float32 for most."""

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

    executor: Annotated[str, EXECUTORS] = "auto"
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
    options: dict[str, Any] = field(default_factory=dict)
    """Of an executor of the user's own."""

    def arguments(self, rounds: int) -> dict[str, Any]:
        """What ``train`` is to be told."""
        told = {key: value for key, value in vars(self).items() if key != "options"}
        if self.options:
            told["executor"] = executor_for(self.executor, rounds, self.workers, self.ray_address, **self.options)
        return told

    def resolved(self) -> dict[str, Any]:
        """The section with nothing left open."""
        told = {key: value for key, value in vars(self).items() if key != "options"}
        return spoken(told | self.options, _EXECUTION)


_EXECUTION = Form.of(Execution, "the execution", skip=("options",))


@dataclass(frozen=True)
class SelectionPlan:
    """Who takes part in a round, before it is known how many clients there are."""

    name: Annotated[str, SELECTIONS] | None = None
    """Each client as likely as any other, in proportion to its rows, or everybody."""
    per_round: Count | None = None
    """How many clients take part in a round."""
    fraction: Fraction | None = None
    """Which share of the clients takes part in a round."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of a selection of the user's own."""

    def settled(self, clients: int) -> tuple[str, int]:
        """The selection's name and the number a round, for so many clients."""
        wanted = self.per_round
        if self.fraction is not None:
            wanted = max(1, round(self.fraction * clients))
        name = self.name or "uniform"
        rule = SELECTIONS.find(name)
        if not counts(rule):
            return name, clients
        if wanted is None and clients <= ALL_UP_TO:
            return "all" if rule in (Uniform, BySize) else name, clients
        return name, wanted or DEFAULT_COUNT

    def make(self, clients: int) -> Selection:
        """The selection."""
        return selection_for(*self.settled(clients), **self.options)

    def resolved(self, clients: int) -> dict[str, Any]:
        """The section with nothing left open."""
        name, count = self.settled(clients)
        return {"name": name} | ({"per_round": count} if counts(SELECTIONS.find(name)) else {}) | self.options


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
        return {"name": self.name, "loss": loss, **spoken(self.options, network_form(self.name))}


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


def read_method(values: dict[str, Any], faults: Faults, at: Key = ("method",)) -> tuple[str, Method | None]:
    """The method's name, and the method; one that wraps another has a table for it: ``[method.inner]``."""
    name = values.get("name", "fedavg")
    entry = faults.find(REGISTER, name, (*at, "name"))
    if entry is None:
        return "", None
    inner = {}
    for field_ in inner_methods(entry.cls):
        table = values.get(field_, {})
        if isinstance(table, dict):
            inner[field_] = read_method(table, faults, (*at, field_))[1]
        else:
            faults.add((*at, field_), f"should be a table: write [{'.'.join(map(str, at))}.{field_}] above its keys")
            inner[field_] = None
    own = {key: value for key, value in values.items() if key not in inner}
    read = _read(own, at, method_form(name), faults)
    if read is None or None in inner.values():
        return name, None
    return name, entry.cls(**read, **inner)


def written_method(method: Method, name: str | None = None) -> dict[str, Any]:
    """The table of a method with nothing left open, that of the method which it wraps inside it."""
    cls = type(method)
    name = name or REGISTER.name_of(cls) or f"{cls.__module__}{OWN}{cls.__qualname__}"
    inner = {key: getattr(method, key) for key in inner_methods(cls)}
    own = {key: value for key, value in vars(method).items() if key not in inner}
    tables = {key: written_method(value) for key, value in inner.items()}
    return {"name": name, **spoken(own, method_form(name)), **tables}


def read_model(values: dict[str, Any], faults: Faults) -> ModelPlan | None:
    """The network by name, its options, the loss."""
    options = {key: value for key, value in values.items() if key not in ("name", "loss")}
    loss = values.get("loss", "auto")
    if loss != "auto":
        faults.find(LOSSES, loss, ("model", "loss"))
    name = values.get("name")
    if name is None:  # until the data are known
        fits = not network_form("lstm").read(options)[1] or _read(options, ("model",), network_form("mlp"), faults)
        return ModelPlan(None, options, loss) if fits else None
    if faults.find(NETWORKS, name, ("model", "name")) is None:
        return None
    read = _read(options, ("model",), network_form(name), faults)
    if read is None:
        return None
    return ModelPlan(name, {key: read[key] for key in options} if OWN in name else read, loss)


def read_prior(values: dict[str, Any], faults: Faults) -> Prior | None:
    """The earlier run, if there is one."""
    read = _read(values, ("prior",), Form.of(Prior, "the prior"), faults, named=False) if values else None
    return None if read is None else Prior(**read)


def read_selection(values: dict[str, Any], clients: int | None, faults: Faults) -> SelectionPlan | None:
    """Who takes part of so many clients, if their number is known yet."""
    name = values.get("name", "uniform")
    rule = faults.find(SELECTIONS, "uniform" if name == NONE else name, ("selection", "name"))
    if rule is None:
        return None
    form = Form.of(SelectionPlan, "the selection", skip=("options",))
    own = Form.of(rule, "the selection", skip=("count", *form.fields))
    read = _read(values, ("selection",), form.joined(own), faults, named=False)
    if read is None:
        return None
    options = {key: read.pop(key) for key in own.fields}
    if read["per_round"] is not None and read["fraction"] is not None:
        faults.add(("selection", "fraction"), "cannot be beside selection.per_round: keep one of the two")
    for key in ("per_round", "fraction"):
        if read[key] is not None and not counts(rule):
            faults.add(("selection", key), f"cannot be: the selection is {name!r}; choose 'uniform' or 'size'")
    if clients is not None and (read["per_round"] or 0) > clients:
        faults.add(("selection", "per_round"), f"cannot be: there are {clients} clients; choose 1 to {clients}")
    if read["fraction"] == 0:
        faults.add(("selection", "fraction"), "should be above 0")
    return SelectionPlan(**read, options=options)


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
    fleet = faults.find(FLEETS, preset, ("fleet", "preset"))
    if fleet is None:
        return None
    given = {key: value for key, value in values.items() if key != "preset"}
    usual = {key: str(value) if isinstance(value, Distribution) else value for key, value in vars(fleet).items()}
    changed = {key: read[key] for key in given}
    if read["trace"] is not None:
        path = faults.settings.folder_of(("fleet", "trace")) / read["trace"]
        changed["trace"], given["trace"] = str(path), str(path.resolve())
    fleet = replace(fleet, **changed)
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
        name = step.get("name")
        if name is None:
            faults.add(("channel", index), f"has no name; choose {TRANSFORMS.words()}")
            continue
        made = faults.find(TRANSFORMS, name, ("channel", index, "name"))
        if made is None:
            continue
        form = Form.of(made, f"the channel step {name!r}")
        read = _read(step, ("channel", index), form, faults)
        if read is not None:
            transforms.append(made(**read))
            written.append({"name": name, **spoken(read, form)})
    return Channel(tuple(transforms)), written


def read_evaluations(values: Any, targets: bool, faults: Faults) -> list[Evaluation]:
    """What is evaluated. Unless it is said, all target clients are evaluated too where there are any."""
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
    chosen = faults.find(EXECUTORS, values.get("executor", "auto"), ("execution", "executor"))
    if chosen is None:
        return None
    shipped = chosen in EXECUTORS.shipped()
    own = Form("", {}) if shipped else Form.of(chosen, "the executor", skip=(*TOLD, *_EXECUTION.fields))
    read = _read(values, ("execution",), _EXECUTION.joined(own), faults, named=False)
    if read is None:
        return None
    options = {key: read.pop(key) for key in own.fields}
    if read["ray_address"] is not None and read["executor"] == "auto":
        faults.add(("execution", "ray_address"), 'goes with executor = "ray"')
    return Execution(**read, options=options)


def resolved_evaluation(evaluation: Evaluation, metrics: Sequence[str]) -> dict[str, Any]:
    """An [evaluation] section with nothing left open."""
    form = Form.of(Evaluation, "the evaluation", skip=("reference",))
    return spoken({key: getattr(evaluation, key) for key in form.fields} | {"metrics": list(metrics)}, form)


def method_form(name: str) -> Form:
    """The hyper-parameters of a method."""
    cls = lookup(name).cls
    return Form.of(cls, f"the method {name!r}", skip=inner_methods(cls))


def foreign(given: Iterable[str], method: str, others: Iterable[str]) -> list[str]:
    """Those of the hyper-parameters given for all methods that this one lacks and one of the others has."""
    known = {name: set(method_form(name).fields) for name in (method, *others) if name in REGISTER or OWN in name}
    anywhere: set[str] = set().union(*known.values())
    return [key for key in given if key != "name" and key in anywhere and key not in known.get(method, anywhere)]


def network_form(name: str) -> Form:
    """The options of a network: all that it takes after the shape of a row and the number of outputs."""
    build = NETWORKS.find(name)
    taken = list(inspect.signature(build).parameters.values())
    form = Form.of(build, f"the model {name!r}", skip=tuple(parameter.name for parameter in taken[:2]))
    return replace(form, open=any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken))


def _check_evaluation(read: dict[str, Any], at: Key, targets: bool, faults: Faults) -> None:
    for metric in read["metrics"] or ():
        with faults.collecting((*at, "metrics")):
            METRICS.find(base_name(metric))
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


def _tables(values: Any, at: Key, faults: Faults) -> bool:
    if isinstance(values, list) and all(isinstance(value, dict) for value in values):
        return True
    faults.add(at, f"should be a table: write [[{at[0]}]] above its keys")
    return False
