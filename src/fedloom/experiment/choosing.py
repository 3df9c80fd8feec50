"""The rows on which the runs of some settings are evaluated: known beforehand, and others where something is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedloom.engine.evaluation import Evaluation
from fedloom.errors import ConfigError
from fedloom.experiment.data import VALIDATION
from fedloom.experiment.faults import Faults
from fedloom.experiment.sections import read_evaluations, read_method
from fedloom.experiment.settings import Override, Settings
from fedloom.methods import Method


def evaluations_in(settings: Settings) -> tuple[Method, Sequence[Evaluation]] | None:
    """The method and the evaluations that settings are about; None where they cannot be, which is said elsewhere."""
    faults = Faults(settings)
    try:
        _, method = read_method(faults)
        target, apart = settings.get(("data", "target")), isinstance(settings.get(("data", "folds")), str)
        evaluations = read_evaluations(apart or (isinstance(target, float | int) and target > 0), faults, apart)
        faults.stop()
    except ConfigError:
        return None
    return None if method is None else (method, evaluations)


def lay(values: dict[str, Any], evaluations: Sequence[Evaluation], splits: Sequence[str | None]) -> None:
    """Write the common rows into settings, whose evaluations these are."""
    given = values.get("evaluation")
    if given is None:
        given = [{"name": one.name, "on": one.on} for one in evaluations]
    tables = given if isinstance(given, list) else [given]
    for table, one, split in zip(tables, evaluations, splits, strict=False):
        if split is not None and one.split is None:
            table["split"] = split
    values["evaluation"] = tables[0] if len(tables) == 1 else tables


def choosing(settings: Settings, place: str) -> Settings:
    """The same settings for a run that something is chosen by: evaluated on validation rows, which it holds out, where
    they name no others. What cannot be read is left as it is, and is said when the run is made.
    """
    known = evaluations_in(settings)
    if known is None:
        return settings
    method, evaluations = known
    found = settings.copied()
    if found.get(("data", "validation")) is None:
        found.set(Override("data.validation", VALIDATION, place))
    lay(found.values, evaluations, [one.on_validation(method).split for one in evaluations])
    return found
