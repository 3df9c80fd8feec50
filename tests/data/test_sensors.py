from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedloom.data import beijing, extrasensory, federate, fetch, load
from fedloom.data.published import Published
from fedloom.data.series import Series, Windows, filled_forward, table_of
from fedloom.errors import ConfigError, DataError
from fedloom.federation.data import Task

NAN = float("nan")
HEADER = "No,year,month,day,hour,PM2.5,PM10,SO2,NO2,CO,O3,TEMP,PRES,DEWP,RAIN,wd,WSPM,station"


def zipped(folder: Path, published: Published, files: dict[str, Path]) -> None:
    """Put the published archive, with these files in it, where a user would."""
    (folder / published.folder).mkdir()
    with zipfile.ZipFile(folder / published.folder / published.file, "w") as archive:
        for name, file in files.items():
            archive.write(file, name)


# Series


@given(
    st.lists(st.lists(st.one_of(st.none(), st.integers(-9, 9)), min_size=2, max_size=2), min_size=1, max_size=12),
)
def test_a_gap_is_filled_with_the_last_known_value_and_never_with_a_later_one(rows: list[list[int | None]]) -> None:
    values = np.array([[NAN if k is None else k for k in row] for row in rows], dtype=np.float32)
    filled = filled_forward(values)
    for column in range(2):
        last = NAN
        for before, after in zip(values[:, column], filled[:, column], strict=True):
            last = last if np.isnan(before) else before
            assert after == last or (np.isnan(after) and np.isnan(last))


def series(name: str, first: int, steps: int, targets: list[float] | None = None) -> Series:
    values = np.arange(first, first + steps, dtype=np.float32)[:, None]
    y = values if targets is None else np.array(targets, dtype=np.float32)[:, None]
    return Series(name, values, y, values[:, 0].astype(np.float64))


@given(length=st.integers(1, 5), stride=st.integers(1, 4), limit=st.one_of(st.none(), st.integers(1, 4)))
def test_every_window_is_the_steps_before_its_time_and_none_reaches_into_another_series(
    length: int, stride: int, limit: int | None
) -> None:
    parts = [series("a", 0, 6), series("b", 100, 9)]
    table = table_of("s", "regression", parts, Windows(length, stride, limit))
    assert table.time is not None
    assert table.groups is not None
    x = table.x.reshape(len(table), length)
    expected = table.time.unsqueeze(1).float() + torch.arange(1 - length, 1)
    assert torch.equal(x, expected)
    ends = [list(range(length - 1, 6, stride))[:limit], list(range(100 + length - 1, 109, stride))[:limit]]
    assert table.time.tolist() == ends[0] + ends[1]
    assert table.groups.tolist() == [0] * len(ends[0]) + [1] * len(ends[1])
    assert table.series


@pytest.mark.parametrize(("task", "kept"), [("regression", [1.0, 3.0]), ("multilabel", [1.0, 2.0, 3.0])])
def test_only_a_regression_needs_all_of_its_targets(task: Task, kept: list[float]) -> None:
    table = table_of("s", task, [series("a", 0, 4, [NAN, 1, NAN, 0])], Windows(2))
    assert table.time is not None
    assert table.time.tolist() == kept


def test_a_series_without_a_single_window_and_two_of_one_name_are_refused() -> None:
    with pytest.raises(DataError, match=r"s: a has not one window of 7 steps; choose a smaller window"):
        table_of("s", "regression", [series("a", 0, 6)], Windows(7))
    with pytest.raises(DataError, match=r"two files are of a"):
        table_of("s", "regression", [series("a", 0, 6), series("a", 0, 6)], Windows(2))


@pytest.mark.parametrize("name", ["beijing-air", "extrasensory"])
@pytest.mark.parametrize("wrong", ["window", "stride", "limit"])
def test_windows_that_cannot_be_are_refused_before_any_file_is_read(name: str, wrong: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"{name}: {wrong} = 0 cannot be: Input should be greater than or equal to 1"
    ):
        load(name, **{wrong: 0})
    with pytest.raises(
        ConfigError, match=r"scaling = 'log' cannot be: Input should be 'none', 'standard' or 'min-max'"
    ):
        load(name, scaling="log")


