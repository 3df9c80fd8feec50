"""Fields of dataclasses against their annotations: constructors only store, so this is looked at before any work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, get_origin, get_type_hints


def unfit_fields(thing: object) -> Iterator[tuple[str, Any, str]]:
    """The fields whose values their annotations do not allow: name, value, and why."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    for name, kind in get_type_hints(type(thing), include_extras=True).items():
        if get_origin(kind) is ClassVar or not hasattr(thing, name):
            continue
        value = getattr(thing, name)
        one = tuple[kind]  # type: ignore[valid-type]  # alone, a dataclass would insist on a config of its own
        try:
            TypeAdapter(one, config=ConfigDict(arbitrary_types_allowed=True)).validate_python((value,))
        except ValidationError as error:
            yield name, value, error.errors()[0]["msg"]
