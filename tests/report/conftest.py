"""Folders of runs as the engine writes them: three methods, three seeds, unequal clients, lost replies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MakeRun = Callable[..., Path]

# final accuracy, rounds to get there, penalty of the worst clients, bytes of one message
METHODS = {"central": (0.955, 4.0, 0.5, 0), "fedavg": (0.925, 7.0, 1.0, 35_880), "local": (0.83, 3.0, 2.2, 0)}


def write_data(folder: Path, seed: int, clients: int, classes: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(classes, 0.3), size=clients)
    sizes = rng.integers(18, 190, size=clients)
    counts = np.round(shares * sizes[:, None]).astype(int)
    counts[:, 0] += counts.sum(axis=1) == 0
    total = counts.sum(axis=1)
    test = np.maximum(total // 5, 1)
    data = {
        "name": "digits",
        "task": "classification",
        "clients": clients,
        "classes": [str(label) for label in range(classes)],
        "labels": [str(client) for client in range(clients)][:200],
        "counts": counts.tolist()[:200],
        "roles": ["target" if client % 5 == 4 else "source" for client in range(clients)][:200],
        "sizes": {"train": (total - test).tolist()[:200], "test": test.tolist()[:200]},
        "notes": [
            "Dirichlet with α = 0.3 over 10 labels; 2 clients were given a row of their most likely label",
            "test split: 20 % of each client's rows, stratified where a label has at least two rows",
        ],
        "heterogeneity": {"label_distance": 0.61 + seed / 100, "effective_labels": 3.2, "size_gini": 0.34},
    }
    (folder / "data.json").write_text(json.dumps(data))
    return total - test


def spread_of(values: np.ndarray, weights: np.ndarray, worst_low: bool) -> dict[str, float]:
    ordered = np.sort(values) if worst_low else np.sort(values)[::-1]
    return {
        "weighted": float(np.average(values, weights=weights)),
        "mean": float(values.mean()),
        "std": float(values.std()),
        "worst_tenth": float(ordered[: max(len(values) // 10, 1)].mean()),
        "min": float(values.min()),
        "clients": len(values),
    }


def write_run(
    folder: Path,
    *,
    method: str = "fedavg",
    seed: int = 0,
    rounds: int = 30,
    clients: int = 20,
    classes: int = 10,
    every: int = 1,
    name: str = "",
    label: str | None = None,
    lr: float = 0.1,
    lossy: bool = True,
    finished: bool = True,
    planned: int | None = None,
    schedule: str = "",
    goal: float | None = None,
) -> Path:
    folder.mkdir(parents=True)
    top, pace, penalty, message = METHODS.get(method, METHODS["fedavg"])
    rng = np.random.default_rng([seed, len(method), round(lr * 1000)])
    sizes = write_data(folder, seed, clients, classes)
    skill = rng.normal(0, 0.035 * penalty, clients) - 0.08 * penalty * (sizes < np.quantile(sizes, 0.2))
    config = {
        "": {"name": name, "seed": seed, "rounds": planned or rounds, "dtype": "float32"},
        "data": {"name": "digits", "clients": clients, "partition": "dirichlet", "alpha": 0.3, "test": 0.2},
        "model": {"name": "mlp", "hidden": [100], "loss": "auto"},
        "method": {"name": method, "lr": lr, "batch": 10, "epochs": 1},
        "selection": {"name": "uniform", "per_round": 10},
        "fleet": {"preset": "cross-device" if lossy else "ideal"},
        "evaluation": {"model": "global", "on": "all", "split": "test", "every": every},
        "execution": {"executor": "serial", "stack": 5},
    }
    if schedule:
        config["schedule"] = {"name": schedule} | ({} if goal is None else {"metric": "accuracy", "target": goal})
    text = ""
    for section, values in config.items():
        text += f"\n[{section}]\n" if section else ""
        text += "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    (folder / "config.toml").write_text(text)

    rows: list[dict[str, Any]] = []
    clocks = {"simulated_seconds": 0.0, "bytes_up": 0, "bytes_down": 0, "gradient_evaluations": 0, "wall_seconds": 0.0}
    for index in range(rounds + 1):
        fate = {"selected": 0, "accepted": 0, "lost": 0, "late": 0, "dropped": 0}
        if index:
            fate["selected"] = 10
            for kind, chance in (("lost", 0.06), ("late", 0.05), ("dropped", 0.02)):
                fate[kind] = int(rng.binomial(3, chance)) if lossy and message else 0
            fate["accepted"] = 10 - fate["lost"] - fate["late"] - fate["dropped"]
            clocks["simulated_seconds"] += float(rng.gamma(9, 0.5)) if message else 0.8
            clocks["bytes_up"] += message * fate["accepted"]
            clocks["bytes_down"] += message * 10
            clocks["gradient_evaluations"] += int(sizes.sum() if method != "fedavg" else sizes.sum() // 2)
            clocks["wall_seconds"] += float(rng.uniform(0.02, 0.04))
        row: dict[str, Any] = {"round": index, **clocks, **fate}
        level = top - (top - 0.1) * np.exp(-index / pace) + rng.normal(0, 0.006)
        accuracy = np.clip(level + skill * min(index / pace, 1) + rng.normal(0, 0.01, clients), 0, 1)
        loss = np.maximum(2.3 * (1 - accuracy) ** 1.2 + 0.03, 0.01)
        if index % every == 0 or index == rounds:
            row["evaluation"] = {"accuracy": spread_of(accuracy, sizes, True), "loss": spread_of(loss, sizes, False)}
        if schedule == "async" and index:
            row |= {"staleness": {"mean": 2.5, "max": 7}, "prequential": {"accuracy": index / rounds}}
        if schedule and index:
            began = rows[-1]["simulated_seconds"]
            ends = rng.uniform(began, clocks["simulated_seconds"], 10)
            row["jobs"] = [[client, began, float(end), "accepted"] for client, end in enumerate(ends)]
        if method == "fedavg":
            row["measures"] = {"gradient_norm": 3.0 * float(np.exp(-index / 5)) + 1e-3, "drift": 0.2 + 0.01 * index}
            if schedule:
                row["measures"] |= {f"feature/{at}": float(value) for at, value in enumerate(rng.uniform(size=3))}
        rows.append(row)
    (folder / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        final = {"accuracy": spread_of(accuracy, sizes, True), "loss": spread_of(loss, sizes, False)}
        summary = {
            "method": method,
            "data": "digits",
            "seed": seed,
            "rounds": rounds,
            "metrics": {key: value["weighted"] for key, value in final.items()},
            "spread": final,
            "theta_sha256": hashlib.sha256(f"{method} {seed} {lr}".encode()).hexdigest(),
            "parameters": 7510,
            **clocks,
            "finished": True,
            "fedloom": "0.1.0",
            "stack": 5,
            "executor": "serial",
            "label": label or method,
            "per_client": {"clients": list(range(clients)), "accuracy": accuracy.tolist(), "loss": loss.tolist()},
        }
        if schedule and method == "fedavg":
            summary["relations"] = relations_of(clients, 3 if schedule == "async" else 2)
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def relations_of(clients: int, groups: int = 3) -> dict[str, Any]:
    """Clients of some groups in turn: alike within, unlike between."""
    own = np.arange(clients) % groups
    matrix = np.where(own[:, None] == own, 0.8, -0.3)
    np.fill_diagonal(matrix, 1.0)
    return {"kind": "clustered", "labels": [f"c{at}" for at in range(clients)], "matrix": matrix.tolist()}


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Write a run's folder below the test's own folder."""
    return lambda where="run", **settings: write_run(tmp_path / where, **settings)


@pytest.fixture(scope="session")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison's folder, three methods with three seeds each; only to be read."""
    folder = tmp_path_factory.mktemp("compare")
    for method in METHODS:
        for seed in (1, 2, 3):
            write_run(folder / method / f"seed-{seed}", method=method, seed=seed)
    return folder


@pytest.fixture(scope="session")
def related() -> Callable[[int], dict[str, Any]]:
    """Makes the relations of so many clients, of three groups."""
    return relations_of
