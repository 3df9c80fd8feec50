"""A client's half of methods in the dual: coordinate ascent on its own rows, what they combine to, and both objectives.

P(W) = Σ_t Σ_i c_i ℓ(w_t·x_i, y_i) + R(W) has the dual D(α) = −Σ c_i ℓ*(−α_i) − R*(v), with one dual number α_i for each
row (and output), v_t = Σ_i c_i α_i x_i, and w = ∇R*(v). c is ``count`` times what a row counts for by its class. A bias
is the weight of one more feature, which is 1: it is regularised like the others.

The subproblem of a client (Smith et al., "CoCoA", JMLR 2018, equation 9; MOCHA, equation 4) is to minimise

    G(Δα) = Σ c_i ℓ*(−α_i − Δα_i) + w·A + (κ/2)‖A‖²,   A = Σ c_i Δα_i x_i,

κ being σ'/λ for CoCoA. With u = w + κA its gap to the minimum is at most Σ c_i [ℓ(u·x_i) + ℓ*(−α_i') + α_i' u·x_i].
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.batches import order_of, steps_of
from fedloom.federation.coordinates import Block, Design, Floats, Weights, loop
from fedloom.federation.losses import Loss, with_dual
from fedloom.federation.model import Layer
from fedloom.federation.ragged import Ints
from fedloom.federation.solvers import linear_layer
from fedloom.types import Vector

if TYPE_CHECKING:
    from fedloom.federation.client import Client
    from fedloom.federation.problem import Problem

Order = Literal["permuted", "random", "cyclic"]
"""How a client's rows follow each other: each once in a pass, in a random order; drawn with replacement; or as they
are."""
Losses = Loss | Sequence[Loss]
"""One loss for all clients of a stack, or one for each."""
_ROWS = 4096  # whose fixed features are worked out at a time
_PASSES = 1000  # that a client takes at most for a local accuracy
_LEAST = 20_000  # … and for the minimum of its subproblem
_ROUNDING = 1e-14  # of the sums of which a gap is the difference


def check_dual(problem: Problem, name: str, loss: Loss | None = None) -> None:
    """Refuses a model or a loss that has no dual here, with the reason and the remedy."""
    loss = problem.loss if loss is None else loss
    if _found(problem) is None:
        raise ConfigError(
            f"{name} needs a linear model, and this is none: its dual is that of Σ ℓ(w·x), one number for each row; "
            "a loss that is not convex in the model has no strong duality, so no gap would tell how far it is from the "
            "optimum. Set model = 'linear', or one with fixed features: 'fourier', or 'trained' with those of a run"
        )
    if loss.dual is None:
        task = problem.data.task
        fitting = with_dual(task)
        others = (
            "one class against the rest (" + ", ".join(fitting) + "), or choose the class that counts as 1 with the "
            'data option positive = "NAME" and one of the losses ' + ", ".join(with_dual("binary"))
            if task == "classification"
            else f"one of the losses {', '.join(fitting)}"
        )
        raise ConfigError(f"{name} needs a loss with a conjugate, and {loss.name!r} has none here; set {others}")


@dataclass(frozen=True, eq=False)
class Duals:
    """The rows of a stack of clients with their labels: what every function of the dual begins with."""

    client: Client
    block: Block
    y: Tensor
    losses: tuple[Loss, ...]
    count: Floats
    """c of each client, without what rows count for by their class."""
    owner: Ints
    """Whose each row is."""

    @staticmethod
    def of(client: Client, count: float | Tensor, loss: Losses | None = None, split: str = "train") -> Duals:
        """The rows of a split that the clients hold now."""
        problem, span = client.problem, client.span(split)
        layer = _layer(problem)
        losses = tuple(loss) if isinstance(loss, Sequence) else (loss or problem.loss,) * len(client.clients)
        rows, sizes = span.rows(), span.sizes
        y, owner = problem.y.index_select(0, rows), np.repeat(np.arange(len(sizes)), sizes)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        c, outputs = _column(client, count), layer.weight.shape[0]
        target, weight = np.empty((len(rows), outputs)), np.empty((len(rows), outputs))
        for one in dict.fromkeys(losses):
            who = np.array([own is one for own in losses])[owner]
            aim, share = one.parts(y[torch.from_numpy(who)], outputs)
            target[who], weight[who] = aim.double().numpy(), share.double().numpy() * c[owner[who], None]
        duals = tuple(own.dual for own in losses if own.dual is not None)
        assert len(duals) == len(losses)  # the method's check refuses others
        design = problem.design
        block = Block(design, rows.numpy(), offsets, target, weight, duals, layer.bias is not None)
        return Duals(client, block, y, losses, c, owner)

    @property
    def sizes(self) -> Ints:
        """How many rows each client has."""
        return np.diff(self.block.offsets)

    def flat(self, alpha: Tensor) -> Floats:
        """α of all rows one after the other, without padding, as a copy in float64."""
        stack = alpha if self.client.stacked else alpha[None]
        inside = torch.arange(stack.shape[1]) < torch.from_numpy(self.sizes)[:, None]
        found: Floats = stack[inside].double().numpy().copy()
        return found

    def padded(self, alpha: Floats, like: Tensor) -> Tensor:
        """The same as it was, with zeros as padding."""
        stack = torch.zeros_like(like if self.client.stacked else like[None])
        stack[torch.arange(stack.shape[1]) < torch.from_numpy(self.sizes)[:, None]] = torch.from_numpy(alpha).to(like)
        return stack if self.client.stacked else stack[0]

    def weights(self, w: Vector) -> Weights:
        """θ as the weights of each client, in float64."""
        layer, clients = _layer(self.client.problem), len(self.client.clients)
        theta = w.detach().double().expand(clients, -1)
        bias = theta.new_zeros(clients, layer.weight.shape[0]) if layer.bias is None else layer.bias.of(theta)
        return Weights(layer.weight.of(theta).numpy().copy(), bias.numpy().copy())

    def vector(self, weights: Weights) -> Vector:
        """Weights of each client as a vector of the model's size."""
        problem = self.client.problem
        layer = _layer(problem)
        theta = torch.zeros(len(weights.w), problem.model.n, dtype=problem.dtype)
        layer.weight.of(theta).copy_(torch.from_numpy(weights.w))
        if layer.bias is not None:
            layer.bias.of(theta).copy_(torch.from_numpy(weights.b))
        return theta if self.client.stacked else theta[0]

    def combined(self, alpha: Floats) -> Weights:
        """v = Σ c_i α_i x_i of each client."""
        return loop().combined(self.block, self.block.weight * alpha)

    def summed(self, each: Tensor) -> Floats:
        """Σ c_i·each_i of each client, from one number a row: row after row, so that no stack changes its bits."""
        sums = np.bincount(self.owner, weights=each.double().numpy(), minlength=len(self.losses))
        found: Floats = self.count * sums
        return found

    def by_loss(self, values: Floats, conjugate: bool) -> Tensor:
        """The loss of each row at its outputs, or the conjugate of it at its dual numbers."""
        found = torch.empty(len(values), dtype=torch.float64)
        for one in dict.fromkeys(self.losses):
            who = torch.from_numpy(np.array([own is one for own in self.losses])[self.owner])
            at, y = torch.from_numpy(values)[who], self.y[who]
            y = y.double() if y.is_floating_point() else y
            found[who] = one.conjugate(at, y) if conjugate else one.rows(at, y)
        return found


