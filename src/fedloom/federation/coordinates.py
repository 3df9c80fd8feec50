"""Coordinate ascent in the dual: the loop over single rows, compiled (numba) or plain (NumPy), dense or sparse.

Both loops take the same coordinates in the same order and differ by rounding alone. The compiled one reads rows where
they are; its scalar products have eight accumulators, the j-th feature going to the (j mod 8)-th, so that a row has the
same bits dense and sparse, alone and in any stack.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from fedloom.federation.losses import Dual
from fedloom.federation.ragged import Ints

Floats = npt.NDArray[np.float64]
_KINDS = {"hinge": 0, "squared": 1, "logistic": 2}
_SPARSE = 0.2  # below this share of numbers that are not zero, rows are kept sparse
_LOOKED_AT = 4096  # rows that tell whether they are


@dataclass(frozen=True, eq=False)
class Sparse:
    """Rows without their zeros (CSR)."""

    indptr: Ints
    columns: npt.NDArray[np.int32]
    values: npt.NDArray[Any]


class Design:
    """The features of all rows of a problem as the loops read them: dense, sparse where it pays, and their squares."""

    def __init__(self, x: npt.NDArray[Any]) -> None:
        self.x = x
        self._squares = np.full(len(x), np.nan)
        looked = x[:_LOOKED_AT]
        self.sparse = sparse(x) if looked.size and np.count_nonzero(looked) < _SPARSE * looked.size else None

    def squares(self, rows: Ints) -> Floats:
        """‖x‖² of these rows, each worked out once."""
        found = self._squares[rows]
        new = np.isnan(found)
        if new.any():
            self._squares[rows[new]] = loop().squares(self, rows[new])
            found = self._squares[rows]
        return found


def sparse(x: npt.NDArray[Any]) -> Sparse:
    """The same rows without their zeros."""
    at, columns = np.nonzero(x)
    indptr = np.zeros(len(x) + 1, dtype=np.int64)
    np.cumsum(np.bincount(at, minlength=len(x)), out=indptr[1:])
    return Sparse(indptr, columns.astype(np.int32), x[at, columns])


@dataclass(frozen=True, eq=False)
class Block:
    """The rows of a stack of clients, one client after the other: client i has those from offsets[i] on."""

    design: Design
    rows: Ints
    """Where each is in the data."""
    offsets: Ints
    target: Floats
    """t of each row and output."""
    weight: Floats
    """c of each row and output."""
    duals: tuple[Dual, ...]
    """The dual of each client's loss."""
    bias: bool
    """Whether a row has a one more beside its features."""

    @property
    def kinds(self) -> Ints:
        """The kind of each client's loss, as a number."""
        return np.array([_KINDS[dual.kind] for dual in self.duals], dtype=np.int64)

    @property
    def smoothings(self) -> Floats:
        """γ of each client's loss."""
        return np.array([dual.smoothing for dual in self.duals])

    @property
    def squares(self) -> Floats:
        """‖x‖² of each row, with that one."""
        return self.design.squares(self.rows) + self.bias


@dataclass(frozen=True, eq=False)
class Weights:
    """A linear model of each client, in float64: w has shape (clients, outputs, features), b (clients, outputs)."""

    w: Floats
    b: Floats

    def copy(self) -> Weights:
        """Another one that can be changed."""
        return Weights(self.w.copy(), self.b.copy())


class Loop(ABC):
    """What is done row by row."""

    name: str

    @abstractmethod
    def sweep(
        self, block: Block, order: Ints, take: Ints, kappa: Floats, alpha: Floats, u: Weights, moves: bool
    ) -> None:
        """Coordinate steps of each client on the first ``take`` rows of its order, which change α and u in place.

        u = w + κ Σ c_i Δα_i x_i throughout, unless it does not move; a step finds the best α_i, all others being as
        they are.
        """

    @abstractmethod
    def scores(self, block: Block, u: Weights) -> Floats:
        """u·x of each row and output, by its client's u."""

    @abstractmethod
    def combined(self, block: Block, each: Floats) -> Weights:
        """Σ_i each_i x_i of each client and output."""

    @abstractmethod
    def squares(self, design: Design, rows: Ints) -> Floats:
        """‖x‖² of these rows."""


