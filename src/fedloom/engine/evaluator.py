"""What evaluates a run under way: the models on clients' rows, the method's own figures, the clients' gradients."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedloom.engine.evaluation import Evaluation, Verdict, collect, pieces
from fedloom.engine.gradients import gradient_measures
from fedloom.errors import ConfigError
from fedloom.execution import Remote
from fedloom.execution.trees import copied
from fedloom.execution.work import Evaluated, Measure
from fedloom.execution.worker import asked, shown_to_all
from fedloom.federation.data import FederatedData
from fedloom.federation.metrics import OfRows, metrics_of, names_for

if TYPE_CHECKING:
    from fedloom.engine.engine import Engine


CONFUSION, CALIBRATION = "kappa", "calibration-error"
"""Metrics whose counts are the confusion matrix, and the calibration curve."""
_MOST_CLASSES = 50  # of a matrix that is written down


class Evaluator:
    """Looks at a run through its executor, and changes nothing of it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        setting = engine.setting
        self.evaluations = [
            replace(e.resolved(setting.method), metrics=names_for(setting.problem.data, e.metrics))
            for e in setting.evaluations
        ]
        if isinstance(engine.executor, Remote):
            self._refuse_rows()
        self.unanswered: list[str] = []
        """Why clients did not answer when they were asked, and the row of the history does not say yet."""

    def _refuse_rows(self) -> None:
        """On real devices a metric that needs single rows cannot be."""
        data = self.engine.setting.problem.data
        metrics = [metric for e in self.evaluations for metric in metrics_of(data, e.metrics)]
        for metric in metrics:
            if isinstance(metric, OfRows):
                raise ConfigError(
                    f"the metric {metric.name!r} needs single rows, which real devices do not show; leave it out"
                )

    def due(self, evaluation: Evaluation, last: bool) -> bool:
        """Whether this evaluation is to be made after the round that just ended."""
        return last or (evaluation.every > 0 and self.engine.clocks.round % evaluation.every == 0)

    def evaluate(self, evaluation: Evaluation, decision: float | None = None, details: bool = False) -> Verdict:
        """Evaluate the models as they are now; from the probability ``decision`` on, a row is taken for a 1.

        With ``details`` the verdict has the counts of their metrics too, but not the values.
        """
        engine, names = self.engine, names_for(self.engine.setting.problem.data, evaluation.metrics)
        further = [name for name in self.details if name not in names] if details else []
        evaluation = replace(evaluation, metrics=(*names, *further))
        data, evaluation = engine.problem.data, evaluation.resolved(engine.setting.method)
        clients = evaluation.clients(data)
        parts = pieces(clients, data.splits[evaluation.evaluated].sizes.numpy()[clients])
        theta = engine.theta() if data.layout == "features" else None
        personal = data.layout != "features" and evaluation.model != "global"
        works = []
        for part in parts:
            window = engine.window(part)
            memory = engine.memories(part, window) if personal else None
            work = evaluation.work(part, engine.clocks.round)
            work = replace(work, theta=theta, memory=memory, window=window, decision=decision)
            works.append(asked(engine.method, engine.state, work) if personal else work)
        results: list[Evaluated | None] = [None] * len(works)
        model, state = str(evaluation.model), engine.state
        shown = shown_to_all(engine.method, state, model, evaluation.parts) if personal else state
        for number, result in engine.executor.map(shown, works):
            results[number] = copied(result)
            self.unanswered += result.failures
        return collect(clients, [result for result in results if result is not None]).without(further)

    def strangers(self) -> list[str]:
        """Of each evaluation of clients' own models, how many never took part, and what these use instead."""
        engine, method, found = self.engine, self.engine.setting.method, list[str]()
        if method.layout == "features" or method.instead is None:
            return []
        for evaluation in self.evaluations:
            clients = evaluation.clients(engine.problem.data)
            new = int((~np.isin(clients, engine.store.clients().numpy())).sum())
            if new and evaluation.model != "global" and evaluation.parts == "own":
                who = f"{new} of the {len(clients)} clients never took part and use"
                found.append(f"{evaluation.name}: {who} {method.instead}")
        return found

    @property
    def details(self) -> list[str]:
        """Metrics whose counts a summary shows: the confusion matrix and the calibration curve, where there are any."""
        problem = self.engine.setting.problem
        if problem.data.task == "regression":
            return []
        return [CONFUSION] if problem.loss.link == "margin" else [CONFUSION, CALIBRATION]

    def gradients(self) -> dict[str, float]:
        """How much the clients' gradients differ at the model as it is now."""
        engine = self.engine
        problem = engine.setting.problem if engine.online is None else engine.problem
        every = np.arange(engine.setting.problem.data.clients)
        found = gradient_measures(problem, engine.theta(), engine.window(every))
        return {f"gradient_{name}": value for name, value in found.items()}

    def measures(self) -> dict[str, float]:
        """The method's own figures: gaps, residuals, norms; empty for a method that measures nothing."""
        engine, method = self.engine, self.engine.method
        if not method.measures:
            return method.report(engine.state, {})
        clients = engine.candidates
        clients = clients if engine.online is None else engine.online.present(clients, engine.now)
        if len(clients) == 0:
            return {}
        columns: dict[str, Tensor] = {}  # summed at the end: whose stack is ready first must not matter
        vectors = _Queue()  # of these only the sum is kept, in the order of the stacks
        call = engine.call(clients, engine.clocks.round)
        stacks = engine.stacks(call)
        works = [
            Measure(
                clients[stack],
                engine.clocks.round,
                {key: value[torch.from_numpy(stack)] for key, value in call.own.items()},
                engine.memories(clients[stack], call.part(stack)),
                call.part(stack),
            )
            for stack in stacks
        ]
        for number, result in engine.executor.map(call.received, works):
            self.unanswered += result.failures
            found = {key: value.double() for key, value in result.values.items()}
            vectors.add(number, {key: value.sum(0) for key, value in found.items() if value.dim() > 1})
            for key in [key for key, value in found.items() if value.dim() == 1]:
                column = columns.setdefault(key, torch.zeros(len(clients), dtype=torch.float64))
                column[torch.from_numpy(stacks[number])] = found[key]
        return method.report(engine.state, {key: column.sum() for key, column in columns.items()} | vectors.sums)


