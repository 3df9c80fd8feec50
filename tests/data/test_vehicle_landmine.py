from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from fedloom.capacity import ALLOWED
from fedloom.data import federate, load
from fedloom.errors import DataError

# Vehicle


def leaf(sizes: dict[str, int]) -> dict[str, object]:
    data = {
        name: {"x": [[float(k)] * 100 for k in range(size)], "y": [1 if k % 2 else -1 for k in range(size)]}
        for name, size in sizes.items()
    }
    return {"users": list(sizes), "num_samples": list(sizes.values()), "user_data": data}


def write_vehicle(folder: Path, content: object) -> Path:
    (folder / "vehicle").mkdir(exist_ok=True)
    path = folder / "vehicle" / "mytrain.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_sensors_are_clients_and_their_vehicles_two_classes(own_data: Path) -> None:
    write_vehicle(own_data, leaf({"f_1": 3, "f_0": 2}))
    table = load("vehicle").check()
    assert table.group_names == ("f_1", "f_0")
    assert table.groups is not None
    assert table.groups.tolist() == [0, 0, 0, 1, 1]
    assert table.y[:, 0].tolist() == [0, 1, 0, 0, 1]
    assert table.x[:, 7].tolist() == [0, 1, 2, 0, 1]
    assert table.classes == ("-1", "1")
    assert table.notes == ("2 of the 23 published sensors are here",)


def changed(**parts: object) -> dict[str, object]:
    whole = leaf({"a": 2})
    whole["user_data"] = {"a": whole["user_data"]["a"] | parts}  # type: ignore[index]
    return whole


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "cannot be read as JSON"),
        ("[" * 100_000, "nested too deep"),
        ("[]", "no list 'users'"),
        ({"users": [], "user_data": {}}, "no list 'users'"),
        ({"users": ["a", "a"], "user_data": {"a": {}}}, "user 'a' is there twice"),
        ({"users": ["b"], "user_data": {"a": {}}}, "user 'b' is there twice or has no rows"),
        ({"users": [["a"]], "user_data": {"a": {}}}, "is there twice or has no rows"),
        (changed(x=[[1.0] * 99] * 2), r"x of shape \(2, 99\)"),
        (changed(x=[[1.0] * 100, [1.0]]), "rows of different lengths"),
        (changed(x=json.loads("[" * 80 + "1" + "]" * 80)), "no number|x of shape"),
        (changed(x=[["fast"] * 100] * 2), "no number"),
        (changed(y=[1]), r"y of \(1,\)"),
        (changed(y=[1, 0]), "neither -1 nor 1"),
        (changed(x=[[float("nan")] * 100] * 2), "not finite"),
    ],
)
def test_a_file_that_is_not_leafs_is_refused(own_data: Path, content: object, complaint: str) -> None:
    write_vehicle(own_data, content)
    with pytest.raises(DataError, match=rf"mytrain\.json is damaged: .*({complaint})"):
        load("vehicle")


def test_a_file_beyond_the_machine_is_refused_before_it_is_read(
    own_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_vehicle(own_data, leaf({"a": 50}))
    monkeypatch.setenv(ALLOWED, "100000")
    with pytest.raises(DataError, match=r"mytrain\.json: this needs about .* the machine has"):
        load("vehicle")


@pytest.mark.parametrize(
    ("name", "clients", "rows", "positive"), [("vehicle", 23, 1_860, None), ("landmine", 29, 14_820, 904)]
)
def test_the_real_sets_have_their_clients_and_rows(
    real: Callable[..., Path], name: str, clients: int, rows: int, positive: int | None
) -> None:
    real(name)
    table = load(name).check()
    assert len(table) == rows
    assert positive is None or int(table.y.sum()) == positive
    data = federate(table)
    assert data.clients == clients
    assert bool(torch.isfinite(data.x).all())


@pytest.mark.parametrize("name", ["vehicle", "landmine"])
def test_without_files_the_error_says_where_to_get_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("FEDLOOM_MIRROR", "FEDLOOM_DATA"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(
        DataError, match=rf"{name}: .* is not in .*does not download it; get it from http.*FEDLOOM_DATA"
    ):
        load(name)


# Landmine


def cells(parts: list[object]) -> np.ndarray:
    made = np.empty((1, len(parts)), dtype=object)
    for place, part in enumerate(parts):
        made[0, place] = part
    return made


def write_landmine(folder: Path, compress: bool = False, **variables: object) -> Path:
    fields = {
        "feature": cells([np.arange(27.0).reshape(3, 9), np.ones((2, 9))]),
        "label": cells([np.array([[0], [1], [0]], dtype=np.uint8), np.array([[1], [0]], dtype=np.uint8)]),
    }
    (folder / "landmine").mkdir(exist_ok=True)
    path = folder / "landmine" / "LandmineData.mat"
    savemat(path, fields | variables, do_compression=compress)
    return path


@pytest.mark.parametrize("compress", [False, True])
def test_fields_are_clients_and_mines_the_positive_class(own_data: Path, compress: bool) -> None:
    write_landmine(own_data, compress)
    table = load("landmine").check()
    assert table.group_names == ("field 1", "field 2")
    assert table.y[:, 0].tolist() == [0, 1, 0, 1, 0]
    assert table.x[1].tolist() == list(range(9, 18))
    assert table.notes == ("2 of the 29 published fields are here",)


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"label": np.zeros((5, 1))}, "no cells 'feature' and 'label'"),
        ({"label": cells([np.zeros((3, 1))])}, "features of 2 fields and labels of 1"),
        ({"label": cells([np.zeros((3, 1)), np.zeros((4, 1))])}, "field 2 is not a table of 9 features"),
        ({"label": cells([np.full((3, 1), 7), np.zeros((2, 1))])}, "field 1 has .* label that is neither"),
        ({"feature": cells([np.full((3, 9), np.nan), np.zeros((2, 9))])}, "field 1 has a feature that is not finite"),
        ({"feature": cells(["text", np.zeros((2, 9))])}, "field 1 is not a table"),
        ({"feature": cells([cells([1, 2, 3]), np.zeros((2, 9))])}, "field 1 is not a table"),
    ],
)
def test_cells_that_are_not_fields_are_refused(own_data: Path, variables: dict[str, object], complaint: str) -> None:
    write_landmine(own_data, **variables)
    with pytest.raises(DataError, match=rf"LandmineData\.mat is damaged: .*{complaint}"):
        load("landmine")


def test_a_file_that_is_cut_off_forged_or_none_is_refused(own_data: Path) -> None:
    path = write_landmine(own_data)
    whole = path.read_bytes()
    forged = bytearray(whole)
    place = whole.index(b"feature") - 16  # the dimensions of the first variable stand before its name
    forged[place : place + 8] = struct.pack("<2i", 1, 2**31 - 1)
    for data in (b"", b"hello", whole[:-200], whole[:140], bytes(forged)):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"LandmineData\.mat is damaged"):
            load("landmine")


def test_a_bomb_is_refused_before_it_is_unpacked(own_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_landmine(own_data)
    packed = zlib.compress(b"\0" * 50_000_000)
    path.write_bytes(path.read_bytes()[:128] + struct.pack("<2I", 15, len(packed)) + packed)
    monkeypatch.setenv(ALLOWED, "2000000")
    with pytest.raises(DataError, match=r"LandmineData\.mat, as far as it was unpacked: this needs about"):
        load("landmine")
