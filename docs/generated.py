"""The parts of the pages that are read off the code, so that they stay true.

A page says where such a part belongs, and this file says what it is::

    <!-- generated: parameters fedavg -->
    …
    <!-- end -->

``fill`` puts in what the code says today. ``docs/build.py`` does so for every page, and a test fails while a page that
is kept in the repository says something else.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer
from charts import charts, falls
from charts import systems as timed

import fedloom
from fedloom.channel import TRANSFORMS
from fedloom.cli import app
from fedloom.cli.flags import FLAGS
from fedloom.conformance import DECLARATIONS
from fedloom.data import SOURCES, STEPS, beijing, cifar, extrasensory, hapt, landmine, load_file, mnist, vehicle
from fedloom.engine.evaluation import Evaluation
from fedloom.engine.fleet import FLEETS, Fleet
from fedloom.engine.schedule import Schedule
from fedloom.experiment.data import Division
from fedloom.experiment.forms import Field, Form
from fedloom.experiment.sections import Execution, Prior, SelectionPlan, Top, method_form, network_form
from fedloom.experiment.tasks import Continual, TaskPlan
from fedloom.experiment.words import type_words, value_text
from fedloom.federation.losses import LOSSES
from fedloom.federation.metrics import METRICS
from fedloom.federation.networks import NETWORKS
from fedloom.federation.streams import Stream
from fedloom.methods import REGISTER
from fedloom.report.runs import read_record
from fedloom.reproduce import plan, read_plan, tables
from fedloom.reproduce.shelf import recorded, shipped
from fedloom.tracking import TRACKERS

DOCS = Path(__file__).parent
LISTED = DOCS.parent / "src/fedloom/methods/listed.pyi"
PICTURES = DOCS / "curves"
_REGION = re.compile(r"<!-- generated: (?P<what>[^>]+?) -->\n.*?<!-- end -->", re.DOTALL)
_CURVES = re.compile(r"<!-- generated: curves (?P<name>\S+) -->")
_CODE_WITH_BAR = re.compile(r"`([^`]*\|[^`]*)`")
_EXAMPLE = re.compile(r"\n\n(?: {4}.*\n?|\n)+\Z")
"""The Python at the end of a docstring, which means nothing in an experiment file."""
_ROLE = re.compile(r":(?:func|class|attr|meth|mod):`~?([^`]+)`")


def pages() -> list[Path]:
    """Every page of the documentation, and the README."""
    return [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]


def fill(text: str) -> str:
    """A page with all of its generated parts as the code has them now."""
    return _REGION.sub(lambda found: _region(found["what"]), text)


def _region(what: str) -> str:
    name, *arguments = what.split()
    return f"<!-- generated: {what} -->\n\n{_PARTS[name](*arguments).strip()}\n\n<!-- end -->"


# Experiment files


def parameters(name: str) -> str:
    """The hyper-parameters of a method."""
    return _fields(method_form(name).fields.values())


def section(name: str) -> str:
    """A section of an experiment file whose keys are always the same."""
    takers: dict[str, Callable[..., Any]] = {
        "table": plan.Head,
        "measure": plan.Measure,
        "column": plan.Column,
        "row": plan.Row,
        "improvement": plan.Improvement,
        "published": plan.Published,
        "tune": plan.Tuning,
        "quick": plan.Haste,
        "top": Top,
        "data": Division,
        "selection": SelectionPlan,
        "schedule": Schedule,
        "fleet": Fleet,
        "stream": Stream,
        "evaluation": Evaluation,
        "execution": Execution,
        "prior": Prior,
        "continual": Continual,
        "task": TaskPlan,
    }
    return _fields(Form.of(takers[name], name, skip=("reference", "options")).fields.values())


def file_options() -> str:
    """The keys of [data] for the user's own file."""
    return _fields(Form.of(load_file, "", skip=("path", "name", "like")).fields.values())


def source_options() -> str:
    """The keys of [data] that belong to one data set."""
    rows = []
    for source in SOURCES.values():
        for field in Form.of(source.load, "").fields.values():
            if field.name not in ("clients", "seed"):
                rows.append((f"`{source.name}`", *_field(field)[:3]))
    return _table(("Data set", "Key", "Type", "Default"), rows)


def partition_options() -> str:
    """Each step of a partition: what it does, and its keys."""
    return "\n\n".join(_described(f"`{name}`", step) for name, step in STEPS.items())


