"""What a comparison says, in words: the best method that can be used, by how much, how surely, for whom it is worse.

Differences are paired (``pairs.py``), and so are those of models of clients' own to other models (``gain.py``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from fedloom.report.folds import pooled_text
from fedloom.report.gain import gain_text, told
from fedloom.report.groups import (
    ALONE,
    Group,
    contest_of,
    direction,
    headline,
    is_bound,
    mean_and_std,
    metric_names,
    sign_of,
)
from fedloom.report.pairs import Pair, signed
from fedloom.report.words import lower_first, name_text, plain, plural, text


def verdict(groups: Sequence[Group]) -> list[str]:
    """The sentences: who is best, what the folds of a cross-validation come to, what clients gain by own models."""
    return [*contest(groups), *pooled_text(groups), *gain_text(groups)]


def contest(groups: Sequence[Group]) -> list[str]:
    """Who is best; nothing where there is nothing to choose between, or nobody knows which way is better.

    Only what was judged on the same data and rows is compared: the most that there are.
    """
    names = [name for name in metric_names(groups) if direction(name) is not None]
    if not names:
        return []
    contests = Counter(contest_of(group) for group in groups if not is_bound(group))
    main = contests.most_common(1)[0][0] if contests else ""
    apart = [group for group in groups if contest_of(group) != main]
    started = [group for group in groups if group.finished < len(group.runs) and group not in apart]
    groups = [group for group in groups if group not in started and group not in apart]
    metric, sign = names[0], sign_of(names[0])
    statistic = headline(groups, metric)
    means = {group.label: mean_and_std(group.finals(metric, statistic))[0] for group in groups}
    known = [group for group in groups if (value := means[group.label]) is not None and math.isfinite(value)]
    ranked = sorted(known, key=lambda group: -sign * (means[group.label] or 0.0))
    usable = [group for group in ranked if not is_bound(group)]
    if len(usable) < 2:
        return []
    best, second = usable[0], usable[1]
    left_out = [
        f"Left out, as {why}: {', '.join(group.label for group in some)}."
        for why, some in (("not finished", started), ("data or evaluation differ", apart))
        if some
    ]
    pair = Pair.of(best, second, metric)
    said = [_first(best, second, metric, means, pair), *_intervals(pair)]
    gained = {gain.beside.label for gain in told(groups) if gain.group is best}  # of these the gain says for whom
    if second.label not in gained:
        said += _for_whom(pair, second.label)
    alone = next((group for group in usable[2:] if group.runs[0].method in ALONE), None)
    if alone is not None and alone.label not in gained:
        said += _for_whom(Pair.of(best, alone, metric), f"{alone.label}, where each is alone")
    for bound in filter(is_bound, ranked):
        said.append(bound_text(bound, means[bound.label] or 0.0, best, means[best.label] or 0.0, metric))
    return said + left_out


def bound_text(bound: Group, other: float, group: Group, mean: float, metric: str) -> str:
    """How far what pools all rows is from a group, by their means."""
    how = "better" if sign_of(metric) * (other - mean) > 0 else "worse"
    same = text(plain, other) == text(plain, mean)
    far = "the same" if same else f"{text(plain, abs(other - mean))} {how} than {group.label}"
    return f"{bound.label} pools all rows, a bound and no choice: {text(plain, other)}, {far}."


def _first(best: Group, second: Group, metric: str, means: dict[str, float | None], pair: Pair) -> str:
    one, other = means[best.label] or 0.0, means[second.label] or 0.0
    what = lower_first(name_text(metric))
    values = f"{what} {text(plain, one)} and {text(plain, other)}"
    if one == other:
        return f"{best.label} and {second.label} are equal: {what} {text(plain, one)}."
    if not pair.intervals:
        why = "one run each does not tell whether that is chance"
        return f"{best.label} is ahead of {second.label}: {values}; {why}."
    if not pair.sure:
        return f"{best.label} and {second.label} cannot be told apart: {values}."
    by = text(plain, abs(one - other))
    return f"{best.label} is the best: {what} {text(plain, one)}, {by} better than {second.label}."


def _intervals(pair: Pair) -> list[str]:
    """How sure the difference is, over clients, over seeds and over folds."""
    return [
        f"Paired over {plural(interval.count, what)}: {interval.words} (95 % interval, above 0 is better)."
        for what, interval in pair.intervals.items()
    ]


def _for_whom(pair: Pair, beside: str) -> list[str]:
    if not pair.clients:
        return []
    worse = pair.worse
    if not worse:
        return [f"No client is worse off than with {beside}."]
    most = f"most of all client {worse[0]} ({signed(pair.clients[worse[0]])})"
    are = "is" if len(worse) == 1 else "are"
    return [f"{len(worse):,} of {plural(len(pair.clients), 'client')} {are} worse off than with {beside}, {most}."]
