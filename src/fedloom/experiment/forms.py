"""Forms: which settings a section has, read off the dataclass or function that takes them.

A method's hyper-parameters, a channel's steps, a fleet, a network's options: each says once, where it is written, what
it takes. A form reads that, checks values against it with pydantic, and says in plain words what is wrong.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from fedloom.experiment.words import admits_none, choices, hint, is_list, nearest, type_words

NONE = "none"
"""How a file says None, which TOML lacks."""
_DEEPEST = 50  # no setting has more than three; far more are a stack overflow for whoever walks through them
_STRICT = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Field:
    """One setting: its type, its default (``...`` where it must be given) and what it means."""

    name: str
    annotation: Any
    default: Any
    meaning: str = ""


@dataclass(frozen=True)
class Form:
    """The settings of one thing, such as the method fedavg; ``title`` is what error messages call it."""

    title: str
    fields: dict[str, Field]
    open: bool = False
    """Whether it takes other settings too, whatever they are."""

    @staticmethod
    def of(taker: Callable[..., Any], title: str, skip: Collection[str] = ()) -> Form:
        """The form of a dataclass, or of a function's parameters."""
        return _form(taker, title, tuple(skip))

    def joined(self, other: Form) -> Form:
        """The fields of both; those of this one win."""
        return Form(self.title, {**other.fields, **self.fields}, self.open or other.open)

    def read(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """All fields, given or by default, and for each key that cannot be what is wrong with it."""
        given = {key: self._plain(key, value) for key, value in values.items()}
        wrong = {key: why for key, value in given.items() if (why := _unusable(value))}
        if wrong:
            return {}, wrong
        try:
            model = self._model.model_validate_json(json.dumps(given, default=str))
        except ValidationError as error:
            for one in error.errors():
                key = str(one["loc"][0]) if one["loc"] else ""
                wrong.setdefault(key, self._explain(key, one, given.get(key)))
            return {}, wrong
        return {name: getattr(model, name) for name in self.fields} | (model.model_extra or {}), wrong

    def _plain(self, key: str, value: Any) -> Any:
        """With "none" as None, and a single value as a list of one, where the field takes these."""
        if key not in self.fields:
            return value
        annotation = self.fields[key].annotation
        if value == NONE and admits_none(annotation):
            return None
        return [value] if is_list(annotation) and isinstance(value, int | float | str) else value

    def _explain(self, key: str, error: Any, value: Any) -> str:
        if error["type"] == "extra_forbidden":
            return f"is no setting of {self.title}; {hint(key, self.fields)}"
        if error["type"] == "missing":
            return f"is missing; {self.title} needs {type_words(self.fields[key].annotation)}"
        if error["type"] == "value_error":
            return f"cannot be: {error['ctx']['error']}"
        if key not in self.fields:
            return f"cannot be: {error['msg']}"
        annotation = self.fields[key].annotation
        near = nearest(value, choices(annotation)) if isinstance(value, str) else None
        return f"should be {type_words(annotation)}" + (f"; did you mean {near!r}?" if near else "")

    @cached_property
    def _model(self) -> type[BaseModel]:
        fields: dict[str, Any] = {field.name: (field.annotation, field.default) for field in self.fields.values()}
        config: ConfigDict = {**_STRICT, "extra": "allow"} if self.open else _STRICT
        return create_model("Settings", __config__=config, **fields)


def _unusable(value: Any, depth: int = 0) -> str:
    """Why no setting can have a value, or have it in a list; nothing where that is not so."""
    if depth > _DEEPEST:
        return "should not have lists or tables in one another that deeply"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "should be a whole number that 64 bits can hold"
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        return "should be a text in UTF-8"
    if isinstance(value, str) and "\0" in value:
        return "should be a text without null characters"
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return next((why for part in parts if (why := _unusable(part, depth + 1))), "")


def spoken(values: Mapping[str, Any], form: Form) -> dict[str, Any]:
    """Values for a file, which has no None: left out where none is the default anyway, else the word for it."""
    written: dict[str, Any] = {}
    for key, value in values.items():
        if value is not None:
            written[key] = list(value) if isinstance(value, tuple) else value
        elif key in form.fields and form.fields[key].default is not None:
            written[key] = NONE
    return written


def field_meanings(cls: type) -> dict[str, str]:
    """The text below each attribute of a dataclass, its base classes included."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if dataclasses.is_dataclass(owner):
            found |= _attribute_texts(owner)
    return found


@cache
def _attribute_texts(cls: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found = {}
    for field, below in pairwise(body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text)
    return found


@cache
def _form(taker: Callable[..., Any], title: str, skip: tuple[str, ...]) -> Form:
    """Made once: reading a class's source and compiling a model take longer than all that is done with them."""
    made = isinstance(taker, type) and not dataclasses.is_dataclass(taker)
    hints = get_type_hints(taker.__init__ if made else taker, include_extras=True)
    meanings = field_meanings(taker) if isinstance(taker, type) else {}
    parameters = inspect.signature(taker).parameters.values()
    fields = {
        p.name: Field(p.name, hints.get(p.name, Any), _default(p), meanings.get(p.name, ""))
        for p in parameters
        if p.name not in skip and p.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    }
    return Form(title, fields)


def _default(parameter: inspect.Parameter) -> Any:
    return ... if parameter.default is inspect.Parameter.empty else parameter.default
