"""All sections but [data]: the top of the file, the model, the method, who takes part, and how it is evaluated and run.

Each function reads one section, adds to the faults what cannot be, and returns what the section means.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeVar

from fedloom.channel import TRANSFORMS, Channel, Transform
from fedloom.engine.decision import Decision
from fedloom.engine.evaluation import Evaluation
from fedloom.engine.fleet import FLEETS, Distribution, Fleet
from fedloom.engine.schedule import Schedule
from fedloom.engine.selection import SELECTIONS, BySize, Selection, Uniform, counts, selection_for
from fedloom.errors import ConfigError
from fedloom.execution import CPU_ONLY, EXECUTORS, TOLD, executor_for
from fedloom.experiment.data import data_form
from fedloom.experiment.faults import Faults
from fedloom.experiment.forms import NONE, Field, Form, spoken
from fedloom.experiment.settings import Settings
from fedloom.experiment.words import hint
from fedloom.federation.data import FederatedData
from fedloom.federation.losses import LOSSES
from fedloom.federation.metrics import metric_of
from fedloom.federation.networks import EMBEDDED, NETWORKS
from fedloom.federation.streams import Stream
from fedloom.methods import REGISTER, Method, lookup, name_of
from fedloom.methods.given import AT_HOME, kept_at_home
from fedloom.methods.method import inner_methods
from fedloom.methods.personal import Personal
from fedloom.register import OWN, Register
from fedloom.tracking import TRACKERS, Tracker
from fedloom.tracking import name_of as tracker_name
from fedloom.trust import refuse_strangers
from fedloom.types import Count, Fraction, Key, NonNegative

T = TypeVar("T")
FormOf = Callable[[Mapping[str, Any]], Form]
"""Which settings a section has, given what its table says."""
ALL_UP_TO, DEFAULT_COUNT = 20, 10
"""Unless a number is given, everybody takes part in a round where clients are at most 20, and 10 of them otherwise."""
SPLITS = (
    *("train", "validation", "test", "support", "query"),
    *("validation-support", "validation-query", "test-support", "test-query"),
)
_OWN_CLUSTERS = (None, "local", "auto")
"""Ray's addresses of a cluster that this user, or this machine, has named."""
DEFAULT_METHOD = "fedavg"
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
    decision: Decision | None = None
    """Of yes or no, from which probability on a row is a yes: a number; or what the threshold is to make best on the
    validation rows. None: the likelier."""

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
        """What a prepared run is to be told."""
        told = {key: value for key, value in vars(self).items() if key not in ("options", "stack", "on_error")}
        if self.options:
            told["executor"] = executor_for(self.executor, rounds, self.workers, self.ray_address, **self.options)
        return told

    def resolved(self) -> dict[str, Any]:
        """The section with nothing left open."""
        told = {key: value for key, value in vars(self).items() if key != "options"}
        return spoken(told | self.options, SECTIONS["execution"]({}))


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
    class_weights: Any = None
    """What a row of each class counts for: "balanced", a list, or a table by the classes' names."""

    def settled(self, data: FederatedData, method: Method) -> ModelPlan:
        """With a network chosen: the method's, if it needs a certain one; else lstm for windows, linear for columns,
        regression and few features, else an mlp.

        Options without a name are those of an lstm for windows, if it has them, else of an mlp.
        """
        if self.name is not None:
            return self
        if (wanted := method.default_model) is not None:
            read, wrong = network_form(wanted).read(self.options)
            if not wrong:
                return replace(self, name=wanted, options=read)
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
        weights = {} if self.class_weights is None else {"class_weights": self.class_weights}
        return {"name": self.name, "loss": loss, **weights, **spoken(self.options, network_form(self.name))}


