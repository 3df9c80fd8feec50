"""The glossary's words are those of the code: its links exist, and public names avoid what it says we do not use."""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import typer
from doc_pages import ROOT

import fedloom
import fedloom.channel
import fedloom.engine.evaluation
import fedloom.experiment.data
import fedloom.experiment.sections
import fedloom.experiment.tasks
import fedloom.methods.method
from fedloom.cli import app

PAGE = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
MEANINGS, AVOIDED = PAGE.split("## Words that we do not use")
TERMS = re.findall(r"^\| (?!Word|---)([^|`]+?) \| ([^|]+) \| (?:`([\w.]+)`|–) \|$", MEANINGS, re.MULTILINE)
NOT_USED = {
    word for first in re.findall(r"^\| (`[^|]+) \|", AVOIDED, re.MULTILINE) for word in re.findall(r"\w+", first)
}
MODULES = (
    fedloom.channel,
    fedloom.engine.evaluation,
    fedloom.experiment.data,
    fedloom.experiment.sections,
    fedloom.experiment.tasks,
    fedloom.methods.method,
)


def words(name: str) -> set[str]:
    """The words that a name is made of: by underscores, hyphens and capitals."""
    return {part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def ours(thing: object) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("fedloom")


def parameters(thing: Any) -> list[str]:
    return list(inspect.signature(thing).parameters)


def of_class(cls: type) -> Iterator[str]:
    """The names of a class: its attributes, fields and parameters."""
    yield from (f"{cls.__name__}.{name}" for name in dir(cls) if not name.startswith("_"))
    if dataclasses.is_dataclass(cls):
        yield from (f"{cls.__name__}.{field.name}" for field in dataclasses.fields(cls))
    for name, value in inspect.getmembers_static(cls):
        function = getattr(value, "__func__", value)
        if inspect.isfunction(function) and ours(function) and (name == "__init__" or not name.startswith("_")):
            yield from (f"{cls.__name__}.{name}.{parameter}" for parameter in parameters(function))


def of_thing(name: str, thing: Any) -> Iterator[str]:
    yield name
    if inspect.isclass(thing):
        yield from of_class(thing)
    elif inspect.isfunction(thing):
        yield from (f"{name}.{parameter}" for parameter in parameters(thing))


def of_module(module: ModuleType) -> Iterator[str]:
    for name, thing in vars(module).items():
        if not name.startswith("_") and (ours(thing) or name.isupper()):
            yield from of_thing(name, thing)


def of_command(command: Any) -> Iterator[str]:
    """The names of commands and of their options and arguments."""
    for name, inner in getattr(command, "commands", {}).items():
        yield name
        yield from of_command(inner)
    for parameter in command.params:
        yield from (parameter.name, *parameter.opts)


def public_names() -> set[str]:
    found = {name for public in fedloom.__all__ for name in of_thing(public, getattr(fedloom, public))}
    found |= {name for module in MODULES for name in of_module(module)}
    return found | set(of_command(typer.main.get_command(app)))


def test_public_names_use_no_word_that_the_glossary_avoids() -> None:
    found = {name for name in public_names() if words(name.rpartition(".")[2]) & NOT_USED}
    assert found == set()


def test_the_names_looked_at_are_those_of_classes_functions_sections_and_flags() -> None:
    expected = {
        "Evaluation.split",
        "train.theta0",
        "Fleet.speed",
        "Method.settle.sent",
        "Top.dtype",
        "--target-clients",
    }
    assert expected <= public_names()
    assert words("max_steps") | words("FedAvgM") | words("--eval-every") == {
        "max",
        "steps",
        "fed",
        "avg",
        "m",
        "eval",
        "every",
    }


def test_the_glossary_gives_each_word_one_meaning() -> None:
    terms = [term for term, _, _ in TERMS]
    assert len(terms) > 50
    assert len(terms) == len(set(terms))
    assert not NOT_USED & set(terms) - {"device"}  # which it has for what torch and the world call so


@pytest.mark.parametrize(("term", "path"), [(term, path) for term, _, path in TERMS if path])
def test_what_a_word_stands_for_exists(term: str, path: str) -> None:
    assert pkgutil.resolve_name(path) is not None, term
