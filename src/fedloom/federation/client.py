"""One client, or a ragged stack of clients: all that a method may ask of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedloom.federation import dual, parties
from fedloom.federation.augment import Augment
from fedloom.federation.batches import Plan, Rows, Step, evaluations_of, steps_of
from fedloom.federation.coordinates import loop
from fedloom.federation.data import HALVES
from fedloom.federation.dual import Losses, Order
from fedloom.federation.kernels import Product
from fedloom.federation.meta import Meta, adapted, meta_gradient, meta_steps
from fedloom.federation.optimisers import Optimiser
from fedloom.federation.ragged import Ints, Span, Window
from fedloom.federation.randomness import Draw, torch_seeded
from fedloom.federation.regularisers import Regulariser
from fedloom.federation.solvers import Inner, meta_prox, prox
from fedloom.federation.statistics import Trail, followed, trails, with_tail
from fedloom.federation.walk import Walk
from fedloom.types import Vector

if TYPE_CHECKING:
    from fedloom.federation.problem import Problem

Floats = npt.NDArray[np.float64]
Carry = dict[str, Tensor]
"""What clients take along from one local step to the next, one row a client."""
_INNER = Inner()
_META = Meta()
_GRADIENT_ROWS = 8_000_000  # numbers of x that one pass of a full gradient reads at a time


@dataclass(eq=False, repr=False)
class Client:
    """A client, or a stack of clients as a leading axis, in one round.

    Vectors have shape (n,) for one client and (clients, n) for a stack; ``n`` and the number of steps that ``sgd``
    returns broadcast against them. A method that uses only these is written once and runs on both.
    """

    problem: Problem
    clients: Ints
    draw: Draw
    stacked: bool
    round: int
    """The round that is under way, 0, 1, …; step sizes that change by the round go by it."""
    effort: Floats | None = None
    """The share of its local steps that each client takes; None: all do all."""
    budget: Floats | None = None
    """Gradient evaluations of single rows that each client can afford; None: any number."""
    _delay: Floats | None = None
    window: Window | None = None
    """Of training rows only those in the window are there; None: all are."""
    step: int = field(default=0, init=False)
    """The local step that is under way, for error messages."""
    statistics: Tensor | None = field(default=None, init=False)
    """Of a model with running statistics: those that were sent, one for all or for each client …"""
    trails: list[Trail] | None = field(default=None, init=False)
    """… and what passes have made of them, of each client; None: nobody asks."""
    _scanned: int = field(default=0, init=False)
    """Steps of a ``scan`` that are behind: each has a dropout of its own."""

    def __post_init__(self) -> None:
        self.evaluations = np.zeros(len(self.clients), dtype=np.int64)
        """Gradient evaluations of single rows so far, of each client."""

    def span(self, split: str = "train") -> Span:
        """Where the rows are that each client has."""
        return self.problem.data.span(split, self.clients, self.window)

    def sizes(self, split: str = "train") -> Ints:
        """How many rows each client has."""
        return self.span(split).sizes

    def alone(self, position: int) -> Client:
        """One client of the stack by itself, in the same round and with the same rows."""
        own = slice(position, position + 1)

        def part(values: Floats | None) -> Floats | None:
            return None if values is None else values[own]

        found = self.problem.client(
            int(self.clients[position]),
            self.draw,
            effort=part(self.effort),
            budget=part(self.budget),
            delay=part(self._delay),
            round=self.round,
            window=None if self.window is None else (self.window[0][own], self.window[1][own]),
        )
        found.trails = None if self.trails is None else self.trails[own]
        return found

    def slowed(self, share: Floats) -> Client:
        """The same clients in the same round, whose work counts as theirs, but each does only a share of it."""
        found = copy.copy(self)
        found.effort = share if self.effort is None else self.effort * share
        return found

    def track(self, sent: Tensor) -> None:
        """From now on follow what passes make of the running statistics that were sent, one for all or for each."""
        self.statistics, self.trails = sent, trails(sent, len(self.clients))

    @contextmanager
    def unnoticed(self) -> Iterator[None]:
        """Passes inside the block, which only look at a model, move no running statistics."""
        kept, self.trails = self.trails, None
        try:
            yield
        finally:
            self.trails = kept

    def follow(self, theta: Vector) -> Vector:
        """θ, made by a step from where gradients were just taken, with the statistics that these passes gave."""
        if self.trails is None or theta.shape[-1] == self.problem.model.n:
            return theta
        return followed(theta, self.trails, self.stacked)

    @property
    def n(self) -> Tensor:
        """The number of training rows, shaped to broadcast against vectors."""
        return self.count()

    @property
    def delay(self) -> Tensor:
        """Seconds that the network takes for each client's messages this time, shaped to broadcast against vectors."""
        return self.column(np.zeros(len(self.clients)) if self._delay is None else self._delay)

    def count(self, split: str = "train") -> Tensor:
        """The number of rows in a split, shaped to broadcast against vectors."""
        return self.column(self.sizes(split))

    def rows(self, split: str = "train") -> Rows:
        """All rows of a split."""
        span = self.span(split)
        sizes, owned = span.sizes, span.owned
        local = np.minimum(np.arange(int(sizes.max(initial=0))), np.maximum(sizes[:, None] - 1, 0))
        flat = torch.from_numpy(local + span.starts[:, None]).clamp_(max=int(owned.offsets[-1]) - 1)
        return self._padded(owned.resolve(flat), torch.from_numpy(sizes))

    def loss(self, theta: Vector, split: str | Rows = "train") -> Tensor:
        """The mean loss of each client, differentiable in θ; 0 for a client without rows."""
        rows = self.rows(split) if isinstance(split, str) else split
        out = self.problem.model(self._expand(theta, rows), rows.x)
        return (self.problem.loss.rows(out, rows.y) * rows.weight).sum(-1)

    def grad(self, theta: Vector, split: str | Rows = "train", *, graph: bool = False) -> Vector:
        """∇f_i(θ) over all rows of a split, or over given rows; with ``graph`` it can be differentiated again."""
        rows = self.rows(split) if isinstance(split, str) else split
        self.evaluations += rows.counts()
        theta = self._expand(theta, rows)
        if graph:
            with torch.enable_grad():
                theta = theta if theta.requires_grad else theta.detach().requires_grad_()
                (gradient,) = torch.autograd.grad(self.loss(theta, rows).sum(), theta, create_graph=True)
            return gradient
        return self._summed(theta, rows, lambda who, at, *block: self.problem.kernel.gradient(at, *block))

    def linearise(self, theta: Vector, split: str | Rows = "train") -> tuple[Vector, Product]:
        """∇f_i(θ), and v ↦ ∇²f_i(θ)·v as a function, which shares the work done for the gradient.

        A product costs, and counts as, two gradients. It must be taken before θ's memory is used for something else.
        """
        rows = self.rows(split) if isinstance(split, str) else split
        count = rows.counts()
        self.evaluations += count
        products: list[tuple[slice, Product]] = []

        def gradient(who: slice, *at: Tensor) -> Vector:
            found, product = self.problem.kernel.linearise(*at)
            products.append((who, product))
            return found

        def times(v: Vector) -> Vector:
            self.evaluations += 2 * count
            v = self._stack(self._expand(v, rows))
            total: Vector | None = None
            with torch.no_grad():
                for who, product in products:
                    total = _plus(total, who, product(v[who]), len(self.clients))
            return self._unstack(torch.zeros_like(v) if total is None else total)

        return self._summed(self._expand(theta, rows), rows, gradient), times

    def curvature(self, theta: Vector, known: Tensor | None = None, steps: int = 20) -> Tensor:
        """L_i = ‖∇²f_i(θ)‖ by steps of power iteration, from below, shape (…, 1); a step counts as two gradients.

        Clients of which it is ``known`` (above 0) do not measure it again. All begin at the same random vector.
        """
        found = theta.new_zeros(*self.n.shape[:1], 1) if known is None else known
        who = np.flatnonzero(self._stack(found).flatten().numpy() <= 0)
        if len(who) == 0:
            return found
        window = None if self.window is None else (self.window[0][who], self.window[1][who])
        some = self.problem.client(self.clients[who], self.draw, round=self.round, window=window)
        _, product = some.linearise(theta[who] if self.stacked and theta.dim() > 1 else theta)
        v = torch.from_numpy(self.draw.normal("curvature", 0, theta.shape[-1])).to(theta.dtype)
        for _ in range(steps):
            size = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
            v = product(v / size.clamp(min=torch.finfo(v.dtype).tiny))
        self.evaluations[who] += some.evaluations
        size = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
        return self._unstack(self._stack(found).index_copy(0, torch.from_numpy(who), size))

    def batches(
        self, split: str, batch: int | None, steps: int | None = None, epochs: int = 1, purpose: str = "batches"
    ) -> list[Rows]:
        """The rows of each local step: ``epochs`` shuffled passes in mini-batches, or exactly ``steps`` of them.

        None for ``batch``: all rows in each step. A client that has no rows, or is done, has rows that count for 0.
        Other purposes draw other mini-batches.
        """
        if batch is None:
            return [self.rows(split)] * (epochs if steps is None else steps)
        span = self.span(split)
        count = steps_of(span.sizes, batch, epochs, steps)
        plan = Plan.of(span, self.clients, self.draw, batch, count, purpose, self._augment(split))
        return [self._spread(step, plan, number) for number, step in enumerate(plan, 1)]

    def adapt(
        self, theta: Vector, alpha: float | Vector, split: str = "support", steps: int = 1, batch: int | None = None
    ) -> Vector:
        """θ after the steps θ ← θ − α∘∇f(θ) on a split; α is a number, or one for each number of θ.

        ``steps`` are steps with all rows, or passes in mini-batches. A client without rows keeps θ as it is.
        """
        return adapted(self, theta, alpha, self.batches(split, batch, epochs=steps))

    def meta_grad(self, theta: Vector, alpha: float | Vector, how: Meta = _META) -> tuple[Vector, Vector | None]:
        """∇_θ f_q(φ), φ being θ after inner steps φ ← φ − α∘∇f_s(φ) on the support, and f_q the loss on the query.

        α is a number, or one for each number of θ: then the second result is ∇_α. ``how`` says which rows, how many
        inner steps, and how the second derivatives are taken.
        """
        return meta_gradient(self, theta, alpha, how)

    def meta_sgd(
        self,
        theta: Vector,
        lr: float,
        alpha: float | Vector,
        steps: int = 1,
        how: Meta = _META,
        optimiser: Optimiser | None = None,
    ) -> tuple[Vector, Tensor]:
        """``steps`` local steps θ ← θ − lr·∇f_q(φ(θ)), each on mini-batches of its own; gives θ and their number K."""
        return meta_steps(self, theta, lr, alpha, steps, how, optimiser)

    def sgd(
        self,
        theta: Vector,
        lr: float | Tensor,
        batch: int | None = None,
        epochs: int = 1,
        steps: int | None = None,
        *,
        optimiser: Optimiser | None = None,
        pull: tuple[float | Tensor, Vector] | None = None,
        shift: Vector | None = None,
        direction: Callable[[Vector, Vector], Vector] | None = None,
        split: str = "train",
        purpose: str = "batches",
    ) -> tuple[Vector, Tensor]:
        """Local steps y ← y − lr·(g(y) + μ(y − x0) + v) from θ; gives y and the number of gradient steps K.

        ``epochs`` passes over the split in shuffled mini-batches of ``batch`` rows (None: full-batch steps), or
        exactly ``steps`` steps. ``pull`` is (μ, x0), ``shift`` is v: both are affine and fused into the step. A free
        ``direction(y, g)`` replaces the whole bracket; it may use y and g alone, because clients that are done are
        left out of both. A slow client's ``effort`` or ``budget`` cuts its steps. Other purposes draw other rows.
        """
        if len(self.clients) > 1 and not self.problem.kernel.stacks:
            return self._one_by_one(
                lambda alone, own: alone.sgd(
                    own(theta),
                    own(lr),
                    batch,
                    epochs,
                    steps,
                    optimiser=optimiser,
                    pull=(own(pull[0]), own(pull[1])) if pull else None,
                    shift=own(shift),
                    direction=direction,
                    split=split,
                    purpose=purpose,
                )
            )
        span = self.span(split)
        sizes = span.sizes
        count = steps_of(sizes, batch, epochs, steps, self.effort, self.budget)
        plan = Plan.of(span, self.clients, self.draw, batch, count, purpose, self._augment(split))
        sort = bool((plan.order[1:] < plan.order[:-1]).any())
        order = torch.from_numpy(plan.order)

        def sorted_(value: Any) -> Any:
            return _own(order, value) if sort else value

        start = theta.detach().expand(len(sizes), -1)
        y = self.problem.kernel.bind(start[order] if sort else start.clone(memory_format=torch.contiguous_format))
        walk = Walk(self, y, sorted_(lr), (sorted_(pull[0]), sorted_(pull[1])) if pull else None, sorted_(shift))
        with torch.no_grad(), self._dropout():
            if optimiser is None and direction is None:
                walk.plain(plan)
            else:
                walk.free(plan, optimiser, direction)
        self.evaluations += evaluations_of(sizes, batch, count)
        n = self.problem.model.n
        if self.trails is not None and y.shape[-1] > n:
            self.trails[0].passed(start[0, n:], y[0, n:].clone())
        y = torch.empty_like(y).index_copy_(0, order, y) if sort else y if self.problem.kernel.stacks else y.clone()
        return (y if self.stacked else y[0]), self.column(count)

    def scan(
        self,
        step: Callable[[Carry, Rows], Carry],
        carry: Carry,
        batch: int | None = None,
        epochs: int = 1,
        steps: int | None = None,
        *,
        split: str = "train",
    ) -> tuple[Carry, Tensor]:
        """Local steps of any kind, carry ← step(carry, rows); gives the last carry and the number of steps K.

        For methods whose clients keep more from step to step than a model. Rows are those that ``sgd`` would take, and
        a slow client's ``effort`` or ``budget`` cuts its steps too: what it carries then stays as it is.
        """
        span = self.span(split)
        count = steps_of(span.sizes, batch, epochs, steps, self.effort, self.budget)
        plan = Plan.of(span, self.clients, self.draw, batch, count, augment=self._augment(split))
        last: tuple[Step, Rows] | None = None
        for self.step, taken in enumerate(plan, 1):
            if last is None or last[0] is not taken:  # full-batch steps come back with the same object
                last = (taken, self._spread(taken, plan, self.step))
            self._scanned = self.step - 1
            after = self._descended(carry, step, last[1])
            if taken.active < len(self.clients):
                busy = self.column(count) >= self.step
                after = {key: torch.where(busy, value, carry[key]) for key, value in after.items()}
            carry = after
        self._scanned = 0
        return carry, self.column(count)

    def _descended(self, carry: Carry, step: Callable[[Carry, Rows], Carry], rows: Rows) -> Carry:
        """One step of a scan; the model that its gradients were taken at has the running statistics that they gave."""
        if self.trails is None:
            return step(carry, rows)
        for trail in self.trails:
            trail.stepping, trail.span = True, None
        after = dict(step(carry, rows))
        n, width = self.problem.model.n, self.problem.model.width
        wide = [key for key, value in carry.items() if value.shape[-1:] == (width,)]
        for i, trail in enumerate(self.trails):
            trail.stepping = False
            if trail.span is None:
                continue
            for key in wide:
                if torch.equal(_own(i, carry[key])[n:], trail.span[0]):
                    after[key] = value = after[key].clone()
                    (value[i] if self.stacked else value)[n:] = trail.span[1]
        return after

    def prox(self, v: Vector, rho: float | Tensor, start: Vector | None = None, how: Inner = _INNER) -> Vector:
        """argmin f_i(x) + (ρ/2)‖x − v‖² over all training rows, by the solver that ``how`` names.

        ``rho`` is one number for all or one for each client, shape (…, 1). Iterative solvers begin at ``start``
        (default: v).
        """
        return prox(self, v, rho, v if start is None else start, how)

    def fit(self, b: Tensor, rho: float | Tensor, penalty: Regulariser, start: Tensor) -> Tensor:
        """argmin (ρ/2)‖A_i x − b‖² + g(x), A_i being the columns that a party of a vertical federation holds.

        x has shape (…, width, outputs), width being that of the widest block; b has shape (…, rows, outputs).
        """
        return parties.fit(self, b, rho, penalty, start)

    def scores(self, x: Tensor) -> Tensor:
        """A_i x: the party's share of the outputs for the training rows, shape (…, rows, outputs)."""
        return parties.scores(self, x)

    def part(self, x: Tensor) -> Vector:
        """The party's x at its places in θ: the model of all is the sum of these."""
        return parties.part(self, x)

    def ascend(
        self,
        alpha: Tensor,
        w: Vector,
        curvature: float | Tensor,
        count: float | Tensor,
        *,
        epochs: int = 1,
        steps: int | None = None,
        order: Order = "permuted",
        accuracy: float | None = None,
        together: bool = False,
        loss: Losses | None = None,
        split: str = "train",
    ) -> tuple[Tensor, Tensor]:
        """Coordinate steps in the dual on the client's own rows, from α; gives α and the number of these steps K.

        They minimise G(Δα) = Σ c ℓ*(−α − Δα) + w·A + (κ/2)‖A‖², A = Σ cΔαx, κ being the ``curvature`` and c the
        ``count``, each one number or a column (…, 1). α has shape (…, rows, outputs), and begins as ``duals()``.
        ``epochs`` passes, exactly ``steps`` steps, or passes until at most the share ``accuracy`` of the subproblem is
        left (as its duality gap shows). A step visits one row; ``effort`` and ``budget`` cut them as they cut ``sgd``.
        Steps taken ``together`` are all taken from where the first one is, on different rows.
        """
        return dual.ascend(self, alpha, w, curvature, count, epochs, steps, order, accuracy, together, loss, split)

    def duals(self, split: str = "train") -> Tensor:
        """α before the first step: zeros, of shape (…, rows, outputs)."""
        return dual.empty(self, split)

    def combined(
        self, alpha: Tensor, count: float | Tensor, loss: Losses | None = None, split: str = "train"
    ) -> Vector:
        """v = Σ c_i α_i x_i over the rows of a split, a vector of the model's size; a bias has a feature of ones."""
        return dual.combined(self, alpha, count, loss, split)

    def primal(self, w: Vector, count: float | Tensor, loss: Losses | None = None) -> Tensor:
        """Σ c_i ℓ(w·x_i) over the training rows, shape (…, 1), in float64."""
        return dual.primal(self, w, count, loss)

    def conjugate(self, alpha: Tensor, count: float | Tensor, loss: Losses | None = None) -> Tensor:
        """Σ c_i ℓ*(−α_i) over the training rows, shape (…, 1), in float64; infinite where α cannot be."""
        return dual.conjugate(self, alpha, count, loss)

    def subproblem(
        self,
        alpha: Tensor,
        new: Tensor,
        w: Vector,
        curvature: float | Tensor,
        count: float | Tensor,
        *,
        tolerance: float = 1e-9,
        loss: Losses | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """G(0), G(Δα) and min G of the subproblem of ``ascend``, Δα leading from α to the new one, shape (…, 1) each.

        So θ = (G(Δα) − min G)/(G(0) − min G) is how much of it is left; the minimum is found to the tolerance.
        """
        return dual.subproblem(self, alpha, new, w, curvature, count, tolerance, loss)

    @property
    def compiled(self) -> Tensor:
        """1 where coordinate steps are taken by the compiled loop, 0 where by the plain one, shape (…, 1)."""
        return self.column(np.full(len(self.clients), float(loop().name == "compiled")))

    def meta_prox(
        self,
        v: Vector,
        rho: float | Tensor,
        alpha: float | Vector,
        start: Vector | None = None,
        meta: Meta = _META,
        how: Inner = _INNER,
    ) -> Vector:
        """argmin F_i(x) + (ρ/2)‖x − v‖², F_i(x) being the query's loss after adapting x to the support."""
        return meta_prox(self, v, rho, alpha, v if start is None else start, meta, how)

    def _one_by_one(
        self, walk: Callable[[Client, Callable[[Any], Any]], tuple[Vector, Tensor]]
    ) -> tuple[Vector, Tensor]:
        """A walk of a stack whose model cannot walk in step: client after client, each with its own part of values."""
        found = []
        for i in range(len(self.clients)):
            alone = self.alone(i)
            found.append(walk(alone, partial(_own, i)))
            self.evaluations[i] += alone.evaluations[0]
        return torch.stack([y for y, _ in found]), torch.stack([count for _, count in found])[:, None]

    @contextmanager
    def _dropout(self, which: int = 0) -> Iterator[None]:
        """Dropout draws from torch's own generator: give it this client's seed, and the caller's back afterwards.

        Fully connected models have none; any other module may draw, whether or not it has a layer that says so.
        """
        if self.problem.kernel.stacks:
            yield
            return
        with torch_seeded(int(self.draw.words("dropout", self.clients[which], 1, self._scanned)[0] >> np.uint64(1))):
            yield

    def _summed(self, theta: Vector, rows: Rows, gradient: Callable[..., Vector]) -> Vector:
        """The sum of gradients, gradient(who, θ, x, y, weight), over groups of clients and blocks of their rows."""
        theta = self._stack(theta)
        total: Vector | None = None
        for who, part in self._groups(rows):
            at, trail = theta[who], None if self.trails is None else self.trails[who.start]
            if trail is not None:
                trail.last = None
                at = with_tail(at, trail.span[1]) if trail.stepping and trail.span is not None else at
            with torch.no_grad(), self._dropout(who.start or 0):
                for block in self._blocks(part):
                    total = _plus(total, who, gradient(who, at, *block), len(self.clients))
                    at = self._passed(at, trail)
        return self._unstack(torch.zeros_like(theta) if total is None else total)

    def _passed(self, at: Vector, trail: Trail | None) -> Vector:
        """Where one client's next pass is, after one at θ: there, with the running statistics that this one gave."""
        n, after = self.problem.model.n, self.problem.kernel.passed
        if after is None or at.shape[-1] == n:
            return at
        if trail is not None:
            trail.passed(at[0, n:], after)
        return with_tail(at, after)

    def _groups(self, rows: Rows) -> Iterator[tuple[slice, Rows]]:
        """The clients that a kernel takes together, with their rows: all, or, if the model walks alone, each one.

        A client alone has no padding, and is left out when it has no rows.
        """
        stack = rows if self.stacked else Rows(rows.x[None], rows.y[None], rows.weight[None])
        if self.problem.kernel.stacks:
            yield slice(None), stack
            return
        for i in range(len(self.clients)):
            own = torch.nonzero(stack.weight[i]).flatten()
            yield slice(i, i + 1), Rows(stack.x[i, own][None], stack.y[i, own][None], stack.weight[i, own][None])

    def _blocks(self, rows: Rows) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """x, y and weight in blocks of rows, so that memory stays bounded."""
        block = max(1, _GRADIENT_ROWS // max(1, rows.x[:, :1].numel()))
        for at in range(0, rows.x.shape[1], block):
            part = slice(at, at + block)
            yield rows.x[:, part], rows.y[:, part], rows.weight[:, part]

    def _stack(self, vector: Vector) -> Vector:
        """With the leading axis that kernels want."""
        return vector if self.stacked else vector[None]

    def _unstack(self, vector: Vector) -> Vector:
        return vector if self.stacked else vector[0]

    def _augment(self, split: str) -> Augment | None:
        """How mini-batches of a split are changed: those for training alone."""
        return self.problem.data.augment if split in ("train", *HALVES) else None

    def _spread(self, step: Step, plan: Plan, number: int) -> Rows:
        """A plan's step as rows of the whole stack, in its own order; those who are done have weight 0."""
        who = torch.from_numpy(plan.order[: step.active])
        width = step.rows.shape[1]
        taken = step.rows[:1, :1].expand(len(self.clients), width).clone().index_copy_(0, who, step.rows)
        counts = torch.zeros(len(self.clients), dtype=torch.int64)
        counts[who] = width if step.counts is None else step.counts
        return self._padded(taken, counts, lambda x: plan.shown(x, self.clients, number))

    def _padded(self, numbers: Tensor, counts: Tensor, shown: Callable[[Tensor], Tensor] = lambda x: x) -> Rows:
        """Rows by their numbers, as they are ``shown``; of a client's the first so many count, the rest is padding."""
        own = (torch.arange(numbers.shape[1]) < counts[:, None]).to(self.problem.dtype)
        x, y = self.problem.take(numbers)
        x, weight = shown(x), own / counts[:, None].clamp(min=1)
        return Rows(x, y, weight) if self.stacked else Rows(x[0], y[0], weight[0])

    def _expand(self, theta: Vector, rows: Rows) -> Vector:
        return theta.expand(len(rows.x), -1) if self.stacked and theta.dim() == 1 else theta

    def column(self, values: npt.NDArray[Any]) -> Tensor:
        """One number for each client, shaped to broadcast against vectors."""
        column = torch.from_numpy(values).to(self.problem.dtype)
        return column[:, None] if self.stacked else column[0]


def _own(who: int | Tensor, value: Any) -> Any:
    """The part of some clients, of a value that may be one for all."""
    return value[who] if isinstance(value, Tensor) and value.dim() == 2 else value


def _plus(total: Vector | None, who: slice, part: Vector, clients: int) -> Vector:
    """Adds a part that some clients have to the sum of all."""
    if total is None:
        if len(part) == clients:
            return part
        total = part.new_zeros(clients, part.shape[1])
    total[who] += part
    return total
