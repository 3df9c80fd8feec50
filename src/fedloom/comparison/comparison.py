"""A comparison: which runs it has, where each belongs, and what of it is done already."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.comparison.entries import Entry
from fedloom.comparison.sources import Source
from fedloom.engine.run import Interrupted, Progress, Run
from fedloom.errors import ConfigError, FedloomError, RunError
from fedloom.experiment import TaskSequence
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
    """Entries × seeds under the same settings."""

    def __init__(self, source: Source, entries: Sequence[Entry], seeds: Sequence[int]) -> None:
        self.source, self.entries, self.seeds = source, list(entries), list(seeds)
        self._made: dict[tuple[str, int], Runnable] = {}
        self._command: list[str] = []
        self._earlier: list[str] = []
        self.table: list[dict[str, Any]] = []
        """The rows of the table, once the comparison is concluded."""
        names = [entry.folder for entry in entries]
        for name in {name for name in names if names.count(name) > 1}:
            raise ConfigError(f"{name!r} is there twice; give each method once, or settings that differ")
        if len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"the seeds {self.seeds} have one twice, which would be the same run")

    def __len__(self) -> int:
        return len(self.entries) * len(self.seeds)

    def runs(self) -> Iterator[tuple[Entry, int]]:
        """Seed by seed, so that runs on the same data follow each other."""
        return ((entry, seed) for seed in self.seeds for entry in self.entries)

    def experiment(self, entry: Entry, seed: int) -> Runnable:
        """One run, made once; tasks in sequence, which hold the data of all tasks, whenever they are needed."""
        key = entry.text, seed
        if key in self._made:
            return self._made[key]
        made = self.source.make(entry, seed, self.entries)
        if not isinstance(made, TaskSequence):
            self._made[key] = made
        return made

    def check(self) -> None:
        """Everything that is wrong with any of the entries, at once, before any run."""
        found: dict[str, None] = {}
        for entry in self.entries:
            try:
                self.experiment(entry, self.seeds[0]).check()
            except ConfigError as error:
                found |= dict.fromkeys(each_fault(error))
        stop_at(found)

    def default_folder(self) -> Path:
        """Below runs/: the folder in which the same comparison was begun, or else one that is not there yet."""
        names = "-".join(entry.folder for entry in self.entries)
        base = Path("runs") / f"compare-{names[:80].strip('-')}-{slug(self.source.data)}"
        folders = itertools.chain([base], (base.with_name(f"{base.name}-{k}") for k in itertools.count(2)))
        return next(path for path in folders if not path.exists() or _read(path).get("arguments") == self._arguments())

    def claim(self, folder: Path, command: list[str], force: bool) -> None:
        """Make the folder this comparison's; one with anything else in it, or with other settings, is refused."""
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

    def perform(self, folder: Path, force: bool, watch: Watch, tell: Tell) -> dict[tuple[str, int], str]:
        """All runs that are not there yet; what went wrong in those that failed, the others being done all the same."""
        failed = {}
        for number, (entry, seed) in enumerate(self.runs(), 1):
            experiment, place = self.experiment(entry, seed), self.place(folder, entry, seed)
            title = f"[{number}/{len(self)}] {entry.text}, seed {seed}"
            how = experiment.start(place, force)
            done: Run | FedloomError | None = None
            if how is not None:
                try:
                    with watch(title, place) as follow:
                        done = experiment.run(place, **how, progress=follow, label=entry.text, group=folder.name)
                except Interrupted:
                    raise
                except FedloomError as error:
                    failed[entry.text, seed] = str(error)
                    done = error
            self._made.pop((entry.text, seed), None)
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
