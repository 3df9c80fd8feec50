"""Reads TOML of anybody's, and writes it, which Python cannot; what TOML lacks is refused by its name."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import tomli_w

from fedloom.errors import ConfigError
from fedloom.storage.files import nested_deeper

_DEEPEST = 40
"""Tables and lists inside each other: more than any settings have, and less than any reader of them can bear."""


class TomlFault(ValueError):
    """A text is no TOML that can be used: ``what`` says why, and ``line`` where, counted from 1."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(f"line {line}: {what}")
        self.what, self.line = what, line


def loads(text: str) -> dict[str, Any]:
    """The table of a TOML text, or a TomlFault."""
    last = text.count("\n") + 1
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).partition(" (at ")
        line = re.search(r"line (\d+)", where)
        raise TomlFault(f"not valid TOML: {what[:1].lower() + what[1:]}", int(line[1]) if line else last) from None
    except RecursionError:
        raise TomlFault("lists or tables are nested too deep", last) from None
    except ValueError as error:  # a number of more digits than Python reads, or a date that is none
        raise TomlFault(f"not valid TOML: {str(error).partition(';')[0]}", last) from None
    if nested_deeper(table, _DEEPEST):
        raise TomlFault(f"lists or tables are nested deeper than {_DEEPEST}", last)
    return table


def dumps(table: dict[str, Any]) -> str:
    """A table of texts, numbers, booleans, lists and tables as TOML that reads back equal.

    TOML has no null: None, and anything else it cannot express, is a ConfigError that names the key.
    """
    _check(table, ())
    return tomli_w.dumps(table)


def _check(value: Any, path: tuple[str, ...]) -> None:
    place = ".".join(path) or "the top level"
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ConfigError(f"The key {key!r} in {place} is not a text: TOML has only texts as keys.")
            _check(key, path)
            _check(item, (*path, key))
    elif isinstance(value, list | tuple):
        for item in value:
            _check(item, path)
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{place}: {value!r} is not valid Unicode, which TOML demands.") from None
    elif not isinstance(value, int | float):
        raise ConfigError(f"{place} is of type {type(value).__name__}, which TOML cannot express: leave it out.")
