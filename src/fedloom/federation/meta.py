"""Meta-gradients: how the loss after adaptation changes with the model before it.

A client adapts θ by inner steps on its support rows, φ ← φ − α∘∇f_s(φ), and is evaluated on its query rows by f_q(φ).
With φ_0 = θ, …, φ_K and r = ∇f_q(φ_K), the chain rule walks back through the steps, one Hessian-vector product each:

    ∂f_q/∂α gains −∇f_s(φ_k)∘r,   then r ← r − ∇²f_s(φ_k)(α∘r),   k = K − 1, …, 0;    at the end r = ∇_θ f_q(φ_K(θ))

No Hessian is ever formed, and nothing of a pass is kept but the φ_k and their gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.federation.batches import Rows, steps_of
from fedloom.federation.optimisers import Optimiser
from fedloom.types import Vector

if TYPE_CHECKING:
    from fedloom.federation.client import Client
    from fedloom.federation.kernels import Product

Order = Literal["exact", "first", "difference"]
"""Second derivatives: exact, left out (r as it is), or by central differences of two gradients."""


@dataclass(frozen=True)
class Meta:
    """How a client's meta-gradient is taken."""

    order: Order = "exact"
    delta: float = 0.01
    """δ of the central difference [∇f_s(φ + δr) − ∇f_s(φ − δr)]/(2δ)."""
    steps: int = 1
    """Inner steps with all support rows, or passes over the support in mini-batches, a step each."""
    batch: int | None = None
    """Rows of an inner step, and of the batches over which the query's loss is averaged; None: all rows."""
    episodes: Literal["split", "independent"] = "split"
    """Of local steps: "split" adapts on the support and is evaluated on the query; "independent" draws three
    mini-batches of the training rows for each step, to adapt, to be evaluated, and for the second derivatives."""
    support: str = "support"
    query: str = "query"


@dataclass(frozen=True, eq=False)
class Episode:
    """The rows of one meta-gradient: of each inner step, of its second derivatives, and of the judgement."""

    inner: Sequence[Rows]
    curved: Sequence[Rows]
    query: Rows

    def only(self, clients: npt.NDArray[np.bool_]) -> Episode:
        """The same rows, counting for nothing with the clients that are done."""
        if clients.all():
            return self
        keep = torch.from_numpy(clients)

        def part(rows: Rows) -> Rows:
            mask = keep[:, None] if rows.weight.dim() == 2 else keep[0]
            return replace(rows, weight=rows.weight * mask)

        inner = [part(rows) for rows in self.inner]
        curved = inner if self.curved is self.inner else [part(rows) for rows in self.curved]
        return Episode(inner, curved, part(self.query))

    def cost(self, order: Order) -> npt.NDArray[np.int64]:
        """Gradients of single rows that it takes, of each client."""
        times = 0 if order == "first" else 2 if order == "difference" or self.curved is self.inner else 3
        inner, curved = ([rows.counts() for rows in part] for part in (self.inner, self.curved))
        each = [self.query.counts(), *inner, *(times * counts for counts in curved)]
        total: npt.NDArray[np.int64] = np.sum(each, 0)
        return total


def adapted(client: Client, theta: Vector, alpha: float | Vector, inner: Sequence[Rows]) -> Vector:
    """φ: θ after one inner step on each of these rows; where a client has none it stays as it is."""
    for rows in inner:
        theta = client.follow(theta - alpha * client.grad(theta, rows))
    return theta


def meta_gradient(client: Client, theta: Vector, alpha: float | Vector, how: Meta) -> tuple[Vector, Vector | None]:
    """∇_θ, and for a vector α also ∇_α, of the query's loss after the inner steps on the support."""
    inner = client.batches(how.support, how.batch, epochs=how.steps)
    query = client.batches(how.query, how.batch, purpose="query batches") or [client.rows(how.query)]
    return _reverse(client, theta, alpha, Episode(inner, inner, _judged(query)), how)