# Beijing


def hour(station: str, k: int, **changed: object) -> str:
    """One published line; pollutants and weather say which hour it is."""
    at = datetime(2013, 3, 1) + timedelta(hours=k)
    values: dict[str, object] = {
        "No": k + 1,
        "year": at.year,
        "month": at.month,
        "day": at.day,
        "hour": at.hour,
        **{name: 10 * (c + 1) + k for c, name in enumerate(beijing.POLLUTANTS)},
        "TEMP": k / 10,
        "PRES": 1000 + k,
        "DEWP": -k / 10,
        "RAIN": 0,
        "wd": ("N", "E", "S", "W")[k % 4],
        "WSPM": k / 2,
        "station": station,
    }
    return ",".join(str((values | changed)[name]) for name in HEADER.split(","))


def write_station(folder: Path, station: str, hours: int, **changed: dict[int, object]) -> Path:
    """A station's file; ``changed`` gives columns other values in some hours (_ stands for PM2.5's dot)."""
    lines = [HEADER]
    for k in range(hours):
        lines.append(hour(station, k, **{c.replace("_", "."): v[k] for c, v in changed.items() if k in v}))
    path = folder / "beijing-air" / f"PRSA_Data_{station}_20130301-20170228.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_window_is_the_past_of_one_station_and_its_target_the_next_hour(own_data: Path) -> None:
    for station in ("Dongsi", "Gucheng"):
        write_station(own_data, station, 8)
    table = load("beijing-air", window=3, stride=2)
    assert table.x.shape == (6, 3, 17)
    assert table.group_names == ("Dongsi", "Gucheng")
    assert table.groups is not None
    assert table.groups.tolist() == [0, 0, 0, 1, 1, 1]
    assert table.x[1, :, 0].tolist() == [12.0, 13.0, 14.0]  # PM2.5 of hours 2 to 4
    assert table.y[1].tolist() == [15.0, 25.0, 35.0, 45.0, 55.0, 65.0]  # the six pollutants of hour 5
    assert table.target_names == ("PM2.5", "PM10", "SO2", "NO2", "CO", "O3")
    assert len(table.feature_names) == 17
    assert table.time is not None
    start = (datetime(2013, 3, 1) - datetime(1970, 1, 1)).total_seconds()
    assert table.time.tolist() == [start + 3600 * k for k in (3, 5, 7)] * 2
    assert "2 of the 12 published stations are here" in table.notes
    assert "16 of the 70,128 published hours of these stations are here" in table.notes


def test_wind_hour_and_season_are_places_on_a_circle(own_data: Path) -> None:
    write_station(own_data, "Dongsi", 30)
    table = load("beijing-air", window=1, stride=1)
    columns = {name: table.x[:, k] for k, name in enumerate(table.feature_names)}
    assert table.x.shape == (29, 17)
    torch.testing.assert_close(columns["wind north"][:4], torch.tensor([1.0, 0, -1, 0]), rtol=0, atol=1e-6)
    torch.testing.assert_close(columns["wind east"][:4], torch.tensor([0, 1.0, 0, -1]), rtol=0, atol=1e-6)
    torch.testing.assert_close(columns["hour cosine"][[0, 6, 12, 24]], torch.tensor([1.0, 0, -1, 1]), rtol=0, atol=1e-5)
    torch.testing.assert_close(columns["hour sine"][[0, 6, 12, 18]], torch.tensor([0, 1.0, 0, -1]), rtol=0, atol=1e-5)
    assert (columns["season cosine"] ** 2 + columns["season sine"] ** 2).allclose(torch.ones(29))


