"""The innermost loops of ``coordinates``, as numba compiles them; imported only when they are needed.

All are in one file, because what numba keeps on disk is made anew when this file changes. Nothing may be reordered (no
fastmath): the bits of a row must not depend on how it is stored, or on the machine.

Arrays: x (rows, features), or indptr, columns and values of its sparse form; rows, offsets (clients + 1) and order
(clients, steps) are numbers of rows; target, weight and alpha have shape (rows of the block, outputs), w has shape
(clients, outputs, features), b (clients, outputs).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_NEWTON = 100  # steps for one coordinate of the logistic loss; it needs about six


def _compiled(function: Any) -> Any:
    """Compiled at its first call for each type of numbers, and kept on disk where that can be written."""
    try:
        from numba import njit
    except ImportError:
        return function
    try:
        return njit(cache=True)(function)
    except RuntimeError:  # there is no place for a cache
        return njit(function)


@_compiled
def stepped(kind: int, smoothing: float, alpha: float, target: float, score: float, q: float) -> float:
    """The α' that maximises −φ*(−α') − (α' − α)·score − (q/2)(α' − α)²; the kinds are hinge, squared, logistic.

    For the logistic loss b = α't is the root of log(b/(1 − b)) + margin + q(b − β) = 0, found by Newton's method in
    z = log(b/(1 − b)). Its left side, z + margin + q(σ(z) − β), is convex below 0 and concave above it: from the right
    end of where the root can be, below 0, and from the left end, above it, Newton's steps go one way only.
    """
    if kind == 1:
        return alpha + (target - score - alpha) / (1 + q)
    beta, margin = alpha * target, score * target
    if kind == 2:
        z = min(q * beta - margin, 0.0) if margin + q * (0.5 - beta) > 0 else max(q * (beta - 1) - margin, 0.0)
        for _ in range(_NEWTON):
            e = math.exp(-abs(z))
            b = 1 / (1 + e) if z >= 0 else e / (1 + e)
            step = (z + margin + q * (b - beta)) / (1 + q * e / ((1 + e) * (1 + e)))
            z -= step
            if abs(step) <= 1e-15 * (1 + abs(z)):
                break
        e = math.exp(-abs(z))
        return (1 / (1 + e) if z >= 0 else e / (1 + e)) * target
    bend = q + smoothing
    if bend <= 0:  # a row of zeros, and a hinge: nothing holds it back
        return target if margin < 1 else alpha
    return min(max(beta + (1 - margin - smoothing * beta) / bend, 0.0), 1.0) * target


@_compiled
def _dot(x: Any, u: Any) -> Any:
    """x·u, the j-th product going to the (j mod 8)-th of eight sums."""
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = 0.0
    n = len(x)
    whole = n - n % 8
    for j in range(0, whole, 8):
        a0 += x[j] * u[j]
        a1 += x[j + 1] * u[j + 1]
        a2 += x[j + 2] * u[j + 2]
        a3 += x[j + 3] * u[j + 3]
        a4 += x[j + 4] * u[j + 4]
        a5 += x[j + 5] * u[j + 5]
        a6 += x[j + 6] * u[j + 6]
        a7 += x[j + 7] * u[j + 7]
    if whole < n:
        a0 += x[whole] * u[whole]
    if whole + 1 < n:
        a1 += x[whole + 1] * u[whole + 1]
    if whole + 2 < n:
        a2 += x[whole + 2] * u[whole + 2]
    if whole + 3 < n:
        a3 += x[whole + 3] * u[whole + 3]
    if whole + 4 < n:
        a4 += x[whole + 4] * u[whole + 4]
    if whole + 5 < n:
        a5 += x[whole + 5] * u[whole + 5]
    if whole + 6 < n:
        a6 += x[whole + 6] * u[whole + 6]
    return ((a0 + a4) + (a1 + a5)) + ((a2 + a6) + (a3 + a7))


@_compiled
def _dot_sparse(columns: Any, values: Any, u: Any) -> Any:
    """The same sums without the products that are zero."""
    a = np.zeros(8)
    for j in range(len(columns)):
        a[columns[j] & 7] += values[j] * u[columns[j]]
    return ((a[0] + a[4]) + (a[1] + a[5])) + ((a[2] + a[6]) + (a[3] + a[7]))


@_compiled
def _product(dense: bool, x: Any, indptr: Any, columns: Any, values: Any, row: int, u: Any) -> Any:
    if dense:
        return _dot(x[row], u)
    first, end = indptr[row], indptr[row + 1]
    return _dot_sparse(columns[first:end], values[first:end], u)


@_compiled
def _add(dense: bool, x: Any, indptr: Any, columns: Any, values: Any, row: int, by: float, u: Any) -> None:
    """u ← u + by·x."""
    if dense:
        own = x[row]
        for j in range(len(own)):
            u[j] += by * own[j]
    else:
        for j in range(indptr[row], indptr[row + 1]):
            u[columns[j]] += by * values[j]


@_compiled
def sweep(
    dense: bool,
    x: Any,
    indptr: Any,
    columns: Any,
    values: Any,
    rows: Any,
    offsets: Any,
    order: Any,
    take: Any,
    target: Any,
    weight: Any,
    squares: Any,
    kinds: Any,
    smoothings: Any,
    kappa: Any,
    alpha: Any,
    w: Any,
    b: Any,
    bias: bool,
    moves: bool,
) -> None:
    """Coordinate steps of each client on the first ``take`` rows of its order; w and b follow if it ``moves``."""
    for t in range(len(take)):
        for s in range(take[t]):
            i = offsets[t] + order[t, s]
            for k in range(alpha.shape[1]):
                c = kappa[t] * weight[i, k]
                if c <= 0:
                    continue
                before = alpha[i, k]
                score = _product(dense, x, indptr, columns, values, rows[i], w[t, k]) + b[t, k]
                after = stepped(kinds[t], smoothings[t], before, target[i, k], score, c * squares[i])
                if after != before:
                    alpha[i, k] = after
                    if not moves:
                        continue
                    by = c * (after - before)
                    _add(dense, x, indptr, columns, values, rows[i], by, w[t, k])
                    if bias:
                        b[t, k] += by


@_compiled
def scores(
    dense: bool, x: Any, indptr: Any, columns: Any, values: Any, rows: Any, offsets: Any, w: Any, b: Any, found: Any
) -> None:
    """w·x + b of each row and output."""
    for t in range(len(offsets) - 1):
        for i in range(offsets[t], offsets[t + 1]):
            for k in range(found.shape[1]):
                found[i, k] = _product(dense, x, indptr, columns, values, rows[i], w[t, k]) + b[t, k]


@_compiled
def combined(
    dense: bool,
    x: Any,
    indptr: Any,
    columns: Any,
    values: Any,
    rows: Any,
    offsets: Any,
    each: Any,
    w: Any,
    b: Any,
    bias: bool,
) -> None:
    """Σ each·x over the rows of each client."""
    for t in range(len(offsets) - 1):
        for i in range(offsets[t], offsets[t + 1]):
            for k in range(each.shape[1]):
                if each[i, k] != 0:
                    _add(dense, x, indptr, columns, values, rows[i], each[i, k], w[t, k])
                    if bias:
                        b[t, k] += each[i, k]


@_compiled
def squares(dense: bool, x: Any, indptr: Any, columns: Any, values: Any, rows: Any, found: Any) -> None:
    """‖x‖² of each row, whose numbers become float64 first."""
    own = np.zeros(x.shape[1])
    for i in range(len(rows)):
        _add(dense, x, indptr, columns, values, rows[i], 1.0, own)
        found[i] = _product(dense, x, indptr, columns, values, rows[i], own)
        _add(dense, x, indptr, columns, values, rows[i], -1.0, own)
