"""How tasks are related: the regularisers R(W, Ω) = λ₁ tr(WΩWᵀ) + λ₂‖W‖² of multi-task learning, as pieces.

A task is a client, w_t its model and a row of W here. A relation says which Ω it begins with and which Ω is best for
given models; all else follows from Ω:

    m̄ = (2λ₁Ω + 2λ₂I)⁻¹,  R*(V) = ½ tr(Vᵀm̄V),  w(V) = ∇R*(V) = m̄V,  σ' = γ·max_t Σ_t'|m̄_tt'|/m̄_tt.

Relations that are learnt are Ω = c·A⁻¹, A being symmetric with eigenvalues in a range and a given sum. The best A
for W has the eigenvectors of WWᵀ, and the eigenvalues that minimise Σ λ_i/a_i in that range (``spread``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedloom.errors import ConfigError, DataError
from fedloom.federation.graphs import Graph, table_of

RelationName = Literal["probabilistic", "clustered", "mean", "graph", "fixed"]
_TINY = 1e-12  # an eigenvalue below this share of the greatest is rounding


@dataclass(frozen=True, eq=False)
class Spectral:
    """A symmetric matrix by its eigenvectors; to all vectors orthogonal to these belongs one further eigenvalue."""

    vectors: Tensor
    """Columns, shape (tasks, some)."""
    values: Tensor
    rest: float

    def matrix(self, of: Callable[[Tensor], Tensor] = lambda values: values) -> Tensor:
        """The matrix, or a function of it."""
        whole = self.vectors.shape[0] == self.vectors.shape[1]  # nothing is left, whose eigenvalue could be huge
        values, rest = of(self.values), of(self.values[0] if whole else self.values.new_tensor(self.rest))
        found = (self.vectors * (values - rest)) @ self.vectors.T
        found.diagonal().add_(rest)
        return (found + found.T) / 2


@dataclass(frozen=True)
class Strengths:
    """λ₁ and λ₂: what R, its conjugate and the models that follow from v need beside Ω."""

    related: float
    """λ₁, of tr(WΩWᵀ)."""
    small: float
    """λ₂, of ‖W‖²."""

    def value(self, w: Tensor, omega: Tensor) -> Tensor:
        """R(W, Ω)."""
        return self.related * (w * (omega @ w)).sum() + self.small * w.square().sum()

    def mbar(self, omega: Tensor) -> Tensor:
        """m̄ = (2λ₁Ω + 2λ₂I)⁻¹; refuses an Ω by which some models cost nothing."""
        curved = 2 * self.related * omega
        curved.diagonal().add_(2 * self.small)
        values = torch.linalg.eigvalsh(curved)
        if float(values[0]) <= _TINY * float(values[-1].clamp(min=_TINY)):
            raise ConfigError(
                "2λ₁Ω + 2λ₂I has no inverse: some models would cost nothing, and v would say nothing of them; give "
                "lambda2 a value above 0"
            )
        found: Tensor = torch.linalg.inv(curved)
        return (found + found.T) / 2

    def mbar_of(self, omega: Spectral) -> Tensor:
        """The same of an Ω whose eigenvalues, all above 0, are known."""
        return omega.matrix(lambda values: 1 / (2 * self.related * values + 2 * self.small))


def conjugate(v: Tensor, mbar: Tensor) -> Tensor:
    """R*(V) = ½ tr(Vᵀm̄V)."""
    return (v * (mbar @ v)).sum() / 2


def safe(mbar: Tensor) -> float:
    """max_t Σ_t'|m̄_tt'|/m̄_tt: with it no task's own step, were all tasks to take theirs, can be too long."""
    return float((mbar.abs().sum(1) / mbar.diagonal()).max())


def correlations(mbar: Tensor) -> Tensor:
    """What the prior exp(−R), whose covariance is m̄, says of every two tasks: from −1, opposite models, to 1, equal."""
    size = mbar.diagonal().sqrt()
    return (mbar / size / size[:, None]).clamp(-1, 1)


class Relation(ABC):
    """Which Ω the tasks begin with, and which is best for given models."""

    learns: ClassVar[bool] = False
    """Whether Ω depends on the models."""

    @abstractmethod
    def start(self, tasks: int) -> Tensor:
        """Ω before anything is known of so many tasks, in float64."""

    def learned(self, w: Tensor) -> Spectral | None:
        """argmin over Ω of R(W, Ω); None: Ω is what it was, as it is given, or as W says nothing."""
        return None

    def among(self, who: Tensor, clients: int) -> Tensor:
        """The same where only these of so many clients are tasks. Default: who they are does not matter."""
        return self.start(len(who))

    def joined(self, omega: Tensor, who: Tensor, clients: int) -> Tensor:
        """Ω for these tasks, some of whom have just joined, each with its entry of a start. Default: a new start."""
        return self.among(who, clients)

    def newcomer(self, w: Tensor, own: Tensor) -> tuple[float, Tensor]:
        """What the relation asks of the model of a task that comes after the others: a and μ of λ₁·a‖w_new − μ‖².

        It is the part of tr(WΩWᵀ) that depends on the new task, with the Ω that is best for the models of the others
        and the one that the new task has now; a is Ω's new entry, and μ = −Σ_t Ω_new,t w_t/a.
        """
        spectral = self.learned(torch.cat([w, own[None]]))
        omega = self.start(len(w) + 1) if spectral is None else spectral.matrix()
        a = omega[-1, -1]
        return float(a), -(omega[-1, :-1] @ w) / a