def test_what_was_not_measured_is_the_last_known_value_but_is_never_a_target(own_data: Path) -> None:
    write_station(own_data, "Dongsi", 10, PM2_5={4: "NA", 5: "NA"}, TEMP={4: "NA"}, wd={4: "NA"})
    table = load("beijing-air", window=2, stride=1)
    assert table.y[:, 0].tolist() == [12.0, 13.0, 16.0, 17.0, 18.0, 19.0]  # hours 4 and 5 are left out
    at = table.y[:, 0].tolist().index(16.0)
    assert table.x[at, :, 0].tolist() == [13.0, 13.0]  # hours 4 and 5, both as hour 3
    assert table.x[at, :, 6].tolist() == [pytest.approx(0.3), 0.5]
    assert table.x[at, 0, 11:13].tolist() == [pytest.approx(0, abs=1e-6), -1.0]  # still the west wind of hour 3


def test_before_the_first_measurement_the_mean_of_the_stations_training_rows_stands_in(own_data: Path) -> None:
    write_station(own_data, "Dongsi", 12, RAIN={0: "NA", 1: "NA", 2: 7})
    write_station(own_data, "Gucheng", 12)
    table = load("beijing-air", window=1, stride=1, scaling="none")
    assert bool(torch.isnan(table.x[:2, 9]).all())
    data = federate(table)
    train = data.splits["train"][0]
    known = data.x[train[2:], 9]
    assert data.x[:2, 9].tolist() == [pytest.approx(float(known.mean()))] * 2
    assert bool(torch.isfinite(data.x).all())


def test_the_last_windows_are_the_test_unless_something_else_is_asked_for(own_data: Path) -> None:
    write_station(own_data, "Dongsi", 30)
    table = load("beijing-air", window=4, stride=1)
    assert table.time is not None
    data = federate(table)
    assert table.time[data.splits["train"][0]].max() < table.time[data.splits["test"][0]].min()
    mixed = federate(table, chronological=False)
    assert table.time[mixed.splits["train"][0]].max() > table.time[mixed.splits["test"][0]].min()


def test_a_limit_takes_the_first_windows_of_each_station(own_data: Path) -> None:
    write_station(own_data, "Dongsi", 20)
    full, few = (load("beijing-air", window=2, stride=3, limit=limit) for limit in (None, 2))
    assert len(few) == 2
    assert torch.equal(few.x, full.x[:2])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda text: text.replace("PM10", "PMX", 1), r"its header has no column 'PM10'"),
        (lambda text: text.replace(",wd,", ",wind,", 1), r"its header has no column 'wd'"),
        (lambda text: text.replace(",station", ",place", 1), r"its header has no column 'station'"),
        (lambda text: text[:-3], r"line 13 is not of its station Dongsi"),
        (lambda text: text[:-20], r"line 13 ends before its column 'station'"),
        (lambda text: text.replace("\n5,", "\n5,1,", 1), r"cannot be read as CSV"),
        (lambda text: "\n".join(line for k, line in enumerate(text.splitlines()) if k != 6), r"line 7 is not the hour"),
        (lambda text: text.replace(",1004,", ",high,", 1), r"its column 'PRES' has something that is no number"),
        (lambda text: text.replace(",1004,", ",inf,", 1), r"line 6 has infinity in its column 'PRES'"),
        (lambda text: text.replace("\n5,2013,", "\n5,NA,", 1), r"line 6 has no whole date"),
        (lambda text: text.replace(",W,", ",up,", 1), r"line 5 has no wind direction in its column 'wd': 'up'"),
        (lambda text: HEADER + "\n", r"it has a header and no rows"),
        (lambda text: "", r"cannot be read as CSV"),
    ],
    ids=[
        "no PM10",
        "no wind",
        "no station",
        "cut in the last name",
        "cut before it",
        "too many fields",
        "an hour is missing",
        "text",
        "infinity",
        "no year",
        "no such wind",
        "header alone",
        "nothing",
    ],
)
def test_a_file_that_is_not_as_published_names_itself_the_line_and_the_remedy(
    own_data: Path, change: Callable[[str], str], complaint: str
) -> None:
    path = write_station(own_data, "Dongsi", 12)
    path.write_text(change(path.read_text()))
    with pytest.raises(DataError, match=rf"PRSA_Data_Dongsi.*\.csv is damaged: .*{complaint}.*delete it"):
        load("beijing-air", window=2, stride=1)


