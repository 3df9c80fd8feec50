"""The server's half: runs an experiment on the nodes that are there, and has no rows itself."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fedloom.data.apart import Told, check_options, settled
from fedloom.deploy.agreement import Agreed
from fedloom.deploy.exchange import Exchange
from fedloom.deploy.executor import Fleet
from fedloom.deploy.link import Link
from fedloom.deploy.roster import Roster
from fedloom.deploy.rows import MODULE, of_nodes
from fedloom.deploy.terms import Terms
from fedloom.engine.engine import Row
from fedloom.engine.evaluation import headline_value
from fedloom.engine.fleet import Fleet as Simulated
from fedloom.engine.run import Run
from fedloom.errors import ConfigError, RunError
from fedloom.experiment import Experiment
from fedloom.experiment.settings import Settings
from fedloom.storage.folder import CONFIG, SUMMARY

log = logging.getLogger("flwr")


def serve(grid: Grid, experiment: Experiment, terms: Terms) -> Run:
    """Runs an experiment on a fleet, or goes on with the run that is in the folder."""
    refuse(experiment)
    _check_own_rows(experiment)
    out, config = Path(terms.out), experiment.settings.values
    resume = _resumes(out, config, terms.force)
    roster = Roster(Link(grid), out, terms.rows)
    begun = resume and roster.path.is_file()  # a kill may have come before the nodes had agreed
    if begun:
        roster.restore()
    roster.gather(terms.nodes, terms.wait, partial(_settled, experiment))
    if not begun:
        Exchange(roster, terms).agree()
    experiment = experiment.on(roster.data())
    prepared = experiment.prepared(config=config)
    if experiment.fleet != Simulated():
        log.warning("the fleet is real: [fleet], which describes a simulated one, is left out")
    setting = replace(prepared.setting, fleet=Simulated(), stack=1, on_error="drop")
    notes = (*prepared.notes, *roster.agreed.notes)
    real = replace(prepared, setting=setting, executor=Fleet(roster, terms), notes=notes)
    return real.run(out, force=terms.force and not resume, resume=resume, progress=_tell)


def _settled(experiment: Experiment, told: Mapping[str, Told]) -> Agreed:
    """How all nodes read their files, from what each tells of its own."""
    known, notes = settled(told, experiment.data_plan.options)
    classes = [] if known.classes is None else [f"classes {', '.join(known.classes)}"]
    columns = [] if known.encoding is None else [f"{len(known.encoding.columns)} columns"]
    said = " and ".join([*columns, *classes]) or "nothing"
    return Agreed(known.encoding, known.classes, notes=(f"{said}, as {len(told)} nodes tell", *notes))


def refuse(experiment: Experiment) -> None:
    """ConfigError for what cannot be done where rows never leave their devices."""
    name, layout = experiment.method_name, experiment.method.layout
    if layout == "pooled":
        raise ConfigError(f"{name} wants the rows of all clients in one place; on a fleet they stay where they are")
    if layout == "features":
        raise ConfigError(
            f"{name} is for clients that hold columns of the same rows; on a fleet each holds its own rows"
        )
    if experiment.stream is not None:
        raise ConfigError("[stream] lets rows arrive by a simulated clock; on a fleet time is real: leave it out")
    if experiment.data_plan.division.folds is not None:
        raise ConfigError("data.folds is for a simulation: on a fleet each node splits its own rows; leave it out")
    division = experiment.data_plan.division
    for key in (key for key in ("public", "fill", "augment") if getattr(division, key)):
        raise ConfigError(
            f"data.{key} is for a simulation: on a fleet each node has its own rows and no others, as they are; "
            "leave it out, or put such rows into the nodes' files"
        )
    for evaluation in experiment.evaluations:
        if evaluation.gradients:
            raise ConfigError(
                f"{evaluation.name}: gradients = true compares the clients' gradients, which stay on their devices; "
                "leave it out"
            )


def _check_own_rows(experiment: Experiment) -> None:
    """Where every node has rows of its own: ConfigError, before nodes are waited for, when [data] cannot be followed.

    What it says of a simulation is left out, and that is said.
    """
    if not of_nodes(experiment):
        return
    said, options = experiment.settings.get(("data",)) or {}, experiment.data_plan.options
    followed = {"path", "seed", "test", "validation", "support", "chronological", "positive", *options}
    unused = sorted(set(said) - followed)
    if unused:
        log.warning("[data] says how a simulation deals rows, and is left out here: %s", ", ".join(unused))
    file = experiment.settings.file
    if file is None or not (file.parent / MODULE).is_file():
        check_options(options)


def _tell(row: Row, rounds: int) -> None:
    """A round is done: a line for those who follow the run's log."""
    words = [f"round {row['round']}/{rounds}"]
    if "selected" in row:
        words.append(f"{row['accepted']} of {row['selected']} replies")
    words += [f"{name} {headline_value(name, values):.4g}" for name, values in row.get("evaluation", {}).items()]
    log.info("%s", ", ".join(words))


def _resumes(out: Path, config: dict[str, Any], force: bool) -> bool:
    """Whether there is a run to go on with; one with other settings, or one that is done, is refused."""
    if force or not (out / CONFIG).is_file():
        return False
    if Settings.read(out / CONFIG).values != config:
        raise RunError(f"{out} holds a run with other settings: choose another folder (out), or begin anew (force)")
    if (out / SUMMARY).is_file():
        raise RunError(f"{out} holds a run that is done: choose another folder (out), or begin anew (force)")
    return True
