"""Where tuning looks: what methods declare beside their hyper-parameters, and what the user says instead."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_type_hints

from fedloom.errors import ConfigError
from fedloom.experiment import parse_value
from fedloom.methods import Method
from fedloom.methods.given import COMMA
from fedloom.register import hint
from fedloom.search import Search, search_of

Space = dict[str, Search]
"""For each setting by its full key ("method.lr") where to look for it."""
Values = dict[str, Any]
"""A value for each setting of a space."""
_LOG = ":log"
_METHOD = "method."
_OTHERWISE = {
    "seed": "the seeds are --seed and --repeats",
    "rounds": "all trials have the same number of rounds: --rounds",
    "name": "it decides nothing",
    "method.name": "the methods are the first arguments",
}
_FIXED = ("data", "evaluation", "execution", "prior", "stream", "task", "continual")
"""Sections that say by what trials are compared, or where the work is done."""


def parse_space(text: str) -> tuple[str, Search]:
    """``method.lr=0.001..1:log`` or ``method.epochs=1,2,5`` as a key and where to look."""
    name = f"--space {text}"
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not key or not values:
        raise ConfigError(f"{name}: write a range as method.lr=0.001..1:log, or choices as method.epochs=1,2,5")
    low, dots, high = values.removesuffix(_LOG).partition("..")
    if dots:
        found = Search(parse_value(low.strip()), parse_value(high.strip()), values.endswith(_LOG))
    else:
        found = Search(choices=tuple(parse_value(value.strip()) for value in COMMA.split(values)))
    found.check(name)
    return key, found


def read_space(given: Mapping[str, Any]) -> Space:
    """A space from Python: Search objects, (low, high) or (low, high, "log"), lists of choices, or texts."""
    found = {}
    for key, value in given.items():
        if isinstance(value, str):
            _, found[key] = parse_space(f"{key}={value}")
            continue
        if isinstance(value, Search):
            found[key] = value
        elif isinstance(value, tuple) and len(value) in (2, 3) and value[2:] in ((), ("log",)):
            found[key] = Search(value[0], value[1], log=len(value) == 3)
        elif isinstance(value, list) and value:
            found[key] = Search(choices=tuple(value))
        else:
            raise ConfigError(
                f"space: {key} = {value!r} is no space; give (0.001, 1, 'log'), (1, 10), a list of choices or a Search"
            )
        found[key].check(f"space: {key}")
    return found


def declared(method: Method, prefix: str = _METHOD) -> Space:
    """Where a method says that its hyper-parameters are to be looked for; of one that it wraps as well."""
    hints, found = get_type_hints(type(method), include_extras=True), Space()
    for field in dataclasses.fields(method):  # type: ignore[arg-type]
        value = getattr(method, field.name)
        if isinstance(value, Method):
            found |= declared(value, f"{prefix}{field.name}.")
        elif (search := search_of(hints[field.name])) is not None:
            found[f"{prefix}{field.name}"] = search
    return found


def known_keys(method: Method, prefix: str = _METHOD) -> list[str]:
    """The full keys of all hyper-parameters."""
    found = []
    for field in dataclasses.fields(method):  # type: ignore[arg-type]
        value, key = getattr(method, field.name), f"{prefix}{field.name}"
        found += known_keys(value, f"{key}.") if isinstance(value, Method) else [key]
    return found


def check_keys(given: Iterable[str], methods: Sequence[Method]) -> None:
    """Refuse what cannot be tuned, and what no method has."""
    for key in given:
        section, dot, _ = key.partition(".")
        if key in _OTHERWISE:
            raise ConfigError(f"the space has {key}, which is not tuned: {_OTHERWISE[key]}")
        if section in _FIXED:
            raise ConfigError(f"the space has {key}: trials with other [{section}] cannot be compared; leave it out")
        known = [name for method in methods for name in known_keys(method)]
        if dot and section == "method" and key not in known:
            near = hint(key.removeprefix(_METHOD), [name.removeprefix(_METHOD) for name in dict.fromkeys(known)])
            raise ConfigError(f"the space has {key}, which is no hyper-parameter of any of these methods; {near}")


def space_for(method: Method, given: Space, fixed: Iterable[str]) -> Space:
    """Where to look for the settings of one method: as it declares, unless the user says otherwise or fixed a value."""
    known, held = known_keys(method), set(fixed)
    own = {key: search for key, search in declared(method).items() if key not in held and key not in given}
    return own | {key: search for key, search in given.items() if key in known or not key.startswith(_METHOD)}
