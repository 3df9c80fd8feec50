"""Proximal steps of a client's loss: argmin f_i(x) + (ρ/2)‖x − v‖², for a stack of clients at once.

Least squares has a closed form. The eigenvectors of each client's Hessian are found once and kept with the problem:
they serve every ρ, so a solve costs two matrix-vector products however often ρ changes. For other losses there are
Newton's method (conjugate gradients inside), L-BFGS and plain gradient steps, which stop at a tolerance.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar, get_args

import torch
from torch import Tensor

from fedloom.errors import ConfigError
from fedloom.federation.meta import Meta
from fedloom.federation.model import Layer
from fedloom.types import Vector

if TYPE_CHECKING:
    from fedloom.federation.batches import Rows
    from fedloom.federation.client import Client
    from fedloom.federation.kernels import Product
    from fedloom.federation.problem import Problem

SolverName = Literal["auto", "exact", "newton", "lbfgs", "gradient"]
SOLVERS: tuple[str, ...] = get_args(SolverName)

_SMOOTH = ("squared", "binary", "cross-entropy")
_CACHE_NUMBERS = 1 << 25  # numbers that the factorisations of one process may take (256 MB in float64)
_SMALL = 1 << 14  # numbers of a basis below which clients are solved in one batch
_PAIRS = 10  # steps that L-BFGS remembers
_HALVINGS = 30
_ARMIJO = 1e-4


@dataclass(frozen=True)
class Inner:
    """How a client solves its subproblem."""

    solver: SolverName = "auto"
    tolerance: float = 1e-10
    """The gradient's norm at which Newton and L-BFGS are content."""
    max_iterations: int = 50
    """Iterations that they may take."""
    lr: float = 0.1
    batch: int | None = None
    epochs: int = 1
    steps: int | None = None


def linear_layer(problem: Problem) -> Layer | None:
    """The layer of a model that is a single one, so that its outputs are linear in θ."""
    layers = problem.model.layers
    return layers[0] if layers is not None and len(layers) == 1 else None


def has_closed_form(problem: Problem) -> bool:
    """Whether the proximal step is a linear system: a linear model with a squared loss."""
    return linear_layer(problem) is not None and problem.loss.name == "squared"


def solver_for(problem: Problem, name: str) -> str:
    """Which solver "auto" stands for; refuses one that this model or loss has no use for."""
    if name not in SOLVERS:
        raise ConfigError(f"there is no solver {name!r}; choose one of {', '.join(SOLVERS)}")
    smooth = problem.loss.name in _SMOOTH and not problem.model.statistics
    if name in ("newton", "lbfgs"):
        refuse_statistics(problem, f"solver = {name!r}", "solver = 'gradient'")
    if name == "auto":
        if has_closed_form(problem):
            return "exact"
        return "gradient" if not smooth else "newton" if linear_layer(problem) is not None else "lbfgs"
    if name == "exact" and not has_closed_form(problem):
        raise ConfigError(
            f"solver = 'exact' needs a closed form, which only a linear model with the loss 'squared' has (the loss "
            f"here is {problem.loss.name!r}); use solver = 'newton' for other linear models, 'lbfgs' or 'gradient' for "
            "networks, or 'auto'"
        )
    if name in ("newton", "lbfgs") and not smooth:
        raise ConfigError(
            f"solver = {name!r} needs a smooth loss, and {problem.loss.name!r} has kinks; use solver = 'gradient', or "
            f"one of the losses {', '.join(_SMOOTH)}"
        )
    return name


def refuse_statistics(problem: Problem, what: str, instead: str) -> None:
    """Refuses a model with running statistics for something that needs the loss as a function of its parameters."""
    if problem.model.statistics:
        raise ConfigError(
            f"{what} needs a loss that follows from the parameters alone, and this model has running statistics "
            f"(BatchNorm): its loss in training is that of a batch; use {instead}, or a network with GroupNorm"
        )


def prox(client: Client, v: Vector, rho: float | Tensor, start: Vector, how: Inner) -> Vector:
    """argmin f_i(x) + (ρ/2)‖x − v‖² of each client; ``rho`` is a number or one for each client, shape (…, 1)."""
    name = solver_for(client.problem, how.solver)
    if name == "gradient":
        return client.sgd(start, how.lr, how.batch, how.epochs, how.steps, pull=(rho, v))[0]
    with torch.no_grad():
        column = torch.as_tensor(rho, dtype=v.dtype).expand(*v.shape[:-1], 1)
        if name == "exact":
            found = _least_squares(client, v.reshape(-1, v.shape[-1]), column.reshape(-1, 1))
            return found.view(v.shape)
        descend = _newton if name == "newton" else _lbfgs
        return descend(_training(client, v, column), start.expand_as(v).clone(), how)


