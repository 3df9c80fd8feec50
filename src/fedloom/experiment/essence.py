"""What of the settings decides a result: by this, runs and results that are there already are known again.

A setting that fedloom learns later, and whose default changes nothing, does not make an old run another one: what is as
usual is left out on both sides. A setting that has a new name is read by it.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import Any

from fedloom.errors import Untrusted
from fedloom.experiment.forms import Form
from fedloom.experiment.sections import SECTIONS, Top
from fedloom.experiment.settings import Settings

RENAMED = {("method", "most"): "max_iterations"}
"""Settings that have another name now."""
OUTSIDE = ("execution", "tracking")
"""Sections that decide nothing of a result."""


def with_new_names(settings: Settings, quiet: bool = False) -> Settings:
    """The same settings by the names that they have now; says in a line what was renamed, unless it is to be quiet."""
    for (section, old), new in RENAMED.items():
        table = settings.values.get(section)
        if not isinstance(table, dict) or old not in table or new in table or not _moved(section, table, old, new):
            continue
        if not quiet:
            place = settings.place((section, old))
            said = f"{f'{place}: ' if place else ''}{section}.{old} is called {section}.{new} now, and is read as that"
            warnings.warn(said, stacklevel=2)
        settings = settings.copied()
        settings.rename((section, old), new)
    return settings


def first_name(key: str, method: str) -> str:
    """The first name that a setting had, by its full key ("method.lr"): what was recorded under it has that."""
    section, _, name = key.partition(".")
    for (where, old), new in RENAMED.items():
        if (where, new) == (section, name) and _moved(section, {"name": method}, old, new):
            return f"{section}.{old}"
    return key


def essence(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those that are as usual anyway, and without those ``OUTSIDE``; tasks and all."""
    settings = with_new_names(Settings(dict(values)), quiet=True).values
    found = _unusual({key: value for key, value in settings.items() if key not in SECTIONS}, Form.of(Top, ""))
    for key, form_of in SECTIONS.items():
        section = None if key in OUTSIDE else settings.get(key)
        if isinstance(section, list):
            found[key] = [_unusual(one, form_of(one)) if isinstance(one, dict) else one for one in section]
        elif isinstance(section, dict):
            found[key] = _unusual(section, form_of(section))
    if isinstance(found.get("evaluation"), list) and len(found["evaluation"]) == 1:
        found["evaluation"] = found["evaluation"][0]
    for (section, old), new in RENAMED.items():  # by the first name, which what was recorded before has
        table = found.get(section)
        if isinstance(table, dict) and new in table and _moved(section, table, old, new):
            table[old] = table.pop(new)
    return {key: value for key, value in found.items() if value not in ({}, [])}


def alike(there: Mapping[str, Any], mine: Mapping[str, Any]) -> bool:
    """Whether the settings that are in a folder decide the same result as mine; those that name code which mine do not
    are others.
    """
    try:
        return essence(there) == essence(mine)
    except Untrusted:
        return False


def _moved(section: str, table: Mapping[str, Any], old: str, new: str) -> bool:
    """Whether this section, which may be that of a user's own method, has the new name and not the old one."""
    fields = SECTIONS[section](table).fields
    return new in fields and old not in fields


def _unusual(values: dict[str, Any], form: Form) -> dict[str, Any]:
    """The values that differ from the form's defaults, as the form reads them; as they are where it cannot."""
    own = {key: value for key, value in values.items() if key in form.fields}
    read, wrong = form.read(own)
    if wrong:
        return values
    changed = {key: read[key] for key in own if read[key] != form.fields[key].default}
    plain: dict[str, Any] = json.loads(json.dumps(changed, default=str))
    return {key: value for key, value in values.items() if key not in own} | plain
