"""A run in one object: what summary.json says of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedloom import __version__
from fedloom.engine.beside import global_beside, per_client
from fedloom.engine.decision import decide
from fedloom.engine.engine import Clocks, Engine
from fedloom.engine.evaluation import headline_value
from fedloom.engine.evaluator import details_of
from fedloom.engine.setting import Setting
from fedloom.federation.metrics import headline
from fedloom.methods import name_of
from fedloom.methods.method import ServerMethod
from fedloom.storage.files import plain
from fedloom.storage.folder import SUMMARY, theta_sha256
from fedloom.storage.seal import sealed
from fedloom.types import Vector

if TYPE_CHECKING:
    from fedloom.engine.walk import Walk

_RELATED_MOST = 200  # clients whose relations are written down: the summary then has 40,000 numbers more
Spread = dict[str, dict[str, float]]
"""Each metric by its statistics over clients."""


def summary_of(walk: Walk) -> dict[str, Any]:
    """The run in one object, written as summary.json."""
    engine, evaluator = walk.engine, walk.engine.evaluator
    whole = walk.verdict is not None and all(name in walk.verdict.counts for name in evaluator.details)
    if not whole and evaluator.evaluations and not walk.run.blind:  # resumed after the last round, or nobody knew
        walk.verdict = evaluator.evaluate(evaluator.evaluations[0], details=True)
    spread = walk.verdict.summary() if walk.verdict is not None else {}
    summary = summed_up(walk.run.label, engine.setting, engine.clocks, engine.theta(), spread) | {
        "stopped": walk.stopped,
        "schedule": engine.setting.schedule.name,
        "stack": engine.stack,
        "executor": engine.executor.name,
    }
    if (shared := engine.setting.problem.data.shared) is not None:
        summary["public"] = shared
    if walk.verdict is not None:
        summary["judged"] = evaluator.evaluations[0].told()
        means = [name for name in walk.verdict.values if headline(name) == "weighted"]
        summary["judged"] |= {"rows": int(walk.verdict.rows.sum()), "row_means": means}
        summary |= details_of(walk.verdict, engine.setting.problem.data)
        if walk.verdict.inexact:
            summary["inexact"] = walk.verdict.inexact
    if engine.setting.decision is not None and evaluator.evaluations:
        summary["decision"] = decide(engine.setting.decision, evaluator)
    if (target := walk.target()) is not None:
        summary["target"] = target
    if walk.best is not None and walk.watched is not None:
        told = {"round": walk.best.round, "metric": walk.metric, "value": walk.best.value}
        kept = walk.best.state is not None or walk.best.round == engine.clocks.round
        summary["best"] = {**told, "split": walk.watched.evaluated, "kept": kept}
    if walk.verdict is not None and (each := per_client(walk.verdict)) is not None:
        summary["per_client"] = each
    if walk.verdict is not None and not walk.run.blind and (beside := global_beside(evaluator)) is not None:
        summary["global"] = beside
    if (related := relations_of(engine)) is not None:
        summary["relations"] = related
    if walk.forced:
        summary["forced"] = walk.forced
    if walk.folder is not None and walk.seal is not None:
        walk.folder.write_json(SUMMARY, sealed(plain(summary, SUMMARY), walk.seal.run))
    return summary


def relations_of(engine: Engine) -> dict[str, Any] | None:
    """How the clients that train are related, where the method says so: the numbers to four digits, unless they are
    too many to be written down."""
    found = engine.method.relations(engine.state) if isinstance(engine.method, ServerMethod) else None
    if found is None:
        return None
    who = engine.sources
    if len(who) > _RELATED_MOST:
        why = f"{len(who)} clients are more than the {_RELATED_MOST} whose relations are written down"
        return {"kind": found.kind, "left_out": why}
    labels = [engine.problem.data.label(client) for client in who.tolist()]
    matrix = found.matrix[who][:, who].double()
    return {"kind": found.kind, "labels": labels, "matrix": [[round(x, 4) for x in row] for row in matrix.tolist()]}


def summed_up(label: str | None, setting: Setting, clocks: Clocks, theta: Vector, spread: Spread) -> dict[str, Any]:
    """What the summary of every run says: one run's, or that of tasks in sequence."""
    counted = asdict(clocks)
    return {
        "label": label or name_of(setting.method),
        "method": name_of(setting.method),
        "data": setting.problem.data.name,
        "seed": setting.seed,
        "rounds": counted.pop("round"),
        "metrics": {name: headline_value(name, values) for name, values in spread.items()},
        "statistics": {name: headline(name) if "pooled" in values else "weighted" for name, values in spread.items()},
        "spread": spread,
        "theta_sha256": theta_sha256(theta),
        "parameters": theta.numel(),
        **counted,
        "finished": True,
        "fedloom": __version__,
    }