def read_top(faults: Faults) -> Top | None:
    """What stands before the first section; also refuses sections that do not exist."""
    top = Form.of(Top, "an experiment")
    read, wrong = top.read({key: value for key, value in faults.settings.values.items() if key not in SECTIONS})
    for key, what in wrong.items():
        at: Key = (key,)
        if key in SEQUENCE:
            at = ("task", 0) if key == "task" else at
            what = "makes several runs in sequence: load the file with fedloom.experiment.load_experiment"
        elif key not in top.fields:
            what = f"is no setting or section of an experiment; {hint(key, [*top.fields, *SECTIONS, *SEQUENCE])}"
        faults.add(at, what)
    return None if wrong else Top(**read)


def read_plain(taker: Callable[..., T], key: str, faults: Faults, needed: bool = True) -> T | None:
    """A section that is nothing but the fields of its taker; None when it is empty and not ``needed``, or wrong."""
    values = faults.table((key,))
    read = faults.read(SECTIONS[key](values), values, (key,)) if values or needed else None
    return None if read is None else taker(**read)


def read_method(faults: Faults, at: Key = ("method",)) -> tuple[str, Method | None]:
    """The method's name, and the method; one that wraps another has a table for it: ``[method.inner]``."""
    values = faults.table(at)
    name = values.get("name", DEFAULT_METHOD)
    entry = faults.find(REGISTER, name, (*at, "name"))
    if entry is None:
        return "", None
    inner = {key: read_method(faults, (*at, key))[1] for key in inner_methods(entry.cls)}
    at_home = AT_HOME in values and AT_HOME not in method_form(name).fields
    read = faults.read(method_form(name), _without(values, "name", *inner, *[AT_HOME] * at_home), at)
    if read is None or None in inner.values():
        return name, None
    method = entry.cls(**read, **inner)
    if not at_home:
        return name, method
    wrapped: Method | None = None
    with faults.collecting((*at, AT_HOME)):
        wrapped = kept_at_home(method, name, values[AT_HOME])
    return name_of(wrapped) if wrapped else name, wrapped


def titled(method: Method, name: str) -> str:
    """What a method is called in reports: one with personal layers by the method inside."""
    if not isinstance(method, Personal):
        return name
    layers = method.layers if isinstance(method.layers, str) else ", ".join(method.layers)
    return f"{name_of(method.inner)}, personal {layers}"


def written_method(method: Method, name: str | None = None) -> dict[str, Any]:
    """The table of a method with nothing left open, that of the method which it wraps inside it."""
    cls = type(method)
    name = name or REGISTER.name_of(cls) or f"{cls.__module__}{OWN}{cls.__qualname__}"
    tables = {key: written_method(getattr(method, key)) for key in inner_methods(cls)}
    return {"name": name, **_written(method, method_form(name)), **tables}


@dataclass(frozen=True)
class ByClass:
    """What of the loss is the user's to say beside its name."""

    class_weights: Literal["balanced"] | list[float] | dict[str, float] | None = None
    """What a row counts for by its class: "balanced", a number for each class, or a table by their names; none: all
    rows count the same."""


WEIGHTS = Form.of(ByClass, "the loss")


def read_model(faults: Faults) -> ModelPlan | None:
    """The network by name, its options, the loss."""
    values = faults.table(("model",))
    read, wrong = WEIGHTS.read({key: value for key, value in values.items() if key in WEIGHTS.fields})
    for key, what in wrong.items():
        faults.add(("model", key), what)
    weights = read.get("class_weights")
    options, name = _without(values, "name", "loss", *WEIGHTS.fields), values.get("name")
    loss = values.get("loss", "auto")
    if loss != "auto":
        faults.find(LOSSES, loss, ("model", "loss"))
    if name is None:  # until the data are known
        fits = not network_form("lstm").read(options)[1] or faults.read(network_form("mlp"), options, ("model",))
        return ModelPlan(None, options, loss, weights) if fits else None
    if faults.find(NETWORKS, name, ("model", "name")) is None:
        return None
    found = faults.read(network_form(name), options, ("model",))
    if found is None:
        return None
    return ModelPlan(name, {key: found[key] for key in options} if OWN in name else found, loss, weights)


