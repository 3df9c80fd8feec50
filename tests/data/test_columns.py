"""Files as people have them: texts, dates, gaps, a file for each client, series; and numbers that keep their digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedloom
from fedloom.data import load_file
from fedloom.errors import ConfigError, DataError
from fedloom.federation.encoding import Column

LAST = fedloom.Evaluation(split="train", every=0)


def clinics(folder: Path, names: tuple[str, ...] = ("north", "south", "west"), rows: int = 42) -> Path:
    """A file for each clinic."""
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    for name in names:
        frame = pd.DataFrame(
            {
                "age": random.uniform(20, 90, rows).round(1),
                "sbp": np.where(random.random(rows) < 0.2, np.nan, random.normal(120, 15, rows).round()),
                "ward": random.choice(["er", "icu"], rows),
                "zip": [f"z{k % 21:02}" for k in range(rows)],
                "smokes": random.choice([True, False], rows),
                "came": pd.date_range("2024-01-01", periods=rows).strftime("%Y-%m-%d"),
                "ill": random.choice(["no", "yes"], rows),
            }
        )
        frame.to_csv(folder / f"{name}.csv", index=False)
    return folder


def test_columns_are_read_as_what_they_are_and_measured_ones_are_scaled(tmp_path: Path) -> None:
    table = load_file(clinics(tmp_path / "clinics"), label_column="ill")
    assert table.encoding is not None
    assert [column.kind for column in table.encoding.columns] == [
        "number",
        "number",
        "category",
        "index",
        "boolean",
        "date",
    ]
    data = fedloom.federate(table)
    assert data.names == ("north", "south", "west")
    train = data.x[data.splits["train"].rows].double()
    assert not torch.isnan(data.x).any()
    measured = torch.from_numpy(table.encoding.measured)
    torch.testing.assert_close(train.mean(0)[[0, 6]], torch.zeros(2, dtype=torch.float64), atol=1e-6, rtol=0)
    assert torch.equal(data.x[:, ~measured], table.x[:, ~measured])  # categories, places and truth values stay
    assert "scaled by default (scaling = 'none' leaves numbers as they are)" in data.notes
    assert "more than 20 categories, embedded: zip (21)" in data.notes


@pytest.mark.parametrize("scaling", ["auto", "none", "min-max"])
def test_what_is_missing_is_the_mean_of_the_clients_training_rows(tmp_path: Path, scaling: Any) -> None:
    clinics(tmp_path / "clinics")
    data = fedloom.federate(load_file(tmp_path / "clinics", label_column="ill", scaling=scaling))
    frame = pd.read_csv(tmp_path / "clinics" / "south.csv")
    rows = data.splits["train"][1].numpy()
    known = frame["sbp"].to_numpy()[rows - 42]
    column = data.x[:, 1] if data.x_scale is None else data.x_scale.original(data.x, torch.zeros(1))[:, 1]
    filled = column.numpy()[rows][np.isnan(known)]
    assert len(filled) > 2
    np.testing.assert_allclose(filled, np.nanmean(known), rtol=1e-6)
    assert any("of the features were missing and are the mean of the training rows" in note for note in data.notes)


def test_an_indicator_says_where_something_was_missing(tmp_path: Path) -> None:
    clinics(tmp_path / "clinics")
    table = load_file(tmp_path / "clinics", label_column="ill", missing="indicator")
    at = table.feature_names.index("sbp missing")
    frame = pd.concat([pd.read_csv(file) for file in sorted((tmp_path / "clinics").iterdir())])
    assert table.x[:, at].tolist() == frame["sbp"].isna().astype(float).tolist()
    assert not any(name.startswith("age missing") for name in table.feature_names)


def test_columns_can_be_dropped_and_said_to_be_numbers_or_categories(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    lines = [f"{k},{k % 3},{'?' if k == 4 else k / 2},{k % 2}" for k in range(30)]
    path.write_text("id,code,dose,ill\n" + "\n".join(lines))
    table = load_file(path, label_column="ill", drop=["id"], categories=["code"], numbers=["dose"])
    assert table.feature_names == ("code=0", "code=1", "code=2", "dose")
    assert torch.isnan(table.x[4, 3])
    assert "columns left out: id" in table.notes
    assert "column 'dose': 1 cell is no number and counts as missing" in table.notes
    given = load_file(path, label_column="ill", feature_columns=["code"], categories={"code": ["2", "1", "7"]})
    assert given.encoding is not None
    assert given.encoding.columns == (Column("code", "category", ("2", "1", "7")),)
    assert given.x[:3].tolist() == [[0, 0, 0], [0, 1, 0], [1, 0, 0]]
    with pytest.raises(ConfigError, match="no column 'cod'; did you mean 'code'"):
        load_file(path, label_column="ill", drop=["cod"])


def test_one_file_for_each_client_is_the_same_as_a_column_that_names_it(tmp_path: Path) -> None:
    folder = clinics(tmp_path / "clinics")
    whole = pd.concat([pd.read_csv(file).assign(clinic=file.stem) for file in sorted(folder.iterdir())])
    whole.to_csv(tmp_path / "whole.csv", index=False)
    expected = load_file(tmp_path / "whole.csv", label_column="ill", client_column="clinic")
    files = [folder / "west.csv", folder / "north.csv", folder / "south.csv"]
    for path in (folder, str(folder / "*.csv"), sorted(files)):
        table = load_file(path, label_column="ill")
        assert (table.group_names, table.encoding, table.classes) == (
            expected.group_names,
            expected.encoding,
            expected.classes,
        )
        assert table.groups is not None
        assert expected.groups is not None
        assert torch.equal(table.groups, expected.groups)
        assert torch.equal(table.x.nan_to_num(-1), expected.x.nan_to_num(-1))
        assert torch.equal(table.y, expected.y)


def test_files_must_agree_on_their_columns(tmp_path: Path) -> None:
    folder = clinics(tmp_path / "clinics")
    pd.read_csv(folder / "south.csv").drop(columns="sbp").to_csv(folder / "south.csv", index=False)
    with pytest.raises(DataError, match=r"south\.csv has no column 'sbp', which .*north\.csv has"):
        load_file(folder, label_column="ill")


def test_files_that_cannot_be_clients_are_refused(tmp_path: Path) -> None:
    folder, other = clinics(tmp_path / "a"), clinics(tmp_path / "b")
    with pytest.raises(ConfigError, match="would both be the client 'north'"):
        load_file([folder, other], label_column="ill")
    with pytest.raises(ConfigError, match="is named twice"):
        load_file([folder / "north.csv", folder / "north.csv"], label_column="ill")
    with pytest.raises(DataError, match="no file fits"):
        load_file(str(tmp_path / "*.txt"), label_column="ill")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"has no \.csv, \.parquet or \.npz file"):
        load_file(tmp_path / "empty", label_column="ill")
    (folder / "README.md").write_text("hello")
    assert "not read in a: README.md" in load_file(folder, label_column="ill").notes
    text = (folder / "south.csv").read_text().splitlines()
    text[3] = text[3].rpartition(",")[0] + ","
    (folder / "south.csv").write_text("\n".join(text))
    with pytest.raises(DataError, match=r"south\.csv: row 3 has no label in column 'ill'"):
        load_file(folder, label_column="ill")


def test_files_may_hold_different_types_of_one_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("v,w,y\n" + "".join(f"{k % 2},{k},{k % 2}\n" for k in range(6)))
    (tmp_path / "b.csv").write_text("v,w,y\n" + "".join(f"{k % 2 == 0},x{k % 2},{k % 2}\n" for k in range(9)))
    table = load_file([tmp_path / "a.csv", tmp_path / "b.csv"], label_column="y", categories=["w"])
    assert table.encoding is not None
    assert [(column.name, column.kind) for column in table.encoding.columns] == [("v", "boolean"), ("w", "category")]
    assert table.x[:, 0].tolist() == [0, 1] * 3 + [1, 0] * 4 + [1]


def test_a_series_becomes_windows_of_each_client(tmp_path: Path) -> None:
    hours = pd.date_range("2024-01-01", periods=12, freq="h").strftime("%Y-%m-%dT%H:%M")
    for name, first in (("a", 0.0), ("b", 100.0)):
        frame = pd.DataFrame({"when": hours, "heat": first + np.arange(12.0), "sky": ["sun", "rain"] * 6})
        frame.iloc[::-1].to_csv(tmp_path / f"{name}.csv", index=False)  # the order is that of the times
    options: dict[str, Any] = {"label_column": "heat", "timestamp_column": "when", "task": "regression"}
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    table = load_file(files, window=3, stride=2, horizon=2, scaling="none", **options)
    assert table.feature_names == ("heat", "sky=rain", "sky=sun")
    assert table.x.shape == (8, 3, 3)
    assert table.x[0].tolist() == [[0, 0, 1], [1, 1, 0], [2, 0, 1]]
    assert table.y[:, 0].tolist() == [4, 6, 8, 10, 104, 106, 108, 110]
    assert (table.series, table.group_names) == (True, ("a", "b"))
    assert table.time is not None
    assert table.time[1] - table.time[0] == 7200
    now = load_file(files, window=3, horizon=0, scaling="none", **options)
    assert now.feature_names == ("sky=rain", "sky=sun")
    assert now.y[0].item() == 2
    data = fedloom.federate(load_file(files, window=3, **options))
    run = fedloom.train(
        fedloom.Problem(data, fedloom.build_model("lstm", data, hidden=4)),
        fedloom.FedAvg(),
        rounds=1,
        executor="serial",
    )
    assert run.summary["rounds"] == 1
    gaps = pd.read_csv(files[1])
    gaps.loc[gaps["heat"] == 103, "heat"] = np.nan
    gaps.to_csv(files[1], index=False)
    patched = load_file(files, window=3, scaling="none", **options)
    assert patched.x[-8:, :, 0].tolist()[1] == [102, 102, 104]  # the window to the gap itself is left out
    assert {
        "what was missing in a series is what was known last",
        "windows to one of 1 missing labels are left out",
    } < {*patched.notes}
    with pytest.raises(DataError, match="has not one window of 30 steps"):
        load_file(files, window=30, **options)
    with pytest.raises(ConfigError, match="horizon = -1 cannot be"):
        load_file(files, window=3, horizon=-1, **options)


@pytest.mark.parametrize("scaling", ["none", "auto"])
def test_a_run_in_float64_finds_the_least_squares_solution_of_the_file(tmp_path: Path, scaling: Any) -> None:
    random = np.random.default_rng(1)
    x = random.normal(size=(90, 3)).round(6)
    y = (1e6 + x @ [300.1, -20.2, 7.3] + random.normal(size=90)).round(6)
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=y, who=np.arange(90) % 3)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    table = load_file(tmp_path / "rows.csv", client_column="who", label_column="y", task="regression", scaling=scaling)
    data = fedloom.federate(table, test=0.0)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data), dtype=torch.float64)
    run = fedloom.train(problem, fedloom.ADMM(rho=1.0), rounds=300, executor="serial", evaluate=LAST)
    design = np.column_stack([x, np.ones(90)])
    expected = design @ np.linalg.lstsq(design, y, rcond=None)[0]
    with torch.no_grad():
        found = run.module()(data.x.double())
    if data.y_scale is not None:
        found = data.y_scale.original(found, torch.zeros(1, dtype=torch.int64))
    np.testing.assert_allclose(found[:, 0].numpy(), expected, rtol=1e-8)


def test_numbers_keep_their_digits_and_take_no_more_room_than_they_need() -> None:
    small = fedloom.from_arrays(np.arange(6.0).reshape(3, 2), [0.5, 1.0, 2.25])
    assert (small.x.dtype, small.y.dtype) == (torch.float32, torch.float32)
    large = fedloom.from_arrays(np.arange(6.0).reshape(3, 2) + 0.1, [1e6 + 0.03, 1.0, 2.0])
    assert large.x[0, 0].item() == 0.1
    assert large.y[0, 0].item() == 1e6 + 0.03
    assert fedloom.from_arrays(np.full((3, 2, 2), 0.1), [0.5, 1, 2]).x.dtype == torch.float32
    with pytest.raises(DataError, match="not finite"):
        fedloom.from_arrays(np.array([[1e300], [0.1], [1.0]]), [0.5, 1, 2])


def test_a_category_of_many_is_learnt_by_an_embedding(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    place = random.integers(0, 25, 300)
    height = random.normal(size=25)
    frame = pd.DataFrame({"town": [f"t{k}" for k in place], "y": height[place] > 0, "who": np.arange(300) % 2})
    frame.to_csv(tmp_path / "towns.csv", index=False)
    data = fedloom.federate(load_file(tmp_path / "towns.csv", client_column="who", label_column="y"))
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    run = fedloom.train(problem, fedloom.FedAvg(lr=1.0, epochs=5), rounds=10, executor="serial", evaluate=LAST)
    assert run.summary["metrics"]["accuracy"] > 0.95
    outputs = run.module()(torch.zeros(2, 1))
    assert torch.equal(outputs[0], outputs[1])  # none of the towns is a vector of zeros


def test_what_would_be_ignored_is_refused_or_said(tmp_path: Path) -> None:
    path = clinics(tmp_path / "clinics") / "north.csv"
    with pytest.raises(ConfigError, match="stride and horizon are those of windows"):
        load_file(path, label_column="ill", stride=3)
    table = load_file(path, label_column="ill", categories={"ward": ["icu"]})
    count = int((pd.read_csv(path)["ward"] == "er").sum())
    assert f"categories that are in no list, read as none: ward ({count})" in table.notes
    np.savez(tmp_path / "a.npz", x=np.ones((4, 2)), y=np.arange(4) % 2)
    with pytest.raises(ConfigError, match="an npz file has features that are ready"):
        load_file(tmp_path / "a.npz", dates="parts")


def test_a_builder_of_ones_own_hears_of_categories(tmp_path: Path) -> None:
    data = fedloom.federate(load_file(clinics(tmp_path / "clinics"), label_column="ill"))
    heard: list[object] = []

    def build(shape: tuple[int, ...], outputs: int, embedded: object = ()) -> torch.nn.Module:
        heard.append(embedded)
        return torch.nn.Linear(shape[0], outputs)

    fedloom.build_model(build, data)
    assert heard[0] == [[4, 21]]


def test_parties_have_columns_of_any_kind(tmp_path: Path) -> None:
    rows = pd.DataFrame({"who": range(30), "sex": ["f", "m", None] * 10, "ill": [0, 1] * 15})
    rows.to_csv(tmp_path / "clinic.csv", index=False)
    town = [f"t{k % 25}" for k in range(30)]
    lab = pd.DataFrame({"who": range(30), "iron": [np.nan, *range(29)], "town": town, "note": ["x"] * 30})
    lab.iloc[::-1].to_csv(tmp_path / "lab.csv", index=False)
    options: dict[str, Any] = {"label_column": "ill", "id_column": "who", "parties": ["lab.csv"]}
    table = load_file(tmp_path / "clinic.csv", drop=["note"], categories=["town"], **options)
    assert table.block_names == ("clinic", "lab")
    assert table.blocks is not None
    assert [len(held) for held in table.blocks.columns] == [2, 26]
    assert table.feature_names[:4] == ("sex=f", "sex=m", "iron", "town=t0")
    data = fedloom.federate(table)
    assert not torch.isnan(data.x).any()
    assert set(data.x[:, :2].flatten().tolist()) == {0.0, 1.0}


def test_arrays_of_several_files_are_a_client_each_if_they_fit(tmp_path: Path) -> None:
    for name, rows in (("a", 4), ("b", 6)):
        np.savez(tmp_path / f"{name}.npz", x=np.ones((rows, 2, 3)), y=np.arange(rows) % 2)
    files = [tmp_path / "a.npz", tmp_path / "b.npz"]
    table = load_file(files)
    assert (table.x.shape, table.group_names, table.scaling) == ((10, 2, 3), ("a", "b"), None)
    np.savez(files[1], x=np.ones((6, 2)), y=np.arange(6) % 2)
    with pytest.raises(DataError, match="rows of different shapes"):
        load_file(files)
    np.savez(files[1], x=np.ones((6, 2, 3)), y=np.arange(5) % 2)
    with pytest.raises(DataError, match=r"b\.npz has arrays of different lengths: x \(6\), y \(5\)"):
        load_file(files)
    (tmp_path / "c.csv").write_text("x,y\n1,2\n")
    with pytest.raises(DataError, match="beside tables; give files of one kind"):
        load_file([*files, tmp_path / "c.csv"])
