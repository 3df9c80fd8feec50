"""The verdict in words, its paired intervals by hand, and the table as LaTeX, CSV and Markdown."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

import pytest

from fedloom.errors import ConfigError
from fedloom.report import group_runs, verdict, write_report, write_table
from fedloom.report.export import escaped
from fedloom.report.groups import Group
from fedloom.report.pairs import Interval, Pair
from fedloom.report.runs import RunRecord


def run(method: str, seed: int, clients: list[float], metric: str = "accuracy", label: str = "") -> RunRecord:
    mean = sum(clients) / len(clients)
    summary = {
        "method": method,
        "label": label or method,
        "seed": seed,
        "rounds": 3,
        "spread": {metric: {"weighted": mean, "mean": mean, "std": 0.1, "worst_tenth": min(clients)}},
        "per_client": {"clients": list(range(len(clients))), metric: clients},
        "finished": True,
    }
    config = {"method": {"name": method}, "seed": seed, "data": {"name": "wards"}}
    return RunRecord(Path(method), config, "", {"labels": ["north", "south", "west"]}, [{"round": 3}], summary)


def group(method: str, *seeds: list[float], metric: str = "accuracy") -> Group:
    return Group(method, tuple(run(method, seed, values, metric) for seed, values in enumerate(seeds)))


def test_the_interval_of_three_differences_is_students() -> None:
    found = Interval.of([1.0, 2.0, 3.0])
    assert found.mean == 2
    assert found.half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)  # t of 2 degrees of freedom at 97.5 %
    assert not found.sure
    assert Interval.of([2.0, 2.1, 2.2]).sure
    assert Interval.of([5.0]).half is None
    assert not Interval.of([5.0]).sure


def test_differences_are_paired_by_client_and_by_seed() -> None:
    ours, theirs = group("fedprox", [0.9, 0.8, 0.7], [0.9, 0.9, 0.6]), group("fedavg", [0.8, 0.8, 0.8], [0.8, 0.7, 0.9])
    pair = Pair.of(ours, theirs, "accuracy")
    assert pair.clients == pytest.approx({"north": 0.1, "south": 0.1, "west": -0.2})
    assert pair.seeds == pytest.approx({0: 0.0, 1: 0.0})
    assert pair.worse == ["west"]
    errors = Pair.of(group("a", [1.0, 2.0, 3.0], metric="rmse"), group("b", [2.0, 2.0, 2.0], metric="rmse"), "rmse")
    assert errors.clients == {"north": 1.0, "south": 0.0, "west": -1.0}  # less is better


def test_seeds_that_only_one_of_them_has_do_not_count() -> None:
    pair = Pair.of(group("a", [0.9, 0.9, 0.9], [0.1, 0.1, 0.1]), group("b", [0.8, 0.8, 0.8]), "accuracy")
    assert pair.seeds == pytest.approx({0: 0.1})
    assert "seed" not in pair.intervals


def test_the_verdict_names_the_best_that_can_be_used_and_for_whom_it_is_worse() -> None:
    said = verdict(
        [
            group("central", [0.95, 0.95, 0.95], [0.95, 0.95, 0.95]),
            group("fedavg", [0.80, 0.80, 0.80], [0.80, 0.80, 0.80]),
            group("fedprox", [0.90, 0.91, 0.89], [0.91, 0.90, 0.92]),
            group("local", [0.70, 0.70, 0.99], [0.70, 0.70, 0.99]),
        ]
    )
    assert said[0] == "fedprox is the best: accuracy 0.905, 0.105 better than fedavg."
    assert said[1] == "Paired over 3 clients: +0.105, from +0.105 to +0.105 (95 % interval, above 0 is better)."
    assert said[2].startswith("Paired over 2 seeds: +0.105, from ")
    assert said[3] == "No client is worse off than with fedavg."
    assert (
        said[4] == "1 of 3 clients is worse off than with local, where each is alone, most of all client west (−0.085)."
    )
    assert said[5] == "central pools all rows, a bound and no choice: 0.950, 0.045 better than fedprox."


def test_what_may_be_chance_is_not_called_better() -> None:
    apart = verdict([group("a", [0.9, 0.5, 0.7]), group("b", [0.5, 0.9, 0.69])])
    assert apart[0] == "a and b cannot be told apart: accuracy 0.700 and 0.697."
    equal = verdict([group("a", [0.5, 0.9, 0.7]), group("b", [0.9, 0.5, 0.7])])
    assert equal[0] == "a and b are equal: accuracy 0.700."
    alone = verdict([group("a", [0.9]), group("b", [0.5])])
    assert alone[0].endswith("one run each does not tell whether that is chance.")


def test_there_is_no_verdict_where_there_is_no_choice() -> None:
    assert verdict([group("fedavg", [0.9, 0.8, 0.7])]) == []
    assert verdict([group("fedavg", [0.9, 0.8, 0.7]), group("central", [0.9, 0.9, 0.9])]) == []
    assert verdict([group("a", [1.0, 2.0, 3.0], metric="mystery"), group("b", [1.0, 1.0, 1.0], metric="mystery")]) == []
    other = group("b", [0.9, 0.9, 0.9])
    other.runs[0].config["data"] = {"name": "elsewhere"}
    assert verdict([group("a", [0.9, 0.8, 0.7]), other]) == []
    three = verdict([group("a", [0.9, 0.8, 0.7]), group("c", [0.5, 0.4, 0.3]), other])
    assert three[0].startswith("a is the best")
    assert three[-1] == "Left out, as data or evaluation differ: b."


def test_runs_that_are_not_finished_are_left_out_and_that_is_said() -> None:
    late = group("late", [0.99, 0.99, 0.99])
    late.runs[0].summary["finished"] = False
    said = verdict([group("a", [0.9, 0.91, 0.92]), group("b", [0.5, 0.52, 0.51]), late])
    assert said[0].startswith("a is the best")
    assert said[-1] == "Left out, as not finished: late."


def test_the_page_says_the_verdict_first(comparison: Path, tmp_path: Path) -> None:
    text = write_report(comparison, tmp_path / "r.html").read_text(encoding="utf-8")
    assert text.index('class="verdict"') < text.index('class="cards"')
    assert re.search(r'<p class="first">fedavg is the best: accuracy', text)
    assert "± –" not in text


def test_the_table_is_written_as_csv_markdown_and_latex(tmp_path: Path) -> None:
    groups = group_runs([run("fedavg", 0, [0.9, 0.8, 0.7]), run("mine_x", 0, [0.5, 0.6, 0.55], label="Ours & <b>|")])
    rows = list(csv.DictReader(write_table(groups, tmp_path / "t.csv").open(encoding="utf-8")))
    assert [row["label"] for row in rows] == ["fedavg", "Ours & <b>|"]
    assert float(rows[0]["accuracy"]) == pytest.approx(0.8)
    lines = write_table(groups, str(tmp_path / "t.md")).read_text(encoding="utf-8").splitlines()
    assert lines[0] == "| Method | Accuracy | Spread over clients | Worst tenth |"
    assert lines[1] == "| --- | ---: | ---: | ---: |"
    assert lines[2] == "| fedavg | **0.800** | **0.100** | **0.700** |"
    assert lines[3] == r"| Ours & <b>\| | 0.550 | **0.100** | 0.500 |"
    latex = write_table(groups, tmp_path / "t.tex").read_text(encoding="utf-8")
    assert r"fedavg & \textbf{0.800} & \textbf{0.100} & \textbf{0.700} \\" in latex
    assert r"Ours \& $<$b$>$| & 0.550" in latex
    assert escaped("a_b 50 % ± x\\y") == r"a\_b 50 \% $\pm$ x\textbackslash{}y"
    with pytest.raises(ConfigError, match=r"a table ends in \.tex, \.csv or \.md"):
        write_table(groups, tmp_path / "t.xlsx")


def test_methods_compete_on_the_same_rows_each_with_its_own_model() -> None:
    own, other = group("local", [0.9, 0.91, 0.92]), group("fedavg", [0.5, 0.52, 0.51])
    own.runs[0].config["evaluation"] = {"model": "personal", "split": "test"}
    other.runs[0].config["evaluation"] = {"model": "global", "split": "test"}
    assert verdict([own, other])[0].startswith("local is the best")
    other.runs[0].config["evaluation"] = {"model": "global", "split": "test-query"}
    assert verdict([own, other]) == []
