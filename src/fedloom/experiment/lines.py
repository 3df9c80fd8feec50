"""Where each key of a TOML text stands, which Python's own reader does not tell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fedloom.storage import toml
from fedloom.types import Key

_TEXTS = re.compile(r""" "(?:[^"\\]|\\.)*" | '[^']*' | \#.* """, re.VERBOSE)
"""Texts of one line, and comments."""
_LONG = ('"""', "'''")
"""Where a text of several lines begins or ends."""
_EFFORT = 20_000_000
"""Characters that are read again to find where texts of several lines end: more than any settings need."""


def key_lines(text: str) -> dict[Key, int]:
    """The line, counted from 1, of every key and every table header of a valid TOML text."""
    found: dict[Key, int] = {}
    table: Key = ()
    arrays: dict[Key, int] = {}
    for line, statement in _statements(text):
        parsed = toml.loads(statement)
        if statement.lstrip().startswith("["):
            table = _table(next(_paths(parsed)), arrays, repeated=statement.lstrip().startswith("[["))
            found.setdefault(table, line)
        else:
            for path in _paths(parsed):
                for depth in range(1, len(path) + 1):
                    found.setdefault((*table, *path[:depth]), line)
    return found


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each header and each ``key = value`` with its first line; one goes on until it is valid TOML by itself."""
    waiting, start, brackets, long, effort = list[str](), 0, 0, False, 0
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if not waiting:
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            start, brackets, long = number, 0, False
        waiting.append(line)
        bare = _TEXTS.sub("", line)
        brackets, long = brackets + bare.count("[") - bare.count("]"), long or any(mark in line for mark in _LONG)
        if brackets and not long:  # a list that goes on
            continue
        statement = "\n".join(waiting)
        effort += len(statement)
        if effort > len(text) + _EFFORT:
            raise toml.TomlFault("a text goes on over too many lines; put it on fewer", start)
        if _complete(statement):
            yield start, statement
            waiting = []


def _complete(statement: str) -> bool:
    try:
        toml.loads(statement)
    except toml.TomlFault:
        return False
    return True


def _paths(table: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The ways to the ends of a nested table; a header's table is empty at its end."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from ((key, *rest) for rest in _paths(value))
        else:
            yield (key,)


def _table(path: tuple[str, ...], arrays: dict[Key, int], repeated: bool) -> Key:
    """The place of a header: [x.y] below [[x]] is in the last x; each [[x]] is one more."""
    place: Key = ()
    for depth, name in enumerate(path, 1):
        place = (*place, name)
        if repeated and depth == len(path):
            arrays[place] = arrays.get(place, -1) + 1
        if place in arrays:
            place = (*place, arrays[place])
    return place
