"""What a user sees while a run goes on, and at its end: a bar on a terminal, sparse lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from fedloom.engine.matrix import TaskMatrix

Row = dict[str, Any]
Follow = Callable[[Row, int], None]
_LINES = 10  # about so many lines tell of a run where there is no terminal


def make_console() -> Console:
    """For standard output; where that is no terminal, wide enough for a table."""
    plain = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=120 if plain else None)


def say(console: Console, text: str, style: str = "") -> None:
    """One line, never broken or marked up: paths in it can be copied."""
    console.print(Text(text, style=style), soft_wrap=True)


@contextmanager
def following(console: Console, label: str, quiet: bool) -> Iterator[Follow]:
    """Shows the rounds as they come."""
    if quiet:
        yield lambda row, total: None
    elif console.is_terminal:
        with _bar(console, label) as follow:
            yield follow
    else:
        yield _Lines(console)


class Pace:
    """The words for a row: the primary metric as last known, the simulated time, the bytes, and the time left."""

    def __init__(self) -> None:
        self.metric = ""
        self.first: tuple[int, float] | None = None

    def take(self, row: Row) -> None:
        """A round is done."""
        self.first = self.first or (row["round"], time.monotonic())
        if row.get("evaluation"):
            name, value = primary(row["evaluation"])
            self.metric = f"{name} {_plain(value)}"

    def left(self, row: Row, total: int) -> float | None:
        """Seconds until the end, at the pace so far."""
        begun, at = self.first or (row["round"], 0.0)
        done = row["round"] - begun
        return (time.monotonic() - at) / done * (total - row["round"]) if done else None


class _Lines:
    """About ten lines a run."""

    def __init__(self, console: Console) -> None:
        self.console, self.pace = console, Pace()

    def __call__(self, row: Row, total: int) -> None:
        self.pace.take(row)
        if row["round"] % max(1, -(-total // _LINES)) and row["round"] != total:
            return
        left = self.pace.left(row, total)
        words = [f"round {row['round']}/{total}", self.pace.metric, *clocks(row)]
        if left is not None and row["round"] < total:
            words.append(f"{_seconds(left)} left")
        say(self.console, "  ".join(word for word in words if word))
        self.console.file.flush()


@contextmanager
def _bar(console: Console, label: str) -> Iterator[Follow]:
    from rich.progress import BarColumn, Progress, TextColumn

    pace = Pace()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[words]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(label, total=1, words="")

        def follow(row: Row, total: int) -> None:
            pace.take(row)
            left = pace.left(row, total)
            words = [pace.metric, *clocks(row), f"{_seconds(left)} left" if left is not None else ""]
            progress.update(task, completed=row["round"], total=total, words="  ".join(filter(None, words)))

        yield follow


def ending(summary: dict[str, Any]) -> Table:
    """What came of a run: its metrics and how clients differ in them, and what it cost."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    titles = {"weighted": "Weighted mean", "mean": "Mean", "std": "Spread", "worst_tenth": "Worst tenth"}
    table.add_column("After round " + str(summary["rounds"]), no_wrap=True)
    for title in titles.values():
        table.add_column(title, justify="right")
    for name, values in sorted(summary["spread"].items(), key=lambda item: item[0] == "loss"):
        table.add_row(name, *(_plain(values[statistic]) for statistic in titles))
    cost = [*clocks(summary), f"wall {_seconds(summary['wall_seconds'])}"]
    cost.append(f"{summary['gradient_evaluations']:,} gradient evaluations")
    table.caption = "  ".join(cost)
    table.caption_justify = "left"
    return table


def matrix_table(matrix: TaskMatrix) -> Table:
    """How good the model was on each task after each."""
    from fedloom.report.continual import FRESH
    from fedloom.report.words import name_text, plain, text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"{name_text(matrix.metric)} after")
    for task in matrix.tasks:
        table.add_column(Text(f"on {task}"), justify="right")
    for learnt, row in zip((FRESH, *matrix.tasks), (matrix.fresh, *matrix.rows), strict=False):
        table.add_row(Text(learnt), *(text(plain, value) for value in row))
    return table


def measures_text(matrix: TaskMatrix) -> str:
    """What the matrix comes to, in a line."""
    from fedloom.report.words import name_text, plain, text

    return "  ".join(f"{name_text(name).lower()} {text(plain, value)}" for name, value in matrix.measures().items())


def stopped(summary: dict[str, Any]) -> str:
    """Why a run ended before its last round, in a line; nothing of a run that did not."""
    target = summary.get("target") or {}
    reached = target.get("reached")
    if summary.get("stopped") == "target" and reached:
        return f"stopped: target reached, {target['metric']} {target['value']:g}, at {_moment(reached)}"
    if summary.get("stopped") == "seconds":
        return f"stopped: limit of simulated time, at {_moment({**summary, 'round': summary['rounds']})}"
    return f"stopped: converged at round {summary['rounds']}" if summary.get("stopped") == "converged" else ""


def _moment(at: Row) -> str:
    simulated = f"{_seconds(at['simulated_seconds'])} simulated, " if at["simulated_seconds"] else ""
    return f"{simulated}round {at['round']}"


def primary(metrics: dict[str, Any]) -> tuple[str, float | None]:
    """The metric that is shown when there is room for one: the first that is not the loss."""
    name = next((name for name in metrics if name != "loss"), "loss")
    return name, metrics[name]["weighted"]


def clocks(row: Row) -> list[str]:
    """Simulated time (where any passes) and bytes, in words."""
    from fedloom.report.words import sized, text

    simulated = f"simulated {_seconds(row['simulated_seconds'])}" if row["simulated_seconds"] else ""
    return [word for word in (simulated, text(sized, row["bytes_up"] + row["bytes_down"])) if word]


def _plain(value: float | None) -> str:
    from fedloom.report.words import plain, text

    return text(plain, value)


def _seconds(value: float) -> str:
    from fedloom.report.words import text, timed

    return text(timed, value)
