"""What clients gain by models of their own: beside the model of all, and beside being alone, client by client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom.report.curves import thin
from fedloom.report.groups import ALONE, Group, contest_of, direction, is_bound, mean_and_std, metric_names, sign_of
from fedloom.report.kinds import columns_of, task_names
from fedloom.report.look import canvas, colour, dot_style, meta, numbers, plain_text
from fedloom.report.pairs import Pair, signed
from fedloom.report.runs import RunRecord, read_record, section
from fedloom.report.words import lower_first, name_text, plural

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

BESIDE = {"global": "The global model", "local": "Each client alone", "server": "The server's model of the same run"}
"""What models of clients' own are set beside: that of another method, those of clients alone, that of their own run."""
MOST_DOTS = 400
_FIRST_CHOICE = "fedavg"


@dataclass(frozen=True)
class Gain:
    """One method's models of clients' own beside another model."""

    group: Group
    key: str
    beside: Group
    metric: str
    pair: Pair

    @property
    def words(self) -> str:
        """For how many clients it is better and worse, for whom most, and by how much on the mean."""
        pair, clients = self.pair, plural(len(self.pair.clients), "client")
        better, worse = len(pair.better), len(pair.worse)
        equal = len(pair.clients) - better - worse
        parts = [f"better than {self.beside.label} for {better:,} of {clients}"]
        parts += [f"equal for {equal:,}"] * (equal > 0) + [f"worse for {f'{worse:,}' if worse else 'none'}"]
        most = f", most of all client {pair.worse[0]} ({signed(pair.clients[pair.worse[0]])})" if worse else ""
        gain = pair.intervals.get("client")
        said = signed(sum(pair.clients.values()) / len(pair.clients)) if gain is None else f"{gain.words} (95 %)"
        return f"{self.group.label} is {', '.join(parts[:-1])} and {parts[-1]}{most}; mean gain {said}."

    @property
    def figures(self) -> str:
        """How sure the gain is over repeats, and what those have who gain least."""
        pair, found = self.pair, []
        for what in ("seed", "fold"):
            if (interval := pair.intervals.get(what)) is not None:
                found.append(f"Paired over {plural(interval.count, what)}: {interval.words} (95 %).")
        return " ".join([*found, f"The tenth of the clients that gains least: {signed(pair.least_tenth)}."])


def gains(groups: Sequence[Group], metric: str | None = None) -> list[Gain]:
    """Every method with models of clients' own beside what there is to set it beside, by the primary metric."""
    metric = metric or next((name for name in metric_names(groups) if direction(name) is not None), None)
    if metric is None:
        return []
    found = []
    for group in filter(is_personal, groups):
        for key, beside in _besides(group, groups).items():
            pair = Pair.of(group, beside, metric)
            if pair.clients:
                found.append(Gain(group, key, beside, metric, pair))
    return found


def told(groups: Sequence[Group]) -> list[Gain]:
    """Those that are said in words and figures: the server's model of the same run only where there is no other."""
    found = gains(groups)
    known = {gain.group.label for gain in found if gain.key == "global"}
    return [gain for gain in found if gain.key != "server" or gain.group.label not in known]


def gain_text(groups: Sequence[Group]) -> list[str]:
    """The gains in a sentence each."""
    return [gain.words for gain in told(groups)]


def gain_of(summary: dict[str, Any], folder: Path | None = None) -> list[str]:
    """The same of one run, by its summary; its folder, if it has one, knows what clients are called."""
    data = {} if folder is None else read_record(folder / "data.json")
    run = RunRecord(folder or Path(), {}, "", data, [], summary)
    return gain_text([Group(run.label, (run,))])


def best_text(groups: Sequence[Group]) -> list[str]:
    """The same of the best of the methods alone."""
    found = told(groups)
    if not found:
        return []
    metric, sign = found[0].metric, sign_of(found[0].metric)
    best = max((gain.group for gain in found), key=lambda group: sign * (mean_and_std(group.finals(metric))[0] or 0.0))
    return [gain.words for gain in found if gain.group is best]


def missing(groups: Sequence[Group]) -> list[str]:
    """Of methods with models of clients' own that can be set beside nothing: why."""
    known = {gain.group.label for gain in gains(groups)}
    return [
        f"{group.label}: {_why(next(run for run in group.runs if run.finished))}."
        for group in groups
        if group.label not in known and is_personal(group)
    ]


def is_personal(group: Group) -> bool:
    """Whether what was evaluated is each client's own model, or one adapted to its rows, and clients are not alone."""
    if any(run.method in ALONE or columns_of(run.data) or task_names(run) for run in group.runs):
        return False
    done = [run for run in group.runs if run.finished]
    return bool(done) and all(run.judged.get("model") in ("personal", "adapted") for run in done)


