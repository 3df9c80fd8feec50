"""From the files of hospitals to predictions, as their engineer would go."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    folder = tmp_path / "hospitals"
    folder.mkdir()
    random = np.random.default_rng(0)
    for name in ("north", "south"):
        frame = pd.DataFrame(
            {
                "patient": [f"{name}{k}" for k in range(60)],
                "age": random.uniform(20, 90, 60).round(1),
                "sbp": np.where(np.arange(60) % 7 == 0, np.nan, 1e5 * random.normal(size=60)),
                "ward": random.choice(["er", "icu"], 60),
                "town": [f"t{k % 25:02}" for k in range(60)],
                "came": pd.date_range("2024-01-01", periods=60).strftime("%Y-%m-%d"),
                "[red]code": random.integers(0, 3, 60),
            }
        )
        frame.assign(ill=np.where(frame["age"] > 55, "yes", "no")).to_csv(folder / f"{name}.csv", index=False)
    return folder


def test_files_are_described_trained_on_and_predicted(call: Any, hospitals: Path, tmp_path: Path) -> None:
    flags = ["--label-column", "ill", "--categories", "[red]code", "--missing", "indicator", "--dates", "parts"]
    said = call("data", "describe", "hospitals", *flags).output
    assert "hospitals: 2 clients, binary" in said
    assert "[red]code" in said
    told = json.loads(call("data", "describe", "hospitals/north.csv", "hospitals/south.csv", *flags, "--json").output)
    fates = {one["column"]: one for one in told["read"]}
    assert told["labels"] == ["north", "south"]
    assert fates["patient"]["becomes"] == "left out"
    assert fates["sbp"] == {
        "column": "sbp",
        "holds": "numbers",
        "rows": 120,
        "missing": 18,
        "categories": [],
        "becomes": "a number, and where it is missing",
    }
    assert (fates["town"]["becomes"], len(fates["town"]["categories"])) == ("embedded", 25)
    assert fates["came"]["becomes"] == "days, month, weekday"
    assert fates["[red]code"]["categories"] == ["0", "1", "2"]
    call("run", "--data", "hospitals/*.csv", *flags, "--rounds", 3, "--out", "made", "--quiet", "--no-report")
    kept = tomllib.loads((tmp_path / "made" / "config.toml").read_text())["data"]
    assert [Path(path).name for path in kept["path"]] == ["north.csv", "south.csv"]
    assert (kept["scaling"], kept["missing"]) == ("standard", "indicator")
    new = pd.read_csv(hospitals / "north.csv").drop(columns=["ill", "patient"]).head(3)
    new.loc[0, ["ward", "town"]] = ["attic", "t99"]
    new.to_csv("new.csv", index=False)
    said = " ".join(call("predict", "made", "--data", "new.csv", "--out", "out.csv").output.split())
    assert "categories that the model does not know, read as none of its own: ward (1), town (1)" in said
    assert len(pd.read_csv("out.csv")) == 3


def test_several_files_are_a_client_each_and_nothing_else_can_be_several(call: Any, hospitals: Path) -> None:
    two = ["--data", "hospitals/north.csv", "--data", "hospitals/south.csv"]
    said = call("run", *two, "--label-column", "ill", "--drop", "patient,town", "--rounds", 1, "--no-report").output
    assert "2 clients" in said
    assert "only files can be several" in call("run", *two, "--data", "digits", code=2).output
    pd.read_csv(hospitals / "south.csv").drop(columns="sbp").to_csv(hospitals / "south.csv", index=False)
    said = " ".join(call("run", *two, "--label-column", "ill", code=2).output.split())
    assert "south.csv has no column 'sbp', which hospitals/north.csv has" in said


def test_raw_columns_train_by_default_and_none_leaves_them(call: Any, hospitals: Path, summary: Any) -> None:
    flags = ["--data", "hospitals", "--label-column", "ill", "--drop", "patient", "--rounds", 30, "--quiet"]
    call("run", *flags, "--out", "scaled", "--no-report")
    assert summary("scaled")["metrics"]["accuracy"] > 0.85
    call("run", *flags, "--scaling", "none", "--out", "raw", "--no-report")
    assert summary("raw")["metrics"]["loss"] > 10 * summary("scaled")["metrics"]["loss"]


def test_an_experiment_file_may_name_several_files_and_lists_of_categories(call: Any, hospitals: Path) -> None:
    Path("mine.toml").write_text(
        'rounds = 1\n[data]\npath = ["hospitals/north.csv", "hospitals/south.csv"]\nlabel_column = "ill"\n'
        'drop = "patient"\n[data.categories]\nward = ["icu", "er", "attic"]\n'
    )
    call("run", "mine.toml", "--out", "made", "--quiet", "--no-report")
    card = json.loads(Path("made/model.json").read_text())
    assert {column["name"]: column["categories"] for column in card["encoding"]}["ward"] == ["icu", "er", "attic"]
    call("resume", "made", "--no-report")
    Path("mine.toml").write_text("[data]\npath = [3]\n")
    assert "data.path = [3] should be a text or a list of texts" in call("run", "mine.toml", code=2).output
