"""A run is a folder: made once, written by one process at a time, every file in it complete or not there."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from filelock import BaseFileLock
from torch import Tensor

from fedloom.errors import RunError
from fedloom.storage import checkpoint, lock, store, toml
from fedloom.storage.closing import Closing
from fedloom.storage.files import guarded, loads, replacing, write_json
from fedloom.storage.signature import SIGNATURE, signature_of
from fedloom.storage.tensors import to_bytes

CONFIG, DATA, HISTORY, SUMMARY, REPORT = "config.toml", "data.json", "history.jsonl", "summary.json", "report.html"
MATRIX = "matrix.json"
TRACKING = "tracking.json"
"""What trackers need to go on with a run."""
EVENTS = "tensorboard"
"""The folder of TensorBoard's files."""
CARD, SCALES = "model.json", "scales.safetensors"
"""How new rows are read, and what the model says of them; the numbers by which they are scaled and filled."""
FLEET = "fleet.json"
"""Of a run on real devices: the clients, by their numbers."""
TASK = "task-"
"""How the folders of tasks in sequence begin; a number follows."""
_CHECKPOINTS = (checkpoint.NEWEST, checkpoint.PREVIOUS, checkpoint.NEXT, checkpoint.DAMAGED)
_OWN = (CONFIG, SIGNATURE, *_CHECKPOINTS, HISTORY, DATA, SUMMARY, REPORT, MATRIX, FLEET, CARD, SCALES, TRACKING)
_UNFINISHED = frozenset({SIGNATURE, *(f"{name}.tmp" for name in _OWN)})
"""What a kill before a file was complete leaves: where nothing else is, no run ever began."""


def theta_sha256(vector: Tensor) -> str:
    """The SHA-256 of a vector's little-endian bytes: equal for two runs if and only if their models are, bit by bit."""
    return hashlib.sha256(to_bytes(vector).data).hexdigest()


class RunFolder(Closing):
    """The folder of one run, locked against other processes until ``close`` (or the end of this process)."""

    def __init__(self, path: Path, held: BaseFileLock | None) -> None:
        self.path = path
        self._held = held

    @classmethod
    def create(cls, path: str | Path, force: bool = False) -> RunFolder:
        """A folder for a new run. One that has other files in it is refused, and so is a run that exists already.

        ``force`` removes the old run first: only the files that fedloom itself has written, and never those of a run
        that is going on.
        """
        path = Path(path)
        with guarded(path):
            if path.exists() and not path.is_dir():
                raise RunError(f"{path} is a file: choose another folder with --out.")
            if not lock.is_marked(path) and lock.content(path):
                raise RunError(
                    f"{path} is not empty and no run of fedloom. Nothing was changed: choose another folder with --out."
                )
            path.mkdir(parents=True, exist_ok=True)
            folder = cls(path, lock.acquire(path))
            try:
                folder._clear(force)
            except BaseException:
                folder.close()
                raise
        return folder

    @classmethod
    def open(cls, path: str | Path, write: bool = True) -> RunFolder:
        """The folder of a run that exists. ``write=False`` is for looking at a run, which may be going on."""
        path = Path(path)
        if not path.is_dir():
            raise RunError(f"There is no folder {path}: check the path; `fedloom run --out {path}` would make it.")
        if not (path / CONFIG).is_file():
            raise RunError(f"{path} is not a run: it has no {CONFIG}.")
        return cls(path, lock.acquire(path) if write else None)

    def file(self, name: str) -> Path:
        """The path of a file in the folder."""
        return self.path / name

    def write_text(self, name: str, text: str) -> None:
        """Writes a file in the place of what it was, all or nothing."""
        with replacing(self.file(name)) as file:
            file.write(text.encode())

    def write_json(self, name: str, value: Any) -> None:
        """Writes a value as JSON; NaN and infinities, which JSON lacks, become null."""
        write_json(self.file(name), value)

    def describe(self, config: dict[str, Any]) -> None:
        """Makes the folder a run: writes its settings, after the user's signature on them."""
        text = toml.dumps(config)
        signature = signature_of(text)
        if signature is not None:
            self.write_text(SIGNATURE, signature + "\n")
        self.write_text(CONFIG, text)

    def read_text(self, name: str) -> str:
        """The text of a file."""
        path = self.file(name)
        if not path.is_file():
            raise RunError(
                f"{path} is missing: the run has not come that far (`fedloom resume {self.path}`), or it was removed."
            )
        with guarded(path):
            try:
                return path.read_bytes().decode()
            except UnicodeDecodeError as error:
                raise RunError(f"{path} is damaged: byte {error.start} is no text. {self._again()}") from None

    def read_toml(self, name: str) -> dict[str, Any]:
        """The table in a TOML file."""
        try:
            return toml.loads(self.read_text(name))
        except toml.TomlFault as fault:
            raise RunError(f"{self.file(name)} is damaged: {fault}. Restore it from a copy.") from None

    def read_json(self, name: str) -> Any:
        """The value in a JSON file."""
        try:
            return loads(self.read_text(name))
        except ValueError as error:
            raise RunError(f"{self.file(name)} is damaged: {error}. {self._again()}") from None

    def _clear(self, force: bool) -> None:
        """Removes the run that is here, if that is wanted."""
        found = set(lock.content(self.path))
        if found - _UNFINISHED and not force:
            what = f"holds what is left of a run (it has no {CONFIG}):"
            if CONFIG in found:
                what = f"already holds a run: continue it with `fedloom resume {self.path}`,"
            raise RunError(f"{self.path} {what} choose another folder with --out, or replace it with --force.")
        if found:
            _remove_own(self.path)

    def _again(self) -> str:
        return f"Remove it and write it again with `fedloom resume {self.path}`."

    def close(self) -> None:
        """Lets other processes write into the folder."""
        if self._held is not None:
            self._held.release()
            self._held = None


def _remove_own(path: Path) -> None:
    """Removes what fedloom has written, the config first: without it what is left is never taken for a run."""
    for name in _OWN:
        (path / name).unlink(missing_ok=True)
        (path / f"{name}.tmp").unlink(missing_ok=True)
    memory = path / store.FOLDER
    if memory.is_dir():
        for segment in memory.glob("segment-*.safetensors"):
            segment.unlink()
        if not any(memory.iterdir()):
            memory.rmdir()
    events = path / EVENTS
    if events.is_dir():
        for file in [*events.glob("events.out.tfevents.*"), *events.glob(REPORT)]:
            file.unlink()
        if not any(events.iterdir()):
            events.rmdir()
    for task in task_folders(path):
        if lock.is_marked(task):
            _remove_own(task)
            if not lock.content(task):
                for name in (lock.MARK, lock.LOCK):
                    (task / name).unlink(missing_ok=True)
                task.rmdir()


def task_folders(folder: Path) -> list[Path]:
    """The folders of tasks in sequence, in their order."""
    found = folder.glob(f"{TASK}*") if folder.is_dir() else ()
    numbered = [path for path in found if re.fullmatch(rf"{TASK}[1-9]\d*", path.name) and path.is_dir()]
    return sorted(numbered, key=lambda path: int(path.name.removeprefix(TASK)))
