"""Rows as a hospital has them: a number, a text, a truth value, a date; and a run whose network reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import fedloom
from fedloom.data import Scaling
from fedloom.engine.run import Run
from fedloom.federation.encoding import Column, Encoding

COLUMNS = Encoding(
    (
        Column("age", "number"),
        Column("ward", "category", ("east", "north", "süd, 3")),
        Column("smokes", "boolean", indicator=True),
        Column("came", "date", parts=("days", "weekday")),
        Column("site", "index", ("a", "b")),
    )
)


def frame(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    """New rows, all of them complete."""
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": random.uniform(80, 360, rows).round() / 4,
            "ward": random.choice(["east", "north", "süd, 3"], rows),
            "smokes": random.choice([True, False], rows),
            "came": pd.date_range("2024-01-01", periods=rows, freq="6h").strftime("%Y-%m-%dT%H:%M:%S"),
            "site": random.choice(["a", "b"], rows),
        }
    )


def encoded(rows: pd.DataFrame) -> np.ndarray:
    """The numbers of these rows, as the encoding's own tests know them."""
    return COLUMNS.encode({name: rows[name].to_numpy() for name in rows}, "rows")


def federation(task: str = "binary", scaling: Scaling | None = None, rows: int = 60) -> fedloom.FederatedData:
    """Three hospitals with such rows."""
    numbers = encoded(frame(rows))
    risk = numbers[:, 0] / 10 + 3 * numbers[:, 1]
    y = {
        "binary": np.where(risk > np.median(risk), "sick", "well"),
        "classification": np.array(["low", "mid", "high"])[np.digitize(risk, np.quantile(risk, [0.3, 0.7]))],
        "regression": np.column_stack([1000 + 50 * risk, -risk]),
        "multilabel": np.column_stack([risk > 6, risk > 4]).astype(float),
    }[task]
    owners = np.array(["north", "south", "west"])[np.arange(rows) % 3]
    table = fedloom.from_arrays(numbers, y, owners, task=task, name="hospitals")  # type: ignore[arg-type]
    names = {"regression": ("cost", "loss of weight"), "multilabel": ()}.get(task, ())
    classes = ("ill", "tired") if task == "multilabel" else table.classes
    whole = replace(
        table, feature_names=COLUMNS.names, target_names=names, classes=classes, encoding=COLUMNS, scaling=scaling
    )
    return fedloom.federate(whole)


def trained(
    data: fedloom.FederatedData,
    out: Path | None,
    method: fedloom.Method | None = None,
    model: str = "mlp",
    dtype: torch.dtype = torch.float32,
    loss: str = "auto",
    **options: object,
) -> tuple[fedloom.Problem, Run]:
    """A run of two rounds."""
    options = {"hidden": [5]} if model == "mlp" and not options else options
    problem = fedloom.Problem(data, fedloom.build_model(model, data, **options), loss, dtype)
    return problem, fedloom.train(problem, method or fedloom.FedAvg(lr=0.01), rounds=2, out=out, executor="serial")