@dataclass(frozen=True)
class Mean(Relation):
    """Models near their mean: Ω = I − 11ᵀ/m, so that tr(WΩWᵀ) = Σ‖w_t − w̄‖²."""

    def start(self, tasks: int) -> Tensor:
        return torch.eye(tasks, dtype=torch.float64) - 1 / tasks


@dataclass(frozen=True)
class Given(Relation):
    """An Ω that the user gives; a task that it does not know is held near the mean of all, as its tasks are on
    average."""

    def newcomer(self, w: Tensor, own: Tensor) -> tuple[float, Tensor]:
        return float(self.start(len(w)).diagonal().mean()), w.mean(0)


@dataclass(frozen=True)
class Laplacian(Given):
    """Models near those of their neighbours in a graph: Ω is its Laplacian, tr(WΩWᵀ) = Σ_{edges kl} a_kl‖w_k − w_l‖².

    The edges are those of ``Graph.read``.
    """

    edges: str

    def start(self, tasks: int) -> Tensor:
        return self.among(torch.arange(tasks), tasks)

    def among(self, who: Tensor, clients: int) -> Tensor:
        """Without the edges of those who are no tasks."""
        present = torch.zeros(clients, dtype=torch.bool).index_fill(0, who, True)
        graph = Graph.read(self.edges, clients).among(present)
        return graph.differences(torch.eye(clients, dtype=torch.float64))[who][:, who]


@dataclass(frozen=True)
class Fixed(Given):
    """Ω in a file: a matrix with a row and a column for each client, symmetric and positive semidefinite."""

    path: str

    def check(self, tasks: int) -> None:
        """Refuses a matrix that is of another size, or no Ω."""
        matrix = self._matrix()
        if matrix.shape != (tasks, tasks):
            shape = " × ".join(map(str, matrix.shape))
            raise DataError(
                f"the matrix {self.path!r} is {shape}, but there are {tasks} clients: it needs a row and a column for "
                "each"
            )

    def start(self, tasks: int) -> Tensor:
        """The matrix; those who have joined since are related to nobody, with a diagonal like that of the others."""
        matrix = self._matrix()
        found = torch.diag(matrix.diagonal().mean().expand(tasks)).clone()
        found[: len(matrix), : len(matrix)] = matrix
        return found

    def among(self, who: Tensor, clients: int) -> Tensor:
        return self.start(clients)[who][:, who]

    def _matrix(self) -> Tensor:
        path = Path(self.path)
        if not self.path or not path.is_file():
            raise DataError(
                f"the matrix {self.path!r} is no file; give omega = a file with Ω, one row a line, or one in NumPy's "
                "format (.npy)"
            )
        found = torch.from_numpy(table_of(path, "matrix"))
        if found.dim() != 2 or found.shape[0] != found.shape[1] or not len(found):
            shape = " × ".join(map(str, found.shape))
            raise DataError(f"the matrix {self.path!r} is not square but {shape}; it needs a row and a column for each")
        if not bool(torch.isfinite(found).all()):
            raise DataError(f"the matrix {self.path!r} has entries that are not finite")
        odd = torch.nonzero((found - found.T).abs() > 1e-9 * found.abs().max())
        if len(odd):
            k, j = odd[0].tolist()
            raise DataError(
                f"the matrix {self.path!r} is not symmetric: Ω[{k}, {j}] = {float(found[k, j]):g}, but Ω[{j}, {k}] = "
                f"{float(found[j, k]):g}"
            )
        found = (found + found.T) / 2
        values = torch.linalg.eigvalsh(found)
        if float(values[0]) < -1e-9 * float(values.abs().max()):
            raise DataError(
                f"the matrix {self.path!r} is not positive semidefinite: it has the eigenvalue {float(values[0]):.3g}, "
                "and some models would be rewarded for growing without end"
            )
        return found


