"""What the folds of a cross-validation come to together: each row judged by the model that had not seen it."""

from __future__ import annotations

from collections.abc import Sequence

from fedloom.report.groups import Group, every_run, metric_names
from fedloom.report.runs import RunRecord, number, section
from fedloom.report.words import lower_first, name_text, plain, plural, text


def fold_count(run: RunRecord) -> int | None:
    """How many folds there are; None of a run that is none of them."""
    if run.fold is None:
        return None
    given = section(run.config, "data").get("folds", run.config.get("folds"))
    if isinstance(given, int):
        return given
    _, _, groups = str(given).partition(":")
    clients = run.data.get("clients") or section(run.config, "data").get("clients")
    return int(groups) if groups.isdecimal() else clients if isinstance(clients, int) else None


def out_of_fold(group: Group, metric: str) -> float | None:
    """A metric that is a mean over rows, over the rows of all folds; mean over seeds. None where a fold is missing."""
    found = []
    for seed in {run.seed for run in group.runs}:
        runs = [run for run in group.runs if run.seed == seed and run.finished and metric in row_means(run)]
        if not runs or {run.fold for run in runs} != set(range(1, (fold_count(runs[0]) or 0) + 1)):
            return None
        told = [(number(run.judged.get("rows")) or 0.0, run.final(metric)) for run in runs]
        rows = sum(many for many, _ in told)
        if not rows or any(value is None for _, value in told):
            return None
        found.append(sum(many * (value or 0.0) for many, value in told) / rows)
    return sum(found) / len(found) if found else None


def row_means(run: RunRecord) -> list[str]:
    """The metrics of a run that are means over the rows that it was judged on."""
    means = run.judged.get("row_means")
    return [str(name) for name in means] if isinstance(means, list) else []


def pooled_text(groups: Sequence[Group]) -> list[str]:
    """The first metric that is a mean over rows, out of fold, in a sentence; none where there are no folds."""
    runs = every_run(groups)
    metric = next((name for name in metric_names(groups) if any(name in row_means(run) for run in runs)), None)
    if metric is None or all(run.fold is None for run in runs):
        return []
    known = {group.label: out_of_fold(group, metric) for group in groups}
    each = ", ".join(f"{label} {text(plain, value)}" for label, value in known.items() if value is not None)
    if not each:
        return []
    count = fold_count(runs[0]) or 0
    what = lower_first(name_text(metric))
    return [f"Out of fold, {what} over the tested rows of all {plural(count, 'fold')} together: {each}."]
