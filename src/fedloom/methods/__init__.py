"""The methods, one file each, named as their papers name them; each is registered where it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedloom.methods.given import method_of as method_of
from fedloom.methods.method import Context as Context
from fedloom.methods.method import Method as Method
from fedloom.methods.method import NodeMethod as NodeMethod
from fedloom.methods.method import ServerMethod as ServerMethod
from fedloom.methods.register import REGISTER as REGISTER
from fedloom.methods.register import Entry as Entry
from fedloom.methods.register import lookup as lookup
from fedloom.methods.register import name_of as name_of
from fedloom.methods.register import register as register

if TYPE_CHECKING:
    from fedloom.methods.listed import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """The class of a method, wherever in this folder it is: a new file needs no line here."""
        if name[:1].isupper():
            for entry in REGISTER.shipped():
                if entry.cls.__name__ == name:
                    return entry.cls
        raise AttributeError(f"module 'fedloom.methods' has no attribute {name!r}")
