"""What clients gain by models of their own: counts and intervals by hand, the dots, and why there may be none."""

from __future__ import annotations

import csv
import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fedloom
from fedloom.errors import ConfigError
from fedloom.report import html_table, rows, verdict, write_table
from fedloom.report.export import markdown
from fedloom.report.gain import MOST_DOTS, gain_of, gain_picture, gains, missing, told
from fedloom.report.groups import Group
from fedloom.report.notebook import draw
from fedloom.report.pairs import Pair
from fedloom.report.runs import RunRecord
from fedloom.report.sections import Section, chart_sections
from fedloom.report.story import story

NAMES = ["north", "south", "west", "east"]
T_3 = 3.182446305284263  # Student's t of 3 degrees of freedom at 97.5 %


def spread(values: list[float], metric: str) -> dict[str, Any]:
    mean = statistics.fmean(values)
    return {metric: {"weighted": mean, "mean": mean, "std": 0.1, "worst_tenth": min(values)}}


def table(values: list[float], metric: str) -> dict[str, Any]:
    return {"clients": list(range(len(values))), metric: values}


def run(
    method: str,
    seed: int,
    values: list[float],
    model: str = "global",
    server: list[float] | None = None,
    metric: str = "accuracy",
    **more: Any,
) -> RunRecord:
    summary = {
        "method": method,
        "label": method,
        "seed": seed,
        "rounds": 3,
        "spread": spread(values, metric),
        "per_client": table(values, metric),
        "judged": {"model": model, "on": "source", "split": "test"},
        "finished": True,
        **(
            {}
            if server is None
            else {"global": {"spread": spread(server, metric), "per_client": table(server, metric)}}
        ),
        **more,
    }
    config = {"method": {"name": method}, "seed": seed, "data": {"name": "wards"}}
    return RunRecord(Path(method), config, "", {"labels": NAMES}, [{"round": 3}], summary)


def group(method: str, *seeds: list[float], **how: Any) -> Group:
    return Group(method, tuple(run(method, seed, values, **how) for seed, values in enumerate(seeds)))


FEDPER = group("fedper", [0.9, 0.8, 0.7, 0.6], [0.9, 0.8, 0.7, 0.8], model="personal")
FEDAVG = group("fedavg", [0.8, 0.8, 0.8, 0.5], [0.8, 0.8, 0.8, 0.7])
LOCAL = group("local", [0.5, 0.7, 0.6, 0.6], [0.5, 0.7, 0.6, 0.8], model="personal")


def section_of(groups: list[Group]) -> Section | None:
    return next((one for one in chart_sections(groups) if one.key == "gain"), None)


def test_counts_and_intervals_by_hand() -> None:
    over, alone = gains([FEDAVG, FEDPER, LOCAL])
    assert (over.key, over.beside.label, alone.key, alone.beside.label) == ("global", "fedavg", "local", "local")
    assert over.pair.clients == pytest.approx({"north": 0.1, "south": 0.0, "west": -0.1, "east": 0.1})
    assert (over.pair.better, over.pair.worse, over.pair.clients["south"]) == (["east", "north"], ["west"], 0.0)
    assert over.pair.values["east"] == pytest.approx((0.7, 0.6))  # means over the two seeds
    half = T_3 * statistics.stdev([0.1, 0.0, -0.1, 0.1]) / 2
    interval = over.pair.intervals["client"]
    assert (interval.mean, interval.half) == (pytest.approx(0.025), pytest.approx(half, rel=1e-9))
    assert over.words == (
        "fedper is better than fedavg for 2 of 4 clients, equal for 1 and worse for 1, most of all client west "
        f"(−0.100); mean gain +0.025, from −{half - 0.025:.3f} to +{half + 0.025:.3f} (95 %)."
    )
    assert over.figures == (
        "Paired over 2 seeds: +0.025, from +0.025 to +0.025 (95 %). The tenth of the clients that gains least: −0.100."
    )
    assert alone.words.startswith("fedper is better than local for 3 of 4 clients, equal for 1 and worse for none; ")
    assert alone.pair.least_tenth == pytest.approx(0.0)


@pytest.mark.parametrize(("clients", "tenth"), [(1, 1), (10, 1), (11, 2), (20, 2), (21, 3)])
def test_the_tenth_that_gains_least_is_at_least_one_client(clients: int, tenth: int) -> None:
    pair = Pair({str(at): float(at) for at in reversed(range(clients))}, {})
    assert pair.least_tenth == pytest.approx((tenth - 1) / 2)


def test_the_rounding_of_a_mean_over_repeats_is_no_loss() -> None:
    ours = group("ditto", [0.1, 0.9], [0.2, 0.1], [0.3, 0.1], model="personal")
    (gain,) = gains([ours, group("fedavg", [0.3, 0.1], [0.2, 0.9], [0.1, 0.1])])
    assert 0.1 + 0.2 + 0.3 > 0.3 + 0.2 + 0.1
    assert gain.pair.clients == {"north": 0.0, "south": 0.0}
    assert gain.pair.worse == gain.pair.better == []


