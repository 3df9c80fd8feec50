"""A tuning: the trials of each method by successive halving, as a recorded plan; what is done is not done twice."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedloom import __version__
from fedloom.comparison.entries import Entry
from fedloom.comparison.sources import Source
from fedloom.engine.run import Course, Prepared
from fedloom.errors import ConfigError, RunError
from fedloom.execution import executor_for
from fedloom.execution.kept import Kept
from fedloom.experiment.faults import each_fault, stop_at
from fedloom.federation.metrics import higher_is_better
from fedloom.federation.schedules import Cosine, is_schedule, schedule
from fedloom.storage import lock
from fedloom.storage.files import guarded, loads, replacing, slug, write_json
from fedloom.storage.folder import RunFolder
from fedloom.tuning.contenders import Contender, Stopwatch, common_split, prepared_of
from fedloom.tuning.ledger import LEDGER, Ledger
from fedloom.tuning.plan import MAX_TRIALS, PLAN, MethodPlan, Pace, Plan, affordable, cost, read_plan, rungs_of, shares
from fedloom.tuning.samplers import BY_COUNTER, Listed, Optuna, Sampler, check_sampler, grid_size, points
from fedloom.tuning.spaces import Space, Values, check_keys, known_keys, space_for
from fedloom.tuning.walk import LOST, Moment, Progress, Tell, Walk

RECORD, TABLE, BEST = "tune.json", "table.json", "best.toml"
TRIALS = 9
"""Trials of each method, unless a number or a budget is given."""
_IN_MEMORY_SECONDS, _IN_MEMORY_BYTES = 20.0, 1 << 30
"""A trial that takes no longer waits in memory for the next rung, where all of them together have this room."""
_MEASURED = 0.02
"""Share of the budget in which the pace of all methods is measured."""
_GLANCE = 0.05
"""Seconds in which it is measured where it decides nothing but where trials wait."""
_SEEN = 32
"""So many trials tell how much more they cost than the defaults."""


@dataclass(frozen=True)
class Asked:
    """What the user asked for, beside methods and settings."""

    space: Space
    sampler: str = "sobol"
    trials: int | None = None
    budget: float | None = None
    repeats: int = 1

    def check(self) -> None:
        """Refuse what cannot be."""
        check_sampler(self.sampler)
        if self.budget is not None and self.trials is not None:
            raise ConfigError("a budget becomes a number of trials, so give one of the two: --budget or --trials")
        if self.trials is not None and self.trials < 1:
            raise ConfigError(f"trials = {self.trials}: a method needs at least one beside its defaults")
        if self.repeats < 1:
            raise ConfigError(f"repeats = {self.repeats}: every finalist is run at least once")


class Tuning:
    """Methods whose settings are looked for, by trials that are judged on validation rows."""

    def __init__(self, source: Source, entries: Sequence[Entry], seed: int, asked: Asked) -> None:
        self.started = time.perf_counter()
        self.source, self.entries, self.seed, self.asked = source, list(entries), seed, asked
        self.earlier: list[dict[str, Any]] = []
        """What earlier sessions took that came to the end."""
        self.stopwatch, self.notes = Stopwatch(), list[str]()
        self.plan: Plan | None = None
        self.table: list[dict[str, Any]] = []
        """The rows of the table, once the tuning is done."""
        self._courses: dict[tuple[str, int, int], Course] = {}
        self._kept: Kept | None = None
        self.progress = Progress()
        names = [entry.folder for entry in entries]
        for name in {name for name in names if names.count(name) > 1}:
            raise ConfigError(f"{name!r} is there twice; give each method once, or settings that differ")
        if not entries:
            raise ConfigError("a tuning needs at least one method")

    @cached_property
    def contenders(self) -> list[Contender]:
        """The methods, all judged on the same rows."""
        found = [Contender(self.source, entry, self.entries, self.seed, None) for entry in self.entries]
        common = common_split(found)
        if common is None:
            return found
        return [Contender(self.source, entry, self.entries, self.seed, common) for entry in self.entries]

    @cached_property
    def spaces(self) -> dict[str, Space]:
        """For each method where is looked."""
        return {one.label: space_for(one.method, self.asked.space, one.fixed()) for one in self.contenders}

    def check(self) -> None:
        """Everything that is wrong with the methods, the settings or the spaces, before any work."""
        self.asked.check()
        found: dict[str, None] = {}
        for entry in self.entries:
            try:
                Contender(self.source, entry, self.entries, self.seed, None).default  # noqa: B018
            except ConfigError as error:
                found |= dict.fromkeys(each_fault(error))
        stop_at(found)
        check_keys(self.asked.space, [one.method for one in self.contenders])
        metrics = {one.metric for one in self.contenders}
        if len(metrics) > 1:
            raise ConfigError(f"the methods are judged by different metrics ({', '.join(sorted(metrics))}); name one")
        for one in self.contenders:
            self._check_contender(one)
        for key in self.asked.space:
            if key.startswith("method.") and (lacking := [c.label for c in self.contenders if not _knows(c, key)]):
                self.notes.append(f"{key} is no hyper-parameter of {', '.join(lacking)}: left out there")

    def _check_contender(self, one: Contender) -> None:
        if one.default.setting.schedule.target is not None:
            raise ConfigError(
                "schedule.target ends a run by its test rows, which a trial must not see; leave it (--until) out, or "
                "give --patience, which watches the validation rows"
            )
        for key, search in self.asked.space.items():
            for value in search.ends if key in self.spaces[one.label] else ():
                try:
                    prepared_of(one.runnable({key: value}, self.seed))
                except ConfigError as error:
                    raise ConfigError(
                        f"the space of {key} ({search}) has {value!r}, which cannot be: {error}"
                    ) from error
        if not self.spaces[one.label]:
            self.notes.append(f"{one.label} has nothing to tune: it is there with its defaults alone")
        for key in known_keys(one.method):
            text = one.value_now(key)
            if is_schedule(text) and isinstance(found := schedule(text), Cosine) and found.rounds != one.rounds:
                self.notes.append(
                    f"{one.label}: {key} = {text} is made for {found.rounds} rounds, but trials have {one.rounds}"
                )

    @property
    def metric(self) -> str:
        """By which trials are compared."""
        return self.contenders[0].metric

    @property
    def higher(self) -> bool:
        """Whether more of it is better."""
        return higher_is_better(self.metric)

    def arguments(self) -> dict[str, Any]:
        """By what the tuning is known again."""
        told = asdict(self.asked) | {"space": {key: str(search) for key, search in self.asked.space.items()}}
        methods = [entry.asked for entry in self.entries]
        arguments = {"methods": methods, "settings": self.source.arguments(), "seed": self.seed, **told}
        plain: dict[str, Any] = json.loads(json.dumps(arguments, default=str))
        return plain

    def default_folder(self) -> Path:
        """Below runs/: the folder in which the same tuning was begun, or else one that is not there yet."""
        names = "-".join(entry.folder for entry in self.entries)
        base = Path("runs") / f"tune-{names[:80].strip('-')}-{slug(self.source.data)}"
        folders = itertools.chain([base], (base.with_name(f"{base.name}-{k}") for k in itertools.count(2)))
        return next(path for path in folders if not path.exists() or self._mine(path))

    def _mine(self, folder: Path) -> bool:
        with suppress(RunError):  # a damaged one is nobody's
            plan = read_plan(folder)
            return plan is not None and plan.arguments == self.arguments()
        return False

    def perform(self, folder: Path, command: list[str], force: bool, tell: Tell) -> list[dict[str, Any]]:
        """Do all that is not done yet; the rows of the table."""
        with ExitStack() as exits:
            self._refuse(folder, force)
            with guarded(folder):
                folder.mkdir(parents=True, exist_ok=True)
            exits.callback(lock.acquire(folder).release)
            exits.callback(self._end)
            if force:
                _clear(folder)
            plan = read_plan(folder)
            if plan is None:
                plan = self._planned(command, tell)
                plan.write(folder)
            self.plan, self.earlier = plan, _sessions(folder)
            self.progress = Progress(self.total, sum(own.seconds(plan.repeats) for own in plan.methods))
            with Ledger(folder / LEDGER) as ledger:
                walked = [
                    Walk(self, one, own, folder, ledger, tell)
                    for one, own in zip(self.contenders, plan.methods, strict=True)
                ]
                self.table = [walk.row() for walk in walked]
                self._write(folder, self.table, walked)
        return self.table

    def _refuse(self, folder: Path, force: bool) -> None:
        """A folder with anything else in it than this tuning."""
        if folder.exists() and not folder.is_dir():
            raise RunError(f"{folder} is a file; choose another folder with --out")
        there = set(lock.content(folder)) - {f"{PLAN}.tmp"}
        if there and not (folder / PLAN).is_file():
            raise RunError(f"{folder} is there already and is no tuning; choose another folder with --out")
        plan = None if force else read_plan(folder)
        if plan is not None and plan.arguments != self.arguments():
            raise RunError(
                f"{folder} holds a tuning with other settings: choose another folder with --out, or begin anew with "
                "--force"
            )

    def _planned(self, command: list[str], tell: Tell) -> Plan:
        """The plan: by the numbers that the user gave, or by the pace that is measured now."""
        paces = {}
        for at, one in enumerate(self.contenders):
            tell(Moment(one.label, "measuring the pace", at, len(self.contenders), 0.0, self.metric, None))
            paces[one.label] = self._pace(one)
        share = None
        if self.asked.budget is not None:
            needs = {c.label: cost((), c.rounds, paces[c.label], self.asked.repeats) for c in self.contenders}
            share = shares(self.asked.budget, time.perf_counter() - self.started, needs)
        methods = tuple(self._method_plan(one, paces[one.label], share) for one in self.contenders)
        return Plan(
            methods=methods,
            arguments=self.arguments(),
            metric=self.metric,
            higher=self.higher,
            split=str(self.contenders[0].chooses.split),
            repeats=self.asked.repeats,
            seed=self.seed,
            command=command,
            notes=self.notes,
        )

    def _method_plan(self, one: Contender, pace: Pace, share: float | None) -> MethodPlan:
        space, listed = self.spaces[one.label], self.asked.sampler in BY_COUNTER
        limit = 0
        if space:
            limit = grid_size(space) or 0 if self.asked.sampler == "grid" else 0
            limit = limit or 10**9
        rungs = rungs_of(min(limit, self.asked.trials or TRIALS), one.rounds)
        if share is not None:
            rungs = affordable(share, one.rounds, pace, self.asked.repeats, min(limit, MAX_TRIALS)) if limit else ()
        trials = None
        if listed:
            found = self._points(one, rungs[0].trials if rungs else 0)
            if rungs and len(found) < rungs[0].trials:
                self.notes.append(f"{one.label}: the space has no more than {len(found)} trials beside the defaults")
                depth = len(rungs) - 1
                rungs = rungs_of(len(found), one.rounds, depth)
            trials = tuple(found)
        if space and not rungs:
            self.notes.append(f"{one.label}: the budget pays for its defaults alone; give more time, or fewer --rounds")
        told = {key: str(search) for key, search in space.items()}
        return MethodPlan(one.label, one.rounds, rungs, trials, told, pace)

    def _points(self, one: Contender, number: int) -> list[Values]:
        space = self.spaces[one.label]
        default = {key: one.value_now(key) for key in space}
        return points(self.asked.sampler, space, default, number, self.seed, one.label)

    def _pace(self, one: Contender) -> Pace:
        """Measured by the first rounds of the default trial."""
        limit = _GLANCE if self.asked.budget is None else self.asked.budget * _MEASURED / len(self.contenders)
        watch = self.stopwatch
        try:
            course, start, first = self._begun(one)
            if one.rounds == 1:
                return self._worked(one, Pace(first, start))
            if first > limit:  # it may be so only the first time
                before = watch.seconds
                course.to(2)
                return self._worked(one, Pace(min(first, watch.seconds - before), start))
            start = min(self._begun(one)[1] for _ in range(3))  # what is done for the first time takes longer
            rounds, before = 1, watch.seconds
            while watch.seconds - before < limit and rounds < one.rounds and course.stopped == "rounds":
                rounds = min(2 * rounds, one.rounds)
                course.to(rounds)
        except LOST:  # which the trial itself will say
            return Pace(watch.seconds / max(watch.rounds, 1), 0.01)
        return self._worked(one, Pace((watch.seconds - before) / max(rounds - 1, 1), start))

    def _begun(self, one: Contender) -> tuple[Course, float, float]:
        """A default trial after a round: what it took to begin it, and the round."""
        began, before = time.perf_counter(), self.stopwatch.seconds
        course = Course(one.trial({}, self.seed, self.stopwatch))
        course.to(1)
        round = self.stopwatch.seconds - before
        return course, time.perf_counter() - began - round, round

    def _worked(self, one: Contender, pace: Pace) -> Pace:
        name = self.asked.sampler if self.asked.sampler in BY_COUNTER else "sobol"
        space = self.spaces[one.label]
        default = {key: one.value_now(key) for key in space}
        return replace(pace, work=one.work(points(name, space, default, _SEEN, self.seed, one.label)))

    def sampler(self, one: Contender, own: MethodPlan, first: float | None) -> Sampler:
        """What says the values of the trials, once it is known what came of the defaults."""
        if own.trials is not None:
            return Listed(list(own.trials))
        space = self.spaces[one.label]
        default = {key: one.value_now(key) for key in space}
        found = Optuna(self.asked.sampler, space, default, self.seed, one.label, self.higher)
        found.begin(first)
        return found

    def in_memory(self, one: Contender, own: MethodPlan) -> bool:
        """Whether trials wait in memory; those that are long, or many and large, in their folders."""
        executor, setting = one.default.executor, one.default.setting
        if executor not in ("auto", "serial"):
            return False
        vectors = 6 + (setting.problem.data.clients * 2 if one.method.remembers else 0)
        room = own.count * vectors * setting.problem.model.n * 8
        return own.rounds * own.pace.round * own.pace.work <= _IN_MEMORY_SECONDS and room <= _IN_MEMORY_BYTES

    def course(self, key: tuple[str, int, int], make: Callable[[], Prepared]) -> Course:
        """A trial that waits, or one that begins."""
        if key not in self._courses:
            self._courses[key] = Course(make())
        return self._courses[key]

    def waiting(self, key: tuple[str, int, int]) -> Course | None:
        """A trial that waits; None: it is in its folder, or is gone with the process that had it."""
        return self._courses.get(key)

    def forget(self, label: str, kept: Iterable[int] = ()) -> None:
        """Let go of the trials of a method, but for those that go on."""
        wanted = set(kept)
        self._courses = {k: c for k, c in self._courses.items() if k[0] != label or k[1] in wanted}

    def executor(self, prepared: Prepared) -> Kept:
        """One executor for all long trials."""
        if self._kept is None:
            given = prepared.executor
            made = (
                executor_for(given, self.total, prepared.workers, prepared.ray_address)
                if isinstance(given, str)
                else given
            )
            self._kept = Kept(made)
        return self._kept

    def _end(self) -> None:
        self._courses = {}
        if self._kept is not None:
            self._kept.end()
            self._kept = None

    @property
    def total(self) -> int:
        """All rounds of the plan."""
        assert self.plan is not None
        return sum(own.total(self.plan.repeats) for own in self.plan.methods)

    def _write(self, folder: Path, table: list[dict[str, Any]], walked: Sequence[Walk]) -> None:
        """The table, the experiment files and the record."""
        from fedloom.tuning.page import write_csv

        write_json(folder / TABLE, table)
        write_csv(folder / "table.csv", table)
        write_csv(folder / "trials.csv", [line for walk in walked for line in walk.lines()])
        leader = best_row(table, self.higher)
        for walk, row in zip(walked, table, strict=True):
            text = walk.file()
            if text is None or row["trial"] is None:
                continue
            places = [folder / f"{walk.one.entry.folder}.toml", *([folder / BEST] if row is leader else [])]
            for place in places:
                with replacing(place) as file:
                    file.write(text.encode())
        write_json(folder / RECORD, self.record(table))

    def record(self, table: list[dict[str, Any]]) -> dict[str, Any]:
        """What it took, and what came of it."""
        watch, leader = self.stopwatch, best_row(table, self.higher)
        now = {"seconds": time.perf_counter() - self.started, "training": watch.seconds, "rounds": watch.rounds}
        sessions = [*self.earlier, now] if watch.rounds or not self.earlier else self.earlier
        return {
            "best": None if leader is None else leader["label"],
            "share_training": sum(one["training"] for one in sessions) / sum(one["seconds"] for one in sessions),
            "sessions": sessions,
            "notes": self.notes,
            "fedloom": __version__,
            "table": table,
        }


def best_row(table: Sequence[Mapping[str, Any]], higher: bool) -> Mapping[str, Any] | None:
    """The row of the best method that can be used: a pool of all rows is a bound, unless there is nothing else."""
    found = [row for row in table if row["validation"] is not None]
    found = [row for row in found if not row["bound"]] or found
    if not found:
        return None
    return (max if higher else min)(found, key=lambda row: row["validation"])


def _clear(folder: Path) -> None:
    """Remove the tuning that was here, so that nothing of it is taken for this one's."""
    for name in (PLAN, LEDGER, RECORD, TABLE, BEST):
        (folder / name).unlink(missing_ok=True)
    for place in folder.glob("*/trial-*/seed-*"):
        RunFolder.create(place, force=True).close()


def _sessions(folder: Path) -> list[dict[str, Any]]:
    try:
        return list(loads((folder / RECORD).read_bytes())["sessions"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _knows(one: Contender, key: str) -> bool:
    return key in known_keys(one.method)
