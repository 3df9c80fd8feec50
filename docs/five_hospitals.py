"""Five hospitals with one file each: from their tables to a model that predicts without fedloom.

``python docs/five_hospitals.py FOLDER`` makes the files there, does with fedloom's commands what the page "From
hospitals' tables to a model in use" tells, and ends with an error where a figure is not as the page says. The tests run
it.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

HOSPITALS = {
    "amberg": (2400, 66),
    "brugg": (1800, 59),
    "celle": (3200, 62),
    "dornbirn": (1200, 68),
    "esslingen": (2000, 56),
}
"""How many patients each has seen, and about how old they are."""
NEW = 800
"""Patients of each who come later: nobody knows yet who falls ill."""
WARDS = ("cardiology", "emergency", "intensive care", "oncology", "surgery")
CLOSE = 0.01
"""How near to a logistic regression on all rows in one place the area under the curve is to come."""


def patients(name: str, rows: int, age: int, random: np.random.Generator) -> pd.DataFrame:
    """Patients of one hospital: numbers, texts, truth values and dates, with gaps; about 3 % fall ill."""
    ward = random.choice(WARDS, rows, p=random.dirichlet(np.full(len(WARDS), 6.0)))
    frame = pd.DataFrame(
        {
            "patient": [f"{name[0].upper()}{number:05d}" for number in random.permutation(rows)],
            "admitted": pd.Timestamp("2023-01-01") + pd.to_timedelta(random.integers(0, 730, rows), unit="D"),
            "age": np.clip(random.normal(age, 16, rows), 18, 99).round().astype(int),
            "sex": random.choice(["f", "m"], rows),
            "ward": ward,
            "smoker": random.random(rows) < 0.25,
            "sbp": (random.normal(128, 18, rows) - 8 * (ward == "intensive care")).round(),
            "creatinine": np.exp(random.normal(-0.05, 0.35, rows)).round(2),
            "temperature": random.normal(37.1, 0.6, rows).round(1),
            "stays": random.poisson(1.2, rows),
        }
    )
    risk = (
        0.03 * (frame["age"] - 60)
        - 0.03 * (frame["sbp"] - 128)
        + 1.1 * np.log(frame["creatinine"])
        + 0.9 * (frame["temperature"] - 37.1)
        + 0.2 * frame["stays"]
        + 0.5 * frame["smoker"]
        + frame["ward"].map({"intensive care": 1.4, "emergency": 0.6, "surgery": -0.5}).fillna(0.0)
    )
    frame["sepsis"] = np.where(random.random(rows) < 1 / (1 + np.exp(5.0 - risk)), "yes", "no")
    frame["smoker"] = frame["smoker"].map({True: "true", False: "false"})
    for column, share in {"sbp": 0.08, "creatinine": 0.15, "smoker": 0.2, "ward": 0.03}.items():
        frame.loc[random.random(rows) < share, column] = None
    return frame


def make_files(folder: Path) -> pd.DataFrame:
    """``hospitals/NAME.csv`` of each, and ``new.csv`` without the label; gives what becomes of the new ones."""
    random, later = np.random.default_rng(0), []
    (folder / "hospitals").mkdir(parents=True)
    for name, (rows, age) in HOSPITALS.items():
        frame = patients(name, rows + NEW, age, random)
        frame.head(rows).to_csv(folder / "hospitals" / f"{name}.csv", index=False)
        later.append(frame.tail(NEW))
    new = pd.concat(later)
    new.drop(columns="sepsis").to_csv(folder / "new.csv", index=False)
    return new


def pooled_auc(folder: Path, new: pd.DataFrame) -> float:
    """What scikit-learn's logistic regression reaches with the rows of all hospitals in one place."""
    seen = pd.concat([pd.read_csv(path) for path in sorted((folder / "hospitals").glob("*.csv"))])

    def told(frame: pd.DataFrame) -> pd.DataFrame:
        days = (pd.to_datetime(frame["admitted"]) - pd.Timestamp(0)).dt.days
        return frame.assign(
            admitted=days, ward=frame["ward"].astype(str), smoker=frame["smoker"].astype(str).str.lower()
        )

    numbers = ["admitted", "age", "sbp", "creatinine", "temperature", "stays"]
    model = make_pipeline(
        make_column_transformer(
            (make_pipeline(SimpleImputer(), StandardScaler()), numbers),
            (OneHotEncoder(handle_unknown="ignore"), ["sex", "ward", "smoker"]),
        ),
        LogisticRegression(max_iter=1000),
    )
    model.fit(told(seen), seen["sepsis"] == "yes")
    return float(roc_auc_score(new["sepsis"] == "yes", model.predict_proba(told(new))[:, 1]))


