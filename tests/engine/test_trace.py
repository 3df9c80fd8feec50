from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from fedloom.engine.trace import read_trace
from fedloom.errors import DataError


def write(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_intervals_are_sorted_and_those_that_overlap_or_touch_are_one(tmp_path: Path) -> None:
    lines = "2,30,40\n0,5,6\n2,0,10\n2,8,12\n2,12,15\n2,9,11\n2,41,inf"
    found = read_trace(write(tmp_path, f"client,start,end\n{lines}\n"), 3)
    assert found == {0: [(5, 6)], 2: [(0, 15), (30, 40), (41, math.inf)]}
    assert list(found) == [0, 2]


def test_columns_may_be_in_any_order_beside_others_with_spaces_blank_lines_and_a_mark_of_the_encoding(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, '\ufeffend, client ,site,start\r\n\r\n7,"1", x,2.5\r\n')
    assert read_trace(path, 2) == {1: [(2.5, 7)]}


def test_clients_are_called_by_name_or_by_id(tmp_path: Path) -> None:
    path = write(tmp_path, "client,start,end\nbeach,0,1\n0,3,4\n")
    assert read_trace(path, 2, ["hill", "beach"]) == {0: [(3, 4)], 1: [(0, 1)]}


def test_where_a_name_is_a_number_ids_are_not_guessed_at(tmp_path: Path) -> None:
    path = write(tmp_path, "client,start,end\n1,0,1\n")
    assert read_trace(path, 2, ["1", "2"]) == {0: [(0, 1)]}
    with pytest.raises(DataError, match=r"trace\.csv:2: there is no client '0'; the 2 clients are 1, 2"):
        read_trace(write(tmp_path, "client,start,end\n0,0,1\n"), 2, ["1", "2"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "trace.csv:1: the header has no 'client'; begin with the line client,start,end"),
        ("1,0,5\n", "trace.csv:1: the header has no 'client'"),
        ("client,begin,end\n1,0,5\n", "trace.csv:1: the header has no 'start'"),
        ("client,start,end\n", "trace.csv has no line below its header; give one"),
        ("client,start,end\n1,0,5\n7,0,5\n", "trace.csv:3: there is no client '7'; the 5 clients are 0, 1, 2, …, 4"),
        ("client,start,end\n-1,0,5\n", "trace.csv:2: there is no client '-1'"),
        ("client,start,end\n1,0\n", "trace.csv:2: 2 values where the header has 3 columns"),
        ("client,start,end\n1,0,5,6\n", "trace.csv:2: 4 values where the header has 3 columns"),
        ("client,start,end\n1,0,5\n1,noon,5\n", "trace.csv:3: start 'noon' and end '5' should be numbers of seconds"),
        ("client,start,end\n1,,5\n", "trace.csv:2: start '' and end '5' should be numbers"),
        ("client,start,end\n1,0,nan\n", "trace.csv:2: start '0' and end 'nan' should be numbers"),
        ("client,start,end\n1,-3,5\n", "trace.csv:2: from -3 to 5 is no time span; start at 0 or later"),
        ("client,start,end\n1,5,5\n", "trace.csv:2: from 5 to 5 is no time span"),
        ("client,start,end\n1,inf,inf\n", "trace.csv:2: from inf to inf is no time span"),
        ("client,start,end\n1,0,60\n", "trace.csv:2: ends at 60, but the trace begins again after 50; raise fleet."),
        ('client,start,end\n"1,0,5\n', "trace.csv:2: no CSV"),
    ],
)
def test_what_is_no_trace_is_refused_with_file_line_and_remedy(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError, match=re.escape(said)):
        read_trace(write(tmp_path, text), 5, repeats=50)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.csv is not there; check the path"):
        read_trace(tmp_path / "gone.csv", 3)
    with pytest.raises(DataError, match=r"cannot be read \(.*irectory"):
        read_trace(tmp_path, 3)
    (tmp_path / "bytes.csv").write_bytes(b"client,start,end\n\xff\xfe,0,1\n")
    with pytest.raises(DataError, match=r"bytes\.csv is no text in UTF-8; save"):
        read_trace(tmp_path / "bytes.csv", 3)
