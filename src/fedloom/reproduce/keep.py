"""Keeping a result beside its file: what was recorded and was not run now stays, and repeats done apart are joined."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from fedloom.report.groups import COSTS
from fedloom.report.runs import read_record
from fedloom.reproduce.curve import joined_curve
from fedloom.reproduce.outcome import verdict_on
from fedloom.reproduce.plan import Published
from fedloom.storage.files import guarded, write_json

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

    Repeats of the same settings with other seeds are joined. A recorded cell whose settings are no longer those of the
    file is marked as stale.
    """
    earlier = {cell["title"]: cell for cell in old.get("cells", [])}
    cells = [_chosen(earlier.get(cell["title"]), cell) for cell in new["cells"]]
    return {**new, "cells": cells, "finished": all(cell["done"] == cell["wanted"] for cell in cells)}


def _chosen(old: Record | None, new: Record) -> Record:
    if old is None or not old["done"]:
        return new
    same = any(key in new and old.get(key) == new[key] for key in ("settings_sha256", "essence_sha256"))
    if same and new["values"] and old["tuned"] == new["tuned"] and not old["values"].keys() & new["values"].keys():
        return _joined(old, new)
    ended = bool(new["values"]) or 0 < new["wanted"] == new["done"]
    if ended and not (same and len(old["values"]) > len(new["values"])):
        return new
    if not same:
        return {**old, "stale": True}
    return {**old, "published": new["published"], "wanted": max(new["wanted"], old["done"])}


def _joined(old: Record, new: Record) -> Record:
    """The repeats of both, which have no seed in common."""
    values = dict(sorted((old["values"] | new["values"]).items(), key=lambda pair: int(pair[0])))
    numbers = [math.nan if value is None else value for value in values.values()]
    published = new["published"] and Published(**new["published"])
    done = old["done"] + len(new["values"])
    return {
        **new,
        "values": values,
        **verdict_on(numbers, old["diverged"] + new["diverged"], published),
        "target": _joined_target(old["target"], new["target"]),
        "done": done,
        "wanted": max(new["wanted"], done),
        "wall_seconds": old["wall_seconds"] + new["wall_seconds"],
        "paired": max((old, new), key=lambda cell: len(cell["values"])).get("paired", {}),
        "curve": joined_curve([(cell.get("curve"), len(cell["values"]) - cell["diverged"]) for cell in (old, new)]),
    }


def _joined_target(old: Record | None, new: Record | None) -> Record | None:
    """The way to a target: means over the repeats of both that reached it."""
    if old is None or new is None:
        return new
    ways = [way for way in (old, new) if way["reached"]]
    reached = sum(way["reached"] for way in ways)
    means = {key: sum(way["reached"] * way[key] for way in ways) / reached if reached else None for key in COSTS}
    return {**new, **means, "reached": reached, "of": old["of"] + new["of"]}
