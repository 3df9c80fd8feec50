"""Runs of a kind of their own: columns of the same rows at several parties, tasks in sequence, rows that keep arriving.

What a report says of clients with rows of their own would be untrue of these, or not the point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fedloom.report.continual import mean_matrix
from fedloom.report.curves import Curves, arrival_curves
from fedloom.report.groups import Group, every_run, mean_and_std
from fedloom.report.runs import RunRecord, client_name, number, section
from fedloom.report.words import lower_first, name_text, plain, plural, range_text, text

MEASURES = ("average_", "forgetting", "backward_transfer", "forward_transfer")
"""What tasks in sequence come to; the rest of their figures is in the matrix."""
_FEW = 6


def columns_of(data: dict[str, Any]) -> list[int]:
    """How many columns each party holds of rows that all have; nothing where clients have rows of their own."""
    found = data.get("columns")
    return [int(one) for one in found] if isinstance(found, list) and all(type(one) is int for one in found) else []


def is_vertical(groups: Sequence[Group]) -> bool:
    """Whether all runs are on columns of the same rows."""
    return all(columns_of(run.data) for run in every_run(groups))


def is_sequence(groups: Sequence[Group]) -> bool:
    """Whether all runs learn tasks in sequence."""
    return all(task_names(run) for run in every_run(groups))


def parties_text(data: dict[str, Any]) -> str:
    """Who holds how many columns: "clinic: 2, laboratory: 3"."""
    columns = columns_of(data)
    names = [client_name(data, at) for at in range(len(columns))]
    each = [f"{'party ' * name.isdecimal()}{name}: {count}" for name, count in zip(names, columns[:_FEW], strict=False)]
    return ", ".join([*each, "…"] if len(columns) > _FEW else each)


def sizes_of(data: dict[str, Any], split: str) -> list[float]:
    """The rows of each client in a split, of the clients that are listed."""
    listed = section(data, "sizes").get(split)
    return [value for one in listed if (value := number(one)) is not None] if isinstance(listed, list) else []


def task_names(run: RunRecord) -> list[str]:
    """The tasks of a sequence that were begun with, by name."""
    found = run.matrix.get("tasks")
    return [str(task) for task in found] if isinstance(found, list) else []


def tasks_text(run: RunRecord) -> str:
    """The tasks by name; nothing of a run that has none."""
    tables = run.config.get("task")
    named = [str(one.get("name") or "") for one in tables if isinstance(one, dict)] if isinstance(tables, list) else []
    tasks = task_names(run) or named
    few = ", ".join(filter(None, tasks[:_FEW])) + (" …" if len(tasks) > _FEW else "")
    return f"{plural(len(tasks), 'task')} in sequence: {few}" if tasks else ""


def arrivals(groups: Sequence[Group]) -> Curves | None:
    """The rows that have arrived, against the clock by which they do; None where all were there."""
    streamed = [group for group in groups if any("arrived" in row for run in group.runs for row in run.history[-1:])]
    if not streamed:
        return None
    totals = {rows_in_all(run) for run in every_run(streamed)}
    curves = arrival_curves(streamed, totals.pop() if len(totals) == 1 else None)
    return replace(curves, usual="simulated_seconds") if "simulated_seconds" in curves.axes else curves


def rows_in_all(run: RunRecord) -> float | None:
    """All training rows, arrived or not; None where not every client is listed."""
    sizes, told = sizes_of(run.data, "train"), run.data.get("roles")
    roles = told if isinstance(told, list) else []
    if not sizes or len(sizes) != run.data.get("clients"):
        return None
    source = [size for at, size in enumerate(sizes) if at >= len(roles) or roles[at] != "target"]
    return sum(source)


def said(groups: Sequence[Group]) -> list[str]:
    """What there is to say of runs of these kinds, in words."""
    found = []
    if is_vertical(groups):
        run = every_run(groups)[0]
        rows = max(sizes_of(run.data, "train"), default=0) + max(sizes_of(run.data, "test"), default=0)
        found.append(
            f"{len(columns_of(run.data)):,} parties hold columns of the same {rows:,.0f} rows "
            f"({parties_text(run.data)}). Their scores are summed into one prediction, so there is one figure for all "
            "and none for each."
        )
    for group in groups:
        found += [f"{group.label}: {line}" if len(groups) > 1 else line for line in _forgotten(group)]
    return [*found, *_arrived(groups)]


def _forgotten(group: Group) -> list[str]:
    """What became of each task, on the mean over repeats."""
    found = mean_matrix(group.runs) if group.finished else None
    if found is None or len(found[0]) != len(found[1]) + 1 or len(found[1]) < 2:
        return []
    _, tasks, values, metric = found
    learnt, last = values[1:].diagonal(), values[-1]
    what = lower_first(name_text(metric))
    each = [
        f"{task} {_value(last[at])} ({_value(learnt[at])} when learnt)" for at, task in enumerate(tasks[:-1][:_FEW])
    ]
    lost = mean_and_std(group.finals("forgetting"))[0]
    kept = "; ".join([*each, *["…"] * (len(tasks) > _FEW + 1), f"{tasks[-1]}, the last, {_value(last[-1])}"])
    return [f"What is left of each task, {what}: {kept}. Forgotten on the mean: {_value(lost)}."]


def _arrived(groups: Sequence[Group]) -> list[str]:
    """How many of the rows had come when the runs ended."""
    shares, rows = [], []
    for run in every_run(groups):
        came = number(run.history[-1].get("arrived")) if run.history else None
        total = rows_in_all(run)
        if came is not None and total:
            rows.append((came, total))
            shares.append(100 * came / total)
    if not shares:
        return []
    if len({*rows}) == 1:
        came, total = rows[0]
        return [f"{came:,.0f} of {total:,.0f} training rows ({shares[0]:.0f} %) had arrived by the end."]
    return [f"Of the training rows {range_text(shares)} % had arrived by the end."]


def _value(value: float | None) -> str:
    return text(plain, None if value is None else float(value))
