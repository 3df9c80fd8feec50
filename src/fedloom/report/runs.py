"""Reading runs back from their folders: nothing but the files, so that a report can be made anywhere, at any time.

A run that is still going, or was killed, has no ``summary.json`` and perhaps half a last line of history; it can be
reported as far as it got. Anything else that does not read is damage, and is said with file and line.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from fedloom.errors import RunError
from fedloom.storage import toml
from fedloom.storage.belonging import misfits
from fedloom.storage.files import guarded, loads
from fedloom.storage.rows import Rows
from fedloom.storage.seal import CHAIN

HISTORY = "history.jsonl"
_NO_MEAN = re.compile("rmse|r2|f1|precision|recall|balanced-accuracy|roc-auc|average-precision|calibration-error|kappa")
"""Metrics that are no means over rows."""


@dataclass(frozen=True)
class RunRecord:
    """One run as its folder tells it; ``summary`` is empty while the run has not finished."""

    folder: Path
    config: dict[str, Any]
    config_text: str
    data: dict[str, Any]
    history: Sequence[dict[str, Any]]
    """The rows by their rounds; they stay in their file, and are read when they are asked for."""
    summary: dict[str, Any]
    matrix: dict[str, Any] = field(default_factory=dict)
    """Of tasks in sequence: how good the model was on each task after each."""
    parts: tuple[RunRecord, ...] = ()
    """The tasks of a sequence, each a run of its own that is named as the task; without their histories."""
    misfits: tuple[str, ...] = ()
    """What in the folder does not fit what: files that were changed since, or are of another run."""

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return bool(self.summary.get("finished", False))

    @property
    def method(self) -> str:
        """The method's name, or the folder's where no file gives one."""
        return str(self.summary.get("method") or section(self.config, "method").get("name") or self.folder.name)

    @property
    def label(self) -> str:
        """What the run calls itself in a comparison."""
        return str(self.summary.get("label") or self.method)

    @property
    def seed(self) -> int | None:
        """The seed, where it is known."""
        seed = self.summary.get("seed", self.config.get("seed"))
        return seed if isinstance(seed, int) else None

    @property
    def fold(self) -> int | None:
        """Which of the folds it tested, where it is one of a cross-validation."""
        fold = section(self.config, "data").get("fold", self.config.get("fold"))
        return fold if isinstance(fold, int) else None

    @property
    def repeat(self) -> str:
        """What sets it apart from the others of its group: "seed 0, fold 2"."""
        known = {"seed": self.seed, "fold": self.fold}
        return ", ".join(f"{name} {value}" for name, value in known.items() if value is not None)

    @property
    def repeatable(self) -> bool:
        """Whether the settings are the whole experiment; those of a Python program's own objects are not."""
        return bool(self.config) and self.config.get("made_by") != "python"

    @property
    def rounds(self) -> int:
        """How many rounds were completed."""
        return int(self.history[-1]["round"]) if self.history else 0

    @property
    def planned_rounds(self) -> int | None:
        """How many rounds the settings ask for."""
        return planned_rounds(self.config)

    @cached_property
    def asynchronous(self) -> bool:
        """Whether the server took replies as they arrived; else it waited for all in every round."""
        name = self.summary.get("schedule") or section(self.config, "schedule").get("name")
        return name == "async" if name else any("staleness" in row for row in self.history)

    @property
    def goal(self) -> tuple[str, float] | None:
        """The metric and the value at which the run was to end, if it was."""
        told, planned = section(self.summary, "target"), section(self.config, "schedule")
        metric, value = told.get("metric", planned.get("metric")), number(told.get("value", planned.get("target")))
        return (metric, value) if isinstance(metric, str) and value is not None else None

    @property
    def judged(self) -> dict[str, Any]:
        """How the run was judged: as its summary tells, or the main evaluation of its settings."""
        settings = self.config.get("evaluation")
        main = settings[0] if isinstance(settings, list) and settings else settings
        return section(self.summary, "judged") or (main if isinstance(main, dict) else {})

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """The names of everything that was evaluated, the loss last; the first is the run's primary metric."""
        tables = chain([section(self.summary, "spread")], map(evaluations, self.history))
        return tuple(primary_first(dict.fromkeys(name for table in tables for name in table)))

    def headline(self, metric: str) -> str:
        """By which statistic a metric is told: as the summary says, which one of an older fedloom does not; while there
        is none, pooled where the metric's name tells that it is no mean over rows.
        """
        if self.summary:
            told = section(self.summary, "statistics").get(metric.rpartition("/")[2])
            return told if isinstance(told, str) else "weighted"
        known = [evaluations(row).get(metric, {}) for row in self.history[-1:]]
        return told_by(metric, known[0]) if known else "weighted"

    def final(self, metric: str, statistic: str | None = None) -> float | None:
        """A metric at the end: from the summary, or from the last round that was evaluated; none: its headline."""
        statistic = statistic or self.headline(metric)
        ending = section(self.summary, "spread").get(metric)
        if isinstance(ending, dict) and (value := pick(ending, statistic)) is not None:
            return value
        rows = (evaluations(row).get(metric) for row in reversed(self.history))
        return next((value for row in rows if row and (value := pick(row, statistic)) is not None), None)

    def clock(self, name: str) -> float | None:
        """A cumulative clock at the end, by its name in the history: bytes_up, simulated_seconds, …"""
        told = (number(row.get(name)) for row in (self.summary, *self.history[-1:]))
        return next((value for value in told if value is not None), None)


