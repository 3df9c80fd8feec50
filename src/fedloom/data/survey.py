"""What the columns of a file hold, told in parts that join: so a federation agrees on one encoding and moves no row.

Whoever has rows surveys them (:meth:`Survey.of`), the surveys are joined (:func:`joined`), and everybody makes the same
encoding of the joint one (:func:`encoding_of`). The survey of all rows is the joint one of its parts, however they are
cut, so that one file, a file for each client and a fleet of real devices read the same columns as the same numbers.

What a survey tells of a column: how many cells are missing, numbers, truth values, dates and other texts; the texts
that occur, for they become categories; and, of numbers, which ones occur if they are few. Dates are never listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from fedloom.data.arrays import Array, some
from fedloom.errors import ConfigError, DataError, MessageError
from fedloom.federation.encoding import Column, Encoding, Part, missing_cells, moment, texts
from fedloom.register import nearest

Dates = Literal["days", "parts", "drop"]
Missing = Literal["mean", "indicator", "error"]
EMBED_FROM = 20
MOST_WORDS = 10_000
"""Different texts of a column that are listed; one with more is no column of categories."""
MOST_FIGURES = 100
"""Different numbers of a column that are listed, unless the user says that they are categories."""
LONGEST_WORD = 200
_MOST_COLUMNS, _LONGEST_NAME, _MOST_ROWS = 100_000, 10_000, 2**53
_MOST_LISTED = 2_000_000


@dataclass(frozen=True)
class Choices:
    """What the user says of columns; the defaults leave everything to what the columns hold.

    * ``drop``: columns to leave out
    * ``numbers``: columns of numbers, in which a cell that is none counts as missing
    * ``categories``: columns of categories, also where they look like numbers; or these with their lists, which are
      then not asked of anybody
    * ``embed_from``: a column with more categories than this becomes the number of its category, which a model
      embeds, instead of a number for each category
    * ``dates``: "days" since 1970; "parts": days, month, weekday and, where there are times of day, the hour; "drop"
    * ``missing``: the "mean" of the training rows stands in; so with "indicator", and one more number says where
      something was missing; "error": nothing may be missing
    """

    drop: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...] | None] | None = None
    embed_from: int = EMBED_FROM
    dates: Dates = "days"
    missing: Missing = "mean"

    @staticmethod
    def of(
        drop: Sequence[str] | None = None,
        numbers: Sequence[str] | None = None,
        categories: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
        embed_from: int = EMBED_FROM,
        dates: Dates = "days",
        missing: Missing = "mean",
    ) -> Choices:
        """From the options as a file or a caller gives them; refuses what cannot be."""
        for option, value, known in (("dates", dates, get_args(Dates)), ("missing", missing, get_args(Missing))):
            if value not in known:
                raise ConfigError(f"{option} = {value!r} cannot be; choose {', '.join(known)}")
        if embed_from < 1:
            raise ConfigError(f"embed_from = {embed_from} cannot be; give 1 or more")
        lists: dict[str, tuple[str, ...] | None] = dict.fromkeys(categories or ())
        if isinstance(categories, Mapping):
            lists |= {name: _given(name, listed) for name, listed in categories.items()}
        both = sorted(set(numbers or ()) & set(lists))
        if both:
            raise ConfigError(f"column {both[0]!r} cannot be one of numbers and of categories; name it once")
        return Choices(tuple(drop or ()), tuple(numbers or ()), lists, embed_from, dates, missing)

    @property
    def lists(self) -> Mapping[str, tuple[str, ...] | None]:
        """The columns that are categories, with their lists where these are given."""
        return self.categories or {}

    @property
    def named(self) -> tuple[str, ...]:
        """All columns that it speaks of."""
        return (*self.drop, *self.numbers, *self.lists)

    def about(self, columns: Collection[str]) -> Choices:
        """Those that concern certain columns."""
        return replace(
            self,
            drop=tuple(name for name in self.drop if name in columns),
            numbers=tuple(name for name in self.numbers if name in columns),
            categories={name: listed for name, listed in self.lists.items() if name in columns},
        )

    def applied(self, columns: Mapping[str, Array]) -> tuple[dict[str, Array], list[str]]:
        """The columns to survey and to encode: some dropped, and of numbers what is none missing; and what that was."""
        kept, notes = {name: cells for name, cells in columns.items() if name not in self.drop}, []
        for name in self.numbers:
            if name in kept and kept[name].dtype.kind not in "biuf":
                kept[name], wrong = _as_numbers(kept[name])
                if wrong:
                    notes.append(f"column {name!r}: {wrong:,} cells are no numbers and count as missing")
        return kept, notes


@dataclass(frozen=True)
class Found:
    """What was found in one column.

    Of its ``rows`` some are ``missing``; of the others some are ``numbers`` (of which ``bits`` are 0 or 1), ``truths``,
    ``dates`` (of which ``timed`` have a time of day), and the rest are texts. ``words`` counts the texts and truth
    values that occur, ``figures`` has the numbers; None: they are too many to list, or too long.
    """

    name: str
    rows: int = 0
    missing: int = 0
    numbers: int = 0
    bits: int = 0
    truths: int = 0
    dates: int = 0
    timed: int = 0
    words: Mapping[str, int] | None = None
    figures: tuple[str, ...] | None = None

    @staticmethod
    def of(name: str, cells: Array, choices: Choices) -> Found:
        """What is in these cells."""
        if cells.ndim != 1:
            raise DataError(f"column {name!r} has shape {cells.shape}; give one cell a row")
        missing = missing_cells(cells)
        known = cells[~missing] if missing.any() else cells
        found = Found(
            name, len(cells), int(missing.sum()), words=_listed({}, name, choices), figures=_few((), name, choices)
        )
        if cells.dtype.kind == "M":
            return replace(found, dates=len(known), timed=int((known != known.astype("datetime64[D]")).sum()))
        if cells.dtype.kind in "iuf":
            bits, distinct = int(((known == 0) | (known == 1)).sum()), texts(np.unique(known)[: MOST_WORDS + 1])
            return replace(found, numbers=len(known), bits=bits, figures=_few(distinct, name, choices))
        counts = Counter(texts(known).tolist())
        kinds = {text: _kind(text) for text in counts}

        def together(*wanted: str) -> int:
            return sum(count for text, count in counts.items() if kinds[text] in wanted)

        words = {text: counts[text] for text in sorted(counts) if kinds[text] in ("truth", "text")}
        return replace(
            found,
            numbers=together("number", "bit"),
            bits=together("bit"),
            truths=together("truth"),
            dates=together("date", "time"),
            timed=together("time"),
            words=_listed(words, name, choices),
            figures=_few([text for text in counts if kinds[text] in ("number", "bit")], name, choices),
        )

    @property
    def texts(self) -> int:
        """How many cells are texts of no other kind."""
        return self.rows - self.missing - self.numbers - self.truths - self.dates

    @property
    def known(self) -> int:
        """How many cells hold something."""
        return self.rows - self.missing

    @property
    def listed(self) -> tuple[str, ...] | None:
        """All different cells that are no dates, sorted; None: too many."""
        if self.words is None or self.figures is None:
            return None
        every = sorted({*self.words, *self.figures})
        return tuple(every) if len(every) <= MOST_WORDS else None

    @property
    def looks(self) -> str:
        """What it is by its looks, in a word or two."""
        kinds = {"numbers": self.numbers, "truth values": self.truths, "dates": self.dates, "texts": self.texts}
        return " and ".join(kind for kind, count in kinds.items() if count) or "nothing"

    def joined(self, other: Found, choices: Choices) -> Found:
        """What is in the cells of both."""
        counts = {
            part.name: getattr(self, part.name) + getattr(other, part.name)
            for part in fields(Found)
            if part.name not in ("name", "words", "figures")
        }
        words = figures = None
        if self.words is not None and other.words is not None:
            both = Counter(self.words) + Counter(other.words)
            words = _listed({text: both[text] for text in sorted(both)}, self.name, choices)
        if self.figures is not None and other.figures is not None:
            figures = _few({*self.figures, *other.figures}, self.name, choices)
        return Found(self.name, words=words, figures=figures, **counts)


@dataclass(frozen=True)
class Survey:
    """What was found in each column, in the order of the file."""

    columns: tuple[Found, ...]

    @staticmethod
    def of(columns: Mapping[str, Array], choices: Choices | None = None) -> Survey:
        """The survey of some rows, whose columns are as ``choices.applied`` gives them."""
        choices = choices or Choices()
        return Survey(tuple(Found.of(name, cells, choices) for name, cells in columns.items()))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""
        return tuple(found.name for found in self.columns)

    def as_tree(self) -> dict[str, Any]:
        """In plain types, for a message or a file of JSON."""
        return {
            "columns": [
                {part.name: getattr(found, part.name) for part in fields(Found)}
                | {
                    "words": None if found.words is None else dict(found.words),
                    "figures": None if found.figures is None else list(found.figures),
                }
                for found in self.columns
            ]
        }

    @staticmethod
    def read_tree(tree: object) -> Survey:
        """What ``as_tree`` gave, on another machine; a MessageError for anything that it could not have given."""
        if not isinstance(tree, dict) or set(tree) != {"columns"} or not isinstance(tree["columns"], list):
            raise MessageError("a survey is a table with a list of columns; this is none")
        if len(tree["columns"]) > _MOST_COLUMNS:
            raise MessageError(f"a survey speaks of {len(tree['columns']):,} columns; at most {_MOST_COLUMNS:,} can be")
        columns = tuple(_read_found(column, place) for place, column in enumerate(tree["columns"]))
        names = [found.name for found in columns]
        if len(set(names)) < len(names):
            raise MessageError("a survey names a column twice")
        if sum(len(found.words or ()) + len(found.figures or ()) for found in columns) > _MOST_LISTED:
            raise MessageError(f"a survey lists more than {_MOST_LISTED:,} categories")
        if len({found.rows for found in columns}) > 1:
            raise MessageError("a survey has columns of different lengths")
        return Survey(columns)


def joined(surveys: Mapping[str, Survey], choices: Choices | None = None) -> Survey:
    """The survey of all rows together, in whatever order the parts come; they go by names, for messages.

    Columns are in the order that all parts have, or else in the first of their orders by the alphabet. A DataError
    where one part lacks a column that another has.
    """
    choices = choices or Choices()
    if not surveys:
        raise DataError("there is no survey to join; ask at least one client")
    check_columns({name: survey.names for name, survey in surveys.items()})
    parts = [{found.name: found for found in survey.columns} for survey in surveys.values()]
    order = min(survey.names for survey in surveys.values())
    total = parts[0]
    for part in parts[1:]:
        total = {name: total[name].joined(part[name], choices) for name in order}
    return Survey(tuple(total[name] for name in order))


def check_columns(names: Mapping[str, Iterable[str]]) -> None:
    """A DataError that says which of several files or clients lacks which column."""
    every: dict[str, str] = {}
    for holder, columns in names.items():
        for column in columns:
            every.setdefault(column, holder)
    for holder, columns in names.items():
        lacks = [column for column in every if column not in set(columns)]
        if lacks:
            raise DataError(
                f"{holder} has no column {some(map(repr, lacks))}, which {every[lacks[0]]} has; add it, or leave it "
                f"out everywhere (drop = {lacks[:8]})"
            )


@dataclass(frozen=True)
class Fate:
    """What becomes of a column: the :class:`Column` that a model reads, or none; and what there is to say of that."""

    found: Found
    column: Column | None
    said: str | None = None
    """In words that columns of one fate have in common. None: nothing, for it is as one expects."""
    detail: str = ""
    """What is to be added of this column alone."""

    @property
    def almost(self) -> bool:
        """Whether it was left out for a few cells that are not what the others are."""
        return self.said in _ALMOST.values()


def encoding_of(survey: Survey, choices: Choices | None = None, one_hot: bool = False) -> tuple[Encoding, list[Fate]]:
    """The encoding that everybody makes of the joint survey, and what becomes of each column.

    With ``one_hot`` no column is embedded, whatever its number of categories: for models of windows.
    """
    choices = choices or Choices()
    fates = [_fate(found, choices, one_hot) for found in survey.columns]
    return Encoding(tuple(fate.column for fate in fates if fate.column is not None)), fates


def notes_of(fates: Sequence[Fate]) -> list[str]:
    """What a reader should know of the columns: a line for each fate, with the columns that share it."""
    said: dict[str, list[str]] = {}
    for fate in fates:
        if fate.said is not None:
            named = f"{fate.found.name} ({fate.detail})" if fate.detail else fate.found.name
            said.setdefault(fate.said, []).append(named)
    return [f"{words}: {some(names)}" for words, names in said.items()]


_EMPTY = "columns left out, for nothing is in them"
_DROPPED = "columns of dates left out, as dates = 'drop' asks for"
_MANY = f"columns left out, of more than {MOST_WORDS:,} texts or of texts longer than {LONGEST_WORD} letters"
_IDS = "columns left out, of texts that hardly ever come again, as ids do (categories = [NAME] keeps one)"
_ALMOST = {
    "number": "columns left out, for most cells are numbers and some are none (numbers = [NAME]: these are missing)",
    "date": "columns left out, for most cells are dates and some are none",
}


def _fate(found: Found, choices: Choices, one_hot: bool) -> Fate:
    indicator = choices.missing == "indicator" and found.missing > 0
    if choices.missing == "error" and found.missing:
        raise DataError(
            f"column {found.name!r} is missing in {found.missing:,} of {found.rows:,} rows; fill or drop these, or "
            "choose missing = 'mean' or 'indicator'"
        )
    if found.name in choices.lists:
        return _categories(found, choices, indicator, one_hot)
    if found.known == 0:
        return Fate(found, None, _EMPTY)
    if found.numbers == found.known or found.name in choices.numbers:
        return Fate(found, Column(found.name, "number", indicator=indicator))
    if found.truths and found.truths + found.bits == found.known:
        return Fate(found, Column(found.name, "boolean", indicator=indicator))
    if found.dates == found.known:
        if choices.dates == "drop":
            return Fate(found, None, _DROPPED)
        parts: tuple[Part, ...] = ("days",)
        if choices.dates == "parts":
            parts = ("days", "month", "weekday", *(("hour",) if found.timed else ()))
        words = "dates read as days since 1970" if len(parts) == 1 else f"dates read as {', '.join(parts)}"
        return Fate(found, Column(found.name, "date", parts=parts, indicator=indicator), words)
    for kind, count in (("number", found.numbers), ("date", found.dates)):
        if 2 * count >= found.known:
            return Fate(found, None, _ALMOST[kind], f"{found.known - count:,} of {found.known:,} cells")
    return _categories(found, choices, indicator, one_hot)


def _categories(found: Found, choices: Choices, indicator: bool, one_hot: bool) -> Fate:
    """A column of categories: one number for each, their number for an embedding, or nothing where there is no list."""
    asked, given = found.name in choices.lists, choices.lists.get(found.name)
    listed = found.listed if given is None else given
    if not listed:
        return Fate(found, None, _EMPTY if listed is not None else _MANY)
    if not asked and len(listed) > choices.embed_from and 2 * len(listed) > found.known:
        return Fate(found, None, _IDS, f"{len(listed):,} in {found.known:,} rows")
    index = len(listed) > choices.embed_from and not one_hot
    column = Column(found.name, "index" if index else "category", listed, indicator=indicator)
    words = f"more than {choices.embed_from} categories, embedded" if index else "categories, each a number of 0 and 1"
    return Fate(found, column, words, f"{len(listed):,}")


def check_choices(choices: Choices, columns: Iterable[str], where: str) -> None:
    """A ConfigError for a choice about a column that is not there."""
    there = list(columns)
    for name in choices.named:
        if name not in there:
            near = nearest(name, there)
            raise ConfigError(
                f"{where} has no column {name!r}; " + (f"did you mean {near!r}?" if near else f"it has {some(there)}")
            )


def _given(name: str, listed: Sequence[str]) -> tuple[str, ...]:
    if isinstance(listed, str) or not listed or len(set(listed)) < len(listed):
        raise ConfigError(f"categories of {name!r} should be a list of different texts, not {listed!r}")
    return tuple(map(str, listed))


def _kind(text: str) -> str:
    """What one cell is, by its text: the first of these that fits."""
    try:
        return "bit" if float(text) in (0.0, 1.0) else "number"
    except ValueError:
        pass
    if text.lower() in ("true", "false"):
        return "truth"
    if 8 <= len(text) <= 40 and text[:4].isdigit():
        try:
            when = moment(text)
        except (ValueError, OverflowError):
            return "text"
        return "time" if (when.hour, when.minute, when.second, when.microsecond) != (0, 0, 0, 0) else "date"
    return "text"


def _most_figures(name: str, choices: Choices) -> int:
    if choices.lists.get(name) is not None:
        return -1  # its list is given, so nobody is asked for it
    return MOST_WORDS if name in choices.lists else MOST_FIGURES


def _few(figures: Iterable[str], name: str, choices: Choices) -> tuple[str, ...] | None:
    every = sorted(map(str, figures))
    return tuple(every) if len(every) <= _most_figures(name, choices) else None


def _listed(words: Mapping[str, int], name: str, choices: Choices) -> Mapping[str, int] | None:
    """The texts, if they may be listed: a list that the user gave is asked of nobody."""
    return None if choices.lists.get(name) is not None or _too_many(words) else words


def _too_many(words: Mapping[str, int]) -> bool:
    return len(words) > MOST_WORDS or max(map(len, words), default=0) > LONGEST_WORD


def _as_numbers(cells: Array) -> tuple[npt.NDArray[np.float64], int]:
    """Cells as numbers, NaN where one is none, and how many are none though they hold something."""
    missing = missing_cells(cells)
    numbers, wrong = np.full(len(cells), np.nan), 0
    read: dict[str, float] = {}
    for row, text in enumerate(texts(cells).tolist()):
        if missing[row]:
            continue
        if text not in read:
            try:
                read[text] = float(text)
            except ValueError:
                read[text] = np.nan
        numbers[row] = read[text]
        wrong += read[text] != read[text]
    return numbers, wrong


def _read_found(tree: object, place: int) -> Found:
    names = [part.name for part in fields(Found)]
    if not isinstance(tree, dict) or set(tree) != set(names):
        raise MessageError(f"column {place} of a survey should have {', '.join(names)}")
    name, words, figures = tree["name"], tree["words"], tree["figures"]
    counts = {key: tree[key] for key in names if key not in ("name", "words", "figures")}
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:
        raise MessageError(f"column {place} of a survey has no name that could be")
    if not all(type(count) is int and 0 <= count <= _MOST_ROWS for count in counts.values()):
        raise MessageError(f"column {name[:40]!r} of a survey has counts that cannot be")
    if words is not None:
        right = isinstance(words, dict) and all(isinstance(text, str) for text in words)
        if not right or _too_many(words) or not all(type(n) is int and 0 < n <= _MOST_ROWS for n in words.values()):
            raise MessageError(f"column {name[:40]!r} of a survey has texts that cannot be")
        words = {text: words[text] for text in sorted(words)}
    if figures is not None:
        right = isinstance(figures, list) and all(isinstance(text, str) and len(text) < 400 for text in figures)
        if not right or len(figures) > MOST_WORDS or len(set(figures)) < len(figures):
            raise MessageError(f"column {name[:40]!r} of a survey has numbers that cannot be")
        figures = tuple(sorted(figures))
    found = Found(name, words=words, figures=figures, **counts)
    if found.texts < 0 or found.bits > found.numbers or found.timed > found.dates:
        raise MessageError(f"column {name[:40]!r} of a survey has counts that do not add up")
    if words is not None and sum(words.values()) != found.texts + found.truths:
        raise MessageError(f"column {name[:40]!r} of a survey counts its texts in two ways")
    if figures is not None and len(figures) > found.numbers:
        raise MessageError(f"column {name[:40]!r} of a survey has more different numbers than numbers")
    return found