def read_selection(clients: int | None, faults: Faults) -> SelectionPlan | None:
    """Who takes part of so many clients, if their number is known yet."""
    values = faults.table(("selection",))
    name = values.get("name", "uniform")
    rule = faults.find(SELECTIONS, "uniform" if name == NONE else name, ("selection", "name"))
    if rule is None:
        return None
    read = _read_with_options("selection", values, rule, ("count",), faults)
    if read is None:
        return None
    if read["per_round"] is not None and read["fraction"] is not None:
        faults.add(("selection", "fraction"), "cannot be beside selection.per_round: keep one of the two")
    for key in ("per_round", "fraction"):
        if read[key] is not None and not counts(rule):
            faults.add(("selection", key), f"cannot be: the selection is {name!r}; choose 'uniform' or 'size'")
    if clients is not None and (read["per_round"] or 0) > clients:
        faults.add(("selection", "per_round"), f"cannot be: there are {clients} clients; choose 1 to {clients}")
    if read["fraction"] == 0:
        faults.add(("selection", "fraction"), "should be above 0")
    return SelectionPlan(**read)


def read_fleet(faults: Faults) -> tuple[Fleet, dict[str, Any]] | None:
    """The fleet, and its section with nothing left open."""
    values, form = faults.table(("fleet",)), SECTIONS["fleet"]({})
    read = faults.read(form, values, ("fleet",))
    fleet = None if read is None else faults.find(FLEETS, read["preset"], ("fleet", "preset"))
    if read is None or fleet is None:
        return None
    given = _without(values, "preset")
    usual = {key: str(value) if isinstance(value, Distribution) else value for key, value in vars(fleet).items()}
    changed = {key: read[key] for key in given}
    if read["trace"] is not None:
        path = faults.settings.folder_of(("fleet", "trace")) / read["trace"]
        changed["trace"], given["trace"] = str(path), str(path.resolve())
    return replace(fleet, **changed), {"preset": read["preset"], **spoken(usual | given, form)}


def read_stream(faults: Faults) -> Stream | None:
    """How training rows arrive; None when all are there, or when something is wrong."""
    stream = read_plain(Stream, "stream", faults, needed=False)
    for key, what in () if stream is None else stream.faults():
        faults.add(("stream", key) if key else ("stream",), what)
    return stream


def read_channel(faults: Faults) -> Channel | None:
    """The channel's steps in order."""
    values = faults.settings.values.get("channel", [])
    if not _tables(values, ("channel",), faults):
        return None
    transforms: list[Transform] = []
    for index, step in enumerate(values):
        name = step.get("name")
        if name is None:
            faults.add(("channel", index), f"has no name; choose {TRANSFORMS.words()}")
            continue
        made = faults.find(TRANSFORMS, name, ("channel", index, "name"))
        if made is None:
            continue
        read = faults.read(SECTIONS["channel"](step), _without(step, "name"), ("channel", index))
        if read is not None:
            transforms.append(made(**read))
    return Channel(tuple(transforms))


def written_channel(channel: Channel, settings: Settings) -> dict[str, Any]:
    """The section with nothing left open; nothing of a channel that changes nothing."""
    tables = settings.values.get("channel", [])
    steps = [
        {"name": table["name"], **_written(step, SECTIONS["channel"](table))}
        for table, step in zip(tables, channel.transforms, strict=True)
    ]
    return {"channel": steps} if steps else {}


