"""Files that are either as they were or complete: atomic replacement, plain JSON, and what a failing disk means."""

from __future__ import annotations

import errno
import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from fedloom.errors import RunError

_DEEPEST = 100
"""Tables and lists inside each other: more than any file of a run has, and less than any reader of them can bear."""
_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


@contextmanager
def guarded(path: Path, safe: str = "") -> Iterator[None]:
    """Turns an OSError inside the block into a RunError about ``path``; ``safe`` says what is not lost."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            what = f"The disk is full (or a quota is used up): {path} could not be written."
            remedy = "Free some space, then continue with `fedloom resume`."
        else:
            what = f"{path} cannot be used: {error.strerror or error}."
            remedy = "Check that the path exists and that you may write there."
        raise RunError(" ".join(filter(None, (what, safe, remedy)))) from error


@contextmanager
def replacing(path: Path, safe: str = "") -> Iterator[BinaryIO]:
    """A file to write to that takes the place of ``path`` only once it is complete and on the disk.

    It is written beside ``path``, flushed and synced, renamed over ``path``, and the folder is synced. Whatever
    happens before the rename leaves ``path`` as it was; an error also removes the unfinished file.
    """
    unfinished = path.with_name(path.name + ".tmp")
    with guarded(path, safe):
        try:
            with open(unfinished, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Writes a value as JSON, all or nothing; NaN and infinities, which JSON lacks, become null."""
    with replacing(path) as file:
        file.write((json.dumps(plain(value, path.name), indent=1, allow_nan=False) + "\n").encode())


def loads(text: str | bytes) -> Any:
    """The value of a JSON text of anybody's, or a ValueError that says what is wrong with it."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    opened = text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    if opened > _DEEPEST and nested_deeper(value, _DEEPEST):
        raise ValueError(f"nested deeper than {_DEEPEST}")
    return value


def nested_deeper(value: Any, limit: int) -> bool:
    """Whether more tables and lists than this are inside each other; found without recursion."""
    level = [value]
    for _ in range(limit + 1):
        parts = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list)]
        if not parts:
            return False
        level = [item for part in parts for item in part]
    return True


def sync_file(path: Path) -> None:
    """Brings the content of a finished file to the disk."""
    with guarded(path), open(path, "rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Brings the names in a folder to the disk; Windows has no such call and does so by itself."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def slug(text: str) -> str:
    """A text as the name of a folder."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.") or "run"


def plain(value: Any, place: str) -> Any:
    """A copy of ``value`` in numbers, texts, lists and dicts that is valid JSON.

    Tensors and NumPy numbers of one element become numbers. NaN and infinities, which JSON lacks, become null.
    ``place`` names the value in an error.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{place}[{i}]") for i, item in enumerate(value)]
    try:
        return plain(value.item(), place)
    except (AttributeError, ValueError, RuntimeError):
        kind = type(value).__name__
        raise RunError(
            f"{place} is of type {kind}, which JSON cannot hold: give a single number, a text, a list or a dict."
        ) from None
