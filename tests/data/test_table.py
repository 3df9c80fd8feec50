from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fedloom.data.table import Table, against_rest, class_number
from fedloom.errors import DataError


def test_taking_rows_takes_every_part_of_them(labelled: Callable[..., Table]) -> None:
    table = labelled([0, 1, 2], groups=torch.tensor([5, 6, 7]), time=torch.tensor([1.0, 2.0, 3.0]))
    some = table.take(torch.tensor([2, 0]))
    assert (some.x[:, 0].tolist(), some.y.tolist()) == ([2, 0], [2, 0])
    assert some.groups is not None
    assert some.groups.tolist() == [7, 5]
    assert some.time is not None
    assert some.time.tolist() == [3.0, 1.0]


def test_binary_targets_have_labels_and_regression_targets_have_none() -> None:
    x = torch.zeros(2, 1)
    assert Table("t", x, torch.tensor([[0.0], [1.0]]), "binary", ("no", "yes")).labels is not None
    assert Table("t", x, torch.tensor([[0.5], [1.0]]), "regression").labels is None


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"y": torch.tensor([0, 1])}, "3 rows of x but 2 of y"),
        ({"groups": torch.tensor([0])}, "1 of groups"),
        ({"feature_names": ("a", "b")}, r"2 names for features of shape \(1,\)"),
        ({"target_names": ("a",)}, r"1 names for targets of shape \(\)"),
        ({"x": torch.tensor([[1.0], [float("nan")], [2.0]])}, "row 1, column 0"),
        ({"time": torch.tensor([0.0, 1.0, float("inf")])}, "time that is not finite"),
        ({"y": torch.tensor([0, 1, 9])}, "labels 0 to 9 but 3 classes"),
        ({"y": torch.tensor([0, 1, -1])}, "labels -1 to 1"),
        ({"y": torch.tensor([0.0, 1.0, 2.0])}, "one whole number a row"),
        ({"task": "regression"}, "float table"),
        ({"task": "binary", "y": torch.tensor([[0.0], [1.0], [0.5]])}, "0 and 1"),
        ({"task": "multilabel", "y": torch.tensor([[0.0], [1.0], [2.0]])}, "NaN for unknown"),
        ({"x": torch.zeros(0, 1), "y": torch.zeros(0)}, "no rows"),
    ],
)
def test_a_table_whose_parts_do_not_fit_says_which(
    labelled: Callable[..., Table], change: dict[str, object], complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint):
        replace(labelled([0, 1, 2]), **change).check()  # type: ignore[arg-type]


def test_a_class_is_found_by_name_or_by_number() -> None:
    classes = ("cat", "dog")
    assert [class_number(classes, label) for label in ("dog", 0, "1")] == [1, 0, 1]
    with pytest.raises(DataError, match="no class 'cow'; the classes are cat, dog"):
        class_number(classes, "cow")


def test_one_class_against_the_rest_is_a_binary_task_that_keeps_its_name(labelled: Callable[..., Table]) -> None:
    table = labelled([2, 0, 1, 2])
    for positive in ("c2", 2, "2"):
        binary = against_rest(table, positive).check()
        assert (binary.task, binary.classes) == ("binary", ("not c2", "c2"))
        assert binary.y.tolist() == [[1.0], [0.0], [0.0], [1.0]]
        assert binary.notes[-1] == "'c2' against the rest: 2 of 4 rows are positive"
    assert table.y.tolist() == [2, 0, 1, 2]


def test_one_class_against_the_rest_needs_several_classes_and_one_that_is_there(
    labelled: Callable[..., Table],
) -> None:
    with pytest.raises(DataError, match="no class 'c9'; the classes are c0, c1, c2"):
        against_rest(labelled([0, 1, 2]), "c9")
    binary = against_rest(labelled([0, 1, 2]), "c1")
    with pytest.raises(DataError, match="binary task already: yes is 'c1'; leave positive out"):
        against_rest(binary, "c1")
    with pytest.raises(DataError, match="needs one class for each row, but 'labelled' is a regression task"):
        against_rest(replace(binary, task="regression"), "c1")
