"""Files of strangers: refused in words before anything is allocated, and no cell changes a table without a word."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedloom.capacity import ALLOWED
from fedloom.data import from_arrays, load_file
from fedloom.errors import DataError

X, Y = np.arange(12.0).reshape(6, 2), np.arange(6) % 2


def npy(shape: str, descr: str = "<f8", data: bytes = b"") -> bytes:
    """A member whose header says what it likes."""
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def saved(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def whole() -> dict[str, bytes]:
    members = {}
    for name, values in (("x.npy", X), ("y.npy", Y)):
        file = io.BytesIO()
        np.save(file, values)
        members[name] = file.getvalue()
    return members


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        (
            "(1000000000000,)",
            r"'x\.npy' says that it has shape \(1000000000000,\), which takes 8,000,000,000,000 bytes",
        ),
        ("(9223372036854775807, 9223372036854775807)", "says that it has shape"),
        ("(-3, -4)", "says that it has shape"),
    ],
)
def test_an_array_of_an_npz_that_claims_more_than_it_has_is_refused(tmp_path: Path, shape: str, says: str) -> None:
    path = saved(tmp_path / "a.npz", whole() | {"x.npy": npy(shape, data=b"\0" * 96)})
    with pytest.raises(DataError, match=says):
        load_file(path)


@pytest.mark.parametrize(
    ("member", "says"),
    [
        ({"x.npy": npy("(6,)", "|O")}, "it holds Python objects, which are never unpickled"),
        ({"x.npy": npy("(6, 2)", "<U0")}, "neither numbers nor texts"),
        ({"readme.txt": b"hello"}, r"'readme\.txt' is no array"),
        ({"x.npy": b"\x93NUMPY\x01\x00" + struct.pack("<H", 4000) + b"(" * 4000}, "cannot be read"),
    ],
)
def test_an_odd_member_of_an_npz_is_refused_by_its_name(tmp_path: Path, member: dict[str, bytes], says: str) -> None:
    with pytest.raises(DataError, match=says):
        load_file(saved(tmp_path / "a.npz", whole() | member))


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", whole())
    data = bytearray(path.read_bytes())
    data[data.find(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"'x\.npy' is encrypted; save the file without a password"):
        load_file(path)


def test_clients_of_two_dimensions_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y, clients=np.zeros((6, 2)))
    with pytest.raises(DataError, match=r"clients has shape \(6, 2\); give one for each of the 6 rows"):
        load_file(tmp_path / "a.npz")


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "1000000")
    zeros = saved(tmp_path / "a.npz", {"x.npy": npy("(1000000,)", data=b"\0" * 8_000_000)})
    assert zeros.stat().st_size < 20_000
    with pytest.raises(DataError, match=r"a\.npz: this needs about 8\.0 MB; the machine has 1\.0 MB"):
        load_file(zeros)
    text = tmp_path / "a.csv.gz"
    text.write_bytes(gzip.compress(b"a,y\n" + b"1,0\n" * 1_000_000))
    assert text.stat().st_size < 20_000
    with pytest.raises(
        DataError, match=r"a\.csv\.gz, as far as it was read: this needs about .*the machine has 1\.0 MB"
    ):
        load_file(text, label_column="y")
    many = tmp_path / "a.parquet"
    pd.DataFrame({"a": np.zeros(200_000), "y": np.zeros(200_000)}).to_parquet(many)
    with pytest.raises(DataError, match=r"a\.parquet: this needs about 6\.4 MB; the machine has 1\.0 MB"):
        load_file(many, label_column="y")


def test_a_line_of_commas_is_no_table(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"," * 3_000_000)
    with pytest.raises(DataError, match=r"columns or more; a table can have 100,000"):
        load_file(path, label_column="y")


def test_cells_beyond_the_names_do_not_shift_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b,y\n1,2,0,9\n3,4,1,9\n")
    with pytest.raises(DataError, match="rows have more cells than its first line has names"):
        load_file(path, label_column="y")


def test_one_cell_that_is_no_number_is_said_with_its_column_and_its_line(tmp_path: Path) -> None:
    path = tmp_path / "patients.csv"
    rows = [f"{k},{k * 2},{k % 2}" for k in range(20)]
    rows[7] = "7,n/k,1"
    path.write_text("age,dose,ill\n\n" + "\n".join(rows) + "\n")  # the empty line is no row
    with pytest.warns(
        UserWarning, match=r"column 'dose' holds 'n/k' in line 10, which is no number.*to keep it"
    ) as said:
        table = load_file(path, label_column="ill")
    assert len(said) == 1
    assert table.feature_names == ("age",)
    assert "column 'dose' holds no number in line 10, so the column is left out" in table.notes
    assert not any("n/k" in note for note in table.notes)  # they may be passed on


def test_one_label_that_is_no_number_is_said(tmp_path: Path) -> None:
    path = tmp_path / "patients.csv"
    path.write_text("age,days\n" + "".join(f"{k},{k / 3}\n" for k in range(20)) + "20,?\n")
    with pytest.warns(UserWarning, match=r"column 'days' holds '\?' in line 22, .*each distinct label is a class"):
        load_file(path, label_column="days")


def test_a_column_of_names_is_left_out_without_alarm(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    path = tmp_path / "patients.csv"
    path.write_text("age,name,ill\n" + "".join(f"{k},anna {k},{k % 2}\n" for k in range(30)))
    table = load_file(path, label_column="ill")
    assert table.feature_names == ("age",)
    assert any("as ids do" in note and note.endswith("name (30 in 30 rows)") for note in table.notes)
    assert not recwarn.list


@pytest.mark.parametrize("label", [np.inf, 1e300])
def test_a_label_that_no_integer_holds_is_no_class(label: float) -> None:
    with pytest.raises(DataError, match="which is no class"):
        from_arrays(X, np.array([0.0, 1, 0, 1, 0, label]), task="classification")


@pytest.mark.parametrize("year", ["-0007", "9999"])
def test_a_date_that_no_clock_holds_is_refused_in_words(tmp_path: Path, year: str) -> None:
    path = tmp_path / "visits.csv"
    path.write_text(
        "age,seen,ill\n" + "".join(f"{k},2020-01-0{k + 1},{k % 2}\n" for k in range(8)) + f"9,{year}-01-01,1\n"
    )
    with pytest.raises(DataError, match="column 'seen' does not hold times"):
        load_file(path, label_column="ill", timestamp_column="seen")
