"""The runs of a plan in a folder: what is done is never done again, and result.json always tells how far it is."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import BaseFileLock

from fedloom import __version__
from fedloom.engine.run import Interrupted, Progress
from fedloom.errors import ConfigError, Diverged, FedloomError, RunError
from fedloom.experiment import Override, Shelf, TaskSequence
from fedloom.experiment.essence import essence, first_name
from fedloom.report.runs import read_record
from fedloom.reproduce.clients import paired_with
from fedloom.reproduce.curve import curve_of
from fedloom.reproduce.outcome import DIVERGED, Outcome, on_the_way, read_outcome, verdict_on, why_untuned
from fedloom.reproduce.plan import Cell, Measure, Plan, Point, Runnable, check, point_text
from fedloom.storage import lock
from fedloom.storage.files import guarded, write_json
from fedloom.storage.folder import CONFIG, TASK

RESULT = "result.json"
Watch = Callable[[str], AbstractContextManager[Progress]]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """One run of a cell: a repeat, or (with a point) a trial of the tuning."""

    cell: Cell
    place: Path
    seed: int
    point: Point | None = None

    @property
    def title(self) -> str:
        """What it is called while it runs."""
        what = f"seed {self.seed}" if self.point is None else f"tuning, {point_text(self.point)}"
        return f"{self.cell.title}, {what}"


class Reproduction:
    """A plan in its folder.

    ``watch`` makes, for each run, the context manager that shows its rounds; ``tell`` is told each run's result. With
    ``seeds`` only the repeats with these are done now.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        chosen: Sequence[Cell] | None = None,
        overrides: Sequence[Override] = (),
        force: bool = False,
        seeds: Sequence[int] = (),
    ) -> None:
        self.plan, self.folder, self.force, self.seeds = plan, folder, force, frozenset(seeds)
        self.chosen = [cell for cell in (plan.cells if chosen is None else chosen) if cell.repeats]
        self._check_seeds()
        self.chosen = [cell for cell in self.chosen if self._wanted_seeds(cell)]
        self.overrides, self.shelf = list(overrides), Shelf()
        self.errors: dict[str, str] = {}
        self._done: dict[tuple[Path, Measure, float | None], Outcome] = {}

    def perform(self, watch: Watch, tell: Tell) -> list[str]:
        """Do what is not done yet; what went wrong in the cells that failed."""
        check(self.chosen, self.plan, self.overrides, self.shelf)
        held = self._claim()
        try:
            self._check_places()
            self.save()
            total, met = len({place for cell in self.chosen for place in self._places(cell)}), set[Path]()
            for cell in self.chosen:
                for job in self._jobs(cell):
                    # A run that another cell has read already is not told of again.
                    say = (lambda line: None) if job.place in met else tell
                    met.add(job.place)
                    self._do(job, f"[{len(met)}/{total}] {job.title}", watch, say)
                    self.save()
        finally:
            held.release()
        titles = [cell.title for cell in self.chosen]
        return [f"{title}: {error}" for title, error in self.errors.items() if title in titles]

    def _claim(self) -> BaseFileLock:
        """Make the folder this plan's; one with anything else in it, or with other settings, is refused."""
        earlier = read_record(self.folder / RESULT)
        with guarded(self.folder):
            if self._foreign(earlier):
                raise RunError(
                    f"{self.folder} is there already and is no reproduction of {self.plan.name!r}; choose another "
                    "folder with --out"
                )
            self.folder.mkdir(parents=True, exist_ok=True)
        held = lock.acquire(self.folder)
        self.errors = {
            cell["title"]: cell["error"]
            for cell in earlier.get("cells", [])
            if cell.get("error") and cell["title"] not in [one.title for one in self.chosen]
        }
        return held

    def _foreign(self, earlier: dict[str, Any]) -> bool:
        """Whether the folder is somebody else's."""
        if not self.folder.exists():
            return False
        if not self.folder.is_dir() or (self.folder / CONFIG).is_file():
            return True
        strange = not lock.is_marked(self.folder) and bool(lock.content(self.folder))
        return strange or earlier.get("name", self.plan.name) != self.plan.name

    def _check_places(self) -> None:
        """Refuses runs that are there with other settings, as far as the first of each cell tells."""
        for cell in self.chosen:
            first = next(self._jobs(cell))
            self._experiment(first).start(self.folder / first.place, self.force)

    def _jobs(self, cell: Cell) -> Iterator[Job]:
        """A cell's runs: first the trials, then, with the best of them, the repeats; no more once one fails to tune."""
        self.errors.pop(cell.title, None)
        for point in cell.points:
            yield Job(cell, cell.tuning_place(point), self.plan.tuning.seed, point)
            if cell.title in self.errors:
                return
        if cell.points and self.best(cell) is None:
            return
        for seed in self._wanted_seeds(cell):
            yield Job(cell, cell.place(seed), seed)

    def _wanted_seeds(self, cell: Cell) -> list[int]:
        return [seed for seed in cell.seeds if not self.seeds or seed in self.seeds]

    def _check_seeds(self) -> None:
        """Refuses a seed that no cell has."""
        known = {seed for cell in self.chosen for seed in cell.seeds}
        missing = sorted(self.seeds - known)
        if known and missing:
            raise ConfigError(
                f"--seed {missing[0]}: no cell has such a repeat, theirs are {min(known)} to {max(known)}; "
                "for more of them give --repeats"
            )

    def _places(self, cell: Cell) -> list[Path]:
        """Where the runs belong that are to be done: trials and repeats."""
        return [*map(cell.tuning_place, cell.points), *map(cell.place, self._wanted_seeds(cell))]

    def _experiment(self, job: Job) -> Runnable:
        if job.point is not None:
            return job.cell.trial(job.seed, job.point, self.overrides, self.shelf)
        return job.cell.experiment(job.seed, self.best(job.cell), self.overrides, self.shelf)

    def _do(self, job: Job, title: str, watch: Watch, tell: Tell) -> None:
        """One run, unless it is done; its failure is the cell's, its divergence a result."""
        place = self.folder / job.place
        experiment = self._experiment(job)
        how = experiment.start(place, self.force)
        if how is None or (not self.force and (place / DIVERGED).is_file()):
            tell(f"{title}: done already")
            return
        if isinstance(experiment, TaskSequence):
            how = {**how, "done": sorted(self.folder.rglob(f"{TASK}*"))}
        (place / DIVERGED).unlink(missing_ok=True)
        self._done = {key: outcome for key, outcome in self._done.items() if key[0] != job.place}
        try:
            with watch(title) as follow:
                experiment.run(place, **how, progress=follow, label=job.cell.row)
        except Interrupted:
            raise
        except Diverged as error:
            write_json(place / DIVERGED, {"error": str(error)})
        except Exception as error:
            self.errors[job.cell.title] = f"{job.title.removeprefix(job.cell.title + ', ')}: {_said(error)}"
            tell(f"{title}: failed")
            return
        outcome = self.outcome(job.cell, job.place, tuning=job.point is not None)
        assert outcome is not None
        tell(f"{title}: {_told(outcome)} in {outcome.wall_seconds:.1f} s")

    def outcome(self, cell: Cell, place: Path, tuning: bool = False) -> Outcome | None:
        """What came of a run; None when it is not done."""
        key = place, cell.measure, cell.target
        if key not in self._done:
            over = (self.plan.tuning.over if tuning else None) or cell.measure.over
            found = read_outcome(self.folder / place, cell.measure, over, cell.target)
            if found is None:
                return None
            self._done[key] = found
        return self._done[key]

    def best(self, cell: Cell) -> Point | None:
        """The point with the best value (of equal ones the first); none when there are none or all diverged.

        A cell that reads the runs of another one has the point of these, whatever its own measure would choose.
        """
        cell = next((one for one in self.plan.cells if (one.row, one.column) == cell.home), cell)
        found = [(self.outcome(cell, cell.tuning_place(point), tuning=True), point) for point in cell.points]
        known = [(one.value, point) for one, point in found if one is not None and math.isfinite(one.value)]
        choose = max if cell.measure.upwards else min
        return choose(known, key=lambda pair: pair[0])[1] if known else None

    def save(self) -> None:
        """Write result.json: all that is known so far."""
        write_json(self.folder / RESULT, self.record())

    def record(self, detailed: bool = False) -> dict[str, Any]:
        """All that is known so far, as plain values; on request with what takes time to read: the curves of the cells,
        and how their clients fare beside the rows that the plan names.
        """
        plan = self.plan
        cells = [self._cell(cell) | (self._read(cell) if detailed else {}) for cell in plan.cells]
        return {
            "name": plan.name,
            "fedloom": __version__,
            "quick": plan.quick,
            "finished": all(cell["done"] == cell["wanted"] for cell in cells),
            **asdict(plan.head),
            "measure": asdict(plan.measure) | {"better": "up" if plan.measure.upwards else "down"},
            "rows": plan.rows,
            "columns": plan.columns,
            "cells": cells,
            "improvements": [
                asdict(one) | {"published": {column: asdict(said) for column, said in published.items()}}
                for one, published in plan.improvements
            ],
            "unavailable": plan.unavailable,
            "settings": plan.settings.values,
        }

    def _read(self, cell: Cell) -> dict[str, Any]:
        """What is read from all rounds, and of all clients, of a cell."""
        others = [one for one in self.plan.cells if one.column == cell.column and one.row in self.plan.head.paired]
        return {"curve": curve_of(cell, self.folder), "paired": paired_with(cell, others, self.folder)}

    def _cell(self, cell: Cell) -> dict[str, Any]:
        points = {point_text(p): self.outcome(cell, cell.tuning_place(p), tuning=True) for p in cell.points}
        trials = [outcome for outcome in points.values() if outcome is not None]
        tried = bool(points) and len(trials) == len(points)
        tuned = self.best(cell) if tried else None
        hopeless = tried and tuned is None
        found = {seed: self.outcome(cell, cell.place(seed)) for seed in cell.seeds}
        repeats = {str(seed): outcome for seed, outcome in found.items() if outcome is not None}
        known = list(repeats.values())
        told = verdict_on([one.value for one in known], sum(one.diverged for one in known), cell.published)
        if hopeless:
            told["why"] = why_untuned(trials)
            told["verdict"] = "not comparable" if cell.published else told["verdict"]
        return {
            "title": cell.title,
            "row": cell.row,
            "column": cell.column,
            "fedloom": __version__,
            "settings_sha256": _fingerprint(cell),
            "essence_sha256": essence_print(cell),
            "tuned": tuned,
            "at_end": cell.at_end(tuned),
            "trials": {text: outcome and outcome.value for text, outcome in points.items()},
            "values": {seed: outcome.value for seed, outcome in repeats.items()},
            **told,
            "measure": asdict(cell.measure) | {"better": "up" if cell.measure.upwards else "down"},
            "published": None if cell.published is None else asdict(cell.published),
            "target": on_the_way(known, cell.target),
            "done": len(known) + len(trials),
            "wanted": len(points) + (0 if hopeless else len(found)),
            "error": self.errors.get(cell.title),
            "wall_seconds": sum(outcome.wall_seconds for outcome in [*known, *trials]),
        }


def _told(outcome: Outcome) -> str:
    if outcome.diverged:
        return "diverged"
    return f"{outcome.value:.4g}" if math.isfinite(outcome.value) else "target not reached"


def _fingerprint(cell: Cell) -> str:
    """Of everything that decides a cell's values, but for the seeds."""
    return _digest([cell.settings.values, cell.tuning.values if cell.points else {}, cell.points, *_chosen_by(cell)])


def essence_print(cell: Cell) -> str:
    """Of the same, without what is as usual: a setting that is new, and does what was done before, leaves it alone."""
    method = str((cell.settings.get(("method", "name"))) or "fedavg")
    points = [{first_name(key, method): value for key, value in point.items()} for point in cell.points]
    trials = essence(cell.settings.overlaid(cell.tuning).values) if points else {}
    return _digest([essence(cell.settings.values), trials, points, *_chosen_by(cell)])


def _chosen_by(cell: Cell) -> list[str]:
    """The rows that chose, unless they are those by which all that is recorded from before was chosen."""
    return [cell.chooses_on] if cell.points and cell.chooses_on != "test" else []


def _digest(told: Any) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, FedloomError) else f"{type(error).__name__}: {error}"
