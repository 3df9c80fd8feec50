"""The page's words, section by section, as HTML. Every text that comes from a run is escaped here."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedloom.report.curves import STATISTICS, Curves
from fedloom.report.groups import Group, Target, direction, flatten, mean_and_std, metric_names
from fedloom.report.runs import RunRecord, number, section
from fedloom.report.table import html_table
from fedloom.report.words import (
    MISSING,
    Kind,
    counted,
    lower_first,
    name_text,
    plain,
    plural,
    sized,
    spread_text,
    text,
    timed,
)

MOST_PICTURES = 12
_PYTHON = (
    "A run without a command here was made by a Python program: its data and model are in that program, "
    "not in its settings."
)


def every_run(groups: Sequence[Group]) -> list[RunRecord]:
    """All runs of all groups."""
    return [run for group in groups for run in group.runs]


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


def data_name(run: RunRecord) -> str:
    """The name of a run's data."""
    return str(run.data.get("name") or run.summary.get("data") or section(run.config, "data").get("name") or "data")


def lead(groups: Sequence[Group]) -> str:
    """One line that says what was run, and one that says what was judged; only what all runs share."""
    runs = every_run(groups)
    facts = [fact for fact in (_shared(runs, tell) for tell in (_data, _model, _rounds, _fleet, _channel)) if fact]
    facts.append(_how_many(groups))
    chips = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    judged = _shared(runs, _evaluation)
    return f'<ul class="chips">{chips}</ul>' + (f'<p class="judged">{escape(judged)}</p>' if judged else "")


def notices(groups: Sequence[Group]) -> str:
    """What a reader must know before believing a number: runs that are not finished, seeds that were given twice."""
    found = []
    for run in every_run(groups):
        if not run.finished:
            of = f" of {run.planned_rounds:,}" if run.planned_rounds else ""
            resume = f"fedloom resume {shlex.quote(shown(run.folder))}"
            command = resume if run.repeatable else "train(…, out=…, resume=True)"
            found.append(
                f"{escape(_run_name(run))} is not finished: round {run.rounds:,}{of}. Its latest values are shown; "
                f"<code>{escape(command)}</code> goes on with it."
            )
    found += [
        f"{escape(group.label)}: {plural(group.repeated, 'run')} with a seed already there; each seed counts once."
        for group in groups
        if group.repeated
    ]
    if len(found) > 6:
        found = [*found[:5], f"… and {len(found) - 5} more of this kind."]
    return f'<ul class="notices" role="note">{"".join(f"<li>{one}</li>" for one in found)}</ul>' if found else ""


def cards(groups: Sequence[Group]) -> str:
    """The key figures."""
    found: list[tuple[str, str, str]] = []
    metrics = metric_names(groups)
    for name, statistic, what in [
        (m, s, w) for m in metrics[:1] for s, w in (("weighted", ""), ("worst_tenth", "worst tenth"))
    ]:
        if card := _metric_card(groups, name, statistic, what):
            found.append(card)
    runs = every_run(groups)
    found.append(("Rounds", _range([float(run.rounds) for run in runs], counted), _per_round(runs)))
    found += _cost_cards(groups)
    body = "".join(
        f'<div class="card"><dt>{escape(title)}</dt><dd class="figure">{escape(figure)}</dd>'
        f'<dd class="note">{escape(note)}</dd></div>'
        for title, figure, note in found
    )
    return f'<dl class="cards">{body}</dl>'


def results(groups: Sequence[Group], target: Target | None) -> str:
    """The table."""
    return html_table(groups, target)


def select(chart: str, key: str, title: str, options: dict[str, str], usual: str | None = None) -> str:
    """A choice above a chart, at first the usual one or the first; a choice of one needs no control, but its value is
    kept for the script.
    """
    chosen = "".join(
        f'<option value="{escape(value)}"{" selected" * (value == usual)}>{escape(text)}</option>'
        for value, text in options.items()
    )
    hidden = " hidden" if len(options) < 2 else ""
    return (
        f'<label{hidden}>{escape(title)} <select data-chart="{escape(chart)}" data-key="{escape(key)}" '
        f'autocomplete="off">{chosen}</select></label>'
    )


