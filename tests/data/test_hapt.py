from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.data import fetch, hapt, load
from fedloom.data.published import cache_folder
from fedloom.errors import ConfigError, DataError

SPANS = "1 1 5 11 266\n1 1 7 267 394\n1 1 1 395 460\n2 2 1 1 192\n"
"""Three windows of standing (256 samples), one of sitting down (128), none of walking (66); then two of walking."""


def write(folder: Path, spans: str = SPANS, samples: int = 500) -> Path:
    raw = folder / "hapt" / "RawData"
    raw.mkdir(parents=True, exist_ok=True)
    (raw / "labels.txt").write_text(spans)
    random = np.random.default_rng(0)
    for experiment, person in ((1, 1), (2, 2)):
        for sensor in ("acc", "gyro"):
            signal = random.normal(size=(samples, 3))
            np.savetxt(raw / f"{sensor}_exp{experiment:02d}_user{person:02d}.txt", signal, fmt="%.9g")
    return raw


def column(name: str) -> int:
    return hapt.FEATURES.index(name)


def test_windows_lie_inside_each_labelled_span_and_belong_to_their_person(own_data: Path) -> None:
    raw = write(own_data)
    table = load("hapt", activities="all", scaling="none").check()
    assert [table.classes[k] for k in table.y] == ["standing"] * 3 + ["stand to sit"] + ["walking"] * 2
    assert table.groups is not None
    assert table.groups.tolist() == [0, 0, 0, 0, 1, 1]
    assert table.group_names == ("person 1", "person 2")
    assert table.time is not None
    assert table.time.tolist() == [0.2, 1.48, 2.76, 266 / 50, 0.0, 64 / 50]
    signal = np.loadtxt(raw / "acc_exp01_user01.txt")[10 + 64 : 10 + 64 + 128]
    assert float(table.x[1, column("acc y mean")]) == pytest.approx(signal[:, 1].mean(), rel=1e-5)
    assert table.notes[1:] == ("2 of the 61 published experiments are here", "2 of the 30 published people are here")


def test_the_basic_activities_leave_changes_of_posture_out_and_a_longer_step_takes_fewer_windows(
    own_data: Path,
) -> None:
    write(own_data)
    table = load("hapt")
    assert table.classes == hapt.ACTIVITIES[:6]
    assert table.y.tolist() == [4, 4, 4, 0, 0]
    assert load("hapt", step=128).y.tolist() == [4, 4, 0]


def test_features_of_a_known_signal_are_the_known_ones() -> None:
    """Gravity along z, a swing of 2.34375 Hz (six turns a window) along x, its mirror image along y; no rotation."""
    at = np.arange(128)
    swing = 0.5 * np.sin(2 * np.pi * 6 * at / 128)
    still = np.zeros(128)
    x = hapt.features(np.stack([swing, -swing, still + 1.0, still, still, still], axis=-1)[None])[0]
    known = {
        "acc z mean": 1.0,
        "acc x mean": 0.0,
        "acc x deviation": 0.5 / np.sqrt(2),
        "acc x energy": 0.125,
        "acc z energy": 1.0,
        "acc x greatest": 0.5,
        "acc x least": -0.5,
        "acc x strongest frequency": 6 / 128 * 50,
        "acc x mean frequency": 6 / 128 * 50,
        "acc x entropy of the spectrum": 0.0,
        "acc x log energy 1.5 to 3 Hz": np.log10(0.0625),
        "acc x log energy 3 to 5 Hz": -8.0,
        "gyro norm deviation": 0.0,
        "acc xy correlation": -1.0,
        "acc xz correlation": 0.0,
        "angle of gravity to z": 0.0,
        "angle of gravity to x": np.pi / 2,
    }
    assert {name: float(x[column(name)]) for name in known} == pytest.approx(known, abs=2e-3)
    assert len(x) == len(set(hapt.FEATURES)) == 137


