"""The trials of one method, rung by rung, and the runs that are kept of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from fedloom.engine.run import Course, Prepared
from fedloom.errors import ClientError, ConfigError, ModelError, RunError
from fedloom.execution.kept import Kept
from fedloom.experiment import Experiment
from fedloom.storage import toml
from fedloom.storage.folder import SUMMARY, RunFolder
from fedloom.storage.seal import opened
from fedloom.tuning.contenders import Contender, Stopwatch, prepared_of
from fedloom.tuning.ledger import Ledger, Outcome
from fedloom.tuning.plan import MethodPlan, Plan
from fedloom.tuning.samplers import Sampler
from fedloom.tuning.spaces import Values

LOST = (ClientError, ConfigError, ModelError)
"""What may go wrong with a trial because of its values."""


@dataclass(frozen=True)
class Moment:
    """How far a tuning is."""

    label: str
    doing: str
    done: int
    """Rounds that are done, of all methods …"""
    total: int
    """… and rounds of the plan."""
    seconds_left: float
    metric: str
    best: float | None
    """The best value so far of the method under way."""


Tell = Callable[[Moment], None]


class Host(Protocol):
    """What the methods of a tuning share."""

    plan: Plan | None
    stopwatch: Stopwatch
    progress: Progress

    def sampler(self, one: Contender, own: MethodPlan, first: float | None) -> Sampler:
        """What says the values of the trials."""

    def in_memory(self, one: Contender, own: MethodPlan) -> bool:
        """Whether trials wait in memory."""

    def course(self, key: tuple[str, int, int], make: Callable[[], Prepared]) -> Course:
        """A trial that waits, or one that begins."""

    def forget(self, label: str, kept: Iterable[int] = ()) -> None:
        """Let go of trials."""

    def executor(self, prepared: Prepared) -> Kept:
        """One executor for all long trials."""


class Progress:
    """How far it is, and how long the rest will take: by the measured paces, and by how true they were so far."""

    def __init__(self, total: int = 0, seconds: float = 0.0) -> None:
        self.total, self.done = total, 0
        self.ahead, self.foretold, self.since = seconds, 0.0, time.perf_counter()

    def add(self, rounds: int, seconds: float, fresh: bool) -> float:
        """So many rounds more, for which so many seconds were planned; the seconds that are left."""
        self.done, self.ahead = min(self.done + rounds, self.total), self.ahead - seconds
        self.foretold += seconds if fresh else 0.0
        spent = time.perf_counter() - self.since
        return max(self.ahead, 0.0) * (spent / self.foretold if self.foretold > 0 else 1.0)


class Walk:
    """The trials of one method, rung by rung, then its two runs: the defaults and the best."""

    def __init__(self, tuning: Host, one: Contender, own: MethodPlan, folder: Path, ledger: Ledger, tell: Tell) -> None:
        assert tuning.plan is not None
        self.tuning, self.one, self.own, self.ledger, self.tell = tuning, one, own, ledger, tell
        self.folder, self.plan = folder / one.entry.folder, tuning.plan
        self.memory = tuning.in_memory(one, own)
        self.values: dict[int, Values] = {0: {}}
        self.outcomes: dict[int, list[Outcome]] = {}
        self.best: float | None = None
        self.finalists = self._halved()
        self.means = {number: self._mean(number) for number in self.finalists}
        self.winner = self._winner()
        tuning.forget(one.label)

    def _halved(self) -> list[int]:
        """Successive halving; the trials that have all rounds, the defaults always among them."""
        rungs = self.own.rungs
        if not rungs:
            self._outcome(0, self.own.rounds, "defaults")
            return [0]
        first = rungs[0]
        sampler = self.tuning.sampler(self.one, self.own, self._outcome(0, first.rounds, "defaults").value)
        there = [0]
        for number in range(1, first.trials + 1):
            self.values[number] = sampler.ask()
            sampler.tell(self._outcome(number, first.rounds, self._doing(number, 0)).value)
            there.append(number)
        for at, rung in enumerate(rungs[1:], 1):
            there = self._promoted(there, rungs[at - 1].rounds, rung.trials)
            self.tuning.forget(self.one.label, there)
            for number in there:
                self._outcome(number, rung.rounds, self._doing(number, at))
        return there

    def _doing(self, number: int, rung: int) -> str:
        return f"trial {number} of {self.own.count}, rung {rung + 1} of {len(self.own.rungs)}"

    def _promoted(self, there: Sequence[int], rounds: int, count: int) -> list[int]:
        """The best of them, and the defaults; of equal ones the first."""
        ranked = self._ranked([number for number in there if number > 0], lambda n: self._at(n, rounds))
        return sorted([0, *ranked[:count]])

    def _ranked(self, numbers: Iterable[int], value: Callable[[int], float | None]) -> list[int]:
        """From the best to the worst, without those that are lost."""
        sign = -1.0 if self.plan.higher else 1.0
        found = [(sign * known, number) for number in numbers if (known := value(number)) is not None]
        return [number for _, number in sorted(found)]

    def _at(self, number: int, rounds: int) -> float | None:
        return next(one.value for one in self.outcomes[number] if one.rounds == rounds)

    def _mean(self, number: int) -> list[float | None]:
        """The values of a finalist with each seed."""
        found = [self._at(number, self.own.rounds)]
        for repeat in range(1, self.plan.repeats):
            doing = f"finalist {number}, seed {self.plan.seed + repeat}"
            outcome = self._outcome(number, self.own.rounds, doing, self.plan.seed + repeat)
            self.tuning.forget(self.one.label, [])
            found.append(outcome.value)
        return found

    def _winner(self) -> int | None:
        """The best finalist by the mean over seeds; None where all are lost."""
        ranked = self._ranked(self.finalists, lambda number: _mean(self.means[number]))
        return ranked[0] if ranked else None

    def _outcome(self, number: int, rounds: int, doing: str, seed: int | None = None) -> Outcome:
        """What came of a trial after so many rounds: known already, or found out now."""
        seed = self.plan.seed if seed is None else seed
        own = self.outcomes.setdefault(number, []) if seed == self.plan.seed else []
        before = own[-1] if own else None
        values = self.values[number]
        known = self.ledger.outcomes.get((self.one.label, number, seed, rounds))
        if before is not None and (before.over or before.lost):
            found = replace(before, rounds=rounds)
        elif known is not None:
            if known.values != values:
                raise RunError(
                    f"{self.ledger.path} has other values for trial {number} of {self.one.label} than its sampler says "
                    "now (another version of it?): begin anew with --force"
                )
            found = known
        else:
            found = self._tried(number, values, seed, rounds)
            self.ledger.add(found)
        own.append(found)
        ranked = [value for value in (self.best, found.value) if value is not None]
        self.best = (max if self.plan.higher else min)(ranked) if ranked else None
        self._say(doing, rounds - (before.rounds if before is not None else 0), found is not known)
        return found

    def _tried(self, number: int, values: Values, seed: int, rounds: int) -> Outcome:
        label, lost = self.one.label, ""
        try:
            row, over, sha, best = (self._walked if self.memory else self._run)(number, values, seed, rounds)
            value = self.one.value(row) if best is None else best
            lost = "" if value is not None else f"{self.plan.metric} is not a finite number"
            return Outcome(label, number, seed, rounds, value, values, over, lost, sha)
        except LOST as error:
            return Outcome(label, number, seed, rounds, None, values, True, str(error).splitlines()[0])

    def _walked(self, number: int, values: Values, seed: int, rounds: int) -> tuple[Any, bool, str, float | None]:
        """In memory."""
        tuning = self.tuning
        course = tuning.course((self.one.label, number, seed), lambda: self.one.trial(values, seed, tuning.stopwatch))
        row = course.to(rounds)
        return row, course.stopped != "rounds", course.theta_sha256 if rounds == self.own.rounds else "", course.best

    def _run(self, number: int, values: Values, seed: int, rounds: int) -> tuple[Any, bool, str, float | None]:
        """In the folder of the trial, where it goes on as any run does."""
        made, place = self.one.runnable(values, seed), self._place(number, seed)
        how = made.start(place) or {"resume": True}
        ready = prepared_of(made)
        stretch = replace(
            ready,
            rounds=rounds,
            blind=True,
            label=self.one.named(values).text,
            engine=self.tuning.stopwatch.engine,
            executor=self.tuning.executor(ready),
        )
        run = stretch.run(place, **how)
        best = run.summary.get("best", {}).get("value")
        return run.history[-1], run.summary["stopped"] != "rounds", run.summary["theta_sha256"], best

    def _place(self, number: int, seed: int) -> Path:
        return self.folder / f"trial-{number:03d}" / f"seed-{seed}"

    def kept(self, number: int) -> list[dict[str, Any]]:
        """The summaries of a trial's runs, in their folders, with all that the user wants evaluated."""
        found = []
        for seed in range(self.plan.seed, self.plan.seed + self.plan.repeats):
            found.append(self._keep(number, seed))
            self._say(f"{'the defaults' if number == 0 else f'trial {number}'} on the test rows", self.own.rounds)
        return found

    def _keep(self, number: int, seed: int) -> dict[str, Any]:
        values, place = self.values[number], self._place(number, seed)
        made = self.one.runnable(values, seed)
        how = made.start(place)
        if how is None:
            summary = opened(RunFolder(place, None).read_json(SUMMARY))
            if "judged" in summary:
                return summary
            how = {"resume": True}
        ready, label = prepared_of(made), self.one.named(values).text
        ready = replace(ready, label=label, engine=self.tuning.stopwatch.engine)
        if self.memory:
            ready = replace(ready, executor="serial")
        run = ready.run(place, **how)
        known = self.ledger.outcomes.get((self.one.label, number, seed, self.own.rounds))
        patient = ready.setting.schedule.patience is not None
        wanted = "" if known is None or patient else known.theta_sha256
        if wanted not in ("", run.summary["theta_sha256"]):
            raise RunError(
                f"{place}: the run has another model than the trial that it was chosen by; its data or its code were "
                "changed since. Begin anew with --force"
            )
        return run.summary

    def row(self) -> dict[str, Any]:
        """The method's row of the table; nothing in it depends on the clock or on when the tuning was stopped."""
        default, winner, metric = self.means[0], self.winner, self.plan.metric
        tests = {number: self._tests(number) for number in dict.fromkeys([0, winner]) if number is not None}
        lost = [number for number, found in self.outcomes.items() if any(one.lost for one in found)]
        row: dict[str, Any] = {
            "label": self.one.label,
            "metric": metric,
            "trial": winner,
            "values": {} if winner is None else self.values[winner],
            "validation": None if winner is None else _mean(self.means[winner]),
            "validation_default": _mean(default),
            "test": None if winner is None else _mean(tests[winner]),
            "test_default": _mean(tests[0]) if 0 in tests else None,
            "rounds": self.own.rounds,
            "trials": self.own.count,
            "lost": len(lost),
            "bound": self.one.method.layout == "pooled",
            "folder": None
            if winner is None
            else str(self._place(winner, self.plan.seed).relative_to(self.folder.parent)),
        }
        if self.plan.repeats > 1 and winner is not None:
            row |= {"validation_std": _std(self.means[winner]), "test_std": _std(tests[winner])}
        return row

    def _tests(self, number: int) -> list[float | None]:
        """A finalist on the test rows; nothing of one that is lost."""
        if _mean(self.means[number]) is None:
            return []
        return [summary["metrics"].get(self.plan.metric) for summary in self.kept(number)]

    def lines(self) -> list[dict[str, Any]]:
        """All trials, for trials.csv."""
        found = []
        for number, outcomes in sorted(self.outcomes.items()):
            last = outcomes[-1]
            found.append(
                {
                    "label": self.one.label,
                    "trial": number,
                    "rung": len(outcomes),
                    "rounds": last.rounds,
                    "value": last.value,
                    "lost": last.lost,
                    **{key: self.one.value_now(key) for key in self.own.space},
                    **self.values[number],
                }
            )
        return found

    def file(self) -> str | None:
        """The winner as an experiment file; None of a problem that Python made."""
        if self.winner is None:
            return None
        made = self.one.runnable(self.values[self.winner], self.plan.seed)
        if not isinstance(made, Experiment):
            return None
        value = _mean(self.means[self.winner])
        said = f"# {self.one.named(self.values[self.winner]).text}: {self.plan.metric} {value:.4g} on the "
        return said + f"{self.plan.split} rows\n{toml.dumps(made.resolved())}"

    def _say(self, doing: str, rounds: int, fresh: bool = True) -> None:
        progress = self.tuning.progress
        left = progress.add(rounds, rounds * self.own.pace.round, fresh)
        self.tell(Moment(self.one.label, doing, progress.done, progress.total, left, self.plan.metric, self.best))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def _std(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.stdev(known) if len(known) > 1 else None
