"""A checkpoint whose checksum fits, and whose content does not: refused in words by who reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedloom
from fedloom.errors import RunError
from fedloom.experiment import Experiment
from fedloom.storage import checkpoint, tensorfile
from fedloom.storage.segments import Segment

BEGUN = {
    "data": {"name": "quadratics", "clients": 3, "rows": 6, "dimension": 3},
    "method": {"name": "fedadam"},
    "rounds": 2,
    "execution": {"executor": "serial", "checkpoint_every": 1},
}
Forge = Callable[[dict[str, Any], dict[str, Any]], object]
FORGERIES: dict[str, tuple[Forge, str]] = {
    "shape": (lambda state, meta: state.update(x=torch.zeros(99)), "shape"),
    "dtype": (lambda state, meta: state.update(x=state["x"].to(torch.int64)), "int64"),
    "no clocks": (lambda state, meta: meta.pop("clocks"), "clocks"),
    "huge round": (lambda state, meta: meta["clocks"].update(round=10**30), r"clocks\.round"),
    "shapes": (lambda state, meta: meta.update(shapes={"w": "many"}), "shapes"),
    "seal": (lambda state, meta: meta["seal"].update(parts={"settings": 3}), "seal"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_what_is_forged_is_named(tmp_path: Path, name: str) -> None:
    Experiment.load(None, BEGUN).run(tmp_path / "run")
    forge, said = FORGERIES[name]
    found = checkpoint.load(tmp_path / "run" / checkpoint.NEWEST)
    forge(found.groups["state"], found.meta)
    checkpoint.save(tmp_path / "run" / checkpoint.NEWEST, found.groups, found.meta)
    with pytest.raises(RunError, match=said):
        Experiment.load(tmp_path / "run" / "config.toml").run(tmp_path / "run", resume=True)
    with pytest.raises(RunError, match=said):
        fedloom.adapt(tmp_path / "run", 1, steps=1)


def test_a_model_that_is_not_finite_is_not_adapted(tmp_path: Path) -> None:
    Experiment.load(None, BEGUN).run(tmp_path / "run")
    found = checkpoint.load(tmp_path / "run" / checkpoint.NEWEST)
    found.groups["state"]["x"].fill_(torch.nan)
    checkpoint.save(tmp_path / "run" / checkpoint.NEWEST, found.groups, found.meta)
    with pytest.raises(RunError, match="is not finite: its run has diverged"):
        fedloom.adapt(tmp_path / "run", 1, steps=1)


@pytest.mark.parametrize(("count", "client", "said"), [(10**15, 0, "cannot hold"), (1, 2**61, "this needs about")])
def test_a_segment_that_declares_more_than_it_has_allocates_nothing(
    tmp_path: Path, count: int, client: int, said: str
) -> None:
    path = tmp_path / "segment-000000.safetensors"
    columns = [
        tensorfile.Column("0/clients", torch.int64, (1,)),
        tensorfile.Column("0/records", torch.uint8, (1, 12)),
    ]
    texts = {"layouts": '[[["a", "float32", null, 1]]]', "counts": f"[{count}]"}
    with open(path, "wb") as file:
        pieces = [np.array([client], np.int64), np.zeros(12, np.uint8)]
        tensorfile.write(file, "fedloom.memory", columns, pieces, texts)
    with pytest.raises(RunError, match=said):
        Segment.open(path, 0, "")


def test_a_run_whose_servers_state_is_not_finite_says_so() -> None:
    settings = {**BEGUN, "method": {"name": "fedadam", "lr": 1e200}, "dtype": "float64", "rounds": 1}
    (note,) = Experiment.load(None, settings).run().notes
    assert "the run has diverged: after round 1 the server's" in note
