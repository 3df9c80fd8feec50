"""One writer for one folder: a lock that the operating system lets go of when its holder dies, however it dies."""

from __future__ import annotations

import json
import os
import socket
import sys
import weakref
from pathlib import Path
from typing import BinaryIO

import fedloom
from fedloom.errors import RunError
from fedloom.storage.files import guarded

NAME = ".lock"
_MARK = b'{"fedloom"'


class Lock:
    """An advisory lock on the file ``.lock`` of a folder, which names its holder.

    The file is never removed: it also marks the folder as one that fedloom has made.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / NAME
        with guarded(path):
            self._file: BinaryIO = open(path, "rb+", buffering=0, opener=_or_new)  # noqa: SIM115
            if not _acquire(self._file):
                holder = _holder(self._file.read())
                self._file.close()
                raise RunError(
                    f"{folder} is in use: {holder} is writing into it. Wait until it has ended, or choose another "
                    "folder with --out."
                )
            mine = {"fedloom": fedloom.__version__, "pid": os.getpid(), "host": socket.gethostname()}
            self._file.write(json.dumps(mine).encode())
            self._file.truncate()
        _held.add(self)

    def release(self) -> None:
        """Lets go of the lock."""
        self._file.close()


def is_marked(folder: Path) -> bool:
    """Whether fedloom has made this folder."""
    return _beginning(folder) == _MARK


def is_blank(folder: Path) -> bool:
    """Whether the lock of this folder is empty: a process was killed while it was making it."""
    return _beginning(folder) == b""


def _beginning(folder: Path) -> bytes | None:
    path = folder / NAME
    if not path.is_file():
        return None
    with guarded(path), open(path, "rb") as file:
        return file.read(len(_MARK))


def _or_new(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o666)


def _holder(content: bytes) -> str:
    try:
        found, _ = json.JSONDecoder().raw_decode(content.decode())
        return f"process {found['pid']} on {found['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _release_in_child() -> None:
    """A forked worker must not hold its parent's lock beyond the parent's death."""
    for lock in list(_held):
        lock.release()


if sys.platform == "win32":
    import msvcrt

    def _acquire(file: BinaryIO) -> bool:
        file.seek(1 << 30)  # beyond the content, which others may read
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            file.seek(0)
        return True

else:
    import fcntl

    def _acquire(file: BinaryIO) -> bool:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    os.register_at_fork(after_in_child=_release_in_child)
