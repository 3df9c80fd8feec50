"""Heterogeneous least squares: the smallest federation whose optimum is known in closed form."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from fedloom.capacity import refuse_larger
from fedloom.data.register import SOURCES
from fedloom.data.sizes import Floats
from fedloom.data.table import Table
from fedloom.errors import ConfigError, DataError
from fedloom.federation.randomness import Draw
from fedloom.types import Count, NonNegative


@SOURCES.register(
    "quadratics",
    task="regression",
    rows="20 a client",
    features="5",
    origin="made on the spot",
    licence="none needed",
    natural=True,
)
def quadratics(
    clients: Count = 10,
    dimension: Count = 5,
    rows: Count = 20,
    heterogeneity: NonNegative = 1.0,
    condition: Annotated[float, Ge(1)] = 10.0,
    noise: NonNegative = 0.0,
    unequal: bool = False,
    seed: int = 0,
) -> Table:
    """Least squares of clients that disagree, with a known optimum.

    Client i has rows X_i and y_i = X_i w_i + noise, with w_i = w + heterogeneity·N(0, I). The pooled Hessian XᵀX / rows
    is diagonal with eigenvalues from 1 down to 1 / condition, to rounding; the clients' own Hessians differ, the more
    so the greater the heterogeneity (that is what biases FedAvg). With ``unequal`` client sizes go from rows / 2 to
    3 rows / 2. With heterogeneity = noise = 0 all clients agree on the optimum w.
    """
    size = 8 * (3 * clients * rows * dimension + 2 * dimension * dimension)
    refuse_larger(size, f"quadratics of {clients:,} clients in {dimension:,} dimensions", "Choose fewer.", ConfigError)
    random = Draw(seed).generator("quadratics")
    sizes = np.full(clients, rows)
    if unequal:
        sizes = random.permutation(np.linspace(max(1, rows // 2), rows + rows // 2, clients).round().astype(np.int64))
    groups, total = np.repeat(np.arange(clients), sizes), int(sizes.sum())
    if total < dimension:
        raise ConfigError(f"quadratics with {total} rows in {dimension} dimensions have no single optimum; more rows")
    with np.errstate(over="ignore"):
        scales = np.exp(0.5 * heterogeneity * random.standard_normal((clients, dimension)).clip(-2, 2))
        x = random.standard_normal((total, dimension)) * scales[groups]
        spread = float((x * x).sum())
    if not math.isfinite(spread):
        raise ConfigError(f"quadratics with heterogeneity = {heterogeneity:g} have rows without end; choose less")
    x = _white(x) * np.geomspace(1.0, 1.0 / condition, dimension) ** 0.5
    models = random.standard_normal(dimension) + heterogeneity * random.standard_normal((clients, dimension))
    y = (x * models[groups]).sum(1) + noise * random.standard_normal(total)
    return Table(
        "quadratics",
        torch.from_numpy(x.astype(np.float32)),
        torch.from_numpy(y.astype(np.float32)).unsqueeze(1),
        "regression",
        groups=torch.from_numpy(groups),
    )


def optimum(
    table: Table, weighting: Literal["rows", "clients"] = "rows", ridge: float = 0.0, bias: bool = False
) -> Tensor:
    """The minimiser of Σ_i p_i ‖X_i w - y_i‖² / (2 n_i) + ridge ‖w‖² / 2, in float64, of the rows as they are stored.

    p_i is n_i / n ("rows"), or 1 / N ("clients"). With ``bias`` the last number is the intercept; the penalty
    holds for it too.
    """
    x, y = table.x.double().flatten(1), table.y.double()
    if bias:
        x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    share = torch.full((len(x), 1), 1.0 / len(x), dtype=x.dtype)
    if weighting == "clients":
        if table.groups is None:
            raise DataError(f"{table.name!r} has no natural clients to weigh; use weighting='rows'")
        sizes = torch.bincount(table.groups)
        share = 1.0 / (sizes[table.groups] * (sizes > 0).sum()).double().unsqueeze(1)
    hessian = x.T @ (share * x) + ridge * torch.eye(x.shape[1], dtype=x.dtype)
    solution: Tensor = torch.linalg.solve(hessian, x.T @ (share * y))
    return solution.squeeze(1) if y.shape[1] == 1 else solution


def _white(x: Floats) -> Floats:
    """The rows, mapped so that their second moments over all clients are the identity."""
    values, vectors = np.linalg.eigh(x.T @ x / len(x))
    white: Floats = x @ (vectors / values**0.5) @ vectors.T
    return white