def curve_controls(chart: str, curves: Curves, what: str) -> str:
    """Quantity, statistic, clock and scale of a chart of curves."""
    statistics = {s: STATISTICS[s].capitalize() for lines in curves.lines.values() for s in lines}
    return (
        select(chart, "name", what, {name: name_text(name) for name in curves.lines})
        + select(chart, "statistic", "Shown as", statistics)
        + select(chart, "x", "Against", {key: axis.title for key, axis in curves.axes.items()}, curves.usual)
        + f'<label><input type="checkbox" data-chart="{chart}" data-key="log" autocomplete="off"> Log scale</label>'
    )


def figure(chart: str, alt: str, controls: str, caption: str) -> str:
    """A chart's place, its controls and how to read it."""
    return (
        f'<figure><div class="controls">{controls}</div>'
        f'<div class="chart" id="chart-{chart}" role="img" aria-label="{escape(alt)}"></div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def finals_text(groups: Sequence[Group], metric: str, statistic: str = "weighted") -> str:
    """The final values in one sentence: the text behind a chart for those who do not see it."""
    parts = [f"{group.label} {text(plain, mean_and_std(group.finals(metric, statistic))[0])}" for group in groups]
    return f"{name_text(metric)} at the end: {', '.join(parts)}."


def distinct_data(groups: Sequence[Group]) -> dict[str, dict[str, Any]]:
    """The data of these runs, each once, under a name that tells them apart."""
    seen: dict[str, list[RunRecord]] = {}
    for run in every_run(groups):
        if run.data:
            seen.setdefault(json.dumps(run.data, sort_keys=True, default=str), []).append(run)
    alike = len({_data(runs[0]) for runs in seen.values()}) == 1
    names = [_data_title(data_name(runs[0]) if alike else _data(runs[0]), runs) for runs in seen.values()]
    unique = [name if names.count(name) == 1 else f"{name}, no. {at + 1}" for at, name in enumerate(names)]
    return {name: runs[0].data for name, runs in zip(unique, seen.values(), strict=True)}


def data_facts(data: dict[str, dict[str, Any]]) -> str:
    """Sizes and measures of heterogeneity, a row for each distinct partition, and what the partition had to say."""
    tables = {name: _data_row(one) for name, one in data.items()}
    keys = dict.fromkeys(key for row in tables.values() for key in row)
    head = "".join(f'<th scope="col" class="number">{escape(key)}</th>' for key in keys)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f'<td class="number">{escape(row.get(key, MISSING))}</td>' for key in keys)
        + "</tr>"
        for name, row in list(tables.items())[:MOST_PICTURES]
    )
    notes = dict.fromkeys(str(note) for one in data.values() for note in one.get("notes") or [])
    items = "".join(f"<li>{escape(note)}</li>" for note in list(notes)[:20])
    return (
        '<div class="scroll" role="region" aria-label="The data in figures" tabindex="0"><table><thead><tr>'
        f'<th scope="col">Data</th>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        + (f'<h3>Notes of the partition</h3><ul class="plain">{items}</ul>' if items else "")
    )


def again(groups: Sequence[Group], paths: Sequence[Path], out: Path) -> str:
    """The commands, settings, versions and fingerprints with which anyone gets the same numbers."""
    commands = _compare_commands(paths) + [
        f"fedloom run {shlex.quote(shown(run.folder / 'config.toml'))}" for run in every_run(groups) if run.repeatable
    ]
    report = " ".join(
        ["fedloom report", *(shlex.quote(shown(path)) for path in paths), "--out", shlex.quote(shown(out))]
    )
    return (
        "<p>The same settings and seed give the same bits, whatever the executor and the number of workers.</p>"
        + ("" if all(run.repeatable for run in every_run(groups)) else f"<p>{_PYTHON}</p>")
        + (_code("The runs", "\n".join(commands)) if commands else "")
        + _code("This page", report)
        + "<h3>Fingerprints</h3>"
        + _fingerprints(groups)
        + "<h3>Settings</h3>"
        + (
            "<p>Without the folder at hand, save these as <code>config.toml</code> and run that.</p>"
            if commands
            else ""
        )
        + "".join(map(_settings, groups))
    )


