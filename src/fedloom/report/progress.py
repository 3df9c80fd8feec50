"""What Python shows while a run goes on: a bar with the last known metric, on a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedloom.report.runs import pick, primary_first
from fedloom.report.words import lower_first, name_text, plain, text

Follow = Callable[[dict[str, Any], int], None]
"""Is told of every round: its row of the history, and the number of rounds."""


@contextmanager
def shown(wanted: Follow | bool | None, title: str) -> Iterator[Follow | None]:
    """The user's own function, or what draws a bar where one is wanted; None: where somebody sees it."""
    if callable(wanted):
        yield wanted
        return
    if wanted is False:
        yield None
        return
    from rich.console import Console

    console = Console(stderr=True)
    if wanted is None and not (console.is_terminal or console.is_jupyter):
        yield None
        return
    with bar(console, title) as follow:
        yield follow


@contextmanager
def bar(console: Any, title: str) -> Iterator[Follow]:
    """A bar that is gone when the run is over."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[metric]}", markup=False),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task, known = progress.add_task(title, total=1, metric=""), ""

        def follow(row: dict[str, Any], total: int) -> None:
            nonlocal known
            known = headline(row.get("evaluation") or {}) or known
            progress.update(task, completed=row["round"], total=total, metric=known)

        yield follow


def headline(metrics: dict[str, Any], statistics: dict[str, str] | None = None) -> str:
    """The primary metric with its value, "accuracy 0.934"; nothing where there is none.

    ``statistics`` says which of them are pooled.
    """
    for name in primary_first(metrics)[:1]:
        pooled = (statistics or {}).get(name) == "pooled"
        value = text(plain, pick(metrics[name], "pooled" if pooled else "weighted"))
        return f"{lower_first(name_text(name))} {value}{' pooled' * pooled}"
    return ""