def network_options() -> str:
    """Each network that has a name: what it is, and its keys."""
    parts = []
    for name, build in NETWORKS.items():
        fields = network_form(name).fields.values()
        parts.append(f"#### `{name}`\n\n{_doc(build)}" + (f"\n\n{_fields(fields)}" if fields else ""))
    return "\n\n".join(parts)


def method_options() -> str:
    """The hyper-parameters of every method."""
    parts = [f"#### `{name}`\n\n{entry.summary}." for name, entry in REGISTER.items()]
    return "\n\n".join(f"{part}\n\n{parameters(name)}" for part, name in zip(parts, REGISTER, strict=True))


def channel_options() -> str:
    """Each step of a channel."""
    return "\n\n".join(_described(f"`{name}`", step) for name, step in TRANSFORMS.items())


def tracker_options() -> str:
    """Each tracker."""
    return "\n\n".join(_described(f"`{name}`", tracker) for name, tracker in TRACKERS.items())


def presets() -> str:
    """The fleets that have a name, side by side."""
    rows = []
    for field in dataclasses.fields(Fleet):
        values = [getattr(fleet, field.name) for fleet in FLEETS.values()]
        rows.append((f"`{field.name}`", *(f"`{_default(value)}`" for value in values)))
    return _table(("Key", *(f"`{name}`" for name in FLEETS)), rows)


def losses() -> str:
    """The losses, what they compute, and for which tasks."""
    rows = [(f"`{name}`", _doc(type(loss)), ", ".join(loss.tasks)) for name, loss in LOSSES.items()]
    return _table(("Loss", "Of one row", "Tasks"), rows)


def metrics() -> str:
    """The metrics, for which tasks, and which way is better."""
    rows = [
        (f"`{name}`", ", ".join(metric.tasks), "higher" if metric.higher_is_better else "lower")
        for name, metric in METRICS.items()
    ]
    return _table(("Metric", "Tasks", "Better"), rows)


# Methods and data sets


def register(folder: str = "") -> str:
    """The methods; ``folder`` is where their pages are, seen from the page that has this table."""
    rows = [
        (f"[`{e.name}`]({folder}{e.name}.md)", e.summary, e.family, e.paper, str(len(DECLARATIONS[e.name].claims)))
        for e in REGISTER.values()
    ]
    return _table(("Method", "What it does", "Family", "Paper", "Known answers checked"), rows)


def claims(name: str) -> str:
    """The known answers of a method, and the hardships under which each is checked again."""
    rows = [(claim.name, ", ".join(claim.survives) or "–") for claim in DECLARATIONS[name].claims]
    return _table(("Known answer", "Checked again when replies are"), rows)


def needs_rounds() -> str:
    """The methods that cannot take replies as they arrive, and why."""
    found = {name: entry.cls().needs_rounds for name, entry in REGISTER.items()}
    rows = [(f"[`{name}`](../methods/{name}.md)", why) for name, why in found.items() if why]
    return _table(("Method", "Why not"), rows) if rows else "There is no such method today."


def sources() -> str:
    """The data sets: what they are."""
    rows = [
        (f"`{s.name}`", s.summary, s.task, s.rows, s.features, "yes" if s.natural else "–") for s in SOURCES.values()
    ]
    return _table(("Name", "What it is", "Task", "Rows", "Features", "Own clients"), rows)


def origins() -> str:
    """The data sets: where they come from."""
    rows = [(f"`{s.name}`", s.origin, s.licence) for s in SOURCES.values()]
    return _table(("Name", "Comes from", "Licence"), rows)


def files() -> str:
    """The published files that are looked for in ``$FEDLOOM_DATA``."""
    rows = [(f"`mnist/{file.file}`", f"{file.length:,}") for file in mnist.MNIST]
    rows += [(f"`fashion-mnist/{file.file}`", f"{file.length:,}") for file in mnist.FASHION_MNIST]
    rows += [(f"`qmnist/{file.file}`", f"{file.length:,}") for file in mnist.QMNIST]
    rows += [
        (f"`{archive.folder}/` and in it the files of `{archive.file}`", _archive_length(archive.length))
        for archive in (cifar.CIFAR10, cifar.CIFAR100, beijing.BEIJING_AIR, extrasensory.EXTRASENSORY, hapt.HAPT)
    ]
    rows += [(f"`vehicle/{vehicle.VEHICLE.file}`", "not stated")]
    rows += [(f"`landmine/{landmine.LANDMINE.file}`", f"{landmine.LANDMINE.length:,}")]
    return _table(("File below `$FEDLOOM_DATA`", "Bytes of its content"), rows)


