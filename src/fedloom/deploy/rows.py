"""The rows of one device: those of one client of an experiment's data, or those that the device's owner loads."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from fedloom.data import Table, federate
from fedloom.errors import ConfigError, DataError
from fedloom.experiment import Experiment
from fedloom.federation.data import SOURCE, TARGET, FederatedData
from fedloom.federation.ragged import Ragged

MODULE = "data.py"
"""The file beside the experiment that loads a device's own rows; without it there is a rehearsal on [data]."""
NodeConfig = Mapping[str, Any]
"""What a node was started with: ``--node-config "client=3 state='…'"``."""
_ROLES = {"source": SOURCE, "target": TARGET}


def own_rows(experiment: Experiment, folder: Path, config: NodeConfig) -> FederatedData:
    """A federation of one client, with the rows of this device."""
    if (folder / MODULE).is_file():
        return _loaded(experiment, folder / MODULE, config)
    client, everything = config.get("client"), experiment.data()
    if not isinstance(client, int) or not 0 <= client < everything.clients:
        raise ConfigError(
            f"the node's client = {client!r} is none of the {everything.clients} of {everything.name!r}; start the "
            f"node with --node-config 'client=0' (or 1, …), or write a {MODULE} that loads its own rows"
        )
    return alone(everything, client, 0)


def alone(data: FederatedData, client: int, place: int) -> FederatedData:
    """The same federation with the rows of one client only, which has the number ``place``; those before have none.

    What a client draws depends on its number, so a device that has the number of a simulated client does the same.
    """
    owned = {name: split[client] for name, split in data.splits.items()}
    rows, every = torch.unique(torch.cat(list(owned.values())), return_inverse=True)
    parts = torch.split(every, [len(part) for part in owned.values()])
    before = [0] * (place + 1)
    return replace(
        data,
        x=data.x[rows],
        y=data.y[rows],
        splits={name: Ragged(torch.tensor([*before, len(p)]), p) for name, p in zip(owned, parts, strict=True)},
        roles=None if data.roles is None else data.roles[client].repeat(place + 1),
        names=("",) * place + (data.label(client),),
        time=None if data.time is None else data.time[rows],
        x_scale=None if data.x_scale is None else data.x_scale.of(client),
        y_scale=None if data.y_scale is None else data.y_scale.of(client),
    )


def _loaded(experiment: Experiment, path: Path, config: NodeConfig) -> FederatedData:
    """What the owner's module gives, split as the experiment's [data] section says."""
    loaded = _imported(path).load(dict(config))
    if not isinstance(loaded, tuple) or len(loaded) != 2 or not isinstance(loaded[0], Table):
        raise DataError(f"load in {path.name} must return a table (fedloom.data.from_arrays, …) and the client's name")
    table, name = loaded
    if not isinstance(name, str) or not name:
        raise DataError(f"load in {path.name} returns {name!r} as the client's name; give a text that never changes")
    division, role = experiment.data_plan.division, str(config.get("role", "source"))
    if role not in _ROLES:
        raise ConfigError(f"the node's role = {role!r} is neither 'source' (it trains) nor 'target' (it evaluates)")
    data = federate(
        replace(table, groups=None, group_names=None),
        clients=1,
        partition="iid",
        seed=experiment.top.seed if division.seed is None else division.seed,
        test=division.test,
        validation=division.validation,
        support=division.support,
        chronological=division.chronological,
    )
    return replace(data, names=(name,), roles=torch.tensor([_ROLES[role]], dtype=torch.int8))


def _imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("fedloom_device_data", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, "load", None)):
        raise DataError(f"{path.name} has no function load(node_config); `fedloom deploy init` writes one to fill in")
    return module
