"""What is to be read of files, as their user says: which columns become features, labels, clients and times."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedloom.capacity import refuse_larger
from fedloom.data.arrays import AnyTask, Array, assembled, some
from fedloom.data.cells import finite_only, matrix, seconds, texts
from fedloom.data.gathered import Columns, Files, rows_of, together
from fedloom.data.reading import CELL, almost_numbers
from fedloom.data.survey import Choices, Fate, Survey, check_choices, encoding_of, joined, notes_of
from fedloom.data.table import Table
from fedloom.errors import DataError
from fedloom.federation.encoding import Encoding, missing_cells

STRANGERS = "categories that are in no list, read as none"


@dataclass(frozen=True)
class Read:
    """Features of all rows, and how they came to be."""

    x: Array
    names: tuple[str, ...] = ()
    encoding: Encoding | None = None
    fates: tuple[Fate, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What is to be read of files, as their user says."""

    labels: list[str]
    client: str | None
    time: str | None
    id: str | None
    chosen: Sequence[str] | None
    task: AnyTask
    classes: Sequence[str] | None
    choices: Choices
    series: bool = False
    """Whether rows become windows, of which those to a missing label are left out."""
    ahead: bool = False
    """Whether windows look ahead, so that the labels of the past are features."""
    one_hot: bool = False
    """Whether no category is to be embedded: where a model reads windows, or parties a part of the columns each."""

    @property
    def taken(self) -> list[str]:
        """The columns that have another use than as features."""
        return [*self.labels, *(column for column in (self.client, self.time, self.id) if column)]

    def wanted(self, columns: Iterable[str]) -> list[str]:
        """The columns that are to become features; of a series that looks ahead the labels of the past are, too."""
        if self.chosen:
            return list(self.chosen)
        taken = {*self.taken, *self.choices.drop} - {*(self.labels if self.ahead else ())}
        return [column for column in columns if column not in taken]

    def table(self, files: Files, read: Read, title: str) -> Table:
        """The rows with these features; not yet checked, for something may be missing."""
        time = None
        if self.time is not None:
            time = np.concatenate([seconds(file, self.time, own[self.time]) for file, own in files.pairs()])
        table = assembled(
            read.x,
            self.targets(files),
            files.owners(self.client),
            task=self.task,
            classes=self.classes,
            time=time,
            name=title,
        )
        unused = [name for name in files.names if name not in (*self.taken, *self.wanted(files.names))]
        left_out = [f"columns left out: {some(unused)}"] if unused else []
        named = table.task == "regression" and table.y.shape[1] == len(self.labels)
        return replace(
            table,
            classes=tuple(self.labels) if table.task == "multilabel" else table.classes,
            notes=(*table.notes, *files.notes, *left_out, *read.notes, *self._classes_of_numbers(files)),
            feature_names=read.names if table.x.ndim == 2 and table.x.shape[1] == len(read.names) else (),
            target_names=tuple(self.labels) if named else (),
            encoding=read.encoding,
            fates=read.fates,
            apart=self.client is None and len(files.paths) > 1,
        )

    def targets(self, files: Files) -> Array:
        """The labels of all rows."""
        files.must_have(self.labels)
        if len(self.labels) > 1:
            finite = self.task != "multilabel" and not self.series
            return np.concatenate([matrix(file, own, self.labels, finite) for file, own in files.pairs()])
        label = self.labels[0]
        for file, own in files.pairs() if not self.series and self.task != "multilabel" else ():
            absent = missing_cells(own[label]) if own[label].ndim == 1 else np.zeros(1, dtype=bool)
            if absent.any():
                raise DataError(
                    f"{file}: row {int(absent.argmax()) + 1} has no label in column {label!r}; fill or drop such rows"
                )
        target = files.column(label)
        return texts(target) if self.classes and self.task != "multilabel" else target

    def features(self, files: Files, known: Encoding | None = None) -> Read:
        """The features of all rows, by an encoding that is known, or by that which follows from these files."""
        files.must_have(self.chosen or ())
        wanted = self.wanted(files.names)
        if not files.tables:
            files.refuse_uneven([*wanted, *self.taken])
            finite = self.choices.missing == "error"
            return Read(together([matrix(file, own, wanted, finite) for file, own in files.pairs()]), tuple(wanted))
        if known is None:
            check_choices(self.choices, files.names, str(files.first))
        else:
            wanted = [column.name for column in known.columns]
            files.must_have(wanted)
        kept, notes = self._kept(files, wanted)
        fates: list[Fate] = []
        if known is None:
            known, fates = self._agreed(files, kept)
            notes += [*_nearly(files, fates), *notes_of([fate for fate in fates if not _is_told(files, fate)])]
        _refuse_wide(files, kept, known)
        x = together(
            [
                finite_only(file, known, known.encode(own, str(file)))
                for file, own in zip(files.paths, kept, strict=True)
            ]
        )
        strangers = sum((Counter(known.unknown(own)) for own in kept), Counter[str]())
        if strangers:
            listed = some(f"{name} ({count:,})" for name, count in strangers.items())
            notes.append(f"{STRANGERS}: {listed}")
        return Read(x, known.names, known, tuple(fates), tuple(notes))

    def _kept(self, files: Files, wanted: Sequence[str]) -> tuple[list[Columns], list[str]]:
        """The columns of each file that become features, and what is to be said of them."""
        kept, notes = list[Columns](), list[str]()
        for file, own in files.pairs():
            columns, said = self.choices.applied({name: own[name] for name in wanted})
            kept.append(columns)
            notes += said if len(files.paths) == 1 else [f"{file.name}: {note}" for note in said]
        return kept, notes

    def told(self, files: Files) -> Survey:
        """What the owner of a single file tells others of the columns that become features."""
        files.must_have(self.chosen or ())
        check_choices(self.choices, files.names, str(files.first))
        kept, _ = self._kept(files, self.wanted(files.names))
        (survey,) = self._surveys(files, kept).values()
        return survey.discreet(self.choices)

    def _surveys(self, files: Files, kept: list[Columns]) -> dict[str, Survey]:
        """What is in the columns of each file."""
        if self.choices.missing == "error":
            _refuse_missing(files, kept)
        return {str(file): Survey.of(own, self.choices) for file, own in zip(files.paths, kept, strict=True)}

    def _agreed(self, files: Files, kept: list[Columns]) -> tuple[Encoding, list[Fate]]:
        """The encoding that all files make together, as the clients of a fleet do, who tell no more than they must."""
        surveys = self._surveys(files, kept)
        if self.client is None and len(surveys) > 1:
            surveys = {file: survey.discreet(self.choices) for file, survey in surveys.items()}
        return agreed_encoding(surveys, self.choices, self.one_hot, self.chosen, str(files.first))

    def _classes_of_numbers(self, files: Files) -> list[str]:
        """What is to be said of labels that are numbers but for a few cells."""
        return [] if self.task != "auto" else _told(files, self.labels, "so each distinct label is a class", "")


