"""Remedies on the side of the data: a part of the rows that all clients know, and rare labels that are filled up.

Both change nothing but which training rows a client has, so every method can have them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fedloom.capacity import refuse_larger, size_text
from fedloom.data.sizes import Whole
from fedloom.errors import ConfigError, DataError
from fedloom.federation.data import HALVES, SOURCE, FederatedData
from fedloom.federation.ragged import Ragged
from fedloom.federation.randomness import Draw

Splits = dict[str, Ragged]


def public_rows(splits: Mapping[str, Ragged], roles: Whole, share: float, draw: Draw) -> Tensor:
    """A share of the training rows of all source clients, drawn by counter; in the order in which they were drawn."""
    if not 0 < share < 1:
        raise ConfigError(f"public = {share} cannot be; give a share above 0 and below 1, such as 0.05")
    rows = splits["train"].span(np.flatnonzero(roles == SOURCE)).rows()
    count = max(1, round(share * len(rows)))
    order = np.argsort(draw.words("public", 0, len(rows)), kind="stable")
    return rows[torch.from_numpy(order[:count])]


def with_public(splits: Splits, public: Tensor, roles: Whole) -> Splits:
    """Every source client has the public rows first, and then its own that are not public.

    Of the halves of the training rows each gets its share of the public rows, the same ones at every client.
    """
    sources = roles == SOURCE
    refuse_larger(16 * len(public) * int(sources.sum()), "the public rows of all clients", "Share fewer.", DataError)
    train = splits["train"]
    first = (
        round(len(public) * int(splits["support"].sizes.sum()) / int(train.sizes.sum())) if "support" in splits else 0
    )
    given = {"train": public, "support": public[:first], "query": public[first:]}
    shared = np.zeros(int(max(train.every().max(), public.max())) + 1, dtype=bool)
    shared[public.numpy()] = True
    mixed = dict(splits)
    for name in ("train", *HALVES):
        if name in splits:
            own = [splits[name][client] for client in range(len(train))]
            mixed[name] = Ragged.of(
                [
                    torch.cat([given[name], rows[~torch.from_numpy(shared[rows.numpy()])]]) if takes else rows
                    for rows, takes in zip(own, sources.tolist(), strict=True)
                ]
            )
    return mixed


def filled(splits: Splits, labels: Whole, roles: Whole, draw: Draw) -> tuple[Splits, int]:
    """Every source client has of each label that it has at all as many training rows as of its most frequent one.

    Rows of rarer labels come again, in turn, in an order that is drawn by counter; in the half in which they are. The
    second result is how many rows were added.
    """
    parts: dict[str, list[Tensor]] = {name: [] for name in ("train", *HALVES) if name in splits}
    added = 0
    for client, role in enumerate(roles.tolist()):
        own = splits["train"][client].numpy()
        again = _again(own, labels[own], draw, client) if role == SOURCE else own[:0]
        added += len(again)
        for name, lists in parts.items():
            has = splits[name][client]
            more = again if name == "train" else again[np.isin(again, has.numpy())]
            lists.append(torch.cat([has, torch.from_numpy(more)]))
    return splits | {name: Ragged.of(lists) for name, lists in parts.items()}, added


def public_note(data: FederatedData) -> str:
    """What public rows cost, for people; nothing where there are none."""
    cost = data.shared
    if cost is None:
        return ""
    return (
        f"{cost['rows']:,} training rows are public: {cost['clients']:,} clients train on them; to hand them round "
        f"takes {size_text(cost['bytes_up'] + cost['bytes_down'])} before the first round, and all clients know them"
    )


def costs(data: FederatedData) -> list[str]:
    """What was done to the training rows, and what it costs, for people."""
    repeated = f"{data.repeated:,} training rows of rare labels come again: each client's labels are even"
    changed = f"images of mini-batches are changed: {data.augment}"
    shown = [public_note(data), repeated * bool(data.repeated), changed * (data.augment is not None)]
    return [note for note in shown if note]


def _again(rows: Whole, labels: Whole, draw: Draw, client: int) -> Whole:
    """The rows of one client that come again."""
    luck = draw.words("fill", client, len(rows))
    order = np.lexsort((luck, labels))
    found, counts = np.unique(labels, return_counts=True)
    ends = np.cumsum(counts)
    most = int(counts.max(initial=0))
    parts = [
        np.resize(rows[order[end - count : end]], most - count)
        for end, count in zip(ends, counts, strict=True)
        if count < most
    ]
    return np.concatenate([rows[:0], *parts]) if len(found) else rows[:0]
