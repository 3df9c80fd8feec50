"""The docstrings of the public names: they name every parameter, and their examples run."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import fedloom
from fedloom.experiment.forms import field_meanings

THINGS = {name: getattr(fedloom, name) for name in fedloom.__all__}
METHODS = {entry.cls for entry in fedloom.methods.REGISTER.shipped()}  # each has a page, with an example that runs
DESCRIBED = {
    name: thing
    for name, thing in THINGS.items()
    if inspect.isfunction(thing) or (inspect.isclass(thing) and thing not in METHODS)
}
_CODE = re.compile(r"^(?: {4}.*\n?|\n)+", re.MULTILINE)


def doc_of(thing: object) -> str:
    return inspect.getdoc(thing) or ""


def example(thing: object) -> str:
    """The last indented block of a docstring."""
    blocks = [block for block in _CODE.findall(doc_of(thing)) if block.strip()]
    return inspect.cleandoc(blocks[-1]) if blocks else ""


@pytest.mark.parametrize("name", DESCRIBED)
def test_the_example_of_a_public_name_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = example(DESCRIBED[name])
    assert "fedloom." in code
    monkeypatch.chdir(tmp_path)
    module = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)
    exec(compile(f"import fedloom\n{code}", f"the docstring of fedloom.{name}", "exec"), module.__dict__)


@pytest.mark.parametrize("name", DESCRIBED)
def test_every_parameter_of_a_public_name_is_described(name: str) -> None:
    thing = DESCRIBED[name]
    known = {} if isinstance(thing, FunctionType) else field_meanings(thing)
    parameters = [] if inspect.isabstract(thing) else list(inspect.signature(thing).parameters)
    assert not [one for one in parameters if one not in known and f"``{one}``" not in doc_of(thing)]


@pytest.mark.parametrize("name", [name for name, thing in DESCRIBED.items() if inspect.isfunction(thing)])
def test_every_public_function_says_what_it_gives_back(name: str) -> None:
    assert re.search(r"\bresult (is|has)\b|\bis returned\b", doc_of(DESCRIBED[name]))
