"""Data whose clients hold columns: how they are divided, and how files of several parties come together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedloom
from fedloom.data import Scaling, describe, federate, from_arrays, from_parties, load_file
from fedloom.errors import ConfigError, DataError
from fedloom.federation.problem import Problem

X = np.arange(24.0).reshape(6, 4)
Y = [0, 1, 0, 1, 1, 0]


@given(columns=st.integers(1, 30), clients=st.integers(0, 30), order=st.sampled_from(["in order", "random"]))
def test_every_column_has_one_holder(columns: int, clients: int, order: str) -> None:
    table = from_arrays(np.zeros((10, columns)), np.arange(10.0))
    if clients == 0 or clients > columns:
        with pytest.raises(DataError, match=f"cannot share the {columns} columns"):
            federate(table, partition="features", clients=clients)
        return
    data = federate(table, partition="features", clients=clients, columns=order)
    assert data.blocks is not None
    held = torch.cat(data.blocks.columns)
    assert sorted(held.tolist()) == list(range(columns))
    widths = [len(one) for one in data.blocks.columns]
    assert max(widths) - min(widths) <= 1


def test_all_parties_share_training_and_test_rows() -> None:
    data = federate("breast-cancer", partition="features", clients=5, test=0.25)
    train, test = data.splits["train"], data.splits["test"]
    assert data.layout == "features"
    assert all(torch.equal(train[0], train[i]) and torch.equal(test[0], test[i]) for i in range(5))
    assert len(train[0]) + len(test[0]) == 569
    assert set(train[0].tolist()).isdisjoint(test[0].tolist())
    assert describe(data).record()["columns"] == [6] * 5


def test_only_rows_that_all_hold_are_used_and_the_notes_say_so() -> None:
    data = federate("breast-cancer", partition="features", clients=3, lacking=0.1)
    rows = len(data.splits["train"][0]) + len(data.splits["test"][0])
    assert 569 - 3 * 57 <= rows < 569 - 57
    assert f"each client lacks 57 rows; the {rows} of 569 that all hold are used" in data.notes


def test_columns_stand_alone() -> None:
    with pytest.raises(ConfigError, match=r"stands alone.*feature-skew"):
        federate("digits", partition=["dirichlet", "features"])
    with pytest.raises(ConfigError, match="none can be a target"):
        federate("digits", partition="features", target=0.2)
    with pytest.raises(ConfigError, match=r"lacking = 1\.0"):
        federate("digits", partition="features", lacking=1.0)


def test_parties_without_a_single_training_row_are_refused() -> None:
    table = replace(from_arrays(X, Y), published_split=torch.ones(6, dtype=torch.bool))
    with pytest.raises(DataError, match="would have no training rows; give test as a fraction"):
        federate(table, partition="features", clients=2, test="published")


def test_rows_of_parties_come_together_by_their_ids_whatever_their_order() -> None:
    ids = np.array(["c", "a", "f", "b", "e", "d"])
    order = [5, 2, 0, 3]
    table = from_parties({"one": (ids, X[:, :3]), "two": (ids[order], X[order, 3:])}, (ids, Y))
    kept = [0, 2, 3, 5]
    np.testing.assert_array_equal(table.x.numpy(), X[kept])
    assert table.y[:, 0].tolist() == [Y[k] for k in kept]
    assert table.notes[-2:] == ("'two' lacks 2 of 6 rows", "the 4 rows that everybody holds are used")
    data = federate(table, test=0.0, support=None)
    assert (data.layout, data.clients, data.names) == ("features", 2, ("one", "two"))
    assert data.blocks is not None
    assert [one.tolist() for one in data.blocks.columns] == [[0, 1, 2], [3]]


@given(seed=st.integers(0, 10_000), lacking=st.integers(0, 3))
def test_aligned_rows_are_those_of_the_whole_table(seed: int, lacking: int) -> None:
    random = np.random.default_rng(seed)
    ids, x, y = random.permutation(100)[:12], random.normal(size=(12, 3)), random.normal(size=12)
    picks = [random.permutation(12)[lacking:] for _ in range(3)]
    parties = {f"p{i}": (ids[pick], x[pick, i]) for i, pick in enumerate(picks)}
    shared = set(ids).intersection(*(ids[pick] for pick in picks))
    if not shared:
        return
    table = from_parties(parties, (ids, y), task="regression")
    rows = [k for k in range(12) if ids[k] in shared]
    np.testing.assert_allclose(table.x.numpy(), x[rows], rtol=1e-6)
    np.testing.assert_allclose(table.y[:, 0].numpy(), y[rows], rtol=1e-6)


@pytest.mark.parametrize(
    ("parties", "labels", "message"),
    [
        ({"a": (None, X), "b": (None, X[:4])}, (None, Y), "party 'b' has 4 rows and there are 6 labels, and no ids"),
        ({"a": (range(6), X), "b": (range(10, 16), X)}, (range(6), Y), "no id is known to everybody"),
        ({"a": (range(6), X), "b": (None, X)}, (range(6), Y), "b has no ids while others have"),
        ({"a": ([0, 1, 2, 3, 4, 4], X)}, (range(6), Y), "'a' has the id 4 more than once"),
        ({"a": (range(5), X)}, (range(6), Y), "'a' has 6 rows but 5 ids"),
        ({"a": (list("abcdef"), X)}, (range(6), Y), "use one kind"),
        ({}, (None, Y), "no parties"),
        ({"labels": (None, X)}, (None, Y), "cannot be called 'labels'"),
        ({"a": (None, np.array([["x"]] * 6))}, (None, Y), "give rows of numbers"),
    ],
)
def test_parties_that_do_not_fit_together_are_refused(parties: dict, labels: tuple, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_parties(parties, labels)


def saved(folder: Path) -> Path:
    frame = pd.DataFrame(X, columns=["age", "dose", "iron", "sugar"])
    frame["who"], frame["ill"] = list("abcdef"), Y
    frame[["who", "age", "dose", "ill"]].to_csv(folder / "clinic.csv", index=False)
    frame[["who", "iron", "sugar"]].iloc[::-1].iloc[:5].to_csv(folder / "lab.csv", index=False)
    frame[["who", "ill"]].to_csv(folder / "labels.csv", index=False)
    return folder / "clinic.csv"


def test_files_of_parties_make_one_table(tmp_path: Path) -> None:
    path = saved(tmp_path)
    table = load_file(path, label_column="ill", id_column="who", parties=["lab.csv"])
    assert table.block_names == ("clinic", "lab")
    np.testing.assert_array_equal(table.x.numpy(), X[1:])
    only = load_file(tmp_path / "labels.csv", label_column="ill", id_column="who", parties=["clinic.csv", "lab.csv"])
    assert only.block_names == ("clinic", "lab")
    assert only.x.shape == (5, 4)  # the clinic's own copy of the label is no feature


def test_files_of_parties_may_name_their_classes_but_no_owner_or_time_of_a_row(tmp_path: Path) -> None:
    path = saved(tmp_path)
    table = load_file(path, label_column="ill", id_column="who", parties=["lab.csv"], class_names=["1", "0"])
    assert table.classes == ("1", "0")
    assert table.y[:, 0].tolist() == [1 - y for y in Y[1:]]
    for option in ("client_column", "timestamp_column"):
        with pytest.raises(ConfigError, match=f"{option} cannot be beside parties, who all hold the same rows"):
            load_file(path, label_column="ill", id_column="who", parties=["lab.csv"], **{option: "age"})  # type: ignore[arg-type]


def test_a_party_file_without_the_id_column_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path)
    pd.DataFrame(X).to_csv(tmp_path / "odd.csv", index=False)
    with pytest.raises(ConfigError, match=r"odd\.csv has no column 'who'"):
        load_file(path, label_column="ill", id_column="who", parties=["odd.csv"])
    with pytest.raises(ConfigError, match="no party has a column irn, one of feature_columns"):
        load_file(
            path, label_column="ill", id_column="who", parties=["lab.csv"], feature_columns=["age", "iron", "irn"]
        )
    with pytest.raises(DataError, match="party 'lab' has 5 rows and there are 6 labels"):
        load_file(path, label_column="ill", parties=["lab.csv"], feature_columns=["age", "iron"])


def test_a_prediction_is_the_sum_over_the_parties_and_needs_all_of_them() -> None:
    table = from_parties({"one": (None, X[:, :3]), "two": (None, X[:, 3:])}, (None, Y))
    data = federate(table, test=0.0, support=None)
    problem = Problem(data, fedloom.build_model("linear", data), dtype=torch.float64)
    theta = torch.tensor([1.0, -2.0, 3.0, 0.5, 0.25], dtype=torch.float64)
    new = {"two": [[2.0]], "one": [[1.0, 1.0, 1.0]]}
    assert fedloom.predict_together(problem, theta, new).tolist() == [[1 - 2 + 3 + 0.5 * 2 + 0.25]]
    scaled = federate(replace(table, scaling=Scaling("standard")), test=0.0, support=None)
    again = fedloom.predict_together(Problem(scaled, problem.model, dtype=torch.float64), theta, new)
    mean, deviation = X.mean(0), X.std(0)
    expected = ((np.array([1.0, 1.0, 1.0, 2.0]) - mean) / deviation * theta[:4].numpy()).sum() + 0.25
    assert again.tolist() == [[pytest.approx(expected, rel=1e-5)]]
    with pytest.raises(DataError, match="party 'two' is missing, and with it 1 of the 4 columns"):
        fedloom.predict_together(problem, theta, {"one": new["one"]})
    with pytest.raises(DataError, match="'three' is no party"):
        fedloom.predict_together(problem, theta, {**new, "three": [[0.0]]})
    with pytest.raises(DataError, match="party 'two' brings an array of shape"):
        fedloom.predict_together(problem, theta, {**new, "two": [[1.0], [2.0]]})