class Plain(Loop):
    """Row by row in Python, each by NumPy: for where numba is not."""

    name = "plain"

    def sweep(
        self, block: Block, order: Ints, take: Ints, kappa: Floats, alpha: Floats, u: Weights, moves: bool
    ) -> None:
        from fedloom.federation.compiled import stepped

        squares, kinds, smoothings = block.squares, block.kinds, block.smoothings
        for t in np.flatnonzero(take):
            first = block.offsets[t]
            x = self._rows(block, int(t))
            for i in order[t, : take[t]]:
                at = first + i
                for k, c in enumerate(block.weight[at]):
                    if c <= 0:
                        continue
                    score = float(x[i] @ u.w[t, k]) + float(u.b[t, k])
                    before, curved = float(alpha[at, k]), float(kappa[t] * c * squares[at])
                    after = stepped(kinds[t], smoothings[t], before, float(block.target[at, k]), score, curved)
                    if after != before:
                        alpha[at, k] = after
                        if not moves:
                            continue
                        by = kappa[t] * c * (after - before)
                        u.w[t, k] += by * x[i]
                        u.b[t, k] += by * block.bias

    def scores(self, block: Block, u: Weights) -> Floats:
        found = np.empty((len(block.rows), u.w.shape[1]))
        for t, (first, end) in enumerate(zip(block.offsets[:-1], block.offsets[1:], strict=True)):
            found[first:end] = self._rows(block, t) @ u.w[t].T + u.b[t]
        return found

    def combined(self, block: Block, each: Floats) -> Weights:
        clients, outputs = len(block.offsets) - 1, each.shape[1]
        found = Weights(np.zeros((clients, outputs, block.design.x.shape[1])), np.zeros((clients, outputs)))
        for t, (first, end) in enumerate(zip(block.offsets[:-1], block.offsets[1:], strict=True)):
            found.w[t] = each[first:end].T @ self._rows(block, t)
            found.b[t] = each[first:end].sum(0) * block.bias
        return found

    def squares(self, design: Design, rows: Ints) -> Floats:
        x = design.x[rows].astype(np.float64)
        found: Floats = np.einsum("ij,ij->i", x, x)
        return found

    def _rows(self, block: Block, client: int) -> Floats:
        own = block.rows[block.offsets[client] : block.offsets[client + 1]]
        return block.design.x[own].astype(np.float64)


class Compiled(Loop):
    """The same, compiled by numba."""

    name = "compiled"

    def sweep(
        self, block: Block, order: Ints, take: Ints, kappa: Floats, alpha: Floats, u: Weights, moves: bool
    ) -> None:
        from fedloom.federation import compiled

        compiled.sweep(
            *_access(block.design),
            block.rows,
            block.offsets,
            order,
            take,
            block.target,
            block.weight,
            block.squares,
            block.kinds,
            block.smoothings,
            kappa,
            alpha,
            u.w,
            u.b,
            block.bias,
            moves,
        )

    def scores(self, block: Block, u: Weights) -> Floats:
        from fedloom.federation import compiled

        found = np.empty((len(block.rows), u.w.shape[1]))
        compiled.scores(*_access(block.design), block.rows, block.offsets, u.w, u.b, found)
        return found

    def combined(self, block: Block, each: Floats) -> Weights:
        from fedloom.federation import compiled

        clients, outputs = len(block.offsets) - 1, each.shape[1]
        found = Weights(np.zeros((clients, outputs, block.design.x.shape[1])), np.zeros((clients, outputs)))
        compiled.combined(*_access(block.design), block.rows, block.offsets, each, found.w, found.b, block.bias)
        return found

    def squares(self, design: Design, rows: Ints) -> Floats:
        from fedloom.federation import compiled

        found = np.empty(len(rows))
        compiled.squares(*_access(design), rows, found)
        return found


def _access(design: Design) -> tuple[Any, ...]:
    """How the compiled loop reads rows: whether dense, and the arrays of both forms, of which one is empty."""
    if design.sparse is None:
        none = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32), np.empty(0, dtype=design.x.dtype)
        return (True, design.x, *none)
    return False, design.x[:0], design.sparse.indptr, design.sparse.columns, design.sparse.values


@cache
def loop() -> Loop:
    """The compiled loop where numba is installed, else the plain one."""
    return Compiled() if find_spec("numba") is not None else Plain()
