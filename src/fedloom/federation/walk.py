"""The local steps of clients, in stacks: the data of each step, and the two ways to take it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedloom.federation.batches import Plan, Step
from fedloom.federation.kernels import Affine, head
from fedloom.federation.optimisers import Optimiser
from fedloom.types import Vector

if TYPE_CHECKING:
    from fedloom.federation.client import Client


class Walk:
    """The local steps of ``Client.sgd``: the data of each step, and the two ways to take it."""

    def __init__(
        self,
        client: Client,
        y: Vector,
        lr: float | Tensor,
        pull: tuple[float | Tensor, Vector] | None,
        shift: Vector | None,
    ) -> None:
        if pull is not None and isinstance(pull[0], Tensor) and pull[0].dim() == 0:
            pull = (float(pull[0]), pull[1])
        self.client, self.y, self.lr, self.pull, self.shift = client, y, lr, pull, shift
        self.last: tuple[Step, Tensor, Tensor] | None = None

    def plain(self, plan: Plan) -> None:
        kernel, affine = self.client.problem.kernel, self._affine()
        at = self.y
        for self.client.step, step in enumerate(plan, 1):
            if step.active < len(at):
                at = self.y[: step.active]
            x, y = self._data(step, plan)
            kernel.step(at, x, y, self._weight(step, self.lr), affine)

    def free(
        self, plan: Plan, optimiser: Optimiser | None, direction: Callable[[Vector, Vector], Vector] | None
    ) -> None:
        kernel = self.client.problem.kernel
        slots = optimiser.slots(self.y) if optimiser is not None else []
        for count, step in enumerate(plan, 1):
            self.client.step = count
            at, a = self.y[: step.active], step.active
            x, y = self._data(step, plan)
            g = kernel.gradient(at, x, y, self._weight(step, 1.0))
            if self.pull is not None:
                g.add_(head(self.pull[0], a) * (at - head(self.pull[1], a)))
            if self.shift is not None:
                g.add_(head(self.shift, a))
            if direction is not None:
                g = direction(at, g)
            if optimiser is not None:
                optimiser.step(at, g, head(self.lr, a), [slot[:a] for slot in slots], count)
            else:
                at.sub_(head(self.lr, a) * g)

    def _data(self, step: Step, plan: Plan) -> tuple[Tensor, Tensor]:
        if self.last is None or self.last[0] is not step:  # full-batch steps come back with the same object
            x, y = self.client.problem.take(step.rows)
            self.last = (step, plan.shown(x, plan.clients[plan.order[: step.active]], self.client.step), y)
        return self.last[1], self.last[2]

    def _weight(self, step: Step, lr: float | Tensor) -> float | Tensor:
        """What each row counts for: lr/(rows of the batch), 0 for padding."""
        if step.counts is None and not isinstance(lr, Tensor):
            return lr / step.rows.shape[1]
        width = step.rows.shape[1]
        counts = torch.full((step.active,), width) if step.counts is None else step.counts
        weight = (torch.arange(width) < counts[:, None]).to(self.y.dtype) / counts[:, None]
        return weight * head(lr, step.active)

    def _affine(self) -> Affine | None:
        if self.pull is None and self.shift is None:
            return None
        if self.pull is None:
            return Affine(1.0, -self.lr * self.shift if self.shift is not None else 0.0)
        mu, x0 = self.pull
        add = self.lr * mu * x0
        return Affine(1.0 - self.lr * mu, add if self.shift is None else add - self.lr * self.shift)
