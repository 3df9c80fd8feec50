"""An exported folder predicts in a fresh process that has no fedloom, and says what fedloom says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedloom
from fedloom.data import Scaling
from fedloom.errors import ConfigError, RunError
from fedloom.prediction import Predictor
from fedloom.prediction.export import FORMATS, export
from hospitals import federation, frame, trained

STANDARD = Scaling("standard", "all")
ALONE = """
import json, runpy, sys
sys.modules["fedloom"] = None
for folder in sys.argv[1:]:
    load = runpy.run_path(f"{folder}/out/load.py")
    print(json.dumps(load["outputs"](json.load(open(f"{folder}/rows.json")))))
"""
NETWORKS = ("cnn", "lenet", "lstm", "transformer")


def predicted(folder: Path, *words: object) -> pd.DataFrame:
    """What load.py says in a process that cannot import fedloom."""
    hidden = "import sys, runpy; sys.modules['fedloom'] = None; sys.argv = sys.argv[1:]; "
    code = hidden + "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, str(folder / "load.py"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    (folder.parent / "said.csv").write_text(done.stdout)
    return pd.read_csv(folder.parent / "said.csv")


@pytest.mark.parametrize("to", FORMATS)
def test_a_folder_predicts_without_fedloom(to: str, tmp_path: Path) -> None:
    _, run = trained(federation(scaling=STANDARD), tmp_path / "run", fedloom.Local(lr=0.05))
    rows = frame(20)
    rows.loc[3, "age"], rows.loc[4, "ward"], rows.loc[5, "ward"] = np.nan, "moon", ""
    rows.to_csv(tmp_path / "new.csv", index=False)
    with pytest.warns(UserWarning, match="missing values"):
        expected = run.predict(rows, client="south")
    done = export(Predictor.open(tmp_path / "run", "south"), tmp_path / "out", to)
    assert sorted(done.files) == sorted(path.name for path in (tmp_path / "out").iterdir())
    found = predicted(tmp_path / "out", tmp_path / "new.csv")
    assert list(found) == list(expected)
    assert found["prediction"].tolist() == expected["prediction"].tolist()
    near = 1e-5 if to == "onnx" else 1e-6
    np.testing.assert_allclose(found.iloc[:, 1:], expected.iloc[:, 1:], rtol=0, atol=near)


@pytest.fixture(scope="module", params=["safetensors", "torchscript", "onnx"])
def outputs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, ...]]:
    """By network: what one process without fedloom makes of the folders, what the model does, and how near they are."""
    to, place, expected = request.param, tmp_path_factory.mktemp("exported"), {}
    for name in NETWORKS:
        shape = (6, 3) if name in ("lstm", "transformer") else (1, 8, 8)
        x = np.random.default_rng(0).normal(size=(30, *shape))
        data = fedloom.federate(fedloom.from_arrays(x, np.arange(30) % 3), clients=2)
        options = {"lstm": {"hidden": 4, "layers": 2, "dense": 3}, "cnn": {"channels": [2, 3], "pool": ["max", "avg"]}}
        problem, run = trained(data, None, model=name, **options.get(name, {}))
        export(run.predictor(), place / name / "out", to)
        rows = pd.Series(x.reshape(30, -1).tolist())
        rows.to_json(place / name / "rows.json", orient="values", double_precision=15)
        with torch.no_grad():
            expected[name] = problem.model(run.theta, problem.x)
    command = [sys.executable, "-c", ALONE, *(str(place / name) for name in NETWORKS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = zip(NETWORKS, done.stdout.splitlines(), strict=True)
    return {name: (np.array(json.loads(line)), expected[name], 1e-5 if to == "onnx" else 1e-6) for name, line in said}


@pytest.mark.parametrize("model", NETWORKS)
def test_networks_of_images_and_windows_agree(model: str, outputs: dict[str, tuple[Any, ...]]) -> None:
    found, expected, near = outputs[model]
    np.testing.assert_allclose(found, expected, rtol=0, atol=near)


def test_targets_come_out_in_their_own_units(tmp_path: Path) -> None:
    _, run = trained(federation("regression", STANDARD), None, dtype=torch.float64)
    export(run.predictor(), tmp_path / "out", "state-dict")
    frame(9).to_csv(tmp_path / "new.csv", index=False)
    np.testing.assert_allclose(predicted(tmp_path / "out", tmp_path / "new.csv"), run.predict(frame(9)), rtol=1e-9)


def test_the_shares_of_parties_add_up_to_the_model(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 4))
    table = fedloom.from_parties({"clinic": (None, x[:, :1]), "lab": (None, x[:, 1:])}, (None, x[:, 0] > x[:, 3]))
    data = fedloom.federate(table)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data), dtype=torch.float64)
    run = fedloom.train(problem, fedloom.SharingADMM(), rounds=50, out=tmp_path / "run")
    whole = run.predict(x)
    shares = []
    for party, columns in (("clinic", x[:, :1]), ("lab", x[:, 1:])):
        part = Predictor.open(tmp_path / "run", party)
        export(part, tmp_path / party, "safetensors")
        shares.append(tmp_path / f"{party}.csv")
        part.predict(columns).to_csv(shares[-1], index=False)
    found = predicted(tmp_path / "lab", "--together", *shares)
    assert found["prediction"].astype(str).tolist() == whole["prediction"].tolist()
    np.testing.assert_allclose(found.iloc[:, 1:], whole.iloc[:, 1:], rtol=0, atol=1e-12)


def test_only_an_exported_folder_is_replaced(tmp_path: Path) -> None:
    _, run = trained(federation(), None)
    with pytest.raises(ConfigError, match="no format 'onx'"):
        export(run.predictor(), tmp_path / "out", "onx")
    export(run.predictor(), tmp_path / "out", "state-dict")
    with pytest.raises(RunError, match="is not empty"):
        export(run.predictor(), tmp_path / "out", "safetensors")
    export(run.predictor(), tmp_path / "out", "safetensors", force=True)
    assert not (tmp_path / "out" / "model.pt").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(RunError, match="is not empty"):
        export(run.predictor(), tmp_path / "mine", "safetensors", force=True)
