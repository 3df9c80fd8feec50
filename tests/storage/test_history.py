import json
import math
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.errors import RunError
from fedloom.storage.history import History, as_frame

ROWS = [{"round": t, "seconds": t / 3, "evaluation": {"accuracy": {"weighted": 0.5 + t / 100}}} for t in range(4)]


def written(path, rows=ROWS, run=""):
    with History(path, run) as history:
        for row in rows:
            history.append(row)
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "history.jsonl"


def test_rows_are_in_the_file_as_soon_as_they_are_appended_and_come_back_equal(path):
    history = History(path)
    for i, row in enumerate(ROWS):
        history.append(row)
        assert History.read(path).rows == ROWS[: i + 1]
    history.flush()
    assert history.rows == ROWS
    assert len(history) == 4


def test_without_a_path_the_rows_are_in_memory_only(tmp_path):
    history = History()
    history.append({"round": 0})
    history.flush()
    history.truncate(0)
    assert history.rows == [{"round": 0}]
    assert history.notes == []


def test_an_existing_history_goes_on(path):
    written(path, ROWS[:2])
    written(path, ROWS[2:])
    assert History.read(path).rows == ROWS


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(), json_values, max_size=4), max_size=4))
@settings(deadline=None, max_examples=60)
def test_every_line_is_valid_json_and_memory_equals_the_file(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("h") / "h.jsonl"
    history = History(path)
    for t, row in enumerate(rows):
        history.append(row | {"round": t})
    history.close()

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    lines = path.read_bytes().splitlines() if rows else []
    read = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [{key: value for key, value in row.items() if key != "chain"} for row in read] == history.rows
    assert History.read(path).rows == history.rows
    assert History.read(path).fault is None


def test_numbers_of_torch_and_numpy_are_numbers_and_what_json_lacks_is_null(path):
    history = History(path)
    history.append({"round": 1, "a": torch.tensor(2), "b": np.float32(0.5), "c": math.nan, "d": [-math.inf, 1]})
    assert history.rows == [{"round": 1, "a": 2, "b": 0.5, "c": None, "d": [None, 1]}]
    assert path.read_text().startswith('{"round": 1, "a": 2, "b": 0.5, "c": null, "d": [null, 1], "chain": "')


def test_a_value_that_cannot_be_kept_is_named_and_nothing_is_written(path):
    history = History(path)
    with pytest.raises(RunError, match=r"round 3\.measures\.gap is of type Tensor"):
        history.append({"round": 3, "measures": {"gap": torch.ones(2)}})
    with pytest.raises(RunError, match="needs its number of rounds"):
        history.append({"rund": 3})
    assert path.read_text() == ""


def test_a_last_line_cut_off_anywhere_is_dropped_with_a_note_and_the_history_goes_on(path):
    whole = written(path).read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for end in range(last + 1, len(whole) - 1):
        path.write_bytes(whole[:end])
        looked_at = History.read(path)
        assert looked_at.rows == ROWS[:3]
        assert looked_at.notes == [f"{path}: line 4, the last, was cut off and is dropped."]
        assert path.read_bytes() == whole[:end]
        with History(path) as history:
            assert history.notes == looked_at.notes
            history.append(ROWS[3])
        assert path.read_bytes() == whole


def test_a_last_line_that_lacks_only_its_end_is_kept(path):
    whole = written(path).read_bytes()
    path.write_bytes(whole[:-1])
    with History(path) as history:
        assert (history.rows, history.notes) == (ROWS, [])
    assert path.read_bytes() == whole


def test_a_cut_at_any_byte_never_loses_an_earlier_row(path):
    whole = written(path).read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        assert History.read(path).rows[: whole[:end].count(b"\n")] == ROWS[: whole[:end].count(b"\n")]


@pytest.mark.parametrize("line", [b"{broken", b"", b"\xff\xfe", b"[1]", b'{"round": "two"}', b'{"no": 1}', b"[" * 9999])
def test_a_damaged_line_in_the_middle_is_an_error_with_its_number_and_nothing_is_changed(path, line):
    lines = written(path).read_bytes().split(b"\n")
    lines[1] = line
    path.write_bytes(b"\n".join(lines))
    for look in (History, History.read):
        with pytest.raises(RunError, match=r"history\.jsonl, line 2 is damaged"):
            look(path)
    assert path.read_bytes() == b"\n".join(lines)


def test_a_missing_history_is_named_when_it_is_to_be_read(path):
    with pytest.raises(RunError, match=r"history\.jsonl is missing"):
        History.read(path)


def test_rows_after_the_checkpoint_are_removed_and_the_history_goes_on(path):
    written(path)
    with History(path) as history:
        history.truncate(1)
        assert history.rows == ROWS[:2] == History.read(path).rows
        assert history.notes == []
        history.append(ROWS[2])
    assert History.read(path).rows == ROWS[:3]
    assert os.listdir(path.parent) == [path.name]


def test_rows_that_are_lost_before_the_checkpoint_are_noted(path):
    written(path)
    with History(path) as history:
        history.truncate(9)
        assert history.rows == ROWS
        assert "ends at round 3, the checkpoint at round 9" in history.notes[0]


def test_a_history_can_begin_again(path):
    written(path)
    with History(path) as history:
        history.truncate(-1)
        assert (history.rows, history.notes) == ([], [])
    assert path.read_text() == ""


def test_the_frame_has_one_flat_column_for_each_number():
    history = History()
    history.append({"round": 0, "measures": {"gap": 2}})
    history.append(
        {
            "round": 1,
            "bytes_up": 10,
            "evaluation": {"accuracy": {"weighted": 0.9, "mean": 0.8, "clients": 5}, "loss": {"weighted": math.nan}},
            "evaluations": {"adapted": {"accuracy": {"weighted": 0.95, "std": 0.1}}},
        }
    )
    frame = as_frame(history.rows)
    assert list(frame.columns) == [
        "round",
        "measures.gap",
        "bytes_up",
        "accuracy",
        "accuracy.mean",
        "accuracy.clients",
        "loss",
        "adapted.accuracy",
        "adapted.accuracy.std",
    ]
    assert frame["round"].tolist() == [0, 1]
    assert frame["accuracy"].iloc[1] == 0.9
    assert math.isnan(frame["accuracy"].iloc[0])
    assert frame["loss"].isna().all()
    assert all(dtype.kind in "if" for dtype in frame.dtypes)


def test_the_frame_of_no_rows_is_empty():
    assert as_frame([]).empty


def test_the_frame_has_ages_and_values_tested_on_arrival_but_not_the_jobs_of_single_clients():
    history = History()
    row = {"round": 1, "staleness": {"mean": 1.5, "max": 4}, "prequential": {"accuracy": 0.5}}
    history.append({**row, "jobs": [[0, 0.0, 1.0, "accepted"]], "away": [[1, 0.0, None]]})
    assert list(as_frame(history.rows).columns) == ["round", "staleness.mean", "staleness.max", "prequential.accuracy"]
    assert history.rows[0]["jobs"] == [[0, 0.0, 1.0, "accepted"]]


@given(st.integers(0, 3), st.integers(0, 2))
@settings(deadline=None, max_examples=12)
def test_a_line_that_was_changed_removed_or_moved_is_named(tmp_path_factory, at, how):
    path = written(tmp_path_factory.mktemp("h") / "h.jsonl", run="a run")
    lines = path.read_bytes().splitlines(keepends=True)
    if how == 0:
        lines[at] = lines[at].replace(b'"round": ', b'"other": 1, "round": ')
    elif how == 1:
        del lines[at]
    else:
        lines[at : at + 2] = lines[at : at + 2][::-1]
    path.write_bytes(b"".join(lines))
    cut = at == 3 and how > 0  # a last line that is gone leaves a chain, and one alone has nobody to change places with
    for found in (History.read(path, "a run"), History(path, "a run")):
        assert (found.fault is None) == cut
        assert cut or f"line {at + 1} does not follow" in found.fault


def test_a_history_of_another_run_is_known_by_its_first_line(path):
    written(path, run="a run")
    assert History.read(path, "a run").fault is None
    assert "line 1 does not follow" in History.read(path, "another").fault
    assert History.read(path).fault is None  # of which run it is, is not known