def _archive_length(length: int | None) -> str:
    return "not stated" if length is None else f"{length:,} (the archive)"


# Results


def _recorded(name: str) -> dict[str, Any]:
    return {"columns": [], "cells": []} | read_record(recorded(shipped() / f"{name}.toml"))


def results(name: str) -> str:
    """The recorded result of a table of experiments, as far as there is one."""
    command = f"`fedloom reproduce {name} --record`"
    record = _recorded(name)
    if not record["cells"]:
        head = read_plan(shipped() / f"{name}.toml").head
        return f"{head.about.strip()}\n\nNot recorded yet; {command} does it."
    parts = [record["about"].strip(), *map(_grid, tables.grids(record))]
    parts += ["\n".join(f"- {note}" for note in tables.notes(record))]
    parts += [f"{tables.progress(record)}; fedloom {record['fedloom']}; {command} makes it again."]
    return "\n\n".join(filter(None, parts))


def curves(name: str) -> str:
    """How the values of a recorded result came about, a picture for each column that has some."""
    return "\n\n".join(f"![{title}]({PICTURES.name}/{file})" for title, file, _ in charts(_recorded(name)))


def pictures() -> dict[Path, str]:
    """Every picture that the pages show of recorded results, and what belongs into its file."""
    names = [found["name"] for page in pages() for found in _CURVES.finditer(page.read_text(encoding="utf-8"))]
    drawn = [picture for name in names for picture in charts(_recorded(name))] + list(falls(_found("rate")))
    there = [name for name in SYSTEMS if (shipped() / f"results/{name}.json").is_file()]
    drawn += [picture for name in there for picture in timed(name, _found(name))]
    return {PICTURES / file: svg for _, file, svg in drawn}


def _grid(grid: tables.Grid) -> str:
    rows = [
        (name, *("<br>".join([f"**{word.line}**" if word.best else word.line, *word.below]) for word in line))
        for name, line in zip(grid.rows, grid.body, strict=True)
    ]
    return f"**{grid.title}**\n\n{_table(('', *grid.columns), rows)}"


# The command line


def commands() -> str:
    """Every command with its arguments and options."""
    return "\n\n".join(_command(path, callback) for path, callback in _callbacks(app, "fedloom"))


