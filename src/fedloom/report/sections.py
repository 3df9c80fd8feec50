"""The sections of a report that show charts: which there are, and the words around each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedloom.report import classes, continual, features, fleet, gain, kinds, plots, relations
from fedloom.report.charts import Chart, Choice, Sheet, drawn_curves, drawn_figures
from fedloom.report.curves import Curves, measure_curves, metric_curves
from fedloom.report.groups import Group, direction, headline, mean_and_std, metric_names
from fedloom.report.words import name_text, plain, text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


@dataclass(frozen=True)
class Section:
    """Charts under a heading, or what is said in their place."""

    key: str
    heading: str
    charts: tuple[Chart, ...]
    missing: str = ""
    words: tuple[str, ...] = ()
    """What is said of them first."""


def chart_sections(groups: Sequence[Group]) -> list[Section]:
    """All sections for which these runs have something to show."""
    found = [
        _section("tasks", "Tasks in sequence", _tasks(groups)),
        learning_section(groups),
        _section("arrivals", "Rows that arrive", _arrivals(groups)),
        _section("clients", "Spread over clients", *_over_clients(groups)),
        _gain(groups),
        _section("classes", "Classes and probabilities", _confusion(groups), _calibration(groups)),
        _section("participation", "Participation", _participation(groups)),
        _section("fleet", "The fleet in time", _fleet(groups)),
        _section("measures", "Measures of the method", _measures(groups)),
        _relations(groups),
        _section("features", "Input columns", _features(groups)),
    ]
    return [section for section in found if section.charts or section.missing]


def learning_section(
    groups: Sequence[Group], key: str = "curves", heading: str = "Learning curves", chart: str = "learning"
) -> Section:
    """The learning curves; ``key`` and ``chart`` are names that nothing else on the page has."""
    curves = _evaluated(groups)
    if not curves.lines:
        return Section(key, heading, (), missing="No round has been evaluated yet.")
    drawn = Chart(
        chart,
        drawn_curves(curves, "Metric"),
        f"Learning curves. {_finals(groups, next(iter(curves.lines)))}",
        "Choose the clock that counts for you: rounds, time, bytes or gradient evaluations."
        + _in_sequence(groups)
        + _how_to_read(groups, curves),
    )
    return Section(key, heading, (drawn,))


def _evaluated(groups: Sequence[Group]) -> Curves:
    """Every metric along the run; of tasks in sequence that of the task being learnt first, for it has every round."""
    pooled = any(headline(groups, name) == "pooled" for name in metric_names(groups)[:1])
    together = ("pooled", "weighted") if pooled else ("weighted",)
    curves = metric_curves(groups, together if kinds.is_vertical(groups) else (*together, "mean"))
    if not kinds.is_sequence(groups):
        return curves
    return replace(curves, lines=dict(sorted(curves.lines.items(), key=lambda line: line[0].startswith("average_"))))


def _in_sequence(groups: Sequence[Group]) -> str:
    """Which task the rounds of a sequence are about, where all have the same."""
    if not kinds.is_sequence(groups):
        return ""
    run = groups[0].runs[0]
    ends = {row["task"]: row["round"] for row in run.history if isinstance(row.get("task"), int)}
    tasks = kinds.task_names(run)
    if sorted(ends) != list(range(1, len(tasks) + 1)):
        return ""
    until = ", ".join(f"{task} up to round {ends[at]:,}" for at, task in enumerate(tasks, 1))
    return f" Each round is evaluated on the task being learnt: {until}."


def _arrivals(groups: Sequence[Group]) -> Chart | None:
    curves = kinds.arrivals(groups)
    if curves is None or not curves.lines:
        return None
    said = kinds.said(groups)[-1:]
    return Chart(
        "arrivals",
        drawn_curves(curves, "Shown"),
        f"Training rows that have arrived at the clients along the run. {' '.join(said)}",
        "Training rows that all clients together have been given so far; what has not arrived is not trained on."
        + _how_to_read(groups, curves),
    )


def _over_clients(groups: Sequence[Group]) -> tuple[Chart | None, ...]:
    """Parties that predict together do not differ."""
    return () if kinds.is_vertical(groups) else (_clients(groups), _spread_along(groups))


def _section(key: str, heading: str, *charts: Chart | None) -> Section:
    return Section(key, heading, tuple(chart for chart in charts if chart is not None))


def _tasks(groups: Sequence[Group]) -> Chart | None:
    averages = [name for name in metric_names(groups) if name.startswith("average")]
    ends = "".join(f" Average at the end: {_finals(groups, name)}" for name in averages[:1])
    return _of_each(
        groups,
        "tasks",
        continual.task_picture,
        f"How good the model was on each task after each.{ends}",
        "A row is what the model was after learning a task, a column the task that it was evaluated on; the first row "
        "is a model that has learnt nothing. Below the diagonal is what was forgotten, above it what was of use before "
        "it was learnt. Means over repeats.",
        _views(continual.VIEWS),
    )


def _confusion(groups: Sequence[Group]) -> Chart | None:
    return _of_each(
        groups,
        "confusion",
        classes.confusion_picture,
        "Which classes the model takes for which, at the end.",
        "A line is a class, a column what the model says of its rows; all evaluated rows of all clients together, "
        f"shares of the line in colour.{_first_of_repeats(groups)}",
        _views(classes.THRESHOLDS, "Threshold"),
    )


def _calibration(groups: Sequence[Group]) -> Chart | None:
    figure = classes.calibration_picture(groups)
    if figure is None:
        return None
    return Chart(
        "calibration",
        drawn_figures([Choice("view", "Shown as", {"curve": "Curve"})], lambda view: figure),  # type: ignore[arg-type]
        "How often what is said with a probability is true.",
        "Rows in ten bins of the probability; on the dashed line, what is said with 70 % is true in 70 % of the rows. "
        f"The larger a dot, the more rows.{_first_of_repeats(groups)}",
        heading="Calibration",
    )


def _clients(groups: Sequence[Group]) -> Chart | None:
    metrics = Choice("metric", "Metric", {metric: name_text(metric) for metric in metric_names(groups)})
    drawing = drawn_figures(
        [metrics, _views(plots.VIEWS)], lambda metric, view: plots.client_spread(groups, metric, view)
    )
    if drawing is None:
        return None
    first = next(iter(drawing.choices[0].options))
    return Chart(
        "clients",
        drawing,
        f"Final metric of each client. Worst tenth: {_finals(groups, first, 'worst_tenth')}",
        "All clients of all repeats; a dot is a client, a box holds the middle half of them, its line is the median. "
        "A good mean with a long tail serves some clients badly.",
        heading="At the end",
    )


def _gain(groups: Sequence[Group]) -> Section:
    """What clients gain by models of their own, in words and as dots; or why that is not known."""
    chart, lost = _gain_chart(gain.gains(groups)), gain.missing(groups)
    said = [f"{one.words} {one.figures}" for one in gain.told(groups)]
    charts = () if chart is None else (chart,)
    return Section("gain", "Gain of clients' own models", charts, " ".join(lost), (*said, *(lost if said else [])))


def _gain_chart(known: Sequence[gain.Gain]) -> Chart | None:
    """The dots: a reader chooses the method, and what it is set beside."""
    by = {(one.group.label, one.key): one for one in known}
    names = {key: {one.beside.label for one in known if one.key == key} for key in gain.BESIDE}
    besides = {
        key: f"{words}: {next(iter(names[key]))}" if key != "server" and len(names[key]) == 1 else words
        for key, words in gain.BESIDE.items()
    }
    drawing = drawn_figures(
        [Choice("group", "Experiment", {label: label for label, _ in by}), Choice("beside", "Beside", besides)],
        lambda *chosen: gain.gain_picture([by[chosen]] if chosen in by else []),
    )
    if drawing is None:
        return None
    side = "Below" if direction(known[0].metric) == "down" else "Above"
    caption = (
        "A dot is a client, mean over repeats: to the right what it has with the other model, upwards with its own. "
        f"{side} the dashed line its own model serves it better."
    )
    if any(len(one.pair.clients) > gain.MOST_DOTS for one in known):
        caption += f" Of more than {gain.MOST_DOTS} clients {gain.MOST_DOTS} are drawn, evenly spread by their gain."
    return Chart("gain", drawing, f"What each client gains by a model of its own. {known[0].words}", caption)


def _spread_along(groups: Sequence[Group]) -> Chart | None:
    curves = metric_curves(groups, ("worst_tenth", "std", "min", "max"))
    if not curves.lines:
        return None
    first = next(iter(curves.lines))
    return Chart(
        "spread",
        drawn_curves(curves, "Metric"),
        f"Worst tenth of the clients along the run. {_finals(groups, first, 'worst_tenth')}",
        "The worst tenth is the mean over the tenth of the clients that fare worst." + _how_to_read(groups, curves),
        heading="Along the run",
    )


def _participation(groups: Sequence[Group]) -> Chart | None:
    return _of_each(
        groups,
        "fates",
        plots.participation_chart,
        "Clients in each round by what became of their replies: accepted, late, lost, dropped or failed.",
        "Clients selected in each round and what became of them. Only accepted replies move the model.",
    )


def _fleet(groups: Sequence[Group]) -> Chart | None:
    times = fleet.fleet_times(groups)
    if not times:
        return None
    views = _views(fleet.VIEWS if any(time.long for time in times.values()) else {"start": "all jobs"}, "Shown")
    words = fleet.summary(times)
    caption = f"{words} {fleet.LEGEND}{_first_of_repeats(groups)}"
    return _of_each(groups, "fleet", fleet.fleet_picture, words, caption, views)


def _measures(groups: Sequence[Group]) -> Chart | None:
    curves = measure_curves(groups)
    if not curves.lines:
        return None
    caption = "What the methods measured about themselves. Methods without this measure have no line."
    if "mean_staleness" in curves.lines:
        caption += " Staleness is the age of a reply: steps that the server took since the client fetched its model."
    return Chart(
        "measures",
        drawn_curves(curves, "Measure"),
        f"What methods measured about themselves along the run: {', '.join(map(name_text, curves.lines))}.",
        caption + _how_to_read(groups, curves),
    )


def _relations(groups: Sequence[Group]) -> Section:
    """How clients' models are related, drawn and as tables; or why that is not shown."""
    said = [words for group in groups if (words := relations.relation_words(group))]
    chart = _of_each(
        groups,
        "relations",
        relations.relation_picture,
        f"How the models of clients are related. {' '.join(said)}",
        "Of every two clients how alike the method takes their models to be: 1 equal, 0 unrelated, -1 opposite. "
        "Clients are in an order in which related ones stand together. The graph has two lines a client on average, "
        f"the strongest; dashed ones are between opposite models.{_first_of_repeats(groups)}",
        _views(relations.VIEWS),
    )
    charts = () if chart is None else (replace(chart, sheets=_sheets(groups)),)
    missing = relations.left_out(groups)
    return Section("relations", "Related clients", charts, f"Not shown: {missing}." if missing else "", tuple(said))


