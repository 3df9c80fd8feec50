"""Beijing Multi-Site Air Quality (Zhang et al., 2017): a CSV for each of twelve stations, hourly from 2013 to 2017."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedloom.data.published import Member, Published, damaged, obtain_members, shortfall
from fedloom.data.register import SOURCES
from fedloom.data.scaling import By, Kind, Scaling
from fedloom.data.series import Numbers, Series, Windows, check_lines, filled_forward, read_csv, read_numbers, table_of
from fedloom.data.sizes import Floats
from fedloom.data.table import Table
from fedloom.types import Count

if TYPE_CHECKING:
    from pandas import DataFrame

BEIJING_AIR = Published(
    "beijing-air",
    "PRSA2017_Data_20130301-20170228.zip",
    ("https://archive.ics.uci.edu/ml/machine-learning-databases/00501/",),
    "d1b9261c54132f04c374f762f1e5e512af19f95c95fd6bfa1e8ac7e927e3b0b8",
)
POLLUTANTS = ("PM2.5", "PM10", "SO2", "NO2", "CO", "O3")
WEATHER = ("TEMP", "PRES", "DEWP", "RAIN", "WSPM")
_CIRCLES = ("wind north", "wind east", "hour cosine", "hour sine", "season cosine", "season sine")
COLUMNS = (*POLLUTANTS, *WEATHER, *_CIRCLES)
"""The columns of a window, in order."""
_WINDS = ("N", "NNE", "NE", "ENE", "E", "ESE", "SE", "SSE", "S", "SSW", "SW", "WSW", "W", "WNW", "NW", "NNW")
_STATIONS, _HOURS = 12, 35_064
_DAY, _YEAR = 86_400.0, 365.25 * 86_400.0


@SOURCES.register(
    "beijing-air",
    task="regression",
    rows="76,727 (12 x 35,064 hours)",
    features="24x17",
    origin="UCI Beijing Multi-Site Air Quality (Zhang et al., 2017)",
    licence="CC BY 4.0",
    natural=True,
    files=lambda: sorted({member.file for member in stations()}),
)
def beijing_air(
    window: Count = 24,
    stride: Count = 5,
    limit: Count | None = None,
    scaling: Kind = "standard",
    scaling_by: By = "all",
) -> Table:
    """Air quality an hour ahead at 12 stations, from windows of pollutants and weather.

    Six pollutants are predicted from the last ``window`` hours of pollutants and weather at the same station. A window
    ends every ``stride`` hours, and a station has at most the first ``limit`` of them. What was not measured is filled
    with the station's last known value, and before the first one with the mean of its training rows; but a window whose
    target was not measured is left out. The wind's direction, the hour and the season are given as cosine and sine.
    Natural clients are the stations.

    The default window is a day, so that each holds one of the daily ups and downs. The default stride has no factor in
    common with 24, so that windows end at every hour of the day; they take 125 MB instead of 625.
    """
    windows = Windows(window, stride, limit)
    series = [_station(member) for member in stations()]
    return table_of(
        "beijing-air",
        "regression",
        series,
        windows,
        feature_names=COLUMNS,
        target_names=POLLUTANTS,
        scaling=Scaling(scaling, scaling_by),
        notes=_notes(series, windows),
    )


def stations() -> list[Member]:
    """The stations' files, after a download if need be."""
    return obtain_members(BEIJING_AIR, "PRSA_Data_*.csv")


def _notes(series: list[Series], windows: Windows) -> tuple[str, ...]:
    hours = sum(len(station.time) + 1 for station in series)
    return (
        f"windows of {windows.length} hours, one every {windows.stride}, to the pollutants of the next (µg/m³)",
        *shortfall(len(series), _STATIONS, "stations"),
        *shortfall(hours, _HOURS * len(series), "hours of these stations"),
    )


def _station(member: Member) -> Series:
    path = member.path
    frame = read_csv(path, member.content(), "station")
    name = str(frame["station"].iloc[0])
    check_lines(path, (frame["station"] != name).to_numpy(), f"is not of its station {name}")
    time = _seconds(path, read_numbers(path, frame, ("year", "month", "day", "hour")))
    measured = read_numbers(path, frame, (*POLLUTANTS, *WEATHER)).astype(np.float32)
    seen = filled_forward(np.column_stack([measured, _wind(path, frame)]))
    inputs = np.column_stack([seen, _cycles(time)])
    return Series(name, inputs[:-1], measured[1:, : len(POLLUTANTS)], time[1:])


def _seconds(path: Path, date: Floats) -> Floats:
    """Seconds since 1970 by the station's own clock; every hour must follow the one before it."""
    check_lines(path, np.asarray(np.isnan(date).any(1)), "has no whole date")
    year, month, day, hour = date.astype(np.int64).T
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    seconds: Floats = (months.astype("datetime64[D]").astype(np.int64) + day - 1) * _DAY + hour * 3600.0
    jumps = np.diff(seconds, prepend=seconds[0] - 3600) != 3600
    check_lines(path, jumps, "is not the hour after the line before it")
    return seconds


def _wind(path: Path, frame: DataFrame) -> Numbers:
    """Cosine and sine of where the wind comes from, clockwise from north; NaN where that is not known."""
    if "wd" not in frame.columns:
        raise damaged(path, "its header has no column 'wd'")
    angles = frame["wd"].map({name: k * np.pi / 8 for k, name in enumerate(_WINDS)}).to_numpy(dtype=np.float64)
    strange = np.isnan(angles) & frame["wd"].notna().to_numpy()
    if strange.any():
        line = int(strange.argmax())
        raise damaged(path, f"line {line + 2} has no wind direction in its column 'wd': {frame['wd'].iloc[line]!r}")
    return np.column_stack([np.cos(angles), np.sin(angles)]).astype(np.float32)


def _cycles(time: Floats) -> Numbers:
    """The hour of the day and the season as places on a circle: midnight is near 23 o'clock, December near January."""
    turns = [2 * np.pi * time / length for length in (_DAY, _YEAR)]
    return np.column_stack([f(turn) for turn in turns for f in (np.cos, np.sin)]).astype(np.float32)
