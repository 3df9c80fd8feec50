"""The contract of trackers, and what they are told."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from fedloom.errors import ConfigError

Row = dict[str, Any]
STATISTICS = ("weighted", "pooled", "worst_tenth")
"""What is told of a metric over clients."""
_LONGEST = 500
"""Letters of a setting: trackers refuse long ones."""
_PASSED_OVER = ("tracking", "made_by")


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run before its first row."""

    label: str
    """What the run is called."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Its settings, as config.toml has them."""
    folder: Path | None = None
    """Where it is kept; none: nowhere."""
    group: str | None = None
    """The comparison or tuning that it is a part of."""
    kept: dict[str, Any] = field(default_factory=dict)
    """What the tracker wants to find here again when the run is resumed, such as an id; texts and numbers."""

    def settings(self) -> dict[str, str | int | float | bool]:
        """Every setting by its full key, "method.lr"."""
        told = {key: value for key, value in self.config.items() if key not in _PASSED_OVER}
        return dict(_flat(told))

    @property
    def title(self) -> str:
        """The label with the seed, which tells repeats apart."""
        seed = self.config.get("seed")
        return f"{self.label}, seed {seed}" if self.group and isinstance(seed, int) else self.label


class Tracker(ABC):
    """Is told of a run while it goes on; a dataclass whose fields are its settings.

    Whatever it raises leaves it out and is said in a line; the run goes on. ``fedloom.train`` takes trackers as its
    ``callbacks``.

        from dataclasses import dataclass

        @dataclass
        class Printed(fedloom.Tracker):
            def begin(self, run):
                print(run.label)

            def row(self, row):
                print(row["round"])

            def end(self, summary, report):
                print("done" if summary else "stopped")
    """

    needs: str = ""
    """The package that it needs, and the name of the extra that installs it: "mlflow"."""

    def check(self) -> None:
        """Refuse, before any work, what cannot be. Default: that the package which it needs is missing."""
        if self.needs and find_spec(self.needs) is None:
            raise ConfigError(
                f"tracking by {self.needs} needs the package {self.needs}: install it with "
                f"`pip install 'fedloom[{self.needs}]'`, or leave the tracker out (--track none)"
            )

    def placed(self, folder: Path) -> Self:
        """The same with relative paths that begin in this folder. Default: it has none."""
        return self

    @abstractmethod
    def begin(self, run: TrackedRun) -> int | None:
        """A run begins, or goes on where ``run.kept`` has what was kept of it.

        The result is the last round that the tracker knows of, if it can say so; none: as fedloom has noted it.
        """

    @abstractmethod
    def row(self, row: Row) -> None:
        """A round is done; ``figures`` has its numbers by name."""

    @abstractmethod
    def end(self, summary: dict[str, Any] | None, report: Path | None) -> None:
        """The run is done: its summary and, of one that is kept in a folder, its page. None: it was stopped."""


def figures(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row of the history by the names that they have in ``Run.frame``, but for the round.

    Of a metric its weighted mean ("accuracy"), its value on all rows in one pool ("accuracy.pooled") and that of the
    worst tenth of the clients ("accuracy.worst_tenth").
    """
    found: dict[str, float] = {}
    for name, value in row.items():
        if name == "evaluation":
            found |= _metrics(value, "")
        elif name == "evaluations":
            for evaluation, metrics in value.items():
                found |= _metrics(metrics, f"{evaluation}.")
        elif name == "failures":
            found[name] = float(len(value))
        elif isinstance(value, Mapping):
            found |= {f"{name}.{key}": number for key, number in _numbers(value)}
        elif name != "round":
            found |= dict(_numbers({name: value}))
    return found


def _metrics(metrics: Mapping[str, Mapping[str, Any]], before: str) -> dict[str, float]:
    """The statistics of each metric that are told."""
    found = {}
    for name, statistics in metrics.items():
        for statistic, number in _numbers({key: statistics[key] for key in STATISTICS if key in statistics}):
            found[f"{before}{name}" + ("" if statistic == "weighted" else f".{statistic}")] = number
    return found


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Those that are numbers; a history has null for NaN."""
    for key, value in values.items():
        if value is None:
            yield key, math.nan
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield key, float(value)


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str | int | float | bool]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        elif isinstance(value, int | float | str):
            yield f"{before}{key}", value[:_LONGEST] if isinstance(value, str) else value
        else:
            yield f"{before}{key}", json.dumps(value, default=str)[:_LONGEST]
