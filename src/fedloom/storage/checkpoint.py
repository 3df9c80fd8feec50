"""Checkpoints: everything a run needs to go on in the same bits, in one file that is complete or not there.

A folder holds the newest checkpoint and the one before it, so that a newest file which a failing disk has damaged
costs some rounds and not the run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedloom.errors import RunError
from fedloom.storage import tensorfile
from fedloom.storage.files import guarded, loads, replacing, sync_folder
from fedloom.storage.tensors import SAFETENSORS, dtype_of, from_bytes, name_of, to_bytes

NEWEST = "checkpoint.safetensors"
PREVIOUS = "checkpoint.previous.safetensors"
NEXT = "checkpoint.next.safetensors"
DAMAGED = "checkpoint.damaged.safetensors"

MISREAD = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RuntimeError)
"""What is raised by who counts on a file of fedloom's, and has another."""
T = TypeVar("T")
Groups = dict[str, dict[str, Tensor]]

_KIND = "fedloom.checkpoint"
_MOST = 200
_escape = partial(quote, safe="", errors="surrogatepass")
_unescape = partial(unquote, errors="surrogatepass")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Groups of tensors (such as "state"), numbers and texts beside them, and a note when something was recovered."""

    groups: Groups
    meta: dict[str, Any]
    note: str = ""


def save(path: Path, groups: Groups, meta: dict[str, Any], safe: str = "") -> None:
    """Writes one checkpoint file atomically. ``meta`` is anything that JSON can hold; floats come back exactly.

    A tensor of a dtype that not every safetensors has is stored as its bytes, and named in the header. ``safe`` says
    what is not lost when a new file cannot be written.
    """
    columns, pieces, raw = [], [], {}
    for group, tensors in groups.items():
        for key, tensor in tensors.items():
            name = f"{_escape(group)}/{_escape(key)}"
            if tensor.dtype in SAFETENSORS:
                columns.append(tensorfile.Column(name, tensor.dtype, tuple(tensor.shape)))
            else:
                raw[name] = [name_of(tensor.dtype), list(tensor.shape)]
                columns.append(tensorfile.Column(name, torch.uint8, (tensor.numel() * tensor.element_size(),)))
            pieces.append(tensor)
    texts = {
        "meta": json.dumps(meta),
        "groups": json.dumps([_escape(group) for group in groups]),
        "raw": json.dumps(raw),
    }
    if path.exists():
        safe = f"The previous {path.name} is still there, unchanged."
    with replacing(path, safe) as file:
        tensorfile.write(file, _KIND, columns, map(to_bytes, pieces), texts)


def load(path: Path, remedy: str = "Take another checkpoint of the run, or start it again.") -> Checkpoint:
    """Reads one checkpoint file and verifies every byte; RunError when it is missing, damaged, cut off or foreign."""
    header = tensorfile.check(path, _KIND, remedy)
    with guarded(path):
        data = path.read_bytes()
    try:
        tensors = safetensors.torch.load(data)
    except safetensors.SafetensorError as error:
        raise RunError(f"{path} is damaged, or was not written by fedloom ({error}). {remedy}") from None
    with as_written(path, remedy):
        for name, (dtype, shape) in loads(header.texts["raw"]).items():
            tensors[name] = from_bytes(tensors[name].numpy(), dtype_of(dtype), tuple(shape))
        groups: Groups = {_unescape(name): {} for name in loads(header.texts["groups"])}
        for name in header.offsets:
            group, key = map(_unescape, name.split("/"))
            groups[group][key] = tensors[name]
        return Checkpoint(groups, dict(loads(header.texts["meta"])))


@contextmanager
def as_written(path: Path, remedy: str = "Take another checkpoint of the run, or start it again.") -> Iterator[None]:
    """What comes of a file that is not as fedloom writes it becomes a RunError: a checksum can be forged too."""
    try:
        yield
    except MISREAD as error:
        what = " ".join(str(error).split())[:_MOST] or "no more is known"
        raise RunError(
            f"{path} is damaged, or was not written by fedloom ({type(error).__name__}: {what}). {remedy}"
        ) from error


def save_latest(folder: Path, groups: Groups, meta: dict[str, Any]) -> None:
    """Makes this the newest checkpoint of a folder, and the newest so far the previous one.

    Killed at any moment, the folder has a complete checkpoint: the new file is complete before anything is renamed.
    """
    newest, following = folder / NEWEST, folder / NEXT
    save(following, groups, meta, f"The previous checkpoint, {newest}, is still there." if newest.exists() else "")
    with guarded(newest):
        if newest.exists():
            os.replace(newest, folder / PREVIOUS)
        os.replace(following, newest)
        sync_folder(folder)


def load_latest(folder: Path, *, tidy: bool = True) -> Checkpoint | None:
    """The newest checkpoint of a folder that is whole, whatever it points to; None when there has never been one."""
    return open_latest(folder, lambda saved: saved, tidy=tidy)


def open_latest(folder: Path, opened: Callable[[Checkpoint], T], *, tidy: bool = True) -> T | None:
    """What ``opened`` makes of the newest checkpoint that is whole; None when there has never been one.

    When the newest is damaged, or ``opened`` raises a RunError because what it points to is, it is set aside (renamed,
    so that the next save does not push the good one out), the previous one is taken, and its ``note`` says so. With
    ``tidy=False``, for one who only looks, it stays where it is.
    """
    newest, previous = folder / NEWEST, folder / PREVIOUS
    if not newest.exists() and not previous.exists():
        return None
    try:
        return opened(load(newest, ""))
    except RunError as error:
        damage = str(error).strip()
    aside = tidy and newest.exists()
    renamed = f" {NEWEST} was renamed to {DAMAGED}." if aside else ""
    taken = f"The run goes on from {PREVIOUS}." if tidy else f"{PREVIOUS}, which is older, is taken in its place."
    try:
        found = opened(replace(load(previous, ""), note=f"{damage}{renamed} {taken}"))
    except RunError as worse:
        raise RunError(f"No checkpoint of {folder} is usable. {damage} {worse} Start the run again.") from None
    if aside:
        with guarded(newest):
            os.replace(newest, folder / DAMAGED)
    return found
