"""Experiments with methods of other kinds: one that wraps another, and one of nodes without a server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedloom.conformance import DECLARATIONS, Declaration
from fedloom.conformance.declarations.courses import Defaults
from fedloom.engine.run import Run
from fedloom.execution import Executor
from fedloom.experiment import Experiment
from fedloom.federation.data import FederatedData
from fedloom.methods import lookup
from fedloom.methods.method import Method
from fedloom.types import State
from ring import GOSSIP, Gossip, Ring
from wrappers import STEPS, Counting

METHODS = {
    "wrapper": 'name = "wrappers:Counting"\n[method.inner]\nname = "scaffold"\nlr = 0.05\nbatch = 16',
    "nodes": 'name = "ring:Gossip"\nlr = 0.2',
}
_EXPERIMENT = """
rounds = 3
seed = 4
[data]
name = "digits"
clients = 3
partition = "dirichlet"
alpha = 0.5
[model]
name = "linear"
[evaluation]
every = 0
[execution]
stack = 1
[method]
{method}
"""


def written(folder: Path, kind: str, name: str = "kind.toml") -> Path:
    """The experiment as a file."""
    path = folder / name
    path.write_text(_EXPERIMENT.format(method=METHODS[kind]))
    return path


def run(
    path: Path, kind: str, executor: str | Executor, out: Path | None = None, data: FederatedData | None = None
) -> Run:
    """The experiment on an executor, perhaps on data that are not here."""
    experiment = Experiment.load(path)
    prepared = (experiment if data is None else experiment.on(data)).prepared()
    return replace(prepared, executor=executor, engine=Ring if kind == "nodes" else None).run(out)


def counted(state: State) -> int | None:
    """How many steps of the server a wrapper has counted."""
    return int(state[STEPS]) if STEPS in state else None


def ending(found: Run) -> dict[str, Any]:
    """What must be equal."""
    same = ("theta_sha256", "metrics", "bytes_up", "bytes_down", "gradient_evaluations")
    return {key: found.summary[key] for key in same} | {"counted": counted(found.state)}


def on_the_bench(kind: str) -> tuple[str, Method, Declaration]:
    """For the kit: the nodes, or the wrapper around a method of this name with what is known of that."""
    if kind == "nodes":
        return "gossip", Gossip(), GOSSIP
    known = DECLARATIONS[kind]
    claims = tuple(claim for claim in known.claims if not isinstance(claim, Defaults))  # they are the inner method's
    return "counting", Counting(lookup(kind).cls()), replace(known, claims=claims)
