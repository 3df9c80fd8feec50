"""Rows put beside others, client by client."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloom.errors import ConfigError
from fedloom.reproduce import read_plan, tables
from fedloom.reproduce.keep import merge

Write = Callable[..., Path]
Reproduce = Callable[..., Any]
Parts = dict[str, str]

LATE = '[[row]]\nname = "Late"\nmethod = { name = "fedavg", lr = 1e-3 }\n'
TENTH = '[[column]]\nname = "worst"\nruns_of = "iid"\nmeasure = { statistic = "min" }\n'


def of_clients(folder: Path, row: str) -> np.ndarray[Any, Any]:
    """The accuracies of the clients in percent: a row for each seed."""
    summaries = [json.loads((folder / row / "iid" / f"seed-{k}" / "summary.json").read_text()) for k in (0, 1)]
    return 100 * np.array([one["per_client"]["accuracy"] for one in summaries])


def test_gains_are_means_over_seeds_with_an_interval_over_clients(
    write: Write, reproduce: Reproduce, parts: Parts
) -> None:
    from scipy.stats import t

    told = reproduce(write('paired = ["Late"]\n', parts["head"], parts["column"], TENTH, parts["row"], LATE))
    found = told.cells["FedAvg / iid"]["paired"]
    assert told.cells["Late / iid"]["paired"] == told.cells["FedAvg / worst"]["paired"] == {}
    gains = (of_clients(Path("out"), "FedAvg") - of_clients(Path("out"), "Late")).mean(0)
    half = t.ppf(0.975, len(gains) - 1) * gains.std(ddof=1) / np.sqrt(len(gains))
    assert found["Late"] == {"gain": pytest.approx(gains.mean()), "half": pytest.approx(half), "lose": 0, "of": 3}


def test_the_table_of_gains_has_the_rows_and_columns_that_have_any(
    write: Write, reproduce: Reproduce, parts: Parts
) -> None:
    file = write('paired = ["FedAvg"]\n', parts["head"], parts["column"], TENTH, parts["row"], LATE)
    record = reproduce(file).record
    (grid,) = [one for one in tables.grids(record) if one.title.startswith("Clients beside FedAvg")]
    assert (grid.rows, grid.columns) == (("Late",), ("iid",))
    assert grid.body[0][0].line.startswith("−")
    assert grid.body[0][0].line.endswith(", 3 of 3 lose")


def test_a_row_that_is_not_there_is_refused(write: Write, parts: Parts) -> None:
    with pytest.raises(ConfigError, match=r"paired = .* has 'Fedavg', which is no row; did you mean 'FedAvg'"):
        read_plan(write('paired = ["Fedavg"]\n', parts["head"], parts["column"], parts["row"]))


def test_joined_repeats_keep_the_gains_of_the_larger_part(write: Write, reproduce: Reproduce, parts: Parts) -> None:
    file = write('paired = ["Late"]\n', parts["head"], parts["column"], parts["row"], LATE)
    both = reproduce(file, "a").record
    one = reproduce(file, "b", repeats=3, seeds=(2,)).record
    cell = next(cell for cell in merge(both, one)["cells"] if cell["row"] == "FedAvg")
    assert len(cell["values"]) == 3
    assert cell["paired"] == both["cells"][0]["paired"]


def test_a_cell_that_reads_the_runs_of_another_has_the_point_by_which_these_were_chosen(
    write: Write, reproduce: Reproduce, parts: Parts
) -> None:
    """By the loss, which the second column reads, the larger of two steps that are too small is the worse."""
    grid = "grid = { lr = [0.01, 0.1] }\n"
    other = '[[column]]\nname = "other"\nruns_of = "iid"\nmeasure = { metric = "loss", better = "up" }\n'
    told = reproduce(write(parts["head"], parts["column"], other, parts["row"].replace(", lr = 0.1", ""), grid))
    assert told.cells["FedAvg / iid"]["tuned"] == told.cells["FedAvg / other"]["tuned"] == {"method.lr": 0.1}
    assert told.cells["FedAvg / other"]["trials"]["lr=0.01"] > told.cells["FedAvg / other"]["trials"]["lr=0.1"]
