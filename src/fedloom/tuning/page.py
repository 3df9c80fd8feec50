"""What a tuning shows: a table for a terminal and for files, and a page of its trials."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.report.charts import Chart, Choice, drawn_figures
from fedloom.report.html import render_page, write_page
from fedloom.report.look import canvas, colour, meta, plain_text
from fedloom.report.sections import Section
from fedloom.report.words import command, name_text, plain, plural, text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure
    from rich.table import Table

Lines = Sequence[Mapping[str, Any]]
_SHOWN = 12
"""So many trials of a method are listed on the page; all are in trials.csv."""
_OWN = ("label", "trial", "rung", "rounds", "value", "lost")


def write_csv(path: Path, lines: Lines) -> None:
    """Write a table with every number in full."""
    flat = [_flat(line) for line in lines]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(key for line in flat for key in line)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    write_page(path, out.getvalue())


def read_trials(path: Path) -> list[dict[str, Any]]:
    """The lines of trials.csv, numbers as numbers."""
    with open(path, newline="", encoding="utf-8") as file:
        return [{key: _number(value) for key, value in line.items()} for line in csv.DictReader(file)]


def settings_text(values: Mapping[str, Any]) -> str:
    """What was found, in a few words."""
    said = ", ".join(f"{key.removeprefix('method.')} = {value}" for key, value in values.items())
    return said or "the defaults"


def titles_of(metric: str) -> list[str]:
    """The columns of the table that people read."""
    name = name_text(metric)
    return ["Found", f"{name}, validation", "with defaults", f"{name}, test", "with defaults", "Trials"]


def cells_of(row: Mapping[str, Any], higher: bool) -> list[str]:
    """A method's line of it."""
    numbers = [text(plain, row[key]) for key in ("validation", "validation_default", "test", "test_default")]
    for at, key in ((0, "validation_std"), (2, "test_std")):
        if row.get(key) is not None:
            numbers[at] += f" ± {plain(row[key]).text(row[key])}"
    lost = f" ({row['lost']} lost)" if row["lost"] else ""
    found = "all trials are lost" if row["trial"] is None else settings_text(row["values"])
    return [found, *numbers, f"{row['trials']}{lost}"]


def sorted_rows(table: Lines, higher: bool) -> list[Mapping[str, Any]]:
    """The best first."""
    sign = -1.0 if higher else 1.0
    return sorted(table, key=lambda row: (row["validation"] is None, sign * (row["validation"] or 0.0)))


