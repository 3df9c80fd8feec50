"""Tables of experiments that take a moment: softmax regression on scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedloom.engine.run import Progress
from fedloom.reproduce import Reproduction, read_plan

HEAD = """
title = "Digits"
repeats = 2
measure = { metric = "accuracy", scale = "percent" }

[run]
rounds = 2
data = { name = "digits", clients = 3 }
model = { name = "linear" }
"""
COLUMN = """
[[column]]
name = "iid"
"""
ROW = """
[[row]]
name = "FedAvg"
method = { name = "fedavg", lr = 0.1 }
"""
TASKS = """
[[run.task]]
name = "low"
classes = "first half"
[[run.task]]
name = "high"
classes = "second half"
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """``write(text, …)``: a file of these parts, in a working folder of its own."""
    monkeypatch.chdir(tmp_path)

    def put(*parts: str) -> Path:
        file = Path("digits.toml")
        file.write_text("".join(parts), encoding="utf-8")
        return file

    return put


class Told:
    """What a reproduction said, and the result it left."""

    def __init__(self, lines: list[str], failed: list[str], record: dict[str, Any]) -> None:
        self.lines, self.failed, self.record = lines, failed, record
        self.cells = {cell["title"]: cell for cell in record["cells"]}

    @property
    def done(self) -> list[str]:
        """The runs that were done now."""
        return [line for line in self.lines if "done already" not in line]


def work(
    file: Path,
    out: str = "out",
    *,
    only: tuple[str, ...] = (),
    force: bool = False,
    seeds: tuple[int, ...] = (),
    **how: Any,
) -> Told:
    """Reproduce a file into a folder."""
    plan = read_plan(file, **how)
    lines: list[str] = []
    reproduction = Reproduction(plan, Path(out), plan.matching(only), force=force, seeds=seeds)

    @contextmanager
    def watch(title: str) -> Iterator[Progress]:
        yield lambda row, total: None

    failed = reproduction.perform(watch, lines.append)
    return Told(lines, failed, reproduction.record(detailed=True))


@pytest.fixture
def reproduce() -> Callable[..., Told]:
    """``reproduce(file, …)``: what came of it."""
    return work


@pytest.fixture
def parts() -> dict[str, str]:
    """The parts of a small file: head, column, row, and tasks in sequence."""
    return {"head": HEAD, "column": COLUMN, "row": ROW, "tasks": TASKS}