def _sheets(groups: Sequence[Group]) -> tuple[Sheet, ...]:
    return tuple(sheet for group in groups if (sheet := relations.relation_sheet(group)) is not None)


def _features(groups: Sequence[Group]) -> Chart | None:
    return _of_each(
        groups,
        "features",
        features.feature_picture,
        "What the method measured of each input column along the run, as a heat map.",
        "A row is a column of the input, as the first layer of the model weighs it; a column is a round, up to "
        f"{features.STEPS} of them, evenly spread.{_first_of_repeats(groups)}",
    )


def _of_each(
    groups: Sequence[Group], key: str, draw: Callable[..., Figure | None], alt: str, caption: str, *choices: Choice
) -> Chart | None:
    """A reader chooses one of the experiments, and what else there is to choose; None where nothing can be drawn."""
    by_label = {group.label: group for group in groups}
    experiments = Choice("group", "Experiment", {label: label for label in by_label})
    drawing = drawn_figures([experiments, *choices], lambda label, *values: draw(by_label[label], *values))
    return None if drawing is None else Chart(key, drawing, alt, caption)


def _views(views: dict[str, str], title: str = "Shown as") -> Choice:
    return Choice("view", title, {view: words.capitalize() for view, words in views.items()})


def _finals(groups: Sequence[Group], metric: str, statistic: str | None = None) -> str:
    """The final values in one sentence: the text behind a chart for those who do not see it."""
    statistic = statistic or headline(groups, metric)
    parts = [f"{group.label} {text(plain, mean_and_std(group.finals(metric, statistic))[0])}" for group in groups]
    return f"{name_text(metric)} at the end: {', '.join(parts)}."


def _first_of_repeats(groups: Sequence[Group]) -> str:
    return " Of repeats, the first." * any(len(group.runs) > 1 for group in groups)


def _how_to_read(groups: Sequence[Group], curves: Curves) -> str:
    parts = []
    if any(len(group.runs) > 1 for group in groups):
        parts.append(" Lines are means over repeats, bands ± one standard deviation.")
    if any(len({run.rounds for run in group.runs}) > 1 for group in groups):
        parts.append(" Where fewer repeats reached a round, the mean is over those that did.")
    if "bytes" in curves.axes and any(not any(group.clocks("bytes_up")) for group in groups):
        parts.append(" What sends nothing stands at 0 bytes.")
    if curves.thinned:
        parts.append(" Long histories are thinned evenly.")
    return "".join(parts)
