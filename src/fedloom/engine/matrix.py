"""Tasks in sequence, in numbers: how good the model was on each task after each, and what that comes to.

D. Lopez-Paz and M. Ranzato, "Gradient episodic memory for continual learning", NeurIPS 2017 (average accuracy, backward
and forward transfer). https://arxiv.org/abs/1706.08840

A. Chaudhry, P. K. Dokania, T. Ajanthan and P. H. S. Torr, "Riemannian walk for incremental learning", ECCV 2018
(forgetting). https://arxiv.org/abs/1801.10112
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

MEASURES = ("average", "forgetting", "backward_transfer", "forward_transfer")


@dataclass(frozen=True)
class TaskMatrix:
    """R_ij: the metric on task j after the model has learnt the tasks 1 to i.

    All four measures are NaN where the tasks learnt so far are too few for them. "Better" is the metric's own
    direction: forgetting is a loss and both transfers are gains for an error as for an accuracy.

        matrix = fedloom.TaskMatrix(("first", "second"), ((0.9, 0.2), (0.7, 0.8)), fresh=(0.1, 0.1))
        print(matrix.average, matrix.forgetting, matrix.forward_transfer)
    """

    tasks: tuple[str, ...]
    """The names of the tasks, in their order."""
    rows: tuple[tuple[float, ...], ...]
    """R, a row for each task learnt so far, a column for each task."""
    fresh: tuple[float, ...]
    """b_j: the metric on task j of a model that has learnt nothing."""
    metric: str = "accuracy"
    """The metric's name."""
    higher: bool = True
    """Whether more of the metric is better."""

    @staticmethod
    def read(record: Mapping[str, Any]) -> TaskMatrix:
        """The matrix of a file that has it."""
        rows = tuple(map(tuple, record["matrix"]))
        higher = bool(record["higher_is_better"])
        return TaskMatrix(tuple(record["tasks"]), rows, tuple(record["fresh"]), record["metric"], higher)

    @property
    def learnt(self) -> int:
        """T: how many tasks have been learnt."""
        return len(self.rows)

    @property
    def average(self) -> float:
        """(1/T) Σ_j R_Tj over the tasks learnt so far."""
        return _mean(self.rows[-1][: self.learnt] if self.rows else ())

    @property
    def forgotten(self) -> tuple[float, ...]:
        """For each task before the last: the best that it ever was, less what it is now."""
        now, before = self.rows[-1] if self.rows else (), self.rows[:-1]
        return tuple(max(self._gain(row[j], now[j]) for row in before) for j in range(self.learnt - 1))

    @property
    def forgetting(self) -> float:
        """1/(T−1) Σ_{j<T} (max_{i<T} R_ij − R_Tj)."""
        return _mean(self.forgotten)

    @property
    def backward_transfer(self) -> float:
        """1/(T−1) Σ_{j<T} (R_Tj − R_jj): what later tasks have done to earlier ones."""
        return _mean([self._gain(self.rows[-1][j], self.rows[j][j]) for j in range(self.learnt - 1)])

    @property
    def forward_transfer(self) -> float:
        """1/(T−1) Σ_{j>1} (R_{j−1,j} − b_j): what earlier tasks have done for later ones before these were learnt."""
        return _mean([self._gain(self.rows[j - 1][j], self.fresh[j]) for j in range(1, self.learnt)])

    def measures(self) -> dict[str, float]:
        """All of them by name, without those that mean nothing yet."""
        found = {name: float(getattr(self, name)) for name in MEASURES}
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def so_far(self, learnt: int) -> TaskMatrix:
        """The matrix as it was when so many tasks had been learnt."""
        return TaskMatrix(self.tasks, self.rows[:learnt], self.fresh, self.metric, self.higher)

    def _gain(self, value: float, than: float) -> float:
        return value - than if self.higher else than - value


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if len(values) else math.nan
