"""A tuning from its folder alone: the plan says all that the user asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedloom.comparison.entries import parse_entry
from fedloom.comparison.sources import FromSettings
from fedloom.errors import RunError
from fedloom.experiment import Settings
from fedloom.tuning.plan import PLAN, read_plan
from fedloom.tuning.spaces import parse_space
from fedloom.tuning.tuning import Asked, Tuning


def from_plan(folder: Path) -> Tuning:
    """The tuning that was begun in a folder; a RunError where there is none, or where Python made it."""
    plan = read_plan(folder)
    if plan is None:
        raise RunError(f"{folder} has no {PLAN}, so no tuning was begun there: `fedloom tune METHOD… --out {folder}`")
    told = plan.arguments
    try:
        settings: dict[str, Any] = told["settings"]
        if "problem" in settings:
            raise RunError(f"{folder} was made from Python, and has no data: call fedloom.tune(…, out=…) again there")
        space = dict(parse_space(f"{key}={text}") for key, text in told["space"].items())
        asked = Asked(space, told["sampler"], told["trials"], told["budget"], told["repeats"])
        entries = [parse_entry(text) for text in told["methods"]]
        return Tuning(FromSettings(Settings({**settings, "seed": plan.seed})), entries, plan.seed, asked)
    except (KeyError, TypeError) as error:
        raise RunError(f"{folder / PLAN} is damaged ({error}): begin anew with --force") from error
