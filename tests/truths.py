"""Experiments that every executor must end with the same model: one for each kind of method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedloom.experiment import Experiment

_EXPERIMENT = """
rounds = 2
seed = 3
[data]
name = "digits"
clients = 2
partition = "dirichlet"
alpha = 0.5
[model]
name = "{model}"
[method]
name = "{method}"
{more}
[evaluation]
every = 0
[execution]
stack = 1
checkpoint_every = 1
executor = "{executor}"
{where}
"""
CASES = {
    "fedavg": ("linear", "lr = 0.05\nbatch = 16"),
    "scaffold": ("lenet", "lr = 0.05\nbatch = 16"),
    "fedmeta-maml": ("mlp", ""),
    "fedper": ("mlp", "lr = 0.05\nbatch = 16"),
    "aso-fed": ("linear", '[schedule]\nname = "async"\n[fleet]\ndelay_up = "uniform:10:100"'),
}
"""Methods without memory, with it, with support and query sets, with personal layers, and an asynchronous one."""
SYNCHRONOUS = ("fedavg", "scaffold", "fedmeta-maml")


def written(folder: Path, method: str, executor: str = "serial", where: str = "") -> Path:
    """The experiment as a file; ``where`` are further lines of [execution]."""
    model, more = CASES[method]
    said = {"model": model, "method": method, "more": more, "executor": executor, "where": where}
    path = folder / f"{method}-{executor}.toml"
    path.write_text(_EXPERIMENT.format(**said))
    return path


def summary(folder: Path, method: str, executor: str = "serial", where: str = "") -> dict[str, Any]:
    """What the experiment ends with on this executor."""
    return Experiment.load(written(folder, method, executor, where)).run().summary
