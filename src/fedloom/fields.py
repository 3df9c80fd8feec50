"""Values against the annotations of what takes them: constructors only store, so this is looked at before any work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar, get_origin, get_type_hints

from fedloom.errors import ConfigError

T = TypeVar("T")


def unfit_fields(thing: object) -> Iterator[tuple[str, Any, str]]:
    """The fields whose values their annotations do not allow: name, value, and why."""
    kinds = get_type_hints(type(thing), include_extras=True)
    settings = [name for name, kind in kinds.items() if get_origin(kind) is not ClassVar and hasattr(thing, name)]
    return _unfit(kinds, {name: getattr(thing, name) for name in settings})


def with_fit_fields(thing: T) -> T:
    """The thing itself, or a ConfigError that says which of its fields cannot be."""
    for name, value, why in unfit_fields(thing):
        raise ConfigError(f"{type(thing).__name__}: {name} = {value!r} cannot be: {why}")
    return thing


def check_arguments(function: Callable[..., Any], given: Mapping[str, object], title: str) -> None:
    """A ConfigError that says which argument the annotations of the function do not allow."""
    for name, value, why in _unfit(get_type_hints(function, include_extras=True), given):
        raise ConfigError(f"{title}: {name} = {value!r} cannot be: {why}")


def _unfit(kinds: Mapping[str, Any], values: Mapping[str, object]) -> Iterator[tuple[str, Any, str]]:
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    for name, value in values.items():
        kind = kinds.get(name, Any)
        one = tuple[kind]  # type: ignore[valid-type]  # alone, a dataclass would insist on a config of its own
        try:
            TypeAdapter(one, config=ConfigDict(arbitrary_types_allowed=True)).validate_python((value,))
        except ValidationError as error:
            yield name, value, error.errors()[0]["msg"]
