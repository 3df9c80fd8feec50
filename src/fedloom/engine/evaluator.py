"""What evaluates a run under way: the models on clients' rows, the method's own figures, the clients' gradients."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedloom.engine.evaluation import Evaluation, Verdict, collect, pieces
from fedloom.engine.gradients import gradient_measures
from fedloom.execution.trees import copied
from fedloom.execution.work import Evaluated, Measure

if TYPE_CHECKING:
    from fedloom.engine.engine import Engine


class Evaluator:
    """Looks at a run through its executor, and changes nothing of it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.evaluations = [e.resolved(engine.setting.method) for e in engine.setting.evaluations]
        self.unanswered: list[str] = []
        """Why clients did not answer when they were asked, and the row of the history does not say yet."""

    def due(self, evaluation: Evaluation, last: bool) -> bool:
        """Whether this evaluation is to be made after the round that just ended."""
        return last or (evaluation.every > 0 and self.engine.clocks.round % evaluation.every == 0)

    def evaluate(self, evaluation: Evaluation) -> Verdict:
        """Evaluate the models as they are now."""
        engine = self.engine
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
            works.append(replace(work, theta=theta, memory=memory, window=window))
        results: list[Evaluated | None] = [None] * len(works)
        for number, result in engine.executor.map(engine.state, works):
            results[number] = copied(result)
            self.unanswered += result.failures
        return collect(clients, [result for result in results if result is not None])

    def gradients(self) -> dict[str, float]:
        """How much the clients' gradients differ at the model as it is now."""
        engine = self.engine
        problem = engine.setting.problem if engine.online is None else engine.problem
        every = np.arange(engine.setting.problem.data.clients)
        found = gradient_measures(problem, engine.theta(), engine.window(every))
        return {f"gradient_{name}": value for name, value in found.items()}

    def measures(self) -> dict[str, float]:
        """The method's own figures: gaps, residuals, norms; empty for a method that measures nothing."""
        engine, method = self.engine, self.engine.setting.method
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
