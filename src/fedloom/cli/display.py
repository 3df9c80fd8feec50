"""What a user sees while a run goes on, and at its end: a bar on a terminal, sparse lines elsewhere."""

from __future__ import annotations

import json
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
COMMON = 0.5
"""From which share of the rows on the commonest class is said beside the accuracy."""
_FEW_CLASSES = 6  # whose confusion matrix a terminal shows
_LINES = 10  # about so many lines tell of a run where there is no terminal


def make_console() -> Console:
    """For standard output; where that is no terminal, wide enough for a table."""
    plain = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=120 if plain else None)


def say(console: Console, text: str | Text, style: str = "") -> None:
    """One line, never broken or marked up: paths in it can be copied."""
    console.print(Text(text, style=style) if isinstance(text, str) else text, soft_wrap=True)


def say_json(value: Any) -> None:
    """A value as JSON, for other programs."""
    print(json.dumps(value, indent=1, ensure_ascii=False))


def make_table(first: str, *others: str, numbers: bool = False) -> Table:
    """A table without lines: its first column is never broken; the others are on the right where they are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(Text(first), no_wrap=True)
    for title in others:
        table.add_column(Text(title), justify="right" if numbers else "left")
    return table


@contextmanager
def following(console: Console, label: str, quiet: bool) -> Iterator[Follow]:
    """Shows the rounds as they come."""
    if quiet:
        yield lambda row, total: None
    elif console.is_terminal:
        with _bar(console, label) as follow:
            yield follow
    else:
        yield _lines(console)


class _Pace:
    """The words for a round: the primary metric as last known, the simulated time, the bytes, and the time left."""

    def __init__(self) -> None:
        self.metric = ""
        self.first: tuple[int, float] | None = None

    def words(self, row: Row, total: int) -> list[str]:
        """What there is to say once this round is done; the time left is that at the pace so far."""
        self.first = self.first or (row["round"], time.monotonic())
        if row.get("evaluation"):
            self.metric = primary(row["evaluation"], short=True)
        done, ahead = row["round"] - self.first[0], total - row["round"]
        left = (time.monotonic() - self.first[1]) / done * ahead if done else 0.0
        words = [self.metric, *clocks(row), f"{seconds_text(left)} left" if done and ahead else ""]
        return [word for word in words if word]


def _lines(console: Console) -> Follow:
    """About ten lines a run."""
    pace = _Pace()

    def follow(row: Row, total: int) -> None:
        words = pace.words(row, total)
        if row["round"] % max(1, -(-total // _LINES)) == 0 or row["round"] == total:
            say(console, "  ".join([f"round {row['round']}/{total}", *words]))

    return follow


@contextmanager
def _bar(console: Console, label: str) -> Iterator[Follow]:
    from rich.progress import BarColumn, Progress, TextColumn

    pace = _Pace()
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[words]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(label, total=1, words="")

        def follow(row: Row, total: int) -> None:
            progress.update(task, completed=row["round"], total=total, words="  ".join(pace.words(row, total)))

        yield follow


def ending(summary: dict[str, Any]) -> Table:
    """What came of a run: its metrics and how clients differ in them, and what it cost.

    What is no mean over rows is pooled: the column is there where a metric is.
    """
    titles = {"weighted": "Weighted mean", "mean": "Mean", "std": "Spread", "worst_tenth": "Worst tenth"}
    pooled = "pooled" in summary.get("statistics", {}).values()
    titles = ({"pooled": "Pooled"} if pooled else {}) | titles
    table = make_table(f"After round {summary['rounds']}", *titles.values(), numbers=True)
    for name, values in sorted(summary["spread"].items(), key=lambda item: item[0] == "loss"):
        table.add_row(name + base_rate(name, summary), *(plain_text(values[statistic]) for statistic in titles))
    cost = [*clocks(summary), f"wall {seconds_text(summary['wall_seconds'])}"]
    cost.append(f"{summary['gradient_evaluations']:,} gradient evaluations")
    table.caption = "  ".join(cost)
    table.caption_justify = "left"
    return table


def matrix_table(matrix: TaskMatrix) -> Table:
    """How good the model was on each task after each."""
    from fedloom.report.continual import FRESH
    from fedloom.report.words import name_text

    table = make_table(f"{name_text(matrix.metric)} after", *(f"on {task}" for task in matrix.tasks), numbers=True)
    for learnt, row in zip((FRESH, *matrix.tasks), (matrix.fresh, *matrix.rows), strict=False):
        table.add_row(Text(learnt), *map(plain_text, row))
    return table


def measures_text(matrix: TaskMatrix) -> str:
    """What the matrix comes to, in a line."""
    from fedloom.report.words import name_text

    return "  ".join(f"{name_text(name).lower()} {plain_text(value)}" for name, value in matrix.measures().items())


def base_rate(name: str, summary: dict[str, Any]) -> str:
    """What always saying the commonest class would come to, beside an accuracy that it makes look good."""
    told = summary.get("base_rate") or {}
    if name != "accuracy" or told.get("share", 0.0) < COMMON:
        return ""
    return f' (always "{told["class"]}": {plain_text(told["share"])})'


def shows_matrix(summary: dict[str, Any]) -> bool:
    """Whether the confusion matrix is small, and says what the metrics do not: where most rows are of one class."""
    few = len((summary.get("confusion") or {}).get("classes", [None] * 99)) <= _FEW_CLASSES
    return few and ((summary.get("base_rate") or {}).get("share", 0.0) >= COMMON or "decision" in summary)


def confusion_table(told: dict[str, Any]) -> Table:
    """How many rows of each class were taken for which."""
    table = make_table("Rows that are", *(f"said {name}" for name in told["classes"]), numbers=True)
    for name, counts in zip(told["classes"], told["counts"], strict=True):
        table.add_row(Text(name), *(f"{count:,}" for count in counts))
    return table


def decided(summary: dict[str, Any]) -> str:
    """The threshold that was chosen, and what it makes of the evaluated rows, in a line; nothing where none was."""
    told = summary.get("decision") or {}
    if told.get("threshold") is None:
        return ""
    by = "split" in told and f"best for {told['rule']} on the {told['split']} rows ({plain_text(told['value'])})"
    yes = ((told.get("confusion") or {}).get("classes") or ["0", "1"])[-1]
    split = (summary.get("judged") or {}).get("split", "evaluated")
    usual = {name: plain_text(value) for name, value in told["usual"].items()}
    then = ", ".join(f"{name} {plain_text(value)} (else {usual[name]})" for name, value in told["metrics"].items())
    return f'decision: "{yes}" from {told["threshold"]:.4g} on, {by or "as given"}. On the {split} rows: {then}'


def stopped(summary: dict[str, Any]) -> str:
    """Why a run ended before its last round, in a line; nothing of a run that did not."""
    target = summary.get("target") or {}
    reached = target.get("reached")
    if summary.get("stopped") == "target" and reached:
        return f"stopped: target reached, {target['metric']} {target['value']:g}, at {_moment(reached)}"
    if summary.get("stopped") == "seconds":
        return f"stopped: limit of simulated time, at {_moment({**summary, 'round': summary['rounds']})}"
    if summary.get("stopped") == "patience" and "best" in summary:
        best = summary["best"]
        kept = "the model is that of" if best["kept"] else "it was best at"
        value = f"{best['metric']} {plain_text(best['value'])} on the {best['split']} rows"
        return f"stopped: not better any more at round {summary['rounds']}; {kept} round {best['round']}, {value}"
    return f"stopped: converged at round {summary['rounds']}" if summary.get("stopped") == "converged" else ""


def _moment(at: Row) -> str:
    simulated = f"{seconds_text(at['simulated_seconds'])} simulated, " if at["simulated_seconds"] else ""
    return f"{simulated}round {at['round']}"


def primary(metrics: dict[str, Any], write: Callable[[float], str] | None = None, short: bool = False) -> str:
    """The metric that is shown when there is room for one, with its value: the first that is not the loss.

    What is no mean over rows is that of all rows together, and unless it is to be short, that over clients too.
    """
    if not metrics:
        return "not evaluated"
    from fedloom.federation.metrics import headline

    name = next((name for name in metrics if name != "loss"), "loss")
    values, write = metrics[name], write or plain_text
    if headline(name) == "weighted" or "pooled" not in values:
        return f"{name} {write(values['weighted'])}"
    clients = "" if short else f"; {write(values['mean'])} ± {write(values['std'])} over clients"
    return f"{name} {write(values['pooled'])} pooled{clients}"


def clocks(row: Row) -> list[str]:
    """Simulated time (where any passes) and bytes, in words."""
    from fedloom.report.words import sized, text

    simulated = f"simulated {seconds_text(row['simulated_seconds'])}" if row["simulated_seconds"] else ""
    return [word for word in (simulated, text(sized, row["bytes_up"] + row["bytes_down"])) if word]


def plain_text(value: float | None) -> str:
    """A metric."""
    from fedloom.report.words import plain, text

    return text(plain, value)


def seconds_text(value: float) -> str:
    """A time."""
    from fedloom.report.words import text, timed

    return text(timed, value)
