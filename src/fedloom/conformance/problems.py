"""Problems with a known answer, small and in float64, and two without one for what must agree in every bit.

The answers are computed here from the very rows that the methods see, by another way than theirs: normal equations,
or SciPy's trust-region Newton method.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedloom.errors import DataError
from fedloom.federation.blocks import Blocks
from fedloom.federation.data import FederatedData
from fedloom.federation.networks import build_model
from fedloom.federation.problem import Problem
from fedloom.federation.ragged import Ragged
from fedloom.federation.randomness import Draw
from fedloom.federation.replies import Weighting

Floats = npt.NDArray[np.float64]
Solver = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From design rows Z, labels y and what each row counts for to the minimiser of Σ weight·ℓ(Zθ, y)."""


@dataclass(frozen=True, eq=False)
class Known:
    """A problem and its answers: the optimum of all, the optimum of each client, and, for quadratics, the Hessians."""

    problem: Problem
    solver: Solver
    clients: Tensor
    """The ids of those who count; all of them, unless ``only`` left some out."""

    @staticmethod
    def of(problem: Problem, solver: Solver) -> Known:
        """The answers with all clients of the problem."""
        return Known(problem, solver, torch.arange(problem.data.clients))

    def only(self, clients: Tensor) -> Known:
        """The same problem as if there were only these clients; its answers are worked out once."""
        if torch.equal(clients, self.clients):
            return self
        return self._parts.setdefault(tuple(clients.tolist()), replace(self, clients=clients))

    @cached_property
    def _parts(self) -> dict[tuple[int, ...], Known]:
        return {}

    @property
    def sizes(self) -> Tensor:
        """Training rows of each client, in float64."""
        return self.problem.data.splits["train"].sizes[self.clients].double()

    def weights(self, weighting: Weighting = "size") -> Tensor:
        """What each client counts for in the objective Σ p_i f_i."""
        sizes = self.sizes if weighting == "size" else torch.ones_like(self.sizes)
        return sizes / sizes.sum()

    def minimiser(self, weighting: Weighting = "size") -> Tensor:
        """argmin Σ p_i f_i, f_i being the mean loss of client i; worked out once."""
        if weighting not in self._minimisers:
            self._minimisers[weighting] = self._solve(self.clients, self.weights(weighting))
        return self._minimisers[weighting].clone()

    @cached_property
    def _minimisers(self) -> dict[Weighting, Tensor]:
        return {}

    @cached_property
    def optimum(self) -> Tensor:
        """argmin Σ (n_i/n) f_i: that of the pooled rows."""
        return self.minimiser("size")

    @cached_property
    def optima(self) -> Tensor:
        """argmin f_i of each client, shape (clients, n)."""
        one = torch.ones(1, dtype=torch.float64)
        return torch.stack([self._solve(client.unsqueeze(0), one) for client in self.clients])

    @cached_property
    def hessians(self) -> Tensor:
        """∇²f_i of each client, shape (clients, n, n); only where the loss is quadratic."""
        if self.problem.loss.name != "squared":
            raise DataError(f"the loss {self.problem.loss.name!r} has no constant Hessian; use a squared loss")
        return torch.stack([z.T @ z / len(z) for z, _ in map(self.rows, self.clients)])

    @property
    def scale(self) -> float:
        """How far the clients' optima are from that of all: what a bias is to be compared with."""
        return float((self.optima - self.optimum).abs().max())

    def rows(self, client: Tensor | int, split: str = "train") -> tuple[Tensor, Tensor]:
        """The design rows (with a column of ones when the model has a bias) and labels of one client."""
        at = self.problem.data.splits[split][int(client)]
        z = self.problem.x[at].flatten(1)
        if self.problem.model.n > z.shape[1]:
            z = torch.cat([z, torch.ones(len(z), 1, dtype=z.dtype)], 1)
        return z, self.problem.y[at].reshape(len(at), -1)[:, 0].to(z.dtype)

    def _solve(self, clients: Tensor, weights: Tensor) -> Tensor:
        parts = [self.rows(client) for client in clients]
        each = [
            torch.full((len(y),), float(w) / len(y), dtype=y.dtype) for w, (_, y) in zip(weights, parts, strict=True)
        ]
        return self.solver(torch.cat([z for z, _ in parts]), torch.cat([y for _, y in parts]), torch.cat(each))


