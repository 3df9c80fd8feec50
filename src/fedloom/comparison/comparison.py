"""A comparison: which runs it has, where each belongs, and what of it is done already."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.comparison.entries import Entry
from fedloom.comparison.repeats import Key, Repeat
from fedloom.comparison.sources import Source
from fedloom.data.folds import FOLD
from fedloom.engine.run import Interrupted, Progress, Run
from fedloom.errors import ConfigError, FedloomError, RunError
from fedloom.experiment import Experiment, TaskSequence
from fedloom.experiment.faults import each_fault, stop_at
from fedloom.experiment.runnable import Runnable
from fedloom.storage.files import guarded, slug, write_json
from fedloom.storage.folder import RunFolder

if TYPE_CHECKING:
    from fedloom.report import Group, Target

RECORD = "compare.json"
Watch = Callable[[str, Path], AbstractContextManager[Progress]]
"""Shows the rounds of a run, by its title and its folder."""
Tell = Callable[[str, Run | FedloomError | None], None]
"""Is told of each run what came of it: the run, what went wrong, or None when it was done already."""


class Comparison:
    """Entries × seeds, and × folds where these are asked for, under the same settings."""

    def __init__(self, source: Source, entries: Sequence[Entry], seeds: Sequence[int]) -> None:
        self.source, self.entries, self.seeds = source, list(entries), list(seeds)
        self._made: dict[Key, Runnable] = {}
        self._command: list[str] = []
        self._earlier: list[str] = []
        self.table: list[dict[str, Any]] = []
        """The rows of the table, once the comparison is concluded."""
        names = [entry.folder for entry in entries]
        for name in {name for name in names if names.count(name) > 1}:
            raise ConfigError(f"{name!r} is there twice; give each method once, or settings that differ")
        if len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"the seeds {self.seeds} have one twice, which would be the same run")
        folds = source.folds(self.entries, self.seeds[0])
        each: list[int | None] = [*folds] or [None]
        self.repeats = [Repeat(seed, fold, len(folds)) for seed in self.seeds for fold in each]
        """What is done with each of the entries."""

    def __len__(self) -> int:
        return len(self.entries) * len(self.repeats)

    def runs(self) -> Iterator[tuple[Entry, Repeat]]:
        """Seed by seed and fold by fold, so that runs on the same data follow each other."""
        return ((entry, repeat) for repeat in self.repeats for entry in self.entries)

    def experiment(self, entry: Entry, repeat: Repeat) -> Runnable:
        """One run, made once; tasks in sequence, which hold the data of all tasks, whenever they are needed."""
        key = repeat.key(entry.text)
        if key in self._made:
            return self._made[key]
        made = self.source.make(entry, repeat, self.entries)
        if not isinstance(made, TaskSequence):
            self._made[key] = made
        return made

    def check(self) -> None:
        """Everything that is wrong with any of the entries, at once, before any run."""
        found: dict[str, None] = {}
        for entry in self.entries:
            try:
                self.experiment(entry, self.repeats[0]).check()
            except ConfigError as error:
                found |= dict.fromkeys(each_fault(error))
        stop_at(found)

    def fold_notes(self) -> list[str]:
        """What the first fold leaves out, as its data say; nothing where there are no folds."""
        first = self.experiment(self.entries[0], self.repeats[0])
        if self.repeats[0].fold is None or not isinstance(first, Experiment):
            return []
        return [note for note in first.data().notes if note.startswith(FOLD)]

    def default_folder(self) -> Path:
        """Below runs/: the folder in which the same comparison was begun, or else one that is not there yet."""
        names = "-".join(entry.folder for entry in self.entries)
        kind = "compare" if self.repeats[0].fold is None or len(self.entries) > 1 else "folds"
        base = Path("runs") / f"{kind}-{names[:80].strip('-')}-{slug(self.source.data)}"
        folders = itertools.chain([base], (base.with_name(f"{base.name}-{k}") for k in itertools.count(2)))
        return next(path for path in folders if not path.exists() or _read(path).get("arguments") == self._arguments())

    def claim(self, folder: Path, command: list[str], force: bool) -> None:
        """Make the folder this comparison's; one with anything else in it, or with other settings, is refused."""
        record = _read(folder)
        if folder.exists() and not record and (not folder.is_dir() or any(folder.iterdir())):
            raise RunError(f"{folder} is there already and is no comparison; choose another folder with --out")
        for entry in self.entries:
            self.experiment(entry, self.repeats[0]).start(self.place(folder, entry, self.repeats[0]), force)
        with guarded(folder):
            folder.mkdir(parents=True, exist_ok=True)
        if force:
            _clear(folder, record)
        self._command, self._earlier = command, [] if force else record.get("runs", [])
        self.record(folder, {})

    def perform(self, folder: Path, force: bool, watch: Watch, tell: Tell) -> dict[Key, str]:
        """All runs that are not there yet; what went wrong in those that failed, the others being done all the same."""
        failed = {}
        for number, (entry, repeat) in enumerate(self.runs(), 1):
            experiment, place = self.experiment(entry, repeat), self.place(folder, entry, repeat)
            title = f"[{number}/{len(self)}] {entry.text}, {repeat}"
            how = experiment.start(place, force)
            done: Run | FedloomError | None = None
            if how is not None:
                try:
                    with watch(title, place) as follow:
                        done = experiment.run(place, **how, progress=follow, label=entry.text, group=folder.name)
                except Interrupted:
                    raise
                except FedloomError as error:
                    failed[repeat.key(entry.text)] = str(error)
                    done = error
            self._made.pop(repeat.key(entry.text), None)
            tell(title, done)
        return failed

    def conclude(self, folder: Path, target: float | None) -> tuple[list[Group], Target | None]:
        """The runs in groups and the target; writes compare.json with the table of both."""
        from fedloom.report import find_runs, group_runs, make_target, rows
        from fedloom.report.runs import run_folders

        folders = [folder / entry.folder for entry in self.entries]
        groups = group_runs(find_runs([path for path in folders if run_folders(path)]))
        goal = make_target(groups, target)
        self.table = rows(groups, goal)
        self.record(folder, {"target": target, "table": self.table})
        return groups, goal

    def write_report(self, folder: Path, target: float | None) -> Path:
        """Write the page of all runs in the folder."""
        from fedloom.report import write_report

        return write_report(folder, folder / "report.html", target=target)

    def place(self, folder: Path, entry: Entry, repeat: Repeat) -> Path:
        """Where in the folder a run belongs."""
        return folder / entry.folder / repeat.folder

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
            "methods": [entry.asked for entry in self.entries],
            "seeds": self.seeds,
            "settings": self.source.arguments(),
        }
        told: dict[str, Any] = json.loads(json.dumps(arguments, default=str))
        return told


def _clear(folder: Path, record: dict[str, Any]) -> None:
    """Empty the runs of the comparison that was here, so that none is taken for one of this."""
    for name in record.get("runs", []):
        if (folder / name).is_dir():
            RunFolder.create(folder / name, force=True).close()


def _read(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
