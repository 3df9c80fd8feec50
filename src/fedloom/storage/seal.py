"""What a run belongs to: its settings, its data and its model, under a name of its own.

A checkpoint carries the seal of its run, every row of the history a link of a chain that begins with the run's name,
and the summary a hash of itself. So a file of another run, or one that was changed since, is not taken for the run's.
Nothing here needs torch: reports read it too.
"""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CHAIN = "chain"
"""The key of a history row that holds its link."""
RUN, SHA256 = "run", "sha256"
"""The keys of a summary that hold the name of its run, and the hash of all the rest."""
_SHOWN, _WIDTH = 6, 60
_HASH = re.compile("[0-9a-f]{16,}")


@dataclass(frozen=True)
class Seal:
    """The settings that decide a run's result, its data and its model: each a table of short texts by name."""

    parts: Mapping[str, Mapping[str, str]]
    usual: Mapping[str, str] = field(default_factory=dict)
    """What settings are that nobody gives: one that a later fedloom adds, and that is so, makes no run another."""
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    """The run's own name, drawn when it begins."""

    def record(self) -> dict[str, Any]:
        """For a checkpoint: what JSON can hold."""
        return {"run": self.run, "parts": {name: dict(part) for name, part in self.parts.items()}}

    @staticmethod
    def read(record: Mapping[str, Any]) -> Seal:
        """The seal in a checkpoint."""
        return Seal(record["parts"], run=record["run"])

    def changes(self, now: Seal) -> list[str]:
        """In what the run, as it is to go on, differs from this seal: a line for each. Parts that only one has, such as
        data that are on nodes, cannot be compared."""
        found = []
        for name in (name for name in self.parts if name in now.parts):
            old, new = self.parts[name], now.parts[name]
            for key in dict.fromkeys([*old, *new]):
                if key not in old and new[key] == now.usual.get(key):
                    continue
                if old.get(key) != new.get(key):
                    found.append(f"{name}: {key} {_change(old.get(key), new.get(key))}")
        return found


def _change(old: str | None, new: str | None) -> str:
    if all(value is not None and _HASH.fullmatch(value) for value in (old, new)):
        return "is not what it was"
    texts = ["not there" if value is None else textwrap.shorten(value, _WIDTH, placeholder="…") for value in (old, new)]
    return f"was {texts[0]} and is {texts[1]}"


def listed(lines: Sequence[str]) -> str:
    """Several lines as one, the first few of them."""
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return "; ".join([*lines[:_SHOWN], *more])


def sha256_of(value: Any) -> str:
    """The hash of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def link(before: str, row: Mapping[str, Any]) -> str:
    """What a row of the history adds to the chain: it follows from the link before it and from the row alone."""
    return hashlib.sha256(before.encode() + json.dumps(row).encode()).hexdigest()[:16]


def unlinked(rows: Iterable[tuple[Mapping[str, Any], str | None]], run: str | None) -> int | None:
    """The first row, of rows with their links, that does not follow from those before it, counted from 1; None: all do.

    Lines that an older fedloom wrote, before any with a link, have none. Where the run's name is not known (None) the
    first link is taken as it is.
    """
    head, begun = run, False
    for number, (row, found) in enumerate(rows, start=1):
        if found is None and begun:
            return number
        head = found if head is None else link(head, row)
        if found not in (None, head):
            return number
        begun = begun or found is not None
    return None


def sealed(summary: Mapping[str, Any], run: str) -> dict[str, Any]:
    """A summary for its file: with the name of its run, and the hash of itself."""
    whole = {**summary, RUN: run}
    return {**whole, SHA256: sha256_of(whole)}


def opened(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The summary in a file, without these."""
    return {key: value for key, value in summary.items() if key not in (RUN, SHA256)}


def broken(summary: Mapping[str, Any]) -> bool:
    """Whether a summary that has a hash was changed after it was written; an older one has none."""
    return SHA256 in summary and summary[SHA256] != sha256_of({k: v for k, v in summary.items() if k != SHA256})