def meta_steps(
    client: Client, theta: Vector, lr: float, alpha: float | Vector, steps: int, how: Meta, optimiser: Optimiser | None
) -> tuple[Vector, Tensor]:
    """So many local steps along the meta-gradient (or fewer, of a slow client), and how many each client took."""
    episodes = _episodes(client, steps, how)
    cost = episodes[0].cost(how.order)
    count = steps_of(cost, None, 1, steps, client.effort, client.budget)
    theta = theta.expand(*client.n.shape[:-1], theta.shape[-1])
    slots = optimiser.slots(theta) if optimiser is not None else []
    for k, episode in enumerate(episodes):
        active = count > k
        if not active.any():
            break
        g, _ = _reverse(client, theta, alpha, episode.only(active), how)
        after = theta - lr * g
        if optimiser is not None:
            after = theta.clone()
            optimiser.step(after, g, lr, slots, k + 1)
        theta = torch.where(client.column(active) > 0, client.follow(after), theta)
    return theta, client.column(count)


def _reverse(
    client: Client, theta: Vector, alpha: float | Vector, episode: Episode, how: Meta
) -> tuple[Vector, Vector | None]:
    """Forward through the inner steps, then back through them."""
    vector = isinstance(alpha, Tensor) and alpha.dim() > 0
    at, trail = theta, []
    for rows, curved in zip(episode.inner, episode.curved, strict=True):
        g, times = _slope(client, at, rows, curved, how)
        trail.append((g, times))
        at = client.follow(at - alpha * g if vector else torch.add(at, g, alpha=-float(alpha)))
    r = client.grad(at, episode.query)
    slope = torch.zeros_like(r) if vector else None
    for g, times in reversed(trail):
        if slope is not None:
            slope.addcmul_(g, r, value=-1)
        if times is not None:
            with client.unnoticed():
                r = r.sub_(times(alpha * r)) if vector else r.sub_(times(r), alpha=float(alpha))
    return r, slope


def _slope(client: Client, at: Vector, rows: Rows, curved: Rows, how: Meta) -> tuple[Vector, Product | None]:
    """The gradient of an inner step, and the product with its second derivatives; a number α stands before that, so
    that the paper's δ multiplies r itself."""
    if how.order == "first":
        return client.grad(at, rows), None
    if how.order == "exact":
        if curved is rows:
            return client.linearise(at, rows)
        with client.unnoticed():
            _, times = client.linearise(at, curved)
        return client.grad(at, rows), times

    def apart(v: Vector) -> Vector:
        ahead, behind = torch.add(at, v, alpha=how.delta), torch.sub(at, v, alpha=how.delta)
        return client.grad(ahead, curved).sub_(client.grad(behind, curved)).div_(2 * how.delta)

    return client.grad(at, rows), apart


def _episodes(client: Client, steps: int, how: Meta) -> list[Episode]:
    """The rows of each of so many local steps with one inner step each."""
    if how.episodes == "independent":
        adapt, judge, curve = (
            client.batches("train", how.batch, steps, purpose=purpose)
            for purpose in ("batches", "query batches", "curvature batches")
        )
    else:
        adapt = curve = client.batches(how.support, how.batch, steps)
        judge = client.batches(how.query, how.batch, steps, purpose="query batches")
    found = []
    for a, c, q in zip(adapt, curve, judge, strict=True):
        inner = (a,)
        found.append(Episode(inner, inner if c is a else (c,), q))
    return found


def _judged(batches: Sequence[Rows]) -> Rows:
    """All batches as one: rows that count so that the loss is the mean over a client's batches of their means."""
    if len(batches) == 1:
        return batches[0]
    present = torch.stack([(rows.weight > 0).any(-1) for rows in batches]).sum(0)
    axis = batches[0].weight.dim() - 1
    x, y, weight = (torch.cat([getattr(rows, part) for rows in batches], axis) for part in ("x", "y", "weight"))
    return Rows(x, y, weight / present.clamp(min=1).unsqueeze(-1))
