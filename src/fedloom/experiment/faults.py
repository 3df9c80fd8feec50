"""Everything that is wrong with an experiment, gathered, and then said at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from fedloom.errors import ConfigError, FedloomError, Unfit, Untrusted
from fedloom.experiment.forms import Form
from fedloom.experiment.settings import Settings
from fedloom.experiment.words import value_text
from fedloom.register import OWN, Register, import_fault
from fedloom.types import Key

E = TypeVar("E")


class Faults:
    """What is wrong: each with its key, its value and the place where it was set."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.texts: list[str] = []

    def add(self, key: Key, what: str) -> None:
        """One more; ``what`` goes on after the key and its value ("should be a number above 0")."""
        name = ".".join(map(str, key))
        value = self.settings.get(key)
        shown = "" if value is None or isinstance(value, dict) else f" = {value_text(value)}"
        place = self.settings.place(key)
        self.texts.append(f"{f'{place}: ' if place else ''}{name}{shown} {what}")

    def find(self, register: Register[E], name: Any, key: Key) -> E | None:
        """What a name, or the import path of the user's own, stands for; a fault and None if it stands for nothing."""
        if not isinstance(name, str) or (OWN not in name and name not in register):
            self.add(key, f"is no {register.kind}; {register.hint(str(name))}")
            return None
        try:
            return register.find(name)
        except ConfigError as error:
            self.add(key, f"cannot be had: {import_fault(error.__cause__ or error)}")
            return None

    def table(self, key: Key) -> dict[str, Any]:
        """The table of a key, empty where there is none; a fault if something else stands there."""
        values = self.settings.get(key)
        if values is None or isinstance(values, dict):
            return values or {}
        header = ".".join(part for part in key if isinstance(part, str))
        self.add(key, f"should be a table: write [{header}] above its keys")
        return {}

    def read(self, form: Form, values: Mapping[str, Any], at: Key) -> dict[str, Any] | None:
        """The fields of a form from the table of a key; faults and None if something is wrong with them."""
        read, wrong = form.read(values)
        for name, what in wrong.items():
            self.add((*at, name), what)
        return None if wrong else read

    @contextmanager
    def collecting(self, *keys: Key) -> Iterator[None]:
        """An error inside the block is about the first of these keys that the user has set, else about the first."""
        try:
            yield
        except Untrusted:
            raise
        except FedloomError as error:
            written = [self._written(key) for key in keys]
            given = [key for key in written if self.settings.get(key) is not None]
            self.add((given or written)[0], error.what if isinstance(error, Unfit) else f"cannot be: {error}")

    def _written(self, key: Key) -> Key:
        """The key as the file has it: a single evaluation is a table, not a list of one."""
        single = key[:1] == ("evaluation",) and not isinstance(self.settings.values.get("evaluation"), list)
        return (key[0], *key[2:]) if single and len(key) > 1 and isinstance(key[1], int) else key

    @contextmanager
    def about(self, *keys: Key) -> Iterator[None]:
        """An error inside the block is raised with the place of the first of these keys that the user has set."""
        try:
            yield
        except FedloomError as error:
            for key in keys:
                if key in self.settings.places:
                    place = f"{self.settings.places[key]}: " if self.settings.places[key] else ""
                    raise type(error)(f"{place}{'.'.join(map(str, key))}: {error}") from error
            raise

    def stop(self) -> None:
        """Raise what was found, if anything was."""
        stop_at(self.texts)


class Impossible(ConfigError):
    """Several settings cannot be; ``faults`` has one text for each."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join([f"{len(faults)} settings cannot be:", *(f"  {fault}" for fault in faults)]))
        self.faults = tuple(faults)


def each_fault(error: FedloomError) -> tuple[str, ...]:
    """What an error says, one text for each thing that is wrong."""
    return error.faults if isinstance(error, Impossible) else (str(error),)


def stop_at(faults: Iterable[str]) -> None:
    """Raise these faults as one error, if there are any."""
    found = list(faults)
    if found:
        raise ConfigError(found[0]) if len(found) == 1 else Impossible(found)
