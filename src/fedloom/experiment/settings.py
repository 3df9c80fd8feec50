"""Settings as the user gave them: a file, flags, ``--set key=value``, the later winning; and where each came from."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedloom.errors import ConfigError
from fedloom.experiment.lines import key_lines
from fedloom.storage import toml
from fedloom.types import Key

_LARGEST = 16_000_000
"""Bytes of a file with settings: more than a list of a million sizes has."""
_DEEPEST, _DIGITS = 40, 9
"""Names in a key, and digits of a number among them."""
_DOTTED = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


@dataclass(frozen=True)
class Override:
    """A value for one key ("method.lr"), and what to call it in an error ("--lr"; "" where the key says it all)."""

    key: str
    value: Any
    place: str

    def refused(self, at: Key, what: str) -> ConfigError:
        """What is wrong with the way to its key, as an error."""
        return ConfigError(f"{self.place or self.key}: {'.'.join(map(str, at))} {what}")


Overrides = Iterable[Override] | Mapping[str, Any]
"""Changes to settings: in their order, or by their full keys, ``{"method.lr": 0.1}``."""


@dataclass
class Settings:
    """Nested tables of values, as in a TOML file, and for each key where it was set."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Key, str] = field(default_factory=dict)
    file: Path | None = None

    @staticmethod
    def read(path: str | Path | None, overrides: Overrides = ()) -> Settings:
        """The settings of a file, if there is one, and then the overrides in their order."""
        settings = Settings() if path is None else _from_file(Path(path))
        if isinstance(overrides, Mapping):
            overrides = [Override(key, value, "") for key, value in overrides.items()]
        for override in overrides:
            settings.set(override)
        return settings

    def copied(self) -> Settings:
        """The same settings, to be changed without changing these."""
        return Settings(copy.deepcopy(self.values), dict(self.places), self.file)

    def set(self, override: Override) -> None:
        """Set one value; tables on the way are made, and a way through a list without a number means all of it."""
        way = override.key.split(".")
        if len(way) > _DEEPEST:
            raise ConfigError(f"{override.place[:60] or override.key[:60]}…: no setting is so deep")
        self._put(self.values, (), way, override)

    def _put(self, table: Any, at: Key, rest: list[str], override: Override) -> None:
        name, *further = rest
        if isinstance(table, list):
            if name.isdecimal() and (len(name) > _DIGITS or int(name) >= len(table)):
                raise override.refused(at, f"has {len(table)} entries, counted from 0")
            chosen = [int(name)] if name.isdecimal() else range(len(table))
            for index in chosen:
                self._put(table[index], (*at, index), further if name.isdecimal() else rest, override)
            return
        if not isinstance(table, dict):
            raise override.refused(at, "is a value, not a table with keys of its own")
        if further:
            self._put(table.setdefault(name, {}), (*at, name), further, override)
            return
        table[name] = override.value
        self._forget((*at, name))
        self.places[(*at, name)] = override.place

    def rename(self, key: Key, name: str) -> None:
        """Give a setting another name, its value and its place staying what they are."""
        table = self.get(key[:-1])
        table[name] = table.pop(key[-1])
        if key in self.places:
            self.places[(*key[:-1], name)] = self.places.pop(key)

    def _forget(self, key: Key) -> None:
        for known in [known for known in self.places if known[: len(key)] == key]:
            del self.places[known]

    def part(self, key: Key, without: Collection[str] = ()) -> Settings:
        """The table at a key as settings of their own, with their places, perhaps without some of its keys."""
        found = self.get(key)
        table = found if isinstance(found, dict) else {}
        values = {name: value for name, value in table.items() if name not in without}
        depth = len(key)
        below = {known[depth:]: place for known, place in self.places.items() if known[:depth] == key}
        places = {known: place for known, place in below.items() if known and known[0] in values}
        return Settings(copy.deepcopy(values), places, self.file)

    def overlaid(self, above: Settings) -> Settings:
        """These settings with others laid over them: tables are merged, unless the one above has another name."""
        found = self.copied()
        found._lay((), found.values, copy.deepcopy(above.values), above)
        return found

    def _lay(self, at: Key, table: dict[str, Any], values: dict[str, Any], above: Settings) -> None:
        for name, value in values.items():
            key, below = (*at, name), table.get(name)
            if isinstance(below, dict) and isinstance(value, dict) and not _renamed(below, value):
                self._lay(key, below, value, above)
                continue
            table[name] = value
            self._forget(key)
            self.places |= {known: place for known, place in above.places.items() if known[: len(key)] == key}

    def place(self, key: Key) -> str | None:
        """Where a key was set, or else the table that it is in; None for what nobody has set."""
        for depth in range(len(key), 0, -1):
            if key[:depth] in self.places:
                return self.places[key[:depth]]
        return None

    def folder_of(self, key: Key) -> Path:
        """Where a relative path in this setting starts: beside the file that has it, or else in the working folder."""
        said = self.place(key) or ""
        return self.file.parent if self.file is not None and said.startswith(f"{self.file}:") else Path()

    def get(self, key: Key) -> Any:
        """The value of a key, None where it was not set."""
        value: Any = self.values
        for name in key:
            try:
                value = value[name]
            except (KeyError, IndexError, TypeError):
                return None
        return value


def _renamed(below: dict[str, Any], above: dict[str, Any]) -> bool:
    return "name" in below and "name" in above and below["name"] != above["name"]


def parse_set(text: str) -> Override:
    """``method.lr=0.1`` as an override; the value is TOML, and a bare word is a text."""
    key, equals, value = text.partition("=")
    place = f"--set {text}"
    if not equals or not _DOTTED.fullmatch(key.strip()):
        raise ConfigError(f"{place}: write it as section.key=value, such as --set method.lr=0.1")
    return Override(key.strip(), parse_value(value.strip()), place)


def parse_value(text: str) -> Any:
    """A value as TOML has it; what is no TOML is a text."""
    try:
        parsed = toml.loads(f"value = {text}")
    except toml.TomlFault:
        return text
    return parsed["value"] if set(parsed) == {"value"} else text


def _from_file(path: Path) -> Settings:
    if path.is_dir():
        raise ConfigError(
            f"{path} is a folder: give an experiment file (such as {path / 'config.toml'}), "
            f"or go on with a run by `fedloom resume {path}`"
        )
    try:
        with open(path, "rb") as file:
            content = file.read(_LARGEST + 1)  # of a device there may be no end
        text = content.decode().replace("\r\n", "\n")
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}; check the path") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text: byte {error.start} is not UTF-8; give a TOML file") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > _LARGEST:
        raise ConfigError(
            f"{path} is larger than {_LARGEST // 10**6} MB, which no experiment file is; give a TOML file"
        )
    try:
        values, lines = toml.loads(text), key_lines(text)
    except toml.TomlFault as fault:
        raise ConfigError(f"{path}:{fault.line}: {fault.what}") from None
    if values.get("made_by") == "python":
        raise ConfigError(
            f"{path} belongs to a run that was made from Python, whose data and model are not in the file; "
            "go on with it from there: train(…, out=…, resume=True)"
        )
    places = {key: f"{path}:{line}" for key, line in lines.items()}
    return Settings(values, places, path)
