"""Registers: one for each kind of thing that has a name (method, transform, data set, partition, selection, metric, …).

    @METRICS.register("accuracy")
    class Accuracy(Metric): ...

says beside the thing what it is called and what is to be known of it. Whoever asks for a name gets what fedloom has, or
what another installed package offers under that name by an entry point (group "fedloom.methods", …). A user's own thing
is called by its import path, "package.module:attribute". Nothing is imported before it is asked for.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, is_dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, overload

from fedloom.errors import ConfigError, FedloomError
from fedloom.trust import refuse_strangers

E = TypeVar("E")
X = TypeVar("X")
OWN = ":"
"""Between the module and the attribute of a user's own thing."""
_FEW = 8
"""So many names are listed beside the nearest one, too; of more, the nearest one is enough."""


@dataclass(frozen=True)
class _Line(Generic[E]):
    """What was registered, and what the register says of it."""

    thing: Any
    facts: dict[str, Any]
    entry: E


class Register(Mapping[str, E]):
    """The things of one kind by name; an entry is what ``entry(name, thing, **facts)`` makes of one.

    * ``kind``: what such a thing is called in messages;
    * ``right``: whether a user's own is one; ``must_be`` says what it has to be, ``own`` how its path is written;
    * ``home``: the package whose files register what they have; all of them are read before anything is listed;
    * ``group``: the entry points of other packages;
    * ``order``: what comes first in a list. Equals are in the order of their files, and of the lines in them.
    * ``adjust``: what "NAME:SETTING" makes of an entry; None where that is no setting.
    """

    def __init__(
        self,
        kind: str,
        *,
        right: Callable[[Any], bool],
        must_be: str,
        entry: Callable[..., E] = lambda name, thing: thing,
        own: str = "module:Class",
        home: str | None = None,
        group: str | None = None,
        order: Callable[[E], Any] = lambda entry: 0,
        adjust: Callable[[E, str], E | None] = lambda entry, setting: None,
    ) -> None:
        self.kind, self.must_be, self.own = kind, must_be, own
        self._right, self._entry, self._order, self._adjust = right, entry, order, adjust
        self._home, self._group, self._complete = home, group, home is None
        self._lines: dict[str, _Line[E]] = {}

    @overload
    def register(self, name: str, /, **facts: Any) -> Callable[[X], X]: ...

    @overload
    def register(self, name: str, thing: X, /, **facts: Any) -> X: ...

    def register(self, name: str, thing: Any = None, /, **facts: Any) -> Any:
        """Give a thing a name, as a decorator above it or by a call; a name that is taken is refused."""
        if thing is None:
            return lambda decorated: self.register(name, decorated, **facts)
        if not self._at_home(thing):
            self._read_home()
            self._check(name, thing)
        there = self._lines.get(name)
        if there is not None and there.thing is not thing and _path(there.thing) != _path(thing):
            raise ConfigError(f"there is a {self.kind} {name!r} already, {_path(there.thing)}; choose another name")
        if there is None or there.thing is not thing:
            self._lines[name] = _Line(thing, facts, self._entry(name, thing, **facts))
        return thing

    def remove(self, name: str) -> None:
        """Take a name back."""
        del self._lines[name]

    def find(self, name: str) -> E:
        """The one of that name, or the user's own by import path; an error that says what there is.

        Which path is the user's own, and not that of a stranger's folder, ``fedloom.trust`` knows.
        """
        if name in self:
            return self[name]
        if OWN not in name:
            raise ConfigError(f"there is no {self.kind} {name!r}; {self.hint(name)}")
        module, _, attribute = name.partition(OWN)
        adjusted = self._adjust(self[module], attribute) if module in self else None
        if adjusted is not None:
            return adjusted
        if "=" in attribute and module in self:
            raise ConfigError(
                f"there is no {self.kind} {name!r}; name it {module!r} alone, and give its settings beside it "
                f"(--set {self.kind}.{attribute.partition(',')[0]})"
            )
        refuse_strangers(name, f"import the {self.kind} {name!r}")
        try:
            thing = getattr(importlib.import_module(module), attribute)
        except Exception as error:  # whatever a user's own file may do
            near = nearest(module, self._names()) if isinstance(error, ImportError) else None
            also = f"; did you mean {near!r}?" if near else ""
            raise ConfigError(f"the {self.kind} {name!r} cannot be imported: {import_fault(error)}{also}") from error
        self._check(name, thing)
        facts = next((line.facts for line in self._lines.values() if line.thing is thing), {})
        return self._entry(name, thing, **facts)

    def knows(self, name: object) -> bool:
        """Whether something has this name, or can be had by this path."""
        try:
            return isinstance(name, str) and self.find(name) is not None
        except ConfigError:
            return False

    def name_of(self, thing: object) -> str | None:
        """The name under which this very thing is registered."""
        return next((name for name, line in self._lines.items() if line.thing is thing), None)

    def shipped(self) -> list[E]:
        """What the files of the home have registered."""
        self._read_home()
        return [self._lines[name].entry for name in self._sorted() if self._at_home(self._lines[name].thing)]

    def hint(self, word: str) -> str:
        """What to say about a name that does not exist: the nearest one, and what there is to choose from."""
        near = nearest(word, self._names())
        if near is None:
            return f"choose {self.words()}"
        return f"did you mean {near!r}?" + (f" Or choose {self.words()}" if len(self._names()) <= _FEW else "")

    def words(self) -> str:
        """Which names there are, for those who have to choose."""
        return f"one of {', '.join(self._names())}, or your own as {self.own}"

    def __getitem__(self, name: str) -> E:
        if name not in self._lines:
            self._read_home()
        if name not in self._lines and name in self._points:
            self._load(self._points[name])
        return self._lines[name].entry

    def __iter__(self) -> Iterator[str]:
        self._read_home()
        for point in list(self._points.values()):
            self._load(point)
        return iter(self._sorted())

    def __len__(self) -> int:
        return len(list(iter(self)))

    __eq__, __hash__ = object.__eq__, object.__hash__  # a register stands in annotations, which are compared

    def _names(self) -> list[str]:
        """All names, those of other packages without a look at what is behind them."""
        self._read_home()
        return list(dict.fromkeys([*self._sorted(), *self._points]))

    def _sorted(self) -> list[str]:
        """The names of what was registered; those that are equal in all else stay in the order of their lines."""

        def place(name: str) -> Any:
            line = self._lines[name]
            file = _module(line.thing) if self._at_home(line.thing) else ""
            return self._order(line.entry), not file, file

        return sorted(self._lines, key=place)

    def _at_home(self, thing: object) -> bool:
        return self._home is not None and _module(thing).startswith(f"{self._home}.")

    def _read_home(self) -> None:
        """Import every file of the home, once."""
        if self._complete or self._home is None:
            return
        self._complete = True  # a file that asks for something meanwhile gets what is there
        try:
            for file in pkgutil.iter_modules(importlib.import_module(self._home).__path__):
                importlib.import_module(f"{self._home}.{file.name}")
        except BaseException:
            self._complete = False
            raise

    @cached_property
    def _points(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self._group)} if self._group else {}

    def _load(self, point: EntryPoint) -> None:
        """Take in what another package offers; what cannot be had is said, and breaks nothing."""
        try:
            self.register(point.name, point.load())
        except Exception as error:
            package = point.dist.name if point.dist is not None else point.module
            said = " ".join(str(error).split())
            warnings.warn(f"{package} offers the {self.kind} {point.name!r}, which cannot be had: {said}", stacklevel=2)
        self._points.pop(point.name)

    def _check(self, name: str, thing: object) -> None:
        if not self._right(thing):
            raise ConfigError(f"{name!r} is no {self.kind}: it must be {self.must_be}")


