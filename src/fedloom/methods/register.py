"""The register of methods: what the command line, experiment files, the conformance kit and the pages know of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedloom.methods.method import Method
from fedloom.register import Register, settings_of, summary_of

if TYPE_CHECKING:
    from fedloom.conformance import Declaration

FAMILIES = ("averaging", "optimisation", "asynchronous", "meta-learning", "personal", "baseline")
"""In the order in which they are listed; others come last."""


@dataclass(frozen=True)
class Entry:
    """A line of the register."""

    name: str
    cls: type[Method]
    family: str = "own"
    paper: str = "–"
    summary: str = ""
    declaration: str | Callable[[], Declaration] | None = None
    """What the conformance kit is to know of it: where that is ("package.module:NAME", ".module:NAME" in the kit's own
    declarations), or a function that gives it."""


def _entry(name: str, cls: type[Method], **facts: Any) -> Entry:
    return Entry(name, cls, **{"summary": summary_of(cls), **facts})


REGISTER: Register[Entry] = Register(
    "method",
    entry=_entry,
    right=settings_of(Method),
    must_be="a dataclass derived from fedloom.Method",
    home="fedloom.methods",
    group="fedloom.methods",
    order=lambda entry: FAMILIES.index(entry.family) if entry.family in FAMILIES else len(FAMILIES),
)
register = REGISTER.register
lookup = REGISTER.find


def name_of(method: Method) -> str:
    """The name under which a method is registered; for a user's own, the name of its class."""
    return REGISTER.name_of(type(method)) or type(method).__name__.lower()
