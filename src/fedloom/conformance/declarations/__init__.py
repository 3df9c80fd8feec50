"""What is known of each method, by its name in the register, where each says what is known of it."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from functools import partial

from fedloom.conformance.claims import Declaration
from fedloom.errors import ConfigError
from fedloom.methods.register import REGISTER, lookup
from fedloom.register import OWN, Register


class _Declarations(Mapping[str, Declaration]):
    """The declarations of the register's methods, and of a user's own by import path; found when they are asked for."""

    def __getitem__(self, name: str) -> Declaration:
        try:
            said = lookup(name).declaration
        except ConfigError as error:
            raise KeyError(name) from error
        if said is None:
            raise KeyError(name)
        if isinstance(said, str):
            said = partial(pkgutil.resolve_name, f"{__name__}{said}" if said.startswith(".") else said)
        found: Declaration = said()
        return found

    def __iter__(self) -> Iterator[str]:
        return (name for name, entry in REGISTER.items() if entry.declaration is not None)

    def __len__(self) -> int:
        return len(list(iter(self)))


DECLARATIONS: Mapping[str, Declaration] = _Declarations()

_OWN: Register[object] = Register(
    "declaration",
    right=lambda thing: callable(thing) or isinstance(thing, Declaration),
    must_be="a fedloom.conformance.Declaration, or a function without parameters that gives one",
    own="module:NAME",
)


def own_declaration(path: str) -> Declaration:
    """A user's own declaration by its import path, "mine:declared": the declaration, or a function that gives it."""
    if OWN not in path:
        raise ConfigError(f"{path!r} is no declaration: give the module and the name in it, such as mine:declared")
    found = _OWN.find(path)
    if callable(found):
        try:
            found = found()
        except Exception as error:
            raise ConfigError(
                f"{path!r} gives no declaration: called without arguments it fails, {type(error).__name__}: {error}"
            ) from error
    if not isinstance(found, Declaration):
        raise ConfigError(
            f"{path!r} gives {type(found).__name__!r} and no fedloom.conformance.Declaration; return "
            "Declaration(claims=(…), batches={…})"
        )
    return found