def by_run(gain: Gain) -> dict[int, tuple[float, float]]:
    """The mean gain over clients in each run, and the share of them that is worse off; by the run's ``id``."""
    found = {}
    for run in gain.group.runs:
        pair = Pair.of(replace(gain.group, runs=(run,)), gain.beside, gain.metric)
        if pair.clients:
            mean = sum(pair.clients.values()) / len(pair.clients)
            found[id(run)] = mean, len(pair.worse) / len(pair.clients)
    return found


def gain_picture(some: Sequence[Gain]) -> Figure | None:
    """A dot for each client: what it has with the other model, and what with its own; on the diagonal they are equal.

    Of one method the colours tell for whom it is better; of several, which method it is.
    """
    if not some:
        return None
    figure = canvas(height=460)
    ends = [value for gain in some for both in gain.pair.values.values() for value in both]
    room = 0.04 * (max(ends) - min(ends)) or 0.5
    span = [min(ends) - room, max(ends) + room]
    line = {"color": colour(6), "width": 1.5, "dash": "dash"}
    figure.add_scatter(x=span, y=span, mode="lines", hoverinfo="skip", showlegend=False, line=line, meta=meta(6))
    for at, (name, gain, clients) in enumerate(_parts(some)):
        figure.add_scatter(
            x=numbers(gain.pair.values[client][1] for client in clients),
            y=numbers(gain.pair.values[client][0] for client in clients),
            text=[plain_text(client) for client in clients],
            customdata=[signed(gain.pair.clients[client]) for client in clients],
            name=plain_text(name),
            hovertemplate="client %{text}: %{y:.4g}, beside %{x:.4g} (gain %{customdata})",
            **dot_style(at, 9),
        )
    what = name_text(some[0].metric)
    own = some[0].group.label if len(some) == 1 else "each method"
    figure.update_xaxes(title_text=plain_text(f"{what}, {_short(some[0].beside.label)}"), range=span)
    figure.update_yaxes(title_text=plain_text(f"{what}, {_short(own)}"), range=span)
    return figure


def _parts(some: Sequence[Gain]) -> list[tuple[str, Gain, list[str]]]:
    """The dots by what they have in common: of one method better, worse and equal; else the method."""
    if len(some) > 1:
        return [
            (f"{gain.group.label}: worse for {len(gain.pair.worse):,} of {len(gain.pair.clients):,}", gain, shown(gain))
            for gain in some
        ]
    (gain,) = some
    clients = shown(gain)
    better, worse = set(gain.pair.better), set(gain.pair.worse)
    equal = gain.pair.clients.keys() - better - worse
    found = {"better": better, "worse": worse, "equal": equal}
    return [
        (f"{what} for {len(those):,}", gain, [client for client in clients if client in those])
        for what, those in found.items()
        if those or what != "equal"
    ]


def shown(gain: Gain) -> list[str]:
    """The clients that are drawn: all, or of very many evenly spread ones by what they gain, with both ends."""
    ordered = sorted(gain.pair.clients, key=gain.pair.clients.__getitem__)
    return [ordered[at] for at in thin(len(ordered), MOST_DOTS)]


def _besides(group: Group, groups: Sequence[Group]) -> dict[str, Group]:
    """What a group's models are set beside, of what was judged on the same data and rows."""
    rivals = [one for one in groups if one.finished and not is_bound(one) and contest_of(one) == contest_of(group)]
    common = [one for one in rivals if all(run.judged.get("model") == "global" for run in one.runs)]
    common.sort(key=lambda one: one.runs[0].method != _FIRST_CHOICE)
    alone = [one for one in rivals if one.runs[0].method in ALONE]
    found = {"global": common[:1], "local": alone[:1], "server": _servers(group)}
    return {key: some[0] for key, some in found.items() if some}


def _servers(group: Group) -> list[Group]:
    """The server's model of the same runs, as if it were a method of its own; nothing where no summary tells of it."""
    runs = []
    for run in group.runs:
        beside = section(run.summary, "global")
        if values := {key: found for key in ("spread", "per_client") if (found := section(beside, key))}:
            rest = {key: value for key, value in run.summary.items() if key not in ("spread", "per_client")}
            runs.append(replace(run, history=[], summary=rest | values))
    return [Group(lower_first(BESIDE["server"]), tuple(runs))] if runs else []


def _why(run: RunRecord) -> str:
    """Why nothing is known of what clients gain."""
    stand_in = section(run.summary, "global").get("stand_in")
    if isinstance(stand_in, str):
        return (
            f"no model was trained for all that each client's own could be set beside, the server has {stand_in}; "
            "a comparison with fedavg and local tells what clients gain"
        )
    if not section(run.summary, "per_client"):
        return "what clients gain is not known, for the values of single clients were not kept"
    return "what clients gain is not known, for its summary, of an older fedloom, has only their own models"


def _short(label: str) -> str:
    return label if len(label) <= 40 else label[:39] + "…"