def import_fault(error: BaseException) -> str:
    """Why an import failed, in a line; with its place, where the file itself is at fault."""
    if isinstance(error, ImportError | AttributeError | ValueError | FedloomError):
        return str(error)
    if isinstance(error, SyntaxError):
        return f"{error.msg} in {error.filename}, line {error.lineno}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} in {last.filename}, line {last.lineno}"


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant: one that looks alike, or one of the initials ("lr" for "learning rate")."""
    known = {name.lower().replace("_", "-"): name for name in names}
    plain = word.lower().replace("_", "-")
    initials = "".join(part[:1] for part in plain.split("-"))
    if len(initials) > 1 and initials in known:
        return known[initials]
    found = difflib.get_close_matches(plain, known, 1, cutoff=0.5)
    return known[found[0]] if found else None


def hint(word: str, names: Iterable[str]) -> str:
    """What to say about a name that does not exist: the nearest one, or all there are."""
    known = list(names)
    near = nearest(word, known)
    return f"did you mean {near!r}?" if near else f"there are {', '.join(known) or 'none'}"


def summary_of(thing: object) -> str:
    """The first line of a docstring, without its full stop."""
    return next(iter((thing.__doc__ or "").strip().splitlines()), "").rstrip(".")


def settings_of(base: type) -> Callable[[object], bool]:
    """Whether something is a dataclass derived from the base: its fields are settings that a user gives."""
    return lambda thing: isinstance(thing, type) and issubclass(thing, base) and is_dataclass(thing)


def example_of(base: type) -> Callable[[object], bool]:
    """Whether something is an object of the base, or a class of such objects."""
    return lambda thing: isinstance(thing, base) or (isinstance(thing, type) and issubclass(thing, base))


def named(name: str, thing: Any) -> Any:
    """An object that knows the name by which it was asked for; of a class, one that is made without arguments."""
    try:
        found = thing() if isinstance(thing, type) else copy(thing)
    except TypeError as error:
        raise ConfigError(f"{name!r} cannot be made without arguments ({error}); give an object") from error
    found.name = name
    return found


def _module(thing: object) -> str:
    return str(getattr(thing, "__module__", ""))


def _path(thing: object) -> str:
    """Where a thing is written; what is made anew there (a cell of a notebook, run again) may have its old name."""
    return f"{_module(thing)}.{getattr(thing, '__qualname__', id(thing))}"
