"""Writes TOML, which Python can only read."""

from __future__ import annotations

import math
import re
from typing import Any

from fedloom.errors import ConfigError

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SHORT = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def dumps(table: dict[str, Any]) -> str:
    """A table of texts, numbers, booleans, lists and tables as TOML that reads back equal.

    Simple values come before tables, as TOML demands; a list of tables is written as ``[[name]]``. TOML has no null:
    None, and anything else it cannot express, is a ConfigError that names the key.
    """
    return "\n".join(_table(table, ())).lstrip("\n") + "\n"


def _table(table: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    simple = {key: value for key, value in table.items() if not _is_section(value)}
    lines = [f"{_key(key, path)} = {_value(value, (*path, key))}" for key, value in simple.items()]
    for key, value in table.items():
        if key not in simple:
            lines += _section(value, (*path, key))
    return lines


def _section(value: dict[str, Any] | list[dict[str, Any]], path: tuple[str, ...]) -> list[str]:
    name = ".".join(_key(key, path) for key in path)
    if isinstance(value, dict):
        return ["", f"[{name}]", *_table(value, path)]
    return [line for item in value for line in ("", f"[[{name}]]", *_table(item, path))]


def _is_section(value: Any) -> bool:
    """A table, or a list of nothing but tables."""
    return isinstance(value, dict) or (
        isinstance(value, list | tuple) and len(value) > 0 and all(isinstance(item, dict) for item in value)
    )


def _key(key: Any, path: tuple[str, ...]) -> str:
    if not isinstance(key, str):
        raise ConfigError(f"The key {key!r} in {_place(path)} is not a text: TOML has only texts as keys.")
    return key if _BARE.fullmatch(key) else _text(key, path)


def _value(value: Any, path: tuple[str, ...]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item, path) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key, path)} = {_value(item, (*path, key))}" for key, item in value.items()) + "}"
    raise ConfigError(f"{_place(path)} is of type {type(value).__name__}, which TOML cannot express: leave it out.")


def _number(value: float) -> str:
    if math.isnan(value):
        return "nan"
    return repr(float(value))


def _text(text: str, path: tuple[str, ...]) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{_place(path)}: {text!r} is not valid Unicode, which TOML demands.") from None
    return '"' + "".join(_SHORT.get(c) or (f"\\u{ord(c):04x}" if c < " " or c == "\x7f" else c) for c in text) + '"'


def _place(path: tuple[str, ...]) -> str:
    return ".".join(map(str, path)) or "the top level"
