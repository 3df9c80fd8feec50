"""What stands at the top of a report: its title, what was run, what a reader must know first, and the key figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedloom.report.again import resume_command
from fedloom.report.data import data_name, data_text
from fedloom.report.groups import Group, direction, every_run, headline, is_bound, mean_and_std, metric_names
from fedloom.report.kinds import columns_of, is_vertical, tasks_text
from fedloom.report.runs import RunRecord, number, section
from fedloom.report.words import lower_first, name_text, plain, plural, range_text, sized, spread_text, text, timed

_MOST_NOTICES = 6
_COMMON = 0.5  # from which share of the rows on the commonest class is said beside the accuracy


@dataclass(frozen=True)
class Notice:
    """A word of warning; ``command`` goes on with a run that is not finished."""

    text: str
    command: str = ""


@dataclass(frozen=True)
class Card:
    """A key figure."""

    title: str
    figure: str
    note: str


def default_title(groups: Sequence[Group]) -> str:
    """What the page is called when nobody named it."""
    runs = every_run(groups)
    names = {str(run.config.get("name") or "") for run in runs}
    if len(names) == 1 and (name := names.pop()):
        return name
    data = " and ".join(sorted({data_name(run) for run in runs}))
    labels = [group.label for group in groups]
    who = ", ".join(labels[:-1]) + " and " + labels[-1] if 1 < len(labels) <= 4 else plural(len(labels), "experiment")
    return f"{labels[0] if len(labels) == 1 else who} on {data}"


def facts(groups: Sequence[Group]) -> list[str]:
    """What was run; only what all runs share."""
    tellers = (data_text, tasks_text, base_rate, _decision, _model, _per_round, _fleet, _channel)
    shared = [_shared(groups, tell) for tell in tellers]
    return [*filter(None, shared), _how_many(groups)]


def evaluated(groups: Sequence[Group]) -> str:
    """What was evaluated: the same for all runs, or of each group, and whether on the same rows."""
    if (same := _shared(groups, _evaluation)) or not all(_evaluation(run) for run in every_run(groups)):
        return same
    each = "; ".join(f"{group.label}: {_model_words(group.runs[0].judged)}" for group in groups)
    rows = {_rows_words(run.judged) for run in every_run(groups)}
    if len(rows) == 1:
        return f"All were evaluated alike, {rows.pop()}. {each}."
    each = "; ".join(f"{group.label}: {_evaluation(group.runs[0])}" for group in groups)
    return f"Not evaluated on the same rows, so the figures do not compare. {each}"


def notices(groups: Sequence[Group]) -> list[Notice]:
    """What a reader must know before believing a number: files that do not fit, unfinished runs, seeds given twice."""
    found = [Notice(f"{run.folder}: {line}.") for run in every_run(groups) for line in run.misfits]
    found += [_unfinished(run) for run in every_run(groups) if not run.finished]
    found += [
        Notice(f"{group.label}: {plural(group.repeated, 'run')} with a seed already there; each seed counts once.")
        for group in groups
        if group.repeated
    ]
    if len(found) > _MOST_NOTICES:
        left_out = len(found) - _MOST_NOTICES + 1
        found = [*found[: _MOST_NOTICES - 1], Notice(f"… and {left_out} more of this kind.")]
    return found


def cards(groups: Sequence[Group]) -> list[Card]:
    """The key figures: the primary metric, rounds, bytes and simulated time."""
    metrics = [
        _metric_card(groups, name, statistic, what)
        for name in metric_names(groups)[:1]
        for statistic, what in ((headline(groups, name), ""), ("worst_tenth", "worst tenth"))
        if not what or not is_vertical(groups)
    ]
    rounds = range_text([run.rounds for run in every_run(groups)])
    return [*filter(None, metrics), Card("Rounds", rounds, _shared(groups, _per_round)), *_cost_cards(groups)]


def _shared(groups: Sequence[Group], tell: Callable[[RunRecord], str]) -> str:
    told = {tell(run) for run in every_run(groups)}
    return told.pop() if len(told) == 1 else ""


def _how_many(groups: Sequence[Group]) -> str:
    repeats = [len(group.runs) for group in groups]
    folds = {run.fold for run in every_run(groups)} - {None}
    many = f"{plural(max(repeats), 'repeat')}{f' over {len(folds)} folds' if folds else ''}"
    each = f"{many}{' each' * (len(groups) > 1)}"
    if max(repeats) == 1:
        return plural(len(groups), "run")
    return f"{plural(len(groups), 'experiment')}, {'up to ' * (len(set(repeats)) > 1)}{each}"


def _model(run: RunRecord) -> str:
    name = section(run.config, "model").get("name")
    parameters = run.summary.get("parameters")
    many = f", {plural(parameters, 'parameter')}" if isinstance(parameters, int) else ""
    return f"model {name}{many}" if name else ""


def base_rate(run: RunRecord) -> str:
    """What always saying the commonest class would come to, where an accuracy is told that it makes look good."""
    told, share = section(run.summary, "base_rate"), number(section(run.summary, "base_rate").get("share"))
    if "accuracy" not in run.metrics or share is None or not share >= _COMMON:
        return ""
    return f'always "{told.get("class")}" has accuracy {text(plain, share)}'


def _decision(run: RunRecord) -> str:
    told = section(run.summary, "decision")
    at, split = number(told.get("threshold")), told.get("split")
    by = f", best for {told.get('rule')} on the {split} rows" if split else ""
    return "" if at is None else f"yes from {at:.3g} on{by}"


def _per_round(run: RunRecord) -> str:
    per_round = section(run.config, "selection").get("per_round")
    return f"{plural(per_round, 'client')} a round" if isinstance(per_round, int) else ""


def _fleet(run: RunRecord) -> str:
    preset = section(run.config, "fleet").get("preset")
    return f"fleet {preset}" if preset else ""


def _channel(run: RunRecord) -> str:
    steps = run.config.get("channel")
    names = [str(step.get("name")) for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    return "channel " + " → ".join(names) if names else ""


def _evaluation(run: RunRecord) -> str:
    told = run.judged
    if told and columns_of(run.data):
        return f"Evaluated: the prediction of all parties together, {told.get('split', 'test')} split."
    return f"Evaluated: {_model_words(told)}, {_rows_words(told)}." if told else ""


def _model_words(told: dict[str, Any]) -> str:
    model = str(told.get("model", "global"))
    words = {"auto": "the method's own model", "personal": "each client's own model"}.get(model, f"the {model} model")
    fitted = told.get("adapt_split")
    return f"{words}, fitted to the {fitted} split first" if model == "adapted" and fitted else words


def _rows_words(told: dict[str, Any]) -> str:
    on = told.get("on", "source")
    return f"on {'all clients' if on == 'all' else f'the {on} clients'}, {told.get('split', 'test')} split"


def _unfinished(run: RunRecord) -> Notice:
    name = ", ".join(filter(None, (run.label, run.repeat)))
    of = f" of {run.planned_rounds:,}" if run.planned_rounds else ""
    return Notice(f"{name} is not finished: round {run.rounds:,}{of}.", resume_command(run))


def _metric_card(groups: Sequence[Group], metric: str, statistic: str, what: str) -> Card | None:
    """A metric at the end; of several groups, the best one's."""
    usable = [group for group in groups if not is_bound(group)] or groups
    found = [(*mean_and_std(group.finals(metric, statistic)), group) for group in usable]
    known = [(mean, std, group) for mean, std, group in found if mean is not None]
    if not known:
        return None
    title = name_text(metric) + (f", {what}" if what else "")
    if len(groups) == 1:
        mean, std, group = known[0]
        spread = mean_and_std(group.finals(metric, "std"))[0]
        differ = spread is not None and not is_vertical(groups)
        over = f"spread over clients {text(plain, spread)}" if differ else ""
        if statistic == "pooled" and differ:
            mean_over = mean_and_std(group.finals(metric, "mean"))[0]
            over = f"pooled; {text(plain, mean_over)} ± {text(plain, spread)} over clients"
        over = "mean of the clients that fare worst" if what else over
        repeats = f"{spread_text(plain, mean, std)} over {plural(len(group.runs), 'repeat')}"
        return Card(title, text(plain, mean), over if std is None else repeats)
    if direction(metric) is None:
        return None
    mean, std, group = (max if direction(metric) == "up" else min)(known, key=lambda one: one[0])
    spread_note = "" if std is None else f"{spread_text(plain, mean, std)}, "
    return Card(f"Best {lower_first(title)}", text(plain, mean), spread_note + group.label)


def _cost_cards(groups: Sequence[Group]) -> list[Card]:
    """Bytes and simulated time: of one group, or from the cheapest to the dearest."""
    up, down, simulated = (
        [mean for group in groups if (mean := mean_and_std(group.clocks(clock))[0]) is not None]
        for clock in ("bytes_up", "bytes_down", "simulated_seconds")
    )
    wall = [value for group in groups for value in group.clocks("wall_seconds")]
    found = []
    if up:
        found.append(Card("Bytes up", range_text(up, sized), f"down {range_text(down, sized)}" if down else ""))
    if simulated:
        note = f"wall time {text(timed, sum(wall))}{' in all' * (len(wall) > 1)}" if wall else ""
        found.append(Card("Simulated time", range_text(simulated, timed), note))
    return found
