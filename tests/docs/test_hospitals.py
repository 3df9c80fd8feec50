"""What the page of the five hospitals tells is what happens."""

from __future__ import annotations

from pathlib import Path

import hospitals


def test_five_hospitals_come_to_a_model_that_predicts_without_fedloom(tmp_path: Path) -> None:
    hospitals.use(tmp_path / "walk")


def test_the_same_files_on_real_nodes_end_in_the_same_bits(tmp_path: Path) -> None:
    hospitals.make_files(tmp_path / "walk")
    hospitals.deploy(tmp_path / "walk")
