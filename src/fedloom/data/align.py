"""Data that several parties hold about the same people or things: one table, its rows brought together by their ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedloom.data.arrays import AnyTask, Array, array, assembled, some
from fedloom.data.table import Table
from fedloom.errors import DataError
from fedloom.federation.blocks import Blocks

Held = tuple[object | None, object]
"""What a party brings: an id for each row (None: rows are in the same order everywhere), and the rows."""


def from_parties(
    parties: Mapping[str, Held],
    labels: Held,
    *,
    task: AnyTask = "auto",
    classes: Sequence[str] | None = None,
    name: str = "parties",
) -> Table:
    """Make a table of a vertical federation from what each party holds.

    * ``parties``: for each party, by its name, the ids of its rows and their columns, ``{"clinic": (ids, x)}``.
    * ``labels``: the ids and the labels, ``(ids, y)``.
    * ``task``, ``classes``, ``name``: as of ``from_arrays``.

    Rows are brought together by their ids, whatever their order; only rows that everybody holds are used, and the
    notes say who lacks how many. Without ids (None) all must have the same rows in the same order. The result is a
    Table, from which ``federate`` makes a client for each party.

        import numpy as np

        ids, x = np.arange(60), np.random.default_rng(0).normal(size=(60, 4))
        held = {"clinic": (ids, x[:, :2]), "lab": (ids[::-1], x[::-1, 2:])}
        table = fedloom.from_parties(held, (ids, x[:, 0] > x[:, 3]))
        print(fedloom.federate(table).names)
    """
    return aligned(parties, labels, task=task, classes=classes, name=name).check()


def aligned(
    parties: Mapping[str, Held],
    labels: Held,
    *,
    task: AnyTask = "auto",
    classes: Sequence[str] | None = None,
    name: str = "parties",
) -> Table:
    """The same before it is checked: features may still be missing."""
    if not parties:
        raise DataError(f"{name!r} has no parties; give at least one")
    brought = {party: _rows(party, x, name) for party, (_, x) in parties.items()}
    ids = {party: _ids(party, given, len(brought[party]), name) for party, (given, _) in parties.items()}
    target = array(labels[1])
    everybody = {"labels": _ids("labels", labels[0], len(target), name), **ids}
    if "labels" in parties:
        raise DataError(f"{name!r}: a party cannot be called 'labels'; give it another name")
    sizes = {"labels": len(target), **{party: len(rows) for party, rows in brought.items()}}
    places, notes = _places(everybody, sizes, name)
    table = assembled(
        np.concatenate([rows[places[party]] for party, rows in brought.items()], axis=1),
        target[places["labels"]],
        task=task,
        classes=classes,
        name=name,
    )
    ends = np.cumsum([rows.shape[1] for rows in brought.values()])
    blocks = Blocks.of([range(end - rows.shape[1], end) for end, rows in zip(ends, brought.values(), strict=True)])
    return replace(table, blocks=blocks, block_names=tuple(parties), notes=(*table.notes, *notes))


def _rows(party: str, x: object, name: str) -> Array:
    rows = array(x)
    if rows.ndim == 1:
        rows = rows[:, None]
    if rows.ndim != 2 or rows.dtype.kind not in "biuf":
        raise DataError(f"{name!r}: party {party!r} holds {rows.dtype} of shape {rows.shape}; give rows of numbers")
    return rows


def _ids(party: str, given: object | None, rows: int, name: str) -> Array | None:
    if given is None:
        return None
    ids = array(given)
    if ids.ndim != 1 or len(ids) != rows:
        raise DataError(f"{name!r}: {party!r} has {rows} rows but {ids.size} ids; give one id per row")
    ids = ids.astype(str) if ids.dtype.kind == "O" else ids
    distinct, counts = np.unique(ids, return_counts=True)
    if len(distinct) < len(ids):
        raise DataError(
            f"{name!r}: {party!r} has the id {distinct[counts > 1][0]} more than once; keep one row of each"
        )
    return ids


def _places(
    ids: Mapping[str, Array | None], sizes: Mapping[str, int], name: str
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """For each holder where its shared rows are, in the order of the labels, and what is to be said of the others."""
    known = {party: own for party, own in ids.items() if own is not None}
    if not known:
        odd = next((party for party in sizes if sizes[party] != sizes["labels"]), None)
        if odd is not None:
            raise DataError(
                f"{name!r}: party {odd!r} has {sizes[odd]} rows and there are {sizes['labels']} labels, and no ids say "
                "which belong together; give everybody an id for each row (id_column)"
            )
        return {party: np.arange(size) for party, size in sizes.items()}, ()
    if len(known) < len(ids):
        without = [party for party in ids if party not in known]
        raise DataError(f"{name!r}: {some(without)} has no ids while others have; give everybody an id for each row")
    kinds = {party: "numbers" if own.dtype.kind in "biuf" else "texts" for party, own in known.items()}
    if len(set(kinds.values())) > 1:
        raise DataError(f"{name!r}: ids are {', '.join(f'{k} of {p!r}' for p, k in kinds.items())}; use one kind")
    shared = known["labels"]
    for own in known.values():
        shared = shared[np.isin(shared, own)]
    if len(shared) == 0:
        first = "; ".join(f"{party!r} begins with {some(own[:2])}" for party, own in known.items())
        raise DataError(f"{name!r}: no id is known to everybody ({first}); check the id columns")
    every = len(np.unique(np.concatenate(list(known.values()))))
    lacks = {party: every - len(own) for party, own in known.items() if len(own) < every}
    notes = [f"{party!r} lacks {rows:,} of {every:,} rows" for party, rows in lacks.items()]
    if notes:
        notes.append(f"the {len(shared):,} rows that everybody holds are used")
    places = {}
    for party, own in known.items():
        order = np.argsort(own, kind="stable")
        places[party] = order[np.searchsorted(own[order], shared)]
    return places, tuple(notes)
