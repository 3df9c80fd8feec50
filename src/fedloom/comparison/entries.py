"""The lines of a comparison's table: methods, each with settings of its own, and sweeps that make several of one."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedloom.errors import ConfigError
from fedloom.experiment import foreign, parse_value
from fedloom.experiment.words import value_text
from fedloom.methods import REGISTER, Method, method_of, name_of
from fedloom.methods.given import COMMA, split_name
from fedloom.storage.files import slug

_GIVEN_OTHERWISE = {"seed": "seeds", "method.name": "methods"}


@dataclass(frozen=True)
class Entry:
    """One line of the table: a method and the settings that are its own."""

    text: str
    """What it is called."""
    method: str
    """The method's name, or its import path."""
    own: tuple[tuple[str, Any], ...] = ()
    """Settings by their full keys, and their values."""
    made: Method | None = None
    """The method itself, where it was given as an object."""
    named: str = ""
    """What it was before its user gave it a name of his own; nothing where he did not."""

    @property
    def asked(self) -> str:
        """All that was asked for, by which a comparison is known again."""
        return f"{self.text}={self.named}" if self.named else self.text

    def called(self, name: str) -> Entry:
        """The same by a name that its user chose."""
        if not name.strip():
            raise ConfigError(f"{self.text!r} is to have an empty name; write it as NAME=METHOD")
        return replace(self, text=name.strip(), named=self.text)

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return slug(self.text)

    def having(self, values: Mapping[str, Any]) -> Entry:
        """The same with further settings of its own."""
        if not values:
            return self
        for key in values:
            if key in dict(self.own):
                raise ConfigError(f"{self.text!r} has {key} of its own, which is to be swept; keep one of the two")
        said = ",".join(f"{key.removeprefix('method.')}={_said(value)}" for key, value in values.items())
        bare = self.named or self.text in (self.method, self.made and name_of(self.made))
        return replace(self, text=f"{self.text}{':' if bare else ','}{said}", own=(*self.own, *values.items()))


def entries_of(given: str | Method | Sequence[str | Method] | Mapping[str, str | Method]) -> list[Entry]:
    """The entries of texts and methods, in a dict by the names that they are to have."""
    if isinstance(given, Mapping):
        return [entry_of(one).called(name) for name, one in given.items()]
    return [entry_of(one) for one in ([given] if isinstance(given, str | Method) else given)]


def entry_of(given: object) -> Entry:
    """The entry of a text (``fedavg:lr=0.1``) or of a method."""
    if isinstance(given, str):
        return parse_entry(given)
    given = method_of(given)  # or what is wrong with it
    cls = type(given)
    registered = name_of(given) in REGISTER and REGISTER[name_of(given)].cls is cls
    fields = dataclasses.fields(given)  # type: ignore[arg-type]
    values = {field.name: getattr(given, field.name) for field in fields}
    changed = {f"method.{f.name}": values[f.name] for f in fields if values[f.name] != f.default}
    plain = Entry(name_of(given), name_of(given) if registered else f"{cls.__module__}:{cls.__qualname__}", made=given)
    return plain.having(changed)


def parse_entry(text: str) -> Entry:
    """``fedavg`` or ``fedavg:epochs=5,lr=0.1``; a key without a section is one of the method's.

    A user's own is ``module:Class`` or ``module:Class:lr=0.1``. ``Ours=module:Class:lr=0.1`` is called "Ours".
    """
    name, equals, rest = text.partition("=")
    if equals and ":" not in name:
        return parse_entry(rest).called(name)
    method, rest = split_name(text)
    own = []
    for part in COMMA.split(rest) if rest else []:
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{text!r}: write settings after the method as {method}:key=value,key=value")
        own.append((key.strip() if "." in key else f"method.{key.strip()}", parse_value(value.strip())))
    return Entry(text, method, tuple(own))


def parse_sweep(text: str) -> tuple[str, list[Any]]:
    """``method.lr=0.1,0.01`` as a key and its values."""
    key, equals, values = text.partition("=")
    if not equals or not key.strip() or not values.strip():
        raise ConfigError(f"--sweep {text}: write it as section.key=value,value, such as --sweep method.lr=0.1,0.01")
    return key.strip(), [parse_value(value.strip()) for value in COMMA.split(values)]


def swept(entries: Sequence[Entry], sweep: Mapping[str, Sequence[Any]]) -> list[Entry]:
    """Each entry with each combination of the values; one whose method lacks a setting stays as it is in that."""
    for key, values in sweep.items():
        if key in _GIVEN_OTHERWISE:
            raise ConfigError(f"{key} cannot be swept: give {_GIVEN_OTHERWISE[key]}")
        if isinstance(values, str) or not len(values):
            raise ConfigError(f"the sweep over {key} has no list of values; give some, such as [0.1, 0.01]")
    methods, found = [entry.method for entry in entries], list[Entry]()
    hyper = [key.removeprefix("method.") for key in sweep if key.startswith("method.")]
    for entry in entries:
        lacks = [f"method.{key}" for key in foreign(hyper, entry.method, methods)]
        own = {key: values for key, values in sweep.items() if key not in lacks}
        for values in itertools.product(*own.values()):
            found.append(entry.having(dict(zip(own, values, strict=True))))
    return found


def _said(value: Any) -> str:
    """A value as one writes it on a command line."""
    return "none" if value is None else value if isinstance(value, str) else value_text(value)