def planned_rounds(config: dict[str, Any]) -> int | None:
    """How many rounds settings ask for, those of all tasks together."""
    rounds, tasks = config.get("rounds"), config.get("task")
    if isinstance(rounds, int) and isinstance(tasks, list):
        own = [task.get("rounds", rounds) if isinstance(task, dict) else rounds for task in tasks]
        return sum(count if isinstance(count, int) else rounds for count in own)
    return rounds if isinstance(rounds, int) else None


def section(table: dict[str, Any], key: str) -> dict[str, Any]:
    """The table under a key, or an empty one."""
    found = table.get(key)
    return found if isinstance(found, dict) else {}


def client_name(data: dict[str, Any], client: int) -> str:
    """What the data call a client; else its number."""
    names = data.get("labels") or []
    return str(names[client]) if client < len(names) else str(client)


def number(value: object) -> float | None:
    """A JSON value as a number; None for anything that is not one. NaN and infinity stay what they are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def total(row: dict[str, Any], *clocks: str) -> float | None:
    """The sum of some clocks in a row of the history; None where it lacks one."""
    values = [number(row.get(clock)) for clock in clocks]
    return None if None in values else sum(value for value in values if value is not None)


def told_by(metric: str, statistics: Mapping[str, Any]) -> str:
    """By which of its statistics a metric is told, as far as its name tells: pooled where it is no mean over rows."""
    no_mean = _NO_MEAN.fullmatch(metric.rpartition("/")[2].partition(":")[0])
    return "pooled" if no_mean and "pooled" in statistics else "weighted"


def pick(statistics: dict[str, Any], statistic: str) -> float | None:
    """One statistic of a metric; a weighted mean that was not recorded is the plain mean, null stands for NaN."""
    key = "mean" if statistic == "weighted" and statistic not in statistics else statistic
    return math.nan if key in statistics and statistics[key] is None else number(statistics.get(key))


def evaluations(row: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every metric of a history row: those of the main evaluation by name, those of others as "EVALUATION/metric"."""
    found = {name: value for name, value in section(row, "evaluation").items() if isinstance(value, dict)}
    for evaluation, metrics in section(row, "evaluations").items():
        if isinstance(metrics, dict):
            found |= {f"{evaluation}/{name}": value for name, value in metrics.items() if isinstance(value, dict)}
    return found


def primary_first(metrics: Iterable[str]) -> list[str]:
    """Metrics of the main evaluation before those of others, and losses last."""
    return sorted(metrics, key=lambda name: ("/" in name, name.endswith("loss")))


def read_run(folder: str | Path) -> RunRecord:
    """Read one run's folder; RunError names the file and the line that is damaged."""
    folder = Path(folder)
    if not (folder / HISTORY).is_file():
        raise RunError(f"{folder}: not a run: there is no {HISTORY} in it. Give the folder of a run or of a comparison")
    config_text = _read_text(folder / "config.toml") or ""
    summary = _read_json(folder / "summary.json")
    return RunRecord(
        folder=folder,
        config=_parse_toml(folder / "config.toml", config_text),
        config_text=config_text,
        data=_read_json(folder / "data.json"),
        history=_read_history(folder / HISTORY, complete=bool(summary)),
        summary=summary,
        matrix=(matrix := _read_json(folder / "matrix.json")),
        parts=_read_tasks(folder, matrix),
        misfits=tuple(misfits(folder)),
    )