def normal_equations(z: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The solution of least squares."""
    weighted = z.T * weight
    solution: Tensor = torch.linalg.solve(weighted @ z, weighted @ y)
    return solution


def newton(z: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The solution of logistic regression, its gradient below 1e-10, by SciPy's trust-region Newton method."""
    from scipy.optimize import minimize
    from scipy.special import expit

    rows, labels, w = z.numpy(), y.numpy(), weight.numpy()

    def slope(theta: Floats) -> Floats:
        return np.asarray(rows.T @ (w * (expit(rows @ theta) - labels)))

    def value(theta: Floats) -> float:
        out = rows @ theta
        return float(w @ (np.logaddexp(0.0, out) - labels * out))

    def curvature(theta: Floats) -> Floats:
        p = expit(rows @ theta)
        return np.asarray((rows.T * (w * p * (1 - p))) @ rows)

    found = minimize(value, np.zeros(rows.shape[1]), jac=slope, hess=curvature, method="trust-exact", tol=1e-8).x
    for _ in range(3):  # from here Newton's own steps square the error
        found = found - np.linalg.solve(curvature(found), slope(found))
    if not np.abs(slope(found)).max() < 1e-10:
        raise DataError("the logistic regression has no finite solution: its classes can be told apart without error")
    return torch.from_numpy(found)


def linear(data: FederatedData, solver: Solver, bias: bool = True) -> Known:
    """A linear model of such data, with the default loss of their task, in float64."""
    return Known.of(Problem(data, build_model("linear", data, bias=bias), dtype=torch.float64), solver)


@cache
def quadratics(unequal: bool = False, heterogeneity: float = 1.0, noise: float = 0.1) -> Known:
    """Least squares of five clients in four dimensions, without bias, whose Hessians and optima differ.

    Client i has X_i = √n_i Q_i S^½ V_iᵀ with orthonormal Q_i and V_i of its own, so that its Hessian V_i S V_iᵀ has the
    eigenvalues S (0.4 to 1.6) along axes of its own, and y_i = X_i w_i + noise, w_i = w + heterogeneity·N(0, I).
    """
    random = Draw(3).generator("quadratics")
    sizes = [8, 14, 11, 18, 9] if unequal else [12] * 5
    curvature, common = np.geomspace(0.4, 1.6, 4), random.standard_normal(4)
    rows, labels = [], []
    for n in sizes:
        q, _ = np.linalg.qr(random.standard_normal((n, 4)))
        v, _ = np.linalg.qr(random.standard_normal((4, 4)))
        own = common + heterogeneity * random.standard_normal(4)
        rows.append(np.sqrt(n) * (q * np.sqrt(curvature)) @ v.T)
        labels.append(rows[-1] @ own + noise * random.standard_normal(n))
    x, y = torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(labels)).unsqueeze(1)
    data = FederatedData("quadratics", x, y, "regression", rows_in_order(torch.tensor(sizes)))
    return linear(data, normal_equations, bias=False)


@cache
def agreeing() -> Known:
    """Quadratics of differing curvature whose clients share one optimum: there noise vanishes, from batches too."""
    return quadratics(unequal=True, heterogeneity=0.0, noise=0.0)


@cache
def least_squares() -> Known:
    """Least squares with a bias, clients of unequal sizes."""
    random = Draw(11).generator("least squares")
    sizes = torch.tensor([9, 14, 6, 20])
    x = torch.from_numpy(random.standard_normal((int(sizes.sum()), 3)))
    own = torch.from_numpy(random.standard_normal((len(sizes), 4))).repeat_interleave(sizes, 0)
    y = (x * own[:, :3]).sum(1, keepdim=True) + own[:, 3:] + 0.1 * torch.from_numpy(random.standard_normal((len(x), 1)))
    return linear(FederatedData("least squares", x, y, "regression", rows_in_order(sizes)), normal_equations)


@cache
def logistic() -> Known:
    """Logistic regression with a bias, of noisy labels, so that every client has an optimum of its own."""
    random = Draw(5).generator("logistic")
    sizes = torch.tensor([36, 50, 42])
    x = torch.from_numpy(random.standard_normal((int(sizes.sum()), 2)))
    own = torch.from_numpy(random.standard_normal((len(sizes), 2))).repeat_interleave(sizes, 0)
    chance = torch.sigmoid((x * own).sum(1)).numpy()
    y = torch.from_numpy(random.uniform(size=len(x)) < chance).double().unsqueeze(1)
    return linear(FederatedData("logistic", x, y, "binary", rows_in_order(sizes)), newton)