def test_less_is_better_of_an_error() -> None:
    ours = group("ditto", [1.0, 2.0, 5.0, 4.0], model="personal", metric="mae")
    (gain,) = gains([ours, group("fedavg", [2.0, 2.0, 4.0, 8.0], metric="mae")])
    assert gain.pair.clients == {"north": 1.0, "south": 0.0, "west": -1.0, "east": 4.0}
    section = section_of([ours, group("fedavg", [2.0, 2.0, 4.0, 8.0], metric="mae")])
    assert section is not None
    assert "Below the dashed line its own model serves it better." in section.charts[0].caption


def test_a_run_alone_is_set_beside_its_servers_model(tmp_path: Path) -> None:
    alone = group("ditto", [0.9, 0.8, 0.7], model="personal", server=[0.8, 0.8, 0.9])
    (gain,) = told([alone])
    assert gain.key == "server"
    assert gain.pair.clients == pytest.approx({"north": 0.1, "south": 0.0, "west": -0.2})
    said = "ditto is better than the server's model of the same run for 1 of 3 clients, equal for 1 and worse for 1, "
    assert any(line.startswith(said) for line in story([alone]))
    assert story([alone])[0].startswith("ditto has accuracy 0.8")
    (tmp_path / "data.json").write_text(json.dumps({"labels": NAMES}))
    assert gain_of(alone.runs[0].summary, tmp_path) == [gain.words]  # as ``fedloom run`` says it
    assert "client 2 (" in gain_of(alone.runs[0].summary)[0]
    assert gain_of(FEDAVG.runs[0].summary) == gain_of({"label": "tasks in sequence"}) == []
    both = [alone, group("fedavg", [0.1, 0.1, 0.1])]
    assert [one.key for one in gains(both)] == ["global", "server"]  # there to be chosen in the picture …
    assert [one.key for one in told(both)] == ["global"]  # … but said of the other method


def test_the_common_model_is_fedavgs_where_there_is_one_and_never_the_bound() -> None:
    others = [group(name, [0.5, 0.5]) for name in ("central", "scaffold", "fedavg")]
    ours = group("ditto", [0.9, 0.8], model="personal")
    assert [one.beside.label for one in gains([*others, ours])] == ["fedavg"]
    assert [one.beside.label for one in gains([*others[:2], ours])] == ["scaffold"]
    assert gains([others[0], ours]) == []
    elsewhere = group("fedavg", [0.5, 0.5], judged={"model": "global", "on": "source", "split": "test-query"})
    assert gains([elsewhere, ours]) == []  # other rows


def test_only_models_of_clients_own_gain_and_not_those_of_clients_alone() -> None:
    assert gains([FEDAVG, LOCAL]) == []
    assert section_of([FEDAVG, LOCAL]) is None
    assert "gain_over_global" not in rows([FEDAVG, LOCAL])[0]


def test_the_tables_have_the_mean_over_repeats_and_the_share_that_loses(tmp_path: Path) -> None:
    found = {row["label"]: row for row in rows([FEDAVG, FEDPER, LOCAL])}
    assert found["fedper"]["gain_over_global"] == pytest.approx(0.025)
    assert found["fedper"]["worse_than_global"] == 0.25
    assert found["fedper"]["gain_over_local"] == pytest.approx(0.15)
    assert (found["fedper"]["worse_than_local"], found["fedper"]["worse_than_local_std_over_runs"]) == (0.0, 0.0)
    assert found["fedavg"]["gain_over_global"] is None
    written = write_table([FEDAVG, FEDPER, LOCAL], tmp_path / "table.csv")
    with written.open() as file:
        assert [row["worse_than_global"] for row in csv.DictReader(file)] == ["", "0.25", ""]
    assert "Clients worse than with fedavg" in markdown([FEDAVG, FEDPER, LOCAL])
    assert "25 % ± 0" in markdown([FEDAVG, FEDPER, LOCAL])
    assert "Gain over" not in html_table([FEDAVG, FEDPER, LOCAL])  # its section tells of it, and the page is no wider
    other = markdown([group("ditto", [0.9, 0.8], model="personal", server=[0.8, 0.8])])
    assert "Gain over the global model" in other


def test_the_verdict_says_each_gain_once() -> None:
    said = verdict([FEDAVG, FEDPER, LOCAL])
    for other in ("fedavg", "local"):
        assert len([line for line in said if f"than {other} for" in line or f"off than with {other}" in line]) == 1


