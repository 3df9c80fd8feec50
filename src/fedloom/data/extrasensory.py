"""ExtraSensory (Vaizman, Ellis and Lanckriet, 2017): what phone and watch measured of people, and what these were at.

One gzipped CSV a person, one line a minute: ``timestamp``, the features, the labels (``label:…``: 0, 1 or nan), and
``label_source``.
"""

from __future__ import annotations

import numpy as np

from fedloom.data.published import Member, Published, damaged, obtain_members, shortfall
from fedloom.data.register import SOURCES
from fedloom.data.scaling import By, Kind, Scaling
from fedloom.data.series import Series, Windows, check_lines, filled_forward, read_csv, read_numbers, table_of
from fedloom.data.table import Table
from fedloom.types import Count

EXTRASENSORY = Published(
    "extrasensory",
    "ExtraSensory.per_uuid_features_labels.zip",
    ("http://extrasensory.ucsd.edu/data/primary_data_files/",),
    "9e44b3484b74cd8a370ff22894e0899b",
    225_374_973,
)
SUFFIX = ".features_labels.csv.gz"
_PEOPLE = 60
_MARK, _LAST = "label:", "label_source"


@SOURCES.register(
    "extrasensory",
    task="multilabel",
    rows="377,346",
    features="225",
    origin="Vaizman, Ellis and Lanckriet (2017)",
    licence="CC BY-NC-SA 4.0",
    natural=True,
    files=lambda: sorted({member.file for member in people()}),
)
def extrasensory(
    window: Count = 1,
    stride: Count = 1,
    limit: Count | None = None,
    scaling: Kind = "standard",
    scaling_by: By = "all",
) -> Table:
    """What 60 people do in each minute, from their phones and watches.

    51 labels, of which some are unknown, are predicted from 225 features. With a ``window`` above 1 the features are
    those of a person's last so many recorded minutes, for models that read series; one window every ``stride`` minutes,
    and at most the first ``limit`` of each person. A missing feature is the person's last known one, and before the
    first one the mean of their training rows, or of everybody's where the person's devices never measured it. Natural
    clients are the people.
    """
    files = people()
    features, labels = _names(files[0], files[0].content())
    series = [_person(file, features, labels) for file in files]
    recorded = (f"windows of {window} recorded minutes",) if window > 1 else ()
    return table_of(
        "extrasensory",
        "multilabel",
        series,
        Windows(window, stride, limit),
        classes=tuple(label.removeprefix(_MARK) for label in labels),
        feature_names=tuple(features),
        scaling=Scaling(scaling, scaling_by),
        notes=(*recorded, *shortfall(len(series), _PEOPLE, "people")),
    )


def people() -> list[Member]:
    """The people's files, after a download if need be."""
    return obtain_members(EXTRASENSORY, f"*{SUFFIX}")


def _names(member: Member, data: bytes) -> tuple[list[str], list[str]]:
    """The names of the features and of the labels, from the first line."""
    header = data.partition(b"\n")[0].decode(errors="replace").strip().split(",")
    features = [column for column in header[1:-1] if not column.startswith(_MARK)]
    labels = [column for column in header if column.startswith(_MARK)]
    if header[0] != "timestamp" or header[-1] != _LAST or not features or not labels:
        raise damaged(member.path, f"its first line is not timestamp, features, {_MARK}…, {_LAST}")
    return features, labels


def _person(member: Member, features: list[str], labels: list[str]) -> Series:
    """One person's minutes, in order of time."""
    path, data = member.path, member.content()
    if _names(member, data) != (features, labels):
        raise damaged(path, "its columns are not those of the other files")
    frame = read_csv(path, data, _LAST)
    known = read_numbers(path, frame, labels)
    strange = ~np.isnan(known) & (known != 0) & (known != 1)
    if strange.any():
        row, column = (int(k) for k in np.argwhere(strange)[0])
        raise damaged(path, f"line {row + 2} has {known[row, column]:g} in {labels[column]!r}, which is 0, 1 or nan")
    time = read_numbers(path, frame, ("timestamp",))[:, 0]
    check_lines(path, np.isnan(time), "has no timestamp")
    order = np.argsort(time, kind="stable")
    values = filled_forward(read_numbers(path, frame, features).astype(np.float32)[order])
    person = path.name.removesuffix(SUFFIX)
    return Series(person, values, known.astype(np.float32)[order], time[order])