@cache
def classification(dtype: torch.dtype = torch.float64) -> Problem:
    """Three classes, a small network, clients of very unequal sizes: some smaller than a batch, none a multiple."""
    random = Draw(7).generator("classification")
    sizes, tests = torch.tensor([23, 6, 11, 3, 17, 8, 14]), 3
    owners = torch.arange(len(sizes)).repeat_interleave(sizes + tests)
    y = torch.from_numpy(random.integers(0, 3, len(owners)))
    x = torch.from_numpy(random.standard_normal((len(owners), 6)) + random.standard_normal((3, 6))[y.numpy()])
    mixed = torch.from_numpy(random.permutation(len(owners)))
    rows = [mixed[owners[mixed] == client] for client in range(len(sizes))]
    train, test = Ragged.of([r[tests:] for r in rows]), Ragged.of([r[:tests] for r in rows])
    splits = {"train": train, "test": test, **_halves(train), **_halves(test, "test-")}
    data = FederatedData("classification", x, y, "classification", splits, classes=("a", "b", "c"))
    return Problem(data, build_model("mlp", data, hidden=[8]), dtype=dtype)


def normalising(norm: Callable[[int], nn.Module], dtype: torch.dtype = torch.float64) -> Problem:
    """The same for a small network with a layer that normalises, third of five, and whose name does not say so."""
    same = classification(dtype)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layers = nn.Linear(6, 8), norm(8), nn.Tanh(), nn.Linear(8, 3)
    return Problem(same.data, build_model(nn.Sequential(nn.Flatten(), *layers)), dtype=dtype)


@cache
def pictures() -> Problem:
    """Pictures of 8x8 for a residual network with BatchNorm."""
    data = images().data
    return Problem(data, build_model("resnet8", data, width=4))


@cache
def images() -> Problem:
    """Pictures of 8x8 for a convolutional network."""
    random = Draw(9).generator("images")
    sizes = torch.tensor([13, 7, 10])
    x = torch.from_numpy(random.standard_normal((int(sizes.sum()), 1, 8, 8)))
    y = torch.from_numpy(random.integers(0, 3, len(x)))
    data = FederatedData("images", x, y, "classification", rows_in_order(sizes), classes=("a", "b", "c"))
    return Problem(data, build_model("lenet", data))


@cache
def vertical(task: str = "regression", bias: bool = True) -> Known:
    """Four parties hold 3, 1, 4 and 2 columns of the same 40 training rows, correlated from party to party."""
    random = Draw(13).generator("vertical")
    x = random.standard_normal((46, 10)) + 0.7 * random.standard_normal((46, 1))
    score = x @ random.standard_normal(10) / 2 + 0.5 + 0.5 * random.standard_normal(46)
    kinds = {
        "regression": score[:, None],
        "binary": (score > 0).astype(np.float64)[:, None],
        "classification": np.digitize(score, [-1.0, 1.0]),
    }
    splits = {"train": Ragged.of([torch.arange(40)] * 4), "test": Ragged.of([torch.arange(40, 46)] * 4)}
    data = FederatedData(
        "vertical",
        torch.from_numpy(x),
        torch.from_numpy(kinds[task]),
        task,  # type: ignore[arg-type]
        splits,
        classes=("low", "middle", "high") if task == "classification" else (),
        blocks=Blocks.of([[0, 1, 2], [9], [5, 3, 4, 6], [7, 8]]),
    )
    return linear(data, normal_equations, bias)


def vertical_table(dtype: torch.dtype) -> Problem:
    """Parties of three classes, for what must agree in every bit."""
    problem = vertical("classification").problem
    return Problem(problem.data, problem.model, dtype=dtype)


def relabelled(problem: Problem, order: Tensor) -> Problem:
    """The same clients under other ids: the new client i is the old ``order[i]``."""
    splits = {name: Ragged.of([owned[int(i)] for i in order]) for name, owned in problem.data.splits.items()}
    blocks = problem.data.blocks
    if blocks is not None:
        blocks = Blocks(tuple(blocks.columns[int(i)] for i in order))
    data = replace(problem.data, splits=splits, blocks=blocks)
    return Problem(data, problem.model, problem.loss.name, problem.dtype)


def rows_in_order(sizes: Tensor) -> dict[str, Ragged]:
    """Splits of clients that have so many training rows one after the other, in halves, and no test rows."""
    train = Ragged.contiguous(sizes)
    return {"train": train, "test": Ragged.contiguous(torch.zeros_like(sizes)), **_halves(train)}


def _halves(owned: Ragged, prefix: str = "") -> dict[str, Ragged]:
    """Each client's rows in two parts, for methods that adapt; the support is the smaller one."""
    halves = [(rows[: len(rows) // 2], rows[len(rows) // 2 :]) for rows in map(owned.__getitem__, range(len(owned)))]
    support, query = zip(*halves, strict=True)
    return {f"{prefix}support": Ragged.of(list(support)), f"{prefix}query": Ragged.of(list(query))}
