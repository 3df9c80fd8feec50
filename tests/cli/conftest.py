"""The command line, called in this process, in a working folder of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fedloom.cli import app

Call = Callable[..., Result]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """``call("run", "--rounds", 2)``: the result of a command, with its exit code and what it said."""
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()

    def run(*arguments: object, code: int = 0) -> Result:
        result = runner.invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return run


@pytest.fixture
def summary() -> Callable[[Path | str], dict[str, Any]]:
    """The summary of a run's folder."""
    return lambda folder: json.loads((Path(folder) / "summary.json").read_text())