def rich_table(table: Lines, higher: bool) -> Table:
    """The table for a terminal."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    drawn.add_column("Method", no_wrap=True)
    for at, title in enumerate(titles_of(table[0]["metric"])):
        drawn.add_column(Text(title), justify="left" if at == 0 else "right")
    for row in sorted_rows(table, higher):
        drawn.add_row(Text(row["label"]), *map(Text, cells_of(row, higher)))
    return drawn


def sentences(table: Lines, best: Mapping[str, Any] | None, split: str) -> list[str]:
    """What came of it, in words."""
    if best is None:
        return ["All trials of all methods are lost: try smaller step sizes, or another space."]
    metric = name_text(best["metric"])
    found = [
        f"{best['label']} with {settings_text(best['values'])} is the best that can be used: {metric.lower()} "
        f"{text(plain, best['validation'])} on the {split} rows, {text(plain, best['test'])} on the test rows."
    ]
    bounds = [row["label"] for row in table if row["bound"] and row is not best]
    if bounds:
        found.append(f"{', '.join(bounds)} has all rows in one place: it is a bound, and cannot be used.")
    lost = sum(row["lost"] for row in table)
    if lost:
        found.append(f"{plural(lost, 'trial')} diverged or could not be, and lost; trials.csv says why.")
    return found


def write_tuning_page(
    folder: Path,
    table: Lines,
    lines: Lines,
    *,
    data: str,
    best: Mapping[str, Any] | None,
    higher: bool,
    split: str,
    notes: Sequence[str],
    facts: Sequence[str],
) -> Path:
    """Write report.html: the table, what each trial came to, and how each hyper-parameter mattered."""
    metric = table[0]["metric"]
    rows = [(row["label"], row is best, cells_of(row, higher)) for row in sorted_rows(table, higher)]
    section = Section("trials", "Trials", tuple(_charts(lines, metric)), missing="No trial came to its end.")
    page = render_page(
        "tuning.html",
        section.charts,
        title=f"Tuning on {data}",
        facts=list(facts),
        sentences=sentences(table, best, split),
        titles=titles_of(metric),
        rows=rows,
        section=section,
        lists=[_listed(str(row["label"]), lines, higher) for row in sorted_rows(table, higher)],
        notes=list(notes),
        command=command("tune", "--resume", folder),
        again=None if best is None else command("run", folder / "best.toml"),
    )
    write_page(folder / "report.html", page)
    return folder / "report.html"


def trial_figure(lines: Lines, label: str, key: str, metric: str) -> Figure | None:
    """The value of each trial against one of its hyper-parameters; rungs have colours of their own."""
    from plotly.graph_objects import Scatter

    own = [line for line in lines if line["label"] == label and line["value"] is not None and line.get(key) is not None]
    if not own:
        return None
    figure = canvas(420)
    for at, rounds in enumerate(sorted({line["rounds"] for line in own})):
        some = [line for line in own if line["rounds"] == rounds]
        figure.add_trace(
            Scatter(
                x=[line[key] for line in some],
                y=[line["value"] for line in some],
                mode="markers",
                name=f"after {plural(int(rounds), 'round')}",
                marker={"size": 9, "color": colour(at)},
                meta=meta(at),
                text=[plain_text("the defaults" if line["trial"] == 0 else f"trial {line['trial']}") for line in some],
                hovertemplate="%{text}<br>%{x}: %{y:.4g}<extra></extra>",
            )
        )
    numbers = [line[key] for line in own if isinstance(line[key], int | float)]
    log = len(numbers) == len(own) and min(numbers) > 0 and max(numbers) / min(numbers) > 30
    figure.update_xaxes(title=plain_text(key), type="log" if log else None)
    figure.update_yaxes(title=f"{name_text(metric)}, validation rows")
    return figure


def _charts(lines: Lines, metric: str) -> list[Chart]:
    labels = dict.fromkeys(str(line["label"]) for line in lines)
    keys = dict.fromkeys(key for line in lines for key in line if key not in _OWN)
    names, settings = (
        {f"m{at}": label for at, label in enumerate(labels)},
        {f"k{at}": key for at, key in enumerate(keys)},
    )
    drawing = drawn_figures(
        (Choice("method", "Method", names), Choice("setting", "Against", settings)),
        lambda method, setting: trial_figure(lines, names[method], settings[setting], metric),
    )
    if drawing is None:
        return []
    alt = f"The {name_text(metric).lower()} of every trial on the validation rows against one of its settings."
    caption = "Each point is a trial, where it was stopped or at the end; trials of one colour had as many rounds."
    return [Chart("trials", drawing, alt, caption)]


def _listed(label: str, lines: Lines, higher: bool) -> dict[str, Any]:
    """The best trials of a method, for the page."""
    own = [line for line in lines if line["label"] == label]
    keys = [key for key in dict.fromkeys(key for line in own for key in line) if key not in _OWN]
    sign = -1.0 if higher else 1.0
    ranked = sorted(own, key=lambda line: (line["value"] is None, -line["rounds"], sign * (line["value"] or 0.0)))
    body = [
        (
            "defaults" if line["trial"] == 0 else str(line["trial"]),
            [str(line["rounds"]), *(_said(line.get(key)) for key in keys), line["lost"] or text(plain, line["value"])],
        )
        for line in ranked[:_SHOWN]
    ]
    left = len(own) - len(body)
    more = f"and {plural(left, 'trial')} more in trials.csv" if left else ""
    return {"label": label, "keys": [key.removeprefix("method.") for key in keys], "body": body, "more": more}


def _said(value: Any) -> str:
    return "–" if value is None or value == "" else f"{value:g}" if isinstance(value, float) else str(value)


def _flat(line: Mapping[str, Any]) -> dict[str, Any]:
    return {key: settings_text(value) if isinstance(value, Mapping) else value for key, value in line.items()}


def _number(value: str) -> Any:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value or None
