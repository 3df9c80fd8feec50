"""What a report says first, in words: who is best or, where there is nothing to choose, how far the run came."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedloom.report import kinds
from fedloom.report.groups import Group, direction, is_bound, mean_and_std, metric_names
from fedloom.report.runs import evaluations, pick
from fedloom.report.verdict import verdict
from fedloom.report.words import lower_first, name_text, plain, plural, range_text, spread_text, text


def story(groups: Sequence[Group]) -> list[str]:
    """The sentences, the most important first."""
    return [*(verdict(groups) or _alone(groups)), *kinds.said(groups)]


def _alone(groups: Sequence[Group]) -> list[str]:
    """Of one experiment, perhaps beside what pools all rows: what it reached, from where, and for whom least."""
    usable = [group for group in groups if not is_bound(group)] or list(groups)
    names = metric_names(groups)
    if len(usable) != 1 or not names:
        return []
    group, metric = usable[0], names[0]
    mean, std = mean_and_std(group.finals(metric))
    if mean is None:
        return []
    what = lower_first(name_text(metric))
    if not math.isfinite(mean):
        return [f"{group.label} has no {what}: the model or its evaluation is not finite."]
    reached = f"{text(plain, mean)} {spread_text(plain, mean, std)}".strip()
    over = f" over {plural(len(group.runs), 'repeat')}" if std is not None else ""
    rounds = f"round {range_text([run.rounds for run in group.runs])}"
    found = [f"{group.label} has {what} {reached}{over} after {rounds}{_from(group, metric)}."]
    worst = mean_and_std(group.finals(metric, "worst_tenth"))[0]
    if worst is not None and math.isfinite(worst) and not kinds.is_vertical(groups):
        found.append(f"The tenth of the clients that fares worst has {text(plain, worst)}.")
    return [*found, *_bounds(groups, group, metric, mean)]


def _from(group: Group, metric: str) -> str:
    """Where the metric was before the first round."""
    rows = [run.history[0] for run in group.runs if run.history and run.history[0]["round"] == 0]
    firsts = [value for row in rows if (value := pick(evaluations(row).get(metric, {}), "weighted")) is not None]
    before = mean_and_std(firsts)[0]
    return "" if before is None or not math.isfinite(before) else f", from {text(plain, before)} before any"


def _bounds(groups: Sequence[Group], group: Group, metric: str, mean: float) -> list[str]:
    """How far it is from what pools all rows."""
    found, sign = [], -1.0 if direction(metric) == "down" else 1.0
    for bound in filter(is_bound, groups):
        other = mean_and_std(bound.finals(metric))[0]
        if bound is group or other is None or not math.isfinite(other):
            continue
        gap = sign * (other - mean)
        same = text(plain, other) == text(plain, mean)
        far = "the same" if same else f"{text(plain, abs(gap))} {'better' if gap > 0 else 'worse'} than {group.label}"
        found.append(f"{bound.label} pools all rows, a bound and no choice: {text(plain, other)}, {far}.")
    return found