def meta_prox(
    client: Client, v: Vector, rho: float | Tensor, alpha: float | Vector, start: Vector, meta: Meta, how: Inner
) -> Vector:
    """argmin F_i(x) + (ρ/2)‖x − v‖², F_i being the loss on the query after adaptation, by L-BFGS.

    With a few rows there are several minima: this is the one that lies downhill from ``start``.
    """
    with torch.no_grad():
        column = torch.as_tensor(rho, dtype=v.dtype).expand(*v.shape[:-1], 1)

        def loss(x: Vector) -> Tensor:
            return client.loss(client.adapt(x, alpha, meta.support, meta.steps, meta.batch), meta.query)

        phi = _Objective(v, column, loss, lambda x: client.meta_grad(x, alpha, meta)[0])
        return _lbfgs(phi, start.expand_as(v).clone(), how)


# Least squares


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A matrix A, ready for least squares with every right-hand side and every ridge.

    For fewer rows than coordinates AAᵀ = U diag(s) Uᵀ and ``basis`` = UᵀA; otherwise AᵀA = V diag(s) Vᵀ and
    ``basis`` = Vᵀ. ``target`` is Uᵀb or VᵀAᵀb for a b that does not change.
    """

    basis: Tensor
    values: Tensor
    target: Tensor
    wide: bool

    @staticmethod
    def of(a: Tensor, b: Tensor) -> Spectrum:
        """By an eigendecomposition of the smaller of AAᵀ and AᵀA."""
        wide = a.shape[0] < a.shape[1]
        values, vectors = torch.linalg.eigh(a @ a.T if wide else a.T @ a)
        values = values.clamp(min=0)[:, None]
        if wide:
            return Spectrum(vectors.T @ a, values, vectors.T @ b, True)
        return Spectrum(vectors.T.contiguous(), values, vectors.T @ (a.T @ b), False)

    def numbers(self) -> int:
        """How much memory it takes."""
        return self.basis.numel() + self.values.numel() + self.target.numel()

    def near(self, c: Tensor, rho: float | Tensor) -> Tensor:
        """argmin ½‖Ax − b‖² + (ρ/2)‖x − c‖², ρ > 0."""
        if self.wide:
            return c - self.basis.T @ ((self.basis @ c - self.target) / (self.values + rho))
        return self.basis.T @ ((self.target + rho * (self.basis @ c)) / (self.values + rho))

    def ridge(self, g: Tensor, t: float | Tensor) -> Tensor:
        """argmin ½‖Ax − b‖² + (t/2)‖x‖² from g = Aᵀb; for t = 0 the shortest of the solutions."""
        bent = self.values * (self.values + t) if self.wide else self.values + t
        noise = torch.finfo(g.dtype).eps * len(self.values) * bent.amax().clamp(min=torch.finfo(g.dtype).tiny)
        return self.basis.T @ torch.where(bent > noise, self.basis @ g / bent, 0)

    def bend(self, x: Tensor) -> Tensor:
        """AᵀAx."""
        moved = self.basis @ x
        return self.basis.T @ (moved if self.wide else self.values * moved)


class Kept(Protocol):
    """What a cache can hold."""

    def numbers(self) -> int:
        """How much memory it takes."""


T = TypeVar("T", bound=Kept)


class Cache(Generic[T]):
    """What was worked out for the clients seen last in this process, within a bound on the memory."""

    def __init__(self, limit: int = _CACHE_NUMBERS) -> None:
        self.limit = limit
        self.held = 0
        self.kept: OrderedDict[int, T] = OrderedDict()
        self.windows: dict[int, Hashable] = {}

    def get(self, client: int, make: Callable[[], T], window: Hashable = None) -> T:
        """A client's, made on the first request, after having been pushed out, and when its rows are others by now."""
        found = self.kept.get(client)
        if found is not None and self.windows[client] == window:
            self.kept.move_to_end(client)
            return found
        if found is not None:
            self.held -= self.kept.pop(client).numbers()
        found = make()
        self.kept[client], self.windows[client] = found, window
        self.held += found.numbers()
        while self.held > self.limit and len(self.kept) > 1:
            oldest, gone = self.kept.popitem(last=False)
            self.held -= gone.numbers()
            del self.windows[oldest]
        return found