def test_the_published_archive_in_the_users_folder_is_read_as_it_is(
    tmp_path: Path, own_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [write_station(tmp_path / "made", station, 12) for station in ("Gucheng", "Dongsi")]
    zipped(own_data, beijing.BEIJING_AIR, {f"PRSA_Data_20130301-20170228/{file.name}": file for file in files})
    table = load("beijing-air", window=2, stride=1)
    assert table.group_names == ("Dongsi", "Gucheng")
    assert fetch("beijing-air") == [own_data / "beijing-air" / beijing.BEIJING_AIR.file]
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path / "made"))
    assert torch.equal(load("beijing-air", window=2, stride=1).x, table.x)
    assert [path.name for path in fetch("beijing-air")] == sorted(file.name for file in files)


def test_without_files_the_error_says_what_is_missing_and_where_to_put_it() -> None:
    for name, published in (("beijing-air", beijing.BEIJING_AIR), ("extrasensory", extrasensory.EXTRASENSORY)):
        with pytest.raises(DataError, match=rf"{name}: {published.file} is not in .*FEDLOOM_DATA"):
            load(name)


def test_the_real_air_of_beijing_has_twelve_stations_and_four_years(real: Callable[..., Path]) -> None:
    real("beijing-air")
    table = load("beijing-air", stride=25)
    assert table.group_names is not None
    assert len(table.group_names) == 12
    assert table.x.shape[1:] == (24, 17)
    assert table.notes == ("windows of 24 hours, one every 25, to the pollutants of the next (µg/m³)",)
    assert table.time is not None
    last = (datetime(2017, 2, 28, 23) - datetime(1970, 1, 1)).total_seconds()
    assert last - 86_400 < float(table.time.max()) <= last
    assert table.y.mean(0).tolist() == pytest.approx([80, 105, 16, 51, 1230, 57], rel=0.05)
    data = federate(table)
    rows = torch.cat([data.splits["train"][k] for k in range(12)])
    assert bool(torch.isfinite(data.x).all())
    assert float(data.x[rows].double().reshape(-1, 17).mean(0).abs().max()) < 1e-5


# ExtraSensory


FEATURES = ("raw_acc:magnitude_stats:mean", "proc_gyro:3d:mean_x", "location:max_speed")
LABELS = ("label:SITTING", "label:FIX_walking")


def write_person(folder: Path, person: str, rows: list[tuple[object, ...]], header: str | None = None) -> Path:
    first = header or ",".join(("timestamp", *FEATURES, *LABELS, "label_source"))
    text = "\n".join([first, *(",".join(map(str, row)) for row in rows)]) + "\n"
    path = folder / "extrasensory" / f"{person}.features_labels.csv.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))
    return path


MINUTES: list[tuple[object, ...]] = [
    (1000, 1.0, "nan", 5.0, 1, "nan", -1),
    (1060, "nan", 2.0, "nan", 0, 1, 2),
    (1120, 3.0, "nan", "nan", "nan", "nan", 2),
    (1180, 4.0, 6.0, 1.0, 1.0, 0.0, 2),
]


def test_a_persons_minutes_are_rows_with_labels_of_which_some_are_unknown(own_data: Path) -> None:
    write_person(own_data, "B1", MINUTES)
    write_person(own_data, "A2", MINUTES[:2])
    table = load("extrasensory")
    assert table.check() is table
    assert table.group_names == ("A2", "B1")
    assert table.classes == ("SITTING", "FIX_walking")
    assert table.feature_names == FEATURES
    assert table.time is not None
    assert table.time.tolist() == [1000, 1060, 1000, 1060, 1120, 1180]
    expected = [[1, NAN], [0, 1], [1, NAN], [0, 1], [NAN, NAN], [1, 0]]
    torch.testing.assert_close(table.y, torch.tensor(expected), equal_nan=True)
    assert table.notes == ("2 of the 60 published people are here",)


