"""Client memories as rows of bytes: one layout of keys, dtypes and shapes, one table of equal records.

A record holds, for each key, how many rows the tensor has, and then the bytes of the tensors one after the other.
Bytes make every dtype equal (and come back bit by bit); equal records make a hundred clients one indexing operation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.errors import ClientError
from fedloom.storage.tensors import Bytes, dtype_of, from_bytes, name_of, to_bytes

Ints = npt.NDArray[np.signedinteger[Any]]

PLACE = 16
"""Bytes that a client takes whose memory may be somewhere: four numbers."""
_POWERS = 1 << np.arange(11)


class Field(NamedTuple):
    """One key of a layout: ``rest`` are the axes after the first (None: a number without axes), ``rows`` the room."""

    key: str
    dtype: torch.dtype
    rest: tuple[int, ...] | None
    rows: int

    @property
    def unit(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.rest or ())


@dataclass(frozen=True, eq=False)
class Layout:
    """The fields of a record, in order of their keys; ``Layout.of`` gives the same object for the same fields.

    Field i has the bytes from ``starts[i]`` to ``starts[i + 1]``; the numbers of rows stand before the first.
    """

    fields: tuple[Field, ...]
    starts: tuple[int, ...]

    @staticmethod
    @cache
    def of(fields: tuple[Field, ...]) -> Layout:
        """The layout of these fields."""
        sizes = (field.rows * field.unit for field in fields)
        return Layout(fields, tuple(accumulate(sizes, initial=8 * max(1, len(fields)))))

    @property
    def width(self) -> int:
        """Bytes of one record."""
        return self.starts[-1]

    def to_json(self) -> list[Any]:
        """As plain lists, for the header of a file."""
        return [[key, name_of(dtype), rest, rows] for key, dtype, rest, rows in self.fields]

    @staticmethod
    def from_json(described: list[Any]) -> Layout:
        """Back from plain lists."""
        fields = tuple(
            Field(key, dtype_of(dtype), None if rest is None else tuple(rest), rows)
            for key, dtype, rest, rows in described
        )
        if not all(isinstance(n, int) and n >= 0 for field in fields for n in (*(field.rest or ()), field.rows)):
            raise ValueError("the shape of a memory cannot be")
        return Layout.of(fields)


class Part(NamedTuple):
    """Records of some clients: row ``rows[i]`` of the table belongs at position ``at[i]``, which increases with i."""

    at: Ints
    layout: Layout
    table: Bytes
    rows: Ints


class Places:
    """Where the memory of every client is: table and slot in RAM, segment and row on disk; -1 for nowhere.

    In both places it is the same; a memory that is on disk in an older state only has no segment.
    """

    def __init__(self) -> None:
        self.table, self.slot, self.segment, self.row = (np.empty(0, np.int32) for _ in range(4))

    def reach(self, ids: Ints) -> None:
        """Makes room for these ids."""
        if len(ids) and (most := int(ids.max())) >= len(self.table):
            more = np.full(max(most + 1, 2 * len(self.table)) - len(self.table), -1, np.int32)
            self.table, self.slot, self.segment, self.row = (
                np.concatenate([numbers, more]) for numbers in (self.table, self.slot, self.segment, self.row)
            )

    def known(self, ids: Ints | slice = slice(None)) -> npt.NDArray[np.bool_]:
        """Which of these clients, or of all, have a memory."""
        return (self.table[ids] >= 0) | (self.segment[ids] >= 0)


class Batch:
    """The new memories of some clients, given as columns, ready to be cut into records."""

    def __init__(self, count: int, columns: dict[str, Tensor], lengths: dict[str, Tensor] | None) -> None:
        self._bytes: dict[str, Bytes] = {}
        self._fields: list[Field] = []
        own = []
        for key in sorted(columns):
            column = columns[key]
            if column.dim() == 0 or column.shape[0] != count:
                raise ClientError(
                    f"The memory {key!r} has shape {tuple(column.shape)} for {count} clients: "
                    "its first axis must be the clients."
                )
            rest = None if column.dim() == 1 else tuple(column.shape[2:])
            width = 1 if column.dim() == 1 else int(column.shape[1])
            self._fields.append(Field(key, column.dtype, rest, width))
            self._bytes[key] = to_bytes(column).reshape(count, width * self._fields[-1].unit)
            own.append(_lengths(key, count, width, rest, (lengths or {}).get(key)))
        if unknown := set(lengths or {}) - set(columns):
            raise ClientError(f"Lengths are given for {sorted(unknown)}, which the memory does not have.")
        self._lengths = np.stack(own, axis=1) if own else np.zeros((count, 1), np.int64)
        self._ragged = bool(lengths)

    def by_layout(self) -> Iterator[tuple[Layout, Ints]]:
        """The layouts that occur, and which of the clients have each."""
        if not self._ragged:
            yield self._layout(_room(self._lengths[0]).tolist()), np.arange(len(self._lengths))
            return
        groups: dict[tuple[int, ...], list[int]] = {}
        for i, rows in enumerate(_room(self._lengths).tolist()):
            groups.setdefault(tuple(rows), []).append(i)
        for room, which in groups.items():
            yield self._layout(room), np.array(which)

    def _layout(self, rows: Iterable[int]) -> Layout:
        return Layout.of(tuple(Field(*field[:3], n) for field, n in zip(self._fields, rows, strict=False)))

    def write(self, layout: Layout, which: Ints, table: Bytes, rows: Ints) -> None:
        """Writes the records of the clients ``which``, in increasing order, into the rows of a table."""
        table[rows, : layout.starts[0]] = self._lengths[which].view(np.uint8)
        chosen = slice(None) if len(which) == len(self._lengths) else which
        for field, given, start in zip(layout.fields, self._fields, layout.starts, strict=False):
            size = min(field.rows, given.rows) * field.unit
            table[rows, start : start + size] = self._bytes[field.key][chosen, :size]


def assemble(count: int, parts: Iterable[Part]) -> dict[str, Tensor]:
    """Columns out of records: a leading axis for the clients, shorter tensors filled up with zeros."""
    pieces = list(parts)
    if not pieces:
        return {}
    fields = _same_fields(pieces)
    heads = _stretch(count, 8 * len(fields), [(part, 0, 8 * len(fields)) for part in pieces]).view(np.int64)
    columns = {}
    for i, field in enumerate(fields):
        own, longest = heads[:, i], int(heads[:, i].max())
        rooms = (min(part.layout.fields[i].rows, longest) for part in pieces)
        spans = [(part, part.layout.starts[i], n * field.unit) for part, n in zip(pieces, rooms, strict=True)]
        data = _stretch(count, longest * field.unit, spans)
        if own.min() < longest:
            data *= np.arange(longest * field.unit) < own[:, None] * field.unit
        shape = (count,) if field.rest is None else (count, longest, *field.rest)
        columns[field.key] = from_bytes(data, field.dtype, shape)
    return columns


def grouped(numbers: Ints) -> Iterator[tuple[int, Ints]]:
    """The numbers that occur, in order, and where each does."""
    for number in sorted(set(numbers.tolist())):
        yield number, np.flatnonzero(numbers == number)


def _stretch(count: int, width: int, spans: list[tuple[Part, int, int]]) -> Bytes:
    """For every client a span of its record; where that is shorter than ``width`` the rest is arbitrary."""
    if len(spans) == 1:
        (_, _, table, rows), start, size = spans[0]
        return table[rows, start : start + size]
    data = np.empty((count, width), np.uint8)
    for (at, _, table, rows), start, size in spans:
        data[at, :size] = table[rows, start : start + size]
    return data


def _lengths(key: str, count: int, width: int, rest: tuple[int, ...] | None, given: Tensor | None) -> Ints:
    if given is None:
        return np.full(count, width, np.int64)
    own = given.to("cpu", torch.int64).numpy()
    if rest is None or own.shape != (count,) or (own < 0).any() or (own > width).any():
        raise ClientError(f"The lengths of the memory {key!r} must be one number per client, from 0 to {width}.")
    return own


def _room(rows: Ints) -> Ints:
    """Room for so many rows: small numbers go up to a power of two, so that clients of similar sizes share a table."""
    return np.where(rows > _POWERS[-1], rows, _POWERS.take(np.searchsorted(_POWERS, rows), mode="clip"))


def _same_fields(parts: list[Part]) -> tuple[Field, ...]:
    first = parts[0].layout.fields
    for part in parts[1:]:
        if [f[:3] for f in part.layout.fields] != [f[:3] for f in first]:
            ours, theirs = (", ".join(f"{f.key} {f.dtype}" for f in fields) for fields in (first, part.layout.fields))
            raise ClientError(
                f"Clients whose memories differ cannot be gathered as one stack: ({ours}) and ({theirs})."
            )
    return first
