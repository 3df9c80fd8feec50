"""Whether the files of a run's folder belong together, for one who only looks: a report, or a later run.

Nothing here needs torch, changes a file, or runs code that a folder names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedloom.errors import RunError
from fedloom.storage.files import loads
from fedloom.storage.history import History
from fedloom.storage.seal import RUN, SHA256, broken

CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
HISTORY, SUMMARY = "history.jsonl", "summary.json"
SEALED = ("config.toml", "data.json", "model.json", "scales.safetensors")
"""Files whose hashes the checkpoint has."""


def hashes(folder: Path, names: Sequence[str] = SEALED) -> dict[str, str]:
    """The hash of each of these files that is there."""
    found = {name: sha256_of_file(folder / name) for name in names}
    return {name: told for name, told in found.items() if told is not None}


def sha256_of_file(path: Path) -> str | None:
    """The hash of a file; None: it is not there."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def changed(folder: Path) -> list[str]:
    """The sealed files that are not as they were when the newest checkpoint was written, or were not there then."""
    meta = _meta(folder / CHECKPOINT)
    told = meta.get("files") if meta is not None else None
    if not isinstance(told, dict) or "model.json" not in told:
        return []
    now = hashes(folder)
    return [name for name in SEALED if told.get(name) != now.get(name)]


def misfits(folder: Path) -> list[str]:
    """What in a run's folder does not fit what, a line for each; what an older fedloom wrote cannot be compared."""
    before = _meta(folder / PREVIOUS)  # first: a run that is going on may write another one meanwhile
    meta, summary = _meta(folder / CHECKPOINT), _table(folder / SUMMARY)
    try:
        return _misfits(folder, before, meta, summary)
    except (KeyError, TypeError, AttributeError):  # nobody has looked at its checksum yet
        return [f"{CHECKPOINT} is damaged: its header does not say what it should"]


def _misfits(
    folder: Path, before: dict[str, Any] | None, meta: dict[str, Any] | None, summary: dict[str, Any] | None
) -> list[str]:
    found = []
    if summary is not None and broken(summary):
        found.append(f"{SUMMARY} was changed after it was written")
    if meta is None and _was_there(folder, summary):
        found.append(f"{CHECKPOINT} cannot be read, so it is not known whether the other files belong to the run")
    if meta is None or "seal" not in meta:
        return found
    run = meta["seal"]["run"]
    for name, told in meta.get("files", {}).items():
        if hashes(folder).get(name) != told:
            found.append(f"{name} is not as it was when {CHECKPOINT} was written")
    found += _newest(before, meta) if summary is None else _summary(summary, run, meta)
    return found + _history(folder / HISTORY, run, meta)


def _was_there(folder: Path, summary: dict[str, Any] | None) -> bool:
    """Whether a folder whose checkpoint cannot be read had one; that of tasks in sequence has none of its own."""
    return any((folder / name).exists() for name in (CHECKPOINT, PREVIOUS)) or RUN in (summary or {})


def _newest(before: dict[str, Any] | None, meta: dict[str, Any]) -> list[str]:
    """Whether the newest checkpoint of a run that has no summary is that; the history may be ahead of it by rights."""
    now = meta["clocks"]["round"]
    try:
        then = -1 if before is None else int(before["clocks"]["round"])
    except (KeyError, TypeError, ValueError):
        then = -1
    if then < 0 < now:  # a run begins with the checkpoint of round 0
        return [f"{PREVIOUS} is missing or damaged, so it is not known whether {CHECKPOINT} is the newest"]
    if then >= now:
        return [
            f"{CHECKPOINT} is of round {now}, {PREVIOUS} of round {then}: an older one is in the newest one's place"
        ]
    return []


def _summary(summary: dict[str, Any], run: str, meta: dict[str, Any]) -> list[str]:
    told, now = summary.get("rounds"), meta["clocks"]["round"]
    if SHA256 not in summary or RUN not in summary:
        return [f"{SUMMARY} has lost its hash or the name of its run: it was changed after it was written"]
    if summary[RUN] != run:
        return [f"{SUMMARY} is of another run than {CHECKPOINT}"]
    if told != now:
        return [f"{SUMMARY} tells of the run after round {told}, {CHECKPOINT} is of round {now}"]
    if summary.get("theta_sha256") != meta["theta_sha256"]:
        return [f"{SUMMARY} tells of another model than {CHECKPOINT} has"]
    return []


def _history(path: Path, run: str, meta: dict[str, Any]) -> list[str]:
    if not path.is_file():
        return [f"{HISTORY} is missing"]
    try:
        history = History.read(path, run)
    except RunError as error:
        return [str(error)]
    if history.fault is not None:
        return [history.fault]
    if history.head(meta["clocks"]["round"]) != meta["history"]:
        return [f"{HISTORY} does not have the rows that it had when {CHECKPOINT} was written"]
    return history.notes


def _meta(path: Path) -> dict[str, Any] | None:
    """What a checkpoint's header says; None where there is none that can be read, which is for its reader to say."""
    try:
        with open(path, "rb") as file:
            size = path.stat().st_size
            length = int.from_bytes(file.read(8), "little")
            header = loads(file.read(length)) if length < size else {}
        found = loads(header["__metadata__"]["meta"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, dict) else None


def _table(path: Path) -> dict[str, Any] | None:
    try:
        found = loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
