"""The data of a federation: one table for all, and who owns which of its rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.errors import DataError
from fedloom.federation.augment import Augment
from fedloom.federation.blocks import Blocks
from fedloom.federation.encoding import Encoding
from fedloom.federation.ragged import Ints, Ragged, Span, Window
from fedloom.federation.scale import Scale

Task = Literal["classification", "binary", "multilabel", "regression"]
SOURCE, TARGET, POOL = 0, 1, 2
HALVES = ("support", "query")
"""The splits that are made of training rows, beside "train" itself."""


@dataclass(frozen=True, eq=False, repr=False)
class FederatedData:
    """Rows ``x``, ``y`` of all clients, and for every split the rows that each client owns.

    ``splits`` has "train" and "test", and "validation" where something is chosen; "support" and "query" halve "train",
    "test-support" and "test-query" halve "test", and likewise with "validation" (for adaptation: fit on the support,
    evaluate on the query). A row belongs to one client at the most, unless
    there are ``blocks``: then clients hold different columns of the same rows, and the server holds the labels; or
    unless it is one of the ``public`` rows, which are training rows of every source client.
    ``time`` says when each row was seen, in seconds; None: nobody knows.

    * classification: y int64 (rows,), ``classes`` names the labels 0, 1, …
    * binary: y float (rows, 1) of 0 and 1
    * multilabel: y float (rows, labels) of 0, 1 and NaN for unknown
    * regression: y float (rows, columns), ``target_names`` names the columns

    ``feature_names`` are those of the columns of x (of windows, of each step's). ``x_scale`` and ``y_scale`` say how
    features and targets were scaled; None: they are as they were measured. ``encoding`` says how the columns of a file
    became features; None: they were numbers. ``units`` is how numbers of a file were standardised before that; None:
    not at all. ``roles`` tells source clients and target clients apart, ``names`` has the clients' names, and
    ``notes`` what a reader should know of the data, called ``name``, whose kind is the ``task``. ``augment`` is how the
    images of mini-batches are changed, ``repeated`` how many training rows stand there again to fill up rare labels.

        data = fedloom.federate("digits", clients=5)
        rows = data.splits["train"][3]
        print(data.clients, data.x[rows].shape, data.y[rows].bincount())
    """

    name: str
    x: Tensor
    y: Tensor
    task: Task
    splits: dict[str, Ragged]
    classes: tuple[str, ...] = ()
    roles: Tensor | None = None
    names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = field(default=())
    blocks: Blocks | None = None
    time: Tensor | None = None
    feature_names: tuple[str, ...] = ()
    target_names: tuple[str, ...] = ()
    x_scale: Scale | None = None
    y_scale: Scale | None = None
    encoding: Encoding | None = None
    units: Scale | None = None
    public: Tensor | None = None
    augment: Augment | None = None
    repeated: int = 0

    def __repr__(self) -> str:
        rows, shape = int(self.splits["train"].sizes.sum()), "×".join(map(str, self.x.shape[1:]))
        return f"FederatedData({self.name!r}: {self.task}, {self.clients:,} clients, {rows:,} training rows of {shape})"

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.splits["train"])

    @property
    def layout(self) -> Literal["rows", "features"]:
        """What clients hold: rows of their own, or columns of rows that all share."""
        return "rows" if self.blocks is None else "features"

    @property
    def here(self) -> bool:
        """Whether the rows are here: a server whose clients are real devices knows only how many each has."""
        return all(owned.rows is not None or int(owned.offsets[-1]) <= len(self.x) for owned in self.splits.values())

    @property
    def outputs(self) -> int:
        """How many numbers a model must put out for one row."""
        return len(self.classes) if self.task == "classification" else int(self.y.shape[1])

    @property
    def columns(self) -> tuple[str, ...]:
        """The names (or numbers) of the targets of a regression, or of several labels; of one class there are none."""
        if self.task not in ("regression", "multilabel"):
            return ()
        named = self.classes if self.task == "multilabel" else self.target_names
        return named or tuple(str(k) for k in range(self.outputs))

    def class_counts(self) -> Tensor:
        """How many training rows of source clients have each class, or the labels 0 and 1: a sum over clients."""
        y = self.y[self.splits["train"].span(self.with_role(SOURCE).numpy()).rows()]
        if self.task == "classification":
            return torch.bincount(y, minlength=self.outputs).double()
        return torch.stack([(y == label).sum() for label in (0, 1)]).double()

    @property
    def shared(self) -> dict[str, int] | None:
        """What the public rows cost: how many they are, the clients that get them, and the bytes that this takes.

        Each is sent up by its owner once, and down to every client that does not have it.
        """
        if self.public is None:
            return None
        rows, clients = len(self.public), len(self.with_role(SOURCE))
        size = sum(part[:1].numel() * part.element_size() for part in (self.x, self.y))
        return {"rows": rows, "clients": clients, "bytes_up": rows * size, "bytes_down": rows * size * (clients - 1)}

    def with_role(self, role: int) -> Tensor:
        """The ids of the clients that play a role, in order."""
        if self.roles is None:
            return torch.arange(self.clients) if role == SOURCE else torch.empty(0, dtype=torch.int64)
        return torch.nonzero(self.roles == role).flatten()

    def label(self, client: int) -> str:
        """The name of a client, for people."""
        return self.names[client] if self.names is not None else str(client)

    def span(self, split: str, clients: Ints, window: Window | None = None) -> Span:
        """The rows of a split that some clients have; of training rows only those inside the window, if there is one.

        A half of the training rows ("support", "query") is then in their order.
        """
        if window is None or split not in ("train", *HALVES):
            return self.splits[split].span(clients)
        first, held = window
        starts = self.splits["train"].offsets.numpy()[clients] + first
        if split == "train":
            return Span(self.splits["train"], starts, held)
        ordered, places = self._in_order[split]
        begin = np.searchsorted(places, starts)
        return Span(ordered, begin, np.searchsorted(places, starts + held) - begin)

    @cached_property
    def _in_order(self) -> dict[str, tuple[Ragged, Ints]]:
        """Each half of the training rows in their order, and the flat position among these of each of its rows.

        Flat positions grow from client to client, so one sorted array tells for all clients where a window begins.
        """
        number, train = len(self.x), self.splits["train"]
        keys = _keys(train, number)
        order = np.argsort(keys, kind="stable")
        found = {}
        for half in HALVES:
            if half not in self.splits:
                continue
            own = _keys(self.splits[half], number)
            at = np.minimum(np.searchsorted(keys, own, sorter=order), len(keys) - 1)
            if len(own) and (len(keys) == 0 or (keys[order[at]] != own).any()):
                raise DataError(
                    f"the split {half!r} of {self.name!r} has rows that are not in 'train', so nobody knows when they "
                    f"arrive; make {half!r} a part of 'train'"
                )
            places = np.sort(order[at])
            ordered = Ragged(self.splits[half].offsets, train.resolve(torch.from_numpy(places)))
            found[half] = (ordered, places)
        return found

    def limited(self, rows: int) -> FederatedData:
        """The same federation on devices that keep only their first so many training rows."""
        train = self.splits["train"]
        sizes = train.sizes.clamp(max=rows)
        kept = Span(train, train.offsets[:-1].numpy(), sizes.numpy()).rows()
        held = torch.zeros(len(self.x), dtype=torch.bool).index_fill_(0, kept, True)
        splits = {**self.splits, "train": Ragged(Ragged.contiguous(sizes).offsets, kept)}
        for half in HALVES:
            if half in splits:
                owned = [splits[half][client] for client in range(self.clients)]
                splits[half] = Ragged.of([part[held[part]] for part in owned])
        return replace(self, splits=splits)

    def with_pool(self, times: npt.NDArray[np.float64] | None = None) -> FederatedData:
        """The same federation and one more client, of role POOL, that holds the training rows of all sources.

        Where training rows arrive at certain ``times`` (one for each, in the order of "train"), the pool has them in
        the order in which they arrive.
        """
        splits = {}
        shared = self.blocks is not None  # what is shared is there once
        holders = np.array([0]) if shared else self.with_role(SOURCE).numpy()
        for split, ragged in self.splits.items():
            union = ragged.span(holders if split in ("train", *HALVES) else holders[:0]).positions()
            if self.public is not None:
                union = _once(union, ragged.resolve(torch.from_numpy(union)).numpy(), self.public.numpy())
            if split == "train" and times is not None:
                union = union[np.argsort(times[union], kind="stable")]
            offsets = torch.cat([ragged.offsets, ragged.offsets[-1:] + len(union)])
            splits[split] = Ragged(offsets, torch.cat([ragged.every(), ragged.resolve(torch.from_numpy(union))]))
        roles = torch.zeros(self.clients, dtype=torch.int8) if self.roles is None else self.roles
        roles = torch.cat([roles, torch.tensor([POOL], dtype=roles.dtype)])
        names = None if self.names is None else (*self.names, "pool")
        blocks = None if self.blocks is None else self.blocks.with_all(self.x[0].numel())
        return replace(self, splits=splits, roles=roles, names=names, blocks=blocks)


def _once(positions: Ints, rows: Ints, public: Ints) -> Ints:
    """Positions without those at which a public row comes again."""
    _, first = np.unique(rows, return_index=True)
    kept = ~np.isin(rows, public)
    kept[first] = True
    return positions[kept]


def _keys(owned: Ragged, number: int) -> Ints:
    """One number for each (client, row) of a split, by client first: a row may be a client's and the pool's."""
    keys: Ints = owned.owners * number + owned.every().numpy()
    return keys
