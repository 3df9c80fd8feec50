"""Predictions for a file, a part of its rows after the other, into a CSV file that is complete or not there."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedloom.data.reading import read_parts
from fedloom.errors import ConfigError
from fedloom.prediction.answers import Array
from fedloom.prediction.predictor import Predictor
from fedloom.prediction.rows import Tally
from fedloom.register import hint
from fedloom.storage.files import replacing

ALL = "all"
_ROWS = 100_000  # read, predicted and written at a time


def predict_file(predictor: Predictor, path: Path, out: Path, keep: Sequence[str] = ()) -> Tally:
    """Write a line of predictions for each row of a file, after the columns to ``keep`` ("all": each of them).

    What is to be said of the rows is in the tally.
    """
    tally = Tally()
    with replacing(out) as file:
        for number, part in enumerate(read_parts(path, _ROWS)):
            where = str(path) if number == 0 else f"{path}, of the rows from {tally.rows + 1:,} on"
            answers = predictor.answers(part, where, tally)
            file.write(_csv({**_kept(part, keep, path, answers), **answers}, header=number == 0))
    return tally


def _kept(part: Mapping[str, Array], keep: Sequence[str], path: Path, answers: Mapping[str, Array]) -> dict[str, Array]:
    names = list(part) if ALL in keep and ALL not in part else list(keep)
    for name in names:
        if name not in part:
            raise ConfigError(f"{path} has no column {name!r} to keep; {hint(name, part)}")
        if part[name].ndim > 1:
            raise ConfigError(f"{path}: {name!r} has rows of several numbers, which one column of a CSV cannot keep")
        if name in answers:
            raise ConfigError(f"{path}: its column {name!r} is called as a column of the predictions; keep others")
    return {name: part[name] for name in names}


def _csv(columns: Mapping[str, Array], header: bool) -> bytes:
    """Lines of a CSV file."""
    import pandas

    text = io.StringIO()
    pandas.DataFrame(columns).to_csv(text, index=False, header=header, lineterminator="\n")
    return text.getvalue().encode(errors="surrogateescape")
