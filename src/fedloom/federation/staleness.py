"""What a reply is still worth when the server has moved on since its client fetched the model.

C. Xie, S. Koyejo and I. Gupta, "Asynchronous federated optimization", 2019, Section 5.2: functions s of the staleness
Δ = t − τ, in steps of the server, with s(0) = 1 and falling. Each takes the staleness of many replies and gives one
float64 for each.
"""

from __future__ import annotations

import torch
from torch import Tensor


def constant(staleness: Tensor) -> Tensor:
    """1, however old."""
    return torch.ones_like(staleness, dtype=torch.float64)


def polynomial(staleness: Tensor, a: float) -> Tensor:
    """(Δ + 1)^−a."""
    return (staleness.double() + 1) ** -a


def hinge(staleness: Tensor, a: float, b: float) -> Tensor:
    """1 while Δ ≤ b, then 1/(a(Δ − b) + 1)."""
    return 1 / (a * (staleness.double() - b).clamp(min=0) + 1)
