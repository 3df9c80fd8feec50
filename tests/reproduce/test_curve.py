"""The curves that are kept with a result."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedloom.reproduce import Reproduction, read_plan
from fedloom.reproduce.curve import POINTS

Write = Callable[..., Path]
Parts = dict[str, str]
Reproduce = Callable[..., Any]


@pytest.fixture
def curves(reproduce: Reproduce) -> Callable[[Path], dict[str, Any]]:
    """The curve of every cell, once its runs are done."""

    def made(file: Path) -> dict[str, Any]:
        reproduce(file)
        cells = Reproduction(read_plan(file), Path("out")).record(detailed=True)["cells"]
        return {cell["title"]: cell["curve"] for cell in cells}

    return made


def accuracies(seed: int) -> list[float]:
    """What the repeat with this seed was evaluated at."""
    lines = Path(f"out/FedAvg/iid/seed-{seed}/history.jsonl").read_text().splitlines()
    return [row["evaluation"]["accuracy"]["weighted"] for row in map(json.loads, lines) if "evaluation" in row]


def test_it_is_the_mean_over_the_repeats_in_the_units_of_the_table(write: Write, curves: Any, parts: Parts) -> None:
    evaluation = "evaluation = { every = 2 }\n"
    file = write(parts["head"].replace("rounds = 2", "rounds = 5"), evaluation, parts["column"], parts["row"])
    curve = curves(file)["FedAvg / iid"]
    assert set(curve) == {"rounds", "values"}
    assert curve["rounds"] == [0, 2, 4, 5]
    expected = [50 * (first + second) for first, second in zip(accuracies(0), accuracies(1), strict=True)]
    assert curve["values"] == pytest.approx(expected, rel=1e-4)


def test_where_simulated_time_passes_it_has_that_too(write: Write, curves: Any, parts: Parts) -> None:
    curve = curves(write(parts["head"], "fleet = { delay_up = 10 }\n", parts["column"], parts["row"]))["FedAvg / iid"]
    assert (curve["rounds"], curve["seconds"]) == ([0, 1, 2], [0, 10, 20])


def test_a_long_one_is_thinned_and_keeps_both_ends(write: Write, curves: Any, parts: Parts) -> None:
    head = parts["head"].replace("rounds = 2", "rounds = 100").replace("repeats = 2", "repeats = 1")
    curve = curves(write(head, parts["column"], parts["row"]))["FedAvg / iid"]
    assert len(curve["rounds"]) == POINTS
    assert (curve["rounds"][0], curve["rounds"][-1]) == (0, 100)
    assert curve["values"][-1] == pytest.approx(100 * accuracies(0)[-1], rel=1e-4)


def test_what_was_evaluated_once_or_belongs_to_another_column_has_none(write: Write, curves: Any, parts: Parts) -> None:
    other = '[[column]]\nname = "again"\nruns_of = "iid"\n[[column]]\nname = "once"\nevaluation = { every = 0 }\n'
    found = curves(write(parts["head"], parts["column"], other, parts["row"]))
    assert [title for title, curve in found.items() if curve] == ["FedAvg / iid"]


def test_tasks_in_sequence_have_the_way_on_the_task_that_is_learnt(write: Write, curves: Any, parts: Parts) -> None:
    head = (
        parts["head"].replace('"accuracy", scale', '"on first/accuracy", scale').replace("repeats = 2", "repeats = 1")
    )
    tasks = (
        '[[run.task]]\nname = "first"\nclasses = "first half"\n[[run.task]]\nname = "second"\nclasses = "second half"\n'
    )
    found = curves(write(head, "continual = {}\n", tasks, parts["column"], parts["row"]))["FedAvg / iid"]
    assert found["rounds"] == [0, 1, 2, 3, 4]
    assert found["values"] == pytest.approx([100 * value for value in accuracies(0)], rel=1e-4)