def agreed_encoding(
    surveys: Mapping[str, Survey], choices: Choices, one_hot: bool, chosen: Sequence[str] | None, where: str
) -> tuple[Encoding, list[Fate]]:
    """The encoding that all files make together, and what becomes of each column."""
    encoding, fates = encoding_of(joined(surveys, choices), choices, one_hot=one_hot)
    lost = next((fate for fate in fates if fate.column is None), None)
    if chosen and lost is not None:
        raise DataError(f"{where}: {lost.said}: {lost.found.name!r}, which is one of feature_columns")
    if not encoding.columns:
        raise DataError(f"{where} has no column left for the features" + "".join(f"; {n}" for n in notes_of(fates)))
    return encoding, fates


def _nearly(files: Files, fates: Iterable[Fate]) -> list[str]:
    """One cell that is no number makes a column one of texts: said at once, and noted without the cell: it is data."""
    names = [fate.found.name for fate in fates if fate.almost]
    return _told(files, names, "so the column is left out", "; --numbers {0} (numbers = ['{0}']) reads them as missing")


def _told(files: Files, names: Sequence[str], then: str, remedy: str) -> list[str]:
    notes = []
    for name in names:
        for path, own in files.pairs():
            if (found := almost_numbers(path, own[name])) is not None:
                cell, where = found
                keep = "to keep it as numbers mend or drop such rows" + remedy.replace("{0}", name)
                said = f"{path}: column {name!r} holds {cell!r} in {where}, which is no number, {then}; {keep}"
                warnings.warn(said, stacklevel=3)
                among = f" of {path.name}" if len(files.paths) > 1 else ""
                notes.append(f"column {name!r} holds no number in {where}{among}, {then}")
                break
    return notes


def _is_told(files: Files, fate: Fate) -> bool:
    """Whether ``_nearly`` names the cell for which a column was left out."""
    return fate.almost and any(almost_numbers(path, own[fate.found.name]) for path, own in files.pairs())


def _refuse_wide(files: Files, kept: list[Columns], encoding: Encoding) -> None:
    """Categories may be many: what they take is known before it is made."""
    rows = sum(rows_of(columns) for columns in kept)
    what = f"{files.first}, as {len(encoding.names):,} numbers a row"
    refuse_larger(rows * len(encoding.names) * CELL, what, "Drop columns, or lower embed_from.", DataError)


def _refuse_missing(files: Files, kept: list[Columns]) -> None:
    for file, columns in zip(files.paths, kept, strict=True):
        for name, cells in columns.items():
            absent = missing_cells(cells)
            if absent.any():
                raise DataError(
                    f"{file}: column {name!r} is missing in row {int(absent.argmax()) + 1}; fill or drop such rows, or "
                    "choose missing = 'mean' or 'indicator'"
                )
