"""What is known of methods with a model for each client: the problem that many of them solve, and its closed form.

The mixture problem is min Σ f_i(x_i) + (λ/2) Σ‖x_i − x̄‖²: every client has a model of its own, held near the mean of
all. On quadratics it is linear in all models at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedloom.conformance.answers import Limit, Limits
from fedloom.conformance.declarations.common import F64, applied, unequal_quadratics
from fedloom.conformance.drive import Walk
from fedloom.conformance.problems import Known

Strength = Callable[[Any], float]
"""From the method to the λ of the mixture problem that it solves."""
HELD_ALIKE = "all whose replies are accepted hold the same there: 1"
"""Why nobody can tell the mutant whose clients remember whether a neighbour was ever heard."""


def mixture(known: Known, strength: float) -> Tensor:
    """Each client's model of min Σ f_i(x_i) + (λ/2) Σ‖x_i − x̄‖²: (blkdiag A_i + λ(I − 11ᵀ/N)⊗I) X = b."""
    clients, n = known.optima.shape
    each, apart = torch.eye(clients, dtype=F64), torch.eye(clients, dtype=F64) - 1 / clients
    own = torch.einsum("ij,iab->iajb", each, known.hessians).reshape(clients * n, clients * n)
    coupled = own + strength * torch.kron(apart, torch.eye(n, dtype=F64))
    found: Tensor = torch.linalg.solve(coupled, applied(known.hessians, known.optima).flatten())
    return found.view(clients, n)


def mixed(strength: Strength) -> Limits:
    """Where a method ends whose clients' models solve the mixture problem."""
    return lambda known, method: mixture(known, strength(method))


def solves_mixture(
    strength: Strength,
    method: Mapping[str, Any],
    rounds: int,
    tolerance: float = 1e-9,
    name: str = "the clients' models solve the mixture problem",
    **how: Any,
) -> Limit:
    """On quadratics of clients with unequal sizes, which count alike, the clients' models are those of the closed form.

    They are neither the local optima nor the optimum of all, which are the limits λ = 0 and λ → ∞.
    """
    return Limit(name, unequal_quadratics, mixed(strength), method, rounds, tolerance, **how)


def served(walk: Walk, clients: Tensor) -> Tensor:
    """The server's model, of a method that makes one for each client too."""
    return walk.theta()


def lambda_of(method: Any) -> float:
    """λ by its own name."""
    return float(method.lambda_)
