"""Data made on the spot: synthetic(α, β) of the FedProx paper, and a plain federation of any size for benchmarks."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge

from fedloom.capacity import refuse_larger
from fedloom.data.register import SOURCES
from fedloom.data.sizes import Floats, Whole
from fedloom.data.table import Table
from fedloom.errors import ConfigError
from fedloom.federation.data import FederatedData
from fedloom.federation.ragged import Ragged
from fedloom.federation.randomness import Draw
from fedloom.types import Count, NonNegative

_ROWS = 450
"""Of a client on average: 50, and the mean e⁶ of a lognormal(4, 2)."""


@SOURCES.register(
    "synthetic",
    task="classification",
    rows="about 50 and a lognormal number a client",
    features="60",
    origin="made on the spot, after Li et al., FedProx (2020)",
    licence="none needed",
    natural=True,
)
def synthetic(
    alpha: NonNegative = 1.0,
    beta: NonNegative = 1.0,
    clients: Count = 30,
    features: Count = 60,
    classes: Annotated[int, Ge(2)] = 10,
    rows: Count | None = None,
    iid: bool = False,
    seed: int = 0,
) -> Table:
    """synthetic(α, β): clients that differ in labelling and in features.

    Li et al., "Federated optimization in heterogeneous networks" (MLSys 2020), section 5.1. Client k labels its rows by
    y = argmax(W_k x + b_k), with W_k and b_k ~ N(u_k, 1), u_k ~ N(0, α), and has x ~ N(v_k, Σ), v_k ~ N(B_k, 1),
    B_k ~ N(0, β), Σ = diag(j^-1.2). As in the authors' code α and β are standard deviations, a client has 50 rows and a
    lognormal(4, 2) number more (``rows`` gives each the same number), and ``iid`` gives all the same W, b and mean 0. A
    natural client is one k. (u_k adds the same number to every logit, so α moves no label: what makes the labelling
    differ between clients is that every W_k is another draw.)
    """
    size = 8 * clients * features * (2 * (rows or _ROWS) + 1 + (0 if iid else classes))
    refuse_larger(size, f"synthetic data of {clients:,} clients", "Choose fewer, or fewer features.", ConfigError)
    random = Draw(seed).generator("synthetic")
    sizes = random.lognormal(4.0, 2.0, clients).astype(np.int64) + 50
    if rows is not None:
        sizes = np.full(clients, rows)
    u, B = random.normal(0, alpha, clients), random.normal(0, beta, clients)
    v = random.normal(B[:, None], 1.0, (clients, features))
    deviation = np.arange(1, features + 1) ** -0.6
    if iid:
        u, v = np.zeros(clients), np.zeros((clients, features))
    x = np.repeat(v, sizes, axis=0) + deviation * random.standard_normal((int(sizes.sum()), features))
    models = 1 if iid else clients
    W = random.normal(u[:models, None, None], 1.0, (models, features, classes))
    b = random.normal(u[:models, None], 1.0, (models, classes))
    groups = np.repeat(np.arange(clients), sizes)
    logits = x @ W[0] + b[0] if iid else _each(x, sizes, W) + b[groups]
    return Table(
        f"synthetic({alpha:g}, {beta:g})",
        torch.from_numpy(x.astype(np.float32)),
        torch.from_numpy(logits.argmax(1)),
        "classification",
        tuple(str(k) for k in range(classes)),
        groups=torch.from_numpy(groups),
    )


def _each(x: Floats, sizes: Whole, W: Floats) -> Floats:
    """Each client's rows times its own matrix."""
    parts = np.split(x, np.cumsum(sizes)[:-1])
    return np.concatenate([part @ w for part, w in zip(parts, W, strict=True)])


def synthetic_linear(
    clients: int = 1000, rows: int = 20, features: int = 20, test_rows: int = 0, seed: int = 0
) -> FederatedData:
    """Logistic regression for any number of clients of equal size, ready to train: x ~ N(0, I), y by a noisy line.

    Clients own consecutive rows, so a million of them cost little more than their features.
    """
    random = torch.Generator().manual_seed(Draw(seed).key("synthetic linear") & (2**63 - 1))
    total = clients * (rows + test_rows)
    x = torch.randn(total, features, generator=random)
    w = torch.randn(features, generator=random) / features**0.5
    y = (x @ w + 0.5 * torch.randn(total, generator=random) > 0).to(torch.int64)
    train = Ragged.contiguous(torch.full((clients,), rows))
    test = Ragged.contiguous(torch.full((clients,), test_rows))
    if test_rows:
        test = Ragged(test.offsets, torch.arange(clients * rows, total))
    return FederatedData("synthetic-linear", x, y, "classification", {"train": train, "test": test}, classes=("0", "1"))