def shown(path: Path) -> str:
    """A path as a command would have it: relative where it lies below the working folder."""
    absolute, here = Path(os.path.abspath(path)), Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(absolute)


def _run_name(run: RunRecord) -> str:
    return run.label if run.seed is None else f"{run.label}, seed {run.seed}"


def _shared(runs: Sequence[RunRecord], tell: Any) -> str:
    told = {tell(run) for run in runs}
    return str(told.pop()) if len(told) == 1 else ""


def _how_many(groups: Sequence[Group]) -> str:
    repeats = [len(group.runs) for group in groups]
    each = f"{plural(max(repeats), 'repeat')}{' each' * (len(groups) > 1)}"
    if max(repeats) == 1:
        return plural(len(groups), "run")
    return f"{plural(len(groups), 'experiment')}, {'up to ' * (len(set(repeats)) > 1)}{each}"


def _data(run: RunRecord) -> str:
    settings = section(run.config, "data")
    clients = run.data.get("clients") or settings.get("clients")
    parts = [data_name(run)]
    if clients:
        parts.append(plural(int(clients), "client"))
    partition = settings.get("partition")
    if partition:
        parts.append(
            "partition " + (" + ".join(map(str, partition)) if isinstance(partition, list) else str(partition))
        )
        if "dirichlet" in str(partition) and "alpha" in settings:
            parts[-1] += f" (α = {settings['alpha']})"
    return ", ".join(parts)


def _model(run: RunRecord) -> str:
    name = section(run.config, "model").get("name")
    parameters = run.summary.get("parameters")
    many = f", {plural(parameters, 'parameter')}" if isinstance(parameters, int) else ""
    return f"model {name}{many}" if name else ""


def _rounds(run: RunRecord) -> str:
    per_round = section(run.config, "selection").get("per_round")
    return f"{per_round} clients a round" if per_round else ""


def _fleet(run: RunRecord) -> str:
    preset = section(run.config, "fleet").get("preset")
    return f"fleet {preset}" if preset else ""