def test_features_are_kept_and_made_anew_when_the_files_or_the_kept_ones_change(own_data: Path) -> None:
    raw = write(own_data)
    first = load("hapt", scaling="none")
    (kept,) = cache_folder("hapt").iterdir()
    values = dict(np.load(kept))
    np.savez(kept, **values | {"x": values["x"] + 1})
    assert torch.equal(load("hapt", scaling="none").x, first.x + 1)  # it was read, not made
    kept.write_bytes(kept.read_bytes()[:-100])
    assert torch.equal(load("hapt", scaling="none").x, first.x)
    np.savetxt(raw / "acc_exp01_user01.txt", np.ones((500, 3)))
    assert not torch.equal(load("hapt", scaling="none").x, first.x)
    assert sorted(path.suffix for path in cache_folder("hapt").iterdir()) == [".npz", ".npz"]


def test_a_cache_that_cannot_be_written_is_said_and_does_no_harm(
    own_data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(own_data)
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="hapt: the features cannot be kept in"):
        assert len(load("hapt")) == 5


def test_the_published_archive_is_read_as_it_is(own_data: Path, tmp_path: Path) -> None:
    raw = write(tmp_path)
    (own_data / "hapt").mkdir()
    archive = own_data / "hapt" / hapt.HAPT.file
    with zipfile.ZipFile(archive, "w") as opened:
        for file in raw.iterdir():
            opened.write(file, f"RawData/{file.name}")
        opened.writestr("Train/y_train.txt", "5")
        opened.writestr("README.txt", "not needed")
    assert len(load("hapt")) == 5
    assert fetch("hapt") == [archive]


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("labels.txt", "1 1 13 1 200\n", r"labels\.txt is damaged: line 1 is no activity"),
        ("labels.txt", "1 1 5 200 1\n", r"labels\.txt is damaged: line 1 is no activity"),
        (
            "labels.txt",
            "1 1 5 1 99999999\n",
            r"labels\.txt is damaged: experiment 1 .* ends at 99999999 of 500 samples",
        ),
        ("labels.txt", "1 1 5 1\n", r"labels\.txt is damaged: its lines are not all 5 numbers"),
        ("labels.txt", "3 7 5 1 200\n", r"has no acc_exp03_user07\.txt, which labels\.txt speaks of"),
        ("labels.txt", "1 1 5 1 100\n", "not one labelled span has 128 samples"),
        ("labels.txt", "", "cannot be read as lines of numbers"),
        ("acc_exp01_user01.txt", "1 2 3\n1 2 three\n", "cannot be read as lines of numbers"),
        ("gyro_exp01_user01.txt", "1 2 3\n", "it has 1 lines and the accelerometer's file 500"),
        ("gyro_exp01_user01.txt", "1 2 inf\n", "its lines are not all 3 numbers"),
    ],
)
def test_files_that_are_not_as_published_are_refused(own_data: Path, file: str, text: str, complaint: str) -> None:
    (write(own_data) / file).write_text(text)
    with pytest.raises(DataError, match=complaint):
        load("hapt")


def test_without_files_the_error_says_where_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDLOOM_DATA", raising=False)
    with pytest.raises(DataError, match=r"hapt: HAPT Data Set\.zip is not in .*does not download it; get it from http"):
        load("hapt")
    with pytest.raises(ConfigError, match="activities = 'some' cannot be"):
        load("hapt", activities="some")


def test_the_real_windows_are_as_many_as_known_and_tell_the_activities_of_strangers_apart(
    real: Callable[..., Path],
) -> None:
    real("hapt")
    everything = load("hapt", activities="all")
    assert len(everything) == 10_929
    table = load("hapt")
    assert len(table) == 10_411
    assert table.groups is not None
    assert table.group_names is not None
    assert len(table.group_names) == 30
    assert len(list(cache_folder("hapt").iterdir())) == 1
    x = (table.x - table.x.mean(0)) / table.x.std(0)
    new = table.groups >= 21
    onto = torch.nn.functional.one_hot(table.y[~new], 6).float()
    rows = torch.cat([x, torch.ones(len(x), 1)], 1)
    weights = torch.linalg.lstsq(rows[~new], onto, driver="gelsd").solution
    assert float(((rows[new] @ weights).argmax(1) == table.y[new]).float().mean()) > 0.93
