"""The register of trackers."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from fedloom.errors import ConfigError
from fedloom.register import OWN, Register, settings_of
from fedloom.tracking.tracker import Tracker

TRACKERS: Register[type[Tracker]] = Register(
    "tracker",
    right=settings_of(Tracker),
    must_be="a dataclass derived from fedloom.Tracker",
    home="fedloom.tracking",
    group="fedloom.trackers",
)


def parse_tracker(text: str) -> dict[str, Any]:
    """ "mlflow:URI" as the table of a file: what follows the name of a tracker is its first setting."""
    name, _, where = text.partition(OWN)
    if not where or name not in TRACKERS:
        return {"name": text.removesuffix(OWN) if name in TRACKERS else text}
    first = next((field.name for field in fields(TRACKERS[name]) if field.init), None)  # type: ignore[arg-type]
    if first is None:
        raise ConfigError(f"the tracker {name!r} takes nothing after its name, and there is {where!r}")
    return {"name": name, first: where}


def name_of(tracker: Tracker) -> str:
    """What a file calls this kind of tracker."""
    cls = type(tracker)
    return TRACKERS.name_of(cls) or f"{cls.__module__}{OWN}{cls.__qualname__}"


def tracker_of(given: Tracker | str) -> Tracker:
    """A tracker, or the one of a name, as the command line has it: "tensorboard", "mlflow:URI"."""
    if isinstance(given, Tracker):
        return given.placed(Path())
    table = parse_tracker(given)
    return TRACKERS.find(table.pop("name"))(**table).placed(Path())
