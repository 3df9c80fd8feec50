"""Rows that stay in their file behave like the list that they were."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.errors import RunError
from fedloom.storage import rows as module
from fedloom.storage.history import History
from fedloom.storage.rows import Rows

ROWS = [{"round": t, "bytes_up": 10 * t, "measures": {"gap": None if t % 3 else t / 7}} for t in range(9)]


def written(path: Path, rows: list[dict[str, object]] = ROWS, run: str = "") -> Path:
    with History(path, run) as history:
        for row in rows:
            history.append(row)
    return path


@pytest.fixture(params=["in memory", "in the file"])
def found(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Rows:
    if request.param == "in the file":
        monkeypatch.setattr(module, "SMALL", 0)
    rows = History.read(written(tmp_path / "history.jsonl")).rows
    assert isinstance(rows, Rows)
    return rows


@given(st.slices(9), st.integers(-12, 12))
def test_they_are_indexed_and_sliced_like_a_list(
    tmp_path_factory: pytest.TempPathFactory, part: slice, at: int
) -> None:
    rows = History.read(written(tmp_path_factory.mktemp("h") / "h.jsonl")).rows
    assert rows[part] == ROWS[part]
    if -9 <= at < 9:
        assert rows[at] == ROWS[at]
    else:
        with pytest.raises(IndexError):
            rows[at]


def test_they_are_compared_searched_copied_and_written_like_a_list(found: Rows) -> None:
    assert len(found) == 9
    assert found == ROWS
    assert (ROWS == found) is True  # noqa: SIM300
    assert found != ROWS[:-1]
    assert found != [*ROWS[:-1], {"round": 8}]
    assert found != "rows"
    assert list(found) == ROWS
    assert list(reversed(found)) == ROWS[::-1]
    assert ROWS[3] in found
    assert found.index(ROWS[3]) == 3
    assert json.loads(json.dumps(list(found))) == ROWS
    for twin in (copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert type(twin) is list
        assert twin == ROWS
    one, other = iter(found), iter(found)
    for i in range(3):  # two who read at a time do not disturb each other
        assert (next(one), next(other), next(one)) == (ROWS[2 * i], ROWS[i], ROWS[2 * i + 1])


def test_few_rows_outlast_their_folder_and_many_say_that_they_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "history.jsonl")
    few = History.read(path).rows
    monkeypatch.setattr(module, "SMALL", 0)
    many = History.read(path).rows
    with History(path) as history:
        history.append({"round": 9})
    assert few == ROWS == many  # a run that goes on adds rows, and takes none away
    path.rename(tmp_path / "moved")
    written(path, ROWS[:2])
    assert few == ROWS
    with pytest.raises(RunError, match="another file by now"):
        many[0]
    path.unlink()
    with pytest.raises(RunError, match="history"):
        list(many)


def test_the_rows_of_a_run_under_way_are_in_the_file_alone(tmp_path: Path) -> None:
    with History(tmp_path / "history.jsonl") as history:
        for row in ROWS:
            history.append(row)
            assert history.rows[-1] == row
        assert "history.jsonl" in repr(history.rows)
        history.truncate(4)
        assert history.rows == ROWS[:5]
    with pytest.raises(RunError, match="closed"):
        history.append({"round": 5})
