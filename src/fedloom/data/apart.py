"""One file for each client, read where it is: what a client tells of its columns, and what all agree on.

``load_file`` reads the files of all clients in one place. Where nobody sees them all, every client tells what its
columns hold (:class:`Told`), these are joined by whoever may know it (:func:`settled`), and every client reads its own
file by what was agreed (:func:`load_own`): the same functions, and so the same numbers.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedloom.data.arrays import classes_of, some
from fedloom.data.files import Known, Request, load_file, requested
from fedloom.data.plan import STRANGERS, agreed_encoding
from fedloom.data.survey import Choices, Survey, notes_of
from fedloom.data.table import Table
from fedloom.errors import ConfigError, MessageError

_MOST_LETTERS, _MOST_LABELS, _LONGEST_LABEL = 200, 10_000, 1000
ELSEWHERE = ("standardise", "like", "parties")
"""Options of ``load_file`` that need the rows of others."""


@dataclass(frozen=True)
class Told:
    """What a client tells of its file: what is in its columns, and which labels occur."""

    name: str
    features: Survey | None
    """None: the file has arrays of numbers, of which there is nothing to agree on."""
    labels: tuple[str, ...] = ()
    """Nothing where classes are given, or there are none."""
    whole: bool = False
    """Whether the labels are whole numbers."""

    @cached_property
    def form(self) -> str:
        """All in which the files of a federation agree: which columns there are."""
        return json.dumps([] if self.features is None else sorted(self.features.names))

    def misfit(self, other: Told) -> str | None:
        """Why another file cannot be of the same federation, if it cannot."""
        ours, theirs = (set(one.features.names) if one.features is not None else set() for one in (self, other))
        if lacking := sorted(ours - theirs):
            return (
                f"the file of {other.name!r} has no column {some(map(repr, lacking))}, which that of {self.name!r} has"
            )
        if more := sorted(theirs - ours):
            return (
                f"the file of {other.name!r} has a column {some(map(repr, more))}, which that of {self.name!r} has not;"
                f" leave it out with drop = {more[:8]}"
            )
        return None

    def as_tree(self) -> dict[str, Any]:
        """In plain types, for a message."""
        features = None if self.features is None else self.features.as_tree()
        return {"name": self.name, "features": features, "labels": list(self.labels), "whole": self.whole}

    @staticmethod
    def read_tree(tree: object) -> Told:
        """What ``as_tree`` gave, on another machine; a MessageError for anything that it could not have given."""
        if not isinstance(tree, dict) or set(tree) != {"name", "features", "labels", "whole"}:
            raise MessageError("it does not tell what is in its columns")
        name, labels, whole = tree["name"], tree["labels"], tree["whole"]
        if not isinstance(name, str) or not 0 < len(name) <= _MOST_LETTERS or not name.isprintable():
            raise MessageError(
                f"its client has no name, or one that cannot be: at most {_MOST_LETTERS} letters are taken"
            )
        if not isinstance(labels, list) or len(labels) > _MOST_LABELS or not isinstance(whole, bool):
            raise MessageError("its labels are no list, or too long a one")
        if not all(isinstance(label, str) and len(label) <= _LONGEST_LABEL for label in labels):
            raise MessageError("its labels are no texts, or too long ones")
        if whole and not all(label.removeprefix("-").isdecimal() for label in labels):
            raise MessageError("its labels are no whole numbers")
        features = None if tree["features"] is None else Survey.read_tree(tree["features"])
        return Told(name, features, tuple(labels), whole)


def told_of(path: Path, name: str, options: Mapping[str, Any]) -> Told:
    """What the client of this name tells of its file, read with these options of ``load_file``."""
    request = _request(path, options)
    plan, files = request.plan, request.files
    labels, whole = tuple[str, ...](), False
    if plan.classes is None and plan.task in ("classification", "binary"):
        labels, whole = _labels(request)
    return Told(name, plan.told(files) if files.tables else None, labels, whole)


def settled(told: Mapping[str, Told], options: Mapping[str, Any]) -> tuple[Known, list[str]]:
    """What all agree on, from what each tells, and what is to be said of it."""
    asked = _arguments(Path(), options)
    task, labels = asked["task"], asked["label_column"]
    choices = Choices.of(*(asked[key] for key in ("drop", "numbers", "categories", "embed_from", "dates", "missing")))
    surveys = {f"the file of {name!r}": one.features for name, one in sorted(told.items()) if one.features is not None}
    encoding, notes = None, list[str]()
    if surveys:
        where = "the clients' files"
        one_hot = asked["window"] is not None
        encoding, fates = agreed_encoding(surveys, choices, one_hot, asked["feature_columns"], where)
        notes = notes_of(fates)
    classes = None
    if asked["class_names"] is None and task in ("classification", "binary"):
        every = {label for one in told.values() for label in one.labels}
        numbers = all(one.whole for one in told.values())
        classes = tuple(sorted(every, key=int) if numbers else sorted(every))
        if len(classes) < 2 or (task == "binary" and len(classes) > 2):
            wanted = "two" if task == "binary" else "at least two"
            raise ConfigError(
                f"the clients' files have {len(classes)} labels in {labels!r} ({some(classes)}); a {task} task needs "
                f"{wanted}"
            )
    return Known(encoding, classes), notes


def load_own(path: Path, name: str, options: Mapping[str, Any], known: Known) -> Table:
    """The rows of one file, read with these options of ``load_file`` as all agreed.

    Of categories that were agreed on without this file it is said that they are read as none.
    """
    table = _request(path, options).table(known)
    for note in table.notes:
        if note.startswith(STRANGERS):
            warnings.warn(f"{path}: {note}", stacklevel=2)
    return replace(table, name=name)


def _arguments(path: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of ``load_file``, those that are not given being the usual ones."""
    bound = inspect.signature(load_file).bind(path, **options)
    bound.apply_defaults()
    return bound.arguments


def check_options(options: Mapping[str, Any]) -> None:
    """A ConfigError for options of ``load_file`` with which clients cannot read their own files."""
    for option in ELSEWHERE:
        if options.get(option):
            raise ConfigError(
                f"data.{option} needs the rows of all clients in one place; leave it out"
                + (": scaling = 'standard' is agreed on without them" if option == "standardise" else "")
            )
    if options.get("task", "auto") == "auto":
        raise ConfigError(
            "data.task: say which task it is (classification, binary, multilabel or regression): where every client "
            "reads its own file nobody sees all labels"
        )


def _request(path: Path, options: Mapping[str, Any]) -> Request:
    check_options(options)
    arguments = _arguments(path, options)
    return requested(arguments.pop("path"), **arguments)


def _labels(request: Request) -> tuple[tuple[str, ...], bool]:
    """The labels that occur, and whether they are whole numbers."""
    target = request.plan.targets(request.files)
    names = classes_of(target, request.title)
    if len(names) > _MOST_LABELS:
        raise ConfigError(f"{request.files.first} has {len(names):,} different labels; is it a regression (data.task)?")
    return names, target.dtype.kind in "iuf"
