"""``fedloom run --folds``: a run for each fold."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Call = Callable[..., Result]
SMALL = ("--data", "digits", "--clients", 4, "--model", "linear", "--rounds", 1)


def test_it_goes_on_where_it_stopped(call: Call) -> None:
    command = ("run", *SMALL, "--folds", "clients:2", "--no-report")
    first = call(*command).output
    assert "[2/2] fedavg, seed 0, fold 2 of 2: accuracy" in first
    assert re.match(r"fold 1 of 2: client \d, \d left out of training and tested on all of its rows\n", first)
    assert "on the target clients" in first
    folder = Path("runs/folds-fedavg-digits")
    (folder / "fedavg" / "seed-0" / "fold-2" / "summary.json").unlink()
    before = json.loads((folder / "compare.json").read_text())
    again = call(*command).output
    assert "[1/2] fedavg, seed 0, fold 1 of 2: done already" in again
    assert "[2/2] fedavg, seed 0, fold 2 of 2: accuracy" in again
    after = json.loads((folder / "compare.json").read_text())
    assert after["table"][0]["accuracy_out_of_fold"] == before["table"][0]["accuracy_out_of_fold"]
    call("run", folder / "fedavg" / "seed-0" / "fold-1" / "config.toml", "--no-report", "--out", "one")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--folds 1", "--folds: data.folds = 1 cannot be: 1 fold"),
        ("--folds client", "--folds: data.folds = \"client\" cannot be: folds = 'client' cannot be; give a number"),
        ("--folds clients:9", "there are 4 clients"),
        ("--folds 5 --test 0.3", "leave test out"),
        ("--folds clients --roles", "leave target out"),
        ("--folds 5 --set data.fold=7", "give fold = 1 to 5"),
        ("--folds clients --set evaluation.on=source", "folds of clients test those who are left out"),
    ],
)
def test_folds_that_cannot_be_are_refused_in_one_line(options: str, said: str, call: Call) -> None:
    told = call("run", *SMALL, *options.split(), code=2).stderr
    assert said in told
    assert len(told.strip().splitlines()) == 1
    assert not Path("runs").exists()
