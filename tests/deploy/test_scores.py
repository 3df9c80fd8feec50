"""Metrics of order, a threshold and class weights on a fleet: from bins, for nodes show no single rows."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from local_grid import fleet

from fedloom.deploy import Terms, serve
from fedloom.deploy.reading import evaluated
from fedloom.engine.run import Run
from fedloom.errors import ConfigError, MessageError
from fedloom.experiment import Experiment
from fedloom.federation.metrics import METRICS, Predictions
from fedloom.federation.scores import BINS

EXPERIMENT = """
rounds = 2
decision = "f1"
[data]
path = "rows.csv"
client_column = "site"
label_column = "died"
[model]
class_weights = {weights}
[evaluation]
metrics = ["roc-auc", "average-precision", "accuracy"]
[method]
lr = 0.3
[execution]
executor = "serial"
stack = 1
"""


def folder_with(tmp_path: Path, weights: str = "[1, 5]") -> Path:
    rng = np.random.default_rng(1)
    x, site = rng.normal(size=(450, 3)), rng.integers(0, 3, 450)
    died = rng.random(450) < 1 / (1 + np.exp(2.5 - 1.5 * x[:, 0]))
    with open(tmp_path / "rows.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["site", "a", "b", "c", "died"])
        writer.writerows([f"S{s}", *row, "yes" if d else "no"] for s, row, d in zip(site, x, died, strict=True))
    (tmp_path / "experiment.toml").write_text(EXPERIMENT.format(weights=weights))
    return tmp_path


def deployed(folder: Path) -> Run:
    terms = Terms(out=str(folder / "run"), nodes=3, wait=1.0, deadline=5.0)
    return serve(fleet(folder, 3), Experiment.load(folder / "experiment.toml"), terms)


def test_the_order_of_rows_is_as_near_to_the_simulators_as_is_said(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    run, exact = deployed(folder), Experiment.load(folder / "experiment.toml").run()
    assert run.summary["theta_sha256"] == exact.summary["theta_sha256"]
    for name in ("roc-auc", "average-precision"):
        error = run.summary["inexact"][name]
        assert 0 < error < 0.05
        assert abs(run.summary["metrics"][name] - exact.summary["metrics"][name]) <= error
        assert any(note.startswith(f"{name} is that of scores in 1,000 bins") for note in run.notes)
    assert "inexact" not in exact.summary
    assert run.summary["confusion"] == exact.summary["confusion"]
    ours, theirs = run.summary["decision"], exact.summary["decision"]
    assert ours["value"] == pytest.approx(theirs["value"], abs=0.05)
    assert ours["threshold"] == pytest.approx(theirs["threshold"], abs=0.03)


def test_balanced_weights_are_refused_where_no_one_has_all_labels(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="those are on the nodes; give a number for each class: no, yes"):
        deployed(folder_with(tmp_path, '"balanced"'))


def reply(name: str, change: object = None) -> dict[str, object]:
    p = Predictions(torch.tensor([[0.1], [2.0], [-1.0]]), torch.tensor([[1.0], [0.0], [0.0]]), torch.zeros(3).long(),
                    torch.tensor([3]), "binary")  # fmt: skip
    counts = METRICS[name].counts(p)[0]
    if callable(change):
        counts = change(counts)
    return {"values": {name: METRICS[name].value(counts)[None]}, "sums": {name: counts}, "counts": torch.tensor([3])}


def added(counts: torch.Tensor) -> torch.Tensor:
    return counts.index_fill(-2, torch.tensor([7]), 2.0)


def less(counts: torch.Tensor) -> torch.Tensor:
    counts = counts.clone()
    counts.view(-1)[0] -= 10
    return counts


@pytest.mark.parametrize("name", ["roc-auc", "average-precision", "kappa", "calibration-error"])
def test_counts_that_cannot_be_are_refused(name: str) -> None:
    terms = Terms(out="run", nodes=3)
    good = evaluated(reply(name), [METRICS[name]], 3, 1, None, terms)
    assert set(good.sums) == {name}
    if name != "kappa":
        assert good.sums[name].shape[-2] in (BINS, 10)
        with pytest.raises(MessageError, match="of more rows than"):
            evaluated(reply(name, added), [METRICS[name]], 3, 1, None, terms)
    with pytest.raises(MessageError):
        evaluated(reply(name, less), [METRICS[name]], 3, 1, None, terms)