def read_evaluations(targets: bool, faults: Faults, apart: bool = False) -> list[Evaluation]:
    """What is evaluated. Unless it is said, all target clients are evaluated too where there are any; and they alone
    where folds set them ``apart``, for then nobody else has test rows.
    """
    values = faults.settings.values.get("evaluation")
    if values is None and apart:
        return [Evaluation(on="target")]
    if values is None:
        return [Evaluation()] + ([Evaluation(name="target", on="target")] if targets else [])
    found: list[Evaluation] = []
    for at, table in _each_table("evaluation", values, faults):
        read = faults.read(SECTIONS["evaluation"](table), {"on": "target", **table} if apart else table, at)
        if read is None:
            continue
        if apart and read["on"] != "target" and read["split"] is None:
            faults.add((*at, "on"), "cannot be: folds of clients test those who are left out; leave on away")
        _check_evaluation(read, at, targets, faults)
        if read["name"] in [other.name for other in found]:
            faults.add((*at, "name"), f"needs a name of its own: another one is called {read['name']!r} already")
        found.append(Evaluation(**read))
    return found


def read_execution(faults: Faults) -> Execution | None:
    """Where the work is done."""
    values = faults.table(("execution",))
    chosen = faults.find(EXECUTORS, values.get("executor", "auto"), ("execution", "executor"))
    if chosen is None:
        return None
    own = None if chosen in EXECUTORS.shipped() else chosen
    if "device" in values and (own is None or "device" not in Form.of(own, "").fields):
        if values["device"] != "cpu":
            faults.add(("execution", "device"), f"cannot be: {CPU_ONLY}")
            return None
        values = {key: value for key, value in values.items() if key != "device"}
    read = _read_with_options("execution", values, own, TOLD, faults)
    if read is None:
        return None
    if read["ray_address"] not in _OWN_CLUSTERS:
        refuse_strangers(read["ray_address"], f"work on the Ray cluster at {read['ray_address']!r}")
    if read["ray_address"] is not None and read["executor"] == "auto":
        faults.add(("execution", "ray_address"), 'goes with executor = "ray"')
    return Execution(**read)


def read_tracking(faults: Faults) -> list[Tracker]:
    """Who is told of the run; in a folder that may be a stranger's, no place that it names is written to."""
    found: list[Tracker] = []
    for at, table in _each_table("tracking", faults.settings.values.get("tracking", []), faults):
        name = table.get("name")
        if name is None:
            faults.add(at, f"has no name; choose {TRACKERS.words()}")
            continue
        made = faults.find(TRACKERS, name, (*at, "name"))
        read = None if made is None else faults.read(SECTIONS["tracking"](table), _without(table, "name"), at)
        if made is None or read is None:
            continue
        for key, value in read.items():
            if isinstance(value, str) and value != SECTIONS["tracking"](table).fields[key].default:
                refuse_strangers(value, f"track the run by {name}, {key} = {value!r}")
        found.append(made(**read).placed(faults.settings.folder_of(at)))
    return found


def written_tracking(trackers: Sequence[Tracker]) -> dict[str, Any]:
    """The section with nothing left open; nothing of a run that nobody tracks."""
    tables = []
    for tracker in trackers:
        name = tracker_name(tracker)
        tables.append({"name": name, **_written(tracker, SECTIONS["tracking"]({"name": name}))})
    return {"tracking": tables} if tables else {}


def resolved_evaluation(evaluation: Evaluation, metrics: Sequence[str]) -> dict[str, Any]:
    """An [evaluation] section with nothing left open."""
    return _written(evaluation, SECTIONS["evaluation"]({}), metrics=list(metrics))


def method_form(name: str) -> Form:
    """The hyper-parameters of a method."""
    cls = lookup(name).cls
    return Form.of(cls, f"the method {name!r}", skip=inner_methods(cls))


def foreign(given: Iterable[str], method: str, others: Iterable[str]) -> list[str]:
    """Those of the hyper-parameters given for all methods that this one lacks and one of the others has."""
    known = {name: set(method_form(name).fields) for name in filter(REGISTER.knows, (method, *others))}
    anywhere: set[str] = set().union(*known.values())
    return [key for key in given if key != "name" and key in anywhere and key not in known.get(method, anywhere)]


