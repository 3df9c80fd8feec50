"""One writer for one folder: a lock that falls when its holder dies, and the mark of a folder that fedloom has made."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

import fedloom
from fedloom.errors import RunError
from fedloom.storage.files import guarded, loads

LOCK, MARK = ".lock", ".fedloom"
_OLD_MARK = b'{"fedloom"'
"""How the lock begins in folders that were made before the mark was a file of its own."""


def acquire(folder: Path) -> BaseFileLock:
    """The lock of a folder, held until its ``release`` or the end of this process; it also marks the folder.

    The mark names the holder. It is not the lock itself, which on Windows nobody else could read.
    """
    lock = FileLock(folder / LOCK, timeout=0, thread_local=False, fallback_to_soft=False)
    with guarded(folder / LOCK):
        try:
            lock.acquire()
        except Timeout:
            raise RunError(
                f"{folder} is in use: {_holder(folder)} is writing into it. Wait until it has ended, or choose another "
                "folder with --out."
            ) from None
        mine = {"fedloom": fedloom.__version__, "pid": os.getpid(), "host": socket.gethostname()}
        (folder / MARK).write_text(json.dumps(mine), encoding="utf-8")
    return lock


def is_marked(folder: Path) -> bool:
    """Whether fedloom has made this folder."""
    return (folder / MARK).is_file() or _beginning(folder / LOCK) == _OLD_MARK


def content(folder: Path) -> list[str]:
    """The names in a folder, fedloom's own mark and lock aside; a lock in which another program wrote is not ours."""
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    own = {MARK, LOCK} if _beginning(folder / LOCK) in (b"", _OLD_MARK) else {MARK}
    return [name for name in names if name not in own]


def _beginning(path: Path) -> bytes | None:
    if not path.is_file():
        return None
    with guarded(path), open(path, "rb") as file:
        return file.read(len(_OLD_MARK))


def _holder(folder: Path) -> str:
    try:
        found = loads((folder / MARK).read_bytes())
        return f"process {found['pid']} on {found['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
