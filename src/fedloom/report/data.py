"""The data of the runs: names, sizes, measures of heterogeneity, and who has what."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from fedloom.report.charts import Chart, Choice, drawn_figures
from fedloom.report.groups import Group, every_run, flatten
from fedloom.report.kinds import columns_of, parties_text
from fedloom.report.labels import column_picture, label_picture
from fedloom.report.runs import RunRecord, number, section
from fedloom.report.words import counted, name_text, plain, plural, range_text, text

_MOST_PARTITIONS = 12
_MOST_NOTES = 20


@dataclass(frozen=True)
class Data:
    """A row of texts by their headings for each distinct partition, what the partition had to say, and its picture."""

    rows: dict[str, dict[str, str]]
    notes: list[str]
    chart: Chart | None

    @property
    def heads(self) -> list[str]:
        """All headings of all rows."""
        return list(dict.fromkeys(head for row in self.rows.values() for head in row))


def data_of(groups: Sequence[Group]) -> Data | None:
    """What is known of the data of these runs; None where that is nothing."""
    data = _distinct(groups)
    if not data:
        return None
    some = dict(islice(data.items(), _MOST_PARTITIONS))
    notes = dict.fromkeys(str(note) for one in data.values() for note in one.get("notes") or [])
    return Data({name: _row(one) for name, one in some.items()}, list(notes)[:_MOST_NOTES], _chart(some, len(data)))


def data_name(run: RunRecord) -> str:
    """The name of a run's data."""
    return str(run.data.get("name") or run.summary.get("data") or section(run.config, "data").get("name") or "data")


def data_text(run: RunRecord) -> str:
    """A run's data, clients and partition in a line."""
    settings = section(run.config, "data")
    clients = run.data.get("clients") or settings.get("clients")
    parts = [data_name(run)]
    if columns_of(run.data):
        held = columns_of(run.data)
        each = f" with {' + '.join(map(str, held))} columns" if len(held) <= _MOST_PARTITIONS else ""
        return f"{parts[0]}, {len(held):,} parties{each}"
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


def _distinct(groups: Sequence[Group]) -> dict[str, dict[str, Any]]:
    """The data of these runs, each once, under a name that tells them apart."""
    seen: dict[str, list[RunRecord]] = {}
    for run in chain.from_iterable(run.parts or (run,) for run in every_run(groups)):
        if run.data:
            seen.setdefault(json.dumps(run.data, sort_keys=True, default=str), []).append(run)
    alike = len({data_text(runs[0]) for runs in seen.values()}) == 1
    names = [(data_name if alike else data_text)(runs[0]) + _seeds(runs) for runs in seen.values()]
    unique = [name if names.count(name) == 1 else f"{name}, no. {at + 1}" for at, name in enumerate(names)]
    return {name: runs[0].data for name, runs in zip(unique, seen.values(), strict=True)}


def _seeds(runs: list[RunRecord]) -> str:
    told = [
        f", {name} {', '.join(map(str, found))}"
        for name, values in (("seed", [run.seed for run in runs]), ("fold", [run.fold for run in runs]))
        if (found := sorted({value for value in values if value is not None}))
    ]
    return "".join(told)


def _row(data: dict[str, Any]) -> dict[str, str]:
    row = {}
    shared = columns_of(data)
    for split, sizes in section(data, "sizes").items():
        if shared and isinstance(sizes, list) and sizes:
            row[f"{name_text(split)} rows"] = text(counted, max(number(size) or 0 for size in sizes))
            continue
        known = [value for size in sizes if (value := number(size)) is not None] if isinstance(sizes, list) else []
        if known:
            some = f", first {len(sizes):,} clients" if len(sizes) < (number(data.get("clients")) or 0) else ""
            row[f"{name_text(split)} rows{some}"] = text(counted, sum(known))
            if split == "train":
                row["Rows a client"] = range_text(known)
    if shared:
        row["Parties"], row["Columns a party"] = str(len(shared)), range_text(shared)
    if data.get("classes"):
        row["Labels"] = str(len(data["classes"]))
    for key, entry in flatten(section(data, "heterogeneity")).items():
        if (measure := number(entry)) is not None:
            row[name_text(key.replace(".", " "))] = text(plain, measure)
    return row


def _chart(data: dict[str, dict[str, Any]], partitions: int) -> Chart | None:
    partition = Choice("data", "Data", {name: name for name in data})
    drawing = drawn_figures(
        [partition], lambda name: column_picture(data[name], columns_of(data[name])) or label_picture(data[name])
    )
    if drawing is None:
        return None
    first = data[next(iter(drawing.choices[0].options))]
    clients = first.get("clients", "all")
    if columns_of(first):
        held = f"Columns of each party: {parties_text(first)}."
        return Chart(
            "labels",
            drawing,
            held,
            "All parties have the same rows; each holds so many columns.",
            heading="Who has what",
        )
    return Chart(
        "labels",
        drawing,
        f"Rows of each client and of each label at each client, {clients} clients.",
        _caption(first, partitions),
        heading="Who has what",
    )


def _caption(first: dict[str, Any], partitions: int) -> str:
    words = ["Above: rows of each client."]
    if first.get("classes"):
        words.append(
            "Below: rows of each label at each client; an empty field is a label that the client does not have."
        )
    listed, clients = len(first.get("labels") or []), first.get("clients")
    if isinstance(clients, int) and 0 < listed < clients:
        words.append(f"The first {listed} of {clients:,} clients.")
    if partitions > _MOST_PARTITIONS:
        words.append(f"The first {_MOST_PARTITIONS} of {partitions} partitions.")
    return " ".join(words)
