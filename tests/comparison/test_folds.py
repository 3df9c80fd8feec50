"""Folds as an axis of a comparison: resumable, the same for every method, summed up over all rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedloom
from fedloom.errors import ConfigError
from fedloom.experiment import Experiment
from fedloom.report import find_runs, group_runs, verdict
from fedloom.report.pairs import Interval

SMALL = {"data.name": "digits", "data.clients": 4, "model.name": "linear", "rounds": 1, "execution.executor": "serial"}


def test_a_run_for_each_fold_and_the_rows_of_all_of_them_together(tmp_path: Path) -> None:
    compared = fedloom.compare(["fedavg", "fedsgd"], settings={**SMALL, "seed": 3}, folds=3, out=tmp_path / "c")
    assert list(compared.runs) == [(name, 3, fold) for fold in (1, 2, 3) for name in ("fedavg", "fedsgd")]
    row = compared.table[0]
    values = [compared.runs["fedavg", 3, fold].summary for fold in (1, 2, 3)]
    rows = [summary["judged"]["rows"] for summary in values]
    accuracies = [summary["metrics"]["accuracy"] for summary in values]
    assert sum(rows) == 1797
    assert row["accuracy"] == pytest.approx(np.mean(accuracies))
    assert row["accuracy_std_over_runs"] == pytest.approx(np.std(accuracies, ddof=1))
    assert row["accuracy_out_of_fold"] == pytest.approx(np.average(accuracies, weights=rows))
    assert (row["runs"], row["finished"]) == (3, 3)
    assert (tmp_path / "c" / "fedavg" / "seed-3" / "fold-2" / "summary.json").is_file()
    hits = sum(round(value * many) for value, many in zip(accuracies, rows, strict=True))
    assert row["accuracy_out_of_fold"] == pytest.approx(hits / 1797)  # so many of all rows were told right


def test_the_verdict_pairs_equal_folds_and_knows_that_they_share_rows(tmp_path: Path) -> None:
    fedloom.compare(["fedavg", "fedsgd"], settings=SMALL, folds=3, out=tmp_path / "c")
    groups = group_runs(find_runs(tmp_path / "c"))
    assert [len(group.runs) for group in groups] == [3, 3]
    said = "\n".join(verdict(groups))
    assert "Paired over 3 folds" in said
    assert "all 3 folds together: fedavg" in said
    folds, seeds = Interval.of([0.1, 0.2, 0.3], 1 / 2), Interval.of([0.1, 0.2, 0.3])
    assert folds.half == pytest.approx(4.302653 * 0.1 * np.sqrt(1 / 3 + 1 / 2), rel=1e-6)
    assert seeds.half == pytest.approx(4.302653 * 0.1 * np.sqrt(1 / 3), rel=1e-6)
    page = (tmp_path / "c" / "report.html").read_text()
    assert "3 repeats over 3 folds each" in page


def test_clients_are_left_out_and_judged_alike_by_methods_that_adapt(tmp_path: Path) -> None:
    compared = fedloom.compare(
        ["fedavg", "per-fedavg"], settings={**SMALL, "evaluation.every": 0}, folds="clients", out=tmp_path / "c"
    )
    judged = [run.summary["judged"] for run in compared.runs.values()]
    assert {(one["on"], one["split"]) for one in judged} == {("target", "query")}
    tested = [compared.runs["fedavg", 0, fold].summary["per_client"]["clients"] for fold in (1, 2, 3, 4)]
    assert sorted(client for one in tested for client in one) == [0, 1, 2, 3]


def test_a_fold_is_a_run_that_can_be_made_alone_in_the_same_bits() -> None:
    compared = fedloom.compare(["fedavg"], settings=SMALL, folds=3)
    alone = Experiment.load(None, {**SMALL, "data.folds": 3, "data.fold": 2}).run()
    assert compared.runs["fedavg", 0, 2].summary["theta_sha256"] == alone.summary["theta_sha256"]


def test_problems_of_ones_own_are_folds_too(tmp_path: Path) -> None:
    data = [fedloom.federate("digits", clients=4, folds=3, fold=fold) for fold in (1, 2, 3)]
    problems = [fedloom.Problem(one, fedloom.build_model("linear", one)) for one in data]
    how: dict[str, Any] = {"rounds": 1, "out": tmp_path / "c", "report": False}
    compared = fedloom.compare(["fedavg", "fedsgd"], problems, **how)
    assert len(compared.runs) == 6
    assert compared.table[0]["runs"] == 3
    same = fedloom.compare(["fedavg"], settings={**SMALL, "dtype": "float32"}, folds=3)
    assert compared.table[0]["accuracy_out_of_fold"] == same.table[0]["accuracy_out_of_fold"]
    told: list[str] = []
    fedloom.compare(["fedavg", "fedsgd"], problems, progress=lambda title, row, last: told.append(title), **how)
    assert not told  # all of it was done
    run = fedloom.train(fedloom.Problem(*_left_out()), "fedavg", rounds=1)
    assert run.summary["judged"]["on"] == "target"


def _left_out() -> tuple[Any, Any]:
    data = fedloom.federate("digits", clients=4, folds="clients", fold=4)
    return data, fedloom.build_model("linear", data)


def test_folds_of_a_problem_are_refused_in_words() -> None:
    data = fedloom.federate("digits", clients=4)
    with pytest.raises(ConfigError, match="one for each fold"):
        fedloom.compare(["fedavg"], fedloom.Problem(data, fedloom.build_model("linear", data)), folds=5)
    with pytest.raises(ConfigError, match=r"data\.folds = 5 cannot be: which of the folds is tested is not said"):
        Experiment.load(None, {**SMALL, "data.folds": 5})
