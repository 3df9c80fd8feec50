"""A comparison: which experiments it has, where each belongs, and what of it is done already."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.errors import ConfigError, RunError
from fedloom.storage.files import slug, write_json

if TYPE_CHECKING:
    from fedloom.experiment import Experiment, Settings, TaskSequence

RECORD = "compare.json"
_COMMA = re.compile(r",(?![^\[]*\])")  # not those inside a list


@dataclass(frozen=True)
class Entry:
    """One line of the table: a method and the settings that are its own."""

    text: str
    method: str
    own: tuple[tuple[str, str], ...] = ()

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return slug(self.text)


def parse_entry(text: str) -> Entry:
    """``fedavg`` or ``fedavg:epochs=5,lr=0.1``; a key without a section is one of the method's.

    A user's own is ``module:Class`` or ``module:Class:lr=0.1``.
    """
    from fedloom.methods import REGISTER

    method, colon, rest = text.partition(":")
    if colon and method not in REGISTER and "=" not in rest.partition(":")[0]:
        attribute, colon, rest = rest.partition(":")
        method = f"{method}:{attribute}"
    own = []
    for part in _COMMA.split(rest) if colon else []:
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{text!r}: write settings after the method as {method}:key=value,key=value")
        own.append((key.strip() if "." in key else f"method.{key.strip()}", value.strip()))
    return Entry(text, method, tuple(own))


class Comparison:
    """Entries × seeds under the same settings."""

    def __init__(self, base: Settings, entries: list[Entry], seeds: list[int]) -> None:
        from fedloom.experiment import Shelf

        self.base, self.entries, self.seeds = base, entries, seeds
        self.shelf = Shelf()
        names = [entry.folder for entry in entries]
        for name in {name for name in names if names.count(name) > 1}:
            raise ConfigError(f"{name!r} is there twice; give each method once, or settings that differ")

    def __len__(self) -> int:
        return len(self.entries) * len(self.seeds)

    def runs(self) -> Iterator[tuple[Entry, int]]:
        """Seed by seed, so that runs on the same data follow each other."""
        return ((entry, seed) for seed in self.seeds for entry in self.entries)

    def experiment(self, entry: Entry, seed: int) -> Experiment | TaskSequence:
        """One run's experiment: the common settings as far as its method knows them, then its own."""
        from fedloom.experiment import Override, make_experiment, parse_value

        settings = self.base.copied()
        for table in _method_tables(settings.values):
            for key in self._foreign(entry.method, table):
                del table[key]
        settings.set(Override("method.name", entry.method, entry.text))
        for key, value in entry.own:
            settings.set(Override(key, parse_value(value), entry.text))
        settings.set(Override("seed", seed, f"seed {seed}"))
        return make_experiment(settings, self.shelf)

    def _foreign(self, method: str, given: dict[str, Any]) -> list[str]:
        """Hyper-parameters among the common settings that this method lacks and another one has; names of methods."""
        from fedloom.experiment import foreign

        named = [key for key in given if key == "name"]
        return [*named, *foreign(given, method, [entry.method for entry in self.entries])]

    def check(self) -> None:
        """Everything that is wrong with any of the entries, at once, before any run."""
        from fedloom.experiment.faults import each_fault, stop_at

        found: dict[str, None] = {}
        for entry in self.entries:
            try:
                self.experiment(entry, self.seeds[0]).check()
            except ConfigError as error:
                found |= dict.fromkeys(each_fault(error))
        stop_at(found)

    def default_folder(self) -> Path:
        """Below runs/: the folder in which the same comparison was begun, or else one that is not there yet."""
        experiment = self.experiment(self.entries[0], self.seeds[0])
        names = "-".join(entry.folder for entry in self.entries)
        base = Path("runs") / f"compare-{names[:80].strip('-')}-{slug(experiment.data_plan.name)}"
        folders = itertools.chain([base], (base.with_name(f"{base.name}-{k}") for k in itertools.count(2)))
        return next(path for path in folders if not path.exists() or _read(path).get("arguments") == self._arguments())

    def claim(self, folder: Path, command: list[str], force: bool) -> None:
        """Make the folder this comparison's; one with anything else in it, or with other settings, is refused."""
        from fedloom.storage.files import guarded

        record = _read(folder)
        if folder.exists() and not record and (not folder.is_dir() or any(folder.iterdir())):
            raise RunError(f"{folder} is there already and is no comparison; choose another folder with --out")
        for entry in self.entries:
            self.experiment(entry, self.seeds[0]).start(self.place(folder, entry, self.seeds[0]), force)
        with guarded(folder):
            folder.mkdir(parents=True, exist_ok=True)
        if force:
            _clear(folder, record)
        self._command, self._earlier = command, [] if force else record.get("runs", [])
        self.record(folder, {})

    def place(self, folder: Path, entry: Entry, seed: int) -> Path:
        """Where in the folder a run belongs."""
        return folder / entry.folder / f"seed-{seed}"

    def record(self, folder: Path, result: dict[str, Any]) -> None:
        """Write compare.json: how the comparison was made, and what came of it."""
        record = {
            "command": self._command,
            "methods": [entry.text for entry in self.entries],
            "seeds": self.seeds,
            "runs": list(dict.fromkeys([*self._earlier, *(str(self.place(Path(), *run)) for run in self.runs())])),
            "arguments": self._arguments(),
            **result,
        }
        write_json(folder / RECORD, record)

    def _arguments(self) -> dict[str, Any]:
        arguments = {
            "methods": [entry.text for entry in self.entries],
            "seeds": self.seeds,
            "settings": {key: value for key, value in self.base.values.items() if key not in ("seed", "execution")},
        }
        told: dict[str, Any] = json.loads(json.dumps(arguments, default=str))
        return told


def _method_tables(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The [method] of all, and those of single tasks."""
    tasks = values.get("task")
    tables = [values, *(task for task in (tasks if isinstance(tasks, list) else []) if isinstance(task, dict))]
    return [table["method"] for table in tables if isinstance(table.get("method"), dict)]


def _clear(folder: Path, record: dict[str, Any]) -> None:
    """Empty the runs of the comparison that was here, so that none is taken for one of this."""
    from fedloom.storage.folder import RunFolder

    for name in record.get("runs", []):
        if (folder / name).is_dir():
            RunFolder.create(folder / name, force=True).close()


def _read(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
