"""What is known of each method, by its name in the register, where each says what is known of it."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from functools import partial

from fedloom.conformance.claims import Declaration
from fedloom.errors import ConfigError
from fedloom.methods.register import REGISTER, lookup


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
