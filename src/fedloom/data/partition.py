"""A partition: who owns which rows, how many each, and what makes their rows differ. The three kinds of step combine.

``make_partition(["classes", "quantity", "feature-skew"], classes_per_client=2)`` is label skew × quantity skew ×
feature skew. There is one owner step (iid unless another is named), at most one size step, any transforms. A vertical
partition, "features", stands alone: every client holds some columns of all rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fedloom.data.columns import Columns
from fedloom.data.owners import Iid, Owners, Ownership, Pool
from fedloom.data.register import STEPS
from fedloom.data.sizes import Quantity, Whole
from fedloom.data.table import Table
from fedloom.data.transforms import Transform
from fedloom.errors import ConfigError
from fedloom.federation.randomness import Draw
from fedloom.fields import with_fit_fields
from fedloom.register import hint

Step = Owners | Quantity | Transform | Columns


@dataclass(frozen=True)
class Partition:
    """One owner step, perhaps a size step, and transforms in the order in which they are applied; or columns alone."""

    owners: Owners
    quantity: Quantity | None = None
    transforms: tuple[Transform, ...] = ()
    columns: Columns | None = None

    @property
    def steps(self) -> list[Step]:
        """All of its steps."""
        return [step for step in (self.owners, self.quantity, *self.transforms, self.columns) if step is not None]

    def of(self, members: Whole) -> Partition:
        """The partition of a part of the clients among themselves: given sizes are theirs."""
        if self.quantity is None or self.quantity.quantity != "given":
            return self
        sizes = tuple(self.quantity.sizes[member] for member in members if member < len(self.quantity.sizes))
        return replace(self, quantity=replace(self.quantity, sizes=sizes))

    def check(self, table: Table, pool: Pool, clients: int) -> None:
        """An error, before any work, if the table cannot be divided in this way."""
        self.owners.check(pool, clients)
        if self.quantity is not None:
            self.quantity.check(pool.rows, clients)
        for transform in self.transforms:
            transform.check(table)

    def own(self, pool: Pool, clients: int, draw: Draw) -> Ownership:
        """Who owns which rows of a pool."""
        demand = None if self.quantity is None else self.quantity.demand(clients, draw)
        return self.owners.assign(pool, clients, demand, draw)

    def transform(self, table: Table, owned: Ownership, draw: Draw) -> Table:
        """The table after all transforms."""
        owner = torch.from_numpy(owned.owner)
        for transform in self.transforms:
            table = transform.apply(table, owner, owned.clients, draw)
        return table


PartitionLike = str | Step | Partition | Sequence[str | Step]
"""What stands for a partition: a name, a step, several of them, or the partition itself."""


def make_partition(what: PartitionLike = "iid", **options: object) -> Partition:
    """A partition from names and steps; ``options`` are fields of the named steps (None: the default)."""
    parts = what.steps if isinstance(what, Partition) else [what] if isinstance(what, str | Step) else list(what)
    given = {option: value for option, value in options.items() if value is not None}
    taken = {option for part in parts if isinstance(part, str) for option in options_of(part)}
    for option in given:
        if option not in taken:
            _refuse(option, parts, taken)
    steps = [with_fit_fields(_step(part, given) if isinstance(part, str) else part) for part in parts]
    return what if isinstance(what, Partition) else _combined(steps)


def options_of(name: str) -> tuple[str, ...]:
    """The options of a step, by its name."""
    return tuple(inspect.signature(STEPS.find(name)).parameters)


def _step(name: str, given: dict[str, object]) -> Step:
    chosen = {option: given[option] for option in options_of(name) if option in given}
    return STEPS.find(name)(**{k: tuple(v) if isinstance(v, list) else v for k, v in chosen.items()})


def _refuse(option: str, parts: Sequence[str | Step], taken: set[str]) -> None:
    named = " × ".join(part if isinstance(part, str) else type(part).__name__ for part in parts)
    homes = [name for name in STEPS if option in options_of(name)]
    told = f"it belongs to {' and '.join(homes)}" if homes else hint(option, sorted(taken))
    raise ConfigError(f"the partition {named} has no option {option!r}; {told}")


def _combined(steps: list[Step]) -> Partition:
    owners = [step for step in steps if isinstance(step, Owners)]
    sizes = [step for step in steps if isinstance(step, Quantity)]
    for kind, found in (("who owns the rows", owners), ("how many rows each has", sizes)):
        if len(found) > 1:
            named = " and ".join(type(step).__name__.lower() for step in found)
            raise ConfigError(f"{named} both say {kind}; keep one of them")
    transforms = tuple(step for step in steps if isinstance(step, Transform))
    columns = next((step for step in steps if isinstance(step, Columns)), None)
    if columns is not None and len(steps) > 1:
        raise ConfigError(
            "the partition 'features' gives every client columns of all rows and stands alone; for rows whose "
            "features differ from client to client use 'feature-skew'"
        )
    return Partition(owners[0] if owners else Iid(), sizes[0] if sizes else None, transforms, columns)
