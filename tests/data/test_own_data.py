from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedloom.data import federate, from_arrays, from_clients, load_file
from fedloom.errors import ConfigError, DataError

X = np.arange(12.0).reshape(6, 2)
WHO = ["b", "a", "b", "c", "a", "b"]


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "hospital": WHO,
            "age": [30, 40, 50, 60, 70, 80],
            "dose": [0.5, 1.5, 2.5, 3.5, 4.5, 5.5],
            "note": ["x", "y", "z", "x", "y", "z"],
            "seen": ["2020-01-01", "2020-01-02", "2020-01-03", "2020-01-04", "2020-01-05", "2020-01-06"],
            "ill": ["no", "yes", "no", "yes", "no", "yes"],
        }
    )


def saved(frame: pd.DataFrame, folder: Path, ending: str) -> Path:
    path = folder / f"patients{ending}"
    if ending == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet"])
def test_a_file_with_a_client_column_becomes_a_table_with_natural_clients(tmp_path: Path, ending: str) -> None:
    path = saved(frame(), tmp_path, ending)
    table = load_file(path, client_column="hospital", label_column="ill", timestamp_column="seen")
    assert table.feature_names == ("age", "dose", "note=x", "note=y", "note=z")
    assert table.x[:, :2].tolist() == [[30, 0.5], [40, 1.5], [50, 2.5], [60, 3.5], [70, 4.5], [80, 5.5]]
    assert table.x[:, 2:].tolist() == torch.eye(3).repeat(2, 1).tolist()
    assert (table.task, table.classes) == ("binary", ("no", "yes"))
    assert table.y[:, 0].tolist() == [0, 1, 0, 1, 0, 1]
    assert table.group_names == ("a", "b", "c")
    assert table.groups is not None
    assert table.groups.tolist() == [1, 0, 1, 2, 0, 1]
    assert table.time is not None
    assert torch.diff(table.time).tolist() == [86_400.0] * 5
    assert "categories, each a number of 0 and 1: note (3)" in table.notes