def network_form(name: str) -> Form:
    """The options of a network: all that it takes after the shape of a row and the number of outputs."""
    build = NETWORKS.find(name)
    taken = list(inspect.signature(build).parameters.values())
    skip = (*(parameter.name for parameter in taken[:2]), EMBEDDED)
    form = Form.of(build, f"the model {name!r}", skip=skip)
    return replace(form, open=any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken))


def _check_evaluation(read: dict[str, Any], at: Key, targets: bool, faults: Faults) -> None:
    for metric in read["metrics"] or ():
        with faults.collecting((*at, "metrics")):
            metric_of(metric)
    for key in ("split", "adapt_split"):
        if read[key] not in (None, *SPLITS):
            faults.add((*at, key), f"is no split; {hint(read[key], SPLITS)}")
    if read["on"] != "source" and not targets:
        faults.add((*at, "on"), "cannot be: no client is a target; give data.target a share, such as 0.2")


def _read_with_options(
    key: str, values: dict[str, Any], own: Callable[..., Any] | None, told: Sequence[str], faults: Faults
) -> dict[str, Any] | None:
    """A section's fields and, as its ``options``, those of what it names, but for what that is ``told`` anyway."""
    form = SECTIONS[key](values)
    further = Form("", {}) if own is None else Form.of(own, form.title, skip=(*told, *form.fields))
    read = faults.read(form.joined(further), values, (key,))
    return None if read is None else read | {"options": {name: read.pop(name) for name in further.fields}}


def _each_table(key: str, values: Any, faults: Faults) -> list[tuple[Key, dict[str, Any]]]:
    """The tables of a section of which there may be one or several, each with its place."""
    if isinstance(values, dict):
        return [((key,), values)]
    return [((key, at), table) for at, table in enumerate(values)] if _tables(values, (key,), faults) else []


def _tables(values: Any, at: Key, faults: Faults) -> bool:
    if isinstance(values, list) and all(isinstance(value, dict) for value in values):
        return True
    faults.add(at, f"should be a table: write [[{at[0]}]] above its keys")
    return False


def _written(thing: object, form: Form, **changes: Any) -> dict[str, Any]:
    """The settings of a thing as a file has them, some of them changed."""
    return spoken({key: getattr(thing, key) for key in form.fields} | changes, form)


def _without(values: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def _fields_of(taker: Callable[..., Any], title: str, *skip: str) -> FormOf:
    return lambda table: Form.of(taker, title, skip=skip)


def _named(register: Register[Any], form_of: Callable[[str], Form], usual: str = "") -> FormOf:
    """The form of what a section names; an empty one where that does not exist."""
    return lambda table: form_of(name) if register.knows(name := table.get("name", usual)) else Form("", {})


def _fleet_form(table: Mapping[str, Any]) -> Form:
    """The form of a fleet whose defaults are those of the preset."""
    usual = vars(FLEETS.get(table.get("preset", "ideal"), Fleet()))
    fields = {key: replace(own, default=usual[key]) for key, own in Form.of(Fleet, "").fields.items()}
    return Form("the fleet", fields | {"preset": Field("preset", str, "ideal")})


SECTIONS: dict[str, FormOf] = {
    "data": data_form,
    "model": _named(NETWORKS, network_form),
    "prior": _fields_of(Prior, "the prior"),
    "method": _named(REGISTER, method_form, DEFAULT_METHOD),
    "selection": _fields_of(SelectionPlan, "the selection", "options"),
    "schedule": _fields_of(Schedule, "the schedule"),
    "fleet": _fleet_form,
    "stream": _fields_of(Stream, "the stream"),
    "channel": _named(TRANSFORMS, lambda name: Form.of(TRANSFORMS.find(name), f"the channel step {name!r}")),
    "evaluation": _fields_of(Evaluation, "the evaluation", "reference"),
    "execution": _fields_of(Execution, "the execution", "options"),
    "tracking": _named(TRACKERS, lambda name: Form.of(TRACKERS.find(name), f"the tracker {name!r}")),
}
"""The sections of a file, and which settings each has."""
