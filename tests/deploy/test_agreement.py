"""What a fleet agrees on before its first round: columns, classes, scales; so that it trains on the simulator's numbers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from local_grid import LocalGrid, LocalNode

from fedloom.deploy import Terms, serve
from fedloom.deploy.rows import fleet_experiment
from fedloom.engine.run import Run
from fedloom.experiment import Experiment
from fedloom.prediction import Predictor

NAMES = ("graz", "lyon", "oslo")
EXPERIMENT = """
rounds = 3
seed = 4
{top}
[data]
label_column = "{label}"
task = "{task}"
drop = ["id"]
{data}
[model]
name = "{model}"
[method]
name = "{method}"
lr = 0.05
batch = 8
[evaluation]
every = 0
[execution]
stack = 1
executor = "serial"
"""


def rows(hospital: int, count: int = 40) -> pd.DataFrame:
    """What a hospital has: texts that others do not know, gaps, large numbers, and a date."""
    random = np.random.default_rng(hospital)
    frame = pd.DataFrame(
        {
            "id": [f"{hospital}-{k}" for k in range(count)],
            "age": random.integers(20, 90, count),
            "pressure": np.where(random.random(count) < 0.2, np.nan, 120 + 15 * random.normal(size=count)),
            "ward": random.choice([f"ward {hospital}", "emergency", "surgery"], count),
            "admitted": pd.date_range(f"202{hospital}-03-01", periods=count, freq="31h").strftime("%Y-%m-%d"),
            "smokes": random.choice([True, False], count),
            "salt": np.full(count, np.nan) if hospital == 1 else random.normal(size=count).round(3),
        }
    )
    risk = frame["age"] / 30 + frame["smokes"] + random.normal(size=count)
    return frame.assign(outcome=np.where(risk > 2.5, "died", "lived"), cost=1e7 + 40 * risk)


def project(tmp_path: Path, **written: str) -> Path:
    """A fleet's app and a file for each of its nodes."""
    folder = tmp_path / "app"
    folder.mkdir(parents=True)
    given = {"top": "", "label": "outcome", "task": "binary", "data": "", "model": "mlp", "method": "fedavg"} | written
    leave = "cost" if given["label"] == "outcome" else "outcome"
    given["data"] = given["data"] if "drop" in given["data"] else given["data"]
    text = EXPERIMENT.format(**given).replace('drop = ["id"]', f'drop = ["id", "{leave}"]')
    (folder / "experiment.toml").write_text(text)
    for number, name in enumerate(NAMES):
        rows(number).to_csv(tmp_path / f"{name}.csv", index=False)
    return folder


def nodes(folder: Path, names: tuple[str, ...] = NAMES) -> LocalGrid:
    configs = [
        {"name": name, "rows": str(folder.parent / f"{name}.csv"), "state": str(folder / f"state-{name}")}
        for name in names
    ]
    return LocalGrid(LocalNode(config, folder) for config in configs)


def deployed(folder: Path, grid: LocalGrid, out: str = "run", **terms: Any) -> Run:
    chosen = {"nodes": 3, "wait": 1.0, "deadline": 1.0, **terms}
    return serve(grid, fleet_experiment(folder / "experiment.toml"), Terms(out=str(folder / out), **chosen))


def simulated(folder: Path, names: tuple[str, ...] = NAMES) -> Run:
    paths = [str(folder.parent / f"{name}.csv") for name in names]
    return Experiment.load(folder / "experiment.toml", {"data.path": paths}).run(folder / "simulated")


CASES = {
    "standard": {},
    "min-max": {"data": 'scaling = "min-max"'},
    "none": {"data": 'scaling = "none"\nmissing = "indicator"'},
    "regression": {"label": "cost", "task": "regression", "top": 'dtype = "float64"'},
    "embedded": {"data": "embed_from = 2\nvalidation = 0.2"},
    "chronological": {"data": 'timestamp_column = "admitted"\nchronological = true', "method": "scaffold"},
}


@pytest.mark.parametrize("case", CASES)
def test_nodes_with_files_of_their_own_train_on_the_numbers_of_the_simulator(tmp_path: Path, case: str) -> None:
    folder = project(tmp_path, **CASES[case])
    run, expected = deployed(folder, nodes(folder)), simulated(folder)
    assert run.summary["theta_sha256"] == expected.summary["theta_sha256"]
    assert run.summary["metrics"] == pytest.approx(expected.summary["metrics"], rel=1e-6)
    new = rows(7).drop(columns=["id", "outcome", "cost"])
    new.loc[3, "ward"] = "unheard of"
    with pytest.warns(UserWarning, match="unheard|categories|ward"):
        ours, theirs = (Predictor.open(folder / out).predict(new) for out in ("run", "simulated"))
    if case == "none":  # where the simulator fills by the mean of filled rows
        ours, theirs = ours[new["pressure"].notna()], theirs[new["pressure"].notna()]
    pd.testing.assert_frame_equal(ours, theirs, rtol=1e-9)
