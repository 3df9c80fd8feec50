"""The rows of one device: those of one client of an experiment's data, or those that the device's owner loads."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedloom.data import Table
from fedloom.data.apart import Told, load_own, told_of
from fedloom.data.federate import Divided, divide
from fedloom.data.files import Known
from fedloom.data.paths import stem
from fedloom.data.scaling import Scaling, planned
from fedloom.deploy.agreement import Agreed
from fedloom.deploy.card import Card
from fedloom.deploy.codec import Tree
from fedloom.errors import ConfigError, DataError, MessageError
from fedloom.experiment import Experiment
from fedloom.experiment.experiment import Shelf
from fedloom.experiment.settings import Settings
from fedloom.federation.data import SOURCE, TARGET, FederatedData
from fedloom.federation.ragged import Ragged

PLACE = "rows-of-each-node.csv"
"""Stands for the path of the data where every node has a file of its own."""
MODULE = "data.py"
"""The file beside the experiment that loads a device's own rows; without it there is a rehearsal on [data]."""
NodeConfig = Mapping[str, Any]
"""What a node was started with: ``--node-config "client=3 state='…'"``."""
T = TypeVar("T")
_ROLES = {"source": SOURCE, "target": TARGET}


@dataclass(eq=False)
class Device(ABC):
    """Where the rows of one device come from: they are read once, and scaled as all nodes agree."""

    experiment: Experiment
    folder: Path
    config: NodeConfig
    client = 0
    """Its number among the clients of what it reads."""

    def told(self) -> Told | None:
        """What it tells of its columns before all agree on how they are read; None: there is nothing to agree on."""
        return None

    @abstractmethod
    def _divided(self, agreed: Agreed) -> Divided:
        """The rows in the numbers that all nodes agree on, and what each is for, before they are scaled."""

    def _kept(self, kind: str, agreed: Agreed, make: Callable[[], T]) -> T:
        """What was made of the rows by the last agreement."""
        return self._shelf.get(kind, agreed.key, make)

    @cached_property
    def _shelf(self) -> Shelf:
        return Shelf()

    def divided(self, agreed: Agreed) -> Divided:
        """The rows of this device, and perhaps of others, before they are scaled."""
        columns = replace(agreed, wide=(), scales=(None, None), notes=())
        return self._kept("divided", columns, lambda: self._divided(columns))

    def card(self, agreed: Agreed, number: int | None) -> Card:
        """What the device says of itself."""
        divided = self.divided(agreed)
        return Card.of(alone(divided.unscaled(), self.client, 0), number, planned(divided.table))

    def sums(self, agreed: Agreed, wanted: Sequence[str], around: Mapping[str, Tensor] | None) -> Tree:
        """What it tells of its training rows: sums of each column, around a point where one is given."""
        divided, found = self.divided(agreed), dict[str, Any]()
        for part in ("x", "y") if divided.table.task == "regression" else ("x",):
            point = None if around is None else around[part].unsqueeze(0)
            sums = divided.sums(part, self.client, point)
            found[part] = {name: getattr(sums, name)[0] for name in wanted}
        return found

    def data(self, agreed: Agreed) -> FederatedData:
        """A federation of one client, with the rows of this device as a model reads them."""
        return self._kept("data", agreed, lambda: self._data(agreed))

    def _data(self, agreed: Agreed) -> FederatedData:
        divided = self.divided(agreed)
        table = divided.table
        plan = planned(table)
        if plan is not None and plan.by == "client" and plan.kind != "none":
            self._refuse_unknown(divided)
        elif plan is not None and agreed.scales[0] is None:
            raise MessageError("the server sends no scaling that all agreed on; use the same fedloom everywhere")
        wide = {part: getattr(table, part).double() for part in agreed.wide}
        whole = replace(divided, table=replace(table, **wide)).federated(agreed.scales)
        return alone(whole, self.client, 0)

    def _refuse_unknown(self, divided: Divided) -> None:
        """Of a feature that a client never has, only others know how to scale it."""
        nothing = torch.nonzero(divided.sums("x", self.client).count[0] == 0).flatten().tolist()
        if nothing:
            names = divided.table.feature_names
            column = repr(names[nothing[0]]) if names else str(nothing[0])
            raise DataError(
                f"column {column} has no value in the training rows of this node, so it cannot be scaled by its own "
                "rows alone: choose scaling_by = 'all', or drop the column"
            )


class Simulated(Device):
    """A rehearsal: the rows of one client of the experiment's own data."""

    def _divided(self, agreed: Agreed) -> Divided:
        table, plan = self.experiment.table(), self.experiment.data_plan
        divided = plan.divide(table, self.experiment.top.seed)
        client, clients = self.config.get("client"), divided.owned.clients
        if not isinstance(client, int) or not 0 <= client < clients:
            raise ConfigError(
                f"the node's client = {client!r} is none of the {clients} of {table.name!r}; start the "
                f"node with --node-config 'client=0' (or 1, …), or write a {MODULE} that loads its own rows"
            )
        self.client = client
        return divided