def test_a_dot_for_each_client_and_hostile_names_are_only_text() -> None:
    hostile = '<img src=x onerror=alert(1)>"</script>'
    runs = [replace(one, data={"labels": [hostile, "b", "c", "d"]}) for one in (*FEDPER.runs, *FEDAVG.runs)]
    ours, theirs = Group(hostile, tuple(runs[:2])), Group("fedavg", tuple(runs[2:]))
    figure = gain_picture(gains([ours, theirs]))
    assert figure is not None
    diagonal, *dots = figure.data
    assert list(diagonal.x) == list(diagonal.y) == list(figure.layout.xaxis.range) == list(figure.layout.yaxis.range)
    assert [trace.name for trace in dots] == ["better for 2", "worse for 1", "equal for 1"]
    assert sorted(y for trace in dots for y in trace.y) == pytest.approx([0.7, 0.7, 0.8, 0.9])
    assert "<img" not in figure.to_json()
    assert "&lt;img" in figure.layout.yaxis.title.text


def test_of_very_many_clients_some_are_drawn_and_all_are_counted() -> None:
    many = 3 * MOST_DOTS
    ours = group("ditto", [at / many for at in range(many)], model="personal")
    theirs = group("fedavg", [0.5] * many)
    section = section_of([ours, theirs])
    assert section is not None
    assert f"Of more than {MOST_DOTS} clients {MOST_DOTS} are drawn" in section.charts[0].caption
    figure = gain_picture(gains([ours, theirs]))
    assert figure is not None
    assert sum(len(trace.x) for trace in figure.data[1:]) == MOST_DOTS
    assert [trace.name for trace in figure.data[1:]] == ["better for 599", "worse for 600", "equal for 1"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "has only their own models"),
        ({"per_client": None}, "the values of single clients were not kept"),
        ({"global": {"stand_in": "the mean of the clients' models"}}, "the server has the mean of the clients' models"),
        ({"global": {"spread": {"accuracy": 3}, "per_client": "lost"}}, "has only their own models"),
        ({"global": [1, 2]}, "has only their own models"),
    ],
)
def test_what_is_not_known_is_said(changed: dict[str, Any], words: str) -> None:
    old = group("l2gd", [0.9, 0.8], model="personal", **changed)
    section = section_of([old])
    assert section is not None
    assert not section.charts
    assert words in section.missing
    assert section.missing == missing([old])[0]
    with pytest.raises(ConfigError, match="nothing to draw as 'gain'"):
        draw([old], "gain", None)


def test_runs_of_other_kinds_and_unfinished_ones_say_nothing_of_it() -> None:
    ours = group("ditto", [0.9, 0.8], model="personal", server=[0.8, 0.8])
    vertical = Group("v", tuple(replace(one, data={"columns": [2, 3]}) for one in ours.runs))
    tasks = Group("t", tuple(replace(one, matrix={"tasks": ["a", "b"]}) for one in ours.runs))
    going = Group("g", tuple(replace(one, summary={}) for one in ours.runs))
    for other in (vertical, tasks, going):
        assert gains([other]) == missing([other]) == []


def test_a_value_that_is_not_finite_is_no_dot() -> None:
    ours = group("ditto", [0.9, math.nan, 0.7], model="personal", server=[0.8, 0.8, math.inf])
    (gain,) = gains([ours])
    assert list(gain.pair.clients) == ["north"]
    assert gain.words.endswith("of the same run for 1 of 1 client and worse for none; mean gain +0.100.")


def test_a_run_and_a_comparison_draw_and_report_it(tmp_path: Path) -> None:
    data = fedloom.federate("digits", clients=4, partition="dirichlet", alpha=0.3)
    problem = fedloom.Problem(data, fedloom.build_model("linear", data))
    compared = fedloom.compare(["ditto", "fedavg", "local"], problem, rounds=1, seeds=1, out=tmp_path / "all")
    summary = compared.runs["ditto", 0].summary
    figure = compared.runs["ditto", 0].plot("gain")
    shown = [x for trace in figure.data[1:] for x in trace.x]
    assert sorted(shown) == pytest.approx(sorted(summary["global"]["per_client"]["accuracy"]), rel=1e-5)
    beside = compared.plot("gain", metric="loss", beside="local")
    dots = {client: y for trace in beside.data[1:] for client, y in zip(trace.text, trace.y, strict=True)}
    assert list(dots.values()) == pytest.approx(
        [summary["per_client"]["loss"][int(client)] for client in dots], rel=1e-5
    )
    with pytest.raises(ConfigError, match="no beside = 'nobody'; choose one of global, local, server"):
        compared.plot("gain", beside="nobody")
    page = compared.report.read_text() if compared.report is not None else ""
    assert '<h2 id="gain">' in page
    assert 'id="chart-gain"' in page
    told_in_json = json.loads((tmp_path / "all" / "compare.json").read_text())
    assert "gain_over_local" in json.dumps(told_in_json)
