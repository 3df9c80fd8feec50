"""From a table to a federation in one call: partition, roles, splits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedloom.data.columns import Columns
from fedloom.data.folds import TEST, Fold
from fedloom.data.owners import NOBODY, Natural, Ownership, Pool
from fedloom.data.partition import Partition, PartitionLike, make_partition
from fedloom.data.register import FILES, load
from fedloom.data.remedies import costs, filled, public_rows, with_public
from fedloom.data.scaling import Holders, Scales, Sums, by_column, scaled, sums_of
from fedloom.data.sizes import Whole
from fedloom.data.splits import Labels, RoleClasses, Splitter, choose_roles, refuse_empty, share_published, split
from fedloom.data.table import Table, against_rest
from fedloom.errors import ConfigError, DataError
from fedloom.federation.augment import Augment
from fedloom.federation.blocks import Blocks
from fedloom.federation.data import SOURCE, TARGET, FederatedData
from fedloom.federation.ragged import Ragged
from fedloom.federation.randomness import Draw

CLIENTS = 20
"""How many clients share a table that comes with none of its own, unless a number is given."""


def federate(
    table: Table | str,
    *,
    clients: int | None = None,
    partition: PartitionLike | None = None,
    seed: int = 0,
    test: float | Literal["published"] = TEST,
    validation: float | None = None,
    support: float | None = 0.5,
    target: float = 0.0,
    folds: int | str | None = None,
    fold: int | None = None,
    source_classes: Labels | None = None,
    target_classes: Labels | None = None,
    positive: int | str | None = None,
    chronological: bool | None = None,
    allow_empty: bool = False,
    public: float | None = None,
    fill: bool = False,
    augment: str | None = None,
    like: FederatedData | None = None,
    **options: object,
) -> FederatedData:
    """Give the rows of a table to clients, and split each client's rows.

    * ``table``: the rows, as a Table or as the name of a data set.
    * ``clients``: how many; none: 20, or all natural clients where there are any.
    * ``partition``: names, steps or both (:func:`fedloom.data.partition.make_partition`), with their ``options``; none:
      the natural clients where there are any, else iid.
    * ``seed``: of all that is drawn.
    * ``test``: the fraction of each client's rows for its test; or "published", which keeps the publisher's test rows
      for the test and gives each client those that fit its labels (a natural client has its own).
    * ``validation``: the fraction of each client's other rows that is taken out of training, to choose by: when to
      stop, a threshold, hyper-parameters. None: no such split.
    * ``support``: the fraction of train, of validation and of test that is for adaptation; None makes no such splits.
    * ``target``: the share of clients that are kept out of training, the target clients.
    * ``folds``, ``fold``: cross-validation. Of ``folds=5`` of each client's rows ``fold=2`` tests the second, and the
      others train; "clients" leaves out each client once, "clients:5" groups of them, and tests them as targets.
    * ``source_classes``, ``target_classes``: the classes that clients of either role may hold; none: all.
    * ``positive``: of several classes this one, by name or number, against the rest, as a binary task. Partitions and
      splits by label then see these two; none: the classes as they are.
    * ``chronological``: test on each client's last rows rather than on a random sample; None: so for series alone.
    * ``allow_empty``: a client may have no rows.
    * ``public``: a share of all source clients' training rows, drawn by the seed, that every source client gets as
      training rows beside its own. Their owners' rows are then known to all.
    * ``fill``: each source client trains on as many rows of every label that it has as of its most frequent one; rows
      of rarer labels come again.
    * ``augment``: images of mini-batches are mirrored ("flip", "flip:0.5") and moved ("crop", "crop:4"), or both
      ("flip,crop"); never those that are evaluated.
    * ``like``: scale as these data were scaled, so that a model that was trained on them can read the new ones.

    The result is a FederatedData. A table that asks for a scaling is scaled by its training rows
    (:class:`~fedloom.data.scaling.Scaling`).

        data = fedloom.federate("digits", clients=10, partition="dirichlet", alpha=0.3, target=0.2)
        print(data.clients, data.splits["train"].sizes)
    """
    divided = divide(
        table,
        clients=clients,
        partition=partition,
        seed=seed,
        test=test,
        validation=validation,
        support=support,
        target=target,
        folds=folds,
        fold=fold,
        source_classes=source_classes,
        target_classes=target_classes,
        positive=positive,
        chronological=chronological,
        allow_empty=allow_empty,
        public=public,
        fill=fill,
        augment=augment,
        **options,
    )
    return divided.federated(like)


@dataclass(frozen=True, eq=False)
class Divided:
    """Who owns which rows of a table, and which of these are for what: all but the scaling, which clients agree on."""

    table: Table
    plan: Partition
    owned: Ownership
    roles: Whole
    splits: dict[str, Ragged]
    blocks: Blocks | None
    draw: Draw
    public: Tensor | None = None
    fill: bool = False
    augment: Augment | None = None

    @property
    def holders(self) -> Holders:
        """Who has which rows, for a scaling."""
        return Holders(torch.from_numpy(self.owned.owner), self.splits["train"], torch.from_numpy(self.roles != TARGET))

    def sums(self, part: Literal["x", "y"], client: int, around: Tensor | None = None) -> Sums:
        """What a client tells of its training rows, so that all agree on a scale of the features or the targets."""
        own = Ragged.of([self.splits["train"][client]])
        return Sums.stacked([*sums_of(by_column(getattr(self.table, part)), own, around)])

    def unscaled(self) -> FederatedData:
        """The federation in its own units, where something may be missing still."""
        return replace(self, table=replace(self.table, scaling=None)).federated()

    def federated(self, like: FederatedData | Scales | None = None) -> FederatedData:
        """The federation, scaled by its training rows, or as others were."""
        table, owned, splits, blocks = self.table, self.owned, self.splits, self.blocks
        whole, x_scale, y_scale = scaled(table, self.holders, like)
        changed = self.plan.transform(whole, owned, self.draw)
        if blocks is not None:
            splits = {name: Ragged.of([one[0]] * len(blocks)) for name, one in splits.items()}
        splits, repeated = self._remedied(splits)
        targets = bool((self.roles == TARGET).any())
        data = FederatedData(
            table.name,
            changed.x,
            changed.y,
            table.task,
            splits,
            classes=table.classes,
            roles=torch.from_numpy(self.roles.astype(np.int8)) if targets else None,
            names=owned.names,
            notes=(*changed.notes, *owned.notes),
            blocks=blocks,
            time=table.time,
            feature_names=table.feature_names,
            target_names=table.target_names,
            x_scale=x_scale,
            y_scale=y_scale,
            encoding=table.encoding,
            units=table.units,
            public=self.public,
            augment=self.augment,
            repeated=repeated,
        )
        return _compact(replace(data, notes=(*data.notes, *costs(data))), owned)

    def _remedied(self, splits: dict[str, Ragged]) -> tuple[dict[str, Ragged], int]:
        """With the public rows, then filled up, and how many rows this added; the scaling was fitted without both."""
        if self.public is not None:
            splits = with_public(splits, self.public, self.roles)
        if not self.fill:
            return splits, 0
        labels = self.table.labels
        assert labels is not None
        return filled(splits, labels.numpy(), self.roles, self.draw)


def divide(
    table: Table | str,
    *,
    clients: int | None = None,
    partition: PartitionLike | None = None,
    seed: int = 0,
    test: float | Literal["published"] = TEST,
    validation: float | None = None,
    support: float | None = 0.5,
    target: float = 0.0,
    folds: int | str | None = None,
    fold: int | None = None,
    source_classes: Labels | None = None,
    target_classes: Labels | None = None,
    positive: int | str | None = None,
    chronological: bool | None = None,
    allow_empty: bool = False,
    public: float | None = None,
    fill: bool = False,
    augment: str | None = None,
    **options: object,
) -> Divided:
    """The first half of ``federate``, which has the same arguments: everything but the scaling."""
    table = _table(table).check()
    if positive is not None:
        table = against_rest(table, positive)
    plan, draw = make_partition(partition or default_partition(table), **options), Draw(seed)
    may_hold, blocks = RoleClasses(source_classes, target_classes), None
    changed = None if augment is None else Augment.parse(augment, tuple(table.x.shape[1:]))
    if fill and table.labels is None:
        raise ConfigError(f"fill = true needs a class for each row, but {table.name!r} is a {table.task} task")
    held = Fold.of(folds, fold, test, target)
    left_out = held is not None and held.clients
    if plan.columns is None:
        pool, tested = Pool.of(table), _tested(table, test)
        count = _count(plan, pool, clients)
        roles = held.roles(count, draw) if held and left_out else choose_roles(count, target, draw)
        owned = _owners(plan, table, pool, roles, may_hold, tested, draw)
        if not allow_empty:
            refuse_empty(owned.sizes(), owned.names, "data", "leave it out with min_rows = 1, or set allow_empty")
    elif public is not None or fill:
        raise ConfigError(
            "clients that hold columns of the same rows have no rows of their own to share or to repeat; leave public "
            "and fill away, or use a partition by rows such as 'iid'"
        )
    elif target > 0 or may_hold.limited or left_out:
        raise ConfigError(
            "clients that hold columns of the same rows all have to take part: none can be a target or left out, and "
            "none has classes of its own; leave target, folds of clients and the class lists away"
        )
    else:
        table, blocks, owned = _shared(plan.columns, table, clients, draw)
        pool, tested, roles = Pool.of(table), _tested(table, test), np.full(1, SOURCE)
    chronological = table.series if chronological is None else chronological
    apart = owned.names if table.apart else None
    splitter = Splitter(owned.owner, owned.clients, pool.labels, pool.time, draw, chronological, apart)
    if held is not None:
        splitter, tested = held.tested(splitter, roles)
        note = held.note(owned.clients, roles, owned.names, chronological)
        owned = replace(owned, owner=splitter.owner, notes=(*owned.notes, note))
    splits = split(splitter, tested, support, validation or 0.0, left_out)
    if not allow_empty:
        remedy = "give test as a fraction" if held is None else "leave it out with min_rows = 2"
        sizes = splits["train"].sizes.numpy()
        refuse_empty(np.maximum(sizes, left_out & (roles == TARGET)), owned.names, "training rows", remedy)
    shared = None if public is None else public_rows(splits, roles, public, draw)
    return Divided(table, plan, owned, roles, splits, blocks, draw, shared, fill, changed)


def _table(given: object) -> Table:
    """The rows that are meant; what is none is refused in words."""
    if isinstance(given, str) and Path(given).suffix in FILES:
        raise ConfigError(
            f"{given!r} is a file, of which nobody knows yet what its columns are: give "
            f"fedloom.load_file({given!r}, label_column=…, client_column=…)"
        )
    if isinstance(given, str):
        return load(given)
    if not isinstance(given, Table):
        raise ConfigError(
            f"a {type(given).__name__} is no table of rows; make one with fedloom.from_arrays(x, y), from_clients or "
            "load_file, or give the name of a data set"
        )
    return given


def default_partition(table: Table) -> str:
    """How a table is divided when nobody says: by its parties, by its natural clients, or evenly."""
    if table.blocks is not None:
        return "features"
    return "iid" if table.groups is None else "natural"


def _shared(plan: Columns, table: Table, clients: int | None, draw: Draw) -> tuple[Table, Blocks, Ownership]:
    """The rows that all clients share, who holds which columns, and one owner of every row, who stands for them all."""
    default = CLIENTS if table.blocks is None else len(table.blocks)
    count = default if clients is None else clients
    plan.check(table, count)
    blocks = plan.blocks(table, count, draw)
    rows, notes = plan.shared(table, count, draw)
    held = f"columns: {', '.join(str(len(one)) for one in blocks.columns[:20])}{', …' if count > 20 else ''} by client"
    owned = Ownership(np.zeros(len(rows), dtype=np.int64), 1, table.block_names, (held, *notes))
    return table.take(rows), blocks, owned


def _tested(table: Table, test: float | str) -> float | Whole:
    """The fraction, or the published test rows."""
    if not isinstance(test, str):
        return test
    if test != "published":
        raise ConfigError(f"test = {test!r} cannot be; give a fraction, or 'published'")
    if table.published_split is None:
        raise DataError(f"{table.name!r} has no published test rows; give test as a fraction")
    return np.flatnonzero(table.published_split.numpy())


def _count(plan: Partition, pool: Pool, clients: int | None) -> int:
    if clients is not None:
        return clients
    return plan.owners.count(pool) if isinstance(plan.owners, Natural) else CLIENTS


def _owners(
    plan: Partition,
    table: Table,
    pool: Pool,
    roles: Whole,
    may_hold: RoleClasses,
    tested: float | Whole,
    draw: Draw,
) -> Ownership:
    """Who owns which rows; published test rows follow the training rows of whoever has some like them."""
    if not isinstance(tested, np.ndarray) or isinstance(plan.owners, Natural):
        return _own(plan, table, pool, roles, may_hold, draw)
    offered = np.delete(np.arange(pool.rows), tested)
    owned = _own(plan, table, pool.take(offered), roles, may_hold, draw)
    owner = np.full(pool.rows, NOBODY, dtype=np.int64)
    owner[offered] = owned.owner
    return replace(owned, owner=share_published(replace(owned, owner=owner), pool, tested, draw))


def _own(plan: Partition, table: Table, pool: Pool, roles: Whole, may_hold: RoleClasses, draw: Draw) -> Ownership:
    """Who owns which rows of the pool; with class lists, each role is served from rows of its own."""
    if not may_hold.limited or isinstance(plan.owners, Natural):
        plan.check(table, pool, len(roles))
        owned = plan.own(pool, len(roles), draw)
        return may_hold.limit(owned, pool, roles) if may_hold.limited else owned
    parts = may_hold.pools(pool, roles, draw)
    for members, rows in parts:
        plan.of(members).check(table, pool.take(rows), len(members))
    owner, notes = np.full(pool.rows, NOBODY, dtype=np.int64), list[str]()
    for number, (members, rows) in enumerate(parts):
        part = plan.of(members).own(pool.take(rows), len(members), replace(draw, round=number))
        owner[rows] = np.where(part.owner >= 0, members[part.owner], NOBODY)
        notes += part.notes
    return Ownership(owner, len(roles), notes=tuple(notes))


def _compact(data: FederatedData, owned: Ownership) -> FederatedData:
    """Without the rows that nobody owns, when they are the greater part: a copy then costs less than to carry them."""
    used = np.flatnonzero(owned.owner >= 0)
    if 2 * len(used) >= len(data.x):
        return data
    number = torch.empty(len(data.x), dtype=torch.int64)
    number[used] = torch.arange(len(used))
    splits = {
        name: Ragged(owns.offsets, number[owns.resolve(torch.arange(int(owns.offsets[-1])))])
        for name, owns in data.splits.items()
    }
    kept = torch.from_numpy(used)
    time = None if data.time is None else data.time[kept]
    public = None if data.public is None else number[data.public]
    return replace(data, x=data.x[kept], y=data.y[kept], splits=splits, time=time, public=public)
