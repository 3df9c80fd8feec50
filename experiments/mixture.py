"""How many rounds the ways to solve the mixture problem need: fedloom reproduce mixture [--quick] [--record]

A round is one message down and one up for every client that takes part. Counted are the rounds until the slope of
Σ f_i(x_i) + (λ/2) Σ‖x_i − x̄‖², its greatest part, is a millionth of what it was after the first round; of logistic
regression and of the network, a hundredth. ``--record`` puts the columns into experiments/results/mixture.json, from
where docs/results.md has them; ``--quick`` has the first problem alone. ``python experiments/mixture.py PROBLEM …`` has
those that are named.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

import fedloom
from fedloom.conformance import quadratics
from fedloom.conformance.drive import product, walking
from fedloom.engine.rounds import Rounds
from fedloom.engine.selection import All, Chosen, Uniform
from fedloom.federation.problem import Problem
from fedloom.federation.randomness import Draw
from fedloom.methods import MixtureADMM

RESULT = Path(__file__).parent / "results" / "mixture.json"


def table(name: str, model: str = "linear", clients: int = 20, **options: Any) -> Problem:
    """One of the data sets in float64."""
    data = fedloom.federate(name, clients=clients, test=0.0, support=None, seed=1)
    return Problem(data, fedloom.build_model(model, data, **options), dtype=torch.float64)


PROBLEMS: dict[str, tuple[Any, tuple[float, ...], float, int]] = {
    "quadratics, 5 clients": (lambda: quadratics(unequal=True).problem, (0.1, 1.0, 10.0), 1e-6, 500),
    "diabetes, 20 clients": (lambda: table("diabetes"), (0.1, 1.0), 1e-6, 500),
    "diabetes, 80 clients": (lambda: table("diabetes", clients=80), (0.1, 1.0), 1e-6, 500),
    "cancer, 10 clients": (lambda: table("breast-cancer", clients=10), (0.1,), 1e-2, 60),
    "digits, 5 clients, network": (lambda: table("digits", "mlp", clients=5, hidden=[8]), (0.1,), 1e-2, 25),
}
"""What makes each problem, the λ, the part of the slope that is small, and the rounds at most.

Of the 20 clients' least squares each has a minimum of its own, of the 80 (five or six rows, eleven numbers) none has;
a client's logistic regression of 57 rows and 31 numbers has none either, being without error; a network is not convex.
"""


def slope(walk: Any, lam: float) -> float:
    """The greatest ‖∇f_i(x_i) + λ(x_i − x̄)‖."""
    clients = torch.arange(walk.problem.data.clients)
    x = product(walk, clients)
    gradient = walk.problem.client(clients.numpy(), Draw(0)).grad(x)
    return float((gradient + lam * (x - x.mean(0))).norm(dim=-1).max())


def rounds(problem: Problem, method: MixtureADMM, select: Any, level: float, most: int) -> int | str:
    """Rounds until the slope is small; or that it never was, or grew beyond all bounds."""
    first = None
    with walking(Rounds, problem, method, select=select) as walk:
        for t in range(1, most + 1):
            walk.step()
            if len(walk.store.clients()) < problem.data.clients:
                continue
            now = slope(walk, method.lambda_)
            first = now if first is None else first
            if now <= level * first:
                return t
            if not now < 1e6 * first:
                return "diverges"
    return f"over {most}"


def ways(lam: float, clients: int) -> dict[str, list[tuple[dict[str, Any], Any]]]:
    """The rows of the table: settings to choose the best of, and who takes part."""
    rho, everybody, half = 2 * lam / clients**0.5, All(), Uniform(-(-clients // 2))
    in_turn = Chosen(lambda ids, ctx: [int(ids[ctx.round % len(ids)])])
    several = [rho * factor for factor in (0.25, 0.5, 1, 2) if rho * factor > 1.05 * lam / clients]
    copies = {"form": "auxiliary"}
    dca: dict[str, Any] = {"form": "dca"}
    return {
        "I, ρ = 2λ/√N": [({}, everybody)],
        "I, the best of four ρ": [({"rho": value}, everybody) for value in several],
        "I, linearised, the best of four ρ": [({"rho": value, "linearised": True}, everybody) for value in several],
        "I, one after the other (Gauss-Seidel), passes": [({"order": "gauss-seidel"}, in_turn)],
        "II, ρ_i = Nρ": [({**copies}, everybody)],
        "II, the best of six": [
            ({**copies, "rho": value, "rho_own": value * clients * own}, everybody)
            for value in (rho / 2, rho, 2 * rho)
            for own in (0.5, 1)
            if value > 1.05 * lam / clients
        ],
        "DCA": [(dca, everybody)],
        "DCA, accelerated": [({**dca, "accelerated": True}, everybody)],
        "DCA, half of the clients": [(dca, half)],
        "DCA, accelerated, half of the clients": [({**dca, "accelerated": True}, half)],
        "I, half of the clients": [({}, half)],
    }


def main() -> None:
    """Every row of every problem, one after the other."""
    wanted = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    wanted += list(PROBLEMS)[:1] * ("--quick" in sys.argv)
    found: dict[str, dict[str, int | str]] = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    for name, (make, strengths, level, most) in PROBLEMS.items():
        if wanted and name not in wanted:
            continue
        problem = make()
        clients = problem.data.clients
        for lam in strengths:
            column = f"{name}, λ = {lam:g}"
            for row, settings in ways(lam, clients).items():
                in_passes = row.endswith("passes")
                if (in_passes and clients > 5) or (level > 1e-6 and (in_passes or len(settings) > 1)):
                    continue  # it would take hours
                tried = [
                    rounds(
                        problem, MixtureADMM(lambda_=lam, **own), select, level, most * (clients if in_passes else 1)
                    )
                    for own, select in settings
                ]
                counts = [count for count in tried if isinstance(count, int)]
                best: int | str = min(counts) if counts else max(map(str, tried))  # "over" is better than "diverges"
                if in_passes and isinstance(best, int):
                    best = -(-best // clients)
                found.setdefault(row, {})[column] = best
                print(f"{column:48} {row:46} {best}", flush=True)
    if "--record" in sys.argv:
        RESULT.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main()