def _read_tasks(folder: Path, matrix: dict[str, Any]) -> tuple[RunRecord, ...]:
    """What is known of the data of each task, by the task's name."""
    tasks = matrix.get("tasks")
    found = []
    for at, task in enumerate(tasks if isinstance(tasks, list) else [], 1):
        place = folder / f"task-{at}"
        if data := _read_json(place / "data.json"):
            found.append(RunRecord(place, {}, "", {**data, "name": f"{data.get('name', 'data')}, {task}"}, [], {}))
    return tuple(found)


def read_record(path: Path) -> dict[str, Any]:
    """A JSON object that a comparison or a reproduction left; empty where there is none that can be read."""
    try:
        found = loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def find_runs(paths: str | Path | Iterable[str | Path]) -> list[RunRecord]:
    """All runs of the given paths, each a run's folder or a folder that holds some at any depth, sorted by name."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    folders: dict[Path, Path] = {}
    for path in map(Path, given):
        found = run_folders(path)
        if not found:
            what = f"no run in it or below it (a run's folder has a {HISTORY})" if path.is_dir() else "no such folder"
            raise RunError(f"{path}: {what}. Check the path, or start a run with `fedloom run`")
        for folder in found:
            folders.setdefault(folder.resolve(), folder)
    return [read_run(folder) for folder in folders.values()]


def run_folders(path: Path) -> list[Path]:
    """The folders of runs at or below a path, sorted with numbers as numbers: "seed-2" before "seed-10"."""
    found = []
    for root, below, files in os.walk(path):
        if HISTORY in files:
            found.append(Path(root))
            below.clear()
        else:
            below[:] = sorted((name for name in below if not name.startswith(".")), key=_natural)
    return found


def _natural(name: str) -> list[tuple[int, float, str]]:
    parts = re.split(r"(\d+(?:\.\d+)?)", name)
    return [(0, float(part), "") if part[0].isdecimal() else (1, 0.0, part) for part in parts if part]


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise RunError(f"{path}, line {line}: damaged: not text in UTF-8. {_REMEDY}") from error
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}. Check the file and its permissions") from error


_REMEDY = "Restore the file from a copy, or leave this run out"


def _read_json(path: Path) -> dict[str, Any]:
    text = _read_text(path)
    return {} if text is None else _parse_object(path, text, 1)


def _parse_object(path: Path, text: str, line: int) -> dict[str, Any]:
    try:
        value = loads(text)
    except ValueError as error:
        at = line + getattr(error, "lineno", 1) - 1
        raise RunError(f"{path}, line {at}: damaged: {getattr(error, 'msg', error)}. {_REMEDY}") from error
    if not isinstance(value, dict):
        raise RunError(f"{path}, line {line}: damaged: not a JSON object. {_REMEDY}")
    return value


def _parse_toml(path: Path, text: str) -> dict[str, Any]:
    try:
        return toml.loads(text)
    except toml.TomlFault as fault:
        raise RunError(f"{path}, line {fault.line}: damaged: {fault.what}. {_REMEDY}") from fault


def _read_history(path: Path, *, complete: bool) -> Rows:
    """The rows in order of their rounds. A last line cut short by a kill is dropped unless the run had finished."""
    found, rounds, end = Rows(path, _row), list[int](), 0
    with guarded(path), open(path, "rb") as file:
        for at, line in enumerate(file, 1):
            start, end = end, end + len(line)
            if not line.strip():
                continue
            try:
                row = _parse_row(path, line, at)
            except RunError:
                if complete or line.endswith(b"\n"):
                    raise
                break
            found.add(start, end)
            rounds.append(row["round"])
    last = {round: place for place, round in enumerate(rounds)} if _jumps(rounds) else None
    return found.kept() if last is None else found.ordered(last[round] for round in sorted(last)).kept()


def _jumps(rounds: Sequence[int]) -> bool:
    """Whether a round does not come after the one before."""
    return any(later <= earlier for earlier, later in pairwise(rounds))


def _parse_row(path: Path, line: bytes, at: int) -> dict[str, Any]:
    try:
        row = _parse_object(path, line.decode().rstrip("\n"), at)
    except UnicodeDecodeError as error:
        raise RunError(f"{path}, line {at}: damaged: not text in UTF-8. {_REMEDY}") from error
    value = number(row.get("round"))
    if value is None or not math.isfinite(value) or value < 0 or value != int(value):
        raise RunError(f'{path}, line {at}: damaged: "round" is not a whole number. {_REMEDY}')
    return row


def _row(line: bytes) -> dict[str, Any]:
    """A line that was found to be a row before."""
    row: dict[str, Any] = loads(line)
    row.pop(CHAIN, None)
    return row
