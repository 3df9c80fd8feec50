"""What is known of mixture ADMM: the closed form of its limit, and every round of every form by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedloom.conformance.answers import Exactly, Invariant
from fedloom.conformance.claims import Declaration
from fedloom.conformance.declarations.admm import CONTENT, local_minima
from fedloom.conformance.declarations.common import EVERY_HARDSHIP, WHO_ANSWERS, unequal_problem
from fedloom.conformance.declarations.courses import ROUNDS, Also, Course, Defaults, Ledger, Passes, Reported
from fedloom.conformance.declarations.personal import HELD_ALIKE, solves_mixture
from fedloom.conformance.drive import Walk, product
from fedloom.conformance.problems import Known, logistic
from fedloom.federation.randomness import Draw


def apart_from_all(known: Known, method: Any, z: Tensor) -> Ledger:
    """Before the first round nobody counts, and the multiplier is λz, as it is where all agree."""
    none = torch.zeros(len(known.clients), len(z), dtype=z.dtype)
    kept = {"x": none, "copy": none, "y_i": none, "held": none[:, :1] > 0, "heard": none[:, :1] > 0}
    return Ledger({"z": z}, kept={**kept, "y": method.lambda_ * z, "w": z, "t": 1.0})


def research(known: Known, method: Any, at: Ledger, heard: list[int]) -> None:
    """A round of L_ρ = Σ f̃_i(x_i) − λr(z) + ⟨y, Nz − Σ x_i⟩ + (ρ/2)‖Nz − Σ x_i‖², or of the DCA.

    x_i minimises L_ρ with the x_j of before (I), or f̃_i − ⟨y_i, ·⟩ + (ρ_i/2)‖· − x'_i‖², and then x'_i the rest (II);
    then z; then the multipliers. N counts those who ever answered, and ρ of the server grows by what is missing.
    """
    kept, lam, everybody = at.kept, method.lambda_, len(known.clients)
    z, was, dca = at.state["z"], kept["held"], method.form == "dca"
    base = 0.0 if dca else method.rho or 2 * lam / everybody**0.5
    rho = base * everybody / max(int(was.sum()), 1) if was.any() else base
    r = int(was.sum()) * z - (was * kept["copy"]).sum(0)
    push = lam * kept["w"] if dca else rho * r + kept["y"]
    x, copy, y_i = (
        torch.where(was, kept[key], push * by) for key, by in (("x", 1 / lam), ("copy", 1 / lam), ("y_i", 1))
    )
    own = (method.rho_own or base * everybody) if method.form == "auxiliary" else rho
    pull = own * copy + (y_i if method.form == "auxiliary" else push)
    curved = torch.full_like(x[:, :1], lam + own)
    new = local_minima(known, method, pull / curved, torch.zeros_like(x), curved, x)
    beside = (own * new + rho * copy + push - y_i) / (own + rho) if method.form == "auxiliary" else new
    now = torch.zeros_like(was)
    now[heard] = True
    y_i = y_i + (method.beta or rho) * (beside - new)
    kept |= {key: torch.where(now, v, kept[key]) for key, v in (("x", new), ("copy", beside), ("y_i", y_i))}
    kept["held"] = held = was | now
    count, total = int(held.sum()), (held * kept["copy"]).sum(0)
    if dca:
        extrapolate(method, at, total / count)
    else:
        kept["heard"] = kept["heard"] | now
        rho = base * everybody / count
        if method.order == "jacobi" or bool(kept["heard"][held].all()):
            renewed = (rho * total - kept["y"]) / (rho * count - lam)
            z = (total + (lam * z - kept["y"]) / rho) / count if method.linearised else renewed
            kept["y"] = kept["y"] + (method.beta or base) * everybody / count * (count * z - total)
            kept["heard"] = torch.zeros_like(was)
        at.state |= {"z": z, "y": kept["y"], "rho": torch.tensor(rho, dtype=z.dtype)}
    own_keys = {"x": "x", "copy": "copy", "y": "y_i"} if method.form == "auxiliary" else {"x": "x"}
    at.memory = {i: {key: kept[ours][i] for key, ours in own_keys.items()} for i in range(everybody) if held[i]}


def extrapolate(method: Any, at: Ledger, z: Tensor) -> None:
    """z and, by Nesterov's rule, where clients go on from; begun again where the last step led uphill."""
    kept, before = at.kept, at.state["z"]
    t = 1.0 if float((kept["w"] - z) @ (z - before)) > 0 else kept["t"]
    kept["t"] = (1 + (1 + 4 * t * t) ** 0.5) / 2
    kept["w"] = z + (t - 1) / kept["t"] * (z - before) if method.accelerated else z
    at.state["z"] = z


def unbalanced(after: int) -> Callable[[Walk], float]:
    """After so many rounds, the greatest slope of Σ f_i(x_i) + (λ/2) Σ‖x_i − x̄‖²."""

    def slope(walk: Walk) -> float:
        if walk.clocks.round < after:
            return 0.0
        clients = walk.store.clients()
        x, client = product(walk, clients), walk.problem.client(clients.numpy(), Draw(0))
        return float((client.grad(x) + walk.setting.method.lambda_ * (x - x.mean(0))).abs().max())  # type: ignore[attr-defined]

    return slope


