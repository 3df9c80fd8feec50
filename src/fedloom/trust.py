"""Whose word is taken when a run's folder names code: that of this user, or of one whom he trusts.

``module:attribute`` is the path of code that is imported and called. In an experiment file it is the user's own choice.
In a folder that may come from somebody else it is that person's, and nothing is imported before the user was asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.errors import Untrusted


@dataclass(frozen=True)
class _Doubt:
    """A folder that is not known to be this user's, why not, and what the user himself has named beside it."""

    folder: Path
    why: str
    given: frozenset[str]


_DOUBT: ContextVar[_Doubt | None] = ContextVar("doubt", default=None)


@contextmanager
def doubting(folder: Path, why: str, given: Iterable[Any] = ()) -> Iterator[None]:
    """Inside the block settings of this folder are read: what it names is refused, unless it is among the ``given``."""
    token = _DOUBT.set(_Doubt(folder, why, frozenset(_texts(list(given)))))
    try:
        yield
    finally:
        _DOUBT.reset(token)


def refuse_strangers(name: str, deed: str) -> None:
    """Before something is done that runs code which ``name`` chooses: refuse it where a stranger may have named it."""
    doubt = _DOUBT.get()
    if doubt is None or name in doubt.given:
        return
    raise Untrusted(
        f"{doubt.folder} asks to {deed}, which runs code that its author has chosen, and {doubt.why}. If you "
        "know where the folder comes from and what that code does, say so with --trust (in Python: trust=True). "
        f"`fedloom report {doubt.folder}` shows the run without importing anything"
    )


def _texts(value: Any) -> Iterator[str]:
    """Every text in nested tables and lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
