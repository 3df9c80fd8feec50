"""A rehearsal: an experiment on a federation of this machine, one node for each of its clients."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedloom.data.apart import ELSEWHERE
from fedloom.data.paths import found_files, stem
from fedloom.deploy.federation import Federation
from fedloom.deploy.project import write_app
from fedloom.deploy.security import private_folder
from fedloom.deploy.server import refuse
from fedloom.deploy.terms import Terms
from fedloom.engine.run import Progress
from fedloom.errors import ConfigError, RunError
from fedloom.experiment import Experiment
from fedloom.federation.data import SOURCE
from fedloom.storage import toml
from fedloom.storage.folder import HISTORY, SUMMARY
from fedloom.storage.history import History

_PAUSE = 0.5


def rehearse(
    experiment: Experiment, out: Path, *, nodes: int | None = None, terms: Terms | None = None, follow: Progress
) -> dict[str, Any]:
    """Runs an experiment on a SuperLink and SuperNodes that live as long as it does; gives its summary.

    A rehearsal that was interrupted goes on when it is started again: what its nodes remember is kept beside ``out``
    until it is done.
    """
    refuse(experiment)
    experiment.check()
    data = experiment.data()
    clients = data.clients
    if nodes not in (None, clients):
        raise ConfigError(
            f"--nodes {nodes}, but the experiment has {clients} clients, and every client is a node: give --nodes "
            f"{clients}, or --clients {nodes}"
        )
    out = out.resolve()
    beside = out.with_name(f"{out.name}.rehearsal")
    private_folder(beside)
    shutil.rmtree(beside / "federation", ignore_errors=True)
    files = files_of(experiment)
    settings = experiment.resolved() | ({} if files is None else {"data": _of_nodes(experiment)})
    weights = experiment.problem().loss.class_weights
    if weights is not None:  # no node could know them: they follow from the labels of all clients
        settings["model"]["class_weights"] = list(weights)
    write_app(beside / "app", toml.dumps(settings), replace(terms or Terms(), out=str(out), nodes=clients))
    with Federation(beside / "federation") as federation:
        for client in range(clients):
            own: dict[str, str | int] = {"client": client}
            if files is not None:
                role = "source" if data.roles is None or int(data.roles[client]) == SOURCE else "target"
                own = {"name": data.label(client), "rows": str(files[data.label(client)]), "role": role}
            federation.start_node(f"node-{client}", state=str(beside / f"state-{client}"), **own)
        fault = _followed(federation, federation.run(beside / "app"), out, experiment.top.rounds or 0, follow)
    if fault:
        raise RunError(f"{fault.removeprefix('ServerApp failed with exception: ')} (logs: {beside / 'federation'})")
    shutil.rmtree(beside, ignore_errors=True)
    summary: dict[str, Any] = json.loads((out / SUMMARY).read_text())
    return summary


def files_of(experiment: Experiment) -> dict[str, Path] | None:
    """The file of each client by name, where clients have files of their own and keep what is in them.

    None: the rows are dealt to clients by the partition, so in a rehearsal every node loads them all.
    """
    plan, table = experiment.data_plan, experiment.table()
    division = plan.division
    limited = division.source_classes is not None or division.target_classes is not None or plan.steps
    if plan.path is None or not table.apart or tuple(division.partition or ("natural",)) != ("natural",) or limited:
        return None
    if division.test == "published" or any(plan.options.get(option) for option in ELSEWHERE):
        return None
    names = experiment.data().names or ()
    files = {stem(file): file.resolve() for file in found_files(plan.path)[0]}
    return files if len(names) == len(files) else None


def _of_nodes(experiment: Experiment) -> dict[str, Any]:
    """The [data] section of nodes that read their own files."""
    plan = experiment.data_plan
    whole = plan.resolved(experiment.table(), experiment.data())
    kept = {*plan.options, "seed", "test", "validation", "support", "chronological", "positive"}
    return {key: value for key, value in whole.items() if key in kept} | {"task": experiment.table().task}


def _followed(federation: Federation, run: int, out: Path, rounds: int, follow: Progress) -> str:
    """Waits for the end of a run, showing its rounds as they come; what went wrong, if something did."""
    shown = -1
    while True:
        fault = federation.outcome(run)
        for row in History.read(out / HISTORY).rows if (out / HISTORY).is_file() else ():
            if row["round"] > shown:
                shown = row["round"]
                follow(row, rounds)
        if fault is not None:
            return fault
        time.sleep(_PAUSE)