def _channel(run: RunRecord) -> str:
    steps = run.config.get("channel")
    names = [str(step.get("name")) for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    return "channel " + " → ".join(names) if names else ""


def _evaluation(run: RunRecord) -> str:
    settings = section(run.config, "evaluation")
    if not settings:
        return ""
    model, on, split = (
        str(settings.get(key, usual)) for key, usual in (("model", "global"), ("on", "source"), ("split", "test"))
    )
    who = "all clients" if on == "all" else f"the {on} clients"
    what = {"auto": "the method's own model", "personal": "each client's own model"}.get(model, f"the {model} model")
    return f"Judged: {what}, on {who}, {split} split."


def _metric_card(groups: Sequence[Group], metric: str, statistic: str, what: str) -> tuple[str, str, str] | None:
    """A metric at the end; of several groups, the best one's."""
    known = [
        (mean, std, group)
        for group in groups
        for mean, std in [mean_and_std(group.finals(metric, statistic))]
        if mean is not None
    ]
    if not known:
        return None
    title = name_text(metric) + (f", {what}" if what else "")
    if len(groups) == 1:
        mean, std, group = known[0]
        spread = mean_and_std(group.finals(metric, "std"))[0]
        over = f"spread over clients {text(plain, spread)}" if spread is not None else ""
        over = "mean of the clients that fare worst" if what else over
        repeats = f"{spread_text(plain, mean, std)} over {plural(len(group.runs), 'repeat')}"
        return title, text(plain, mean), over if std is None else repeats
    if direction(metric) is None:
        return None
    mean, std, group = (max if direction(metric) == "up" else min)(known, key=lambda one: one[0])
    spread_note = "" if std is None else f"{spread_text(plain, mean, std)}, "
    return f"Best {lower_first(title)}", text(plain, mean), spread_note + group.label


def _cost_cards(groups: Sequence[Group]) -> list[tuple[str, str, str]]:
    """Bytes and simulated time: of one group, or from the cheapest to the dearest."""
    clocks = ("bytes_up", "bytes_down", "simulated_seconds")
    means = {
        clock: [mean for group in groups if (mean := mean_and_std(group.clocks(clock))[0]) is not None]
        for clock in clocks
    }
    wall = [value for group in groups for value in group.clocks("wall_seconds")]
    found = []
    if up := means["bytes_up"]:
        down = f"down {_range(means['bytes_down'], sized)}" if means["bytes_down"] else ""
        found.append(("Bytes up", _range(up, sized), down))
    if simulated := means["simulated_seconds"]:
        note = f"wall time {text(timed, sum(wall))}{' in all' * (len(wall) > 1)}" if wall else ""
        found.append(("Simulated time", _range(simulated, timed), note))
    return found


def _range(values: Sequence[float], kind: Kind) -> str:
    low, high = text(kind, min(values)), text(kind, max(values))
    if low == high:
        return low
    unit = kind(max(values)).unit
    return f"{low.removesuffix(f' {unit}')} – {high}" if unit else f"{low} – {high}"


def _per_round(runs: Sequence[RunRecord]) -> str:
    return _shared(runs, _rounds)


def _data_title(name: str, runs: list[RunRecord]) -> str:
    seeds = sorted({run.seed for run in runs if run.seed is not None})
    return name + (f", seed {', '.join(map(str, seeds))}" if seeds else "")


def _data_row(data: dict[str, Any]) -> dict[str, str]:
    row = {}
    for split, sizes in section(data, "sizes").items():
        known = [value for size in sizes if (value := number(size)) is not None] if isinstance(sizes, list) else []
        if known:
            some = f", first {len(sizes):,} clients" if len(sizes) < (number(data.get("clients")) or 0) else ""
            row[f"{name_text(split)} rows{some}"] = text(counted, sum(known))
            if split == "train":
                row["Rows a client"] = _range(known, counted)
    if data.get("classes"):
        row["Labels"] = str(len(data["classes"]))
    for key, entry in flatten(section(data, "heterogeneity")).items():
        if (measure := number(entry)) is not None:
            row[name_text(key.replace(".", " "))] = text(plain, measure)
    return row


def _compare_commands(paths: Sequence[Path]) -> list[str]:
    """The commands that comparisons recorded of themselves."""
    found = []
    for path in paths:
        try:
            record = json.loads((path / "compare.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        command = record.get("command") if isinstance(record, dict) else None
        if isinstance(command, list):
            command = shlex.join(map(str, command))
        if isinstance(command, str) and command:
            found.append(command)
    return found


def _code(title: str, text: str) -> str:
    return (
        f'<div class="code"><div class="code-head"><span>{escape(title)}</span>'
        f'<button type="button" class="copy" aria-label="Copy: {escape(title)}">Copy</button></div>'
        f'<pre tabindex="0"><code>{escape(text)}</code></pre></div>'
    )


def _fingerprints(groups: Sequence[Group]) -> str:
    heads = ("Experiment", "Seed", "Rounds", "θ SHA-256", "fedloom", "Executor", "Stack", "Wall time")
    lines = []
    for group in groups:
        for run in group.runs:
            summary = run.summary
            values = (
                str(MISSING if run.seed is None else run.seed),
                f"{run.rounds:,}" + ("" if run.finished else " (not finished)"),
                str(summary.get("theta_sha256", MISSING)),
                *(str(summary.get(key, MISSING)) for key in ("fedloom", "executor", "stack")),
                text(timed, run.clock("wall_seconds")),
            )
            cells = "".join(
                f"<td{' class=hash' if at == 2 else ''}>{escape(value)}</td>" for at, value in enumerate(values)
            )
            lines.append(f'<tr><th scope="row">{escape(group.label)}</th>{cells}</tr>')
    head = "".join(f'<th scope="col">{title}</th>' for title in heads)
    return (
        '<div class="scroll" role="region" aria-label="Fingerprints of the runs" tabindex="0"><table class="fine">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _settings(group: Group) -> str:
    seeds = [str(run.seed) for run in group.runs if run.seed is not None]
    title = group.label + (f": seed {seeds[0]}" if seeds else "")
    others = (
        f"<p>The other repeats differ in <code>seed</code> alone: {escape(', '.join(seeds[1:]))}.</p>"
        if len(seeds) > 1
        else ""
    )
    config = group.runs[0].config_text.strip() or "(the folder has no config.toml)"
    return f"<details><summary>{escape(title)}</summary>{others}{_code('config.toml', config)}</details>"