def test_an_npz_file_is_read_by_its_usual_names_and_keeps_the_shape_of_images(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    np.savez(path, x=np.zeros((4, 1, 5, 5)), y=np.array([0, 1, 2, 1]), clients=np.array([7, 7, 3, 3]))
    table = load_file(path)
    assert table.x.shape == (4, 1, 5, 5)
    assert table.group_names == ("3", "7")
    assert table.classes == ("0", "1", "2")


def test_chosen_feature_columns_stand_in_the_order_that_was_given(tmp_path: Path) -> None:
    path = saved(frame(), tmp_path, ".csv")
    table = load_file(path, label_column="ill", feature_columns=["dose", "age"])
    assert table.x[0].tolist() == [0.5, 30]
    assert table.groups is None


def test_standardised_features_have_mean_zero_and_the_note_says_so(tmp_path: Path) -> None:
    table = load_file(saved(frame(), tmp_path, ".csv"), label_column="ill", standardise=True)
    assert torch.allclose(table.x[:, 3:5].mean(0), torch.zeros(2), atol=1e-6)
    assert table.x[:, :3].tolist() == torch.eye(3)[[1, 0, 1, 2, 0, 1]].tolist()  # the hospital, not on a scale
    assert any("standardised" in note for note in table.notes)


def test_several_label_columns_are_several_targets(tmp_path: Path) -> None:
    path = saved(frame(), tmp_path, ".csv")
    table = load_file(path, label_column=["age", "dose"], feature_columns=["age"])
    assert (table.task, table.y.shape) == ("regression", (6, 2))


def test_multilabel_targets_may_be_unknown_and_are_named_by_their_columns(tmp_path: Path) -> None:
    rows = pd.DataFrame({"f": [1.0, 2.0], "walks": [1, 0], "sits": [np.nan, 1.0]})
    table = load_file(saved(rows, tmp_path, ".csv"), label_column=["walks", "sits"], task="multilabel")
    assert table.classes == ("walks", "sits")
    assert bool(torch.isnan(table.y[0, 1]))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "say which column is the label"),
        ({"label_column": "il"}, "no column 'il'; did you mean 'ill'"),
        ({"label_column": "ill", "client_column": "clinic"}, "no column 'clinic'"),
        ({"label_column": "ill", "task": "clustering"}, "no task 'clustering'"),
    ],
)
def test_a_wrong_column_or_task_is_named_with_the_nearest_right_one(
    tmp_path: Path, options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_file(saved(frame(), tmp_path, ".csv"), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "options", "complaint"),
    [
        ({"dose": [1, 2, np.nan, 4, 5, 6]}, {"missing": "error"}, r"column 'dose' is missing in row 3; fill or drop"),
        ({"dose": [1, 2, 3, 4, np.inf, 6]}, {}, r"column 'dose' has no finite value in row 5"),
        ({"hospital": ["a", None, "b", "b", "a", "a"]}, {"client_column": "hospital"}, "row 1 has no client"),
        ({"ill": ["no", "yes", None, "no", "no", "no"]}, {}, "row 3 has no label in column 'ill'"),
        ({"ill": ["no"] * 6}, {}, "needs at least two"),
        ({"note": [None] * 6}, {"feature_columns": ["note"]}, "nothing is in them: 'note', which is one of feature_co"),
        ({}, {"timestamp_column": "note"}, "column 'note' does not hold times"),
        ({}, {"task": "regression"}, "the targets are not numbers"),
    ],
)
def test_values_that_cannot_be_learnt_from_are_found_and_named(
    tmp_path: Path, change: dict[str, list[object]], options: dict[str, object], complaint: str
) -> None:
    path = saved(frame().assign(**change), tmp_path, ".csv")
    with pytest.raises(DataError, match=complaint):
        load_file(path, label_column="ill", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["broken.npz", "broken.parquet", "empty.csv"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"" if name == "empty.csv" else b"PK\x03\x04 this is not it")
    with pytest.raises(DataError, match=f"{name} cannot be read"):
        load_file(path, label_column="y")


def test_an_npz_file_with_pickled_objects_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "objects.npz"
    np.savez(path, x=np.zeros((2, 1)), y=np.array([{"a": 1}, None], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read"):
        load_file(path)


def test_a_file_that_is_not_there_and_a_file_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not there"):
        load_file(tmp_path / "no.csv", label_column="y")
    (tmp_path / "table.xlsx").write_text("")
    with pytest.raises(DataError, match="neither"):
        load_file(tmp_path / "table.xlsx", label_column="y")


@pytest.mark.parametrize(
    ("y", "task"),
    [
        (["cat", "dog", "cow", "cat", "dog", "cow"], "classification"),
        ([0, 1, 0, 1, 0, 1], "binary"),
        ([True, False, True, False, True, False], "binary"),
        ([0.0, 1.0, 0.0, 1.0, 0.0, 1.0], "binary"),
        ([0, 1, 2, 3, 4, 5], "classification"),
        ([0.5, 1.0, 2.0, 3.0, 4.0, 5.0], "regression"),
        (np.ones((6, 3)), "regression"),
    ],
)
def test_the_task_is_read_from_the_targets_and_the_note_says_so(y: object, task: str) -> None:
    table = from_arrays(X, y)
    assert table.task == task
    assert f"task read as {task}" in table.notes


def test_many_different_whole_numbers_are_a_regression() -> None:
    assert from_arrays(np.zeros((300, 1)), np.arange(300)).task == "regression"


def test_given_classes_keep_their_order_and_may_be_more_than_the_labels_seen() -> None:
    table = from_arrays(X, ["b", "a", "b", "a", "b", "a"], classes=["b", "a", "z"], task="classification")
    assert table.y.tolist() == [0, 1, 0, 1, 0, 1]
    assert table.classes == ("b", "a", "z")
    with pytest.raises(DataError, match="not among its classes: c"):
        from_arrays(X, ["b", "a", "c", "a", "b", "a"], classes=["a", "b"])


def test_tensors_lists_and_arrays_are_all_taken() -> None:
    table = from_arrays(torch.tensor(X), torch.tensor([0, 1, 2, 0, 1, 2]), clients=WHO, test=[True] + [False] * 5)
    assert table.x.dtype == torch.float32
    assert table.published_split is not None
    assert int(table.published_split.sum()) == 1


@pytest.mark.parametrize(
    ("x", "y", "complaint"),
    [
        (np.zeros(6), [0, 1, 0, 1, 0, 1], "needs a row and at least one feature"),
        (np.array([["a"]] * 6), [0, 1, 0, 1, 0, 1], "not numbers"),
        (X, [0, 1, 0], "6 rows of x but 3 of y"),
        (X * np.nan, [0, 1, 0, 1, 0, 1], "not finite"),
        (np.zeros((0, 2)), np.zeros(0), "no rows"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(x: np.ndarray, y: object, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        from_arrays(x, y)


def test_one_pair_of_arrays_per_client_keeps_names_and_order() -> None:
    table = from_clients({"zoe": (X[:2], [0.5, 1.5]), "adam": (X[2:], [2.0, 3.0, 4.0, 5.0])})
    assert table.group_names == ("zoe", "adam")
    data = federate(table, test=0)
    assert data.names == ("zoe", "adam")
    assert data.x[data.splits["train"][0]].tolist() == X[:2].tolist()


def test_clients_whose_rows_have_different_shapes_are_named() -> None:
    with pytest.raises(DataError, match="client 'b' has x of shape"):
        from_clients({"a": (X, np.ones(6) / 2), "b": (X[:, :1], np.ones(6) / 3)})
    with pytest.raises(DataError, match="no clients"):
        from_clients({})


def test_a_client_without_data_is_refused_unless_it_is_left_out_or_allowed() -> None:
    table = from_clients({"a": (X, np.arange(6) / 7), "b": (X[:0], np.zeros(0))})
    with pytest.raises(DataError, match="client b would have no data"):
        federate(table)
    assert federate(table, min_rows=1).names == ("a",)
    assert federate(table, allow_empty=True).splits["train"].sizes.tolist() == [5, 0]
