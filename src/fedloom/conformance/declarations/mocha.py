"""What is known of MOCHA: every round by hand, the closed forms of related tasks, and where learnt relations end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedloom.conformance.answers import Invariant, Limit, Same, greatest
from fedloom.conformance.claims import IDEAL, Claim, Declaration, Finding, Hardship, Subject
from fedloom.conformance.declarations.common import F64, WHO_ANSWERS, reached, unequal_problem, unequal_quadratics
from fedloom.conformance.declarations.courses import Also, Costs, Course, Defaults, Ledger
from fedloom.conformance.declarations.dual import DECODED, EXACT, hinge_step, sdca, squared_step, table
from fedloom.conformance.declarations.neighbours import joined, laplacian
from fedloom.conformance.declarations.personal import mixture
from fedloom.conformance.drive import Walk, apart, recall
from fedloom.conformance.problems import Known, newton
from fedloom.errors import ConfigError
from fedloom.federation.data import FederatedData
from fedloom.federation.networks import build_model
from fedloom.federation.problem import Problem
from fedloom.federation.ragged import Ragged
from fedloom.federation.randomness import Draw
from fedloom.methods.cocoa import CoCoAPlus
from fedloom.methods.method import Wish, shown_to

# Problems


@cache
def margins() -> Known:
    """Yes or no of four clients, two of whom want the opposite of the others, with a hinge loss and a bias."""
    random = Draw(17).generator("margins")
    sizes, sides = [9, 12, 7, 10], [1.0, -1.0, 1.0, -1.0]
    own = np.repeat(sides, sizes)
    x = random.standard_normal((sum(sizes), 3))
    noise = 0.3 * random.standard_normal(len(x))
    y = (own * (x @ np.array([1.0, -2.0, 0.5])) + 0.4 + noise > 0).astype(np.float64)
    train = Ragged.contiguous(torch.tensor(sizes))
    halves = {"support": train, "query": train}
    splits = {"train": train, "test": Ragged.contiguous(torch.zeros(4, dtype=torch.int64)), **halves}
    data = FederatedData("margins", torch.from_numpy(x), torch.from_numpy(y)[:, None], "binary", splits)
    return Known.of(Problem(data, build_model("linear", data), "hinge", F64), newton)


def lone_problem() -> Problem:
    """The rows of all as those of one client."""
    data = unequal_quadratics().problem.data
    rows = {name: Ragged.of([torch.cat([own[k] for k in range(len(own))])]) for name, own in data.splits.items()}
    return unequal_quadratics().problem.on(replace(data, splits=rows))


# Relations


def related(method: Any, tasks: int) -> Tensor:
    """Ω before anything is learnt."""
    if method.relation == "mean":
        return torch.eye(tasks, dtype=F64) - 1 / tasks
    if method.relation == "graph":
        return laplacian(joined(method, tasks, tasks, {}))
    factor, _, _, total = bounds(method, tasks)
    return torch.eye(tasks, dtype=F64) * factor * tasks / total


def bounds(method: Any, tasks: int) -> tuple[float, float, float, float]:
    """Of Ω = c·A⁻¹: c, and the least and the greatest eigenvalue of A, and their sum."""
    if method.relation == "probabilistic":
        return 1.0, method.floor / tasks, 1.0, 1.0
    eta = method.eta
    return eta * (1 + eta), eta, 1 + eta, method.clusters + eta * tasks


def best(method: Any, w: Tensor) -> Tensor:
    """The Ω that is best for W: eigenvalues √λ_i/τ of A within their bounds, τ by halving an interval."""
    factor, low, high, total = bounds(method, len(w))
    values, vectors = np.linalg.eigh((w @ w.T).numpy())
    roots = np.sqrt(np.where(values > 1e-12 * values.max(), values, 0.0))
    least, most = roots[roots > 0].min() / high / 2, roots.max() / low * 2

    def found(tau: float) -> Any:
        return np.clip(roots / tau, low, high)

    for _ in range(200):
        middle = (least * most) ** 0.5
        least, most = (middle, most) if found(middle).sum() > total else (least, middle)
    a = found(least)
    zero = roots == 0
    if a[~zero].min() >= high * (1 - 1e-12):  # what is left is for the others
        a = np.where(zero, (total - a[~zero].sum()) / max(zero.sum(), 1), a)
    return torch.from_numpy((vectors * (factor / a)) @ vectors.T)


def inverse(method: Any, omega: Tensor) -> Tensor:
    """m̄."""
    identity = torch.eye(len(omega), dtype=F64)
    found: Tensor = torch.linalg.inv(2 * method.lambda1 * omega + 2 * method.lambda2 * identity)
    return found


# Limits


def tied(known: Known, method: Any, omega: Tensor) -> Tensor:
    """All models for this Ω: (blkdiag X_tᵀX_t + (2λ₁Ω + 2λ₂I)⊗I) W = Xᵀy, with no rows of those who do not count."""
    tasks, n = len(omega), known.problem.model.n
    a, b = torch.zeros(tasks, n, n, dtype=F64), torch.zeros(tasks, n, dtype=F64)
    for t in known.clients.tolist():
        z, y = known.rows(t)
        c = 1.0 if method.objective == "sum" else 1 / len(z)
        a[t], b[t] = c * z.T @ z, c * z.T @ y
    whole = torch.einsum("ij,iab->iajb", torch.eye(tasks, dtype=F64), a).reshape(tasks * n, tasks * n)
    curved = 2 * method.lambda1 * omega + 2 * method.lambda2 * torch.eye(tasks, dtype=F64)
    found: Tensor = torch.linalg.solve(whole + torch.kron(curved, torch.eye(n, dtype=F64)), b.flatten())
    return found.view(tasks, n)


def given(known: Known, method: Any) -> Tensor:
    """Where the models end that have an Ω which stays."""
    return tied(known, method, related(method, known.problem.data.clients))[known.clients]


def learnt(known: Known, method: Any) -> Tensor:
    """Where models and Ω end that are made for each other in turn, which is the one minimum of a convex problem."""
    omega = related(method, known.problem.data.clients)
    w = tied(known, method, omega)
    for _ in range(5000):
        w, before = tied(known, method, best(method, w)), w
        if apart(w, before) < 1e-13:
            break
    return w[known.clients]


def unrelated(known: Known, method: Any) -> Tensor:
    """Where they end if each is alone."""
    tasks = known.problem.data.clients
    return tied(known, method, torch.eye(tasks, dtype=F64) * related(method, tasks).diagonal().mean())[known.clients]


def near_mean(known: Known, method: Any) -> Tensor:
    """The mixture problem with λ = 2λ₁, whose losses have λ₂‖w‖² beside them."""
    identity = torch.eye(known.problem.model.n, dtype=F64)
    bent = known.hessians + 2 * method.lambda2 * identity
    towards = torch.linalg.solve(bent, (known.hessians @ known.optima.unsqueeze(-1)))[..., 0]
    return mixture(cast(Known, _Bent(bent, towards)), 2 * method.lambda1)


@dataclass(frozen=True, eq=False)
class _Bent:
    """Quadratics by their Hessians and optima."""

    hessians: Tensor
    optima: Tensor


# Rounds


def begun(known: Known, method: Any, x: Tensor) -> Ledger:
    """α = 0, and so v = 0 and W = 0."""
    tasks = known.problem.data.clients
    omega, zero = related(method, tasks), torch.zeros(tasks, len(x), dtype=F64)
    alpha = {t: torch.zeros(len(known.rows(t)[1]), dtype=F64) for t in range(tasks)}
    state = {"v": zero, "w": zero, "x": zero[0], "heard": torch.zeros(tasks, dtype=torch.bool)}
    kept = {"alpha": alpha, "omega": omega, "mbar": inverse(method, omega), "path": [], "moved": 1.0}
    return Ledger(state, kept=kept)


def algorithm1(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
    """Coordinate steps of each who is heard, row after row as they are; then Ω, if it is due; then W = w(α)."""
    kept, state = at.kept, dict(at.state)
    mbar, omega, alpha = kept["mbar"], kept["omega"], dict(kept["alpha"])
    sigma = method.sigma or method.gamma * float((mbar.abs().sum(1) / mbar.diagonal()).max())
    v, left = state["v"].clone(), []
    for t in heard:
        z, _ = known.rows(t)
        kappa = sigma * float(mbar[t, t])
        new = coordinates(known, method, t, alpha[t], state["w"][t], kappa, at.turns)
        left.append(still_left(known, method, t, alpha[t], new, state["w"][t], kappa))
        alpha[t] = alpha[t] + method.gamma * (new - alpha[t])
        v[t] = count(method, z) * z.T @ alpha[t]
    steps = at.turns + 1
    if method.inner and steps % method.inner == 0 and method.relation in ("probabilistic", "clustered"):
        omega = best(method, mbar @ v)
        mbar, before = inverse(method, omega), mbar
        kept["moved"] = float((mbar - before).norm() / before.norm())
    w, known_of = mbar @ v, state["heard"].clone()
    known_of[heard] = True
    kept |= {"alpha": alpha, "omega": omega, "mbar": mbar, "path": [*kept["path"], (v, alpha)]}
    at.state = {"v": v, "w": w, "mbar": mbar, "heard": known_of, "x": w[known_of].mean(0)}
    at.memory = {t: {"alpha": alpha[t][:, None], "v": v[t]} for t in torch.nonzero(known_of).flatten().tolist()}
    if method.measure_theta:
        at.state["left"] = torch.tensor([min(left), sum(left) / len(left), max(left)], dtype=F64)
    if method.average_after is not None:
        averaged(method, at, steps)
    told = figures(known, method, at)
    settled = method.relation not in ("probabilistic", "clustered") or not method.inner or kept["moved"] <= method.stop
    at.done = bool(method.stop and settled and told["gap"] <= method.stop * told["primal"])


def averaged(method: Any, at: Ledger, steps: int) -> None:
    """The models of the mean of α after H₀ steps."""
    path = at.kept["path"][method.average_after :]
    if path:
        v = torch.stack([v for v, _ in path]).mean(0)
        alpha = {t: torch.stack([a[t] for _, a in path]).mean(0) for t in path[0][1]}
        at.kept |= {"mean v": v, "mean alpha": alpha}
        at.state["mean"] = at.kept["mbar"] @ v
    else:
        at.state["mean"] = at.state["w"]
    at.state["x"] = at.state["mean"][at.state["heard"]].mean(0)


def count(method: Any, z: Tensor) -> float:
    """c."""
    return 1.0 if method.objective == "sum" else 1 / len(z)


def kind(known: Known, method: Any, client: int) -> tuple[str, float]:
    """The loss of a client, and how much its kink is smoothed."""
    own = dict(piece.split(":", 1) for piece in method.losses.split(",") if piece)
    name, _, width = own.get(str(client), known.problem.loss.name).partition(":")
    return name, float(width or 1) if name == "smoothed-hinge" else 0.0


def coordinates(known: Known, method: Any, client: int, alpha: Tensor, w: Tensor, kappa: float, step: int) -> Tensor:
    """α after as many steps as the client takes, row after row as they are."""
    z, y = (part.numpy() for part in known.rows(client))
    name, smoothing = kind(known, method, client)
    best_of = squared_step if name == "squared" else partial(hinge_step, smoothing=smoothing)
    order = (i % len(z) for i in range(due(known, method, client, step)))
    curved = kappa * count(method, known.rows(client)[0])
    return torch.from_numpy(sdca(z, y, alpha.numpy(), w.numpy(), curved, order, best_of))


def still_left(known: Known, method: Any, client: int, alpha: Tensor, new: Tensor, w: Tensor, kappa: float) -> float:
    """θ, of a squared loss, whose subproblem is least where (I + κcXXᵀ)Δα = y − α − Xw."""
    if not method.measure_theta:
        return 0.0
    z, y = known.rows(client)
    c = count(method, z)

    def value(move: Tensor) -> float:
        a, there = c * z.T @ move, alpha + move
        return float(c * (there.square() / 2 - there * y).sum() + w @ a + kappa / 2 * a @ a)

    least = value(torch.linalg.solve(torch.eye(len(z), dtype=F64) + kappa * c * z @ z.T, y - alpha - z @ w))
    return (value(new - alpha) - least) / (value(torch.zeros_like(alpha)) - least)


def due(known: Known, method: Any, client: int, step: int) -> int:
    """How many steps a client takes in a round: all, or the share that is drawn for it."""
    rows = len(known.rows(client)[1])
    full = method.steps or method.epochs * rows
    drawn = float(Draw(4, step).uniform("share", client, 1)[0])
    share = method.least_share + (1 - method.least_share) * drawn
    return full if method.least_share == 1 else max(int(np.floor(full * share + 1e-9)), 1)


def figures(known: Known, method: Any, at: Ledger) -> dict[str, float]:
    """P and D of where it is, and their gap."""
    kept = at.kept
    alpha, v, w = kept["alpha"], at.state["v"], at.state["w"]
    if method.average_after is not None and "mean v" in kept:
        alpha, v, w = kept["mean alpha"], kept["mean v"], at.state["mean"]
    omega, mbar = kept["omega"], kept["mbar"]
    primal = method.lambda1 * float((w * (omega @ w)).sum()) + method.lambda2 * float(w.square().sum())
    dual = -float((v * (mbar @ v)).sum()) / 2
    for t, own in alpha.items():
        z, y = known.rows(t)
        name, smoothing = kind(known, method, t)
        c, out, side = count(method, z), z @ w[t], 2 * y - 1
        if name == "squared":
            losses, conjugates = (out - y).square() / 2, own.square() / 2 - own * y
        else:
            left, beta = (1 - side * out).clamp(min=0), own * side
            bent = left.square() / (2 * smoothing) if smoothing else left
            losses = torch.where(left < smoothing, bent, left - smoothing / 2)
            conjugates = beta.square() * smoothing / 2 - beta
        primal, dual = primal + c * float(losses.sum()), dual - c * float(conjugates.sum())
    return {"primal": primal, "dual": dual, "gap": primal - dual}


@dataclass(frozen=True, eq=False)
class Told(Course):
    """The history tells of every round the objectives of theory, and θ_t^h where that is asked for."""

    def _off(self, walk: Walk, ledger: Ledger) -> float:
        said, due = walk.evaluator.measures(), figures(self.known(), walk.setting.method, ledger)
        due["compiled"] = 1.0 if said["compiled"] else 0.0
        if ledger.kept["moved"] != 1.0:
            due["omega_moved"] = ledger.kept["moved"]
        return max(abs(said[key] - value) / max(1.0, abs(value)) for key, value in due.items())


def too_much_left(walk: Walk) -> float:
    """By how much a client left more of its subproblem than it may."""
    left: float = walk.evaluator.measures()["theta_max"]
    return max(left - float(cast(Any, walk.setting.method).accuracy), 0.0)


def parted(walk: Walk) -> float:
    """How far v is from Xα, and W from m̄V; and how negative the gap is."""
    clients, method = walk.store.clients(), cast(Any, walk.setting.method)
    off = apart(walk.state["w"], walk.state["mbar"] @ walk.state["v"])
    off = max(off, -walk.evaluator.measures()["gap"])
    if len(clients) == 0:
        return off
    client = walk.problem.client(clients.numpy(), Draw(0))
    memory = recall(walk, clients)
    c = 1.0 if method.objective == "sum" else 1 / client.n
    return max(off, apart(client.combined(memory["alpha"], c), walk.state["v"][clients]), _unlike(walk, memory["v"]))


def _unlike(walk: Walk, v: Tensor) -> float:
    return apart(v, walk.state["v"][walk.store.clients()])


def off_trace(walk: Walk) -> float:
    """How far Σ is from a trace of one, and from being positive."""
    covariance = torch.linalg.inv(walk.state["omega"])
    least = float(torch.linalg.eigvalsh(covariance)[0])
    return max(abs(float(covariance.trace()) - 1), -least)


# New tasks


@dataclass(frozen=True, eq=False)
class NewTask(Claim):
    """A task that comes later has the model of theory, by its support rows and the models of the others."""

    name: str
    method: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-5

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        known, method = unequal_quadratics(), cast(Any, subject.tuned(self.method))
        with subject.walking(known.problem, method) as walk:
            for _ in range(3):
                walk.step()
            client = known.problem.client(known.clients.numpy(), Draw(1, 1))
            state = {**shown_to(method, client, walk.state), **method.shown_to_adapt(walk.state)}
            theta = method.personal(client, state, recall(walk, known.clients))
            try:
                method.adapt(client, state, recall(walk, known.clients), theta, Wish(0.1))
                return Finding(False, None, "it takes a step size, though it has none")
            except ConfigError:
                pass
            return greatest(
                (self._off(known, method, walk, client, state, theta, steps) for steps in (None, 1, 4)),
                3,
                self.tolerance,
                "distance from what theory says",
            )

    def _off(self, known: Known, method: Any, walk: Walk, client: Any, state: Any, theta: Tensor, steps: Any) -> float:
        found = method.adapt(client, state, recall(walk, known.clients), theta, Wish(None, steps))
        return max(
            apart(found[t], self._by_hand(known, method, walk.state["w"], t, theta[t], steps or 30))
            for t in range(len(found))
        )

    def _by_hand(self, known: Known, method: Any, others: Tensor, client: int, w: Tensor, steps: int) -> Tensor:
        """w and Ω of one task more in turn, each the best for the other, from the model that fits its rows best."""
        z, y = known.rows(client, "support")
        c, identity = count(method, z), torch.eye(len(w), dtype=F64)
        w = min([w, *others], key=lambda own: float((z @ own - y).square().sum()))
        for _ in range(steps):
            whole = torch.cat([others, w[None]])
            omega = related(method, len(whole)) if method.relation == "mean" else best(method, whole)
            curved = c * z.T @ z + 2 * (method.lambda1 * omega[-1, -1] + method.lambda2) * identity
            pulled = c * z.T @ y - 2 * method.lambda1 * omega[-1, :-1] @ others
            w = torch.linalg.solve(curved, pulled)
        return w


@dataclass(frozen=True, eq=False)
class FromFile(Claim):
    """With an Ω in a file the models end where the closed form says."""

    name: str = "… and those with an Ω in a file"

    def verify(self, subject: Subject, hardship: Hardship = IDEAL) -> Finding:
        clients = unequal_quadratics().problem.data.clients
        omega = torch.eye(clients, dtype=F64) + 0.3
        omega[0, 1] = omega[1, 0] = -0.5
        with TemporaryDirectory(prefix="fedloom-") as folder:
            path = Path(folder) / "omega.npy"
            np.save(path, omega.numpy())
            own = {**_CYCLIC, **_MEAN, "relation": "fixed", "omega": str(path)}
            limit = Limit(
                self.name, unequal_quadratics, lambda known, method: tied(known, method, omega), own, 100, 1e-10
            )
            return limit.verify(subject)


def steps_taken(known: Known, method: Any) -> int:
    """Of all clients."""
    return sum(due(known, method, t, 0) for t in known.clients.tolist())


_CYCLIC: dict[str, Any] = {"order": "cyclic", "objective": "mean", "stop": 0.0}
_MEAN = {"relation": "mean", "lambda1": 0.3, "lambda2": 0.1, "epochs": 3, "inner": 0}
_CHAIN = {"relation": "graph", "graph": "0-1:0.5,1-2:2,2-3,3-4:0.25", "lambda1": 0.2, "lambda2": 0.1}
_SIGMA = {"relation": "probabilistic", "lambda1": 0.05, "lambda2": 0.02, "floor": 0.2, "inner": 4}
_CLUSTERS = {"relation": "clustered", "lambda1": 0.2, "lambda2": 0.05, "eta": 0.3, "clusters": 3, "inner": 3}


def _course(name: str, own: Mapping[str, Any], **how: Any) -> Course:
    return Course(name, begun, algorithm1, {**_CYCLIC, **own}, **{"rounds": 12, "tolerance": 1e-10, **how})


MOCHA_CLAIMS = Declaration(
    claims=(
        Limit(
            "near their mean, the models solve the mixture problem with λ = 2λ₁",
            unequal_quadratics,
            near_mean,
            {**_CYCLIC, **_MEAN},
            80,
            1e-10,
            not_at=unrelated,
        ),
        Limit(
            "they end where the closed form says, whoever answers",
            unequal_quadratics,
            given,
            {**_MEAN, "objective": "mean", "stop": 0.0, "inner": 1},
            100,
            1e-10,
            reached(200, *WHO_ANSWERS),
            not_at=unrelated,
        ),
        Limit(
            "… so do those on a chain of clients",
            unequal_quadratics,
            given,
            {**_CYCLIC, **_CHAIN, "epochs": 3},
            120,
            1e-10,
        ),
        FromFile(),
        Limit(
            "models and covariance end at the one minimum of both",
            unequal_quadratics,
            learnt,
            {**_CYCLIC, **_SIGMA, "epochs": 5},
            400,
            1e-7,
            reached(600, "lost"),
            not_at=unrelated,
        ),
        Limit(
            "models and clusters end at the one minimum of both",
            unequal_quadratics,
            learnt,
            {**_CYCLIC, **_CLUSTERS, "epochs": 5},
            300,
            1e-7,
        ),
        _course("every round is Algorithm 1", _SIGMA, stands=("sampled", "lost", "late")),
        _course("… with clusters", _CLUSTERS),
        _course("… with other clusters", {**_CLUSTERS, "clusters": 1, "eta": 0.1}),
        _course("… with sums over rows", {**_SIGMA, "objective": "sum", "lambda1": 0.6, "floor": 0.05, "inner": 3}),
        _course("… near the mean, by a σ' of its own", {**_MEAN, "sigma": 4.0, "epochs": 2}),
        _course("… adding a part", {**_SIGMA, "gamma": 0.6}),
        _course("… round after round on a chain of clients", _CHAIN),
        _course("… by so many steps", {**_MEAN, "steps": 5}),
        _course("… by a share of the steps", {**_MEAN, "least_share": 0.2}),
        _course("… with the hinge loss", {**_SIGMA, "objective": "sum"}, known=margins),
        _course("… with losses of their own", {**_SIGMA, "losses": "1:smoothed-hinge:0.5"}, known=margins),
        _course("… until the gap is small", {**_MEAN, "stop": 1e-4}, rounds=25),
        _course("… and the covariance rests", {**_SIGMA, "stop": 2e-2}, rounds=40),
        _course("… whose models are averaged", {**_SIGMA, "average_after": 3}, stands=("sampled", "lost")),
        Told("both objectives are told", begun, algorithm1, {**_CYCLIC, **_SIGMA}, rounds=9),
        Told(
            "… of averaged models",
            begun,
            algorithm1,
            {**_CYCLIC, **_SIGMA, "average_after": 2},
            rounds=9,
            stands=("lost",),
        ),
        Told("… of hinges", begun, algorithm1, {**_CYCLIC, **_SIGMA, "losses": "0:smoothed-hinge"}, margins, 9),
        _course(
            "… telling how much of its subproblem each leaves",
            {**_MEAN, "epochs": 1, "measure_theta": True},
            tolerance=1e-4,
        ),
        Invariant(
            "no client leaves more than it may",
            unequal_problem,
            too_much_left,
            {**_MEAN, "measure_theta": True, "accuracy": 0.05},
            10,
        ),
        Invariant(
            "v = Xα, W = m̄V, and no gap is below 0",
            lambda: margins().problem,
            parted,
            {**_SIGMA, "stop": 0.0},
            30,
            1e-10,
            ("sampled", "lost", "late"),
        ),
        Invariant("Σ has the trace one and is positive", lambda: margins().problem, off_trace, _SIGMA, 20, 1e-9),
        Same(
            "a single task is CoCoA+ with one client",
            lone_problem,
            {"relation": "mean", "lambda2": 0.05, "objective": "mean", "epochs": 2},
            CoCoAPlus(lambda_=0.1, epochs=2),
            look=lambda walk, clients: walk.theta(),
            tolerance=1e-10,
        ),
        NewTask("a new task near the mean has the model of theory", {**_MEAN}),
        NewTask("… by the covariance", {**_SIGMA, "objective": "mean"}),
        NewTask("… by clusters", {**_CLUSTERS}),
        Costs("a coordinate step costs a gradient of a row", steps_taken, {"epochs": 2}),
        Costs("… as many as are asked for", steps_taken, {"steps": 3}),
        Also("stack-call", {"measure_theta": True, "average_after": 1}),
        Also("joining", {"average_after": 1}),
        Also("resume", {"average_after": 1, "measure_theta": True}),
        Defaults(
            {
                "default_rounds": 100,
                "default_dtype": "float64",
                "default_model": "linear",
                "default_schedule": "rounds",
                "evaluates": "personal",
                "relation": "probabilistic",
                "lambda1": 0.01,
                "lambda2": 0.001,
                "inner": 10,
                "objective": "sum",
                "losses": "",
                "epochs": 1,
                "steps": None,
                "accuracy": None,
                "least_share": 1.0,
                "order": "permuted",
                "gamma": 1.0,
                "sigma": None,
                "average_after": None,
                "measure_theta": False,
                "stop": 1e-6,
                "floor": 1e-3,
                "clusters": 2,
                "eta": 0.1,
                "graph": "",
                "omega": "",
            }
        ),
    ),
    batches={"epochs": 2, "inner": 2, "stop": 0.0},
    full={"order": "cyclic"},
    excused=EXACT,
    equivalent={
        "memory: moved by what was computed": DECODED,
        "memory since: the neighbour's": "all whose replies are accepted hold the same there: the step of the server",
    },
    table=table,
    images=None,
)
