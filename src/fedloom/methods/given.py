"""A method as users give it: an object, or its name, perhaps with hyper-parameters behind it."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from typing import Any

from fedloom.errors import ConfigError
from fedloom.fields import with_fit_fields
from fedloom.methods.method import Method, ServerMethod
from fedloom.methods.register import REGISTER, lookup
from fedloom.register import hint

COMMA = re.compile(r",(?![^\[]*\])")
"""Between two settings; not those inside a list."""


def method_of(given: object) -> Method:
    """The method that is meant: itself, or by a text such as "fedavg", "fedavg:lr=0.1" or "mine:FedX:alpha=2"."""
    if isinstance(given, Method):
        return given
    if isinstance(given, type) and issubclass(given, Method):
        raise ConfigError(f"{given.__name__} is the class of a method; give an object of it: {given.__name__}()")
    if not isinstance(given, str):
        what = f"a {type(given).__name__}"
        raise ConfigError(f"{what} is no method; give its name, such as 'fedavg', or an object, such as FedAvg(lr=0.1)")
    name, rest = split_name(given)
    cls = lookup(name).cls
    return made(cls, name, dict(_setting(given, name, part) for part in COMMA.split(rest) if rest))


def split_name(text: str) -> tuple[str, str]:
    """The name of a method, or the import path of a user's own, and the settings behind it."""
    name, colon, rest = text.partition(":")
    if colon and name not in REGISTER and "=" not in rest.partition(":")[0]:
        attribute, _, rest = rest.partition(":")
        name = f"{name}:{attribute}"
    return name, rest


AT_HOME = "personal"
"""The setting of any method that has layers stay with the clients: ``Personal`` is put around it."""


def kept_at_home(method: Method, name: str, layers: object) -> Method:
    """The method with personal layers."""
    from fedloom.methods.personal import Personal

    if not isinstance(method, ServerMethod):
        raise ConfigError(f"{name} has no server with which a part of the model could be shared; leave out {AT_HOME}")
    return with_fit_fields(Personal(method, layers=layers))  # type: ignore[arg-type]


def made(cls: type[Method], name: str, values: dict[str, Any], base: Method | None = None) -> Method:
    """A method with these hyper-parameters, the others being those of ``base``, or the defaults."""
    known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    if AT_HOME in values and AT_HOME not in known:
        rest = {key: value for key, value in values.items() if key != AT_HOME}
        return kept_at_home(made(cls, name, rest, base), name, values[AT_HOME])
    for key in values:
        if key not in known:
            raise ConfigError(f"{key} is no hyper-parameter of {name}; {hint(key, known)}")
    if base is not None:
        return with_fit_fields(dataclasses.replace(base, **values))  # type: ignore[type-var]
    try:
        return with_fit_fields(cls(**values))
    except TypeError as error:
        raise ConfigError(f"{name} cannot be made: {error}; give an object of {cls.__name__}") from error


def _setting(text: str, name: str, part: str) -> tuple[str, Any]:
    key, equals, value = part.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"{text!r}: write hyper-parameters after the method as {name}:key=value,key=value")
    return key.strip().removeprefix("method."), _value(value.strip())


def _value(text: str) -> Any:
    """A value as TOML has it, with "none" for None; what is no TOML is a text."""
    if text == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
