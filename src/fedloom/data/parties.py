"""A file for each party: other columns of the same rows, beside the file that has the labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedloom.data.align import Held, aligned
from fedloom.data.arrays import some
from fedloom.data.cells import texts
from fedloom.data.gathered import Files
from fedloom.data.paths import stem
from fedloom.data.plan import Plan, Read
from fedloom.data.survey import check_choices
from fedloom.data.table import Table
from fedloom.errors import ConfigError
from fedloom.federation.encoding import Encoding


def of_parties(files: Files, others: Sequence[str], plan: Plan, title: str) -> Table:
    """What each of several files holds of the same rows, by the name of the file, and the labels of the first."""
    path, columns = files.pairs()[0]
    for option, value in (("client_column", plan.client), ("timestamp_column", plan.time)):
        if value is not None:
            raise ConfigError(f"{path}: {option} cannot be beside parties, who all hold the same rows; drop it")
    if len(files.paths) > 1:
        raise ConfigError(f"{path} is one of several files; give the one that has the labels, and others as parties")
    if len(plan.labels) > 1:
        raise ConfigError(f"{path}: say which one of its columns is the label (label_column); it has {some(columns)}")
    label, held, reads, sought = plan.labels[0], dict[str, Held](), list[Read](), set(plan.chosen or ())
    every = [files, *(Files.of(path.parent / other) for other in others)]
    check_choices(plan.choices, {name for one in every for name in one.names}, str(path))
    for one in every:
        own, file = one.columns[0], one.first
        one.must_have([plan.id] if plan.id else [])
        mine = replace(
            plan, labels=[label] if label in own else [], chosen=None, choices=plan.choices.about(own), one_hot=True
        )
        features = [name for name in mine.wanted(own) if not plan.chosen or name in plan.chosen]
        if stem(file) in held:
            raise ConfigError(f"{file}: two parties are called {stem(file)!r}; give their files different names")
        sought -= set(features)
        if not features and one is files:
            continue
        part = Files(
            [file], [{name: own[name] for name in own if name in (*mine.taken, *mine.choices.named, *features)}]
        )
        read = mine.features(part)
        reads.append(read)
        held[stem(file)] = (own[plan.id] if plan.id else None, read.x)
    if sought:
        raise ConfigError(f"{path}: no party has a column {some(sorted(sought))}, one of feature_columns")
    labels = columns[label]
    given = (columns[plan.id] if plan.id else None, texts(labels) if plan.classes else labels)
    table = aligned(held, given, task=plan.task, classes=plan.classes, name=title)
    encoding = Encoding(tuple(column for read in reads if read.encoding for column in read.encoding.columns))
    notes = [note for read in reads for note in read.notes]
    table = replace(table, notes=(*table.notes, *notes), fates=tuple(fate for read in reads for fate in read.fates))
    if len(set(encoding.names)) == len(encoding.names) and files.tables:
        table = replace(table, encoding=encoding, feature_names=encoding.names)
    return table