ROWS = "--data hospitals --label-column sepsis --model linear"
COMMANDS = (
    "fedloom data describe hospitals --label-column sepsis",
    f"fedloom tune fedavg fedprox {ROWS} --trials 3 --rounds 15 --out runs/tuned",
    f"fedloom compare fedavg local central {ROWS} --rounds 15 --repeats 1 --out runs/compared",
    "fedloom run runs/tuned/best.toml --decision balanced-accuracy --out runs/model",
    "fedloom export runs/model exported --to onnx",
    "fedloom predict runs/model --data new.csv --keep patient --out predictions.csv",
)
"""What the page does, in this order."""
FLEET = f"{ROWS} --task binary --rounds 1 --eval-every 0"
DEPLOYED = (f"fedloom run {FLEET} --stack 1 --out runs/simulated", f"fedloom deploy up {FLEET} --out runs/deployed")
"""The same files on a simulated fleet and on one of Flower's, with a node for each hospital."""
ALONE = """
import runpy, sys
sys.modules.update(fedloom=None, torch=None)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script where neither fedloom nor torch can be imported."""


def do(command: str, folder: Path) -> None:
    """One of fedloom's commands, in a process of its own."""
    print(f"$ {command}", flush=True)
    _, *words = shlex.split(command)
    subprocess.run([sys.executable, "-m", "fedloom.cli", *words], cwd=folder, check=True)


def use(folder: Path) -> None:
    """From the tables to a model that predicts without fedloom."""
    new = make_files(folder)
    for command in COMMANDS:
        do(command, folder)
    print("$ python exported/load.py new.csv > exported.csv      # onnxruntime alone: no fedloom, no torch", flush=True)
    with (folder / "exported.csv").open("w") as out:
        subprocess.run([sys.executable, "-c", ALONE, "exported/load.py", "new.csv"], cwd=folder, stdout=out, check=True)
    ours, theirs = (pd.read_csv(folder / name) for name in ("predictions.csv", "exported.csv"))
    assert (ours["prediction"] == theirs["prediction"]).all(), "the exported model decides otherwise"
    told = theirs["probability of yes"]
    assert (ours["probability of yes"] - told).abs().max() < 1e-5, "the exported model says something else"
    found, pooled = float(roc_auc_score(new["sepsis"] == "yes", told)), pooled_auc(folder, new)
    print(f"area under the curve on {len(new):,} new patients: {found:.4f}; all rows in one place: {pooled:.4f}")
    assert found > pooled - CLOSE, "the federated model is further from the pooled one than the page says"


def deploy(folder: Path) -> None:
    """The same files on a fleet of real nodes of this machine: the same bits."""
    for command in DEPLOYED:
        do(command, folder)
    simulated, deployed = (
        json.loads((folder / "runs" / name / "summary.json").read_text())["theta_sha256"]
        for name in ("simulated", "deployed")
    )
    print(f"simulated: {simulated}\ndeployed:  {deployed}")
    assert simulated == deployed, "the fleet has learnt something else"


if __name__ == "__main__":
    use(Path(sys.argv[1]))
    deploy(Path(sys.argv[1]))
