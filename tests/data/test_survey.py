"""Surveys of columns: what is found, that parts join to the whole, and that a hostile one is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.data.survey import Choices, Found, Survey, check_columns, encoding_of, joined, notes_of
from fedloom.errors import ConfigError, DataError, MessageError
from fedloom.federation.encoding import Column


def cells(*values: Any) -> Any:
    return np.array(values, dtype=object)


COLUMNS = {
    "age": np.array([40.0, np.nan, 20.5, 1.0]),
    "ward": cells("b", "a", None, "b"),
    "smokes": cells(True, None, False, True),
    "seen": cells("2024-01-03", "2024-01-01T12:00", None, "2024-02-01"),
    "mixed": cells("1", "2", "x", "3"),
    "empty": cells(None, None, None, None),
}


def test_a_survey_tells_what_is_in_each_column() -> None:
    age, ward, smokes, seen, mixed, empty = Survey.of(COLUMNS).columns
    assert (age.rows, age.missing, age.numbers, age.bits, age.figures) == (4, 1, 3, 1, ("1", "20.5", "40"))
    assert (ward.missing, ward.texts, ward.words) == (1, 3, {"a": 1, "b": 2})
    assert (smokes.truths, smokes.words) == (3, {"false": 1, "true": 2})
    assert (seen.dates, seen.timed, seen.words) == (3, 1, {})
    assert (mixed.numbers, mixed.texts, mixed.listed) == (3, 1, ("1", "2", "3", "x"))
    assert (empty.known, empty.looks) == (0, "nothing")


def test_what_becomes_of_each_kind_of_column() -> None:
    encoding, fates = encoding_of(Survey.of(COLUMNS))
    assert encoding.columns == (
        Column("age", "number"),
        Column("ward", "category", ("a", "b")),
        Column("smokes", "boolean"),
        Column("seen", "date", parts=("days",)),
    )
    notes = notes_of(fates)
    assert any("most cells are numbers and some are none" in note and "mixed (1 of 4 cells)" in note for note in notes)
    assert "columns left out, for nothing is in them: empty" in notes
    assert "dates read as days since 1970: seen" in notes
    assert "categories, each a number of 0 and 1: ward (2)" in notes
    wanted = Choices.of(["empty"], ["mixed"], ["age"], dates="parts", missing="indicator")
    kept, said = wanted.applied(COLUMNS)
    assert said == ["column 'mixed': 1 cells are no numbers and count as missing"]
    encoding, _ = encoding_of(Survey.of(kept, wanted), wanted)
    assert encoding.columns == (
        Column("age", "category", ("1", "20.5", "40"), indicator=True),
        Column("ward", "category", ("a", "b"), indicator=True),
        Column("smokes", "boolean", indicator=True),
        Column("seen", "date", parts=("days", "month", "weekday", "hour"), indicator=True),
        Column("mixed", "number", indicator=True),
    )


def test_many_categories_are_embedded_and_ids_left_out() -> None:
    columns = {
        "zip": cells(*(f"z{k % 30:02}" for k in range(90))),
        "id": cells(*(f"p{k}" for k in range(90))),
        "note": cells(*("a" * 300 for _ in range(90))),
    }
    encoding, fates = encoding_of(Survey.of(columns))
    assert [(column.name, column.kind, len(column.categories)) for column in encoding.columns] == [("zip", "index", 30)]
    assert any("as ids do" in note and note.endswith(": id (90 in 90 rows)") for note in notes_of(fates))
    assert "more than 20 categories, embedded: zip (30)" in notes_of(fates)
    assert fates[2].column is None
    asked = Choices.of(categories=["id"], embed_from=100)
    encoding, _ = encoding_of(Survey.of(columns, asked), asked)
    assert [(column.name, column.kind) for column in encoding.columns] == [("zip", "category"), ("id", "category")]
    assert encoding_of(Survey.of(columns), None, one_hot=True)[0].columns[0].kind == "category"


def test_a_given_list_of_categories_is_asked_of_nobody() -> None:
    choices = Choices.of(categories={"ward": ["a", "b", "c"], "age": ["40"]})
    survey = Survey.of(COLUMNS, choices)
    assert [(found.words, found.figures) for found in survey.columns[:2]] == [(None, None), (None, None)]
    encoding, _ = encoding_of(survey, choices)
    assert encoding.columns[:2] == (Column("age", "category", ("40",)), Column("ward", "category", ("a", "b", "c")))


def test_missing_cells_can_be_an_error() -> None:
    with pytest.raises(DataError, match=r"column 'age' is missing in 1 of 4 rows; fill or drop these"):
        encoding_of(Survey.of(COLUMNS), Choices.of(missing="error"))


CELL = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.floats(allow_nan=False, allow_infinity=False, width=16),
    st.sampled_from(["a", "b", "süd", "2024-01-01", "2024-01-01T10:00", "true", "12", "", "x" * 201]),
)


@given(st.lists(st.tuples(CELL, CELL), min_size=1, max_size=30), st.integers(0, 30), st.booleans())
def test_the_survey_of_all_rows_is_that_of_its_parts(rows: list[tuple[Any, Any]], cut: int, forced: bool) -> None:
    choices = Choices.of(categories=["b"] if forced else None)

    def survey(some: list[tuple[Any, Any]]) -> Survey:
        columns: dict[str, Any] = {name: np.empty(len(some), dtype=object) for name in "ab"}
        for place, (a, b) in enumerate(some):
            columns["a"][place], columns["b"][place] = a, b
        return Survey.of(columns, choices)

    whole, first, rest = survey(rows), survey(rows[:cut]), survey(rows[cut:])
    assert joined({"one": first, "two": rest}, choices) == whole == joined({"two": rest, "one": first}, choices)
    assert Survey.read_tree(json.loads(json.dumps(whole.as_tree()))) == whole
    encoding, _ = encoding_of(whole, choices)
    assert encoding.names == tuple(name for column in encoding.columns for name in column.names)


def test_who_lacks_a_column_is_named() -> None:
    with pytest.raises(DataError, match=r"south.csv has no column 'sbp', which north.csv has; add it"):
        check_columns({"north.csv": ("age", "sbp"), "south.csv": ("age",)})
    with pytest.raises(DataError, match="there is no survey to join"):
        joined({})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": 3}, "no name"),
        ({"rows": -1}, "counts that cannot be"),
        ({"rows": True}, "counts that cannot be"),
        ({"missing": 9}, "do not add up"),
        ({"numbers": 1e3}, "counts that cannot be"),
        ({"words": {"a": 1, "b": 9}}, "counts its texts in two ways"),
        ({"words": {"a": "1"}}, "texts that cannot be"),
        ({"words": {"x" * 201: 3}}, "texts that cannot be"),
        ({"words": {str(k): 1 for k in range(10_001)}}, "texts that cannot be"),
        ({"figures": ["1", "1"]}, "numbers that cannot be"),
        ({"figures": ["1"]}, "more different numbers than numbers"),
        ({"bits": 1}, "do not add up"),
        ({"more": 1}, "should have name"),
    ],
)
def test_a_survey_that_could_not_be_is_refused(change: dict[str, Any], said: str) -> None:
    tree = Survey.of({"ward": COLUMNS["ward"]}).as_tree()
    tree["columns"][0] |= change
    with pytest.raises(MessageError, match=said):
        Survey.read_tree(tree)


@pytest.mark.parametrize("tree", [None, [], {"columns": 3}, {"columns": [3]}, {"columns": [], "more": 1}])
def test_what_is_no_survey_is_refused(tree: object) -> None:
    with pytest.raises(MessageError):
        Survey.read_tree(tree)
    twice = {"columns": Survey.of({"a": COLUMNS["ward"]}).as_tree()["columns"] * 2}
    with pytest.raises(MessageError, match="twice"):
        Survey.read_tree(twice)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dates": "weeks"}, "dates = 'weeks' cannot be"),
        ({"missing": "zero"}, "missing = 'zero' cannot be"),
        ({"embed_from": 0}, "embed_from = 0"),
        ({"numbers": ["a"], "categories": ["a"]}, "cannot be one of numbers and of categories"),
        ({"categories": {"a": ["x", "x"]}}, "list of different texts"),
    ],
)
def test_choices_that_cannot_be(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Choices.of(**options)


def test_found_needs_one_cell_a_row() -> None:
    with pytest.raises(DataError, match=r"column 'x' has shape \(2, 2\)"):
        Found.of("x", np.zeros((2, 2)), Choices())