def test_a_missing_feature_is_the_persons_last_one_and_before_that_the_mean_of_training_rows(own_data: Path) -> None:
    write_person(own_data, "B1", MINUTES)
    table = load("extrasensory", scaling="none")
    expected = [[1, NAN, 5], [1, 2, 5], [3, 2, 5], [4, 6, 1]]
    torch.testing.assert_close(table.x, torch.tensor(expected, dtype=torch.float32), equal_nan=True)
    assert federate(table, test=0.25).x[0].tolist() == [1.0, 2.0, 5.0]
    assert float(federate(load("extrasensory"), test=0.25).x[0, 1]) == 0  # once standardised


def test_windows_are_a_persons_last_recorded_minutes(own_data: Path) -> None:
    write_person(own_data, "B1", [MINUTES[k] for k in (2, 0, 3, 1)])  # not in order of time
    write_person(own_data, "A2", MINUTES[:3])
    table = load("extrasensory", window=3)
    assert table.x.shape == (3, 3, 3)
    assert table.x[1, :, 0].tolist() == [1.0, 1.0, 3.0]
    assert table.x[2, :, 0].tolist() == [1.0, 3.0, 4.0]
    assert "windows of 3 recorded minutes" in table.notes
    assert len(load("extrasensory", window=2, stride=2, limit=1)) == 2


@pytest.mark.parametrize(
    ("rows", "header", "complaint"),
    [
        (MINUTES, "time,f,label:A,label_source", r"its first line is not timestamp, features, label:…, label_source"),
        (MINUTES, "timestamp,f,label_source", r"its first line is not timestamp"),
        (MINUTES, "timestamp,label:A,label_source", r"its first line is not timestamp"),
        ([(1000, 1.0, 2.0, 3.0, 2, 0, 1)], None, r"line 2 has 2 in 'label:SITTING', which is 0, 1 or nan"),
        (
            [(1000, 1.0, "fast", 3.0, 1, 0, 1)],
            None,
            r"its column 'proc_gyro:3d:mean_x' has something",
        ),
        ([("nan", 1.0, 2.0, 3.0, 1, 0, 1)], None, r"line 2 has no timestamp"),
        ([MINUTES[0], (1060, 1.0)], None, r"line 3 ends before its column 'label_source'"),
        ([], None, r"it has a header and no rows"),
    ],
)
def test_a_persons_file_that_is_not_as_published_is_refused(
    own_data: Path, rows: list[tuple[object, ...]], header: str | None, complaint: str
) -> None:
    write_person(own_data, "B1", rows, header)
    with pytest.raises(DataError, match=rf"B1\.features_labels\.csv\.gz is damaged: {complaint}"):
        load("extrasensory")


def test_a_file_that_was_cut_off_and_one_with_other_columns_are_refused(own_data: Path) -> None:
    path = write_person(own_data, "B1", MINUTES * 50)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"B1.* is damaged: it cannot be unzipped"):
        load("extrasensory")
    write_person(own_data, "B1", MINUTES)
    other = ",".join(("timestamp", *FEATURES, "label:SITTING", "label:EATING", "label_source"))
    write_person(own_data, "C3", MINUTES, other)
    with pytest.raises(DataError, match=r"C3.* is damaged: its columns are not those of the other files"):
        load("extrasensory")


def test_people_are_read_from_the_published_archive(tmp_path: Path, own_data: Path) -> None:
    files = [write_person(tmp_path, person, MINUTES) for person in ("A2", "B1")]
    zipped(own_data, extrasensory.EXTRASENSORY, {file.name: file for file in files})
    assert load("extrasensory").group_names == ("A2", "B1")


def test_the_real_people_have_225_features_and_51_labels(real: Callable[..., Path]) -> None:
    real("extrasensory")
    table = load("extrasensory", stride=10)
    assert table.x.shape[1] == 225
    assert len(table.classes) == 51
    assert {"SITTING", "LYING_DOWN", "WITH_FRIENDS"} < set(table.classes)
    data = federate(table)
    assert bool(torch.isfinite(data.x).all())
    assert 0.3 < float(torch.isnan(data.y).double().mean()) < 0.7