@dataclass(eq=False)
class _Queue:
    """Sums of tensors that come in any order, added up in the order of their numbers 0, 1, …"""

    sums: dict[str, Tensor] = field(default_factory=dict)
    waiting: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    next: int = 0

    def add(self, number: int, parts: dict[str, Tensor]) -> None:
        """One part; kept only until those before it are there."""
        self.waiting[number] = parts
        while self.next in self.waiting:
            for key, value in self.waiting.pop(self.next).items():
                self.sums[key] = self.sums[key] + value if key in self.sums else value
            self.next += 1


def confusion_of(verdict: Verdict, data: FederatedData) -> dict[str, Any] | None:
    """How many rows of each class were taken for which: all clients' together; None where that is not known."""
    matrix = verdict.counts.get(CONFUSION)
    if matrix is None or len(matrix) > _MOST_CLASSES:
        return None
    return {"classes": list(_names(data)), "counts": matrix.long().tolist()}


def details_of(verdict: Verdict, data: FederatedData) -> dict[str, Any]:
    """What the summary of a run tells of its classes: the confusion matrix, the commonest, how sure the model is."""
    found: dict[str, Any] = {}
    if (confusion := confusion_of(verdict, data)) is not None:
        found["confusion"] = confusion
    matrix = verdict.counts.get(CONFUSION)
    if matrix is not None and data.task != "multilabel" and float(matrix.sum()):
        rows = matrix.sum(-1)
        found["base_rate"] = {"class": _names(data)[int(rows.argmax())], "share": float(rows.max() / rows.sum())}
    if CALIBRATION in verdict.counts:
        rows, said, true = verdict.counts[CALIBRATION].unbind(-1)
        found["calibration"] = {"rows": rows.long().tolist(), "said": said.tolist(), "true": true.long().tolist()}
    return found


def _names(data: FederatedData) -> tuple[str, ...]:
    """The classes by name; of labels 0 and 1."""
    return tuple(data.classes) if data.task != "multilabel" and data.classes else ("0", "1")
