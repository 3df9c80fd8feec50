"""Runs that are going on elsewhere, looked at from outside: files are read, never locked, never written.

A run may not have begun, may be killed and resumed (its history is then cut back, and is another file), may be one of
tasks in sequence, or one of a comparison. Each look reads what is new.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedloom.report.runs import (
    HISTORY,
    evaluations,
    number,
    pick,
    planned_rounds,
    primary_first,
    read_record,
    run_folders,
    section,
    told_by,
)
from fedloom.storage import toml
from fedloom.storage.files import loads, plain

SUMMARY, CONFIG, MARK, COMPARISON = "summary.json", "config.toml", ".fedloom", "compare.json"
WAITING, RUNNING, STOPPED, DONE = "not begun", "running", "stopped", "done"
_PACE_ROWS = 50
"""Rows from which the pace is taken."""
_LONGEST_CURVE = 2000
"""Values of a metric that are kept; of more, every second one."""
_TASK = "task-"


@dataclass
class Look:
    """What is known of one run; ``state`` is "not begun", "running", "stopped" or "done"."""

    folder: Path
    label: str = ""
    state: str = WAITING
    round: int | None = None
    rounds: int | None = None
    pace: float | None = None
    """Rounds a second, of late."""
    left: float | None = None
    """Seconds that are left at this pace."""
    metrics: dict[str, float] = field(default_factory=dict)
    """As last evaluated, the primary one first."""
    curve: list[float] = field(default_factory=list)
    """The primary metric along the run, perhaps thinned."""
    clocks: dict[str, float] = field(default_factory=dict)
    failures: int = 0
    """How often a client failed."""
    note: str = ""
    """What there is to say beside."""

    def record(self) -> dict[str, Any]:
        """For other programs."""
        found = {**vars(self), "folder": str(self.folder)}
        return {key: value for key, value in found.items() if key != "curve"}


class Follower:
    """Looks at one run again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._reset()

    def _reset(self) -> None:
        self._file: tuple[int, int] | None = None
        self._at, self._half = 0, b""
        self._rows: list[tuple[int, float]] = []
        self._last: dict[str, Any] = {}
        self._metrics: dict[str, float] = {}
        self._curve: list[float] = []
        self._every, self._seen, self._failures = 1, 0, 0
        self._damaged = ""

    def look(self) -> Look:
        """What is known of the run now."""
        config, summary = _settings(self.folder / CONFIG), read_record(self.folder / SUMMARY)
        parts = _task_folders(self.folder)
        for row in self._new_rows():
            self._take(row)
        found = Look(self.folder, _label(self.folder, config, summary), rounds=planned_rounds(config))
        found.state = _state(self.folder, config, summary, bool(self._last))
        if parts and found.state != DONE:
            self._in_sequence(found, parts, config)
        elif self._last:
            self._told(found)
        if found.state == RUNNING and found.rounds is not None and found.round is not None and found.pace:
            found.left = max(0, found.rounds - found.round) / found.pace
        if found.state == STOPPED:
            found.note = f"its process is gone; `fedloom resume {self.folder}` goes on"
        elif found.state == DONE and summary.get("stopped") not in (None, "rounds"):
            found.note = f"ended by {summary['stopped']}"
        if self._damaged:
            found.note = self._damaged
        if found.state == DONE and found.round is None and type(summary.get("rounds")) is int:
            found.round = summary["rounds"]
        return found

    def _told(self, found: Look) -> None:
        """What the history has said so far."""
        found.round, found.failures = self._last["round"], self._failures
        found.metrics, found.curve = dict(self._metrics), list(self._curve)
        found.pace = _pace(self._rows)
        names = ("bytes_up", "bytes_down", "simulated_seconds", "wall_seconds")
        found.clocks = {name: value for name in names if (value := number(self._last.get(name))) is not None}

    def _in_sequence(self, found: Look, parts: list[Path], config: dict[str, Any]) -> None:
        """Of tasks in sequence: the last that has begun, after the rounds of those before it."""
        now = Follower(parts[-1]).look()
        tables = config.get("task")
        tasks = [table.get("name") for table in tables if isinstance(table, dict)] if isinstance(tables, list) else []
        before = sum(Follower(part).look().round or 0 for part in parts[:-1])
        found.round = None if now.round is None else now.round + before
        found.pace, found.metrics, found.curve = now.pace, now.metrics, now.curve
        found.clocks, found.failures = now.clocks, now.failures
        at = len(parts)
        named = f": {tasks[at - 1]}" if at <= len(tasks) and tasks[at - 1] else ""
        found.note = f"task {at} of {max(len(tasks), at)}{named}"

    def _new_rows(self) -> Iterator[dict[str, Any]]:
        """The rows that were written since the last look; all of them where the file was cut back or replaced."""
        try:
            with open(self.folder / HISTORY, "rb") as file:
                status = os.fstat(file.fileno())
                if self._file != (status.st_dev, status.st_ino) or status.st_size < self._at:
                    self._reset()
                    self._file = (status.st_dev, status.st_ino)
                file.seek(self._at)
                content = file.read()
        except FileNotFoundError:
            self._reset()
            return
        except OSError as error:
            self._damaged = f"{self.folder / HISTORY} cannot be read: {error.strerror}"
            return
        self._at += len(content)
        *lines, self._half = (self._half + content).split(b"\n")
        for line in filter(None, lines):
            try:
                row = loads(line)
            except ValueError:
                row = None
            if isinstance(row, dict) and type(row.get("round")) is int:
                yield row
            else:
                self._damaged = f"{self.folder / HISTORY} has a line that is no row: {line[:40]!r}"

    def _take(self, row: dict[str, Any]) -> None:
        self._last = row
        failures = row.get("failures")
        self._failures += len(failures) if isinstance(failures, list) else 0
        wall = number(row.get("wall_seconds"))
        if wall is not None:
            self._rows = [*self._rows[-_PACE_ROWS:], (row["round"], wall)]
        told = {name: pick(values, told_by(name, values)) for name, values in evaluations(row).items()}
        for name in primary_first(told):
            if (value := told[name]) is not None:
                self._metrics[name] = value
        if told and (first := told[primary_first(told)[0]]) is not None:
            self._keep(first)

    def _keep(self, value: float) -> None:
        """One more value of the curve, which is thinned where it gets long."""
        if self._seen % self._every == 0:
            self._curve.append(value)
        self._seen += 1
        if len(self._curve) > _LONGEST_CURVE:
            self._curve, self._every = self._curve[::2], self._every * 2