def told(known: Known, method: Any, z: Tensor) -> dict[str, float]:
    """Where z is the mean of all models, it is off it by nothing."""
    return {"residual": 0.0}


def _off_mean(walk: Walk) -> float:
    """How far the residual that the history tells is from that of the clients' models."""
    said = walk.evaluator.measures()
    due = float((walk.theta() - product(walk, walk.store.clients()).mean(0)).norm())
    return abs(said.get("residual", float("inf")) - due) if due > 1e-4 else float("inf")


def _course(name: str, own: Mapping[str, Any], **how: Any) -> Course:
    return Course(name, apart_from_all, research, {"lambda_": 0.8, **own}, **{"rounds": 12, **how})


def _solves(name: str, own: Mapping[str, Any], rounds: int, hard: int = 0, *hardships: str) -> Any:
    senses = dict.fromkeys(hardships or (EVERY_HARDSHIP if hard else ()), Exactly(hard))
    return solves_mixture(lambda method: method.lambda_, {"lambda_": 0.8, **own}, rounds, 1e-10, name, hardships=senses)


_GAUSS_SEIDEL = {"order": "gauss-seidel", "rho": 0.6, "beta": 0.5}
_DCA: dict[str, Any] = {"form": "dca"}
_FAST = {**_DCA, "accelerated": True}
_COPIES: dict[str, Any] = {"form": "auxiliary"}
_STEPS: dict[str, Any] = {"solver": "gradient", "lr": 0.3}
_SOLVER = {"solver": "auto", "tolerance": 1e-10, "max_iterations": 50}
_SOLVER |= {"lr": 0.1, "batch": None, "epochs": 1, "steps": None}

MIXTURE_ADMM = Declaration(
    claims=(
        _solves("I: the clients' models solve the mixture problem", {}, 120, 200),
        _solves("I with a small ρ and a shorter step of the multiplier", {"rho": 0.5, "beta": 0.3}, 200),
        _solves("I with −λr linearised, for a ρ with which it else diverges", {"rho": 0.2, "linearised": True}, 200),
        _solves("II: so do those with copies", _COPIES, 300),
        _solves("so do those of the DCA", _DCA, 120, 120, "quantised"),
        _solves("so do those of the accelerated DCA", _FAST, 80),
        _course("every round of I is as written", {}, stands=WHO_ANSWERS),
        _course("… with ρ and β of its own", {"rho": 0.5, "beta": 0.2, "lambda_": 1.3}, stands=("sampled",)),
        _course("… linearised", {"linearised": True}, stands=("sampled", "lost")),
        _course("… with gradient steps", {**_STEPS, "epochs": 3}, stands=("lost",)),
        _course("… so many of them", {**_STEPS, "steps": 2, **_DCA}),
        _course("… with an iteration of L-BFGS", {"solver": "lbfgs", "max_iterations": 1, "lambda_": 0.1}),
        _course("every round of II is as written", _COPIES, stands=WHO_ANSWERS),
        _course("… with ρ, ρ_i and β of its own", {**_COPIES, "rho": 0.3, "rho_own": 5.0, "beta": 0.2}),
        _course("z and y wait until all have answered (Gauss-Seidel)", _GAUSS_SEIDEL, stands=WHO_ANSWERS),
        _course("every round of the DCA is as written", _DCA, stands=WHO_ANSWERS),
        _course("… accelerated, begun again where it leads uphill", _FAST, stands=WHO_ANSWERS),
        Invariant(
            "on logistic regression the slopes balance",
            lambda: logistic().problem,
            unbalanced(60),
            {"lambda_": 0.1},
            62,
            1e-8,
        ),
        Invariant(
            "… by L-BFGS too",
            lambda: logistic().problem,
            unbalanced(60),
            {"lambda_": 0.1, "solver": "lbfgs", **_FAST},
            62,
            1e-8,
        ),
        CONTENT,
        Invariant("the history tells how far z is from the mean", unequal_problem, _off_mean, {}, rounds=3),
        Reported("… which the DCA never is", told, _DCA),
        Also("stack-call", _COPIES),
        Also("resume", _COPIES),
        Also("resume", _FAST),
        Also("resume", {"order": "gauss-seidel"}),
        Also("joining", {"order": "gauss-seidel"}),
        Also("asynchronous", _DCA),
        Passes({"solver": "gradient", "lambda_": 1e-14, **_DCA}),
        Defaults(
            {
                **ROUNDS,
                **_SOLVER,
                "evaluates": "personal",
                "lambda_": 1.0,
                "form": "direct",
                "rho": None,
                "rho_own": None,
                "beta": None,
                "order": "jacobi",
                "linearised": False,
                "accelerated": False,
            }
        ),
    ),
    batches={"solver": "gradient", "lr": 0.1, "batch": 5, "epochs": 2},
    equivalent={"memory held: the neighbour's": HELD_ALIKE},
)
