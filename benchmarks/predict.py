"""A model in use: rows a second from a data frame and from a file to a file, and how soon the command answers."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
import torch

import fedloom

NAME = "PREDICT"
TITLE = "mlp over 20 columns"
COLUMNS, ROWS, FEW = 20, 400_000, 5
LEAST = 200_000
"""Rows a second, on one core."""
MOST_SECONDS = 3.0
"""Until the command has answered for a few rows."""


def rows(count: int) -> pd.DataFrame:
    """New rows."""
    values = np.random.default_rng(1).standard_normal((count, COLUMNS)).round(4)
    return pd.DataFrame(values, columns=[f"column {k}" for k in range(COLUMNS)])


def trained(folder: Path) -> Path:
    """The folder of a short run of five clients."""
    seen = rows(2000)
    table = fedloom.from_arrays(seen, (seen["column 0"] > 0).astype(int), np.arange(len(seen)) % 5, task="binary")
    data = fedloom.federate(table)
    fedloom.train(fedloom.Problem(data, fedloom.build_model("mlp", data)), "fedavg", rounds=1, out=folder)
    return folder


def command(run: Path, data: Path, out: Path) -> float:
    """Seconds of ``fedloom predict``, from its start to its end."""
    words = [
        sys.executable,
        "-m",
        "fedloom.cli",
        "predict",
        str(run),
        "--data",
        str(data),
        "--out",
        str(out),
        "--force",
    ]
    start = perf_counter()
    subprocess.run(words, check=True, capture_output=True)
    return perf_counter() - start


def race(repeats: int = 5) -> dict[str, Any]:
    """The best of some, with one thread: in memory, and by the command, whose start is not counted for its pace."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            run, many, few = trained(folder / "run"), folder / "many.csv", folder / "few.csv"
            new = rows(ROWS)
            new.to_csv(many, index=False)
            new.head(FEW).to_csv(few, index=False)
            model, memory, starts, wholes = fedloom.load_run(run), [], [], []
            for _ in range(repeats):
                start = perf_counter()
                model.predict(new)
                memory.append(perf_counter() - start)
                starts.append(command(run, few, folder / "out.csv"))
                wholes.append(command(run, many, folder / "out.csv"))
    finally:
        torch.set_num_threads(threads)
    return {
        "title": TITLE,
        "rows": ROWS,
        "rows_per_second": round(ROWS / min(memory)),
        "rows_per_second_file_to_file": round(ROWS / (min(wholes) - min(starts))),
        "least": LEAST,
        "start_seconds": min(starts),
        "most_seconds": MOST_SECONDS,
        "repeats": repeats,
    }


def sentence(row: dict[str, Any]) -> str:
    """The result in words."""
    return (
        f"{NAME}: {row['rows_per_second']:,} rows a second by an {row['title']} (at least {row['least']:,}), "
        f"{row['rows_per_second_file_to_file']:,} from a file to a file; the command answers in "
        f"{row['start_seconds']:.1f} s (at most {row['most_seconds']:g})."
    )