class Watched:
    """One run, or all of a folder that holds several."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._followers: dict[Path, Follower] = {}

    def looks(self) -> list[Look]:
        """Every run, in the order of the comparison; those that have not begun too."""
        return [self._followers.setdefault(folder, Follower(folder)).look() for folder in self._folders()]

    @property
    def single(self) -> bool:
        """Whether it is one run, perhaps one that has not begun."""
        return self._folders() == [self.path]

    def over(self, looks: list[Look]) -> bool:
        """Whether nothing will come any more: a run that is done, a comparison that was concluded."""
        if not self.single and (record := read_record(self.path / COMPARISON)):
            return "table" in record
        return all(look.state == DONE for look in looks)

    def _folders(self) -> list[Path]:
        listed = read_record(self.path / COMPARISON).get("runs")
        named = [name for name in listed if _below(name)] if isinstance(listed, list) else []
        if named:
            return [self.path / name for name in named]
        if (self.path / CONFIG).is_file() or (self.path / HISTORY).is_file():
            return [self.path]
        return run_folders(self.path) or [self.path]


def newest(below: Path) -> Path | None:
    """The run, or the comparison, whose history was written to last."""
    found = [(os.stat(folder / HISTORY).st_mtime, folder) for folder in run_folders(below)]
    if not found:
        return None
    folder = max(found)[1]
    return next((path for path in folder.parents if (path / COMPARISON).is_file()), folder)


def _below(name: object) -> bool:
    """Whether this is the path of something below a folder."""
    if not isinstance(name, str) or not name or "\0" in name:
        return False
    return not Path(name).is_absolute() and ".." not in Path(name).parts


def _pace(rows: list[tuple[int, float]]) -> float | None:
    if len(rows) < 2:
        return None
    rounds, seconds = rows[-1][0] - rows[0][0], rows[-1][1] - rows[0][1]
    return rounds / seconds if seconds > 0 and rounds > 0 else None


def _settings(path: Path) -> dict[str, Any]:
    try:
        return toml.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, toml.TomlFault):
        return {}


def _label(folder: Path, config: dict[str, Any], summary: dict[str, Any]) -> str:
    given = summary.get("label") or config.get("name") or section(config, "method").get("name")
    return str(given or folder.name)


def _state(folder: Path, config: dict[str, Any], summary: dict[str, Any], begun: bool) -> str:
    if summary.get("finished"):
        return DONE
    if not config and not begun:
        return WAITING
    return STOPPED if _gone(folder) else RUNNING


def _gone(folder: Path) -> bool:
    """Whether the process that wrote into the folder last has ended; of one on another machine that is not known."""
    holder = read_record(folder / MARK)
    pid = holder.get("pid")
    if type(pid) is not int or pid < 1 or holder.get("host") != socket.gethostname():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return _zombie(pid)


def _zombie(pid: int) -> bool:
    """Whether a process has ended and only waits to be asked for its code; known where there is /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False


def _task_folders(folder: Path) -> list[Path]:
    """The tasks in sequence that have begun."""
    found = [path for path in folder.glob(f"{_TASK}*") if path.name.removeprefix(_TASK).isdecimal()]
    return sorted(found, key=lambda path: int(path.name.removeprefix(_TASK)))


def as_line(looks: list[Look], single: bool) -> str:
    """A line of JSON: of one run an object, of several a list."""
    told = [look.record() for look in looks]
    return json.dumps(plain(told[0] if single else told, "look"), ensure_ascii=False)
