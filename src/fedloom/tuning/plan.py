"""The plan of a tuning: how many trials of each method go how far. A time becomes a plan once, and never again."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedloom.errors import ConfigError, RunError
from fedloom.report.words import text, timed
from fedloom.storage.files import loads, write_json
from fedloom.tuning.spaces import Values

PLAN = "plan.json"
FACTOR = 3
"""One trial in so many goes on, for so many times as many rounds."""
MAX_TRIALS = 1000
_DEEPEST = 3
_USED = 0.93
"""Share of a budget that is planned; the rest is for what cannot be foretold."""
_WORTH = 12.0
"""A first rung takes at least so many times as long as it takes to begin a trial."""
_FOLDER_SECONDS = 0.15
"""What it takes to begin and to end a run that is kept in a folder."""
_UNITS = {"": 1.0, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Rung:
    """So many trials are compared after so many rounds; the defaults are there beside them."""

    rounds: int
    trials: int


@dataclass(frozen=True)
class Pace:
    """What the first rounds of a method's default trial took."""

    round: float
    """Seconds of a round."""
    start: float
    """Seconds to begin a trial and to look at the validation rows."""
    work: float = 1.0
    """How much more the rounds of the trials cost than those of the defaults, as far as the method can tell."""


@dataclass(frozen=True)
class MethodPlan:
    """What is to be done for one method."""

    label: str
    rounds: int
    rungs: tuple[Rung, ...]
    trials: tuple[Values, ...] | None
    """The values of trials 1, 2, …; None where a sampler says them on the way."""
    space: dict[str, str]
    pace: Pace

    @property
    def count(self) -> int:
        """How many trials there are beside the defaults."""
        return self.rungs[0].trials if self.rungs else 0

    def total(self, repeats: int) -> int:
        """All rounds of the plan."""
        return planned_rounds(self.rungs, self.rounds, repeats)

    def seconds(self, repeats: int) -> float:
        """What these rounds take by the pace of the defaults."""
        return self.total(repeats) * self.pace.round


@dataclass(frozen=True)
class Plan:
    """All that decides the table of a tuning, beside the settings."""

    methods: tuple[MethodPlan, ...]
    arguments: dict[str, Any]
    """By which the tuning is known again."""
    metric: str
    higher: bool
    split: str
    repeats: int = 1
    seed: int = 0
    command: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Write plan.json, all or nothing."""
        write_json(folder / PLAN, asdict(self))


def read_plan(folder: Path) -> Plan | None:
    """The plan in a folder; None where there is none, a RunError where it is damaged."""
    path = folder / PLAN
    try:
        told = loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}; begin anew with --force, or in another folder") from error
    try:
        methods = tuple(
            MethodPlan(
                one["label"],
                one["rounds"],
                tuple(Rung(**rung) for rung in one["rungs"]),
                None if one["trials"] is None else tuple(one["trials"]),
                one["space"],
                Pace(**one["pace"]),
            )
            for one in told["methods"]
        )
        return Plan(**{**told, "methods": methods})
    except (KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged ({error}): begin anew with --force, or in another folder") from error


def rungs_of(trials: int, rounds: int, depth: int | None = None) -> tuple[Rung, ...]:
    """Successive halving by thirds: all trials go to the first rung, the best third of them to the next, …

    The last rung has all rounds. ``depth`` is how often is halved; none: as often as trials and rounds allow, at most
    three times.
    """
    if trials < 1:
        return ()
    depth = min(depth if depth is not None else _DEEPEST, _log(trials), _log(rounds))
    powers = [FACTOR ** (depth - at) for at in range(depth + 1)]
    return tuple(Rung(math.ceil(rounds / power), max(1, trials // FACTOR**at)) for at, power in enumerate(powers))


def planned_rounds(rungs: tuple[Rung, ...], rounds: int, repeats: int = 1) -> int:
    """All rounds: of the trials, of the defaults, of the two runs that are kept, and of the repeats."""
    before = [0, *(rung.rounds for rung in rungs)]
    trials = sum(rung.trials * (rung.rounds - done) for rung, done in zip(rungs, before, strict=False))
    last = rungs[-1].trials if rungs else 0
    kept = 2 if rungs else 1
    return trials + rounds * (1 + kept + (repeats - 1) * (last + 1))


def cost(rungs: tuple[Rung, ...], rounds: int, pace: Pace, repeats: int = 1) -> float:
    """Seconds that a method takes."""
    own = rounds * (2 if not rungs else 3) * pace.round
    further = (planned_rounds(rungs, rounds, repeats) * pace.round - own) * pace.work
    starts = sum(rung.trials for rung in rungs) + 2 + (repeats - 1) * (rungs[-1].trials + 1 if rungs else 1)
    return own + further + starts * pace.start + 2 * _FOLDER_SECONDS


def affordable(seconds: float, rounds: int, pace: Pace, repeats: int = 1, limit: int = MAX_TRIALS) -> tuple[Rung, ...]:
    """The rungs with the most trials that the seconds pay for; none where they pay for the defaults alone."""
    best: tuple[Rung, ...] = ()
    for trials in range(1, limit + 1):
        rungs = _worth(trials, rounds, pace)
        if cost(rungs, rounds, pace, repeats) > seconds:
            break
        best = rungs
    return best


def _worth(trials: int, rounds: int, pace: Pace) -> tuple[Rung, ...]:
    """The deepest halving whose first rung is worth its beginning."""
    for depth in range(_DEEPEST, 0, -1):
        rungs = rungs_of(trials, rounds, depth)
        if rungs[0].rounds * pace.round * pace.work >= _WORTH * pace.start:
            return rungs
    return rungs_of(trials, rounds, 0)


def shares(budget: float, spent: float, needs: dict[str, float]) -> float:
    """The seconds that each method has, equal for all; refused where one of them cannot do its defaults in that."""
    share = (budget * _USED - spent) / len(needs)
    worst = max(needs.values())
    if worst > share:
        slow = max(needs, key=lambda label: needs[label])
        wanted = math.ceil((worst * len(needs) + spent) / _USED)
        raise ConfigError(
            f"--budget {text(timed, budget)} is too small: each of {len(needs)} methods has the same time, and a full "
            f"run of {slow} with its defaults takes {text(timed, worst)}; give at least {wanted}s, or fewer --rounds"
        )
    return share


def parse_budget(given: str | float) -> float:
    """``90``, ``90s``, ``10m`` or ``1.5h`` in seconds."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(given).lower())
    if match is None or match[2] not in _UNITS or float(match[1]) <= 0:
        raise ConfigError(f"budget = {given!r} is no time; write it as 90s, 10m or 2h")
    return float(match[1]) * _UNITS[match[2]]


def _log(value: int) -> int:
    """How often a number can be divided."""
    found = 0
    while FACTOR ** (found + 1) <= value:
        found += 1
    return found