def _spectrum(client: Client, position: int) -> Spectrum:
    """From one client's own rows alone, so that its bits do not depend on who else is in the stack.

    A are the rows, which count for 1/(n·columns) each, with a column of ones for a bias, and b the labels.
    """
    problem = client.problem
    layer = linear_layer(problem)
    rows = client.alone(position).rows()
    z, y = rows.x.flatten(1), rows.y
    if layer is not None and layer.bias is not None:
        z = torch.cat([z, z.new_ones(len(z), 1)], 1)
    by_class = problem.loss.row_weights(y)
    weight = rows.weight if by_class is None else rows.weight * by_class
    scale = (weight / y.shape[-1]).sqrt().unsqueeze(-1)
    return Spectrum.of(z * scale, y * scale)


def _least_squares(client: Client, v: Vector, rho: Tensor) -> Vector:
    """(AᵀA + ρI)⁻¹(Aᵀb + ρv) of each client.

    Small square bases go through one batched product. Large ones go client by client: each is then still in the
    processor's cache when it is needed a second time, and nothing is copied.
    """
    cache = client.problem.spectra
    windows = [None] * len(client.clients) if client.window is None else list(zip(*client.window, strict=True))
    spectra = [
        cache.get(int(number), partial(_spectrum, client, i), windows[i]) for i, number in enumerate(client.clients)
    ]
    client.evaluations += client.sizes()
    points = _matrices(client.problem, v)
    found = torch.empty_like(points)
    together = [i for i, one in enumerate(spectra) if not one.wide and one.basis.numel() <= _SMALL]
    if together:
        basis, values, target = (
            torch.stack([getattr(spectra[i], part) for i in together]) for part in ("basis", "values", "target")
        )
        r = rho[together].unsqueeze(-1)
        found[together] = torch.bmm(basis.mT, (target + r * torch.bmm(basis, points[together])) / (values + r))
    for i in sorted(set(range(len(spectra))).difference(together)):
        found[i] = spectra[i].near(points[i], rho[i])
    return _vectors(client.problem, found)


def _matrices(problem: Problem, theta: Vector) -> Tensor:
    """A stack θ of a linear model as (clients, coordinates, outputs), the bias being the last coordinate."""
    layer = linear_layer(problem)
    assert layer is not None
    w = layer.weight.of(theta)
    if layer.bias is not None:
        w = torch.cat([w, layer.bias.of(theta).unsqueeze(-1)], -1)
    return w.mT.contiguous()


def _vectors(problem: Problem, matrices: Tensor) -> Vector:
    """The inverse of ``_matrices``."""
    layer = linear_layer(problem)
    assert layer is not None
    inputs = layer.weight.shape[1]
    theta = matrices.new_empty(len(matrices), problem.model.n)
    layer.weight.of(theta).copy_(matrices[:, :inputs].mT)
    if layer.bias is not None:
        layer.bias.of(theta).copy_(matrices[:, inputs])
    return theta


# Descent for other losses


@dataclass(frozen=True, eq=False)
class _Objective:
    """φ(x) = f_i(x) + (ρ/2)‖x − v‖² of each client, its gradient and its curvature along a direction."""

    v: Vector
    rho: Tensor
    loss: Callable[[Vector], Tensor]
    slope: Callable[[Vector], Vector]
    bend: Callable[[Vector], Product] | None = None

    @cached_property
    def floor(self) -> Tensor:
        """Below this a gradient is rounding error."""
        scale = (self.rho * torch.linalg.vector_norm(self.v, dim=-1, keepdim=True)).clamp(min=1.0)
        floor: Tensor = 32 * torch.finfo(self.v.dtype).eps * scale
        return floor

    def value(self, x: Vector) -> Tensor:
        return self.loss(x).unsqueeze(-1) + self.rho / 2 * _dot(x - self.v, x - self.v)

    def gradient(self, x: Vector) -> Vector:
        return self.slope(x) + self.rho * (x - self.v)

    def curvature(self, x: Vector) -> Product:
        """p ↦ ∇²φ(x)p."""
        assert self.bend is not None
        times = self.bend(x)
        return lambda p: times(p) + self.rho * p

    def content(self, g: Vector, tolerance: float) -> Tensor:
        """Which clients are done, shape (…, 1)."""
        size: Tensor = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
        return size <= self.floor.clamp(min=tolerance)


def _training(client: Client, v: Vector, rho: Tensor) -> _Objective:
    """φ with f_i the loss over all training rows."""
    rows: Rows = client.rows()
    return _Objective(
        v,
        rho,
        lambda x: client.loss(x, rows),
        lambda x: client.grad(x, rows),
        lambda x: client.linearise(x, rows)[1],
    )


