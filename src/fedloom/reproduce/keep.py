"""Keeping a result beside its file: cells that were recorded and were not run now stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedloom.engine.files import guarded, write_json
from fedloom.reproduce.outcome import read_record

Record = dict[str, Any]


def keep(record: Record, path: Path) -> Record:
    """Merge a result into the one that is recorded there; what is there now."""
    merged = merge(read_record(path), record)
    with guarded(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, merged)
    return merged


def merge(old: Record, new: Record) -> Record:
    """The new result, with a recorded cell where this one has none, or has fewer repeats of the same settings.

    A recorded cell whose settings are no longer those of the file is marked as stale.
    """
    earlier = {cell["title"]: cell for cell in old.get("cells", [])}
    cells = [_chosen(earlier.get(cell["title"]), cell) for cell in new["cells"]]
    return {**new, "cells": cells, "finished": all(cell["done"] == cell["wanted"] for cell in cells)}


def _chosen(old: Record | None, new: Record) -> Record:
    if old is None or not old["done"]:
        return new
    same = old["settings_sha256"] == new["settings_sha256"]
    ended = bool(new["values"]) or 0 < new["wanted"] == new["done"]
    if ended and not (same and len(old["values"]) > len(new["values"])):
        return new
    if not same:
        return {**old, "stale": True}
    return {**old, "published": new["published"], "wanted": max(new["wanted"], old["done"])}
