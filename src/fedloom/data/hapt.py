"""HAPT (Reyes-Ortiz, Oneto, Samà, Parra and Anguita, 2016): a phone at the waist of 30 people, and what they did.

The folder ``RawData`` has for every experiment the accelerometer (``acc_expEE_userUU.txt``, in g) and the gyroscope
(``gyro_expEE_userUU.txt``, in radians a second), three numbers a line, 50 lines a second; ``labels.txt`` has a line for
each span: experiment, user, activity, first and last line of the span, counted from 1. A span is cut into windows of
128 lines (2.56 s), and :func:`features` makes numbers of each.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedloom.capacity import refuse_larger
from fedloom.data.published import Member, Published, cache_folder, damaged, obtain_members, shortfall
from fedloom.data.reading import read_columns
from fedloom.data.register import SOURCES
from fedloom.data.scaling import By, Kind, Scaling
from fedloom.data.sizes import Floats, Whole
from fedloom.data.table import Table
from fedloom.errors import DataError
from fedloom.types import Count

HAPT = Published(
    "hapt",
    "HAPT Data Set.zip",
    (),
    "",
    page="https://archive.ics.uci.edu/ml/machine-learning-databases/00341/ (HAPT Data Set.zip, or its folder RawData)",
)
RATE, WINDOW = 50, 128
"""Lines a second, and lines of a window."""
ACTIVITIES = (
    *("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying"),
    *("stand to sit", "sit to stand", "sit to lie", "lie to sit", "stand to lie", "lie to stand"),
)
_BASIC, _PEOPLE, _EXPERIMENTS = 6, 30, 61
_FILE = re.compile(r"(acc|gyro)_exp(\d+)_user(\d+)\.txt")
_VERSION = 1
"""Of the features: to be raised whenever the numbers change, since they are kept in the cache."""
_BANDS = ((0.3, 1.5), (1.5, 3.0), (3.0, 5.0), (5.0, 10.0), (10.0, 25.1))
"""In Hz, the lower end being part of a band: steps are near 2, their harmonics above."""
_SIGNALS = tuple(f"{sensor} {axis}" for sensor in ("acc", "gyro") for axis in ("x", "y", "z", "norm"))
_OF_EACH = (
    *("mean", "deviation", "median deviation", "least", "greatest", "quartile range", "energy", "jerk"),
    *(f"log energy {low:g} to {high:.0f} Hz" for low, high in _BANDS),
    *("entropy of the spectrum", "strongest frequency", "mean frequency"),
)
_PAIRS = tuple(f"{sensor} {a}{b}" for sensor in ("acc", "gyro") for a, b in ("xy", "xz", "yz"))
FEATURES = (
    *(f"{signal} {what}" for signal in _SIGNALS for what in _OF_EACH),
    *(f"{pair} correlation" for pair in _PAIRS),
    *(f"angle of gravity to {axis}" for axis in "xyz"),
)
"""The names of the features of a window, in order."""


@SOURCES.register(
    "hapt",
    task="classification",
    rows="10,411 (10,929 with transitions)",
    features=str(len(FEATURES)),
    origin="UCI Smartphone-Based Recognition of Human Activities and Postural Transitions (Reyes-Ortiz et al., 2016)",
    licence="CC BY 4.0",
    natural=True,
    files=lambda: sorted({member.file for member in recordings()}),
)
def hapt(
    activities: Literal["basic", "all"] = "basic",
    step: Count = 64,
    scaling: Kind = "standard",
    scaling_by: By = "all",
) -> Table:
    """What 30 people do, from the accelerometer and the gyroscope of a phone.

    Windows of 2.56 seconds inside each labelled span, one every ``step`` samples, of 50 samples a second: with 64,
    half of a window is that of the one before; with 128 they share nothing. ``activities`` are the six "basic" ones,
    or "all" twelve, of which six are changes of posture. The features are those of fedloom, not the 561 of the
    publisher, and are kept in the cache once they are computed. Natural clients are the people.
    """
    members = recordings()
    data = {member.path.name: member.content() for member in members}
    key = hashlib.sha256(f"{_VERSION} {WINDOW} {step}".encode())
    for name in sorted(data):
        key.update(f"\n{name} {len(data[name])}\n".encode() + data[name])
    windows = _kept(cache_folder("hapt") / f"features-{key.hexdigest()[:32]}.npz", members[0].path.parent, data, step)
    if activities == "basic":
        windows = windows.of(windows.activity < _BASIC)
    if len(windows.x) == 0:
        raise DataError(f"hapt: not one labelled span has {WINDOW} samples; give the published files")
    people, groups = np.unique(windows.person, return_inverse=True)
    return Table(
        "hapt",
        torch.from_numpy(windows.x),
        torch.from_numpy(windows.activity),
        "classification",
        ACTIVITIES[:_BASIC] if activities == "basic" else ACTIVITIES,
        groups=torch.from_numpy(groups.astype(np.int64)),
        group_names=tuple(f"person {person}" for person in people),
        time=torch.from_numpy(windows.time),
        feature_names=FEATURES,
        scaling=Scaling(scaling, scaling_by),
        notes=(
            f"windows of {WINDOW} samples at {RATE} Hz, one every {step}",
            *shortfall(len(data) // 2, _EXPERIMENTS, "experiments"),
            *shortfall(len(people), _PEOPLE, "people"),
        ),
    )


def recordings() -> list[Member]:
    """The files of the folder RawData, which may be in the published archive."""
    found = obtain_members(HAPT, "*.txt", "RawData")
    return [member for member in found if member.path.name == "labels.txt" or _FILE.fullmatch(member.path.name)]


@dataclass(frozen=True, eq=False)
class _Windows:
    """The features of all windows in order of person and time; of each its activity, its person and its begin."""

    x: Any
    activity: Whole
    person: Whole
    time: Floats

    def of(self, rows: Any) -> _Windows:
        return _Windows(self.x[rows], self.activity[rows], self.person[rows], self.time[rows])


def _kept(kept: Path, folder: Path, data: dict[str, bytes], step: int) -> _Windows:
    """The windows from the cache; if they are not there, or not whole, they are made and kept."""
    if kept.is_file():
        try:
            parts = read_columns(kept)
            found = _Windows(*(parts[name] for name in ("x", "activity", "person", "time")))
            if found.x.shape == (len(found.time), len(FEATURES)) and found.x.dtype == np.float32:
                return found
        except (DataError, KeyError):
            pass  # made anew below
    made = _windows(folder, data, step)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        handle, unfinished = tempfile.mkstemp(dir=kept.parent, suffix=".tmp")
        try:
            with open(handle, "wb") as file:
                np.savez(file, x=made.x, activity=made.activity, person=made.person, time=made.time)
            os.replace(unfinished, kept)
        except BaseException:
            Path(unfinished).unlink(missing_ok=True)
            raise
    except OSError as error:
        warnings.warn(f"hapt: the features cannot be kept in {kept.parent} ({error.strerror or error})", stacklevel=2)
    return made


def _windows(folder: Path, data: dict[str, bytes], step: int) -> _Windows:
    """The windows of all labelled spans."""
    if "labels.txt" not in data:
        raise DataError(f"{folder} has no labels.txt; put the whole folder RawData there")
    spans = _numbers(folder / "labels.txt", data["labels.txt"], 5).astype(np.int64)
    wrong = (spans[:, 2] < 1) | (spans[:, 2] > len(ACTIVITIES)) | (spans[:, 3] < 1) | (spans[:, 4] < spans[:, 3])
    if wrong.any():
        raise damaged(folder / "labels.txt", f"line {int(wrong.argmax()) + 1} is no activity, first and last sample")
    parts, elapsed = list[_Windows](), dict[int, float]()
    for experiment, person in sorted({(int(e), int(u)) for e, u in spans[:, :2]}, key=lambda pair: pair[::-1]):
        signal = _recording(folder, data, experiment, person)
        own = spans[(spans[:, 0] == experiment) & (spans[:, 1] == person)]
        if own[:, 4].max() > len(signal):
            raise damaged(
                folder / "labels.txt",
                f"experiment {experiment} has a span that ends at {own[:, 4].max()} of {len(signal)} samples",
            )
        first, activity = _begins(own[own[:, 3].argsort(kind="stable")], step)
        refuse_larger(
            8 * WINDOW * 16 * len(first), "hapt: windows of one experiment", "Choose a larger step.", DataError
        )
        begun = elapsed.get(person, 0.0)
        elapsed[person] = begun + len(signal) / RATE
        x = features(signal[first[:, None] + np.arange(WINDOW)])
        parts.append(_Windows(x, activity, np.full(len(first), person), begun + first / RATE))
    return _Windows(*(np.concatenate([getattr(part, name) for part in parts]) for name in _Windows.__annotations__))


def _begins(spans: Whole, step: int) -> tuple[Whole, Whole]:
    """The first sample of each window, counted from 0, and its activity, counted from 0."""
    begins = [np.arange(first - 1, last - WINDOW + 1, step) for first, last in spans[:, 3:]]
    return np.concatenate(begins), np.repeat(spans[:, 2] - 1, [len(one) for one in begins])


def _recording(folder: Path, data: dict[str, bytes], experiment: int, person: int) -> Floats:
    """The six columns of an experiment."""
    sensors = []
    for sensor in ("acc", "gyro"):
        name = f"{sensor}_exp{experiment:02d}_user{person:02d}.txt"
        if name not in data:
            raise DataError(f"{folder} has no {name}, which labels.txt speaks of; put the whole folder RawData there")
        sensors.append(_numbers(folder / name, data[name], 3))
    if len(sensors[0]) != len(sensors[1]):
        raise damaged(folder / name, f"it has {len(sensors[1])} lines and the accelerometer's file {len(sensors[0])}")
    return np.column_stack(sensors)


def _numbers(path: Path, data: bytes, columns: int) -> Floats:
    """The numbers of a file of lines, all with so many."""
    import pandas

    try:
        frame = pandas.read_csv(io.BytesIO(data), sep=r"\s+", header=None, dtype=np.float64)
    except (ValueError, OverflowError) as error:  # what pandas raises is one
        raise damaged(path, f"it cannot be read as lines of numbers ({' '.join(str(error).split())[:200]})") from error
    if frame.shape[1] != columns or not np.isfinite(frame.to_numpy()).all():
        raise damaged(path, f"its lines are not all {columns} numbers")
    values: Floats = frame.to_numpy()
    return values


def features(windows: Floats) -> Any:
    """The features of windows (windows, samples, six columns), in the order of ``FEATURES``, as float32.

    They depend on the samples of the window alone, so that no test row tells anything of another. Of each axis and of
    the norm of each sensor, in time: mean, standard deviation, median of the distance to the median, least, greatest,
    range of the middle half, mean square, and the deviation of the rate of change (jerk). In frequency, of the signal
    without its mean: the logarithm of the energy in five bands, the entropy of the spectrum, the strongest frequency
    and the mean one weighted by energy. Then the correlations of the axes of a sensor, and the angles between the mean
    acceleration, which is gravity's, and the axes.
    """
    norms = np.sqrt(np.square(windows.reshape(*windows.shape[:2], 2, 3)).sum(-1))
    columns = np.concatenate([windows[..., :3], norms[..., :1], windows[..., 3:], norms[..., 1:]], axis=2)
    signals = columns.swapaxes(1, 2)
    mean = signals.mean(-1)
    moving = signals - mean[..., None]
    deviation = np.sqrt(np.square(moving).mean(-1))
    low, median, high = np.quantile(signals, (0.25, 0.5, 0.75), axis=-1)
    in_time = [
        mean,
        deviation,
        np.median(np.abs(signals - median[..., None]), axis=-1),
        signals.min(-1),
        signals.max(-1),
        high - low,
        np.square(signals).mean(-1),
        RATE * np.diff(signals, axis=-1).std(-1),
    ]
    of_each = np.stack([*in_time, *_spectrum(moving)], axis=-1)
    return np.concatenate(
        [of_each.reshape(len(windows), len(_SIGNALS) * len(_OF_EACH)), _correlations(moving, deviation), _angles(mean)],
        axis=1,
    ).astype(np.float32)


def _spectrum(moving: Floats) -> Sequence[Floats]:
    """The features in frequency of signals without their mean."""
    energy = np.square(np.abs(np.fft.rfft(moving, axis=-1))) / moving.shape[-1] ** 2
    frequency = np.fft.rfftfreq(moving.shape[-1], 1 / RATE)
    share = energy / np.maximum(energy.sum(-1, keepdims=True), 1e-12)
    return [
        *(np.log10(1e-8 + energy[..., (low <= frequency) & (frequency < high)].sum(-1)) for low, high in _BANDS),
        -(share * np.log(np.maximum(share, 1e-12))).sum(-1),
        frequency[energy.argmax(-1)],
        (share * frequency).sum(-1),
    ]


def _correlations(moving: Floats, deviation: Floats) -> Floats:
    """Of the axes of each sensor, pair by pair; 0 where one does not move."""
    pairs = [(at + a, at + b) for at in (0, 4) for a, b in ((0, 1), (0, 2), (1, 2))]
    found = [
        (moving[:, a] * moving[:, b]).mean(-1) / np.maximum(deviation[:, a] * deviation[:, b], 1e-12) for a, b in pairs
    ]
    return np.stack(found, axis=1)


def _angles(mean: Floats) -> Floats:
    """In radians, between the mean acceleration and each axis."""
    gravity = mean[:, :3]
    length = np.sqrt(np.square(gravity).sum(-1, keepdims=True))
    angles: Floats = np.arccos(np.clip(gravity / np.maximum(length, 1e-12), -1, 1))
    return angles
