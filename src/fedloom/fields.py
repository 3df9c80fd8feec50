"""Values against the annotations of what takes them: constructors only store, so this is looked at before any work."""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar, get_origin, get_type_hints

import numpy as np

from fedloom.errors import ConfigError
from fedloom.register import hint

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
P = ParamSpec("P")


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
        raise ConfigError(f"{title}: {name} = {_short(value)} cannot be: {why}")


def checked(
    *, itself: Collection[str] = (), elsewhere: Callable[[str, Mapping[str, Any]], str] = lambda name, given: ""
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A function of the API that says in words what is wrong with a call, as the command line does.

    An argument that it does not have, one that is missing, and one of a kind that it cannot use are a ConfigError.
    ``itself`` are those that the function looks at; ``elsewhere`` says of a name that is no argument where it belongs.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature, title = inspect.signature(function), function.__name__
        known = signature.parameters
        closed = not any(one.kind is one.VAR_KEYWORD for one in known.values())
        needed = [one.name for one in known.values() if one.default is one.empty and one.kind is not one.VAR_KEYWORD]

        @functools.wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
            named = {name: value for name, value in kwargs.items() if name in known}
            try:
                given = signature.bind_partial(*args, **named).arguments
            except TypeError as error:
                raise ConfigError(f"{title}: {error}; it is called as {title}({', '.join(needed)}, …)") from error
            if closed:
                for name in kwargs:
                    if name not in known:
                        said = elsewhere(name, given) or hint(name, known)
                        raise ConfigError(f"{title} has no argument {name!r}; {said}")
            for name in needed:
                if name not in given:
                    raise ConfigError(f"{title} needs {name}; it is called as {title}({', '.join(needed)}, …)")
            plain = {name: value for name, value in given.items() if name not in itself}
            check_arguments(function, {name: value for name, value in plain.items() if named_once(known[name])}, title)
            return function(*args, **kwargs)

        return wrapped

    return decorate


def named_once(parameter: inspect.Parameter) -> bool:
    """Whether a parameter takes one argument, and not all that are left."""
    return parameter.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def _unfit(kinds: Mapping[str, Any], values: Mapping[str, object]) -> Iterator[tuple[str, Any, str]]:
    from pydantic import ValidationError

    for name, value in values.items():
        kind = kinds.get(name, Any)
        plain = value.item() if isinstance(value, np.generic) else value
        try:
            (read,) = _adapter_of(kind).validate_python((plain,))
            if isinstance(plain, str) and isinstance(read, int | float):
                yield name, value, "Input should be a number, not a text"
        except ValidationError as error:
            yield name, value, error.errors()[0]["msg"]


def _adapter_of(kind: Any) -> TypeAdapter[Any]:
    """What checks values of a kind; made once where that can be known, as it takes much longer than a check."""
    try:
        hash(kind)
    except TypeError:  # a mark in an annotation may be anything
        return _adapter.__wrapped__(kind)
    return _adapter(kind)


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    one = tuple[kind]  # alone, a dataclass would insist on a config of its own
    return TypeAdapter(one, config=ConfigDict(arbitrary_types_allowed=True))


def _short(value: object) -> str:
    """A value as messages show it."""
    return reprlib.repr(value) if isinstance(value, str | bytes | list | tuple | dict | set) else repr(value)[:200]