def _newton(phi: _Objective, x: Vector, how: Inner) -> Vector:
    """Newton's method: directions by conjugate gradients, steps by halving."""
    g = phi.gradient(x)
    for _ in range(how.max_iterations):
        done = phi.content(g, how.tolerance)
        if bool(done.all()):
            break
        p = _conjugate_gradients(phi.curvature(x), g, done, phi.floor)
        x, moved = _line_search(phi, x, g, p, done)
        if not moved:
            break
        g = phi.gradient(x)
    return x


def _conjugate_gradients(times: Product, g: Vector, done: Tensor, floor: Tensor) -> Vector:
    """p with ∇²φ p ≈ −g, to an accuracy that grows as the gradient shrinks; stops where the curvature is negative."""
    size = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
    enough = torch.maximum(size * size.sqrt().clamp(max=0.1), floor / 4)
    p, r = torch.zeros_like(g), -g
    d, rr = r.clone(), _dot(r, r)
    active = ~done
    for _ in range(2 * g.shape[-1] if g.shape[-1] < 100 else 200):
        hd = times(d)
        curve = _dot(d, hd)
        bent = active & (curve <= 0)
        p = torch.where(bent & (p == 0).all(-1, keepdim=True), d, p)
        active = active & ~bent
        step = torch.where(active, rr / torch.where(active, curve, torch.ones_like(curve)), torch.zeros_like(curve))
        p, r = p + step * d, r - step * hd
        new = _dot(r, r)
        active = active & (new.sqrt() > enough)
        if not bool(active.any()):
            break
        d = torch.where(active, r + new / rr.clamp(min=torch.finfo(rr.dtype).tiny) * d, d)
        rr = new
    return p


def _lbfgs(phi: _Objective, x: Vector, how: Inner) -> Vector:
    """Limited-memory BFGS; where a step shows no positive curvature it is not remembered."""
    pairs: list[tuple[Vector, Vector, Tensor]] = []
    g = phi.gradient(x)
    for _ in range(how.max_iterations):
        done = phi.content(g, how.tolerance)
        if bool(done.all()):
            break
        p = -_two_loops(pairs, g)
        p = torch.where(_dot(p, g) < 0, p, -g)
        if not pairs:
            p = p / torch.linalg.vector_norm(g, dim=-1, keepdim=True).clamp(min=1.0)
        after, moved = _line_search(phi, x, g, p, done)
        if not moved:
            break
        slope = phi.gradient(after)
        s, y = after - x, slope - g
        sy = _dot(s, y)
        inverse = torch.where(sy > 1e-12 * _dot(y, y), 1 / sy, torch.zeros_like(sy))
        pairs = [*pairs[-_PAIRS + 1 :], (s, y, inverse)]
        x, g = after, slope
    return x


def _two_loops(pairs: list[tuple[Vector, Vector, Tensor]], g: Vector) -> Vector:
    """The inverse Hessian that the remembered steps suggest, times g; a pair without curvature changes nothing."""
    q, shares = g, []
    for s, y, inverse in reversed(pairs):
        share = inverse * _dot(s, q)
        q = q - share * y
        shares.append(share)
    scale = torch.ones_like(g[..., :1])
    for _, y, inverse in pairs:  # the newest pair with curvature decides
        scale = torch.where(inverse > 0, 1 / (inverse * _dot(y, y)), scale)
    q = q * scale
    for (s, y, inverse), share in zip(pairs, reversed(shares), strict=True):
        q = q + (share - inverse * _dot(y, q)) * s
    return q


def _line_search(phi: _Objective, x: Vector, g: Vector, p: Vector, done: Tensor) -> tuple[Vector, bool]:
    """x + t·p with the first t = 1, ½, ¼, … of each client that lowers φ enough; whether anybody moved."""
    before, slope = phi.value(x), _dot(g, p)
    slack = 8 * torch.finfo(x.dtype).eps * before.abs()
    open_ = ~done & (slope < 0)
    t = torch.ones_like(slope)
    found = x
    for _ in range(_HALVINGS):
        trial = torch.where(open_, x + t * p, x)
        good = open_ & (phi.value(trial) <= before + _ARMIJO * t * slope + slack)
        found = torch.where(good, trial, found)
        open_ = open_ & ~good
        if not bool(open_.any()):
            break
        t = torch.where(open_, t / 2, t)
    return found, not torch.equal(found, x)


def _dot(a: Vector, b: Vector) -> Tensor:
    return (a * b).sum(-1, keepdim=True)
