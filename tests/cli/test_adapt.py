"""``fedloom adapt``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Call = Callable[..., Result]


@pytest.fixture
def run(call: Call) -> Path:
    flags = ("--data", "digits", "--clients", 6, "--roles", "--rounds", 2, "--hidden", 8, "--no-report", "--quiet")
    call("run", *flags, "--out", "run")
    return Path("run")


def test_it_says_how_good_the_model_was_before_and_after_and_saves_it(call: Call, run: Path) -> None:
    result = call("adapt", run, "--client", 3, "--steps", 2, "--lr", 0.2)
    assert "(round 2), client 3 of digits: 2 steps on" in result.output
    assert "Before" in result.output
    assert "model: run-client-3" in result.output
    record = json.loads(Path("run-client-3/adapted.json").read_text())
    assert (record["steps"], record["lr"], record["client"]) == (2, 0.2, "3")


def test_the_run_may_be_the_working_folder(call: Call, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    call("adapt", ".", "--client", 3)
    assert Path("../run-client-3/adapted.json").is_file()


def test_a_new_clients_file_is_given_as_to_run(call: Call, run: Path) -> None:
    import numpy as np

    np.savez("mine.npz", x=np.random.default_rng(0).random((9, 1, 8, 8)), y=np.arange(9) % 2)
    result = call("adapt", run, "--data", "mine.npz", "--support", 2, "--out", "mine")
    assert "client 0 of mine: by the method's own rule on 2 rows (support)" in result.output
    assert Path("mine/model.safetensors").is_file()


def test_what_cannot_be_is_said(call: Call, run: Path) -> None:
    assert "no client '17'; they are 0 to 5" in call("adapt", run, "--client", 17, code=2).stderr
    assert "has no model" in call("adapt", "nowhere", "--client", 1, code=2).stderr
    assert "say where the new client's data are" in call("adapt", run, "--set", "data.test=0", code=2).stderr
