"""From which probability on a row is taken for a 1: chosen after the training, on rows that are there to choose by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedloom.engine.evaluation import VALIDATION, Verdict, headline_value
from fedloom.engine.evaluator import Evaluator, confusion_of
from fedloom.errors import Unfit
from fedloom.federation.problem import Problem
from fedloom.federation.scores import Steps, bin_edge

Rule = Literal["f1", "balanced-accuracy", "youden"]
Decision = Rule | float
"""What a threshold is to make best, or the threshold itself."""
ORDER = "average-precision"
"""The metric whose points, or bins, are the scores and the labels that a threshold is chosen by."""
SHOWN = ("f1", "precision", "recall", "balanced-accuracy", "accuracy")
"""The metrics that are told at the chosen threshold, and at the usual one."""
Quality = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""From true and false positives, and from how many positives and negatives there are."""
_RULES: dict[str, Quality] = {
    "f1": lambda hits, alarms, p, n: 2 * hits / (hits + alarms + p),
    "balanced-accuracy": lambda hits, alarms, p, n: (hits / p + 1 - alarms / n) / 2,
    "youden": lambda hits, alarms, p, n: hits / p - alarms / n,
}


@dataclass(frozen=True)
class Threshold:
    """The best threshold, and what the rule comes to at it."""

    at: float
    value: float


def check_decision(decision: Decision | None, problem: Problem, evaluations: int) -> None:
    """Refuses a decision where there is none to take."""
    if decision is None:
        return
    data = problem.data
    if data.task == "regression" or (data.task == "classification" and data.outputs != 2):
        kind = "a regression" if data.task == "regression" else f"{data.outputs} classes"
        raise _unfit(decision, f"is for yes or no, and this is {kind}; leave it out")
    if isinstance(decision, str) and decision not in _RULES:
        raise _unfit(decision, f"is no rule; choose one of {', '.join(_RULES)}, or a number")
    if not isinstance(decision, str) and problem.loss.link != "margin" and not 0 < decision < 1:
        raise _unfit(decision, "is no probability; choose a number between 0 and 1")
    if not evaluations:
        raise _unfit(decision, "needs an evaluation, and there is none; leave it out")


def _unfit(decision: Decision, what: str) -> Unfit:
    return Unfit(f"decision = {decision!r} {what}", what)


def best_threshold(rule: str, verdict: Verdict, problem: Problem) -> Threshold | None:
    """The threshold at which the rule is best, from the scores and labels of all rows, or from their bins.

    It lies half way between two scores, so that rounding does not matter; of bins, where one begins. None where the
    rows have one label only.
    """
    if ORDER in verdict.points:
        points = verdict.points[ORDER].reshape(-1, 2)
        steps = Steps.of(points[:, 0], points[:, 1], torch.zeros(len(points), dtype=torch.int64), 1)
    else:
        steps = Steps.of_bins(verdict.counts[ORDER].sum(0, keepdim=True))
    positives, negatives = steps.total(steps.positives), steps.total(steps.negatives)
    if not float(positives) or not float(negatives):
        return None
    hits, alarms = steps.above(steps.positives) + steps.positives, steps.above(steps.negatives) + steps.negatives
    values = _RULES[rule](hits, alarms, positives, negatives)
    best = int(values.argmax())
    if ORDER not in verdict.points:
        edge = bin_edge(best)
        return Threshold(edge if problem.loss.link == "margin" else _probability(edge), float(values[best]))
    ordered = [_read(float(score), problem) for score in steps.score[max(best - 1, 0) : best + 1]]
    return Threshold(sum(ordered) / len(ordered), float(values[best]))


def _read(score: float, problem: Problem) -> float:
    """A score as a threshold has it: a probability, of margins the output."""
    ready = problem.data.task == "classification" or problem.loss.link != "logit"
    return score if ready else _probability(score)


def _probability(score: float) -> float:
    return float(torch.sigmoid(torch.tensor(score, dtype=torch.float64)))


def decide(decision: Decision, evaluator: Evaluator) -> dict[str, Any]:
    """What the summary says of the decision: the threshold, who chose it, and what it makes of the evaluated rows."""
    main, setting = evaluator.evaluations[0], evaluator.engine.setting
    problem = setting.problem
    told: dict[str, Any] = {"rule": "given", "threshold": decision}
    if isinstance(decision, str):
        on = main.on_validation(setting.method) if VALIDATION in problem.data.splits else main
        found = best_threshold(decision, evaluator.evaluate(replace(on, metrics=(ORDER,))), problem)
        told = {"rule": decision, "threshold": None, "split": on.resolved(setting.method).evaluated}
        if found is None:
            return told
        told |= {"threshold": found.at, "value": found.value}
    asked = replace(main, metrics=SHOWN)
    usual, chosen = (evaluator.evaluate(asked, at, details=True) for at in (None, told["threshold"]))
    told["metrics"], told["usual"] = (
        {name: headline_value(name, values) for name, values in verdict.summary().items() if name != "loss"}
        for verdict in (chosen, usual)
    )
    return told | {"confusion": confusion_of(chosen, problem.data)}


def notes_on(summary: dict[str, Any]) -> Iterator[str]:
    """What a user should know of how the threshold was chosen."""
    told = summary.get("decision")
    if told is None or "split" not in told:
        return
    if told["threshold"] is None:
        yield f"no threshold was chosen: the {told['split']} rows have one label only; the usual one holds"
    elif not told["split"].startswith(VALIDATION):
        yield (
            f"the {told['split']} rows chose the threshold, and judge it: it looks better than it is. Give "
            "data.validation a share, such as 0.2, to choose on other rows"
        )
