"""The registers of data sets and of what a partition is made of, and how to load a data set."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedloom.data.table import Table
from fedloom.errors import ConfigError, DataError
from fedloom.federation.data import Task
from fedloom.fields import check_arguments
from fedloom.register import Register, hint, summary_of

if TYPE_CHECKING:
    from fedloom.data.partition import Step

_MADE = "made on the spot"


@dataclass(frozen=True)
class Source:
    """A data set by name: what it is, where it comes from, and the function that loads it."""

    name: str
    load: Callable[..., Table]
    summary: str
    task: Task | None = None
    rows: str = "–"
    features: str = "–"
    origin: str = "your own"
    licence: str = "–"
    natural: bool = False
    files: Callable[[], Iterable[Path]] | None = None
    """Has its published files on this machine, checked, and says where they are."""

    @property
    def options(self) -> tuple[str, ...]:
        """The options of its loader."""
        return tuple(inspect.signature(self.load).parameters)


def _is_step(thing: object) -> bool:
    from fedloom.data.partition import Step

    return isinstance(thing, type) and issubclass(thing, Step)


SOURCES: Register[Source] = Register(
    "data set",
    entry=lambda name, load, **facts: Source(name, load, **{"summary": summary_of(load)} | facts),
    right=lambda thing: callable(thing) and not isinstance(thing, type),
    must_be="a function that gives a fedloom.data.Table",
    own="module:function, or a file",
    home="fedloom.data",
    group="fedloom.data",
    order=lambda source: (source.origin.startswith(_MADE), source.files is not None),
)
"""Every source by its name: those that are there, those to be fetched, those that are made."""
STEPS: Register[Callable[..., Step]] = Register(
    "partition",
    right=_is_step,
    must_be="a dataclass derived from fedloom.data.owners.Owners or fedloom.data.transforms.Transform",
    home="fedloom.data",
    group="fedloom.partitions",
    order=lambda step: step.__module__.endswith(".columns"),
)
"""The steps that have a name; what stands alone comes last."""
find = SOURCES.find
FILES = (".csv", ".gz", ".parquet", ".pq", ".npz")
"""How the names of files end that can be read as tables."""


def load(name: str, **options: object) -> Table:
    """Load a data set by its name.

    * ``name``: "digits", another data set that fedloom knows (``fedloom data list``), the import path of your own,
      "package.module:function", or a .csv, .parquet or .npz file.
    * ``options``: those of the data set's loader; of a file those of ``load_file``, such as ``label_column="died"``.

    The result is a Table, from which ``federate`` makes clients. Published files are fetched when first needed.

        table = fedloom.load("digits")
        print(len(table.y), table.classes)
    """
    if Path(name).suffix in FILES:
        from fedloom.data.files import load_file

        return load_file(name, **options)  # type: ignore[arg-type]
    source = find(name)
    for option in options:
        if option not in source.options:
            raise ConfigError(f"the data set {name!r} has no option {option!r}; {hint(option, source.options)}")
    if options:
        check_arguments(source.load, options, name)
    table = source.load(**options)
    if not isinstance(table, Table):
        raise DataError(f"the data set {name!r} gives a {type(table).__name__}; it must give a fedloom.data.Table")
    return table


def fetch(name: str) -> list[Path]:
    """Have the published files of a source on this machine, checked; where they are. Nothing for the others."""
    files = find(name).files
    return [] if files is None else list(files())
