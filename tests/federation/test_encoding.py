"""Columns as numbers: what each kind of cell becomes, and that an encoding survives being written."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from fedloom.errors import DataError
from fedloom.federation.encoding import Column, Encoding


def cells(*values: Any) -> Any:
    return np.array(values, dtype=object)


def test_each_kind_of_column_becomes_its_numbers() -> None:
    encoding = Encoding(
        (
            Column("age", "number", indicator=True),
            Column("sex", "category", categories=("f", "m")),
            Column("ward", "index", categories=("a", "b", "c")),
            Column("smokes", "boolean"),
            Column("seen", "date", parts=("days",)),
            Column("born", "date", parts=("year", "weekday")),
        )
    )
    columns = {
        "age": np.array([40.0, np.nan, 20.5]),
        "sex": cells("m", None, "x"),
        "ward": cells("c", "a", "z"),
        "smokes": cells(True, None, "false"),
        "seen": cells("1970-01-03", "1970-01-01T12:00", None),
        "born": np.array(["1970-01-01", "2026-11-18", "NaT"], dtype="datetime64[D]"),
    }
    nan = np.nan
    expected = [
        [40.0, 0, 0, 1, 3, 1, 2.0, 1970, 3],
        [nan, 1, 0, 0, 1, nan, 0.5, 2026, 2],
        [20.5, 0, 0, 0, 0, 0, nan, nan, nan],
    ]
    np.testing.assert_array_equal(encoding.encode(columns, "here"), expected)
    assert encoding.names[:4] == ("age", "age missing", "sex=f", "sex=m")
    assert encoding.names[-3:] == ("seen", "born year", "born weekday")
    assert encoding.measured.tolist() == [True, False, False, False, False, False, True, True, True]
    assert encoding.embedded == {4: 3}
    assert encoding.unknown(columns) == {"sex": 1, "ward": 1}
    assert Encoding.read(json.loads(json.dumps(encoding.record()))) == encoding


@pytest.mark.parametrize(
    ("column", "cell", "said"),
    [
        (Column("a", "number"), "tall", "column 'a' holds 'tall' in row 2, which is no number"),
        (Column("a", "boolean"), "maybe", "column 'a' holds 'maybe' in row 2, which is neither true nor false"),
        (
            Column("a", "date", parts=("days",)),
            "yesterday",
            "column 'a' holds 'yesterday' in row 2, which is no ISO date",
        ),
    ],
)
def test_a_cell_that_does_not_fit_is_named(column: Column, cell: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        Encoding((column,)).encode({"a": cells(None, cell)}, "new.csv")


def test_a_column_that_the_model_reads_must_be_there() -> None:
    with pytest.raises(DataError, match=r"new.csv has no column 'age', which the model reads; it has a, b"):
        Encoding((Column("age", "number"),)).encode({"a": cells(1), "b": cells(2)}, "new.csv")
