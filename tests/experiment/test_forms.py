"""Forms: what a section may say, read off the thing that takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Interval

from fedloom.experiment.forms import Form, spoken
from fedloom.experiment.words import hint, nearest, type_words
from fedloom.types import Count, Fraction, Positive


@dataclass(frozen=True)
class Base:
    lr: Positive = 0.1
    """η, the step size."""


@dataclass(frozen=True)
class Thing(Base):
    batch: Count | None = 32
    """Rows; none: all."""
    rule: Literal["sgd", "adam"] = "sgd"
    sizes: Sequence[int] = (1,)
    late: float | None = None


FORM = Form.of(Thing, "the thing")


def test_a_form_has_the_fields_of_base_classes_with_their_meaning() -> None:
    assert list(FORM.fields) == ["lr", "batch", "rule", "sizes", "late"]
    assert FORM.fields["lr"].meaning == "η, the step size."
    assert FORM.fields["rule"].meaning == ""


def test_a_form_can_be_read_off_a_function() -> None:
    def build(shape: int, width: int = 3, **rest: Any) -> None: ...

    assert list(Form.of(build, "a function", skip=("shape",)).fields) == ["width"]


def test_defaults_fill_what_is_not_given() -> None:
    read, wrong = FORM.read({"lr": 1})
    assert not wrong
    assert read == {"lr": 1.0, "batch": 32, "rule": "sgd", "sizes": (1,), "late": None}


def test_none_is_a_word_and_one_value_is_a_list_of_one() -> None:
    read, _ = FORM.read({"batch": "none", "sizes": 5})
    assert read["batch"] is None
    assert list(read["sizes"]) == [5]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("lr", -1, "should be a number above 0"),
        ("lr", "0.1", "should be a number above 0"),
        ("lr", float("inf"), "should be a number above 0"),
        ("lr", float("nan"), "should be a number above 0"),
        ("lr", "none", "should be a number above 0"),
        ("batch", 1.5, "should be a whole number of at least 1 or none"),
        ("batch", True, "should be a whole number of at least 1 or none"),
        ("rule", "adm", "should be one of sgd, adam; did you mean 'adam'?"),
        ("sizes", [1, "x"], "should be a list of whole numbers"),
        ("learning_rate", 1, "is no setting of the thing; did you mean 'lr'?"),
        ("bach", 1, "is no setting of the thing; did you mean 'batch'?"),
        ("zzzz", 1, "is no setting of the thing; there are lr, batch, rule, sizes, late"),
    ],
)
def test_what_cannot_be_is_said_in_words(key: str, value: object, words: str) -> None:
    _, wrong = FORM.read({key: value})
    assert wrong == {key: words}


def test_everything_wrong_is_found_at_once() -> None:
    assert set(FORM.read({"lr": 0, "batch": 0, "rule": "x", "y": 1})[1]) == {"lr", "batch", "rule", "y"}


def test_none_is_left_out_of_a_file_only_where_it_is_the_default() -> None:
    assert spoken({"lr": 0.1, "batch": None, "late": None, "sizes": (1, 2)}, FORM) == {
        "lr": 0.1,
        "batch": "none",
        "sizes": [1, 2],
    }


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Fraction, "a number from 0 to 1"),
        (Annotated[float, Interval(ge=0, lt=1)], "a number of at least 0 and below 1"),
        (tuple[str, ...] | None, "a list of texts or none"),
        (float | Literal["published"], 'a number or "published"'),
        (bool, "true or false"),
    ],
)
def test_types_are_said_in_words(annotation: Any, words: str) -> None:
    assert type_words(annotation) == words


def test_the_nearest_name_may_differ_in_case_and_dashes() -> None:
    assert nearest("Breast_Cancer", ["digits", "breast-cancer"]) == "breast-cancer"
    assert nearest("xyz", ["digits"]) is None
    assert hint("xyz", ["digits", "mnist"]) == "there are digits, mnist"
