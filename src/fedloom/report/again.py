"""How to get the numbers of a report again: commands, fingerprints and settings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedloom.report.groups import Group, every_run
from fedloom.report.runs import RunRecord, read_record
from fedloom.report.words import MISSING, command, text, timed


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
    settings: list[tuple[str, str, list[str]]]
    """For each group a title, the settings of its first run, and what its other repeats have instead."""

    @staticmethod
    def of(groups: Sequence[Group], paths: Sequence[Path], out: Path, asked: Mapping[str, object]) -> Again:
        """For the runs that were found in these paths and are reported in this file, as it was asked for."""
        runs = every_run(groups)
        repeatable = [run for run in runs if run.repeatable]
        options = [word for name, value in asked.items() if value is not None for word in (f"--{name}", str(value))]
        compared = [read_record(path / "compare.json").get("command") for path in paths]
        return Again(
            commands=[shlex.join(map(str, words)) for words in compared if isinstance(words, list) and words]
            + [command("run", run.folder / "config.toml") for run in repeatable],
            report=command("report", *paths, "--out", out, *options),
            programs=len(repeatable) < len(runs),
            fingerprints=[(group.label, _fingerprint(run)) for group in groups for run in group.runs],
            settings=[_settings(group) for group in groups],
        )


def resume_command(run: RunRecord) -> str:
    """How to go on with a run that is not finished."""
    return command("resume", run.folder) if run.repeatable else "train(…, out=…, resume=True)"


def _fingerprint(run: RunRecord) -> dict[str, str]:
    keys = {"θ SHA-256": "theta_sha256", "fedloom": "fedloom", "Executor": "executor", "Stack": "stack"}
    return {
        "Seed": str(MISSING if run.seed is None else run.seed) + (f", fold {run.fold}" if run.fold else ""),
        "Rounds": f"{run.rounds:,}" + ("" if run.finished else " (not finished)"),
        **{title: str(run.summary.get(key, MISSING)) for title, key in keys.items()},
        "Wall time": text(timed, run.clock("wall_seconds")),
    }


def _settings(group: Group) -> tuple[str, str, list[str]]:
    repeats = [run.repeat for run in group.runs if run.repeat]
    title = group.label + (f": {repeats[0]}" if repeats else "")
    return title, group.runs[0].config_text.strip() or "(the folder has no config.toml)", repeats[1:]
