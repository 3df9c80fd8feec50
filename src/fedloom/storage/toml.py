"""Writes TOML, which Python can only read; what TOML lacks is refused by its name."""

from __future__ import annotations

from typing import Any

import tomli_w

from fedloom.errors import ConfigError


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
