"""How to get the numbers of a report again: commands, fingerprints and settings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedloom.report.groups import Group, every_run
from fedloom.report.runs import RunRecord
from fedloom.report.words import MISSING, path_text, text, timed


@dataclass(frozen=True)
class Settings:
    """The settings of a group's first run, and the seeds of its other repeats."""

    title: str
    text: str
    other_seeds: list[str]


@dataclass(frozen=True)
class Again:
    """The commands, versions, fingerprints and settings with which anyone gets the same numbers."""

    commands: list[str]
    """Of comparisons and runs."""
    report: str
    """The command that writes the page."""
    programs: bool
    """Whether Python programs made some of the runs, so that no command does."""
    fingerprints: list[tuple[str, dict[str, str]]]
    """For each run its group's label, and texts by their headings."""
    settings: list[Settings]

    @staticmethod
    def of(groups: Sequence[Group], paths: Sequence[Path], out: Path) -> Again:
        """For the runs that were found in these paths and are reported in this file."""
        runs = every_run(groups)
        repeatable = [run for run in runs if run.repeatable]
        return Again(
            commands=_compare_commands(paths) + [_command("run", run.folder / "config.toml") for run in repeatable],
            report=f"{_command('report', *paths)} --out {shlex.quote(path_text(out))}",
            programs=len(repeatable) < len(runs),
            fingerprints=[(group.label, _fingerprint(run)) for group in groups for run in group.runs],
            settings=[_settings(group) for group in groups],
        )


def _command(name: str, *paths: Path) -> str:
    return shlex.join(["fedloom", name, *map(path_text, paths)])


def _compare_commands(paths: Sequence[Path]) -> list[str]:
    """The commands that comparisons recorded of themselves."""
    found = []
    for path in paths:
        try:
            record = json.loads((path / "compare.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        command = record.get("command") if isinstance(record, dict) else None
        if isinstance(command, list):
            command = shlex.join(map(str, command))
        if isinstance(command, str) and command:
            found.append(command)
    return found


def _fingerprint(run: RunRecord) -> dict[str, str]:
    keys = {"θ SHA-256": "theta_sha256", "fedloom": "fedloom", "Executor": "executor", "Stack": "stack"}
    return {
        "Seed": str(MISSING if run.seed is None else run.seed),
        "Rounds": f"{run.rounds:,}" + ("" if run.finished else " (not finished)"),
        **{title: str(run.summary.get(key, MISSING)) for title, key in keys.items()},
        "Wall time": text(timed, run.clock("wall_seconds")),
    }


def _settings(group: Group) -> Settings:
    seeds = [str(run.seed) for run in group.runs if run.seed is not None]
    title = group.label + (f": seed {seeds[0]}" if seeds else "")
    return Settings(title, group.runs[0].config_text.strip() or "(the folder has no config.toml)", seeds[1:])