def _callbacks(group: typer.Typer, path: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    for command in group.registered_commands:
        assert command.callback is not None
        yield f"{path} {command.name or command.callback.__name__}", command.callback
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from _callbacks(inner.typer_instance, f"{path} {inner.name}")


def _command(path: str, callback: Callable[..., Any]) -> str:
    found = [_parameter(p) for p in inspect.signature(callback, eval_str=True).parameters.values()]
    listed = [p for p in found if p is not None]
    arguments = [p for p in listed if not p.option]
    usage = " ".join([path, *(p.shown if p.required else f"[{p.shown}]" for p in arguments), "[OPTIONS]"])
    parts = [f"## {path}", _doc(callback), f"```text\n{usage}\n```"]
    if arguments:
        parts.append(_table(("Argument", "Meaning"), [(f"`{p.shown}`", p.help) for p in arguments]))
    panels = dict.fromkeys(p.panel for p in listed if p.option)
    for panel in panels:
        rows = [(f"`{p.shown}`", p.help, p.key) for p in listed if p.option and p.panel == panel]
        parts.append(f"**{panel}**")
        keyed = any(key for *_, key in rows)
        heads = ("Option", "Meaning", "Sets the key") if keyed else ("Option", "Meaning")
        parts.append(_table(heads, rows if keyed else [row[:2] for row in rows]))
    return "\n\n".join(parts)


@dataclasses.dataclass(frozen=True)
class Listed:
    """An argument or option as the page shows it."""

    shown: str
    help: str
    option: bool
    required: bool
    panel: str
    key: str


_KEYS = {flag.option: flag.key for flag in FLAGS}


def _parameter(parameter: inspect.Parameter) -> Listed | None:
    annotation = parameter.annotation
    if get_origin(annotation) is not Annotated:
        return None  # typer's own context
    kind, info = get_args(annotation)[:2]
    option = isinstance(info, typer.models.OptionInfo)
    name = _option_name(parameter.name, info)
    shown = (
        " ".join([name, info.metavar or _metavar(kind)]).strip() if option else (info.metavar or parameter.name.upper())
    )
    key = _KEYS.get(name, "") if info.rich_help_panel else ""
    return Listed(
        shown,
        " ".join((info.help or "").split()),
        option,
        parameter.default is inspect.Parameter.empty,
        info.rich_help_panel or "Options",
        f"`{key}`" if key else "",
    )


def _option_name(parameter: str, info: Any) -> str:
    """The name that the option was given; inside ``Annotated`` typer still has it in the place of the default."""
    given = [word for word in (info.default, *(info.param_decls or ())) if isinstance(word, str)]
    return given[0] if given else "--" + parameter.replace("_", "-")


def _metavar(kind: Any) -> str:
    kinds = {part for part in (get_args(kind) or (kind,)) if part is not type(None)}
    for one, word in ((bool, ""), (int, "N"), (float, "X"), (str, "TEXT"), (Path, "PATH")):
        if one in kinds:
            return word
    return "…"


# The Python interface


def listed() -> str:
    """The file that tells type checkers which methods there are; at run time the register does."""
    names = sorted((entry.cls.__module__, entry.cls.__name__) for entry in REGISTER.shipped())
    lines = [f"from {module} import {name} as {name}" for module, name in names]
    return "\n".join(["# Written by docs/build.py from the register of methods.", *lines, ""])


_CHAPTERS = {
    "fedloom.data": "Data",
    "fedloom.federation": "Models and problems",
    "fedloom.methods": "Methods",
    "fedloom.engine": "Runs",
    "fedloom.comparison": "Comparisons",
    "fedloom.tuning": "Tuning",
    "fedloom.search": "Spaces of hyper-parameters",
    "fedloom.experiment": "Adaptation",
    "fedloom.prediction": "Prediction",
    "fedloom.storage": "Saved models",
    "fedloom.channel": "Channel",
    "fedloom.report": "Report",
    "fedloom.tracking": "Trackers",
    "fedloom.sklearn": "Estimators",
}

_ELSEWHERE = dict.fromkeys(("Method", "NodeMethod", "ServerMethod"), "[The contract](contract.md) has all of it.")


def api() -> str:
    """Every public name of ``fedloom``, chapter by chapter."""
    parts = []
    for package, title in _CHAPTERS.items():
        names = [name for name, home in _homes().items() if f"{home}.".startswith(f"{package}.")]
        parts += [f"## {title}", *(_documented(name) for name in names)]
    return "\n\n".join(parts)


def _homes() -> dict[str, str]:
    return {**fedloom._HOMES, **dict.fromkeys(sorted(e.cls.__name__ for e in REGISTER.shipped()), "fedloom.methods")}


def _documented(name: str) -> str:
    if name in _ELSEWHERE:
        return f"### `fedloom.{name}`\n\n{_doc(getattr(fedloom, name)).partition(chr(10))[0]} {_ELSEWHERE[name]}"
    return f"::: {_home(name)}\n    options:\n      heading: fedloom.{name}\n      toc_label: {name}"


def _home(name: str) -> str:
    thing = getattr(fedloom, name)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        return f"{thing.__module__}.{thing.__qualname__}"
    return f"{_homes()[name]}.{name}"


# Words and tables


def _described(title: str, taker: Callable[..., Any]) -> str:
    fields = Form.of(taker, "").fields.values()
    words = _EXAMPLE.sub("", _doc(taker))
    return f"#### {title}\n\n{words}" + (f"\n\n{_fields(fields)}" if fields else "")


def _fields(fields: Iterable[Field]) -> str:
    rows = [_field(field) for field in fields]
    if not any(meaning for *_, meaning in rows):
        return _table(("Key", "Type", "Default"), [row[:3] for row in rows])
    return _table(("Key", "Type", "Default", "Meaning"), rows)


def _field(field: Field) -> tuple[str, str, str, str]:
    default = "must be given" if field.default is ... else f"`{_default(field.default)}`"
    return f"`{field.name}`", type_words(field.annotation), default, field.meaning


def _default(value: Any) -> str:
    """A default as an experiment file would have it."""
    return "none" if value is None else value_text(value)


def _doc(thing: Any) -> str:
    """A docstring as Markdown."""
    return _ROLE.sub(lambda role: f"`{role[1].rpartition('.')[2]}`", inspect.cleandoc(thing.__doc__ or ""))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    """A text that stays in its cell: a bar would end it, also inside code."""
    coded = _CODE_WITH_BAR.sub(lambda code: f"<code>{code[1].replace('|', '&#124;')}</code>", " ".join(text.split()))
    return coded.replace("|", "\\|")


def mixture() -> str:
    """Rounds of the ways to solve the mixture problem, a row for each problem, as experiments/mixture.py found them."""
    found = _found("mixture")
    columns = list(dict.fromkeys(column for row in found.values() for column in row))
    rows = [(way, *(str(row.get(column, "–")) for column in columns)) for way, row in found.items()]
    return _table(("Rounds", *columns), rows)


def levels() -> str:
    """The first round in which the curves of d4-fedmeta, and with a personal layer of d4-personal, reach a level."""
    curves = {
        cell["title"]: cell["curve"] for name in ("d4-fedmeta", "d4-personal") for cell in _recorded(name)["cells"]
    }
    rows = []
    for column, marks in (("MNIST", (80, 90, 95, 98)), ("CIFAR-10", (60, 65, 70, 80))):
        for method in ("FedAvg", "FedAvgMeta", "FedMeta(MAML)", "FedMeta(Meta-SGD)"):
            both = [curves.get(f"{method}{layer} / {column}") for layer in ("", "+Per")]
            if all(both):
                reached = (" → ".join(_first(curve, mark) for curve in both) for mark in marks)
                rows.append(
                    (f"{method}, {column}", ", ".join(f"{m} %: {r}" for m, r in zip(marks, reached, strict=True)))
                )
    return _table(("", "rounds without → with a last layer of one's own"), rows)


def _first(curve: dict[str, Any], level: float) -> str:
    return next((f"{at:g}" for at, value in zip(curve["rounds"], curve["values"], strict=True) if value >= level), "–")


def rate() -> str:
    """The slopes that experiments/rate.py found, what is stated, and the pictures."""
    found = _found("rate")
    stated = ("stated, of the two terms", *found["stated"].values())
    rows = [(name, *(_slope(*of[axis]) for axis in "TKN")) for name, of in found["slopes"].items()]
    shown = "\n\n".join(f"![{title}]({PICTURES.name}/{file})" for title, file, _ in falls(found))
    heads = ("Slope of the error in", "rounds T", "local steps K", "clients N")
    return f"{_table(heads, [stated, *rows])}\n\n{shown}"


SYSTEMS = ("d3-stragglers", "d3-heterogeneity", "d3-faults")
"""The programs by the MOCHA paper's cost model."""


def systems(name: str) -> str:
    """The times that a program of the MOCHA paper's cost model found, a row for each line of a panel; and pictures."""
    if not (shipped() / f"results/{name}.json").is_file():
        return f"Not recorded yet: `fedloom reproduce {name} --record`."
    found, rows = _found(name), []
    for panel, lines in found["panels"].items():
        for line, one in lines.items():
            seconds = "–" if one["seconds"] is None else f"{one['seconds']:,.0f}"
            rows.append((panel, line, seconds, str(one["rounds"]), f"{one['last']:.2g}"))
    shown = "\n\n".join(f"![{title}]({PICTURES.name}/{file})" for title, file, _ in timed(name, found))
    heads = ("Panel", "Line", f"time to {found['level']:g}", "rounds", "gap at the end")
    return f"{_table(heads, rows)}\n\n{shown}"


def _slope(run: float, expected: float) -> str:
    return f"{run:+.2f} ({expected:+.2f})".replace("-", "−")


def _found(name: str) -> dict[str, Any]:
    """What a program among the experiments has recorded."""
    known: dict[str, Any] = json.loads((shipped() / f"results/{name}.json").read_text(encoding="utf-8"))
    return known


_PARTS: dict[str, Callable[..., str]] = {
    "api": api,
    "channel-options": channel_options,
    "claims": claims,
    "commands": commands,
    "curves": curves,
    "file-options": file_options,
    "files": files,
    "levels": levels,
    "losses": losses,
    "method-options": method_options,
    "metrics": metrics,
    "mixture": mixture,
    "needs-rounds": needs_rounds,
    "network-options": network_options,
    "origins": origins,
    "parameters": parameters,
    "partition-options": partition_options,
    "presets": presets,
    "rate": rate,
    "register": register,
    "results": results,
    "section": section,
    "source-options": source_options,
    "sources": sources,
    "systems": systems,
    "tracker-options": tracker_options,
}