class Own(Device):
    """Rows that are this device's alone: one client, with a name that never changes."""

    @abstractmethod
    def table(self, agreed: Agreed) -> Table:
        """The rows."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The client's name."""

    def _divided(self, agreed: Agreed) -> Divided:
        division, role = self.experiment.data_plan.division, str(self.config.get("role", "source"))
        if role not in _ROLES:
            raise ConfigError(f"the node's role = {role!r} is neither 'source' (it trains) nor 'target' (it evaluates)")
        table, name = self.table(agreed), self.name
        divided = divide(
            replace(table, groups=torch.zeros(len(table), dtype=torch.int64), group_names=(name,), apart=True),
            partition="natural",
            seed=self.experiment.top.seed if division.seed is None else division.seed,
            test=division.test,
            validation=division.validation,
            support=division.support,
            positive=division.positive,
            chronological=division.chronological,
        )
        return replace(divided, roles=np.array([_ROLES[role]]))


class Loaded(Own):
    """What the module of the device's owner loads."""

    @cached_property
    def _loaded(self) -> tuple[Table, str]:
        path = self.folder / MODULE
        loaded = _imported(path).load(dict(self.config))
        if not isinstance(loaded, tuple) or len(loaded) != 2 or not isinstance(loaded[0], Table):
            raise DataError(
                f"load in {path.name} must return a table (fedloom.data.from_arrays, …) and the client's name"
            )
        table, name = loaded
        if not isinstance(name, str) or not name:
            raise DataError(
                f"load in {path.name} returns {name!r} as the client's name; give a text that never changes"
            )
        return table, name

    @property
    def name(self) -> str:
        """As the module says."""
        return self._loaded[1]

    def table(self, agreed: Agreed) -> Table:
        """As the module loads it, scaled as the experiment says, unless the table itself says how."""
        table, said = self._loaded[0], file_settings(self.experiment)
        if more := sorted(set(said) - {"scaling", "scaling_by"}):
            raise ConfigError(
                f"data.{more[0]} says how a node reads a file, but {MODULE} loads the rows here: leave it out, or "
                f"remove {MODULE}"
            )
        if table.scaling is None and said.get("scaling", "auto") not in ("auto", "none"):
            table = replace(table, scaling=Scaling(said["scaling"], said.get("scaling_by", "all")))
        return table


class OwnFile(Own):
    """A file on this device, which the experiment's [data] section says how to read."""

    @property
    def path(self) -> Path:
        """The file that the node was started with."""
        path = self.config.get("rows")
        if not isinstance(path, str) or not path:
            raise ConfigError(
                f"the node's rows = {path!r} is no file; start it with node.sh NAME ROWS (--node-config \"name='…' "
                f"rows='FILE'\"), or write a {MODULE} that loads its rows"
            )
        return Path(path)

    @property
    def name(self) -> str:
        """As the node is called, or else as its file is."""
        name = self.config.get("name")
        return name if isinstance(name, str) and name else stem(self.path)

    @property
    def options(self) -> dict[str, Any]:
        """How a file is read."""
        return self.experiment.data_plan.options

    def told(self) -> Told | None:
        """What is in the columns of the file."""
        return told_of(self.path, self.name, self.options)

    def card(self, agreed: Agreed, number: int | None) -> Card:
        """What the device says of itself; how columns are read was agreed on, and is not said again."""
        return replace(super().card(agreed, number), encoding=[])

    def table(self, agreed: Agreed) -> Table:
        """The rows, read as all agreed."""
        known = Known(agreed.encoding, agreed.classes)
        return load_own(self.path, self.experiment.data_plan.name, self.options, known)


def device_of(experiment: Experiment, folder: Path, config: NodeConfig) -> Device:
    """Where the rows of this device come from: the owner's module, a file, or a client of the experiment's data."""
    if (folder / MODULE).is_file():
        return Loaded(experiment, folder, config)
    return (OwnFile if of_nodes(experiment) else Simulated)(experiment, folder, config)


def fleet_experiment(path: Path) -> Experiment:
    """The experiment of a fleet; without a name or a path of data each node has a file of its own."""
    written = Settings.read(path).get(("data",))
    own = not isinstance(written, dict) or not {"name", "path"} & set(written)
    return Experiment.load(path, {"data.path": PLACE} if own else {})


def of_nodes(experiment: Experiment) -> bool:
    """Whether every node has rows of its own, in the place of those that [data] would load."""
    return bool(experiment.settings.get(("data", "path")) == PLACE)


def file_settings(experiment: Experiment) -> dict[str, Any]:
    """What an experiment says of how files are read."""
    said = experiment.settings.get(("data",)) or {}
    return {key: value for key, value in said.items() if key in experiment.data_plan.options}


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


def _imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("fedloom_device_data", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, "load", None)):
        raise DataError(f"{path.name} has no function load(node_config); `fedloom deploy init` writes one to fill in")
    return module
