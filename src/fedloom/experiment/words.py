"""Types and names in words that people read: "a number above 0", "did you mean 'lr'?"."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Interval, Le, Lt

from fedloom.register import Register
from fedloom.register import hint as hint
from fedloom.register import nearest as nearest

_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    type(None): "none",
    Any: "any value",
}
_MANY = {"a whole number": "whole numbers", "a number": "numbers", "a text": "texts"}
_DEEPEST = 5  # lists in lists that are still shown
_BOUNDS = {Gt: ("gt", "above"), Ge: ("ge", "of at least"), Lt: ("lt", "below"), Le: ("le", "of at most")}


def type_words(annotation: Any) -> str:
    """What values a type admits, in words."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        for mark in parts[1:]:
            if isinstance(mark, Register):
                return mark.words()
        bounds = [text for mark in parts[1:] if (text := _bound(mark))]
        return " ".join([type_words(parts[0]), " and ".join(bounds)]).strip()
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}" if len(parts) > 1 else f'"{parts[0]}"'
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_words(part) for part in parts))
    if origin is dict:
        return "a table"
    if is_list(annotation):
        each = type_words(parts[0]) if parts else "any value"
        return f"a list of {_MANY.get(each, f'values, each {each}')}"
    if origin is Mapping:
        return "a table"
    return _WORDS.get(annotation) or getattr(annotation, "words", None) or "a text or a number"


def is_list(annotation: Any) -> bool:
    """Whether a type is a list of something (or such a list and none)."""
    rest = [part for part in _parts(annotation) if part is not type(None)]
    return len(rest) == 1 and get_origin(rest[0]) in (list, tuple, Sequence)


def admits_none(annotation: Any) -> bool:
    """Whether none is a value of the type."""
    return type(None) in _parts(annotation)


def choices(annotation: Any) -> tuple[str, ...]:
    """The texts among which a type lets one choose."""
    return tuple(str(text) for part in _parts(annotation) if get_origin(part) is Literal for text in get_args(part))


def _parts(annotation: Any) -> list[Any]:
    """The types of which a value may be any."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _parts(parts[0])
    return [inner for part in parts for inner in _parts(part)] if origin in (Union, types.UnionType) else [annotation]


def value_text(value: object, depth: int = 0) -> str:
    """A value as a user would write it in TOML, not longer than a line."""
    if isinstance(value, bool):
        return str(value).lower()
    if depth > _DEEPEST:
        return "…"
    if isinstance(value, str):
        text = f'"{value}"'
    elif isinstance(value, list | tuple):
        text = f"[{', '.join(value_text(item, depth + 1) for item in value)}]"
    elif isinstance(value, dict):
        text = "{" + ", ".join(f"{key} = {value_text(item, depth + 1)}" for key, item in value.items()) + "}"
    else:
        text = hex(value) if isinstance(value, int) and value.bit_length() > 1000 else str(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _bound(mark: object) -> str:
    if isinstance(mark, Interval) and mark.ge is not None and mark.le is not None:
        return f"from {mark.ge} to {mark.le}"
    bounds = list(mark) if isinstance(mark, Interval) else [mark]
    return " and ".join(
        f"{word} {getattr(bound, attribute)}"
        for bound in bounds
        for kind, (attribute, word) in _BOUNDS.items()
        if isinstance(bound, kind)
    )