class Learned(Relation):
    """Ω = c·A⁻¹ with the best A whose eigenvalues are in a range and have a given sum."""

    learns = True

    @abstractmethod
    def range(self, tasks: int) -> tuple[float, float, float]:
        """The lowest and the highest eigenvalue of A, and the sum of all."""

    @property
    def factor(self) -> float:
        """c."""
        return 1.0

    def start(self, tasks: int) -> Tensor:
        """All tasks alike, and none related to another."""
        return torch.eye(tasks, dtype=torch.float64) * (self.factor * tasks / self.range(tasks)[2])

    def learned(self, w: Tensor) -> Spectral | None:
        vectors, roots = _principal(w.double())
        if not len(roots):
            return None
        tasks = len(w)
        values, rest = spread(roots, tasks - len(roots), *self.range(tasks))
        return Spectral(vectors, self.factor / values, self.factor / rest)

    def joined(self, omega: Tensor, who: Tensor, clients: int) -> Tensor:
        """The newcomers are related to nobody yet, and A has again its sum."""
        covariance = torch.linalg.inv(omega) * self.factor
        total = self.range(len(omega))[2]
        return omega * (float(covariance.diagonal().sum()) / total)


@dataclass(frozen=True)
class Probabilistic(Learned):
    """Ω = Σ⁻¹, Σ being the covariance of the tasks' models: tr Σ = 1, Σ ⪰ 0.

    The best is Σ = (WWᵀ)^½ / tr(WWᵀ)^½ (Zhang and Yeung, 2010), and tr(WΩWᵀ) = ‖W‖_*² then. With more tasks than
    features some eigenvalues would be 0 and Ω infinite: none is below ``floor`` times their mean, 1/m.
    """

    floor: float = 1e-3

    def range(self, tasks: int) -> tuple[float, float, float]:
        return self.floor / tasks, 1.0, 1.0


@dataclass(frozen=True)
class Clustered(Learned):
    """Tasks in k unknown clusters, relaxed to a convex problem: Ω = η(1 + η)(ηI + M)⁻¹, 0 ⪯ M ⪯ I, tr M = k.

    Were M the projection on the clusters (M_tt' = 1/size within one), tr(WΩWᵀ) would be Σ‖w_t − mean of its cluster‖²
    + η‖W‖² (Jacob, Bach and Vert, 2008; Zhou, Chen and Ye, 2011).
    """

    clusters: int = 2
    eta: float = 0.1

    def range(self, tasks: int) -> tuple[float, float, float]:
        return self.eta, 1 + self.eta, min(self.clusters, tasks) + self.eta * tasks

    @property
    def factor(self) -> float:
        return self.eta * (1 + self.eta)


def spread(roots: Tensor, zeros: int, low: float, high: float, total: float) -> tuple[Tensor, float]:
    """argmin Σ r_i²/a_i over low ≤ a_i ≤ high with Σ a_i = total: a_i = r_i/τ within the bounds, τ being exact.

    Beside these r_i > 0 there are so many that are 0: they have the lower bound, or share alike what the others cannot
    take.
    """
    left = total - zeros * low  # Σ clip(r_i/τ) is to be this; it falls as τ grows
    if len(roots) * high <= left:
        return torch.full_like(roots, high), (total - len(roots) * high) / zeros if zeros else low

    def bounded(tau: Tensor) -> Tensor:
        return (roots / tau).clamp(low, high)

    turns = torch.cat([roots / high, roots / low]).sort().values  # where some a_i meets a bound
    below, above = 0, len(turns) - 1  # the sum is at least ``left`` at the one, and at most at the other
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if float(bounded(turns[middle]).sum()) >= left else (below, middle)
    between = (turns[below] + turns[above]) / 2
    free = (roots / between > low) & (roots / between < high)
    if not bool(free.any()):
        return bounded(between), low
    bound = float(bounded(between)[~free].sum())
    values = torch.where(free, roots * (left - bound) / roots[free].sum(), bounded(between))
    return values, low


def _principal(w: Tensor) -> tuple[Tensor, Tensor]:
    """The eigenvectors of WWᵀ that are not of eigenvalue 0, and the roots of their eigenvalues.

    By the smaller side: with fewer features than tasks by the singular values of W.
    """
    if w.shape[1] < w.shape[0]:
        vectors, roots, _ = torch.linalg.svd(w, full_matrices=False)
    else:
        values, vectors = torch.linalg.eigh(w @ w.T)
        roots = values.clamp(min=0).sqrt()
    kept = roots > _TINY**0.5 * roots.max()
    return vectors[:, kept], roots[kept]


def relation_for(
    name: str,
    *,
    floor: float = 1e-3,
    clusters: int = 2,
    eta: float = 0.1,
    graph: str = "",
    omega: str = "",
) -> Relation:
    """The relation of that name."""
    match name:
        case "probabilistic":
            return Probabilistic(floor)
        case "clustered":
            return Clustered(clusters, eta)
        case "mean":
            return Mean()
        case "graph":
            return Laplacian(graph)
        case "fixed":
            return Fixed(omega)
    raise ConfigError(f"there is no relation {name!r}; choose one of probabilistic, clustered, mean, graph, fixed")