@dataclass(eq=False)
class _Ascent:
    """Coordinate ascent on the subproblems of a stack of clients, under way."""

    duals: Duals
    kappa: Floats
    start: Weights
    """w."""
    alpha: Floats
    u: Weights
    order: Order
    purpose: str
    moves: bool = True
    """Whether a step sees those before it: u follows."""

    @staticmethod
    def of(duals: Duals, alpha: Tensor, w: Vector, curvature: float | Tensor, order: Order, purpose: str) -> _Ascent:
        start, kappa = duals.weights(w), _column(duals.client, curvature)
        return _Ascent(duals, kappa, start, duals.flat(alpha), start.copy(), order, purpose)

    def go(self, number: int, take: Ints) -> None:
        """So many steps of each client in its pass of this number, 0, 1, …"""
        loop().sweep(self.duals.block, self._order(number), take, self.kappa, self.alpha, self.u, self.moves)

    def steps(self, count: Ints) -> None:
        """So many steps of each client, pass after pass."""
        sizes = self.duals.sizes
        passes = -(-count // np.maximum(sizes, 1))
        for number in range(int(passes.max(initial=0))):
            self.go(number, np.clip(count - number * sizes, 0, sizes))

    def until(self, enough: float, count: Ints) -> Ints:
        """Passes until at most this share of the subproblem is left, or so many steps are done; gives these."""
        sizes, before = self.duals.sizes, self.value()
        done, number, look = np.zeros_like(count), 0, 1
        open_ = count > 0
        while open_.any():
            take = np.where(open_, np.minimum(sizes, count - done), 0)
            self.go(number, take)
            done, number = done + take, number + 1
            open_ &= done < count
            if number >= look:  # ever more rarely: a look costs more than a pass over few rows
                look = number + 1 + number // 8
                gap, rounding = self.gap()
                left = enough * (np.maximum(before - self.value(), 0) + gap)
                open_ &= gap > np.maximum(left, rounding)
        return done

    def value(self) -> Floats:
        """G(Δα) of each client, with (κ/2)‖A‖² + w·A = (w·d + ½‖d‖²)/κ for d = u − w."""
        w, u = self.start, self.u
        d, b = u.w - w.w, u.b - w.b
        bent = (d * (w.w + d / 2)).sum((1, 2)) + (b * (w.b + b / 2)).sum(1)
        found: Floats = self.duals.summed(self.duals.by_loss(self.alpha, conjugate=True)) + bent / self.kappa
        return found

    def gap(self) -> tuple[Floats, Floats]:
        """How far G is above its minimum at the most, and how much of that may be rounding."""
        duals = self.duals
        out = loop().scores(duals.block, self.u)
        loss, dual = duals.by_loss(out, conjugate=False), duals.by_loss(self.alpha, conjugate=True)
        weighed = duals.block.weight * self.alpha * out  # with c already
        crossed = np.bincount(duals.owner, weights=weighed.sum(1), minlength=len(duals.losses))
        found: Floats = np.maximum(duals.summed(loss + dual) + crossed, 0.0)
        return found, _ROUNDING * duals.summed(loss.abs() + dual.abs())

    def _order(self, number: int) -> Ints:
        """The rows of a pass, drawn by counter."""
        client, sizes = self.duals.client, self.duals.sizes
        width = int(sizes.max(initial=0))
        if self.order == "cyclic":
            return np.broadcast_to(np.arange(width), (len(sizes), width)).copy()
        words = client.draw.words(self.purpose, client.clients, width, lane=number)
        if self.order == "random":
            share = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
            return (share * sizes[:, None]).astype(np.int64)
        keys = words >> np.uint64(24)
        keys[np.arange(width) >= sizes[:, None]] = np.uint64(2**64 - 1)
        return order_of(keys)


def ascend(
    client: Client,
    alpha: Tensor,
    w: Vector,
    curvature: float | Tensor,
    count: float | Tensor,
    epochs: int,
    steps: int | None,
    order: Order,
    accuracy: float | None,
    together: bool,
    loss: Losses | None,
    split: str,
) -> tuple[Tensor, Tensor]:
    """α after coordinate steps on each client's subproblem, and how many there were."""
    duals, sizes = Duals.of(client, count, loss, split), client.sizes(split)
    effort, budget = client.effort, client.budget
    if accuracy is None:
        taken = steps_of(sizes, 1, epochs, steps, effort, budget)
        taken = np.minimum(taken, sizes) if together else taken
    else:
        most = steps_of(sizes, 1, _PASSES, None, None, budget)
        ascent = _Ascent.of(duals, alpha, w, curvature, order, "coordinates")
        taken = ascent.until(accuracy, most)
        if effort is not None:  # a share of what it would have been
            taken = np.where(sizes > 0, np.maximum(np.floor(taken * effort + 1e-9).astype(np.int64), 1), 0)
    if accuracy is None or effort is not None:
        ascent = _Ascent.of(duals, alpha, w, curvature, order, "coordinates")
        ascent.moves = not together
        ascent.steps(taken)
    client.evaluations += taken
    return duals.padded(ascent.alpha, alpha), client.column(taken)


def combined(client: Client, alpha: Tensor, count: float | Tensor, loss: Losses | None, split: str) -> Vector:
    """Σ c_i α_i x_i of each client."""
    duals = Duals.of(client, count, loss, split)
    return duals.vector(duals.combined(duals.flat(alpha)))


def primal(client: Client, w: Vector, count: float | Tensor, loss: Losses | None) -> Tensor:
    """Σ c_i ℓ(w·x_i) of each client."""
    duals = Duals.of(client, count, loss)
    out = loop().scores(duals.block, duals.weights(w))
    return _columns(client, duals.summed(duals.by_loss(out, conjugate=False)))


def conjugate(client: Client, alpha: Tensor, count: float | Tensor, loss: Losses | None) -> Tensor:
    """Σ c_i ℓ*(−α_i) of each client."""
    duals = Duals.of(client, count, loss)
    return _columns(client, duals.summed(duals.by_loss(duals.flat(alpha), conjugate=True)))


def subproblem(
    client: Client,
    alpha: Tensor,
    new: Tensor,
    w: Vector,
    curvature: float | Tensor,
    count: float | Tensor,
    tolerance: float,
    loss: Losses | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """G(0), G(Δα) and min G of each client's subproblem, Δα leading from α to the new one."""
    duals = Duals.of(client, count, loss)
    ascent = _Ascent.of(duals, alpha, w, curvature, "permuted", "subproblem")
    before, old = ascent.value(), ascent.alpha
    ascent.alpha = duals.flat(new)
    moved, kappa = duals.combined(ascent.alpha - old), ascent.kappa
    ascent.u = Weights(ascent.start.w + kappa[:, None, None] * moved.w, ascent.start.b + kappa[:, None] * moved.b)
    after = ascent.value()
    ascent.until(tolerance, duals.sizes * _LEAST)
    least = np.minimum(ascent.value(), after)
    return _columns(client, before), _columns(client, after), _columns(client, least)


def empty(client: Client, split: str) -> Tensor:
    """α before the first step: a zero for each row and output, padded to the client with the most rows."""
    sizes, outputs = client.sizes(split), _layer(client.problem).weight.shape[0]
    rows = int(sizes.max(initial=0))
    return torch.zeros(*client.n.shape[:-1], rows, outputs, dtype=client.problem.dtype)


def design_of(problem: Problem) -> Design:
    """The features of all rows, as the loops read them: those of the rows, or what a fixed network makes of them."""
    if linear_layer(problem) is not None or problem.model.head is None:
        return Design(problem.x.flatten(1).contiguous().numpy())
    front = copy.deepcopy(problem.model.head[0]).to(problem.dtype)
    with torch.no_grad():
        parts = [front(rows) for rows in torch.split(problem.x, _ROWS)]
    return Design(torch.cat(parts).contiguous().numpy())


def _layer(problem: Problem) -> Layer:
    layer = _found(problem)
    assert layer is not None  # the method's check refuses others
    return layer


def _found(problem: Problem) -> Layer | None:
    """The layer of a linear model, or of one whose features are fixed."""
    head = problem.model.head
    return linear_layer(problem) or (None if head is None else head[1])


def _column(client: Client, value: float | Tensor) -> Floats:
    """A number for each client, from one for all or from a column."""
    values = torch.as_tensor(value, dtype=torch.float64).reshape(-1)
    found: Floats = values.expand(len(client.clients)).numpy().copy()
    return found


def _columns(client: Client, values: Floats) -> Tensor:
    """A number for each client as a column, in float64: sums of them must not lose what a gap is made of."""
    column = torch.from_numpy(values)
    return column[:, None] if client.stacked else column
