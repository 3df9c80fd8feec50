"""What the page of the five hospitals tells is what happens."""

from __future__ import annotations

import shlex
from pathlib import Path

import five_hospitals
import pytest
from doc_pages import ROOT
from typer.testing import CliRunner

from fedloom.cli import app


def test_the_page_has_the_commands_of_the_script() -> None:
    page = (ROOT / "docs" / "how-to" / "hospitals.md").read_text()
    for command in (*five_hospitals.COMMANDS, five_hospitals.DEPLOYED[1]):
        assert " ".join(command.split()[:3]) in page


def test_five_hospitals_come_to_a_model_that_predicts_without_fedloom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def do(command: str, folder: Path) -> None:
        """The commands in this process, which has torch at hand; those of the fleet below are processes."""
        monkeypatch.chdir(folder)
        done = CliRunner().invoke(app, shlex.split(command)[1:], catch_exceptions=False)
        assert done.exit_code == 0, done.output

    monkeypatch.setattr(five_hospitals, "do", do)
    five_hospitals.use(tmp_path / "walk")


def test_the_same_files_on_real_nodes_end_in_the_same_bits(tmp_path: Path) -> None:
    five_hospitals.make_files(tmp_path / "walk")
    five_hospitals.deploy(tmp_path / "walk")
