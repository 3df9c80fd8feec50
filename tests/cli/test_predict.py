"""``fedloom predict`` and ``fedloom export``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import Result

import fedloom

Call = Callable[..., Result]


@pytest.fixture
def run(call: Call) -> Path:
    random = np.random.default_rng(0)
    rows = pd.DataFrame(
        {"ward": np.arange(60) % 3, "age": random.uniform(20, 90, 60).round(1), "dose": random.normal(size=60)}
    )
    rows.assign(sick=rows["age"] > 50).to_csv("rows.csv", index=False)
    flags = ("--set", "data.client_column=ward", "--set", "data.label_column=sick", "--set", "data.standardise=true")
    call("run", "--data", "rows.csv", *flags, "--rounds", 2, "--no-report", "--quiet", "--out", "run")
    return Path("run")


def test_predictions_are_a_file_with_a_line_for_each_row(call: Call, run: Path) -> None:
    result = call("predict", run, "--data", "rows.csv", "--keep", "age")
    assert "60 rows of rows.csv, fedavg in run → predictions.csv" in result.output
    assert "columns that the model does not read: ward, sick" in result.output
    found = pd.read_csv("predictions.csv")
    assert list(found) == ["age", "prediction", "probability of False", "probability of True"]
    expected = fedloom.load_run(run).predict(pd.read_csv("rows.csv")[["age", "dose"]])
    np.testing.assert_array_equal(found["probability of True"], expected["probability of True"])
    assert "is there already" in call("predict", run, "--data", "rows.csv", code=2).stderr
    call("predict", run, "--data", "rows.csv", "--force", "--keep", "all")
    assert list(pd.read_csv("predictions.csv"))[:4] == ["ward", "age", "dose", "sick"]


def test_a_long_file_is_predicted_in_parts(call: Call, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call("predict", run, "--data", "rows.csv", "--out", "whole.csv")
    monkeypatch.setattr("fedloom.prediction.files._ROWS", 7)
    call("predict", run, "--data", "rows.csv", "--out", "parts.csv")
    whole, parts = pd.read_csv("whole.csv"), pd.read_csv("parts.csv")
    pd.testing.assert_frame_equal(
        whole, parts, rtol=0, atol=1e-6
    )  # how many rows a product has may change its last bits


def test_what_cannot_be_is_said_and_nothing_is_written(call: Call, run: Path) -> None:
    assert (
        "no client 'x'; they are 0, 1, 2" in call("predict", run, "--data", "rows.csv", "--client", "x", code=2).stderr
    )
    assert "nowhere.csv is not there" in call("predict", run, "--data", "nowhere.csv", code=2).stderr
    assert "no column 'id' to keep" in call("predict", run, "--data", "rows.csv", "--keep", "id", code=2).stderr
    Path("few.csv").write_text("age\n3\n")
    assert "no column 'dose'" in call("predict", run, "--data", "few.csv", code=2).stderr
    assert not Path("predictions.csv").exists()


def test_a_model_is_exported(call: Call, run: Path) -> None:
    result = call("export", run, "out", "--to", "torchscript")
    assert "model.ts, model.json, load.py, README.md → out" in result.output
    assert "no format 'pickle'" in call("export", run, "other", "--to", "pickle", code=2).stderr
